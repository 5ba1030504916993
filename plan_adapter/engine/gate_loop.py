"""The loop that asks at a gate in Prefect: it shows the gate's form on a page, submits the answer, and asks again until the gate is closed.

Every gate is asked about by `GatePage`: the gate of a plan on the page of its run, any other (of a step, an item, a goal, a question, an
unknown outcome) on the page of a subflow. Where the process must not wait, `release` frees the worker until someone answers.

A page pauses its flow run with the calls that `prefect.pause_flow_run` makes. Prefect's state is never the answer: if the pause ends
without one, because a client sets Running, the page pauses again under a new key.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine
from contextvars import Context, copy_context
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeAlias, TypeVar
from uuid import UUID

from prefect import Flow, tags
from prefect.client.schemas.filters import FlowRunFilter
from prefect.client.schemas.objects import FlowRun, State, StateType
from prefect.client.schemas.responses import SetStateStatus
from prefect.context import FlowRunContext
from prefect.exceptions import Pause
from prefect.input import aread_flow_run_input
from prefect.states import Cancelled, Completed, Failed, Paused, Running, Suspended

from plan_adapter.engine.connection import current_server, in_flow_run_process, override_settings
from plan_adapter.engine.form import (
    ARTIFACT,
    MAX_NAME_CHARACTERS,
    NotAnAnswerError,
    called_step,
    parse_answer,
    paused_message,
    waiting_message,
)
from plan_adapter.engine.gate_forms import SERVER_ERRORS, GatePause, current_flow, leave_paused, read_labels
from plan_adapter.engine.outgoing import MAX_NOTE_CHARACTERS, LogWriter, log_writer, paragraphs, publish_text, state_message
from plan_adapter.gates.approval import PendingGate
from plan_adapter.gates.quorum import progress_in_words
from plan_adapter.model.approvals import Approval, Decision, Gate, GateKind
from plan_adapter.model.language import later, tr
from plan_adapter.model.readable import listed, one_line, safe_name

T = TypeVar("T")

log = logging.getLogger(__name__)

POLL_SECONDS = 1.0
FIRST_WAIT, LONGEST_WAIT = 0.2, 5.0
"""Seconds before the form is opened again or the server is asked again. Doubled each time until a call succeeds."""
FINISH_SECONDS = 5.0
WARN_SECONDS = 5.0
SLOWDOWN_SECONDS, MAX_SLOWDOWN = 120.0, 5.0
"""An opening is polled half as often after this many seconds, and later down to a fifth as often."""
CALM_SECONDS = 30.0
"""If an opening lasted this long, nothing keeps ending it, so the wait is reset."""
CLOSED_CHECK_SECONDS = 0.5
"""How long to wait for a gate that may have been closed before the run got here."""

ApprovalOf: TypeAlias = Callable[[str], Awaitable[Approval | None]]
"""Returns the answer that closed the gate with this id, as `PlanStore.gates.answer_to` does."""

SHOWN_WAITS = 5
"""How many gates the state of a run names."""

WAITING_TAG = "waiting"
"""The tag of the page of a step's gate."""

_FLOWS: dict[GateKind, str] = {"approval": "approval", "question": "question", "outcome": "unknown outcome"}
"""The names of the flows whose runs are the pages of step gates."""

_VERBS: dict[GateKind, str] = {"approval": "approve", "question": "answer", "outcome": "resolve"}
_DECISION_STATE_NAMES: dict[Decision, str] = {
    "approve": later("Approved"),
    "reject": later("Rejected"),
    "request_changes": later("ChangesRequested"),
}
_RESOLUTION_STATES: dict[str, Callable[[], State]] = {
    "done": lambda: Completed(name="Done", message="it was done; the step's receipt names who said so"),
    "again": lambda: Completed(name="Again", message="it was not done and runs again; the step's receipt names who said so"),
    "abort": lambda: Cancelled(name="Abort", message="the run ends here; the step's receipt names who said so"),
}
_UNANSWERED = {"expired": "nobody answered", "superseded": "a new version replaced what was asked about"}


class GateCancelledError(Exception):
    """Someone cancelled the flow run that asks. `reason` says who or why, as far as Prefect knows."""

    def __init__(self, reason: str) -> None:
        """Store `reason`."""
        self.reason = reason
        super().__init__(reason)


class _RequestFailedError(Exception):
    """The server did not do what was requested."""


class _GateClosedError(Exception):
    """The gate is closed."""


async def show_gate_form(pending: PendingGate, *, poll_seconds: float = POLL_SECONDS, approval_of: ApprovalOf | None = None) -> None:
    """Show the form of a gate until the gate is closed, by an answer in the form or in any other way.

    Call this in the context of a flow run. It returns up to a few seconds after `pending.closed`, when Prefect shows the flow run as
    Running again: start steps without waiting for it, but await it before the flow run ends. If the server is unavailable, it waits.
    `approval_of` lets the pages of step gates show who answered. Raises GateCancelledError if someone cancelled the flow run.

    Under a worker, at the gate of a plan that asks for release, it raises Prefect's `Pause` instead of waiting: let it propagate out of the
    flow so that the process ends. Whoever closes the gate calls `gate_forms.resume_released`. The caller must also call it before it lets
    `Pause` propagate if the row was closed in the meantime.
    """
    flow, page_of = current_flow(), partial(GatePage, pending, poll_seconds=poll_seconds, approval_of=approval_of)
    if pending.request.step_id is None:
        await _ask_on_run_page(pending, flow, page_of(flow))
    else:
        await _StepGate(pending, flow, page_of).run()


async def _ask_on_run_page(pending: PendingGate, flow: FlowRunContext, page: "GatePage") -> None:
    """Ask on the page of the run, which has the full text as an artifact, with the picture that a form does not show."""
    description = "What the plan's gate asks, with a picture of the order of steps"
    publishing = asyncio.create_task(publish_text(pending.request.text, key=ARTIFACT, description=description))
    try:
        if pending.request.gate_policy.release and _has_worker(flow):
            await asyncio.wait({publishing}, timeout=FINISH_SECONDS)
            await release(pending, flow)
        try:
            await page.ask()
        finally:
            if pending.closed.done():  # also when this is cancelled because the gate is closed
                await page.continue_run(await page.read_end())
    finally:
        await asyncio.wait({publishing}, timeout=FINISH_SECONDS)
        publishing.cancel()


def _has_worker(flow: FlowRunContext) -> bool:
    return flow.flow_run is not None and flow.flow_run.deployment_id is not None and in_flow_run_process()


async def release(pending: PendingGate, flow: FlowRunContext) -> None:
    """Suspend the flow run with its gate's form by raising Prefect's `Pause`, so that Prefect's engine ends the process.

    When resumed, the flow run starts again from its first line, and `gate_forms.collect_answer` returns the answer. Returns normally, so
    that the caller waits as usual, if the gate is already closed or Prefect cannot suspend the flow run.

    This makes the same calls as `prefect.suspend_flow_run`, but sets a state message.
    """
    request, pause, write_log = pending.request, GatePause.of(flow, "suspended"), log_writer(flow)
    await pause.record(pending)  # first: who closes the gate from now on resumes the run
    await asyncio.wait({pending.closed}, timeout=CLOSED_CHECK_SECONDS)
    if pending.closed.done():
        return
    message = f"`{one_line(request.name)[:MAX_NAME_CHARACTERS]}` {waiting_message(request)}; its worker is free until then"
    write_log(message)
    suspended = await leave_paused(pause, Suspended(message=state_message(message)), pending, write_log=write_log)
    if suspended is not None:
        raise Pause(state=suspended)
    log.warning("flow run %s keeps its worker while it waits", pause.flow_run_id)


class GatePage:
    """The page of one flow run, on which the form of a gate is shown until the gate is closed."""

    def __init__(
        self,
        pending: PendingGate,
        flow: FlowRunContext,
        *,
        poll_seconds: float = POLL_SECONDS,
        approval_of: ApprovalOf | None = None,
        write_log: LogWriter | None = None,
        run: FlowRun | None = None,
    ) -> None:
        """Prepare to ask on the page of `flow`, whose client must stay open. `write_log` writes to its log, by default only there.

        `run` is the flow run that asks, by default that of `flow`.
        """
        pause = GatePause.of(flow)
        self._run = run or flow.flow_run
        self.finished = asyncio.Event()
        self._pending = pending
        self._flow_run_id, self._client = pause.flow_run_id, pause.client
        self._poll_seconds = poll_seconds
        self._approval_of = approval_of
        self._write_log = write_log or log_writer(flow)
        self._wait = FIRST_WAIT
        self._shown = False
        self._failing_since: float | None = None
        self._warned = False
        self._context = _context_without_retries()
        pending.closed.add_done_callback(lambda _: self.finished.set())
        if pending.closed.done():
            self.finished.set()

    async def ask(self) -> None:
        """Show the form until an answer closes the gate or `finished` is set. Raises GateCancelledError and what `pending` raises."""
        refused = self._pending.request.refused
        if not self.finished.is_set():
            self._write_log(waiting_message(self._pending.request))
        while not self.finished.is_set():
            try:
                refused = await self._show_once(refused)
            except _RequestFailedError as failure:
                await self._back_off(failure)
            except _GateClosedError:
                return
            else:
                if refused is None and self._pending.closed.done():
                    return
                if refused is None:
                    request = self._pending.request
                    self._write_log(tr("recorded: {progress}", progress=progress_in_words(request.gate_policy, request.agreements)))
                    continue
                self._write_log(f"answer refused: {one_line(refused)[:MAX_NOTE_CHARACTERS]}; asking again")

    async def read_end(self) -> State:
        """Return how the gate ended as a final state, and write it to the log."""
        end = await _closing_state(self._pending, self._approval_of)
        self._write_log(end.message or "answered")
        return end

    async def continue_run(self, end: State) -> None:
        """Set the flow run back to Running if it shows the form. Give up after a few seconds: its final state also ends the pause."""
        try:
            async with asyncio.timeout(FINISH_SECONDS):
                while self._shown:
                    try:
                        if _is_paused(await self._call(self._read_state())):
                            running = Running(message=state_message(end.message or "answered"))
                            await self._call(self._client.set_flow_run_state(self._flow_run_id, running))
                        self._shown = False
                    except _RequestFailedError:
                        await asyncio.sleep(FIRST_WAIT)
        except TimeoutError:
            log.info("flow run %s still shows the form of its closed gate: the server did not respond in time", self._flow_run_id)

    async def _show_once(self, refused: str | None) -> str | None:
        """Show the form once. Return why the answer was refused, or None if it was recorded."""
        pause, started_at = GatePause(self._flow_run_id, self._client, run=self._run), asyncio.get_running_loop().time()
        await self._enter(pause)
        await pause.record(self._pending)  # an answer must be found even if this process ends as soon as the form exists
        await pause.give_form(self._pending, refused=refused, write_log=self._write_log, retry=self._retry)
        state = await self._wait_for_pause_end(pause)
        self._shown = False
        _raise_if_cancelled(state)
        raw = await self._retry(partial(aread_flow_run_input, pause.key_of("response"), flow_run_id=self._flow_run_id))
        if raw is None:
            message = f"the pause ended without an answer (state {state.name if state else 'unknown'})"
            log.warning("the gate of flow run %s still waits for an answer: %s", self._flow_run_id, message)
            if asyncio.get_running_loop().time() - started_at > CALM_SECONDS:
                self._wait = FIRST_WAIT
            await self._back_off()
            return message
        self._wait = FIRST_WAIT
        try:
            answer = parse_answer(raw, self._pending.request.kind, self._pending.request.fields)
        except NotAnAnswerError as error:
            return str(error)
        return await self._pending.submit(answer)

    async def _enter(self, pause: GatePause) -> None:
        """Pause the flow run."""
        paused = pause.attach_to(Paused(message=state_message(paused_message(self._pending.request))))
        self._shown = True
        if await self._try_set_state(paused):
            return
        state = await self._retry(self._read_state)
        if pause.is_in(state):  # an earlier request set it, and its response was lost
            return
        _raise_if_cancelled(state)
        # A process that died left this state, or someone set it. This process runs the flow run, so Running is correct.
        await self._retry(partial(self._client.set_flow_run_state, self._flow_run_id, Running(), force=True))
        if not await self._try_set_state(paused):
            raise _RequestFailedError("the flow run cannot be paused")

    async def _wait_for_pause_end(self, pause: GatePause) -> State | None:
        """Return the state that follows `pause`. Raises _GateClosedError if the gate is closed first."""
        loop = asyncio.get_running_loop()
        started_at = loop.time()
        while True:
            # A poll costs the client 4 ms and the server 12 ms, so poll less often when people take their time.
            waited = loop.time() - started_at
            if await self._finished_within(self._poll_seconds * min(1 + waited / SLOWDOWN_SECONDS, MAX_SLOWDOWN)):
                raise _GateClosedError
            if not pause.is_in(state := await self._retry(self._read_state)):
                return state

    async def _try_set_state(self, state: State) -> bool:
        result = await self._retry(partial(self._client.set_flow_run_state, self._flow_run_id, state))
        return result.status is SetStateStatus.ACCEPT

    async def _read_state(self) -> State | None:
        return (await self._client.read_flow_run(self._flow_run_id)).state

    async def _retry(self, request: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Return the result of `request`, retrying until it succeeds. Raises _GateClosedError if the gate is closed first."""
        while True:
            try:
                result = await self._call(request())
            except _RequestFailedError as failure:
                if await self._back_off(failure):
                    raise _GateClosedError from None
            else:
                if self._failing_since is not None:
                    self._failing_since, self._warned, self._wait = None, False, FIRST_WAIT
                return result

    async def _call(self, request: Coroutine[Any, Any, T]) -> T:
        try:
            return await asyncio.create_task(request, context=self._context)
        except SERVER_ERRORS as error:
            raise _RequestFailedError(f"{type(error).__name__}: {one_line(str(error))[:200]}") from error

    async def _back_off(self, failure: "_RequestFailedError | None" = None) -> bool:
        """Wait with exponential back-off. Return whether the gate was closed meanwhile."""
        if failure is not None:
            self._warn_once(failure)
        wait, self._wait = self._wait, min(2 * self._wait, LONGEST_WAIT)
        return await self._finished_within(wait)

    def _warn_once(self, failure: "_RequestFailedError") -> None:
        """Log one warning if the server is unavailable for long. A server that is briefly busy is not worth a warning."""
        now = asyncio.get_running_loop().time()
        self._failing_since = now if self._failing_since is None else self._failing_since
        if now - self._failing_since > WARN_SECONDS and not self._warned:
            self._warned = True
            log.warning("the form of flow run %s is unavailable (%s); retrying until the gate is closed", self._flow_run_id, failure)

    async def _finished_within(self, seconds: float) -> bool:
        try:
            async with asyncio.timeout(seconds):
                await self.finished.wait()
        except TimeoutError:
            return False
        return True


@dataclass(slots=True)
class _Waits:
    """The open step gates of a flow run, with the title and link of each."""

    gates: dict[str, str] = field(default_factory=dict[str, str])
    writing: asyncio.Lock = field(default_factory=asyncio.Lock)


_waits = dict[UUID, _Waits]()
"""By flow run: where it waits."""


class _StepGate:
    """A gate within a run: a subflow of the current flow run, with its own page and form."""

    def __init__(self, pending: PendingGate, parent: FlowRunContext, page_of: Callable[..., GatePage]) -> None:
        self._pending = pending
        self._parent = parent
        self._page_of = page_of
        self._page: GatePage | None = None
        self._stopped = False
        self._error: Exception | None = None
        self._title = f"{_VERBS[pending.request.kind]} {called_step(pending.request)}"

    async def run(self) -> None:
        """Ask until the gate is closed. On cancellation, first end the subflow as Cancelled; Prefect alone would mark it as Crashed."""
        flow = asyncio.create_task(self._run_flow())
        try:
            await asyncio.wait({flow, self._pending.closed}, return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            self._stop()
            raise
        finally:
            await asyncio.wait({flow}, timeout=FINISH_SECONDS)
            if not flow.done():  # the server is unavailable
                flow.cancel()
                await asyncio.wait({flow}, timeout=FINISH_SECONDS)
        if flow.done() and not flow.cancelled():
            flow.result()

    def _stop(self) -> None:
        self._stopped = True
        if self._page is not None:
            self._page.finished.set()

    async def _run_flow(self) -> None:
        """Run the subflow, and retry if the server was unavailable. Raises what asking raised."""
        wait = FIRST_WAIT
        while not (self._pending.closed.done() or self._stopped):
            try:
                with tags(*self._tags):
                    await self._build_flow()(return_state=True)
            except SERVER_ERRORS as error:
                log.warning("the form of step %s cannot be shown (%s); retrying", self._pending.request.step_id, type(error).__name__)
                await asyncio.wait({self._pending.closed}, timeout=wait)
                wait = min(2 * wait, LONGEST_WAIT)
                continue
            if self._error is not None:
                raise self._error
            return

    @property
    def _tags(self) -> list[str]:
        """The tags of the run, and one by which a saved filter finds every page that waits."""
        return [*(self._parent.flow_run.tags if self._parent.flow_run is not None else []), WAITING_TAG]

    @property
    def _run_name(self) -> str:
        """The name of the plan and of the run, so that the pages of two runs of one runbook differ."""
        name, run_name = self._pending.request.name, "" if self._parent.flow_run is None else self._parent.flow_run.name
        return run_name if name in run_name else f"{name} ({run_name})" if run_name else name

    def _build_flow(self) -> Flow[..., Any]:
        request = self._pending.request

        async def approve() -> State:
            return await self._ask()

        # Prefect identifies a subflow's task run by this name. A resumed run thus finds its own page, and no gate finds another gate's
        # page.
        approve.__qualname__ = approve.__name__ = f"approve_{(request.gate_id or called_step(request)).replace('-', '')}"
        return Flow(
            approve,
            name=_FLOWS[request.kind],  # Prefect's graph labels the page with both names
            flow_run_name=lambda: safe_name(f"{self._title} of {self._run_name}"),
            description=paragraphs(request.description),
            persist_result=False,
            retries=0,
            log_prints=False,
            validate_parameters=False,
        )

    async def _ask(self) -> State:
        """Ask inside the subflow, whose context must be current, and return its final state."""
        subflow = current_flow()
        write_log, write_run_log = log_writer(subflow), log_writer(self._parent)

        def write_both_logs(message: str) -> None:
            write_log(message)
            write_run_log(f"`{self._title}`, under Subflow Runs: {message}")

        page = self._page = self._page_of(subflow, write_log=write_both_logs, run=self._parent.flow_run)
        if self._stopped:
            page.finished.set()
        showing = asyncio.create_task(self._show_on_run_page(GatePause.of(subflow).flow_run_id))
        try:
            await self._end_earlier_pages(subflow)
            await page.ask()
        except GateCancelledError as error:
            self._error = error
            return Cancelled(message=state_message(error.reason))
        except Exception as error:  # raised after Prefect has ended the subflow, so that no traceback is logged
            self._error = error
            return Failed(message=state_message(str(error)))
        finally:
            await asyncio.wait({showing}, timeout=FINISH_SECONDS)
            await self._show_on_run_page(None)
        if self._stopped:
            return Cancelled(message="the run was stopped while it waited here")
        await asyncio.wait({self._pending.closed}, timeout=FINISH_SECONDS)
        return await page.read_end()

    async def _show_on_run_page(self, page_id: UUID | None) -> None:
        """Say in the state of the run for which gates it waits, with links to their pages. `page_id` None: no longer for this one."""
        run, gate = GatePause.of(self._parent), self._pending.request.gate_id or self._title
        waits = _waits.setdefault(run.flow_run_id, _Waits())
        if page_id is None:
            waits.gates.pop(gate, None)
        else:
            url = current_server().run_url(page_id)
            waits.gates[gate] = self._title + (f" ({url})" if url else "")
        try:
            async with asyncio.timeout(FINISH_SECONDS), waits.writing:  # one after the other: an older text must not replace a newer one
                named = listed([*waits.gates.values()], SHOWN_WAITS)
                running = Running(message=state_message(tr("Waits at {gates}", gates=named))) if waits.gates else Running()
                await run.client.set_flow_run_state(run.flow_run_id, running)
        except (*SERVER_ERRORS, TimeoutError) as error:
            log.info("flow run %s does not show that it waits: %s", run.flow_run_id, type(error).__name__)
        if not waits.gates and not waits.writing.locked():
            _waits.pop(run.flow_run_id, None)

    async def _end_earlier_pages(self, subflow: FlowRunContext) -> None:
        """End other pages of the same gate that a killed process left open. Nothing reads their answers."""
        own, gate_id = GatePause.of(subflow), self._pending.request.gate_id
        if self._parent.flow_run is None or self._parent.flow_run.run_count < 2:
            return
        waiting = FlowRunFilter.model_validate(
            {"parent_flow_run_id": {"any_": [self._parent.flow_run.id]}, "state": {"type": {"any_": [StateType.PAUSED]}}}
        )
        try:
            for flow_run in await own.client.read_flow_runs(flow_run_filter=waiting):
                labels = read_labels(flow_run.labels)
                if flow_run.id != own.flow_run_id and labels is not None and labels.gate_id == gate_id:
                    superseded = Cancelled(name="Superseded", message="superseded: a later start of the run asks on another page")
                    await own.client.set_flow_run_state(flow_run.id, superseded, force=True)
        except SERVER_ERRORS as error:
            log.info("earlier pages of gate %s were not ended: %s", gate_id, type(error).__name__)


async def _closing_state(pending: PendingGate, approval_of: ApprovalOf | None) -> State:
    """Return how the gate ended as a final state. Its name gives the outcome; its message says who answered and why."""
    gate = pending.closed.result() if pending.closed.done() else None
    if gate is not None and gate.end in _RESOLUTION_STATES:
        return _RESOLUTION_STATES[gate.end]()
    if gate is not None and gate.end is None:
        return Cancelled(name="Unattended", message="no process waits at this gate any more; `plan gates` shows how to answer it")
    if gate is None or gate.end != "answered":
        end = "cancelled" if gate is None else gate.end or "cancelled"
        return Cancelled(name=end.capitalize(), message=state_message(f"{end}: {_UNANSWERED.get(end, 'the run ends')}"))
    approval = await _read_approval(gate, approval_of)
    if approval is None:
        return Completed(name="Answered", message="answered")
    name = later("Answered") if approval.result is not None else _DECISION_STATE_NAMES[approval.decision]
    message = tr("{decision} by {who} ({proof})", decision=tr(name), who=one_line(approval.by), proof=approval.known_by)
    if approval.agreements:
        message = tr("{decision} by {who}", decision=tr(name), who=one_line(approval.givers))
    if approval.note:
        message += f": {one_line(approval.note)[:MAX_NOTE_CHARACTERS]}"
    if approval.decision == "approve":
        return Completed(name=name, message=state_message(message))
    return Cancelled(name=name, message=state_message(message))


async def _read_approval(gate: Gate, approval_of: ApprovalOf | None) -> Approval | None:
    try:
        return None if approval_of is None else await approval_of(gate.id)
    except Exception as error:
        log.info("the answer of gate %s cannot be read: %s", gate.id, error)
        return None


def _context_without_retries() -> Context:
    """Return a copy of the context in which Prefect's client does not retry. A page has its own waits, which end with the gate."""
    with override_settings({"client.max_retries": 0}):
        return copy_context()


def _is_paused(state: State | None) -> bool:
    return state is not None and state.is_paused()


def _raise_if_cancelled(state: State | None) -> None:
    if state is not None and (state.is_cancelling() or state.is_cancelled()):
        raise GateCancelledError(state.message or "cancelled in Prefect")
