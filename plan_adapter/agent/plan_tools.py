"""A plan as a function that a model may call: its definition, and the run inputs that a call's arguments stand for."""

import json
import re
from collections.abc import Collection, Mapping
from hashlib import sha256
from typing import Any, cast

from pydantic import JsonValue

from plan_adapter.agent.answer_schemas import from_strict_form, strict_form
from plan_adapter.model.errors import InvalidPlanError
from plan_adapter.model.options import TEXT_TYPES
from plan_adapter.model.plan import ExecutionPlan
from plan_adapter.model.problems import Problem
from plan_adapter.validation.inputs import inputs_schema

NAME_CHARACTERS = 64
DESCRIPTION_CHARACTERS = 1024
"""The longest description that OpenAI's API accepts. `NAME_CHARACTERS` is its limit for names."""

_UNSAFE = re.compile(r"[^A-Za-z0-9_-]+")
_PLAIN = ("string", "integer", "number", "boolean", *TEXT_TYPES)


def plan_tool(plan: ExecutionPlan) -> dict[str, JsonValue]:
    """Return `plan` as a function tool for OpenAI's chat completions. Its parameters are the plan's inputs.

    The tool is strict if strict decoding can express every input: no mappings, and no lists of arbitrary values. Pass a call's arguments
    through `tool_inputs` to `run_plan`.
    """
    schema, strict = inputs_schema(plan.inputs), _can_be_strict(plan)
    function: dict[str, JsonValue] = {
        "name": function_name(plan.name),
        "description": plan.description.strip()[:DESCRIPTION_CHARACTERS],
        "parameters": strict_form(schema) if strict else schema,
        "strict": strict,
    }
    return {"type": "function", "function": function}


def tool_inputs(plan: ExecutionPlan, arguments: str | Mapping[str, JsonValue]) -> dict[str, JsonValue]:
    """Return the inputs in a call's `arguments`, which are JSON text or an object. A null for an optional input is dropped.

    Does not check that they fit the plan; `run_plan` does. Raises InvalidPlanError if they are not a JSON object.
    """
    try:
        given = read_arguments(arguments)
    except ValueError as error:
        hint = 'write one JSON object, as in {"host": "web-1"}'
        raise InvalidPlanError([Problem("syntax", at="inputs", message=str(error), hint=hint)]) from error
    return from_strict_form(given, inputs_schema(plan.inputs))


def read_arguments(given: str | Mapping[str, JsonValue]) -> Mapping[str, JsonValue]:
    """Return the arguments of a model's call, which are JSON text or an object. Raises ValueError if they are not a JSON object."""
    arguments: object = given
    if isinstance(given, str):
        try:
            arguments = json.loads(given or "{}")
        except (ValueError, RecursionError) as error:
            raise ValueError(f"the arguments are not JSON: {error}") from error
    if not isinstance(arguments, Mapping):
        raise ValueError("the arguments are not a JSON object")  # noqa: TRY004  # a model may write anything
    return cast("Mapping[str, JsonValue]", arguments)


def function_name(name: str, taken: Collection[str] = ()) -> str:
    """Return `name` as a function name that model servers accept, or a different one if it is `taken`.

    The result is deterministic. A digest keeps names apart that differ only in characters outside letters, digits, `_` and `-`.
    """
    plain = _UNSAFE.sub("_", name).strip("_-")
    if name and plain == name and len(name) <= NAME_CHARACTERS and name not in taken:
        return name
    digest = sha256(name.encode(errors="surrogatepass")).hexdigest()[:8]
    return f"{plain[: NAME_CHARACTERS - 1 - len(digest)].strip('_-') or 'plan'}_{digest}"


def _can_be_strict(plan: ExecutionPlan) -> bool:
    kinds: list[Any] = [declared.items if declared.type == "array" else declared.type for declared in plan.inputs.values()]
    return all(kind in _PLAIN for kind in kinds)
