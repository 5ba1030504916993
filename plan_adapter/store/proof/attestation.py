"""Attestations: an in-toto statement about the record of a run, and its reading.

The statement is built from the rows that `plan export` writes. Values that the store keeps as JSON are values here, too. Items are counted
from 1. `null` stands for what the record does not have.
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from datetime import datetime
from hashlib import sha256
from importlib.metadata import version
from typing import Any, Literal, cast

from pydantic import JsonValue, TypeAdapter, ValidationError

from plan_adapter.local.attestation_key import PublicKey
from plan_adapter.model.approvals import Decision, DelegationKind, OperatorRequestKind, Resolution
from plan_adapter.model.errors import NotVerifiedError
from plan_adapter.model.options import CallKind, Effect
from plan_adapter.model.readable import one_line
from plan_adapter.model.status import Outcome, PlanStatus, RunReason, StepStatus
from plan_adapter.store.database.rows import NO_ITEM
from plan_adapter.store.proof.digests import instant_text
from plan_adapter.store.proof.envelope import unsealed
from plan_adapter.store.proof.signed import (
    AttemptKey,
    CheckedRecord,
    SignedEntries,
    attempt_key,
    check_record,
    resolution_of,
    signed_entries,
)
from plan_adapter.store.proof.verification import Verification

STATEMENT_TYPE = "https://in-toto.io/Statement/v1"

PREDICATE_TYPE = "urn:prefect-plan-adapter:run:v1"
"""The type of `RunAttestation`. A change that a reader of this version would misunderstand needs a new number."""

DISTRIBUTION = "prefect-plan-adapter"


@dataclass(frozen=True, slots=True)
class AttestedPlan:
    """A version of the plan. The SHA-256 of `document`, in its RFC 8785 form, is `digest`."""

    digest: str
    document: dict[str, JsonValue]


@dataclass(frozen=True, slots=True)
class AttestedRun:
    """The run as a whole. Times are ISO 8601 in UTC."""

    id: str
    name: str  # of the plan
    status: PlanStatus
    reason: RunReason | None
    message: str | None
    requested_by: str | None
    created_at: str
    started_at: str | None
    completed_at: str | None
    approval_digest: str  # of the plan, the inputs and the tools: what an approval of the plan binds to
    outputs: JsonValue


@dataclass(frozen=True, slots=True)
class AttestedApproval:
    """One answer at a gate: its person, the proof of their identity, and the content."""

    id: str
    decision: Decision | DelegationKind | Literal["agree"]  # `agree`: one of several; `delegate`, `take_back`: `result` has whom
    by: str
    known_by: str  # the proof that was checked: ssh_signature, totp, sign_in, proxy, slack, os_user, form, unverified; or not_required
    at: str
    approval_digest: str  # of the content that was shown
    step: str | None  # null: the whole plan
    item: int | None
    note: str
    result: JsonValue  # the answer to a question, by field
    signature: str | None  # an armored SSH signature by the person
    expires_at: str | None
    used_at: str | None  # when the run or the call started with it
    standing_id: str | None  # of the standing approval it came from


@dataclass(frozen=True, slots=True)
class AttestedReceipt:
    """The end of a call."""

    outcome: Outcome
    result: JsonValue
    result_digest: str  # the SHA-256 of the result as JSON without spaces, as it is stored
    error: str | None
    ended_at: str
    duration_ms: int
    by: str | None  # who reported the outcome: a person, or the tool's probe; null: the tool itself
    known_by: str | None


@dataclass(frozen=True, slots=True)
class AttestedCall:
    """One attempt of a call, and its receipt. Without a receipt, its outcome is unknown."""

    id: str
    step: str
    item: int | None
    kind: CallKind
    attempt: int
    tool: str
    effect: Effect
    parameters: JsonValue
    idempotency_key: str  # empty: no tool was called, a person recorded what they did by hand
    started_at: str
    approval_digest: str | None  # of this call, if it waited at its own gate
    approval_id: str | None
    code_digest: str | None  # of the tool's source
    receipt: AttestedReceipt | None


@dataclass(frozen=True, slots=True)
class AttestedResolution:
    """What a person, or the tool's probe, said about a call whose outcome was unknown."""

    resolution: Resolution
    by: str
    known_by: str
    at: str
    note: str | None
    signature: str | None


@dataclass(frozen=True, slots=True)
class AttestedUnknown:
    """A write that began and whose end no tool recorded."""

    call_id: str
    step: str
    item: int | None
    kind: CallKind
    started_at: str
    resolution: AttestedResolution | None  # null: it is still unknown


@dataclass(frozen=True, slots=True)
class AttestedStep:
    """How a step ended."""

    id: str
    status: StepStatus
    outcome: Outcome | None
    error: str | None
    reason: str | None


@dataclass(frozen=True, slots=True)
class AttestedRequest:
    """An operator's request outside a gate: to skip steps, to run from one, to roll back, or to override a freeze."""

    kind: OperatorRequestKind
    steps: list[str]
    by: str
    known_by: str
    at: str
    reason: str
    signature: str | None


@dataclass(frozen=True, slots=True)
class AttestedRevision:
    """A version of the plan that another one replaced during the run."""

    number: int
    plan: AttestedPlan
    approval_digest: str
    by: str  # who replaced it
    at: str
    note: str


@dataclass(frozen=True, slots=True)
class AttestedErasure:
    """Values that `plan erase` replaced with `[erased]`."""

    fields: list[str]
    by: str
    known_by: str
    at: str


@dataclass(frozen=True, slots=True)
class AttestedAudit:
    """The audit log that the record was verified with."""

    entries: int
    digest: str  # of the last entry, and so of all


@dataclass(frozen=True, slots=True)
class RunAttestation:
    """The predicate: what was approved by whom, what was called, and how each call ended."""

    package_version: str
    exported_at: str
    run: AttestedRun
    plan: AttestedPlan
    inputs: dict[str, JsonValue]
    tools: list[JsonValue]  # their definitions, as the approval digest covers them
    approvals: list[AttestedApproval]
    steps: list[AttestedStep]
    calls: list[AttestedCall]
    unknown_outcomes: list[AttestedUnknown]
    operator_requests: list[AttestedRequest]
    revisions: list[AttestedRevision]
    erasures: list[AttestedErasure]
    audit: AttestedAudit


@dataclass(frozen=True, slots=True)
class SignedAttestation:
    """An attestation of a run, and the key that signed it."""

    envelope: bytes
    signer: PublicKey


def checked_statement(document: Mapping[str, Any], *, at: datetime) -> tuple[CheckedRecord, bytes]:
    """Return the check of an exported run, whose signatures are not checked yet, and the statement about it if it is intact."""
    record = check_record(document)
    if not record.verification.ok:
        return record, b""
    try:
        return record, statement_text(attestation_of(document, record.verification, at=at))
    except (KeyError, TypeError, ValueError) as error:  # somebody who can write a whole audit log forged it
        raise NotVerifiedError(
            f"the record of run {record.run_id} cannot be read, so it is not attested ({type(error).__name__}: {error})"
        ) from None


def attestation_of(document: Mapping[str, Any], found: Verification, *, at: datetime) -> RunAttestation:
    """Return the attestation of an exported run that `found` says is intact."""
    run, entries = document["run"], signed_entries(document["audit"])
    plans = {row["digest"]: AttestedPlan(row["digest"], json.loads(row["document"])) for row in document["plans"]}
    receipts = {attempt_key(row, row["number"], row["kind"]): row for row in document["receipts"]}
    attempts = sorted(document["attempts"], key=lambda row: (row["started_at"], row["id"]))
    return RunAttestation(
        package_version=version(DISTRIBUTION),
        exported_at=instant_text(at),
        run=_run(run),
        plan=plans[run["digest"]],
        inputs=json.loads(run["inputs"]),
        tools=json.loads(run["definitions"]),
        approvals=[_approval(row) for row in sorted(document["approvals"], key=lambda row: (row["at"], row["id"]))],
        steps=[_step(row) for row in sorted(document["step_runs"], key=lambda row: row["index"])],
        calls=[_call(row, receipts.get(attempt_key(row, row["number"], row["kind"]))) for row in attempts],
        unknown_outcomes=list(_unknown(attempts, receipts, entries.resolutions)),
        operator_requests=list(_requests(entries)),
        revisions=[_revision(row, plans) for row in document["revisions"]],
        erasures=[
            AttestedErasure(json.loads(row["fields"]), row["by"], row["known_by"], row["at"])
            for row in document["tombstones"]
            if row["kind"] == "erased"
        ],
        audit=AttestedAudit(found.entries, str(found.digest)),
    )


def statement_text(attested: RunAttestation) -> bytes:
    """Return the in-toto statement about a run as JSON."""
    statement = {
        "_type": STATEMENT_TYPE,
        "subject": _subject(attested),
        "predicateType": PREDICATE_TYPE,
        "predicate": asdict(attested),
    }
    return json.dumps(statement, separators=(",", ":"), allow_nan=False).encode()


def verified_attestation(content: bytes, key: PublicKey) -> RunAttestation:
    """Return the attestation in the envelope `content`. Raises NotVerifiedError unless `key` signed exactly these bytes."""
    payload = unsealed(content, key)
    try:
        statement = json.loads(payload)
        kind = statement["predicateType"]
    except (ValueError, TypeError, KeyError):
        raise NotVerifiedError(f"{key.fingerprint} signed it, but it is not an in-toto statement") from None
    if kind != PREDICATE_TYPE:
        raise NotVerifiedError(
            f"{key.fingerprint} signed it, but it states {one_line(str(kind))}, and this version of the package reads {PREDICATE_TYPE}: "
            "it may be of a newer version"
        )
    try:
        attested = TypeAdapter(RunAttestation).validate_python(statement["predicate"])
        is_whole = (statement["_type"], statement["subject"]) == (STATEMENT_TYPE, _subject(attested))
    except (ValidationError, KeyError) as error:
        raise NotVerifiedError(f"{key.fingerprint} signed it, but it is not the attestation of a run: {one_line(str(error))}") from None
    if not is_whole:
        raise NotVerifiedError(f"{key.fingerprint} signed it, but its subject is not the run that it describes")
    return attested


def _subject(attested: RunAttestation) -> list[JsonValue]:
    """Return the subjects of the statement: the plan, and the record of the run."""
    return [
        {"name": attested.run.name, "digest": {"sha256": attested.plan.digest}},
        {"name": attested.run.id, "digest": {"sha256": attested.audit.digest}},
    ]


def _run(row: Mapping[str, Any]) -> AttestedRun:
    return AttestedRun(
        id=row["id"],
        name=row["name"],
        status=PlanStatus(row["status"]),
        reason=RunReason(row["reason"]) if row["reason"] else None,
        message=row["message"],
        requested_by=row["requested_by"],
        created_at=row["created_at"],
        started_at=row["started_at"],
        completed_at=row["completed_at"],
        approval_digest=row["approval_digest"],
        outputs=json.loads(row["outputs"]),
    )


def _approval(row: Mapping[str, Any]) -> AttestedApproval:
    return AttestedApproval(
        id=row["id"],
        decision=row["decision"],
        by=row["by"],
        known_by=row["known_by"],
        at=row["at"],
        approval_digest=row["approval_digest"],
        step=row["step_id"],
        item=_item(row),
        note=row["note"],
        result=None if row["result"] is None else json.loads(row["result"]),
        signature=row["signature"],
        expires_at=row["expires_at"],
        used_at=row["used_at"],
        standing_id=row["standing_id"],
    )


def _step(row: Mapping[str, Any]) -> AttestedStep:
    outcome = Outcome(row["outcome"]) if row["outcome"] else None
    return AttestedStep(row["step_id"], StepStatus(row["status"]), outcome, row["error"], row["reason"])


def _call(row: Mapping[str, Any], receipt: Mapping[str, Any] | None) -> AttestedCall:
    return AttestedCall(
        id=row["id"],
        step=row["step_id"],
        item=_item(row),
        kind=row["kind"],
        attempt=row["number"],
        tool=row["tool_name"],
        effect=row["effect"],
        parameters=json.loads(row["parameters"]),
        idempotency_key=row["idempotency_key"],
        started_at=row["started_at"],
        approval_digest=row["approval_digest"],
        approval_id=row["approval_id"],
        code_digest=row["code_digest"],
        receipt=None if receipt is None else _receipt(receipt),
    )


def _receipt(row: Mapping[str, Any]) -> AttestedReceipt:
    return AttestedReceipt(
        outcome=Outcome(row["outcome"]),
        result=json.loads(row["result"]),
        result_digest=sha256(row["result"].encode()).hexdigest(),
        error=row["error"],
        ended_at=row["ended_at"],
        duration_ms=row["duration_ms"],
        by=row["by"],
        known_by=row["known_by"],
    )


def _unknown(
    attempts: Iterable[Mapping[str, Any]], receipts: Mapping[AttemptKey, Mapping[str, Any]], signatures: Mapping[AttemptKey, str]
) -> Iterator[AttestedUnknown]:
    """Yield the writes whose end no tool recorded. What a person did by hand has no key and was never unknown."""
    for row in attempts:
        key = attempt_key(row, row["number"], row["kind"])
        receipt = receipts.get(key)
        if row["effect"] == "write" and row["idempotency_key"] and (receipt is None or receipt["by"] is not None):
            resolution = None if receipt is None else _resolution(receipt, signatures.get(key))
            yield AttestedUnknown(row["id"], row["step_id"], _item(row), row["kind"], row["started_at"], resolution)


def _resolution(receipt: Mapping[str, Any], signature: str | None) -> AttestedResolution:
    return AttestedResolution(resolution_of(receipt), receipt["by"], receipt["known_by"], receipt["ended_at"], receipt["note"], signature)


def _requests(entries: SignedEntries) -> Iterator[AttestedRequest]:
    for request in entries.requests:
        first = cast("Mapping[str, Any]", request.entries[0])
        yield AttestedRequest(
            kind=request.kind,
            steps=[str(entry["step_id"]) for entry in request.entries if entry["step_id"] is not None],
            by=first["by"],
            known_by=first["known_by"],
            at=first["at"],
            reason=first["message"] or "",
            signature=request.signature,
        )


def _revision(row: Mapping[str, Any], plans: Mapping[str, AttestedPlan]) -> AttestedRevision:
    return AttestedRevision(row["number"], plans[row["digest"]], row["approval_digest"], row["by"], row["at"], row["note"])


def _item(row: Mapping[str, Any]) -> int | None:
    return None if row["item"] == NO_ITEM else row["item"] + 1
