"""Runs: written by the process that executes them, read by any. Functions of a connection and the tenant whose rows are seen."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from pydantic import JsonValue
from sqlalchemy import ColumnElement, Connection, case, delete, insert, select, update

from plan_adapter.errors import RunConflictError
from plan_adapter.plan import PlanStatus, StepStatus
from plan_adapter.record import PlanRun, RunContext, RunReason
from plan_adapter.store import gates
from plan_adapter.store.changes import signal
from plan_adapter.store.columns import database_now
from plan_adapter.store.holder import Holder
from plan_adapter.store.plans import put_plan, seen_by
from plan_adapter.store.rows import Row, dump_json, load_json, whose
from plan_adapter.store.steps import fixed_parts, step_runs_of
from plan_adapter.store.tables import runs, step_runs

if TYPE_CHECKING:
    from plan_adapter.validation import ValidatedPlan


_UNENDED = (PlanStatus.DRAFT, PlanStatus.PENDING_APPROVAL, PlanStatus.APPROVED, PlanStatus.EXECUTING)


def create(connection: Connection, plan: dict[str, Any], run: dict[str, Any]) -> None:
    """Store a new run, and its plan unless it is there; of the rows of both."""
    put_plan(connection, plan)
    connection.execute(insert(runs).values(run))


def run_row(run: PlanRun, validated: "ValidatedPlan") -> dict[str, Any]:
    """Return the row of a new run."""
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
        "steps": dump_json(fixed_parts(run.steps, lists={step.id for step in validated.plan.steps if step.for_each is not None})),
        "definitions": dump_json(list(validated.definitions)),
        "created_at": run.created_at,
        "updated_at": run.updated_at,
        **_changing(run),
    }


def change(connection: Connection, tenant: str | None, run: PlanRun) -> Row:
    """Write what changes of `run` and return its new row.

    Unless it is executing, whoever executed it lets go of it; once it has ended, its open gates are closed as cancelled.
    """
    holder = case((runs.c.status == PlanStatus.EXECUTING, runs.c.runner), else_=None) if run.status is PlanStatus.EXECUTING else None
    statement = update(runs).where(*_is(run.id, tenant)).values(**_changing(run), runner=holder, updated_at=database_now())
    row = connection.execute(statement.returning(runs)).mappings().first()
    if row is None:
        raise RunConflictError(f"there is no run {run.id}")
    if run.status not in _UNENDED:
        gates.close_all(connection, run.id, "cancelled")
    signal(connection)
    return row


def claim(connection: Connection, tenant: str | None, run: PlanRun, holder: Holder) -> Row:
    """Write what changes of `run` and that `holder` executes it from now on; return its new row.

    Raises RunConflictError if a process that lives holds it, or if somebody changed it since `run` was read. What an earlier start
    left undone is pending again; a request to cancel that start is forgotten.
    """
    row = connection.execute(select(runs).where(*_is(run.id, tenant))).mappings().first()
    if row is None:
        raise RunConflictError(f"there is no run {run.id}")
    if row["runner"] is not None and (other := Holder.parse(row["runner"])).is_alive:
        raise RunConflictError(f"run {run.id} is executed by process {other.pid} on this host; wait for its end, or cancel it")
    written = {**_changing(run), "runner": str(holder), "cancel_reason": None, "cancel_requested_at": None}
    written |= {"claimed_at": database_now(), "updated_at": database_now()}
    statement = update(runs).where(runs.c.id == run.id, runs.c.updated_at == run.updated_at).values(written)
    claimed = connection.execute(statement.returning(runs)).mappings().first()
    if claimed is None:
        cause = f"; somebody asked to cancel it: {row['cancel_reason']}" if row["cancel_reason"] else ""
        raise RunConflictError(f"run {run.id} was changed by another process, it is {row['status']} now{cause}")
    connection.execute(delete(step_runs).where(step_runs.c.run_id == run.id, step_runs.c.status != StepStatus.COMPLETED))
    return claimed


def release(connection: Connection, tenant: str | None, run_id: str, holder: Holder) -> None:
    """Let go of a run that `holder` executes."""
    mine = update(runs).where(*_is(run_id, tenant), runs.c.runner == str(holder))
    connection.execute(mine.values(runner=None, updated_at=database_now()))


def is_held(connection: Connection, tenant: str | None, run_id: str) -> bool:
    """Return whether a process that lives on this host executes the run."""
    runner = connection.execute(select(runs.c.runner).where(*_is(run_id, tenant))).scalar()
    return runner is not None and Holder.parse(runner).is_alive


def request_cancel(connection: Connection, tenant: str | None, run_id: str, reason: str) -> None:
    """Ask whoever executes the run to cancel it; the first reason stays."""
    asked = update(runs).where(*_is(run_id, tenant), runs.c.cancel_requested_at.is_(None))
    connection.execute(asked.values(cancel_reason=reason, cancel_requested_at=database_now(), updated_at=database_now()))
    signal(connection)


def cancel(connection: Connection, tenant: str | None, run_id: str, reason: str) -> None:
    """Ask for the run to be cancelled, and cancel it at once if nobody can be executing it; raises RunConflictError if it has ended.

    Of a process on another host nothing is known: it is asked, and a run that it left behind stays as it is. The open gates of a run
    that is cancelled here are closed.
    """
    locked = select(runs.c.status, runs.c.runner).where(*_is(run_id, tenant)).with_for_update()
    row = connection.execute(locked).mappings().first()
    if row is None:
        raise RunConflictError(f"there is no run {run_id}")
    if row["status"] not in _UNENDED:
        raise RunConflictError(f"run {run_id} has ended: it is {row['status']}")
    request_cancel(connection, tenant, run_id, reason)
    if row["runner"] is None or Holder.parse(row["runner"]).has_died:
        ended = {"status": PlanStatus.CANCELLED, "reason": RunReason.CANCELLED, "message": reason, "completed_at": database_now()}
        connection.execute(update(runs).where(*_is(run_id, tenant)).values(**ended, runner=None, updated_at=database_now()))
        gates.close_all(connection, run_id, "cancelled")


def cancel_request(connection: Connection, tenant: str | None, run_id: str) -> str | None:
    """Return the reason for which the run is to be cancelled, None if nobody asked for that."""
    return connection.execute(select(runs.c.cancel_reason).where(*_is(run_id, tenant))).scalar()


def definitions(connection: Connection, run_id: str) -> list[dict[str, JsonValue]]:
    """Return the definitions of the tools, as the run's approval digest covers them."""
    return load_json(connection.execute(select(runs.c.definitions).where(runs.c.id == run_id)).scalar_one())


def row_of(connection: Connection, tenant: str | None, beginning: str) -> Row:
    """Return the row of the run with this id, or with the only id that begins so; raises RunConflictError."""
    exact = connection.execute(seen_by(tenant, select(runs).where(runs.c.id == beginning), runs)).mappings().first()
    if exact is not None:
        return exact
    query = select(runs).where(runs.c.id.startswith(beginning.lower(), autoescape=True)).order_by(runs.c.id).limit(6)
    found: Sequence[Row] = connection.execute(seen_by(tenant, query, runs)).mappings().all() if beginning else ()
    if not found:
        raise RunConflictError(f"no run has the id `{beginning}`, or one that begins so")
    if len(found) > 1:
        shown = ", ".join(row["id"] for row in found[:5]) + (", …" if len(found) > 5 else "")
        raise RunConflictError(f"several runs begin with `{beginning}`: {shown}")
    return found[0]


def find(connection: Connection, tenant: str | None, beginning: str) -> PlanRun:
    """Return the run with this id, or with the only id that begins so, with the results of its steps."""
    return _assembled(connection, [row_of(connection, tenant, beginning)], with_results=True)[0]


def of_flow(connection: Connection, tenant: str | None, flow_run_id: str) -> PlanRun | None:
    """Return the newest run that is this flow run, or None."""
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
    """Return the runs that fit every filter that is given, newest first; their steps come without results."""
    wanted = {"status": status and status.value, "name": name, "digest": digest, "agent_id": context.agent_id}
    wanted |= {"org_id": context.org_id, "tenant_id": context.tenant_id, "task_id": context.task_id}
    query = select(runs).where(*(runs.c[column] == value for column, value in wanted.items() if value is not None))
    query = query.order_by(runs.c.created_at.desc(), runs.c.id.desc()).limit(limit)
    return _assembled(connection, connection.execute(seen_by(tenant, query, runs)).mappings().all(), with_results=False)


def _is(run_id: str, tenant: str | None) -> list[ColumnElement[bool]]:
    return [runs.c.id == run_id, *([] if tenant is None else [runs.c.tenant_id == tenant])]


def _changing(run: PlanRun) -> dict[str, Any]:
    return {
        "status": run.status.value,
        "reason": run.reason and run.reason.value,
        "message": run.message,
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


def _assembled(connection: Connection, rows: Sequence[Row], *, with_results: bool) -> list[PlanRun]:
    interrupted = {row["id"] for row in rows if _is_interrupted(row)}
    steps = step_runs_of(connection, rows, interrupted=interrupted, with_results=with_results)
    return [
        PlanRun(
            **{name: row[name] for name in _PLAIN},
            inputs=load_json(row["inputs"]),
            outputs=load_json(row["outputs"]),
            metadata=load_json(row["metadata"]),
            steps=steps[row["id"]],
            status=PlanStatus(row["status"]),
            reason=RunReason.INTERRUPTED if row["id"] in interrupted else RunReason(row["reason"]) if row["reason"] else None,
            tenant_id=row["tenant_id"] or None,
        )
        for row in rows
    ]


def _is_interrupted(row: Row) -> bool:
    """Return whether the run is executing by its status while its process has ended, or has let go of it."""
    if row["status"] != PlanStatus.EXECUTING:
        return False
    return row["runner"] is None or Holder.parse(row["runner"]).has_died


_PLAIN = (
    "id", "plan_id", "name", "description", "digest", "approval_digest", "created_at", "updated_at", "message", "flow_run_id",
    "requested_by",
    "task_id", "agent_id", "org_id", "started_at", "completed_at", "total_duration_ms", "approved_at", "approved_by", "rejection_note",
)  # fmt: skip
