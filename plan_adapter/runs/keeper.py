"""`GateKeeper`: opens a run's gates, asks everybody at once, and returns the first valid answer."""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Literal

from plan_adapter.approvals import Answer, Approval, Gate
from plan_adapter.crash_points import reached
from plan_adapter.errors import NotApprovedError, RunConflictError
from plan_adapter.execution.cancellation import first_reason
from plan_adapter.gates.approval import Approver, read_answer, refusal
from plan_adapter.gates.gate import CanAskOutcomes, GateEventKind, GateForms, closing_message, request_of
from plan_adapter.hooks import Event, Listener, call_hook, notify
from plan_adapter.record import PlanRun, StepRun
from plan_adapter.runs.answers import GateAnswers
from plan_adapter.runs.session import RunRequest, RunSession
from plan_adapter.store.store import PlanStore

LOOK_SECONDS = 5.0
"""How often to check an open gate if the store signals no change."""
CANCELLATION_SECONDS = 2.0


class OpenGate:
    """An open gate of `run` while this process waits at it. Implements `approval.Asking`."""

    def __init__(
        self, gate: Gate, run: PlanRun, store: PlanStore, answers: GateAnswers, *, listener: Listener | None, refused: str | None
    ) -> None:
        """Prepare to wait at `gate`. `refused` says why an answer from before, when no process was waiting, was not accepted."""
        self.gate = gate
        self.closed: asyncio.Future[Gate] = asyncio.get_running_loop().create_future()
        self.request = replace(request_of(gate), refused=refused)
        self._run = run
        self._store = store
        self._answers = answers
        self._listener = listener
        self._page: str | None = None  # the flow run that shows the form, if it is not the run's own

    async def submit(self, answer: Answer) -> str | None:
        """Submit `answer`. Return why it was refused, or None if it closed the gate or the gate was closed already."""
        if self.closed.done():
            return None
        try:
            self._set(await self._answers.close(self.gate, answer, self.request))
        except NotApprovedError as error:
            message = f"{answer.decision} is refused: {error}"
            await self._store.ledger.note_refusal(
                self.gate.run_id, message, by=answer.by, step_id=self.gate.step_id, call_kind=self.gate.call_kind
            )
            if answer.channel == "form":  # at a terminal, the approver prints the refusal
                shown = f"the answer by {answer.by} is refused: {error}"
                notify(self._listener, Event("gate_refused", self._run, message=shown, gate=self.gate))
            return str(error)
        except RunConflictError as error:  # usually because another answer came first or the gate expired
            self._set(await self._store.gates.get(self.gate.id))
            return None if self.closed.done() else str(error)
        return None

    async def take(self, approval: Approval) -> str | None:
        """Submit the answer of an approver in this process. Returns the same as `submit`."""
        reason = refusal(self.gate.rules, by=approval.by, known_by=approval.known_by, decision=approval.decision)
        if reason is not None:
            return reason
        try:
            if self.gate.kind == "question" and approval.decision == "approve":
                approval = replace(approval, result=read_answer(self.gate, approval.result))
            await self._answers.prove(approval, self.request)
            return await self._close_with(approval)
        except NotApprovedError as error:
            return str(error)

    async def shown(self, *, flow_run_id: str, keyset: str) -> None:
        """Record which flow run shows the form of this gate."""
        await self._store.gates.show(self.gate.id, flow_run_id=flow_run_id, keyset=keyset)
        if flow_run_id not in (self._page, self._run.flow_run_id):
            self._page = flow_run_id
            gate = replace(self.gate, flow_run_id=flow_run_id, keyset=keyset)
            notify(self._listener, Event("gate_shown", self._run, gate=gate, in_form=True))

    async def watch(self) -> None:
        """Return once any process has closed the gate, or it has expired by the database's clock."""
        store = self._store
        read_at, now = time.monotonic(), await store.now()
        over_at = None if self.gate.expires_at is None else read_at + (self.gate.expires_at - now).total_seconds()
        while not self.closed.done():
            gate = await store.gates.get(self.gate.id)
            if gate.end is None and over_at is not None and time.monotonic() >= over_at:
                gate = await store.gates.expire(self.gate.id)
            if gate.end is not None:
                self._set(gate)
                return
            left = LOOK_SECONDS if over_at is None else over_at - time.monotonic()
            await store.changed(min(LOOK_SECONDS, max(0.01, left)))

    async def watch_cancellation(self, asked: Callable[[], Awaitable[str | None]]) -> None:
        """Cancel the run, and its gate, once `asked` returns a reason."""
        reason = await first_reason(asked, every_seconds=CANCELLATION_SECONDS, is_over=self.closed.done)
        if reason is not None:
            await self.cancel(reason)

    async def cancel(self, reason: str) -> None:
        """Cancel the run for `reason`."""
        with suppress(RunConflictError):  # it has ended
            await self._store.cancel(self._run.id, reason)
        await self.give_up()

    async def give_up(self) -> None:
        """Close the gate because nobody can answer it. If another process waits at it by now, stop waiting here only."""
        gate = await self._store.gates.close(self.gate.id, "cancelled")
        self._set(gate if gate.end is not None else replace(gate, end="cancelled"))

    async def stop_with(self, until: "asyncio.Future[None]") -> None:
        """Close the gate once `until` is done, because the call it asks about will not be made."""
        await asyncio.wait({until})
        await self.give_up()

    async def leave_with(self, left: "asyncio.Future[None]") -> None:
        """Stop waiting at the gate once `left` is done. The gate stays open."""
        await asyncio.wait({left})
        if not self.closed.done():
            self.closed.set_result(self.gate)

    async def _close_with(self, approval: Approval) -> None:
        try:
            gate = await self._store.gates.answer(self.gate.id, approval)
        except RunConflictError:  # another answer came first, or the gate expired
            gate = await self._store.gates.get(self.gate.id)
        self._set(gate)

    def _set(self, gate: Gate) -> None:
        if gate.end is not None and not self.closed.done():
            self.closed.set_result(gate)


log = logging.getLogger(__name__)

LEAVE_SECONDS = 10.0
"""How long Prefect may take to show that the last gates are closed."""
HOOK_SECONDS = 10.0
"""How long a hook may block a gate that has just opened or closed."""


@dataclass(slots=True)
class GateKeeper:
    """The gates of one run in one process."""

    session: RunSession
    why_stopped: Callable[[], str] = str  # why all work of the run is stopping; empty while it is not
    answers: GateAnswers = field(init=False)
    _refused: dict[str, str] = field(default_factory=dict[str, str])  # by gate, why an answer given while no process waited was refused
    _answered: set[str] = field(default_factory=set[str])  # digests that an approver without `asks_again` has answered
    _emitting: asyncio.Lock = field(default_factory=asyncio.Lock)
    _leaving: set[asyncio.Task[None]] = field(default_factory=set[asyncio.Task[None]])

    @property
    def run(self) -> PlanRun:
        """The run whose gates these are."""
        return self.session.run

    @property
    def store(self) -> PlanStore:
        """The store that records the gates and their answers."""
        return self.session.store

    @property
    def run_request(self) -> RunRequest:
        """The run request: whom the gates ask, and whether they wait."""
        return self.session.run_request

    @property
    def forms(self) -> GateForms | None:
        """The forms in the Prefect UI; None without Prefect."""
        return self.session.backend.forms

    def __post_init__(self) -> None:
        forms_are_private = None if self.forms is None else self.forms.is_private
        self.answers = GateAnswers(self.store, self.run_request.settings, forms_are_private)

    async def open(self, gate: Gate, *, timeout_ms: int) -> Gate:
        """Open `gate` and return it. A gate left open by an earlier start is reused, with the approvers of the current policy."""
        opened = await self.store.gates.open(gate, timeout_ms=timeout_ms)
        reached("gate-opened")
        return replace(opened, rules=replace(opened.rules, approvers=gate.rules.approvers))

    async def collected(self, gate: Gate) -> Gate | None:
        """Return `gate` closed by an answer given in its form while no process was waiting, or None without a valid one."""
        if self.forms is None or gate.keyset is None:
            return None
        try:
            answer = await self.forms.collected(gate)
            return None if answer is None else await self.answers.close(gate, answer, request_of(gate))
        except NotApprovedError as error:
            self._refused[gate.id] = str(error)
            return None
        except RunConflictError:  # the answer came too late
            now = await self.store.gates.get(gate.id)
            return None if now.end is None else now

    async def ask(
        self,
        gate: Gate,
        step: StepRun | None = None,
        *,
        until: "asyncio.Future[None] | None" = None,
        left: "asyncio.Future[None] | None" = None,
    ) -> Gate:
        """Wait at an open gate, and return it closed by an answer, by its expiry, by a cancellation, or because `until` is done.

        Once `left` is done the gate is returned open, and this process stops waiting at it. Errors of an approver are raised; the gate
        stays open for others.
        """
        asking = self._waited_at(gate)
        await self._notify("gate_opened", gate, step)
        self._emit("opened", gate)
        if self.forms is not None:  # in the background: an unreachable server must not delay answers or expiry
            self._finish_later(asyncio.ensure_future(_awaited(self.forms.publish(gate))))
        form = None if self.forms is None or not self._has_form(gate) else asyncio.ensure_future(self._ask_in_form(self.forms, asking))
        others = [asyncio.ensure_future(work) for work in self._askers(asking, until, left)]
        try:
            await _first_error(asking.closed, [*others, *([form] if form is not None else [])])
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
        answer = await self.store.gates.answer_to(closed.id)
        cancelled = await self._why_cancelled(closed) if closed.end == "cancelled" else None
        message = cancelled or closing_message(closed, answer, await self.answers.resolution_at(closed))
        await self._notify("gate_answered", closed, step, message)
        self._emit("expired" if closed.end == "expired" else "answered", closed, message, answer)
        return closed

    async def ask_until_left(self, gate: Gate, left: "asyncio.Future[None]") -> Gate:
        """Return an open plan gate closed, or open once `left` is done. Its form then keeps accepting answers."""
        closed = await self.ask(gate, left=left)
        if closed.end is not None or self.forms is None or self.forms.leave is None:
            return closed
        await self.forms.leave(self._waited_at(gate))
        return await self.store.gates.get(gate.id)  # if it was answered in the meantime, only this process can act on it

    def _waited_at(self, gate: Gate) -> OpenGate:
        listener, refused = self.run_request.listener, self._refused.pop(gate.id, None)
        return OpenGate(gate, self.run, self.store, self.answers, listener=listener, refused=refused)

    async def _why_cancelled(self, gate: Gate) -> str:
        reason = await self.store.ledger.cancel_request(gate.run_id) or self.why_stopped()
        return f"the run ends: {reason}" if reason else "the question was withdrawn: the run ends"

    @property
    def can_ask_how_it_ended(self) -> bool:
        """Whether there is anyone to ask about unknown outcomes."""
        return self.run_request.waits and (self.forms is not None or isinstance(self.run_request.approver, CanAskOutcomes))

    def _has_form(self, gate: Gate) -> bool:
        return self.run_request.asks_in_form or gate.kind == "outcome"

    async def leave(self) -> None:
        """Wait for all forms to be removed, for at most LEAVE_SECONDS. Call this before the flow run ends."""
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
            if isinstance(self.run_request.approver, CanAskOutcomes):
                yield self._ask_outcome(self.run_request.approver, asking)
        elif self.run_request.approver is not None and self.can_ask(asking.gate):
            yield self._ask_approver(self.run_request.approver, asking)
        if self.session.backend.cancellation is not None and asking.gate.step_id is None and not self.run_request.asks_in_form:
            yield asking.watch_cancellation(
                self.session.backend.cancellation
            )  # a form watches for itself, and a step gate ends with its run
        if asking.gate.rules.remind_after_ms:
            yield self._remind(asking)

    async def _ask_in_form(self, forms: GateForms, asking: OpenGate) -> None:
        reason = await forms.ask(asking)
        if reason is not None:
            await asking.cancel(reason)

    async def _leave_form(self, form: "asyncio.Task[None]", asking: OpenGate) -> None:
        if asking.closed.done():  # it needs time to restore the flow run's state: do not wait for it
            self._finish_later(form)
        else:
            await _dismiss([form])

    def _finish_later(self, work: "asyncio.Task[None]") -> None:
        self._leaving.add(work)
        work.add_done_callback(self._left)

    def _left(self, work: "asyncio.Task[None]") -> None:
        self._leaving.discard(work)
        if not work.cancelled() and (error := work.exception()) is not None:
            log.info("Prefect shows a gate of run %s incorrectly: %s", self.run.id, error)

    async def _remind(self, asking: OpenGate) -> None:
        while not asking.closed.done():
            await asyncio.sleep(asking.gate.rules.remind_after_ms / 1000)
            self._emit("reminder", asking.gate)
            log.warning("run %s still waits for an answer: `plan gates` says which", self.run.id)

    def _emit(self, kind: GateEventKind, gate: Gate, message: str | None = None, answer: Approval | None = None) -> None:
        if self.forms is not None:
            self._finish_later(asyncio.ensure_future(self._emit_in_order(partial(self.forms.emit, kind, gate, self.run, message, answer))))

    async def _emit_in_order(self, emit: Callable[[], None]) -> None:
        async with self._emitting:
            await asyncio.to_thread(emit)

    async def _leave(self, gate: Gate) -> None:
        """Record that this process stopped waiting at the gate. If a released run was answered at this moment, resume it."""
        await self.store.gates.leave(gate.id)
        answer = await self.store.gates.answer_to(gate.id)
        if answer is not None and gate.rules.release and self.forms is not None:
            await self.forms.resume_released(await self.store.gates.get(gate.id), answer)

    async def _notify(
        self, kind: Literal["gate_opened", "gate_answered"], gate: Gate, step: StepRun | None, message: str | None = None
    ) -> None:
        in_form = self.forms is not None and self._has_form(gate)
        notify(self.run_request.listener, Event(kind, self.run, step, message=message, gate=gate, in_form=in_form))
        hooks = self.run_request.hooks
        hook = hooks.on_gate_open if kind == "gate_opened" else hooks.on_gate_answered
        try:
            async with asyncio.timeout(HOOK_SECONDS):
                await call_hook(hook, self.run, step, gate)
        except TimeoutError:
            log.warning("hook %s took more than %g s and was ended", getattr(hook, "__name__", hook), HOOK_SECONDS)

    def can_ask(self, gate: Gate) -> bool:
        """Return whether the approver of this process can answer at `gate`.

        One who approves in advance answers no question, and confirms nothing that a model wrote during the run.
        """
        approver = self.run_request.approver
        if approver is None or self.has_answered(gate.approval_digest):
            return False
        step = self.session.bound.validated.steps.get(gate.step_id or "")
        needs_a_reader = gate.kind == "question" or (step is not None and step.goal is not None)
        return not (needs_a_reader and getattr(approver, "is_beforehand", False))

    def has_answered(self, approval_digest: str) -> bool:
        """Return whether the approver has answered about this content. An approver that asks a person each time is not counted."""
        return approval_digest in self._answered

    async def _ask_approver(self, approver: Approver, asking: OpenGate) -> None:
        """Ask `approver` until the gate is closed. An approver without `asks_again` is asked only once."""
        request, asks_again = asking.request, getattr(approver, "asks_again", False)
        while not asking.closed.done():
            answer = await approver.ask(replace(request))  # a copy, so that the approver cannot change the original
            if not isinstance(answer, Approval):  # pyright: ignore[reportUnnecessaryIsInstance]  # approvers are third-party code
                raise NotApprovedError(f"the approver {type(approver).__name__} returned {answer!r:.100} instead of an approval")
            if not asks_again:
                self._answered.add(request.approval_digest)
            refused = await asking.take(answer)
            if refused is not None and not asks_again:
                raise NotApprovedError(refused)
            request = replace(request, refused=refused)

    async def _ask_outcome(self, person: CanAskOutcomes, asking: OpenGate) -> None:
        """Ask `person` until the gate is closed. If there is no answer and no form, close the gate."""
        request = asking.request
        while not asking.closed.done():
            answer = await person.ask_outcome(replace(request))
            if answer is None:
                return await asking.give_up() if self.forms is None else None
            request = replace(request, refused=await asking.submit(answer))
        return None


async def _first_error(closed: "asyncio.Future[Gate]", workers: "list[asyncio.Task[None]]") -> None:
    """Return once the gate is closed. Raises the first error of a worker before that."""
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
    await asyncio.gather(*workers, return_exceptions=True)  # `_first_error` has raised the first error


async def _awaited(work: Awaitable[None]) -> None:
    await work


async def _done(closed: "asyncio.Future[Gate]") -> None:
    await asyncio.shield(closed)
