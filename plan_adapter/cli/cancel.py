"""`plan cancel`."""

from plan_adapter.cli import output
from plan_adapter.cli.codes import ExitCode
from plan_adapter.cli.records import run_end, run_json
from plan_adapter.cli.sources import open_store
from plan_adapter.plan import PlanStatus
from plan_adapter.settings import Settings


async def cancel(run: str, /, *, reason: str = "cancelled with `plan cancel`", json: bool = False) -> int:
    """Cancel a run: the process that executes it ends its steps and records the reason; one that nobody executes is ended at once.

    Args:
        run: The id of a run, or its beginning.
        reason: What is recorded as the reason.
        json: Print the run as a JSON object.
    """
    from plan_adapter.approval import os_user
    from plan_adapter.runner import acancel_run

    async with open_store(Settings()) as store:
        found = await acancel_run(run, reason=f"{reason} (by {os_user()})", store=store)
    if json:
        output.json_line(run_json(found, steps=False))
    else:
        output.line(run_end(found))
    if found.status is PlanStatus.EXECUTING:
        output.note("the process that executes it has been asked to end it")
    return ExitCode.DONE
