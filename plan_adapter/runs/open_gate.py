"""`OpenGate`: one gate from when it is open until it is closed, by whomever and in whatever process."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import replace

from plan_adapter.approval import refusal
from plan_adapter.errors import NotApprovedError, RunConflictError
from plan_adapter.execution.cancellation import first_reason
from plan_adapter.hooks import Event, Listener, tell
from plan_adapter.record import Answer, Approval, Gate, PlanRun
from plan_adapter.runs.gate_answers import GateAnswers
from plan_adapter.runs.gates import request_of
from plan_adapter.store.store import PlanStore

LOOK_SECONDS = 5.0
"""How often an open gate is looked at where the store tells of no change."""
CANCELLATION_SECONDS = 2.0


class OpenGate:
    """An open gate of `run` while this process waits at it. Implements `approval.Asking`."""

    def __init__(
        self, gate: Gate, run: PlanRun, store: PlanStore, answers: GateAnswers, *, listener: Listener | None, refused: str | None
    ) -> None:
        """Wait at `gate`; `refused` is why what was answered there while nobody waited was not taken."""
        self.gate = gate
        self.closed: asyncio.Future[Gate] = asyncio.get_running_loop().create_future()
        self.request = replace(request_of(gate), refused=refused)
        self._run = run
        self._store = store
        self._answers = answers
        self._listener = listener
        self._page: str | None = None  # the flow run, other than the run's own, that shows its form

    async def submit(self, answer: Answer) -> str | None:
        """Give `answer`; return why it was not taken, None if it closed the gate, or if that was closed before."""
        if self.closed.done():
            return None
        try:
            self._set(await self._answers.close(self.gate, answer, self.request))
        except NotApprovedError as error:
            said = f"{answer.decision} is not taken: {error}"
            await self._store.note_refusal(self.gate.run_id, said, by=answer.by, step_id=self.gate.step_id)
            if answer.channel == "form":  # who sits at a terminal is told by who asks them
                told = f"the answer by {answer.by} is not taken: {error}"
                tell(self._listener, Event("gate_refused", self._run, message=told, gate=self.gate))
            return str(error)
        except RunConflictError as error:  # mostly somebody else was first, or it is over
            self._set(await self._store.gate(self.gate.id))
            return None if self.closed.done() else str(error)
        return None

    async def take(self, approval: Approval) -> str | None:
        """Give what an approver of this process answered; the same as `submit` otherwise."""
        reason = refusal(self.gate.rules, by=approval.by, known_by=approval.known_by, decision=approval.decision)
        if reason is not None:
            return reason
        try:
            await self._answers.prove(approval, self.request)
            return await self._close_with(approval)
        except NotApprovedError as error:
            return str(error)

    async def shown(self, *, flow_run_id: str, keyset: str) -> None:
        """Note where the form of this gate is."""
        await self._store.show_gate(self.gate.id, flow_run_id=flow_run_id, keyset=keyset)
        if flow_run_id not in (self._page, self._run.flow_run_id):
            self._page = flow_run_id
            gate = replace(self.gate, flow_run_id=flow_run_id, keyset=keyset)
            tell(self._listener, Event("gate_shown", self._run, gate=gate, in_form=True))

    async def watch(self) -> None:
        """Return once the gate is closed, by whatever process, or is over by the database's clock."""
        store = self._store
        read_at, now = time.monotonic(), await store.now()
        over_at = None if self.gate.expires_at is None else read_at + (self.gate.expires_at - now).total_seconds()
        while not self.closed.done():
            gate = await store.gate(self.gate.id)
            if gate.end is None and over_at is not None and time.monotonic() >= over_at:
                gate = await store.expire_gate(self.gate.id)
            if gate.end is not None:
                self._set(gate)
                return
            left = LOOK_SECONDS if over_at is None else over_at - time.monotonic()
            await store.changed(min(LOOK_SECONDS, max(0.01, left)))

    async def watch_cancellation(self, asked: Callable[[], Awaitable[str | None]]) -> None:
        """Cancel the run, and with it the gate, once `asked` gives a reason."""
        reason = await first_reason(asked, every_seconds=CANCELLATION_SECONDS, is_over=self.closed.done)
        if reason is not None:
            await self.cancel(reason)

    async def cancel(self, reason: str) -> None:
        """Cancel the run for `reason`."""
        with suppress(RunConflictError):  # it has ended
            await self._store.cancel(self._run.id, reason)
        await self.give_up()

    async def give_up(self) -> None:
        """Close the gate, because nobody is there to answer; one at which another process waits by now is closed for this one only."""
        gate = await self._store.close_gate(self.gate.id, "cancelled")
        self._set(gate if gate.end is not None else replace(gate, end="cancelled"))

    async def stop_with(self, until: "asyncio.Future[None]") -> None:
        """Close the gate once `until` is done, because what it asks about will not be done."""
        await asyncio.wait({until})
        await self.give_up()

    async def leave_with(self, left: "asyncio.Future[None]") -> None:
        """Wait at the gate no more, which stays open, once `left` is done."""
        await asyncio.wait({left})
        if not self.closed.done():
            self.closed.set_result(self.gate)

    async def _close_with(self, approval: Approval) -> None:
        try:
            gate = await self._store.answer_gate(self.gate.id, approval)
        except RunConflictError:  # somebody else was first, or it is over
            gate = await self._store.gate(self.gate.id)
        self._set(gate)

    def _set(self, gate: Gate) -> None:
        if gate.end is not None and not self.closed.done():
            self.closed.set_result(gate)
