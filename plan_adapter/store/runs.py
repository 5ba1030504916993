"""Runs: read, locked and cancelled by any process. The functions take a connection and the tenant whose rows are visible."""

from collections.abc import Collection, Sequence
from typing import Any
from uuid import UUID

from sqlalchemy import ColumnElement, Connection, select, update

from plan_adapter.execution.history import RunHistory
from plan_adapter.execution.items import recorded_group_items
from plan_adapter.execution.rollback_status import recorded_report
from plan_adapter.execution.rollback_units import is_rolled_back
from plan_adapter.execution.run_status import ended_status
from plan_adapter.model.errors import RunConflictError, RunNotFoundError
from plan_adapter.model.record import LAST, MIN_END_CHARACTERS, PlanRun, RunContext, StepRun, why_too_short
from plan_adapter.model.status import PlanStatus, RunReason, StepStatus
from plan_adapter.store import gates, leases
from plan_adapter.store.database.columns import database_now, now_of
from plan_adapter.store.database.database import signal
from plan_adapter.store.database.rows import Row, folder_of, is_named, load_json, rollback_column, rollback_of
from plan_adapter.store.database.tables import gates as gates_table
from plan_adapter.store.database.tables import plans, runs, step_runs
from plan_adapter.store.plans import digests_with_tag, of_run, seen_by
from plan_adapter.store.proof import audit, entries, tombstones
from plan_adapter.store.proof.digests import json_row
from plan_adapter.store.steps import history_of, step_runs_of

UNENDED = (PlanStatus.DRAFT, PlanStatus.PENDING_APPROVAL, PlanStatus.APPROVED, PlanStatus.EXECUTING)


def owner_of(connection: Connection, tenant: str | None, run_id: str) -> str | None:
    """Return a description of the process that may be executing the run, or None."""
    lease = leases.of_run(connection, row_of(connection, tenant, run_id)["id"])
    return None if lease is None or leases.is_free(lease, now_of(connection)) else leases.owner_name(lease)


def cancel(connection: Connection, tenant: str | None, run_id: str, reason: str, *, rollback: bool = False) -> None:
    """Request the run's cancellation, and cancel it at once if no process can be executing it.

    Its open gates are closed if it is cancelled here. Raises RunConflictError if the run has ended.
    """
    query = select(runs.c.status).where(*matches(run_id, tenant))
    row = connection.execute(query.with_for_update(key_share=True)).mappings().first()
    if row is None:
        raise RunNotFoundError(f"there is no run {run_id}")
    if row["status"] not in UNENDED:
        raise RunConflictError(f"run {run_id} has ended: it is {row['status']}")
    audit_entries = record_cancel_request(connection, tenant, run_id, reason, rollback=rollback)
    if owner_of(connection, tenant, run_id) is None:
        ended = {"status": PlanStatus.CANCELLED, "reason": RunReason.CANCELLED, "message": reason, "completed_at": database_now()}
        ended |= columns_of_ended_rollback(connection, run_id, reason)
        cancelled = update(runs).where(*matches(run_id, tenant)).values(**ended, updated_at=database_now()).returning(runs)
        end = json_row(runs, connection.execute(cancelled).mappings().one())
        leases.release_lease(connection, run_id)
        audit_entries += [*gates.close_all(connection, run_id, "cancelled"), entries.of_run_end(end)]
    audit.append(connection, run_id, audit_entries)
    signal(connection)


def recorded_reason(row: Row) -> RunReason | None:
    """Return the reason that the row has, even if the run was interrupted since."""
    return RunReason(row["reason"]) if row["reason"] else None


def id_of(connection: Connection, tenant: str | None, name: str) -> str:
    """Return the id of the run that `row_of` finds."""
    return row_of(connection, tenant, name, runs.c.id)["id"]


def lock_run(connection: Connection, tenant: str | None, name: str) -> Row:
    """Lock and return the row of the run. Until the transaction ends, nobody claims or changes it and no gate of it opens."""
    # `key_share` lets other transactions insert rows that refer to the run.
    same = runs.c.id == id_of(connection, tenant, name)
    return connection.execute(select(runs).where(same).with_for_update(key_share=True)).mappings().one()


def row_of(connection: Connection, tenant: str | None, name: str, *columns: ColumnElement[Any]) -> Row:
    """Return the row of the run with this id, the only one whose id begins or ends so, or for `last` the newest one.

    The id can also be that of the run's flow run in Prefect, or of the flow run of one of its gates. `columns` limits the result to these
    columns, which must include `id`. Raises RunNotFoundError. All that takes a run finds it here.
    """
    if not isinstance(name, str):  # pyright: ignore[reportUnnecessaryIsInstance]  # a caller may not check
        raise TypeError(f"a run is named by its id, not by {name!r:.100}: pass `run.id`")
    wanted = select(*(columns or runs.c))
    if name == LAST:
        newest = wanted.order_by(runs.c.created_at.desc(), runs.c.id.desc()).limit(1)
        row = connection.execute(seen_by(tenant, newest, runs)).mappings().first()
        if row is None:
            raise RunNotFoundError("there is no last run: the store has no run yet")
        return row
    exact = connection.execute(seen_by(tenant, wanted.where(runs.c.id == name), runs)).mappings().first()
    if exact is not None:
        return exact
    if (short := why_too_short(name)) is not None:
        raise RunNotFoundError(short)
    query = wanted.where(is_named(runs.c.id, name)).order_by(runs.c.id).limit(6)
    found: Sequence[Row] = connection.execute(seen_by(tenant, query, runs)).mappings().all()
    if not found and (run_id := _run_of_flow_run(connection, tenant, name)) is not None:
        return row_of(connection, tenant, run_id, *columns)
    if not found:
        too_short = f"; give at least {MIN_END_CHARACTERS} characters of its end" if len(name) < MIN_END_CHARACTERS else ""
        gone = [tombstone for tombstone in tombstones.of_run(connection, tenant, name) if tombstone.kind == "pruned"]
        pruned = f": {gone[0]}; `plan verify {gone[0].run_id}` shows its tombstone" if gone else ""
        raise RunNotFoundError(f"no run has the id `{name}`, or an id that begins or ends with it{too_short}{pruned}")
    if len(found) > 1:
        shown = ", ".join(row["id"] for row in found[:5]) + (", …" if len(found) > 5 else "")
        raise RunNotFoundError(f"several runs have an id that begins or ends with `{name}`: {shown}", is_ambiguous=True)
    return found[0]


def _run_of_flow_run(connection: Connection, tenant: str | None, name: str) -> str | None:
    """Return the id of the newest run whose flow run, or the flow run of one of whose gates, has the id `name`. None if there is none."""
    try:
        flow_run_id = str(UUID(name))
    except ValueError:
        return None
    of_gates = select(gates_table.c.run_id).where(gates_table.c.flow_run_id == flow_run_id)
    query = (
        select(runs.c.id).where((runs.c.flow_run_id == flow_run_id) | runs.c.id.in_(of_gates)).order_by(runs.c.created_at.desc()).limit(1)
    )
    return connection.execute(seen_by(tenant, query, runs)).scalar()


def find(connection: Connection, tenant: str | None, name: str, *, with_steps: bool = True, with_results: bool = True) -> PlanRun:
    """Return the run that `row_of` finds."""
    row = row_of(connection, tenant, name)
    return _build_runs(connection, [row], with_steps=with_steps, with_results=with_results)[0]


def of_ids(connection: Connection, run_ids: Sequence[str]) -> list[PlanRun]:
    """Return the runs with these ids, in order of their ids. Their steps have no results."""
    query = select(runs).where(runs.c.id.in_(run_ids)).order_by(runs.c.id)
    return _build_runs(connection, connection.execute(query).mappings().all(), with_results=False)


def of_flow(connection: Connection, tenant: str | None, flow_run_id: str) -> PlanRun | None:
    """Return the newest run for this flow run, or None."""
    query = select(runs).where(runs.c.flow_run_id == flow_run_id).order_by(runs.c.created_at.desc()).limit(1)
    rows = connection.execute(seen_by(tenant, query, runs)).mappings().all()
    return _build_runs(connection, rows, with_results=True)[0] if rows else None


def list_runs(
    connection: Connection,
    tenant: str | None,
    *,
    limit: int,
    status: PlanStatus | None,
    names: Collection[str] | None,
    tags: Collection[str],
    digest: str | None,
    context: RunContext,
) -> list[PlanRun]:
    """Return the runs that match every given filter, newest first. Their steps have no results."""
    wanted = {"status": status and status.value, "digest": digest, "agent_id": context.agent_id}
    wanted |= {"org_id": context.org_id, "tenant_id": context.tenant_id, "task_id": context.task_id}
    query = select(runs).where(*(runs.c[column] == value for column, value in wanted.items() if value is not None))
    if names is not None:
        query = query.where(runs.c.name.in_(names))
    for tag in tags:
        query = query.where(runs.c.digest.in_(seen_by(tenant, digests_with_tag(tag, connection.dialect.name), plans)))
    query = query.order_by(runs.c.created_at.desc(), runs.c.id.desc()).limit(limit)
    return _build_runs(connection, connection.execute(seen_by(tenant, query, runs)).mappings().all(), with_results=False)


def record_cancel_request(connection: Connection, tenant: str | None, run_id: str, reason: str, *, rollback: bool) -> list[entries.Entry]:
    """Record a request to cancel the run and return the audit entries. If there was one before, its reason stays.

    Without `rollback`, an earlier request to roll back is withdrawn, with the new reason.
    """
    values: dict[str, Any] = {"cancel_reason": reason, "cancel_requested_at": database_now(), "updated_at": database_now()}
    first = update(runs).where(*matches(run_id, tenant), runs.c.cancel_requested_at.is_(None)).values(values)
    row = connection.execute(first.returning(runs)).mappings().first()
    if rollback:
        undo = update(runs).where(*matches(run_id, tenant)).values(cancel_rollback=True, updated_at=database_now())
        row = connection.execute(undo.returning(runs)).mappings().first()
    elif row is None:
        call_off = update(runs).where(*matches(run_id, tenant), runs.c.cancel_rollback.is_(True))
        row = connection.execute(call_off.values(values | {"cancel_rollback": False}).returning(runs)).mappings().first()
    if row is None:
        return []
    changed = json_row(runs, row)
    return [entries.of_run(changed, "cancel_requested", message=str(changed["cancel_reason"]))]


def columns_of_ended_rollback(connection: Connection, run_id: str, why: str) -> dict[str, Any]:
    """Return the columns that end a run whose rollback was interrupted; its own reason stays. Empty for a run that is not rolled back."""
    run = connection.execute(select(runs).where(runs.c.id == run_id)).mappings().one()
    return _ended_rollback_columns(connection, run, history_of(connection, run_id), why) if has_begun_rollback(connection, run) else {}


def has_begun_rollback(connection: Connection, run: Row) -> bool:
    """Return whether the run itself has begun to roll back, not only items that failed."""
    return is_rolled_back(of_run(connection, run), history_of(connection, run["id"]), rollback_of(run))


def columns_of_resolved_rollback(connection: Connection, run: Row, summary: str, *, ends: bool) -> dict[str, Any]:
    """Return the columns of a run after a resolution about its rollback. `summary` describes it; `ends` stops the rollback."""
    history = history_of(connection, run["id"])
    if ends and run["completed_at"] is None:
        return _ended_rollback_columns(connection, run, history, summary)
    return _rollback_columns(connection, run, history, summary)


def _ended_rollback_columns(connection: Connection, run: Row, history: RunHistory, why: str) -> dict[str, Any]:
    reason = RunReason(run["reason"]) if run["reason"] else RunReason.CANCELLED
    done = (step_runs.c.run_id == run["id"], step_runs.c.status == StepStatus.COMPLETED.value)
    status: PlanStatus = ended_status(reason, completed=connection.execute(select(step_runs.c.step_id).where(*done)).first() is not None)
    columns = _rollback_columns(connection, run, history, why)
    return {**columns, "status": status.value, "reason": reason.value, "completed_at": database_now()}


def _rollback_columns(connection: Connection, run: Row, history: RunHistory, summary: str) -> dict[str, Any]:
    report = recorded_report(of_run(connection, run), history)
    message, status = report.update_status(run["message"], rollback_of(run))
    return {"message": f"{message}; {summary}", "rollback": rollback_column(status)}


def matches(run_id: str, tenant: str | None) -> list[ColumnElement[bool]]:
    """Return the condition for the run with this id, if the tenant sees it."""
    return [runs.c.id == run_id, *([] if tenant is None else [runs.c.tenant_id == tenant])]


def _build_runs(connection: Connection, rows: Sequence[Row], *, with_results: bool, with_steps: bool = True) -> list[PlanRun]:
    interrupted, steps = _interrupted_ids(connection, rows), dict[str, list[StepRun]]()
    if with_steps:
        steps = step_runs_of(connection, rows, interrupted=interrupted, with_results=with_results)
    found = [
        PlanRun(
            **{name: row[name] for name in _COPIED_COLUMNS},
            inputs=load_json(row["inputs"]),
            outputs=load_json(row["outputs"]),
            metadata=load_json(row["metadata"]),
            folder=folder_of(row),
            rollback=rollback_of(row),
            steps=steps.get(row["id"], []),
            status=PlanStatus(row["status"]),
            reason=RunReason.INTERRUPTED if row["id"] in interrupted else recorded_reason(row),
            tenant_id=row["tenant_id"] or None,
            total_duration_ms=_duration_ms(row),
        )
        for row in rows
    ]
    for run, row in zip(found, rows, strict=True):
        _fill_open_groups(connection, run, row)
    return found


def _fill_open_groups(connection: Connection, run: PlanRun, row: Row) -> None:
    """Fill in how far the items are of groups whose end is not recorded."""
    open_groups = [step for step in run.steps if not (step.tool_name or step.plan or step.completed_at is not None)]
    if not open_groups:
        return
    plan, history = of_run(connection, row), history_of(connection, run.id)
    for step in open_groups:
        step.items = recorded_group_items(plan, run, plan.step(step.id), history)


def _duration_ms(row: Row) -> int:
    """Return the milliseconds from start to end. The column has them only if the process that executed the run ended it."""
    started, ended = row["started_at"], row["completed_at"]
    return 0 if started is None or ended is None else round((ended - started).total_seconds() * 1000)


def _interrupted_ids(connection: Connection, rows: Sequence[Row]) -> set[str]:
    """Return the ids of the runs whose status is executing but that no process can be executing."""
    executing = {row["id"] for row in rows if row["status"] == PlanStatus.EXECUTING}
    if not executing:
        return set()
    now = now_of(connection)
    held = {lease["run_id"] for lease in leases.of_runs(connection, executing) if not leases.is_free(lease, now)}
    return executing - held


_COPIED_COLUMNS = (
    "id", "plan_id", "name", "description", "digest", "approval_digest", "created_at", "updated_at", "message", "flow_run_id",
    "requested_by",
    "task_id", "agent_id", "org_id", "started_at", "completed_at", "approved_at", "approved_by", "rejection_note",
)  # fmt: skip
