"""`plan cancel`."""

from typing import TYPE_CHECKING

from plan_adapter.cli import output
from plan_adapter.cli.exit_codes import ExitCode
from plan_adapter.cli.records import run_json, run_status_line
from plan_adapter.cli.servers import show_end_in_prefect
from plan_adapter.cli.sources import open_store
from plan_adapter.gates.approval import os_user
from plan_adapter.local.settings import Settings
from plan_adapter.model.readable import listed
from plan_adapter.model.record import PlanRun
from plan_adapter.model.status import PlanStatus, StepStatus

if TYPE_CHECKING:
    from plan_adapter.store.store import PlanStore

STOP_REQUESTED = "the process that runs it has been asked to stop"


async def cancel(
    run: str,
    /,
    *,
    note: str = "cancelled with `plan cancel`",
    json: bool = False,
) -> int:
    """Cancel a run. The process that runs it stops its steps and records the reason; a run without a process ends now.

    A rollback in progress stops after the current step. `plan rollback` also undoes what was done.

    Args:
        run: The id of a run, its beginning or end, or `last`.
        note: Why, for the record.
        json: Print the run as a JSON object.
    """
    from plan_adapter.runner import acancel_run  # imports SQLAlchemy

    async with open_store(Settings()) as store:
        is_unattended = all(gate.attended is False for gate in await store.gates.find(run_id=(await store.run(run, with_steps=False)).id))
        found = await acancel_run(run, reason=f"{note} (by {os_user()})", store=store)
        if is_unattended and found.status is PlanStatus.CANCELLED:
            await show_end_in_prefect(found.id, store, Settings())
        notes = await _what_is_left(found, store) if found.status is PlanStatus.CANCELLED else []
    if json:
        output.json_line("run", run_json(found, steps=False))
    else:
        output.line(run_status_line(found))
    for note in notes:
        output.note(note)
    if found.status is PlanStatus.EXECUTING:
        output.note(STOP_REQUESTED)
    return ExitCode.DONE


async def _what_is_left(run: PlanRun, store: "PlanStore") -> list[str]:
    """Return notes on what a cancelled run left behind: an unknown outcome, and `finally` steps that no process ran."""
    from plan_adapter.runs.reconcile import hint_of  # imports SQLAlchemy

    finally_ids = {step.id for step in (await store.get(run.digest)).finally_}
    not_run = [f"`{step.id}`" for step in run.steps if step.id in finally_ids and step.status is StepStatus.SKIPPED]
    has_begun = any(step.attempts for step in run.steps)
    notes = (
        [f"the `finally` steps did not run, because no process executes the run: {listed(not_run, 10)}"] if not_run and has_begun else []
    )
    hint = await hint_of(run, store)
    return notes if hint is None else [*notes, hint]
