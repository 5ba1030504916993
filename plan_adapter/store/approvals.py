"""Approvals: record, find and use them. The functions take a connection and, where it matters, the tenant whose rows are visible."""

from datetime import datetime
from typing import get_args

from sqlalchemy import ColumnElement, Connection, and_, exists, insert, or_, select, update

from plan_adapter.model.approvals import LEAVES_OPEN, Approval, Decision
from plan_adapter.model.errors import NotApprovedError, RunConflictError
from plan_adapter.model.readable import one_line
from plan_adapter.model.record import RunContext
from plan_adapter.store.database.columns import database_now, insert_into, now_of
from plan_adapter.store.database.database import signal
from plan_adapter.store.database.rows import HasContext, Row, answers_of, approval_of, approval_row, context_columns, context_of
from plan_adapter.store.database.tables import approvals, runs
from plan_adapter.store.database.tables import audit as audit_log
from plan_adapter.store.plans import seen_by
from plan_adapter.store.proof import audit, entries
from plan_adapter.store.proof.digests import json_row


def add(connection: Connection, approval: Approval, context: HasContext) -> None:
    """Record `approval`, whatever its decision. An approval for a run takes that run's context.

    Raises RunConflictError for an answer at a gate; only `gates.answer` records those.
    """
    if approval.gate_id is not None:
        raise RunConflictError(f"this is an answer at gate {approval.gate_id}: it is recorded by answering that gate")
    if approval.decision not in get_args(Decision):
        raise RunConflictError(f"`{approval.decision}` is no answer: the store records it itself, at a gate that needs several approvals")
    of_run = _context_of_run(connection, approval.run_id)
    row = {**context_columns(of_run or context), **approval_row(approval)}
    connection.execute(insert(approvals).values(row))
    if of_run is not None and approval.run_id is not None:
        audit.append(connection, approval.run_id, [entries.of_approval(json_row(approvals, row))])
    signal(connection)


def list_approvals(connection: Connection, tenant: str | None, run_or_digest: str) -> list[Approval]:
    """Return approvals, oldest first: those given for or used by a run, or those of an approval digest."""
    named = or_(approvals.c.run_id == run_or_digest, approvals.c.approval_digest == run_or_digest)
    query = select(approvals).where(named).order_by(approvals.c.at, approvals.c.id)
    return answers_of(connection.execute(seen_by(tenant, query, approvals)).mappings())


def find(connection: Connection, approval_digest: str, *, context: HasContext) -> Approval | None:
    """Return the oldest usable approval of this digest in the context's tenant that is not tied to a run, or None."""
    same = and_(approvals.c.approval_digest == approval_digest, approvals.c.tenant_id == context_columns(context)["tenant_id"])
    query = select(approvals).where(same, approvals.c.run_id.is_(None), _is_usable(None)).order_by(approvals.c.at, approvals.c.id)
    row = connection.execute(query.limit(1)).mappings().first()
    return None if row is None else approval_of(row)


def use(connection: Connection, approval: Approval, *, run_id: str, context: HasContext) -> Approval:
    """Use up `approval` for a run and return it as used. An approval that the store does not have yet is recorded first.

    If several runs want the same approval, one gets it. A run that has used it may use it again. Raises NotApprovedError if it cannot be
    used, also for the approval of a step, and for one that names a gate it did not close.
    """
    context = _context_of_run(connection, run_id) or context
    if approval.gate_id is None:
        row = {**context_columns(context), **approval_row(approval)}
        connection.execute(insert_into(approvals, connection.dialect.name).values(row).on_conflict_do_nothing())
    same = and_(approvals.c.id == approval.id, approvals.c.approval_digest == approval.approval_digest)
    same = and_(same, approvals.c.tenant_id == context_columns(context)["tenant_id"])
    is_free = or_(approvals.c.run_id.is_(None), approvals.c.run_id == run_id)
    # One statement: a concurrent run waits for this row and then finds it used.
    used = {"run_id": run_id, "used_at": database_now(), "agent_id": context.agent_id, "org_id": context.org_id, "task_id": context.task_id}
    take = update(approvals).where(same, is_free, _is_usable(run_id)).values(used)
    taken = connection.execute(take.returning(approvals)).mappings().first()
    if taken is not None:
        used_row = json_row(approvals, taken)
        # An answer at a gate, or an approval given for this run, is already in the run's audit log.
        first_entries = [] if _is_in_audit_log(connection, run_id, approval.id) else [entries.of_approval(used_row)]
        audit.append(connection, run_id, [*first_entries, entries.of_use(used_row)])
        signal(connection)
        return approval_of(taken)
    stored = connection.execute(select(approvals).where(same)).mappings().first()
    if stored is None:
        raise NotApprovedError(f"the store has no approval {approval.id} of this content")
    if stored["decision"] == "approve" and stored["step_id"] is None and stored["run_id"] == run_id and stored["used_at"] is not None:
        return approval_of(stored)
    raise NotApprovedError(_why_not(stored, connection, run_id))


def _is_in_audit_log(connection: Connection, run_id: str, approval_id: str) -> bool:
    same = and_(audit_log.c.run_id == run_id, audit_log.c.row_id == approval_id)
    return connection.execute(select(audit_log.c.number).where(same).limit(1)).first() is not None


def _context_of_run(connection: Connection, run_id: str | None) -> RunContext | None:
    columns = (runs.c.agent_id, runs.c.org_id, runs.c.tenant_id, runs.c.task_id)
    row = connection.execute(select(*columns).where(runs.c.id == run_id)).mappings().first() if run_id is not None else None
    return None if row is None else context_of(row)


def _is_usable(run_id: str | None) -> ColumnElement[bool]:
    """Return the condition for a usable approval of a plan: an unused, unexpired `approve` that no later decision revokes.

    A later decision on the same content revokes it if it is for every run, for the approval's own run, or for `run_id`. Decisions for other
    runs and about steps do not count.
    """
    later = approvals.alias()
    concerned = or_(later.c.run_id.is_(None), later.c.run_id == approvals.c.run_id, *([later.c.run_id == run_id] if run_id else []))
    taken_back = exists().where(
        later.c.approval_digest == approvals.c.approval_digest,
        later.c.tenant_id == approvals.c.tenant_id,
        later.c.decision.not_in(("approve", *LEAVES_OPEN)),
        later.c.step_id.is_(None),
        concerned,
        later.c.at >= approvals.c.at,
    )
    in_time = or_(approvals.c.expires_at.is_(None), approvals.c.expires_at > database_now())
    is_free = and_(approvals.c.step_id.is_(None), approvals.c.used_at.is_(None))
    return and_(approvals.c.decision == "approve", is_free, in_time, ~taken_back)


def _why_not(approval: Row, connection: Connection, run_id: str) -> str:
    expires: datetime | None = approval["expires_at"]
    if approval["decision"] != "approve":
        decision = "rejected it" if approval["decision"] == "reject" else "asked for changes"
        return f"{one_line(approval['by'])} {decision}" + (f": {one_line(approval['note'])}" if approval["note"] else "")
    if approval["step_id"] is not None:
        return f"the approval by {one_line(approval['by'])} is for step `{approval['step_id']}`, not for the plan"
    if approval["run_id"] is not None and (approval["used_at"] is not None or approval["run_id"] != run_id):
        return f"the approval by {one_line(approval['by'])} belongs to run {approval['run_id']} only; ask for a new one"
    if expires is not None and expires <= now_of(connection):
        return f"the approval by {one_line(approval['by'])} expired at {expires.isoformat(timespec='seconds')}; ask for a new one"
    return f"the approval by {one_line(approval['by'])} was followed by a rejection or a request for changes; ask for a new one"
