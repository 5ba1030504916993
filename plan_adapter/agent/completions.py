"""Parse a chat completion server's response: one JSON object, or a stream of events whose chunks form one."""

import json
import re
from collections.abc import AsyncIterable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, cast

from plan_adapter.drafts import Usage

_DONE = re.compile(rb"^data:[ ]?\[DONE\]", re.MULTILINE)
_STREAM = re.compile(r"(?:data|event|id|retry)?:")
_DONE_BYTES = 16  # bytes at the end of the previous chunk in which the marker may have begun


class BrokenAnswerError(Exception):
    """An answer that was cut off, or that ended in a server error. A retry may succeed."""


@dataclass(frozen=True, slots=True)
class Completion:
    """One answer: message text, arguments of its tool calls, finish reason and token usage."""

    text: str = ""
    refusal: str = ""
    calls: tuple[str, ...] = ()
    finish: str | None = None
    usage: Usage = field(default_factory=Usage)
    model: str = ""
    has_choice: bool = False


async def read_completion(body: AsyncIterable[bytes]) -> Completion:
    """Return the completion in `body`, read to its end or to the end of the stream.

    Raises BrokenAnswerError for an incomplete answer, and ValueError for a body that is not a completion.
    """
    read = bytearray()
    async for piece in body:
        start = max(len(read) - _DONE_BYTES, 0)
        read += piece
        if _DONE.search(read, start):  # some servers keep the connection open afterwards
            break
    text = read.decode("utf-8-sig").lstrip()
    if text.startswith("{"):
        return _merge_chunks([_parse_object(text)])
    if text and not _STREAM.match(text):
        raise ValueError("neither a JSON object nor a stream of events")
    try:
        chunks = [_parse_object(data) for data in _split_events(text) if data != "[DONE]"]
    except json.JSONDecodeError:
        raise BrokenAnswerError("an event is not JSON") from None
    completion = _merge_chunks(chunks)
    if completion.finish is None and not _DONE.search(read):
        raise BrokenAnswerError("the stream ended before the answer did")
    return completion


def _split_events(text: str) -> list[str]:
    """Return the data of each event. Skips event names and the comments that keep a connection alive."""
    events = list[str]()
    for event in re.split(r"(?:\r\n|\r|\n){2,}", text):
        lines = re.split(r"\r\n|\r|\n", event)
        data = [line.removeprefix("data:").removeprefix(" ") for line in lines if line.startswith("data:")]
        events += ["\n".join(data)] if data else []
    return events


def _parse_object(text: str) -> dict[str, Any]:
    value: Any = json.loads(text)
    if not isinstance(value, dict):
        raise ValueError("not a JSON object")  # noqa: TRY004  # sent by a server, not a caller's argument
    value = cast("dict[str, Any]", value)
    if error := value.get("error"):
        message = cast("Mapping[str, Any]", error).get("message") if isinstance(error, Mapping) else error
        raise BrokenAnswerError(str(message or "an error without a message"))
    return value


def _merge_chunks(chunks: Iterable[dict[str, Any]]) -> Completion:
    """Return the first choice of one object, or of its chunks in order."""
    text, refusal, model = "", "", ""
    calls, finish, usage, has_choice = _ArgumentCollector(), None, Usage(), False
    for chunk in chunks:
        model = model or chunk.get("model") or ""
        usage = _read_usage(chunk.get("usage")) or usage  # if several chunks report usage, the last one has the total
        for choice in chunk.get("choices") or ():
            if choice.get("index"):
                continue
            part: dict[str, Any] = choice.get("delta") or choice.get("message") or {}
            has_choice, finish = True, choice.get("finish_reason") or finish
            text += _read_text(part.get("content"))
            refusal += part.get("refusal") or ""
            for call in part.get("tool_calls") or ():
                calls.add(call)
    return Completion(text, refusal, tuple(calls.arguments), finish, usage, model, has_choice)


class _ArgumentCollector:
    """The arguments of each function call, collected from the chunks of a stream."""

    def __init__(self) -> None:
        self.arguments: list[str] = []
        self._positions: dict[Any, int] = {}

    def add(self, call: dict[str, Any]) -> None:
        """Add one chunk. A chunk without an index starts a new call if it has an id, and otherwise extends the last call."""
        number = call.get("index")
        if number is None:
            number = call.get("id") or next(reversed(self._positions), 0)
        if number not in self._positions:
            self._positions[number] = len(self.arguments)
            self.arguments.append("")
        function: dict[str, Any] = call.get("function") or {}
        self.arguments[self._positions[number]] += function.get("arguments") or ""


def _read_text(content: Any) -> str:
    """Return the text of a message. Some servers send it in parts, including reasoning parts, which are skipped."""
    if isinstance(content, list):
        return "".join(part.get("text") or "" for part in cast("list[dict[str, Any]]", content) if part.get("type") == "text")
    return content or ""


def _read_usage(used: Any) -> Usage | None:
    return Usage(used.get("prompt_tokens") or 0, used.get("completion_tokens") or 0) if used else None
