"""Turn the rows of a run into entries of its audit log. The same functions create the entries and verify them."""

import json
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple, TypeAlias, cast

from plan_adapter.model.approvals import AGREE, DELEGATE, TAKE_BACK, Approval, Decision, DelegationKind, GateEnd, OperatorRequestKind
from plan_adapter.model.canonical import arguments_digest
from plan_adapter.model.host_process import HostProcess
from plan_adapter.model.options import CallKind
from plan_adapter.model.record import Attempt
from plan_adapter.store.database.rows import NO_ITEM, item_column
from plan_adapter.store.proof.digests import JsonRow, instant_text, row_digest

# A kind that describes a row of a table, other than the run's own, is in `DESCRIBED_TABLES`.
AuditKind: TypeAlias = Literal[
    "run_created",
    "variable_read",  # an input whose value a Prefect variable gave: `message` is the variable, `row_id` the input
    "approved",
    "rejected",
    "changes_requested",
    "approval_used",
    "gate_opened",
    "agreed",  # an approval at a gate that needed more of them
    "delegated",  # an approver let another person answer at a gate: `message` begins with their name
    "delegation_taken_back",  # and no longer does, likewise
    "gate_answered",  # `message` begins with the decision
    "gate_expired",
    "gate_cancelled",
    "gate_superseded",
    "signed",  # a signed resolution or operator request; `message` is the signature
    "skip_requested",  # a step to skip: `message` is the reason, `row_digest` is the step's, `row_id` the operator request's digest
    "run_from_requested",  # a skipped step is to run after all, with the same fields
    "rollback_requested",  # the run is to be rolled back: `row_digest` is the plan's
    "override_requested",  # the run is to start during a change freeze, likewise
    "gate_resolved",  # an outcome gate; `message` is the resolution, and the entry for the attempt's end names the person
    "revised",
    "new_version",  # the run after `revised`
    "run_started",
    "run_changed",
    "attempt_started",
    "command_started",  # by the tool of an attempt: `row_id` is its process
    "always_executed",  # a call of a goal that nobody confirmed, as the plan allows: `row_id` is the digest of the arguments
    "attempt_succeeded",
    "attempt_failed",
    "step_completed",
    "step_failed",
    "step_skipped",
    "cancel_requested",
    "erased",  # values of a run that has ended: `message` names the fields, `row_id` is the number of the tombstone
    "refused",  # somebody lacked permission: `message` names what they tried, and who has it
    "run_ended",
]

RUN_KINDS = frozenset({"run_created", "new_version", "run_started", "run_changed", "cancel_requested", "run_ended"})
"""The entry kinds about the run's own row. The newest such entry has the row's digest."""

OPERATOR_REQUEST_KINDS: dict[OperatorRequestKind, AuditKind] = {
    "skip": "skip_requested",
    "run_from": "run_from_requested",
    "rollback": "rollback_requested",
    "override_freeze": "override_requested",
}

DECISION_ENTRIES: Mapping[Decision, AuditKind] = {"approve": "approved", "reject": "rejected", "request_changes": "changes_requested"}
DELEGATION_ENTRIES: Mapping[DelegationKind, AuditKind] = {DELEGATE: "delegated", TAKE_BACK: "delegation_taken_back"}
GATE_END_ENTRIES: Mapping[GateEnd, AuditKind] = {
    "expired": "gate_expired",
    "cancelled": "gate_cancelled",
    "superseded": "gate_superseded",
    "done": "gate_resolved",
    "again": "gate_resolved",
    "abort": "gate_resolved",
}
STEP_END_ENTRIES: dict[Any, AuditKind] = {"completed": "step_completed", "failed": "step_failed", "skipped": "step_skipped"}

DESCRIBED_TABLES: Mapping[str, str] = {
    "attempt_started": "attempts",
    **dict.fromkeys(("attempt_succeeded", "attempt_failed"), "receipts"),
    "command_started": "commands",
    **dict.fromkeys(STEP_END_ENTRIES.values(), "step_runs"),
    **dict.fromkeys((*DECISION_ENTRIES.values(), *DELEGATION_ENTRIES.values(), "agreed", "approval_used", "gate_answered"), "approvals"),
    **dict.fromkeys(("gate_opened", *GATE_END_ENTRIES.values()), "gates"),
    "revised": "revisions",
    "erased": "tombstones",
}
"""The table with the row that an entry describes, by its kind. The other kinds describe the run itself, or no row."""


class Entry(NamedTuple):
    """An entry to append. `at` has the format of `digests.instant_text`."""

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


def of_run(row: JsonRow, kind: AuditKind, *, at: str | None = None, message: str | None = None, row_id: str | None = None) -> Entry:
    """Return an entry of this kind about the run's current row. `at` defaults to the time of its last change."""
    return Entry(at or _text(row["updated_at"]), kind, message=message, row_id=row_id, row_digest=row_digest("runs", row))


def of_creation(row: JsonRow, witness: str) -> Entry:
    """Return the first entry of a run. `witness` names the newest policy, tombstone and version: see `audit.witness_of`."""
    return of_run(row, "run_created", message=_text(row["name"]), row_id=witness)


def of_variable(row: JsonRow, name: str, variable: str) -> Entry:
    """Return the entry for a Prefect variable that gave a new run its input `name`."""
    return Entry(_text(row["created_at"]), "variable_read", message=variable, row_id=name)


def of_run_end(row: JsonRow) -> Entry:
    """Return the entry for the end of a run."""
    outcome = _text(row["status"]) + (f" ({row['reason']})" if row["reason"] else "") + (f": {row['message']}" if row["message"] else "")
    return of_run(row, "run_ended", at=_optional_text(row["completed_at"]), message=outcome)


def of_attempt(row: JsonRow) -> Entry:
    """Return the entry for an intent."""
    what, digest = f"{row['tool_name']} ({row['effect']})", row_digest("attempts", row)
    where = _attempt_fields(row)
    return Entry(_text(row["started_at"]), "attempt_started", *where, message=what, row_id=_text(row["id"]), row_digest=digest)


def of_command(row: JsonRow, *, at: str = "") -> Entry:
    """Return the entry for a command that the tool of an attempt started. The row has no time."""
    process = HostProcess.parse(_text(row["process"]))
    what, digest = f"process {process.pid} on {process.host}", row_digest("commands", row)
    return Entry(at, "command_started", *_attempt_fields(row), message=what, row_id=_text(row["process"]), row_digest=digest)


def of_always_executed(attempt: Attempt, allowed_by: Approval) -> Entry:
    """Return the entry for an unconfirmed call of a goal. The approver of the plan allowed such calls with `always_execute`."""
    digest = arguments_digest(attempt.tool_name, attempt.parameters)
    return Entry(
        instant_text(attempt.started_at),
        "always_executed",
        attempt.step_id,
        item_column(attempt.item),
        attempt.number,
        attempt.kind,
        by=allowed_by.by,
        known_by=allowed_by.known_by,
        message=f"{attempt.tool_name} ({attempt.effect}), arguments {digest[:12]}…",
        row_id=digest,
    )


def of_receipt(row: JsonRow) -> Entry:
    """Return the entry for the end of an attempt."""
    where = _attempt_fields(row)
    return Entry(
        _text(row["ended_at"]),
        "attempt_succeeded" if row["outcome"] == "succeeded" else "attempt_failed",
        *where,
        by=_optional_text(row["by"]),
        known_by=_optional_text(row["known_by"]),
        message=_optional_text(row["error"] or row["note"]),
        row_id=_text(row["attempt_id"]),
        row_digest=row_digest("receipts", row),
    )


def of_step(row: JsonRow) -> Entry:
    """Return the entry for the end of a step."""
    kind = STEP_END_ENTRIES.get(row["status"], "step_failed")
    message = _optional_text(row["error"] or row["reason"])
    return Entry(_text(row["completed_at"]), kind, _text(row["step_id"]), message=message, row_digest=row_digest("step_runs", row))


def of_approval(row: JsonRow) -> Entry:
    """Return the entry for an answer, at a gate or without one."""
    note = _optional_text(row["note"] or None)
    if (delegation := DELEGATION_ENTRIES.get(cast("DelegationKind", row["decision"]))) is not None:
        to = str(json.loads(_text(row["result"]))["to"])
        return _approval_entry(row, delegation, _text(row["at"]), to + (f": {note}" if note else ""))
    if row["gate_id"] is None:
        kind = "agreed" if row["decision"] == AGREE else DECISION_ENTRIES[cast("Decision", row["decision"])]
        return _approval_entry(row, kind, _text(row["at"]), note)
    return _approval_entry(row, "gate_answered", _text(row["at"]), _text(row["decision"]) + (f": {note}" if note else ""))


def of_use(row: JsonRow) -> Entry:
    """Return the entry for the use of an approval."""
    return _approval_entry(row, "approval_used", _text(row["used_at"]), _text(row["approval_digest"]))


def of_gate(row: JsonRow) -> Entry:
    """Return the entry for the opening of a gate."""
    return _gate_entry(row, "gate_opened", _text(row["opened_at"]), _optional_text(row["description"]), is_open=True)


def of_gate_end(row: JsonRow) -> Entry:
    """Return the entry for a gate that was closed without an approval or a rejection."""
    kind = GATE_END_ENTRIES.get(cast("GateEnd", row["end"]), "gate_cancelled")
    return _gate_entry(row, kind, _text(row["closed_at"]), _text(row["end"]) if kind == "gate_resolved" else None, is_open=False)


def of_revision(row: JsonRow) -> Entry:
    """Return the entry for a replaced version of the plan."""
    note, digest = _optional_text(row["note"] or None), row_digest("revisions", row)
    return Entry(_text(row["at"]), "revised", by=_text(row["by"]), message=note, row_id=str(row["number"]), row_digest=digest)


def of_erasure(row: JsonRow) -> Entry:
    """Return the entry for a tombstone of erased values."""
    fields, digest = ", ".join(json.loads(_text(row["fields"]))), row_digest("tombstones", row)
    by, known_by = _text(row["by"]), _text(row["known_by"])
    return Entry(_text(row["at"]), "erased", by=by, known_by=known_by, message=fields, row_id=str(row["number"]), row_digest=digest)


def of_signature(receipt: JsonRow, signature: str) -> Entry:
    """Return the entry for the signature of a resolution, which `receipt` records."""
    where = _attempt_fields(receipt)
    by, known_by = _optional_text(receipt["by"]), _optional_text(receipt["known_by"])
    return Entry(_text(receipt["ended_at"]), "signed", *where, by=by, known_by=known_by, message=signature)


def of_operator_request(
    at: str, kind: OperatorRequestKind, *, by: str, known_by: str, because: str, step_id: str | None, request_digest: str, digest: str
) -> Entry:
    """Return the entry for an operator request about one step or the whole run."""
    entry_kind = OPERATOR_REQUEST_KINDS[kind]
    return Entry(at, entry_kind, step_id, by=by, known_by=known_by, message=because, row_id=request_digest, row_digest=digest)


def of_operator_request_signature(request: Entry, signature: str) -> Entry:
    """Return the entry for the signature of an operator request."""
    return Entry(request.at, "signed", by=request.by, known_by=request.known_by, message=signature, row_id=request.row_id)


def of_refusal(at: str, *, by: str, known_by: str | None, message: str, step_id: str | None, call_kind: CallKind | None) -> Entry:
    """Return the entry for a refused action: somebody lacked permission."""
    return Entry(at, "refused", step_id=step_id, call_kind=call_kind, by=by, known_by=known_by, message=message)


def _attempt_fields(row: JsonRow) -> tuple[str, int, int, CallKind]:
    """Return the fields that identify an attempt."""
    return cast("tuple[str, int, int, CallKind]", (row["step_id"], row["item"], row["number"], row["kind"]))


def sort_by_time(entries: Sequence[Entry]) -> list[Entry]:
    """Return the entries of one transaction in order of time."""
    return sorted(entries, key=lambda entry: entry.at)


def _approval_entry(row: JsonRow, kind: AuditKind, at: str, message: str | None) -> Entry:
    return Entry(
        at,
        kind,
        step_id=_optional_text(row["step_id"]),
        item=cast("int", row["item"]),
        by=_text(row["by"]),
        known_by=_text(row["known_by"]),
        message=message,
        row_id=_text(row["id"]),
        row_digest=row_digest("approvals", row),
    )


def _gate_entry(row: JsonRow, kind: AuditKind, at: str, message: str | None, *, is_open: bool) -> Entry:
    step_id, digest = _optional_text(row["step_id"] or None), row_digest("gates", row, open_gate=is_open)
    call_kind = cast("CallKind", row["call_kind"])
    return Entry(
        at, kind, step_id, cast("int", row["item"]), call_kind=call_kind, message=message, row_id=_text(row["id"]), row_digest=digest
    )


def _text(value: Any) -> str:
    return value if isinstance(value, str) else str(value)


def _optional_text(value: Any) -> str | None:
    return None if value is None else _text(value)
