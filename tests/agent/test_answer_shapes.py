"""Tests with the shapes in which model servers answer: each is read right, or gives one clear problem or error without further requests."""

import json
from collections.abc import Mapping
from typing import Any

import pytest

from plan_adapter.agent.answer_text import read_answer
from plan_adapter.agent.chat import draft_from_chat
from plan_adapter.agent.openai_model import RUNGS, OpenAIModel
from plan_adapter.agent.planner import Planner
from plan_adapter.model.drafts import PlanRequest
from plan_adapter.model.errors import DraftError, ModelError
from tests.agent.goals import a_goal, looked
from tests.agent.questions import QUESTION, model_at
from tests.agent.server import Reply, Request, says, scripted
from tests.agent.test_goal_model import goal_model
from tests.agent.test_planner import GOOD, TASK, TOOLS, done, step

RIGHT, WRONG = {"n": 3, "note": "三"}, {"n": 4}
R, W = json.dumps(RIGHT, ensure_ascii=False), json.dumps(WRONG)
FENCED = f"```json\n{W}\n```"

TEXTS: dict[str, str] = {
    "think": f"<think>\nMaybe {W}? No.\n</think>\n\n{R}",
    "think with a fence": f"<think>\nFirst:\n{FENCED}\nNo, wrong.\n</think>\n{R}",
    "think without braces": f"<think>Easy.</think>{R}",
    "think in capitals": f"<THINK>{W}</THINK>{R}",
    "think with an attribute": f'<think effort="high">{W}</think>{R}',
    "think, then a fence": f"<think>{FENCED}</think>\n```json\n{R}\n```",
    "think, then prose with a fence": f"<think>{W}</think>\nHere it is:\n```\n{R}\n```\nGood luck!",
    "thinking": f"<thinking>{W}</thinking>{R}",
    "thought": f"<thought>{FENCED}</thought>{R}",
    "reasoning": f"<reasoning>{W}</reasoning>{R}",
    "a namespace": f"<seed:think>{W}</seed:think>{R}",
    "another namespace": f"<mm:think>{W}</mm:think>{R}",
    "a prefix": f"<longcat_think>{W}</longcat_think>{R}",
    "brackets": f"[THINK]{W}[/THINK]{R}",
    "arrows": f"◁think▷{W}◁/think▷{R}",
    "begin_of_thought": f"<|begin_of_thought|>{W}<|end_of_thought|>{R}",
    "START_THINKING": f"<|START_THINKING|>{W}<|END_THINKING|>{R}",
    "an end without a beginning": f"Maybe {W}? No.\n</think>\n{R}",
    "an end without a beginning, fenced": f"{FENCED}\nNo.\n[/THINK]\n{R}",
    "two thoughts": f"<think>{W}</think>\n<think>{FENCED}</think>\n{R}",
    "a thought within a thought": f"<think>a <think>{W}</think> {W} </think>{R}",
    "a thought that quotes its end": f'<think>The page says "</think>{W}", which is an order.</think>{R}',
    "a thought after prose": f"Let me see. <think>{W}</think> {R}",
    "harmony": f"<|channel|>analysis<|message|>Maybe {W}?<|end|><|start|>assistant<|channel|>final<|message|>{R}<|return|>",
    "harmony, two thoughts": f"<|channel|>analysis<|message|>{W}<|end|><|start|>assistant<|channel|>analysis<|message|>{FENCED}<|end|>"
    f"<|start|>assistant<|channel|>final <|constrain|>json<|message|>{R}",
    "harmony without its beginning": f"Maybe {W}?<|end|><|start|>assistant<|channel|>final<|message|>{R}",
    "harmony, a preamble": f"<|channel|>commentary<|message|>I would write {W}.<|end|><|start|>assistant<|channel|>final<|message|>{R}",
    "harmony, a call": f"<|channel|>analysis<|message|>{W}<|end|><|start|>assistant<|channel|>commentary to=functions.count "
    f"<|constrain|>json<|message|>{R}<|call|>",
    "harmony, a call named first": f"<|channel|>analysis<|message|>{W}<|end|><|start|>assistant to=functions.count<|channel|>commentary"
    f"<|message|>{R}<|call|>",
    "harmony, its marks removed": f"analysisMaybe {W}?assistantfinal{R}",
    "a call in a tag": f'<tool_call>\n{{"name": "count", "arguments": {R}}}\n</tool_call>',
    "a call with parameters": f'<|python_tag|>{{"name": "count", "parameters": {R}}}',
    "a call in a list": f'[TOOL_CALLS][{{"name": "count", "arguments": {R}}}]',
    "a call with arguments as text": json.dumps({"type": "function", "function": {"name": "count", "arguments": R}}),
    "a call after a thought": f'<think>{W}</think><tool_call>{{"name": "count", "arguments": {R}}}</tool_call>',
    "JSON as JSON text": json.dumps(R),
    "the same object twice": f"{R}\n```json\n{R}\n```",
}


@pytest.mark.parametrize("kind", TEXTS)
async def test_the_answer_is_read_and_the_thinking_is_not(kind: str) -> None:
    with scripted(Reply(TEXTS[kind])) as server:
        model = model_at(server.url)
        answer = await model.ask(QUESTION)
        await model.aclose()
    assert (answer.reading.value, answer.reading.repaired, answer.rung) == (RIGHT, False, "strict_schema")
    assert read_answer(answer.text, repair=True) == answer.reading  # a draft that continues reads the recorded text again


@pytest.mark.parametrize(
    "text", ["<think>", "</think>", "[THINK]", "<|channel|>analysis<|message|>", "</think> <think>", "a <think> b </think>"]
)
@pytest.mark.parametrize("shown", ["{}", "So: {} it is.", "```json\n{}\n```", "<think>hm</think>{}"])
def test_a_mark_inside_the_answer_is_text_of_the_answer(text: str, shown: str) -> None:
    value = {"n": 3, "note": text, "more": [{"note": text}]}
    assert read_answer(shown.replace("{}", json.dumps(value)), repair=True).value == value


SEVERAL, ONLY, NO_JSON = "several objects", "only thinking", "not JSON"

PROBLEMS: dict[str, tuple[str, str]] = {
    "a fence, then another answer": (f"A first version was:\n{FENCED}\nCorrected, final answer:\n{R}", SEVERAL),
    "an answer, then a fence": (f"{R}\nor\n{FENCED}", SEVERAL),
    "two fences": (f"{FENCED}\n\n```json\n{R}\n```", SEVERAL),
    "an answer before the thought and one after it": (f"{W}<think>no</think>{R}", SEVERAL),
    "an answer and a broken one": (f'{W} no: {{"n": 3,, }}', SEVERAL),
    "a broken answer and another one": (f'{{"n": 3,, }} no: {W}', SEVERAL),
    "two broken answers": ("{n: 4,} no: {n: 3,}", SEVERAL),
    "two broken fences": ("```json\n{n: 4,}\n```\nno:\n```json\n{n: 3,}\n```", SEVERAL),
    "true and one": ('{"n": true} {"n": 1}', SEVERAL),
    "a key with two values": ('{"n": 4, "n": 3}', "`n` more than once"),
    "a thought without an end": (f"<think>Maybe {R}", ONLY),
    "a thought in brackets without an end": (f"[THINK]\n{FENCED}", ONLY),
    "a thought in a channel without an end": (f"<|channel|>analysis<|message|>Maybe {R}", ONLY),
    "only a thought": (f"<think>{R}</think>\n", ONLY),
    "only a thought in a channel": (f"<|channel|>analysis<|message|>{R}<|end|>", ONLY),
    "an end after the answer": (f"{R}</think>", ONLY),
    "a thought, then prose": (f"<think>maybe {R} but no</think>\nI cannot do this.", NO_JSON),
    "a thought, then a list": (f"<think>{R}</think>[{R}]", "a list"),
    "deep nonsense": ("{" * 5000, NO_JSON),
    "a broken answer around a mark": ('{"n": 3, "note": "<think>",}', NO_JSON),
}


@pytest.mark.parametrize("kind", PROBLEMS)
def test_what_cannot_be_read_for_sure_is_one_problem_for_the_model(kind: str) -> None:
    text, expected = PROBLEMS[kind]
    reading = read_answer(text, repair=True)
    assert reading.value is None
    assert expected in reading.problem


def message(content: Any = None, finish: Any = "stop", **fields: Any) -> dict[str, Any]:
    return {"choices": [{"index": 0, "message": {"role": "assistant", "content": content, **fields}, "finish_reason": finish}]}


def calls(*arguments: Any) -> list[Any]:
    return [{"id": str(at), "type": "function", "function": {"name": "count", "arguments": one}} for at, one in enumerate(arguments)]


def used(prompt: Any, completion: Any) -> dict[str, Any]:
    return {**message(R), "usage": {"prompt_tokens": prompt, "completion_tokens": completion}}


BODIES: dict[str, Mapping[str, Any]] = {
    "an object as arguments": message(tool_calls=calls(RIGHT)),
    "arguments twice encoded": message(tool_calls=calls(json.dumps(R))),
    "a call and no text": message("", "tool_calls", tool_calls=calls(R)),
    "a call and prose": message("I call it.", "tool_calls", tool_calls=calls(R)),
    "the same call twice": message(tool_calls=calls(R, R)),
    "function_call": message(finish="function_call", function_call={"name": "count", "arguments": R}),
    "function_call with an object": message(function_call={"name": "count", "arguments": RIGHT}),
    "an object as content": message(RIGHT),
    "a list of texts": message([R[:5], R[5:]]),
    "a list with the object": message([RIGHT]),
    "a part without a type": message([{"text": R}]),
    "output_text": message([{"type": "output_text", "text": R}]),
    "a value in the text": message([{"type": "text", "text": {"value": R}}]),
    "reasoning in parts": message([{"type": "reasoning", "text": W}, {"type": "text", "text": R}]),
    "reasoning apart": message(R, reasoning_content=f"Maybe {W}?"),
    "reasoning apart, its text in think tags": message(f"<think>{W}</think>{R}", reasoning=W),
    "a null finish": message(R, None),
    "a finish that is a number": message(R, 3),
    "an index from 1": {"choices": [{"index": 1, "message": {"content": R}}]},
    "a legacy completion": {"choices": [{"index": 0, "text": R, "finish_reason": "stop"}]},
    "null tool_calls": message(R, tool_calls=None, function_call=None, refusal=None),
    "usage as texts": used("100", "5"),
    "usage as other texts": used("many", "few"),
    "usage that is no number": used(10, float("nan")),
    "usage without end": used(float("inf"), 10**40),
    "negative usage": used(-100_000, -5),
    "usage as a list": {**message(R), "usage": [1, 2]},
    "usage as a text": {**message(R), "usage": "15"},
    "usage with null": used(None, None),
    "usage that is true and false": used(True, False),
}


@pytest.mark.parametrize("kind", BODIES)
async def test_an_unusual_body_is_read_with_one_request(kind: str) -> None:
    with scripted(Reply(raw=json.dumps(BODIES[kind]).encode())) as server:
        model = model_at(server.url)
        answer = await model.ask(QUESTION)
        await model.aclose()
    assert (answer.reading.value, answer.rung, len(server.requests)) == (RIGHT, "strict_schema", 1)
    assert 0 <= answer.usage.total <= 10**9


def event(**delta: Any) -> dict[str, Any]:
    return {"choices": [{"index": 0, "delta": delta, "finish_reason": None}]}


STREAMS: dict[str, list[Any]] = {
    "reasoning, then the answer": [event(reasoning_content=W), event(content=R[:4]), event(content=R[4:])],
    "a thought": [event(content="<thi"), event(content=f"nk>{W}</th"), event(content=f"ink>{R}")],
    "an object as arguments": [event(tool_calls=[{"index": 0, "id": "a", "function": {"name": "count", "arguments": RIGHT}}])],
    "function_call": [event(function_call={"name": "count", "arguments": R[:4]}), event(function_call={"arguments": R[4:]})],
    "usage as texts": [event(content=R), {"choices": [], "usage": {"prompt_tokens": "9", "completion_tokens": None}}],
    "null choices": [event(content=R), {"choices": None, "usage": None}],
}


@pytest.mark.parametrize("kind", STREAMS)
async def test_an_unusual_stream_is_read(kind: str) -> None:
    body = "".join(f"data: {json.dumps(piece)}\n\n" for piece in STREAMS[kind]) + "data: [DONE]\n\n"
    with scripted(Reply(raw=body.encode())) as server:
        model = model_at(server.url)
        assert (await model.ask(QUESTION)).reading.value == RIGHT
        await model.aclose()
    assert len(server.requests) == 1


ERRORS: dict[str, tuple[Any, str, int]] = {  # the body, the error, and after how many requests
    "an error": ({"error": {"message": "overloaded", "code": 529}}, "sent no answer, but: overloaded", 1),
    "an error as text": ({"error": "model not loaded"}, "sent no answer, but: model not loaded", 1),
    "an error without its key": (
        {"object": "error", "message": "CUDA out of memory", "code": 500},
        "no answer, but: .*CUDA out of memory",
        1,
    ),
    "an error of another kind": ({"code": 1301, "msg": "系统繁忙", "success": False}, "sent no answer, but: .*系统繁忙", 1),
    "a detail": ({"detail": "Not Found"}, "sent no answer, but: .*Not Found", 1),
    "an error in the choice": (
        {"choices": [{"message": {"content": ""}, "finish_reason": "error", "error": {"message": "Provider returned error"}}]},
        "sent no answer, but: Provider returned error",
        1,
    ),
    "null choices": ({"id": None, "choices": None, "usage": None}, r'sent no answer, but: \{"id": null, "choices": null', 1),
    "no choices": ({"id": "x", "choices": []}, r'sent no answer, but: .*"choices": \[\]', 1),
    "choices of another type": ({"choices": "none"}, "sent no answer, but: ", 1),
    "another protocol": ({"model": "m", "message": {"role": "assistant", "content": R}, "done": True}, 'no answer, but: .*"done": true', 1),
    "an interruption": (message("", "insufficient_system_resource"), "empty, and its finish_reason is insufficient_system_resource", 1),
    "a filter": (message("", "content_filter"), r"a content filter stopped it \(finish_reason content_filter\)", 1),
    "a filter with words": (message("", "SAFETY", refusal="I may not."), r"a content filter .*SAFETY\): I may not", 1),
    "a filter in the middle": (message(R[:5], "content_filter"), "a content filter stopped it", 1),
    "only reasoning": (message(None, reasoning_content=R), r"sent its reasoning apart \(`reasoning_content`\) and no answer", 2),
    "only reasoning, under another name": (message("", reasoning=R), r"sent its reasoning apart \(`reasoning`\) and no answer", 2),
    "only parts of reasoning": (message([{"type": "thinking", "text": R}], reasoning_content="hm"), "sent its reasoning apart", 2),
    "only reasoning, under a third name": (message("", thinking=R), r"sent its reasoning apart \(`thinking`\)", 2),
    "a null message": (
        {"id": "x" * 300, "choices": [{"index": 0, "message": None, "finish_reason": "stop"}], "warning": "overloaded"},
        'no answer, but: `message` is null in .*"warning": "overloaded"',
        1,
    ),
    "no message": ({"choices": [{"index": 0, "finish_reason": "stop"}]}, "no answer, but: `message` is null in ", 1),
    "a number as content": (message(5), "no answer, but: `content` is 5 in ", 1),
    "true as content": (message(True), "no answer, but: `content` is true in ", 1),
    "null arguments": (message(tool_calls=calls(None)), "no answer, but: `arguments` of a call is null in ", 1),
    "a number as arguments": (message(function_call={"arguments": 3}), "no answer, but: `arguments` of a call is 3 in ", 1),
    "a null function": (message(tool_calls=[{"id": "a", "function": None}]), "no answer, but: `function` of a call is null in ", 1),
    "a null call": (message(tool_calls=[None]), "no answer, but: `function` of a call is null in ", 1),
    "an object as tool_calls": (message(tool_calls=calls(R)[0]), "no answer, but: `tool_calls` is an object in ", 1),
    "a list": ([R], r"does not answer with a chat completion; .*ends in /v1.*: \[", 1),
    "a text": (R[:-1], "does not answer with a chat completion; .*ends in /v1", 1),
}


@pytest.mark.parametrize("kind", ERRORS)
async def test_a_body_without_an_answer_is_an_error_with_the_words_of_the_server(kind: str) -> None:
    body, expected, requests = ERRORS[kind]
    with scripted(Reply(raw=json.dumps(body, ensure_ascii=False).encode())) as server:
        model = model_at(server.url)
        with pytest.raises(ModelError, match=expected):
            await model.ask(QUESTION)
        await model.aclose()
    assert len(server.requests) == requests


async def test_a_server_that_loses_the_answer_only_with_a_response_format_is_asked_in_text() -> None:
    def answer(request: Request) -> Reply:
        lost = message(None, reasoning_content=R)
        return Reply(raw=json.dumps(lost if "response_format" in request else message(R)).encode())

    with scripted(answer) as server:
        model = model_at(server.url)
        first, second = await model.ask(QUESTION), await model.ask(QUESTION)
        await model.aclose()
    assert (first.reading.value, first.rung, first.requests, second.requests) == (RIGHT, "text", 2, 1)


@pytest.mark.parametrize("kind", ["text", "reasoning"])
async def test_a_thought_that_reaches_the_token_limit_is_named(kind: str) -> None:
    body = message(f"<think>{W}", "length") if kind == "text" else message(None, "length", reasoning_content=W)
    with scripted(Reply(raw=json.dumps(body).encode())) as server:
        model = model_at(server.url)
        answer = await model.ask(QUESTION)
        await model.aclose()
    assert (answer.reading.value, answer.cut_off, len(server.requests)) == (None, True, 1)
    assert "in the middle of thinking: think less" in answer.reading.problem


@pytest.mark.parametrize("status", [200, 400, 500, 501, 503])
@pytest.mark.parametrize("name", ["response_format", "json_schema", "grammar"])
async def test_an_error_that_names_the_response_format_leads_to_the_next_rung(status: int, name: str) -> None:
    def answer(request: Request) -> Reply:
        refused = json.dumps({"error": {"message": f"{name} is not supported", "code": status}}).encode()
        return Reply(raw=refused, status=status) if "response_format" in request else says(RIGHT)

    with scripted(answer) as server:
        model = model_at(server.url)
        answered = await model.ask(QUESTION)
        assert (answered.reading.value, answered.rung, (await model.ask(QUESTION)).requests) == (RIGHT, "tool_call", 1)
        await model.aclose()


async def test_a_500_that_names_another_option_is_asked_without_it() -> None:
    def answer(request: Request) -> Reply:
        name = "max_completion_tokens"
        return Reply(status=500, error=f"{name} is not known") if name in request else says(RIGHT)

    with scripted(answer) as server:
        model = model_at(server.url)
        assert (await model.ask(QUESTION)).rung == "strict_schema"
        await model.aclose()
    assert server.requests[-1]["max_tokens"] == 100


REFUSALS: dict[str, Any] = {"a detail": {"detail": "{}"}, "an error": {"error": "{}"}, "a message": {"message": "{}"}, "plain text": "{}"}


@pytest.mark.parametrize("kind", REFUSALS)
async def test_words_that_name_the_response_format_count_wherever_they_stand(kind: str) -> None:
    def answer(request: Request) -> Reply:
        body = json.dumps(REFUSALS[kind]).replace("{}", "response_format is not supported").encode()
        return Reply(raw=body, status=500) if "response_format" in request else says(RIGHT)

    with scripted(answer) as server:
        model = model_at(server.url)
        assert (await model.ask(QUESTION)).rung == "tool_call"
        await model.aclose()


@pytest.mark.parametrize("status", [500, 502])
async def test_any_other_500_is_an_error_at_once(status: int) -> None:
    with scripted(Reply(status=status, error="out of memory")) as server:
        model = model_at(server.url)
        with pytest.raises(ModelError, match=f"answers {status}: out of memory"):
            await model.ask(QUESTION)
        await model.aclose()
    assert len(server.requests) == 1


ABANDONED = done(step("deploy", {"version": "1.0"}))
THOUGHTS: dict[str, str] = {
    "a fence in a thought": "<think>\n```json\n{}\n```\nno, the wrong version\n</think>\n",
    "braces in a thought": "<think>{} no</think>",
    "a thought without its beginning": "{} no\n</think>\n",
    "a thought in a channel": "<|channel|>analysis<|message|>{}<|end|><|start|>assistant<|channel|>final<|message|>",
}


@pytest.mark.parametrize("rung", RUNGS)
@pytest.mark.parametrize("kind", THOUGHTS)
async def test_a_plan_that_is_abandoned_in_a_thought_is_not_drafted(kind: str, rung: Any) -> None:
    thought = THOUGHTS[kind].replace("{}", json.dumps(ABANDONED))
    with scripted(Reply(thought + json.dumps(GOOD))) as server:
        model = OpenAIModel("m", base_url=server.url, first_rung=rung, max_retries=0)
        draft = await Planner(model, TOOLS).drafted(TASK)
        await model.aclose()
    assert draft.plan is not None
    assert ([s.id for s in draft.plan.steps], len(draft.calls)) == (["backup", "deploy", "verify"], 1)


@pytest.mark.parametrize("kind", THOUGHTS)
def test_a_plan_that_a_chat_abandons_is_not_drafted(kind: str) -> None:
    thought = THOUGHTS[kind].replace("{}", json.dumps(ABANDONED))
    draft = draft_from_chat(PlanRequest("Deploy"), TOOLS, f"{thought}I cannot do this.").draft
    assert (draft.plan, [problem.code for problem in draft.problems]) == (None, ["syntax"])
    plan = draft_from_chat(PlanRequest("Deploy"), TOOLS, thought + json.dumps(GOOD)).draft.plan
    assert plan is not None
    assert len(plan.steps) == 3


async def test_a_plan_beside_another_one_is_corrected_by_the_model() -> None:
    both = Reply(f"A first version was:\n```json\n{json.dumps(ABANDONED)}\n```\nFinal answer:\n{json.dumps(GOOD)}")
    with scripted(*[both] * len(RUNGS), says(GOOD)) as server:
        model = OpenAIModel("m", base_url=server.url, max_retries=0)
        draft = await Planner(model, TOOLS).drafted(TASK)
        await model.aclose()
    assert draft.plan is not None
    assert (len(draft.plan.steps), draft.repairs) == (3, 1)
    assert "several objects" in server.requests[-1]["messages"][-1]["content"]


MET = json.dumps({"verdict": "met", "receipts": ["E1"], "reason": "E1 shows it"})
NOT_MET = json.dumps({"verdict": "not_met", "receipts": [], "reason": "the page is down"})


@pytest.mark.parametrize("kind", THOUGHTS)
async def test_a_verifier_that_weighs_met_and_answers_not_met_has_answered_not_met(kind: str) -> None:
    with scripted(Reply(THOUGHTS[kind].replace("{}", MET) + NOT_MET)) as server:
        async with goal_model(server) as model:
            verdict = await model.verify(a_goal(looked(1)))
    assert (verdict.verdict, verdict.reason, len(server.requests)) == ("not_met", "the page is down", 1)


@pytest.mark.parametrize(
    "text",
    [f"<think>{MET}", f"{MET} No, wait: {NOT_MET}", f"```json\n{MET}\n```\nNo:\n{NOT_MET}", MET.replace("{", '{"verdict": "not_met", ', 1)],
    ids=["a thought without an end", "two verdicts", "a fence and another verdict", "two verdicts in one object"],
)
async def test_a_verdict_that_is_not_certain_meets_no_goal(text: str) -> None:
    with scripted(Reply(text)) as server:
        async with goal_model(server) as model:
            assert (await model.verify(a_goal(looked(1)))).verdict == "cannot_tell"


async def test_a_server_without_answers_ends_a_draft_at_once_with_its_words() -> None:
    with scripted(Reply(raw=json.dumps({"object": "error", "message": "CUDA out of memory"}).encode())) as server:
        model = OpenAIModel("m", base_url=server.url, max_retries=0)
        with pytest.raises((ModelError, DraftError), match="CUDA out of memory"):
            await Planner(model, TOOLS).adraft(TASK)
        await model.aclose()
    assert len(server.requests) == 1
