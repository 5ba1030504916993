"""Steps as Prefect task runs."""

import asyncio
import logging
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Protocol
from uuid import UUID

from prefect.context import FlowRunContext
from prefect.exceptions import MissingContextError
from prefect.logging import get_run_logger
from prefect.states import AwaitingRetry, Crashed, Retrying, Running
from prefect.task_runners import ThreadPoolTaskRunner

from plan_adapter.crash_points import reached
from plan_adapter.engine.internals import StepTaskRun, run_by_engine
from plan_adapter.engine.plain import Attempts, PlainTaskRuns, tags_of
from plan_adapter.engine.states import state_of_call, state_of_carried, state_of_step
from plan_adapter.errors import ToolDefinitionError
from plan_adapter.execution.direct import wait_or_stop
from plan_adapter.execution.ports import AttemptEnd, StepCall
from plan_adapter.record import StepRun


class DirectTaskRuns:
    """Creates the task runs of one flow run directly, without Prefect's engine for most. Implements `tasks.TaskRuns`."""

    def __init__(self, flow: FlowRunContext) -> None:
        """Create task runs in the flow run of `flow`."""
        self._flow = flow

    async def drive(self, call: StepCall, upstream: Sequence[UUID]) -> tuple[UUID, AttemptEnd]:
        """Make attempts of `call`, waiting between them as AwaitingRetry. A stop of the run ends such a wait at once.

        A call with tags goes through Prefect's task engine, so that concurrency limits apply. So does a call of a Prefect task, so that its
        hooks, assets and transaction work.
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
        """Show `step` in its final state, without earlier states."""
        run = StepTaskRun(self._flow, step_id=step.id, name=step.id, upstream=upstream, tags=tags)
        run.enter(state_of_step(step))
        return run.id

    async def show_all(self, steps: Sequence[StepRun]) -> UUID:
        """Show in one task run that all of `steps` were carried. Its key cannot be that of a step."""
        run = StepTaskRun(self._flow, step_id="Carried", name="Carried", key="carried steps")
        run.enter(state_of_carried(steps))
        return run.id


async def _in_engine(call: StepCall, run: StepTaskRun) -> AttemptEnd:
    """Make the attempts of `call` in Prefect's task engine. A stop of the run also ends a wait for a concurrency slot."""
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
    """Log the end of an attempt to the task run: one line, no traceback."""
    logger = get_run_logger()
    if delay is None:
        logger.error("%s: %s", end.outcome, end.error)
    else:
        logger.warning("attempt %d failed: %s; the next one follows in %.3g s", end.number, end.error, delay)


class TaskRuns(Protocol):
    """Creates task runs. Its methods return the task run's id."""

    async def drive(self, call: StepCall, upstream: Sequence[UUID]) -> tuple[UUID, AttemptEnd]:
        """Make attempts of `call` in a task run until none is left. Also return how the last attempt ended."""
        ...

    async def show(self, step: StepRun, upstream: Sequence[UUID], tags: Collection[str] = ()) -> UUID:
        """Show the end of a step that was not called."""
        ...

    async def show_all(self, steps: Sequence[StepRun]) -> UUID:
        """Show in one task run that all of `steps` were carried."""
        ...


class PrefectStepRunner:
    """Runs the steps of the flow run in which it is created, each call in its own task run. Implements `ports.CallStep`."""

    def __init__(self, *, plain: bool = False, carried_task_runs: int = 200) -> None:
        """Use the current flow run. `plain` uses only Prefect's public calls, even if the faster path is available.

        More than `carried_task_runs` carried steps are shown as one task run.
        """
        flow = FlowRunContext.get()
        if flow is None:
            raise RuntimeError("PrefectStepRunner is made inside a running flow")
        _refuse_task_runner(flow)
        self._task_runs: TaskRuns = PlainTaskRuns() if plain else _quickest(flow)
        self._carried_task_runs = carried_task_runs
        self._ids: dict[str, list[UUID]] = defaultdict(list)

    async def __call__(self, call: StepCall) -> AttemptEnd:
        """Make attempts of `call` until one succeeds or `retry_delay` returns None. Return how the last one ended."""
        task_run_id, end = await self._task_runs.drive(call, self._upstream(call.upstream))
        reached("after-prefect-state")
        self._ids[call.step_run.id].append(task_run_id)
        return end

    async def show(self, step: StepRun, upstream: tuple[str, ...], *, tags: Collection[str] = ()) -> None:
        """Show a step that ended without a call."""
        self._ids[step.id].append(await self._task_runs.show(step, self._upstream(upstream), tags))

    async def show_carried(
        self,
        step_ids: Sequence[str],
        steps: Mapping[str, StepRun],
        upstream: Mapping[str, tuple[str, ...]],
        *,
        tags_of: Callable[[str], Collection[str]] = lambda _: (),
    ) -> None:
        """Show the steps that succeeded in earlier starts, as one task run each or all in one. Later steps depend on these task runs."""
        if len(step_ids) <= self._carried_task_runs:
            for step_id in step_ids:
                await self.show(steps[step_id], upstream[step_id], tags=tags_of(step_id))
            return
        task_run_id = await self._task_runs.show_all([steps[step_id] for step_id in step_ids])
        for step_id in step_ids:
            self._ids[step_id].append(task_run_id)

    def _upstream(self, step_ids: Sequence[str]) -> list[UUID]:
        return list(dict.fromkeys(task_run_id for step_id in step_ids for task_run_id in self._ids[step_id]))


def log_to_prefect(record: logging.LogRecord) -> None:
    """Send `record` to Prefect's log of the current task run or flow run. Outside of one, do nothing.

    The context is that of the calling thread: a tool in a thread needs a copy of the attempt's context there.
    """
    try:
        logger = get_run_logger()
    except MissingContextError:
        return
    logger.log(record.levelno, "%s", record.getMessage(), exc_info=record.exc_info)


def _refuse_task_runner(flow: FlowRunContext) -> None:
    """Raise ToolDefinitionError if the flow has a task runner: steps run in the flow's process, as the plan's options say."""
    chosen = None if flow.flow is None else flow.flow.task_runner
    if chosen is None or chosen == ThreadPoolTaskRunner():
        return
    raise ToolDefinitionError(
        f"the flow has the task runner {type(chosen).__name__}, and the steps of a plan cannot run in it: they run in the flow's own "
        "process. Remove it; write `options.max_parallel_steps` for more steps at once, and let a step call the tool `run_deployment` "
        "for work elsewhere"
    )


def _quickest(flow: FlowRunContext) -> TaskRuns:
    """Return the direct implementation, or the plain one if this Prefect has changed."""
    try:
        pass
        from plan_adapter.engine.internals import missing_prefect_features
    except ImportError as error:
        broken = [str(error)]
    else:
        broken = missing_prefect_features()
        if not broken:
            return DirectTaskRuns(flow)
    logging.getLogger(__name__).warning("steps are driven slowly, because this Prefect differs: %s", "; ".join(broken))
    return PlainTaskRuns()
