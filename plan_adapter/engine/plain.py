"""`PlainTaskRuns`: task runs through Prefect's public calls only. Slower, and a wait for a retry shows as Retrying."""

from collections.abc import Awaitable, Callable, Collection, Sequence
from copy import copy
from functools import partial
from typing import Any, cast
from uuid import UUID

from prefect import Task
from prefect.cache_policies import NO_CACHE
from prefect.client.schemas.objects import State, StateDetails, TaskRun
from prefect.states import Completed, Crashed

from plan_adapter.engine.states import state_of_call, state_of_carried, state_of_step
from plan_adapter.execution.direct import wait_or_stop
from plan_adapter.execution.ports import AttemptEnd, StepCall
from plan_adapter.record import StepRun


class PlainTaskRuns:
    """Creates a Prefect task for each call and lets Prefect perform the retries. Implements `tasks.TaskRuns`."""

    async def drive(self, call: StepCall, upstream: Sequence[UUID]) -> tuple[UUID, AttemptEnd]:
        """Make attempts of `call` in a task run until none is left. Return the task run's id and how the last attempt ended."""
        attempts = Attempts(call)
        task_run_id = await _run(attempts.task, upstream)
        return task_run_id, attempts.last_end()

    async def show(self, step: StepRun, upstream: Sequence[UUID], tags: Collection[str] = ()) -> UUID:
        """Show the end of a step that was not called. Its tags are left out: Prefect would wait for a slot of their concurrency limits."""
        return await _show(step.id, partial(state_of_step, step), upstream)

    async def show_all(self, steps: Sequence[StepRun]) -> UUID:
        """Show in one task run that all of `steps` were carried."""
        return await _show("Carried", partial(state_of_carried, steps), ())


def tags_of(call: StepCall) -> set[str]:
    """Return the tags of the task run of `call`: those of its step and, if its tool is a Prefect task, of that task."""
    return {*call.step.tags, *cast("set[str]", getattr(call.task, "tags", ()))}


class AnotherAttemptError(Exception):
    """Tells Prefect that an attempt failed and another one follows."""


class Attempts:
    """The attempts of one call, and the Prefect task that makes them.

    Prefect would wait between attempts without watching for a stop of the run, so the wait is part of the next attempt.
    """

    def __init__(self, call: StepCall) -> None:
        """Prepare the attempts of `call`."""
        self._call = call
        self._delay = 0.0
        self._end: AttemptEnd | None = None
        self._error: BaseException | None = None
        self.has_begun = False
        self.task = self._task()

    def last_end(self, trouble: BaseException | None = None) -> AttemptEnd:
        """Return how the last attempt ended. Raises what interrupted an attempt, or `trouble` if Prefect made no attempt."""
        if self._error is not None:
            raise self._error
        if self._end is None:
            raise trouble or RuntimeError(f"Prefect made no attempt of `{self._call.name}`")
        return self._end

    def _task(self) -> Task[..., Any]:
        call = self._call
        if call.task is None:
            task = Task(self._next, name=call.name)
        else:  # keep its hooks, assets and transaction; the attempt calls its function, with receipts and secrets
            task = copy(cast("Task[..., Any]", call.task))
            task.fn, task.isasync, task.isgenerator = self._next, True, False
        task.tags = tags_of(call)
        task.task_run_name = lambda: call.name  # a plain string would be used as a format string
        task.retries, task.retry_delay_seconds, task.retry_jitter_factor = len(call.retry_delays), 0, None
        task.retry_condition_fn = _another_follows
        task.timeout_seconds = None
        # Prefect would use a persisted result as the result of a later attempt.
        task.persist_result, task.cache_policy, task.cache_expiration, task.result_storage_key = False, NO_CACHE, None, None
        return task

    async def _next(self) -> Any:
        """Make the next attempt. Return its result or the call's final state, or raise AnotherAttemptError if another one follows."""
        self.has_begun = True
        try:
            stopped = await wait_or_stop(self._call, self._delay) if self._delay else None
            self._end = stopped or await self._call.attempt()
        except BaseException as error:  # raised again outside Prefect, which would print its traceback
            self._error = error
            self._commit_nothing()
            return Crashed(message=f"{type(error).__name__}: {error}")
        delay = None if stopped else self._call.retry_delay(self._end)
        if delay is not None:
            self._delay = delay
            raise AnotherAttemptError(self._end.error)
        if self._end.outcome == "succeeded":
            return self._end.result
        self._commit_nothing()
        return state_of_call(self._end)

    def _commit_nothing(self) -> None:
        """Keep Prefect from committing or rolling back: it takes a returned state for a success."""
        self.task.on_commit_hooks, self.task.on_rollback_hooks = [], []


def _another_follows(_task: Task[..., object], _run: TaskRun, state: State) -> bool:  # a function: a callable object ends retries
    return isinstance(state.data, AnotherAttemptError)


async def _show(name: str, state: Callable[[], State], upstream: Sequence[UUID]) -> UUID:
    async def end() -> State:
        return state()  # created now, because the server ignores a state older than Running

    return await _run(Task(end, name=name, task_run_name=lambda: name, cache_policy=NO_CACHE, persist_result=False), upstream)


async def _run(task: Task[..., Any], upstream: Sequence[UUID]) -> UUID:
    """Run `task` and return its task run's id. The upstream states only draw edges; the scheduler decides what starts when."""
    states = [Completed(data=True, state_details=StateDetails(task_run_id=task_run_id)) for task_run_id in upstream]
    state = await cast(Awaitable[State], task(wait_for=states, return_state=True))
    task_run_id = state.state_details.task_run_id
    assert task_run_id is not None  # every state of a task run names it
    return task_run_id
