"""`StandingApprovals`: record, use and revoke them."""

from pydantic import JsonValue
from sqlalchemy import ColumnElement, Connection, and_, insert, or_, select, update

from plan_adapter.model.approvals import Approval, StandingApproval
from plan_adapter.model.errors import NotApprovedError, NotStoredError, RunNotFoundError
from plan_adapter.model.plan import new_id
from plan_adapter.model.readable import one_line
from plan_adapter.model.record import RunContext
from plan_adapter.store.database.columns import database_now, now_of
from plan_adapter.store.database.database import StorePart, reads, signal, writes
from plan_adapter.store.database.rows import Row, approval_of, approval_row, context_columns, context_of, dump_json, load_json
from plan_adapter.store.database.tables import approvals, runs, standing_approvals
from plan_adapter.store.plans import seen_by
from plan_adapter.store.proof import audit, entries
from plan_adapter.store.proof.digests import json_row
from plan_adapter.store.redaction import records, refuse_secrets


class StandingApprovals(StorePart):
    """The standing approvals of a store."""

    async def add(self, standing: StandingApproval, *, context: RunContext | None = None) -> None:
        """Record a standing approval, with no run counted. Raises InvalidPlanError if its terms contain the value of a secret."""
        terms: dict[str, JsonValue] = {"inputs": standing.inputs, "schedules": list(standing.schedules), "source": standing.source}
        await refuse_secrets(terms)
        await self._add(standing, context)

    @records
    def _add(self, connection: Connection, standing: StandingApproval, context: RunContext | None) -> None:
        row = {name: getattr(standing, name) for name in _COPIED_COLUMNS} | {"runs": 0}
        lists: dict[str, JsonValue] = {"schedules": list(standing.schedules), "steps": list(standing.steps), "inputs": standing.inputs}
        row |= {name: dump_json(value) for name, value in lists.items()}
        connection.execute(insert(standing_approvals).values({**context_columns(self._with_tenant(context)), **row}))
        signal(connection)

    @reads
    def find(self, connection: Connection, *, include_ended: bool = False) -> list[StandingApproval]:
        """Return the usable standing approvals, oldest first. `include_ended` adds those that are revoked, expired or used up."""
        query = seen_by(self.tenant_id, select(standing_approvals), standing_approvals)
        if not include_ended:
            query = query.where(_is_usable())
        ordered = query.order_by(standing_approvals.c.at, standing_approvals.c.id)
        return [_standing_of(row) for row in connection.execute(ordered).mappings()]

    @writes
    def revoke(self, connection: Connection, id_prefix: str, *, by: str) -> StandingApproval:
        """Revoke the standing approval with this id prefix, and return it. No step of any run starts under it any more.

        An earlier revocation stays as it was.
        """
        wanted = select(standing_approvals.c.id).where(standing_approvals.c.id.startswith(id_prefix.lower(), autoescape=True))
        query = seen_by(self.tenant_id, wanted, standing_approvals).order_by(standing_approvals.c.id).limit(6)
        found = list(connection.scalars(query)) if id_prefix else []
        if not found:
            raise NotStoredError(f"no standing approval has the id `{id_prefix}`, or an id that begins with it")
        if len(found) > 1:
            raise NotStoredError(f"several standing approvals begin with `{id_prefix}`: {', '.join(found[:5])}")
        same = standing_approvals.c.id == found[0]
        ends = update(standing_approvals).where(same, standing_approvals.c.revoked_at.is_(None))
        connection.execute(ends.values(revoked_at=database_now(), revoked_by=by))
        signal(connection)
        return _standing_of(connection.execute(select(standing_approvals).where(same)).mappings().one())

    @writes
    def use(self, connection: Connection, standing_id: str, *, run_id: str, approval_digest: str) -> Approval:
        """Count a run, and return its approval of this content, recorded as used. Each run and content counts once.

        Raises NotApprovedError for a standing approval of another tenant than the run's, and for one that is revoked, expired or used up.
        """
        query = seen_by(self.tenant_id, select(runs).where(runs.c.id == run_id), runs)
        run = connection.execute(query.with_for_update(key_share=True)).mappings().first()
        if run is None:
            raise RunNotFoundError(f"there is no run {run_id}")
        same = and_(standing_approvals.c.id == standing_id, standing_approvals.c.tenant_id == run["tenant_id"])
        before = _used_before(connection, standing_id, run_id, approval_digest)
        # One statement: if two runs want the last use at once, the second one finds it gone.
        allowed = and_(same, standing_approvals.c.revoked_at.is_(None)) if before is not None else and_(same, _is_usable())
        more = standing_approvals.c.runs + (0 if before is not None else 1)
        row = (
            connection.execute(update(standing_approvals).where(allowed).values(runs=more).returning(standing_approvals)).mappings().first()
        )
        if row is None:
            raise NotApprovedError(_why_not(connection, same, standing_id))
        if before is not None:
            return before
        now = now_of(connection)
        given = Approval(
            id=new_id(),
            approval_digest=approval_digest,
            decision="approve",
            by=row["by"],
            known_by=row["known_by"],
            at=now,
            note=row["note"],
            run_id=run_id,
            standing_id=standing_id,
            used_at=now,
        )
        approval = {**context_columns(context_of(run)), **approval_row(given), "used_at": now}
        connection.execute(insert(approvals).values(approval))
        stored = json_row(approvals, approval)
        audit.append(connection, run_id, [entries.of_approval(stored), entries.of_use(stored)])
        signal(connection)
        return given


def _used_before(connection: Connection, standing_id: str, run_id: str, approval_digest: str) -> Approval | None:
    query = select(approvals).where(
        approvals.c.run_id == run_id,
        approvals.c.standing_id == standing_id,
        approvals.c.approval_digest == approval_digest,
        approvals.c.step_id.is_(None),
        approvals.c.used_at.is_not(None),
    )
    row = connection.execute(query).mappings().first()
    return None if row is None else approval_of(row)


def _is_usable() -> ColumnElement[bool]:
    """Return the condition for a usable standing approval: not revoked, not expired, and with a run left."""
    columns = standing_approvals.c
    in_time = or_(columns.until.is_(None), columns.until > database_now())
    return and_(columns.revoked_at.is_(None), in_time, or_(columns.max_runs.is_(None), columns.runs < columns.max_runs))


def _why_not(connection: Connection, same: ColumnElement[bool], standing_id: str) -> str:
    row = connection.execute(select(standing_approvals).where(same)).mappings().first()
    if row is None:
        return f"there is no standing approval {standing_id}"
    if row["revoked_at"] is not None:
        return f"the standing approval was revoked by {one_line(row['revoked_by'])} at {row['revoked_at'].isoformat(timespec='seconds')}"
    if row["max_runs"] is not None and row["runs"] >= row["max_runs"]:
        return f"the standing approval by {one_line(row['by'])} was for {row['max_runs']} runs, and all of them are used"
    return f"the standing approval by {one_line(row['by'])} ended at {row['until'].isoformat(timespec='seconds')}"


def _standing_of(row: Row) -> StandingApproval:
    return StandingApproval(
        **{name: row[name] for name in _COPIED_COLUMNS},
        inputs=load_json(row["inputs"]),
        schedules=tuple(load_json(row["schedules"])),
        steps=tuple(load_json(row["steps"])),
    )


_COPIED_COLUMNS = (
    "id", "runbook_digest", "name", "by", "known_by", "at", "until", "max_runs", "runs", "note", "signature", "source", "revoked_at",
    "revoked_by",
)  # fmt: skip
