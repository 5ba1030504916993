"""A run that passes every payload through every tool, shared by the tests of a module."""

import asyncio
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from plan_adapter import ExecutionPlan, PlanRun, PlanStore, ToolRegistry, tool
from plan_adapter.model.hooks import Event
from plan_adapter.model.record import Attempt, Receipt
from plan_adapter.model.status import Outcome
from plan_adapter.plans import Input
from plan_adapter.runs.run_session import RunRequest
from plan_adapter.runs.start import execute_plan
from plan_adapter.tools.tool import ToolContext
from plan_adapter.validation import bind_inputs, validate
from tests.text.payloads import PAYLOADS

ITEMS = list(PAYLOADS)


@dataclass
class PayloadRun:
    """The ended run, with the receipt and attempt of each payload at each place."""

    run: PlanRun
    receipts: dict[tuple[str, int | None], Receipt]
    attempts: dict[tuple[str, int | None], Attempt]
    logs: dict[str, list[str]]
    folder: Path
    url: str
    seen: list[tuple[str, str]]  # header and body of every request

    def receipt(self, place: str, payload: str) -> Receipt | None:
        """Return the receipt of a payload at a place, or None if the call was not made."""
        return self.receipts.get((place, ITEMS.index(payload)))

    def result(self, place: str, payload: str) -> Any:
        """Return the result of the successful call with a payload at a place."""
        receipt = self.receipt(place, payload)
        assert receipt is not None, "it was not called"
        assert receipt.outcome is Outcome.SUCCEEDED, receipt.error
        return receipt.result


@tool(effect="read")
def give() -> list[str]:
    """Return every payload, as a tool or a model would."""
    return list(PAYLOADS.values())


@tool(effect="read")
def take(whole: str, inside: str = "", nested: dict[str, list[str]] | None = None) -> dict[str, Any]:
    """Return what it was given."""
    return {"whole": whole, "inside": inside, "nested": nested}


@tool(effect="read")
def fail(text: str) -> None:
    """Fail with a text."""
    raise ValueError(text)


@tool(effect="read")
def tell(text: str, context: ToolContext) -> None:
    """Log a text and print it."""
    context.logger.info(text)
    print(text)


def plan_for_every_tool(url: str, database: str) -> ExecutionPlan:
    """Return a plan that passes each payload to each tool."""
    plan = ExecutionPlan(description="Pass text on", inputs={"texts": Input(type="array")})
    plan.options.require_approval, plan.options.stop_on_error = False, False
    plan.add_step("give", "Give", id="give")
    item, of_tool, of_inputs = "${{ item }}", "${{ steps.give.result }}", "${{ inputs.texts }}"
    shell = 'printf %s "$X"'
    made = "CREATE TABLE IF NOT EXISTS notes (place INTEGER PRIMARY KEY, v TEXT)"
    plan.add_step("sql_execute", "Make a table", {"url": database, "statement": made}, id="table")
    places: dict[str, tuple[str, str, dict[str, Any]]] = {
        "result": (of_tool, "take", {"whole": item, "inside": "<${{ item }}>", "nested": {"a": [item]}}),
        "input": (of_inputs, "take", {"whole": item, "inside": "${{ item + item }}", "nested": {"b": [item]}}),
        "argv": (of_tool, "run_command", {"argv": ["printf", "%s", item]}),
        "env": (of_tool, "run_command", {"argv": ["sh", "-c", shell], "env": {"X": item}}),
        "stdin": (of_tool, "run_command", {"argv": ["cat"], "stdin": item}),
        "bash": (of_inputs, "bash", {"command": shell, "env": {"X": item}}),
        "sql": (of_tool, "sql_query", {"url": database, "statement": "SELECT :v AS v", "parameters": {"v": item}}),
        "sql_kept": (
            of_tool,
            "sql_execute",
            {"url": database, "statement": "INSERT INTO notes (v) VALUES (:v)", "parameters": {"v": item}},
        ),
        "header": (of_tool, "http_get", {"url": url, "headers": {"X-Text": item}}),
        "body": (of_tool, "http_send", {"url": url, "body": {"text": item}}),
        "file_name": (of_tool, "write_file", {"path": item, "content": "here"}),
        "content": (of_tool, "write_file", {"path": "content.txt", "content": item}),
        "read_name": (of_tool, "read_file", {"path": item}),
        "error": (of_tool, "fail", {"text": item}),
        "log": (of_tool, "tell", {"text": item}),
    }
    for place, (items, name, parameters) in places.items():
        effect = "read" if name in ("run_command", "bash", "http_send", "sql_execute") else None
        depends_on = ["table"] if place.startswith("sql") else []
        plan.add_step(name, place, parameters, id=place, for_each=items, effect=effect, depends_on=depends_on, on_error="continue")
    plan.step("log").depends_on.append("content")  # some of its calls fail, and `on_error: continue` lets the run go on
    return plan


@pytest.fixture(scope="module")
def payload_run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PayloadRun]:
    """Run the plan; its description and metadata contain the payloads, too."""
    folder, seen = tmp_path_factory.mktemp("text") / "work", list[tuple[str, str]]()
    folder.mkdir()

    class Echo(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._note("")

        def do_POST(self) -> None:
            self._note(self.rfile.read(int(self.headers["content-length"])).decode())

        def _note(self, body: str) -> None:
            assert "X-Evil" not in self.headers
            seen.append((self.headers.get("X-Text", ""), body))
            self.send_response(200)
            self.send_header("X-Text", quote(self.headers.get("X-Text", "")))
            self.end_headers()
            self.wfile.write(body.encode())

        def log_message(self, *_: object) -> None:
            """Log nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Echo)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setenv("PLAN_ADAPTER_HOME", str(folder.parent / "home"))
        patch.setenv("PLAN_ADAPTER_FILES_ROOT", str(folder))
        patch.setenv("PLAN_ADAPTER_SECRET_TOKEN", "hush-hush-token")
        url = f"sqlite:///{folder.parent}/plans.db"
        yield asyncio.run(_run(folder, f"http://127.0.0.1:{server.server_port}/", url, seen))
    server.shutdown()
    server.server_close()


async def _run(folder: Path, address: str, url: str, seen: list[tuple[str, str]]) -> PayloadRun:
    plan, logs = plan_for_every_tool(address, f"sqlite:///{folder.parent}/notes.db"), dict[str, list[str]]()
    plan.description = "Pass text on\n\n" + "\n\n".join(PAYLOADS.values()).replace("\0", "")
    plan.metadata = {"texts": {name: text for name, text in PAYLOADS.items() if "\0" not in text}}
    tools = ToolRegistry.with_builtins([give, take, fail, tell])

    def listen(event: Event) -> None:
        if event.kind == "log" and event.step is not None:
            logs.setdefault(event.step.id, []).append(event.message or "")

    async with PlanStore(url) as store:
        bound = bind_inputs(validate(plan, tools), {"texts": [text.replace("\0", "") for text in PAYLOADS.values()]})
        run = await execute_plan(bound, run_request=RunRequest(tools=tools, listener=listen), store=store, offline=True)
        run = await store.run(run.id)
        receipts = {(receipt.step_id, receipt.item): receipt for receipt in await store.receipts(run.id)}
        attempts = {(attempt.step_id, attempt.item): attempt for attempt in await store.attempts(run.id)}
    return PayloadRun(run, receipts, attempts, logs, folder, url, seen)
