"""`PrefectSteps`: the steps of a plan as task runs of the current flow run."""

import logging
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Protocol
from uuid import UUID

from prefect.context import FlowRunContext
from prefect.exceptions import MissingContextError
from prefect.logging import get_run_logger
from prefect.task_runners import ThreadPoolTaskRunner

from plan_adapter.crash_points import reached
from plan_adapter.engine.plain import PlainTaskRuns
from plan_adapter.errors import ToolDefinitionError
from plan_adapter.execution.ports import AttemptEnd, StepCall
from plan_adapter.record import StepRun


class TaskRuns(Protocol):
    """A way to make task runs; its methods return the task run's id."""

    async def drive(self, call: StepCall, upstream: Sequence[UUID]) -> tuple[UUID, AttemptEnd]:
        """Make attempts of `call` in a task run until none is left, and return the last end, too."""
        ...

    async def show(self, step: StepRun, upstream: Sequence[UUID], tags: Collection[str] = ()) -> UUID:
        """Show the end of a step that was not called."""
        ...

    async def show_all(self, steps: Sequence[StepRun]) -> UUID:
        """Show in one task run that all of `steps` were carried."""
        ...


class PrefectSteps:
    """Drives the steps of the flow run that it is made in, each call in a task run of its own. Implements `ports.CallStep`."""

    def __init__(self, *, plain: bool = False, carried_task_runs: int = 200) -> None:
        """Serve the current flow run; `plain` uses Prefect's public calls only, even where the quick way is open.

        More carried steps than `carried_task_runs` are shown as one task run.
        """
        flow = FlowRunContext.get()
        if flow is None:
            raise RuntimeError("PrefectSteps is made inside a running flow")
        _refuse_task_runner(flow)
        self._task_runs: TaskRuns = PlainTaskRuns() if plain else _quickest(flow)
        self._carried_task_runs = carried_task_runs
        self._ids: dict[str, list[UUID]] = defaultdict(list)

    async def __call__(self, call: StepCall) -> AttemptEnd:
        """Make attempts of `call` until it succeeded or `retry_delay` gives None; return the last end."""
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
        """Show the steps that succeeded in earlier starts, each in a task run of its own, or all in one: what follows depends on that."""
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
    """Send `record` to Prefect's log of the task run (or flow run) that it is written in; outside of one do nothing.

    The context is that of the calling thread: a tool in a thread needs a copy of the attempt's context there.
    """
    try:
        logger = get_run_logger()
    except MissingContextError:
        return
    logger.log(record.levelno, "%s", record.getMessage(), exc_info=record.exc_info)


def _refuse_task_runner(flow: FlowRunContext) -> None:
    """Raise ToolDefinitionError where somebody chose a task runner for the flow: steps run in its process, as the plan's options say."""
    chosen = None if flow.flow is None else flow.flow.task_runner
    if chosen is None or chosen == ThreadPoolTaskRunner():
        return
    raise ToolDefinitionError(
        f"the flow has the task runner {type(chosen).__name__}, and the steps of a plan cannot run in it: they run in the flow's own "
        "process. Remove it; write `options.max_parallel_steps` for more steps at once, and let a step call the tool `run_deployment` "
        "for work elsewhere"
    )


def _quickest(flow: FlowRunContext) -> TaskRuns:
    """Return the direct way; the plain one where Prefect has changed."""
    try:
        from plan_adapter.engine.direct import DirectTaskRuns
        from plan_adapter.engine.internals import broken_promises
    except ImportError as error:
        broken = [str(error)]
    else:
        broken = broken_promises()
        if not broken:
            return DirectTaskRuns(flow)
    logging.getLogger(__name__).warning("steps are driven slowly, because this Prefect differs: %s", "; ".join(broken))
    return PlainTaskRuns()
