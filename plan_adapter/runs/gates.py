"""`GateKeeper`: opens a run's gates, has everybody asked at once, and brings back the first valid answer."""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Literal, Protocol, runtime_checkable

from pydantic import JsonValue

from plan_adapter.approval import Approver, Asking, refusal
from plan_adapter.crash_points import reached
from plan_adapter.errors import NotApprovedError, RunConflictError
from plan_adapter.execution.cancellation import first_reason
from plan_adapter.hooks import Event, call_hook, tell
from plan_adapter.identity.codes import SecretSource
from plan_adapter.identity.known import Means, approval_from, proved, recheck
from plan_adapter.plan import new_id
from plan_adapter.readable import duration
from plan_adapter.record import Answer, Approval, ApprovalRequest, Gate, GateKind, GateRules, PlanRun, Receipt, StepRun
from plan_adapter.runs.occasion import Occasion
from plan_adapter.store.outcomes import Word
from plan_adapter.store.store import PlanStore

log = logging.getLogger(__name__)

LOOK_SECONDS = 5.0
"""How often an open gate is looked at where the store tells of no change."""
CANCELLATION_SECONDS = 2.0
LEAVE_SECONDS = 10.0
"""How long Prefect may take to show that the last gates are closed."""
HOOK_SECONDS = 10.0
"""How long a hook may hold up a gate that is open, or closed."""

GateEventKind = Literal["opened", "answered", "expired", "reminder"]


@runtime_checkable
class AsksOutcomes(Protocol):
    """An approver who can also be asked how a call ended: a person."""

    async def ask_outcome(self, request: ApprovalRequest) -> Answer | None:
        """Return what is said, None where nobody is there to say it."""
        ...


@dataclass(frozen=True, slots=True)
class FormDoor:
    """What a gate needs of the flow engine."""

    ask: Callable[[Asking], Awaitable[str | None]]
    """Shows a gate as a form until it is closed, and then leaves the flow run as it should be; returns why somebody cancelled it there."""
    collected: Callable[[Gate], Awaitable[Answer | None]]
    """What was answered in a form while nobody waited for it; raises NotApprovedError for what is no whole answer."""
    emit: Callable[[GateEventKind, Gate, PlanRun, str | None, Approval | None], None]
    """Send an event; may take a moment."""
    publish: Callable[[Gate], Awaitable[None]]
    """Keep the text of a gate where the run's page shows it."""
    resume_released: Callable[[Gate, Approval], Awaitable[None]]
    """Let a run that gave its worker back start again."""
    secrets: SecretSource
    leave: Callable[[Asking], Awaitable[None]] | None = None
    """Puts the form of the plan's gate up for the time after this process, whose flow run must then end as one that waits."""


@dataclass(slots=True)
class GateKeeper:
    """The gates of one run in one process."""

    run: PlanRun
    store: PlanStore
    occasion: Occasion
    door: FormDoor | None = None
    cancellation: Callable[[], Awaitable[str | None]] | None = None
    clean: Callable[[JsonValue], JsonValue] = lambda value: value  # takes secrets out of what people say of a call
    why_stopped: Callable[[], str] = str  # why all work of the run ends, empty as long as it does not
    refused: dict[str, str] = field(default_factory=dict[str, str])  # why what was answered at a gate while nobody waited was not taken
    _verified: set[str] = field(default_factory=set[str])  # ids of answers that were proved in this process
    _answered: set[str] = field(default_factory=set[str])  # digests about which the approver, who is asked once, has said something
    _emitting: asyncio.Lock = field(default_factory=asyncio.Lock)
    _leaving: set[asyncio.Task[None]] = field(default_factory=set[asyncio.Task[None]])

    async def open(self, gate: Gate, *, timeout_ms: int) -> Gate:
        """Return `gate` as it is open now: a new one, or that of an earlier start of the run, whose approvers are those of today."""
        opened = await self.store.open_gate(gate, timeout_ms=timeout_ms)
        reached("gate-opened")
        return replace(opened, rules=replace(opened.rules, approvers=gate.rules.approvers))

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
        asking = _OpenGate(self, gate)
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
        said = cancelled or _said(closed, answer, await self.word_at(closed))
        await self._tell("gate_answered", closed, step, said)
        self._emit("expired" if closed.end == "expired" else "answered", closed, said, answer)
        return closed

    async def leave_open(self, gate: Gate) -> Gate:
        """Return an open gate of the plan as one that this process does not wait at; its form takes answers all the same."""
        left: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        left.set_result(None)
        closed = await self.ask(gate, left=left)
        if closed.end is not None or self.door is None or self.door.leave is None:
            return closed
        await self.door.leave(_OpenGate(self, gate))
        return await self.store.gate(gate.id)  # one that was answered meanwhile has nobody else to act on it

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
        self, asking: "_OpenGate", until: "asyncio.Future[None] | None", left: "asyncio.Future[None] | None"
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

    async def _ask_in_form(self, door: FormDoor, asking: "_OpenGate") -> None:
        reason = await door.ask(asking)
        if reason is not None:
            await asking.cancel(reason)

    async def _leave_form(self, form: "asyncio.Task[None]", asking: "_OpenGate") -> None:
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

    async def _remind(self, asking: "_OpenGate") -> None:
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

    async def taken(self, answer: Answer, request: ApprovalRequest) -> Approval:
        """Return `answer` as an approval, its giver proved and allowed; raises NotApprovedError with why not."""
        approval = await approval_from(answer, request, await self._means())
        self._verified.add(approval.id)
        return approval

    async def close_with(self, gate: Gate, answer: Answer, request: ApprovalRequest) -> Gate:
        """Return `gate` closed by `answer`, whose giver is proved and allowed.

        Raises NotApprovedError with why it is not taken, RunConflictError where somebody else was first.
        """
        if gate.kind == "approval" or gate.step_id is None:
            return await self.store.answer_gate(gate.id, await self.taken(answer, request))
        await self.store.resolve(gate.run_id, gate.step_id, await self._word(answer, request), item=gate.item)
        return await self.store.gate(gate.id)

    async def _word(self, answer: Answer, request: ApprovalRequest) -> Word:
        if answer.decision not in ("done", "again", "abort"):
            raise NotApprovedError(
                f"what is asked is how the call ended, and `{answer.decision}` does not say it: done, again or abort does"
            )
        known_by = await proved(answer, request, await self._means())
        said = (str(self.clean(answer.note)), self.clean(answer.result))
        if answer.signature is not None and said[1] != answer.result:  # no record could show that this is what was signed
            raise NotApprovedError("the result that was signed holds the value of a secret: say it without, and sign that")
        return Word(answer.decision, answer.by, known_by, *said, digest=request.approval_digest, signature=answer.signature)

    async def _means(self) -> Means:
        secrets = self.door.secrets if self.door is not None else None
        return Means(self.occasion.settings, secrets, self.store, (await self.store.now()).timestamp())

    async def word_at(self, gate: Gate) -> Receipt | None:
        """Return the receipt that is what was said at `gate`, which asked how a call ended; None for any other one."""
        if gate.kind != "outcome" or gate.closed_at is None:
            return None
        of_gate = [row for row in await self.store.receipts(gate.run_id) if (row.step_id, row.item) == (gate.step_id, gate.item)]
        return next((row for row in of_gate if row.ended_at == gate.closed_at and row.by is not None), None)

    def has_spoken(self, approval_digest: str) -> bool:
        """Return whether the approver, who does not ask a person each time, has answered about this content."""
        return approval_digest in self._answered

    async def _ask_approver(self, approver: Approver, asking: "_OpenGate") -> None:
        """Ask `approver` until the gate is closed; one that does not ask a person gets no second try."""
        request, asks_again = asking.request, getattr(approver, "asks_again", False)
        while not asking.closed.done():
            said = await approver.ask(request)
            if not isinstance(said, Approval):  # pyright: ignore[reportUnnecessaryIsInstance]  # an approver is anybody's code
                raise NotApprovedError(f"the approver {type(approver).__name__} gave no approval but {said!r:.100}")
            if not asks_again:
                self._answered.add(request.approval_digest)
            refused = await asking.take(said)
            if refused is not None and not asks_again:
                raise NotApprovedError(refused)
            request = replace(request, refused=refused)

    async def _ask_outcome(self, person: AsksOutcomes, asking: "_OpenGate") -> None:
        """Ask `person` until the gate is closed; one who has nothing to say closes it, where nobody else is asked."""
        request = asking.request
        while not asking.closed.done():
            said = await person.ask_outcome(request)
            if said is None:
                return await asking.give_up() if self.door is None else None
            request = replace(request, refused=await asking.submit(said))
        return None

    async def prove(self, approval: Approval, asked: ApprovalRequest | Gate) -> None:
        """Return if `approval`, which may come from elsewhere, is signed by who it says, where it says so; raises NotApprovedError."""
        if approval.id not in self._verified:
            await asyncio.to_thread(recheck, approval, asked, self.occasion.settings)
            self._verified.add(approval.id)


class _OpenGate:
    """Implements `approval.Asking`."""

    def __init__(self, keeper: GateKeeper, gate: Gate) -> None:
        self._keeper = keeper
        self.gate = gate
        self.closed: asyncio.Future[Gate] = asyncio.get_running_loop().create_future()
        self.request = replace(request_of(gate), refused=keeper.refused.pop(gate.id, None))
        self._page: str | None = None  # the flow run, other than the run's own, that shows its form

    async def submit(self, answer: Answer) -> str | None:
        """Give `answer`; return why it was not taken, None if it closed the gate, or if that was closed before."""
        if self.closed.done():
            return None
        try:
            self._set(await self._keeper.close_with(self.gate, answer, self.request))
        except NotApprovedError as error:
            said = f"{answer.decision} is not taken: {error}"
            await self._keeper.store.note_refusal(self.gate.run_id, said, by=answer.by, step_id=self.gate.step_id)
            if answer.channel == "form":  # who sits at a terminal is told by who asks them
                told = f"the answer by {answer.by} is not taken: {error}"
                tell(self._keeper.occasion.listener, Event("gate_refused", self._keeper.run, message=told, gate=self.gate))
            return str(error)
        except RunConflictError as error:  # mostly somebody else was first, or it is over
            self._set(await self._keeper.store.gate(self.gate.id))
            return None if self.closed.done() else str(error)
        return None

    async def take(self, approval: Approval) -> str | None:
        """Give what an approver of this process answered; the same as `submit` otherwise."""
        reason = refusal(self.gate.rules, by=approval.by, known_by=approval.known_by, decision=approval.decision)
        if reason is not None:
            return reason
        try:
            await self._keeper.prove(approval, self.request)
            return await self._close_with(approval)
        except NotApprovedError as error:
            return str(error)

    async def shown(self, *, flow_run_id: str, keyset: str) -> None:
        """Note where the form of this gate is."""
        await self._keeper.store.show_gate(self.gate.id, flow_run_id=flow_run_id, keyset=keyset)
        if flow_run_id not in (self._page, self._keeper.run.flow_run_id):
            self._page = flow_run_id
            gate = replace(self.gate, flow_run_id=flow_run_id, keyset=keyset)
            tell(self._keeper.occasion.listener, Event("gate_shown", self._keeper.run, gate=gate, in_form=True))

    async def watch(self) -> None:
        """Return once the gate is closed, by whatever process, or is over by the database's clock."""
        store = self._keeper.store
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
            await self._keeper.store.cancel(self._keeper.run.id, reason)
        await self.give_up()

    async def give_up(self) -> None:
        """Close the gate, because nobody is there to answer; one at which another process waits by now is closed for this one only."""
        gate = await self._keeper.store.close_gate(self.gate.id, "cancelled")
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
            gate = await self._keeper.store.answer_gate(self.gate.id, approval)
        except RunConflictError:  # somebody else was first, or it is over
            gate = await self._keeper.store.gate(self.gate.id)
        self._set(gate)

    def _set(self, gate: Gate) -> None:
        if gate.end is not None and not self.closed.done():
            self.closed.set_result(gate)


def new_gate(
    run: PlanRun,
    *,
    approval_digest: str,
    description: str,
    text: str,
    rules: GateRules,
    step_id: str | None = None,
    item: int | None = None,
    kind: GateKind = "approval",
) -> Gate:
    """Return a gate that is to be opened; its times are those of the store."""
    return Gate(
        id=new_id(),
        run_id=run.id,
        step_id=step_id,
        item=item,
        approval_digest=approval_digest,
        name=run.name,
        description=description,
        text=text,
        rules=rules,
        opened_at=run.created_at,
        kind=kind,
    )


def request_of(gate: Gate) -> ApprovalRequest:
    """Return what approvers are asked at `gate`."""
    return ApprovalRequest(
        approval_digest=gate.approval_digest,
        name=gate.name,
        description=gate.description,
        text=gate.text,
        run_id=gate.run_id,
        step_id=gate.step_id,
        item=gate.item,
        gate_id=gate.id,
        opened_at=gate.opened_at,
        expires_at=gate.expires_at,
        rules=gate.rules,
        kind=gate.kind,
    )


def no_answer(gate: Gate) -> str:
    """Return in words that nobody answered at `gate`, which has expired."""
    limit = duration((gate.expires_at - gate.opened_at).total_seconds() * 1000) if gate.expires_at is not None else "the time given"
    return f"nobody answered within {limit}"


def _said(gate: Gate, answer: Approval | None, word: Receipt | None) -> str:
    if word is not None:
        return f"{gate.end}, says {word.by} ({word.known_by})" + (f": {word.note}" if word.note else "")
    if answer is None:
        return no_answer(gate) if gate.end == "expired" else gate.end or ""
    verb = {"approve": "approved", "reject": "rejected", "request_changes": "changes requested"}[answer.decision]
    return f"{verb} by {answer.by} ({answer.known_by})" + (f": {answer.note}" if answer.note else "")


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
