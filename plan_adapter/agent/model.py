"""`Model`, what a planner asks; and `OpenAIModel`, for OpenAI and every server that speaks its chat completions.

Servers differ in how they can be made to write one JSON object of a given form. From the strictest to the loosest way, each a *rung*:

- `strict_schema`: `response_format` json_schema, strict
- `schema`: the same, not strict
- `json_object`: `response_format` json_object; the form stands in the prompt
- `tool_call`: one function that must be called, whose arguments are the object
- `text`: nothing but the prompt; what is no JSON is mended where it can be

A rung that the server refuses (400, 422), or on which it answers with what holds no object, is left for the next one; the rung that
carried an answer is remembered for the endpoint and the model.
"""

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeAlias, cast, get_args

from pydantic import JsonValue

from plan_adapter.agent.answers import Reading, read_answer
from plan_adapter.agent.strictness import strict_form
from plan_adapter.drafts import Rung, Usage
from plan_adapter.errors import ModelError
from plan_adapter.readable import MASK, without_passwords

if TYPE_CHECKING:
    from openai import AsyncOpenAI
    from openai.types.chat import ChatCompletion

RUNGS: tuple[Rung, ...] = get_args(Rung)

Role: TypeAlias = Literal["system", "user", "assistant"]
Effort: TypeAlias = Literal["none", "minimal", "low", "medium", "high"]


@dataclass(frozen=True, slots=True)
class Message:
    """One message of a conversation."""

    role: Role
    content: str


@dataclass(frozen=True, slots=True)
class Question:
    """What a model is asked: messages, and the JSON Schema of the one object that it is to answer with."""

    messages: tuple[Message, ...]
    schema: Mapping[str, JsonValue]
    name: str  # of the object, for servers that want one
    outline: Mapping[str, JsonValue] | None = None  # a shorter schema, for where it stands in the prompt; None: the same
    max_tokens: int | None = None  # of the answer; None: as the server has it
    effort: Effort | None = None  # how much a reasoning model may think; None: as the server has it


@dataclass(frozen=True, slots=True)
class ModelAnswer:
    """What came back: the text as it was written, the object in it or why there is none, and what it cost, refused rungs included."""

    text: str
    reading: Reading
    model: str
    rung: Rung
    usage: Usage = field(default_factory=Usage)
    seconds: float = 0.0
    requests: int = 1
    cut_off: bool = False  # at the limit of tokens


@dataclass(frozen=True, slots=True)
class Probe:
    """How an endpoint answered a trivial question."""

    model: str  # as the server calls it
    rung: Rung
    seconds: float  # of all requests that it took
    requests: int
    refuses: tuple[str, ...]  # rungs above that one, and options of requests


class Model(Protocol):
    """A language model that answers with one JSON object."""

    @property
    def name(self) -> str:
        """What it is called where its answers are kept."""
        ...

    async def ask(self, question: Question) -> ModelAnswer:
        """Return the answer; raises ModelError where there is none to be had."""
        ...


@dataclass(slots=True)
class Endpoint:
    """What is known of a server and a model: the rung that works, and what it does not take."""

    rung: int = 0
    refuses: set[str] = field(default_factory=set[str])


_ENDPOINTS: dict[tuple[str, str], Endpoint] = {}
"""Of this process; every `OpenAIModel` of the same server and model shares what is known."""


class OpenAIModel:
    """A model behind OpenAI's chat completions, or behind a server that is compatible with them. Implements `Model`."""

    def __init__(
        self,
        model: str,
        *,
        base_url: str | None = None,
        api_key: str | None = None,
        timeout_seconds: float = 120.0,
        max_retries: int = 2,
        first_rung: Rung = "strict_schema",
    ) -> None:
        """Use `model` at `base_url` (None: OPENAI_BASE_URL, else OpenAI's own).

        `api_key` None: OPENAI_API_KEY, which is sent to no `base_url` that is given; a server of one's own mostly needs none. A request
        that got no answer, 429 or 5xx is repeated up to `max_retries` times, each with a limit of `timeout_seconds`. Nothing is sent
        before the first question.
        """
        self._model = model
        self._base_url = base_url
        self._api_key = api_key
        self._timeout = timeout_seconds
        self._max_retries = max_retries
        self._first = RUNGS.index(first_rung)
        self._client: AsyncOpenAI | None = None

    @property
    def name(self) -> str:
        """The model's name."""
        return self._model

    def __repr__(self) -> str:
        return f"<OpenAIModel {self._model} at {without_passwords(self._base_url or 'the default endpoint')}>"

    async def ask(self, question: Question) -> ModelAnswer:
        """Return the answer on the highest rung that carries one; raises ModelError, whose text never holds the key."""
        self._connected()  # importing the client takes a second, which is not the server's
        known, began = self._endpoint(), time.monotonic()
        cost, requests = Usage(), 0
        last: ModelAnswer | None = None
        for number in range(max(known.rung, self._first), len(RUNGS)):
            completion = await self._completion(question, RUNGS[number], known)
            requests += 1
            if completion is None:  # the server does not know this rung
                continue
            last = _answer_of(completion, RUNGS[number], self._model)
            cost += last.usage
            last = replace(last, usage=cost, requests=requests, seconds=time.monotonic() - began)
            if last.reading.value is not None:
                known.rung = number
                return last
            if last.cut_off or _is_refusal(completion):  # another rung would end the same way
                return last
        if last is None:
            raise ModelError(f"{self!r} refuses every way to ask for a JSON object")
        return last

    async def probe(self) -> Probe:
        """Ask a trivial question with everything that a draft may ask with; raises ModelError where no object comes back."""
        schema: dict[str, JsonValue] = {
            "type": "object",
            "properties": {"ready": {"type": "boolean"}},
            "required": ["ready"],
            "additionalProperties": False,
        }
        messages = (Message("user", 'Answer with the JSON object {"ready": true}.'),)
        answer = await self.ask(Question(messages, schema, "readiness", max_tokens=2048, effort="low"))
        if answer.reading.value is None:
            raise ModelError(f"{self!r} answers, but not with a JSON object: {answer.reading.problem}")
        refuses = (*RUNGS[self._first : RUNGS.index(answer.rung)], *sorted(self._endpoint().refuses))
        return Probe(answer.model, answer.rung, answer.seconds, answer.requests, refuses)

    async def aclose(self) -> None:
        """Close the connections; the next question opens them anew."""
        client, self._client = self._client, None
        if client is not None:
            await client.close()

    def _endpoint(self) -> Endpoint:
        return _ENDPOINTS.setdefault((self._base_url or "", self._model), Endpoint())

    async def _completion(self, question: Question, rung: Rung, known: Endpoint) -> "ChatCompletion | None":
        """Return what the server answers; None where it refuses the rung."""
        import openai

        client = self._connected()
        while True:
            request = _request_of(question, rung, known.refuses)
            try:
                return cast("ChatCompletion", await client.chat.completions.create(model=self._model, **request))
            except (openai.BadRequestError, openai.UnprocessableEntityError) as error:
                told = str(error)
                culprit = next((name for name in _OPTIONAL if name in request and name in told), None)
                if culprit is None:
                    if rung == "text":
                        raise ModelError(f"{self!r} refuses the request: {self._told(error)}") from None
                    return None
                known.refuses.add(culprit)
            except openai.APIStatusError as error:
                raise ModelError(f"{self!r} answers {error.status_code}: {self._told(error)}{_what_to_do(error.status_code)}") from None
            except openai.APITimeoutError:
                raise ModelError(f"{self!r} did not answer within {self._timeout:g} s, {self._max_retries + 1} times") from None
            except openai.APIConnectionError as error:
                raise ModelError(f"{self!r} cannot be reached: {self._told(error.__cause__ or error)}") from None
            except openai.OpenAIError as error:
                raise ModelError(f"{self!r}: {self._told(error)}") from None
            except (ValueError, TypeError, AttributeError) as error:  # an answer that is no chat completion
                raise ModelError(f"{self!r} does not speak OpenAI's protocol: {type(error).__name__}") from None

    def _connected(self) -> "AsyncOpenAI":
        if self._client is None:
            from openai import AsyncOpenAI, OpenAIError

            key = self._api_key or (None if self._base_url is None else _NO_KEY)
            try:
                self._client = AsyncOpenAI(api_key=key, base_url=self._base_url, timeout=self._timeout, max_retries=self._max_retries)
            except OpenAIError as error:
                raise ModelError(f"{self!r}: {error}") from None
        return self._client

    def _told(self, error: BaseException) -> str:
        key = self._client.api_key if self._client is not None else None  # it may be OPENAI_API_KEY
        text = str(error) or type(error).__name__
        return without_passwords(text.replace(key.strip(), MASK) if key and key.strip() not in (_NO_KEY, "") else text)[:1000]


_NO_KEY = "none"
"""What the client is given where a server of one's own needs no key: it wants one."""

_OPTIONAL = ("reasoning_effort", "max_completion_tokens")
"""What a request can do without, or say in another way, where a server does not take it."""


def _request_of(question: Question, rung: Rung, refused: set[str]) -> dict[str, Any]:
    messages = [{"role": message.role, "content": message.content} for message in question.messages]
    request: dict[str, Any] = {"messages": messages, "stream": False}
    if question.max_tokens is not None:
        request["max_tokens" if "max_completion_tokens" in refused else "max_completion_tokens"] = question.max_tokens
    if question.effort is not None and "reasoning_effort" not in refused:
        request["reasoning_effort"] = question.effort
    schema = dict(question.schema)
    if rung == "strict_schema":
        form = {"name": question.name, "schema": strict_form(question.schema), "strict": True}
        request["response_format"] = {"type": "json_schema", "json_schema": form}
    elif rung == "schema":
        request["response_format"] = {"type": "json_schema", "json_schema": {"name": question.name, "schema": schema}}
    elif rung == "json_object":
        request["response_format"] = {"type": "json_object"}
        messages.append({"role": "user", "content": form_in_words(question.outline or schema)})
    elif rung == "tool_call":
        function = {"name": question.name, "description": "Give your answer.", "parameters": schema}
        request["tools"] = [{"type": "function", "function": function}]
        request["tool_choice"] = {"type": "function", "function": {"name": question.name}}
    else:
        messages.append({"role": "user", "content": form_in_words(question.outline or schema)})
    return request


def form_in_words(schema: Mapping[str, JsonValue]) -> str:
    """Return what a model is told of the form of its answer where nothing but words can carry it."""
    text = json.dumps(schema, ensure_ascii=False, sort_keys=True, separators=(",", ":"))
    return f"Answer with one JSON object and nothing else. Its JSON Schema:\n{text}"


def _answer_of(completion: "ChatCompletion", rung: Rung, name: str) -> ModelAnswer:
    used = completion.usage
    usage = Usage(used.prompt_tokens or 0, used.completion_tokens or 0) if used is not None else Usage()
    if not completion.choices:
        return ModelAnswer("", Reading(None, "the server sent no choice"), completion.model or name, rung, usage)
    choice = completion.choices[0]
    text = choice.message.content or ""
    calls = [call for call in choice.message.tool_calls or [] if call.type == "function"]
    if rung == "tool_call" and calls:
        text = calls[0].function.arguments or ""
    cut_off = choice.finish_reason == "length"
    if choice.message.refusal:
        reading = Reading(None, f"the model declines: {choice.message.refusal}")
    elif rung == "tool_call" and len(calls) > 1:
        reading = Reading(None, f"the answer holds {len(calls)} calls: make exactly one")
    else:
        reading = read_answer(text, mend=rung == "text" and not cut_off)
        if cut_off and reading.value is None:
            reading = Reading(None, "the answer was cut off at the limit of tokens: write less")
    return ModelAnswer(text, reading, completion.model or name, rung, usage, cut_off=cut_off)


def _is_refusal(completion: "ChatCompletion") -> bool:
    return bool(completion.choices and completion.choices[0].message.refusal)


def _what_to_do(status: int) -> str:
    if status in (401, 403):
        return "; give another key (PLAN_ADAPTER_MODEL_KEY)"
    if status == 404:
        return "; look at the model's name and the URL (PLAN_ADAPTER_MODEL, PLAN_ADAPTER_MODEL_URL)"
    return ""


def known_endpoint(base_url: str | None, model: str) -> Rung | None:
    """Return the rung that carried the last answer in this process, None if nothing was asked yet."""
    known = _ENDPOINTS.get((base_url or "", model))
    return RUNGS[known.rung] if known is not None else None


def forget_endpoints() -> None:
    """Forget what was learnt about servers: for tests, and after a server was replaced."""
    _ENDPOINTS.clear()
