"""The signed parts of an exported run: answers at gates, resolutions, and operator requests."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from plan_adapter.gates.approval import approval_text_to_sign, operator_request_text_to_sign, resolution_text_to_sign
from plan_adapter.model.record import ABORTED
from plan_adapter.store.database.rows import NO_ITEM
from plan_adapter.store.operator_requests import Subject, request_digest
from plan_adapter.store.outcomes import by_hand_digest, outcome_digest
from plan_adapter.store.proof.digests import JsonRow, erased_columns, has_erasures
from plan_adapter.store.proof.entries import OPERATOR_REQUEST_KINDS

_OPERATOR_REQUESTS = {entry_kind: kind for kind, entry_kind in OPERATOR_REQUEST_KINDS.items()}


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


def signed_statements(document: Mapping[str, Any]) -> Iterator[SignedStatement]:
    """Yield the statements recorded as signed in an exported run. `verification.verify` must have found the run intact."""
    run_id = str(document["run"]["id"])
    for row in document["approvals"]:
        if row["standing_id"] is None and (row["signature"] is not None or row["known_by"] == "ssh_signature"):
            yield _signed_answer(row)
    resolutions, operator_requests, signatures = _signed_entries(document["audit"])
    yield from _signed_resolutions(document, run_id, resolutions)
    for number, (request_id, entries) in enumerate(operator_requests.items(), 1):
        kind, first, signature = _OPERATOR_REQUESTS[str(entries[0]["kind"])], entries[0], signatures.get(request_id)
        if signature is not None or first["known_by"] == "ssh_signature":
            subjects = [Subject(_optional(entry["step_id"]), str(entry["row_digest"])) for entry in entries]
            digest = request_digest(run_id, number, kind, subjects)
            text = operator_request_text_to_sign(digest=digest, operator_request=kind, because=str(first["message"]), run_id=run_id)
            is_erased = has_erasures(first)
            yield SignedStatement("audit", request_id, str(first["by"]), text, signature, subjects[0].step_id, is_erased=is_erased)


_AttemptKey = tuple[Any, Any, Any, Any]


def _signed_entries(audit: Any) -> tuple[dict[_AttemptKey, str], dict[str, list[JsonRow]], dict[str, str]]:
    """Return signatures of resolutions by attempt, entries by operator request, and signatures of operator requests."""
    resolutions, operator_requests, signatures = dict[_AttemptKey, str](), dict[str, list[JsonRow]](), dict[str, str]()
    for entry in audit:
        if entry["kind"] in _OPERATOR_REQUESTS:
            operator_requests.setdefault(str(entry["row_id"]), []).append(entry)
        elif entry["kind"] == "signed" and entry["row_id"] is not None:
            signatures[entry["row_id"]] = str(entry["message"])
        elif entry["kind"] == "signed":
            resolutions[_attempt_key(entry, entry["attempt"], entry["call_kind"])] = str(entry["message"])
    return resolutions, operator_requests, signatures


def _signed_resolutions(document: Mapping[str, Any], run_id: str, signatures: Mapping[_AttemptKey, str]) -> Iterator[SignedStatement]:
    signed = {_attempt_key(row, row["number"], row["kind"]): row for row in document["receipts"] if row["known_by"] == "ssh_signature"}
    if not signed:
        return
    for attempt in document["attempts"]:
        if (row := signed.get(key := _attempt_key(attempt, attempt["number"], attempt["kind"]))) is None:
            continue
        # An attempt that a person made by hand was created with the resolution: it has no key.
        is_by_hand = attempt["idempotency_key"] == ""
        if attempt["effect"] == "read" and not is_by_hand:  # the answer to a question, whose approval has the signature
            continue
        item = None if attempt["item"] == NO_ITEM else attempt["item"]
        by_hand = by_hand_digest(run_id=run_id, step_id=attempt["step_id"], item=item, number=attempt["number"], kind=attempt["kind"])
        digest = by_hand if is_by_hand else outcome_digest(attempt["id"])
        resolution = "done" if row["outcome"] == "succeeded" else "abort" if row["error"] == ABORTED else "again"
        text = resolution_text_to_sign(digest=digest, resolution=resolution, result=json.loads(row["result"]), run_id=run_id)
        where, is_erased = (str(row["step_id"]), str(row["kind"])), has_erasures(row)
        yield SignedStatement("receipts", str(attempt["id"]), str(row["by"]), text, signatures.get(key), *where, is_erased=is_erased)


def _signed_answer(row: JsonRow) -> SignedStatement:
    text = approval_text_to_sign(
        approval_digest=str(row["approval_digest"]),
        decision=row["decision"],  # pyright: ignore[reportArgumentType]  # any value; it is what must have been signed
        run_id=str(row["run_id"] or ""),
        gate_id=str(row["gate_id"] or ""),
        result=None if row["result"] is None else json.loads(str(row["result"])),
    )
    signature, step_id = _optional(row["signature"]), _optional(row["step_id"])
    return SignedStatement("approvals", str(row["id"]), str(row["by"]), text, signature, step_id, is_erased="result" in erased_columns(row))


def _attempt_key(row: Mapping[str, Any], number: Any, kind: Any) -> _AttemptKey:
    return (row["step_id"], kind, row["item"], number)


def _optional(value: Any) -> str | None:
    return None if value is None else str(value)
