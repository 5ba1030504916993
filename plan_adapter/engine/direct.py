"""`DirectTaskRuns`: task runs that are moved from state to state here; Prefect's task engine is used only where a step needs it."""

import asyncio
from collections.abc import Collection, Sequence
from datetime import UTC, datetime, timedelta
from uuid import UUID

from prefect.context import FlowRunContext
from prefect.logging import get_run_logger
from prefect.states import AwaitingRetry, Crashed, Retrying, Running

from plan_adapter.engine.internals import StepTaskRun, run_by_engine
from plan_adapter.engine.plain import Attempts, tags_of
from plan_adapter.engine.states import state_of_call, state_of_carried, state_of_step
from plan_adapter.execution.direct import wait_or_stop
from plan_adapter.execution.ports import AttemptEnd, StepCall
from plan_adapter.record import StepRun


class DirectTaskRuns:
    """Makes task runs of one flow run. Implements `tasks.TaskRuns`."""

    def __init__(self, flow: FlowRunContext) -> None:
        """Serve the flow run of `flow`."""
        self._flow = flow

    async def drive(self, call: StepCall, upstream: Sequence[UUID]) -> tuple[UUID, AttemptEnd]:
        """Make attempts of `call`, waiting between them as AwaitingRetry; the run's stop ends such a wait at once.

        A call with tags, whose concurrency limits hold, or of a Prefect task, with its hooks, assets and transaction, goes through
        Prefect's task engine.
        """
        run = StepTaskRun(
            self._flow,
            step_id=call.step_run.id,
            name=call.name,
            key=call.key,
            upstream=upstream,
            retry_delays=call.retry_delays,
            timeout_seconds=call.timeout_seconds,
            tags=tags_of(call),
        )
        if run.task_run.tags or call.task is not None:
            return run.id, await _in_engine(call, run)
        try:
            with run.context():
                end = await _attempts(call, run)
        except BaseException as error:
            run.enter(Crashed(message=f"{type(error).__name__}: {error}"))
            raise
        run.enter(state_of_call(end))
        return run.id, end

    async def show(self, step: StepRun, upstream: Sequence[UUID], tags: Collection[str] = ()) -> UUID:
        """Show `step` in its final state, the only one it had."""
        run = StepTaskRun(self._flow, step_id=step.id, name=step.id, upstream=upstream, tags=tags)
        run.enter(state_of_step(step))
        return run.id

    async def show_all(self, steps: Sequence[StepRun]) -> UUID:
        """Show that all of `steps` were carried, in one task run; its key can be no step's."""
        run = StepTaskRun(self._flow, step_id="Carried", name="Carried", key="carried steps")
        run.enter(state_of_carried(steps))
        return run.id


async def _in_engine(call: StepCall, run: StepTaskRun) -> AttemptEnd:
    """Make the attempts of `call` in Prefect's task engine; the run's stop also ends a wait for a slot of a tag's concurrency limit."""
    attempts = Attempts(call)
    running = asyncio.ensure_future(run_by_engine(attempts.task, run))
    stopped = asyncio.ensure_future(call.stopped())
    try:
        await asyncio.wait({running, stopped}, return_when=asyncio.FIRST_COMPLETED)
        if not running.done() and not attempts.has_begun:
            running.cancel()
            await asyncio.wait({running})
            run.enter(state_of_call(stopped.result()))
            return stopped.result()
        await asyncio.wait({running})
    except asyncio.CancelledError:
        running.cancel()
        await asyncio.wait({running})
        raise
    finally:
        stopped.cancel()
    return attempts.last_end(running.exception())


async def _attempts(call: StepCall, run: StepTaskRun) -> AttemptEnd:
    run.enter(Running())
    while True:
        end = await call.attempt()
        delay = call.retry_delay(end)
        if end.outcome != "succeeded":
            _log_end(end, delay)
        if delay is None:
            return end
        if delay:
            run.enter(AwaitingRetry(scheduled_time=datetime.now(UTC) + timedelta(seconds=delay), message=end.error))
            if (stopped := await wait_or_stop(call, delay)) is not None:
                return stopped
        run.enter(Retrying(message=end.error))


def _log_end(end: AttemptEnd, delay: float | None) -> None:
    """Write the end of an attempt into the task run's log: one line, no traceback."""
    logger = get_run_logger()
    if delay is None:
        logger.error("%s: %s", end.outcome, end.error)
    else:
        logger.warning("attempt %d failed: %s; the next one follows in %.3g s", end.number, end.error, delay)
