"""Find the JSON object in a model's answer, whether it is bare, fenced, inside prose, or malformed and repairable."""

import json
import re
from dataclasses import dataclass
from typing import Any, cast

from pydantic import JsonValue

from plan_adapter.values import MAX_DEPTH, find_bad_values

_FENCE = re.compile(r"```[ \t]*(?:json5?|jsonc)?[ \t]*\r?\n(.*?)(?:\r?\n```|\Z)", re.DOTALL | re.IGNORECASE)
_DECODER = json.JSONDecoder()

MAX_CHARACTERS = 2_000_000
"""The longest answer that is read. It is far more than any plan needs."""


@dataclass(frozen=True, slots=True)
class Reading:
    """The object in an answer, or a `problem` to send back to the model. `repaired`: the text was not valid JSON as written."""

    value: dict[str, JsonValue] | None
    problem: str = ""
    repaired: bool = False


def read_answer(text: str, *, repair: bool = False) -> Reading:
    """Return the one JSON object in `text`.

    With `repair`, also accept an object whose quotes, commas or brackets are wrong or cut off. Anything else gives a `problem`: a list, a
    number, two different objects, or no JSON at all. The function does not guess which of several objects was meant.
    """
    if not text.strip():
        return Reading(None, "the answer is empty")
    if len(text) > MAX_CHARACTERS:
        return Reading(None, f"the answer has {len(text)} characters; the limit is {MAX_CHARACTERS}")
    values = [value for part in (text, *_FENCE.findall(text)) if (value := _parse_json(part)) is not _NOT_JSON]
    values = values[-1:] or _find_objects(text)
    if len(values) > 1 and values[0] != values[1]:
        return Reading(None, "the answer has several objects: write only the one that counts")
    if values:
        return _check_object(values[0])
    return _repair_object(text) if repair else Reading(None, _NO_JSON)


_NO_JSON = "the answer is not JSON: write one JSON object and nothing else"
_NOT_JSON: Any = object()

_KINDS = ((list, "a list"), (str, "a text"), (bool, "true or false"), ((int, float), "a number"))


def _parse_json(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return _NOT_JSON


def _find_objects(text: str) -> list[Any]:
    """Return the first two outermost objects found in prose. Complete objects nested inside a broken one do not count."""
    found, at, is_inside_broken = list[Any](), text.find("{"), False
    while at != -1 and len(found) < 2:
        try:
            value, end = _DECODER.raw_decode(text, at)
        except (ValueError, RecursionError):
            if found:
                break
            at, is_inside_broken = text.find("{", at + 1), True
            continue
        if not (is_inside_broken and _is_inside(text, at, end)):
            found.append(value)
        at = text.find("{", end)
    return found


def _is_inside(text: str, start: int, end: int) -> bool:
    """Return whether the text around `start` and `end` belongs to a larger value."""
    return text[:start].rstrip().endswith(('":', "':", "[", ",")) or text[end:].lstrip().startswith((",", "]", "}"))


def _repair_object(text: str) -> Reading:
    from json_repair import repair_json  # only for an answer that is no JSON

    fences = _FENCE.findall(text)
    json_text = fences[-1] if fences else text[text.find("{") :] if "{" in text else ""
    value: Any = repair_json(json_text, return_objects=True) if json_text else None
    reading = _check_object(value)
    if reading.value:
        return Reading(reading.value, repaired=True)
    return Reading(None, _NO_JSON)


def _check_object(value: Any) -> Reading:
    if not isinstance(value, dict):
        kind = next((words for kind, words in _KINDS if isinstance(value, kind)), "null")
        return Reading(None, f"the answer is {kind}: write one JSON object")
    value = cast("dict[str, JsonValue]", value)
    if any(fault.code == "too-deep" for fault in find_bad_values(value)):  # the plan reader reports every other fault
        return Reading(None, f"the answer is nested deeper than {MAX_DEPTH} levels: flatten it")
    return Reading(value)
