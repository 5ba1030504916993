"""`GateKeeper`: opens a run's gates, asks everybody at once, and returns the first valid answer."""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from functools import partial
from typing import Any, Literal

from plan_adapter.execution.cancellation import Stop, first_reason
from plan_adapter.gates.approval import Approver, approves_in_advance, asks_again, read_answer, refusal
from plan_adapter.gates.gate import CanAskOutcomes, GateEventKind, GateForms, closing_message, escalation_text, request_of
from plan_adapter.gates.quorum import progress_in_words
from plan_adapter.local import telemetry
from plan_adapter.local.crash_points import reached
from plan_adapter.model.approvals import Answer, Approval, ApprovalRequest, Gate, GatePolicy
from plan_adapter.model.errors import NotApprovedError, RunConflictError
from plan_adapter.model.hooks import Event, Listener, call_hook, notify
from plan_adapter.model.readable import item_number
from plan_adapter.model.record import PlanRun, StepRun
from plan_adapter.runs.answers import GateAnswers
from plan_adapter.runs.run_session import RunRequest, RunSession
from plan_adapter.store.redaction import without_secrets
from plan_adapter.store.store import PlanStore

POLL_SECONDS = 5.0
"""How often to check an open gate if the store signals no change."""
CANCELLATION_SECONDS = 2.0


class OpenGate:
    """An open gate of `run` while this process waits at it. Implements `approval.PendingGate`."""

    def __init__(
        self,
        gate: Gate,
        run: PlanRun,
        store: PlanStore,
        answers: GateAnswers,
        *,
        listener: Listener | None,
        refused: str | None,
        on_shown: Callable[[], None] | None = None,
    ) -> None:
        """Prepare to wait at `gate`. `refused` says why an answer that was given while no process waited was refused.

        `on_shown` is called once it is known which page shows the form of the gate, if any.
        """
        self.gate = gate
        self.closed: asyncio.Future[Gate] = asyncio.get_running_loop().create_future()
        self.request = replace(request_of(gate), refused=refused)
        self._run = run
        self._store = store
        self._answers = answers
        self._listener = listener
        self.is_announced = False
        self._on_shown = on_shown
        self._form_flow_run_id: str | None = None  # the flow run that shows the form, if it is not the run's own

    async def submit(self, answer: Answer) -> str | None:
        """Submit `answer`. Return why it was refused, or None if it was recorded or the gate was closed already."""
        if self.closed.done():
            return None
        try:
            self.take_state(await self._answers.close(self.gate, answer, self.request))
        except NotApprovedError as error:
            message = f"{answer.decision} is refused: {error}"
            await self._store.ledger.record_refusal(
                self.gate.run_id, message, by=answer.by, step_id=self.gate.step_id, call_kind=self.gate.call_kind
            )
            if answer.channel == "form":  # at a terminal, the approver prints the refusal
                shown = f"the answer by {answer.by} is refused: {error}"
                notify(self._listener, Event("gate_refused", self._run, message=shown, gate=self.gate))
            return str(error)
        except RunConflictError as error:  # usually because another answer came first or the gate expired
            self._set_closed(await self._store.gates.get(self.gate.id))
            return None if self.closed.done() else str(error)
        return None

    async def take(self, approval: Approval) -> str | None:
        """Submit the answer of an approver in this process, whose identity is only what can be checked. Returns the same as `submit`."""
        try:
            identity, gate_policy = await self._answers.identify(approval, self.request)
            if (reason := refusal(gate_policy, identity, decision=approval.decision)) is not None:
                return reason
            approval = replace(approval, known_by=identity.known_by, standing_id=None, used_at=None)
            if self.gate.kind == "question" and approval.decision == "approve":
                approval = replace(approval, result=read_answer(self.gate, approval.result))
            return await self._answer_with(without_secrets(approval, self._answers.redact), gate_policy)
        except NotApprovedError as error:
            return str(error)

    async def record_form(self, *, flow_run_id: str, keyset: str) -> None:
        """Record which flow run will show the form of this gate."""
        await self._store.gates.show(self.gate.id, flow_run_id=flow_run_id, keyset=keyset)

    async def report_form(self, *, flow_run_id: str, keyset: str | None) -> None:
        """Record that the gate has no form if `keyset` is None. Otherwise say where the form is, unless the run's own page shows it."""
        if keyset is None:
            await self._store.gates.show(self.gate.id, flow_run_id=flow_run_id, keyset=None)
        else:
            self.gate = replace(self.gate, flow_run_id=flow_run_id, keyset=keyset)
        if keyset is not None and flow_run_id not in (self._form_flow_run_id, self._run.flow_run_id):
            self._form_flow_run_id = flow_run_id
            notify(self._listener, Event("gate_shown", self._run, gate=self.gate, in_form=True))
        if self._on_shown is not None:
            self._on_shown()

    async def watch(self) -> None:
        """Return once any process has closed the gate, or it has expired by the database's clock."""
        store = self._store
        expires_at = self.gate.expires_at
        deadline = None if expires_at is None else time.monotonic() + await self.seconds_until(expires_at)
        while not self.closed.done():
            gate = await store.gates.get(self.gate.id)
            if gate.end is None and deadline is not None and time.monotonic() >= deadline:
                gate = await store.gates.expire(self.gate.id)
            self.take_state(gate)
            if gate.end is not None:
                return
            left = POLL_SECONDS if deadline is None else deadline - time.monotonic()
            await store.changed(min(POLL_SECONDS, max(0.01, left)))

    async def seconds_until(self, at: datetime) -> float:
        """Return how long it is until `at` by the database's clock. Negative if that is past."""
        return (at - await self._store.now()).total_seconds()

    async def watch_cancellation(self, cancel_reason: Callable[[], Awaitable[str | None]]) -> None:
        """Cancel the run, and its gate, once `cancel_reason` returns a reason."""
        reason = await first_reason(cancel_reason, every_seconds=CANCELLATION_SECONDS, is_over=self.closed.done)
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
        self._set_closed(gate if gate.end is not None else replace(gate, end="cancelled"))

    async def close_when_done(self, until: "asyncio.Future[None]") -> None:
        """Close the gate once `until` is done, because the call it asks about will not be made."""
        await asyncio.wait({until})
        await self.give_up()

    async def leave_when_done(self, left: "asyncio.Future[None]") -> None:
        """Stop waiting at the gate once `left` is done. The gate stays open."""
        await asyncio.wait({left})
        self.leave()

    def leave(self) -> None:
        """Stop waiting at the gate, which stays open."""
        if not self.closed.done():
            self.closed.set_result(self.gate)

    def take_state(self, gate: Gate) -> None:
        """Take over the state of the gate in the store: whether it is closed, who may answer, and which approvals it has so far."""
        if gate.end is not None:
            self._set_closed(gate)
            return
        if gate.gate_policy != self.gate.gate_policy:  # it has escalated, or an approver let another person answer
            self.gate = replace(self.gate, gate_policy=gate.gate_policy)
            self.request = replace(self.request, gate_policy=gate.gate_policy)
        if len(gate.agreements) > len(self.request.agreements):
            self.gate = replace(self.gate, agreements=gate.agreements)
            self.request = replace(self.request, agreements=gate.agreements)
            message = f"{gate.agreements[-1].by} approved: {progress_in_words(gate.gate_policy, gate.agreements)}"
            notify(self._listener, Event("gate_agreed", self._run, message=message, gate=self.gate))

    async def _answer_with(self, approval: Approval, gate_policy: GatePolicy) -> None:
        try:
            gate = await self._store.gates.answer(self.gate.id, approval, gate_policy=gate_policy)
        except RunConflictError:  # another answer came first, or the gate expired
            gate = await self._store.gates.get(self.gate.id)
        self.take_state(gate)

    def _set_closed(self, gate: Gate) -> None:
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
    answers: GateAnswers = field(init=False)
    _stop: Stop | None = field(default=None, init=False)  # ends the calls that are asked about; None before the first
    _refused: dict[str, str] = field(default_factory=dict[str, str])  # by gate, why an answer given while no process waited was refused
    _answered: set[str] = field(default_factory=set[str])  # digests that an approver without `asks_again` has answered
    _given: dict[str, Approval] = field(default_factory=dict[str, Approval])  # by closed gate, the answer that closed it
    _emitting: asyncio.Lock = field(default_factory=asyncio.Lock)
    _background: set[asyncio.Task[None]] = field(default_factory=set[asyncio.Task[None]])

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
        """What the caller passed with the run: among others whom the gates ask, and whether they wait."""
        return self.session.run_request

    @property
    def forms(self) -> GateForms | None:
        """The forms in the Prefect UI; None without Prefect."""
        return self.session.backend.forms

    def __post_init__(self) -> None:
        forms_are_private = None if self.forms is None else self.forms.is_private
        self.answers = GateAnswers(self.store, self.run_request.settings, forms_are_private)

    def ask_until(self, stop: Stop) -> None:
        """Ask from now on about calls that `stop` ends. Its message then says why a gate is closed."""
        self._stop = stop

    async def open(self, gate: Gate, *, timeout_ms: int) -> Gate:
        """Open `gate` and return it. A gate left open by an earlier start is reused, with the approvers that it opened with."""
        shown = {name: self.answers.redact(getattr(gate, name)) for name in ("name", "description", "text", "label")}
        opened = await self.store.gates.open(replace(gate, **shown), timeout_ms=timeout_ms)
        reached("gate-opened")
        return opened

    async def collect_answer(self, gate: Gate) -> Gate | None:
        """Return `gate` closed by an answer given in its form while no process was waiting, or None without a valid one."""
        if self.forms is None or gate.keyset is None:
            return None
        try:
            answer = await self.forms.collect(gate)
            now = gate if answer is None else await self.answers.close(gate, answer, request_of(gate))
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
        waiting: "asyncio.Future[None] | None" = None,
    ) -> Gate:
        """Wait at an open gate, and return it closed by an answer, by its expiry, by a cancellation, or because `until` is done.

        Once `left` is done the gate is returned open, and this process stops waiting at it. If the approver of this process gave one of
        several approvals, `waiting` is set; without it, nobody else is asked here, and the gate is returned open. Errors of an approver are
        raised; the gate stays open for others.
        """
        about = {"plan.gate.kind": gate.kind, "plan.step.id": gate.step_id, "plan.item": item_number(gate.item)}
        with telemetry.span(f"plan gate {gate.step_id or 'plan'}", about) as opened:
            closed = await self._ask(gate, step, until, left, waiting)
            opened.end(closed.end or "left open", is_ok=closed.end in (None, "answered", "done", "again"))
        if closed.closed_at is not None and closed.end is not None:
            waited = (closed.closed_at - closed.opened_at).total_seconds()
            telemetry.record("plan.gate.wait", waited, {"plan.gate.kind": closed.kind, "plan.outcome": closed.end})
        return closed

    async def _ask(
        self,
        gate: Gate,
        step: StepRun | None,
        until: "asyncio.Future[None] | None",
        left: "asyncio.Future[None] | None",
        waiting: "asyncio.Future[None] | None",
    ) -> Gate:
        if gate.gate_policy.quorum > 1:  # an approval in its form may have been recorded since it was opened
            gate = await self.store.gates.get(gate.id)

        def announce() -> None:  # with the link to the page that has the form
            if not open_gate.is_announced:
                open_gate.is_announced = True
                self._emit("opened", open_gate.gate)

        open_gate = self._new_open_gate(gate, on_shown=announce)
        await self._notify("gate_opened", gate, step)
        if not self._has_form(gate):
            announce()
        if self.forms is not None:  # in the background: an unreachable server must not delay answers or expiry
            self._finish_in_background(asyncio.ensure_future(_as_coroutine(self.forms.publish(gate))))
        form = None if self.forms is None or not self._has_form(gate) else asyncio.ensure_future(self._ask_in_form(self.forms, open_gate))
        others = [asyncio.ensure_future(work) for work in self._askers(open_gate, until, left, waiting)]
        try:
            await _wait_until_closed(open_gate.closed, [*others, *([form] if form is not None else [])])
        except BaseException:
            await self._leave_gate(gate)
            raise
        finally:
            announce()
            await _cancel_tasks(others)
            if form is not None:
                await self._end_form(form, open_gate)
        closed = open_gate.closed.result()
        if closed.end is None:
            await self._leave_gate(gate)
            return closed
        reached("gate-answered")
        answer = await self.answer_at(closed)
        cancelled = await self._why_cancelled(closed) if closed.end == "cancelled" else None
        message = cancelled or closing_message(closed, answer, await self.answers.resolution_at(closed))
        await self._notify("gate_answered", closed, step, message)
        self._emit("expired" if closed.end == "expired" else "answered", closed, message, answer)
        return closed

    async def answer_at(self, closed: Gate) -> Approval | None:
        """Return the answer that closed a gate, or None. It is read once, because it never changes."""
        if closed.id not in self._given and (answer := await self.store.gates.answer_to(closed.id)) is not None:
            self._given[closed.id] = answer
        return self._given.get(closed.id)

    async def ask_until_left(self, gate: Gate, left: "asyncio.Future[None]") -> Gate:
        """Return an open plan gate closed, or open once `left` is done. Its form then keeps accepting answers."""
        closed = await self.ask(gate, left=left)
        if closed.end is not None or self.forms is None or self.forms.leave_open is None:
            return closed
        await self.finish_forms()  # the flow run must be Running before it can be paused again
        await self.forms.leave_open(self._new_open_gate(gate))
        return await self.store.gates.get(gate.id)  # if it was answered in the meantime, only this process can act on it

    def _new_open_gate(self, gate: Gate, *, on_shown: Callable[[], None] | None = None) -> OpenGate:
        listener, refused = self.run_request.listener, self._refused.pop(gate.id, None)
        return OpenGate(gate, self.run, self.store, self.answers, listener=listener, refused=refused, on_shown=on_shown)

    async def _why_cancelled(self, gate: Gate) -> str:
        reason = await self.store.ledger.cancel_request(gate.run_id) or (self._stop.message if self._stop is not None else "")
        return f"the run ends: {reason}" if reason else "the question was withdrawn: the run ends"

    @property
    def can_ask_outcomes(self) -> bool:
        """Whether there is anyone to ask about unknown outcomes."""
        return self.run_request.waits and (self.forms is not None or isinstance(self.run_request.approver, CanAskOutcomes))

    def _has_form(self, gate: Gate) -> bool:
        return self.run_request.asks_in_form or gate.kind == "outcome"

    async def finish_forms(self) -> None:
        """Wait for all forms to be removed, for at most LEAVE_SECONDS. Call this before the flow run ends."""
        if self._background:
            _, late = await asyncio.wait(self._background, timeout=LEAVE_SECONDS)
            await _cancel_tasks(list(late))

    def _askers(
        self,
        open_gate: OpenGate,
        until: "asyncio.Future[None] | None",
        left: "asyncio.Future[None] | None",
        waiting: "asyncio.Future[None] | None",
    ) -> Iterator[Coroutine[Any, Any, None]]:
        yield open_gate.watch()
        if until is not None:
            yield open_gate.close_when_done(until)
        if left is not None:
            yield open_gate.leave_when_done(left)
        if open_gate.gate.kind == "outcome":
            if isinstance(self.run_request.approver, CanAskOutcomes):
                yield self._ask_outcome(self.run_request.approver, open_gate)
        elif self.run_request.approver is not None and self.can_ask(open_gate.gate):
            yield self._ask_approver(self.run_request.approver, open_gate, waiting)
        # A form watches for cancellation itself, and a step gate ends with its run.
        if self.session.backend.cancellation is not None and open_gate.gate.step_id is None and not self.run_request.asks_in_form:
            yield open_gate.watch_cancellation(self.session.backend.cancellation)
        if open_gate.gate.gate_policy.remind_after_ms:
            yield self._remind(open_gate)
        if open_gate.gate.gate_policy.escalate_after_ms:
            yield self._escalate(open_gate)

    async def _ask_in_form(self, forms: GateForms, open_gate: OpenGate) -> None:
        reason = await forms.ask(open_gate)
        if reason is not None:
            await open_gate.cancel(reason)

    async def _end_form(self, form: "asyncio.Task[None]", open_gate: OpenGate) -> None:
        if open_gate.closed.done():  # it needs time to restore the flow run's state: do not wait for it
            self._finish_in_background(form)
        else:
            await _cancel_tasks([form])

    def _finish_in_background(self, work: "asyncio.Task[None]") -> None:
        self._background.add(work)
        work.add_done_callback(self._on_finished)

    def _on_finished(self, work: "asyncio.Task[None]") -> None:
        self._background.discard(work)
        if not work.cancelled() and (error := work.exception()) is not None:
            log.info("Prefect shows a gate of run %s incorrectly: %s", self.run.id, error)

    async def _remind(self, open_gate: OpenGate) -> None:
        while not open_gate.closed.done():
            await asyncio.sleep(open_gate.gate.gate_policy.remind_after_ms / 1000)
            if open_gate.is_announced:
                self._emit("reminder", open_gate.gate)
            log.warning("run %s still waits for an answer: `plan gates` shows the gate", self.run.id)

    async def _escalate(self, open_gate: OpenGate) -> None:
        """Tell people once the gate escalates. The store decides by its clock who may answer then."""
        gate_policy = open_gate.gate.gate_policy
        if gate_policy.is_escalated:
            return
        await asyncio.sleep(await open_gate.seconds_until(open_gate.gate.opened_at + timedelta(milliseconds=gate_policy.escalate_after_ms)))
        open_gate.take_state(await self.store.gates.get(open_gate.gate.id))
        if open_gate.closed.done():
            return
        message = escalation_text(gate_policy)
        self._emit("escalated", open_gate.gate, message)
        log.warning("the gate of run %s escalates: %s", self.run.id, message)

    def _emit(self, kind: GateEventKind, gate: Gate, message: str | None = None, answer: Approval | None = None) -> None:
        if self.forms is not None:
            self._finish_in_background(
                asyncio.ensure_future(self._emit_in_order(partial(self.forms.emit, kind, gate, self.run, message, answer)))
            )

    async def _emit_in_order(self, emit: Callable[[], None]) -> None:
        async with self._emitting:
            await asyncio.to_thread(emit)

    async def _leave_gate(self, gate: Gate) -> None:
        """Record that this process stopped waiting at the gate. If a released run was answered at this moment, resume it."""
        await self.store.gates.leave(gate.id)
        answer = await self.store.gates.answer_to(gate.id)
        if answer is not None and gate.gate_policy.release and self.forms is not None:
            await self.forms.resume_released(await self.store.gates.get(gate.id), answer)

    async def _notify(
        self, kind: Literal["gate_opened", "gate_answered"], gate: Gate, step: StepRun | None, message: str | None = None
    ) -> None:
        in_form = self.forms is not None and self._has_form(gate)
        in_advance = approves_in_advance(self.run_request.approver) and self.can_ask(gate)
        event = Event(kind, self.run, step, message=message, gate=gate, in_form=in_form, in_advance=in_advance)
        notify(self.run_request.listener, event)
        hooks = self.run_request.hooks
        hook = hooks.on_gate_open if kind == "gate_opened" else hooks.on_gate_answered
        try:
            async with asyncio.timeout(HOOK_SECONDS):
                await call_hook(hook, self.run, step, gate)
        except TimeoutError:
            log.warning("hook %s took more than %g s and was ended", getattr(hook, "__name__", hook), HOOK_SECONDS)

    def can_ask(self, gate: Gate) -> bool:
        """Return whether the approver of this process can answer at `gate`.

        An approver that approves in advance answers no questions, and confirms nothing that a model wrote during the run.
        """
        approver = self.run_request.approver
        if approver is None or self.has_answered(gate.approval_digest):
            return False
        step = self.session.bound.validated.steps.get(gate.step_id or "")
        needs_person = gate.kind == "question" or (step is not None and step.goal is not None)
        return not (needs_person and approves_in_advance(approver))

    def has_answered(self, approval_digest: str) -> bool:
        """Return whether the approver has answered about this content. False for an approver that asks a person each time."""
        return approval_digest in self._answered

    async def _ask_approver(self, approver: Approver, open_gate: OpenGate, waiting: "asyncio.Future[None] | None") -> None:
        """Ask `approver` until the gate is closed. An approver without `asks_again` is asked only once."""
        request, is_asked_again = open_gate.request, asks_again(approver)
        while not open_gate.closed.done():
            answer = await approver.ask(replace(request))  # a copy, so that the approver cannot change the original
            if not isinstance(answer, Approval):  # pyright: ignore[reportUnnecessaryIsInstance]  # approvers are third-party code
                raise NotApprovedError(f"the approver {type(approver).__name__} returned {answer!r:.100} instead of an approval")
            if not is_asked_again:
                _require_fitting_answer(approver, answer, request)
                self._answered.add(request.approval_digest)
            refused = await open_gate.take(answer)
            if refused is None and not open_gate.closed.done():  # more people have to approve, and this approver speaks for one
                if waiting is None and not (is_asked_again or self.run_request.asks_in_form):
                    open_gate.leave()
                elif waiting is not None and not waiting.done():
                    waiting.set_result(None)
                return
            if refused is not None and not is_asked_again:
                raise NotApprovedError(refused)
            request = replace(request, refused=refused)

    async def _ask_outcome(self, person: CanAskOutcomes, open_gate: OpenGate) -> None:
        """Ask `person` until the gate is closed. If there is no answer and no form, close the gate."""
        request = open_gate.request
        while not open_gate.closed.done():
            answer = await person.ask_outcome(replace(request))
            if answer is None:
                return await open_gate.give_up() if self.forms is None else None
            channel = "unverified" if answer.channel == "form" else answer.channel  # only the forms know what was typed into one
            request = replace(request, refused=await open_gate.submit(replace(answer, channel=channel)))
        return None


def _require_fitting_answer(approver: Approver, answer: Approval, request: ApprovalRequest) -> None:
    """Raise TypeError, with every problem, if `answer` does not fit the fields of the question: the program that gave it has a mistake."""
    if request.kind != "question" or answer.decision != "approve":
        return
    try:
        read_answer(request, answer.result)
    except NotApprovedError as error:
        who, step = type(approver).__name__, request.step_id
        raise TypeError(f"the answer of the approver {who} does not fit the question of step `{step}`: {error}") from error


async def _wait_until_closed(closed: "asyncio.Future[Gate]", workers: "list[asyncio.Task[None]]") -> None:
    """Return once the gate is closed. Raises the first error of a worker before that."""
    pending: set[asyncio.Future[None]] = set(workers)
    waiting = asyncio.ensure_future(_wait_for(closed))
    try:
        while not closed.done():
            done, _ = await asyncio.wait({waiting, *pending}, return_when=asyncio.FIRST_COMPLETED)
            for worker in done - {waiting}:
                pending.discard(worker)
                if not closed.done():
                    worker.result()
    finally:
        waiting.cancel()


async def _cancel_tasks(workers: "list[asyncio.Task[None]]") -> None:
    for worker in workers:
        worker.cancel()
    await asyncio.gather(*workers, return_exceptions=True)  # `_wait_until_closed` has raised the first error


async def _as_coroutine(work: Awaitable[None]) -> None:
    await work


async def _wait_for(closed: "asyncio.Future[Gate]") -> None:
    await asyncio.shield(closed)
