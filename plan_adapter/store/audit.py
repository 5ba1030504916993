"""Read the audit log of a run, and record refused attempts to act on it. A refusal changes no other row."""

from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import Connection, select

from plan_adapter.plan import CallKind
from plan_adapter.store import chain, entries
from plan_adapter.store.columns import now_of
from plan_adapter.store.digests import instant_text
from plan_adapter.store.entries import AuditKind
from plan_adapter.store.rows import item_of
from plan_adapter.store.tables import audit


@dataclass(frozen=True, slots=True)
class AuditEntry:
    """One entry of a run's audit log: when, what, which step, by whom, and the message."""

    at: datetime
    kind: AuditKind
    run_id: str
    step_id: str | None = None
    item: int | None = None
    number: int | None = None  # of the attempt
    by: str | None = None
    message: str | None = None
    known_by: str | None = None  # how `by` was identified
    call_kind: CallKind | None = None  # of the attempt or the gate


def entries_of(connection: Connection, run_id: str) -> list[AuditEntry]:
    """Return the audit log of a run, in the order in which it was recorded."""
    query = select(audit).where(audit.c.run_id == run_id).order_by(audit.c.number)
    return [
        AuditEntry(
            at=row["at"],
            kind=row["kind"],
            run_id=run_id,
            step_id=row["step_id"],
            item=item_of(row),
            number=row["attempt"],
            by=row["by"],
            message=row["message"],
            known_by=row["known_by"],
            call_kind=row["call_kind"],
        )
        for row in connection.execute(query).mappings()
    ]


def note_refusal(
    connection: Connection,
    run_id: str,
    *,
    message: str,
    by: str,
    known_by: str | None,
    step_id: str | None,
    call_kind: CallKind | None,
) -> None:
    """Append an entry that says who was not allowed to do what they tried."""
    at = instant_text(now_of(connection))
    refusal = entries.of_refusal(at, by=by, known_by=known_by, message=message, step_id=step_id, call_kind=call_kind)
    chain.append(connection, run_id, [refusal])
