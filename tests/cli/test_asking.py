"""Tests of gates at a pseudo-terminal: what is shown, what each answer does, and answers from other processes."""

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

PROMPT = "[v]iew, [e]dit, [?] "
STEP_PROMPT = "[v]iew, [?] "


def open_gates() -> list[dict[str, Any]]:
    """Return the open gates that `plan gates` lists."""
    return [json.loads(line) for line in piped("gates", "--json").stdout.splitlines()]


def answer(verb: str, *arguments: str) -> None:
    """Answer from another process."""
    done = piped(verb, *arguments)
    assert done.returncode == 0, done.stderr.decode()


def test_a_person_at_the_terminal_sees_the_plan_and_approves_it(terminals: list[Terminal]) -> None:
    terminal = run_at(terminals, document(GREET, **NEEDS_APPROVAL))
    terminal.wait_for(PROMPT)
    assert "- 1. greet: `greet`" in terminal.shown
    assert "approval digest: `" in terminal.shown
    assert f"Approve this plan as {os_user()}?" in terminal.shown
    assert "mermaid" not in terminal.shown
    terminal.type("y\n")
    assert terminal.end() == 0
    assert f"the plan: approved by {os_user()} (os_user)" in terminal.shown
    assert "✓ greet" in terminal.shown
    assert "试运行: Completed in" in terminal.shown


def test_a_no_asks_for_a_reason_and_runs_nothing(terminals: list[Terminal]) -> None:
    terminal = run_at(terminals, document(GREET, **NEEDS_APPROVAL))
    terminal.wait_for(PROMPT)
    terminal.type("n\n")
    terminal.wait_for("Why not?")
    terminal.type("太危险\n")
    assert terminal.end() == 3
    assert "Rejected" in terminal.shown
    assert "✓ greet" not in terminal.shown
    assert json.loads(piped("runs", "--json").stdout)["rejection_note"] == "太危险"


def test_an_unrecognized_answer_is_asked_again(terminals: list[Terminal]) -> None:
    terminal = run_at(terminals, document(GREET, **NEEDS_APPROVAL))
    terminal.wait_for(PROMPT)
    for number, word in enumerate(("", "什么", "?"), start=1):
        terminal.type(f"{word}\n")
        terminal.wait_for_next(PROMPT, times=number + 1)
        assert terminal.shown.count("yes: run exactly this, once") == number, word
    assert "plan digest" not in terminal.shown
    terminal.type("v\n")
    terminal.wait_for_next(PROMPT, times=5)
    assert "plan digest" in terminal.shown
    terminal.type("yes\n")
    assert terminal.end() == 0


@pytest.mark.thorough
def test_the_end_of_input_rejects_the_plan_if_nobody_else_can_answer(terminals: list[Terminal]) -> None:
    terminal = run_at(terminals, document(GREET, **NEEDS_APPROVAL))
    terminal.wait_for(PROMPT)
    terminal.type("\x04")
    assert terminal.end() == 3
    assert json.loads(piped("runs", "--json").stdout)["rejection_note"] == "no answer: the input ended"


def test_text_typed_before_the_prompt_is_ignored(terminals: list[Terminal]) -> None:
    terminal = run_at(terminals, document(GREET, **NEEDS_APPROVAL))
    terminal.type("y\n")
    terminal.wait_for(PROMPT)
    terminal.type("n\n")
    terminal.wait_for("Why not?")
    terminal.type("\n")
    assert terminal.end() == 3


@pytest.mark.parametrize(("verb", "proof"), [("approve", ["--yes"]), ("reject", [])], ids=["approve", "reject"])
@pytest.mark.thorough
def test_the_prompt_ends_with_a_message_if_another_process_answers(terminals: list[Terminal], verb: str, proof: list[str]) -> None:
    terminal = run_at(terminals, document(GREET, **NEEDS_APPROVAL))
    terminal.wait_for(PROMPT)
    (gate,) = open_gates()
    assert gate["attended"] is True
    answer(verb, gate["run_id"], *proof, "--note", "从别处")
    assert terminal.end() == (0 if verb == "approve" else 3)
    history = {"approve": "approved", "reject": "rejected"}[verb]
    assert f"the plan: {history} by {os_user()} (os_user): 从别处" in terminal.shown


@pytest.mark.thorough
def test_ctrl_c_at_the_prompt_cancels_the_run(terminals: list[Terminal]) -> None:
    terminal = run_at(terminals, document(GREET, **NEEDS_APPROVAL))
    terminal.wait_for(PROMPT)
    os.kill(terminal.process.pid, signal.SIGINT)
    assert terminal.end() == 130
    run = json.loads(piped("runs", "--json").stdout)
    assert (run["status"], "Ctrl-C" in run["message"]) == ("cancelled", True)
    assert open_gates() == []


TWO = (
    step("first", "greet", parameters={"who": "甲"}, requires_approval=True),
    step("second", "greet", parameters={"who": "乙"}, requires_approval=True),
    step("beside", "greet", parameters={"who": "丙"}),
)
PARALLEL: dict[str, Any] = {"options": {"require_approval": False, "allow_parallel": True}}


@pytest.mark.thorough
def test_two_step_gates_are_asked_in_turn_while_other_steps_continue(terminals: list[Terminal]) -> None:
    terminal = run_at(terminals, document(*TWO, **PARALLEL))
    terminal.wait_for(STEP_PROMPT)
    terminal.wait_for("✓ beside")
    assert "Approve step `first` with these parameters" in terminal.shown
    assert "Approve step `second`" not in terminal.shown
    terminal.type("y\n")
    terminal.wait_for("Approve step `second` with these parameters")
    assert "乙" in terminal.shown
    terminal.wait_for("✓ first")  # a rejection prevents pending steps from starting
    terminal.type("n\n")
    terminal.wait_for("Why not?")
    terminal.type("不要\n")
    assert terminal.end() == 3
    assert "✓ first" in terminal.shown
    assert "second" in piped("runs", "--json").stdout.decode()


@pytest.mark.thorough
def test_answering_a_step_elsewhere_moves_the_terminal_to_the_next_prompt(terminals: list[Terminal]) -> None:
    terminal = run_at(terminals, document(*TWO, **PARALLEL))
    terminal.wait_for("Approve step `first`")
    terminal.wait_for("second: waits for an approval")
    run_id = open_gates()[0]["run_id"]
    several = piped("approve", run_id)
    assert several.returncode == 2
    assert f"plan approve {run_id} first" in several.stderr.decode()
    answer("approve", run_id, "--step", "first", "--yes")
    terminal.wait_for("Approve step `second`")
    terminal.wait_for(f"first: approved by {os_user()} (os_user)")  # shown above the prompt or after it
    terminal.type("y\n")
    assert terminal.end() == 0


def editor(path: Path, *versions: str) -> str:
    """Return the command of an editor that saves these texts, one per call."""
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
def test_an_edited_plan_is_validated_shown_and_asked_again(terminals: list[Terminal], tmp_path: Path) -> None:
    path = document(GREET, **NEEDS_APPROVAL)
    good = path.read_text(encoding="utf-8").replace("世界", "大家")
    bad = good.replace('"tool_name": "greet"', '"tool_name": "gret"')
    terminal = run_at(terminals, path, EDITOR=editor(tmp_path / "editor.py", bad, good), VISUAL="")
    terminal.wait_for(PROMPT)
    terminal.type("e\n")
    terminal.wait_for("Edit it again?")
    assert "unknown-tool" in terminal.shown
    terminal.type("\n")
    terminal.wait_for("Use this version?")
    assert "`greet.parameters.who`: `世界` → `大家`" in terminal.shown
    terminal.type("y\n")
    terminal.wait_for("Why?")
    terminal.type("\n")
    terminal.wait_for_next(PROMPT)
    assert "What changed" in terminal.shown
    terminal.type("y\n")
    assert terminal.end() == 0
    shown = json.loads(piped("show", json.loads(piped("runs", "--json").stdout)["id"], "--json").stdout)
    assert shown["steps"][0]["result"] == {"text": "你好, 大家"}


@pytest.mark.thorough
def test_a_plan_revised_by_another_process_is_asked_again(terminals: list[Terminal]) -> None:
    path = document(GREET, **NEEDS_APPROVAL)
    terminal = run_at(terminals, path)
    terminal.wait_for(PROMPT)
    (gate,) = open_gates()
    path.write_text(path.read_text(encoding="utf-8").replace("世界", "大家"), encoding="utf-8")
    done = piped("revise", gate["run_id"], path, *TOOLS)
    assert b"the waiting process now asks about the new version" in done.stderr
    terminal.wait_for_next(PROMPT)
    assert "大家" in terminal.shown
    terminal.type("y\n")
    assert terminal.end() == 0


def test_a_refused_answer_is_explained_and_asked_again(terminals: list[Terminal]) -> None:
    terminal = run_at(terminals, document(GREET, **NEEDS_APPROVAL, approval={"self_approval": False}))
    terminal.wait_for(PROMPT)
    assert "you cannot approve it here" in terminal.shown
    terminal.type("y\n")
    terminal.wait_for("your answer was refused")
    terminal.wait_for_next(PROMPT)
    terminal.type("n\n")
    terminal.wait_for("Why not?")
    terminal.type("\n")
    assert terminal.end() == 3


@pytest.mark.thorough
def test_a_resumed_run_shows_its_inputs_before_it_asks(terminals: list[Terminal]) -> None:
    greeting = step("greet", "greet", parameters={"who": "${{ inputs.who }}"})
    path = document(greeting, inputs={"who": {"type": "string"}}, **NEEDS_APPROVAL)
    waiting = piped("run", path, "--offline", "--json", "--input", "who=小明", *TOOLS)
    assert waiting.returncode == 6
    terminal = Terminal("resume", json.loads(waiting.stdout)["id"], "--offline", *TOOLS)
    terminals.append(terminal)
    terminal.wait_for(PROMPT)
    assert "`who`: `小明`" in terminal.shown
    terminal.type("yes\n")
    assert terminal.end() == 0


def test_an_edit_without_an_editor_keeps_the_plan(terminals: list[Terminal]) -> None:
    terminal = run_at(terminals, document(GREET, **NEEDS_APPROVAL), VISUAL="/none/vi")
    terminal.wait_for(PROMPT)
    terminal.type("e\n")
    terminal.wait_for("cannot be started")
    terminal.wait_for_next(PROMPT)
    terminal.type("y\n")
    assert terminal.end() == 0
