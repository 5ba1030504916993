"""The JSON Schemas of what a model is asked for: a planning decision, a goal step's decision, and a verdict; also in OpenAI's strict form.

A tool's own parameters are part of the first two: one kind of step, or of call, per available tool.
"""

import json
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any, cast, get_args

from pydantic import JsonValue

from plan_adapter.expressions import has_expression
from plan_adapter.model.goals import GoalAction, VerdictWord
from plan_adapter.model.options import EFFECTS
from plan_adapter.model.plan import Step, step_fields
from plan_adapter.tools.registry import ToolRegistry
from plan_adapter.tools.tool import Tool

ACTIONS = ("continue", "ask_user", "plan_done")
COMPLEXITIES = ("simple", "moderate", "complex")
GOAL_ACTIONS: tuple[GoalAction, ...] = get_args(GoalAction)
VERDICTS: tuple[VerdictWord, ...] = get_args(VerdictWord)

Schema = dict[str, Any]


def draft_schema(tools: ToolRegistry, *, max_steps: int | None = None) -> dict[str, JsonValue]:
    """Return the JSON Schema of one planning decision with `tools`. The same tools give the same bytes."""
    definitions, kinds, rollbacks = _fields() | {"reference": _REFERENCE}, list[Schema](), list[Schema]()
    for number, tool in enumerate(tools):
        definitions[f"parameters_{number}"] = _parameters(tool, number, definitions)
        call: Schema = {
            "tool_name": {"type": "string", "enum": [tool.name]},
            "parameters": {"$ref": f"#/$defs/parameters_{number}"},
        }
        fields = _references() | ({"effect": raised} if (raised := _higher_effect_schema(tool)) is not None else {})
        kinds.append(_object(call | fields, required=("tool_name", "description", "parameters")))
        rollbacks.append(_object(call, required=("tool_name", "parameters")))
    definitions["rollback"] = {"anyOf": rollbacks}
    return {**_decision([*kinds, _goal_step(_choice(tools.names(), "A tool."))], max_steps), "$defs": definitions}


def draft_outline(*, max_steps: int | None = None) -> dict[str, JsonValue]:
    """Return the same schema without the tools, for a prompt that already lists them."""
    call: Schema = {"tool_name": {"type": "string"}, "parameters": {"type": "object"}}
    kind = _object(
        call | _references() | {"effect": _choice(EFFECTS, _described("effect"))}, required=("tool_name", "description", "parameters")
    )
    rollback = _object(call, required=("tool_name", "parameters"))
    return {**_decision([kind, _goal_step({"type": "string"})], max_steps), "$defs": {**_fields(), "rollback": rollback}}


def _goal_step(tool: Schema) -> Schema:
    fields: Schema = {
        "content": _text(_described("goal")),
        "done_when": _text("When it is met, in words that calls of the tools can prove."),
        "tools": {
            "type": "array",
            "items": tool,
            "minItems": 1,
            "description": _described("tools"),
        },
    }
    named = {name: _references()[name] for name in ("id", "description")}
    named["depends_on"] = _fields()["depends_on"] | {"description": "As for every step. If left out or null: the step before this one."}
    return _object(fields | named, required=("content", "done_when", "tools"))


def goal_schema(definitions: Sequence[Mapping[str, JsonValue]]) -> dict[str, JsonValue]:
    """Return the JSON Schema of one decision of a goal step with the tools in `definitions`. The same tools give the same bytes."""
    shared, calls = Schema(), list[Schema]()
    for number, definition in enumerate(definitions):
        arguments = cast("Schema", _number_references(definition["parameters"], number))
        shared |= {f"{name}_{number}": part for name, part in arguments.pop("$defs", {}).items()}
        fields: Schema = {"name": _choice([str(definition["name"])], "The tool."), "arguments": arguments}
        calls.append(_object(fields, required=("name", "arguments")))
    return {**_goal_decision({"anyOf": calls}), "$defs": shared}


def goal_outline() -> dict[str, JsonValue]:
    """Return the same schema without the tools, for a prompt that already lists them."""
    return _goal_decision(_object({"name": {"type": "string"}, "arguments": {"type": "object"}}, required=("name", "arguments")))


def verdict_schema() -> dict[str, JsonValue]:
    """Return the JSON Schema of a verdict on a goal."""
    fields: Schema = {
        "verdict": _choice(VERDICTS, "Whether done_when is met, by the evidence alone."),
        "receipts": _ids("The ids of the evidence that the verdict rests on, as in E1."),
        "reason": _text("Why, in one or two sentences."),
    }
    return _object(fields, required=("verdict", "receipts", "reason"))


def _goal_decision(call: Schema) -> Schema:
    abort: Schema = {
        "code": _text("A short word for why, such as no_access."),
        "user_message": _text("What the person reads."),
        "internal_reason": _text("What the log keeps."),
    }
    fields: Schema = {
        "action": _choice(GOAL_ACTIONS, "What to do in this round."),
        "speak": _text("What the person reads: one sentence, or the question."),
        "reason": _text("Why this action."),
        "goal_check": _text("With next_plan and done: why done_when is met, citing evidence by its id, as in E1."),
        "tool_call": {**call, "description": "The one call of this round: with confirm, and with continue if it reads."},
        "abort": {**_object(abort, required=("code", "user_message")), "description": "Only and always with abort."},
    }
    return _object(fields, required=("action", "speak", "reason"))


def _number_references(schema: JsonValue, number: int) -> JsonValue:
    """Return a tool's schema whose references are those of tool `number` among several."""
    if isinstance(schema, list):
        return [_number_references(part, number) for part in schema]
    if not isinstance(schema, dict):
        return schema
    return _number_reference({key: _number_references(part, number) for key, part in schema.items()}, number)


def _decision(kinds: list[Schema], max_steps: int | None) -> Schema:
    steps: Schema = {"type": "array", "minItems": 1, "items": {"anyOf": kinds}, "description": "Only and always with plan_done."}
    if max_steps is not None:
        steps["maxItems"] = max_steps
    return _object(_decision_fields(steps), required=("action", "speak", "reason"))


def _decision_fields(steps: Schema) -> Schema:
    return {
        "action": _choice(ACTIONS, "continue: one more round of thought; ask_user: `speak` is a question; plan_done: `steps` is the plan."),
        "speak": _text("What the person reads: the question, or one sentence about what the plan does."),
        "reason": _text("Why this action."),
        "complexity": _choice(COMPLEXITIES, "How hard the task is to plan."),
        "need_thinking": {"type": "boolean", "description": "Whether the plan deserves a second, deeper pass."},
        "description": _text("What the plan does, in one sentence. Approvers read it first."),
        "steps": steps,
        "constraints": {"type": "array", "items": _constraint(), "description": "How the plan keeps each constraint that was given."},
    }


def _constraint() -> Schema:
    fields: Schema = {
        "number": {"type": "integer", "description": "The number of the constraint in the list that was given."},
        "steps": _ids("The steps that ensure it."),
        "before": _ids("Steps that may start only after those. Empty if the constraint is not about order."),
    }
    return _object(fields, required=("number", "steps", "before"))


def _higher_effect_schema(tool: Tool[..., Any]) -> Schema | None:
    higher = [effect for effect in EFFECTS if EFFECTS.index(effect) > EFFECTS.index(tool.effect)]
    return _choice(higher, _described("effect")) if higher else None


def _parameters(tool: Tool[..., Any], number: int, definitions: Schema) -> Schema:
    """Return the schema of a tool's parameters, allowing references where the tool accepts them. Moves its `$defs` to `definitions`."""
    schema = cast("Schema", tool.parameters_schema)
    own: Schema = schema.get("$defs", {})
    for name, part in own.items():
        definitions[f"{name}_{number}"] = _allow_references_inside(part, number)
    properties: Schema = {
        name: _number_reference(part, number) if name in tool.literal_parameters else _allow_reference(part, number)
        for name, part in cast("Schema", schema.get("properties", {})).items()
    }
    return {key: value for key, value in schema.items() if key not in ("title", "$defs")} | {"properties": properties}


def _allow_reference(schema: Schema, number: int) -> Schema:
    """Return a schema that also accepts a reference, at every depth where text would not fit already."""
    part = _allow_references_inside(schema, number)
    if _accepts_text(part):
        return part
    described = {"description": part.pop("description")} if "description" in part else {}
    return {"anyOf": [*(part["anyOf"] if set(part) == {"anyOf"} else [part]), {"$ref": "#/$defs/reference"}], **described}


def _allow_references_inside(schema: Schema, number: int) -> Schema:
    part = {key: value for key, value in _number_reference(schema, number).items() if key != "title"}
    if isinstance(properties := part.get("properties"), dict):
        part["properties"] = {name: _allow_reference(inner, number) for name, inner in cast("Schema", properties).items()}
    if isinstance(items := part.get("items"), dict):
        part["items"] = _allow_reference(cast("Schema", items), number)
    for key in ("anyOf", "oneOf"):
        if isinstance(choices := part.get(key), list):
            part[key] = [_allow_references_inside(choice, number) for choice in cast("list[Schema]", choices)]
    return part


def _number_reference(schema: Schema, number: int) -> Schema:
    if isinstance(name := schema.get("$ref"), str):
        return {**schema, "$ref": f"#/$defs/{name.rpartition('/')[2]}_{number}"}
    return dict(schema)


def _accepts_text(schema: Mapping[str, Any]) -> bool:
    choices = schema.get("anyOf", schema.get("oneOf"))
    if isinstance(choices, list):
        return any(_accepts_text(choice) for choice in cast("list[Schema]", choices))
    if "enum" in schema or "const" in schema or "$ref" in schema:
        return False
    kind = schema.get("type")
    return kind is None or kind == "string" or (isinstance(kind, list) and "string" in kind)


def _object(properties: Schema, *, required: tuple[str, ...]) -> Schema:
    return {"type": "object", "properties": properties, "required": [*required], "additionalProperties": False}


def _text(description: str) -> Schema:
    return {"type": "string", "description": description}


def _ids(description: str) -> Schema:
    return {"type": "array", "items": {"type": "string"}, "description": description}


def _choice(choices: Sequence[str], description: str) -> Schema:
    return {"type": "string", "enum": [*choices], "description": description}


_REFERENCE: Schema = {"type": "string", "pattern": r"\$\{\{", "description": "A reference to an earlier result: ${{ steps.ID.result }}"}

_OF_TOOLS = ("tool_name", "parameters", "input", "effect", "rollback")
"""The fields of a call that depend on the tool."""

_SIMPLER: Mapping[str, Schema] = {
    "depends_on": {"type": "array", "items": {"anyOf": [{"type": "integer", "minimum": 0}, {"type": "string"}]}},
    "requires_approval": {"type": "boolean"},
}
"""The forms of fields that models write in another way than people."""


@cache
def _fields() -> Schema:
    """Return the schema of each field of a call that any tool may have, from the fields of a step."""
    written = {name: field for name, field in step_fields().items() if field.for_models is not None and name not in _OF_TOOLS}
    return {name: _field_schema(name) | {"description": field.for_models} for name, field in written.items() if "call" in field.kinds}


def _field_schema(name: str) -> Schema:
    schema: Schema = _SIMPLER.get(name) or Step.model_json_schema()["$defs"]["Step"]["properties"][name]
    either: list[Schema] = schema.get("anyOf", [schema])
    (kind,) = [part for part in either if part.get("type") != "null"]
    return {key: kind[key] for key in ("type", "minimum", "maximum", "minLength", "pattern", "enum", "items") if key in kind}


def _references() -> Schema:
    return {name: {"$ref": f"#/$defs/{name}"} for name in (*_fields(), "rollback")}


def _described(name: str) -> str:
    """Return how a field of a step is described to a model."""
    return step_fields()[name].for_models or ""


_KEPT_KEYWORDS = (
    *("type", "enum", "const", "description", "pattern", "format", "multipleOf", "minItems", "maxItems", "$ref"),
    *("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"),
)
_AS_TEXT = "A JSON object, written as text."


def strict_form(schema: Mapping[str, JsonValue]) -> dict[str, JsonValue]:
    """Return `schema` in the form of strict decoding. Every value that fits `schema` can be expressed in it."""
    form = _to_strict(schema)
    if isinstance(definitions := schema.get("$defs"), dict):
        form["$defs"] = {name: _to_strict(part) for name, part in definitions.items() if isinstance(part, dict)}
    return form


def _to_strict(schema: Mapping[str, JsonValue]) -> dict[str, JsonValue]:
    either = schema.get("anyOf", schema.get("oneOf"))
    if isinstance(either, list):
        form: dict[str, JsonValue] = {"anyOf": [_to_strict(part) for part in either if isinstance(part, dict)]}
        return form | ({"description": schema["description"]} if "description" in schema else {})
    form = {key: schema[key] for key in _KEPT_KEYWORDS if key in schema}
    if "$ref" in form:
        return {"$ref": form["$ref"]}
    if schema.get("type") == "object":
        return _strict_object(schema, form)
    if schema.get("type") == "array":
        items = schema.get("items")
        form["items"] = _to_strict(items) if isinstance(items, dict) else {"type": "string"}
    elif not form.keys() & {"type", "enum", "const"}:  # any value is allowed
        form["type"] = ["string", "number", "boolean", "null"]
    return form


def _strict_object(schema: Mapping[str, JsonValue], form: dict[str, JsonValue]) -> dict[str, JsonValue]:
    properties, others = schema.get("properties"), schema.get("additionalProperties")
    if not isinstance(properties, dict):
        properties = {}
    if others is not False and (others is not None or not properties):  # free keys
        described = schema.get("description")
        return {"type": "string", "description": f"{described} {_AS_TEXT}" if described else _AS_TEXT}
    required = cast("list[str]", schema.get("required", []))
    form["properties"] = {
        name: _to_strict(part) if name in required else {"anyOf": [_to_strict(part), {"type": "null"}]}
        for name, part in cast("dict[str, dict[str, JsonValue]]", properties).items()
    }
    form["required"] = [*properties]
    form["additionalProperties"] = False
    return form


def from_strict_form(parameters: Mapping[str, JsonValue], schema: Mapping[str, Any]) -> dict[str, JsonValue]:
    """Return parameters as the tool's `schema` expects them: drop nulls of optional ones, parse texts that stand for mappings or lists."""
    required, definitions = set(schema.get("required", [])), schema.get("$defs", {})
    properties: dict[str, Any] = schema.get("properties", {})
    found = dict[str, JsonValue]()
    for name, value in parameters.items():
        part = properties.get(name)
        if part is None:
            found[name] = value
        elif value is None and name not in required and not _accepts(part, "null", definitions):
            continue
        else:
            found[name] = _parse_if_json(value, part, definitions)
    return found


def _parse_if_json(value: JsonValue, schema: dict[str, Any], definitions: dict[str, Any]) -> JsonValue:
    if not isinstance(value, str) or has_expression(value) or _accepts(schema, "string", definitions):
        return value
    if not (_accepts(schema, "object", definitions) or _accepts(schema, "array", definitions)):
        return value
    try:
        read = json.loads(value)
    except ValueError:
        return value  # validation reports the problem
    return cast("JsonValue", read) if isinstance(read, dict | list) else value


def _accepts(schema: dict[str, Any], kind: str, definitions: dict[str, Any]) -> bool:
    """Return whether a value of the JSON type `kind` may fit."""
    if isinstance(name := schema.get("$ref"), str):
        return _accepts(definitions.get(name.rpartition("/")[2], {}), kind, definitions)
    for key in ("anyOf", "oneOf"):
        if key in schema:
            return any(_accepts(part, kind, definitions) for part in schema[key])
    if "enum" in schema or "const" in schema:
        return kind == "string"
    written = schema.get("type")
    return written is None or kind in (written if isinstance(written, list) else [written])
