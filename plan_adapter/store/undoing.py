"""The columns of a run whose rollback was interrupted, or about whose rollback a person gave a resolution. Functions of a connection."""

from typing import Any

from sqlalchemy import Connection, select

from plan_adapter.execution.history import RunHistory
from plan_adapter.execution.rollback_status import recorded_report
from plan_adapter.execution.status import ended_status
from plan_adapter.plan import PlanStatus, StepStatus
from plan_adapter.record import RunReason
from plan_adapter.store import plans
from plan_adapter.store.columns import database_now
from plan_adapter.store.rows import Row, rollback_column, rollback_of
from plan_adapter.store.steps import history_of
from plan_adapter.store.tables import runs, step_runs


def end(connection: Connection, run_id: str, why: str) -> dict[str, Any]:
    """Return the columns that end a run whose rollback was interrupted; its own reason stays. Empty for a run without rollbacks."""
    run = connection.execute(select(runs).where(runs.c.id == run_id)).mappings().one()
    history = history_of(connection, run_id)
    return _ended(connection, run, history, why) if history.has_rollbacks else {}


def told(connection: Connection, run: Row, said: str, *, ends: bool) -> dict[str, Any]:
    """Return the columns of a run after a resolution about its rollback. `said` describes it; `ends` stops the rollback."""
    history = history_of(connection, run["id"])
    if ends and run["completed_at"] is None:
        return _ended(connection, run, history, said)
    return _told(connection, run, history, said)


def _ended(connection: Connection, run: Row, history: RunHistory, why: str) -> dict[str, Any]:
    reason = RunReason(run["reason"]) if run["reason"] else RunReason.CANCELLED
    done = (step_runs.c.run_id == run["id"], step_runs.c.status == StepStatus.COMPLETED.value)
    status: PlanStatus = ended_status(reason, completed=connection.execute(select(step_runs.c.step_id).where(*done)).first() is not None)
    told = _told(connection, run, history, why)
    return {**told, "status": status.value, "reason": reason.value, "completed_at": database_now()}


def _told(connection: Connection, run: Row, history: RunHistory, said: str) -> dict[str, Any]:
    report = recorded_report(plans.of_run(connection, run), history)
    message, status = report.beside(run["message"], rollback_of(run))
    return {"message": f"{message}; {said}", "rollback": rollback_column(status)}
