"""`Gates`: open, answer, expire and close the gates of runs. The functions take a connection."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any, cast

from pydantic import JsonValue
from sqlalchemy import ColumnElement, Connection, and_, func, insert, or_, select, true, update

from plan_adapter.gates.approval import policy_in_force, refusal, why_not_taken_back
from plan_adapter.gates.identity import agreements_that_count, recorded_identity
from plan_adapter.gates.quorum import why_already_given
from plan_adapter.model.approvals import (
    AGREE,
    DELEGATE,
    LEAVES_OPEN,
    TAKE_BACK,
    Agreement,
    Approval,
    Delegation,
    Gate,
    GateEnd,
    GatePolicy,
    followed_by,
)
from plan_adapter.model.errors import NotApprovedError, PlanAdapterError, RunConflictError, RunNotFoundError
from plan_adapter.model.host_process import HostProcess
from plan_adapter.model.options import Input
from plan_adapter.model.readable import call_name, one_line
from plan_adapter.store import leases
from plan_adapter.store.database.columns import database_now, now_of
from plan_adapter.store.database.database import Database, StorePart, reads, signal, writes
from plan_adapter.store.database.patience import PatientDatabase
from plan_adapter.store.database.rows import (
    ESCALATION_MARK,
    QUORUM_MARK,
    Row,
    agreed_at,
    agreement_of,
    agreement_row,
    answers_of,
    approval_of,
    approval_row,
    batched,
    context_columns,
    context_of,
    delegation_of,
    delegation_row,
    dump_json,
    gate_policy_in,
    gate_policy_text,
    item_column,
    item_of,
)
from plan_adapter.store.database.tables import approvals as answers
from plan_adapter.store.database.tables import gates, runs
from plan_adapter.store.leases import Claim
from plan_adapter.store.plans import seen_by
from plan_adapter.store.proof import audit, entries
from plan_adapter.store.proof.digests import json_row, new_salt
from plan_adapter.store.redaction import records
from plan_adapter.text.commands import answer_command


class Gates(StorePart):
    """The gates of a store, where runs wait for answers. This process waits at the gates that it opens."""

    def __init__(self, database: Database | PatientDatabase, tenant_id: str | None, claims: Mapping[str, Claim]) -> None:
        """Use `database` without opening it. `claims` are those of this process, by run id."""
        super().__init__(database, tenant_id)
        self._claims = claims

    async def open(self, gate: Gate, *, timeout_ms: int) -> Gate:
        """Open `gate` for this process and return it as stored. Times follow the database's clock; `timeout_ms` 0 means no limit.

        An open gate for the same run, step, item and content is reused: it keeps its id, times and policy, gets the new text, and counts
        one more opening. An open gate for other content, or that overrides other change freezes, is closed as superseded.

        Raises RunConflictError if another living process of this host waits there, and for a run that does not exist or has ended. Raises
        LeaseLostError for a step gate if this store claimed the run and another process has taken it over.
        """
        return await self._open(gate, self._claims.get(gate.run_id), timeout_ms=timeout_ms)

    @writes
    def _open(self, connection: Connection, gate: Gate, claim: Claim | None, *, timeout_ms: int) -> Gate:
        owner = HostProcess.this()
        run = _lock_run(connection, self.tenant_id, gate.run_id)
        at = and_(
            gates.c.run_id == gate.run_id,
            gates.c.step_id == (gate.step_id or ""),
            gates.c.call_kind == gate.call_kind,
            gates.c.item == item_column(gate.item),
            gates.c.closed_at.is_(None),
        )
        # Only the process that executes the run waits at step gates. If it stalled and lost its lease, it must open none and block nobody.
        is_claimed = gate.step_id is not None and claim is not None
        if claim is not None and is_claimed:
            leases.require(connection, gate.run_id, claim.epoch)
        kept = connection.execute(select(gates).where(at)).mappings().first()
        if kept is not None and kept["owner"] is not None and kept["owner"] != str(owner):
            other = HostProcess.parse(kept["owner"])
            if other.is_alive and not is_claimed:
                raise RunConflictError(f"process {other.pid} on this host waits at this gate of run {gate.run_id}; answer there, or end it")
        signal(connection)
        if kept is not None and kept["approval_digest"] == gate.approval_digest and _overrides_same(kept, gate):
            shown = {"text": gate.text, "openings": gates.c.openings + 1, "owner": str(owner)}
            row = connection.execute(update(gates).where(gates.c.id == kept["id"]).values(shown).returning(gates)).mappings().one()
            if row["text"] != kept["text"]:
                audit.append(connection, gate.run_id, [entries.of_gate(json_row(gates, row))])
            return _gate_of(connection, row)
        superseded = _close(connection, at, "superseded")
        new = {**context_columns(context_of(run)), **_gate_row(connection, gate, timeout_ms), "owner": str(owner)}
        row = connection.execute(insert(gates).values(new).returning(gates)).mappings().one()
        audit.append(connection, gate.run_id, [*superseded, entries.of_gate(json_row(gates, row))])
        return gate_of(row)

    async def answer(self, gate_id: str, approval: Approval, *, gate_policy: GatePolicy | None = None) -> Gate:
        """Close an open gate with its first answer and return it. The answer is recorded for the gate's run, step and item.

        At a gate that needs several approvals, an approval is recorded as an agreement, and the gate is returned open, until enough
        different people have agreed to this content. `gate_policy` is the gate's as it is now; None: as the gate opened with it.

        Raises RunConflictError for a closed gate, with how it was closed, and for an overdue gate, which is then closed; the database's
        clock decides. Raises NotApprovedError for an answer to other content, and for another approval by the same person; the gate stays
        open.
        """
        answered = await self._answer(gate_id, approval, gate_policy)
        if isinstance(answered, PlanAdapterError):
            raise answered
        return answered

    @records
    def _answer(self, connection: Connection, gate_id: str, approval: Approval, gate_policy: GatePolicy | None) -> Gate | PlanAdapterError:
        # An error is returned, not raised, because the transaction may contain a change to commit: an overdue gate is closed.
        if connection.execute(select(answers.c.id).where(answers.c.id == approval.id)).first() is not None:
            return NotApprovedError(f"the approval {approval.id} was already recorded: each answer needs a new approval")
        # One statement decides: a concurrent answer waits for this row, finds it closed and changes nothing.
        same = and_(_accepts(approval), gates.c.approval_digest == approval.approval_digest, _is_open(), _is_in_time())
        same = and_(_has_id(gate_id, self.tenant_id), same)
        if gate_policy is not None and gate_policy.delegate and (reason := _why_place_was_lost(connection, same, approval, gate_policy)):
            return NotApprovedError(reason)
        closed = None
        if approval.decision != "approve" or gate_policy is None or gate_policy.quorum == 1:
            needs_one = true() if approval.decision != "approve" else ~_has_quorum()
            closed = _close_first(connection, and_(same, needs_one), "answered")
        if closed is None and approval.decision == "approve":
            agreed = _agree(connection, same, approval, gate_policy)
            if agreed is not None:
                return agreed
            closed = _close_first(connection, same, "answered")
        if closed is None:
            return _refusal_of(connection, self.tenant_id, gate_id, approval.approval_digest)
        gate = _gate_of(connection, closed)
        expiries = [each.expires_at for each in (*gate.agreements, approval) if each.expires_at is not None]
        given = {
            **context_columns(context_of(closed)),
            **approval_row(approval),
            "at": closed["closed_at"],
            "expires_at": min(expiries, default=None) if approval.decision == "approve" else approval.expires_at,
            "run_id": closed["run_id"],
            "step_id": closed["step_id"] or None,
            "item": closed["item"],
            "gate_id": closed["id"],
        }
        connection.execute(insert(answers).values(given))
        audit.append(connection, closed["run_id"], [entries.of_approval(json_row(answers, given))])
        signal(connection)
        return gate

    async def delegate(self, delegation: Delegation) -> Gate:
        """Let another person answer at an open gate in the place of an approver, or take that back, and return the gate.

        Whoever calls has checked both. Raises RunConflictError for a closed gate, and for an overdue gate, which is then closed. Raises
        NotApprovedError for a gate that asks about other content, and if the other person has approved or another delegation came first.
        """
        delegated = await self._delegate(delegation)
        if isinstance(delegated, PlanAdapterError):
            raise delegated
        return delegated

    @records
    def _delegate(self, connection: Connection, delegation: Delegation) -> Gate | PlanAdapterError:
        same = and_(_has_id(delegation.gate_id, self.tenant_id), gates.c.approval_digest == delegation.approval_digest)
        row = connection.execute(select(gates).where(same, _is_open(), _is_in_time()).with_for_update()).mappings().first()
        if row is None:
            return _refusal_of(connection, self.tenant_id, delegation.gate_id, delegation.approval_digest)
        gate, people = _gate_of(connection, row), {"by": delegation.by, "to": delegation.to}
        if delegation.decision == TAKE_BACK and (reason := why_not_taken_back(gate.gate_policy, **people, agreements=gate.agreements)):
            return NotApprovedError(reason)
        if followed_by(gate.gate_policy.delegations, decision=delegation.decision, **people) != delegation.follows:
            return NotApprovedError(_CHANGED_MEANWHILE)
        return _record_given(connection, row, delegation_row(delegation))

    @reads
    def answer_to(self, connection: Connection, gate_id: str) -> Approval | None:
        """Return the answer that closed the gate, or None."""
        return _find_answer(connection, self.tenant_id, gate_id)

    @reads
    def change_requests(self, connection: Connection) -> dict[str, Approval]:
        """Return the newest request for changes of each open gate's content, by gate id."""
        same = [getattr(gates.c, name) == getattr(answers.c, name) for name in ("run_id", "item", "approval_digest")]
        query = select(gates.c.id.label("asked_at"), *answers.c).join(
            answers, and_(*same, gates.c.step_id == func.coalesce(answers.c.step_id, ""))
        )
        query = query.where(_is_open(), answers.c.decision == "request_changes").order_by(answers.c.at)
        return {row["asked_at"]: approval_of(row) for row in connection.execute(seen_by(self.tenant_id, query, gates)).mappings()}

    @writes
    def expire(self, connection: Connection, gate_id: str) -> Gate:
        """Close the gate as expired if it is open and overdue by the database's clock. Return its current state."""
        return _expire(connection, self.tenant_id, gate_id)

    @writes
    def close(self, connection: Connection, gate_id: str, end: GateEnd) -> Gate:
        """Close the gate without an answer and return it. A closed gate, or one where another process waits, is returned unchanged."""
        is_free = or_(gates.c.owner.is_(None), gates.c.owner == str(HostProcess.this()))
        _close_one(connection, and_(_has_id(gate_id, self.tenant_id), _is_open(), is_free), end)
        return _find(connection, self.tenant_id, gate_id)

    @writes
    def leave(self, connection: Connection, gate_id: str) -> None:
        """Record that this process no longer waits at the gate, so that another one can. The gate stays open."""
        mine = (_has_id(gate_id, self.tenant_id), gates.c.owner == str(HostProcess.this()))
        connection.execute(update(gates).where(*mine).values(owner=None))
        signal(connection)

    @writes
    def show(self, connection: Connection, gate_id: str, *, flow_run_id: str, keyset: str | None) -> None:
        """Record where the gate's form is shown. Without a `keyset`, Prefect shows the gate without a form."""
        changed = connection.execute(update(gates).where(_has_id(gate_id, self.tenant_id)).values(flow_run_id=flow_run_id, keyset=keyset))
        if not changed.rowcount:
            raise RunNotFoundError(f"there is no gate {gate_id}")
        signal(connection)

    @reads
    def get(self, connection: Connection, gate_id: str) -> Gate:
        """Return the gate with this id. Raises RunConflictError if there is none."""
        return _find(connection, self.tenant_id, gate_id)

    @reads
    def find(
        self, connection: Connection, *, run_id: str | None = None, open_only: bool = True, limit: int = 1000, with_texts: bool = False
    ) -> list[Gate]:
        """Return gates, oldest first. Gates of all runs come without their texts, which may be long, unless `with_texts`."""
        columns = gates.c if run_id is not None or with_texts else [column for column in gates.c if column is not gates.c.text]
        query = select(*columns).order_by(gates.c.opened_at, gates.c.id).limit(limit)
        if run_id is not None:
            query = query.where(gates.c.run_id == run_id)
        if open_only:
            query = query.where(_is_open())
        rows: Sequence[Row] = connection.execute(seen_by(self.tenant_id, query, gates)).mappings().all()
        attended = {owner: _is_attended(owner) for owner in {row["owner"] for row in rows if row["closed_at"] is None}}
        given = _given_at(connection, rows)
        return [gate_of(row, attended=attended, given=given[row["id"]]) for row in rows]


def _agree(
    connection: Connection, same: ColumnElement[bool], approval: Approval, gate_policy: GatePolicy | None
) -> Gate | PlanAdapterError | None:
    """Record `approval` as an agreement at the gate that matches `same`, and return the gate; return an error if it adds nothing.

    Returns None if the approval completes the quorum, or if no gate matches. The gate's row is locked from here on: of two people who
    approve at the same time, the second one finds the agreement of the first.
    """
    row = connection.execute(select(gates).where(same).with_for_update()).mappings().first()
    if row is None:
        return None
    gate = _gate_of(connection, row)
    now = gate.gate_policy if gate_policy is None else gate_policy
    now = replace(now, quorum=max(now.quorum, gate.gate_policy.quorum))
    counted = agreements_that_count(now, gate.agreements, approval_digest=gate.approval_digest)
    reason = refusal(now, recorded_identity(approval), decision="approve") or why_already_given(now, counted, approval.by)
    if now.quorum > 1 and reason is not None:
        return NotApprovedError(reason)
    if len(counted) + 1 >= now.quorum:
        return None
    return _record_given(connection, row, agreement_row(approval, gate.id))


def _why_place_was_lost(connection: Connection, same: ColumnElement[bool], approval: Approval, gate_policy: GatePolicy) -> str | None:
    """Return why the person behind `approval` may no longer answer at the gate that matches `same`, or None.

    `gate_policy` was read before: since then they may have let another person answer, or a delegation may have been taken back. The gate's
    row is locked from here on, so nothing of this can still happen.
    """
    row = connection.execute(select(gates).where(same).with_for_update()).mappings().first()
    known = {each.id for each in gate_policy.delegations}
    given = () if row is None else _given_at(connection, [row])[row["id"]].delegations
    is_lost = any(each.id not in known and (each.decision == TAKE_BACK or each.by == approval.by) for each in given)
    return _CHANGED_MEANWHILE if is_lost else None


def _record_given(connection: Connection, gate: Row, given: dict[str, Any]) -> Gate:
    """Record what a person gave at the gate of a row without closing it, and return the gate. `given` has no context columns."""
    stored = {
        **context_columns(context_of(gate)),
        **given,
        "at": now_of(connection),
        "run_id": gate["run_id"],
        "step_id": gate["step_id"] or None,
        "item": gate["item"],
    }
    connection.execute(insert(answers).values(stored))
    audit.append(connection, gate["run_id"], [entries.of_approval(json_row(answers, stored))])
    signal(connection)
    return _gate_of(connection, gate)


def open_outcome_gates(connection: Connection, run_id: str) -> dict[str, str]:
    """Return and lock a run's open outcome gates, as digest -> gate id."""
    conditions = (gates.c.run_id == run_id, gates.c.kind == "outcome", gates.c.closed_at.is_(None))
    rows = connection.execute(select(gates.c.approval_digest, gates.c.id).where(*conditions).with_for_update())
    return {row.approval_digest: row.id for row in rows}


def close_resolved(connection: Connection, gate_id: str, end: GateEnd, *, at: datetime) -> entries.Entry:
    """Close an open gate with a resolution and return the audit entry. The caller appends the entry and signals."""
    closed = update(gates).where(gates.c.id == gate_id).values(closed_at=at, end=end).returning(gates)
    return entries.of_gate_end(json_row(gates, connection.execute(closed).mappings().one()))


def close_all(connection: Connection, run_id: str, end: GateEnd) -> list[entries.Entry]:
    """Close every open gate of a run and return the audit entries. The caller appends them and signals."""
    return _close(connection, and_(gates.c.run_id == run_id, gates.c.closed_at.is_(None)), end)


def are_open(connection: Connection, run_id: str) -> bool:
    """Return whether any gate of the run is open."""
    return connection.scalar(select(gates.c.id).where(gates.c.run_id == run_id, _is_open()).limit(1)) is not None


@dataclass(slots=True)
class _Given:
    """What people gave at a gate so far without closing it, oldest first, and the time for which that is asked."""

    agreements: list[Agreement] = field(default_factory=list[Agreement])
    delegations: list[Delegation] = field(default_factory=list[Delegation])
    at: datetime | None = None  # None: the gate does not escalate


def gate_of(row: Row, *, attended: dict[str | None, bool | None] | None = None, given: _Given | None = None) -> Gate:
    """Return the gate of a row, with what was given there, and the policy in force.

    `attended` maps owners of open gates to whether they live, if that is already known.
    """
    owner: str | None = row["owner"]
    given, gate_policy = given or _Given(), gate_policy_in(row["rules"])
    waited = timedelta() if given.at is None else given.at - row["opened_at"]
    is_escalated = bool(gate_policy.escalate_after_ms) and waited >= timedelta(milliseconds=gate_policy.escalate_after_ms)
    return Gate(
        **{name: row[name] for name in _COPIED_COLUMNS},
        step_id=row["step_id"] or None,
        item=item_of(row),
        text=row.get("text") or "",
        fields={name: Input(**field) for name, field in json.loads(row["fields"] or "{}").items()},
        gate_policy=policy_in_force(gate_policy, is_escalated=is_escalated, delegations=given.delegations),
        attended=None if row["closed_at"] is not None else _is_attended(owner) if attended is None else attended[owner],
        agreements=tuple(given.agreements),
    )


def _gate_of(connection: Connection, row: Row) -> Gate:
    """Return the gate of a row, with what the database has of it."""
    return gate_of(row, given=_given_at(connection, [row])[row["id"]])


def _given_at(connection: Connection, rows: Sequence[Row]) -> dict[str, _Given]:
    """Return the agreements and delegations at the gates of `rows`, by gate.

    A gate that opened for one approval may have agreements, too: a policy may ask for more while it waits.
    """
    now = now_of(connection) if any(ESCALATION_MARK in row["rules"] for row in rows) else None
    found = {row["id"]: _Given(at=now and (row["closed_at"] or now)) for row in rows}
    for some in batched({row["run_id"] for row in rows}):
        is_valid = or_(answers.c.expires_at.is_(None), answers.c.expires_at > database_now())
        query = select(answers).where(answers.c.run_id.in_(some), answers.c.decision.in_(LEAVES_OPEN), is_valid)
        for row in connection.execute(query.order_by(answers.c.at, answers.c.id)).mappings():
            if row["decision"] == AGREE and (given := found.get((agreement := agreement_of(row)).gate_id)) is not None:
                given.agreements.append(agreement)
            elif row["decision"] in (DELEGATE, TAKE_BACK) and (given := found.get((delegation := delegation_of(row)).gate_id)) is not None:
                given.delegations.append(delegation)
    return found


def _find(connection: Connection, tenant: str | None, gate_id: str) -> Gate:
    row = connection.execute(select(gates).where(_has_id(gate_id, tenant))).mappings().first()
    if row is None:
        raise RunNotFoundError(f"there is no gate {gate_id}")
    return _gate_of(connection, row)


def _find_answer(connection: Connection, tenant: str | None, gate_id: str) -> Approval | None:
    run_id = select(gates.c.run_id).where(gates.c.id == gate_id).scalar_subquery()
    agreed = and_(answers.c.run_id == run_id, answers.c.decision == AGREE, answers.c.result == agreed_at(gate_id))
    query = select(answers).where(or_(answers.c.gate_id == gate_id, agreed)).order_by(answers.c.at, answers.c.id)
    return next(iter(answers_of(connection.execute(seen_by(tenant, query, answers)).mappings())), None)


def _expire(connection: Connection, tenant: str | None, gate_id: str) -> Gate:
    _close_one(connection, and_(_has_id(gate_id, tenant), _is_open(), ~_is_in_time()), "expired")
    return _find(connection, tenant, gate_id)


def _lock_run(connection: Connection, tenant: str | None, run_id: str) -> Row:
    """Lock and return the row of a run that has not ended, so that only one gate of a run is opened at a time."""
    query = seen_by(tenant, select(runs).where(runs.c.id == run_id), runs)
    row = connection.execute(query.with_for_update(key_share=True)).mappings().first()
    if row is None:
        raise RunNotFoundError(f"there is no run {run_id}")
    if row["status"] in _ENDED:
        raise RunConflictError(f"run {run_id} has ended (it is {row['status']}): it opens no gate until it is resumed")
    return row


def _gate_row(connection: Connection, gate: Gate, timeout_ms: int) -> dict[str, Any]:
    now = now_of(connection)
    return {
        **{name: getattr(gate, name) for name in _COLUMNS_FROM_GATE},
        "step_id": gate.step_id or "",
        "item": item_column(gate.item),
        "fields": _fields_text(gate),
        "rules": gate_policy_text(gate.gate_policy),
        "opened_at": now,
        "expires_at": now + timedelta(milliseconds=timeout_ms) if timeout_ms else None,
        "flow_run_id": gate.flow_run_id,
        "keyset": gate.keyset,
        "openings": 1,
        "salt": new_salt(),
    }


def _close(connection: Connection, condition: ColumnElement[bool], end: GateEnd) -> list[entries.Entry]:
    closed = connection.execute(update(gates).where(condition).values(closed_at=database_now(), end=end).returning(gates)).mappings()
    return [entries.of_gate_end(json_row(gates, row)) for row in closed]


def _close_one(connection: Connection, condition: ColumnElement[bool], end: GateEnd) -> None:
    """Close the gate that matches `condition`, if there is one, and append the audit entry."""
    row = _close_first(connection, condition, end)
    if row is not None:
        audit.append(connection, row["run_id"], [entries.of_gate_end(json_row(gates, row))])
        signal(connection)


def _close_first(connection: Connection, condition: ColumnElement[bool], end: GateEnd) -> Row | None:
    """Close the gate that matches `condition`. Return its row, or None if there is none."""
    return connection.execute(update(gates).where(condition).values(closed_at=database_now(), end=end).returning(gates)).mappings().first()


def _accepts(approval: Approval) -> ColumnElement[bool]:
    """Return the condition for the kind of gate that `approval` can close: only one with a result answers a question."""
    if approval.decision != "approve":
        return gates.c.kind != "outcome"
    return gates.c.kind == ("approval" if approval.result is None else "question")


def _refusal_of(connection: Connection, tenant: str | None, gate_id: str, approval_digest: str) -> PlanAdapterError:
    try:
        gate = _expire(connection, tenant, gate_id)
    except RunConflictError as missing:
        return missing
    if gate.kind == "outcome" and gate.closed_at is None:
        return NotApprovedError(
            f"this gate asks how `{call_name(gate.step_id or '', gate.item, gate.label, kind=gate.call_kind)}` ended and takes no "
            f"approval: answer it with `{answer_command(gate)}`"
        )
    if gate.closed_at is None and gate.approval_digest == approval_digest:
        what = "asks a question, not for an approval" if gate.kind == "question" else "asks for an approval, not for a result"
        return NotApprovedError(f"this gate {what}: answer it with `{answer_command(gate)}`")
    if gate.closed_at is None:
        return NotApprovedError(
            f"the answer is to other content ({approval_digest[:12]}…) than the gate asks about ({gate.approval_digest[:12]}…): "
            "look at the gate again, then answer it"
        )
    what = "the plan" if gate.step_id is None else f"step `{call_name(gate.step_id, gate.item, gate.label, kind=gate.call_kind)}`"
    at = gate.closed_at.isoformat(timespec="seconds")
    return RunConflictError(f"the gate of {what} is closed: {_how_it_closed(connection, gate, at)}")


def _how_it_closed(connection: Connection, gate: Gate, at: str) -> str:
    if gate.end == "expired":
        return f"nobody answered until {gate.expires_at and gate.expires_at.isoformat(timespec='seconds')}"
    if gate.end == "superseded":
        return f"a new version replaced it at {at}; answer that one"
    if gate.end == "cancelled":
        return f"its run was cancelled at {at}"
    if gate.kind == "outcome":
        return f"`{gate.end}` was recorded at {at}"
    given = _find_answer(connection, None, gate.id)
    return "it was answered" if given is None else f"{one_line(given.by)} answered at {at}: {given.decision}"


def _has_id(gate_id: str, tenant: str | None) -> ColumnElement[bool]:
    same = gates.c.id == gate_id
    return same if tenant is None else and_(same, gates.c.tenant_id == tenant)


def _overrides_same(kept: Row, gate: Gate) -> bool:
    """Return whether an approval at the gate of a row overrides the same change freezes as one at `gate`."""
    return gate_policy_in(kept["rules"]).overrides == gate.gate_policy.overrides


def _has_quorum() -> ColumnElement[bool]:
    """Return the condition for a gate that may need several approvals: its policy decides, and every other gate has no such word in it."""
    return gates.c.rules.contains(QUORUM_MARK)


def _is_open() -> ColumnElement[bool]:
    return gates.c.closed_at.is_(None)


def _is_in_time() -> ColumnElement[bool]:
    return or_(gates.c.expires_at.is_(None), gates.c.expires_at > database_now())


def _is_attended(owner: str | None) -> bool | None:
    """Return whether the process lives, or None for one on another host, where that is unknown."""
    if owner is None:
        return False
    found = HostProcess.parse(owner)
    return found.is_alive if found.is_here else None


def _fields_text(gate: Gate) -> str | None:
    fields = {name: field.model_dump(mode="json", exclude_defaults=True) for name, field in gate.fields.items()}
    return dump_json(cast("JsonValue", fields)) if fields else None


_ENDED = ("completed", "failed", "cancelled", "partial")
_CHANGED_MEANWHILE = "an approver changed who answers here in their place meanwhile: look at the gate again, then answer"
_COLUMNS_FROM_GATE = ("id", "run_id", "approval_digest", "name", "description", "text", "kind", "call_kind", "label")

_COPIED_COLUMNS = (
    "id", "run_id", "approval_digest", "name", "description", "opened_at", "expires_at", "closed_at", "end", "flow_run_id", "keyset",
    "openings", "kind", "call_kind", "label",
)  # fmt: skip
