"""The process of one run that an agent started: `python -m plan_adapter.cli.mcp.run_process RUN BY offline|'' TOOL…`.

It resumes the run as `plan resume RUN --detach` does, but in the agent's name: gates and operator checks see the agent, not the person
whose account the process runs under. A signal that ends the process cancels the run.
"""

import asyncio
import sys
from collections.abc import Sequence
from dataclasses import replace

from plan_adapter.cli import output
from plan_adapter.cli.daemon_thread import in_daemon_thread
from plan_adapter.cli.foreground import ForegroundRun, RunOptions, begin_server
from plan_adapter.cli.mcp.workers import worker_log_path
from plan_adapter.cli.sources import open_store, tools_of
from plan_adapter.local.settings import Settings
from plan_adapter.model.errors import PlanAdapterError


async def resume_run(run_id: str, by: str, tools: Sequence[str], *, offline: bool) -> None:
    """Resume the run, and return once it has ended or waits only at gates."""
    from plan_adapter.runs.resume import execute_resume  # imports SQLAlchemy

    settings = Settings()
    pending = begin_server(settings, offline=offline)
    registry = tools_of(tools)
    async with open_store(settings) as store:
        server = await in_daemon_thread(pending.wait) if pending is not None else None
        foreground = ForegroundRun(server, RunOptions(yes=False, detach=True, json=False), store=store, tools=registry, imports=tools)
        run_request = replace(foreground.request(settings), requested_by=by)
        await foreground.complete(
            execute_resume(run_id, tools=registry, run_request=run_request, store=store, offline=offline, record_pending=True)
        )


def main() -> int:
    """Return 0 if the store records how the run ended or what it waits for, 1 if only the log does."""
    run_id, by, mode, *tools = sys.argv[1:]
    output.prepare_streams()
    try:
        asyncio.run(resume_run(run_id, by, tools, offline=mode == "offline"))
    except PlanAdapterError as error:
        output.note(str(error))
        return 1
    worker_log_path(run_id, Settings().home).unlink(missing_ok=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
