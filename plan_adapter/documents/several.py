"""One text with several plans: a JSON array, or JSON objects one after the other (JSON Lines); each is read with its own marks."""

import json
import re
from collections.abc import Iterator

from plan_adapter.documents.reading import read_text
from plan_adapter.plan import ExecutionPlan
from plan_adapter.problems import Problem

_BETWEEN = re.compile(r"[\s,]*")
_OBJECT = re.compile(r"\s*\{\s*[\"}]")
_ARRAY = re.compile(r"\s*\[\s*[{\]]")


def read_several(text: str, file: str | None) -> list[tuple[ExecutionPlan | None, list[Problem]]]:
    """Return what `read_text` does for each plan in `text`; a text that is no series of JSON objects is one plan."""
    text = text.removeprefix("\ufeff")
    array = _ARRAY.match(text)
    if array is None and _OBJECT.match(text) is None:
        return [read_text(text, file)]
    return [read_text(_placed(text, start, end), file) for start, end in _spans(text, is_array=array is not None)]


def _spans(text: str, *, is_array: bool) -> Iterator[tuple[int, int]]:
    """Yield where each plan begins and ends; what cannot be read is a plan, too, whose reader says why."""
    decoder, position = json.JSONDecoder(), text.index("[") + 1 if is_array else 0
    while (start := _next(text, position)) < len(text):
        if is_array and text[start] == "]":
            position, is_array = start + 1, False
            continue
        try:
            _, position = decoder.raw_decode(text, start)
        except json.JSONDecodeError as error:
            newline = text.find("\n", start)
            is_a_line = not is_array and error.pos <= newline
            position = newline if is_a_line else len(text)
        except (ValueError, RecursionError):  # an integer of thousands of digits, a depth that no plan has
            position = len(text)
        yield start, position


def _next(text: str, position: int) -> int:
    match = _BETWEEN.match(text, position)
    return match.end() if match else position


def _placed(text: str, start: int, end: int) -> str:
    """Return the part from `start` to `end` in the line and column where it stands, with nothing before it."""
    line, column = text.count("\n", 0, start), start - text.rfind("\n", 0, start) - 1
    return "\n" * line + " " * column + text[start:end]
