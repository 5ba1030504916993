"""`plan draft --prompt` and `--answer`: a plan by way of any chat."""

import io
import json
from pathlib import Path

import pytest

from plan_adapter.documents import load_plan
from tests.cli.conftest import Plan, Said
from tests.cli.drafting import GOOD, QUESTION, TASK, WRONG
from tests.cli.test_run import TOOLS


def test_the_prompt_for_a_chat_holds_all_that_it_needs_and_asks_nobody(plan: Plan) -> None:
    said = plan("draft", TASK, "--constraint", "小声", "--print-prompt", *TOOLS)
    assert said.code == 0
    for part in ("You plan work", f'task (JSON):\n"{TASK}"', '"name":"greet"', "小声", "Its JSON Schema:\n{", '"ask_user"'):
        assert part in said.out
    assert '"name":"http_get"' not in said.out
    assert plan("draft", TASK, "--constraint", "小声", "--print-prompt", "-o", "问.txt", *TOOLS).out == ""
    assert Path("问.txt").read_text(encoding="utf-8") == said.out
    messages = plan("draft", TASK, "--constraint", "小声", "--print-prompt", "--json", *TOOLS).lines[0]["messages"]
    assert "\n\n".join(message["content"] for message in messages) + "\n" == said.out


def chat(plan: Plan, text: str, *arguments: str) -> Said:
    """What `plan draft --answer` makes of what came back."""
    Path("答.txt").write_text(text, encoding="utf-8")
    return plan("draft", TASK, "--answer", "答.txt", "--constraint", "先第一次", *arguments, *TOOLS)


@pytest.mark.parametrize(
    ("text", "mended"),
    [
        (json.dumps(GOOD), False),
        (f"好的，计划如下：\n```json\n{json.dumps(GOOD, ensure_ascii=False)}\n```\n祝好！", False),
        (f"\ufeff{json.dumps(GOOD, ensure_ascii=False)[:-1]},}}", True),
        (f"Here:\n```json\n{json.dumps(GOOD, ensure_ascii=False, indent=1)[:-2]}\n", True),
    ],
    ids=["plain", "in a fence", "one comma too many", "no end"],
)
def test_what_a_chat_answered_becomes_a_plan(plan: Plan, text: str, mended: bool) -> None:
    said = chat(plan, text)
    assert said.code == 0, said.out
    assert [s.id for s in load_plan(said.out).steps] == ["first", "second"]
    assert "constraint 1 (先第一次): order checked: `first` completes before `second` starts" in said.err
    assert ("was repaired" in said.err) is mended


def test_what_is_wrong_with_it_is_the_text_to_paste_back(plan: Plan) -> None:
    said = chat(plan, json.dumps(WRONG))
    first, *problems, last = said.out.splitlines()
    assert (said.code, first) == (1, "The answer cannot be used:")
    assert last == "Answer again with the whole object, everything else unchanged."
    assert [problem.partition("] ")[0] for problem in problems] == [
        "- steps[0].parameters.who: [bad-parameters",
        "- steps[0].parameters.wo: [bad-parameters",
    ]
    assert "paste stdout into the chat" in said.err
    (told,) = chat(plan, json.dumps(WRONG), "--json").lines
    assert (told["plan"], told["reply"]) == (None, said.out.removesuffix("\n"))


def test_an_answer_without_an_object_is_reported(plan: Plan) -> None:
    said = chat(plan, "我不会。")
    assert (said.code, "[syntax] the answer is not JSON" in said.out) == (1, True)


def test_a_claim_that_the_plan_does_not_keep_is_no_answer(plan: Plan) -> None:
    claim = {"number": 1, "steps": ["second"], "before": ["first"]}
    said = chat(plan, json.dumps({**GOOD, "constraints": [claim]}))
    assert (said.code, "constraints[0]: [broken-constraint]" in said.out) == (1, True)


def test_a_question_of_the_chat_is_for_the_person_there(plan: Plan) -> None:
    said = chat(plan, json.dumps(QUESTION))
    assert (said.code, said.out) == (2, "")
    assert "the model asks: 问候谁？\nanswer it in the chat" in said.err


def test_an_answer_that_only_continues_thinking_gets_a_reply_to_continue(plan: Plan) -> None:
    said = chat(plan, json.dumps({"action": "continue", "speak": "hm", "reason": "hard"}))
    assert (said.code, said.out) == (1, "Go on. Plan it now if you can.\n")


def test_an_answer_is_taken_from_stdin(plan: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(json.dumps(GOOD)))
    assert load_plan(plan("draft", TASK, "--answer", "-", *TOOLS).out).description == "两次问候"
