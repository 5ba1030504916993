"""`plan doctor`."""

import asyncio
from dataclasses import asdict
from typing import TYPE_CHECKING

from plan_adapter.cli import output
from plan_adapter.cli.codes import ExitCode
from plan_adapter.cli.sources import open_store, tools_of
from plan_adapter.settings import Settings

if TYPE_CHECKING:
    from plan_adapter.engine.diagnosis import Finding


def doctor(*, tools: list[str] | None = None, json: bool = False) -> int:
    """Say what is wrong with this installation, its server, its store and its tools; starts no server. Ends with 2 if anything is.

    Args:
        tools: `package.module:name` of tools to look at, too; may be repeated.
        json: Print one JSON object per finding.
    """
    from plan_adapter.engine.diagnosis import diagnose

    settings = Settings()
    findings = diagnose(settings, checks=(lambda: _store(settings), lambda: _tools(tools or [])))
    for finding in findings:
        if json:
            output.json_line(asdict(finding))
        else:
            output.line(f"{'ok ' if finding.ok else 'BAD'} {finding.what}" + (f"\n    {finding.hint}" if finding.hint else ""))
    return ExitCode.DONE if all(finding.ok for finding in findings) else ExitCode.USAGE


def _store(settings: Settings) -> "Finding":
    from plan_adapter.engine.diagnosis import Finding
    from plan_adapter.errors import StoreError

    async def look() -> str:
        async with open_store(settings) as store:
            await store.now()
            return repr(store).strip("<>").removeprefix("PlanStore: ")

    try:
        return Finding(ok=True, what=f"{asyncio.run(look())} answers")
    except StoreError as error:
        return Finding(ok=False, what=str(error))


def _tools(imports: list[str]) -> "Finding":
    from plan_adapter.engine.diagnosis import Finding
    from plan_adapter.errors import ToolDefinitionError

    try:
        return Finding(ok=True, what=f"{len(tools_of(imports))} tools")
    except ToolDefinitionError as error:
        return Finding(ok=False, what=str(error))
