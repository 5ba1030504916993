"""Tests of claiming runs: one process owns a run at a time, until it releases the run or counts as dead."""

import asyncio
import os
import re
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

import pytest

from plan_adapter.model.errors import LeaseLostError, RunConflictError
from plan_adapter.model.host_process import HostProcess
from plan_adapter.model.readable import moment
from plan_adapter.model.record import PlanRun
from plan_adapter.model.status import Outcome, PlanStatus, RunReason, StepStatus
from plan_adapter.store import leases
from plan_adapter.store.database import tables
from plan_adapter.store.store import PlanStore
from tests.sql import Sql
from tests.store.builders import a_receipt, an_attempt, begun, created, dead_owner


async def test_a_run_owned_by_a_live_process_cannot_be_claimed(store: PlanStore):
    run = await begun(store)
    assert await store.ledger.owner(run.id) is not None
    with pytest.raises(RunConflictError, match=f"executed by process {os.getpid()} on this host"):
        await store.ledger.claim(await store.run(run.id))


async def test_an_ended_run_has_no_owner(store: PlanStore):
    run = await begun(store)
    run.status = PlanStatus.FAILED
    await store.ledger.update(run)
    assert await store.ledger.owner(run.id) is None
    again = await store.run(run.id)
    again.status = PlanStatus.EXECUTING
    await store.ledger.claim(again)
    assert await store.ledger.owner(run.id) is not None


async def test_only_one_of_two_concurrent_resumes_claims_the_run(store: PlanStore, store_url: str):
    run = await begun(store)
    run.status = PlanStatus.PARTIAL
    await store.ledger.update(run)
    async with PlanStore(store_url) as other:
        ours, theirs = await store.run(run.id), await other.run(run.id)
        outcomes = await asyncio.gather(store.ledger.claim(ours), other.ledger.claim(theirs), return_exceptions=True)
    assert sorted(type(outcome).__name__ for outcome in outcomes) == ["NoneType", "RunConflictError"]


async def test_a_run_changed_since_it_was_read_cannot_be_claimed(store: PlanStore):
    run = await created(store)
    await store.ledger.request_cancel(run.id, "never mind")
    with pytest.raises(RunConflictError, match=r"changed by another process.*never mind"):
        await store.ledger.claim(run)
    assert await store.ledger.owner(run.id) is None


@pytest.mark.parametrize(("effect", "outcome"), [("write", Outcome.UNKNOWN), ("idempotent_write", None), ("read", None)])
async def test_a_run_whose_process_died_is_interrupted_and_can_be_claimed(
    effect: str, outcome: Outcome | None, store: PlanStore, sql: Sql
) -> None:
    run = await begun(store)
    recorder = await store.ledger.recorder(run)
    await recorder.intent(an_attempt(run, at=recorder.now(), effect=effect))
    dead = dead_owner()
    await _set_owner(sql, run, dead)
    shown = await store.run(run.id)
    assert (shown.status, shown.reason) == (PlanStatus.EXECUTING, RunReason.INTERRUPTED)
    assert (shown.steps[0].status, shown.steps[0].outcome) == (StepStatus.RUNNING, outcome)
    assert (await store.runs())[0].reason is RunReason.INTERRUPTED
    assert await store.ledger.owner(run.id) is None
    shown.reason = None
    await store.ledger.claim(shown)
    assert await store.ledger.owner(run.id) is not None


async def test_a_process_on_another_host_counts_as_dead_when_its_lease_expires(store: PlanStore, sql: Sql):
    run = await begun(store)
    await _set_owner(sql, run, replace(HostProcess.this(), place="elsewhere"))
    assert (await store.run(run.id)).reason is None
    assert "on elsewhere" in (await store.ledger.owner(run.id) or "")
    free_at = await _set_lease_end(store, sql, run, seconds_ago=-60) + timedelta(seconds=15)
    with pytest.raises(RunConflictError, match=rf"on elsewhere; wait for it to end, .*becomes free at {re.escape(moment(free_at))}\)"):
        await store.ledger.claim(await store.run(run.id))
    await _set_lease_end(store, sql, run, seconds_ago=14)
    assert (await store.run(run.id)).reason is None
    await _set_lease_end(store, sql, run, seconds_ago=16)
    shown = await store.run(run.id)
    assert (shown.reason, await store.ledger.owner(run.id)) == (RunReason.INTERRUPTED, None)
    shown.reason = None
    await store.ledger.claim(shown)


def test_a_lease_reserves_the_run_to_the_last_moment_of_its_grace():
    now = datetime.now(UTC)
    lease: Any = {"owner": str(replace(HostProcess.this(), place="elsewhere")), "until": now - timedelta(seconds=15)}
    assert not leases.is_free(lease, now)
    assert leases.is_free(lease, now + timedelta(microseconds=1))


async def test_each_start_of_a_run_is_counted(store: PlanStore):
    run = await begun(store)
    for _ in range(2):
        await store.ledger.release(run.id)
        run = await store.run(run.id)
        run.reason = None
        await store.ledger.claim(run)
    starts = [(entry.message or "").partition(",")[0] for entry in await store.audit(run.id) if entry.kind == "run_started"]
    assert starts == ["start 1", "start 2", "start 3"]


async def test_a_process_that_lost_its_run_cannot_write(store: PlanStore, sql: Sql, store_url: str):
    run = await begun(store)
    recorder = await store.ledger.recorder(run)
    await recorder.intent(first := an_attempt(run, at=recorder.now()))
    await _set_lease_end(store, sql, run, seconds_ago=16)
    async with PlanStore(store_url) as other:
        taken = await other.run(run.id)
        taken.reason = None
        await other.ledger.claim(taken)
        recorder.receipt(a_receipt(first, at=recorder.now()))
        with pytest.raises(LeaseLostError, match=f"run {run.id} was taken over by another process"):
            await recorder.flush()
        for write in (partial(store.ledger.renew, run.id), partial(store.ledger.update, run)):
            with pytest.raises(LeaseLostError, match=f"run {run.id} was taken over"):
                await write()
        with pytest.raises(LeaseLostError, match="taken over"):
            await recorder.intent(an_attempt(run, at=recorder.now(), number=2))
        assert (await other.receipts(run.id), len(await other.attempts(run.id))) == ([], 1)
        changed_at = (await other.run(run.id)).updated_at
        await store.ledger.release(run.id)
        assert (await other.run(run.id)).updated_at == changed_at
        assert await other.ledger.owner(run.id) is not None
        await other.ledger.renew(run.id)


async def test_a_renewed_lease_stays_valid(store: PlanStore, sql: Sql):
    run = await begun(store)
    await _set_lease_end(store, sql, run, seconds_ago=16)
    await store.ledger.renew(run.id)
    assert await store.ledger.owner(run.id) is not None


async def test_a_released_run_is_shown_as_interrupted(store: PlanStore):
    run = await begun(store)
    await store.ledger.release(run.id)
    shown = await store.run(run.id)
    assert shown.reason is RunReason.INTERRUPTED
    assert shown.updated_at > run.updated_at


async def _set_owner(sql: Sql, run: PlanRun, owner: HostProcess) -> None:
    statement = tables.leases.update().where(tables.leases.c.run_id == run.id).values(owner=str(owner))
    await sql.change(statement)


async def _set_lease_end(store: PlanStore, sql: Sql, run: PlanRun, *, seconds_ago: float) -> datetime:
    ended = await store.now() - timedelta(seconds=seconds_ago)
    statement = tables.leases.update().where(tables.leases.c.run_id == run.id).values(until=ended)
    await sql.change(statement)
    return ended
