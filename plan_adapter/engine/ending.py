"""`run_to_end`: a run as a flow run, on a server that may go away before the end."""

import asyncio
import logging
from collections.abc import Mapping
from typing import Any
from uuid import UUID

from prefect import Flow, get_client
from prefect.client.schemas.objects import State
from prefect.exceptions import ObjectNotFound

from plan_adapter.engine.compiler import name_of
from plan_adapter.engine.connection import changed_settings, trouble_with_server
from plan_adapter.engine.delivery import deliver, drop
from plan_adapter.engine.flow_runs import busy_retries, run_flow
from plan_adapter.engine.states import state_of_run
from plan_adapter.errors import NoServerError, PlanAdapterError
from plan_adapter.record import PlanRun

log = logging.getLogger(__name__)

END_SECONDS = 15.0
"""How long Prefect may take to learn that a run has ended; it would try for minutes, and then call the flow run Failed."""
LAST_WORD_SECONDS = 3.0

AWAY = "the Prefect server went away: it lacks states or logs of"
DELETED = "the flow run is not there any more, somebody deleted it in Prefect: it shows no end of"


async def run_to_end(flow: Flow[..., Any], parameters: Mapping[str, Any], run: PlanRun, ended: asyncio.Future[None]) -> None:
    """Run `flow`, whose function brings `run` to an end and then sets `ended`: to None, or to the exception that it raises.

    A server that goes away meanwhile changes nothing about the run: what it does not take within a bound it is not told, with a
    warning. Raises what `ended` holds; NoServerError where Prefect did not come to call the function.
    """
    loop = asyncio.get_running_loop()
    flowing = asyncio.ensure_future(run_flow(flow, parameters, flow_run_id=run.flow_run_id, name=name_of(run)))
    ended.add_done_callback(lambda _: loop.call_later(END_SECONDS, _cut_short, flowing))
    while not flowing.done():
        try:
            await asyncio.wait({flowing})
        except asyncio.CancelledError:  # the function cleans up, and says how that ended
            flowing.cancel()
    if not ended.done():
        raise _unbegun(flowing, run)
    trouble = await _untold(flowing, run) or (None if await deliver() else AWAY)
    if trouble is not None:
        await drop()
        then = "; `plan reconcile` tells it the end" if trouble == AWAY else ""
        log.warning("%s run %s, whose record is complete%s", trouble, run.id, then)
    ended.result()


def _cut_short(flowing: "asyncio.Future[State]") -> None:
    # Prefect answers a cancellation with one more attempt to reach the server, so it takes several.
    if not flowing.done():
        flowing.cancel()
        asyncio.get_running_loop().call_later(0.2, _cut_short, flowing)


def _unbegun(flowing: "asyncio.Future[State]", run: PlanRun) -> BaseException:
    """Return why Prefect did not call the flow's function."""
    error = asyncio.CancelledError() if flowing.cancelled() else flowing.exception()
    reason = f"its flow run is {flowing.result().name}" if error is None else trouble_with_server(error)
    if reason is None or isinstance(error, PlanAdapterError):
        return error or asyncio.CancelledError()
    unbegun = NoServerError(
        f"the Prefect server did not begin run {run.id}: {reason}. No step was called; `plan resume {run.id}` begins it"
    )
    unbegun.__cause__ = error
    return unbegun


async def _untold(flowing: "asyncio.Future[State]", run: PlanRun) -> str | None:
    """Return why the server does not know how the flow run ended, None if it does; where Prefect could not tell, it is told once more."""
    told = not flowing.cancelled() and flowing.exception() is None
    if told or run.completed_at is None or run.flow_run_id is None:  # what the function raised comes out here, too, and is no end
        return None
    try:
        with changed_settings({"client.max_retries": 0}):
            async with asyncio.timeout(LAST_WORD_SECONDS):
                await _tell_end(UUID(run.flow_run_id), state_of_run(run))
    except ObjectNotFound:
        return DELETED
    except Exception as error:
        log.info("the end of run %s could not be told: %s", run.id, error)
        return AWAY
    return None


async def _tell_end(flow_run_id: UUID, state: State) -> None:
    async with busy_retries(), get_client() as client:
        await client.set_flow_run_state(flow_run_id, state, force=True)
