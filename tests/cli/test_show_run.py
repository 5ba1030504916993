"""Tests of `plan show RUN`: what a person at 80 or 140 columns reads of a run, first line first."""

import re
from pathlib import Path

import pytest

from plan_adapter.cli import output
from plan_adapter.cli.run_view import STYLES
from plan_adapter.gates.approval import os_user
from plan_adapter.text.run_facts import ASCII_SHAPES, SHAPES, Mark
from tests.cli.conftest import Plan
from tests.cli.gated import resumed, signer
from tests.cli.test_questions import asking
from tests.cli.test_run import TOOLS, document, step
from tests.cli.test_terminal import Terminal, terminals
from tests.cli.test_unknown_outcomes import slow

__all__ = ["signer", "terminals"]

RESTART = """
name: rolling-restart
description: 逐个重启节点
inputs: {{nodes: {{type: array, items: string, default: [web-1, 数据库-2, web-3]}}}}
run_name: restart ${{{{ inputs.nodes.join(', ') }}}}
options: {{require_approval: false}}
steps:
  - id: look
    tool_name: run_command
    effect: read
    parameters: {{argv: [echo, three nodes]}}
  - id: nodes
    depends_on: [look]
    for_each: ${{{{ inputs.nodes }}}}
    rollback_failed: {undoes}
    steps:
      - id: drain
        tool_name: run_command
        effect: idempotent_write
        parameters: {{argv: [echo, drained]}}
        {rollback}
      - id: healthy
        tool_name: bash
        effect: read
        depends_on: [drain]
        parameters:
          command: 'if [ "$NODE" = web-3 ]; then echo "connect to $NODE port 8080 refused" >&2; exit 7; fi; echo 200 OK'
          env: {{NODE: "${{{{ item }}}}"}}
  - {{id: notify, tool_name: run_command, depends_on: [nodes], parameters: {{argv: [echo, done]}}}}
"""
UNDRAIN = "rollback: {tool_name: run_command, parameters: {argv: [echo, undrained]}}"


def restart(plan: Plan, *, rolls_back: bool) -> str:
    """Return the id of a run that failed at its third node."""
    write_restart(rolls_back=rolls_back)
    return plan("run", "restart.yaml", "--offline", "--yes", "--json").run["id"]


def write_restart(*, rolls_back: bool) -> None:
    """Write the plan that fails at its third node."""
    text = RESTART.format(undoes=str(rolls_back).lower(), rollback=UNDRAIN if rolls_back else "").replace(
        "    rollback_failed: false\n", ""
    )
    Path("restart.yaml").write_text(text, encoding="utf-8")


def shown(plan: Plan, *, width: int = 80) -> str:
    """Return how the newest run is shown on a terminal that is `width` columns wide, with what differs between runs replaced."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(output, "FILE_WIDTH", width)
        text = plan("show", "last").out
    for pattern, name in (
        (r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", "<id>"),
        (r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d", "<moment>"),
        (r"\b[\d.]+ (ms|s)\b", "<time>"),
        (rf"\b{os_user()}\b", "<me>"),
        (r"(digest|plan run) [0-9a-f]{12}", r"\1 <digest>"),
    ):
        text = re.sub(pattern, name, text)
    return text


FAILED_AND_UNDONE = """\
↶ RolledBack: rolling-restart (restart web-1, 数据库-2, web-3), <time> ago
  `nodes` failed: web-3: `healthy` failed: `bash` ended with exit code 7:
  connect to web-3 port 8080 refused
  every change was undone, and each undo succeeded; nothing was checked
  afterwards
  next: a run that was rolled back cannot be resumed: `plan run <digest>
  --input 'nodes=["web-1", "数据库-2", "web-3"]' --offline` starts a new one

  run <id>, started <moment> by <me>,
  took <time>
  inputs: nodes=["web-1", "数据库-2", "web-3"]

✓ look    <time>, three nodes
✗ nodes   1 of 3 items failed
    ↶ web-1     ↶ drain  ✓ healthy
    ↶ 数据库-2  ↶ drain  ✓ healthy
    ✗ web-3     ↶ drain  ✗ healthy: `bash` ended with exit code 7: connect to
                web-3 port 8080 refused
- notify  skipped: stopped because `nodes` failed

1 of 2 steps done, 1 skipped; 2 of 3 nodes done, 2 of them rolled back, 1 failed
and rolled back; `--all` shows parameters, results and every attempt
"""

FAILED_AT_140 = """\
✗ Partial: rolling-restart (restart web-1, 数据库-2, web-3), <time> ago
  `nodes` failed: web-3: `healthy` failed: `bash` ended with exit code 7: connect to web-3 port 8080 refused
  done, and not undone: drain[web-1], drain[数据库-2], drain[web-3]
  next: `plan resume <id> --offline` resumes the run; completed steps are kept

  run <id>, started <moment> by <me>, took <time>
  inputs: nodes=["web-1", "数据库-2", "web-3"]

✓ look    <time>, three nodes
✗ nodes   1 of 3 items failed
    ✓ web-1     ✓ drain  ✓ healthy: 200 OK, <time>
    ✓ 数据库-2  ✓ drain  ✓ healthy: 200 OK, <time>
    ✗ web-3     ✓ drain  ✗ healthy: `bash` ended with exit code 7: connect to web-3 port 8080 refused
- notify  skipped: stopped because `nodes` failed

1 of 2 steps done, 1 skipped; 2 of 3 nodes done, 1 failed; `--all` shows parameters, results and every attempt
"""


def test_a_run_that_was_rolled_back_says_so_first_and_shows_each_item(plan: Plan) -> None:
    restart(plan, rolls_back=True)
    assert shown(plan) == FAILED_AND_UNDONE


def test_the_end_of_plan_run_says_the_cause_and_what_is_left_behind(plan: Plan) -> None:
    write_restart(rolls_back=False)
    status, cause, left = plan("run", "restart.yaml", "--offline", "--yes").out.splitlines()
    assert re.fullmatch(r"rolling-restart: Partial in .*: 1 of 2 steps done, 1 skipped; 2 of 3 nodes done, 1 failed", status)
    assert cause == "  `nodes` failed: web-3: `healthy` failed: `bash` ended with exit code 7: connect to web-3 port 8080 refused"
    assert left == "  done, and not undone: drain[web-1], drain[数据库-2], drain[web-3]"


def test_a_run_that_failed_says_what_it_left_behind(plan: Plan) -> None:
    restart(plan, rolls_back=False)
    assert shown(plan, width=140) == FAILED_AT_140


def test_a_run_that_waits_at_an_item_shows_what_is_asked_and_what_to_type(plan: Plan) -> None:
    inside = step("restart", "greet", description="重启节点", parameters={"who": "${{ item }}"})
    nodes = {"id": "nodes", "for_each": "${{ ['web-1', 'web-2'] }}", "requires_approval": "each", "steps": [inside]}
    run_id = plan("run", document({**nodes, "description": "逐个重启"}), "--offline", "--json", *TOOLS).run["id"]
    text = shown(plan)
    lines = text.splitlines()
    assert lines[:3] == [
        "⏸ Waiting at nodes[web-1] (no process waits): 试运行",
        "  Approve nodes for web-1 (1 of 2)?",
        "  │ 逐个重启",
    ]
    assert lines[3:5] == ["  It only reads:", "  - 1. restart: `greet` `web-1`"]
    assert " A step of 试运行 (run …" in text
    assert "  waits for an approval of step nodes[web-1] since <moment> (<time>); no" in text
    assert "    ⏸ web-1  · restart\n    · web-2  · restart\n" in text
    assert f"`plan approve {run_id} nodes --item web-1 --digest " in plan("show", run_id).next


def test_on_a_terminal_each_command_is_a_line_and_nothing_is_markdown(plan: Plan, terminals: list[Terminal]) -> None:
    run_id = asking(plan)
    short, digest = run_id[-6:], plan("show", run_id, "--json").run["gates"][0]["digest"][:12]
    for arguments in (
        ("show", run_id),
        ("show", run_id, "--all"),
        ("answer", run_id, "decide", "--show"),
        ("preview", "计划.json", *TOOLS),
    ):
        terminal = Terminal(*arguments)
        terminals.append(terminal)
        assert terminal.end() == 0
        assert not re.search(r"\*\*|^#+ |\\[\[_]", terminal.shown, re.MULTILINE), terminal.shown
    lines = terminals[0].shown.splitlines()
    assert lines[:3] == ["⏸ Waiting at decide (no process waits): 试运行", "  Switch to 东站?", lines[2]]
    assert lines[2].startswith("  answer with choice=switch or wait; nodes=integer")
    begin = lines.index("  next: waiting for an answer")
    assert lines[begin + 1 : begin + 4] == [
        f"    plan answer {short} decide --digest {digest} choice=… nodes=…",
        f"    plan resume {short} --offline              # then continues the run here",
        "    plan gates                                # lists everything that waits",
    ]
    assert "⏸ decide  question" in lines


def test_a_run_that_asks_a_question_shows_it(plan: Plan) -> None:
    run_id = asking(plan)
    lines = shown(plan).splitlines()
    assert lines[:2] == ["⏸ Waiting at decide (no process waits): 试运行", "  Switch to 东站?"]
    assert f"`plan answer {run_id} decide --digest " in plan("show", run_id).next
    plan("answer", run_id, "decide", "choice=switch")
    resumed(plan, run_id)
    done = plan("show", run_id)
    assert (done.out.startswith("✓ Completed: 试运行"), done.next) == (True, "")
    assert "✓ decide  " in done.out
    assert f"answered step decide by {os_user()} (os_user) at " in done.out


def test_an_unknown_outcome_is_the_first_thing_to_read(plan: Plan) -> None:
    run_id = plan("run", slow(timeout=300), "--offline", "--json").run["id"]
    lines = shown(plan, width=140).splitlines()
    assert lines[0].startswith("? UnknownOutcome: ")
    (unknown,) = [line for line in lines if line.startswith("  outcome unknown, it may have been done: slow (run_command ")]
    assert "-c import pathlib" in unknown  # what was called
    assert "  done, and not undone: prep" in lines
    assert f"`plan resolve {run_id} slow done|again|abort`" in plan("show", run_id).next


def test_on_a_terminal_an_unknown_outcome_has_a_line_for_each_answer(plan: Plan, terminals: list[Terminal]) -> None:
    run_id = plan("run", slow(timeout=300), "--offline", "--json").run["id"]
    terminals.append(terminal := Terminal("show", run_id))
    assert terminal.end() == 0
    lines, short = terminal.shown.splitlines(), run_id[-6:]
    begin = lines.index("  next: check whether it happened, then record it with")
    typed = [line for line in lines[begin + 1 :] if line.startswith("    plan ")]
    answers = ("done   # it took effect, and is", "again  # it did not, and is", "abort  # you cannot tell: the run ends")
    for line, answer in zip(typed, answers, strict=False):
        assert line.startswith(f"    plan resolve {short} slow {answer}")
    assert {line.index("#") for line in typed if "#" in line} == {len(f"    plan resolve {short} slow again  ")}


def test_of_many_items_those_that_did_not_succeed_are_shown_first(plan: Plan) -> None:
    names = [f"n{number}" for number in range(30)]
    fails = step("each", "bash", for_each="${{ inputs.names }}", on_error="continue")
    fails["parameters"] = {"command": '[ "$N" != n29 ]', "env": {"N": "${{ item }}"}}
    path = document(fails, inputs={"names": {"type": "array", "default": names}})
    run_id = plan("run", path, "--offline", "--yes", "--json").run["id"]
    lines = plan("show", run_id).out.splitlines()
    begin = next(number for number, line in enumerate(lines) if line.startswith("✗ each"))
    assert (lines[begin], lines[begin + 1].startswith("    ✗ n29")) == ("✗ each  1 of 30 items failed", True)
    assert lines[begin + 21] == "    10 more items, 10 of them done"


def test_every_mark_has_a_shape_and_a_style_of_its_own() -> None:
    for shapes in (SHAPES, ASCII_SHAPES):
        assert (set(shapes), len(set(shapes.values()))) == (set(Mark), len(Mark))
    assert set(STYLES) == set(Mark)
    assert all(shape.isascii() for shape in ASCII_SHAPES.values())


def test_a_stream_without_unicode_gets_ascii_shapes(plan: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    restart(plan, rolls_back=True)
    monkeypatch.setattr(output, "is_unicode", lambda _: False)
    assert plan("show", "last").out.startswith("< RolledBack: rolling-restart")


def test_the_long_form_of_a_plan_is_shown_for_a_file_and_for_a_run(plan: Plan) -> None:
    Path("short.yaml").write_text("description: d\nsteps: [{id: a, bash: echo hi, timeout: 30s}]\n", encoding="utf-8")
    long = "steps:\n- id: a\n  tool_name: bash\n  parameters:\n    command: echo hi\n  timeout_ms: 30000\n"
    assert long in plan("show", "short.yaml", "--long").out
    plan("run", "short.yaml", "--offline", "--yes")
    assert long in plan("show", "last", "--long").out
