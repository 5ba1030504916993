"""Gates: open, answer, expire and close them. The functions take a connection and the tenant whose rows are visible."""

import json
from collections.abc import Sequence
from dataclasses import asdict
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import ColumnElement, Connection, and_, func, insert, or_, select, update

from plan_adapter.commands import answer_command
from plan_adapter.errors import NotApprovedError, PlanAdapterError, RunConflictError
from plan_adapter.readable import call_name, one_line
from plan_adapter.record import Approval, Gate, GateEnd, GatePolicy
from plan_adapter.store import audit, entries, leases
from plan_adapter.store.changes import signal
from plan_adapter.store.columns import database_now, now_of
from plan_adapter.store.digests import plain
from plan_adapter.store.leases import Owner
from plan_adapter.store.plans import seen_by
from plan_adapter.store.rows import Row, approval_of, approval_row, context_of, item_column, item_of, whose
from plan_adapter.store.tables import approvals as answers
from plan_adapter.store.tables import gates, runs


def open_gate(connection: Connection, tenant: str | None, gate: Gate, *, timeout_ms: int, owner: Owner, epoch: int | None = None) -> Gate:
    """Open `gate` for `owner` and return it as stored. An open gate for the same content is reused; one for other content is superseded.

    `epoch` is that of the owner's lease, if it has taken the run. Raises RunConflictError if another living process of this host waits at
    the gate, and for a run that does not exist or has ended. Raises LeaseLostError for a step gate if another process has taken the run.
    """
    run = _run_locked(connection, tenant, gate.run_id)
    at = and_(
        gates.c.run_id == gate.run_id,
        gates.c.step_id == (gate.step_id or ""),
        gates.c.call_kind == gate.call_kind,
        gates.c.item == item_column(gate.item),
        gates.c.closed_at.is_(None),
    )
    # Only the process that executes the run waits at step gates. If it stalled and lost its lease, it must open none and block nobody.
    is_held = gate.step_id is not None and epoch is not None
    if epoch is not None and is_held:
        leases.require(connection, gate.run_id, epoch)
    kept = connection.execute(select(gates).where(at)).mappings().first()
    if kept is not None and kept["owner"] is not None and kept["owner"] != str(owner):
        other = Owner.parse(kept["owner"])
        if other.is_alive and not is_held:
            raise RunConflictError(f"process {other.pid} on this host waits at this gate of run {gate.run_id}; answer there, or end it")
    signal(connection)
    if kept is not None and kept["approval_digest"] == gate.approval_digest:
        shown = {"text": gate.text, "rules": _rules_text(gate.rules), "openings": gates.c.openings + 1, "owner": str(owner)}
        row = connection.execute(update(gates).where(gates.c.id == kept["id"]).values(shown).returning(gates)).mappings().one()
        if (row["text"], row["rules"]) != (kept["text"], kept["rules"]):
            audit.append(connection, gate.run_id, [entries.of_gate(plain(gates, row))])
        return gate_of(row)
    superseded = _close(connection, at, "superseded")
    new = {**whose(context_of(run)), **_gate_row(connection, gate, timeout_ms), "owner": str(owner)}
    row = connection.execute(insert(gates).values(new).returning(gates)).mappings().one()
    audit.append(connection, gate.run_id, [*superseded, entries.of_gate(plain(gates, row))])
    return gate_of(row)


def answer(connection: Connection, tenant: str | None, gate_id: str, approval: Approval) -> Gate | PlanAdapterError:
    """Close an open gate with `approval`, record it, and return the gate. Otherwise return the reason as an error.

    The error is returned, not raised, because its transaction may contain a change to commit: an overdue gate is closed.
    """
    if connection.execute(select(answers.c.id).where(answers.c.id == approval.id)).first() is not None:
        return NotApprovedError(f"the approval {approval.id} was given before: each answer is one of its own")
    # One statement decides: a concurrent answer waits for this row, finds it closed and changes nothing.
    same = and_(gates.c.kind == "approval", gates.c.approval_digest == approval.approval_digest, _is_open(), _is_in_time())
    closed = _closed_now(connection, and_(_is(gate_id, tenant), same), "answered")
    if closed is None:
        return _why_not_taken(connection, tenant, gate_id, approval)
    given = {
        **whose(context_of(closed)),
        **approval_row(approval),
        "at": closed["closed_at"],
        "run_id": closed["run_id"],
        "step_id": closed["step_id"] or None,
        "item": closed["item"],
        "gate_id": closed["id"],
    }
    connection.execute(insert(answers).values(given))
    audit.append(connection, closed["run_id"], [entries.of_approval(plain(answers, given))])
    signal(connection)
    return gate_of(closed)


def answer_to(connection: Connection, tenant: str | None, gate_id: str) -> Approval | None:
    """Return the answer that closed the gate, or None."""
    row = connection.execute(seen_by(tenant, select(answers).where(answers.c.gate_id == gate_id), answers)).mappings().first()
    return None if row is None else approval_of(row)


def expire(connection: Connection, tenant: str | None, gate_id: str) -> Gate:
    """Close the gate as expired if it is open and overdue. Return its current state."""
    _close_one(connection, and_(_is(gate_id, tenant), _is_open(), ~_is_in_time()), "expired")
    return find(connection, tenant, gate_id)


def close(connection: Connection, tenant: str | None, gate_id: str, end: GateEnd, owner: Owner) -> Gate:
    """Close the gate if it is open and nobody but `owner` waits there. Return its current state."""
    is_free = or_(gates.c.owner.is_(None), gates.c.owner == str(owner))
    _close_one(connection, and_(_is(gate_id, tenant), _is_open(), is_free), end)
    return find(connection, tenant, gate_id)


def outcome_asked(connection: Connection, run_id: str) -> dict[str, str]:
    """Return and lock a run's open outcome gates, as digest -> gate id."""
    which = (gates.c.run_id == run_id, gates.c.kind == "outcome", gates.c.closed_at.is_(None))
    rows = connection.execute(select(gates.c.approval_digest, gates.c.id).where(*which).with_for_update())
    return {row.approval_digest: row.id for row in rows}


def close_resolved(connection: Connection, gate_id: str, end: GateEnd, *, at: datetime) -> entries.Entry:
    """Close an open gate with a resolution and return the audit entry. The caller appends the entry and signals."""
    closed = update(gates).where(gates.c.id == gate_id).values(closed_at=at, end=end).returning(gates)
    return entries.of_gate_end(plain(gates, connection.execute(closed).mappings().one()))


def close_all(connection: Connection, run_id: str, end: GateEnd) -> list[entries.Entry]:
    """Close every open gate of a run and return the audit entries. The caller appends them and signals."""
    return _close(connection, and_(gates.c.run_id == run_id, gates.c.closed_at.is_(None)), end)


def leave(connection: Connection, tenant: str | None, gate_id: str, owner: Owner) -> None:
    """Record that `owner` no longer waits at the gate. The gate stays open."""
    connection.execute(update(gates).where(_is(gate_id, tenant), gates.c.owner == str(owner)).values(owner=None))
    signal(connection)


def show(connection: Connection, tenant: str | None, gate_id: str, *, flow_run_id: str, keyset: str) -> None:
    """Record where the gate's form is shown."""
    changed = connection.execute(update(gates).where(_is(gate_id, tenant)).values(flow_run_id=flow_run_id, keyset=keyset))
    if not changed.rowcount:
        raise RunConflictError(f"there is no gate {gate_id}")
    signal(connection)


def find(connection: Connection, tenant: str | None, gate_id: str) -> Gate:
    """Return the gate. Raises RunConflictError if there is none."""
    row = connection.execute(select(gates).where(_is(gate_id, tenant))).mappings().first()
    if row is None:
        raise RunConflictError(f"there is no gate {gate_id}")
    return gate_of(row)


def listed(connection: Connection, tenant: str | None, *, run_id: str | None, open_only: bool, limit: int) -> list[Gate]:
    """Return gates, oldest first. Their texts are only included for a single run, because they may be long."""
    columns = gates.c if run_id is not None else [column for column in gates.c if column is not gates.c.text]
    query = select(*columns).order_by(gates.c.opened_at, gates.c.id).limit(limit)
    if run_id is not None:
        query = query.where(gates.c.run_id == run_id)
    if open_only:
        query = query.where(_is_open())
    rows: Sequence[Row] = connection.execute(seen_by(tenant, query, gates)).mappings().all()
    attended = {owner: _is_attended(owner) for owner in {row["owner"] for row in rows if row["closed_at"] is None}}
    return [gate_of(row, attended=attended) for row in rows]


def are_open(connection: Connection, run_id: str) -> bool:
    """Return whether any gate of the run is open."""
    return connection.scalar(select(gates.c.id).where(gates.c.run_id == run_id, _is_open()).limit(1)) is not None


def changes_asked(connection: Connection, tenant: str | None) -> dict[str, Approval]:
    """Return, by open gate, the last answer that requested changes of the same content."""
    same = [getattr(gates.c, name) == getattr(answers.c, name) for name in ("run_id", "item", "approval_digest")]
    query = select(gates.c.id.label("asked_at"), *answers.c).join(
        answers, and_(*same, gates.c.step_id == func.coalesce(answers.c.step_id, ""))
    )
    query = query.where(_is_open(), answers.c.decision == "request_changes").order_by(answers.c.at)
    return {row["asked_at"]: approval_of(row) for row in connection.execute(seen_by(tenant, query, gates)).mappings()}


def gate_of(row: Row, *, attended: dict[str | None, bool | None] | None = None) -> Gate:
    """Return the gate of a row. `attended` maps owners of open gates to whether they live, if that is already known."""
    owner: str | None = row["owner"]
    return Gate(
        **{name: row[name] for name in _PLAIN},
        step_id=row["step_id"] or None,
        item=item_of(row),
        text=row.get("text") or "",
        rules=_gate_policy_of(row["rules"]),
        attended=None if row["closed_at"] is not None else _is_attended(owner) if attended is None else attended[owner],
    )


def _run_locked(connection: Connection, tenant: str | None, run_id: str) -> Row:
    """Lock and return the row of a run that has not ended, so that only one gate of a run is opened at a time."""
    query = seen_by(tenant, select(runs).where(runs.c.id == run_id), runs)
    row = connection.execute(query.with_for_update(key_share=True)).mappings().first()
    if row is None:
        raise RunConflictError(f"there is no run {run_id}")
    if row["status"] in _ENDED:
        raise RunConflictError(f"run {run_id} has ended, it is {row['status']}: its gates cannot be answered until it is resumed")
    return row


def _gate_row(connection: Connection, gate: Gate, timeout_ms: int) -> dict[str, Any]:
    now = now_of(connection)
    return {
        **{name: getattr(gate, name) for name in _WRITTEN},
        "step_id": gate.step_id or "",
        "item": item_column(gate.item),
        "rules": _rules_text(gate.rules),
        "opened_at": now,
        "expires_at": now + timedelta(milliseconds=timeout_ms) if timeout_ms else None,
        "flow_run_id": gate.flow_run_id,
        "keyset": gate.keyset,
        "openings": 1,
    }


def _close(connection: Connection, which: ColumnElement[bool], end: GateEnd) -> list[entries.Entry]:
    closed = connection.execute(update(gates).where(which).values(closed_at=database_now(), end=end).returning(gates)).mappings()
    return [entries.of_gate_end(plain(gates, row)) for row in closed]


def _close_one(connection: Connection, which: ColumnElement[bool], end: GateEnd) -> None:
    """Close the gate that matches `which`, if there is one, and append the audit entry."""
    row = _closed_now(connection, which, end)
    if row is not None:
        audit.append(connection, row["run_id"], [entries.of_gate_end(plain(gates, row))])
        signal(connection)


def _closed_now(connection: Connection, which: ColumnElement[bool], end: GateEnd) -> Row | None:
    """Close the gate that matches `which`. Return its row, or None if there is none."""
    return connection.execute(update(gates).where(which).values(closed_at=database_now(), end=end).returning(gates)).mappings().first()


def _why_not_taken(connection: Connection, tenant: str | None, gate_id: str, approval: Approval) -> PlanAdapterError:
    try:
        gate = expire(connection, tenant, gate_id)
    except RunConflictError as missing:
        return missing
    if gate.kind == "outcome" and gate.closed_at is None:
        return NotApprovedError(
            f"this gate asks how `{call_name(gate.step_id or '', gate.item, gate.label, kind=gate.call_kind)}` ended, and takes no "
            f"approval: `{answer_command(gate)}` answers it"
        )
    if gate.closed_at is None:
        return NotApprovedError(
            f"the answer is to other content ({approval.approval_digest[:12]}…) than the gate asks about ({gate.approval_digest[:12]}…): "
            "look at it again and answer that"
        )
    what = "the plan" if gate.step_id is None else f"step `{call_name(gate.step_id, gate.item, gate.label, kind=gate.call_kind)}`"
    at = gate.closed_at.isoformat(timespec="seconds")
    return RunConflictError(f"the gate of {what} is closed: {_how_it_closed(connection, gate, at)}")


def _how_it_closed(connection: Connection, gate: Gate, at: str) -> str:
    if gate.end == "expired":
        return f"nobody answered until {gate.expires_at and gate.expires_at.isoformat(timespec='seconds')}"
    if gate.end == "superseded":
        return f"a new version took its place at {at}; look at that one"
    if gate.end == "cancelled":
        return f"its run was cancelled at {at}"
    if gate.kind == "outcome":
        return f"it was said at {at}: {gate.end}"
    given = answer_to(connection, None, gate.id)
    return "it was answered" if given is None else f"{one_line(given.by)} answered at {at}: {given.decision}"


def _is(gate_id: str, tenant: str | None) -> ColumnElement[bool]:
    same = gates.c.id == gate_id
    return same if tenant is None else and_(same, gates.c.tenant_id == tenant)


def _is_open() -> ColumnElement[bool]:
    return gates.c.closed_at.is_(None)


def _is_in_time() -> ColumnElement[bool]:
    return or_(gates.c.expires_at.is_(None), gates.c.expires_at > database_now())


def _is_attended(owner: str | None) -> bool | None:
    """Return whether the process lives, or None for one on another host, where that is unknown."""
    if owner is None:
        return False
    found = Owner.parse(owner)
    return found.is_alive if found.is_here else None


def _rules_text(rules: GatePolicy) -> str:
    return json.dumps(asdict(rules), ensure_ascii=False)


def _gate_policy_of(text: str) -> GatePolicy:
    rules: dict[str, Any] = json.loads(text)
    for name in ("approvers", "known_by"):
        rules[name] = None if rules[name] is None else tuple(rules[name])
    return GatePolicy(**rules)


_ENDED = ("completed", "failed", "cancelled", "partial")
_WRITTEN = ("id", "run_id", "approval_digest", "name", "description", "text", "kind", "call_kind", "label")

_PLAIN = (
    "id", "run_id", "approval_digest", "name", "description", "opened_at", "expires_at", "closed_at", "end", "flow_run_id", "keyset",
    "openings", "kind", "call_kind", "label",
)  # fmt: skip
