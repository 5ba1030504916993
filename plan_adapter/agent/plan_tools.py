"""A plan as a function that a model may call: its definition, and what the arguments of a call mean as inputs of a run."""

import json
import re
from collections.abc import Collection, Mapping
from hashlib import sha256
from typing import Any, cast

from pydantic import JsonValue

from plan_adapter.agent.strictness import as_meant, strict_form
from plan_adapter.errors import InvalidPlanError
from plan_adapter.plan import ExecutionPlan
from plan_adapter.problems import Problem
from plan_adapter.validation.input_schema import inputs_schema

NAME_CHARACTERS = 64
DESCRIPTION_CHARACTERS = 1024
"""More than that OpenAI's API refuses; so the name."""

_OTHER = re.compile(r"[^A-Za-z0-9_-]+")
_PLAIN = ("string", "integer", "number", "boolean")


def plan_tool(plan: ExecutionPlan) -> dict[str, JsonValue]:
    """Return `plan` as a function tool of OpenAI's chat completions, whose parameters are the plan's inputs.

    It is strict where strict decoding can say everything that the inputs may be: no mapping, and no list of anything. The arguments
    of a call go through `tool_inputs` to `run_plan`.
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
    """Return the inputs that a call's `arguments` mean, JSON text or an object: a null for what may be left out is none.

    Whether they fit is for `run_plan` to say. Raises InvalidPlanError for what is no JSON object.
    """
    if isinstance(arguments, str):
        try:
            arguments = cast("Mapping[str, JsonValue]", json.loads(arguments or "{}"))
        except (ValueError, RecursionError) as error:
            raise _no_object(f"the arguments are no JSON: {error}") from error
    if not isinstance(arguments, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance]  # a model may write anything
        raise _no_object("the arguments are no JSON object")
    return as_meant(arguments, inputs_schema(plan.inputs))


def function_name(name: str, taken: Collection[str] = ()) -> str:
    """Return `name` as models' servers take names of functions, always the same; another one where it is `taken`.

    What letters, digits, `_` and `-` cannot say is told apart by a digest.
    """
    plain = _OTHER.sub("_", name).strip("_-")
    if name and plain == name and len(name) <= NAME_CHARACTERS and name not in taken:
        return name
    digest = sha256(name.encode(errors="surrogatepass")).hexdigest()[:8]
    return f"{plain[: NAME_CHARACTERS - 1 - len(digest)].strip('_-') or 'plan'}_{digest}"


def _can_be_strict(plan: ExecutionPlan) -> bool:
    kinds: list[Any] = [declared.items if declared.type == "array" else declared.type for declared in plan.inputs.values()]
    return all(kind in _PLAIN for kind in kinds)


def _no_object(message: str) -> InvalidPlanError:
    return InvalidPlanError([Problem("syntax", at="inputs", message=message, hint='write one JSON object, as in {"host": "web-1"}')])
