"""`PlainTaskRuns`: task runs through Prefect's public calls only. Slower, and a wait for a retry is shown as Retrying."""

from collections.abc import Awaitable, Callable, Sequence
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
    """Makes a Prefect task for each call, whose retries Prefect performs. Implements `tasks.TaskRuns`."""

    async def drive(self, call: StepCall, upstream: Sequence[UUID]) -> tuple[UUID, AttemptEnd]:
        """Make attempts of `call` in a task run until none is left, and return its id and the last end."""
        attempts = Attempts(call)
        task = Task(
            attempts.next,
            name=call.name,
            tags=call.step.tags,
            task_run_name=lambda: call.name,  # a text would be taken for a format string
            retries=len(call.retry_delays),
            retry_delay_seconds=0,
            retry_condition_fn=_another_follows,
            cache_policy=NO_CACHE,
            persist_result=False,
        )
        task_run_id = await _run(task, upstream)
        if attempts.error is not None:
            raise attempts.error
        assert attempts.end is not None  # a task without an error has made an attempt
        return task_run_id, attempts.end

    async def show(self, step: StepRun, upstream: Sequence[UUID]) -> UUID:
        """Show the end of a step that was not called."""
        return await _show(step.id, partial(state_of_step, step), upstream)

    async def show_all(self, steps: Sequence[StepRun]) -> UUID:
        """Show that all of `steps` were carried, in one task run."""
        return await _show("Carried", partial(state_of_carried, steps), ())


class AnotherAttemptError(Exception):
    """Tells Prefect that an attempt failed and another follows."""


class Attempts:
    """The attempts of one call. Prefect would sleep without watching for the run's stop, so the wait is part of the next attempt."""

    def __init__(self, call: StepCall) -> None:
        """Prepare the attempts of `call`."""
        self.end: AttemptEnd | None = None
        self.error: BaseException | None = None
        self._call = call
        self._delay = 0.0

    async def next(self) -> State:
        """Make the next attempt and return the final state; raises AnotherAttemptError where it is not the last."""
        try:
            stopped = await wait_or_stop(self._call, self._delay) if self._delay else None
            self.end = stopped or await self._call.attempt()
        except BaseException as error:  # raised again outside of Prefect, which would print its traceback
            self.error = error
            return Crashed(message=f"{type(error).__name__}: {error}")
        delay = None if stopped else self._call.retry_delay(self.end)
        if delay is None:
            return state_of_call(self.end)
        self._delay = delay
        raise AnotherAttemptError(self.end.error)


def _another_follows(_task: Task[..., object], _run: TaskRun, state: State) -> bool:  # a plain function: a callable object ends retries
    return isinstance(state.data, AnotherAttemptError)


async def _show(name: str, state: Callable[[], State], upstream: Sequence[UUID]) -> UUID:
    async def end() -> State:
        return state()  # made now: of a state that is older than Running the server takes no notice

    return await _run(Task(end, name=name, task_run_name=lambda: name, cache_policy=NO_CACHE, persist_result=False), upstream)


async def _run(task: Task[..., Any], upstream: Sequence[UUID]) -> UUID:
    """Run `task` and return its task run's id. The states draw edges and hold nothing up: what starts when is the scheduler's decision."""
    states = [Completed(data=True, state_details=StateDetails(task_run_id=task_run_id)) for task_run_id in upstream]
    state = await cast(Awaitable[State], task(wait_for=states, return_state=True))
    task_run_id = state.state_details.task_run_id
    assert task_run_id is not None  # every state of a task run names it
    return task_run_id
