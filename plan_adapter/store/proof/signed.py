"""The signed parts of an exported run: answers at gates, resolutions, and operator requests."""

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from plan_adapter.gates.approval import approval_text_to_sign, operator_request_text_to_sign, resolution_text_to_sign
from plan_adapter.gates.policy import EffectivePolicy
from plan_adapter.gates.signatures import allowed_signers, verify_signature
from plan_adapter.model.approvals import AGREE, LEAVES_OPEN, OperatorRequestKind, Resolution
from plan_adapter.model.errors import NotApprovedError, NotVerifiedError
from plan_adapter.model.readable import one_line
from plan_adapter.model.record import ABORTED
from plan_adapter.store.database.rows import NO_ITEM
from plan_adapter.store.operator_requests import Subject, request_digest
from plan_adapter.store.outcomes import by_hand_digest, outcome_digest
from plan_adapter.store.proof.digests import JsonRow, erased_columns, has_erasures
from plan_adapter.store.proof.entries import OPERATOR_REQUEST_KINDS
from plan_adapter.store.proof.verification import Alteration, Verification, verify

_OPERATOR_REQUESTS: dict[str, OperatorRequestKind] = {entry_kind: kind for kind, entry_kind in OPERATOR_REQUEST_KINDS.items()}


@dataclass(frozen=True, slots=True)
class SignedStatement:
    """A statement recorded as signed: its row, the person, the text that their key must have signed, and the signature.

    `signature` None means that the signature is missing, which is an error.
    """

    table: str  # approvals, receipts or audit
    key: str  # the id of the approval, attempt or operator request
    by: str
    text: str
    signature: str | None
    step_id: str | None = None
    call_kind: str | None = None  # of a receipt: the `CallKind` of its call
    is_erased: bool = False  # part of what was signed has been erased, so the signature cannot be checked any more

    def is_checkable(self, policy: EffectivePolicy) -> bool:
        """Return whether `problem` checks the signature, or finds that there is none."""
        return self.signature is None or not (self.is_erased or policy.allowed_signers is None)

    def problem(self, policy: EffectivePolicy) -> str | None:
        """Return the problem of the signature, or None. One that is not checkable has no problem."""
        if self.signature is None:
            return "it is recorded as signed, and there is no signature"
        if not self.is_checkable(policy):
            return None
        try:
            verify_signature(self.text, self.signature, allowed=allowed_signers(policy), by=self.by)
        except NotApprovedError as error:
            return str(error)
        return None


@dataclass(frozen=True, slots=True)
class CheckedRecord:
    """An exported run after its check against the audit log."""

    verification: Verification
    signed: list[SignedStatement]  # empty unless the record is intact
    run_id: str | None
    erased: list[str]  # the fields whose values were erased


def check_record(document: Mapping[str, Any]) -> CheckedRecord:
    """Return the verification of an exported run, with its signed statements, whose signatures are not checked yet."""
    found, run, signed, erased = verify(document), document.get("run"), list[SignedStatement](), list[str]()
    try:
        signed = list(signed_statements(document)) if found.problem is None else []
        erased = [field for row in document["tombstones"] for field in json.loads(row["fields"])] if found.problem is None else []
    except (KeyError, TypeError, ValueError, AttributeError) as error:  # somebody who can write a whole audit log forged it
        problem = Alteration("document", f"its signed records cannot be read ({type(error).__name__}: {error})")
        found = replace(found, problem=problem)
    run_id = run.get("id") if isinstance(run, dict) else None  # pyright: ignore[reportUnknownVariableType, reportUnknownMemberType]
    return CheckedRecord(found, signed, run_id, erased)  # pyright: ignore[reportUnknownArgumentType]


def refuse_invalid(record: CheckedRecord, policy: EffectivePolicy) -> None:
    """Raise NotVerifiedError if a row was altered, if there is no audit log, or if a signature is not valid. It says which."""
    what = f"the record of run {record.run_id} does not verify, so it is not attested"
    if record.verification.problem is not None:
        raise NotVerifiedError(f"{what}: {record.verification.problem}")
    if not record.verification.ok:
        raise NotVerifiedError(f"{what}: it has no audit log")
    for statement in record.signed:
        if (problem := statement.problem(policy)) is not None:
            step = f", step `{one_line(statement.step_id)}`" if statement.step_id is not None else ""
            raise NotVerifiedError(f"{what}: {statement.table}{step}: the signature of {one_line(statement.by)}: {one_line(problem)}")


def signed_statements(document: Mapping[str, Any]) -> Iterator[SignedStatement]:
    """Yield the statements recorded as signed in an exported run. `verification.verify` must have found the run intact."""
    run_id = str(document["run"]["id"])
    for row in document["approvals"]:
        if row["standing_id"] is None and (row["signature"] is not None or row["known_by"] == "ssh_signature"):
            yield _signed_answer(row)
    signed = signed_entries(document["audit"])
    yield from _signed_resolutions(document, run_id, signed.resolutions)
    for number, request in enumerate(signed.requests, 1):
        first = request.entries[0]
        if request.signature is not None or first["known_by"] == "ssh_signature":
            subjects = [Subject(_optional(entry["step_id"]), str(entry["row_digest"])) for entry in request.entries]
            digest, because = request_digest(run_id, number, request.kind, subjects), str(first["message"])
            text = operator_request_text_to_sign(digest=digest, operator_request=request.kind, because=because, run_id=run_id)
            by, is_erased = str(first["by"]), has_erasures(first)
            yield SignedStatement("audit", request.id, by, text, request.signature, subjects[0].step_id, is_erased=is_erased)


AttemptKey: TypeAlias = tuple[Any, Any, Any, Any]


@dataclass(frozen=True, slots=True)
class RecordedRequest:
    """The audit entries of one operator request: one for each of its steps, or one for the run."""

    id: str
    kind: OperatorRequestKind
    entries: list[JsonRow]
    signature: str | None


@dataclass(frozen=True, slots=True)
class SignedEntries:
    """The audit entries of operator requests, and the signatures of resolutions by attempt."""

    requests: list[RecordedRequest]
    resolutions: Mapping[AttemptKey, str]


def signed_entries(audit: Iterable[JsonRow]) -> SignedEntries:
    """Return the operator requests and signatures in an audit log."""
    resolutions, requests, signatures = dict[AttemptKey, str](), dict[str, list[JsonRow]](), dict[str, str]()
    for entry in audit:
        if entry["kind"] in _OPERATOR_REQUESTS:
            requests.setdefault(str(entry["row_id"]), []).append(entry)
        elif entry["kind"] == "signed" and entry["row_id"] is not None:
            signatures[str(entry["row_id"])] = str(entry["message"])
        elif entry["kind"] == "signed":
            resolutions[attempt_key(entry, entry["attempt"], entry["call_kind"])] = str(entry["message"])
    recorded = [
        RecordedRequest(request_id, _OPERATOR_REQUESTS[str(entries[0]["kind"])], entries, signatures.get(request_id))
        for request_id, entries in requests.items()
    ]
    return SignedEntries(recorded, resolutions)


def _signed_resolutions(document: Mapping[str, Any], run_id: str, signatures: Mapping[AttemptKey, str]) -> Iterator[SignedStatement]:
    signed = {attempt_key(row, row["number"], row["kind"]): row for row in document["receipts"] if row["known_by"] == "ssh_signature"}
    if not signed:
        return
    for attempt in document["attempts"]:
        if (row := signed.get(key := attempt_key(attempt, attempt["number"], attempt["kind"]))) is None:
            continue
        # An attempt that a person made by hand was created with the resolution: it has no key.
        is_by_hand = attempt["idempotency_key"] == ""
        if attempt["effect"] == "read" and not is_by_hand:  # the answer to a question, whose approval has the signature
            continue
        item = None if attempt["item"] == NO_ITEM else attempt["item"]
        by_hand = by_hand_digest(run_id=run_id, step_id=attempt["step_id"], item=item, number=attempt["number"], kind=attempt["kind"])
        digest = by_hand if is_by_hand else outcome_digest(attempt["id"])
        text = resolution_text_to_sign(digest=digest, resolution=resolution_of(row), result=json.loads(row["result"]), run_id=run_id)
        where, is_erased = (str(row["step_id"]), str(row["kind"])), has_erasures(row)
        yield SignedStatement("receipts", str(attempt["id"]), str(row["by"]), text, signatures.get(key), *where, is_erased=is_erased)


def _signed_answer(row: JsonRow) -> SignedStatement:
    result: Any = None if row["result"] is None else json.loads(str(row["result"]))
    is_agreement = row["decision"] == AGREE  # the person signed an approval, and the gate is in the result
    gate_id = row["gate_id"]
    if row["decision"] in LEAVES_OPEN:
        gate_id, result = result["gate"], None if is_agreement else {name: value for name, value in result.items() if name != "gate"}
    text = approval_text_to_sign(
        approval_digest=str(row["approval_digest"]),
        decision="approve" if is_agreement else row["decision"],  # pyright: ignore[reportArgumentType]  # any value; it must have been signed
        run_id=str(row["run_id"] or ""),
        gate_id=str(gate_id or ""),
        result=result,
    )
    signature, step_id = _optional(row["signature"]), _optional(row["step_id"])
    return SignedStatement("approvals", str(row["id"]), str(row["by"]), text, signature, step_id, is_erased="result" in erased_columns(row))


def resolution_of(receipt: Mapping[str, Any]) -> Resolution:
    """Return how the person, or the probe, who ended an attempt resolved it."""
    return "done" if receipt["outcome"] == "succeeded" else "abort" if receipt["error"] == ABORTED else "again"


def attempt_key(row: Mapping[str, Any], number: Any, kind: Any) -> AttemptKey:
    """Return the key that a row of an attempt, its receipt and its audit entries share."""
    return (row["step_id"], kind, row["item"], number)


def _optional(value: Any) -> str | None:
    return None if value is None else str(value)
