"""Steps as Prefect task runs.

Prefect's own task engine executes every step that may need it, so that retries, tags, concurrency limits, hooks, assets, transactions and
spans work. It takes 1.4 times the processor time and 1.6 times as long as sending a short step's two states, so a step that uses none of
these is executed without it. `needs_engine` decides.

`StepTaskRun` creates the task run here, because `task(...)` spends a third of a short step's time on working out what is already known: the
name, the parameters, the dependencies. If a later Prefect breaks that, `task(...)` is called.
"""

import asyncio
import logging
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from copy import copy
from datetime import UTC, datetime, timedelta
from functools import cache, partial
from typing import Any, cast
from uuid import UUID, uuid5

from prefect import Task, get_client
from prefect.cache_policies import NO_CACHE
from prefect.client.schemas.objects import State, StateDetails, TaskRun, TaskRunPolicy, TaskRunResult
from prefect.context import FlowRunContext, TagsContext, TaskRunContext
from prefect.events import Event
from prefect.exceptions import MissingContextError
from prefect.logging import get_run_logger
from prefect.states import Cancelled, Completed, Crashed, Pending, Running
from prefect.task_runners import ThreadPoolTaskRunner
from prefect.types import DateTime

from plan_adapter.engine.gate_forms import SERVER_ERRORS
from plan_adapter.engine.internals import execute, missing_prefect_features, report_state
from plan_adapter.engine.outgoing import log_line, log_text, run_name, state_message
from plan_adapter.engine.states import state_of_call, state_of_carried, state_of_step
from plan_adapter.execution.ports import AttemptEnd, StepCall
from plan_adapter.local.crash_points import reached
from plan_adapter.model.errors import ToolDefinitionError, ToolError
from plan_adapter.model.record import StepRun
from plan_adapter.model.status import RunOutcome

MAX_EDGES = 1000
"""The most upstream task runs that one task run names. An event may have 1.5 MB, and the UI draws no more."""

SHOW_SECONDS = 5.0
"""How long a rollback waits for a server that does not take that a call is undone: Prefect's client tries for more than a minute."""
CARRIED_DELAY = timedelta(seconds=1)
"""How much later than its call a carried step ends in Prefect's graph."""

MAX_SHOWN_DELAYS = 50
"""Prefect refuses longer lists of retry delays."""


class PrefectStepRunner:
    """Runs the steps of the flow run in which it is created, each call in its own task run. Implements `ports.StepRunner`."""

    def __init__(self, *, plain: bool = False, carried_task_runs: int = 200) -> None:
        """Use the current flow run. `plain` uses only Prefect's public calls, even if the faster way of creating task runs is available.

        More than `carried_task_runs` carried steps are shown as one task run.
        """
        flow = FlowRunContext.get()
        if flow is None:
            raise RuntimeError("a PrefectStepRunner can only be created inside a running flow")
        _refuse_task_runner(flow)
        self._flow = flow
        self._plain = plain or _needs_plain_task_runs()
        self._carried_task_runs = carried_task_runs
        self._task_run_ids: dict[str, list[UUID]] = defaultdict(list)
        self._calls: dict[str, StepTaskRun] = {}  # those made in this start, by key

    async def __call__(self, call: StepCall) -> AttemptEnd:
        """Make attempts of `call` until one succeeds or `retry_delay` returns None. Return how the last one ended."""
        attempts = Attempts(call)
        run = self._task_run(
            call.step_run.id,
            name=call.name,
            key=call.key,
            upstream=call.upstream,
            retry_delays=call.retry_delays,
            timeout_seconds=call.timeout_seconds,
            tags=attempts.task.tags,
        )
        self._calls[call.key] = run
        end = await attempts.run_in(run)
        reached("after-prefect-state")
        for key in {call.step_run.id, call.key}:
            self._task_run_ids[key].append(run.id)
        return end

    async def show(self, step: StepRun, upstream: tuple[str, ...], *, tags: Collection[str] = ()) -> None:
        """Show a step that ended without a call."""
        run = self._task_run(step.id, upstream=upstream, tags=tags)
        await run.show(partial(state_of_step, step), ended_at=step.completed_at if step.carried else None)
        self._task_run_ids[step.id].append(run.id)

    async def show_undone(self, key: str) -> None:
        """Show that what a call did is rolled back, so that its task run is not green."""
        if (run := self._calls.get(key)) is not None and not run.is_plain:
            run.enter(_undone())
            return
        task_run_id = self._task_run(key).id if run is None else run.id
        try:
            async with asyncio.timeout(SHOW_SECONDS), get_client() as client:
                await client.set_task_run_state(task_run_id, _undone(), force=True)
        except SERVER_ERRORS as error:  # the rollback goes on; the task run is missing if one stands for all carried steps
            logging.getLogger(__name__).debug("cannot show in Prefect that %s is rolled back: %s", key, error)

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
        run = self._task_run("Carried", key="carried steps")  # no step has such an id
        await run.show(partial(state_of_carried, [steps[step_id] for step_id in step_ids]))
        for step_id in step_ids:
            self._task_run_ids[step_id].append(run.id)

    def _task_run(self, step_id: str, *, name: str | None = None, upstream: Sequence[str] = (), **options: Any) -> "StepTaskRun":
        ids = list(dict.fromkeys(task_run_id for before in upstream for task_run_id in self._task_run_ids[before]))
        return StepTaskRun(self._flow, step_id=step_id, name=run_name(name or step_id), plain=self._plain, upstream=ids, **options)


def log_to_prefect(record: logging.LogRecord) -> None:
    """Send `record` to Prefect's log of the current task run or flow run. Outside of one, do nothing.

    The context is that of the calling thread: a tool in a thread needs a copy of the attempt's context there.
    """
    try:
        logger = get_run_logger()
    except MissingContextError:
        return
    logger.log(record.levelno, "%s", log_text(record))


def _undone() -> State:
    return Cancelled(name=RunOutcome.ROLLED_BACK.value, message="what it did is undone")


def _refuse_task_runner(flow: FlowRunContext) -> None:
    """Raise ToolDefinitionError if the flow has a task runner: steps run in the flow's process, as the plan's options say."""
    runner = None if flow.flow is None else flow.flow.task_runner
    if runner is None or runner == ThreadPoolTaskRunner():
        return
    raise ToolDefinitionError(
        f"the flow has the task runner {type(runner).__name__}, and the steps of a plan cannot run in it: they run in the flow's own "
        "process. Remove it; write `options.max_parallel_steps` for more steps at once, and let a step call the tool `run_deployment` "
        "for work elsewhere"
    )


def _needs_plain_task_runs() -> bool:
    """Return whether Prefect has changed so that task runs cannot be created in the faster way. Log it if so."""
    missing = missing_prefect_features("task runs")
    if missing:
        logging.getLogger(__name__).warning("steps run slower, because this version of Prefect differs: %s", "; ".join(missing))
    return bool(missing)


class StepTaskRun:
    """A task run of the current flow run. Its id derives from flow run and key, so a rerun of the flow run continues the same task run.

    Prefect learns of it with its first state. A plain one is created by Prefect instead, through public calls only: it is slower, has
    neither this id nor a retry policy, and a stop shows it as Crashed.
    """

    def __init__(
        self,
        flow: FlowRunContext,
        *,
        step_id: str,
        name: str,
        plain: bool = False,
        key: str | None = None,
        upstream: Sequence[UUID] = (),
        retry_delays: Sequence[float] = (),
        timeout_seconds: float | None = None,
        tags: Collection[str] = (),
    ) -> None:
        """Prepare the task run. `key` identifies it within the flow run, by default the name."""
        assert flow.flow_run is not None  # only Prefect's background tasks have none
        flow_run = flow.flow_run
        self._flow = flow
        self._name = name
        self._upstream = upstream
        self._last_event: Event | None = None
        self.id = uuid5(flow_run.id, key or name)
        self.tags = sorted(TagsContext.get().current_tags.union(tags))  # of the step, its tool and the context of the flow
        self._record: TaskRun | None = None
        if not plain:
            self._record = TaskRun(
                id=self.id,
                name=name,
                flow_run_id=flow_run.id,
                flow_run_run_count=flow_run.run_count,
                task_key=step_id,
                dynamic_key=key or name,
                expected_start_time=cast(DateTime, datetime.now(UTC)),  # Prefect declares pendulum's type and accepts any datetime
                empirical_policy=TaskRunPolicy(retries=len(retry_delays), retry_delay=list(retry_delays[:MAX_SHOWN_DELAYS])),
                task_inputs={"wait_for": [TaskRunResult(id=task_run_id) for task_run_id in upstream[:MAX_EDGES]]} if upstream else {},
                labels={} if timeout_seconds is None else {"timeout_seconds": timeout_seconds},
                tags=self.tags,
            )

    @property
    def is_plain(self) -> bool:
        """Whether Prefect creates the task run and sets its states."""
        return self._record is None

    async def run(self, task: Task[..., Any]) -> None:
        """Let Prefect's task engine execute `task` as this task run, to its final state."""
        if self._record is None:
            task.task_run_name = lambda: self._name  # a plain string would be used as a format string
            # These states only draw edges; the scheduler decides what starts when.
            edges = [Completed(data=True, state_details=StateDetails(task_run_id=task_run_id)) for task_run_id in self._upstream]
            state: State = await task(wait_for=edges, return_state=True)
            self.id = state.state_details.task_run_id or self.id
            return
        if self.tags:  # it may wait for a slot of a concurrency limit
            self.enter(Pending())
        else:
            self._record.state = Pending()
        await execute(task, self._record)

    async def show(self, state: Callable[[], State], *, ended_at: datetime | None = None) -> None:
        """Show the task run in a final state, without earlier ones. `ended_at` is when its call ended in an earlier start.

        A plain one has no tags then: Prefect would wait for a slot of their concurrency limits.
        """
        if not self.is_plain:
            shown = state()
            shown.timestamp = cast(DateTime, self._time_of_carried(ended_at, shown.timestamp))
            self.enter(shown)
            return

        async def end() -> State:
            return state()  # created now, because the server ignores a state older than Running

        await self.run(Task(end, name=self._name, cache_policy=NO_CACHE, persist_result=False))

    def _time_of_carried(self, ended_at: datetime | None, now: datetime) -> datetime:
        """Return the time of a final state so that Prefect's graph draws no bar over the wait since `ended_at`.

        It must be later than that of the state that the call ended with, or the server ignores it. In a flow run that began later, the
        task run is new, and has no bar to keep short.
        """
        began_at = None if self._flow.flow_run is None else self._flow.flow_run.start_time
        if ended_at is None or began_at is None or ended_at < began_at:
            return now
        return min(now, ended_at + CARRIED_DELAY)

    def context(self, task: Task[..., Any]) -> TaskRunContext:
        """Return the context of a call without Prefect's engine: loggers, subflows and tasks in it belong to this task run."""
        assert self._record is not None
        return TaskRunContext(
            task=task,
            task_run=self._record,
            parameters={},
            result_store=self._flow.result_store,
            client=self._flow.client,
            persist_result=False,
        )

    def enter(self, state: State) -> None:
        """Move the task run to `state` and report it to Prefect, which does both for a plain one. Never blocks."""
        if (run := self._record) is None:
            return
        last = run.state
        state.state_details.task_run_id = run.id
        state.state_details.flow_run_id = run.flow_run_id
        run.state, run.state_id, run.state_type, run.state_name = state, state.id, state.type, state.name
        now = cast(DateTime, state.timestamp)
        if last is not None and last.is_running():
            run.total_run_time += state.timestamp - last.timestamp
        if state.is_running():
            run.run_count, run.start_time = run.run_count + 1, run.start_time or now
        if state.is_final():
            run.end_time = now
        self._last_event = report_state(run, last, follows=self._last_event)


def needs_engine(call: StepCall, tags: Collection[str]) -> bool:
    """Return whether Prefect's task engine must execute `call`, whose task run has `tags`.

    It does retries; tags may have a concurrency limit; and a Prefect task brings hooks, assets and a transaction. Everything else about a
    call of another tool is ours: timeout, parameters, result.
    """
    return bool(call.task is not None or call.retry_delays or tags)


class Attempts:
    """The attempts of one call, and the Prefect task that makes them, retries included."""

    def __init__(self, call: StepCall) -> None:
        """Prepare the attempts of `call`."""
        self._call = call
        self._end: AttemptEnd | None = None
        self._error: BaseException | None = None
        self._is_waiting = True  # for a slot of a concurrency limit, or for the next attempt
        self.task = self._build_task()

    async def run_in(self, run: StepTaskRun) -> AttemptEnd:
        """Make the attempts in `run` and return how the last one ended. When the run stops, a wait for an attempt ends at once."""
        if not run.is_plain and not needs_engine(self._call, run.tags):
            return await self._run_directly(run)
        running = asyncio.ensure_future(run.run(self.task))
        stopped = asyncio.ensure_future(self._call.stopped())
        try:
            await asyncio.wait({running, stopped}, return_when=asyncio.FIRST_COMPLETED)
            if not running.done() and self._is_waiting:
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
        return self.last_end(running.exception())

    async def _run_directly(self, run: StepTaskRun) -> AttemptEnd:
        """Make the only attempt and report its two states, without Prefect's engine."""
        run.enter(Running())
        try:
            with run.context(self.task):
                end = await self._call.attempt()
                if end.outcome != "succeeded":
                    get_run_logger().error("%s", log_line(f"{end.outcome}: {end.error}"))
        except BaseException as error:
            run.enter(Crashed(message=state_message(f"{type(error).__name__}: {error}")))
            raise
        run.enter(state_of_call(end))
        return end

    def last_end(self, prefect_error: BaseException | None = None) -> AttemptEnd:
        """Return how the last attempt ended. Raises what interrupted an attempt, or `prefect_error` if Prefect made no attempt."""
        if self._error is not None:
            raise self._error
        if self._end is None:
            raise prefect_error or RuntimeError(f"Prefect made no attempt of `{self._call.name}`")
        return self._end

    def _build_task(self) -> Task[..., Any]:
        """Return a task that makes the attempts: a copy of the tool's own task with its hooks, assets and transaction, or a plain one."""
        call = self._call
        task = copy(_prototype() if call.task is None else cast("Task[..., Any]", call.task))
        task.name = call.name if call.task is None else task.name
        task.fn, task.isasync, task.isgenerator = self._run_next_attempt, True, False
        task.tags = {*call.step.tags, *task.tags}
        task.task_run_name = None  # its task run has a name already
        task.retries, task.retry_jitter_factor, task.retry_condition_fn = len(call.retry_delays), None, _is_retry_due
        task.timeout_seconds = None
        # Prefect would use a persisted result as the result of a later attempt.
        task.persist_result, task.cache_policy, task.cache_expiration, task.result_storage_key = False, NO_CACHE, None, None
        return task

    async def _run_next_attempt(self) -> Any:
        """Make the next attempt. Return its result or the call's final state, or raise ToolError if another attempt follows."""
        self._is_waiting = False
        try:
            self._end = await self._call.attempt()
        except BaseException as error:  # raised again outside Prefect, which would print its traceback
            self._error = error
            return self._end_without_hooks(Crashed(message=state_message(f"{type(error).__name__}: {error}")))
        delay = self._call.retry_delay(self._end)
        if delay is not None:
            self.task.retry_delay_seconds = delay or None
            self._is_waiting = True
            raise ToolError(log_line(self._end.error or ""))  # Prefect logs it
        if self._end.outcome == "succeeded":
            return Completed() if self._call.task is None else self._end.result
        return self._end_without_hooks(state_of_call(self._end))

    def _end_without_hooks(self, state: State) -> State:
        """Return `state` as the end of the task, without its commit and rollback hooks: Prefect takes a returned state for a success.

        Prefect logs an empty traceback when a task has used its last retry. One more retry, which `retry_condition_fn` declines, avoids it.
        """
        self.task.on_commit_hooks, self.task.on_rollback_hooks = [], []
        self.task.retries += 1
        return state


def _is_retry_due(_task: Task[..., object], _run: TaskRun, state: State) -> bool:  # Prefect accepts only a plain function
    return isinstance(state.data, ToolError)


@cache
def _prototype() -> Task[..., Any]:
    """Return the task that is copied for each call. Creating a task takes far longer than copying one."""
    return Task(_placeholder, cache_policy=NO_CACHE, persist_result=False)


async def _placeholder() -> None:
    """Stand in for the function of the prototype. Never called."""
