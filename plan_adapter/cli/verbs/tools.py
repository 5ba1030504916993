"""`plan tools`."""

from typing import Any

from plan_adapter.cli import output
from plan_adapter.cli.exit_codes import ExitCode
from plan_adapter.cli.sources import tools_of


def tools(*, tools: list[str] | None = None, json: bool = False) -> int:
    """List the tools that plans can use: name, effect, parameters (`?`: optional), and what they do.

    Args:
        tools: `package.module:name` of further tools or registries; may be repeated.
        json: Print one JSON object per tool, with the schema of its parameters.
    """
    registry = tools_of(tools or [])
    if json:
        for definition in registry.definitions():
            output.json_line("tool", definition)
        return ExitCode.DONE
    rows = [(tool.name, tool.effect, _signature(tool.parameters_schema), _first_line(tool.description)) for tool in registry]
    output.table(("TOOL", "EFFECT", "PARAMETERS", "DESCRIPTION"), rows)
    return ExitCode.DONE


def _signature(schema: dict[str, Any]) -> str:
    required = set(schema.get("required", ()))
    return ", ".join(name + ("" if name in required else "?") for name in schema.get("properties", {}))


def _first_line(text: str) -> str:
    return next(iter(text.strip().splitlines()), "")
