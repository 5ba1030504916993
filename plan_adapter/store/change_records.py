"""`ChangeRecords`: reads the runs of a period as an auditor asks about them, with a fixed number of queries for each 500 runs."""

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Collection, Sequence
from datetime import datetime
from typing import TypeAlias

from sqlalchemy import Connection, literal, select

from plan_adapter.model.approvals import Approval
from plan_adapter.model.audited import AuditedRuns, ChangeEvent, ChangeRecord, Period, PlanChange, PopulationRun, PrunedRun
from plan_adapter.model.record import Attempt, PlanVersion, Receipt
from plan_adapter.model.status import PlanStatus
from plan_adapter.store import runs
from plan_adapter.store.database.database import StorePart, reads
from plan_adapter.store.database.rows import Row, answers_of, attempt_of, batched, receipt_of
from plan_adapter.store.database.tables import approvals, attempts, audit, receipts, revisions, tombstones
from plan_adapter.store.database.tables import runs as run_table
from plan_adapter.store.plans import seen_by, versions_by_content
from plan_adapter.store.proof.entries import OPERATOR_REQUEST_KINDS, AuditKind

_EVENTS: tuple[AuditKind, ...] = ("always_executed", *OPERATOR_REQUEST_KINDS.values(), "erased", "refused")
"""The entries of the audit log that can be deviations. Other deviations are read from the rows that they describe."""

_ATTEMPT_COLUMNS = tuple(attempts.c[name] for name in ("id", "run_id", "step_id", "item", "number", "kind", "label", "tool_name"))
_CALL_COLUMNS = tuple(attempts.c[name] for name in ("effect", "started_at", "approval_id", "code_digest"))
_END_COLUMNS = tuple(receipts.c[name] for name in ("outcome", "error", "ended_at", "duration_ms", "by", "known_by", "note"))

_UNREAD = tuple(
    literal(value).label(name)
    for name, value in (("parameters", "{}"), ("idempotency_key", ""), ("approval_digest", None), ("result", "null"))
)
"""In place of columns of calls and their ends that are long, or that no column of a pack needs."""

Key: TypeAlias = tuple[str, str]
"""The tenant and the digest of a plan."""


class ChangeRecords(StorePart):
    """The runs of a store as changes."""

    @reads
    def read(
        self,
        connection: Connection,
        period: Period,
        *,
        names: Collection[str] | None = None,
        choose: Callable[[Sequence[str]], Collection[str]],
    ) -> AuditedRuns:
        """Return the runs that were requested in the period, and the records of those that `choose` takes from their sorted ids.

        `names` are names of plans: only their runs are returned. All of it is one snapshot of the store.
        """
        population, keys = self._population(connection, period, names)
        chosen = sorted(choose([run.id for run in population]))
        completed = self._completed(connection, {keys[run_id] for run_id in chosen})
        sample = [record for batch in batched(chosen) for record in _records(connection, batch, keys, completed)]
        return AuditedRuns(period, population, self._pruned(connection, period, names), sample)

    def _population(
        self, connection: Connection, period: Period, names: Collection[str] | None
    ) -> tuple[list[PopulationRun], dict[str, Key]]:
        """Return the runs of the period by id, and the content of each."""
        columns = [run_table.c[name] for name in ("id", "tenant_id", "name", "digest", "status", "created_at", "started_at")]
        query = select(*columns).where(run_table.c.created_at >= period.since, run_table.c.created_at <= period.until)
        if names is not None:
            query = query.where(run_table.c.name.in_(names))
        rows = connection.execute(seen_by(self.tenant_id, query, run_table).order_by(run_table.c.id)).mappings().all()
        keys = {row["id"]: (row["tenant_id"], row["digest"]) for row in rows}
        saved = versions_by_content(connection, {*keys.values()})
        population = [
            PopulationRun(
                row["id"],
                row["name"],
                row["digest"],
                _saved_before(saved.get(keys[row["id"]], ()), row["created_at"]),
                row["status"],
                row["created_at"],
                row["started_at"],
            )
            for row in rows
        ]
        return population, keys

    def _completed(self, connection: Connection, keys: Collection[Key]) -> dict[Key, list[datetime]]:
        """Return when the runs of each content completed, in order."""
        found = defaultdict[Key, list[datetime]](list)
        columns = (run_table.c.tenant_id, run_table.c.digest, run_table.c.completed_at)
        for digests in batched({digest for _, digest in keys}):
            completed = (run_table.c.status == PlanStatus.COMPLETED.value, run_table.c.digest.in_(digests))
            query = seen_by(self.tenant_id, select(*columns).where(*completed), run_table)
            for tenant, digest, at in connection.execute(query.order_by(run_table.c.completed_at)):
                found[tenant, digest].append(at)
        return found

    def _pruned(self, connection: Connection, period: Period, names: Collection[str] | None) -> list[PrunedRun]:
        ended = (tombstones.c.completed_at >= period.since, tombstones.c.completed_at <= period.until)
        query = select(tombstones).where(tombstones.c.kind == "pruned", *ended)
        if names is not None:
            query = query.where(tombstones.c.name.in_(names))
        rows = connection.execute(seen_by(self.tenant_id, query, tombstones).order_by(tombstones.c.run_id)).mappings()
        return [
            PrunedRun(row["run_id"], row["name"], row["plan_digest"], row["status"], row["completed_at"], row["by"], row["at"])
            for row in rows
        ]


def _records(
    connection: Connection, run_ids: Sequence[str], keys: dict[str, Key], completed: dict[Key, list[datetime]]
) -> list[ChangeRecord]:
    """Return the records of these runs, in this order."""
    answers, changes, events = _approvals(connection, run_ids), _replaced(connection, run_ids), _events(connection, run_ids)
    calls, ends = _calls(connection, run_ids)
    saved = versions_by_content(connection, {keys[run_id] for run_id in run_ids})
    records = list[ChangeRecord]()
    for run in runs.of_ids(connection, run_ids):
        plan_changes = _plan_changes(changes[run.id], run.digest)
        taken_at = max([run.created_at, *(change.at for change in plan_changes if change.changes_plan)])
        records.append(
            ChangeRecord(
                run=run,
                versions=_saved_before(saved.get(keys[run.id], ()), taken_at),
                approvals=answers[run.id],
                plan_changes=plan_changes,
                attempts=calls[run.id],
                receipts=ends[run.id],
                events=events[run.id],
                earlier_completed=bisect_left(completed.get(keys[run.id], ()), run.created_at),
            )
        )
    return records


def _saved_before(saved: Sequence[PlanVersion], at: datetime) -> tuple[PlanVersion, ...]:
    return tuple(version for version in saved if version.created_at <= at)


def _approvals(connection: Connection, run_ids: Sequence[str]) -> dict[str, list[Approval]]:
    found = defaultdict[str, list[Approval]](list)
    query = select(approvals).where(approvals.c.run_id.in_(run_ids)).order_by(approvals.c.at, approvals.c.id)
    for answer in answers_of(connection.execute(query).mappings()):
        if answer.run_id is not None:
            found[answer.run_id].append(answer)
    return found


def _replaced(connection: Connection, run_ids: Sequence[str]) -> dict[str, list[Row]]:
    found, columns = defaultdict[str, list[Row]](list), [revisions.c[name] for name in ("run_id", "digest", "by", "note", "at")]
    query = select(*columns).where(revisions.c.run_id.in_(run_ids)).order_by(revisions.c.number)
    for row in connection.execute(query).mappings():
        found[row["run_id"]].append(row)
    return found


def _plan_changes(replaced: Sequence[Row], digest: str) -> list[PlanChange]:
    """Return the change after each of these versions. The one after the last version is the plan with `digest`."""
    after = [*(row["digest"] for row in replaced), digest][1:]
    return [PlanChange(row["by"], row["note"], row["at"], row["digest"] != new) for row, new in zip(replaced, after, strict=True)]


def _events(connection: Connection, run_ids: Sequence[str]) -> dict[str, list[ChangeEvent]]:
    found = defaultdict[str, list[ChangeEvent]](list)
    columns = [audit.c[name] for name in ("run_id", "kind", "step_id", "by", "known_by", "message")]
    query = select(*columns).where(audit.c.run_id.in_(run_ids), audit.c.kind.in_(_EVENTS)).order_by(audit.c.run_id, audit.c.number)
    for run_id, *fields in connection.execute(query):
        found[run_id].append(ChangeEvent(*fields))
    return found


def _calls(connection: Connection, run_ids: Sequence[str]) -> tuple[dict[str, list[Attempt]], dict[str, dict[str, Receipt]]]:
    """Return the attempts of these runs, without parameters, and their receipts by attempt, without results."""
    calls, ends = defaultdict[str, list[Attempt]](list), defaultdict[str, dict[str, Receipt]](dict)
    query = select(*_ATTEMPT_COLUMNS, *_CALL_COLUMNS, *_END_COLUMNS, *_UNREAD, attempts.c.id.label("attempt_id")).outerjoin_from(
        attempts, receipts
    )
    query = query.where(attempts.c.run_id.in_(run_ids)).order_by(attempts.c.started_at, attempts.c.id)
    for row in connection.execute(query).mappings():
        call = attempt_of(row)
        calls[call.run_id].append(call)
        if row["outcome"] is not None:
            ends[call.run_id][call.id] = receipt_of(row)
    return calls, ends
