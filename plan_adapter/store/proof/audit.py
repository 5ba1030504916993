"""The audit log of a run, a hash chain: the digest of each entry covers the entry and the digest before it. Functions of a connection.

An entry is appended in the transaction that makes the change it describes, as the last statement. Transactions that write about one run
take their locks in this order: run, lease, gates, approvals, audit log. Only this module takes the last one, and a transaction needs no
further lock after it. So there are no deadlocks.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NamedTuple

from pydantic import JsonValue
from sqlalchemy import Connection, Select, Table, bindparam, func, insert, select

from plan_adapter.local.crash_points import reached
from plan_adapter.model.options import CallKind
from plan_adapter.store.database.rows import item_of
from plan_adapter.store.database.tables import audit, policy_history, runs, tombstones, versions
from plan_adapter.store.proof.digests import JsonRow, digest_of, instant_of, json_row, new_salt, with_words_digested
from plan_adapter.store.proof.entries import AuditKind, Entry


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


class _Head(NamedTuple):
    """The newest entry of a chain, and the context of its run."""

    number: int
    digest: str
    tenant_id: str
    agent_id: str | None
    org_id: str | None
    task_id: str | None


class Link(NamedTuple):
    """The last entry of a transaction. After a lost connection, it shows whether the transaction was committed."""

    run_id: str
    number: int
    digest: str


LINKS = "plan_adapter_links"
"""The execution option of a connection whose list receives the last link of each `append`."""


WITNESSED = (policy_history, tombstones)
"""The chains of the whole store whose newest row each run's first entry names."""


def append(connection: Connection, run_id: str, entries: Sequence[Entry]) -> None:
    """Append `entries` to a run's audit log, in this order. Must be the last thing a transaction does about the run."""
    if not entries:
        return
    head = _locked_head(connection, run_id)
    if head is None:
        row = connection.execute(select(runs).where(runs.c.id == run_id)).mappings().first()
        if row is None:  # an approval may be used for a run that this store does not hold
            return
        run = json_row(runs, row)
        head = _Head(0, genesis_digest(run), *(run[name] for name in _CONTEXT_COLUMNS))  # pyright: ignore[reportArgumentType]  # columns of these types
    context_columns = dict(zip(_CONTEXT_COLUMNS, head[2:], strict=True))
    number, before = head.number, head.digest
    rows = list[dict[str, Any]]()
    for entry in entries:
        number += 1
        content = {"run_id": run_id, "number": number, **context_columns, **entry._asdict(), "at": instant_of(entry.at), "salt": new_salt()}
        before = entry_digest(json_row(audit, content), before)
        rows.append({**content, "digest": before})
    connection.execute(_INSERT, rows)
    reached("in-transaction", entries[-1].kind)
    if (links := connection.get_execution_options().get(LINKS)) is not None:
        links.append(Link(run_id, number, before))


def is_committed(connection: Connection, link: Link) -> bool:
    """Return whether the transaction that appended `link` was committed. Waits for that transaction if it is still in progress."""
    _lock(connection, link.run_id)
    same = (audit.c.run_id == link.run_id, audit.c.number == link.number, audit.c.digest == link.digest)
    return connection.execute(select(audit.c.number).where(*same)).first() is not None


def genesis_digest(run: JsonRow) -> str:
    """Return the digest before the first entry. It covers the run's id, plan, inputs, requester and creation time."""
    created = {name: run[name] for name in ("id", "plan_id", "inputs", "requested_by", "created_at", "salt")}
    return digest_of(with_words_digested("runs", created))


def witness_of(connection: Connection, run: Mapping[str, Any]) -> str:
    """Return the numbers and digests of the newest policy, tombstone, and version of the run's plan by name, as JSON.

    A run's first entry keeps it. So it is noticed if one of them is deleted, although nothing follows it in its own chain.
    """
    newest = {table.name: connection.execute(_newest_of(table)).first() for table in WITNESSED}
    same_name = (versions.c.tenant_id == run["tenant_id"], versions.c.name == run["name"])
    named = select(versions.c.version, versions.c.row_digest).where(*same_name).order_by(versions.c.version.desc()).limit(1)
    newest[versions.name] = connection.execute(named).first()
    return json.dumps({name: [*row] for name, row in newest.items() if row is not None}, sort_keys=True)


def witnessed_by(connection: Connection, run_id: str) -> JsonRow:
    """Return the current digests of the rows that a run's first entry names, by table. A row that is gone has None."""
    first = connection.scalar(select(audit.c.row_id).where(audit.c.run_id == run_id, audit.c.number == 1))
    named = read_witness(first)
    rows = {table: named[table.name][0] for table in WITNESSED if table.name in named}
    found = {table.name: connection.scalar(select(table.c.digest).where(table.c.number == number)) for table, number in rows.items()}
    if versions.name in named:
        of_run = (runs.c.id == run_id, versions.c.tenant_id == runs.c.tenant_id, versions.c.name == runs.c.name)
        is_same = versions.c.version == named[versions.name][0]
        found[versions.name] = connection.scalar(select(versions.c.row_digest).where(*of_run, is_same))
    return found


def read_witness(text: JsonValue) -> dict[str, tuple[int, str]]:
    """Return the numbers and digests that `witness_of` wrote, by table. Empty for a text that it did not write."""
    try:
        found: Any = json.loads(str(text))
        return {str(name): (int(number), str(digest)) for name, (number, digest) in found.items()}
    except (ValueError, TypeError, AttributeError):
        return {}


def _newest_of(table: Table) -> Select[Any]:
    return select(table.c.number, table.c.digest).order_by(table.c.number.desc()).limit(1)


def entry_digest(entry: JsonRow, before: str) -> str:
    """Return the digest that an audit entry must have."""
    content: JsonRow = {**with_words_digested("audit", entry), "before": before}
    content.pop("digest", None)
    return digest_of(content)


def _locked_head(connection: Connection, run_id: str) -> _Head | None:
    """Return the newest entry, or None. Nobody else appends to this chain until the transaction ends."""
    _lock(connection, run_id)
    found = connection.execute(_HEAD, {"run": run_id}).first()
    return None if found is None else _Head(*found)


def _lock(connection: Connection, run_id: str) -> None:
    """Lock the run's chain against other writers. Later statements see what was committed while this one waited.

    On SQLite nothing is left to lock: its write transactions exclude each other.
    """
    if connection.dialect.name == "postgresql":
        connection.execute(select(func.pg_advisory_xact_lock(func.hashtextextended(f"plan_adapter.audit {run_id}", 0))))


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


_CONTEXT_COLUMNS = ("tenant_id", "agent_id", "org_id", "task_id")
# Built once, because every commit of a run executes them.
_HEAD = (
    select(audit.c.number, audit.c.digest, *(audit.c[name] for name in _CONTEXT_COLUMNS))
    .where(audit.c.run_id == bindparam("run"))
    .order_by(audit.c.number.desc())
    .limit(1)
)
_INSERT = insert(audit)
