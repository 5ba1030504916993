"""Attacks on secrets: cut in half before they are masked, inherited by commands, shown as somebody else's text."""

import asyncio
import base64
import json
import logging
import os
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from plan_adapter import ExecutionPlan, Input, PlanStore, ToolContext, ToolRegistry, arun_plan, load_plan, run_plan, tool
from plan_adapter.agent.replan import SHOWN_CHARACTERS, RemainingPlan, replan_context
from plan_adapter.credentials import credential_values, without_credentials
from plan_adapter.errors import MAX_ERROR_CHARACTERS, ToolError
from plan_adapter.execution.history import RunHistory
from plan_adapter.execution.secrets import Redactor
from plan_adapter.gates.approval import answer_to
from plan_adapter.record import Approval, ApprovalRequest
from plan_adapter.tools.http import BODY_LIMIT, http_get
from plan_adapter.tools.processes import CHUNK, KEPT_CHARACTERS, LINE_CHARACTERS
from plan_adapter.tools.shell import ERROR_CHARACTERS, bash, run_command
from plan_adapter.validation import validate
from tests.secrets.test_canary import dump

SECRETS = {"ascii": "hunter2-Zx9QkLm4Tt7Vw1", "multibyte": "密码Zürich钥匙Ω7x4qPw9号", "long": "k3y." + "Qm7tZ0pXw4" * 30}
WINDOW = 6


def parts_in(text: str, secret: str) -> list[str]:
    """Return every piece of a few characters of `secret` that `text` shows."""
    return [secret[i : i + WINDOW] for i in range(len(secret) - WINDOW + 1) if secret[i : i + WINDOW] in text]


def context_for(*secrets: str) -> ToolContext:
    """Return the context of a step of a run that has these secrets."""
    redactor = Redactor()
    for secret in secrets:
        redactor.add(secret)
    logger = logging.getLogger("tests.attacks.step")
    return ToolContext("run", "step", 1, "key", None, None, None, logger, None, redactor)


@pytest.fixture(autouse=True)
def lines(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    """Keep what the step logs."""
    caplog.set_level(logging.INFO)
    return caplog


def around(secret: str, boundary: int, inside: str, *, filler: str = "a", from_end: bool = False) -> str:
    """Return a text in which `secret` stands across `boundary`; of `inside` it, one character, half or all but one are before it."""
    before = {"one": 1, "half": len(secret) // 2, "all but one": len(secret) - 1}[inside]
    if from_end:
        return filler * 3 * boundary + secret + filler * (boundary - before)
    return filler * (boundary - before) + secret + filler * 3 * boundary


INSIDE = ("one", "half", "all but one")


@pytest.mark.parametrize("from_end", [False, True], ids=["beginning", "end"])
@pytest.mark.parametrize("inside", INSIDE)
@pytest.mark.parametrize("kind", SECRETS)
async def test_no_part_of_a_secret_remains_where_an_output_is_cut(kind: str, inside: str, from_end: bool) -> None:
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
async def test_no_part_of_an_encoded_secret_remains_where_an_output_is_cut(kind: str, form: str) -> None:
    encoded = FORMS[form](SECRETS[kind])
    for from_end in (False, True):
        text = around(encoded, KEPT_CHARACTERS, "half", filler=" ", from_end=from_end)
        result = await run_command(["cat"], context_for(SECRETS[kind]), stdin=text)
        assert parts_in(str(result["stdout"]), encoded) == []


@pytest.mark.parametrize("inside", INSIDE)
@pytest.mark.parametrize("kind", SECRETS)
async def test_no_part_of_a_secret_remains_where_an_error_output_is_cut(kind: str, inside: str) -> None:
    secret = SECRETS[kind]
    text = around(secret, ERROR_CHARACTERS, inside, from_end=True)
    for command in ('printf %s "$TEXT" >&2; exit 3', 'printf %s "$TEXT"; exit 3'):
        with pytest.raises(ToolError) as raised:
            await bash(command, context_for(secret), env={"TEXT": text})
        assert parts_in(str(raised.value), secret) == []


@pytest.mark.parametrize("boundary", [LINE_CHARACTERS, CHUNK, 2 * CHUNK], ids=["line", "chunk", "second chunk"])
@pytest.mark.parametrize("inside", INSIDE)
@pytest.mark.parametrize("kind", SECRETS)
async def test_no_part_of_a_secret_remains_in_log_lines(kind: str, inside: str, boundary: int, caplog: pytest.LogCaptureFixture) -> None:
    secret = SECRETS[kind]
    await run_command(["cat"], context_for(secret), stdin=around(secret, boundary, inside) + "\nlast line")
    messages = [record.getMessage() for record in caplog.records]
    assert messages[-1] == "last line"
    assert parts_in("\n".join(messages), secret) == []


async def test_a_secret_that_comes_in_pieces_is_masked(caplog: pytest.LogCaptureFixture) -> None:
    secret = SECRETS["ascii"]
    pieces = " ".join(secret[index : index + 3] for index in range(0, len(secret), 3))
    script = f"for piece in {pieces}; do printf %s $piece; sleep 0.02; done; echo; echo ok"
    result = await bash(script, context_for(secret))
    assert result["stdout"] == "***\nok\n"
    assert [record.getMessage() for record in caplog.records] == ["***", "ok"]


async def test_lines_are_logged_as_they_come_although_secrets_are_looked_for(caplog: pytest.LogCaptureFixture) -> None:
    context, came = context_for(SECRETS["long"]), asyncio.Event()

    class Heard(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            came.set()

    handler = Heard()
    context.logger.addHandler(handler)
    try:
        running = asyncio.ensure_future(bash("echo first; exec sleep 600", context))
        await asyncio.wait_for(came.wait(), 60)  # the command goes on
        running.cancel()
        await asyncio.wait((running,))
    finally:
        context.logger.removeHandler(handler)
    assert "first" in caplog.messages


@pytest.fixture
def answer() -> Iterator[dict[str, Any]]:
    """Serve one answer on loopback; it is what stands in this dict under `status` and `body`."""
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
async def test_no_part_of_a_secret_remains_where_a_body_is_cut(kind: str, inside: str, answer: dict[str, Any]) -> None:
    secret = SECRETS[kind]
    before = {"one": 1, "half": len(secret.encode()) // 2, "all but one": len(secret.encode()) - 1}[inside]
    answer["body"] = b"a" * (BODY_LIMIT - before) + secret.encode() + b"b" * BODY_LIMIT
    body = str((await http_get(answer["url"], context_for(secret)))["body"])
    assert body.endswith(f"… cut after {BODY_LIMIT} bytes")
    assert parts_in(body, secret) == []


async def test_masks_before_the_cut_pull_no_part_of_a_secret_into_a_body(answer: dict[str, Any]) -> None:
    secret = SECRETS["long"]
    answer["body"] = secret.encode() * (2 * BODY_LIMIT // len(secret))
    body = str((await http_get(answer["url"], context_for(secret)))["body"])
    assert parts_in(body, secret) == []


@pytest.mark.parametrize("inside", INSIDE)
@pytest.mark.parametrize("text", [SECRETS["ascii"], "correct horse\n\tbattery staple"], ids=["word", "words"])
async def test_no_part_of_a_secret_remains_in_a_servers_refusal(text: str, inside: str, answer: dict[str, Any]) -> None:
    answer |= {"status": 500, "body": around(text, 300, inside).encode()}
    with pytest.raises(ToolError) as raised:
        await http_get(answer["url"], context_for(text))
    assert parts_in(str(raised.value), text) == []
    assert parts_in(str(raised.value), " ".join(text.split())) == []


@pytest.mark.parametrize("length", [35, 39, 41, 57, 200])
def test_no_part_of_a_secret_remains_in_parameter_errors(length: int) -> None:
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
    """Raise a message that is cut inside of the token."""
    raise ValueError("x" * (MAX_ERROR_CHARACTERS - len("ValueError: ") - before) + token + "y" * 2000)


@tool(effect="read", isolation="process")
def fail_at_the_cut_elsewhere(token: str, before: int) -> None:
    """Raise it in a process of its own."""
    raise ValueError("x" * (MAX_ERROR_CHARACTERS - len("ValueError: ") - before) + token + "y" * 2000)


@tool(effect="read", isolation="process")
def environment_of_a_worker() -> list[str]:
    """Return the names of the variables of a worker process."""
    return sorted(os.environ)


@tool(effect="read")
def read_variable(name: str) -> str:
    """Return a variable of this process."""
    return os.environ[name]


TOOLS = ToolRegistry([fail_at_the_cut, fail_at_the_cut_elsewhere, environment_of_a_worker, read_variable, run_command, bash])


async def test_no_part_of_a_secret_is_in_the_store_after_a_run_that_cuts_it_everywhere(
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
    assert all("*" in str(step.result) for step in run.steps if step.description == "Print")  # a mask may be cut
    for text in (await dump(store_url), caplog.text, repr(run)):
        assert parts_in(text, secret) == []


CREDENTIALS = {
    "PLAN_ADAPTER_MODEL_KEY": ("sk-model-7f3a9c", "sk-model-7f3a9c"),
    "OPENAI_API_KEY": ("sk-open-11223344", "sk-open-11223344"),
    "PLAN_ADAPTER_DATABASE_URL": ("postgresql://plan:gH7%40kwQz31@db/plans", "gH7@kwQz31"),
    "PLAN_ADAPTER_SECRET_UNNAMED": ("s3cret-nobody-named", "s3cret-nobody-named"),
    "PLAN_ADAPTER_TOTP_KEY": ("JBSWY3DPEHPK3PXP", "JBSWY3DPEHPK3PXP"),
    "PREFECT_API_KEY": ("pnu_99887766aabb", "pnu_99887766aabb"),
    "PREFECT_API_AUTH_STRING": ("admin:pa55word-x9", "pa55word-x9"),
    "PREFECT_SERVER_API_AUTH_STRING": ("admin:pa55word-y8", "pa55word-y8"),
    "PREFECT_API_DATABASE_CONNECTION_URL": ("postgresql+asyncpg://p:Qw3rtz-db1@db/prefect", "Qw3rtz-db1"),
    "PREFECT_SERVER_DATABASE_CONNECTION_URL": ("postgresql+asyncpg://p:Qw3rtz-db2@db/prefect", "Qw3rtz-db2"),
    "PREFECT_SERVER_DATABASE_PASSWORD": ("Qw3rtz-db3-long", "Qw3rtz-db3-long"),
    "PREFECT_CLIENT_CUSTOM_HEADERS": ('{"Authorization": "Bearer tok-5566778899"}', "tok-5566778899"),
    "prefect_api_key": ("pnu_lower_case_1", "pnu_lower_case_1"),
}


@pytest.mark.parametrize("name", CREDENTIALS)
def test_a_credential_is_withheld_from_children_and_its_value_is_hidden(name: str) -> None:
    written, secret = CREDENTIALS[name]
    environment = {name: written, "PATH": "/bin", "AWS_SECRET_ACCESS_KEY": "users-own-business"}
    kept = {"PATH": "/bin", "AWS_SECRET_ACCESS_KEY": "users-own-business"}
    assert without_credentials(environment) == without_credentials(environment, keeps_settings=True) == kept
    assert {written, secret} <= set(credential_values(environment))


ORDINARY = {
    "PLAN_ADAPTER_HOME": "/srv/plan_adapter",
    "PLAN_ADAPTER_DATABASE_URL": "sqlite:////srv/plan_adapter/plans.db",
    "PREFECT_API_URL": "http://127.0.0.1:4200/api",
    "PREFECT_SERVER_DATABASE_NAME": "prefect_production",
    "PLAN_ADAPTER_SECRETS_DIR": "/run/secrets/plans",
    "PLAN_ADAPTER_SIGNING_KEY": "/home/ana/.ssh/id_ed25519",
    "PREFECT_API_AUTH_STRING": "a:short",
}


@pytest.mark.parametrize("name", ORDINARY)
def test_what_is_no_credential_is_not_hidden(name: str) -> None:
    assert credential_values({name: ORDINARY[name]}) == []


async def test_no_credential_reaches_a_command_a_worker_or_the_store(
    store_url: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    for name, (written, _) in CREDENTIALS.items():
        monkeypatch.setenv(name, written)
    monkeypatch.setenv("AWS_PROFILE", "the-users-own")
    plan = ExecutionPlan(description="Look around")
    plan.options.require_approval = False
    plan.add_step("run_command", "Print all", {"argv": ["env"]}, id="command", effect="read")
    plan.add_step("bash", "Print all", {"command": "env >&2; cat /proc/self/environ | tr '\\0' '\\n'"}, id="bash", effect="read")
    plan.add_step("environment_of_a_worker", "Print all", {}, id="worker")
    for name in CREDENTIALS:
        plan.add_step("read_variable", "Give it away", {"name": name}, id=f"read_{name}")
    given = {"argv": ["printenv", "PREFECT_API_KEY"], "env": {"PREFECT_API_KEY": "${{ secrets.unnamed }}"}}
    plan.add_step("run_command", "Was handed it", given, id="handed", effect="read")
    async with PlanStore(store_url) as store:
        run = await arun_plan(plan, tools=TOOLS, store=store, offline=True)
    assert run.is_completed, [step.error for step in run.steps]
    shown = json.dumps([run.step("command").result, run.step("bash").result])
    assert "AWS_PROFILE=the-users-own" in shown
    assert [name for name in CREDENTIALS if name in shown or name in str(run.step("worker").result)] == []
    assert "PLAN_ADAPTER_HOME" not in shown
    assert "PLAN_ADAPTER_HOME" in str(run.step("worker").result)
    assert [run.step(f"read_{name}").result for name in CREDENTIALS] == ["***"] * len(CREDENTIALS)
    assert "***" in str(run.step("handed").result)
    for text in (await dump(store_url), caplog.text, repr(run)):
        assert [name for name, (_, secret) in CREDENTIALS.items() if secret in text] == []


@pytest.mark.parametrize("inside", INSIDE)
async def test_no_part_of_a_secret_is_sent_to_a_replanning_model(inside: str, tmp_path: Path) -> None:
    secret = SECRETS["ascii"]  # of nobody's plan, so that the record holds it
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
    hide = Redactor()
    hide.add(secret)
    context = replan_context(run, RemainingPlan.of(validate(plan, tools), history), history, hide)
    assert "characters more" in json.dumps(context)
    assert parts_in(json.dumps(context, ensure_ascii=False), secret) == []


def gate_texts(parameters: dict[str, Any], inputs: dict[str, Any] | None = None) -> tuple[str, str]:
    """Return what is shown at the gates of a plan and of its step, which is called with `parameters`."""

    @tool(effect="write")
    def send(headers: dict[str, Any], password: str = "") -> str:
        """Send something."""
        return "sent"

    @tool(effect="read")
    def make() -> str:
        """Make a password."""
        return "made-by-a-step"

    plan = ExecutionPlan(description="Send it", inputs={"salt": Input(default="pinch"), "token": Input(default="hunter22")})
    plan.add_step("make", "Make it", {}, id="make")
    plan.add_step("send", "Send it", parameters, id="send", requires_approval=True, depends_on=["make"])
    asked = list[ApprovalRequest]()

    class Approves:
        async def ask(self, request: ApprovalRequest) -> Approval:
            asked.append(request)
            return answer_to(request, decision="approve", by="ana", known_by="os_user")

    run = run_plan(plan, tools=ToolRegistry([send, make]), inputs=inputs, approver=Approves(), offline=True)
    assert run.is_completed, [step.error for step in run.steps]
    return asked[0].text, asked[1].text


BESIDE: dict[str, tuple[str, str, str]] = {
    "a scheme": ("Bearer ${{ secrets.t }}", "Bearer ${{ secrets.t }}", "Bearer ${{ secrets.t }}"),
    "both sides": ("user:${{ secrets.t }}@host", "user:${{ secrets.t }}@host", "user:${{ secrets.t }}@host"),
    "Chinese": ("令牌 ${{ secrets.t }}", "令牌 ${{ secrets.t }}", "令牌 ${{ secrets.t }}"),
    "an input": ("${{ inputs.salt }}-${{ secrets.t }}", "pinch-", "***${{ secrets.t }}"),
    "a secret input": ("x${{ inputs.token }}-${{ secrets.t }}", "hunter22", "***${{ secrets.t }}"),
    "a result": ("${{ steps.make.result }}-${{ secrets.t }}", "made-by-a-step-", "***${{ secrets.t }}"),
}


@pytest.mark.parametrize("name", BESIDE)
def test_a_literal_beside_a_secret_is_shown_at_the_gates_and_a_value_beside_it_is_not(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PLAN_ADAPTER_SECRET_T", "value-of-the-secret")
    written, other, shown = BESIDE[name]
    of_plan, of_step = gate_texts({"headers": {"Authorization": written}, "password": written})
    assert shown in of_step
    assert (shown == written) == (shown in of_plan)
    assert other == shown or other not in of_step
    assert "value-of-the-secret" not in of_plan + of_step


def test_a_literal_that_is_a_secret_by_its_place_stays_masked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PLAN_ADAPTER_SECRET_T", "value-of-the-secret")
    of_plan, of_step = gate_texts({"headers": {"Authorization": "Basic aGVsbG8=", "X": "${{ secrets.t }}"}, "password": "written-out"})
    assert "aGVsbG8=" not in of_plan + of_step
    assert "written-out" not in of_plan + of_step


LATE = """
description: Rotate a key
options: {require_approval: %s}
steps:
  - {id: rotate, tool_name: run_command, parameters: {argv: ["true"]}}
  - {id: use, tool_name: run_command, parameters: {argv: [echo, "${{ secrets.made }}"]}, depends_on: [rotate]}
"""
LATE_SAYS = "`use` uses it after steps that write, and fails unless one of them creates it"


@pytest.mark.parametrize("is_missing", [True, False], ids=["missing", "there"])
async def test_runner_and_approver_see_that_a_secret_for_later_is_missing(
    is_missing: bool, store_url: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    if not is_missing:
        monkeypatch.setenv("PLAN_ADAPTER_SECRET_MADE", "made-already")
    asked = list[ApprovalRequest]()

    class Approves:
        async def ask(self, request: ApprovalRequest) -> Approval:
            asked.append(request)
            return answer_to(request, decision="approve", by="ana", known_by="os_user")

    async with PlanStore(store_url) as store:
        run = await arun_plan(load_plan(LATE % "true"), tools=TOOLS, store=store, approver=Approves(), offline=True)
    assert run.step("use").status == ("failed" if is_missing else "completed")
    warnings = [record.getMessage() for record in caplog.records if LATE_SAYS in record.getMessage()]
    assert [message.partition(";")[0] for message in warnings] == (["there is no secret `made`"] if is_missing else [])
    assert ("The process that asks has no secret `made`" in asked[0].text) == is_missing
    assert (LATE_SAYS in asked[0].text) == is_missing
