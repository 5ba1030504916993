"""What the rows of a run say as entries of its audit. The same functions make the entries and check them."""

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple, TypeAlias, cast

from plan_adapter.plan import CallKind
from plan_adapter.record import OperatorRequestKind
from plan_adapter.store.columns import readable_words
from plan_adapter.store.digests import Plain, row_digest
from plan_adapter.store.rows import NO_ITEM

AuditKind: TypeAlias = Literal[
    "run_created",
    "approved",
    "rejected",
    "changes_requested",
    "approval_used",
    "gate_opened",
    "gate_answered",  # `message` begins with the decision
    "gate_expired",
    "gate_cancelled",
    "gate_superseded",
    "word_signed",  # how an attempt ended, or what is wanted, was said by somebody who signed it; `message` is the signature
    "left_out",  # a step that is not to be called: `message` says why, `row_digest` is of the step, `row_id` of the whole wish
    "taken_back",  # a step that was left out is wanted again, with the same fields
    "rollback_asked",  # what was done is to be undone: `row_digest` is of the plan
    "gate_resolved",  # one that asked how an attempt ended; `message` is what was said, and the end of the attempt says by whom
    "revised",
    "new_version",  # the run as it is after `revised`
    "run_started",
    "run_changed",
    "attempt_started",
    "attempt_succeeded",
    "attempt_failed",
    "step_completed",
    "step_failed",
    "step_skipped",
    "cancel_requested",
    "refused",  # somebody may not do what they tried: `message` says what and who may
    "run_ended",
]

RUN_KINDS = frozenset({"run_created", "new_version", "run_started", "run_changed", "cancel_requested", "run_ended"})
"""The kinds of entries about the row of the run itself: the newest one has its digest."""

OPERATOR_REQUEST_KINDS: dict[OperatorRequestKind, AuditKind] = {
    "leave_out": "left_out",
    "take_back": "taken_back",
    "undo": "rollback_asked",
}

_DECISIONS: dict[Any, AuditKind] = {"approve": "approved", "reject": "rejected", "request_changes": "changes_requested"}
_GATE_ENDS: dict[Any, AuditKind] = {
    "expired": "gate_expired",
    "cancelled": "gate_cancelled",
    "superseded": "gate_superseded",
    "done": "gate_resolved",
    "again": "gate_resolved",
    "abort": "gate_resolved",
}
_STEP_ENDS: dict[Any, AuditKind] = {"completed": "step_completed", "failed": "step_failed", "skipped": "step_skipped"}


class Entry(NamedTuple):
    """An entry that is to be appended; `at` as `digests.instant_text` writes it."""

    at: str
    kind: AuditKind
    step_id: str | None = None
    item: int = NO_ITEM
    attempt: int | None = None
    call_kind: CallKind | None = None
    by: str | None = None
    known_by: str | None = None
    message: str | None = None
    row_id: str | None = None
    row_digest: str | None = None


def of_run(row: Plain, kind: AuditKind, *, at: str | None = None, message: str | None = None, row_id: str | None = None) -> Entry:
    """Return the entry of a kind about a run as it is now; its time is that of the last change unless one is given."""
    return Entry(at or _text(row["updated_at"]), kind, message=message, row_id=row_id, row_digest=row_digest("runs", row))


def of_run_end(row: Plain) -> Entry:
    """Return the entry about a run that has ended."""
    outcome = _text(row["status"]) + (f" ({row['reason']})" if row["reason"] else "") + (f": {row['message']}" if row["message"] else "")
    return of_run(row, "run_ended", at=_optional(row["completed_at"]), message=outcome)


def of_attempt(row: Plain) -> Entry:
    """Return the entry about an intent."""
    what, digest = f"{row['tool_name']} ({row['effect']})", row_digest("attempts", row)
    where = _call(row)
    return Entry(_text(row["started_at"]), "attempt_started", *where, message=what, row_id=_text(row["id"]), row_digest=digest)


def of_receipt(row: Plain) -> Entry:
    """Return the entry about the end of an attempt."""
    where = _call(row)
    return Entry(
        _text(row["ended_at"]),
        "attempt_succeeded" if row["outcome"] == "succeeded" else "attempt_failed",
        *where,
        by=_optional(row["by"]),
        known_by=_optional(row["known_by"]),
        message=_optional(row["error"] or row["note"]),
        row_id=_text(row["attempt_id"]),
        row_digest=row_digest("receipts", row),
    )


def of_step(row: Plain) -> Entry:
    """Return the entry about a step that has ended."""
    kind = _STEP_ENDS.get(row["status"], "step_failed")
    message = _optional(row["error"] or row["reason"])
    return Entry(_text(row["completed_at"]), kind, _text(row["step_id"]), message=message, row_digest=row_digest("step_runs", row))


def of_approval(row: Plain) -> Entry:
    """Return the entry about an answer, at a gate or without one."""
    note = _optional(row["note"] or None)
    if row["gate_id"] is None:
        return _about_approval(row, _DECISIONS.get(row["decision"], "rejected"), _text(row["at"]), note)
    return _about_approval(row, "gate_answered", _text(row["at"]), _text(row["decision"]) + (f": {note}" if note else ""))


def of_use(row: Plain) -> Entry:
    """Return the entry about an approval that was used up."""
    return _about_approval(row, "approval_used", _text(row["used_at"]), _text(row["approval_digest"]))


def of_gate(row: Plain) -> Entry:
    """Return the entry about a gate that was opened."""
    return _about_gate(row, "gate_opened", _text(row["opened_at"]), _optional(row["description"]), is_open=True)


def of_gate_end(row: Plain) -> Entry:
    """Return the entry about a gate that was closed without an approval or a rejection."""
    kind = _GATE_ENDS.get(row["end"], "gate_cancelled")
    return _about_gate(row, kind, _text(row["closed_at"]), _text(row["end"]) if kind == "gate_resolved" else None, is_open=False)


def of_revision(row: Plain) -> Entry:
    """Return the entry about a version that was replaced."""
    note, digest = _optional(row["note"] or None), row_digest("revisions", row)
    return Entry(_text(row["at"]), "revised", by=_text(row["by"]), message=note, row_id=str(row["number"]), row_digest=digest)


def of_signature(receipt: Plain, signature: str) -> Entry:
    """Return the entry about the signature of the word that `receipt` is."""
    where = _call(receipt)
    by, known_by = _optional(receipt["by"]), _optional(receipt["known_by"])
    return Entry(_text(receipt["ended_at"]), "word_signed", *where, by=by, known_by=known_by, message=signature)


def of_operator_request(
    at: str, kind: OperatorRequestKind, *, by: str, known_by: str, because: str, step_id: str | None, request_digest: str, digest: str
) -> Entry:
    """Return the entry about what a person asks for, of one step or of the run."""
    who, why = readable_words(by), readable_words(because)
    return Entry(
        at, OPERATOR_REQUEST_KINDS[kind], step_id, by=who, known_by=known_by, message=why, row_id=request_digest, row_digest=digest
    )


def of_operator_request_signature(kind: Entry, signature: str) -> Entry:
    """Return the entry about the signature of a wish."""
    return Entry(kind.at, "word_signed", by=kind.by, known_by=kind.known_by, message=signature, row_id=kind.row_id)


def of_refusal(at: str, *, by: str, known_by: str | None, message: str, step_id: str | None, call_kind: CallKind | None) -> Entry:
    """Return the entry about somebody who may not do what they tried with the run."""
    who, why = readable_words(by), readable_words(message)
    return Entry(at, "refused", step_id=step_id, call_kind=call_kind, by=who, known_by=known_by, message=why)


def _call(row: Plain) -> tuple[str, int, int, CallKind]:
    """Return the fields of an entry that name an attempt."""
    return cast("tuple[str, int, int, CallKind]", (row["step_id"], row["item"], row["number"], row["kind"]))


def in_time(entries: Sequence[Entry]) -> list[Entry]:
    """Return entries of one transaction in the order in which things happened."""
    return sorted(entries, key=lambda entry: entry.at)


def _about_approval(row: Plain, kind: AuditKind, at: str, message: str | None) -> Entry:
    return Entry(
        at,
        kind,
        step_id=_optional(row["step_id"]),
        item=cast("int", row["item"]),
        by=_text(row["by"]),
        known_by=_text(row["known_by"]),
        message=message,
        row_id=_text(row["id"]),
        row_digest=row_digest("approvals", row),
    )


def _about_gate(row: Plain, kind: AuditKind, at: str, message: str | None, *, is_open: bool) -> Entry:
    step_id, digest = _optional(row["step_id"] or None), row_digest("gates", row, open_gate=is_open)
    call_kind = cast("CallKind", row["call_kind"])
    return Entry(
        at, kind, step_id, cast("int", row["item"]), call_kind=call_kind, message=message, row_id=_text(row["id"]), row_digest=digest
    )


def _text(value: Any) -> str:
    return value if isinstance(value, str) else str(value)


def _optional(value: Any) -> str | None:
    return None if value is None else _text(value)
