"""`AskedCalls`: the calls that people are asked about while a run is executed, and the clock that stops while only they are open."""

from collections.abc import Callable, Generator
from contextlib import contextmanager

from plan_adapter.approvals import Approval
from plan_adapter.execution.limits import RunClock
from plan_adapter.execution.ports import GatedCall, GateRefusal, RecordedResolution, StepGates, UnknownOutcome
from plan_adapter.execution.scope import RunScope


class AskedCalls:
    """The open step gates and outcome gates of one start of a run.

    The clock of the total timeout stops while a gate is open and no call is in progress. If the run does not wait for people, it is left
    once nothing but gates is open.
    """

    def __init__(self, scope: RunScope, clock: RunClock, *, pauses: bool, tasks: Callable[[], int]) -> None:
        """Ask about calls of `scope`. `clock` stops only with `pauses`. `tasks` returns how many tasks of the run are in progress."""
        self._scope = scope
        self._clock = clock
        self._pauses = pauses
        self._tasks = tasks
        self._working = 0  # calls requested and not yet ended
        self._asked = dict[str, list[GatedCall | UnknownOutcome]]()  # by step

    def work(self, change: int) -> None:
        """Count calls that are requested (1) or have ended (-1)."""
        self._working += change
        if self._pauses and not self._working and any(self._asked.values()):
            self._clock.pause()
        else:
            self._clock.resume()

    async def answer(self, gates: StepGates, gated: GatedCall) -> Approval | GateRefusal | None:
        """Wait for the answer about `gated`, or until nobody needs to be asked.

        Sets `is_left` of the scope if nobody has answered and this start of the run no longer waits. The step stays pending then.
        """
        gated.waiting.add_done_callback(lambda _: self.leave_if_idle())
        with self._open(gated):
            answer = await gates.ask(gated)
        self._scope.is_left = self._scope.is_left or is_open(gated, answer)
        return answer

    async def resolution(self, unknown_outcome: UnknownOutcome) -> RecordedResolution | None:
        """Wait for a person's resolution of an unknown outcome. Returns None if nobody is asked or nobody answers."""
        if self._scope.outcomes is None:
            return None
        with self._open(unknown_outcome):
            return await self._scope.outcomes.ask(unknown_outcome)

    @contextmanager
    def _open(self, asked: GatedCall | UnknownOutcome) -> Generator[None]:
        calls = self._asked.setdefault(asked.step.id, [])
        calls.append(asked)
        self.work(0)
        try:
            yield
        finally:
            calls.remove(asked)
            self.work(0)

    def withdraw(self, step_id: str | None = None) -> None:
        """Withdraw what is asked about the calls of a step, or of all steps, because none of them will be made."""
        for calls in [self._asked.get(step_id, [])] if step_id is not None else self._asked.values():
            for asked in calls:
                if not asked.withdrawn.done():
                    asked.withdrawn.set_result(None)

    def leave_if_idle(self) -> None:
        """Stop waiting at gates if the run does not wait for people and no other work of it is in progress."""
        gates = self._scope.gates
        if gates is None or gates.waits or self._working:
            return
        waiting = [asked for calls in self._asked.values() for asked in calls if isinstance(asked, GatedCall) and asked.waiting.done()]
        if len(waiting) == self._tasks():
            for gated in waiting:
                if not gated.left.done():
                    gated.left.set_result(None)

    def leave(self) -> bool:
        """Stop waiting at gates if nothing else is open. Return whether that was so.

        Outcome questions are withdrawn as well; the run then reports an unknown outcome.
        """
        waiting = [asked for calls in self._asked.values() for asked in calls]
        if self._working or not waiting or len(waiting) != self._tasks():
            return False
        for asked in waiting:
            end = asked.left if isinstance(asked, GatedCall) else asked.withdrawn
            if not end.done():
                end.set_result(None)
        return True


def is_open(gated: GatedCall, answer: Approval | GateRefusal | None) -> bool:
    """Return whether nobody has answered although the call may still be made."""
    return answer is None and not gated.withdrawn.done()
