"""Concurrency keys: which run has one, and which runs wait for it. Functions of a connection."""

from dataclasses import dataclass

from sqlalchemy import Connection, delete, func, insert, select, text, update

from plan_adapter.store import leases
from plan_adapter.store.database.columns import database_now, now_of
from plan_adapter.store.database.rows import Row
from plan_adapter.store.database.tables import concurrency_keys, runs
from plan_adapter.store.runs import UNENDED


@dataclass(frozen=True, slots=True)
class RunBefore:
    """A run that has the key, or waits for it longer."""

    id: str
    name: str
    is_held: bool


def runs_before(connection: Connection, tenant: str, key: str, run_id: str | None) -> list[RunBefore]:
    """Return the runs that come before `run_id`, first the one that has the key. None stands for a run that would ask for the key now.

    A run has the key until it has ended, also while it waits without a process. A run that waits for the key counts only while its process
    is alive.
    """
    columns = (concurrency_keys, runs.c.name)
    query = select(*columns).join_from(concurrency_keys, runs, runs.c.id == concurrency_keys.c.run_id)
    query = query.where(concurrency_keys.c.tenant_id == tenant, concurrency_keys.c.key == key, runs.c.status.in_(UNENDED))
    rows = connection.execute(query.order_by(concurrency_keys.c.since, concurrency_keys.c.run_id)).mappings().all()
    own = next((row for row in rows if row["run_id"] == run_id), None)
    now, found = now_of(connection), list[Row]()
    for row in rows:
        is_earlier = own is None or (row["since"], row["run_id"]) < (own["since"], own["run_id"])
        waits = is_earlier and not leases.is_free(leases.of_run(connection, row["run_id"]), now)
        if row["run_id"] != run_id and (row["is_held"] or waits):
            found.append(row)
    found.sort(key=lambda row: not row["is_held"])
    return [RunBefore(row["run_id"], row["name"], row["is_held"]) for row in found]


def acquire(connection: Connection, run: Row, key: str) -> list[RunBefore]:
    """Give `run` the key if no run comes before it. Otherwise let it wait, and return those runs."""
    if connection.dialect.name == "postgresql":  # SQLite's write transactions exclude each other anyway
        connection.execute(select(func.pg_advisory_xact_lock(func.hashtext(text(":key")))), {"key": key})
    own = concurrency_keys.c.run_id == run["id"]
    written = connection.execute(select(concurrency_keys.c.key).where(own)).scalar()
    if written != key:  # the first start of the run, or the first one of a version with another key
        connection.execute(delete(concurrency_keys).where(own))
        context_columns = {name: run[name] for name in ("tenant_id", "agent_id", "org_id", "task_id")}
        row = {**context_columns, "run_id": run["id"], "key": key, "since": database_now(), "is_held": False}
        connection.execute(insert(concurrency_keys).values(row))
    before = runs_before(connection, run["tenant_id"], key, run["id"])
    connection.execute(update(concurrency_keys).where(own).values(is_held=not before))
    return before
