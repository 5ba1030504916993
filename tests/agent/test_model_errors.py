"""Tests of a model's server that refuses, fails or is silent: what is retried, and that no error shows a key."""

import threading

import pytest

from plan_adapter.agent.openai_model import OpenAIModel
from plan_adapter.model.errors import ModelError
from tests.agent.questions import QUESTION, model_at
from tests.agent.server import Reply, says, scripted


async def test_errors_show_neither_the_openai_key_nor_a_password_in_the_url(monkeypatch: pytest.MonkeyPatch) -> None:
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
        r"sent no answer, but: overloaded, \*\*\*",
    ),
    "no choices": (Reply(raw=b'{"id":"x","object":"chat.completion","choices":[]}'), r'sent no answer, but: \{"id": "x".*"choices": \[\]'),
    "html": (Reply(raw=b"<html>hello</html>"), "does not answer with a chat completion.*ends in /v1.*<html>hello</html>"),
    "a detail": (Reply(status=500, raw=b'{"detail":"no\\n memory, sk-canary"}'), r"answers 500: no memory, \*\*\*"),
    "an error as text": (Reply(status=500, raw=b'{"error":"no memory"}'), "answers 500: no memory"),
    "a null error and a detail": (Reply(status=500, raw=b'{"error":null,"detail":"no memory"}'), "answers 500: no memory"),
    "an object without known words": (Reply(status=500, raw=b'{"reason":"no memory"}'), 'answers 500: {"reason": "no memory"}'),
    "plain text": (Reply(status=503, raw=b"no\n  memory"), "answers 503: no memory"),
    "a page": (Reply(status=502, raw=b"<html>\n<h1>Bad Gateway</h1></html>"), "answers 502: <html> <h1>Bad Gateway</h1></html>"),
    "no words": (Reply(status=500, raw=b""), "answers 500: the response has no text"),
    "a key where the words are cut": (Reply(status=500, raw=b"x" * 290 + b" sk-canary" * 9), r"answers 500: x{290} \*\*\* \*\*\* \*…"),
    "a list of faults": (
        Reply(status=422, raw=b'{"detail":[{"loc":["body","messages"],"msg":"too deep","input":{"temperature":1}},{"msg":"bad"}]}'),
        "refuses the request: body.messages: too deep; bad",
    ),
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
async def test_transient_errors_are_retried(first: Reply) -> None:
    with scripted(first, says({"n": 3})) as server:
        model = model_at(server.url, max_retries=2)
        assert (await model.ask(QUESTION)).reading.value == {"n": 3}
        assert len(server.requests) == 2
        await model.aclose()


async def test_a_server_that_does_not_answer_times_out() -> None:
    never = threading.Event()
    with scripted(Reply(hold=never)) as server:
        model = model_at(server.url, timeout_seconds=0.2)
        with pytest.raises(ModelError, match=r"did not answer within 0.2 s, 1 times"):
            await model.ask(QUESTION)
        never.set()
        await model.aclose()


async def test_an_unreachable_server_is_an_error() -> None:
    model = model_at("http://127.0.0.1:9/v1")
    with pytest.raises(ModelError, match="cannot be reached"):
        await model.ask(QUESTION)
    await model.aclose()


async def test_openai_is_not_asked_without_a_key() -> None:
    with pytest.raises(ModelError, match="OPENAI_API_KEY"):
        await OpenAIModel("gpt-x").ask(QUESTION)
