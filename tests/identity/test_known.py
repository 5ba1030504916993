"""What an answer proves: a proof that is there and wrong is a refusal, never a name without proof."""

from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest

from plan_adapter.approvals import Answer, Approval, ApprovalRequest, Gate, GatePolicy
from plan_adapter.errors import NotApprovedError
from plan_adapter.gates.approval import text_to_sign
from plan_adapter.gates.identity import ProofContext, approval_from, known_by, recheck
from plan_adapter.gates.policy import effective_policy
from plan_adapter.settings import Settings
from tests.identity.conftest import Key, request_at, text_of
from tests.identity.test_codes import SECRET, Codes, keyed

NOW, CODE = 59.0, "287082"


def means(settings: Settings, codes: Codes | None = None) -> ProofContext:
    return ProofContext(effective_policy(settings), keyed(), codes or Codes(ana=SECRET), NOW)


async def known(answer: Answer, request: ApprovalRequest, settings: Settings) -> str:
    return await known_by(answer, request, means(settings))


async def approval(answer: Answer, request: ApprovalRequest, settings: Settings, used: Codes | None = None) -> Approval:
    return await approval_from(answer, request, means(settings, used))


@pytest.mark.parametrize("channel", ["os_user", "form", "unverified"])
async def test_without_a_proof_the_channel_is_all_that_is_known(settings: Settings, channel: str) -> None:
    assert await known(Answer("approve", "ana", channel=channel), request_at(), settings) == channel  # type: ignore[arg-type]


async def test_a_code_makes_its_person_known(settings: Settings) -> None:
    assert await known(Answer("approve", "ana", channel="form", code=CODE), request_at(), settings) == "totp"


async def test_a_signature_makes_its_person_known_and_is_kept(settings: Settings, ana: Key) -> None:
    request = request_at()
    signature = ana.signs(text_of(request))
    given = await approval(Answer("approve", "ana", "for tonight", signature=signature), request, settings)
    assert (given.by, given.known_by, given.signature, given.note) == ("ana", "ssh_signature", signature, "for tonight")
    assert (given.approval_digest, given.run_id, given.gate_id) == (request.approval_digest, "run-1", "gate-1")
    recheck(given, request, effective_policy(settings))


@pytest.mark.parametrize(
    "signed",
    [request_at(gate_id="gate-2"), request_at(run_id="run-2"), request_at(digest="e" * 64)],
    ids=["another gate", "another run", "another content"],
)
async def test_a_signature_of_something_else_is_refused(settings: Settings, ana: Key, signed: ApprovalRequest) -> None:
    answer = Answer("approve", "ana", channel="os_user", signature=ana.signs(text_of(signed)))
    with pytest.raises(NotApprovedError, match="another text"):
        await known(answer, request_at(), settings)


@pytest.mark.parametrize("decision", ["reject", "request_changes"])
async def test_a_signed_rejection_is_no_approval(settings: Settings, ana: Key, decision: str) -> None:
    signature = ana.signs(text_of(request_at(), decision))  # type: ignore[arg-type]
    with pytest.raises(NotApprovedError, match="another text"):
        await known(Answer("approve", "ana", signature=signature), request_at(), settings)
    assert await known(Answer(decision, "ana", signature=signature), request_at(), settings) == "ssh_signature"  # type: ignore[arg-type]


async def test_a_signature_of_somebody_else_is_refused(settings: Settings, bo: Key) -> None:
    with pytest.raises(NotApprovedError, match="the key of bo, not of ana"):
        await known(Answer("approve", "ana", signature=bo.signs(text_of(request_at()))), request_at(), settings)


@pytest.mark.parametrize("proof", [{"code": "000000"}, {"code": ""}, {"signature": ""}, {"signature": "x"}], ids=str)
async def test_a_wrong_proof_is_never_a_name_without_proof(settings: Settings, proof: dict[str, str]) -> None:
    with pytest.raises(NotApprovedError):
        await known(Answer("approve", "ana", channel="os_user", **proof), request_at(), settings)  # type: ignore[arg-type]


async def test_a_right_code_beside_a_wrong_signature_is_refused_and_not_used_up(settings: Settings) -> None:
    used = Codes(ana=SECRET)
    with pytest.raises(NotApprovedError, match="malformed"):
        await approval(Answer("approve", "ana", code=CODE, signature="x"), request_at(), settings, used)
    assert used.known == set()


async def test_a_signature_needs_a_file_of_allowed_signers(ana: Key) -> None:
    with pytest.raises(NotApprovedError, match="PLAN_ADAPTER_ALLOWED_SIGNERS"):
        await known(Answer("approve", "ana", signature=ana.signs(text_of(request_at()))), request_at(), Settings())


async def test_a_signature_needs_a_gate(settings: Settings, ana: Key) -> None:
    request = ApprovalRequest("d" * 64, "restart", "Restart", "text")
    with pytest.raises(NotApprovedError, match="at a gate of a run"):
        await known(Answer("approve", "ana", signature=ana.signs("x")), request, settings)


@pytest.mark.parametrize(
    ("rules", "said"),
    [
        (GatePolicy(approvers=("bo",)), "ana may not answer here; only bo may"),
        (GatePolicy(known_by=("ssh_signature",)), "needs ssh_signature"),
        (GatePolicy(self_approval=False, requested_by="ana"), "somebody else must"),
    ],
    ids=["approvers", "known_by", "self"],
)
async def test_a_refused_answerer_keeps_the_code(settings: Settings, rules: GatePolicy, said: str) -> None:
    used = Codes(ana=SECRET)
    with pytest.raises(NotApprovedError, match=said):
        await approval(Answer("approve", "ana", code=CODE), request_at(rules=rules), settings, used)
    assert used.known == set()


async def test_of_two_proofs_the_one_that_the_rules_take_counts(settings: Settings, ana: Key) -> None:
    request = request_at(rules=GatePolicy(known_by=("totp",)))
    answer = Answer("approve", "ana", code=CODE, signature=ana.signs(text_of(request)))
    assert (await approval(answer, request, settings)).known_by == "totp"
    only_user = request_at(rules=GatePolicy(known_by=("os_user",)))
    assert (await approval(replace(answer, channel="os_user"), only_user, settings)).known_by == "os_user"


async def test_a_signed_approval_is_looked_at_again_before_it_is_used(settings: Settings, ana: Key, bo: Key, allowed: Path) -> None:
    request = request_at()
    given = await approval(Answer("approve", "ana", signature=ana.signs(text_of(request))), request, settings)
    gate = _gate(request)
    recheck(given, gate, effective_policy(settings))
    for changed, at in (
        (replace(given, by="bo"), gate),
        (replace(given, signature=None), gate),
        (replace(given, decision="reject"), gate),
        (given, replace(gate, approval_digest="e" * 64)),
        (given, replace(gate, id="gate-2")),
        (given, replace(gate, run_id="run-2")),
    ):
        with pytest.raises(NotApprovedError):
            recheck(changed, at, effective_policy(settings))
    allowed.write_text(f"ana {bo.public}\n", encoding="utf-8")
    with pytest.raises(NotApprovedError):
        recheck(given, gate, effective_policy(settings))
    recheck(replace(given, known_by="os_user"), gate, effective_policy(settings))  # claims no signature


def _gate(request: ApprovalRequest) -> Gate:
    assert request.run_id is not None
    assert request.gate_id is not None
    return Gate(
        id=request.gate_id,
        run_id=request.run_id,
        step_id=None,
        item=None,
        approval_digest=request.approval_digest,
        name=request.name,
        description=request.description,
        text=request.text,
        rules=request.rules,
        opened_at=datetime.now(UTC),
    )


async def test_a_signed_resolution_binds_to_attempt_resolution_and_result(settings: Settings, ana: Key) -> None:
    request = replace(request_at(digest="d" * 64), kind="outcome", gate_id=None)
    said = Answer("done", "ana", result={"版本": 3})
    signature = ana.signs(text_to_sign(said, request))
    assert await known(replace(said, signature=signature), request, settings) == "ssh_signature"
    others = [
        (replace(said, decision="abort", result=None), request),
        (replace(said, result={"版本": 4}), request),
        (said, replace(request, approval_digest="e" * 64)),
        (said, replace(request, run_id="run-2")),
    ]
    for answer, asked in others:
        with pytest.raises(NotApprovedError, match="another text"):
            await known(replace(answer, signature=signature), asked, settings)
