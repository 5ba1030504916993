"""How gates are opened and described, and what a gate needs from the flow engine and from people."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Literal, Protocol, runtime_checkable

from plan_adapter.gates.approval import PendingGate
from plan_adapter.model.approvals import ANSWERED, Answer, Approval, ApprovalRequest, Gate, GateKind, GatePolicy
from plan_adapter.model.options import CallKind, Input
from plan_adapter.model.plan import new_id
from plan_adapter.model.readable import duration, one_line
from plan_adapter.model.record import PlanRun, Receipt

GateEventKind = Literal["opened", "answered", "expired", "reminder", "escalated"]


def escalation_text(gate_policy: GatePolicy) -> str:
    """Return the message of the event that a gate has escalated: for how long nobody answered, and who may answer as well."""
    names = " and ".join(map(one_line, gate_policy.escalate_to)) or "nobody else"
    return f"nobody has answered for {duration(gate_policy.escalate_after_ms)}: {names} may answer as well"


@runtime_checkable
class CanAskOutcomes(Protocol):
    """An approver that can also be asked how a call ended: a person."""

    async def ask_outcome(self, request: ApprovalRequest) -> Answer | None:
        """Return the answer, or None if nobody is there to give one."""
        ...


@dataclass(frozen=True, slots=True)
class GateForms:
    """What a gate needs from the flow engine."""

    ask: Callable[[PendingGate], Awaitable[str | None]]
    """Shows a gate as a form until it is closed, and restores the state of the flow run afterwards.

    Returns why somebody cancelled the run there, else None.
    """
    collect: Callable[[Gate], Awaitable[Answer | None]]
    """Returns an answer that a form received while nobody waited for it. Raises NotApprovedError if the answer is incomplete."""
    emit: Callable[[GateEventKind, Gate, PlanRun, str | None, Approval | None], None]
    """Sends an event. May take a moment."""
    publish: Callable[[Gate], Awaitable[None]]
    """Stores the text of a gate where the run's page shows it."""
    resume_released: Callable[[Gate, Approval], Awaitable[None]]
    """Lets a run that released its worker start again."""
    is_private: Callable[[], Awaitable[bool]]
    """Returns whether only people who signed in to the server can read and answer forms."""
    leave_open: Callable[[PendingGate], Awaitable[None]] | None = None
    """Leaves the plan gate's form open after this process ends. The flow run must then end as waiting."""


def new_gate(
    run: PlanRun,
    *,
    approval_digest: str,
    description: str,
    text: str,
    gate_policy: GatePolicy,
    step_id: str | None = None,
    item: int | None = None,
    label: str | None = None,
    kind: GateKind = "approval",
    call_kind: CallKind = "step",
    fields: Mapping[str, Input] | None = None,
) -> Gate:
    """Return a gate to be opened. The store sets its times."""
    return Gate(
        id=new_id(),
        run_id=run.id,
        step_id=step_id,
        item=item,
        label=label,
        approval_digest=approval_digest,
        name=run.name,
        description=description,
        text=text,
        gate_policy=gate_policy,
        opened_at=run.created_at,
        kind=kind,
        call_kind=call_kind,
        fields=fields or {},
    )


def request_of(gate: Gate) -> ApprovalRequest:
    """Return the request that approvers receive at `gate`."""
    return ApprovalRequest(
        approval_digest=gate.approval_digest,
        name=gate.name,
        description=gate.description,
        text=gate.text,
        run_id=gate.run_id,
        step_id=gate.step_id,
        item=gate.item,
        label=gate.label,
        gate_id=gate.id,
        opened_at=gate.opened_at,
        expires_at=gate.expires_at,
        gate_policy=gate.gate_policy,
        kind=gate.kind,
        call_kind=gate.call_kind,
        fields=gate.fields,
        agreements=gate.agreements,
    )


def expiry_message(gate: Gate) -> str:
    """Return the message for the expired `gate` that nobody answered."""
    limit = duration((gate.expires_at - gate.opened_at).total_seconds() * 1000) if gate.expires_at is not None else "the time limit"
    return f"nobody answered within {limit}"


def closing_message(gate: Gate, answer: Approval | None, resolution: Receipt | None) -> str:
    """Return how the closed `gate` was answered, in words: by an approval, by the receipt of a resolution, or not at all."""
    if resolution is not None:
        return f"{gate.end}, recorded by {resolution.by} ({resolution.known_by})" + (f": {resolution.note}" if resolution.note else "")
    if answer is None:
        return expiry_message(gate) if gate.end == "expired" else gate.end or ""
    verb = "answered" if gate.kind == "question" and answer.decision == "approve" else ANSWERED[answer.decision]
    return f"{verb} by {answer.givers}" + (f": {answer.notes}" if answer.notes else "")


def changes_text(answer: Approval) -> str:
    """Return who asks for changes, with their note."""
    return f"{answer.by} asks for changes" + (f": {answer.note}" if answer.note else "")
