"""Tests of `plan show`, `gates`, `resolve` and `cancel` for runs with an unknown outcome, and of the commands they suggest."""

import os
import re
import signal
import sys
import time
from datetime import datetime
from pathlib import Path

import pytest

from plan_adapter.gates.approval import os_user
from plan_adapter.model.readable import moment
from tests.cli.conftest import Plan
from tests.cli.test_run import TOOLS, document, step
from tests.cli.test_waiting import Processes, line_with, processes

CHECK_FIRST = "check whether it happened, then record it with"
ANSWERS = "done: it happened; again: it did not, call it again; abort: end the run, still unknown"

__all__ = ["processes"]

SLOW = """
description: 慢慢来
options: {{require_approval: false}}
steps:
  - id: prep
    tool_name: run_command
    parameters: {{argv: [touch, prepared]}}
    rollback: {{tool_name: run_command, parameters: {{argv: [rm, prepared]}}}}
  - id: slow
    tool_name: run_command
    effect: {effect}
    parameters: {{argv: [{python}, -c, "import pathlib, time; pathlib.Path('begun').touch(); time.sleep({seconds})"]}}
    depends_on: [prep]
    timeout_ms: {timeout}
    rollback: {{tool_name: run_command, parameters: {{argv: [touch, slow-undone]}}}}
"""


def slow(effect: str = "write", *, seconds: float = 60, timeout: int = 0) -> str:
    """Write a plan whose second step hangs, and return its path."""
    text = SLOW.format(python=sys.executable, effect=effect, seconds=seconds, timeout=timeout)
    Path("plan.yaml").write_text(text, encoding="utf-8")
    return "plan.yaml"


def until_it_runs() -> None:
    """Return once the command of the second step runs."""
    while not Path("begun").exists():
        time.sleep(0.01)


@pytest.mark.parametrize("effect", ["write", "read"])
def test_show_suggests_the_next_command_for_a_killed_run(effect: str, processes: Processes, plan: Plan) -> None:
    process = processes.start("run", slow(effect), "--offline")
    until_it_runs()
    process.kill()
    process.wait()
    run_id = plan("runs", "--json").lines[0]["id"]
    hint = plan("show", run_id).next
    if effect == "read":
        ends = rf"wait until it has ended, or `plan resolve {run_id} slow again --end` ends it"
        assert hint.startswith("its process died; no outcome is unknown; the command of `slow` still runs here, pid ")
        assert hint.endswith(f" ({ends}): `plan resume {run_id} --offline` resumes the run\n")
        assert ends in plan("resume", run_id, "--offline").err
        assert "ended its command, pid " in plan("resolve", run_id, "slow", "again", "--end").out
        assert plan("show", run_id).next == f"its process died; no outcome is unknown: `plan resume {run_id} --offline` resumes the run\n"
        return
    pid = plan("show", run_id, "--json").run["steps"][1]["calls"][0]["command"].split("pid ")[1].split(",")[0]
    assert re.sub(r", \d+ m?s:", ":", hint) == (
        f"its process died; the outcome of `slow` is unknown; the command of `slow` still runs here, pid {pid}: {CHECK_FIRST} "
        f"`plan resolve {run_id} slow done|again|abort` ({ANSWERS}), then `plan resume {run_id} --offline`\n"
    )


def test_a_resume_says_that_the_command_still_runs(processes: Processes, plan: Plan) -> None:
    process = processes.start("run", slow(), "--offline")
    until_it_runs()
    process.kill()
    process.wait()
    run_id = plan("runs", "--json").lines[0]["id"]
    pid = int(plan("show", run_id, "--json").run["steps"][1]["calls"][0]["command"].split("pid ")[1].split(",")[0])
    still = f"the command of `slow` still runs here, pid {pid}"
    resumed = plan("resume", run_id, "--offline").err.splitlines()
    assert still in resumed[-2]
    assert "check it, record the outcome with" in resumed[-1]
    skipped = plan("resume", run_id, "--offline", "--skip", "slow", "--note", "看过了")
    assert (skipped.code, still in skipped.err) == (0, True)
    os.killpg(pid, signal.SIGKILL)


def test_an_ended_command_is_named_once(processes: Processes, plan: Plan) -> None:
    process = processes.start("run", slow(), "--offline")
    until_it_runs()
    process.kill()
    process.wait()
    ended = plan("resolve", plan("runs", "--json").lines[0]["id"], "slow", "abort", "--end")
    assert (ended.out + ended.err).count("ended its command, pid ") == 1


def test_a_call_without_a_command_has_none_to_end(plan: Plan) -> None:
    run_id = plan("run", document(step("lost", "get_lost")), "--offline", "--json", *TOOLS).run["id"]
    assert "no command of the call is recorded, so none was ended\n" in plan("resolve", run_id, "lost", "done", "--end").err


def test_an_unattended_unknown_outcome_is_listed_with_its_resolve_command(processes: Processes, plan: Plan) -> None:
    process = processes.start("run", slow(), "--offline")
    line_with(process.stderr, "slow: started")
    assert plan("gates", "--json").lines == []  # the process still runs, so the outcome is not unknown
    process.kill()
    process.wait()
    run_id = plan("runs", "--json").lines[0]["id"]
    (listed,) = plan("gates", "--json").lines
    assert (listed["id"], listed["asks"], listed["step"], listed["attended"]) == (None, "outcome", "slow", False)
    assert listed["command"] == f"plan resolve {run_id} slow done|again|abort --digest {listed['digest'][:12]}"
    assert f"{run_id} slow: `{listed['command']}` records the outcome\n" in plan("gates").out
    answer = listed["command"].replace("done|again|abort", "done").split()[1:]
    assert (plan(*answer).code, plan("gates", "--json").lines) == (0, [])


def test_an_unknown_outcome_of_an_item_is_listed_with_its_label(plan: Plan) -> None:
    each = step("each", "get_lost", for_each="${{ ['web-1', 'web-2'] }}")
    run_id = plan("run", document(each), "--offline", "--json", *TOOLS).run["id"]
    lines = plan("gates").out.splitlines()
    assert any(
        line.startswith(f"{run_id} each[web-1]: `plan resolve {run_id} each done|again|abort --item web-1 --digest ") for line in lines
    )


def test_a_killed_and_then_cancelled_run_shows_its_duration(processes: Processes, plan: Plan) -> None:
    process = processes.start("run", slow("read"), "--offline")
    line_with(process.stderr, "slow: started")
    process.kill()
    process.wait()
    run_id = plan("runs", "--json").lines[0]["id"]
    assert plan("show", run_id, "--json").run["total_duration_ms"] == 0
    assert plan("runs", "--wide").out.splitlines()[1].endswith("-")
    result = plan("cancel", run_id)
    assert " in 0 ms" not in result.out
    assert plan("show", run_id, "--json").run["total_duration_ms"] > 0


def test_a_run_in_progress_has_no_unknown_outcomes(processes: Processes, plan: Plan) -> None:
    process = processes.start("run", slow(), "--offline")
    line_with(process.stderr, "slow: started")
    result = plan("show", plan("runs", "--json").lines[0]["id"])
    assert (result.err, "took" in result.out) == ("", False)


def test_an_aborted_outcome_is_shown_until_it_is_resolved(plan: Plan) -> None:
    run_id = plan("run", slow(timeout=300), "--offline", "--json").run["id"]
    either = f"`plan rollback {run_id} --offline` to undo what was done, or `plan resume {run_id} --offline` to finish"
    resolve = f"{CHECK_FIRST} `plan resolve {run_id} slow done|again|abort` ({ANSWERS}), then {either}\n"
    assert resolve in plan("show", run_id).next
    known, undoes = (
        "the outcome of `slow` is unknown",
        f"`plan rollback {run_id} --offline` rolls it back, if it declares a rollback\n",
    )
    hint = (
        f"{known}, and the call is neither rolled back nor repeated: check it, record the outcome with "
        f"`plan resolve {run_id} slow done|again`, then `plan resume {run_id} --offline`; if it was done, {undoes}"
    )
    assert plan("resolve", run_id, "slow", "abort").err == hint
    refused = plan("resume", run_id, "--offline")
    assert (refused.code, f"`plan resolve {run_id} slow done|again`" in refused.err) == (8, True)
    shown = plan("show", run_id, "--all")
    assert "recorded `abort` for `slow`; its outcome is unknown" in shown.out
    assert shown.err == hint
    undone = plan("rollback", run_id, "--offline")
    hint = (
        f"{known}, and the call is not rolled back: check it; if it was done, `plan resolve {run_id} slow done` records that, and {undoes}"
    )
    assert (undone.code, hint in undone.err, Path("prepared").exists()) == (1, True, False)
    assert plan("show", run_id).next == hint
    assert "rolled back: prep; started, and possibly done: `slow`" in undone.out
    plan("resolve", run_id, "slow", "done")
    undone = plan("rollback", run_id, "--offline")
    assert (undone.code, Path("slow-undone").exists()) == (0, True)
    assert "cannot be resumed: `plan run " in plan("show", run_id).next


def test_an_unknown_outcome_is_shown_even_with_nothing_else_to_undo(plan: Plan) -> None:
    path = Path(slow(timeout=300))
    first, _, rest = path.read_text(encoding="utf-8").partition("  - id: prep")
    only = "  - id: slow" + rest.partition("  - id: slow")[2].replace("    depends_on: [prep]\n", "")
    path.write_text(first + only, encoding="utf-8")
    run_id = plan("run", str(path), "--offline", "--json").run["id"]
    plan("resolve", run_id, "slow", "abort")
    result = plan("rollback", run_id, "--offline")
    assert (result.code, "the outcome of `slow` is unknown" in result.err) == (1, True)


def test_an_outcome_can_still_be_recorded_after_abort_and_the_run_resumes(plan: Plan) -> None:
    run_id = plan("run", slow(timeout=300, seconds=0.4), "--offline", "--json").run["id"]
    plan("resolve", run_id, "slow", "abort")
    result = plan("resolve", run_id, "slow", "again", "--note", "看过了")
    assert (result.code, result.err) == (0, f"`plan resume {run_id} --offline` resumes the run\n")
    again = plan("resolve", run_id, "slow", "again")
    assert (again.code, "is not unknown" in again.err) == (8, True)
    assert plan("show", run_id).next == f"`plan resume {run_id} --offline` resumes the run; completed steps are kept\n"
    resumed = plan("resume", run_id, "--offline", "--json")  # the call runs again and times out again
    assert (resumed.code, resumed.run["steps"][1]["attempts"]) == (7, 3)


@pytest.mark.parametrize("is_killed", [False, True], ids=["cancelled", "killed"])
def test_every_hint_of_a_run_to_be_rolled_back_suggests_the_rollback(is_killed: bool, processes: Processes, plan: Plan) -> None:
    process = processes.start("run", slow(), "--offline")
    until_it_runs()
    run_id = plan("runs", "--json").lines[0]["id"]
    if is_killed:
        process.kill()
        process.wait()
    requested = plan("rollback", run_id, "--offline")
    undo, finish = f"`plan rollback {run_id} --offline`", f"`plan resume {run_id} --offline`"
    resolve = f"`plan resolve {run_id} slow done|again|abort`, then {undo}"
    if is_killed:
        assert requested.err.endswith(f"is not rolled back while the outcome of `slow` is unknown: {resolve}\n")
    else:
        assert "is unknown" not in requested.err  # the process still executes `slow`
        _, stderr = process.communicate()
        assert stderr.splitlines()[-1].endswith(f"record the outcome with {resolve} to undo what was done, or {finish} to finish")
        assert f"rolled back: nothing, because the outcome of `slow` is unknown: {resolve}" in plan("show", run_id, "--json").run["message"]
    check = f"{CHECK_FIRST} {resolve.replace('`, then', f'` ({ANSWERS}), then')}"
    assert plan("show", run_id).next.endswith(f"{check} to undo what was done, or {finish} to finish\n")
    assert f"then {undo}" in plan("rollback", run_id, "--offline").err
    hint = f"{undo} rolls the run back; to finish it instead, {finish}\n"
    assert plan("resolve", run_id, "slow", "done", "--end").err.endswith(hint)
    assert plan("show", run_id).next == hint
    assert plan("rollback", run_id, "--offline").code == 0
    assert (Path("prepared").exists(), Path("slow-undone").exists()) == (False, True)
    assert "cannot be resumed: `plan run " in plan("show", run_id).next


def test_after_a_timeout_the_recorded_outcome_suggests_the_rollback_first(plan: Plan) -> None:
    result = plan("run", slow(timeout=300), "--offline")
    run_id = plan("runs", "--json").lines[0]["id"]
    undo, finish = f"`plan rollback {run_id} --offline`", f"`plan resume {run_id} --offline`"
    assert result.err.splitlines()[-1].endswith(f"slow done|again|abort`, then {undo} to undo what was done, or {finish} to finish")
    hint = f"{undo} rolls the run back; to finish it instead, `plan resume {run_id} --offline`\n"
    assert plan("resolve", run_id, "slow", "done").err == hint


UNDONE = """
description: 撤销也没有结果
options: {{require_approval: false}}
steps:
  - id: prep
    tool_name: run_command
    parameters: {{argv: ["true"]}}
    rollback: {{tool_name: run_command, parameters: {{argv: [{python}, -c, "import os, signal; os.kill(os.getpid(), signal.SIGSTOP)"]}}}}
    timeout_ms: 300
  - {{id: broken, tool_name: run_command, parameters: {{argv: ["false"]}}, depends_on: [prep]}}
"""


def test_a_rollback_with_an_unknown_outcome_waits_for_a_person(plan: Plan) -> None:
    Path("plan.yaml").write_text(UNDONE.format(python=sys.executable), encoding="utf-8")
    result = plan("run", "plan.yaml", "--offline", "--json")
    assert (result.code, result.run["status"], result.run["reason"]) == (7, "partial", "step_failed"), result.err
    run_id = result.run["id"]
    assert plan("rollback", run_id, "--offline").code == 7
    assert plan("resolve", run_id, "prep", "done", "--rollback").code == 0
    assert plan("rollback", run_id, "--offline").code == 0


def assert_resume_reports_cancellation(plan: Plan, run_id: str, why: str) -> None:
    """Assert that resuming the run first prints who cancelled it, when and why."""
    ended = datetime.fromisoformat(plan("show", run_id, "--json").run["completed_at"])
    resumed = plan("resume", run_id, "--offline", *TOOLS)
    first = f"run {run_id} was cancelled at {moment(ended)}: {why}"
    assert (resumed.code, resumed.err.splitlines()[0]) == (0, first)


def test_resuming_a_cancelled_run_first_says_who_cancelled_it_and_when(processes: Processes, plan: Plan) -> None:
    process = processes.start("run", slow(), "--offline")
    line_with(process.stderr, "slow: started")
    process.kill()
    process.wait()
    run_id = plan("runs", "--json").lines[0]["id"]
    plan("cancel", run_id, "--note", "太晚了")
    plan("resolve", run_id, "slow", "done")
    assert_resume_reports_cancellation(plan, run_id, f"太晚了 (by {os_user()})")


def test_resuming_an_aborted_run_first_says_who_aborted_it(plan: Plan) -> None:
    run_id = plan("run", document(step("each", "get_lost", for_each="${{ ['web-1'] }}")), "--offline", "--json", *TOOLS).run["id"]
    for resolution in ("abort", "done"):
        assert plan("resolve", run_id, "each", resolution, "--item", "web-1").code == 0
    assert_resume_reports_cancellation(plan, run_id, f"{os_user()} recorded `abort` for `each[web-1]`")
