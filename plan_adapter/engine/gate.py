"""Shows gates in Prefect: as forms while the process waits, or with `release`, which frees the worker until someone answers."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any, TypeAlias
from uuid import UUID, uuid4

from prefect import Flow
from prefect.client.orchestration import PrefectClient
from prefect.client.schemas.filters import FlowRunFilter
from prefect.client.schemas.objects import State, StateType
from prefect.client.schemas.responses import SetStateStatus
from prefect.context import FlowRunContext
from prefect.exceptions import Pause
from prefect.input import keyset_from_base_key
from prefect.states import Cancelled, Completed, Failed, Suspended

from plan_adapter.approvals import Approval, ApprovalRequest, Decision, Gate, GateKind
from plan_adapter.engine.connection import under_worker
from plan_adapter.engine.form import ARTIFACT, description_of, form_of
from plan_adapter.engine.gate_display import Tell, labels_of, place_of, publish_text, read_labels, teller, waiting
from plan_adapter.engine.gate_prompt import FIRST_WAIT, LAST_WORD_SECONDS, LONGEST_WAIT, TROUBLE, GateCancelledError, Prompt, takes_codes
from plan_adapter.gates.approval import Asking
from plan_adapter.readable import one_line, prose, safe_name

log = logging.getLogger(__name__)

MAX_NAME_CHARACTERS = 200
LOOK_SECONDS = 0.5
"""How long to wait for a gate that may have been closed before the run got here."""


async def release(asking: Asking, flow_run_id: UUID, client: PrefectClient, tell: Tell) -> None:
    """Suspend the current flow run with its gate's form by raising Prefect's `Pause`, so that Prefect's engine ends the process.

    When resumed, the flow run starts again from its first line, and `gate_forms.collected_answer` returns the answer. Returns normally, so
    that the caller waits as usual, if the gate is already closed or Prefect cannot suspend the flow run.

    This makes the calls of `prefect.suspend_flow_run`, which sets no state message, in a different order: it writes the form first.
    """
    request, key = asking.request, uuid4().hex
    keyset = f"suspended-{key}"
    says = f"`{one_line(request.name)[:MAX_NAME_CHARACTERS]}` {waiting(request)}; it gives its worker back until then"
    suspended = Suspended(pause_key=key, message=says)
    suspended.state_details.run_input_keyset = {str(part): name for part, name in keyset_from_base_key(keyset).items()}
    try:
        await client.update_flow_run_labels(flow_run_id, labels_of(request, keyset, request.refused))
    except TROUBLE as error:
        log.warning("flow run %s keeps its worker while it waits: %s", flow_run_id, type(error).__name__)
        return
    await asking.shown(flow_run_id=str(flow_run_id), keyset=keyset)  # first, because the process is gone afterwards
    await asyncio.wait({asking.closed}, timeout=LOOK_SECONDS)
    if asking.closed.done():
        return
    tell(says)
    # Pass only the description: other initial data would replace what the fields describe themselves.
    private = await takes_codes(request)
    text = description_of(request, refused=request.refused, takes_codes=private)
    form = form_of(request, takes_codes=private).with_initial_data(description=text)
    try:
        await form.asave(keyset_from_base_key(keyset), flow_run_id)
        result = await client.set_flow_run_state(flow_run_id, suspended)
    except TROUBLE as error:
        log.warning("flow run %s keeps its worker while it waits: %s", flow_run_id, error)
        return
    if result.status is SetStateStatus.ACCEPT:
        raise Pause(state=result.state or suspended)
    log.warning("flow run %s keeps its worker while it waits: %s", flow_run_id, getattr(result.details, "reason", None) or result.status)


POLL_SECONDS = 1.0
MAX_NOTE_CHARACTERS = 500
_NAMES: dict[Decision, str] = {"approve": "Approved", "reject": "Rejected", "request_changes": "ChangesRequested"}

_VERBS: dict[GateKind, str] = {"approval": "approve", "question": "answer", "outcome": "resolve"}
_RESOLUTION_STATES: dict[str, Callable[[], State]] = {
    "done": lambda: Completed(name="Done", message="it was done; the receipt of the step says by whom"),
    "again": lambda: Completed(name="Again", message="it was not done, and is made again; the receipt of the step says by whom"),
    "abort": lambda: Cancelled(name="Abort", message="the run is to end here; the receipt of the step says by whom"),
}
_UNANSWERED = {"expired": "nobody answered", "superseded": "a new version takes the place of what was asked about"}

ApprovalOf: TypeAlias = Callable[[str], Awaitable[Approval | None]]
"""Returns the answer that closed the gate with this id, as `PlanStore.gates.answer_to` does."""


async def ask_in_form(asking: Asking, *, poll_seconds: float = POLL_SECONDS, approval_of: ApprovalOf | None = None) -> None:
    """Show the form of a gate until the gate is closed, by an answer in the form or in any other way.

    Call this in the context of a flow run. It returns up to a few seconds after `asking.closed`, when Prefect shows the flow run as Running
    again: start steps without waiting for it, but await it before the flow run ends. If the server is unavailable, it waits. `approval_of`
    lets step gates' pages show who answered. Raises GateCancelledError if someone cancelled the flow run.

    Under a worker, at the gate of a plan that asks for release, it raises Prefect's `Pause` instead of waiting: let it propagate out of the
    flow so that the process ends. Whoever closes the gate calls `gate_forms.resume_released`. The caller must also call it before it lets
    `Pause` propagate if the row was closed in the meantime.
    """
    flow = FlowRunContext.get()
    if flow is None or flow.flow_run is None or not isinstance(flow.client, PrefectClient):
        raise RuntimeError("a form is shown inside a running flow")
    if asking.request.step_id is None:
        tell, published = teller(flow), asyncio.create_task(_publish(asking.request))
        if asking.request.rules.release and flow.flow_run.deployment_id is not None and under_worker():
            await asyncio.wait({published}, timeout=LAST_WORD_SECONDS)
            await release(asking, flow.flow_run.id, flow.client, tell)
        prompt = Prompt(asking, flow.flow_run.id, flow.client, poll_seconds=poll_seconds, tell=tell)
        try:
            await _on_page_of_run(prompt, asking, approval_of, tell)
        finally:
            await asyncio.wait({published}, timeout=LAST_WORD_SECONDS)
            published.cancel()
    else:
        await _StepGate(asking, flow, poll_seconds=poll_seconds, approval_of=approval_of).run()


async def _publish(request: ApprovalRequest) -> None:
    """Publish the full text, with the picture that a form does not show, as an artifact of the run."""
    await publish_text(request.text, key=ARTIFACT, description="What was asked at the plan's gate, with a picture of the order")


async def _on_page_of_run(prompt: Prompt, asking: Asking, approval_of: ApprovalOf | None, tell: Tell) -> None:
    try:
        await prompt.ask()
    finally:
        if asking.closed.done():  # also when this is cancelled because the gate is closed
            end = (await _end_of(asking, approval_of)).message or "answered"
            tell(end)
            await prompt.end(end)


class _StepGate:
    """A step gate: a subflow of the current flow run, with its own page and form."""

    def __init__(self, asking: Asking, parent: FlowRunContext, *, poll_seconds: float, approval_of: ApprovalOf | None) -> None:
        self._asking = asking
        self._parent = parent
        self._poll_seconds = poll_seconds
        self._approval_of = approval_of
        self._prompt: Prompt | None = None
        self._stopped = False
        self._raised: Exception | None = None

    async def run(self) -> None:
        """Ask until the gate is closed. On cancellation, first end the subflow as Cancelled; Prefect alone would mark it as Crashed."""
        flow = asyncio.create_task(self._run_flow())
        closed = asyncio.ensure_future(_settled(self._asking.closed))
        try:
            await asyncio.wait({flow, closed}, return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            self._stop()
            raise
        finally:
            closed.cancel()
            await asyncio.wait({flow}, timeout=LAST_WORD_SECONDS)
            if not flow.done():  # the server is unavailable
                flow.cancel()
                await asyncio.wait({flow}, timeout=LAST_WORD_SECONDS)
        if flow.done() and not flow.cancelled():
            flow.result()

    def _stop(self) -> None:
        self._stopped = True
        if self._prompt is not None:
            self._prompt.over.set()

    async def _run_flow(self) -> None:
        """Run the subflow, and retry if the server was unavailable. Raises what asking raised."""
        wait = FIRST_WAIT
        while not (self._asking.closed.done() or self._stopped):
            try:
                await self._flow()(return_state=True)
            except TROUBLE as error:
                log.warning("the form of step %s cannot be shown (%s); tried again", self._asking.request.step_id, type(error).__name__)
                await asyncio.wait({self._asking.closed}, timeout=wait)
                wait = min(2 * wait, LONGEST_WAIT)
                continue
            if self._raised is not None:
                raise self._raised
            return

    def _flow(self) -> Flow[..., Any]:
        request = self._asking.request
        step, verb = place_of(request), _VERBS[request.kind]

        async def approve() -> State:
            return await self._ask()

        # Prefect identifies a subflow's task run by this name. A resumed run thus finds its own page, and no gate finds another gate's
        # page.
        approve.__qualname__ = approve.__name__ = f"approve_{(request.gate_id or step).replace('-', '')}"
        return Flow(
            approve,
            name=safe_name(f"{verb} {step}"),
            flow_run_name=lambda: safe_name(f"{verb} {step} of {request.name}"),
            description=prose(request.description),
            persist_result=False,
            retries=0,
            log_prints=False,
            validate_parameters=False,
        )

    async def _ask(self) -> State:
        """Ask inside the subflow, whose context must be current, and return its final state."""
        own = FlowRunContext.get()
        assert own is not None and own.flow_run is not None and isinstance(own.client, PrefectClient)
        step, tell = place_of(self._asking.request), teller(own)
        tell_run = teller(self._parent)

        def tell_both(said: str) -> None:
            tell(said)
            tell_run(f"`{_VERBS[self._asking.request.kind]} {step}`, under Subflow Runs: {said}")

        self._prompt = Prompt(self._asking, own.flow_run.id, own.client, poll_seconds=self._poll_seconds, tell=tell_both)
        if self._stopped:
            self._prompt.over.set()
        try:
            await _end_earlier(self._asking.request, self._parent, own.flow_run.id, own.client)
            await self._prompt.ask()
        except GateCancelledError as error:
            self._raised = error
            return Cancelled(message=error.reason)
        except Exception as error:  # raised after Prefect has ended the subflow, so that no traceback is logged
            self._raised = error
            return Failed(message=one_line(str(error))[:MAX_NOTE_CHARACTERS])
        if self._stopped:
            return Cancelled(message="the run was stopped while it waited here")
        await asyncio.wait({self._asking.closed}, timeout=LAST_WORD_SECONDS)
        end = await _end_of(self._asking, self._approval_of)
        tell_both(end.message or "answered")
        return end


async def _settled(closed: "asyncio.Future[Gate]") -> None:
    await asyncio.wait({closed})


async def _end_of(asking: Asking, approval_of: ApprovalOf | None) -> State:
    """Return how the gate ended as a final state. Its name gives the outcome; its message says who answered and why."""
    gate = asking.closed.result() if asking.closed.done() else None
    if gate is not None and gate.end in _RESOLUTION_STATES:
        return _RESOLUTION_STATES[gate.end]()
    if gate is not None and gate.end is None:
        return Cancelled(name="Left", message="left: no process waits here any more; `plan gates` says how it is answered")
    if gate is None or gate.end != "answered":
        end = "cancelled" if gate is None else gate.end or "cancelled"
        return Cancelled(name=end.capitalize(), message=f"{end}: {_UNANSWERED.get(end, 'the run ends')}")
    approval = None
    if approval_of is not None:
        try:
            approval = await approval_of(gate.id)
        except Exception as error:
            log.info("who answered at gate %s cannot be read: %s", gate.id, error)
    if approval is None:
        return Completed(name="Answered", message="answered")
    name = "Answered" if approval.result is not None else _NAMES[approval.decision]
    message = f"{name} by {one_line(approval.by)} ({approval.known_by})"
    if approval.note:
        message += f": {one_line(approval.note)[:MAX_NOTE_CHARACTERS]}"
    if approval.decision == "approve":
        return Completed(name=name, message=message)
    return Cancelled(name=name, message=message)


async def _end_earlier(request: ApprovalRequest, parent: FlowRunContext, own_id: UUID, client: PrefectClient) -> None:
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
                over = Cancelled(name="Superseded", message="superseded: a later start of the run asks on another page")
                await client.set_flow_run_state(flow_run.id, over, force=True)
    except TROUBLE as error:
        log.info("earlier pages of gate %s were not ended: %s", request.gate_id, type(error).__name__)
