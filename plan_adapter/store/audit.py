"""What happened to a run, as one list."""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Literal, TypeAlias

from sqlalchemy import Connection, select

from plan_adapter.record import Outcome
from plan_adapter.store import approvals
from plan_adapter.store.revisions import revisions_of
from plan_adapter.store.rows import Row, item_of
from plan_adapter.store.steps import attempts_of, receipts_of
from plan_adapter.store.tables import gates, step_runs

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
    "revised",
    "run_started",
    "attempt_started",
    "attempt_succeeded",
    "attempt_failed",
    "step_completed",
    "step_failed",
    "step_skipped",
    "cancel_requested",
    "run_ended",
]


@dataclass(frozen=True, slots=True)
class AuditEntry:
    """One thing that happened: when, what, to which step, by whom, and the words that were written about it."""

    at: datetime
    kind: AuditKind
    run_id: str
    step_id: str | None = None
    item: int | None = None
    number: int | None = None
    by: str | None = None
    message: str | None = None
    known_by: str | None = None  # how `by` was known


_DECISIONS: dict[str, AuditKind] = {"approve": "approved", "reject": "rejected", "request_changes": "changes_requested"}
_GATE_ENDS: dict[str, AuditKind] = {"expired": "gate_expired", "cancelled": "gate_cancelled", "superseded": "gate_superseded"}
_STEP_ENDS: dict[str, AuditKind] = {"completed": "step_completed", "failed": "step_failed", "skipped": "step_skipped"}


def audit(connection: Connection, tenant: str | None, run: Row) -> list[AuditEntry]:
    """Return what happened to `run`, in the order of time."""
    run_id: str = run["id"]
    entries = [
        *_of_run(run),
        *_of_gates(connection, run_id),
        *_of_approvals(connection, tenant, run_id),
        *_of_revisions(connection, run_id),
    ]
    entries += [*_of_attempts(connection, run_id), *_of_steps(connection, run_id)]
    return sorted(entries, key=lambda entry: entry.at)


def _of_run(run: Row) -> Iterator[AuditEntry]:
    yield AuditEntry(run["created_at"], "run_created", run["id"], message=run["name"])
    if run["started_at"] is not None:
        yield AuditEntry(run["started_at"], "run_started", run["id"])
    if run["cancel_requested_at"] is not None:
        yield AuditEntry(run["cancel_requested_at"], "cancel_requested", run["id"], message=run["cancel_reason"])
    if run["completed_at"] is not None:
        outcome = run["status"] + (f" ({run['reason']})" if run["reason"] else "") + (f": {run['message']}" if run["message"] else "")
        yield AuditEntry(run["completed_at"], "run_ended", run["id"], message=outcome)


def _of_approvals(connection: Connection, tenant: str | None, run_id: str) -> Iterator[AuditEntry]:
    for row in approvals.rows_of(connection, tenant, run_id):
        entry = partial(AuditEntry, run_id=run_id, step_id=row["step_id"], item=item_of(row), by=row["by"], known_by=row["known_by"])
        if row["gate_id"] is not None:
            said = row["decision"] + (f": {row['note']}" if row["note"] else "")
            yield entry(row["at"], "gate_answered", message=said)
        else:
            yield entry(row["at"], _DECISIONS[row["decision"]], message=row["note"] or None)
        if row["used_at"] is not None:
            yield entry(row["used_at"], "approval_used", message=row["approval_digest"])


def _of_gates(connection: Connection, run_id: str) -> Iterator[AuditEntry]:
    for row in connection.execute(select(gates).where(gates.c.run_id == run_id).order_by(gates.c.opened_at, gates.c.id)).mappings():
        entry = partial(AuditEntry, run_id=run_id, step_id=row["step_id"] or None, item=item_of(row))
        yield entry(row["opened_at"], "gate_opened", message=row["description"])
        if row["end"] in _GATE_ENDS:
            yield entry(row["closed_at"], _GATE_ENDS[row["end"]])


def _of_revisions(connection: Connection, run_id: str) -> Iterator[AuditEntry]:
    for revision in revisions_of(connection, run_id):
        yield AuditEntry(revision.at, "revised", run_id, by=revision.by, message=revision.note or None)


def _of_attempts(connection: Connection, run_id: str) -> Iterator[AuditEntry]:
    for attempt in attempts_of(connection, run_id):
        what = f"{attempt.tool_name} ({attempt.effect})"
        yield AuditEntry(attempt.started_at, "attempt_started", run_id, attempt.step_id, attempt.item, attempt.number, message=what)
    for receipt in receipts_of(connection, run_id):
        kind: AuditKind = "attempt_succeeded" if receipt.outcome is Outcome.SUCCEEDED else "attempt_failed"
        yield AuditEntry(receipt.ended_at, kind, run_id, receipt.step_id, receipt.item, receipt.number, message=receipt.error)


def _of_steps(connection: Connection, run_id: str) -> Iterator[AuditEntry]:
    query = select(step_runs).where(step_runs.c.run_id == run_id, step_runs.c.completed_at.is_not(None)).order_by(step_runs.c.index)
    for row in connection.execute(query).mappings():
        yield AuditEntry(row["completed_at"], _STEP_ENDS[row["status"]], run_id, row["step_id"], message=row["error"] or row["reason"])
