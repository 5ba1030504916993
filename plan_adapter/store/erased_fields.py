"""The fields that `plan erase` takes, such as `steps.fetch.result.rows[].name`, and how their values are found and replaced."""

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, cast

from pydantic import JsonValue

from plan_adapter.errors import RunConflictError
from plan_adapter.plan import STEP_ID

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


@dataclass(frozen=True, slots=True)
class Leaf:
    """A key or a scalar in a JSON value: what it is, and the path to the object that has the key, or to the scalar."""

    value: JsonValue
    path: Path
    is_key: bool = False

    def is_at(self, wanted: Path) -> bool:
        """Return whether the leaf is part of the value at `wanted`."""
        return len(self.path) >= len(wanted) and all(
            step == part or (part is None and isinstance(step, int)) for part, step in zip(wanted, self.path, strict=False)
        )


class Members(tuple[tuple[str, Any], ...]):
    """The members of a JSON object in their order. Keys that were erased are all called the same."""

    __slots__ = ()


def leaves_in(text: str) -> Iterator[Leaf]:
    """Yield the keys and scalars in a JSON text, in their order."""
    return _leaves_of(json.loads(text, object_pairs_hook=Members), ())


def _leaves_of(value: Any, path: Path) -> Iterator[Leaf]:
    if isinstance(value, Members):
        for key, member in value:
            yield Leaf(key, path, is_key=True)
            yield from _leaves_of(member, (*path, key))
    elif isinstance(value, list):
        for index, member in enumerate(cast("list[Any]", value)):
            yield from _leaves_of(member, (*path, index))
    else:
        yield Leaf(value, path)
