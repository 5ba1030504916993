"""What an answer at a gate proves about its giver, and the approval that is made of a proved and allowed answer."""

import asyncio
from dataclasses import dataclass
from functools import partial

from plan_adapter.errors import NotApprovedError
from plan_adapter.gates.approval import answer_to, decision_of, refusal, signed_text, text_to_sign
from plan_adapter.gates.policy import PolicyInForce
from plan_adapter.gates.signatures import allowed_signers, signer
from plan_adapter.gates.totp import CodeStore, check
from plan_adapter.plan import KnownBy
from plan_adapter.record import Answer, Approval, ApprovalRequest, Decision, Gate
from plan_adapter.settings import Settings


@dataclass(frozen=True, slots=True)
class Means:
    """With what proofs are checked: whose signatures are allowed, the seeds of one-time codes, their key, and which codes were used.

    `now` is the time in seconds since 1970 at which a code must be good; None: this host's.
    """

    policy: PolicyInForce
    settings: Settings  # where the key of the seeds is
    codes: CodeStore
    now: float | None = None


async def known_by(answer: Answer, request: ApprovalRequest, means: Means) -> KnownBy:
    """Return how the giver of `answer` is known: by the best proof that it holds, of those that the rules take.

    A proof that is there and wrong is a refusal, never a name without proof: raises NotApprovedError. A code is used up.
    """
    if answer.signature is not None:
        text = text_to_sign(answer, request)
        verify = partial(signer, text, answer.signature, allowed=allowed_signers(means.policy), by=answer.by)
        await asyncio.to_thread(verify)  # bounded: ssh-keygen is given ten seconds
    if answer.code is not None:
        await check(answer.by, answer.code, codes=means.codes, settings=means.settings, now=means.now)
    return _claimed(answer, request)


async def approval_from(answer: Answer, request: ApprovalRequest, means: Means) -> Approval:
    """Return `answer` as an approval, its giver proved and allowed by the rules of the gate; raises NotApprovedError with why not."""
    decision = decision_of(answer)
    way = await proved(answer, request, means)
    return answer_to(request, decision=decision, by=answer.by, known_by=way, note=answer.note, signature=answer.signature)


async def proved(answer: Answer, request: ApprovalRequest, means: Means) -> KnownBy:
    """Return how the giver of `answer` is known, who may give it by the rules of the gate; raises NotApprovedError with why not.

    Who could not answer here with any proof is told so before a code is used up. Who may reject may say how a call ended.
    """
    if answer.digest is not None and not request.approval_digest.startswith(answer.digest):
        raise NotApprovedError(
            f"the content of the gate changed: the answer is to {answer.digest[:12]}, and the gate asks about "
            f"{request.approval_digest[:12]} now; read it again and answer that"
        )
    decision = "reject" if request.kind == "outcome" else decision_of(answer)
    if reason := refusal(request.rules, by=answer.by, known_by=_claimed(answer, request), decision=decision):
        raise NotApprovedError(reason)
    way = await known_by(answer, request, means)
    if reason := refusal(request.rules, by=answer.by, known_by=way, decision=decision):
        raise NotApprovedError(reason)
    return way


def recheck(approval: Approval, request: ApprovalRequest | Gate, policy: PolicyInForce) -> None:
    """Return if the signature of `approval` is of this answer at this gate; raises NotApprovedError otherwise.

    Only what claims to be signed is looked at; one that a standing approval gave is proved by that one's signature
    (`identity.standing_files.verify_standing`).
    """
    if approval.known_by != "ssh_signature" or approval.standing_id is not None:
        return
    if approval.signature is None:
        raise NotApprovedError(f"the approval by {approval.by} is recorded as signed, and holds no signature")
    signer(_signed(request, approval.decision), approval.signature, allowed=allowed_signers(policy), by=approval.by)


def _claimed(answer: Answer, request: ApprovalRequest) -> KnownBy:
    """Return the best of the proofs that come with `answer`, of those that the rules take where they take one."""
    proofs: list[KnownBy] = [answer.channel]
    if answer.code is not None:
        proofs.insert(0, "totp")
    if answer.signature is not None:
        proofs.insert(0, "ssh_signature")
    taken = request.rules.known_by
    fitting: list[KnownBy] = [proof for proof in proofs if taken is None or taken.count(proof)]
    return fitting[0] if fitting else proofs[0]


def _signed(request: ApprovalRequest | Gate, decision: Decision) -> str:
    gate_id = request.id if isinstance(request, Gate) else request.gate_id
    if request.run_id is None or gate_id is None:
        raise NotApprovedError("a signature is of an answer at a gate of a run, and this is none")
    return signed_text(approval_digest=request.approval_digest, decision=decision, run_id=request.run_id, gate_id=gate_id)
