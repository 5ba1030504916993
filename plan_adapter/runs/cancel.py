"""Runs that somebody cancelled in Prefect while no process of theirs was there to see it."""

import asyncio
import logging
from collections.abc import Collection
from contextlib import suppress

from plan_adapter.errors import NoServerError, RunConflictError
from plan_adapter.record import PlanRun
from plan_adapter.store.store import PlanStore

log = logging.getLogger(__name__)

ANSWER_SECONDS = 5.0
"""How long Prefect may take to say why a process is ended: its worker kills the process after half a minute."""

RESUMING_ENTRIES = frozenset({"run_created", "run_started", "new_version", "gate_opened"})
"""The entries of a run's audit that make an earlier cancellation in Prefect one that was dealt with."""


async def end_cancelled(runs: Collection[PlanRun], store: PlanStore) -> dict[str, str]:
    """Cancel those of `runs` that were cancelled in Prefect since they went on last; return the reason of each by the run's id.

    The server is that of Prefect's settings. Of a run that has ended nothing is asked; one that a process executes is only asked to end.
    Raises NoServerError.
    """
    from plan_adapter.engine.flow_runs import cancellations

    unended = {run.flow_run_id: run for run in runs if run.flow_run_id is not None and run.completed_at is None}
    ended = dict[str, str]()
    for flow_run_id, cancellation in (await cancellations(unended) if unended else {}).items():
        run = unended[flow_run_id]
        went_on = [entry.at for entry in await store.audit(run.id) if entry.kind in RESUMING_ENTRIES]
        if went_on and max(went_on) > cancellation.at:  # revised since, or resumed without Prefect
            continue
        with suppress(RunConflictError):  # it has ended meanwhile
            await store.cancel(run.id, cancellation.reason)
            ended[run.id] = cancellation.reason
    return ended


async def cancelled_before(run: PlanRun, store: PlanStore) -> str | None:
    """Return why `run`, of which somebody wants more now, is cancelled by `end_cancelled`; None where it is not, or Prefect is away."""
    try:
        return (await end_cancelled([run], store)).get(run.id)
    except NoServerError as error:
        log.info("%s", error)
        return None


async def is_cancelled(run: PlanRun, flow_run_id: str, store: PlanStore) -> bool:
    """Return whether the process that works on `run` is ended because somebody cancels the flow run; the run is then told to end."""
    from plan_adapter.engine.flow_runs import cancellation_of

    try:
        async with asyncio.timeout(ANSWER_SECONDS):
            reason = await cancellation_of(flow_run_id)
    except Exception as error:
        log.warning("why run %s is to end cannot be asked: %s", run.id, error)
        return False
    if reason is None:
        return False
    with suppress(RunConflictError):  # it has ended
        await store.cancel(run.id, reason)
    return True
