"""Everything that the store holds about a run, as one JSON document: what is exported, and what is verified."""

import re
import sqlite3
from typing import Any

from pydantic import JsonValue
from sqlalchemy import Boolean, ColumnElement, Connection, Table, and_, select, union_all
from sqlalchemy.dialects import sqlite

from plan_adapter.store.columns import Instant
from plan_adapter.store.digests import Plain, plain
from plan_adapter.store.tables import approvals, attempts, audit, gates, leases, plans, receipts, revisions, runs, step_runs

FORMAT = "plan-adapter-run/1"

_INSTANT = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{6}")


def document_of(connection: Connection, run_id: str) -> dict[str, JsonValue]:
    """Return the rows of a run, each as it is stored, in an order that does not depend on the database; None for one that is missing."""
    run = _one(_rows(connection, runs, runs.c.id == run_id))
    parts: dict[str, list[Plain]] = {
        table.name: _rows(connection, table, table.c.run_id == run_id)
        for table in (approvals, gates, attempts, receipts, step_runs, revisions, audit)
    }
    # In the database, not by what was read: a digest that somebody altered need not be text that can be asked for.
    digests = union_all(select(runs.c.digest).where(runs.c.id == run_id), select(revisions.c.digest).where(revisions.c.run_id == run_id))
    tenant = select(runs.c.tenant_id).where(runs.c.id == run_id).scalar_subquery()
    of_run = and_(plans.c.tenant_id == tenant, plans.c.digest.in_(digests))
    head = parts["audit"][-1]["digest"] if parts["audit"] else None
    return {
        "format": FORMAT,
        "run": run,
        "plans": _values(_rows(connection, plans, of_run)),
        "lease": _one(_rows(connection, leases, leases.c.run_id == run_id)),
        **{name: _values(rows) for name, rows in parts.items()},
        "head": head,
    }


def _rows(connection: Connection, table: Table, which: ColumnElement[bool]) -> list[Plain]:
    query = select(table).where(which).order_by(*table.primary_key.columns)
    if connection.dialect.name != "sqlite":
        return [plain(table, row) for row in connection.execute(query).mappings()]
    # As the file holds it, and not as a reader makes sense of it: also what no reader can make sense of is to be shown.
    compiled = query.compile(dialect=sqlite.dialect(), compile_kwargs={"render_postcompile": True})
    parameters = [compiled.params[name] for name in compiled.positiontup or ()]
    driver: sqlite3.Connection = connection.connection.driver_connection  # pyright: ignore[reportAssignmentType]
    before, driver.text_factory = driver.text_factory, _as_text
    try:
        found = driver.execute(str(compiled), parameters).fetchall()
    finally:
        driver.text_factory = before
    return [{column.name: _as_stored(column, value) for column, value in zip(table.c, row, strict=True)} for row in found]


def _as_text(found: bytes) -> str:
    return found.decode(errors="surrogateescape")


def _as_stored(column: Any, value: Any) -> JsonValue:
    if isinstance(value, bytes):
        return {"bytes": value.hex()}
    if isinstance(column.type, Instant) and isinstance(value, str) and _INSTANT.fullmatch(value):
        return value.replace(" ", "T") + "Z"
    if isinstance(column.type, Boolean) and isinstance(value, int) and value in (0, 1):
        return bool(value)
    return value


def _one(rows: list[Plain]) -> Plain | None:
    return rows[0] if rows else None


def _values(rows: list[Plain]) -> list[JsonValue]:
    return [row for row in rows]  # noqa: C416  # a list of another type
