"""Tests of a model that streams its answer, and of broken streams."""

import threading
from typing import Any

import pytest

from plan_adapter.agent.openai_model import RUNGS, Rung
from plan_adapter.model.errors import ModelError
from tests.agent.questions import QUESTION, model_at
from tests.agent.server import Reply, says, scripted


@pytest.mark.parametrize(
    ("rung", "streams"), [*((rung, "always") for rung in RUNGS), ("strict_schema", "only"), ("tool_call", "asked"), ("text", "asked")]
)
async def test_a_stream_carries_the_answer_on_every_rung(rung: Rung, streams: Any) -> None:
    said = {"n": 3, "note": "数到三,\u2028\n\ndata: [DONE] 🎉"}
    with scripted(says(said), streams=streams) as server:
        model = model_at(server.url, first_rung=rung, stream=streams == "asked")
        answer = await model.ask(QUESTION)
        assert (answer.reading.value, answer.rung, answer.model) == (said, rung, "m")
        assert answer.usage.total == (15 if streams != "always" else 0)  # usage is requested only together with a stream
        await model.ask(QUESTION)
        assert [request["stream"] for request in server.requests] == {
            "always": [False, False],
            "only": [False, True, True],  # the client learns this once
            "asked": [True, True],
        }[streams]
        await model.aclose()


async def test_an_answer_without_a_stream_is_accepted() -> None:
    with scripted(says({"n": 3}), streams="never", refuses=["stream_options"]) as server:
        model = model_at(server.url, stream=True)
        answer = await model.ask(QUESTION)
        assert (answer.reading.value, answer.usage.total, len(server.requests)) == ({"n": 3}, 15, 2)
        await model.aclose()


@pytest.mark.parametrize("pieces", [0, 3])
async def test_a_cut_stream_is_retried(pieces: int) -> None:
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


async def test_streams_report_a_refusal_and_the_token_limit() -> None:
    with scripted(Reply(refusal="I cannot help with that."), Reply('{"n": 3, "no', finish="length")) as server:
        model = model_at(server.url, stream=True)
        assert (await model.ask(QUESTION)).reading.problem == "the model declined: I cannot help with that."
        assert (await model.ask(QUESTION)).cut_off
        await model.aclose()


async def test_several_calls_in_a_stream_are_not_an_answer() -> None:
    with scripted(Reply(calls=('{"n": 1}', '{"n": 2}')), says({"n": 3})) as server:
        model = model_at(server.url, first_rung="tool_call", stream=True)
        assert (await model.ask(QUESTION)).rung == "text"
        await model.aclose()


BROKEN_STREAMS = {
    "an error in the middle": (
        b'data: {"choices":[{"delta":{"content":"{"}}]}\n\ndata: {"error":{"message":"out of memory"}}\n\n',
        "out of memory",
    ),
    "no data": (b"event: ping\n\n", "the stream ended before the answer did"),
    "nothing": (b"", "the stream ended before the answer did"),
    "a list": (b"data: []\n\n", "does not answer with a chat completion"),
    "half an event": (b'data: {"choices":[', "broke off its answer.*an event is not JSON"),
}


@pytest.mark.parametrize("kind", BROKEN_STREAMS)
async def test_a_broken_stream_is_an_error(kind: str) -> None:
    raw, expected = BROKEN_STREAMS[kind]
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
async def test_unusual_but_valid_streams_are_read(raw: bytes) -> None:
    with scripted(Reply(raw=raw)) as server:
        model = model_at(server.url)
        assert (await model.ask(QUESTION)).reading.value == {"n": 3}
        await model.aclose()


async def test_calls_without_an_index_are_distinguished_by_their_ids() -> None:
    piece = '{"choices":[{"delta":{"tool_calls":[{%s"function":{"arguments":%s}}]}}]}'
    said = [piece % ('"id":"a",', '"{\\"n\\""'), piece % ("", '": 3}"'), "[DONE]"]
    with scripted(Reply(raw="".join(f"data: {event}\n\n" for event in said).encode())) as server:
        model = model_at(server.url, first_rung="tool_call")
        assert (await model.ask(QUESTION)).reading.value == {"n": 3}
        await model.aclose()


async def test_a_stream_that_never_ends_times_out() -> None:
    never = threading.Event()
    with scripted(Reply(hold_within=never)) as server:
        model = model_at(server.url, timeout_seconds=0.2, stream=True)
        with pytest.raises(ModelError, match=r"did not answer within 0.2 s, 1 times"):
            await model.ask(QUESTION)
        never.set()
        await model.aclose()
