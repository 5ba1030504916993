"""Applies cancellations made in Prefect to runs that no process was watching."""

import asyncio
import logging
from collections.abc import Collection
from contextlib import suppress

from plan_adapter.model.errors import NoServerError, RunConflictError
from plan_adapter.model.record import PlanRun
from plan_adapter.store.store import PlanStore

log = logging.getLogger(__name__)

ANSWER_SECONDS = 5.0
"""How long to wait for Prefect to say why the process is being stopped. The worker kills the process after 30 seconds."""

RESUMING_ENTRIES = frozenset({"run_created", "run_started", "new_version", "gate_opened"})
"""Audit log entries after which an earlier cancellation in Prefect is ignored."""


async def apply_cancellations(runs: Collection[PlanRun], store: PlanStore) -> dict[str, str]:
    """Cancel the `runs` that were cancelled in Prefect since they last started, and return the reasons by run id.

    The server is the one in Prefect's settings. Runs that have ended are not looked up. A process that is executing a run is asked to end
    it. Raises NoServerError.
    """
    from plan_adapter.engine.flow_runs import read_cancellations  # imports Prefect

    unended = {run.flow_run_id: run for run in runs if run.flow_run_id is not None and run.completed_at is None}
    ended = dict[str, str]()
    for flow_run_id, cancellation in (await read_cancellations(unended) if unended else {}).items():
        run = unended[flow_run_id]
        resumed_at = [entry.at for entry in await store.audit(run.id) if entry.kind in RESUMING_ENTRIES]
        if resumed_at and max(resumed_at) > cancellation.at:  # revised since then, or resumed without Prefect
            continue
        with suppress(RunConflictError):  # it has ended in the meantime
            await store.cancel(run.id, cancellation.reason)
            ended[run.id] = cancellation.reason
    return ended


async def apply_cancellation(run: PlanRun, store: PlanStore) -> str | None:
    """Return why `run` was cancelled in Prefect, and cancel it; None if it was not, or Prefect cannot be reached."""
    try:
        return (await apply_cancellations([run], store)).get(run.id)
    except NoServerError as error:
        log.info("%s", error)
        return None


async def is_cancelled(run: PlanRun, flow_run_id: str, store: PlanStore) -> bool:
    """Return whether this process is being stopped because the flow run was cancelled. If so, also cancel `run`."""
    from plan_adapter.engine.flow_runs import cancellation_reason  # imports Prefect

    try:
        async with asyncio.timeout(ANSWER_SECONDS):
            reason = await cancellation_reason(flow_run_id)
    except Exception as error:
        log.warning("the reason to end run %s cannot be read: %s", run.id, error)
        return False
    if reason is None:
        return False
    with suppress(RunConflictError):  # it has ended
        await store.cancel(run.id, reason)
    return True
