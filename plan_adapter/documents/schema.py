"""The JSON Schema of the plan document, for editors."""

from typing import Any, cast

from pydantic import JsonValue

from plan_adapter.plan import ExecutionPlan

DIALECT = "https://json-schema.org/draft/2020-12/schema"


def plan_schema() -> dict[str, JsonValue]:
    """Return the JSON Schema (draft 2020-12) of a plan document in snake_case.

    `read_document` or validation refuses everything that the schema refuses, with two exceptions: other spellings of keys, and the
    execution fields of the original implementations.
    """
    schema: dict[str, Any] = ExecutionPlan.model_json_schema(by_alias=True)
    schema = _simplify(schema)
    definitions: dict[str, Any] = schema.pop("$defs")
    kinds = (["tool_name"], ["ask"], ["goal"], ["for_each", "steps"], ["plan"])
    definitions["Step"]["properties"]["pinned"] |= {"$ref": "#"}
    definitions["Step"]["oneOf"] = [{"required": fields} for fields in kinds]
    properties: dict[str, Any] = schema["properties"]
    properties["steps"]["minItems"] = 1
    properties["description"]["minLength"] = 1
    for named in (properties["inputs"], definitions["Question"]["properties"]["fields"]):
        named["propertyNames"] = {"pattern": "^[A-Za-z][A-Za-z0-9_]*$"}
    properties["$schema"] = {"type": "string", "description": "Where editors find this schema."}
    schema["required"] = ["description", "steps"]
    schema["title"] = "Plan document"
    schema["$defs"] = definitions
    return {"$schema": DIALECT, **schema}


def _simplify(schema: Any) -> Any:
    """Return `schema` without titles that repeat a name, and without null, which only means that a field is absent."""
    if isinstance(schema, list):
        return [_simplify(member) for member in cast("list[Any]", schema)]
    if not isinstance(schema, dict):
        return schema
    parts = {key: _simplify(part) for key, part in cast("dict[str, Any]", schema).items()}
    if isinstance(parts.get("title"), str):
        del parts["title"]
    if parts.get("default", ...) is None:
        del parts["default"]
    choices: list[Any] = parts.get("anyOf", [])
    if len(choices) == 2 and choices[1] == {"type": "null"}:
        del parts["anyOf"]
        parts |= choices[0]
    return parts
