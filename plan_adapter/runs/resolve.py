"""Resolutions of unknown outcomes that are given outside a gate: what they are bound to, and who is allowed to give them."""

from plan_adapter.approvals import Answer, ApprovalRequest, Resolution
from plan_adapter.commands import resolve_command
from plan_adapter.errors import NotApprovedError
from plan_adapter.gates.approval import gate_policy_of
from plan_adapter.gates.identity import ProofContext, verify_answer
from plan_adapter.options import CallKind
from plan_adapter.readable import call_name, one_line
from plan_adapter.record import PlanRun
from plan_adapter.runs.permissions import proof_options
from plan_adapter.settings import Settings
from plan_adapter.store.outcomes import ResolutionRecord
from plan_adapter.store.store import PlanStore


async def resolution_request(
    run: PlanRun,
    step_id: str,
    resolution: Resolution,
    store: PlanStore,
    settings: Settings,
    *,
    item: int | None = None,
    label: str | None = None,
    kind: CallKind = "step",
) -> ApprovalRequest:
    """Return the request that a resolution of a step, or of its rollback, answers: the content that it is bound to, and the gate policy.

    Raises RunConflictError if this resolution is not possible.
    """
    plan = await store.get(run.digest)
    return ApprovalRequest(
        approval_digest=await store.outcomes.digest_of(run.id, step_id, resolution, item=item, kind=kind),
        name=run.name,
        description="",
        text="",
        run_id=run.id,
        step_id=step_id,
        item=item,
        label=label,
        gate_policy=gate_policy_of(plan, await store.policy.effective(settings), requested_by=run.requested_by or "", step_id=step_id),
        kind="outcome",
        call_kind=kind,
    )


async def verify_resolution(answer: Answer, request: ApprovalRequest, store: PlanStore, settings: Settings) -> ResolutionRecord:
    """Return `answer` as a resolution for the store, with its identity verified and allowed.

    Raises NotApprovedError, which is also written to the run's audit log.
    """
    assert answer.decision in ("done", "again", "abort")
    try:
        identity = await verify_answer(answer, request, ProofContext(await store.policy.effective(settings), settings, store.codes))
    except NotApprovedError as error:
        message = f"`{one_line(call_name(request.step_id or '', None, kind=request.call_kind))}` is not resolved: {error}"
        await store.ledger.record_refusal(request.run_id or "", message, by=answer.by, known_by=answer.channel)
        unit = (request.step_id or "", request.item)
        command = resolve_command(request.run_id or "", unit, answer.decision, label=request.label, kind=request.call_kind)
        has_proof = answer.code is not None or answer.signature is not None
        hint = "" if has_proof else proof_options(request.gate_policy, command, by=answer.by, decision="reject")
        raise NotApprovedError(message + hint) from error
    return ResolutionRecord(
        answer.decision,
        answer.by,
        identity.known_by,
        answer.note,
        answer.result,
        digest=request.approval_digest,
        signature=answer.signature,
    )
