"""Shows gates in Prefect: as forms while the process waits, or through `release`, which frees the worker until someone answers."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any, TypeAlias
from uuid import UUID

from prefect import Flow
from prefect.client.orchestration import PrefectClient
from prefect.client.schemas.filters import FlowRunFilter
from prefect.client.schemas.objects import State, StateType
from prefect.context import FlowRunContext
from prefect.exceptions import Pause
from prefect.states import Cancelled, Completed, Failed, Suspended

from plan_adapter.engine.connection import in_flow_run_process
from plan_adapter.engine.form import ARTIFACT
from plan_adapter.engine.gate_display import LogWriter, called_step, log_writer, publish_text, read_labels, waiting_message
from plan_adapter.engine.gate_pause import SERVER_ERRORS, GatePause, leave_paused
from plan_adapter.engine.gate_prompt import FINISH_SECONDS, FIRST_WAIT, LONGEST_WAIT, GateCancelledError, Prompt
from plan_adapter.engine.outgoing import paragraphs, state_message
from plan_adapter.gates.approval import PendingGate
from plan_adapter.model.approvals import Approval, ApprovalRequest, Decision, Gate, GateKind
from plan_adapter.model.readable import one_line, safe_name

log = logging.getLogger(__name__)

MAX_NAME_CHARACTERS = 200
CLOSED_CHECK_SECONDS = 0.5
"""How long to wait for a gate that may have been closed before the run got here."""


async def release(pending: PendingGate, flow_run_id: UUID, client: PrefectClient, write_log: LogWriter) -> None:
    """Suspend the current flow run with its gate's form by raising Prefect's `Pause`, so that Prefect's engine ends the process.

    When resumed, the flow run starts again from its first line, and `gate_forms.collect_answer` returns the answer. Returns normally, so
    that the caller waits as usual, if the gate is already closed or Prefect cannot suspend the flow run.

    This makes the same calls as `prefect.suspend_flow_run`, but sets a state message.
    """
    request, pause = pending.request, GatePause(flow_run_id, client, "suspended")
    await pending.record_form(flow_run_id=str(flow_run_id), keyset=pause.keyset)  # first: who closes the gate from now on resumes the run
    await asyncio.wait({pending.closed}, timeout=CLOSED_CHECK_SECONDS)
    if pending.closed.done():
        return
    message = f"`{one_line(request.name)[:MAX_NAME_CHARACTERS]}` {waiting_message(request)}; its worker is free until then"
    write_log(message)
    suspended = await leave_paused(pause, Suspended(message=state_message(message)), pending, write_log=write_log)
    if suspended is not None:
        raise Pause(state=suspended)
    log.warning("flow run %s keeps its worker while it waits", flow_run_id)


POLL_SECONDS = 1.0
MAX_NOTE_CHARACTERS = 500
_DECISION_STATE_NAMES: dict[Decision, str] = {"approve": "Approved", "reject": "Rejected", "request_changes": "ChangesRequested"}

_VERBS: dict[GateKind, str] = {"approval": "approve", "question": "answer", "outcome": "resolve"}
_RESOLUTION_STATES: dict[str, Callable[[], State]] = {
    "done": lambda: Completed(name="Done", message="it was done; the step's receipt names who said so"),
    "again": lambda: Completed(name="Again", message="it was not done and runs again; the step's receipt names who said so"),
    "abort": lambda: Cancelled(name="Abort", message="the run ends here; the step's receipt names who said so"),
}
_UNANSWERED = {"expired": "nobody answered", "superseded": "a new version replaced what was asked about"}

ApprovalOf: TypeAlias = Callable[[str], Awaitable[Approval | None]]
"""Returns the answer that closed the gate with this id, as `PlanStore.gates.answer_to` does."""


async def show_gate_form(pending: PendingGate, *, poll_seconds: float = POLL_SECONDS, approval_of: ApprovalOf | None = None) -> None:
    """Show the form of a gate until the gate is closed, by an answer in the form or in any other way.

    Call this in the context of a flow run. It returns up to a few seconds after `pending.closed`, when Prefect shows the flow run as
    Running again: start steps without waiting for it, but await it before the flow run ends. If the server is unavailable, it waits.
    `approval_of` lets the pages of step gates show who answered. Raises GateCancelledError if someone cancelled the flow run.

    Under a worker, at the gate of a plan that asks for release, it raises Prefect's `Pause` instead of waiting: let it propagate out of the
    flow so that the process ends. Whoever closes the gate calls `gate_forms.resume_released`. The caller must also call it before it lets
    `Pause` propagate if the row was closed in the meantime.
    """
    flow = FlowRunContext.get()
    if flow is None or flow.flow_run is None or not isinstance(flow.client, PrefectClient):
        raise RuntimeError("a form can only be shown inside a running flow")
    if pending.request.step_id is None:
        write_log, publishing = log_writer(flow), asyncio.create_task(_publish(pending.request))
        if pending.request.gate_policy.release and flow.flow_run.deployment_id is not None and in_flow_run_process():
            await asyncio.wait({publishing}, timeout=FINISH_SECONDS)
            await release(pending, flow.flow_run.id, flow.client, write_log)
        prompt = Prompt(pending, flow.flow_run.id, flow.client, poll_seconds=poll_seconds, write_log=write_log)
        try:
            await _ask_on_run_page(prompt, pending, approval_of, write_log)
        finally:
            await asyncio.wait({publishing}, timeout=FINISH_SECONDS)
            publishing.cancel()
    else:
        await _StepGate(pending, flow, poll_seconds=poll_seconds, approval_of=approval_of).run()


async def _publish(request: ApprovalRequest) -> None:
    """Publish the full text as an artifact of the run, with the picture that a form does not show."""
    await publish_text(request.text, key=ARTIFACT, description="What the plan's gate asks, with a picture of the order of steps")


async def _ask_on_run_page(prompt: Prompt, pending: PendingGate, approval_of: ApprovalOf | None, write_log: LogWriter) -> None:
    try:
        await prompt.ask()
    finally:
        if pending.closed.done():  # also when this is cancelled because the gate is closed
            end = (await _closing_state(pending, approval_of)).message or "answered"
            write_log(end)
            await prompt.end(end)


class _StepGate:
    """A step gate: a subflow of the current flow run, with its own page and form."""

    def __init__(self, pending: PendingGate, parent: FlowRunContext, *, poll_seconds: float, approval_of: ApprovalOf | None) -> None:
        self._pending = pending
        self._parent = parent
        self._poll_seconds = poll_seconds
        self._approval_of = approval_of
        self._prompt: Prompt | None = None
        self._stopped = False
        self._error: Exception | None = None

    async def run(self) -> None:
        """Ask until the gate is closed. On cancellation, first end the subflow as Cancelled; Prefect alone would mark it as Crashed."""
        flow = asyncio.create_task(self._run_flow())
        closed = asyncio.ensure_future(_wait_until_closed(self._pending.closed))
        try:
            await asyncio.wait({flow, closed}, return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            self._stop()
            raise
        finally:
            closed.cancel()
            await asyncio.wait({flow}, timeout=FINISH_SECONDS)
            if not flow.done():  # the server is unavailable
                flow.cancel()
                await asyncio.wait({flow}, timeout=FINISH_SECONDS)
        if flow.done() and not flow.cancelled():
            flow.result()

    def _stop(self) -> None:
        self._stopped = True
        if self._prompt is not None:
            self._prompt.finished.set()

    async def _run_flow(self) -> None:
        """Run the subflow, and retry if the server was unavailable. Raises what asking raised."""
        wait = FIRST_WAIT
        while not (self._pending.closed.done() or self._stopped):
            try:
                await self._build_flow()(return_state=True)
            except SERVER_ERRORS as error:
                log.warning("the form of step %s cannot be shown (%s); retrying", self._pending.request.step_id, type(error).__name__)
                await asyncio.wait({self._pending.closed}, timeout=wait)
                wait = min(2 * wait, LONGEST_WAIT)
                continue
            if self._error is not None:
                raise self._error
            return

    def _build_flow(self) -> Flow[..., Any]:
        request = self._pending.request
        step, verb = called_step(request), _VERBS[request.kind]

        async def approve() -> State:
            return await self._ask()

        # Prefect identifies a subflow's task run by this name. A resumed run thus finds its own page, and no gate finds another gate's
        # page.
        approve.__qualname__ = approve.__name__ = f"approve_{(request.gate_id or step).replace('-', '')}"
        return Flow(
            approve,
            name=safe_name(f"{verb} {step}"),
            flow_run_name=lambda: safe_name(f"{verb} {step} of {request.name}"),
            description=paragraphs(request.description),
            persist_result=False,
            retries=0,
            log_prints=False,
            validate_parameters=False,
        )

    async def _ask(self) -> State:
        """Ask inside the subflow, whose context must be current, and return its final state."""
        subflow = FlowRunContext.get()
        assert subflow is not None and subflow.flow_run is not None and isinstance(subflow.client, PrefectClient)
        step, write_log = called_step(self._pending.request), log_writer(subflow)
        write_run_log = log_writer(self._parent)

        def write_both_logs(message: str) -> None:
            write_log(message)
            write_run_log(f"`{_VERBS[self._pending.request.kind]} {step}`, under Subflow Runs: {message}")

        self._prompt = Prompt(
            self._pending, subflow.flow_run.id, subflow.client, poll_seconds=self._poll_seconds, write_log=write_both_logs
        )
        if self._stopped:
            self._prompt.finished.set()
        try:
            await _end_earlier_pages(self._pending.request, self._parent, subflow.flow_run.id, subflow.client)
            await self._prompt.ask()
        except GateCancelledError as error:
            self._error = error
            return Cancelled(message=state_message(error.reason))
        except Exception as error:  # raised after Prefect has ended the subflow, so that no traceback is logged
            self._error = error
            return Failed(message=state_message(str(error)))
        if self._stopped:
            return Cancelled(message="the run was stopped while it waited here")
        await asyncio.wait({self._pending.closed}, timeout=FINISH_SECONDS)
        end = await _closing_state(self._pending, self._approval_of)
        write_both_logs(end.message or "answered")
        return end


async def _wait_until_closed(closed: "asyncio.Future[Gate]") -> None:
    await asyncio.wait({closed})


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
    approval = None
    if approval_of is not None:
        try:
            approval = await approval_of(gate.id)
        except Exception as error:
            log.info("the answer of gate %s cannot be read: %s", gate.id, error)
    if approval is None:
        return Completed(name="Answered", message="answered")
    name = "Answered" if approval.result is not None else _DECISION_STATE_NAMES[approval.decision]
    message = f"{name} by {one_line(approval.by)} ({approval.known_by})"
    if approval.note:
        message += f": {one_line(approval.note)[:MAX_NOTE_CHARACTERS]}"
    if approval.decision == "approve":
        return Completed(name=name, message=state_message(message))
    return Cancelled(name=name, message=state_message(message))


async def _end_earlier_pages(request: ApprovalRequest, parent: FlowRunContext, own_id: UUID, client: PrefectClient) -> None:
    """End other pages of the same gate that a killed process left open. Nothing reads their answers."""
    if parent.flow_run is None or parent.flow_run.run_count < 2:
        return
    waiting = FlowRunFilter.model_validate(
        {"parent_flow_run_id": {"any_": [parent.flow_run.id]}, "state": {"type": {"any_": [StateType.PAUSED]}}}
    )
    try:
        for flow_run in await client.read_flow_runs(flow_run_filter=waiting):
            labels = read_labels(flow_run.labels)
            if flow_run.id != own_id and labels is not None and labels.gate_id == request.gate_id:
                superseded = Cancelled(name="Superseded", message="superseded: a later start of the run asks on another page")
                await client.set_flow_run_state(flow_run.id, superseded, force=True)
    except SERVER_ERRORS as error:
        log.info("earlier pages of gate %s were not ended: %s", request.gate_id, type(error).__name__)
