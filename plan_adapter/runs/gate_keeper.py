"""`GateKeeper`: opens a run's gates, has everybody asked at once, and brings back the first valid answer."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Literal

from plan_adapter.approval import Approver
from plan_adapter.crash_points import reached
from plan_adapter.errors import NotApprovedError, RunConflictError
from plan_adapter.hooks import Event, call_hook, tell
from plan_adapter.record import Approval, Gate, PlanRun, StepRun
from plan_adapter.runs.gate_answers import GateAnswers
from plan_adapter.runs.gates import AsksOutcomes, FormDoor, GateEventKind, request_of, said_at
from plan_adapter.runs.occasion import Occasion
from plan_adapter.runs.open_gate import OpenGate
from plan_adapter.store.store import PlanStore

log = logging.getLogger(__name__)

LEAVE_SECONDS = 10.0
"""How long Prefect may take to show that the last gates are closed."""
HOOK_SECONDS = 10.0
"""How long a hook may hold up a gate that is open, or closed."""


@dataclass(slots=True)
class GateKeeper:
    """The gates of one run in one process."""

    run: PlanRun
    store: PlanStore
    occasion: Occasion
    door: FormDoor | None = None
    cancellation: Callable[[], Awaitable[str | None]] | None = None
    why_stopped: Callable[[], str] = str  # why all work of the run ends, empty as long as it does not
    answers: GateAnswers = field(init=False)
    _refused: dict[str, str] = field(default_factory=dict[str, str])  # why what was answered at a gate while nobody waited was not taken
    _answered: set[str] = field(default_factory=set[str])  # digests about which the approver, who is asked once, has said something
    _emitting: asyncio.Lock = field(default_factory=asyncio.Lock)
    _leaving: set[asyncio.Task[None]] = field(default_factory=set[asyncio.Task[None]])

    def __post_init__(self) -> None:
        forms_are_private = None if self.door is None else self.door.is_private
        self.answers = GateAnswers(self.store, self.occasion.settings, forms_are_private)

    async def open(self, gate: Gate, *, timeout_ms: int) -> Gate:
        """Return `gate` as it is open now: a new one, or that of an earlier start of the run, whose approvers are those of today."""
        opened = await self.store.open_gate(gate, timeout_ms=timeout_ms)
        reached("gate-opened")
        return replace(opened, rules=replace(opened.rules, approvers=gate.rules.approvers))

    async def collected(self, gate: Gate) -> Gate | None:
        """Return `gate` closed by what was answered in its form while nobody waited; None where there is no such answer that is valid."""
        if self.door is None or gate.keyset is None:
            return None
        try:
            answer = await self.door.collected(gate)
            return None if answer is None else await self.answers.close(gate, answer, request_of(gate))
        except NotApprovedError as error:
            self._refused[gate.id] = str(error)
            return None
        except RunConflictError:  # it came too late
            now = await self.store.gate(gate.id)
            return None if now.end is None else now

    async def ask(
        self,
        gate: Gate,
        step: StepRun | None = None,
        *,
        until: "asyncio.Future[None] | None" = None,
        left: "asyncio.Future[None] | None" = None,
    ) -> Gate:
        """Return an open gate closed: by an answer, by its expiry, by somebody who cancelled, or because `until` was done.

        Once `left` is done it is returned open, and this process waits there no more. What an approver raises is raised, and the gate
        stays open for others.
        """
        asking = self._waited_at(gate)
        await self._tell("gate_opened", gate, step)
        self._emit("opened", gate)
        if self.door is not None:  # a server that is away must hold up neither answers nor the expiry
            self._finish_later(asyncio.ensure_future(_awaited(self.door.publish(gate))))
        form = None if self.door is None or not self._has_form(gate) else asyncio.ensure_future(self._ask_in_form(self.door, asking))
        others = [asyncio.ensure_future(work) for work in self._askers(asking, until, left)]
        try:
            await _first_trouble(asking.closed, [*others, *([form] if form is not None else [])])
        except BaseException:
            await self._leave(gate)
            raise
        finally:
            await _dismiss(others)
            if form is not None:
                await self._leave_form(form, asking)
        closed = asking.closed.result()
        if closed.end is None:
            await self._leave(gate)
            return closed
        reached("gate-answered")
        answer = await self.store.answer_to_gate(closed.id)
        cancelled = await self._why_cancelled(closed) if closed.end == "cancelled" else None
        said = cancelled or said_at(closed, answer, await self.answers.word_at(closed))
        await self._tell("gate_answered", closed, step, said)
        self._emit("expired" if closed.end == "expired" else "answered", closed, said, answer)
        return closed

    async def ask_until_left(self, gate: Gate, left: "asyncio.Future[None]") -> Gate:
        """Return an open gate of the plan closed, or open once `left` is done; its form takes answers then all the same."""
        closed = await self.ask(gate, left=left)
        if closed.end is not None or self.door is None or self.door.leave is None:
            return closed
        await self.door.leave(self._waited_at(gate))
        return await self.store.gate(gate.id)  # one that was answered meanwhile has nobody else to act on it

    def _waited_at(self, gate: Gate) -> OpenGate:
        listener, refused = self.occasion.listener, self._refused.pop(gate.id, None)
        return OpenGate(gate, self.run, self.store, self.answers, listener=listener, refused=refused)

    async def _why_cancelled(self, gate: Gate) -> str:
        reason = await self.store.cancel_request(gate.run_id) or self.why_stopped()
        return f"the run ends: {reason}" if reason else "nobody is asked any more: the run ends"

    @property
    def can_ask_how_it_ended(self) -> bool:
        """Whether anybody is there to be asked how a call ended."""
        return self.occasion.waits and (self.door is not None or isinstance(self.occasion.approver, AsksOutcomes))

    def _has_form(self, gate: Gate) -> bool:
        return self.occasion.asks_in_form or gate.kind == "outcome"

    async def leave(self) -> None:
        """Return once every form is left, at the latest after some seconds: before the flow run ends."""
        if self._leaving:
            _, late = await asyncio.wait(self._leaving, timeout=LEAVE_SECONDS)
            await _dismiss(list(late))

    def _askers(
        self, asking: OpenGate, until: "asyncio.Future[None] | None", left: "asyncio.Future[None] | None"
    ) -> Iterator[Coroutine[Any, Any, None]]:
        yield asking.watch()
        if until is not None:
            yield asking.stop_with(until)
        if left is not None:
            yield asking.leave_with(left)
        if asking.gate.kind == "outcome":
            if isinstance(self.occasion.approver, AsksOutcomes):
                yield self._ask_outcome(self.occasion.approver, asking)
        elif self.occasion.approver is not None and not self.has_spoken(asking.gate.approval_digest):
            yield self._ask_approver(self.occasion.approver, asking)
        if self.cancellation is not None and asking.gate.step_id is None and not self.occasion.asks_in_form:
            yield asking.watch_cancellation(self.cancellation)  # a form does that itself, and a step's gate ends with its run
        if asking.gate.rules.remind_after_ms:
            yield self._remind(asking)

    async def _ask_in_form(self, door: FormDoor, asking: OpenGate) -> None:
        reason = await door.ask(asking)
        if reason is not None:
            await asking.cancel(reason)

    async def _leave_form(self, form: "asyncio.Task[None]", asking: OpenGate) -> None:
        if asking.closed.done():  # it takes its time to leave the flow run in order, and is not waited for
            self._finish_later(form)
        else:
            await _dismiss([form])

    def _finish_later(self, work: "asyncio.Task[None]") -> None:
        self._leaving.add(work)
        work.add_done_callback(self._left)

    def _left(self, work: "asyncio.Task[None]") -> None:
        self._leaving.discard(work)
        if not work.cancelled() and (error := work.exception()) is not None:
            log.info("what Prefect shows of a gate of run %s is not in order: %s", self.run.id, error)

    async def _remind(self, asking: OpenGate) -> None:
        while not asking.closed.done():
            await asyncio.sleep(asking.gate.rules.remind_after_ms / 1000)
            self._emit("reminder", asking.gate)
            log.warning("run %s still waits for an answer: `plan gates` says which", self.run.id)

    def _emit(self, kind: GateEventKind, gate: Gate, message: str | None = None, answer: Approval | None = None) -> None:
        if self.door is not None:
            self._finish_later(asyncio.ensure_future(self._emit_in_order(partial(self.door.emit, kind, gate, self.run, message, answer))))

    async def _emit_in_order(self, emit: Callable[[], None]) -> None:
        async with self._emitting:
            await asyncio.to_thread(emit)

    async def _leave(self, gate: Gate) -> None:
        """Note that this process waits at the gate no more; one that was answered in this moment, while the run is released, goes on."""
        await self.store.leave_gate(gate.id)
        answer = await self.store.answer_to_gate(gate.id)
        if answer is not None and gate.rules.release and self.door is not None:
            await self.door.resume_released(await self.store.gate(gate.id), answer)

    async def _tell(self, kind: Literal["gate_opened", "gate_answered"], gate: Gate, step: StepRun | None, said: str | None = None) -> None:
        in_form = self.door is not None and self._has_form(gate)
        tell(self.occasion.listener, Event(kind, self.run, step, message=said, gate=gate, in_form=in_form))
        hooks = self.occasion.hooks
        hook = hooks.on_gate_open if kind == "gate_opened" else hooks.on_gate_answered
        try:
            async with asyncio.timeout(HOOK_SECONDS):
                await call_hook(hook, self.run, step, gate)
        except TimeoutError:
            log.warning("hook %s took more than %g s and was ended", getattr(hook, "__name__", hook), HOOK_SECONDS)

    def has_spoken(self, approval_digest: str) -> bool:
        """Return whether the approver, who does not ask a person each time, has answered about this content."""
        return approval_digest in self._answered

    async def _ask_approver(self, approver: Approver, asking: OpenGate) -> None:
        """Ask `approver` until the gate is closed; one that does not ask a person gets no second try."""
        request, asks_again = asking.request, getattr(approver, "asks_again", False)
        while not asking.closed.done():
            said = await approver.ask(replace(request))  # a copy: what the approver does to it changes nothing
            if not isinstance(said, Approval):  # pyright: ignore[reportUnnecessaryIsInstance]  # an approver is anybody's code
                raise NotApprovedError(f"the approver {type(approver).__name__} gave no approval but {said!r:.100}")
            if not asks_again:
                self._answered.add(request.approval_digest)
            refused = await asking.take(said)
            if refused is not None and not asks_again:
                raise NotApprovedError(refused)
            request = replace(request, refused=refused)

    async def _ask_outcome(self, person: AsksOutcomes, asking: OpenGate) -> None:
        """Ask `person` until the gate is closed; one who has nothing to say closes it, where nobody else is asked."""
        request = asking.request
        while not asking.closed.done():
            said = await person.ask_outcome(replace(request))
            if said is None:
                return await asking.give_up() if self.door is None else None
            request = replace(request, refused=await asking.submit(said))
        return None


async def _first_trouble(closed: "asyncio.Future[Gate]", workers: "list[asyncio.Task[None]]") -> None:
    """Return once the gate is closed; raises what the first worker raised before that."""
    pending: set[asyncio.Future[None]] = set(workers)
    waiting = asyncio.ensure_future(_done(closed))
    try:
        while not closed.done():
            done, _ = await asyncio.wait({waiting, *pending}, return_when=asyncio.FIRST_COMPLETED)
            for worker in done - {waiting}:
                pending.discard(worker)
                if not closed.done():
                    worker.result()
    finally:
        waiting.cancel()


async def _dismiss(workers: "list[asyncio.Task[None]]") -> None:
    for worker in workers:
        worker.cancel()
    await asyncio.gather(*workers, return_exceptions=True)  # the first trouble was raised already


async def _awaited(work: Awaitable[None]) -> None:
    await work


async def _done(closed: "asyncio.Future[Gate]") -> None:
    await asyncio.shield(closed)
