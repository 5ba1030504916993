"""Tests of `plan draft --print-prompt` and `--answer`: drafting with any chat."""

import io
import json
from pathlib import Path

import pytest

from plan_adapter.documents import load_plan
from tests.cli.conftest import CommandResult, Plan
from tests.cli.drafting import GOOD, QUESTION, TASK, WRONG
from tests.cli.test_run import TOOLS


def test_the_printed_prompt_is_complete_and_calls_no_model(plan: Plan) -> None:
    result = plan("draft", TASK, "--constraint", "小声", "--print-prompt", *TOOLS)
    assert result.code == 0
    for part in ("You plan work", f'task (JSON):\n"{TASK}"', '"name":"greet"', "小声", "Its JSON Schema:\n{", '"ask_user"'):
        assert part in result.out
    assert '"name":"http_get"' not in result.out
    assert plan("draft", TASK, "--constraint", "小声", "--print-prompt", "-o", "问.txt", *TOOLS).out == ""
    assert Path("问.txt").read_text(encoding="utf-8") == result.out
    messages = plan("draft", TASK, "--constraint", "小声", "--print-prompt", "--json", *TOOLS).lines[0]["messages"]
    assert "\n\n".join(message["content"] for message in messages) + "\n" == result.out


def chat(plan: Plan, text: str, *arguments: str) -> CommandResult:
    """Run `plan draft --answer` with `text` as the answer of the chat."""
    Path("答.txt").write_text(text, encoding="utf-8")
    return plan("draft", TASK, "--answer", "答.txt", "--constraint", "先第一次", *arguments, *TOOLS)


@pytest.mark.parametrize(
    ("text", "repaired"),
    [
        (json.dumps(GOOD), False),
        (f"好的，计划如下：\n```json\n{json.dumps(GOOD, ensure_ascii=False)}\n```\n祝好！", False),
        (f"\ufeff{json.dumps(GOOD, ensure_ascii=False)[:-1]},}}", True),
        (f"Here:\n```json\n{json.dumps(GOOD, ensure_ascii=False, indent=1)[:-2]}\n", True),
    ],
    ids=["plain", "in a fence", "one comma too many", "no end"],
)
def test_an_answer_from_a_chat_becomes_a_plan(plan: Plan, text: str, repaired: bool) -> None:
    result = chat(plan, text)
    assert result.code == 0, result.out
    assert [s.id for s in load_plan(result.out).steps] == ["first", "second"]
    assert "constraint 1 (先第一次): order checked: `first` completes before `second` starts" in result.err
    assert ("was repaired" in result.err) is repaired


def test_the_problems_of_an_answer_are_printed_for_pasting_into_the_chat(plan: Plan) -> None:
    result = chat(plan, json.dumps(WRONG))
    first, *problems, last = result.out.splitlines()
    assert (result.code, first) == (1, "The answer cannot be used:")
    assert last == "Answer again with the whole object, everything else unchanged."
    assert [problem.partition("] ")[0] for problem in problems] == [
        "- steps[0].parameters.who: [bad-parameters",
        "- steps[0].parameters.wo: [bad-parameters",
    ]
    assert "paste stdout into the chat" in result.err
    (line,) = chat(plan, json.dumps(WRONG), "--json").lines
    assert (line["plan"], line["reply"]) == (None, result.out.removesuffix("\n"))


def test_an_answer_without_json_is_reported(plan: Plan) -> None:
    result = chat(plan, "我不会。")
    assert (result.code, "[syntax] the answer is not JSON" in result.out) == (1, True)


def test_an_answer_whose_plan_breaks_a_constraint_is_refused(plan: Plan) -> None:
    claim = {"number": 1, "steps": ["second"], "before": ["first"]}
    result = chat(plan, json.dumps({**GOOD, "constraints": [claim]}))
    assert (result.code, "constraints[0]: [broken-constraint]" in result.out) == (1, True)


def test_a_question_from_the_model_is_answered_in_the_chat(plan: Plan) -> None:
    result = chat(plan, json.dumps(QUESTION))
    assert (result.code, result.out) == (2, "")
    assert "the model asks: 问候谁？\nanswer it in the chat" in result.err


def test_a_continue_answer_gets_a_reply_to_paste_into_the_chat(plan: Plan) -> None:
    result = chat(plan, json.dumps({"action": "continue", "speak": "hm", "reason": "hard"}))
    assert (result.code, result.out) == (1, "Go on. Plan it now if you can.\n")


def test_an_answer_is_read_from_stdin(plan: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(json.dumps(GOOD)))
    assert load_plan(plan("draft", TASK, "--answer", "-", *TOOLS).out).description == "两次问候"
