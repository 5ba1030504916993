"""Tests of standing approvals, valid for a number of runs until revoked, and of one-time codes, valid once."""

import asyncio
from dataclasses import replace
from datetime import timedelta

import pytest

from plan_adapter.model.errors import NotApprovedError, RunConflictError, StoreError
from plan_adapter.model.status import PlanStatus
from plan_adapter.store.store import PlanStore
from tests.store.builders import DIGEST, a_standing_approval, an_attempt, created


async def test_a_standing_approval_is_read_back_unchanged(store: PlanStore):
    now = await store.now()
    standing = a_standing_approval(until=now + timedelta(days=1), max_runs=3, signature="-----BEGIN", source="run/site.yaml", at=now)
    later = a_standing_approval(at=now + timedelta(seconds=1), steps=(), inputs={}, schedules=())
    await store.standing.add(standing)
    await store.standing.add(replace(later, runs=7))  # its own count of uses is ignored
    assert await store.standing.find() == [standing, later]


async def test_a_run_using_a_standing_approval_has_an_approval_that_names_it(store: PlanStore):
    standing = a_standing_approval()
    await store.standing.add(standing)
    run = await created(store, org_id="org-1")
    given = await store.standing.use(standing.id, run_id=run.id, approval_digest=DIGEST)
    assert (given.by, given.known_by, given.note, given.decision) == ("安娜", "ssh_signature", "每晚", "approve")
    assert given.used_at == given.at
    assert (given.standing_id, given.run_id, given.approval_digest) == (standing.id, run.id, DIGEST)
    assert await store.approvals(run.id) == [given]
    assert await store.ledger.use_approval(given, run_id=run.id) == given
    assert (await store.standing.find())[0].runs == 1
    assert await store.standing.use(standing.id, run_id=run.id, approval_digest=DIGEST) == given  # the same run resumes
    assert (await store.standing.find())[0].runs == 1


async def test_only_one_of_several_concurrent_runs_gets_the_last_use(store: PlanStore, store_url: str):
    standing = a_standing_approval(max_runs=2)
    await store.standing.add(standing)
    runs = [await created(store) for _ in range(9)]
    stores = [PlanStore(store_url) for _ in range(3)]
    uses = (stores[n % 3].standing.use(standing.id, run_id=run.id, approval_digest=DIGEST) for n, run in enumerate(runs))
    outcomes = await asyncio.gather(*uses, return_exceptions=True)
    assert sorted(type(outcome).__name__ for outcome in outcomes) == ["Approval"] * 2 + ["NotApprovedError"] * 7
    assert {str(outcome) for outcome in outcomes if isinstance(outcome, Exception)} == {
        "the standing approval by 安娜 was for 2 runs, and all of them are used"
    }
    assert len(await store.approvals(DIGEST)) == 2
    assert await store.standing.find() == []
    assert (await store.standing.find(include_ended=True))[0].runs == 2
    await asyncio.gather(*(store.close() for store in stores))


async def test_a_standing_approval_expired_by_the_database_clock_is_not_used(store: PlanStore):
    now = await store.now()
    await store.standing.add(standing := a_standing_approval(until=now))
    run = await created(store)
    with pytest.raises(NotApprovedError, match="the standing approval by 安娜 ended at 20"):
        await store.standing.use(standing.id, run_id=run.id, approval_digest=DIGEST)
    assert await store.standing.find() == []
    assert await store.standing.find(include_ended=True) == [standing]
    assert await store.approvals(run.id) == []


async def test_a_revoked_standing_approval_is_not_used(store: PlanStore):
    await store.standing.add(standing := a_standing_approval(id="aaaa1111"))
    await store.standing.add(a_standing_approval(id="aaaa2222"))
    for beginning, message in (
        ("aaaa", "several standing approvals begin with `aaaa`: aaaa1111, aaaa2222"),
        ("b", "no standing"),
        ("", "no"),
    ):
        with pytest.raises(StoreError, match=message):
            await store.standing.revoke(beginning, by="bo")
    revoked = await store.standing.revoke("AAAA1", by="bo")
    assert (revoked.id, revoked.revoked_by) == (standing.id, "bo")
    assert revoked.revoked_at is not None
    assert await store.standing.revoke("aaaa1", by="eve") == revoked
    assert [approval.id for approval in await store.standing.find()] == ["aaaa2222"]
    run = await created(store)
    with pytest.raises(NotApprovedError, match="the standing approval was revoked by bo at 20"):
        await store.standing.use(standing.id, run_id=run.id, approval_digest=DIGEST)


async def test_revoking_stops_a_run_before_its_next_step_and_prevents_resume(store: PlanStore):
    await store.standing.add(standing := a_standing_approval())
    run = await created(store)
    await store.standing.use(standing.id, run_id=run.id, approval_digest=DIGEST)
    run.status = PlanStatus.EXECUTING
    await store.ledger.claim(run)
    recorder = await store.ledger.recorder(run)
    await recorder.intent(an_attempt(run, "check", at=recorder.now()))
    await store.standing.revoke(standing.id, by="bo\u202e")
    with pytest.raises(NotApprovedError, match=r"the standing approval was revoked by bo\\u202e at 20"):
        await recorder.intent(an_attempt(run, "drain", at=recorder.now()))
    with pytest.raises(NotApprovedError, match="revoked"):
        await store.standing.use(standing.id, run_id=run.id, approval_digest=DIGEST)
    assert [attempt.step_id for attempt in await store.attempts(run.id)] == ["check"]


async def test_unknown_standing_approvals_and_runs_are_refused(store: PlanStore):
    await store.standing.add(standing := a_standing_approval())
    run = await created(store)
    with pytest.raises(NotApprovedError, match="there is no standing approval nope"):
        await store.standing.use("nope", run_id=run.id, approval_digest=DIGEST)
    with pytest.raises(RunConflictError, match="there is no run r-1"):
        await store.standing.use(standing.id, run_id="r-1", approval_digest=DIGEST)
    assert (await store.standing.find())[0].runs == 0


async def test_a_standing_approval_is_only_for_its_own_tenant(store_url: str, store: PlanStore):
    async with PlanStore(store_url, tenant_id="acme") as acme, PlanStore(store_url, tenant_id="umbrella") as umbrella:
        await acme.standing.add(standing := a_standing_approval())
        assert await umbrella.standing.find() == []
        with pytest.raises(StoreError, match="no standing approval"):
            await umbrella.standing.revoke(standing.id, by="bo")
        theirs = await created(umbrella)
        for tenant_store in (umbrella, store):
            with pytest.raises(NotApprovedError, match="there is no standing approval"):
                await tenant_store.standing.use(standing.id, run_id=theirs.id, approval_digest=DIGEST)


async def test_a_one_time_code_is_accepted_once(store: PlanStore, store_url: str):
    async with PlanStore(store_url) as other:
        firsts = await asyncio.gather(*((store, other)[n % 2].codes.use("安娜", 58_000_000_000) for n in range(10)))
    assert sorted(firsts) == [False] * 9 + [True]
    assert await store.codes.use("安娜", 58_000_000_001)
    assert await store.codes.use("bo", 58_000_000_000)
    assert not await store.codes.use("bo", 58_000_000_000)
