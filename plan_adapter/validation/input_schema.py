"""The JSON Schema of a plan's inputs: for Prefect's forms, and for models and agents that call a plan."""

from collections.abc import Mapping
from typing import Any

from pydantic import JsonValue

from plan_adapter.options import Input
from plan_adapter.readable import as_text, code, is_visible, prose, unescaped


def value_schema(declared: Input) -> dict[str, JsonValue]:
    """Return the JSON Schema for a value of one input."""
    is_list = declared.type == "array"
    schema: dict[str, JsonValue] = {
        "type": declared.type,
        "enum": declared.enum,
        "pattern": declared.pattern,
        "minItems" if is_list else "minLength": declared.min_length,
        "maxItems" if is_list else "maxLength": declared.max_length,
        "minimum": declared.minimum,
        "maximum": declared.maximum,
        "items": {"type": declared.items} if declared.items else None,
    }
    return {name: value for name, value in schema.items() if value is not None}


def inputs_schema(inputs: Mapping[str, Input]) -> dict[str, JsonValue]:
    """Return the JSON Schema for all inputs of a plan: one object, with descriptions and defaults."""
    return {
        "type": "object",
        "properties": {name: _described_schema(declared) for name, declared in inputs.items()},
        "required": [name for name, declared in inputs.items() if declared.is_required],
        "additionalProperties": False,
    }


def _described_schema(declared: Input) -> dict[str, JsonValue]:
    schema = value_schema(declared)
    if declared.description:
        schema["description"] = declared.description
    if not declared.is_required:
        schema["default"] = declared.default
    return schema


def shown_value_schema(declared: Input) -> dict[str, JsonValue]:
    """Return the JSON Schema for a value of one input, without a pattern that has invisible characters: forms show it in errors.

    The value is checked again when it arrives. Choices have no such characters, or the plan is not valid.
    """
    schema = value_schema(declared)
    if declared.pattern is not None and not is_visible(declared.pattern):
        del schema["pattern"]
    return schema


def _field_schema(declared: Input) -> dict[str, JsonValue]:
    schema, about = shown_value_schema(declared), [prose(declared.description)] if declared.description else []
    if not declared.is_required and is_visible(declared.default):
        schema["default"] = declared.default
    elif not declared.is_required:  # the field would hide part of it; an empty field takes it as well
        about.append(f"Empty: {code(as_text(declared.default))}")
    return schema | ({"description": " ".join(about)} if about else {})


def input_from_schema(schema: Mapping[str, Any]) -> Input:
    """Return the input that a property of a form describes, as plain text."""
    names = {"minLength": "min_length", "minItems": "min_length", "maxLength": "max_length", "maxItems": "max_length"}
    known = {names.get(key, key): value for key, value in schema.items()}
    if (items := known.get("items")) is not None:
        known["items"] = items["type"]
    known |= {name: unescaped(known[name]) for name in ("title", "description") if isinstance(known.get(name), str)}
    return Input(**{name: value for name, value in known.items() if name in Input.model_fields})


def form_schema(inputs: Mapping[str, Input]) -> dict[str, JsonValue]:
    """Return the schema of a form as Prefect's UI reads it: in the order of the plan, with titles.

    Titles and descriptions can neither hide text nor make links or HTML: one of Prefect's UIs renders them as Markdown.
    """
    properties: dict[str, JsonValue] = {
        name: {**_field_schema(declared), "title": prose(declared.title or name), "position": position}
        for position, (name, declared) in enumerate(inputs.items())
    }
    required: list[JsonValue] = [name for name, declared in inputs.items() if declared.is_required]
    return {"title": "Parameters", "type": "object", "properties": properties, "required": required, "definitions": {}}
