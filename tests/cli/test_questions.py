"""Tests of questions: `plan answer`, and prompts at the terminal of a run."""

from pathlib import Path
from typing import Any

from plan_adapter.gates.approval import os_user
from tests.cli.conftest import Plan
from tests.cli.gated import resumed, signer
from tests.cli.test_run import NEEDS_APPROVAL, TOOLS, document, step
from tests.cli.test_terminal import Terminal, run_at, terminals

__all__ = ["signer", "terminals"]

ME = os_user()
FIELDS: dict[str, Any] = {
    "choice": {"enum": ["switch", "wait"], "title": "怎么办", "description": "What happens now"},
    "nodes": {"type": "integer", "minimum": 1, "default": 2},
}
DECIDE = {"id": "decide", "ask": {"question": "Switch to 东站?", "fields": FIELDS}}
ACT = step("act", "greet", parameters={"who": "${{ steps.decide.result.choice }} ${{ steps.decide.result.nodes }}"})
PROMPT = "[a]nswer, [r]eject, [v]iew, [?] "


def asking(plan: Plan, **fields: Any) -> str:
    """Return the id of a run that waits at its question and that no process attends."""
    result = plan("run", document({**DECIDE, **fields}, ACT), "--offline", "--json", *TOOLS)
    assert result.code == 6, result.err
    assert f"`plan answer {result.run['id']} decide --digest " in result.err
    return result.run["id"]


def test_a_question_is_listed_answered_and_the_resumed_run_uses_the_answer(plan: Plan) -> None:
    run_id = asking(plan)
    (gate,) = plan("gates", "--json").lines
    assert (gate["asks"], gate["step"], gate["fields"]["choice"]["enum"]) == ("question", "decide", ["switch", "wait"])
    assert "decide: a question" in plan("gates").out
    assert "**waits for an answer to the question of step decide**" in plan("show", run_id, "--all").out
    assert "## Switch to 东站?" in plan("answer", run_id, "decide", "--show").out
    result = plan("answer", run_id, "decide", "choice=switch", "nodes=3", "--note", "说好了")
    assert (result.code, f"answered step decide of 试运行, by {ME} (os_user)" in result.out) == (0, True), result.err
    assert f"`plan resume {run_id} --offline` resumes the run" in result.err
    done = resumed(plan, run_id)
    assert (done.code, done.run["status"]) == (0, "completed")
    shown = plan("show", run_id, "--all")
    assert f"answered by {ME} (os_user)" in shown.out
    assert f"- answered step decide by {ME} (os_user) at " in shown.out
    assert '"choice": "switch"' in shown.out
    (decided, acted) = plan("show", run_id, "--json").run["steps"]
    assert (decided["tool_name"], decided["result"]) == ("ask", {"choice": "switch", "nodes": 3})
    assert acted["result"] == {"text": "你好, switch 3"}
    assert plan("verify", run_id).code == 0


def test_invalid_values_are_refused_with_every_problem_and_the_question_stays_open(plan: Plan) -> None:
    run_id = asking(plan)
    result = plan("answer", run_id, "decide", "choice=run", "nodes=0", "until=noon")
    assert result.code == 2
    assert [line.partition("; ")[0].partition(": ")[2] for line in result.err.splitlines() if "error[" in line] == [
        "error[bad-input] at fields.choice: the value is none of `switch`, `wait`",
        "error[bad-input] at fields.nodes: the value `0` is smaller than 1",
        "error[unknown-input] at fields.until: the question has no field `until`",
    ]
    assert "no value for `choice` (What happens now); give text: choice=…" in plan("answer", run_id, "decide").err
    assert "write field=value" in plan("answer", run_id, "decide", "switch").err
    assert "given twice" in plan("answer", run_id, "decide", "nodes=1", "nodes=2").err
    assert len(plan("gates", "--json").lines) == 1


def test_only_approvers_can_answer_and_a_wrong_digest_is_refused(plan: Plan) -> None:
    run_id = asking(plan, approvers=["duty-manager"])
    result = plan("answer", run_id, "decide", "choice=wait")
    assert (result.code, f"{ME} may not answer here; only duty-manager may" in result.err) == (10, True)
    other = asking(plan)
    result = plan("answer", other, "decide", "choice=wait", "--digest", "0" * 12)
    assert (result.code, "no gate of this run has a digest beginning with 000000000000" in result.err) == (10, True)


def test_a_signature_covers_the_answer(plan: Plan, signer: Path, home: Path) -> None:
    run_id = asking(plan, approvers=["ana"])
    result = plan("answer", run_id, "decide", "choice=switch", "--sign", "--by", "ana", "--json")
    assert (result.code, result.run["known_by"], result.run["answer"]) == (0, "ssh_signature", {"choice": "switch", "nodes": 2}), result.err
    assert resumed(plan, run_id).code == 0
    verified = plan("verify", run_id, "--json")
    assert verified.code == 0, verified.err


def test_the_plan_is_shown_with_its_questions(plan: Plan) -> None:
    path = document({**DECIDE, "approvers": ["duty-manager"], "expires": "skip"}, ACT, **NEEDS_APPROVAL)
    for shown in (plan("preview", path, *TOOLS).out, plan("show", path, "--all").out):
        assert "**asks a person**: `duty-manager` may answer" in shown
        assert "- `choice` (怎么办, What happens now): `switch` or `wait`" in shown
        assert "if nobody answers in time: `skip`" in shown
    waiting = plan("run", path, "--offline", "--json", *TOOLS).run["id"]
    gate = plan("approve", waiting, "--show").out
    assert "1 question to a person" in gate.partition("### ")[0]
    assert "- asks a person: `decide`" in gate
    assert 's1{{"decide<br/>Switch to 东站#63;"}}:::read' in plan("export", path, "--format", "mermaid", *TOOLS).out


def test_a_person_at_the_terminal_answers_field_by_field(terminals: list[Terminal]) -> None:
    terminal = run_at(terminals, document(DECIDE, ACT))
    terminal.wait_for(PROMPT)
    assert "Switch to 东站?" in terminal.shown
    terminal.type("?\n")
    terminal.wait_for_next(PROMPT)
    assert "answer, field by field" in terminal.shown
    terminal.type("a\n")
    terminal.wait_for("choice: ")
    assert "怎么办 (choice): text" in terminal.shown
    terminal.type("run\n")
    terminal.wait_for("the value is none of `switch`, `wait`")
    terminal.type("1\n")
    terminal.wait_for("nodes: ")
    assert "default: 2" in terminal.shown
    terminal.type("\n")
    assert terminal.end() == 0
    assert f"decide: answered by {ME} (os_user)" in terminal.shown


def test_plan_answer_at_a_terminal_asks_for_the_fields(plan: Plan, terminals: list[Terminal]) -> None:
    run_id = asking(plan)
    terminals.append(terminal := Terminal("answer", run_id, "decide"))
    terminal.wait_for("choice: ")
    terminal.type("wait\n")
    terminal.wait_for("nodes: ")
    terminal.type("7\n")
    terminal.wait_for("Answer step decide? [y]es, [n]o ")
    terminal.type("y\n")
    assert terminal.end() == 0
    assert plan("show", run_id, "--json").run["approvals"][-1]["result"] == {"choice": "wait", "nodes": 7}
