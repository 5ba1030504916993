"""`StepCalls`: makes the calls of steps, one or one per item, each as its turn comes, and ends a step after its last call."""

from collections.abc import Awaitable, Callable
from functools import partial
from typing import TypeAlias

from pydantic import JsonValue

from plan_adapter.execution.course import Course, CourseEnd
from plan_adapter.execution.items import Items
from plan_adapter.execution.ports import BEGUN_EARLIER, AttemptEnd
from plan_adapter.execution.progress import Progress
from plan_adapter.execution.rollback_status import OUTCOME_UNKNOWN
from plan_adapter.execution.scope import RunScope
from plan_adapter.execution.step import Call
from plan_adapter.model.readable import counted
from plan_adapter.model.record import Attempt
from plan_adapter.model.status import StepStatus

OnGroupCallEnd: TypeAlias = Callable[[Items, int, AttemptEnd | None], None]
"""Called with the step, the item and the end of a call of a group. Without an end, the call was not made."""


class StepCalls:
    """The calls of the steps that have begun. Belongs to one event loop."""

    def __init__(self, progress: Progress, *, on_group_call_end: OnGroupCallEnd) -> None:
        """Make calls for the steps of `progress`."""
        self._progress = progress
        self._scope = progress.scope
        self._on_group_call_end = on_group_call_end
        self._states = dict[str, Items]()
        self._course = Course(
            progress.scope,
            progress.run_step,
            progress.open_gates,
            why_halted=lambda call: self._why_not_made(self._states[call.step.id]),
            begun_earlier=BEGUN_EARLIER,
            after_abort=OUTCOME_UNKNOWN,
            on_start=self._call_started,
        )

    def begin(self, state: Items) -> None:
        """Expect calls of a step."""
        self._states[state.step.id] = state

    def queue(
        self, state: Items, item: int | None, value: JsonValue, *, scope: RunScope | None = None, upstream: tuple[str, ...] | None = None
    ) -> None:
        """Make a call of a step once its turn comes, or take over the success that is recorded.

        `scope` and `upstream`: what the expressions of the call see, and the calls that it waited for, if these are not the step's own.
        """
        unit = (state.step.id, item)
        if (receipt := self._scope.history.succeeded.get(unit)) is not None:
            state.carried += 1
            self._record_end(state, item, AttemptEnd("succeeded", receipt.number, result=receipt.result))
            return
        make_call = partial(self._new_call, state, item, value, scope, upstream)
        begun = self._scope.history.unknown.get(unit)
        if begun is not None or self._progress.gates_of(state.step) is not None:
            self._progress.tasks.spawn(self._take(state, make_call(), begun))
        else:
            self._request(state, item, make_call)  # the call is built when its turn comes, because thousands may be ready at once

    def _new_call(self, state: Items, item: int | None, value: JsonValue, scope: RunScope | None, upstream: tuple[str, ...] | None) -> Call:
        step, progress = state.step, self._progress
        run, urgency, label = progress.runs[step.id], progress.urgency[step.id], state.labels[item or 0]
        return Call(scope or self._scope.of(step), step, run, urgency=urgency, item=item, value=value, label=label, upstream=upstream)

    def _request(self, state: Items, item: int | None, make_call: Callable[[], Call]) -> None:
        def on_turn(cause: str) -> None:
            if not cause:
                self._progress.tasks.spawn(self._make(state, make_call))
            elif self._record_end(state, item, None):
                self._progress.tasks.spawn(self.close(state))

        slots, urgency = self._scope.of(state.step).slots, self._progress.urgency[state.step.id]
        self._course.request(slots, urgency, lambda: self._why_not_made(state), on_turn)

    async def _make(self, state: Items, make_call: Callable[[], Call]) -> None:
        call = make_call()
        await self._record_course(state, call, self._course.make(call))

    async def _take(self, state: Items, call: Call, begun: Attempt | None) -> None:
        await self._record_course(state, call, self._course.take(call, begun=begun))

    async def _record_course(self, state: Items, call: Call, course: Awaitable[CourseEnd]) -> None:
        """Record how a call ended. The slot that its failure has reserved goes to the rollback of its item, which takes one of its own."""
        try:
            await self._call_over(state, call, await course)
        finally:
            call.end_reservation()

    def _why_not_made(self, state: Items) -> str:
        """Return why no further call of a step is made. Empty if calls may be made."""
        return self._progress.why_halted(state.step) or ("one of its items failed" if state.halted else "")

    def _call_started(self, call: Call) -> None:
        self._states[call.step.id].started = True
        call.step_run.status = StepStatus.RUNNING

    async def _call_over(self, state: Items, call: Call, ended: CourseEnd) -> None:
        """Record how a call ended, or that it was not made, and close its step if that was the last one."""
        if ended.is_left:
            return
        state.settled = state.settled or ended.source == "person"
        if ended.end is None:
            self._progress.record_refusal(state, ended.refusal, withdrawn=ended.was_withdrawn)
        else:
            if call.is_of_group:
                self._scope.notify("call_ended", call.step_run, ended.end.in_words, name=call.name)
            if ended.end.outcome != "succeeded" and self._progress.stops_on_error(state.step):
                self._progress.halt_items(state)
        if self._record_end(state, call.item, ended.end):
            await self.close(state)

    def _record_end(self, state: Items, item: int | None, end: AttemptEnd | None) -> bool:
        """Record the end of a call. Return whether it was the last call of a step outside of groups, so that the caller closes the step."""
        if state.step.group is None or item is None:
            state.end(item, end)
            return not state.open
        self._on_group_call_end(state, item, end)
        return False

    async def close(self, state: Items) -> None:
        """End a step whose calls have all ended."""
        step, progress = state.step, self._progress
        choice = self._scope.history.choices.get(step.id)
        if choice is not None and choice.kind == "skipped" and state.without_call:
            done = f"completed for {state.carried} of {counted(state.count, 'item')}; " if state.carried else ""
            return progress.skip(step, done + choice.reason)
        cause = state.refused or state.cause or progress.why_halted(step)
        if state.missing + state.without_call == state.count > 0:
            return progress.skip(step, cause or f"its condition is false for every item: {step.when}")
        if step.group is not None and state.is_cut_short:
            return await self._close_cut_short(state, cause)
        progress.finish(step, state.summary(cause), was_refused=state.is_refused, continues=state.continues)
        progress.runs[step.id].carried = self.is_carried(state)
        return await progress.close(step, show=state.settled or not state.started)

    async def _close_cut_short(self, state: Items, cause: str) -> None:
        """End a step of a group that was not called for some items, and succeeded for the others."""
        run = self._progress.runs[state.step.id]
        called = f"done for {state.count - state.missing - state.without_call} of {counted(state.count, 'item')}"
        run.status, run.reason = StepStatus.SKIPPED, f"{called}, not called for {state.missing}: {cause}"
        run.started_at = run.started_at or self._scope.recorder.now()  # all calls are carried
        self._progress.end_now(run)
        await self._progress.close(state.step, show=False)

    def is_carried(self, state: Items) -> bool:
        """Return whether every call of a step is carried. Without items there is nothing to carry, except how the step ended before."""
        return state.carried == state.count and (state.count > 0 or state.step.id in self._scope.history.ends)
