"""Tests of runs that are left waiting at a gate, without a terminal or after a signal, and resumed later."""

import os
import signal
from typing import Any

import pytest

from tests.cli.conftest import Plan
from tests.cli.test_run import GREET, NEEDS_APPROVAL, TOOLS, document, step
from tests.cli.test_terminal import BOUND_SECONDS, Terminal, piped, run_at, terminals

__all__ = ["terminals"]

GATED = {**GREET, "requires_approval": True}
BESIDE = step("beside", "greet", parameters={"who": "x"})
AFTER = step("after", "greet", parameters={"who": "${{ steps.greet.result.text }}"})
PROMPT = "[?] "


def approved_and_resumed(plan: Plan, run_id: str, *where: str) -> dict[str, Any]:
    """Approve and resume a run that was left waiting, and return the completed run."""
    answered = plan("approve", run_id, *where, "--yes")
    assert answered.code == 0, answered.err
    resumed = plan("resume", run_id, "--offline", "--json", *TOOLS)
    assert resumed.code == 0, resumed.err
    return resumed.run


def statuses(run: dict[str, Any]) -> dict[str, str]:
    return {step["id"]: step["status"] for step in run["steps"]}


# Without a terminal.


@pytest.mark.parametrize(
    ("options", "where"), [(NEEDS_APPROVAL, ()), ({}, ("--step", "greet"))], ids=["gate of the plan", "gate of a step"]
)
def test_a_run_without_a_terminal_exits_with_6_at_a_gate_and_resumes_once_approved(
    plan: Plan, options: dict[str, Any], where: tuple[str, ...]
) -> None:
    result = plan("run", document({**GREET, "requires_approval": bool(where)}, **options), "--offline", "--json", *TOOLS)
    assert (result.code, result.run["status"], statuses(result.run)) == (6, "pending_approval", {"greet": "pending"})
    run_id = result.run["id"]
    assert f"`plan approve {run_id}" in result.err
    assert f"then `plan resume {run_id} --offline {' '.join(TOOLS)}`" in result.err
    assert statuses(approved_and_resumed(plan, run_id, *where)) == {"greet": "completed"}


def test_a_run_without_a_terminal_finishes_other_branches_before_it_exits(plan: Plan) -> None:
    options = {"require_approval": False, "allow_parallel": True}
    result = plan("run", document(GATED, AFTER, BESIDE, options=options), "--offline", "--json", *TOOLS)
    assert (result.code, statuses(result.run)) == (6, {"greet": "pending", "after": "pending", "beside": "completed"})
    run = approved_and_resumed(plan, result.run["id"], "--step", "greet")
    assert statuses(run) == {"greet": "completed", "after": "completed", "beside": "completed"}


def test_a_resumed_run_without_a_terminal_exits_with_6_at_its_next_gate(plan: Plan) -> None:
    result = plan("run", document(GATED, {**AFTER, "requires_approval": True}), "--offline", "--json", *TOOLS)
    run_id = result.run["id"]
    assert plan("approve", run_id, "--step", "greet", "--yes").code == 0
    result = plan("resume", run_id, "--offline", "--json", *TOOLS)
    assert (result.code, statuses(result.run)) == (6, {"greet": "completed", "after": "pending"})
    assert statuses(approved_and_resumed(plan, run_id, "--step", "after")) == {"greet": "completed", "after": "completed"}


# Signals and closed terminals.


def assert_still_waiting(plan: Plan) -> str:
    """Assert that the only run still waits and that no process attends its gate, and return its id."""
    (run,) = plan("runs", "--json").lines
    shown = plan("show", run["id"], "--json").run
    assert (shown["status"], shown["reason"], shown["completed_at"]) == ("pending_approval", None, None)
    (gate,) = plan("gates", "--json").lines
    assert (gate["run_id"], gate["attended"]) == (run["id"], False)
    return run["id"]


@pytest.mark.parametrize(
    ("number", "gated", "where", "times"),
    [
        pytest.param(signal.SIGTERM, False, (), 1, id="SIGTERM, gate of the plan"),
        pytest.param(signal.SIGHUP, True, ("--step", "greet"), 1, id="SIGHUP, gate of a step"),
        pytest.param(signal.SIGHUP, False, (), 1, id="SIGHUP, gate of the plan", marks=pytest.mark.thorough),
        pytest.param(signal.SIGTERM, True, ("--step", "greet"), 1, id="SIGTERM, gate of a step", marks=pytest.mark.thorough),
        pytest.param(signal.SIGTERM, False, (), 2, id="SIGTERM twice, gate of the plan", marks=pytest.mark.thorough),
        pytest.param(signal.SIGTERM, True, ("--step", "greet"), 2, id="SIGTERM twice, gate of a step", marks=pytest.mark.thorough),
        pytest.param(signal.SIGHUP, False, (), 2, id="SIGHUP twice, gate of the plan", marks=pytest.mark.thorough),
        pytest.param(signal.SIGHUP, True, ("--step", "greet"), 2, id="SIGHUP twice, gate of a step", marks=pytest.mark.thorough),
    ],
)
def test_a_signal_at_a_gate_leaves_the_run_waiting(
    plan: Plan, terminals: list[Terminal], number: signal.Signals, gated: bool, where: tuple[str, ...], times: int
) -> None:
    terminal = run_at(terminals, document({**GREET, "requires_approval": gated}, **({} if gated else NEEDS_APPROVAL)))
    terminal.wait_for(PROMPT)
    for _ in range(times):  # ending a process group and forwarding the signal sends it twice
        os.kill(terminal.process.pid, number)
    assert terminal.end() == 6
    assert "the run still waits for an answer" in terminal.shown
    assert "Traceback" not in terminal.shown
    run_id = assert_still_waiting(plan)
    assert statuses(approved_and_resumed(plan, run_id, *where)) == {"greet": "completed"}


@pytest.mark.parametrize(
    ("controls", "gated"),
    [
        pytest.param(True, False, id="with SIGHUP, gate of the plan"),
        pytest.param(False, True, id="without, gate of a step"),
        pytest.param(True, True, id="with SIGHUP, gate of a step", marks=pytest.mark.thorough),
        pytest.param(False, False, id="without, gate of the plan", marks=pytest.mark.thorough),
    ],
)
def test_closing_the_terminal_at_a_gate_leaves_the_run_waiting(plan: Plan, gated: bool, controls: bool) -> None:
    path = document({**GREET, "requires_approval": gated}, **({} if gated else NEEDS_APPROVAL))
    terminal = Terminal("run", path, "--offline", *TOOLS, controls=controls)
    try:
        terminal.wait_for(PROMPT)
        terminal.hang_up()
        assert terminal.process.wait(BOUND_SECONDS) == 6
        assert_still_waiting(plan)
    finally:
        terminal.process.kill()
        terminal.process.wait()


@pytest.mark.parametrize("gated", [False, True], ids=["gate of the plan", "gate of a step"])
def test_ctrl_c_at_a_gate_cancels_the_run(plan: Plan, terminals: list[Terminal], gated: bool) -> None:
    terminal = run_at(terminals, document({**GREET, "requires_approval": gated}, **({} if gated else NEEDS_APPROVAL)))
    terminal.wait_for(PROMPT)
    os.kill(terminal.process.pid, signal.SIGINT)
    assert terminal.end() == 130
    assert plan("runs", "--json").run["status"] == "cancelled"


def test_a_signal_while_another_step_runs_cancels_the_run(plan: Plan, terminals: list[Terminal]) -> None:
    options = {"require_approval": False, "allow_parallel": True}
    terminal = run_at(terminals, document(GATED, step("b", "wait"), options=options))
    terminal.wait_for(PROMPT)
    os.kill(terminal.process.pid, signal.SIGTERM)
    assert terminal.end() == 130
    run = plan("runs", "--json").run
    assert (run["status"], "SIGTERM" in run["message"]) == ("cancelled", True)


def test_a_signal_at_an_outcome_gate_ends_the_run_as_unknown_until_it_is_resolved(plan: Plan, terminals: list[Terminal]) -> None:
    terminal = run_at(terminals, document(step("lost", "get_lost"), {**AFTER, "depends_on": ["lost"], "parameters": {"who": "x"}}))
    terminal.wait_for(PROMPT)
    os.kill(terminal.process.pid, signal.SIGTERM)
    assert terminal.end() == 7
    run_id = plan("runs", "--json").run["id"]
    assert plan("resolve", run_id, "lost", "done").code == 0
    assert plan("resume", run_id, "--offline", "--json", *TOOLS).run["status"] == "completed"


def test_a_run_left_waiting_by_a_signal_can_be_rejected(plan: Plan, terminals: list[Terminal]) -> None:
    terminal = run_at(terminals, document(GREET, **NEEDS_APPROVAL))
    terminal.wait_for(PROMPT)
    os.kill(terminal.process.pid, signal.SIGTERM)
    assert terminal.end() == 6
    run_id = plan("runs", "--json").run["id"]
    assert plan("reject", run_id).code == 0
    resumed = piped("resume", run_id, "--offline", *TOOLS)
    assert (resumed.returncode, b"was rejected" in resumed.stderr) == (3, True)
