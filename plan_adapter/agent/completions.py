"""The protocol of chat completions: build a request, and parse a response, which is one JSON object or a stream of events."""

import json
import re
from collections.abc import AsyncIterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast, get_args

from pydantic import JsonValue

from plan_adapter.agent.model import Question
from plan_adapter.local.settings import Effort
from plan_adapter.model.drafts import Rung, Usage

_DONE = re.compile(rb"^data:[ ]?\[DONE\]", re.MULTILINE)
_STREAM = re.compile(r"(?:data|event|id|retry)?:")
_DONE_BYTES = 16  # bytes at the end of the previous chunk in which the marker may have begun

_TEXT_PARTS = (None, "text", "output_text")  # every other part of a message, such as its reasoning, is not its text
_REASONING = ("reasoning_content", "reasoning", "thinking")

_AT_THE_LIMIT = ("length", "max_tokens", "max_output_tokens", "model_length")
_FILTERED = ("content_filter", "safety", "sensitive", "recitation", "prohibited_content", "blocklist", "spii")
_ENDED = ("stop", "tool_calls", "tool_call", "tool_use", "function_call", "end_turn", "stop_sequence", "eos", "eos_token")

_MOST_TOKENS = 10**8
"""No request has as many tokens. A greater count is a fault of the server."""

_WORDS_CHARACTERS = 10_000
"""How much is read of a body that is no answer. What is shown of it is cut later, after it has been redacted."""

_FRAME = ("id", "object", "created", "model", "system_fingerprint")
"""Members of a body that say nothing about why it is no answer."""


class BrokenAnswerError(Exception):
    """An answer that was cut off. A retry may succeed."""


class ServerFaultError(Exception):
    """A body that is an error of the server in place of an answer, in the server's words. A retry may succeed."""


@dataclass(frozen=True, slots=True)
class Completion:
    """One answer: message text, arguments of its tool calls, finish reason and token usage."""

    text: str = ""
    refusal: str = ""
    calls: tuple[str, ...] = ()
    finish: str = ""
    usage: Usage = field(default_factory=Usage)
    model: str = ""
    reasoning: str = ""  # the server sent it apart from the text
    reasoning_field: str = ""  # in which field

    @property
    def is_cut_off(self) -> bool:
        """Whether the answer ended at the token limit."""
        return self.finish.lower() in _AT_THE_LIMIT

    @property
    def is_filtered(self) -> bool:
        """Whether the server's filter withheld the answer or a part of it."""
        return self.finish.lower() in _FILTERED


async def read_completion(body: AsyncIterable[bytes]) -> Completion:
    """Return the completion in `body`, read to its end or to the end of the stream.

    Raises BrokenAnswerError for an incomplete answer, ServerFaultError for an error in place of one, and ValueError, with the beginning
    of the body, for one that is neither.
    """
    read = bytearray()
    async for piece in body:
        start = max(len(read) - _DONE_BYTES, 0)
        read += piece
        if _DONE.search(read, start):  # some servers keep the connection open afterwards
            break
    text = read.decode("utf-8-sig", errors="replace").lstrip()
    if text and not _STREAM.match(text):
        try:
            return _merge_chunks([_parse_object(text)])
        except json.JSONDecodeError:
            raise ValueError(_words(text)) from None
    try:
        chunks = [_parse_object(data) for data in _split_events(text) if data != "[DONE]"]
    except json.JSONDecodeError:
        raise BrokenAnswerError("an event is not JSON") from None
    has_end = _DONE.search(read) is not None or any(_member(choice, "finish_reason") for chunk in chunks for choice in _choices(chunk))
    if not has_end:
        raise BrokenAnswerError("the stream ended before the answer did")
    return _merge_chunks(chunks)


def _split_events(text: str) -> list[str]:
    """Return the data of each event. Skips event names and the comments that keep a connection alive."""
    events = list[str]()
    for event in re.split(r"(?:\r\n|\r|\n){2,}", text):
        lines = re.split(r"\r\n|\r|\n", event)
        data = [line.removeprefix("data:").removeprefix(" ") for line in lines if line.startswith("data:")]
        events += ["\n".join(data)] if data else []
    return events


def _parse_object(text: str) -> dict[str, Any]:
    try:
        value: Any = json.loads(text)
    except RecursionError:
        raise ValueError(_words(text)) from None
    if not isinstance(value, dict):
        raise ValueError(_words(text))  # noqa: TRY004  # sent by a server, not a caller's argument
    value = cast("dict[str, Any]", value)
    if error := value.get("error"):
        raise ServerFaultError(_error_words(error))
    return value


def _merge_chunks(chunks: Sequence[dict[str, Any]]) -> Completion:
    """Return the first choice of one object, or of its chunks in order."""
    choices = [choice for chunk in chunks for choice in _choices(chunk)]
    if not choices:
        raise ServerFaultError(_words(" ".join(json.dumps(chunk, ensure_ascii=False) for chunk in chunks)))
    first = min(_count(choice.get("index")) for choice in choices)
    usage, text, refusal, finish, calls = Usage(), "", "", "", _ArgumentCollector()
    reasoning, reasoning_field, fault = "", "", ""
    for chunk in chunks:
        usage = _read_usage(chunk.get("usage")) or usage  # if several chunks report usage, the last one has the total
    for choice in choices:
        if _count(choice.get("index")) != first:
            continue
        if error := choice.get("error"):
            raise ServerFaultError(_error_words(error))
        part = _mapping(choice.get("delta")) or _mapping(choice.get("message")) or choice
        fault = fault or _message_fault(choice, part)
        text += _read_text(part.get("content") if part is not choice else part.get("text"))
        refusal += _read_text(part.get("refusal"))
        name, said = next(((name, said) for name in _REASONING if (said := _read_text(part.get(name)))), ("", ""))
        reasoning, reasoning_field = reasoning + said, reasoning_field or name
        finish = _read_text(choice.get("finish_reason")) or finish
        for call in _items(part.get("tool_calls")):
            calls.add(_mapping(call))
        if function := _mapping(part.get("function_call")):
            calls.add({"index": "function_call", "function": function})
    model = next((name for chunk in chunks if isinstance(name := chunk.get("model"), str) and name), "")
    found = Completion(text, refusal, tuple(dict.fromkeys(calls.arguments)), finish, usage, model, reasoning, reasoning_field)
    is_empty = not any(said.strip() for said in (text, refusal, reasoning, *found.calls))
    if is_empty and not found.is_cut_off and not found.is_filtered:
        if fault:
            shown = [{name: member for name, member in chunk.items() if name not in _FRAME} for chunk in chunks]
            raise ServerFaultError(_words(f"{fault} in {' '.join(json.dumps(chunk, ensure_ascii=False) for chunk in shown)}"))
        if finish and finish.lower() not in _ENDED:
            raise ServerFaultError(f"the message is empty, and its finish_reason is {finish}")
    return found


def _message_fault(choice: Mapping[str, Any], part: Mapping[str, Any]) -> str:
    """Return which member of a message, `part` of `choice`, has a type from which nothing can be read, or ""."""
    if part is choice and "text" not in choice:
        name = next((name for name in ("delta", "message") if name in choice), "message")
        return "" if choice.get(name) == {} else f"`{name}` is {_kind(choice.get(name))}"
    if not isinstance(part.get("content"), str | list | dict | None):
        return f"`content` is {_kind(part['content'])}"
    if not isinstance(calls := part.get("tool_calls"), list | None):
        return f"`tool_calls` is {_kind(calls)}"
    functions = [_member(call, "function") for call in _items(calls)]
    if part.get("function_call") is not None:
        functions.append(part["function_call"])
    for function in functions:
        if not isinstance(function, dict):
            return f"`function` of a call is {_kind(function)}"
        if not isinstance(arguments := _member(function, "arguments"), str | list | dict):
            return f"`arguments` of a call is {_kind(arguments)}"
    return ""


def _kind(value: Any) -> str:
    if isinstance(value, dict):
        return "an object"
    return "a list" if isinstance(value, list) else "text" if isinstance(value, str) else json.dumps(value)


class _ArgumentCollector:
    """The arguments of each function call, collected from the chunks of a stream."""

    def __init__(self) -> None:
        self.arguments: list[str] = []
        self._positions: dict[Any, int] = {}

    def add(self, call: Mapping[str, Any]) -> None:
        """Add one chunk. A chunk without an index starts a new call if it has an id, and otherwise extends the last call."""
        number = call.get("index")
        if number is None:
            number = call.get("id") or next(reversed(self._positions), 0)
        number = str(number)
        if number not in self._positions:
            self._positions[number] = len(self.arguments)
            self.arguments.append("")
        function = _mapping(call.get("function"))
        self.arguments[self._positions[number]] += _read_text(function.get("arguments"))


def _choices(chunk: Mapping[str, Any]) -> list[dict[str, Any]]:
    return [_mapping(choice) for choice in _items(chunk.get("choices"))]


def _member(value: Any, name: str) -> Any:
    return _mapping(value).get(name)


def _mapping(value: Any) -> dict[str, Any]:
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}


def _items(value: Any) -> list[Any]:
    return cast("list[Any]", value) if isinstance(value, list) else []


def _read_text(content: Any) -> str:
    """Return the text of a message or of arguments. Some servers send it in parts, including reasoning parts, which are skipped.

    An object in place of text, as some servers send arguments, gives its JSON.
    """
    if isinstance(content, list):
        return "".join(_read_part(part) for part in cast("list[Any]", content))
    if isinstance(content, dict):
        return json.dumps(content, ensure_ascii=False)
    return content if isinstance(content, str) else ""


def _read_part(part: Any) -> str:
    fields = _mapping(part)
    if isinstance(part, list) or fields.get("type") not in _TEXT_PARTS:
        return ""
    text = fields.get("text") if fields.keys() & {"type", "text"} else part
    return _read_text(_member(text, "value") or text)


def words_of(body: str) -> str:
    """Return the words of a server's error from the body of its response, on one line."""
    try:
        value: Any = json.loads(body)
    except (ValueError, RecursionError):
        return _words(body)
    return _error_words(_member(value, "error") or value) if value not in (None, "") else ""


def _error_words(error: Any) -> str:
    said: Any = _member(error, "message") or _member(error, "detail") or error
    if isinstance(said, list) and (faults := [_fault_words(fault) for fault in cast("list[Any]", said)]) and all(faults):
        said = "; ".join(faults)
    return _words(said if isinstance(said, str) else json.dumps(said, ensure_ascii=False))


def _fault_words(fault: Any) -> str:
    """Return an entry of FastAPI's `detail`, without the input, which repeats the request: `body.messages: field required`."""
    text, place = _read_text(_member(fault, "msg")), ".".join(str(name) for name in _items(_member(fault, "loc")))
    return f"{place}: {text}" if text and place else text


def _words(text: str) -> str:
    return " ".join(text[:_WORDS_CHARACTERS].split())


def _read_usage(used: Any) -> Usage | None:
    """Return the tokens that a server reports, or None. A count that cannot be one is 0, which means unknown."""
    fields = _mapping(used)
    found = Usage(
        _count(fields.get("prompt_tokens", fields.get("input_tokens"))),
        _count(fields.get("completion_tokens", fields.get("output_tokens"))),
    )
    return found if found.total else None


def _count(written: Any) -> int:
    try:
        number = 0 if isinstance(written, bool) else float(written)
    except (TypeError, ValueError, OverflowError):
        return 0
    return int(number) if 0 <= number <= _MOST_TOKENS else 0


OPTIONAL = ("reasoning_effort", "temperature", "max_completion_tokens", "stream_options")
"""Options that a request can drop, or express differently, if a server refuses them."""


def request_of(question: Question, rung: Rung, refused: set[str], *, strict: dict[str, JsonValue], stream: bool) -> dict[str, Any]:
    """Return the body of the request that asks `question` on `rung`, without the options in `refused`.

    `strict` is the strict form of the question's schema, for the rung that needs it.
    """
    messages = [{"role": message.role, "content": message.content} for message in question.messages]
    request: dict[str, Any] = {"messages": messages, "stream": stream}
    if stream and "stream_options" not in refused:
        request["stream_options"] = {"include_usage": True}
    if question.max_tokens is not None:
        request["max_tokens" if "max_completion_tokens" in refused else "max_completion_tokens"] = question.max_tokens
    if "reasoning_effort" not in refused and (effort := _accepted_effort(question.effort, refused)) is not None:
        request["reasoning_effort"] = effort
    if question.temperature is not None and "temperature" not in refused:
        request["temperature"] = question.temperature
    schema = dict(question.schema)
    if rung == "strict_schema":
        form = {"name": question.name, "schema": strict, "strict": True}
        request["response_format"] = {"type": "json_schema", "json_schema": form}
    elif rung == "schema":
        request["response_format"] = {"type": "json_schema", "json_schema": {"name": question.name, "schema": schema}}
    elif rung == "json_object":
        request["response_format"] = {"type": "json_object"}
        messages.append({"role": "user", "content": schema_prompt(question.outline or schema)})
    elif rung == "tool_call":
        function = {"name": question.name, "description": "Give your answer.", "parameters": schema}
        request["tools"] = [{"type": "function", "function": function}]
        request["tool_choice"] = {"type": "function", "function": {"name": question.name}}
    else:
        messages.append({"role": "user", "content": schema_prompt(question.outline or schema)})
    return request


def refused_effort(request: Mapping[str, Any], message: str) -> str | None:
    """Return the entry for the refused options if a server refuses only this value of `reasoning_effort`, else None."""
    names_others = any(re.search(rf"\b{effort}\b", message) for effort in get_args(Effort) if effort != request.get("reasoning_effort"))
    return f"reasoning_effort={request['reasoning_effort']}" if names_others else None


def _accepted_effort(wanted: Effort | None, refused: set[str]) -> Effort | None:
    """Return the wanted effort, or the next higher one that the server has not refused. None: the server's default."""
    efforts: tuple[Effort, ...] = get_args(Effort)
    possible = efforts[efforts.index(wanted) :] if wanted is not None else ()
    return next((effort for effort in possible if f"reasoning_effort={effort}" not in refused), None)


def schema_prompt(schema: Mapping[str, JsonValue]) -> str:
    """Return the instruction to answer with one JSON object, followed by its JSON Schema, for servers that cannot enforce a schema."""
    text = json.dumps(schema, ensure_ascii=False, sort_keys=True, separators=(",", ":"))
    return f"Answer with one JSON object and nothing else. Its JSON Schema:\n{text}"
