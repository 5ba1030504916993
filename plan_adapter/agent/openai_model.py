"""`OpenAIModel`: a client for OpenAI and every server that speaks its chat completions.

Servers differ in how they can be made to return one JSON object of a given form. Each way is a *rung*, from strictest to loosest:

- `strict_schema`: `response_format` json_schema, strict
- `schema`: the same, not strict
- `json_object`: `response_format` json_object; the form is in the prompt
- `tool_call`: one function that must be called; its arguments are the object
- `text`: the prompt alone; an answer that is not valid JSON is repaired if possible

If the server refuses a rung (400, 422, or any error that names what the rung needs), or answers without an object, the next rung is tried.
The rung that worked is remembered for the endpoint and model. So is a server that only answers in streams.

What the server sends apart from the answer as the model's reasoning is never read as the answer.
"""

import asyncio
import re
import time
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, cast, get_args

from pydantic import JsonValue

from plan_adapter.agent.answer_schemas import strict_form
from plan_adapter.agent.answer_text import ONLY_THINKING, Reading, read_answer
from plan_adapter.agent.completions import (
    OPTIONAL,
    BrokenAnswerError,
    Completion,
    ServerFaultError,
    read_completion,
    refused_effort,
    request_of,
    words_of,
)
from plan_adapter.agent.model import Message, ModelAnswer, Question
from plan_adapter.local import telemetry
from plan_adapter.model.drafts import Rung, Usage
from plan_adapter.model.errors import ModelError
from plan_adapter.model.readable import MASK, cut, one_line, without_passwords

if TYPE_CHECKING:
    from contextlib import AbstractAsyncContextManager

    from openai import APIStatusError, AsyncAPIResponse, AsyncOpenAI

RUNGS: tuple[Rung, ...] = get_args(Rung)


@dataclass(frozen=True, slots=True)
class Probe:
    """How an endpoint answered a trivial question."""

    model: str  # as the server reports it
    rung: Rung
    seconds: float  # of all requests together
    requests: int
    refuses: tuple[str, ...]  # rungs above this one, and request options


@dataclass(slots=True)
class Endpoint:
    """What is known about a server and a model: the rung that works, and what it refuses."""

    rung: int = 0
    refuses: set[str] = field(default_factory=set[str])
    streams: bool = False  # the server only answers in streams


_ENDPOINTS: dict[tuple[str, str], Endpoint] = {}
"""Known endpoints of this process, by (base URL, model). Every `OpenAIModel` of the same endpoint shares the entry."""


class OpenAIModel:
    """A model behind OpenAI's chat completions, or behind a compatible server. Implements `Model`."""

    def __init__(
        self,
        model: str,
        *,
        base_url: str | None = None,
        api_key: str | None = None,
        timeout_seconds: float = 120.0,
        max_retries: int = 2,
        first_rung: Rung = "strict_schema",
        stream: bool = False,
    ) -> None:
        """Use `model` at `base_url` (None: OPENAI_BASE_URL, else OpenAI's own URL).

        `api_key` None means OPENAI_API_KEY, which is never sent to a `base_url` given here; self-hosted servers usually need no key. A
        request is retried up to `max_retries` times after an incomplete answer, 429 or 5xx, each attempt limited to `timeout_seconds`.

        `stream` asks for answers in chunks, for gateways that cut idle connections. A streamed answer is read either way. Nothing is sent
        before the first question.
        """
        self._model = model
        self._base_url = base_url
        self._api_key = api_key
        self._timeout = timeout_seconds
        self._max_retries = max_retries
        self._first_rung = RUNGS.index(first_rung)
        self._stream = stream
        self._sent_key = ""
        self._strict_cache: tuple[Mapping[str, JsonValue], dict[str, JsonValue]] | None = None
        self._clients: dict[asyncio.AbstractEventLoop, AsyncOpenAI] = {}  # a connection works only in the event loop that opened it

    @property
    def name(self) -> str:
        """The model's name."""
        return self._model

    def __repr__(self) -> str:
        return f"<OpenAIModel {self.label}>"

    @property
    def label(self) -> str:
        """The model and its endpoint, without a password."""
        return f"{self._model} at {without_passwords(self._base_url or 'the default endpoint')}"

    async def ask(self, question: Question) -> ModelAnswer:
        """Return the answer on the highest rung that gives one. Raises ModelError, whose text never contains the key."""
        about = {"gen_ai.operation.name": "chat", "gen_ai.provider.name": "openai", "gen_ai.request.model": self._model}
        began = time.monotonic()
        with telemetry.span(f"chat {self._model}", {**about, "gen_ai.request.max_tokens": question.max_tokens}, is_client=True) as opened:
            answer = await self._ask(question)
            usage = {"input": answer.usage.prompt, "output": answer.usage.completion}
            opened.set("gen_ai.response.model", answer.model)
            for kind, tokens in usage.items():
                opened.set(f"gen_ai.usage.{kind}_tokens", tokens)
                telemetry.record("gen_ai.client.token.usage", tokens, {**about, "gen_ai.token.type": kind})
        telemetry.record("gen_ai.client.operation.duration", time.monotonic() - began, about)
        return answer

    async def _ask(self, question: Question) -> ModelAnswer:
        self._connect()  # importing the client takes a second, which is not the server's time
        endpoint, began = self._endpoint(), time.monotonic()
        cost, requests = Usage(), 0
        last: ModelAnswer | None = None
        number, reasoned = max(endpoint.rung, self._first_rung), False
        while number < len(RUNGS):
            completion = await self._ask_on_rung(question, RUNGS[number], endpoint)
            requests += 1
            number += 1
            if completion is None:  # the server refuses this rung
                continue
            if completion.is_filtered:
                words = f": {self._error_text(completion.refusal)}" if completion.refusal else ""
                raise ModelError(f"{self!r} withheld its answer: a content filter stopped it (finish_reason {completion.finish}){words}")
            last = _parse_completion(completion, RUNGS[number - 1], self._model)
            cost += last.usage
            last = replace(last, usage=cost, requests=requests, seconds=time.monotonic() - began)
            if last.reading.value is not None:
                endpoint.rung = number - 1
                return last
            if last.cut_off or completion.refusal:  # another rung would end the same way
                return last
            if _has_only_reasoning(completion):
                if reasoned or number == len(RUNGS):
                    raise ModelError(f"{self!r} sent its reasoning apart (`{completion.reasoning_field}`) and no answer{_THINK_LESS}")
                number, reasoned = len(RUNGS) - 1, True  # some servers lose the answer only with a response format
        if last is None:
            raise ModelError(f"{self!r} refuses every kind of request for a JSON object")
        return last

    async def probe(self) -> Probe:
        """Ask a trivial question with every option that a draft may use. Raises ModelError if no object comes back."""
        schema: dict[str, JsonValue] = {
            "type": "object",
            "properties": {"ready": {"type": "boolean"}},
            "required": ["ready"],
            "additionalProperties": False,
        }
        messages = (Message("user", 'Answer with the JSON object {"ready": true}.'),)
        answer = await self.ask(Question(messages, schema, "readiness", max_tokens=2048, effort="none"))
        if answer.reading.value is None:
            raise ModelError(f"{self!r} answers, but not with a JSON object: {answer.reading.problem}")
        refuses = (*RUNGS[self._first_rung : RUNGS.index(answer.rung)], *sorted(self._endpoint().refuses))
        return Probe(answer.model, answer.rung, answer.seconds, answer.requests, refuses)

    async def aclose(self) -> None:
        """Close the connections of the running event loop. The next question reopens them."""
        client = self._clients.pop(asyncio.get_running_loop(), None)
        if client is not None:
            await client.close()

    def _endpoint(self) -> Endpoint:
        return _ENDPOINTS.setdefault((self._base_url or "", self._model), Endpoint())

    async def _ask_on_rung(self, question: Question, rung: Rung, endpoint: Endpoint) -> Completion | None:
        """Return the server's answer, or None if it refuses the rung."""
        import openai  # takes a second to import

        while True:
            strict = self._strict_form(question.schema) if rung == "strict_schema" else {}
            request = request_of(question, rung, endpoint.refuses, strict=strict, stream=self._stream or endpoint.streams)
            try:
                return await self._read_whole_answer(request)
            except openai.APIStatusError as error:
                words = _words_of(error)
                text, advice = self._error_text(words), _advice(error.status_code, words)
                is_refusal = error.status_code in (400, 422) or (error.status_code >= 500 and _names_option(request, words))
                if not is_refusal:
                    raise ModelError(f"{self!r} answers {error.status_code}: {text}{advice}") from None
                if not _drop_refused(request, words, endpoint):
                    if rung == "text":
                        raise ModelError(f"{self!r} refuses the request: {text}{advice}") from None
                    return None
            except (openai.APITimeoutError, TimeoutError):
                within = f"within {self._timeout:g} s, {self._max_retries + 1} times"
                raise ModelError(f"{self!r} did not answer {within}; set PLAN_ADAPTER_MODEL_TIMEOUT_SECONDS to wait longer") from None
            except openai.APIConnectionError as error:
                raise ModelError(f"{self!r} cannot be reached: {self._error_text(error.__cause__ or error)}; {_CHECK_SERVER}") from None
            except openai.OpenAIError as error:
                raise ModelError(f"{self!r}: {self._error_text(error)}") from None
            except BrokenAnswerError as error:
                attempts = f"{self._max_retries + 1} times: {self._error_text(error)}"
                raise ModelError(f"{self!r} broke off its answer {attempts}{'' if request['stream'] else _TRY_STREAMING}") from None
            except ServerFaultError as error:
                if not _names_option(request, str(error)):
                    raise ModelError(f"{self!r} sent no answer, but: {self._error_text(error)}") from None
                if not _drop_refused(request, str(error), endpoint):
                    return None
            except ValueError as error:  # an answer that is not a chat completion
                raise ModelError(f"{self!r} does not answer with a chat completion; {_CHECK_URL}: {self._error_text(error)}") from None

    def _strict_form(self, schema: Mapping[str, JsonValue]) -> dict[str, JsonValue]:
        """Return the strict form of `schema`. It is cached, because all rounds of a draft use the same schema."""
        if self._strict_cache is None or self._strict_cache[0] is not schema:
            self._strict_cache = schema, strict_form(schema)
        return self._strict_cache[1]

    async def _read_whole_answer(self, request: dict[str, Any]) -> Completion:
        """Return one whole answer. Retries broken ones; the client itself only retries before the first byte."""
        client = self._connect()
        for retry in range(self._max_retries + 1):
            try:
                async with cast(
                    "AbstractAsyncContextManager[AsyncAPIResponse[Any]]",
                    client.chat.completions.with_streaming_response.create(model=self._model, **request),
                ) as response:
                    async with asyncio.timeout(self._timeout):
                        return await read_completion(_read_body(response))
            except (BrokenAnswerError, ServerFaultError, TimeoutError) as error:
                is_refusal = isinstance(error, ServerFaultError) and _names_option(request, str(error))
                if retry == self._max_retries or is_refusal:
                    raise
            await asyncio.sleep(min(_FIRST_DELAY_SECONDS * 2**retry, _LONGEST_DELAY_SECONDS))
        raise AssertionError("unreachable")

    def _connect(self) -> "AsyncOpenAI":
        """Return the client of the running event loop."""
        loop = asyncio.get_running_loop()
        for closed in [other for other in list(self._clients) if other.is_closed()]:
            self._clients.pop(closed, None)
        if loop not in self._clients:
            from openai import AsyncOpenAI, OpenAIError  # takes a second to import

            key = self._api_key or (None if self._base_url is None else _NO_KEY)
            try:
                client = AsyncOpenAI(api_key=key, base_url=self._base_url, timeout=self._timeout, max_retries=self._max_retries)
            except OpenAIError as error:
                raise ModelError(f"{self!r}: {error}") from None
            self._clients[loop], self._sent_key = client, client.api_key
        return self._clients[loop]

    def _error_text(self, error: BaseException | str) -> str:
        """Return the beginning of an error's words, on one line and without the key."""
        key = self._sent_key.strip()  # it may come from OPENAI_API_KEY
        text = one_line(str(error)) or type(error).__name__
        text = without_passwords(text.replace(key, MASK) if key not in (_NO_KEY, "") else text)
        return text if len(text) <= _SHOWN_CHARACTERS else f"{cut(text, _SHOWN_CHARACTERS)}…"


_NO_KEY = "none"
"""The key given to the client for a server that needs none. The client requires one."""

_WANTS_STREAM = re.compile(r"\bstream", re.IGNORECASE)
_SHOWN_CHARACTERS = 300
"""How much of a server's words is shown."""
_TOO_LONG = re.compile(r"context|too (?:long|large|many tokens)", re.IGNORECASE)
_CHECK_SERVER = "check that it is running and that the URL is right (PLAN_ADAPTER_MODEL_URL)"
_CHECK_URL = "check the URL, which usually ends in /v1 (PLAN_ADAPTER_MODEL_URL)"
_THINK_LESS = ": switch the server's reasoning parser or the model's thinking off, or use a model that answers after it thinks"
_TRY_STREAMING = "; if a gateway cuts idle connections, set PLAN_ADAPTER_MODEL_STREAM=true"
_FIRST_DELAY_SECONDS, _LONGEST_DELAY_SECONDS = 0.5, 8.0


async def _read_body(response: "AsyncAPIResponse[Any]") -> AsyncIterator[bytes]:
    """Yield the body as it arrives. Raises BrokenAnswerError if the connection is cut."""
    try:
        async for piece in response.iter_bytes():
            yield piece
    except Exception as error:  # of whichever HTTP library the client uses
        raise BrokenAnswerError(str(error) or type(error).__name__) from None


def _words_of(error: "APIStatusError") -> str:
    """Return the words of a refused request, from the body of the response."""
    try:
        body = error.response.text
    except RuntimeError:  # the body was not read
        body = ""
    return words_of(body) or "the response has no text"


def _names_option(request: Mapping[str, Any], message: str) -> bool:
    """Return whether a server's error names an option of `request`, so that it may answer without it."""
    names = [name for name in ("response_format", "tool_choice", "tools", *OPTIONAL) if name in request]
    names += ["json_schema", "json_object", "grammar"] if "response_format" in request else []
    return any(re.search(rf"\b{name}\b", message) for name in names)


def _drop_refused(request: Mapping[str, Any], message: str, endpoint: Endpoint) -> bool:
    """Remember what the server's error refuses. Return whether it is an option that the next request on the rung leaves out or changes."""
    refused = next((name for name in OPTIONAL if name in request and name in message), None)
    if refused is not None:
        refused_value = refused_effort(request, message) if refused == "reasoning_effort" else None
        endpoint.refuses.add(refused_value or refused)
        return True
    if not request["stream"] and _WANTS_STREAM.search(message):
        endpoint.streams = True
        return True
    return False


def _has_only_reasoning(completion: Completion) -> bool:
    return bool(completion.reasoning.strip()) and not completion.text.strip() and not completion.calls


def _parse_completion(completion: Completion, rung: Rung, name: str) -> ModelAnswer:
    cut_off, repair = completion.is_cut_off, rung == "text" and not completion.is_cut_off
    text, reading = completion.text, read_answer(completion.text, repair=repair)
    if completion.calls and (rung == "tool_call" or reading.value is None):
        text, reading = completion.calls[0], read_answer(completion.calls[0], repair=repair)
        if len(completion.calls) > 1:
            reading = Reading(None, f"the answer has {len(completion.calls)} calls: make exactly one")
    if completion.refusal:
        reading = Reading(None, f"the model declined: {completion.refusal}")
    elif cut_off and reading.value is None:
        is_thinking = _has_only_reasoning(completion) or reading.problem == ONLY_THINKING
        reading = Reading(
            None, f"the answer was cut off at the token limit{', in the middle of thinking: think' if is_thinking else ': write'} less"
        )
    return ModelAnswer(text, reading, completion.model or name, rung, completion.usage, cut_off=cut_off)


def _advice(status: int, message: str) -> str:
    match status:
        case 401 | 403:
            return "; set another key (PLAN_ADAPTER_MODEL_KEY)"
        case 404:
            return "; check the model's name and the URL (PLAN_ADAPTER_MODEL, PLAN_ADAPTER_MODEL_URL)"
        case 429:
            return "; try again later, or check the quota of the key"
        case 400 | 413 | 422 if status == 413 or _TOO_LONG.search(message):
            return "; give it less context or fewer tools"
        case _:
            return ""
