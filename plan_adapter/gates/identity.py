"""Verifies who gave an answer at a gate, and turns an allowed answer into an approval."""

import asyncio
import re
from collections.abc import Iterable
from dataclasses import InitVar, dataclass, replace
from functools import partial
from typing import Literal, Protocol, TypeAlias

from plan_adapter.gates.approval import answer_to, approval_text_to_sign, decision_of, os_user, read_answer, refusal, text_to_sign
from plan_adapter.gates.policy import EffectivePolicy
from plan_adapter.gates.quorum import why_already_given
from plan_adapter.gates.signatures import allowed_signers, verify_signature
from plan_adapter.gates.totp import CodeStore, check_code
from plan_adapter.local.settings import Settings
from plan_adapter.model.approvals import (
    DELEGATE,
    TAKE_BACK,
    Agreement,
    Answer,
    Approval,
    ApprovalRequest,
    Decision,
    Gate,
    GatePolicy,
    person_of,
)
from plan_adapter.model.errors import ContentChangedError, NotApprovedError
from plan_adapter.model.record import AUTHOR

_CHECKED = object()

SignInProof: TypeAlias = Literal["sign_in", "proxy", "slack"]
"""How a person is known who signed in, to the desk or to Slack, before they answered."""

DIGEST_BEGINNING = re.compile(r"[0-9a-fA-F]{8,64}")
"""What names a content: its approval digest, or at least the first 8 characters of it."""


@dataclass(frozen=True, slots=True)
class Identity:
    """Who answers or requests something, and how that is known: always the result of a check, never what a caller says.

    Only the functions of this module create one, so a policy cannot be asked about a proof that nobody checked.
    """

    by: str
    known_by: str
    checked: InitVar[object]

    def __post_init__(self, checked: object) -> None:
        """Raise TypeError for an identity that no check returned."""
        if checked is not _CHECKED:
            raise TypeError("an Identity is the result of a check: use the functions of plan_adapter.gates.identity")


class RecordedAnswer(Protocol):
    """A row of the store that says who answered, and how they were identified then."""

    @property
    def by(self) -> str:
        """The name."""
        ...

    @property
    def known_by(self) -> str:
        """The proof that was checked when the row was written."""
        ...


def identity_of_name(by: str) -> Identity:
    """Return the identity of a caller who only gives a name: unverified."""
    return Identity(by, "unverified", _CHECKED)


def identity_of_account(by: str | None = None) -> Identity:
    """Return the identity of `by`, by default this process's account. Any other name is unverified."""
    account = os_user()
    return Identity(account, "os_user", _CHECKED) if by in (None, account) else identity_of_name(by)


async def identity_by_code(by: str, code: str, *, codes: CodeStore, settings: Settings, now: float | None = None) -> Identity:
    """Return the identity of `by` after checking their one-time code, which is used up. Raises NotApprovedError for a wrong one."""
    await check_code(by, code, codes=codes, settings=settings, now=now)
    return Identity(by, "totp", _CHECKED)


async def identity_by_signature(by: str, text: str, signature: str, *, policy: EffectivePolicy) -> Identity:
    """Return the identity of `by` after checking their SSH signature of `text`. Raises NotApprovedError for a wrong one."""
    verify = partial(verify_signature, text, signature, allowed=allowed_signers(policy), by=by)
    await asyncio.to_thread(verify)  # bounded, because ssh-keygen has a timeout of ten seconds
    return Identity(by, "ssh_signature", _CHECKED)


def identity_of_sign_in(by: str, known_by: SignInProof) -> Identity:
    """Return the identity of a person who signed in.

    Call it only after `plan desk` has verified the ID token, the secret of the proxy, or the signature of Slack.
    """
    return Identity(by, known_by, _CHECKED)


def identity_of_author() -> Identity:
    """Return the identity behind what a plan itself allows, without an answer of a person."""
    return Identity(AUTHOR, "not_required", _CHECKED)


def recorded_identity(row: RecordedAnswer) -> Identity:
    """Return the identity that a row of the store records. Its proof was checked when the row was written."""
    return Identity(row.by, row.known_by, _CHECKED)


def agreements_that_count(gate_policy: GatePolicy, agreements: Iterable[Agreement], *, approval_digest: str) -> list[Agreement]:
    """Return the first agreement to this content by each different person who may approve it under `gate_policy`."""
    first = dict[str, Agreement]()
    for agreement in agreements:
        is_allowed = refusal(gate_policy, recorded_identity(agreement), decision="approve") is None
        if is_allowed and agreement.approval_digest == approval_digest:
            first.setdefault(person_of(agreement.by), agreement)
    return [*first.values()]


def identity_of_given(approval: Approval, request: ApprovalRequest | Gate | None, policy: EffectivePolicy | None = None) -> Identity:
    """Return the identity behind an approval that a program in this process passed, at the gate of `request` or, with None, at none.

    What it says about its proof is only a claim. A signature at a gate is verified, this process's account is compared, and everything
    else is unverified. Raises NotApprovedError for a wrong or missing signature.
    """
    if approval.known_by == "ssh_signature" and request is not None and policy is not None:
        recheck_signature(replace(approval, standing_id=None), request, policy)
        return Identity(approval.by, "ssh_signature", _CHECKED)
    return identity_of_account(approval.by) if approval.known_by == "os_user" else identity_of_name(approval.by)


@dataclass(frozen=True, slots=True)
class ProofContext:
    """What proofs are checked with: the allowed signers, the seeds of one-time codes and their key, and the used codes.

    `now` is the time, in seconds since 1970, at which a code must be valid. None means this host's time. `signed_in` is the identity of
    the person who signed in to give the answer. It counts only for an answer in their name.
    """

    policy: EffectivePolicy
    settings: Settings  # says where the key of the seeds is
    codes: CodeStore
    now: float | None = None
    signed_in: Identity | None = None


async def verify_proof(answer: Answer, request: ApprovalRequest, proof_context: ProofContext) -> Identity:
    """Return the identity behind `answer`, by the best proof in it that the gate policy accepts.

    Raises NotApprovedError for a wrong proof; it never falls back to a name without proof. A code is used up.
    """
    found = [identity_without_proof(answer, proof_context.signed_in)]
    if answer.signature is not None:
        text = text_to_sign(answer, request)
        found.append(await identity_by_signature(answer.by, text, answer.signature, policy=proof_context.policy))
    if answer.code is not None:
        codes, settings = proof_context.codes, proof_context.settings
        found.append(await identity_by_code(answer.by, answer.code, codes=codes, settings=settings, now=proof_context.now))
    best = _best_proof(answer, request, proof_context.signed_in)
    return next(identity for identity in found if identity.known_by == best)


async def approval_from(answer: Answer, request: ApprovalRequest, proof_context: ProofContext) -> Approval:
    """Return `answer` as an approval. Raise NotApprovedError, which says why, if its giver is not identified or not allowed."""
    decision = decision_of(answer)
    if (reason := _why_already_given(answer, request)) is not None:  # before a code is used up
        raise NotApprovedError(reason)
    result = read_answer(request, answer.result) if request.kind == "question" and decision == "approve" else None
    known_by = (await verify_answer(answer, request, proof_context)).known_by
    return answer_to(
        request, decision=decision, by=answer.by, known_by=known_by, note=answer.note, signature=answer.signature, result=result
    )


async def verify_answer(answer: Answer, request: ApprovalRequest, proof_context: ProofContext) -> Identity:
    """Return the identity behind `answer`. Raise NotApprovedError, with the reason, if the gate policy refuses it.

    A giver whom the policy would refuse with any proof is refused before a code is used up. Whoever is allowed to reject can also resolve
    an unknown outcome, and can take a delegation back; who lets another person answer must be allowed to approve.
    """
    if answer.digest is not None and not (
        DIGEST_BEGINNING.fullmatch(answer.digest) and request.approval_digest.startswith(answer.digest.casefold())
    ):
        raise ContentChangedError(
            f"the content of the gate changed: you answered about {answer.digest[:12]}, and the gate now asks about "
            f"{request.approval_digest[:12]}; read it again, then answer"
        )
    if reason := _why_not_accepted(answer, request, proof_context.signed_in):
        raise NotApprovedError(reason)
    identity = await verify_proof(answer, request, proof_context)
    if reason := refusal(request.gate_policy, identity, decision=_policy_decision(answer, request)):
        raise NotApprovedError(reason)
    return identity


def why_answer_refused(answer: Answer, request: ApprovalRequest) -> str | None:
    """Return why the gate policy refuses `answer` even if its proofs are right, or None. Checks no proof, so no code is used up."""
    return _why_already_given(answer, request) or _why_not_accepted(answer, request)


def _why_already_given(answer: Answer, request: ApprovalRequest) -> str | None:
    if answer.decision != "approve" or not request.agreements:
        return None
    counted = agreements_that_count(request.gate_policy, request.agreements, approval_digest=request.approval_digest)
    return why_already_given(request.gate_policy, counted, answer.by)


def _why_not_accepted(answer: Answer, request: ApprovalRequest, signed_in: Identity | None = None) -> str | None:
    expected = Identity(answer.by, _best_proof(answer, request, signed_in), _CHECKED)  # if the proofs in the answer are right
    return refusal(request.gate_policy, expected, decision=_policy_decision(answer, request))


def _policy_decision(answer: Answer, request: ApprovalRequest) -> Decision:
    """Return the decision that the gate policy judges `answer` by."""
    is_restricting = request.kind == "outcome" or answer.decision == TAKE_BACK
    return "reject" if is_restricting else "approve" if answer.decision == DELEGATE else decision_of(answer)


def is_signed(approval: Approval) -> bool:
    """Return whether `approval` is recorded as signed at its gate."""
    return approval.known_by == "ssh_signature" and approval.standing_id is None


def recheck_signature(approval: Approval, request: ApprovalRequest | Gate, policy: EffectivePolicy) -> None:
    """Return if `approval` is correctly signed for this answer at this gate; raise NotApprovedError otherwise.

    Only an approval recorded as signed is checked. If it came from a standing approval, `standing_files.verify_standing` checks the
    signature of that one instead.
    """
    if not is_signed(approval):
        return
    if approval.signature is None:
        raise NotApprovedError(f"the approval by {approval.by} is recorded as signed, but has no signature")
    verify_signature(_text_of_approval(request, approval), approval.signature, allowed=allowed_signers(policy), by=approval.by)


def recheck_agreement(agreement: Agreement, gate: Gate, policy: EffectivePolicy) -> None:
    """Return if `agreement` is correctly signed for `gate`, or not recorded as signed; raise NotApprovedError otherwise."""
    recheck_signature(agreement.as_approval, gate, policy)


def identity_without_proof(answer: Answer, signed_in: Identity | None = None) -> Identity:
    """Return the identity behind `answer`, as far as its channel shows it. An account counts only if it is that of this process.

    `signed_in` is the identity of the person who signed in to give it, if they did.
    """
    if signed_in is not None and signed_in.by == answer.by:
        return signed_in
    if answer.channel == "form":
        return Identity(answer.by, "form", _CHECKED)
    return identity_of_account(answer.by) if answer.channel == "os_user" else identity_of_name(answer.by)


def _best_proof(answer: Answer, request: ApprovalRequest, signed_in: Identity | None) -> str:
    """Return the best proof in `answer` that the gate policy accepts. If it accepts none, return the best one."""
    proofs = [identity_without_proof(answer, signed_in).known_by]
    if answer.code is not None:
        proofs.insert(0, "totp")
    if answer.signature is not None:
        proofs.insert(0, "ssh_signature")
    accepted = request.gate_policy.known_by
    fitting = [proof for proof in proofs if accepted is None or accepted.count(proof)]
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
