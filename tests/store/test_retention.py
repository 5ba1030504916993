"""Tests of retention: pruning deletes old runs with all their rows, leaves a tombstone each, and keeps runs in use."""

import asyncio
import re
import signal
from collections.abc import Sequence
from datetime import datetime, timedelta

import pytest
from sqlalchemy import Connection, text
from sqlalchemy.exc import DBAPIError

from plan_adapter.model.errors import RunConflictError
from plan_adapter.model.record import PlanRun
from plan_adapter.model.status import PlanStatus
from plan_adapter.store.retention import ALTERED, OldRun
from plan_adapter.store.store import PlanStore
from tests.processes import Program
from tests.sql import Sql
from tests.store.builders import a_complete_run, a_plan, a_standing_approval, an_approval, an_attempt, begun, created

TABLES = ("receipts", "attempts", "step_runs", "approvals", "gates", "revisions", "leases", "audit")


async def later(store: PlanStore) -> datetime:
    return await store.now() + timedelta(hours=1)


async def old(store: PlanStore) -> dict[str, OldRun]:
    return {run.id: run for run in await store.retention.old_runs(await later(store))}


async def prune(store: PlanStore, *run_ids: str) -> dict[str, str]:
    return await store.retention.prune(run_ids, ended_before=await later(store), by="安娜")


async def ended(store: PlanStore, status: PlanStatus = PlanStatus.FAILED) -> PlanRun:
    run = await begun(store)
    run.status, run.completed_at = status, await store.now()
    await store.ledger.update(run)
    return run


async def altered(sql: Sql, *statements: str) -> None:
    """Change rows with the rights of the table owner."""

    def work(connection: Connection) -> None:
        tables = ("audit", "tombstones")
        for table in tables:
            if connection.dialect.name == "sqlite":
                connection.execute(text(f"DROP TRIGGER {table}_refuses_update"))
                connection.execute(text(f"DROP TRIGGER {table}_refuses_delete"))
            else:
                connection.execute(text(f"ALTER TABLE {table} DISABLE TRIGGER USER"))
        for statement in statements:
            connection.execute(text(statement))
        if connection.dialect.name == "postgresql":
            for table in tables:
                connection.execute(text(f"ALTER TABLE {table} ENABLE TRIGGER USER"))

    await sql.run(work)


async def test_pruning_a_run_leaves_a_tombstone_and_keeps_its_plan_and_other_runs(store: PlanStore, sql: Sql):
    run, other = await a_complete_run(store), await a_complete_run(store)
    before = await store.verify(run.id)
    entries = (await store.export(run.id))["audit"]
    assert await prune(store, run.id) == {}

    (tombstone,) = await store.retention.tombstones(run.id[:13])
    assert (tombstone.number, tombstone.run_id, tombstone.kind, tombstone.name, tombstone.status) == (
        1,
        run.id,
        "pruned",
        "site",
        "cancelled",
    )
    assert (tombstone.entries, tombstone.last_digest, tombstone.by) == (before.entries, before.digest, "安娜")
    assert tombstone.first_digest == entries[0]["digest"]  # pyright: ignore
    for table in TABLES:
        assert not await sql.rows(f"SELECT 1 FROM {table} WHERE run_id = '{run.id}'"), table
    assert (await store.get(run.digest)).description == "检查两次"
    assert (await store.verify(other.id)).ok
    assert await store.retention.problem() is None
    with pytest.raises(RunConflictError, match=rf"run {run.id} was pruned, by 安娜 \(unverified\) at .*`plan verify {run.id}` shows"):
        await store.run(run.id)
    assert await old(store) == {other.id: (await old(store))[other.id]}


async def test_runs_in_use_are_kept_with_a_reason(store: PlanStore, sql: Sql):
    executing, waiting = await begun(store), await created(store)
    unknown, approved, counted, damaged, gone = [await ended(store) for _ in range(5)]
    recorder = await store.ledger.recorder(unknown)
    await recorder.intent(an_attempt(unknown, at=recorder.now(), effect="write"))
    await store.add_approval(an_approval(run_id=approved.id))
    standing = a_standing_approval(max_runs=3)
    await store.standing.add(standing)
    await store.standing.use(standing.id, run_id=counted.id, approval_digest="f" * 64)
    completed = await ended(store, PlanStatus.COMPLETED)
    await store.add_approval(an_approval(run_id=completed.id))  # no run can use it now
    await sql.change(f"UPDATE runs SET message = 'x' WHERE id = '{damaged.id}'")

    found = await old(store)
    assert {run_id: found[run_id].kept if run_id in found else "not listed" for run_id in (
        executing.id, waiting.id, unknown.id, approved.id, counted.id, damaged.id, gone.id, completed.id)} == {
        executing.id: "not listed", waiting.id: "not listed", unknown.id: "unknown outcome", approved.id: "usable approval",
        counted.id: "standing approval that counts its runs", damaged.id: None, gone.id: None, completed.id: None,
    }  # fmt: skip
    kept = await prune(store, *(executing.id, waiting.id, unknown.id, approved.id, counted.id, damaged.id, gone.id, completed.id))
    assert kept == {
        executing.id: "in use", waiting.id: "in use", unknown.id: "unknown outcome", approved.id: "usable approval",
        counted.id: "standing approval that counts its runs", damaged.id: ALTERED,
    }  # fmt: skip
    assert {run.id for run in await store.runs()} == set(kept)


async def test_only_matching_runs_that_ended_before_the_cutoff_are_listed(store: PlanStore):
    run = await ended(store)
    other = await begun(store, a_plan("其他", steps=("check",)), name="other")
    other.status, other.completed_at = PlanStatus.COMPLETED, await store.now()
    await store.ledger.update(other)
    now = await later(store)
    assert [old_run.id for old_run in await store.retention.old_runs(run.completed_at or now)] == []
    assert [old_run.id for old_run in await store.retention.old_runs(now)] == [run.id, other.id]
    assert [old_run.id for old_run in await store.retention.old_runs(now, names=["other"])] == [other.id]
    assert [old_run.id for old_run in await store.retention.old_runs(now, status=PlanStatus.FAILED)] == [run.id]


async def test_all_pages_of_old_runs_are_read(store: PlanStore, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("plan_adapter.store.retention.PAGE", 2)
    runs = [(await ended(store)).id for _ in range(4)]
    assert [run.id for run in await store.retention.old_runs(await later(store))] == runs


async def test_a_tenant_prunes_only_its_own_runs(store: PlanStore, store_url: str):
    run = await ended(store)
    async with PlanStore(store_url, tenant_id="acme") as acme:
        assert await old(acme) == {}
        assert await prune(acme, run.id) == {run.id: "in use"}
    assert (await store.verify(run.id)).ok


async def test_audit_entries_can_be_deleted_only_after_a_tombstone(store: PlanStore, sql: Sql):
    run, other = await ended(store), await ended(store)
    await prune(store, other.id)
    for statement in (f"DELETE FROM audit WHERE run_id = '{run.id}'", f"UPDATE audit SET message = '[erased]' WHERE run_id = '{run.id}'"):
        with pytest.raises(DBAPIError, match="rows of audit cannot be changed or deleted"):
            await sql.change(statement)
    for statement in ("DELETE FROM tombstones", "UPDATE tombstones SET run_id = 'x'"):
        with pytest.raises(DBAPIError, match="rows of tombstones cannot be changed or deleted"):
            await sql.change(statement)


@pytest.mark.parametrize(
    ("statement", "message"),
    [
        ("DELETE FROM tombstones WHERE number = 1", "tombstone 1 is missing"),
        ("UPDATE tombstones SET \"by\" = 'bo' WHERE number = 1", "tombstone 1 of run .* was altered"),
        ("UPDATE tombstones SET last_digest = 'f' WHERE number = 2", "tombstone 2 of run .* was altered"),
    ],
)
async def test_an_altered_tombstone_is_detected(store: PlanStore, sql: Sql, statement: str, message: str):
    await prune(store, (await ended(store)).id, (await ended(store)).id)
    assert await store.retention.problem() is None
    await altered(sql, statement)
    assert re.search(message, await store.retention.problem() or "")


async def test_a_run_with_a_forged_tombstone_does_not_verify(store: PlanStore, sql: Sql):
    run, other = await ended(store), await ended(store)
    await prune(store, other.id)
    copied = "tenant_id, agent_id, org_id, task_id, kind, name, plan_digest, status, completed_at, entries, first_digest, last_digest"
    copied += ', fields, replaced, "by", known_by, at, digest'
    await sql.change(f"INSERT INTO tombstones (number, run_id, {copied}) SELECT 2, '{run.id}', {copied} FROM tombstones")
    found = await store.verify(run.id)
    assert found.problem is not None
    assert (found.problem.table, found.ok) == ("tombstones", False)
    assert "tombstone 2" in (await store.retention.problem() or "")


async def test_concurrent_prunes_write_one_chain(store: PlanStore, store_url: str):
    runs = [(await ended(store)).id for _ in range(6)]
    async with PlanStore(store_url) as first, PlanStore(store_url) as second:
        await asyncio.gather(prune(first, *runs[:4]), prune(second, *runs[2:]))
    assert await store.runs() == []
    assert await store.retention.problem() is None
    told = [(await store.retention.tombstones(run))[0].number for run in runs]
    assert sorted(told) == [1, 2, 3, 4, 5, 6]


KILLED = """
import asyncio, os, signal, sys
from datetime import timedelta
from plan_adapter.local import crash_points
from plan_adapter.store.store import PlanStore

deleted = []

def die(point, detail):
    deleted.append(detail)
    if deleted == ["pruned", "pruned"]:
        os.kill(os.getpid(), signal.SIGKILL)

async def main():
    crash_points.listener = die
    async with PlanStore(sys.argv[1]) as store:
        before = await store.now() + timedelta(hours=1)
        for run_id in sys.argv[2:]:
            await store.retention.prune([run_id], ended_before=before, by="ana")

asyncio.run(main())
"""


def killed(url: str, run_ids: Sequence[str]) -> int:
    return Program(KILLED, url, *run_ids).wait()


async def test_a_prune_killed_midway_leaves_a_store_that_verifies(store: PlanStore, store_url: str):
    first, second, third = [(await a_complete_run(store)).id for _ in range(3)]
    assert await asyncio.to_thread(killed, store_url, [first, second]) == -signal.SIGKILL
    assert {run.id for run in await store.runs()} == {second, third}
    assert [tombstone.run_id for tombstone in await store.retention.tombstones("")] == [first]
    assert await store.retention.problem() is None
    for run_id in (second, third):
        assert (await store.verify(run_id)).ok
    assert await prune(store, second, third) == {}
    assert await store.retention.problem() is None
