"""Runs: written by their owner, read by any process. The functions take a connection and the tenant whose rows are visible."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from pydantic import JsonValue
from sqlalchemy import ColumnElement, Connection, delete, insert, select, update

from plan_adapter.errors import RunConflictError
from plan_adapter.plan import PlanStatus, StepStatus
from plan_adapter.record import LEAST_ID_CHARACTERS, PlanRun, RunContext, RunReason, StepRun
from plan_adapter.store import audit, entries, gates, leases, undoing
from plan_adapter.store.changes import signal
from plan_adapter.store.columns import Clock, database_now, now_of
from plan_adapter.store.digests import plain
from plan_adapter.store.leases import Owner
from plan_adapter.store.plans import put_implied, put_plan, seen_by
from plan_adapter.store.rows import Row, dump_json, folder_column, folder_of, load_json, rollback_column, rollback_of, whose
from plan_adapter.store.steps import step_runs_of
from plan_adapter.store.tables import runs, step_runs

if TYPE_CHECKING:
    from plan_adapter.validation import ValidatedPlan


_UNENDED = (PlanStatus.DRAFT, PlanStatus.PENDING_APPROVAL, PlanStatus.APPROVED, PlanStatus.EXECUTING)


def create(connection: Connection, plan: dict[str, Any], steps: dict[str, Any], run: dict[str, Any]) -> None:
    """Store the rows of a new run, its plan and its implied dependencies. The latter two may already be stored."""
    put_plan(connection, plan)
    put_implied(connection, steps)
    connection.execute(insert(runs).values(run))
    audit.append(connection, run["id"], [entries.of_run(plain(runs, run), "run_created", message=run["name"])])


def run_row(run: PlanRun, validated: "ValidatedPlan", steps: dict[str, Any]) -> dict[str, Any]:
    """Return the row of a new run. `steps` is the row of its implied dependencies."""
    return {
        **whose(run),
        "id": run.id,
        "plan_id": run.plan_id,
        "name": run.name,
        "description": run.description,
        "digest": run.digest,
        "approval_digest": run.approval_digest,
        "requested_by": run.requested_by,
        "inputs": dump_json(run.inputs),
        "implied_dependencies_digest": steps["digest"],
        "definitions": dump_json(list(validated.definitions)),
        "folder": folder_column(run.folder),
        "created_at": run.created_at,
        "updated_at": run.updated_at,
        **_changing(run),
    }


def change(connection: Connection, tenant: str | None, run: PlanRun, epoch: int | None = None) -> Row:
    """Write the changing columns of `run` and return its new row. `epoch` is that of the writer's lease, if it has taken the run.

    Unless the run is executing, its lease is released. Once it has ended, its open gates are closed as cancelled. Raises LeaseLostError if
    another process has taken the run.
    """
    statement = update(runs).where(*_is(run.id, tenant)).values(**_changing(run), updated_at=database_now())
    row = connection.execute(statement.returning(runs)).mappings().first()
    if row is None:
        raise RunConflictError(f"there is no run {run.id}")
    if epoch is not None:
        leases.require(connection, run.id, epoch)
    if run.status is not PlanStatus.EXECUTING:
        leases.release_lease(connection, run.id)
    told = plain(runs, row)
    if run.status in _UNENDED:
        audit.append(connection, run.id, [entries.of_run(told, "run_changed", message=run.status.value)])
    else:
        audit.append(connection, run.id, [*gates.close_all(connection, run.id, "cancelled"), entries.of_run_end(told)])
    signal(connection)
    return row


def claim(
    connection: Connection, tenant: str | None, run: PlanRun, owner: Owner, *, lease_seconds: float, keeps_ends: bool = False
) -> tuple[Row, int, Clock]:
    """Make `owner` the process that executes `run`, and write the run. Return its new row, the lease's epoch, and the clock.

    What an earlier start left undone is pending again, unless `keeps_ends`. A request to cancel that start is cleared. Raises
    RunConflictError if another process executes the run, or if it changed since `run` was read.
    """
    # `key_share` lets other transactions insert rows that refer to the run, including one that holds the lock awaited here.
    locked = select(runs.c.status, runs.c.cancel_reason).where(*_is(run.id, tenant)).with_for_update(key_share=True)
    row = connection.execute(locked).mappings().first()
    if row is None:
        raise RunConflictError(f"there is no run {run.id}")
    epoch, clock = leases.take(connection, run.id, owner, whose=whose(run), seconds=lease_seconds)
    written = {**_changing(run), "cancel_reason": None, "cancel_requested_at": None, "cancel_rollback": None}
    written |= {"claimed_at": database_now(), "updated_at": database_now()}
    statement = update(runs).where(runs.c.id == run.id, runs.c.updated_at == run.updated_at).values(written)
    claimed = connection.execute(statement.returning(runs)).mappings().first()
    if claimed is None:
        cause = f"; somebody asked to cancel it: {row['cancel_reason']}" if row["cancel_reason"] else ""
        raise RunConflictError(f"run {run.id} was changed by another process, it is {row['status']} now{cause}")
    if not keeps_ends:
        connection.execute(delete(step_runs).where(step_runs.c.run_id == run.id, step_runs.c.status != StepStatus.COMPLETED))
    words = f"start {epoch}, by process {owner.pid} on {owner.host}"
    audit.append(connection, run.id, [entries.of_run(plain(runs, claimed), "run_started", message=words, row_id=str(epoch))])
    return claimed, epoch, clock


def release(connection: Connection, run_id: str, epoch: int) -> None:
    """Release a run whose lease has this epoch."""
    # Lock the run before its lease, as everywhere else, to avoid deadlocks.
    connection.execute(select(runs.c.id).where(runs.c.id == run_id).with_for_update(key_share=True))
    if leases.release_lease(connection, run_id, epoch):
        connection.execute(update(runs).where(runs.c.id == run_id).values(updated_at=database_now()))


def owner_of(connection: Connection, tenant: str | None, run_id: str) -> str | None:
    """Return, in words, the process that may be executing the run, or None."""
    lease = leases.of_run(connection, row_of(connection, tenant, run_id)["id"])
    return None if lease is None or leases.is_free(lease, now_of(connection)) else leases.who(lease)


def request_cancel(connection: Connection, tenant: str | None, run_id: str, reason: str, *, rollback: bool = False) -> None:
    """Ask the run's owner to cancel it, and with `rollback` to roll it back, too. The first reason stays."""
    audit.append(connection, run_id, ask_to_cancel(connection, tenant, run_id, reason, rollback=rollback))
    signal(connection)


def cancel(connection: Connection, tenant: str | None, run_id: str, reason: str, *, rollback: bool = False) -> None:
    """Request the run's cancellation, and cancel it at once if no process can be executing it.

    Its open gates are closed if it is cancelled here. Raises RunConflictError if the run has ended.
    """
    locked = select(runs.c.status).where(*_is(run_id, tenant)).with_for_update(key_share=True)
    row = connection.execute(locked).mappings().first()
    if row is None:
        raise RunConflictError(f"there is no run {run_id}")
    if row["status"] not in _UNENDED:
        raise RunConflictError(f"run {run_id} has ended: it is {row['status']}")
    told = ask_to_cancel(connection, tenant, run_id, reason, rollback=rollback)
    if owner_of(connection, tenant, run_id) is None:
        ended = {"status": PlanStatus.CANCELLED, "reason": RunReason.CANCELLED, "message": reason, "completed_at": database_now()}
        ended |= undoing.end(connection, run_id, reason)
        cancelled = update(runs).where(*_is(run_id, tenant)).values(**ended, updated_at=database_now()).returning(runs)
        end = plain(runs, connection.execute(cancelled).mappings().one())
        leases.release_lease(connection, run_id)
        told += [*gates.close_all(connection, run_id, "cancelled"), entries.of_run_end(end)]
    audit.append(connection, run_id, told)
    signal(connection)


def cancel_request(connection: Connection, tenant: str | None, run_id: str) -> str | None:
    """Return the reason of the request to cancel the run, or None."""
    return connection.execute(select(runs.c.cancel_reason).where(*_is(run_id, tenant))).scalar()


def asks_rollback(connection: Connection, tenant: str | None, run_id: str) -> bool | None:
    """Return whether a request to cancel the run also asks to roll back. False once that part was withdrawn."""
    return connection.execute(select(runs.c.cancel_rollback).where(*_is(run_id, tenant))).scalar()


def reason_of(connection: Connection, run_id: str) -> RunReason | None:
    """Return the reason recorded by the last process that executed the run, even if that process was interrupted since."""
    return _kept_reason(connection.execute(select(runs.c.reason).where(runs.c.id == run_id)).mappings().one())


def _kept_reason(row: Row) -> RunReason | None:
    return RunReason(row["reason"]) if row["reason"] else None


def definitions(connection: Connection, run_id: str) -> list[dict[str, JsonValue]]:
    """Return the tool definitions that the run's approval digest covers."""
    return load_json(connection.execute(select(runs.c.definitions).where(runs.c.id == run_id)).scalar_one())


def row_of(connection: Connection, tenant: str | None, beginning: str, *columns: ColumnElement[Any]) -> Row:
    """Return the row of the run with this id, or with the only id that has this prefix. Raises RunConflictError.

    A prefix needs at least LEAST_ID_CHARACTERS characters. `columns` limits the result to these columns, which must include `id`.
    """
    wanted = select(*(columns or runs.c))
    exact = connection.execute(seen_by(tenant, wanted.where(runs.c.id == beginning), runs)).mappings().first()
    if exact is not None:
        return exact
    if len(beginning) < LEAST_ID_CHARACTERS:
        raise RunConflictError(f"`{beginning}` is too short for the id of a run: give at least {LEAST_ID_CHARACTERS} of its characters")
    query = wanted.where(runs.c.id.startswith(beginning.lower(), autoescape=True)).order_by(runs.c.id).limit(6)
    found: Sequence[Row] = connection.execute(seen_by(tenant, query, runs)).mappings().all()
    if not found:
        raise RunConflictError(f"no run has the id `{beginning}`, or one that begins so")
    if len(found) > 1:
        shown = ", ".join(row["id"] for row in found[:5]) + (", …" if len(found) > 5 else "")
        raise RunConflictError(f"several runs begin with `{beginning}`: {shown}")
    return found[0]


def find(connection: Connection, tenant: str | None, beginning: str, *, with_steps: bool = True, with_results: bool = True) -> PlanRun:
    """Return the run with this id, or with the only id that has this prefix."""
    row = row_of(connection, tenant, beginning)
    return _assembled(connection, [row], with_steps=with_steps, with_results=with_results)[0]


def of_flow(connection: Connection, tenant: str | None, flow_run_id: str) -> PlanRun | None:
    """Return the newest run for this flow run, or None."""
    query = select(runs).where(runs.c.flow_run_id == flow_run_id).order_by(runs.c.created_at.desc()).limit(1)
    rows = connection.execute(seen_by(tenant, query, runs)).mappings().all()
    return _assembled(connection, rows, with_results=True)[0] if rows else None


def listed(
    connection: Connection,
    tenant: str | None,
    *,
    limit: int,
    status: PlanStatus | None,
    name: str | None,
    digest: str | None,
    context: RunContext,
) -> list[PlanRun]:
    """Return the runs that match every given filter, newest first. Their steps have no results."""
    wanted = {"status": status and status.value, "name": name, "digest": digest, "agent_id": context.agent_id}
    wanted |= {"org_id": context.org_id, "tenant_id": context.tenant_id, "task_id": context.task_id}
    query = select(runs).where(*(runs.c[column] == value for column, value in wanted.items() if value is not None))
    query = query.order_by(runs.c.created_at.desc(), runs.c.id.desc()).limit(limit)
    return _assembled(connection, connection.execute(seen_by(tenant, query, runs)).mappings().all(), with_results=False)


def ask_to_cancel(connection: Connection, tenant: str | None, run_id: str, reason: str, *, rollback: bool) -> list[entries.Entry]:
    """Record a request to cancel the run and return the audit entries. If there was one before, its reason stays.

    Without `rollback`, an earlier request to roll back is withdrawn, with the new reason.
    """
    values: dict[str, Any] = {"cancel_reason": reason, "cancel_requested_at": database_now(), "updated_at": database_now()}
    first = update(runs).where(*_is(run_id, tenant), runs.c.cancel_requested_at.is_(None)).values(values)
    row = connection.execute(first.returning(runs)).mappings().first()
    if rollback:
        undo = update(runs).where(*_is(run_id, tenant)).values(cancel_rollback=True, updated_at=database_now())
        row = connection.execute(undo.returning(runs)).mappings().first()
    elif row is None:
        call_off = update(runs).where(*_is(run_id, tenant), runs.c.cancel_rollback.is_(True))
        row = connection.execute(call_off.values(values | {"cancel_rollback": False}).returning(runs)).mappings().first()
    if row is None:
        return []
    told = plain(runs, row)
    return [entries.of_run(told, "cancel_requested", message=str(told["cancel_reason"]))]


def _is(run_id: str, tenant: str | None) -> list[ColumnElement[bool]]:
    return [runs.c.id == run_id, *([] if tenant is None else [runs.c.tenant_id == tenant])]


def _changing(run: PlanRun) -> dict[str, Any]:
    return {
        "status": run.status.value,
        "reason": run.reason and run.reason.value,
        "message": run.message,
        "rollback": rollback_column(run.rollback),
        "outputs": dump_json(run.outputs),
        "metadata": dump_json(run.metadata),
        "flow_run_id": run.flow_run_id,
        "started_at": run.started_at,
        "completed_at": run.completed_at,
        "total_duration_ms": run.total_duration_ms,
        "approved_at": run.approved_at,
        "approved_by": run.approved_by,
        "rejection_note": run.rejection_note,
    }


def _assembled(connection: Connection, rows: Sequence[Row], *, with_results: bool, with_steps: bool = True) -> list[PlanRun]:
    interrupted, steps = _interrupted(connection, rows), dict[str, list[StepRun]]()
    if with_steps:
        steps = step_runs_of(connection, rows, interrupted=interrupted, with_results=with_results)
    return [
        PlanRun(
            **{name: row[name] for name in _PLAIN},
            inputs=load_json(row["inputs"]),
            outputs=load_json(row["outputs"]),
            metadata=load_json(row["metadata"]),
            folder=folder_of(row),
            rollback=rollback_of(row),
            steps=steps.get(row["id"], []),
            status=PlanStatus(row["status"]),
            reason=RunReason.INTERRUPTED if row["id"] in interrupted else _kept_reason(row),
            tenant_id=row["tenant_id"] or None,
            total_duration_ms=_took(row),
        )
        for row in rows
    ]


def _took(row: Row) -> int:
    """Return the milliseconds from start to end. The column has them only if the process that executed the run ended it."""
    started, ended = row["started_at"], row["completed_at"]
    return 0 if started is None or ended is None else round((ended - started).total_seconds() * 1000)


def _interrupted(connection: Connection, rows: Sequence[Row]) -> set[str]:
    """Return the ids of the runs whose status is executing but that no process can be executing."""
    executing = {row["id"] for row in rows if row["status"] == PlanStatus.EXECUTING}
    if not executing:
        return set()
    now = now_of(connection)
    held = {lease["run_id"] for lease in leases.of_runs(connection, executing) if not leases.is_free(lease, now)}
    return executing - held


_PLAIN = (
    "id", "plan_id", "name", "description", "digest", "approval_digest", "created_at", "updated_at", "message", "flow_run_id",
    "requested_by",
    "task_id", "agent_id", "org_id", "started_at", "completed_at", "approved_at", "approved_by", "rejection_note",
)  # fmt: skip
