"""What the parts of a tool return: `Done`, `Failed` and `NotDone` of a probe, `Simulation`. Also the check that a part fits its tool."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, TypeAlias, cast

from pydantic import JsonValue

from plan_adapter.model.problems import did_you_mean


@dataclass(frozen=True, slots=True)
class Done:
    """A probe's result if the write was done. `result` is the value the tool would have returned; `note` is kept in the receipt."""

    result: object = None
    note: str = ""


@dataclass(frozen=True, slots=True)
class Failed:
    """A probe's result if the call was made and failed. `error` is why: the attempt ends as if the tool had raised it.

    The step's retries apply. `note` is kept in the receipt.
    """

    error: str
    note: str = ""


@dataclass(frozen=True, slots=True)
class NotDone:
    """A probe's result if the write was not done, so that it can be attempted again. `note` is kept in the receipt."""

    note: str = ""


ProbeAnswer: TypeAlias = Done | Failed | NotDone
"""What a probe found. A probe that cannot tell returns None, or raises."""


@dataclass(frozen=True, slots=True)
class Simulation:
    """What a write would do, for a dry run: `shows` in words, and the `result` that it would return. Without one, that stays unknown."""

    shows: str = ""
    result: object = ...

    @property
    def has_result(self) -> bool:
        """Whether the result is known."""
        return self.result is not ...


def mismatches(tool: JsonValue, part: JsonValue, role: str) -> list[str]:
    """Return why a function with the parameter schema `part` cannot be a part of a tool with that of `tool`; empty if it can.

    It may take fewer parameters than its tool. Those that it takes must have the tool's types and defaults.
    """
    return list(_find_mismatches(cast("dict[str, Any]", tool), cast("dict[str, Any]", part), role))


def _find_mismatches(tool: dict[str, Any], part: dict[str, Any], role: str) -> Iterator[str]:
    of_tool, of_part = tool.get("properties", {}), part.get("properties", {})
    kinds, required = tool.get("$defs", {}), tool.get("required", [])
    for name, schema in of_part.items():
        if name not in of_tool:
            hint = did_you_mean(name, list(of_tool))
            yield f"the tool has no parameter `{name}`" + (f" ({hint})" if hint else "")
        elif schema != of_tool[name]:
            yield f"`{name}` is {_schema_text(schema)}, but {_schema_text(of_tool[name])} in the tool"
        elif (name in part.get("required", [])) != (name in required):
            optional, strict = (role, "tool") if name in required else ("tool", role)
            yield f"`{name}` is optional in the {optional}, but required in the {strict}"
    for name, schema in part.get("$defs", {}).items():
        if name in kinds and schema != kinds[name]:
            yield f"`{name}` has another type than in the tool"


def _schema_text(schema: Any) -> str:
    return json.dumps(schema, ensure_ascii=False)
