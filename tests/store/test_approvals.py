"""Tests of approvals: each is recorded with its approver and used once."""

import asyncio
import re
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from plan_adapter.model.errors import NotApprovedError, RunConflictError
from plan_adapter.model.record import RunContext
from plan_adapter.store.database import tables
from plan_adapter.store.database.rows import context_of
from plan_adapter.store.store import PlanStore
from tests.sql import Sql
from tests.store.builders import DIGEST, an_approval, begun, created


async def test_answers_are_read_back_unchanged(store: PlanStore):
    now = await store.now()
    approved = an_approval(at=now, expires_at=now + timedelta(hours=1), run_id="r-1")
    rejected = an_approval(at=now + timedelta(seconds=1), decision="reject", note="\x00", run_id="r-1")
    await store.add_approval(approved)
    await store.add_approval(rejected)
    kept = [approved, replace(rejected, note="\\x00")]
    assert await store.approvals("r-1") == kept
    assert await store.approvals(DIGEST) == kept
    assert await store.approvals("r-2") == []


async def test_an_approval_is_found_until_a_run_uses_it(store: PlanStore):
    approval = an_approval()
    assert await store.ledger.find_approval(DIGEST) is None
    await store.add_approval(approval)
    assert await store.ledger.find_approval(DIGEST) == approval
    assert await store.ledger.find_approval("e" * 64) is None
    used = await store.ledger.use_approval(approval, run_id="r-1")
    assert used == replace(approval, run_id="r-1", used_at=used.used_at)
    assert used.used_at is not None
    assert await store.ledger.find_approval(DIGEST) is None
    with pytest.raises(NotApprovedError, match="belongs to run r-1"):
        await store.ledger.use_approval(approval, run_id="r-2")


async def test_approvals_are_listed_and_used_oldest_first(store: PlanStore):
    now = await store.now()
    for at, name in ((now, "d"), (now, "c"), (now - timedelta(seconds=1), "e"), (now + timedelta(seconds=1), "a")):
        await store.add_approval(an_approval(at=at, id=name))
    assert [approval.id for approval in await store.approvals(DIGEST)] == ["e", "c", "d", "a"]
    found = []
    while (approval := await store.ledger.find_approval(DIGEST)) is not None:
        found.append((await store.ledger.use_approval(approval, run_id=f"r-{approval.id}")).id)
    assert found == ["e", "c", "d", "a"]


async def test_the_run_that_used_an_approval_can_resume_with_it(store: PlanStore):
    approval = an_approval()
    used = await store.ledger.use_approval(approval, run_id="r-1")
    assert await store.ledger.use_approval(approval, run_id="r-1") == used
    assert await store.ledger.use_approval(used, run_id="r-1") == used


async def test_an_approval_given_in_code_is_recorded_when_it_is_used(store: PlanStore):
    used = await store.ledger.use_approval(an_approval(), run_id="r-1")
    assert await store.approvals("r-1") == [used]


async def test_an_approval_has_the_context_of_its_run(store: PlanStore, sql: Sql):
    context = RunContext(agent_id="agent-7", org_id="org-1", task_id="task-9")
    run = await begun(store, agent_id="agent-7", org_id="org-1", task_id="task-9")
    waiting = an_approval()
    await store.add_approval(waiting)
    await store.ledger.use_approval(waiting, run_id=run.id)
    await store.ledger.use_approval(an_approval(), run_id=run.id)
    await store.add_approval(an_approval(decision="reject", run_id=run.id))
    rows = await sql.rows(tables.approvals.select())
    assert [context_of(row) for row in rows] == [context] * 4  # includes the approval that started the run


async def test_the_audit_log_of_a_run_has_each_approval_and_each_use_once(store: PlanStore, sql: Sql):
    run = await created(store)
    given, free = an_approval(run_id=run.id, id="given"), an_approval(id="free")
    await store.add_approval(given)
    assert [entry.kind for entry in await store.audit(run.id)][-1] == "approved"
    await store.add_approval(free)
    await store.add_approval(an_approval(run_id="unknown"))
    for approval in (given, free, given):
        await store.ledger.use_approval(approval, run_id=run.id)
    assert [entry.kind for entry in await store.audit(run.id) if entry.kind.startswith("approv")] == ["approved", "approval_used"] * 2
    assert {row["run_id"] for row in await sql.rows(tables.audit.select())} == {run.id}


async def test_only_one_of_several_concurrent_runs_gets_the_same_approval(store: PlanStore, store_url: str):
    approval = an_approval()
    stores = [PlanStore(store_url) for _ in range(3)]
    outcomes = await asyncio.gather(
        *(stores[number % 3].ledger.use_approval(approval, run_id=f"r-{number}") for number in range(9)), return_exceptions=True
    )
    assert sorted(type(outcome).__name__ for outcome in outcomes) == ["Approval", *["NotApprovedError"] * 8]
    assert len(await store.approvals(DIGEST)) == 1
    await asyncio.gather(*(store.close() for store in stores))


async def test_an_approval_for_one_run_is_not_used_by_another(store: PlanStore):
    approval = an_approval(run_id="r-1")
    await store.add_approval(approval)
    assert await store.ledger.find_approval(DIGEST) is None
    with pytest.raises(NotApprovedError, match="belongs to run r-1"):
        await store.ledger.use_approval(approval, run_id="r-2")
    assert (await store.ledger.use_approval(approval, run_id="r-1")).run_id == "r-1"


async def test_an_approval_expired_by_the_database_clock_is_not_used(store: PlanStore):
    now = await store.now()
    expired = an_approval(at=now - timedelta(hours=1), expires_at=now)
    await store.add_approval(expired)
    assert await store.ledger.find_approval(DIGEST) is None
    with pytest.raises(NotApprovedError, match="expired at"):
        await store.ledger.use_approval(expired, run_id="r-1")
    fresh = an_approval(at=now, expires_at=now + timedelta(hours=1))
    await store.add_approval(fresh)
    assert await store.ledger.find_approval(DIGEST) == fresh


async def test_a_later_rejection_revokes_an_approval_and_a_still_later_approval_counts(store: PlanStore):
    now = await store.now()
    approval = an_approval(at=now)
    await store.add_approval(approval)
    await store.add_approval(an_approval(at=now + timedelta(seconds=1), decision="reject"))
    assert await store.ledger.find_approval(DIGEST) is None
    with pytest.raises(NotApprovedError, match="followed by a rejection"):
        await store.ledger.use_approval(approval, run_id="r-1")
    later = an_approval(at=now + timedelta(seconds=2))
    await store.add_approval(later)
    assert await store.ledger.find_approval(DIGEST) == later


async def test_a_rejection_at_the_same_time_revokes_an_approval(store: PlanStore):
    now = await store.now()
    await store.add_approval(an_approval(at=now))
    await store.add_approval(an_approval(at=now, decision="reject"))
    assert await store.ledger.find_approval(DIGEST) is None


async def test_a_decision_before_an_approval_does_not_revoke_it(store: PlanStore):
    now = await store.now()
    await store.add_approval(an_approval(at=now - timedelta(microseconds=1), decision="request_changes"))
    await store.add_approval(approval := an_approval(at=now))
    assert await store.ledger.find_approval(DIGEST) == approval


async def test_rejecting_one_run_does_not_affect_others(store: PlanStore):
    now = await store.now()
    await store.add_approval(an_approval(at=now))
    await store.add_approval(an_approval(at=now + timedelta(seconds=1), decision="reject", run_id="r-1"))
    assert await store.ledger.find_approval(DIGEST) is not None


async def test_a_later_decision_about_something_else_does_not_revoke_an_approval(store_url: str):
    async with PlanStore(store_url, tenant_id="acme") as acme, PlanStore(store_url, tenant_id="umbrella") as umbrella:
        now = await acme.now()
        await acme.add_approval(free := an_approval(at=now))
        await acme.add_approval(bound := an_approval(at=now, run_id="r-1"))
        later = now + timedelta(seconds=1)
        await acme.add_approval(an_approval(at=later, decision="reject", approval_digest="e" * 64))
        await acme.add_approval(an_approval(at=later, decision="reject", run_id="r-2"))
        await umbrella.add_approval(an_approval(at=later, decision="reject"))
        assert await acme.ledger.find_approval(DIGEST) == free
        assert (await acme.ledger.use_approval(bound, run_id="r-1")).id == bound.id


async def test_a_rejection_cannot_be_used(store: PlanStore):
    with pytest.raises(NotApprovedError, match="安娜 rejected it: 看起来不错"):
        await store.ledger.use_approval(an_approval(decision="reject"), run_id="r-1")


async def test_an_answer_at_a_gate_is_not_recorded_without_its_gate(store: PlanStore):
    with pytest.raises(RunConflictError, match=r"^this is an answer at gate g-1: it is recorded by answering that gate$"):
        await store.add_approval(an_approval(gate_id="g-1"))
    assert await store.approvals(DIGEST) == []


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"decision": "reject", "note": ""}, "安娜 rejected it"),
        ({"decision": "request_changes"}, "安娜 asked for changes: 看起来不错"),
        ({"step_id": "drain"}, "the approval by 安娜 is for step `drain`, not for the plan"),
        ({"run_id": "r-2"}, "the approval by 安娜 belongs to run r-2 only; ask for a new one"),
        (
            {"expires_at": datetime(2026, 1, 1, tzinfo=UTC)},
            "the approval by 安娜 expired at 2026-01-01T00:00:00+00:00; ask for a new one",
        ),
        (
            {"at": datetime(2026, 1, 1, tzinfo=UTC), "expires_at": datetime(3026, 1, 1, tzinfo=UTC)},
            "the approval by 安娜 was followed by a rejection or a request for changes; ask for a new one",
        ),
        (
            {"at": datetime(2026, 1, 1, tzinfo=UTC), "run_id": "r-1"},
            "the approval by 安娜 was followed by a rejection or a request for changes; ask for a new one",
        ),
        ({"gate_id": "g-1"}, "the store has no approval a-1 of this content"),
    ],
)
async def test_an_unusable_approval_says_why_and_what_to_do(store: PlanStore, fields: dict[str, Any], message: str):
    await store.add_approval(an_approval(decision="reject", at=datetime(2026, 1, 2, tzinfo=UTC)))
    with pytest.raises(NotApprovedError) as refused:
        await store.ledger.use_approval(an_approval(id="a-1", **fields), run_id="r-1")
    assert str(refused.value) == message


async def test_an_approval_cannot_be_used_for_other_content(store: PlanStore):
    approval = an_approval()
    await store.add_approval(approval)
    with pytest.raises(NotApprovedError, match=r"has no approval .* of this content"):
        await store.ledger.use_approval(replace(approval, approval_digest="e" * 64), run_id="r-1")
    assert await store.ledger.find_approval(DIGEST) == approval


async def test_a_step_approval_never_approves_a_plan(store: PlanStore):
    run = await created(store)
    of_step = an_approval(step_id="drain", run_id=run.id)
    of_any_run = an_approval(step_id="drain")
    for approval in (of_step, of_any_run):
        await store.add_approval(approval)
        with pytest.raises(NotApprovedError, match="is for step `drain`, not for the plan"):
            await store.ledger.use_approval(approval, run_id=run.id)
        with pytest.raises(NotApprovedError, match="is for step `drain`, not for the plan"):
            await store.ledger.use_approval(replace(approval, step_id=None), run_id=run.id)
    assert await store.ledger.find_approval(DIGEST) is None


async def test_a_decision_about_a_step_does_not_revoke_the_plan_approval(store: PlanStore):
    run = await created(store)
    now = await store.now()
    approval = an_approval(at=now, run_id=run.id)
    await store.add_approval(approval)
    await store.add_approval(an_approval(at=now + timedelta(seconds=1), decision="reject", step_id="drain", run_id=run.id))
    assert (await store.ledger.use_approval(approval, run_id=run.id)).id == approval.id


@pytest.mark.parametrize("decision", ["reject", "request_changes"])
async def test_a_later_decision_for_a_run_revokes_its_approval(store: PlanStore, decision: str):
    run = await created(store)
    now = await store.now()
    bound, free = an_approval(at=now, run_id=run.id), an_approval(at=now)
    for approval in (bound, free):
        await store.add_approval(approval)
    await store.add_approval(an_approval(at=now + timedelta(seconds=1), decision=decision, run_id=run.id))
    for approval in (bound, free):
        with pytest.raises(NotApprovedError, match="followed by a rejection"):
            await store.ledger.use_approval(approval, run_id=run.id)
    other = await created(store)
    assert (await store.ledger.use_approval(free, run_id=other.id)).run_id == other.id


async def test_an_approval_of_one_tenant_is_not_visible_to_another(store_url: str):
    approval = an_approval()
    async with PlanStore(store_url, tenant_id="acme") as acme, PlanStore(store_url, tenant_id="umbrella") as umbrella:
        await acme.add_approval(approval)
        assert await umbrella.ledger.find_approval(DIGEST) is None
        assert await umbrella.approvals(DIGEST) == []
        with pytest.raises(NotApprovedError):
            await umbrella.ledger.use_approval(approval, run_id="r-1")


async def test_an_agreement_is_no_answer(store: PlanStore) -> None:
    expected = "`agree` is no answer: the store records it itself, at a gate that needs several approvals"
    with pytest.raises(RunConflictError, match=f"^{re.escape(expected)}$"):
        await store.add_approval(an_approval(decision="agree"))
