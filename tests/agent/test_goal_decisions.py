"""Tests of an answer in a round of a goal: what is a decision, and the message for each fault. Fault numbers are SmartFlow's."""

import json
from typing import Any

import pytest

from plan_adapter.agent.answer_text import Reading, read_answer
from plan_adapter.agent.goal_model import read_goal_decision, read_verdict, repaired_list
from plan_adapter.model.goals import ToolCallIntent
from tests.agent.goals import ABORT, TOOLS, a_goal, call, looked, model_answer, read

PROVED = a_goal(looked(1), looked(2))

GOOD: dict[str, tuple[dict[str, Any], Any]] = {
    "a read": (model_answer("continue", tool_call=call("look", host="web-1")), ToolCallIntent(name="look", arguments={"host": "web-1"})),
    "a thought": (model_answer("continue"), None),
    "a write that is confirmed": (
        model_answer("confirm", tool_call=call("restart", host="web-1")),
        ToolCallIntent(name="restart", arguments={"host": "web-1"}),
    ),
    "a question": (model_answer("ask_user", tool_call=None, abort=None, goal_check=None), None),
    "the next step": (model_answer("next_plan", goal_check="E1 shows it"), None),
    "the end": (model_answer("done", goal_check="由E2证明"), None),
    "the end, in strict form": (model_answer("done", goal_check="(E1, E2)", tool_call=None, abort=None), None),
    "giving up": (model_answer("abort", abort=ABORT.model_dump()), None),
}


@pytest.mark.parametrize("kind", GOOD)
def test_a_valid_answer_is_a_decision(kind: str) -> None:
    answer, intent = GOOD[kind]
    decision, faults = read(answer, PROVED)
    assert faults == ()
    assert decision is not None
    assert (decision.action, decision.tool_call) == (answer["action"], intent)
    assert decision.abort == (ABORT if answer["action"] == "abort" else None)


FAULTS: dict[str, tuple[object, tuple[str, ...]]] = {
    "empty text": ("", ("the answer is empty", "`continue`, `ask_user`, `confirm`, `next_plan`, `done`, `abort`")),
    "malformed JSON": ('{"action": "done", ', ("not JSON", "`continue`, `ask_user`")),
    "prose": ("I restart it now.", ("not JSON",)),
    "a list of decisions": ([model_answer("continue")], ("the answer is a list",)),
    "two decisions": (f"{json.dumps(model_answer('continue'))} {json.dumps(model_answer('done'))}", ("several objects",)),
    "no action": ({"speak": "hm"}, ("the `action` is missing", "`continue`, `ask_user`")),
    "an unknown action": (model_answer("execute"), ('"execute" does not exist', "`next_plan`")),
    "an action that is not text": (model_answer("x") | {"action": ["done"]}, ('["done"] does not exist',)),
    "an array as tool_call": (
        model_answer("continue", tool_call=[call("look", host="a"), call("look", host="b")]),
        ("`tool_call` is a list", "one call", "in later rounds"),
    ),
    "a text as tool_call": (model_answer("continue", tool_call="look"), ('`tool_call` is "look"', '{"name": "TOOL"')),
    "a call without a name": (model_answer("continue", tool_call={"arguments": {}}), ("has no `name`",)),
    "an unknown tool": (
        model_answer("continue", tool_call=call("lok", host="a")),
        ('no tool "lok"', "`label`, `look`, `restart`"),
    ),
    "arguments that are not an object": (
        model_answer("continue", tool_call={"name": "look", "arguments": ["web-1"]}),
        ('is ["web-1"]', "`host`, `labels`, `lines`"),
    ),
    "a missing argument": (model_answer("continue", tool_call=call("look")), ("`tool_call.arguments.host` of `look`", "missing")),
    "a wrong argument": (
        model_answer("continue", tool_call=call("look", host="a", lines="many")),
        ("`tool_call.arguments.lines` of `look`", "integer"),
    ),
    "an unknown argument": (model_answer("continue", tool_call=call("look", host="a", port=1)), ("`tool_call.arguments.port` of `look`",)),
    "a write under continue": (
        model_answer("continue", tool_call=call("restart", host="a")),
        ("`restart` does more than read", "use `confirm` with the same"),
    ),
    "an idempotent write under continue": (
        model_answer("continue", tool_call=call("label", host="a", name="b")),
        ("`label` does more than read", "`confirm`"),
    ),
    "confirm without a call": (model_answer("confirm"), ("`confirm` without `tool_call`",)),
    "ask_user with a call": (model_answer("ask_user", tool_call=call("look", host="a")), ("`ask_user` calls nothing",)),
    "next_plan with a call": (model_answer("next_plan", goal_check="E1", tool_call=call("look", host="a")), ("`next_plan` calls nothing",)),
    "done with a call": (model_answer("done", goal_check="E1", tool_call=call("restart", host="a")), ("`done` calls nothing",)),
    "abort with a call": (model_answer("abort", abort=ABORT.model_dump(), tool_call=call("look", host="a")), ("`abort` calls nothing",)),
    "abort without a reason": (model_answer("abort"), ("`abort` without a reason", '"user_message"')),
    "a reason to abort beside another action": (model_answer("continue", abort=ABORT.model_dump()), ("`abort` is written only with",)),
    "no goal_check": (model_answer("done"), ("`done` without `goal_check`", "`E1`, `E2`")),
    "an empty goal_check": (model_answer("next_plan", goal_check=" \n"), ("`next_plan` without `goal_check`",)),
}


@pytest.mark.parametrize("kind", FAULTS)
def test_each_fault_has_a_message_with_the_choices(kind: str) -> None:
    answer, words = FAULTS[kind]
    decision, faults = read(answer, PROVED)
    assert decision is None
    assert len(faults) == 1
    assert [word for word in words if word not in faults[0]] == [], faults[0]


def test_all_faults_of_an_answer_are_reported_at_once() -> None:
    _, faults = read(model_answer("done", tool_call=call("lok")) | {"abort": {}}, a_goal(looked(1), is_last=False))
    begin = (
        "this step has no tool",
        "`abort` is written only",
        "`done` calls nothing",
        "`done` without `goal_check`",
    )
    assert len(faults) == len(begin)
    assert all(fault.startswith(words) for fault, words in zip(faults, begin, strict=True))


def test_fault_5_a_call_is_checked_before_a_person_sees_it() -> None:
    decision, faults = read(model_answer("confirm", tool_call=call("restart", host=["web-1", "web-2"])))
    assert decision is None
    assert "should be a string" in faults[0]


def test_fault_8_a_registered_tool_that_the_step_does_not_have_is_unknown() -> None:
    goal = a_goal(effects={"look": "read"})
    assert "no tool" in read(model_answer("confirm", tool_call=call("restart", host="web-1")), goal)[1][0]


def test_arguments_are_converted_to_what_the_tool_expects() -> None:
    strict = call("look", host="web-1", labels='{"app": "网站"}', lines=None)
    (decision, faults) = read(model_answer("continue", tool_call=strict))
    assert faults == ()
    assert decision is not None
    assert decision.tool_call == ToolCallIntent(name="look", arguments={"host": "web-1", "labels": {"app": "网站"}})


@pytest.mark.parametrize(
    ("answer", "spoken"),
    [
        ({"action": "continue", "speak": " 看一下 ", "reason": "r"}, "看一下"),
        ({"action": "continue", "speak": "", "reason": "because"}, "because"),
        ({"action": "continue", "speak": None}, "I am working on this step."),
        ({"action": "ask_user"}, "I need one more fact from you to go on."),
        ({"action": "confirm", "tool_call": call("restart", host="a")}, "I have prepared this call. Please confirm it."),
        ({"action": "confirm", "tool_call": call("restart", host="a"), "reason": "it hangs"}, "it hangs"),
        ({"action": "done", "reason": "r", "goal_check": "E1"}, ""),
        ({"action": "next_plan", "reason": "r", "goal_check": "E1"}, ""),
        ({"action": "abort", "reason": "r", "abort": {"code": "c", "user_message": "u"}}, ""),
    ],
)
def test_speak_falls_back_to_the_reason_and_then_to_a_sentence_unless_the_step_ends(answer: dict[str, Any], spoken: str) -> None:
    decision, faults = read(answer, a_goal(looked(1)))
    assert faults == ()
    assert decision is not None
    assert decision.speak == spoken


def test_an_abort_without_an_internal_reason_has_the_reason_of_the_decision() -> None:
    decision, _ = read(model_answer("abort", abort={"code": "c", "user_message": "u"}) | {"reason": "403"})
    assert decision is not None
    assert decision.abort is not None
    assert decision.abort.internal_reason == "403"


TWELVE = [f"{number}. 第{number}项" for number in range(1, 13)]


@pytest.mark.parametrize(
    ("text", "repaired"),
    [
        ("我打算：1. 高数2. 水课3. 体育", "我打算：1. 高数\n2. 水课\n3. 体育"),
        (" ".join(TWELVE), "\n".join(TWELVE)),
        ("1、高数2、水课", "1、高数\n2、水课"),
        ("The order:1. maths 2. sports", "The order:1. maths\n2. sports"),
        ("我打算:1. 高数2. 水课", "我打算:1. 高数\n2. 水课"),
        ("Steps:1) look 2) mend 3) look", "Steps:1) look\n2) mend\n3) look"),
        ("It came at 12:1. It left at 12:2. So", "It came at 12:1. It left at 12:2. So"),
        ("1. a\n2. b 3. c", "1. a\n2. b\n3. c"),
        ("First 1. a 2. b. Then 1. c 2. d", "First 1. a\n2. b. Then 1. c\n2. d"),
        ("I update v1.2. Then v2. follows", "I update v1.2. Then v2. follows"),
        ("from 1. to 1.2. or 3.2. later", "from 1. to 1.2. or 3.2. later"),
        ("It came in 12. place of 2. division", "It came in 12. place of 2. division"),
        ("10.0.0.1. 2. x", "10.0.0.1. 2. x"),
    ],
)  # fmt: skip
def test_fault_11_list_numbers_start_new_lines_and_other_numbers_stay(text: str, repaired: str) -> None:
    assert repaired_list(text) == repaired
    assert repaired_list(repaired) == repaired


def test_a_decision_has_the_repaired_speak() -> None:
    decision, _ = read(model_answer("continue") | {"speak": "1. a 2. b"})
    assert decision is not None
    assert decision.speak == "1. a\n2. b"


def test_a_cut_off_or_declined_answer_is_reported_as_such() -> None:
    for problem in ("the answer was cut off at the token limit: write less", "the model declined: no"):
        decision, faults = read_goal_decision(Reading(None, problem), a_goal(), TOOLS)
        assert (decision, faults[0].startswith(problem)) == (None, True)


@pytest.mark.parametrize(
    ("answer", "found"),
    [
        ({"verdict": "met", "receipts": ["E2"], "reason": "好"}, ("met", "好")),
        ({"verdict": "not_met", "receipts": []}, ("not_met", "")),
        ({"verdict": "cannot_tell", "receipts": [], "reason": "?"}, ("cannot_tell", "?")),
        ({"verdict": "yes", "receipts": ["E1"]}, '`verdict` is "yes", not one of `met`, `not_met`, `cannot_tell`'),
        ({"verdict": "met", "receipts": []}, "`met` needs the ids of the evidence in `receipts`, which are `E1`, `E2`"),
        ({"verdict": "met", "receipts": ["E9"]}, "`met` needs the ids of the evidence in `receipts`, which are `E1`, `E2`"),
        ({"verdict": "met"}, "`met` needs the ids of the evidence in `receipts`, which are `E1`, `E2`"),
        ([], "the answer is a list: write one JSON object"),
    ],
)
def test_a_verdict_is_one_of_three_and_met_needs_evidence(answer: object, found: object) -> None:
    assert read_verdict(read_answer(json.dumps(answer)), PROVED) == found
