"""Verifies who gave an answer at a gate, and turns an allowed answer into an approval."""

import asyncio
from dataclasses import dataclass
from functools import partial

from plan_adapter.approvals import Answer, Approval, ApprovalRequest, Gate
from plan_adapter.errors import NotApprovedError
from plan_adapter.gates.approval import answer_to, approval_text_to_sign, decision_of, read_answer, refusal, text_to_sign
from plan_adapter.gates.policy import EffectivePolicy
from plan_adapter.gates.signatures import allowed_signers, verify_signature
from plan_adapter.gates.totp import CodeStore, check_code
from plan_adapter.options import KnownBy
from plan_adapter.settings import Settings


@dataclass(frozen=True, slots=True)
class ProofContext:
    """What proofs are checked with: the allowed signers, the seeds of one-time codes and their key, and the used codes.

    `now` is the time, in seconds since 1970, at which a code must be valid. None means this host's time.
    """

    policy: EffectivePolicy
    settings: Settings  # says where the key of the seeds is
    codes: CodeStore
    now: float | None = None


async def verify_proof(answer: Answer, request: ApprovalRequest, proof_context: ProofContext) -> KnownBy:
    """Return the best proof of identity in `answer` that the gate policy accepts.

    Raises NotApprovedError for a wrong proof; it never falls back to a name without proof. A code is used up.
    """
    if answer.signature is not None:
        text = text_to_sign(answer, request)
        verify = partial(verify_signature, text, answer.signature, allowed=allowed_signers(proof_context.policy), by=answer.by)
        await asyncio.to_thread(verify)  # bounded, because ssh-keygen has a timeout of ten seconds
    if answer.code is not None:
        await check_code(answer.by, answer.code, codes=proof_context.codes, settings=proof_context.settings, now=proof_context.now)
    return _best_proof(answer, request)


async def approval_from(answer: Answer, request: ApprovalRequest, proof_context: ProofContext) -> Approval:
    """Return `answer` as an approval. Raise NotApprovedError, which says why, if its giver is not identified or not allowed."""
    decision = decision_of(answer)
    result = read_answer(request, answer.result) if request.kind == "question" and decision == "approve" else None
    proof = await verify_answer(answer, request, proof_context)
    return answer_to(request, decision=decision, by=answer.by, known_by=proof, note=answer.note, signature=answer.signature, result=result)


async def verify_answer(answer: Answer, request: ApprovalRequest, proof_context: ProofContext) -> KnownBy:
    """Return how the giver of `answer` is identified. Raise NotApprovedError, which says why, if the gate policy refuses it.

    A giver whom the policy would refuse with any proof is refused before a code is used up. Whoever is allowed to reject can also resolve
    an unknown outcome.
    """
    if answer.digest is not None and not request.approval_digest.startswith(answer.digest):
        raise NotApprovedError(
            f"the content of the gate changed: you answered about {answer.digest[:12]}, and the gate now asks about "
            f"{request.approval_digest[:12]}; read it again, then answer"
        )
    decision = "reject" if request.kind == "outcome" else decision_of(answer)
    if reason := refusal(request.gate_policy, by=answer.by, known_by=_best_proof(answer, request), decision=decision):
        raise NotApprovedError(reason)
    proof = await verify_proof(answer, request, proof_context)
    if reason := refusal(request.gate_policy, by=answer.by, known_by=proof, decision=decision):
        raise NotApprovedError(reason)
    return proof


def recheck_signature(approval: Approval, request: ApprovalRequest | Gate, policy: EffectivePolicy) -> None:
    """Return if `approval` is correctly signed for this answer at this gate; raise NotApprovedError otherwise.

    Only an approval recorded as signed is checked. If it came from a standing approval, `standing_files.verify_standing` checks the
    signature of that one instead.
    """
    if approval.known_by != "ssh_signature" or approval.standing_id is not None:
        return
    if approval.signature is None:
        raise NotApprovedError(f"the approval by {approval.by} is recorded as signed, but has no signature")
    verify_signature(_text_of_approval(request, approval), approval.signature, allowed=allowed_signers(policy), by=approval.by)


def _best_proof(answer: Answer, request: ApprovalRequest) -> KnownBy:
    """Return the best proof in `answer` that the gate policy accepts. If it accepts none, return the best one."""
    proofs: list[KnownBy] = [answer.channel]
    if answer.code is not None:
        proofs.insert(0, "totp")
    if answer.signature is not None:
        proofs.insert(0, "ssh_signature")
    accepted = request.gate_policy.known_by
    fitting: list[KnownBy] = [proof for proof in proofs if accepted is None or accepted.count(proof)]
    return fitting[0] if fitting else proofs[0]


def _text_of_approval(request: ApprovalRequest | Gate, approval: Approval) -> str:
    gate_id = request.id if isinstance(request, Gate) else request.gate_id
    if request.run_id is None or gate_id is None:
        raise NotApprovedError("only an answer at a gate of a run can be signed")
    return approval_text_to_sign(
        approval_digest=request.approval_digest,
        decision=approval.decision,
        run_id=request.run_id,
        gate_id=gate_id,
        result=approval.result,
    )
