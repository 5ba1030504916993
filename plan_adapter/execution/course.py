"""`Course`: what happens to a call from its gate to its end: gate, slot, attempts, probe, unknown outcome, resolution -> one end.

Calls of steps, items, goals and rollbacks take the same course. Whoever wants a call made acts on its `CourseEnd`.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

from plan_adapter.execution.asked import OpenGates, is_unanswered
from plan_adapter.execution.limits import Slots
from plan_adapter.execution.ports import AttemptEnd, GateRefusal, RecordedResolution, StepRunner, UnknownOutcome
from plan_adapter.execution.scope import RunScope
from plan_adapter.execution.step import Call
from plan_adapter.local import telemetry
from plan_adapter.model.approvals import Resolution
from plan_adapter.model.errors import error_text
from plan_adapter.model.readable import item_number
from plan_adapter.model.record import Attempt

Source: TypeAlias = Literal["call", "probe", "person", "record"]
"""Who says how a call ended. `record`: nobody does; an earlier start began it, and its outcome is still unknown."""


@dataclass(frozen=True, slots=True)
class CourseEnd:
    """How the course of a call ended. Without an `end`, this start of the run did not make the call."""

    end: AttemptEnd | None = None
    source: Source = "call"
    resolution: Resolution | None = None  # a person's, of an unknown outcome
    refusal: GateRefusal | None = None  # why the call was not approved
    was_withdrawn: bool = False  # its gate was closed because the call was no longer wanted
    is_left: bool = False  # nobody has answered at its gate yet, and this start of the run no longer waits
    seconds: float | None = None  # how long it was being made, without waiting for a slot or a person. None: not in this start of the run


class Course:
    """Takes the calls of one part of a run to their ends. Belongs to one event loop.

    A call holds a slot only while it is made or its probe is asked, not while it waits for a person.
    """

    def __init__(
        self,
        scope: RunScope,
        run_step: StepRunner,
        open_gates: OpenGates | None,
        *,
        why_halted: Callable[[Call], str],
        begun_earlier: str,
        after_abort: str,
        abort_stops: bool = True,
        confirms_each: bool = False,
        on_start: Callable[[Call], None] = lambda _: None,
        ask_for_resolution: Callable[[UnknownOutcome], Awaitable[RecordedResolution | None]] | None = None,
    ) -> None:
        """Take calls of `scope` to their ends. `open_gates` counts them and asks people.

        - `why_halted` returns why a call may not start any more, or an empty text. Nobody is asked about such a call either.
        - `begun_earlier` says why the outcome of an attempt of an earlier start is unknown.
        - `after_abort` says what stays open when a person aborts an unknown outcome. That also stops the run, with `abort_stops`.
        - `confirms_each`: a call that is made again is approved again.
        - `on_start` is called once a call has its slot.
        - `ask_for_resolution` is used in place of that of `open_gates`.
        """
        self._scope = scope
        self._run_step = run_step
        self._open_gates = open_gates
        self._why_halted = why_halted
        self._begun_earlier = begun_earlier
        self._after_abort = after_abort
        self._abort_stops = abort_stops
        self._confirms_each = confirms_each
        self._on_start = on_start
        self._ask_for_resolution = ask_for_resolution or (_ask_nobody if open_gates is None else open_gates.ask_for_resolution)

    async def take(self, call: Call, *, begun: Attempt | None = None, is_gated: bool = True) -> CourseEnd:
        """Take `call` to its end: ask for its approval if it needs one, wait for a slot, and make it.

        `begun` is an attempt of an earlier start whose outcome is unknown: the call is made only if that attempt did nothing. Without
        `is_gated`, nobody is asked for an approval.
        """
        if begun is not None and (found := await self._find_outcome(call, begun)) is not None:
            return found
        if is_gated and (not_approved := await self._get_approval(call)) is not None:
            return not_approved
        turn = asyncio.get_running_loop().create_future()
        self.request(call.slots, call.urgency, lambda: self._why_halted(call), turn.set_result)
        return CourseEnd() if await turn else await self.make(call, is_gated=is_gated)

    def request(self, slots: Slots, urgency: float, why_halted: Callable[[], str], on_turn: Callable[[str], None]) -> None:
        """Wait for one of `slots`, then call `on_turn` with why no call may start. If the text is empty, `make` takes over the slot.

        A call is counted from here on. The call itself is not needed yet, because thousands may wait at once.
        """

        def granted() -> None:
            if cause := why_halted():
                slots.release()
                self._count(-1)
            on_turn(cause)

        self._count(1)
        slots.request(urgency, granted)

    async def make(self, call: Call, *, is_gated: bool = True) -> CourseEnd:
        """Take a call that has got its slot from `request` to its end."""
        call.take_slot()
        self._on_start(call)
        began, step = time.monotonic(), call.step
        about = {"plan.step.id": step.id, "plan.tool": step.called, "plan.effect": call.effect, "plan.item": item_number(call.item)}
        try:
            with telemetry.span(f"plan step {step.id}", about) as opened:
                end = await self._run_step(call)
                opened.end(end.outcome, is_ok=end.outcome == "succeeded")
        finally:
            self._count(-1)
        seconds = time.monotonic() - began
        if end.outcome != "unknown" or call.unknown_attempt is None:
            return CourseEnd(end, seconds=seconds)
        resolved = await self._resolve(call, call.unknown_attempt, end, source="call")
        if resolved is not None:
            return replace(resolved, seconds=seconds)
        call.approval = None if self._confirms_each else call.approval
        return await self.take(call, is_gated=is_gated)

    def _count(self, change: int) -> None:
        """Count a call that wants a slot (1), or does not hold or want one any more (-1)."""
        if self._open_gates is not None:
            self._open_gates.count_call(change)

    async def _get_approval(self, call: Call) -> CourseEnd | None:
        """Ask for the approval of `call` if it needs one. Return None once it may be made."""
        gates = self._scope.gates
        if call.approval is not None or gates is None or self._open_gates is None or not gates.is_gated(call.step):
            return None
        if self._why_halted(call):
            return CourseEnd()
        try:
            gated = await call.gated_call()
        except Exception as error:  # a call that cannot be made needs no approval
            return CourseEnd(AttemptEnd("failed", 0, error=error_text(error)))
        answer = await self._open_gates.ask_for_approval(gates, gated)
        if is_unanswered(gated, answer):
            return CourseEnd(is_left=True)
        if answer is None or isinstance(answer, GateRefusal):
            return CourseEnd(refusal=answer, was_withdrawn=gated.withdrawn.done())
        call.approval = answer
        return None

    async def _find_outcome(self, call: Call, begun: Attempt) -> CourseEnd | None:
        """Ask the tool's probe, then people, how an attempt of an earlier start ended. Return None if the call is to be made."""
        end = await self._ask_probe(call, begun) if call.has_probe else None
        if end is None:
            unknown = AttemptEnd("unknown", begun.number, error=self._begun_earlier)
            return await self._resolve(call, begun, unknown, source="record")
        if end.not_done:
            return None
        call.count_earlier_attempt()
        return CourseEnd(end, "probe") if call.retry_delay(end) is None else None

    async def _ask_probe(self, call: Call, begun: Attempt) -> AttemptEnd | None:
        self._count(1)
        await call.slots.acquire(call.urgency)
        try:
            return None if self._scope.stop.is_set else await call.probe_attempt(begun)
        finally:
            call.slots.release()
            self._count(-1)

    async def _resolve(self, call: Call, attempt: Attempt, end: AttemptEnd, *, source: Source) -> CourseEnd | None:
        """Ask people how `attempt` ended. `end` is what is known so far. Return None if the call is to be made again."""
        question = UnknownOutcome(call.step, call.step_run, attempt, end.error or "")
        resolved = None if self._why_halted(call) else await self._ask_for_resolution(question)
        if resolved is None:
            return CourseEnd(end, source)
        if resolved.resolution == "again" and not self._why_halted(call):
            return None
        if resolved.resolution == "done":
            end = AttemptEnd("succeeded", attempt.number, result=resolved.result, reason=resolved.words)
            return CourseEnd(end, "person", resolved.resolution)
        is_abort = resolved.resolution == "abort"
        error = f"{resolved.words}; {self._after_abort}" if is_abort else resolved.words
        if is_abort and self._abort_stops:
            self._scope.stop.set("cancelled", resolved.words)
        return CourseEnd(AttemptEnd("failed", attempt.number, error=error, can_retry=False), "person", resolved.resolution)


async def _ask_nobody(_: UnknownOutcome) -> None:
    return None
