"""`OpenGates`: the gates at which a run waits for people. The run's clock stops while nothing else is in progress."""

from collections.abc import Callable, Generator
from contextlib import contextmanager

from plan_adapter.execution.limits import RunClock
from plan_adapter.execution.ports import GatedCall, GateRefusal, RecordedResolution, StepGates, UnknownOutcome
from plan_adapter.execution.scope import RunScope
from plan_adapter.model.approvals import Approval


class OpenGates:
    """The open step gates and outcome gates of one start of a run.

    The clock of the total timeout stops while a gate is open and no call is in progress. If the run does not wait for people, it stops
    waiting as soon as nothing but gates is open.
    """

    def __init__(self, scope: RunScope, clock: RunClock, *, pauses: bool, count_tasks: Callable[[], int]) -> None:
        """Open gates for calls of `scope`. `clock` stops only with `pauses`. `count_tasks` counts the tasks of the run in progress."""
        self._scope = scope
        self._clock = clock
        self._pauses = pauses
        self._count_tasks = count_tasks
        self._active_calls = 0  # calls requested and not yet ended
        self._open_by_step = dict[str, list[GatedCall | UnknownOutcome]]()

    def count_call(self, change: int) -> None:
        """Count a call that is requested (1) or has ended (-1), and stop or start the clock."""
        self._active_calls += change
        if self._pauses and not self._active_calls and any(self._open_by_step.values()):
            self._clock.pause()
        else:
            self._clock.resume()

    async def ask_for_approval(self, gates: StepGates, gated: GatedCall) -> Approval | GateRefusal | None:
        """Open a gate for `gated` and return the answer. Return None if nobody answered before the gate was withdrawn or left.

        Sets `is_left` of the scope if this start of the run no longer waits for the answer. The step stays pending then.
        """
        gated.waiting.add_done_callback(lambda _: self.leave_if_idle())
        with self._track(gated):
            await self._scope.recorder.flush()  # whoever sees the gate also sees the end of every step before it
            answer = await gates.ask(gated)
        self._scope.is_left = self._scope.is_left or is_unanswered(gated, answer)
        return answer

    async def ask_for_resolution(self, unknown_outcome: UnknownOutcome) -> RecordedResolution | None:
        """Ask a person to resolve an unknown outcome. Return the resolution, or None if nobody is asked or nobody answers."""
        if self._scope.outcomes is None:
            return None
        with self._track(unknown_outcome):
            return await self._scope.outcomes.ask(unknown_outcome)

    @contextmanager
    def _track(self, question: GatedCall | UnknownOutcome) -> Generator[None]:
        calls = self._open_by_step.setdefault(question.step.id, [])
        calls.append(question)
        self.count_call(0)
        try:
            yield
        finally:
            calls.remove(question)
            self.count_call(0)

    def withdraw(self, step_id: str | None = None) -> None:
        """Withdraw the gates of a step, or of all steps, because none of their calls will be made."""
        for calls in [self._open_by_step.get(step_id, [])] if step_id is not None else self._open_by_step.values():
            for question in calls:
                if not question.withdrawn.done():
                    question.withdrawn.set_result(None)

    def leave_if_idle(self) -> None:
        """Stop waiting at gates if the run does not wait for people and nothing else of it is in progress."""
        gates = self._scope.gates
        if gates is None or gates.waits or self._active_calls:
            return
        waiting = [
            question
            for calls in self._open_by_step.values()
            for question in calls
            if isinstance(question, GatedCall) and question.waiting.done()
        ]
        if len(waiting) == self._count_tasks():
            for gated in waiting:
                if not gated.left.done():
                    gated.left.set_result(None)

    def leave(self) -> bool:
        """Stop waiting at gates if nothing else is in progress. Return whether the run stopped waiting.

        Outcome gates are withdrawn as well; the run then reports an unknown outcome.
        """
        waiting = [question for calls in self._open_by_step.values() for question in calls]
        if self._active_calls or not waiting or len(waiting) != self._count_tasks():
            return False
        for question in waiting:
            end = question.left if isinstance(question, GatedCall) else question.withdrawn
            if not end.done():
                end.set_result(None)
        return True


def is_unanswered(gated: GatedCall, answer: Approval | GateRefusal | None) -> bool:
    """Return whether nobody has answered, although the call may still be made."""
    return answer is None and not gated.withdrawn.done()
