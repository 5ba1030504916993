"""The permission check before a tool call: the run, and a gated call, need an approval. Functions of a connection.

The check runs in the transaction that writes the intents, so nothing can happen in between.
"""

from collections.abc import Sequence
from datetime import datetime
from typing import Any, NamedTuple

from sqlalchemy import Connection, and_, bindparam, literal, literal_column, or_, select, update

from plan_adapter.gates.quorum import why_too_few
from plan_adapter.model.approvals import AGREE
from plan_adapter.model.readable import call_name, one_line
from plan_adapter.model.record import Attempt
from plan_adapter.store.database.columns import database_now
from plan_adapter.store.database.rows import OVERRIDE_MARK, QUORUM_MARK, gate_policy_in, item_column
from plan_adapter.store.database.tables import approvals, gates, runs, standing_approvals


class PlanApproval(NamedTuple):
    """A run and one approval that it has used, as the check reads them. Fields of a missing approval are None."""

    run_digest: str  # what the run would execute now
    digest: str | None
    by: str | None
    standing_id: str | None
    found_standing_id: str | None
    revoked_at: datetime | None
    revoked_by: str | None
    id: str | None
    rules: str | None  # the policy of the gate that it closed; None: it closed none


class CallApproval(NamedTuple):
    """The approval that a gated call names, as the check reads it."""

    claimed_at: datetime | None  # of the run: when its current start began
    run_id: str | None
    step_id: str | None
    item: int
    decision: str
    digest: str
    by: str
    expires_at: datetime | None
    used_at: datetime | None
    standing_id: str | None
    found_standing_id: str | None
    revoked_at: datetime | None
    revoked_by: str | None
    now: datetime
    is_answer: bool  # to a question
    id: str
    rules: str | None  # the policy of the gate that it closed; None: it closed none


def refusals(connection: Connection, run_id: str, attempts: Sequence[Attempt]) -> dict[str, str]:
    """Return what is missing, by attempt id. Attempts not in the result are permitted, and their call's approval is used up."""
    if (why := _plan_refusal(connection, run_id)) is not None:
        return {attempt.id: why for attempt in attempts}
    refused: dict[str, str] = {}
    for attempt in attempts:
        if attempt.approval_id is None and attempt.approval_digest is None:
            continue
        why = _call_refusal(connection, attempt)
        if why is not None:
            refused[attempt.id] = why
    return refused


def why_plan_not_approved(run_id: str, rows: Sequence[PlanApproval]) -> str | None:
    """Return None if an approval that the run has used covers its current content and is not revoked. Otherwise return what is missing."""
    if not rows:
        return f"there is no run {run_id}"
    used = [row for row in rows if row.digest is not None]
    if not used:
        return f"run {run_id} has used no approval of its plan"
    same = [row for row in used if is_same_content(row.digest, row.run_digest)]
    if not same:
        return (
            f"run {run_id} was approved with other content ({(used[-1].digest or '')[:12]}…) than it has now ({rows[0].run_digest[:12]}…): "
            "the new version needs an approval of its own"
        )
    whys = [why_revoked(row) for row in same]
    return None if None in whys else whys[-1]


def only_override(rows: Sequence[PlanApproval]) -> Sequence[PlanApproval]:
    """Return the newest approval of the run's current content if that overrides a change freeze, otherwise `rows`.

    The run has started during the freeze, so what was approved before, by other people, does not count.
    """
    same = [row for row in rows if is_same_content(row.digest, row.run_digest)]
    return same[-1:] if same and OVERRIDE_MARK in (same[-1].rules or "") else rows


def why_call_not_approved(attempt: Attempt, row: CallApproval | None) -> str | None:
    """Return None if `row` approves exactly this call, has not expired and is not revoked. Otherwise return what is missing."""
    step = f"step `{call_name(attempt.step_id, attempt.item, attempt.label, kind=attempt.kind)}`"
    if row is None:
        return f"{step} has a gate of its own and no approval: have it approved"
    if (row.run_id, row.step_id, row.item, "step") != (attempt.run_id, attempt.step_id, item_column(attempt.item), attempt.kind):
        return f"the approval by {one_line(row.by)} is for another run, step or item: have {step} approved"
    if row.decision != "approve":
        return f"{one_line(row.by)} did not approve {step}: {row.decision}"
    if not is_same_content(row.digest, attempt.approval_digest):
        return (
            f"{step} was approved by {one_line(row.by)} with other content ({row.digest[:12]}…) than the call has now "
            f"({(attempt.approval_digest or '')[:12]}…): have it approved again"
        )
    if row.expires_at is not None and row.expires_at <= row.now:
        return f"the approval of {step} by {one_line(row.by)} expired at {_moment(row.expires_at)}: have it approved again"
    return why_revoked(row)


def is_same_content(approved: str | None, current: str | None) -> bool:
    """Return whether the approved digest equals the current one."""
    return approved is not None and approved == current


def is_use_left(row: CallApproval) -> bool:
    """Return whether the approval is unused, or used by this same start of the run. A retried call needs no new approval.

    The answer to a question permits no call, so it is not used up: if the start dies before the receipt, the next one does not ask again.
    """
    return row.is_answer or row.used_at is None or (row.claimed_at is not None and row.used_at >= row.claimed_at)


def why_revoked(row: PlanApproval | CallApproval) -> str | None:
    """Return why the standing approval is invalid: missing, or revoked by whom and when. None if it is valid or a person approved."""
    if row.standing_id is None:
        return None
    if row.found_standing_id is None:
        return f"there is no standing approval {row.standing_id}"
    if row.revoked_at is not None:
        return f"the standing approval was revoked by {one_line(row.revoked_by or 'somebody')} at {_moment(row.revoked_at)}"
    return None


def count_use(connection: Connection, approval_id: str) -> None:
    """Use up the approval of a call."""
    connection.execute(update(approvals).where(approvals.c.id == approval_id, approvals.c.used_at.is_(None)).values(used_at=database_now()))


def _plan_refusal(connection: Connection, run_id: str) -> str | None:
    rows = only_override([PlanApproval(*row) for row in connection.execute(_PLAN, {"run": run_id})])
    whys = {row.id: _quorum_refusal(connection, f"run {run_id}", row.id, row.rules) for row in rows}
    met = [row for row in rows if whys[row.id] is None]
    return why_plan_not_approved(run_id, met) if met else next(iter(whys.values()), why_plan_not_approved(run_id, rows))


def _quorum_refusal(connection: Connection, approval: str, approval_id: str | None, rules: str | None) -> str | None:
    """Return why an approval lacks the approvals of others that its gate needs, or None. Only a gate that needs some costs a query."""
    if approval_id is None or rules is None or QUORUM_MARK not in rules:
        return None
    why = why_too_few(gate_policy_in(rules), connection.scalars(_PEOPLE, {"approval": approval_id}).all())
    return None if why is None else f"{approval} lacks approvals: {why}; have it approved again"


def _call_refusal(connection: Connection, attempt: Attempt) -> str | None:
    found = connection.execute(_CALL, {"approval": attempt.approval_id}).first()
    row = None if found is None else CallApproval(*found)
    why = why_call_not_approved(attempt, row)
    if why is not None or row is None:
        return why
    if (why := _quorum_refusal(connection, f"step `{attempt.step_id}`", row.id, row.rules)) is not None:
        return why
    if not is_use_left(row):
        return (
            f"the approval of step `{attempt.step_id}` by {one_line(row.by)} was used up at {row.used_at and _moment(row.used_at)}, "
            "by an earlier start of the run: have it approved again"
        )
    if row.used_at is None:
        count_use(connection, attempt.approval_id or "")
    return None


def _moment(at: datetime) -> str:
    return at.isoformat(timespec="seconds")


_standing = standing_approvals.c
_used = and_(
    approvals.c.run_id == runs.c.id,
    approvals.c.step_id.is_(None),
    approvals.c.decision == literal_column("'approve'"),
    approvals.c.used_at.is_not(None),
)
_PLAN: Any = (
    select(
        runs.c.approval_digest,
        approvals.c.approval_digest,
        approvals.c.by,
        approvals.c.standing_id,
        _standing.id,
        _standing.revoked_at,
        _standing.revoked_by,
        approvals.c.id,
        gates.c.rules,
    )
    .select_from(
        runs.outerjoin(approvals, _used)
        .outerjoin(standing_approvals, _standing.id == approvals.c.standing_id)
        .outerjoin(gates, gates.c.id == approvals.c.gate_id)
    )
    .where(runs.c.id == bindparam("run"))
    .order_by(approvals.c.used_at)
)
_CALL: Any = (
    select(
        runs.c.claimed_at,
        approvals.c.run_id,
        approvals.c.step_id,
        approvals.c.item,
        approvals.c.decision,
        approvals.c.approval_digest,
        approvals.c.by,
        approvals.c.expires_at,
        approvals.c.used_at,
        approvals.c.standing_id,
        _standing.id,
        _standing.revoked_at,
        _standing.revoked_by,
        database_now(),
        approvals.c.result.is_not(None),
        approvals.c.id,
        gates.c.rules,
    )
    .select_from(
        approvals.outerjoin(standing_approvals, _standing.id == approvals.c.standing_id)
        .outerjoin(runs, runs.c.id == approvals.c.run_id)
        .outerjoin(gates, gates.c.id == approvals.c.gate_id)
    )
    .where(approvals.c.id == bindparam("approval"))
    .with_for_update(of=approvals)
)
_given, _completing = approvals.alias(), approvals.alias()
_PEOPLE: Any = select(_given.c.by).where(
    _completing.c.id == bindparam("approval"),
    _given.c.run_id == _completing.c.run_id,
    _given.c.approval_digest == _completing.c.approval_digest,
    or_(
        _given.c.id == _completing.c.id,
        and_(_given.c.decision == AGREE, _given.c.result == literal('{"gate":"') + _completing.c.gate_id + literal('"}')),
    ),
)
"""Who gave an approval, and who agreed to the same content at its gate."""
