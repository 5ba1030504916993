"""`plan schema`."""

import asyncio
import json as json_format
from pathlib import Path
from typing import TYPE_CHECKING

from plan_adapter.cli import output
from plan_adapter.cli.exit_codes import ExitCode
from plan_adapter.documents import plan_schema
from plan_adapter.model.errors import InvalidPlanError

if TYPE_CHECKING:
    from pydantic import JsonValue


def schema(file: Path | None = None, /, *, tool: str | None = None, json: bool = False) -> int:
    """Print the JSON Schema of plan documents, or write it to a file, so that editors can complete and check plans.

    A plan names the file in its first line: # yaml-language-server: $schema=plan.schema.json

    Args:
        file: The file to write; default: stdout.
        tool: Print a plan (a path, `-`, or a stored one) as a function tool for models instead; its inputs become parameters.
        json: Print it on one line.
    """
    found = plan_schema() if tool is None else _function_tool(tool)
    if json:
        output.json_line(found)
        return ExitCode.DONE
    text = json_format.dumps(found, indent=2, ensure_ascii=file is None) + "\n"
    if file is None:
        output.line(text.rstrip("\n"))
        return ExitCode.DONE
    output.write_file(file, text)
    output.note(f"wrote {file}")
    return ExitCode.DONE


def _function_tool(source: str) -> "dict[str, JsonValue]":
    """Return a plan as a function tool. Raises InvalidPlanError if its document has problems."""
    # Only for `--tool`.
    from plan_adapter.agent.plan_tools import plan_tool
    from plan_adapter.cli.sources import plan_of

    plan = asyncio.run(plan_of(source))
    if problems := plan.document_problems:
        raise InvalidPlanError(problems)
    return plan_tool(plan)
