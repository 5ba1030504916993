"""Tests of gates on a Prefect server: forms, answers through the API, one-time codes and signals."""

import asyncio
import json
import signal
import subprocess
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any, TypeAlias
from urllib.parse import parse_qs, urlsplit
from uuid import UUID

import pytest
from prefect import get_client
from prefect.client.schemas.responses import SetStateStatus
from pyotp.totp import TOTP

from plan_adapter.engine.connection import Server
from plan_adapter.engine.flow_runs import flow_run_logs
from plan_adapter.gates.approval import os_user
from plan_adapter.model.readable import moment
from tests.cli.conftest import CommandResult, Plan
from tests.cli.test_run import GREET, NEEDS_APPROVAL, TOOLS, document, step
from tests.cli.test_terminal import BOUND_SECONDS, REAL_PLAN, Terminal, environment, piped, terminals
from tests.proxy import running_busy_server

__all__ = ["terminals"]

pytestmark = pytest.mark.usefixtures("prefect_server")

Laptop: TypeAlias = Callable[..., CommandResult]


@pytest.fixture
def laptop(plan: Plan, tmp_path: Path) -> Laptop:
    """Return a function that runs `plan …` as on a machine with access to Prefect's API but not to the store."""

    def call(*arguments: str) -> CommandResult:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("PLAN_ADAPTER_HOME", str(tmp_path / "laptop"))
            return plan(*arguments)

    return call


class WaitingRun:
    """A `plan run` in a pipe that has reached its gate."""

    def __init__(self, process: "subprocess.Popen[str]", command: str) -> None:
        self.process = process
        assert process.stderr is not None
        self.lines: list[str] = []
        for line in process.stderr:
            self.lines.append(line.rstrip())
            if f"`{command}" in line:
                break
        self.run_id = self.lines[-1].partition(f"`{command}")[2].partition("`")[0].split()[0]

    def end(self) -> tuple[int, str]:
        """Return the exit code and stdout."""
        out, err = self.process.communicate(timeout=BOUND_SECONDS)
        assert "Traceback" not in err, err
        return self.process.returncode, out


@contextmanager
def waiting(*words: str | Path, hint: str = "plan approve ") -> Generator[WaitingRun]:
    """Start `plan run PLAN`, or the command of several words, without a terminal and yield it at its gate; it is killed at the end."""
    command, pipe = [*REAL_PLAN, *(["run"] if len(words) == 1 else []), *map(str, words), *TOOLS], subprocess.PIPE
    with subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=pipe, stderr=pipe, text=True, env=environment()) as process:
        try:
            yield WaitingRun(process, hint)
        finally:
            process.kill()


def wait_for_form(laptop: Laptop, run_id: str) -> dict[str, Any]:
    """Wait until Prefect shows the form of a run and return it as seen without the store."""
    deadline = time.monotonic() + BOUND_SECONDS
    while time.monotonic() < deadline:
        result = laptop("gates", "--json")
        assert result.code == 0, result.err
        for form in result.lines:
            if form["run_id"] == run_id:
                return form
    pytest.fail("no form was shown")


def open_gate(plan: Plan, run_id: str) -> dict[str, Any]:
    """Return the open gate of a run from the store."""
    return next(gate for gate in plan("gates", "--json").lines if gate["run_id"] == run_id)


def gate_without_form(plan: Plan, run_id: str) -> dict[str, Any]:
    """Wait until the store says that the open gate of a run has no form, which it does just after Prefect, and return the gate."""
    deadline = time.monotonic() + BOUND_SECONDS
    while (gate := open_gate(plan, run_id))["has_form"] is not False and time.monotonic() < deadline:
        time.sleep(0.1)
    return gate


@pytest.mark.usefixtures("prefect_server")
@pytest.mark.parametrize(
    ("timeout_ms", "as_json"),
    [(3_600_000, False), pytest.param(0, False, marks=pytest.mark.thorough), pytest.param(3_600_000, True, marks=pytest.mark.thorough)],
)
def test_a_command_without_a_terminal_says_what_it_waits_for_until_when_and_how_not_to(plan: Plan, timeout_ms: int, as_json: bool) -> None:
    asking = {"options": {**NEEDS_APPROVAL["options"], "approval_timeout_ms": timeout_ms}}
    json = ["--json"] if as_json else []
    with waiting("run", document(GREET, **asking), *json) as run:
        assert_says_what_it_waits_for(plan, run)
        run_id = run.run_id
        run.process.terminate()
        assert run.end()[0] == 6
    with waiting("resume", run_id, *json) as resumed:
        assert_says_what_it_waits_for(plan, resumed)
        assert plan("reject", run_id).code == 0
        assert resumed.end()[0] == 3


def assert_says_what_it_waits_for(plan: Plan, run: WaitingRun) -> None:
    assert run.process.stderr is not None
    expires_at = open_gate(plan, run.run_id)["expires_at"]
    until = "" if expires_at is None else f" until {moment(datetime.fromisoformat(expires_at))}"
    assert f"the plan: waits for an approval{until}" in run.lines
    assert run.process.stderr.readline() == (
        f"there is no terminal to ask at, so this command waits for the answer,{until or ' without a time limit'}; with `--detach` it "
        "leaves the run waiting and exits with code 6\n"
    )


@pytest.mark.thorough  # 9 s: as for the gates above
@pytest.mark.usefixtures("prefect_server")
def test_a_question_without_a_terminal_is_announced_once_with_the_way_out(plan: Plan) -> None:
    ask = {"id": "q", "ask": {"question": "Which?", "fields": {"why": {"type": "string"}}}}
    with waiting(document(ask, {**ask, "id": "r", "depends_on": ["q"]}), hint="plan answer ") as run:
        assert "q: waits for an answer to its question" in run.lines
        assert plan("answer", run.run_id, "q", "why=x").code == 0
        assert run.process.stderr is not None
        for line in run.process.stderr:
            run.lines.append(line)
            if f"`plan answer {run.run_id} r " in line:
                break
        assert plan("answer", run.run_id, "r", "why=x").code == 0
        _, rest = run.process.communicate(timeout=BOUND_SECONDS)
    assert ("\n".join(run.lines) + rest).count("with `--detach` it leaves the run waiting") == 1


@pytest.mark.thorough
def test_a_run_without_a_terminal_says_how_to_answer_and_refuses_an_answer_in_its_form(
    plan: Plan, laptop: Laptop, prefect_server: Server
) -> None:
    with waiting(document(GREET, **NEEDS_APPROVAL, approval={"approvers": [os_user(), "安娜"], "self_approval": False})) as run:
        assert run.lines[-3] == "the plan: waits for an approval"
        assert str(prefect_server.ui_url) in run.lines[-2]
        assert run.lines[-1] == f"answer in the form on that page, or with `{open_gate(plan, run.run_id)['command']}`"
        form = wait_for_form(laptop, run.run_id)
        refused = laptop("approve", run.run_id, "--api")
        assert (refused.code, f"`{form['command']}` approves exactly what waits now" in refused.err, "--yes" in refused.err) == (
            2,
            True,
            False,
        )
        refused = laptop("approve", run.run_id, "--api", "--yes")
        assert (refused.code, f"then `{form['command']}` approves it" in refused.err) == (10, True)
        refused = laptop("approve", run.run_id, "--api", "--digest", "00000000")
        assert (refused.code, f"then `{form['command']}` answers" in refused.err) == (10, True)
        refused = laptop(*form["command"].split()[1:])
        assert refused.code == 10
        assert f"the run refused this answer: {os_user()} started this run and may not approve it; only 安娜 may" in refused.err
        assert f"{run.run_id}: the last answer was refused: {os_user()} started this run" in laptop("gates", "--api").out
        answered = plan("reject", run.run_id, "--note", "不好")
        assert answered.code == 0, answered.err
        assert "the waiting process ends the run" in answered.err
        assert run.end()[0] == 3


@pytest.mark.thorough
def test_an_answer_through_the_api_ends_the_prompt_at_the_terminal(terminals: list[Terminal], laptop: Laptop) -> None:
    terminal = Terminal("run", document(GREET, **NEEDS_APPROVAL), *TOOLS)
    terminals.append(terminal)
    terminal.wait_for("[?] ")
    run_id = terminal.shown.partition("`plan approve ")[2].partition(" ")[0]
    form = wait_for_form(laptop, run_id)
    assert form["flow_run_id"] in form["link"]
    answered = laptop("reject", form["flow_run_id"], "--api", "--note", "不行")
    assert answered.code == 0, answered.err
    assert answered.out.startswith("sent `reject` to the form of 试运行: run ")
    assert terminal.end() == 3
    assert f"the plan: rejected by {os_user()} (form): 不行" in terminal.shown
    late = laptop("approve", run_id, "--api")
    assert (late.code, "has no form that waits for an answer" in late.err) == (2, True)


@pytest.mark.thorough
def test_the_end_of_input_leaves_the_gate_open_and_ctrl_c_cancels_the_run(terminals: list[Terminal], plan: Plan) -> None:
    terminal = Terminal("run", document(GREET, **NEEDS_APPROVAL), *TOOLS)
    terminals.append(terminal)
    terminal.wait_for("[?] ")
    terminal.type("\x04")
    terminal.wait_for("answer in the form or with `plan approve`")
    terminal.process.send_signal(signal.SIGINT)
    assert terminal.end() == 130
    assert "Traceback" not in terminal.shown
    run = plan("runs", "--json").run
    assert (run["status"], "Ctrl-C" in run["message"]) == ("cancelled", True)


@pytest.mark.parametrize(("options", "place"), [(NEEDS_APPROVAL, "plan"), ({}, "greet")], ids=["plan", "step"])
@pytest.mark.thorough
def test_sigterm_at_a_gate_leaves_the_run_waiting_in_prefect_too(plan: Plan, laptop: Laptop, options: dict[str, Any], place: str) -> None:
    with waiting(document({**GREET, "requires_approval": place == "greet"}, **options)) as run:
        assert f"{'the plan' if place == 'plan' else place}: waits for an approval" in run.lines
        wait_for_form(laptop, run.run_id)  # now the flow run has started, and Prefect has installed its own signal handler
        run.process.send_signal(signal.SIGTERM)
        code, _ = run.end()
    assert code == 6
    left = plan("show", run.run_id, "--json").run
    assert (left["status"], left["reason"]) == ("pending_approval", None)
    assert state_of(left["flow_run_id"]) == ("PAUSED", "Waiting")
    (gate,) = [gate for gate in plan("gates", "--json").lines if gate["run_id"] == run.run_id]
    assert gate["attended"] is False
    command = gate["command"].split()[1:]
    answered = laptop(*command, "--api") if place == "plan" else plan(*command)
    assert answered.code == 0, answered.err
    done = plan("resume", run.run_id, *TOOLS, "--json")
    assert (done.code, done.run["flow_run_id"], state_of(left["flow_run_id"])) == (0, left["flow_run_id"], ("COMPLETED", "Completed"))


@pytest.mark.parametrize("place", [pytest.param("plan", marks=pytest.mark.thorough), "greet"])
def test_a_form_that_prefect_does_not_keep_is_reported_with_the_command_that_answers(
    plan: Plan, laptop: Laptop, prefect_server: Server, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    with running_busy_server(int(prefect_server.api_url.rpartition(":")[2].partition("/")[0])) as proxy:
        proxy.forgets = (b"/input HTTP/1.1",)
        monkeypatch.setenv("PREFECT_API_URL", proxy.url)
        options = NEEDS_APPROVAL if place == "plan" else {}
        with waiting(document({**GREET, "requires_approval": place == "greet"}, **options)) as run:
            monkeypatch.setenv("PREFECT_API_URL", prefect_server.api_url)
            form = wait_for_form(laptop, run.run_id)
            gate = gate_without_form(plan, run.run_id)
            assert (form["has_form"], gate["has_form"]) == (False, False)
            command = gate["command"]
            lost = "Prefect does not keep the form of this gate"
            assert f"{run.run_id} {place}: {lost}: answer with `{command}`" in plan("gates").out
            assert f"{run.run_id}: {lost}: `{command}` answers it, on a machine with the store" in laptop("gates").out
            refused = laptop(*command.split()[1:], "--api")
            assert (refused.code, refused.err.rstrip()) == (2, f"plan: {lost}: `{command}` answers it, on a machine with the store")
            doctor = plan("doctor")
            assert doctor.code == 1
            assert f"it cannot be answered in the UI\n    answer it with `{command}`" in doctor.out
            resumed = resume_in_prefect(UUID(form["flow_run_id"]))
            assert "Run input schema not found" in resumed
            assert plan(*command.split()[1:]).code == 0
            code, _ = run.end()
    assert code == 0
    assert any(f"answer with `{command}`" in line.text for line in asyncio.run(flow_run_logs(form["flow_run_id"])))


@pytest.mark.thorough  # 6 s
def test_a_detached_run_that_prefect_cannot_pause_is_reported_with_the_command_that_answers(
    plan: Plan, prefect_server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    with running_busy_server(int(prefect_server.api_url.rpartition(":")[2].partition("/")[0])) as proxy:
        proxy.forgets = (b"paused-",)  # the key of the form, which the pause names
        monkeypatch.setenv("PREFECT_API_URL", proxy.url)
        command = [*REAL_PLAN, "run", str(document(GREET, **NEEDS_APPROVAL)), *TOOLS, "--detach"]
        assert subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, env=environment(), check=False).returncode == 6
        monkeypatch.setenv("PREFECT_API_URL", prefect_server.api_url)
        gate = plan("gates", "--json").lines[0]
        assert (gate["attended"], gate["has_form"]) == (False, False)
        assert f"Prefect does not keep the form of this gate: answer with `{gate['command']}`" in plan("gates").out
        assert plan(*gate["command"].split()[1:]).code == 0
        assert plan("resume", gate["run_id"], *TOOLS).code == 0


def resume_in_prefect(flow_run_id: UUID) -> str:
    """Press Resume, and return why the server refuses it."""
    with get_client(sync_client=True) as client:
        result = client.resume_flow_run(flow_run_id)
    assert result.status is SetStateStatus.REJECT
    return str(getattr(result.details, "reason", ""))


@pytest.mark.thorough
def test_the_link_to_a_step_gate_form_is_shown(plan: Plan, laptop: Laptop) -> None:
    with waiting(document({**GREET, "requires_approval": True})) as run:
        command = open_gate(plan, run.run_id)["command"]
        assert command.startswith(f"plan approve {run.run_id} greet --digest ")
        assert run.lines[-1] == f"answer in its form (link below), or with `{command}`"
        assert run.process.stderr is not None
        line = next(line for line in run.process.stderr if "its form is on" in line)
        assert line == f"greet: its form is on {wait_for_form(laptop, run.run_id)['link']}\n"


@pytest.mark.thorough
def test_a_one_time_code_secret_is_replaced_only_after_confirmation(plan: Plan, terminals: list[Terminal]) -> None:
    assert plan("enroll", os_user()).code == 0
    assert plan("enroll", "博").code == 0
    others = plan("enroll", "博", "--force")
    assert (others.code, others.out) == (10, "")  # only the account itself or an operator of the policy can replace it
    refused = plan("enroll", os_user())
    assert (refused.code, refused.out, "`--force` replaces them" in refused.err) == (2, "", True)
    for word, code in (("n", 2), ("y", 0)):
        terminal = Terminal("enroll", os_user())
        terminals.append(terminal)
        terminal.wait_for("Replace them?")
        terminal.type(f"{word}\n")
        assert (terminal.end(), "otpauth://" in terminal.shown) == (code, code == 0)
    assert "no longer work" in plan("enroll", os_user(), "--force").err


@pytest.mark.thorough
def test_a_detached_run_waits_in_prefect_and_resumes_in_the_same_flow_run(plan: Plan) -> None:
    result = plan("run", document({**GREET, "requires_approval": True}), *TOOLS, "--detach", "--json")
    assert (result.code, result.run["status"]) == (6, "pending_approval"), result.err
    run_id, flow_run_id = result.run["id"], result.run["flow_run_id"]
    assert state_of(flow_run_id) == ("PAUSED", "Waiting")
    assert "in the form" not in result.err
    assert plan("approve", run_id, "--step", "greet", "--yes").code == 0
    done = plan("resume", run_id, *TOOLS, "--detach", "--json")
    assert (done.code, done.run["flow_run_id"], state_of(flow_run_id)) == (0, flow_run_id, ("COMPLETED", "Completed"))


def test_a_detached_plan_gate_pauses_with_a_form_and_resume_uses_its_answer(plan: Plan, laptop: Laptop) -> None:
    result = plan("run", document(GREET, **NEEDS_APPROVAL), *TOOLS, "--detach", "--json")
    assert (result.code, result.run["status"]) == (6, "pending_approval"), result.err
    run_id, flow_run_id = result.run["id"], result.run["flow_run_id"]
    assert state_of(flow_run_id) == ("PAUSED", "Waiting")
    (gate,) = plan("gates", "--json").lines
    assert gate["flow_run_id"] == flow_run_id and flow_run_id in gate["link"] and gate["link"] in result.err
    still = plan("resume", run_id, *TOOLS, "--detach", "--json")
    assert (still.code, still.run["flow_run_id"], state_of(flow_run_id)) == (6, flow_run_id, ("PAUSED", "Waiting"))
    assert "世界" in laptop("approve", run_id, "--api", "--show").out
    assert laptop(*gate["command"].split()[1:], "--api", "--note", "好").code == 0
    done = plan("resume", run_id, *TOOLS, "--detach", "--json")
    assert (done.code, done.run["flow_run_id"], state_of(flow_run_id)) == (0, flow_run_id, ("COMPLETED", "Completed"))
    for verb, name in (("reject", "Rejected"), ("cancel", "Cancelled")):
        left = plan("run", document(GREET, **NEEDS_APPROVAL), *TOOLS, "--detach", "--json").run
        assert plan(verb, left["id"]).code == 0
        assert state_of(left["flow_run_id"]) == ("CANCELLED", name)


@pytest.mark.parametrize("has_store", [True, False], ids=["with the store", "without the store"])
def test_an_api_answer_without_the_proof_that_the_gate_needs_is_not_sent(plan: Plan, laptop: Laptop, has_store: bool) -> None:
    approval = {"approvers": [os_user(), "安娜"], "known_by": ["proxy", "slack"], "quorum": 2}
    left = plan("run", document(GREET, **NEEDS_APPROVAL, approval=approval), *TOOLS, "--detach", "--json").run
    gate, caller = open_gate(plan, left["id"]), plan if has_store else laptop
    ways = "at `plan desk`, or with a button in Slack"
    assert f"; answer the first one {ways}\n" in caller("gates", "--api").err
    refused = caller(*gate["command"].split()[1:], "--api")
    why = f"{os_user()} is identified only by form; an answer here needs proxy or slack"
    assert (refused.code, refused.out, refused.err) == (10, "", f"plan: {why}: answer {ways}\n")
    assert open_gate(plan, left["id"]) == gate
    assert state_of(left["flow_run_id"]) == ("PAUSED", "Waiting")


def test_an_api_answer_is_checked_in_the_store_and_else_only_sent(plan: Plan, laptop: Laptop) -> None:
    approval = {"approvers": [os_user(), "安娜"], "self_approval": False}
    left = plan("run", document(GREET, **NEEDS_APPROVAL, approval=approval), *TOOLS, "--detach", "--json").run
    command = open_gate(plan, left["id"])["command"].split()[1:]
    refused = plan(*command, "--api")
    assert (refused.code, f"{os_user()} started this run and may not approve it; only 安娜 may" in refused.err) == (10, True)
    sent = laptop(*command, "--api")  # neither the form nor Prefect knows who started the run
    assert (sent.code, sent.out) == (0, f"sent `approve` to the form of 试运行: run {left['id']}\n")
    assert f"no process is waiting: `plan resume {left['id']}`, on a machine with the store, verifies the answer" in sent.err


def test_an_api_answer_that_the_run_has_recorded_is_reported_as_such(plan: Plan, laptop: Laptop) -> None:
    with waiting(document({**GREET, "requires_approval": True})) as run:
        wait_for_form(laptop, run.run_id)
        answered = plan(*open_gate(plan, run.run_id)["command"].split()[1:], "--api", "--json")
        assert (answered.code, answered.run["verified"], answered.run["next"]) == (0, True, "the run has verified the answer")
        assert run.end()[0] == 0


def test_the_form_of_a_gate_that_was_answered_elsewhere_is_not_listed_and_takes_no_answer(plan: Plan) -> None:
    answered, open_ = (plan("run", document(GREET, **NEEDS_APPROVAL), *TOOLS, "--detach", "--json").run for _ in "12")
    command = open_gate(plan, answered["id"])["command"].split()[1:]
    assert plan(*command).code == 0
    assert state_of(answered["flow_run_id"]) == ("PAUSED", "Waiting")  # until the run is resumed
    runs = [form["run_id"] for form in plan("gates", "--api", "--json").lines]
    assert (answered["id"] in runs, open_["id"] in runs) == (False, True)
    refused = plan(*command, "--api")
    assert (refused.code, refused.out) == (8, "")
    assert f"run {answered['id']}: the gate of the plan is closed: {os_user()} answered at " in refused.err
    assert f": approve; Prefect still shows its form; `plan show {answered['id']}` says what to do next" in refused.err
    assert plan("resume", answered["id"], *TOOLS).code == 0


@pytest.mark.thorough
def test_an_api_answer_shows_the_gate_and_must_name_its_step(plan: Plan, laptop: Laptop) -> None:
    with waiting(document({**GREET, "requires_approval": True})) as run:
        command = wait_for_form(laptop, run.run_id)["command"]
        result = laptop("approve", run.run_id, "--api")
        assert (result.code, f"`{command}`" in result.err) == (2, True)
        assert "世界" in laptop("approve", run.run_id, "--api", "--step", "greet", "--show").out
        result = laptop(*command.split()[1:])
        assert (result.code, result.out) == (0, f"sent `approve` to the form of step greet of 试运行: run {run.run_id}\n")
        assert f"its page in Prefect has ended as Approved: Approved by {os_user()} (form)" in result.err
        code, _ = run.end()
    assert (code, plan("show", run.run_id, "--json").run["status"]) == (0, "completed")


def state_of(flow_run_id: str) -> tuple[str, str]:
    """Return the type and name of the state of the flow run in Prefect."""
    from prefect import get_client

    async def read() -> tuple[str, str]:
        async with get_client() as client:
            state = (await client.read_flow_run(UUID(flow_run_id))).state
        assert state is not None
        return state.type.value, str(state.name)

    return asyncio.run(read())


def test_a_one_time_code_identifies_the_approver_and_works_once(plan: Plan) -> None:
    enrolled = plan("enroll", os_user())
    assert enrolled.code == 0, enrolled.err
    (uri,) = enrolled.out.splitlines()
    secret = parse_qs(urlsplit(uri).query)["secret"][0]
    assert secret not in enrolled.err
    path = document(GREET, **NEEDS_APPROVAL, approval={"known_by": ["totp"]})
    first, second = (plan("run", path, *TOOLS, "--detach", "--json").run["id"] for _ in "12")
    without = plan("approve", first, "--yes")
    assert (without.code, "needs totp" in without.err) == (10, True)
    code = TOTP(secret).at(time.time(), counter_offset=1)  # the next code is accepted too, and stays valid for longer
    answered = piped("approve", first, "--code", code, "--json", "--yes")
    assert (answered.returncode, json.loads(answered.stdout)["known_by"]) == (0, "totp")
    assert b"EventsWorker" not in answered.stderr
    again = plan("approve", second, "--code", code, "--yes")
    assert (again.code, "was already used" in again.err) == (10, True)


@pytest.mark.thorough
def test_a_signed_resolution_answers_the_form_from_a_machine_without_the_store(
    plan: Plan, laptop: Laptop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    key, allowed = tmp_path / "ana", tmp_path / "allowed"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "", "-f", str(key)], check=True)
    allowed.write_text(f"ana {key.with_suffix('.pub').read_text()}")
    monkeypatch.setenv("PLAN_ADAPTER_ALLOWED_SIGNERS", str(allowed))
    monkeypatch.setenv("PLAN_ADAPTER_SIGNING_KEY", str(key))
    path = document(step("lost", "get_lost"), approval={"known_by": ["ssh_signature"]})
    with waiting(path, hint="plan resolve ") as run:
        form = wait_for_form(laptop, run.run_id)
        assert (form["asks"], form["step"], form["known_by"]) == ("outcome", "lost", ["ssh_signature"])
        refused = laptop("approve", run.run_id, "--api")
        assert f"not for an approval: `plan resolve {run.run_id} lost done|again|abort --api --digest {form['digest'][:12]}`" in refused.err
        assert laptop("resolve", run.run_id, "lost", "done", "--api").code == 10
        done = ("resolve", run.run_id, "lost", "done", "--api", "--sign", "--by", "ana")
        refused = laptop(*done, "--result", '"好"')
        assert (refused.code, "no step uses the result of this call" in refused.err) == (2, True), refused.err
        result = laptop(*done)
        assert (result.code, "sent `done` to the form of step lost" in result.out) == (0, True), result.err
        code, _ = run.end()
    shown = plan("show", run.run_id, "--json").run
    assert (code, shown["status"], shown["steps"][0]["status"]) == (0, "completed", "completed")


@pytest.mark.thorough
def test_a_one_time_code_authorizes_skipping_a_step(plan: Plan) -> None:
    uri = urlsplit(plan("enroll", "zoe", "--force").out.split()[-1])
    path = document(step("wrong", "fail"), GREET, approval={"known_by": ["totp"]})
    run_id = plan("run", path, *TOOLS, "--yes", "--json").run["id"]
    skip = "resume", run_id, *TOOLS, "--skip", "wrong", "--note", "没有必要", "--json"
    refused = plan(*skip)
    assert (refused.code, "with --code" in refused.err) == (10, True)
    code = TOTP(parse_qs(uri.query)["secret"][0]).now()
    done = plan(*skip, "--code", code, "--by", "zoe")
    assert done.code == 0, done.err
    assert done.run["steps"][0]["reason"] == "skipped by zoe: 没有必要"


@pytest.mark.thorough
def test_a_one_time_code_authorizes_a_resolution(plan: Plan) -> None:
    uri = urlsplit(plan("enroll", "zoe", "--force").out.split()[-1])
    path = document(step("lost", "get_lost"), approval={"known_by": ["totp"]})
    run_id = plan("run", path, *TOOLS, "--yes", "--json").run["id"]
    code = TOTP(parse_qs(uri.query)["secret"][0]).now()
    wrong = plan("resolve", run_id, "lost", "done", "--code", str((int(code) + 1) % 1_000_000).zfill(6), "--by", "zoe")
    assert (wrong.code, "is wrong" in wrong.err) == (10, True)
    result = plan("resolve", run_id, "lost", "done", "--code", code, "--by", "zoe")
    assert result.code == 0, result.err
    assert plan("resume", run_id, *TOOLS, "--json").code == 0


@pytest.mark.thorough
def test_a_question_is_answered_from_a_machine_without_the_store(plan: Plan, laptop: Laptop) -> None:
    fields = {"choice": {"enum": ["switch", "wait"]}, "nodes": {"type": "integer", "maximum": 9, "default": 2}}
    path = document({"id": "decide", "ask": {"question": "切换?", "fields": fields}})
    with waiting(path, hint="plan answer ") as run:
        form = wait_for_form(laptop, run.run_id)
        command = f"plan answer {run.run_id} decide --api --digest {form['digest'][:12]} FIELD=VALUE…"
        assert (form["asks"], form["step"], form["command"]) == ("question", "decide", command)
        assert "## 切换?" in laptop("answer", run.run_id, "decide", "--api", "--show").out
        refused = laptop("approve", run.run_id, "--step", "decide", "--api", "--digest", form["digest"])
        assert (refused.code, "this gate asks a question" in refused.err) == (2, True), refused.err
        refused = laptop("reject", run.run_id, "--step", "decide", "--api", "--digest", form["digest"])
        assert (refused.code, "takes a rejection only with all its fields" in refused.err) == (2, True), refused.err
        wrong = laptop("answer", run.run_id, "decide", "--api", "--digest", form["digest"], "choice=run", "nodes=10")
        assert (wrong.code, "at fields.choice" in wrong.err, "at fields.nodes" in wrong.err) == (2, True, True)
        result = laptop("answer", run.run_id, "decide", "--api", "--digest", form["digest"], "choice=switch", "nodes=3")
        assert (result.code, "sent `answer` to the form of step decide" in result.out) == (0, True), result.err
        code, _ = run.end()
    shown = plan("show", run.run_id, "--json").run
    assert (code, shown["steps"][0]["result"]) == (0, {"choice": "switch", "nodes": 3})
