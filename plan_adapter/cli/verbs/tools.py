"""`plan tools`."""

import json as json_module
from collections.abc import Iterator, Mapping
from typing import Any, TypeAlias, cast

from plan_adapter.cli import output
from plan_adapter.cli.exit_codes import ExitCode, UsageError
from plan_adapter.cli.sources import tools_of
from plan_adapter.model.problems import did_you_mean
from plan_adapter.tools import Tool

Schema: TypeAlias = Mapping[str, Any]


def tools(name: str | None = None, /, *, tools: list[str] | None = None, json: bool = False) -> int:
    """List the tools that plans can use: name, effect, parameters (`?`: optional), and what they do.

    Args:
        name: Show only this tool, with its whole description, its parameters and its result.
        tools: `package.module:name` of further tools or registries; may be repeated.
        json: Print one JSON object per tool, with the schema of its parameters.
    """
    registry = tools_of(tools or [])
    chosen = None if name is None else registry.get(name)
    if name is not None and chosen is None:
        raise UsageError(f"there is no tool `{name}`", hint=did_you_mean(name, registry.names()))
    if json:
        for definition in registry.definitions():
            if name in (None, definition["name"]):
                output.json_line("tool", definition)
    elif chosen is not None:
        for text in _lines_of(chosen):
            output.line(text)
    else:
        rows = [(tool.name, tool.effect, _signature(tool.parameters_schema), _first_line(tool.description)) for tool in registry]
        output.table(("TOOL", "EFFECT", "PARAMETERS", "DESCRIPTION"), rows)
    return ExitCode.DONE


def _lines_of(tool: Tool[..., Any]) -> Iterator[str]:
    """Yield what a person reads about one tool."""
    yield f"{tool.name} ({tool.effect})"
    yield ""
    yield tool.description.strip()
    if tool.permissions:
        yield f"\nPermissions: {', '.join(sorted(tool.permissions))}"
    schema, result = cast("Schema", tool.parameters_schema), cast("Schema", tool.result_schema)
    yield "\nParameters:" if schema.get("properties") else "\nNo parameters."
    yield from _fields_of(schema, schema.get("$defs", {}))
    shown = result.get("$defs", {}).get(str(result.get("$ref", "")).removeprefix("#/$defs/"), result)
    yield f"\nResult: {_type_text(result, result.get('$defs', {}))}"
    yield from _fields_of(shown, result.get("$defs", {}))


def _fields_of(schema: Schema, definitions: Schema) -> Iterator[str]:
    required = schema.get("required", ())
    for name, field in schema.get("properties", {}).items():
        default = f", default {json_module.dumps(field['default'], ensure_ascii=False)}" if "default" in field else ""
        optional = "" if name in required else default or ", optional"
        yield f"  {name}: {_type_text(field, definitions)}{optional}"
        if description := field.get("description"):
            yield f"    {description}"


def _type_text(schema: Schema, definitions: Schema) -> str:
    """Return the type that a JSON Schema describes in a few words, such as `list of string or null`."""
    if (reference := str(schema.get("$ref", "")).removeprefix("#/$defs/")) in definitions:
        return _type_text(definitions[reference], definitions)
    if alternatives := schema.get("anyOf"):
        return " or ".join(dict.fromkeys(_type_text(part, definitions) for part in alternatives))
    if "enum" in schema:
        return " or ".join(json_module.dumps(value, ensure_ascii=False) for value in schema["enum"])
    if schema.get("type") == "array" and isinstance(schema.get("items"), dict):
        return f"list of {_type_text(schema['items'], definitions)}"
    return {"array": "list", None: "any value"}.get(schema.get("type"), str(schema.get("type")))


def _signature(schema: dict[str, Any]) -> str:
    required = set(schema.get("required", ()))
    return ", ".join(name + ("" if name in required else "?") for name in schema.get("properties", {}))


def _first_line(text: str) -> str:
    return next(iter(text.strip().splitlines()), "")
