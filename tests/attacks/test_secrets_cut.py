"""Tests that truncated outputs, errors, log lines, bodies and model prompts contain no part of a secret."""

import asyncio
import base64
import json
import logging
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from plan_adapter import ExecutionPlan, PlanStore, ToolRegistry, tool
from plan_adapter.agent.remaining_plan import SHOWN_CHARACTERS, RemainingPlan, replan_context
from plan_adapter.execution.history import RunHistory
from plan_adapter.execution.redactor import Redactor
from plan_adapter.model.errors import MAX_ERROR_CHARACTERS, ToolError
from plan_adapter.runs import arun_plan
from plan_adapter.tools import ToolContext
from plan_adapter.tools.http import BODY_LIMIT, http_get
from plan_adapter.tools.processes import CHUNK, KEPT_CHARACTERS, LINE_CHARACTERS
from plan_adapter.tools.shell import ERROR_CHARACTERS, bash, run_command
from plan_adapter.validation import validate
from tests.secrets.test_canary import dump

SECRETS = {"ascii": "hunter2-Zx9QkLm4Tt7Vw1", "multibyte": "密码Zürich钥匙Ω7x4qPw9号", "long": "k3y." + "Qm7tZ0pXw4" * 30}
WINDOW = 6


def parts_in(text: str, secret: str) -> list[str]:
    """Return every short piece of `secret` that `text` contains."""
    return [secret[i : i + WINDOW] for i in range(len(secret) - WINDOW + 1) if secret[i : i + WINDOW] in text]


def context_for(*secrets: str) -> ToolContext:
    """Return the context of a step whose run has these secrets."""
    redactor = Redactor()
    for secret in secrets:
        redactor.add(secret)
    logger = logging.getLogger("tests.attacks.step")
    return ToolContext("run", "step", 1, "key", None, None, None, logger, None, redactor)


@pytest.fixture(autouse=True)
def lines(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    """Capture what the step logs."""
    caplog.set_level(logging.INFO)
    return caplog


def around(secret: str, boundary: int, inside: str, *, filler: str = "a", from_end: bool = False) -> str:
    """Return a text in which `secret` crosses `boundary`. `inside` says how many of its characters come before it."""
    before = {"one": 1, "half": len(secret) // 2, "all but one": len(secret) - 1}[inside]
    if from_end:
        return filler * 3 * boundary + secret + filler * (boundary - before)
    return filler * (boundary - before) + secret + filler * 3 * boundary


INSIDE = ("one", "half", "all but one")


@pytest.mark.parametrize("from_end", [False, True], ids=["beginning", "end"])
@pytest.mark.parametrize("inside", INSIDE)
@pytest.mark.parametrize("kind", SECRETS)
async def test_truncated_output_contains_no_part_of_a_secret(kind: str, inside: str, from_end: bool) -> None:
    secret = SECRETS[kind]
    text = around(secret, KEPT_CHARACTERS, inside, from_end=from_end, filler="中" if kind == "multibyte" else "a")
    result = await run_command(["cat"], context_for(secret), stdin=text)
    assert "characters left out" in str(result["stdout"])
    assert parts_in(str(result["stdout"]), secret) == []


FORMS = {
    "base64": lambda secret: base64.b64encode(secret.encode()).decode(),
    "hex": lambda secret: secret.encode().hex(),
    "URL": lambda secret: quote(secret, safe=""),
    "JSON": lambda secret: json.dumps(secret)[1:-1],
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("kind", ["ascii", "multibyte"])
async def test_truncated_output_contains_no_part_of_an_encoded_secret(kind: str, form: str) -> None:
    encoded = FORMS[form](SECRETS[kind])
    for from_end in (False, True):
        text = around(encoded, KEPT_CHARACTERS, "half", filler=" ", from_end=from_end)
        result = await run_command(["cat"], context_for(SECRETS[kind]), stdin=text)
        assert parts_in(str(result["stdout"]), encoded) == []


@pytest.mark.parametrize("inside", INSIDE)
@pytest.mark.parametrize("kind", SECRETS)
async def test_truncated_error_output_contains_no_part_of_a_secret(kind: str, inside: str) -> None:
    secret = SECRETS[kind]
    text = around(secret, ERROR_CHARACTERS, inside, from_end=True)
    for command in ('printf %s "$TEXT" >&2; exit 3', 'printf %s "$TEXT"; exit 3'):
        with pytest.raises(ToolError) as raised:
            await bash(command, context_for(secret), env={"TEXT": text})
        assert parts_in(str(raised.value), secret) == []


@pytest.mark.parametrize("boundary", [LINE_CHARACTERS, CHUNK, 2 * CHUNK], ids=["line", "chunk", "second chunk"])
@pytest.mark.parametrize("inside", INSIDE)
@pytest.mark.parametrize("kind", SECRETS)
async def test_log_lines_contain_no_part_of_a_secret(kind: str, inside: str, boundary: int, caplog: pytest.LogCaptureFixture) -> None:
    secret = SECRETS[kind]
    await run_command(["cat"], context_for(secret), stdin=around(secret, boundary, inside) + "\nlast line")
    messages = [record.getMessage() for record in caplog.records]
    assert messages[-1] == "last line"
    assert parts_in("\n".join(messages), secret) == []


async def test_a_secret_printed_in_pieces_is_masked(caplog: pytest.LogCaptureFixture) -> None:
    secret = SECRETS["ascii"]
    pieces = " ".join(secret[index : index + 3] for index in range(0, len(secret), 3))
    script = f"for piece in {pieces}; do printf %s $piece; sleep 0.02; done; echo; echo ok"
    result = await bash(script, context_for(secret))
    assert result["stdout"] == "***\nok\n"
    assert [record.getMessage() for record in caplog.records] == ["***", "ok"]


async def test_redaction_does_not_delay_log_lines(caplog: pytest.LogCaptureFixture) -> None:
    context, came = context_for(SECRETS["long"]), asyncio.Event()

    class FirstRecord(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            came.set()

    handler = FirstRecord()
    context.logger.addHandler(handler)
    try:
        running = asyncio.ensure_future(bash("echo first; exec sleep 600", context))
        await asyncio.wait_for(came.wait(), 60)  # the command is still running
        running.cancel()
        await asyncio.wait((running,))
    finally:
        context.logger.removeHandler(handler)
    assert "first" in caplog.messages


@pytest.fixture
def answer() -> Iterator[dict[str, Any]]:
    """Serve one response on loopback, with the `status` and `body` of this dict."""
    served: dict[str, Any] = {"status": 200, "body": b""}

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(served["status"])
            self.send_header("content-type", "text/plain; charset=utf-8")
            self.send_header("content-length", str(len(served["body"])))
            self.end_headers()
            try:
                self.wfile.write(served["body"])
            except (BrokenPipeError, ConnectionResetError):
                return

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    served["url"] = f"http://127.0.0.1:{server.server_port}/"
    yield served
    server.shutdown()
    server.server_close()


@pytest.mark.parametrize("inside", INSIDE)
@pytest.mark.parametrize("kind", ["ascii", "multibyte"])
async def test_a_truncated_body_contains_no_part_of_a_secret(kind: str, inside: str, answer: dict[str, Any]) -> None:
    secret = SECRETS[kind]
    before = {"one": 1, "half": len(secret.encode()) // 2, "all but one": len(secret.encode()) - 1}[inside]
    answer["body"] = b"a" * (BODY_LIMIT - before) + secret.encode() + b"b" * BODY_LIMIT
    body = str((await http_get(answer["url"], context_for(secret)))["body"])
    assert body.endswith(f"… cut after {BODY_LIMIT} bytes")
    assert parts_in(body, secret) == []


async def test_masks_do_not_pull_part_of_a_secret_into_a_truncated_body(answer: dict[str, Any]) -> None:
    secret = SECRETS["long"]
    answer["body"] = secret.encode() * (2 * BODY_LIMIT // len(secret))
    body = str((await http_get(answer["url"], context_for(secret)))["body"])
    assert parts_in(body, secret) == []


@pytest.mark.parametrize("inside", INSIDE)
@pytest.mark.parametrize("text", [SECRETS["ascii"], "correct horse\n\tbattery staple"], ids=["word", "words"])
async def test_http_errors_contain_no_part_of_a_secret(text: str, inside: str, answer: dict[str, Any]) -> None:
    answer |= {"status": 500, "body": around(text, 300, inside).encode()}
    with pytest.raises(ToolError) as raised:
        await http_get(answer["url"], context_for(text))
    assert parts_in(str(raised.value), text) == []
    assert parts_in(str(raised.value), " ".join(text.split())) == []


@pytest.mark.parametrize("length", [35, 39, 41, 57, 200])
def test_parameter_errors_contain_no_part_of_a_secret(length: int) -> None:
    secret = ("Zx9QkLm4Tt7Vw1" * 20)[:length]

    @tool(effect="read")
    def take(count: int, context: ToolContext) -> None:
        """Take a number."""

    with pytest.raises(ToolError) as raised:
        take.bind({"count": f"{secret}"}, context_for(secret))
    assert "`count` should be an integer, but is the text" in str(raised.value)
    assert parts_in(str(raised.value), secret) == []


@tool(effect="read")
def fail_at_the_cut(token: str, before: int) -> None:
    """Raise an error whose message is truncated inside the token."""
    raise ValueError("x" * (MAX_ERROR_CHARACTERS - len("ValueError: ") - before) + token + "y" * 2000)


@tool(effect="read", isolation="process")
def fail_at_the_cut_elsewhere(token: str, before: int) -> None:
    """Raise the same error in a child process."""
    raise ValueError("x" * (MAX_ERROR_CHARACTERS - len("ValueError: ") - before) + token + "y" * 2000)


TOOLS = ToolRegistry([fail_at_the_cut, fail_at_the_cut_elsewhere, bash])


async def test_the_store_contains_no_part_of_a_secret_after_a_run_with_truncated_texts(
    store_url: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    secret = SECRETS["ascii"]
    monkeypatch.setenv("PLAN_ADAPTER_SECRET_TOKEN", secret)
    plan = ExecutionPlan(description="Cut it")
    plan.options.require_approval, plan.options.continue_on_error = False, True
    for before in (1, 11, 21):
        for name in ("fail_at_the_cut", "fail_at_the_cut_elsewhere"):
            plan.add_step(name, "Fail", {"token": "${{ secrets.token }}", "before": before})
        for boundary, tail in ((KEPT_CHARACTERS, 0), (20_000, KEPT_CHARACTERS - before)):
            first = boundary if tail else boundary - before
            script = f'head -c {first} /dev/zero | tr "\\0" a; printf %s "$TOKEN"; head -c {tail or 30_000} /dev/zero | tr "\\0" b'
            plan.add_step("bash", "Print", {"command": script, "env": {"TOKEN": "${{ secrets.token }}"}}, effect="read")
            failing = {"command": f"({script}) >&2; exit 1", "env": {"TOKEN": "${{ secrets.token }}"}}
            plan.add_step("bash", "Fail", failing, effect="read")
    async with PlanStore(store_url) as store:
        run = await arun_plan(plan, tools=TOOLS, store=store, offline=True)
    assert {step.status.value for step in run.steps if "fail" in step.tool_name} == {"failed"}
    assert all("*" in str(step.result) for step in run.steps if step.description == "Print")  # the mask itself may be truncated
    for text in (await dump(store_url), caplog.text, repr(run)):
        assert parts_in(text, secret) == []


@pytest.mark.parametrize("inside", INSIDE)
async def test_a_replanning_model_is_sent_no_part_of_a_secret(inside: str, tmp_path: Path) -> None:
    secret = SECRETS["ascii"]  # the plan does not name it, so the record holds it unmasked
    printed = around(secret, SHOWN_CHARACTERS, inside)
    plan = ExecutionPlan(description="Look")
    plan.options.require_approval = False
    plan.add_step("bash", "Look", {"command": "echo; exit 1"}, id="failed", depends_on=["look"])
    plan.add_step("look", "Look", {}, id="look")

    @tool(effect="read")
    def look() -> str:
        """Look at something."""
        return printed

    tools = ToolRegistry([look, bash])
    async with PlanStore(f"sqlite:///{tmp_path / 'plans.db'}") as store:
        run = await arun_plan(plan, tools=tools, store=store, offline=True)
        receipts = await store.receipts(run.id)
    history = RunHistory(succeeded={(receipt.step_id, receipt.item): receipt for receipt in receipts if receipt.step_id == "look"})
    redactor = Redactor()
    redactor.add(secret)
    context = replan_context(run, RemainingPlan.of(validate(plan, tools), history), history, redactor)
    assert "characters more" in json.dumps(context)
    assert parts_in(json.dumps(context, ensure_ascii=False), secret) == []
