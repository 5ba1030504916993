"""`plan schema`."""

import asyncio
import json as json_format
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING

from plan_adapter.cli import output
from plan_adapter.cli.exit_codes import ExitCode, UsageError
from plan_adapter.documents import plan_schema
from plan_adapter.model.errors import InvalidPlanError

if TYPE_CHECKING:
    from pydantic import JsonValue


def schema(file: Path | None = None, /, *, tool: str | None = None, json_output: bool = False, json: bool = False) -> int:
    """Print the JSON Schema of plan documents, or write it to a file, so that editors can complete and check plans.

    A plan names the file in its first line: `# yaml-language-server: $schema=plan.schema.json`

    Args:
        file: The file to write; default: stdout.
        tool: Print a plan (a path, `-`, or a stored one) as a function tool for models instead; its inputs become parameters.
        json_output: Print the schema of what the commands print with `--json` instead: one object per line.
        json: Print it on one line.
    """
    if json_output and tool is not None:
        raise UsageError("--json-output and --tool are different schemas: give one of them")
    found = output_schema() if json_output else plan_schema() if tool is None else _function_tool(tool)
    if json:
        output.json_object(found)
        return ExitCode.DONE
    text = json_format.dumps(found, indent=2, ensure_ascii=file is None) + "\n"
    if file is None:
        output.line(text.rstrip("\n"))
        return ExitCode.DONE
    output.write_file(file, text)
    output.note(f"wrote {file}")
    return ExitCode.DONE


def output_schema() -> "dict[str, JsonValue]":
    """Return the JSON Schema of a line that a command prints with `--json`."""
    return json_format.loads((files("plan_adapter.cli") / "output.schema.json").read_text(encoding="utf-8"))


def _function_tool(source: str) -> "dict[str, JsonValue]":
    """Return a plan as a function tool. Raises InvalidPlanError if its document has problems."""
    # Only for `--tool`.
    from plan_adapter.agent.plan_tools import plan_tool
    from plan_adapter.cli.sources import plan_of

    plan = asyncio.run(plan_of(source))
    if problems := plan.document_problems:
        raise InvalidPlanError(problems)
    return plan_tool(plan)
