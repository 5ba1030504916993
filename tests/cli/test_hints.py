"""Tests of previews and hints: a preview shows what happens, and a suggested command does what it says."""

import subprocess
import sys
from pathlib import Path

import pytest

from plan_adapter.gates.approval import os_user
from tests.cli.conftest import Plan
from tests.cli.test_run import GREET, NEEDS_APPROVAL, TOOLS, document, step
from tests.cli.test_unknown_outcomes import slow
from tests.cli.test_waiting import Processes, line_with, processes
from tests.processes import PLAN, Program

__all__ = ["processes"]

NOT_STUCK = [sys.executable, "-c", "import os, sys; sys.exit(os.path.exists('stuck'))"]
UNDO = {"tool_name": "run_command", "parameters": {"argv": NOT_STUCK}}
UNDOABLE = step("made", "run_command", parameters={"argv": ["touch", "made"]}, rollback=UNDO)
BROKEN = step("broken", "fail", depends_on=["made"])


def rolled_back(plan: Plan) -> str:
    """Return the id of a run that was rolled back after a failed step."""
    return plan("run", document(UNDOABLE, BROKEN), "--offline", *TOOLS, "--json").run["id"]


def test_preview_refuses_a_rolled_back_run_with_the_same_error_as_resume(plan: Plan) -> None:
    run_id = rolled_back(plan)
    previewed, resumed = plan("preview", "--resume", run_id, *TOOLS), plan("resume", run_id, "--offline", *TOOLS)
    assert (previewed.code, previewed.out, previewed.err) == (8, "", resumed.err)
    assert "was rolled back and cannot be resumed" in previewed.err


def test_the_preview_of_an_interrupted_rollback_shows_only_the_remaining_rollback(processes: Processes, plan: Plan) -> None:
    undo = {"tool_name": "run_command", "parameters": {"argv": ["sleep", "60"]}}
    made = step("made", "run_command", parameters={"argv": ["touch", "made"]}, rollback=undo)
    process = processes.start("run", str(document(made, BROKEN)), "--offline", *TOOLS)
    line_with(process.stderr, "rollback made: started")
    process.kill()
    process.wait()
    run_id = plan("runs", "--json").lines[0]["id"]
    result = plan("preview", "--resume", run_id, *TOOLS)
    assert (result.code, result.out) == (
        0,
        "the run is being rolled back: no step runs, and the rollback continues with `made`\n",
    )
    assert plan("preview", "--resume", run_id, *TOOLS, "--json").run["rollback"] == [{"id": "made", "item": None}]


def test_preview_refuses_a_rejected_run(plan: Plan) -> None:
    run_id = plan("run", document(GREET, **NEEDS_APPROVAL), "--offline", *TOOLS, "--detach", "--json").run["id"]
    plan("reject", run_id)
    result = plan("preview", "--resume", run_id, *TOOLS)
    assert (result.code, "was rejected; resuming does not approve it" in result.err) == (3, True)


def test_the_rollback_command_is_suggested_only_while_something_is_left_to_roll_back(plan: Plan) -> None:
    Path("stuck").touch()
    result = plan("run", document(UNDOABLE, BROKEN), "--offline", *TOOLS)
    assert f" --offline {' '.join(TOOLS)}` rolls back the rest; a run that was rolled back cannot be resumed" in result.err
    run_id = plan("runs", "--json").lines[0]["id"]
    assert f"`plan rollback {run_id} --offline` rolls back the rest" in plan("resume", run_id, "--offline", *TOOLS).err
    Path("stuck").unlink()
    undone = plan("rollback", run_id, "--offline", *TOOLS)
    assert (undone.code, "rolls back the rest" in undone.err) == (0, False)
    assert "rolls back the rest" not in plan("resume", run_id, "--offline", *TOOLS).err


@pytest.mark.parametrize("command", [("resume", "--offline"), ("preview", "--resume")], ids=["resume", "preview"])
def test_the_error_for_missing_tools_says_how_to_pass_them(command: tuple[str, ...], plan: Plan) -> None:
    run_id = plan("run", document(step("broken", "fail")), "--offline", *TOOLS, "--json").run["id"]
    result = plan(*command, run_id)
    assert result.code == 2
    assert result.err.rstrip().endswith(
        "no tool is called `fail`; the run was created with other tools than these: pass the same ones again "
        "(`--tools package.module:name`, PLAN_ADAPTER_TOOLS)"
    )


@pytest.mark.parametrize("status", ["failed", "waiting"])
def test_the_resume_hint_of_an_offline_run_includes_offline(status: str, plan: Plan) -> None:
    options = NEEDS_APPROVAL if status == "waiting" else {}
    result = plan("run", document(step("broken", "fail"), **options), "--offline", *TOOLS)
    assert f"`plan resume {plan('runs', '--json').lines[0]['id']} --offline {' '.join(TOOLS)}`" in result.err


def test_a_resolution_is_shown_instead_of_the_duration_of_a_failed_attempt(plan: Plan) -> None:
    run_id = plan("run", document(step("lost", "get_lost")), "--offline", *TOOLS, "--json").run["id"]
    plan("resolve", run_id, "lost", "done", "--note", "我看过了")
    shown = plan("show", run_id, "--all").out
    assert "1. **lost** `get_lost`: completed\n   - " in shown
    assert "recorded `done` for `lost` (我看过了)" in shown


def test_interrupted_reads_have_no_unknown_outcome(processes: Processes, plan: Plan) -> None:
    process = processes.start("run", slow("read"), "--offline")
    line_with(process.stderr, "slow: started")
    run_id = plan("runs", "--json").lines[0]["id"]
    process.kill()
    process.wait()
    shown = plan("show", run_id, "--all").out
    assert "outcome unknown" not in shown
    assert "interrupted; it is safe to call it again, and resuming the run does so" in shown
    assert "plan resume" in plan("show", run_id).next
    cancelled = plan("cancel", run_id).out
    assert (": Cancelled: " in cancelled or ": Cancelled in " in cancelled, "(cancelled)" in cancelled) == (True, False)
    assert "cancelled, cancelled" not in plan("show", run_id, "--all").out
    assert "cancelled (cancelled)" not in plan("runs").out


def test_a_running_step_is_counted_while_the_run_is_cancelled(processes: Processes, plan: Plan) -> None:
    process = processes.start("run", slow(), "--offline")
    line_with(process.stderr, "slow: started")
    assert ": 1 of 2 steps done, 1 running" in plan("cancel", plan("runs", "--json").lines[0]["id"]).out


def test_ctrl_c_during_a_write_suggests_the_resolve_command(plan: Plan) -> None:
    steps = step("lost", "write_and_wait"), step("end", "interrupt_and_wait")
    options = {"require_approval": False, "allow_parallel": True, "max_parallel_steps": 2}
    result = plan("run", document(*steps, options=options), "--offline", *TOOLS)
    run_id = plan("runs", "--json").lines[0]["id"]
    assert result.code == 130
    last = result.err.splitlines()[-1]
    assert last.startswith(
        "a write whose outcome is unknown is never retried automatically: check it, record the outcome with "
        f"`plan resolve {run_id} lost done|again|abort`, then `plan resume {run_id} --offline {' '.join(TOOLS)}`"
    )


@pytest.mark.parametrize("verb", ["reject", "cancel"])
def test_the_steps_of_a_run_that_ended_at_its_gate_are_skipped_with_that_reason(verb: str, plan: Plan) -> None:
    run_id = plan("run", document(GREET, **NEEDS_APPROVAL), "--offline", *TOOLS, "--detach", "--json").run["id"]
    assert plan("show", run_id, "--json").run["steps"][0]["status"] == "pending"
    plan(verb, run_id)
    run = plan("show", run_id, "--json").run
    assert [(step["status"], step["reason"]) for step in run["steps"]] == [("skipped", run["message"])]
    assert "1 skipped" in plan("show", run_id, "--all").out


def test_the_status_message_names_every_failed_step(plan: Plan) -> None:
    steps = [step(name, "fail", on_error="continue") for name in ("a", "b", "c")]
    result = plan("run", document(*steps), "--offline", *TOOLS)
    assert result.out.rstrip().endswith("`a` failed: RuntimeError: it broke; and so did `b`, `c`")


def test_preview_lists_the_steps_that_cannot_be_undone(plan: Plan) -> None:
    path = document(GREET, UNDOABLE, step("lost", "get_lost"))
    assert "- **cannot be undone: `lost`**\n" in plan("preview", path, *TOOLS).out
    assert plan("preview", path, *TOOLS, "--json").run["cannot_be_undone"] == ["lost"]
    assert "- cannot be undone: nothing\n" in plan("preview", document(GREET), *TOOLS).out


def test_the_requester_is_not_listed_as_an_approver_without_self_approval(plan: Plan) -> None:
    me = os_user()
    path = document(GREET, **NEEDS_APPROVAL, approval={"approvers": [me, "ana"], "self_approval": False})
    plan("run", path, "--offline", *TOOLS, "--detach")
    assert f"  ana (not {me}, who started it)\n" in plan("gates").out


def test_an_extra_argument_is_reported_clearly(plan: Plan) -> None:
    assert plan("export", "RUN", "x.json").err == "plan: `plan export` does not take `x.json`; write to a file with `--output x.json`\n"
    assert plan("show", "a", "b", "c").err == "plan: `plan show` does not take `b`, `c`; see `plan show --help`\n"


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full here")
@pytest.mark.parametrize("arguments", [("schema",), ("tools",), ("explain", "cycle", "--json")], ids=" ".join)
def test_unwritable_output_is_reported_in_one_line(arguments: tuple[str, ...], home: Path) -> None:
    with Path("/dev/full").open("w") as full:
        command = Program(PLAN, *arguments, stdout=full.fileno(), stderr=subprocess.PIPE)
    _, stderr = command.communicate()
    assert (command.returncode, stderr) == (2, "plan: the output cannot be written: No space left on device\n")


def test_the_command_for_an_unknown_outcome_of_an_item_names_the_item(plan: Plan) -> None:
    result = plan("run", document(step("each", "get_lost", for_each="${{ ['web-1'] }}")), "--offline", *TOOLS)
    run_id = plan("runs", "--json").lines[0]["id"]
    assert (
        f"`plan resolve {run_id} each done|again|abort --item web-1`, then `plan resume {run_id} --offline {' '.join(TOOLS)}`" in result.err
    )


@pytest.mark.parametrize("option", ["--skip", "--from"])
def test_skip_and_from_refuse_a_single_item_and_suggest_resolve(option: str, plan: Plan) -> None:
    run_id = plan("run", document(step("each", "fail", for_each="${{ ['web-1'] }}")), "--offline", *TOOLS, "--json").run["id"]
    because = ("--note", "x") if option == "--skip" else ()
    refused = plan("resume", run_id, "--offline", *TOOLS, option, "each[web-1]", *because)
    message = (
        "`each[web-1]` is one item of `each`, and only whole steps are skipped or run from: name `each`; if somebody did the item by hand"
    )
    assert (refused.code, f"{message}, `plan resolve RUN each done --item web-1` records that" in refused.err) == (2, True), refused.err


def stopped_in_the_middle(plan: Plan) -> str:
    """Return the id of a run whose three items succeeded, have an unknown outcome, and did not start."""
    names = step("names", "greet", parameters={"who": "x"})
    lost = [sys.executable, "-c", "import sys, time; time.sleep(60 if sys.argv[1] == 'web-2' else 0)", "${{ item }}"]
    items = "${{ ['web-1', 'web-2', steps.names.result.text] }}"
    each = step("each", "run_command", for_each=items, parameters={"argv": lost}, timeout_ms=1500)
    result = plan("run", document(names, each), "--offline", *TOOLS, "--json")
    assert result.code == 7, result.err
    return result.run["id"]


def test_the_preview_of_a_resume_shows_what_happens_to_each_item(plan: Plan) -> None:
    run_id = stopped_in_the_middle(plan)
    result = plan("preview", "--resume", run_id, *TOOLS)
    assert result.out.splitlines()[-3:] == [
        "each: items kept: web-1",
        "each: items whose outcome is unknown: web-2",
        "each: items that run: 你好, x",
    ]
    names, each = plan("preview", "--resume", run_id, *TOOLS, "--json").run["steps"]
    choices = [(item["item"], item["label"], item["fate"]) for item in each["items"]]
    assert (names["items"], choices) == ([], [(1, "web-1", "carried"), (2, "web-2", "unknown"), (3, "你好, x", "run")])
    plan("resolve", run_id, "each", "done", "--item", "web-2")
    assert plan("preview", "--resume", run_id, *TOOLS).out.splitlines()[-2:] == [
        "each: items kept: web-1, web-2",
        "each: items that run: 你好, x",
    ]


def test_the_preview_of_a_resume_keeps_the_items_of_a_group_that_have_completed(plan: Plan) -> None:
    fails = [sys.executable, "-c", "import sys; sys.exit(sys.argv[1] == 'web-2')", "${{ item }}"]
    steps = [step("made", "greet", parameters={"who": "${{ item }}"}), step("checked", "run_command", parameters={"argv": fails})]
    group = {"id": "nodes", "for_each": "${{ ['web-1', 'web-2', 'web-3'] }}", "steps": steps, "on_error": "continue"}
    result = plan("run", document(group), "--offline", *TOOLS, "--json")
    shown = plan("preview", "--resume", result.run["id"], *TOOLS).out.splitlines()
    assert [line for line in shown if line.startswith("nodes: ")] == ["nodes: items kept: web-1", "nodes: items that run: web-2, web-3"]


def test_the_preview_of_a_resume_shows_the_items_that_are_rolled_back(plan: Plan) -> None:
    fails = [sys.executable, "-c", "import sys; sys.exit(sys.argv[1] == 'web-2')", "${{ item }}"]
    made = step("made", "greet", parameters={"who": "${{ item }}"}, rollback={"tool_name": "greet", "parameters": {"who": "nobody"}})
    checked = step("checked", "run_command", parameters={"argv": fails}, depends_on=["made"])
    group = {"id": "nodes", "for_each": "${{ ['web-1', 'web-2'] }}", "steps": [made, checked]}
    result = plan("run", document({**group, "on_error": "continue", "rollback_failed": True}), "--offline", *TOOLS, "--json")
    shown = plan("preview", "--resume", result.run["id"], *TOOLS).out.splitlines()
    assert "checked: items kept: web-1" in shown
    assert "checked: items that failed and are rolled back: web-2" in shown


@pytest.mark.parametrize("verb", ["approve", "reject"])
@pytest.mark.parametrize("place", [0, 1, 2], ids=["first", "second", "third"])
def test_the_item_in_json_is_the_one_that_item_options_mean(verb: str, place: int, plan: Plan) -> None:
    items = "${{ ['first', 'second', {'who': 3}] }}"
    each = step("each", "greet", for_each=items, parameters={"who": "${{ string(item == 'first') }}"}, requires_approval=True)
    options = {"require_approval": False, "allow_parallel": True}
    started = plan("run", document(each, options=options), "--offline", *TOOLS, "--detach", "--json")
    waiting = sorted(plan("gates", "--json").lines, key=lambda gate: gate["item"])
    assert [(gate["item"], gate["label"]) for gate in waiting] == [(1, "first"), (2, "second"), (3, None)]
    chosen = waiting[place]
    result = plan(verb, started.run["id"], "--step", "each", "--item", str(chosen["item"]), "--digest", chosen["digest"])
    assert result.code in (0, 3), result.err
    left = {gate["digest"] for gate in plan("gates", "--json").lines}
    assert left == {gate["digest"] for gate in waiting} - {chosen["digest"]}
    (shown,) = [answer for answer in plan("show", started.run["id"], "--json").run["approvals"] if answer["step_id"] == "each"]
    assert shown["item"] == chosen["item"]


def test_the_error_for_an_unknown_item_lists_all_items(plan: Plan) -> None:
    run_id = stopped_in_the_middle(plan)
    refused = plan("resolve", run_id, "each", "done", "--item", "web-9")
    assert (refused.code, "no item of `each` is called `web-9`; its items: `web-1`, `web-2`, `你好, x`" in refused.err) == (2, True)
    for label in ("web-2", "你好, x"):
        assert plan("resolve", run_id, "each", "done", "--item", label).code == 0
    assert plan("preview", "--resume", run_id, *TOOLS).out.splitlines()[-1] == "each: items kept: web-1, web-2, 你好, x"


def test_after_a_failed_item_was_rolled_back_a_new_run_is_suggested(plan: Plan) -> None:
    drain = {"id": "drain", "tool_name": "run_command", "parameters": {"argv": ["touch", "drained"]}}
    drain["rollback"] = {"tool_name": "run_command", "parameters": {"argv": ["rm", "drained"]}}
    inner = [drain, {"id": "check", "tool_name": "fail", "depends_on": ["drain"]}]
    alone = {"on_error": "continue", "rollback_failed": True}
    nodes = {"id": "nodes", "for_each": "${{ ['web-1', 'web-2'] }}", "steps": inner, **alone}
    ended = plan("run", document(nodes), "--offline", *TOOLS)
    (line,) = plan("runs", "--json").lines
    run_id, command = line["id"], f"`plan run {line['digest'][:12]} --offline`"
    why = "a resume would call nothing, because the failed items were rolled back"
    hint = f"{why}: {command} starts a new run; give it only the items that remain\n"
    assert ended.err.endswith(f"`plan show {run_id}` shows why; {hint}")
    assert plan("show", run_id).next == hint
    before = plan("show", run_id, "--json").run
    resumed = plan("resume", run_id, "--offline", *TOOLS)
    assert resumed.err.endswith(hint)
    after = plan("show", run_id, "--json").run
    assert [step["attempts"] for step in after["steps"]] == [step["attempts"] for step in before["steps"]]


ON_HOSTS = {
    "id": "each",
    "for_each": "${{ hosts('web') }}",
    "max_failures": "100%",
    "on_error": "continue",
    "rollback_failed": True,
}


@pytest.mark.parametrize(
    ("bad", "option", "end"),
    [
        (2, "--on web-07,web-08", "starts a new run on the hosts that remain"),
        (6, "--on HOST,…", "starts a new run; name the 6 hosts that remain, which `plan show {run}` lists"),
    ],
)
def test_after_some_hosts_failed_a_new_run_on_these_is_suggested(bad: int, option: str, end: str, plan: Plan) -> None:
    drain = step("drain", "run_command", parameters={"argv": ["touch", "drained"]})
    drain["rollback"] = {"tool_name": "run_command", "parameters": {"argv": ["true"]}}
    check = step("check", "fail", depends_on=["drain"], when=f"${{{{ item.name > 'web-{8 - bad:02}' }}}}")
    inputs = {
        "service": {},
        "count": {"type": "integer", "default": 4},
        "token": {"type": "secret", "default": "a"},
        "password": {"type": "secret"},
    }
    written = document({**ON_HOSTS, "steps": [drain, check]}, hosts={"web": ["web-[01:08]"]}, inputs=inputs)
    ended = plan("run", written, "--offline", *TOOLS, "--input", "service=nginx", "--input", "password=canary")
    (line,) = plan("runs", "--json").lines
    command = f"plan run {line['digest'][:12]} --input service=nginx --input password=canary {option} --offline"
    hint = f"`{command}` {end.format(run=line['id'])}\n"
    assert ended.err.endswith(hint)
    assert plan("show", line["id"]).next.endswith(hint)
    if bad == 2:
        again = plan(*command.split()[1:], *TOOLS, "--json").run
        assert [item["label"] for item in again["steps"][0]["result"]] == ["web-07", "web-08"]


def test_a_label_that_is_no_host_is_not_suggested_as_one(plan: Plan) -> None:
    drain = step("drain", "run_command", parameters={"argv": ["touch", "drained"]})
    drain["rollback"] = {"tool_name": "run_command", "parameters": {"argv": ["true"]}}
    steps = [drain, step("check", "fail", depends_on=["drain"])]
    written = document({**ON_HOSTS, "label": "on ${{ item.name }}", "steps": steps}, hosts={"web": ["web-01"]})
    assert plan("run", written, "--offline", *TOOLS).err.endswith("starts a new run; give it only the items that remain\n")


def test_after_a_failure_elsewhere_a_resume_is_suggested(plan: Plan) -> None:
    drain = {"id": "drain", "tool_name": "run_command", "parameters": {"argv": ["touch", "drained"]}}
    drain["rollback"] = {"tool_name": "run_command", "parameters": {"argv": ["rm", "drained"]}}
    inner = [drain, {"id": "check", "tool_name": "fail", "depends_on": ["drain"]}]
    nodes = {"id": "nodes", "for_each": "${{ ['web-1'] }}", "steps": inner, "on_error": "continue", "rollback_failed": True}
    other = {"id": "other", "tool_name": "fail", "on_error": "continue"}
    run_id = plan("run", document(nodes, other), "--offline", *TOOLS, "--json").run["id"]
    assert plan("show", run_id).next == f"`plan resume {run_id} --offline` resumes the run; completed steps are kept\n"
