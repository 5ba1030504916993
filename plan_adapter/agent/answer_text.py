"""The text of a model's answer: cut out its thinking, and find the JSON object, whether it is bare, fenced, inside prose, or repairable."""

import json
import re
from dataclasses import dataclass
from typing import Any, cast

from pydantic import JsonValue

from plan_adapter.model.values import MAX_DEPTH, find_bad_values

_NAME = r"(?:\w+[:_])?(?:think(?:ing)?|thoughts?|reasoning|reflection|analysis|scratchpad)"

_OPEN = rf"<{_NAME}(?:\s[^<>]*)?>|\[THINK(?:ING)?\]|◁think▷|<\|(?:begin_of_thought|start_thinking)\|>|<\|channel>(?:thought|analysis)"
_CLOSE = rf"</{_NAME}\s*>|\[/THINK(?:ING)?\]|◁/think▷|<\|end_(?:of_thought|thinking)\|>|<channel\|>|assistantfinal(?=\s*[{{`])"

# In the harmony format, an answer is a sequence of messages, each in a channel: analysis, commentary or final. A call names its function.
_BEGIN = r"(?:<\|constrain\|>[^<]*)?<\|message\|>"
_FINAL = rf"<\|channel\|>\s*final\b[^<]*{_BEGIN}"
_CALL = rf"(?:<\|channel\|>[^<]*\bto=[^<]*|<\|start\|>\w*\s+to=[^<]*<\|channel\|>[^<]*){_BEGIN}"
_OTHER = rf"<\|channel\|>[^<]*{_BEGIN}"
_END = r"<\|(?:end|return|call)\|>|<\|start\|>\w*"

_MARK = re.compile(
    rf"(?P<open>{_OPEN})|(?P<close>{_CLOSE})|(?P<final>{_FINAL})|(?P<call>{_CALL})|(?P<other>{_OTHER})|(?P<end>{_END})|(?P<object>\{{)",
    re.IGNORECASE,
)

_DECODER = json.JSONDecoder()


def cut_thoughts(text: str) -> list[str]:
    """Return the parts of an answer that are not thinking, in order and without blank ones.

    Everything before the end of a thought without a beginning is thinking, too: some servers cut the beginning off. So is everything after
    a beginning without an end. A mark inside a JSON object of the answer is text of that object.
    """
    parts, begin, at, thought = list[str](), 0, 0, ""
    while (mark := _MARK.search(text, at)) is not None:
        kind, at = str(mark.lastgroup), mark.end()
        if kind == "object":
            at = at if thought else _end_of_object(text, mark.start())
            continue
        if (thought == "open" and kind != "close") or (thought == "other" and kind in ("open", "close")):
            continue
        if kind in ("final", "close") and not (kind == "close" and thought):
            parts.clear()
        elif not thought:
            parts.append(text[begin : mark.start()])
        thought, begin = kind if kind in ("open", "other") else "", at
    if not thought:
        parts.append(text[begin:])
    return [part for part in parts if part.strip()]


def _end_of_object(text: str, start: int) -> int:
    """Return where the JSON object at `start` ends, or the next place if it is none."""
    try:
        return _DECODER.raw_decode(text, start)[1]
    except (ValueError, RecursionError):
        return start + 1


_FENCE = re.compile(r"```[ \t]*(?:json5?|jsonc)?[ \t]*\r?\n(.*?)(?:\r?\n```|\Z)", re.DOTALL | re.IGNORECASE)
_OBJECT = re.compile(r"\{\s*[\"']")  # the beginning of an object, not of a placeholder
_BRACKET = re.compile(r'"(?:[^"\\]|\\.)*"|[{}\[\]]', re.DOTALL)

MAX_CHARACTERS = 2_000_000
"""The longest answer that is read. It is far more than any plan needs."""

ONLY_THINKING = "the answer is only thinking: write the JSON object after it"


@dataclass(frozen=True, slots=True)
class Reading:
    """The object in an answer, or a `problem` to send back to the model. `repaired`: the text was not valid JSON as written."""

    value: dict[str, JsonValue] | None
    problem: str = ""
    repaired: bool = False


def read_answer(text: str, *, repair: bool = False) -> Reading:
    """Return the one JSON object in `text`. The model's thinking is not part of its answer.

    With `repair`, also accept an object whose quotes, commas or brackets are wrong or cut off. Anything else gives a `problem`: a list, a
    number, two different objects, only thinking, or no JSON at all. The function does not guess which of several objects was meant.
    """
    if not text.strip():
        return Reading(None, "the answer is empty")
    if len(text) > MAX_CHARACTERS:
        return Reading(None, f"the answer has {len(text)} characters; the limit is {MAX_CHARACTERS}")
    parser = _Parser()
    value = parser.parse(text)
    parts = cut_thoughts(text) if value is _NOT_JSON else []
    if value is _NOT_JSON and not parts:
        return Reading(None, ONLY_THINKING)
    values = [value] if value is not _NOT_JSON else parser.find_values("\n".join(parts))
    if values:
        return _one_object(values, parser)
    is_tail = len(parts) == 1 and text.endswith(parts[0])  # otherwise a mark may stand in a text of a broken object
    return _repair_object(parts[0]) if repair and is_tail else Reading(None, _NO_JSON)


_NO_JSON = "the answer is not JSON: write one JSON object and nothing else"
_SEVERAL = "the answer has several objects: write only the one that counts"
_NOT_JSON: Any = object()

_KINDS = ((list, "a list"), (str, "a text"), (bool, "true or false"), ((int, float), "a number"))


class _Parser:
    """Parses JSON in one answer."""

    def __init__(self) -> None:
        self.repeated = dict[str, None]()  # keys that an object has twice, with different values
        self._decoder = json.JSONDecoder(object_pairs_hook=self._to_object)

    def parse(self, text: str) -> Any:
        """Return the value of `text`, or `_NOT_JSON`. A text that contains JSON, as some servers send arguments, gives the inner value."""
        try:
            value = self._decoder.decode(text.strip().removeprefix("\ufeff"))
            return self._decoder.decode(value) if isinstance(value, str) and value.lstrip().startswith("{") else value
        except (ValueError, RecursionError):
            return _NOT_JSON

    def find_values(self, text: str) -> list[Any]:
        """Return the JSON value of each fence in `text`, then the outermost objects around the fences.

        An object that cannot be parsed is returned as `_NOT_JSON` if there is another one.
        """
        if (value := self.parse(text)) is not _NOT_JSON:
            return [value]
        values, rest, end = list[Any](), "", 0
        for fence in _FENCE.finditer(text):
            if isinstance(value := self.parse(fence[1]), (dict, list)):
                values.append(value)
                rest, end = f"{rest}{text[end : fence.start()]}\n", fence.end()
        return values + self._find_objects(rest + text[end:], is_alone=not values)

    def _find_objects(self, text: str, *, is_alone: bool) -> list[Any]:
        """Return the outermost objects found in prose. Complete objects nested inside a broken one do not count."""
        found, at, is_broken = list[Any](), text.find("{"), False
        while at != -1:
            try:
                value, end = self._decoder.raw_decode(text, at)
            except (ValueError, RecursionError):
                is_broken = is_broken or _OBJECT.match(text, at) is not None
                at = text.find("{", at + 1)
                continue
            if not (is_broken and _is_inside(text, at, end)):
                found.append(value)
            at = text.find("{", end)
        return [*found, _NOT_JSON] if is_broken and not (is_alone and not found) else found

    def _to_object(self, pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        value = dict(pairs)
        if len(value) < len(pairs):
            self.repeated.update((key, None) for key, written in pairs if value[key] != written)
        return value


def _is_inside(text: str, start: int, end: int) -> bool:
    """Return whether the text around `start` and `end` belongs to a larger value."""
    return text[:start].rstrip().endswith(('":', "':", "[", ",")) or text[end:].lstrip().startswith((",", "]", "}"))


def _one_object(values: list[Any], parser: _Parser) -> Reading:
    """Return the one object that `values` are, or the problem with them."""
    if len(values) > 1 and len({_canonical(value) for value in values}) > 1:
        return Reading(None, _SEVERAL)
    if parser.repeated:
        names = ", ".join(f"`{name[:64]}`" for name in parser.repeated)
        return Reading(None, f"the answer has {names} more than once, with different values: write it once")
    return _check_object(_unwrap_call(values[0], parser))


def _canonical(value: Any) -> str | None:
    try:
        return None if value is _NOT_JSON else json.dumps(value, sort_keys=True)
    except RecursionError:
        return None


def _unwrap_call(value: Any, parser: _Parser) -> Any:
    """Return the arguments if `value` is a function call that a model wrote as text, and otherwise `value`."""
    call: Any = value
    while isinstance(call, dict):
        call = cast("dict[str, Any]", call)
        names = set(call) - {"id", "type", "index"}
        if names == {"function"}:
            call = call["function"]
        elif names in ({"name", "arguments"}, {"name", "parameters"}):
            arguments = call["arguments"] if "arguments" in call else call["parameters"]
            arguments = parser.parse(arguments) if isinstance(arguments, str) else arguments
            return cast("Any", arguments) if isinstance(arguments, dict) else value
        else:
            break
    return value


def _repair_object(text: str) -> Reading:
    from json_repair import repair_json  # only for an answer that is no JSON

    fences = _FENCE.findall(text)
    json_text = fences[0] if fences else text[text.find("{") :] if "{" in text else ""
    if len(fences) > 1 or (fences and _OBJECT.search(_FENCE.sub("", text))) or _count_objects(json_text) > 1:
        return Reading(None, _SEVERAL)
    try:
        value: Any = repair_json(json_text, return_objects=True) if json_text else None
    except (ValueError, RecursionError):  # nested too deep
        value = None
    reading = _check_object(value)
    if reading.value:
        return Reading(reading.value, repaired=True)
    return Reading(None, _NO_JSON)


def _count_objects(text: str) -> int:
    """Return how many outermost objects malformed JSON has, by its brackets outside of texts."""
    depth = count = 0
    for found in _BRACKET.finditer(text):
        if (mark := found[0]) in ("{", "["):
            count += mark == "{" and depth == 0
            depth += 1
        elif mark in ("}", "]"):
            depth = max(depth - 1, 0)
    return count


def _check_object(value: Any) -> Reading:
    if not isinstance(value, dict):
        kind = next((words for kind, words in _KINDS if isinstance(value, kind)), "null")
        return Reading(None, f"the answer is {kind}: write one JSON object")
    value = cast("dict[str, JsonValue]", value)
    if any(fault.code == "too-deep" for fault in find_bad_values(value)):  # the plan reader reports every other fault
        return Reading(None, f"the answer is nested deeper than {MAX_DEPTH} levels: flatten it")
    return Reading(value)
