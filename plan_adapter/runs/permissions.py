"""Checks who is allowed to do what with a recorded run. Refusals name who is allowed, and are written to the audit log."""

from dataclasses import replace

from plan_adapter.approvals import Decision, GatePolicy
from plan_adapter.errors import NotApprovedError
from plan_adapter.gates.approval import Operation, gate_policy_of, refusal, refuse_operation
from plan_adapter.gates.identity import Identity, identity_of_name
from plan_adapter.options import KnownBy
from plan_adapter.plan import ExecutionPlan
from plan_adapter.record import PlanRun
from plan_adapter.runs.session import RunRequest
from plan_adapter.settings import Settings
from plan_adapter.store.store import PlanStore


async def require_operator(
    plan: ExecutionPlan, run: PlanRun, store: PlanStore, settings: Settings, *, by: str, operation: Operation
) -> None:
    """Raise NotApprovedError if `by` is not allowed to perform `operation` on `run`. The refusal is written to the audit log."""
    try:
        refuse_operation(plan, await store.policy.effective(settings), by=by, operation=operation)
    except NotApprovedError as error:
        await store.ledger.record_refusal(run.id, str(error), by=by)
        raise


async def require_approver(
    plan: ExecutionPlan,
    run: PlanRun,
    store: PlanStore,
    settings: Settings,
    *,
    identity: Identity,
    decision: Decision,
    step_id: str,
    doing: str,
) -> None:
    """Raise NotApprovedError if `identity` is not allowed to answer about a step of `plan`. The refusal is written to the audit log.

    `doing` begins the error message.
    """
    gate_policy = gate_policy_of(plan, await store.policy.effective(settings), requested_by=run.requested_by or "", step_id=step_id)
    if (why := refusal(gate_policy, identity, decision=decision)) is not None:
        await store.ledger.record_refusal(run.id, f"{doing}: {why}", by=identity.by, known_by=identity.known_by)
        raise NotApprovedError(f"{doing}: {why}")


async def require_resume_operator(run: PlanRun, plan: ExecutionPlan, store: PlanStore, run_request: RunRequest) -> None:
    """Raise NotApprovedError if the caller is not allowed to resume `run`. The refusal is written to the audit log."""
    await require_operator(plan, run, store, run_request.settings, by=run_request.operator, operation="resume")


def proof_options(gate_policy: GatePolicy, command: str, *, by: str, decision: Decision) -> str:
    """Return which options would make `command` acceptable, as the end of an error message; empty if no option would."""
    options = [option for proof, option in _PROOFS.items() if gate_policy.known_by is None or proof in gate_policy.known_by]
    if not options:
        return ""
    needs_name = refusal(replace(gate_policy, known_by=None), identity_of_name(by), decision=decision) is not None
    return f"; use `{command}` with {' or '.join(options)}{' and --by NAME' if needs_name else ''}"


_PROOFS: dict[KnownBy, str] = {"ssh_signature": "--sign", "totp": "--code"}
