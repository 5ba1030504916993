"""A model behind a server: every rung, what is remembered of a server, and everything that a server may do wrong."""

import threading
from typing import Any

import pytest

from plan_adapter.agent.model import Message, Question
from plan_adapter.agent.openai_model import RUNGS, OpenAIModel, Rung
from plan_adapter.errors import ModelError
from tests.agent.server import Reply, Said, says, scripted

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"n": {"type": "integer"}, "note": {"type": "string"}},
    "required": ["n"],
    "additionalProperties": False,
}
QUESTION = Question((Message("system", "Count."), Message("user", "数到三")), SCHEMA, "count", max_tokens=100)


def model_at(url: str, **options: Any) -> OpenAIModel:
    return OpenAIModel("m", base_url=url, api_key="sk-canary", **{"max_retries": 0, **options})


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
async def test_the_highest_rung_that_the_server_knows_carries_the_answer_and_is_remembered(knows: list[str], rung: Rung) -> None:
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
async def test_the_form_reaches_the_model_on_every_rung(rung: Rung) -> None:
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


UNUSABLE: dict[str, Said] = {
    "empty": Reply(""),
    "prose": Reply("I would rather count to three."),
    "a list": says([{"n": 3}]),
    "two objects": Reply('{"n": 3} or {"n": 4}'),
    "a number": Reply("3"),
    "no choice": Reply(raw=b'{"id":"x","object":"chat.completion","created":1,"model":"m","choices":[]}'),
    "too deep": Reply('{"n": ' + "[" * 150 + "]" * 150 + "}"),
}


@pytest.mark.parametrize("kind", UNUSABLE)
async def test_a_200_with_unusable_text_steps_down(kind: str) -> None:
    with scripted(UNUSABLE[kind], UNUSABLE[kind], says({"n": 3})) as server:
        model = model_at(server.url)
        answer = await model.ask(QUESTION)
        assert (answer.reading.value, answer.rung, answer.requests) == ({"n": 3}, "json_object", 3)
        assert answer.usage.total == (45 if kind != "no choice" else 15)
        await model.aclose()


@pytest.mark.parametrize("kind", UNUSABLE)
async def test_what_is_unusable_on_every_rung_is_an_answer_without_an_object_and_teaches_nothing(kind: str) -> None:
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
async def test_an_object_is_found_in_a_fence_and_in_prose_on_every_rung(text: str) -> None:
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


async def test_a_cut_off_answer_is_neither_repaired_nor_asked_for_on_other_rungs() -> None:
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


async def test_several_calls_where_one_is_wanted_are_no_answer() -> None:
    with scripted(Reply(calls=('{"n": 1}', '{"n": 2}')), says({"n": 3})) as server:
        model = model_at(server.url, first_rung="tool_call")
        assert (await model.ask(QUESTION)).rung == "text"
        await model.aclose()


async def test_a_server_that_ignores_the_form_and_answers_in_a_fence_stays_on_its_rung() -> None:
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
async def test_a_model_that_knows_no_none_is_asked_for_the_least_reasoning_that_it_knows(efforts: list[str], sent: list[str]) -> None:
    quick, deep = (Question(QUESTION.messages, SCHEMA, "count", effort=effort) for effort in ("none", "high"))
    with scripted(says({"n": 3}), efforts=efforts) as server:
        model = model_at(server.url)
        for question in (quick, quick, deep):
            assert (await model.ask(question)).rung == "strict_schema"
        assert [request["reasoning_effort"] for request in server.requests] == [*sent, "high"]
        await model.aclose()


async def test_a_probe_learns_what_the_server_refuses_and_what_it_calls_the_model() -> None:
    with scripted(says({"ready": True}), knows=["json_object"], refuses=["max_completion_tokens", "reasoning_effort"]) as server:
        model = model_at(server.url)
        found = await model.probe()
        assert (found.model, found.rung, found.requests) == ("m", "json_object", 3)
        assert found.refuses == ("strict_schema", "schema", "max_completion_tokens", "reasoning_effort")
        await model.aclose()


async def test_a_model_check_without_an_object_is_an_error() -> None:
    with scripted(Reply("Ready!")) as server:
        model = model_at(server.url)
        with pytest.raises(ModelError, match="answers, but not with a JSON object: the answer is not JSON"):
            await model.probe()
        await model.aclose()


async def test_openais_own_key_and_a_password_in_the_url_are_in_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    with scripted(Reply(status=401, error="bad key sk-canary")) as server:
        monkeypatch.setenv("OPENAI_API_KEY", "sk-canary")
        monkeypatch.setenv("OPENAI_BASE_URL", server.url)
        own, other = OpenAIModel("m"), OpenAIModel("m", base_url=server.url.replace("://", "://ana:hunter2@"))
        for model in (own, other):
            with pytest.raises(ModelError, match="answers 401") as raised:
                await model.ask(QUESTION)
            assert not [word for word in ("hunter2",) if word in str(raised.value) + repr(model)]
            await model.aclose()
            if model is own:
                assert "sk-canary" not in str(raised.value)
        assert "Bearer sk-canary" not in server.headers[1].values()


ERRORS: dict[str, tuple[Reply, str]] = {
    "401": (Reply(status=401, error="bad key sk-canary"), "401.*set another key"),
    "404": (Reply(status=404, error="no such model"), "404.*check the model's name"),
    "429": (Reply(status=429, error="too many"), "answers 429: too many; try again later"),
    "500": (Reply(status=500, error="broken"), "answers 500"),
    "cut": (Reply(cut=True), r"broke off its answer 1 times: peer closed connection.*set PLAN_ADAPTER_MODEL_STREAM=true"),
    "an error in place of an answer": (
        Reply(raw=b'{"error": {"message": "overloaded, sk-canary"}}'),
        r"broke off its answer.*overloaded, \*\*\*",
    ),
    "html": (Reply(raw=b"<html>hello</html>"), "does not answer with a chat completion.*ends in /v1"),
    "400 on every rung": (Reply(status=400, error="context too long"), "refuses the request: context too long; give it less context"),
}


@pytest.mark.parametrize("kind", ERRORS)
async def test_server_errors_are_reported_without_the_key(kind: str) -> None:
    reply, expected = ERRORS[kind]
    with scripted(reply) as server:
        model = model_at(server.url)
        with pytest.raises(ModelError, match=expected) as raised:
            await model.ask(QUESTION)
        assert "sk-canary" not in str(raised.value) + repr(model)
        assert raised.value.__cause__ is None
        await model.aclose()


@pytest.mark.parametrize(
    "first", [Reply(status=429, error="slow down", headers=(("Retry-After", "0.01"),)), Reply(status=500), Reply(cut=True)]
)
async def test_what_may_pass_is_tried_again(first: Reply) -> None:
    with scripted(first, says({"n": 3})) as server:
        model = model_at(server.url, max_retries=2)
        assert (await model.ask(QUESTION)).reading.value == {"n": 3}
        assert len(server.requests) == 2
        await model.aclose()


async def test_a_server_that_does_not_answer_is_left() -> None:
    never = threading.Event()
    with scripted(Reply(hold=never)) as server:
        model = model_at(server.url, timeout_seconds=0.2)
        with pytest.raises(ModelError, match=r"did not answer within 0.2 s, 1 times"):
            await model.ask(QUESTION)
        never.set()
        await model.aclose()


# Streams


@pytest.mark.parametrize(
    ("rung", "streams"), [*((rung, "always") for rung in RUNGS), ("strict_schema", "only"), ("tool_call", "asked"), ("text", "asked")]
)
async def test_a_stream_carries_the_answer_on_every_rung(rung: Rung, streams: Any) -> None:
    said = {"n": 3, "note": "数到三,\u2028\n\ndata: [DONE] 🎉"}
    with scripted(says(said), streams=streams) as server:
        model = model_at(server.url, first_rung=rung, stream=streams == "asked")
        answer = await model.ask(QUESTION)
        assert (answer.reading.value, answer.rung, answer.model) == (said, rung, "m")
        assert answer.usage.total == (15 if streams != "always" else 0)  # who is not asked for a stream is not asked for its usage
        await model.ask(QUESTION)
        assert [request["stream"] for request in server.requests] == {
            "always": [False, False],
            "only": [False, True, True],  # which is learnt once
            "asked": [True, True],
        }[streams]
        await model.aclose()


async def test_a_server_that_does_not_stream_answers_as_it_does() -> None:
    with scripted(says({"n": 3}), streams="never", refuses=["stream_options"]) as server:
        model = model_at(server.url, stream=True)
        answer = await model.ask(QUESTION)
        assert (answer.reading.value, answer.usage.total, len(server.requests)) == ({"n": 3}, 15, 2)
        await model.aclose()


@pytest.mark.parametrize("pieces", [0, 3])
async def test_a_stream_that_is_cut_is_no_answer_and_asked_for_again(pieces: int) -> None:
    cut = Reply('{"n": 3}', pieces=pieces)
    with scripted(cut, says({"n": 3})) as server:
        model = model_at(server.url, stream=True, max_retries=1)
        assert (await model.ask(QUESTION)).reading.value == {"n": 3}
        assert (len(server.requests), server.requests[0]) == (2, server.requests[1])
        await model.aclose()
    with scripted(cut) as server:
        model = model_at(server.url, stream=True)
        with pytest.raises(ModelError, match="broke off its answer 1 times"):
            await model.ask(QUESTION)
        await model.aclose()


async def test_a_refusal_and_the_token_limit_are_also_reported_in_streams() -> None:
    with scripted(Reply(refusal="I cannot help with that."), Reply('{"n": 3, "no', finish="length")) as server:
        model = model_at(server.url, stream=True)
        assert (await model.ask(QUESTION)).reading.problem == "the model declined: I cannot help with that."
        assert (await model.ask(QUESTION)).cut_off
        await model.aclose()


async def test_several_calls_of_a_stream_are_no_answer() -> None:
    with scripted(Reply(calls=('{"n": 1}', '{"n": 2}')), says({"n": 3})) as server:
        model = model_at(server.url, first_rung="tool_call", stream=True)
        assert (await model.ask(QUESTION)).rung == "text"
        await model.aclose()


ODD_STREAMS = {
    "an error in the middle": (
        b'data: {"choices":[{"delta":{"content":"{"}}]}\n\ndata: {"error":{"message":"out of memory"}}\n\n',
        "out of memory",
    ),
    "no data": (b"event: ping\n\n", "the stream ended before the answer did"),
    "nothing": (b"", "the stream ended before the answer did"),
    "a list": (b"data: []\n\n", "does not answer with a chat completion"),
    "half an event": (b'data: {"choices":[', "broke off its answer.*an event is not JSON"),
}


@pytest.mark.parametrize("kind", ODD_STREAMS)
async def test_a_stream_that_is_none_is_an_error(kind: str) -> None:
    raw, expected = ODD_STREAMS[kind]
    with scripted(Reply(raw=raw)) as server:
        model = model_at(server.url)
        with pytest.raises(ModelError, match=expected):
            await model.ask(QUESTION)
        await model.aclose()


@pytest.mark.parametrize(
    "raw",
    [
        b'data:{"choices":[{"message":{"content":"{\\"n\\": 3}"},"finish_reason":"stop"}]}\r\n\r\n',
        b'data: {"choices":[{"delta":{"content":"{\\"n\\": 3}"}}]}\n\ndata: [DONE]',
        b'id: 1\nevent: message\ndata: {"choices":[{"delta":{"content":"{\\"n\\": 3}"}}],\ndata: "usage":null}\n\ndata: [DONE]\n\n',
        b'\xef\xbb\xbf {"choices":[{"message":{"content":[{"type":"thinking"},{"type":"text","text":"{\\"n\\": 3}"}]}}]}',
        b'data: {"choices":[{"index":1,"delta":{"content":"x"}},{"delta":{"content":"{\\"n\\": 3}"},"finish_reason":"stop"}]}\n\n',
    ],
    ids=["whole in one event", "no end but the mark", "lines of one event", "parts", "two choices"],
)
async def test_what_servers_send_in_other_ways_is_read(raw: bytes) -> None:
    with scripted(Reply(raw=raw)) as server:
        model = model_at(server.url)
        assert (await model.ask(QUESTION)).reading.value == {"n": 3}
        await model.aclose()


async def test_calls_without_numbers_are_distinguished_by_their_ids() -> None:
    piece = '{"choices":[{"delta":{"tool_calls":[{%s"function":{"arguments":%s}}]}}]}'
    said = [piece % ('"id":"a",', '"{\\"n\\""'), piece % ("", '": 3}"'), "[DONE]"]
    with scripted(Reply(raw="".join(f"data: {event}\n\n" for event in said).encode())) as server:
        model = model_at(server.url, first_rung="tool_call")
        assert (await model.ask(QUESTION)).reading.value == {"n": 3}
        await model.aclose()


async def test_a_stream_that_never_ends_is_left() -> None:
    never = threading.Event()
    with scripted(Reply(hold_within=never)) as server:
        model = model_at(server.url, timeout_seconds=0.2, stream=True)
        with pytest.raises(ModelError, match=r"did not answer within 0.2 s, 1 times"):
            await model.ask(QUESTION)
        never.set()
        await model.aclose()


async def test_nobody_listens() -> None:
    model = model_at("http://127.0.0.1:9/v1")
    with pytest.raises(ModelError, match="cannot be reached"):
        await model.ask(QUESTION)
    await model.aclose()


async def test_without_a_key_openai_itself_is_not_asked() -> None:
    with pytest.raises(ModelError, match="OPENAI_API_KEY"):
        await OpenAIModel("gpt-x").ask(QUESTION)
