"""The fields that `plan erase` takes, such as `steps.fetch.result.rows[].name`, and how their values are found and replaced."""

import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias, cast

from pydantic import JsonValue

from plan_adapter.errors import RunConflictError
from plan_adapter.plan import STEP_ID

ERASED = "[erased]"
"""The text that replaces an erased value. The database's triggers check for it."""

Path: TypeAlias = tuple[str | int | None, ...]
"""Keys and indices from the outside to the inside. None: every member of a list."""

Part: TypeAlias = Literal["inputs", "outputs", "parameters", "result", "error", "gate", "message", "notes"]

_FIELD = re.compile(
    rf"(?:(inputs|outputs)|(message|notes|gate)|steps\.({STEP_ID}(?:\.{STEP_ID})*?)\.(?:(parameters|result)|(error|gate)))(?=[.\[]|$)(.*)",
    re.S,
)
_MEMBER = re.compile(r"\.([^.\[\]\"]+)|\[(\d{0,9})\]|\[\"([^\"]+)\"\]")
_FORMS = "inputs.NAME, outputs.NAME, steps.ID.parameters.NAME, steps.ID.result, steps.ID.error, steps.ID.gate, gate, message or notes"


@dataclass(frozen=True, slots=True)
class Field:
    """One field to erase: a part of the record, and inside it a path."""

    text: str
    part: Part
    step_id: str | None = None
    path: Path = ()


def read_fields(texts: Sequence[str]) -> list[Field]:
    """Return the fields that these texts name. Raises RunConflictError that lists all texts that name no field."""
    found = {text: _field(text) for text in dict.fromkeys(texts)}
    if unknown := [text for text, field in found.items() if field is None]:
        listed = ", ".join(f"`{text}`" for text in unknown)
        raise RunConflictError(f'no field is called {listed}; write {_FORMS}; [] stands for every member of a list, ["a.b"] for a key')
    return [field for field in found.values() if field is not None]


def _field(text: str) -> Field | None:
    found = _FIELD.fullmatch(text)
    if found is None:
        return None
    whole, words, step_id, values, step_words, rest = found.groups()
    path = _path(rest)
    if path is None or (path and (words or step_words)) or (whole and not path):
        return None
    return Field(text, cast("Part", whole or words or values or step_words), step_id, path)


def _path(text: str) -> Path | None:
    path, at = list[str | int | None](), 0
    while at < len(text):
        found = _MEMBER.match(text, at)
        if found is None:
            return None
        name, index, quoted = found.groups()
        path.append(name if name is not None else quoted if quoted is not None else int(index) if index else None)
        at = found.end()
    return tuple(path)


def erase_at(value: JsonValue, path: Path, found: list[JsonValue]) -> JsonValue:
    """Return `value` with ERASED at `path`. The values that were there are added to `found`."""
    if not path:
        found.append(value)
        return ERASED
    head, rest = path[0], path[1:]
    if isinstance(value, list) and not isinstance(head, str):
        return [erase_at(member, rest, found) if head in (None, index) else member for index, member in enumerate(value)]
    if isinstance(value, dict) and isinstance(head, str) and head in value:
        return {**value, head: erase_at(value[head], rest, found)}
    return value


def texts_in(values: Collection[JsonValue], *, shortest: int) -> Iterator[str]:
    """Yield the texts in `values` that are long enough to be looked for in the rest of the record."""
    for value in values:
        if isinstance(value, dict):
            yield from texts_in(value.values(), shortest=shortest)
        elif isinstance(value, list):
            yield from texts_in(value, shortest=shortest)
        elif isinstance(value, str) and len(value) >= shortest and value not in ERASED:
            yield value
