"""Convert JSON Schemas to the form that strict decoding accepts, and convert decoded values back.

Strict decoding has no optional properties, no mappings with free keys, no defaults, and only some keywords. So an optional property becomes
nullable, and a mapping with free keys becomes a text that holds JSON.
"""

import json
from collections.abc import Mapping
from typing import Any, cast

from pydantic import JsonValue

from plan_adapter.expressions import has_expression

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
