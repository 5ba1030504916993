"""Tests of proofs in answers: a wrong proof is refused and never treated as no proof."""

from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest

from plan_adapter.gates.approval import os_user, text_to_sign
from plan_adapter.gates.identity import ProofContext, approval_from, recheck_signature, verify_proof
from plan_adapter.gates.policy import effective_policy
from plan_adapter.local.settings import Settings
from plan_adapter.model.approvals import Answer, Approval, ApprovalRequest, Gate, GatePolicy
from plan_adapter.model.errors import NotApprovedError
from tests.identity.conftest import Key, request_at, text_of
from tests.identity.test_codes import SECRET, Codes, settings_with_key

NOW, CODE = 59.0, "287082"


def proof_context(settings: Settings, codes: Codes | None = None) -> ProofContext:
    return ProofContext(effective_policy(settings), settings_with_key(), codes or Codes(ana=SECRET), NOW)


async def verified_as(answer: Answer, request: ApprovalRequest, settings: Settings) -> str:
    return (await verify_proof(answer, request, proof_context(settings))).known_by


async def approval(answer: Answer, request: ApprovalRequest, settings: Settings, codes: Codes | None = None) -> Approval:
    return await approval_from(answer, request, proof_context(settings, codes))


@pytest.mark.parametrize("channel", ["os_user", "form", "unverified"])
async def test_an_answer_without_a_proof_is_known_by_its_channel(settings: Settings, channel: str) -> None:
    assert await verified_as(Answer("approve", os_user(), channel=channel), request_at(), settings) == channel  # type: ignore[arg-type]


async def test_only_the_account_of_this_process_is_known_as_an_account(settings: Settings) -> None:
    for by in ("ana", f"{os_user()} ", "", "ROOT"):
        assert await verified_as(Answer("approve", by, channel="os_user"), request_at(), settings) == "unverified"


async def test_a_code_identifies_its_person(settings: Settings) -> None:
    assert await verified_as(Answer("approve", "ana", channel="form", code=CODE), request_at(), settings) == "totp"


async def test_a_signature_identifies_its_person_and_is_stored(settings: Settings, ana: Key) -> None:
    request = request_at()
    signature = ana.signs(text_of(request))
    given = await approval(Answer("approve", "ana", "for tonight", signature=signature), request, settings)
    assert (given.by, given.known_by, given.signature, given.note) == ("ana", "ssh_signature", signature, "for tonight")
    assert (given.approval_digest, given.run_id, given.gate_id) == (request.approval_digest, "run-1", "gate-1")
    recheck_signature(given, request, effective_policy(settings))


@pytest.mark.parametrize(
    "signed",
    [request_at(gate_id="gate-2"), request_at(run_id="run-2"), request_at(digest="e" * 64)],
    ids=["another gate", "another run", "another content"],
)
async def test_a_signature_of_another_text_is_refused(settings: Settings, ana: Key, signed: ApprovalRequest) -> None:
    answer = Answer("approve", "ana", channel="os_user", signature=ana.signs(text_of(signed)))
    with pytest.raises(NotApprovedError, match="another text"):
        await verified_as(answer, request_at(), settings)


@pytest.mark.parametrize("decision", ["reject", "request_changes"])
async def test_a_signed_rejection_is_not_an_approval(settings: Settings, ana: Key, decision: str) -> None:
    signature = ana.signs(text_of(request_at(), decision))  # type: ignore[arg-type]
    with pytest.raises(NotApprovedError, match="another text"):
        await verified_as(Answer("approve", "ana", signature=signature), request_at(), settings)
    assert await verified_as(Answer(decision, "ana", signature=signature), request_at(), settings) == "ssh_signature"  # type: ignore[arg-type]


async def test_a_signature_of_somebody_else_is_refused(settings: Settings, bo: Key) -> None:
    with pytest.raises(NotApprovedError, match="the key of bo, not of ana"):
        await verified_as(Answer("approve", "ana", signature=bo.signs(text_of(request_at()))), request_at(), settings)


@pytest.mark.parametrize("proof", [{"code": "000000"}, {"code": ""}, {"signature": ""}, {"signature": "x"}], ids=str)
async def test_a_wrong_proof_is_refused_and_not_treated_as_no_proof(settings: Settings, proof: dict[str, str]) -> None:
    with pytest.raises(NotApprovedError):
        await verified_as(Answer("approve", "ana", channel="os_user", **proof), request_at(), settings)  # type: ignore[arg-type]


async def test_a_valid_code_with_an_invalid_signature_is_refused_and_not_used_up(settings: Settings) -> None:
    codes = Codes(ana=SECRET)
    with pytest.raises(NotApprovedError, match="malformed"):
        await approval(Answer("approve", "ana", code=CODE, signature="x"), request_at(), settings, codes)
    assert codes.used == set()


async def test_a_signature_needs_a_file_of_allowed_signers(ana: Key) -> None:
    with pytest.raises(NotApprovedError, match="PLAN_ADAPTER_ALLOWED_SIGNERS"):
        await verified_as(Answer("approve", "ana", signature=ana.signs(text_of(request_at()))), request_at(), Settings())


async def test_a_signature_needs_a_gate(settings: Settings, ana: Key) -> None:
    request = ApprovalRequest("d" * 64, "restart", "Restart", "text")
    with pytest.raises(NotApprovedError, match="at a gate of a run"):
        await verified_as(Answer("approve", "ana", signature=ana.signs("x")), request, settings)


@pytest.mark.parametrize(
    ("gate_policy", "message"),
    [
        (GatePolicy(approvers=("bo",)), "ana may not answer here; only bo may"),
        (GatePolicy(known_by=("ssh_signature",)), "needs ssh_signature"),
        (GatePolicy(self_approval=False, requested_by="ana"), "somebody else must"),
    ],
    ids=["approvers", "known_by", "self"],
)
async def test_a_refused_answer_does_not_use_up_the_code(settings: Settings, gate_policy: GatePolicy, message: str) -> None:
    codes = Codes(ana=SECRET)
    with pytest.raises(NotApprovedError, match=message):
        await approval(Answer("approve", "ana", code=CODE), request_at(gate_policy=gate_policy), settings, codes)
    assert codes.used == set()


async def test_the_proof_that_satisfies_the_policy_is_used(settings: Settings, ana: Key) -> None:
    request = request_at(gate_policy=GatePolicy(known_by=("totp",)))
    answer = Answer("approve", "ana", code=CODE, signature=ana.signs(text_of(request)))
    assert (await approval(answer, request, settings)).known_by == "totp"
    only_forms = request_at(gate_policy=GatePolicy(known_by=("form",)))
    assert (await approval(replace(answer, channel="form"), only_forms, settings)).known_by == "form"


async def test_a_signed_approval_is_verified_again_before_use(settings: Settings, ana: Key, bo: Key, allowed: Path) -> None:
    request = request_at()
    given = await approval(Answer("approve", "ana", signature=ana.signs(text_of(request))), request, settings)
    gate = _gate(request)
    recheck_signature(given, gate, effective_policy(settings))
    for changed, at in (
        (replace(given, by="bo"), gate),
        (replace(given, signature=None), gate),
        (replace(given, decision="reject"), gate),
        (given, replace(gate, approval_digest="e" * 64)),
        (given, replace(gate, id="gate-2")),
        (given, replace(gate, run_id="run-2")),
    ):
        with pytest.raises(NotApprovedError):
            recheck_signature(changed, at, effective_policy(settings))
    allowed.write_text(f"ana {bo.public}\n", encoding="utf-8")
    with pytest.raises(NotApprovedError):
        recheck_signature(given, gate, effective_policy(settings))
    recheck_signature(replace(given, known_by="os_user"), gate, effective_policy(settings))  # claims no signature


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
        gate_policy=request.gate_policy,
        opened_at=datetime.now(UTC),
    )


async def test_a_signed_resolution_is_bound_to_its_attempt_decision_and_result(settings: Settings, ana: Key) -> None:
    request = replace(request_at(digest="d" * 64), kind="outcome", gate_id=None)
    resolution = Answer("done", "ana", result={"版本": 3})
    signature = ana.signs(text_to_sign(resolution, request))
    assert await verified_as(replace(resolution, signature=signature), request, settings) == "ssh_signature"
    others = [
        (replace(resolution, decision="abort", result=None), request),
        (replace(resolution, result={"版本": 4}), request),
        (resolution, replace(request, approval_digest="e" * 64)),
        (resolution, replace(request, run_id="run-2")),
    ]
    for answer, asked in others:
        with pytest.raises(NotApprovedError, match="another text"):
            await verified_as(replace(answer, signature=signature), asked, settings)
