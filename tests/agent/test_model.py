"""Tests of a model behind a server: every rung, and what is remembered about a server."""

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from plan_adapter.agent.model import Question
from plan_adapter.agent.openai_model import RUNGS, Rung
from plan_adapter.model.errors import ModelError
from tests.agent.questions import QUESTION, SCHEMA, model_at
from tests.agent.server import Reply, Request, ScriptedReply, says, scripted


@pytest.mark.parametrize(
    ("knows", "rung"),
    [
        (["json_schema_strict", "json_schema", "json_object", "tools"], "strict_schema"),
        (["json_schema", "json_object", "tools"], "schema"),
        (["json_object", "tools"], "json_object"),
        (["tools"], "tool_call"),
        ([], "text"),
    ],
)
async def test_the_highest_rung_that_the_server_supports_is_used_and_remembered(knows: list[str], rung: Rung) -> None:
    with scripted(says({"n": 3}), knows=knows) as server:
        model = model_at(server.url)
        first = await model.ask(QUESTION)
        assert (first.reading.value, first.rung) == ({"n": 3}, rung)
        assert len(server.requests) == RUNGS.index(rung) + 1
        again = await model_at(server.url).ask(QUESTION)
        assert (again.rung, again.requests, len(server.requests)) == (rung, 1, RUNGS.index(rung) + 2)
        assert (await model.probe()).rung == rung
        await model.aclose()


@pytest.mark.parametrize("rung", RUNGS)
async def test_every_rung_sends_the_schema_to_the_model(rung: Rung) -> None:
    with scripted(says({"n": 3})) as server:
        model = model_at(server.url, first_rung=rung)
        assert (await model.ask(QUESTION)).rung == rung
        sent = server.requests[0]
        form = sent.get("response_format", {})
        if rung in ("strict_schema", "schema"):
            schema = form["json_schema"]["schema"]
            assert form["json_schema"].get("strict", False) is (rung == "strict_schema")
            assert schema["required"] == (["n", "note"] if rung == "strict_schema" else ["n"])
        elif rung == "tool_call":
            assert sent["tools"][0]["function"]["parameters"] == SCHEMA
            assert sent["tool_choice"]["function"]["name"] == "count"
        else:
            assert '"required":["n"]' in sent["messages"][-1]["content"]
            assert form == ({"type": "json_object"} if rung == "json_object" else {})
        assert sent["messages"][1]["content"] == "数到三"
        await model.aclose()


UNUSABLE: dict[str, ScriptedReply] = {
    "empty": Reply(""),
    "prose": Reply("I would rather count to three."),
    "a list": says([{"n": 3}]),
    "two objects": Reply('{"n": 3} or {"n": 4}'),
    "a number": Reply("3"),
    "only thinking": Reply('<think>maybe {"n": 3}?</think>'),
    "too deep": Reply('{"n": ' + "[" * 150 + "]" * 150 + "}"),
}


@pytest.mark.parametrize("kind", UNUSABLE)
async def test_a_200_with_unusable_text_steps_down_a_rung(kind: str) -> None:
    with scripted(UNUSABLE[kind], UNUSABLE[kind], says({"n": 3})) as server:
        model = model_at(server.url)
        answer = await model.ask(QUESTION)
        assert (answer.reading.value, answer.rung, answer.requests) == ({"n": 3}, "json_object", 3)
        assert answer.usage.total == 45
        await model.aclose()


@pytest.mark.parametrize("kind", UNUSABLE)
async def test_an_answer_that_is_unusable_on_every_rung_has_no_value_and_changes_no_rung(kind: str) -> None:
    with scripted(UNUSABLE[kind]) as server:
        model = model_at(server.url)
        answer = await model.ask(QUESTION)
        assert answer.reading.value is None
        assert answer.reading.problem
        asked = len(server.requests)
        await model.ask(QUESTION)
        assert server.requests[asked]["response_format"]["json_schema"]["strict"] is True
        await model.aclose()


@pytest.mark.parametrize(
    "text",
    [
        '{"n": 3}',
        '```json\n{"n": 3}\n```',
        'Here it is:\n```\n{"n": 3}\n```\nGood luck!',
        'Sure! {"n": 3} is what you want.',
        '\ufeff {"n": 3}\n',
        '<think>{ not this</think>\n{"n": 3}',
    ],
)
async def test_an_object_is_found_in_a_fence_and_in_prose(text: str) -> None:
    with scripted(Reply(text.removeprefix("\ufeff"))) as server:
        model = model_at(server.url)
        answer = await model.ask(QUESTION)
        assert (answer.reading.value, answer.reading.repaired, answer.rung) == ({"n": 3}, False, "strict_schema")
        await model.aclose()


@pytest.mark.parametrize(
    "text",
    [
        '{"n": 3, "a": [{"b": 1}, {"c": 2}],, "d": {"e": {}},}',
        "{n: 3,}",
        "{'n': 3}",
        '```json\n{"n": 3,\n```',
        '{"n": 3 // three\n}',
        '{"n": 3, "note": "a"',
    ],
)
async def test_malformed_json_is_repaired_only_on_the_last_rung(text: str) -> None:
    with scripted(Reply(text)) as server:
        model = model_at(server.url)
        answer = await model.ask(QUESTION)
        assert answer.reading.value is not None
        assert (answer.reading.value["n"], answer.reading.repaired, answer.rung) == (3, True, "text")
        await model.aclose()


async def test_a_cut_off_answer_is_neither_repaired_nor_retried_on_other_rungs() -> None:
    with scripted(Reply('{"n": 3, "note": "aaaa', finish="length")) as server:
        model = model_at(server.url)
        answer = await model.ask(QUESTION)
        assert (answer.reading.value, answer.cut_off, len(server.requests)) == (None, True, 1)
        assert "cut off" in answer.reading.problem
        await model.aclose()


async def test_a_refusal_is_reported_as_a_refusal() -> None:
    with scripted(Reply(refusal="I cannot help with that.")) as server:
        model = model_at(server.url)
        answer = await model.ask(QUESTION)
        assert (answer.reading.value, answer.reading.problem) == (None, "the model declined: I cannot help with that.")
        assert len(server.requests) == 1
        await model.aclose()


async def test_several_calls_instead_of_one_are_not_an_answer() -> None:
    with scripted(Reply(calls=('{"n": 1}', '{"n": 2}')), says({"n": 3})) as server:
        model = model_at(server.url, first_rung="tool_call")
        assert (await model.ask(QUESTION)).rung == "text"
        await model.aclose()


async def test_a_server_that_ignores_the_schema_and_answers_in_a_fence_stays_on_its_rung() -> None:
    with scripted(Reply('```json\n{"n": 3}\n```')) as server:
        model = model_at(server.url)
        assert (await model.ask(QUESTION)).rung == "strict_schema"
        await model.aclose()


@pytest.mark.parametrize("field", ["max_completion_tokens", "reasoning_effort"])
async def test_a_refused_request_field_is_replaced_permanently(field: str) -> None:
    question = Question(QUESTION.messages, SCHEMA, "count", max_tokens=100, effort="high")
    with scripted(says({"n": 3}), refuses=[field]) as server:
        model = model_at(server.url)
        answer = await model.ask(question)
        assert (answer.rung, len(server.requests)) == ("strict_schema", 2)
        await model.ask(question)
        assert len(server.requests) == 3
        assert field not in server.requests[-1]
        assert (server.requests[-1].get("max_tokens") == 100) is (field == "max_completion_tokens")
        await model.aclose()


@pytest.mark.parametrize(
    ("efforts", "sent"),
    [
        (["none", "high"], ["none", "none"]),
        (["minimal", "low", "medium", "high"], ["none", "minimal", "minimal"]),
        (["low", "medium", "high"], ["none", "minimal", "low", "low"]),
    ],
)
async def test_a_model_that_refuses_effort_none_gets_its_lowest_effort(efforts: list[str], sent: list[str]) -> None:
    quick, deep = (Question(QUESTION.messages, SCHEMA, "count", effort=effort) for effort in ("none", "high"))
    with scripted(says({"n": 3}), efforts=efforts) as server:
        model = model_at(server.url)
        for question in (quick, quick, deep):
            assert (await model.ask(question)).rung == "strict_schema"
        assert [request["reasoning_effort"] for request in server.requests] == [*sent, "high"]
        await model.aclose()


async def test_a_probe_reports_what_the_server_refuses_and_its_name_of_the_model() -> None:
    with scripted(says({"ready": True}), knows=["json_object"], refuses=["max_completion_tokens", "reasoning_effort"]) as server:
        model = model_at(server.url)
        found = await model.probe()
        assert (found.model, found.rung, found.requests) == ("m", "json_object", 3)
        assert found.refuses == ("strict_schema", "schema", "max_completion_tokens", "reasoning_effort")
        await model.aclose()


async def test_a_probe_without_an_object_is_an_error() -> None:
    with scripted(Reply("Ready!")) as server:
        model = model_at(server.url)
        with pytest.raises(ModelError, match="answers, but not with a JSON object: the answer is not JSON"):
            await model.probe()
        await model.aclose()


def test_one_model_answers_in_one_event_loop_after_another() -> None:
    with scripted(says({"n": 3})) as server:
        model = model_at(server.url)
        answers = [asyncio.run(model.ask(QUESTION)).reading.value for _ in range(4)]
    assert answers == [{"n": 3}] * 4


def test_one_model_answers_in_several_event_loops_at_the_same_time() -> None:
    together = threading.Barrier(4)

    def answer(_: Request) -> Reply:
        together.wait(60)  # the server answers once all loops have asked
        return says({"n": 3})

    async def ask_twice() -> list[Any]:
        try:
            return [(await model.ask(QUESTION)).reading.value for _ in range(2)]
        finally:
            await model.aclose()

    with scripted(answer) as server:
        model = model_at(server.url)
        with ThreadPoolExecutor(4) as threads:
            futures = [threads.submit(asyncio.run, ask_twice()) for _ in range(4)]
            assert [future.result() for future in futures] == [[{"n": 3}] * 2] * 4


async def test_closing_a_model_leaves_it_usable() -> None:
    with scripted(says({"n": 3})) as server:
        model = model_at(server.url)
        for _ in range(3):
            assert (await model.ask(QUESTION)).reading.value == {"n": 3}
            await model.aclose()
        await model.aclose()
