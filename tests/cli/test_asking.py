"""A gate at a pseudo-terminal: what is shown, each answer, and a question that somebody else answers."""

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

from plan_adapter.gates.approval import os_user
from tests.cli.test_run import GREET, NEEDS_APPROVAL, TOOLS, document, step
from tests.cli.test_terminal import Terminal, piped, run_at, terminals

__all__ = ["terminals"]

ASKED = "[v]iew, [e]dit, [?] "
STEP_ASKED = "[v]iew, [?] "


def listed() -> list[dict[str, Any]]:
    """What waits, by `plan gates`."""
    return [json.loads(line) for line in piped("gates", "--json").stdout.splitlines()]


def answered(verb: str, *arguments: str) -> None:
    """Answer from another process."""
    done = piped(verb, *arguments)
    assert done.returncode == 0, done.stderr.decode()


def test_a_person_at_the_terminal_sees_what_would_run_and_says_yes(terminals: list[Terminal]) -> None:
    terminal = run_at(terminals, document(GREET, **NEEDS_APPROVAL))
    terminal.wait_for(ASKED)
    assert "**1. greet**" in terminal.shown
    assert "approval digest: `" in terminal.shown
    assert f"Approve this plan as {os_user()}?" in terminal.shown
    assert "mermaid" not in terminal.shown
    terminal.type("y\n")
    assert terminal.end() == 0
    assert f"the plan: approved by {os_user()} (os_user)" in terminal.shown
    assert "✓ greet" in terminal.shown
    assert "试运行: completed in" in terminal.shown


def test_a_no_asks_why_and_nothing_is_run(terminals: list[Terminal]) -> None:
    terminal = run_at(terminals, document(GREET, **NEEDS_APPROVAL))
    terminal.wait_for(ASKED)
    terminal.type("n\n")
    terminal.wait_for("Why not?")
    terminal.type("太危险\n")
    assert terminal.end() == 3
    assert "cancelled (rejected)" in terminal.shown
    assert "✓ greet" not in terminal.shown
    assert json.loads(piped("runs", "--json").stdout)["rejection_note"] == "太危险"


def test_what_is_no_answer_is_asked_again(terminals: list[Terminal]) -> None:
    terminal = run_at(terminals, document(GREET, **NEEDS_APPROVAL))
    terminal.wait_for(ASKED)
    for number, word in enumerate(("", "什么", "?"), start=1):
        terminal.type(f"{word}\n")
        terminal.wait_for_next(ASKED, times=number + 1)
        assert terminal.shown.count("yes: run exactly this, once") == number, word
    assert "plan digest" not in terminal.shown
    terminal.type("v\n")
    terminal.wait_for_next(ASKED, times=5)
    assert "plan digest" in terminal.shown
    terminal.type("yes\n")
    assert terminal.end() == 0


@pytest.mark.thorough
def test_an_end_of_the_input_rejects_where_nobody_else_is_asked(terminals: list[Terminal]) -> None:
    terminal = run_at(terminals, document(GREET, **NEEDS_APPROVAL))
    terminal.wait_for(ASKED)
    terminal.type("\x04")
    assert terminal.end() == 3
    assert json.loads(piped("runs", "--json").stdout)["rejection_note"] == "no answer: the input ended"


def test_what_was_typed_before_the_question_answers_nothing(terminals: list[Terminal]) -> None:
    terminal = run_at(terminals, document(GREET, **NEEDS_APPROVAL))
    terminal.type("y\n")
    terminal.wait_for(ASKED)
    terminal.type("n\n")
    terminal.wait_for("Why not?")
    terminal.type("\n")
    assert terminal.end() == 3


@pytest.mark.parametrize("verb", ["approve", "reject"])
@pytest.mark.thorough
def test_a_question_that_another_process_answers_ends_with_a_message(terminals: list[Terminal], verb: str) -> None:
    terminal = run_at(terminals, document(GREET, **NEEDS_APPROVAL))
    terminal.wait_for(ASKED)
    (gate,) = listed()
    assert gate["attended"] is True
    answered(verb, gate["run_id"], "--note", "从别处")
    assert terminal.end() == (0 if verb == "approve" else 3)
    history = {"approve": "approved", "reject": "rejected"}[verb]
    assert f"the plan: {history} by {os_user()} (os_user): 从别处" in terminal.shown


@pytest.mark.thorough
def test_ctrl_c_at_the_question_cancels_the_run(terminals: list[Terminal]) -> None:
    terminal = run_at(terminals, document(GREET, **NEEDS_APPROVAL))
    terminal.wait_for(ASKED)
    os.kill(terminal.process.pid, signal.SIGINT)
    assert terminal.end() == 130
    run = json.loads(piped("runs", "--json").stdout)
    assert (run["status"], "Ctrl-C" in run["message"]) == ("cancelled", True)
    assert listed() == []


TWO = (
    step("first", "greet", parameters={"who": "甲"}, requires_approval=True),
    step("second", "greet", parameters={"who": "乙"}, requires_approval=True),
    step("beside", "greet", parameters={"who": "丙"}),
)
PARALLEL: dict[str, Any] = {"options": {"require_approval": False, "allow_parallel": True}}


@pytest.mark.thorough
def test_two_steps_are_asked_about_in_turn_while_others_continue(terminals: list[Terminal]) -> None:
    terminal = run_at(terminals, document(*TWO, **PARALLEL))
    terminal.wait_for(STEP_ASKED)
    terminal.wait_for("✓ beside")
    assert "Approve step `first` with these parameters" in terminal.shown
    assert "Approve step `second`" not in terminal.shown
    terminal.type("y\n")
    terminal.wait_for("Approve step `second` with these parameters")
    assert "乙" in terminal.shown
    terminal.wait_for("✓ first")  # a rejection keeps what has not begun from beginning
    terminal.type("n\n")
    terminal.wait_for("Why not?")
    terminal.type("不要\n")
    assert terminal.end() == 3
    assert "✓ first" in terminal.shown
    assert "second" in piped("runs", "--json").stdout.decode()


@pytest.mark.thorough
def test_a_step_that_is_answered_elsewhere_gives_way_to_the_next_question(terminals: list[Terminal]) -> None:
    terminal = run_at(terminals, document(*TWO, **PARALLEL))
    terminal.wait_for("Approve step `first`")
    terminal.wait_for("second: waits for an approval")
    run_id = listed()[0]["run_id"]
    several = piped("approve", run_id)
    assert several.returncode == 2
    assert f"plan approve {run_id} --step first" in several.stderr.decode()
    answered("approve", run_id, "--step", "first")
    terminal.wait_for("Approve step `second`")
    terminal.wait_for(f"first: approved by {os_user()} (os_user)")  # above the question, or after it was first shown
    terminal.type("y\n")
    assert terminal.end() == 0


def editor(path: Path, *versions: str) -> str:
    """An editor that saves these texts, one after the other."""
    saves = "; ".join(f"if n == {number}: text = {text!r}" for number, text in enumerate(versions))
    path.write_text(
        "import pathlib, sys\n"
        f"calls = pathlib.Path({str(path.with_suffix('.calls'))!r})\n"
        "n = int(calls.read_text()) if calls.exists() else 0\n"
        "calls.write_text(str(n + 1))\n" + "\n".join(saves.split("; ")) + "\n"
        "pathlib.Path(sys.argv[1]).write_text(text, encoding='utf-8')\n",
        encoding="utf-8",
    )
    return f"{sys.executable} {path}"


@pytest.mark.thorough
def test_an_edited_plan_is_checked_shown_and_asked_about_anew(terminals: list[Terminal], tmp_path: Path) -> None:
    path = document(GREET, **NEEDS_APPROVAL)
    good = path.read_text(encoding="utf-8").replace("世界", "大家")
    bad = good.replace('"tool_name": "greet"', '"tool_name": "gret"')
    terminal = run_at(terminals, path, EDITOR=editor(tmp_path / "editor.py", bad, good), VISUAL="")
    terminal.wait_for(ASKED)
    terminal.type("e\n")
    terminal.wait_for("Edit it again?")
    assert "unknown-tool" in terminal.shown
    terminal.type("\n")
    terminal.wait_for("Use this version?")
    assert "~ greet.parameters.who: 世界 → 大家" in terminal.shown
    terminal.type("y\n")
    terminal.wait_for("Why?")
    terminal.type("\n")
    terminal.wait_for_next(ASKED)
    assert "What changed" in terminal.shown
    terminal.type("y\n")
    assert terminal.end() == 0
    shown = json.loads(piped("show", json.loads(piped("runs", "--json").stdout)["id"], "--json").stdout)
    assert shown["steps"][0]["result"] == {"text": "你好, 大家"}


@pytest.mark.thorough
def test_a_plan_that_another_process_revises_is_asked_about_anew(terminals: list[Terminal]) -> None:
    path = document(GREET, **NEEDS_APPROVAL)
    terminal = run_at(terminals, path)
    terminal.wait_for(ASKED)
    (gate,) = listed()
    path.write_text(path.read_text(encoding="utf-8").replace("世界", "大家"), encoding="utf-8")
    done = piped("revise", gate["run_id"], path, *TOOLS)
    assert b"the waiting process now asks about the new version" in done.stderr
    terminal.wait_for_next(ASKED)
    assert "大家" in terminal.shown
    terminal.type("y\n")
    assert terminal.end() == 0


def test_an_answer_that_the_policy_refuses_is_explained_and_asked_again(terminals: list[Terminal]) -> None:
    terminal = run_at(terminals, document(GREET, **NEEDS_APPROVAL, approval={"self_approval": False}))
    terminal.wait_for(ASKED)
    assert "you cannot approve it here" in terminal.shown
    terminal.type("y\n")
    terminal.wait_for("your answer was refused")
    terminal.wait_for_next(ASKED)
    terminal.type("n\n")
    terminal.wait_for("Why not?")
    terminal.type("\n")
    assert terminal.end() == 3


@pytest.mark.thorough
def test_a_run_that_waited_shows_its_inputs_before_it_is_resumed(terminals: list[Terminal]) -> None:
    greeting = step("greet", "greet", parameters={"who": "${{ inputs.who }}"})
    path = document(greeting, inputs={"who": {"type": "string"}}, **NEEDS_APPROVAL)
    waiting = piped("run", path, "--offline", "--json", "--input", "who=小明", *TOOLS)
    assert waiting.returncode == 6
    terminal = Terminal("resume", json.loads(waiting.stdout)["id"], "--offline", *TOOLS)
    terminals.append(terminal)
    terminal.wait_for(ASKED)
    assert "`who`: `小明`" in terminal.shown
    terminal.type("yes\n")
    assert terminal.end() == 0


def test_an_edit_without_an_editor_leaves_the_plan_as_it_is(terminals: list[Terminal]) -> None:
    terminal = run_at(terminals, document(GREET, **NEEDS_APPROVAL), VISUAL="/none/vi")
    terminal.wait_for(ASKED)
    terminal.type("e\n")
    terminal.wait_for("cannot be started")
    terminal.wait_for_next(ASKED)
    terminal.type("y\n")
    assert terminal.end() == 0
