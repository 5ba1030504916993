"""Tests of the one exit for text to Prefect: hostile texts go through every call of its API, and all that is sent is searched."""

import ast
import asyncio
import json
import logging
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast
from uuid import UUID

import httpx
import pytest
from markdown_it import MarkdownIt
from prefect import flow
from prefect.events.worker import EventsWorker
from prefect.logging.handlers import APILogWorker
from websockets.asyncio.connection import Connection

import plan_adapter
from plan_adapter import ExecutionPlan, PlanStore, ToolRegistry, tool
from plan_adapter.cli.app import main
from plan_adapter.engine.connection import Server, use_server
from plan_adapter.engine.deployments import DeploymentOptions, deployer
from plan_adapter.engine.draft_flow import current_flow_run, publish_draft, publish_summary, run_as_task
from plan_adapter.engine.form import build_form
from plan_adapter.engine.outgoing import artifact_key, event_payload, label, log_text, markdown, paragraphs, run_name, state_message
from plan_adapter.gates import PrefectApprover
from plan_adapter.gates.approval import answer_to
from plan_adapter.gates.gate import request_of
from plan_adapter.gates.policy import EffectivePolicy
from plan_adapter.model.approvals import ApprovalRequest, Gate
from plan_adapter.model.drafts import Draft, PlanRequest
from plan_adapter.model.options import Question
from plan_adapter.model.plan import Rollback, Step
from plan_adapter.model.readable import safe_name, visible
from plan_adapter.plans import Input
from plan_adapter.runbooks.deploy import runbook_deployment
from plan_adapter.runs import arun_plan
from plan_adapter.store import PlanStatus, dump_plan
from plan_adapter.text.draft_text import draft_text
from plan_adapter.tools.tool import ToolContext
from plan_adapter.validation import find_problems, validate
from plan_adapter.validation.inputs import form_schema, input_from_schema, read_values
from tests.cases import for_each

HOSTILE = {
    "hidden": "safe \u202eevil\u202c \u200bwi\u2060pe \ufeff\u00ad\u3164",
    "a terminal": "\x1b[2J\x1b[31mred\x1b]8;;http://evil.example\x07click\x9b31m\x08\x7f",
    "Markdown": "all is well\n\n## Approve nothing?\n\n[all details](javascript:alert(1)) ![p](http://evil.example/p.png)",
    "HTML": "<script>alert(1)</script><img src=x onerror=alert(1)></details><div hidden>&#x202e;&lt;b&gt;",
    "addresses": "see https://evil.example/q,http://evil.example or www.evil.example, `a`https://evil.example`b` ` x@evil.example",
    "references": "[all][r]\n\n[r]: javascript:alert(1)\n\n> ana approved this\n\n---\n",
}
ALL = " ".join(HOSTILE.values())
MARKDOWN = MarkdownIt("commonmark", {"html": True}).enable(["table", "strikethrough"])
ACTIVE = re.compile(
    r"<(?!/?(?:details|summary|b)\b)[a-z!/][^>]*(?:javascript:|onerror|evil\.example)|<(?:script|img|iframe|div|h2>Approve nothing)\b"
)
LINKED = re.compile(r"(?:https?|ftp)://|www\.|[\w.+-]@[\w-]+\.", re.IGNORECASE)
"""What GFM, and so both of Prefect's UIs, turns into a link anywhere but in code."""
DATA = ("parameters", "default", "enum", "labels.plan_adapter.keyset")
"""Values that are no text: they must arrive unchanged."""


@dataclass
class Requests:
    """The bodies of all requests to Prefect's server, and the messages over its web sockets, in this process."""

    bodies: list[tuple[str, str]] = field(default_factory=list[tuple[str, str]])

    def keep(self, where: str, body: str | bytes) -> None:
        """Keep one body."""
        self.bodies.append((where, body.decode() if isinstance(body, bytes) else body))

    def texts(self) -> Iterator[tuple[str, str]]:
        """Yield every text that was sent, with its place. Text in JSON in a text is yielded, too."""
        for where, body in self.bodies:
            yield where.partition(" ")[2], ""
            if body:
                yield from _texts(json.loads(body), where)

    def paths(self) -> set[str]:
        """Return the paths of the API that were called, without ids."""
        return {re.sub(r"[0-9a-f]{8}-[0-9a-f-]{27}", "ID", where) for where, _ in self.bodies}

    def check(self, *, least: int) -> None:
        """Assert that nothing sent hides text or is active Markdown, and that at least `least` texts came from the plan."""
        found = list(self.texts())
        assert sum("evil" in text or "Approve nothing" in text for _, text in found) >= least
        for place, text in found:
            if any(f".{name}" in place for name in DATA):
                continue
            assert visible(text) == text, (place, text)
            if place.endswith((".description", ".data", "-description", ".title")):
                assert not is_active(text), (place, text)


def is_active(text: str) -> bool:
    """Return whether the Markdown `text` has links, pictures or HTML of others, or would with the addresses that GFM links."""
    inline = [part for block in MARKDOWN.parse(text) for part in block.children or ()]
    return bool(ACTIVE.search(MARKDOWN.render(text))) or any(part.type == "text" and LINKED.search(part.content) for part in inline)


def _texts(value: Any, at: str) -> Iterator[tuple[str, str]]:
    if isinstance(value, dict):
        for name, member in cast("dict[str, Any]", value).items():
            yield at, name
            yield from _texts(member, f"{at}-description" if _is_form_text(value, name) else f"{at}.{name}")
    elif isinstance(value, list):
        for member in cast("list[Any]", value):
            yield from _texts(member, at)
    elif isinstance(value, str):
        inner = _json_in(value)
        yield from [(at, value)] if inner is None else _texts(inner, at)


def _is_form_text(value: Any, name: str) -> bool:
    return name == "value" and str(value.get("key", "")).endswith("-description")


def _json_in(text: str) -> Any:
    if not text.startswith(("{", "[", '"')):
        return None
    try:
        return json.loads(text)
    except ValueError:
        return None


@pytest.fixture
def requests(monkeypatch: pytest.MonkeyPatch) -> Requests:
    """Return what this process sends, through Prefect's clients and their queues."""
    found = Requests()
    asynchronous, synchronous, over_socket = httpx.AsyncClient.send, httpx.Client.send, Connection.send

    async def send(client: httpx.AsyncClient, request: httpx.Request, **given: Any) -> httpx.Response:
        found.keep(f"{request.method} {request.url.path}", request.content)
        return await asynchronous(client, request, **given)

    def send_now(client: httpx.Client, request: httpx.Request, **given: Any) -> httpx.Response:
        found.keep(f"{request.method} {request.url.path}", request.content)
        return synchronous(client, request, **given)

    async def send_message(connection: Connection, message: Any, *given: Any) -> None:
        found.keep("SEND event", message)
        await over_socket(connection, message, *given)

    monkeypatch.setattr(httpx.AsyncClient, "send", send)
    monkeypatch.setattr(httpx.Client, "send", send_now)
    monkeypatch.setattr(Connection, "send", send_message)
    return found


async def all_sent() -> None:
    """Wait until the queues of events and logs are empty."""
    await asyncio.to_thread(EventsWorker.drain_all, timeout=60)
    await asyncio.to_thread(APILogWorker.drain_all, timeout=60)


@tool(effect="read")
def look(text: str, context: ToolContext) -> str:
    """Return a text, after logging and printing it."""
    context.logger.info(text)
    try:
        raise RuntimeError(text)
    except RuntimeError:
        context.logger.exception(text)
    print(text)
    return text


@tool(effect="write")
def strike(text: str) -> None:
    """Fail with a text."""
    raise ValueError(text)


@tool(effect="write")
def undo(text: str) -> str:
    """Return a text."""
    return text


TOOLS = ToolRegistry([look, strike, undo])


def hostile_plan() -> ExecutionPlan:
    """Return a plan with hostile texts wherever it takes text: two gates, a question, items, retries, a failure and a rollback."""
    about = {"name": ALL, "description": ALL, "tags": ["[t](javascript:alert(1))", "<img src=x>"]}
    plan = ExecutionPlan(**about, inputs={"text": Input(default=ALL, title=ALL, description=ALL)})
    plan.run_name = "${{ inputs.text }} now"
    text = {"text": "${{ inputs.text }}"}
    plan.add_step("look", ALL, text, id="look", requires_approval=True)
    plan.add_step("look", ALL, {"text": "${{ item }}"}, id="each", for_each="${{ [inputs.text, '<img src=x onerror=alert(1)>', 'a'] }}")
    fields = {"why": Input(title=ALL, description=ALL), "how": Input(type="string", default=ALL, description="Plain [x](javascript:x)")}
    plan.steps.append(Step(id="ask", description=ALL, ask=Question(question=ALL, fields=fields), depends_on=["look"]))
    plan.add_step("undo", ALL, text, id="done", depends_on=["ask"], rollback=Rollback(tool_name="undo", parameters=text))
    plan.add_step("strike", ALL, text, id="strike", depends_on=["done"], max_retries=1)
    plan.add_step("look", ALL, text, id="after", depends_on=["strike"], when="${{ steps.ask.result.why == 'x' }}")
    return plan


async def answer_all(store: PlanStore, task: "asyncio.Task[Any]") -> list[Gate]:
    """Approve each gate of the run once its form stands in Prefect, in hostile words. Return the gates."""
    answered = dict[str, Gate]()
    while not task.done():
        for gate in await store.gates.find():
            if gate.id not in answered and gate.keyset is not None and gate.has_form:
                result = {"why": ALL, "how": ALL} if gate.kind == "question" else None
                answer = answer_to(request_of(gate), decision="approve", by=ALL, known_by="form", note=ALL, result=result)
                answered[gate.id] = await store.gates.answer(gate.id, answer)
        await asyncio.wait({task, asyncio.ensure_future(store.changed(0.2))}, return_when=asyncio.FIRST_COMPLETED)
    return [*answered.values()]


@pytest.mark.usefixtures("prefect_server")
async def test_no_text_of_a_run_hides_or_forges_anything_in_prefect(tmp_path: Path, requests: Requests) -> None:
    async with PlanStore(f"sqlite:///{tmp_path}/plans.db") as store:
        task = asyncio.ensure_future(arun_plan(hostile_plan(), tools=TOOLS, approver=PrefectApprover(), store=store))
        gates = await answer_all(store, task)
        run = await task
    await all_sent()
    assert (run.status, sorted(gate.kind for gate in gates)) == (PlanStatus.PARTIAL, ["approval", "approval", "question"])
    wanted = {"POST /api/logs/", "POST /api/artifacts/", "POST /api/flow_runs/ID/input", "POST /api/flow_runs/ID/set_state", "SEND event"}
    assert wanted <= requests.paths(), sorted(requests.paths())
    requests.check(least=50)


def test_no_text_of_a_run_that_waits_without_a_process_hides_anything(
    prefect_server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, requests: Requests
) -> None:
    plan = hostile_plan()
    plan.options.require_approval = True
    (tmp_path / "plan.yaml").write_text(dump_plan(plan))
    monkeypatch.setenv("PLAN_ADAPTER_HOME", str(tmp_path / "home"))
    tools = [f"--tools={__name__}:{name}" for name in ("look", "strike", "undo")]
    with use_server(prefect_server):
        assert main(["run", str(tmp_path / "plan.yaml"), "--detach", *tools]) == 6
        run_id = asyncio.run(_only_run())
        assert main(["reject", run_id, "--note", ALL]) == 0
        assert main(["resume", run_id, "--detach", *tools]) != 0
        asyncio.run(all_sent())
    requests.check(least=20)


async def _only_run() -> str:
    async with PlanStore() as store:
        (run,) = await store.runs()
    return run.id


@pytest.mark.usefixtures("prefect_server")
async def test_no_text_of_a_deployed_plan_hides_or_forges_anything(requests: Requests) -> None:
    validated = validate(hostile_plan(), TOOLS)
    async with deployer() as client:
        wanted = runbook_deployment(validated, EffectivePolicy(), inputs={}, options=DeploymentOptions(is_served=True))
        (planned,) = await client.compare([wanted])
        created = await client.apply(planned)
        (again,) = await client.compare([wanted])
        await client.client.delete_deployment(UUID(created.deployment_id or ""))
    assert again.action == "unchanged"
    assert "POST /api/deployments/" in requests.paths()
    requests.check(least=5)


@pytest.mark.usefixtures("prefect_server")
async def test_no_text_of_a_draft_hides_or_forges_anything(requests: Requests) -> None:
    draft = Draft(PlanRequest(task=ALL, constraints=(ALL,)), ALL, plan=hostile_plan(), speak=ALL, notes=[ALL], failure=ALL)

    @flow(persist_result=False)
    async def drafting() -> None:
        await run_as_task(f"ask {ALL}", no_answer)
        await publish_draft(draft_text(draft, whole=True))
        await publish_summary(ALL, str(current_flow_run()))

    await drafting()
    await all_sent()
    assert "POST /api/artifacts/" in requests.paths()
    requests.check(least=3)


async def no_answer() -> None:
    """Answer nothing."""


PLAIN: dict[str, Callable[[str], Any]] = {
    "state": state_message,
    "label": label,
    "name": run_name,
    "safe name": safe_name,
    "event": lambda text: json.dumps(event_payload({"a": [text, {"b": text}]}), ensure_ascii=False),
    "log": lambda text: log_text(logging.LogRecord("x", logging.INFO, "", 0, "%s", (text,), None)),
    "artifact": markdown,
    "description": paragraphs,
    "key": artifact_key,
}


@for_each(way=PLAIN, text=HOSTILE)
def test_every_exit_makes_hidden_characters_visible(way: str, text: str) -> None:
    shown = PLAIN[way](HOSTILE[text])
    assert visible(shown) == shown


@for_each(text=HOSTILE)
def test_the_fields_of_a_form_neither_hide_nor_link_anything(text: str) -> None:
    hostile = HOSTILE[text]
    fields = {"a": Input(title=hostile), "b": Input(description=hostile), "c": Input(default=hostile)}
    fields["d"] = Input(type="object", default={hostile: hostile})
    request = ApprovalRequest("d1" * 32, "plan", "about", text="text", kind="question", fields=fields, step_id="ask")
    for schema in (form_schema(fields), build_form(request).model_json_schema()):
        for place, value in _texts(schema, ""):
            assert visible(value) == value, place
            if place.endswith((".title", ".description")):
                assert not is_active(value), place


def test_a_default_with_hidden_characters_is_described_and_still_taken() -> None:
    fields = {"a": Input(default="safe\u202egro.elpmaxe", description="Where to."), "b": Input(default="东站\n二")}
    properties: Any = form_schema(fields)["properties"]
    assert "default" not in properties["a"]
    assert properties["a"]["description"] == "Where to. Empty: `safe\\u202egro.elpmaxe`"
    assert properties["b"]["default"] == "东站\n二"
    assert read_values(fields, {}, from_text=False)[0]["a"] == "safe\u202egro.elpmaxe"


def test_a_pattern_with_hidden_characters_is_checked_but_not_shown() -> None:
    fields = {"a": Input(pattern="^\u202ea$")}
    assert "pattern" not in cast("Any", form_schema(fields)["properties"])["a"]
    assert read_values(fields, {"a": "b"}, from_text=False)[1]


@for_each(choice=["safe\u202egro", "wi\u200bpe", "\x1b[31mred", "a\rb"])
def test_a_choice_that_a_form_would_not_show_is_refused(choice: str) -> None:
    plan = ExecutionPlan(name="p", description="p", inputs={"a": Input(enum=["good", choice])})
    plan.add_step("look", "x", {"text": "${{ inputs.a }}"}, id="look")
    (problem,) = find_problems(plan, TOOLS)
    assert (problem.code, problem.at) == ("bad-input-definition", "inputs.a.enum[1]")
    assert visible(problem.message) == problem.message


@for_each(choice=["好", "می\u200cخواهم", "👩\u200d💻", "⚠️", "1️⃣", "two\nlines"])
def test_choices_in_any_language_are_fine(choice: str) -> None:
    plan = ExecutionPlan(name="p", description="p", inputs={"a": Input(enum=["good", choice])})
    plan.add_step("look", "x", {"text": "${{ inputs.a }}"}, id="look")
    assert not find_problems(plan, TOOLS)


def test_a_title_reads_the_same_at_a_terminal_as_in_the_plan() -> None:
    shown = input_from_schema({"type": "string", **cast("Any", form_schema({"a": Input(title="CPU <80%> [x](y)")})["properties"])["a"]})
    assert shown.title == "CPU <80%> [x](y)"


STATES = {"Cancelled", "Cancelling", "Completed", "Crashed", "Failed", "Paused", "Pending", "Running", "Scheduled", "Suspended"}


def test_every_message_of_a_state_and_line_of_a_log_passes_the_exit() -> None:
    """A text that is not written in the source is passed through `outgoing`, wherever a state is made or a run's log is written."""
    root, found, checked = Path(plan_adapter.__file__).parent, list[str](), 0
    for file in [*root.glob("engine/*.py"), root / "flows.py", root / "tools/deployment.py"]:
        for call in (node for node in ast.walk(ast.parse(file.read_text())) if isinstance(node, ast.Call)):
            texts = [word.value for word in call.keywords if word.arg == "message"] if _called(call) in STATES else _logged(call)
            checked += len(texts)
            found += [f"{file.name}:{text.lineno}" for text in texts if not _is_safe(text)]
    assert (found, checked > 30) == ([], True)


def _called(call: ast.Call) -> str:
    return call.func.id if isinstance(call.func, ast.Name) else call.func.attr if isinstance(call.func, ast.Attribute) else ""


def _logged(call: ast.Call) -> list[ast.expr]:
    """Return the arguments of a call of a method of a run's logger."""
    owner = call.func.value if isinstance(call.func, ast.Attribute) else None
    is_run_logger = isinstance(owner, ast.Name) and owner.id == "logger"
    is_run_logger = is_run_logger or (isinstance(owner, ast.Call) and _called(owner) == "get_run_logger")
    return [argument for argument in call.args if not isinstance(argument, ast.Attribute)] if is_run_logger else []


def _is_safe(text: ast.expr) -> bool:
    if isinstance(text, ast.Call):
        return _called(text) in ("state_message", "log_line", "log_text", "_message")
    if isinstance(text, ast.BoolOp):
        return all(map(_is_safe, text.values))
    return isinstance(text, ast.Constant) or (isinstance(text, ast.Name) and (text.id.isupper() or text.id == "message"))
