"""`TriggerEvents`: the runs that events started, and how many events came for each."""

from dataclasses import replace
from datetime import timedelta
from typing import Any

from sqlalchemy import Connection, Select, func, insert, select, update

from plan_adapter.model.status import PlanStatus
from plan_adapter.model.triggers import EventClaim, TriggerRecord
from plan_adapter.store import gates, leases
from plan_adapter.store import runs as run_rows
from plan_adapter.store.database.columns import database_now, now_of
from plan_adapter.store.database.database import StorePart, reads
from plan_adapter.store.database.rows import Row
from plan_adapter.store.database.tables import runs, triggered_runs
from plan_adapter.store.plans import seen_by
from plan_adapter.store.runs import UNENDED


class TriggerEvents(StorePart):
    """The runs of a store that events started."""

    @reads
    def of_run(self, connection: Connection, run_id: str) -> TriggerRecord | None:
        """Return the record of the event that started a run, or None if no event did."""
        query = _with_runs().where(triggered_runs.c.run_id == run_id)
        row = connection.execute(seen_by(self.tenant_id, query, triggered_runs)).mappings().first()
        return None if row is None else _record_of(connection, row)


def claim(connection: Connection, run: dict[str, Any], wanted: EventClaim) -> TriggerRecord | None:
    """Return the run that was started for the same alert, with this event counted, or None if `run` is to be created.

    Events with the same key exclude each other until the transaction ends. A run has the key until it has ended and the cool-down is over.
    `wanted.replaces` is a run with which this event was counted: if it has still not started, it is cancelled, and `run` takes its place.
    """
    if connection.dialect.name == "postgresql":  # SQLite's write transactions exclude each other anyway
        connection.execute(select(func.pg_advisory_xact_lock(func.hashtext(wanted.key))))
    same = (triggered_runs.c.tenant_id == run["tenant_id"], triggered_runs.c.key == wanted.key)
    newest = _with_runs().where(*same).order_by(triggered_runs.c.at.desc(), triggered_runs.c.run_id.desc()).limit(1)
    row = connection.execute(newest).mappings().first()
    if row is None or not _has_key(connection, row, wanted):
        return None
    found = _record_of(connection, row)
    if wanted.replaces is None:
        more = update(triggered_runs).where(triggered_runs.c.run_id == found.run_id).values(events=found.events + 1)
        connection.execute(more)
        return replace(found, events=found.events + 1)
    if wanted.replaces != found.run_id or not found.is_idle:
        return found  # the event was counted before
    message = f"its process died before it started; run {run['id']} takes its place"
    run_rows.cancel(connection, run["tenant_id"], found.run_id, message)
    return None


def record(connection: Connection, run: dict[str, Any], claimed: EventClaim) -> None:
    """Record that an event started `run`, which has just been created."""
    before = 0
    if claimed.replaces is not None:
        before = connection.scalar(select(triggered_runs.c.events).where(triggered_runs.c.run_id == claimed.replaces)) or 0
    context_columns = {name: run[name] for name in ("tenant_id", "agent_id", "org_id", "task_id")}
    row = {"run_id": run["id"], "key": claimed.key, "event": claimed.event, "event_id": claimed.event_id, "at": database_now()}
    connection.execute(insert(triggered_runs).values({**context_columns, **row, "events": max(1, before)}))


def _has_key(connection: Connection, row: Row, wanted: EventClaim) -> bool:
    if wanted.cooldown_ms is None or row["status"] in UNENDED:
        return True
    return now_of(connection) < row["at"] + timedelta(milliseconds=wanted.cooldown_ms)


def _with_runs() -> Select[Any]:
    columns = (triggered_runs, runs.c.status, runs.c.flow_run_id)
    return select(*columns).join_from(triggered_runs, runs, runs.c.id == triggered_runs.c.run_id)


def _record_of(connection: Connection, row: Row) -> TriggerRecord:
    has_owner = not leases.is_free(leases.of_run(connection, row["run_id"]), now_of(connection))
    is_idle = row["status"] == PlanStatus.PENDING_APPROVAL and not has_owner and not gates.are_open(connection, row["run_id"])
    return TriggerRecord(row["run_id"], row["event"], row["event_id"], row["events"], row["flow_run_id"], is_idle)
