"""Tombstones: what was pruned or erased, by whom, and in which rows. Functions of a connection.

They form one hash chain for the whole store. The database deletes or changes an audit entry only if its run has a tombstone. A person can
sign the newest one with their SSH key, and with it all that came before.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from hashlib import sha256
from typing import Any, Literal, TypeAlias

from sqlalchemy import Connection, func, insert, select

from plan_adapter.model.errors import RunConflictError
from plan_adapter.model.readable import moment, one_line
from plan_adapter.store.database.columns import now_of
from plan_adapter.store.database.rows import Row, context_columns, context_of, dump_json, is_named, load_json
from plan_adapter.store.database.tables import audit, tombstone_signatures, tombstones
from plan_adapter.store.plans import seen_by
from plan_adapter.store.proof.digests import JsonRow, digest_of, json_row

GENESIS_DIGEST = sha256(b"prefect-plan-adapter tombstones").hexdigest()
"""The digest that precedes the first tombstone."""

TombstoneKind: TypeAlias = Literal["pruned", "erased"]


@dataclass(frozen=True, slots=True)
class Tombstone:
    """What is known about a run that was pruned or has erased fields. The digests are those of its audit log at that time."""

    number: int
    run_id: str
    kind: TombstoneKind
    name: str  # of the plan
    plan_digest: str
    status: str
    completed_at: datetime | None
    entries: int
    first_digest: str
    last_digest: str
    fields: tuple[str, ...]
    replaced: Mapping[str, str]  # the columns with erased words by row, and the digests of changed files by path
    by: str
    known_by: str
    at: datetime
    digest: str

    def __str__(self) -> str:
        """Return what happened, by whom and when."""
        what = "was pruned" if self.kind == "pruned" else f"has erased fields ({', '.join(map(one_line, self.fields))})"
        return f"run {self.run_id} {what}, by {one_line(self.by)} ({self.known_by}) at {moment(self.at)}"


@dataclass(frozen=True, slots=True)
class TombstoneSignature:
    """The signature of a tombstone, and so of all tombstones before it."""

    number: int
    by: str
    signature: str
    text: str  # that was signed


def place_text(table: str, key: Sequence[Any]) -> str:
    """Return the name of a row in a tombstone: its table and its key."""
    return " ".join([table, json.dumps(list(key), ensure_ascii=False)])


def signed_text(number: int, digest: str) -> str:
    """Return the text that an SSH key signs for the tombstone with this number and digest."""
    return f"prefect-plan-adapter tombstones\nnumber: {number}\ndigest: {digest}\n"


def unsigned(connection: Connection) -> tuple[int, str] | None:
    """Return the number of the newest tombstone and the text to sign for it, or None if there is none or it is signed."""
    newest = connection.execute(select(tombstones.c.number, tombstones.c.digest).order_by(tombstones.c.number.desc()).limit(1)).first()
    if newest is None or connection.scalar(select(func.max(tombstone_signatures.c.number))) == newest.number:
        return None
    return newest.number, signed_text(newest.number, newest.digest)


def add_signature(connection: Connection, number: int, *, by: str, signature: str) -> None:
    """Record the signature of a tombstone. If another process has signed it meanwhile, its signature stays."""
    if connection.scalar(select(tombstone_signatures.c.number).where(tombstone_signatures.c.number == number)) is None:
        row = {"number": number, "by": by, "signature": signature, "at": now_of(connection)}
        connection.execute(insert(tombstone_signatures).values(row))


def signatures(connection: Connection) -> list[TombstoneSignature]:
    """Return all signatures, oldest first."""
    columns = (tombstone_signatures.c.number, tombstone_signatures.c.by, tombstone_signatures.c.signature, tombstones.c.digest)
    query = select(*columns).join(tombstones, tombstones.c.number == tombstone_signatures.c.number).order_by(tombstone_signatures.c.number)
    return [TombstoneSignature(row.number, row.by, row.signature, signed_text(row.number, row.digest)) for row in connection.execute(query)]


def add(
    connection: Connection,
    run: Row,
    kind: TombstoneKind,
    *,
    by: str,
    known_by: str,
    fields: Sequence[str] = (),
    replaced: Mapping[str, str] | None = None,
) -> JsonRow:
    """Append a tombstone for a locked run and return its row. Other writers of tombstones wait until the transaction ends.

    `replaced` names the columns with erased words by row (`place_text`), and the digests of changed result files by path.
    """
    if connection.dialect.name == "postgresql":  # write transactions of SQLite exclude each other anyway
        connection.execute(select(func.pg_advisory_xact_lock(func.hashtextextended("plan_adapter.tombstones", 0))))
    newest = connection.execute(select(tombstones).order_by(tombstones.c.number.desc()).limit(1)).mappings().first()
    chain = select(audit.c.digest, audit.c.number).where(audit.c.run_id == run["id"])
    first, last = (connection.execute(chain.order_by(order).limit(1)).one() for order in (audit.c.number, audit.c.number.desc()))
    row: dict[str, Any] = {
        **context_columns(context_of(run)),
        "number": 1 if newest is None else newest["number"] + 1,
        "run_id": run["id"],
        "kind": kind,
        "name": run["name"],
        "plan_digest": run["digest"],
        "status": run["status"],
        "completed_at": run["completed_at"],
        "entries": last.number,
        "first_digest": first.digest,
        "last_digest": last.digest,
        "fields": dump_json(list(fields)),
        "replaced": json.dumps(dict(replaced or {}), sort_keys=True),
        "by": by,
        "known_by": known_by,
        "at": now_of(connection),
    }
    row["digest"] = _digest(row, GENESIS_DIGEST if newest is None else newest["digest"])
    connection.execute(insert(tombstones).values(row))
    return json_row(tombstones, row)


def of_run(connection: Connection, tenant: str | None, name: str) -> list[Tombstone]:
    """Return the tombstones of the runs whose id is `name`, or begins or ends with it, oldest first."""
    same = is_named(tombstones.c.run_id, name)
    query = seen_by(tenant, select(tombstones).where(same), tombstones).order_by(tombstones.c.number)
    return [_tombstone_of(row) for row in connection.execute(query).mappings()]


def rows_of(connection: Connection, run_id: str) -> list[JsonRow]:
    """Return the rows of a run's tombstones, oldest first."""
    query = select(tombstones).where(tombstones.c.run_id == run_id).order_by(tombstones.c.number)
    return [json_row(tombstones, row) for row in connection.execute(query).mappings()]


def problem(connection: Connection) -> str | None:
    """Return a message about the first tombstone that was altered or deleted, or None if the chain is intact."""
    before, expected = GENESIS_DIGEST, 1
    for row in connection.execute(select(tombstones).order_by(tombstones.c.number).execution_options(yield_per=200)).mappings():
        if row["number"] != expected:
            return f"tombstone {expected} is missing: it was deleted directly from the database"
        if row["digest"] != _digest(row, before):
            return f"tombstone {expected} of run {row['run_id']} was altered: its digest does not match its content and the one before"
        before, expected = row["digest"], expected + 1
    return None


def refuse_erased(connection: Connection, run_id: str) -> None:
    """Raise RunConflictError if values were erased in the run: it cannot be executed again."""
    found = [tombstone for tombstone in of_run(connection, None, run_id) if tombstone.kind == "erased"]
    if found:
        raise RunConflictError(f"{found[-1]}: it cannot run again, because its steps would get `[erased]` as a value; start a new run")


def _digest(row: Mapping[str, Any] | Row, before: str) -> str:
    content = json_row(tombstones, row)
    del content["digest"]
    return digest_of({**content, "before": before})


def _tombstone_of(row: Row) -> Tombstone:
    plain_fields = {name: row[name] for name in Tombstone.__dataclass_fields__ if name not in ("fields", "replaced")}
    return Tombstone(**plain_fields, fields=tuple(load_json(row["fields"])), replaced=load_json(row["replaced"]))
