"""`GateAnswers`: checks who answers at a gate, and whether an earlier approval still satisfies the current policy."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace

from pydantic import JsonValue

from plan_adapter.gates.approval import as_far_as, refusal, why_not_delegated, why_not_taken_back, with_current_policy, with_delegator
from plan_adapter.gates.gate import changes_text
from plan_adapter.gates.identity import (
    Identity,
    ProofContext,
    agreements_that_count,
    approval_from,
    identity_of_given,
    is_signed,
    recheck_agreement,
    recheck_signature,
    recorded_identity,
    verify_answer,
)
from plan_adapter.gates.policy import EffectivePolicy
from plan_adapter.gates.quorum import why_too_few
from plan_adapter.local.settings import Settings
from plan_adapter.model.approvals import (
    DELEGATE,
    TAKE_BACK,
    Answer,
    Approval,
    ApprovalRequest,
    Delegation,
    DelegationKind,
    Gate,
    GatePolicy,
    followed_by,
)
from plan_adapter.model.errors import InvalidAnswerError, NotApprovedError
from plan_adapter.model.plan import ExecutionPlan, new_id
from plan_adapter.model.record import PlanRun, Receipt
from plan_adapter.runs.frozen import overridden_by
from plan_adapter.runs.gate_policies import authors_at, gate_policy_at
from plan_adapter.store.outcomes import ResolutionRecord
from plan_adapter.store.redaction import without_secrets
from plan_adapter.store.store import PlanStore
from plan_adapter.text.commands import open_form_notice

log = logging.getLogger(__name__)


async def why_stale(answer: Approval, plan: ExecutionPlan, run: PlanRun, store: PlanStore, settings: Settings) -> str | None:
    """Return why `answer` is a stale approval, or None. Only an unused approval from a gate can be stale.

    The policy, groups and allowed signers may have changed since the answer, or may differ in the process that took it. Of several
    approvals at its gate, those count that the policy would accept today.
    """
    if answer.decision != "approve" or answer.gate_id is None or answer.used_at is not None:
        return None
    return await _why_stale_under(await store.policy.effective(settings), answer, answer.gate_id, plan, run, store)


async def _why_stale_under(
    policy: EffectivePolicy, answer: Approval, gate_id: str, plan: ExecutionPlan, run: PlanRun, store: PlanStore
) -> str | None:
    kind = "approval" if answer.result is None else "question"
    overrides = await overridden_by(answer, store) if policy.stored.freezes else ()
    gate_policy = await gate_policy_at(plan, run, store, policy, step_id=answer.step_id, kind=kind, overrides=overrides)
    if gate_policy.escalate_after_ms or gate_policy.delegate:
        gate_policy = as_far_as(gate_policy, policy, (await store.gates.get(gate_id)).gate_policy)
    if (reason := refusal(gate_policy, recorded_identity(answer), decision=answer.decision)) is not None:
        return reason
    if is_signed(answer):
        try:
            await asyncio.to_thread(recheck_signature, answer, await store.gates.get(gate_id), policy)
        except NotApprovedError as error:
            return str(error)
    return None if gate_policy.quorum == 1 else await _why_too_few(gate_policy, policy, answer, gate_id, store)


async def _why_too_few(gate_policy: GatePolicy, policy: EffectivePolicy, answer: Approval, gate_id: str, store: PlanStore) -> str | None:
    """Return why too few people approved with `answer` and before it at its gate, as the policy is now, or None."""
    gate, people = await store.gates.get(gate_id), list[str]()
    for agreement in agreements_that_count(gate_policy, answer.agreements, approval_digest=answer.approval_digest):
        try:
            await asyncio.to_thread(recheck_agreement, agreement, gate, policy)
        except NotApprovedError as error:
            log.info("an approval by %s at gate %s no longer counts: %s", agreement.by, gate_id, error)
        else:
            people.append(agreement.by)
    return why_too_few(gate_policy, [*people, answer.by])


async def earlier_answer_notices(
    answers: Sequence[Approval], plan: ExecutionPlan, run: PlanRun, store: PlanStore, settings: Settings
) -> tuple[list[str], list[str]]:
    """Return two lists of messages: who asked for changes, and which approvals are stale and why."""
    changes = [changes_text(row) for row in answers if row.decision == "request_changes"]
    stale = list[str]()
    for row in answers:
        if (why := await why_stale(row, plan, run, store, settings)) is not None:
            stale.append(f"the approval by {row.by} is stale: {why}")
    return changes, stale


@dataclass(slots=True)
class GateAnswers:
    """Verifies and records the answers at the gates of one run, whether they come from a form, a terminal or a command."""

    store: PlanStore
    settings: Settings
    forms_are_private: Callable[[], Awaitable[bool]] | None = None  # whether the forms require a login; None: no forms
    redact: Callable[[JsonValue], JsonValue] = lambda value: value  # redacts secrets in notes and results
    signed_in: Identity | None = None  # of the person who signed in to answer

    async def close(self, gate: Gate, answer: Answer, request: ApprovalRequest) -> Gate:
        """Verify `answer`, close `gate` with it, and return the closed gate.

        It is still open if it needs more approvals, or if an approver lets another person answer or takes that back. Raises
        NotApprovedError if the answer is refused, and RunConflictError if another answer came first.
        """
        if answer.decision in (DELEGATE, TAKE_BACK):
            return await self.store.gates.delegate(await self._verify_delegation(answer, request, answer.decision))
        if gate.kind != "outcome" or gate.step_id is None:
            approval, gate_policy = await self._verify_approval(answer, request)
            return await self.store.gates.answer(gate.id, approval, gate_policy=gate_policy)
        await self.store.outcomes.resolve(
            gate.run_id, gate.step_id, await self._verify_resolution(answer, request), item=gate.item, kind=gate.call_kind
        )
        return await self.store.gates.get(gate.id)

    async def identify(self, approval: Approval, request: ApprovalRequest) -> tuple[Identity, GatePolicy]:
        """Return the identity behind an approval that a program here passed, as far as it can be checked, and what it must satisfy now.

        Raises NotApprovedError.
        """
        policy = await self.store.policy.effective(self.settings)
        identity = await asyncio.to_thread(identity_of_given, approval, request, policy)
        return identity, await self._gate_policy_under(policy, request)

    async def policy_of(self, request: ApprovalRequest) -> GatePolicy:
        """Return the gate policy of `request` as it is now."""
        return await self._gate_policy_under(await self.store.policy.effective(self.settings), request)

    async def _gate_policy_under(self, policy: EffectivePolicy, request: ApprovalRequest) -> GatePolicy:
        """Return the gate policy of `request` as it is now: the one that the gate opened with, and the store's of today if it has one."""
        gate_policy = request.gate_policy
        if request.gate_id is not None and (gate_policy.escalate_after_ms or gate_policy.delegate):  # it changes while the gate waits
            gate_policy = (await self.store.gates.get(request.gate_id)).gate_policy
        if policy.number is None or request.run_id is None:
            return gate_policy
        run = await self.store.run(request.run_id, with_steps=False)
        plan = await self.store.get(run.digest)
        authors = await authors_at(plan, self.store, policy, step_id=request.step_id, requested_by=run.requested_by or "", run_id=run.id)
        return with_current_policy(gate_policy, plan, policy, step_id=request.step_id, kind=request.kind, authors=authors)

    async def resolution_at(self, gate: Gate) -> Receipt | None:
        """Return the receipt with the resolution that closed `gate`, or None if it is open or not an outcome gate."""
        if gate.kind != "outcome" or gate.closed_at is None:
            return None
        call = (gate.step_id, gate.item, gate.call_kind)
        receipts = [row for row in await self.store.receipts(gate.run_id) if (row.step_id, row.item, row.kind) == call]
        return next((row for row in receipts if row.ended_at == gate.closed_at and row.by is not None), None)

    async def _verify_approval(self, answer: Answer, request: ApprovalRequest) -> tuple[Approval, GatePolicy]:
        """Return `answer` as an approval, with its identity verified and allowed, and the gate policy. Raises NotApprovedError."""
        await self._refuse_open_form(answer, request)
        proof_context = await self._proof_context()
        gate_policy = await self._gate_policy_under(proof_context.policy, request)
        approval = await approval_from(answer, replace(request, gate_policy=gate_policy), proof_context)
        return without_secrets(approval, self.redact), gate_policy

    async def _verify_delegation(self, answer: Answer, request: ApprovalRequest, decision: DelegationKind) -> Delegation:
        """Return `answer` as a delegation, or as the end of one, with its identity verified and allowed. Raises NotApprovedError."""
        if request.kind == "outcome" or request.gate_id is None:
            raise InvalidAnswerError("this gate asks for the outcome of a call: answer done, again or abort")
        proof_context = await self._proof_context()
        gate_policy = await self._gate_policy_under(proof_context.policy, request)
        to, given = answer.to.strip(), (await self.store.gates.get(request.gate_id)).agreements
        if decision == DELEGATE:
            reason = why_not_delegated(gate_policy, proof_context.policy, by=answer.by, to=to, agreements=given)
        else:
            reason = why_not_taken_back(gate_policy, by=answer.by, to=to, agreements=given)
            gate_policy = with_delegator(gate_policy, answer.by)
        if reason is not None:
            raise NotApprovedError(reason)
        identity = await verify_answer(replace(answer, to=to), replace(request, gate_policy=gate_policy), proof_context)
        delegation = Delegation(
            id=new_id(),
            gate_id=request.gate_id,
            approval_digest=request.approval_digest,
            by=answer.by,
            to=to,
            known_by=identity.known_by,
            at=await self.store.now(),
            note=answer.note,
            signature=answer.signature,
            decision=decision,
            follows=followed_by(gate_policy.delegations, decision=decision, by=answer.by, to=to),
        )
        return without_secrets(delegation, self.redact)

    async def _verify_resolution(self, answer: Answer, request: ApprovalRequest) -> ResolutionRecord:
        """Return `answer` as a resolution, with its identity verified and allowed. Raises NotApprovedError."""
        if answer.decision not in ("done", "again", "abort"):
            takes = "answer done, again or abort instead of"
            raise InvalidAnswerError(f"this gate asks for the outcome of a call: {takes} `{answer.decision}`")
        await self._refuse_open_form(answer, request)
        proof_context = await self._proof_context()
        gate_policy = await self._gate_policy_under(proof_context.policy, request)
        identity = await verify_answer(answer, replace(request, gate_policy=gate_policy), proof_context)
        words = (answer.note, answer.result)
        record = ResolutionRecord(answer.decision, answer.by, identity.known_by, *words, request.approval_digest, answer.signature)
        return without_secrets(record, self.redact)

    async def _proof_context(self) -> ProofContext:
        policy = await self.store.policy.effective(self.settings)
        return ProofContext(policy, self.settings, self.store.codes, (await self.store.now()).timestamp(), self.signed_in)

    async def _refuse_open_form(self, answer: Answer, request: ApprovalRequest) -> None:
        """Raise NotApprovedError for a one-time code in a form that anyone can read and submit."""
        if answer.channel != "form" or answer.code is None or answer.signature is not None or self.forms_are_private is None:
            return
        if not await self.forms_are_private():
            raise NotApprovedError(open_form_notice(request))
