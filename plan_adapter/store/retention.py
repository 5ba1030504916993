"""`Retention`: delete the records of old runs, and erase values in records. Both leave a tombstone."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial

from pydantic import JsonValue
from sqlalchemy import Connection, delete, or_, select

from plan_adapter.gates.identity import Identity, identity_of_account
from plan_adapter.local.crash_points import reached
from plan_adapter.model.errors import RunConflictError
from plan_adapter.model.status import PlanStatus
from plan_adapter.store import gates, leases
from plan_adapter.store.database.columns import now_of
from plan_adapter.store.database.database import StorePart, reads, signal, writes
from plan_adapter.store.database.rows import Row
from plan_adapter.store.database.tables import (
    approvals,
    attempts,
    audit,
    commands,
    concurrency_keys,
    gate_messages,
    receipts,
    revisions,
    runs,
    standing_approvals,
    step_runs,
    triggered_runs,
)
from plan_adapter.store.database.tables import gates as gate_table
from plan_adapter.store.database.tables import leases as lease_table
from plan_adapter.store.database.tables import tombstones as tombstone_table
from plan_adapter.store.outcomes import unknown_of
from plan_adapter.store.plans import seen_by
from plan_adapter.store.proof import tombstones
from plan_adapter.store.proof.erasing import Erasure, Stage, erasure_of, write_erasure
from plan_adapter.store.proof.export import parts_of
from plan_adapter.store.proof.tombstones import Tombstone, TombstoneSignature
from plan_adapter.store.proof.verification import ENDED, verify
from plan_adapter.store.runs import lock_run

BATCH = 20
"""How many runs one transaction deletes. Other writers wait for it."""

PAGE = 200
"""How many runs are looked at in one transaction."""

ALTERED = "record does not verify"

_TABLES = (
    *(receipts, commands, attempts, step_runs, approvals, gate_messages, gate_table, revisions, lease_table, concurrency_keys),
    *(triggered_runs, audit),
)
"""The tables with rows of a run besides `runs`, each after those that refer to it."""


@dataclass(frozen=True, slots=True)
class OldRun:
    """A run that ended long enough ago, and why its record is kept; None if it can be deleted."""

    id: str
    name: str
    digest: str
    status: str
    ended_at: datetime
    kept: str | None


class Retention(StorePart):
    """The runs of a store that are old enough to be deleted, and what was deleted."""

    async def old_runs(
        self, ended_before: datetime, *, names: Collection[str] | None = None, status: PlanStatus | None = None
    ) -> list[OldRun]:
        """Return the runs that ended before this time and match the filters, oldest first."""
        found = await self._old_runs(ended_before, names, status, "")
        while found and len(found) % PAGE == 0:
            page = await self._old_runs(ended_before, names, status, found[-1].id)
            if not page:
                break
            found += page
        return found

    @reads
    def _old_runs(
        self, connection: Connection, ended_before: datetime, names: Collection[str] | None, status: PlanStatus | None, after: str
    ) -> list[OldRun]:
        statuses = ENDED if status is None else (status.value,)
        query = select(runs).where(runs.c.status.in_(statuses), runs.c.completed_at < ended_before, runs.c.id > after)
        if names is not None:
            query = query.where(runs.c.name.in_(names))
        rows = connection.execute(seen_by(self.tenant_id, query, runs).order_by(runs.c.id).limit(PAGE)).mappings().all()
        now = now_of(connection)
        return [
            OldRun(row["id"], row["name"], row["digest"], row["status"], row["completed_at"], _why_kept(connection, row, now))
            for row in rows
        ]

    async def prune(self, run_ids: Sequence[str], *, ended_before: datetime, by: str) -> dict[str, str]:
        """Delete the records of these runs in one transaction, and record a tombstone for each, with what is known about `by`.

        Return the runs whose records are kept, each with the reason: the run is in use again, or its record does not verify.
        """
        heads = await self._database.read(partial(_verified_heads, run_ids=run_ids))
        return await self._prune(heads, ended_before, identity_of_account(by))

    @writes
    def _prune(self, connection: Connection, heads: dict[str, str | None], ended_before: datetime, identity: Identity) -> dict[str, str]:
        # A locked run is in use: skip it instead of waiting for the lock.
        wanted = select(runs).where(runs.c.id.in_(heads), runs.c.completed_at < ended_before).order_by(runs.c.id)
        query = seen_by(self.tenant_id, wanted, runs).with_for_update(skip_locked=True)
        found = {row["id"]: row for row in connection.execute(query).mappings()}
        now, kept = now_of(connection), dict[str, str]()
        for run_id, head in heads.items():
            why = "in use" if run_id not in found else _why_kept(connection, found[run_id], now)
            if why is None and (head is None or head != _newest_digest(connection, run_id)):
                why = ALTERED
            if why is not None:
                kept[run_id] = why
                continue
            tombstones.add(connection, found[run_id], "pruned", by=identity.by, known_by=identity.known_by)
        pruned = [run_id for run_id in heads if run_id not in kept]
        for table in _TABLES:
            connection.execute(delete(table).where(table.c.run_id.in_(pruned)))
        connection.execute(delete(runs).where(runs.c.id.in_(pruned)))
        reached("in-transaction", "pruned")
        signal(connection)
        return kept

    @reads
    def preview_erasure(self, connection: Connection, run_id: str, fields: Sequence[str], *, files: Mapping[str, JsonValue]) -> Erasure:
        """Return what `erase` would change. Raises the same errors."""
        return erasure_of(connection, _require_erasable(connection, lock_run(connection, self.tenant_id, run_id)), fields, files)[0]

    @writes
    def erase(
        self,
        connection: Connection,
        run_id: str,
        fields: Sequence[str],
        *,
        files: Mapping[str, JsonValue],
        stage: Stage,
        by: str,
    ) -> Erasure:
        """Erase the values of `fields` in the record of a run that has ended, record a tombstone, and return what was erased.

        The tombstone names `by`, unverified unless it is the account of this process.

        `files` are the contents of the run's result files by path. `stage` gets the new ones before the transaction is committed. Raises
        RunConflictError for fields without a value, a run that is still in use, and a record that does not verify.
        """
        run = _require_erasable(connection, lock_run(connection, self.tenant_id, run_id))
        erasure, changed = erasure_of(connection, run, fields, files)
        if changed or erasure.files:
            identity = identity_of_account(by)
            write_erasure(connection, run, erasure, changed, by=identity.by, known_by=identity.known_by, stage=stage)
            signal(connection)
        return erasure

    @reads
    def run_ids(self, connection: Connection, *, after: str = "") -> list[str]:
        """Return the ids of the next runs after this id, in order. Empty at the end."""
        query = select(runs.c.id).where(runs.c.id > after).order_by(runs.c.id).limit(PAGE)
        return list(connection.scalars(seen_by(self.tenant_id, query, runs)))

    @reads
    def tombstones(self, connection: Connection, run_id: str) -> list[Tombstone]:
        """Return the tombstones of the runs with this id or prefix, oldest first."""
        return tombstones.of_run(connection, self.tenant_id, run_id)

    @reads
    def are_pruned(self, connection: Connection, run_ids: Collection[str]) -> set[str]:
        """Return which of these runs were pruned."""
        query = select(tombstone_table.c.run_id).where(tombstone_table.c.run_id.in_(run_ids), tombstone_table.c.kind == "pruned")
        return set(connection.scalars(query))

    @reads
    def unsigned(self, connection: Connection) -> tuple[int, str] | None:
        """Return the number of the newest tombstone and the text to sign for it, or None if there is none or it is signed."""
        return tombstones.unsigned(connection)

    @writes
    def add_signature(self, connection: Connection, number: int, *, by: str, signature: str) -> None:
        """Record the signature of a tombstone, which covers all before it."""
        tombstones.add_signature(connection, number, by=by, signature=signature)

    @reads
    def signatures(self, connection: Connection) -> list[TombstoneSignature]:
        """Return the signatures of tombstones, oldest first."""
        return tombstones.signatures(connection)

    @reads
    def problem(self, connection: Connection) -> str | None:
        """Return a message about the first tombstone that was altered or deleted, or None if all are intact."""
        return tombstones.problem(connection)


def why_open(connection: Connection, run: Row, now: datetime) -> str | None:
    """Return why `run` is still in use, or None: it has not ended, a process executes it, a gate is open, or an outcome is unknown."""
    lease = leases.of_run(connection, run["id"])
    if not leases.is_free(lease, now):
        return "executing"
    if run["status"] not in ENDED:
        return "interrupted" if run["status"] == PlanStatus.EXECUTING else "waiting"
    if gates.are_open(connection, run["id"]):
        return "waiting at a gate"
    if run["status"] != PlanStatus.COMPLETED and unknown_of(connection, run["id"]):
        return "unknown outcome"
    return None


def _require_erasable(connection: Connection, run: Row) -> Row:
    """Return `run`. Raises RunConflictError if it is still in use, or if its record does not verify."""
    if (why := why_open(connection, run, now_of(connection))) is not None:
        raise RunConflictError(f"run {run['id']} is still in use ({why}): values can be erased once it has ended")
    if not verify(parts_of(connection, run["id"])).ok:
        raise RunConflictError(f"the record of run {run['id']} does not verify: `plan verify {run['id']}` shows why; nothing was erased")
    return run


def _why_kept(connection: Connection, run: Row, now: datetime) -> str | None:
    if (why := why_open(connection, run, now)) is not None:
        return why
    of_run = approvals.c.run_id == run["id"]
    usable = (of_run, approvals.c.decision == "approve", approvals.c.used_at.is_(None))
    in_time = or_(approvals.c.expires_at.is_(None), approvals.c.expires_at > now)
    can_resume = run["status"] != PlanStatus.COMPLETED and run["rollback"] is None
    if can_resume and connection.execute(select(approvals.c.id).where(*usable, in_time).limit(1)).first():
        return "usable approval"
    standing = standing_approvals.c
    counts = (of_run, standing.max_runs.is_not(None), standing.revoked_at.is_(None), or_(standing.until.is_(None), standing.until > now))
    used = select(approvals.c.id).join(standing_approvals, standing.id == approvals.c.standing_id).where(*counts)
    return "standing approval that counts its runs" if connection.execute(used.limit(1)).first() else None


def _verified_heads(connection: Connection, run_ids: Sequence[str]) -> dict[str, str | None]:
    """Return the newest digest of each run's audit log, None for a record that does not verify."""
    found = {run_id: verify(parts_of(connection, run_id)) for run_id in run_ids}
    return {run_id: verification.digest if verification.ok else None for run_id, verification in found.items()}


def _newest_digest(connection: Connection, run_id: str) -> str | None:
    newest = select(audit.c.digest).where(audit.c.run_id == run_id).order_by(audit.c.number.desc())
    return connection.scalar(newest.limit(1))
