"""Tests of the events that start runs: equal ones start one run, which counts them."""

import asyncio
from dataclasses import replace
from datetime import timedelta

import pytest
from sqlalchemy import update

from plan_adapter.model.record import PlanRun
from plan_adapter.model.status import PlanStatus, RunReason
from plan_adapter.model.triggers import EventClaim, TriggerRecord
from plan_adapter.store.database.tables import triggered_runs
from plan_adapter.store.store import PlanStore
from tests.sql import Sql
from tests.store.builders import a_plan, a_run, validated

KEY = "f" * 64


def a_claim(event_id: str = "e-1", *, key: str = KEY, cooldown_ms: int | None = 0, replaces: str | None = None) -> EventClaim:
    return EventClaim(key, "alertmanager.alert.firing", event_id, cooldown_ms, replaces)


async def came(store: PlanStore, claim: EventClaim, *, run: PlanRun | None = None) -> tuple[PlanRun, TriggerRecord | None]:
    """Create the run of an event, and return it with the run that was started for the same alert."""
    plan = a_plan()
    made = run or a_run(plan)
    return made, await store.ledger.create(made, validated(plan), event=claim)


async def end(store: PlanStore, run: PlanRun) -> None:
    run.transition(PlanStatus.CANCELLED, reason=RunReason.CANCELLED, message="done")
    run.completed_at = await store.now()
    await store.ledger.update(run)


async def test_of_100_equal_events_at_once_one_starts_a_run_that_counts_all(store: PlanStore, store_url: str):
    async with PlanStore(store_url) as other:
        results = await asyncio.gather(*(came(to, a_claim(f"e-{number}")) for number in range(50) for to in (store, other)))
    started = [run for run, duplicate in results if duplicate is None]
    assert len(started) == 1
    assert {duplicate.run_id for _, duplicate in results if duplicate is not None} == {started[0].id}
    assert [run.id for run in await store.runs()] == [started[0].id]
    recorded = await store.trigger_events.of_run(started[0].id)
    assert recorded is not None
    assert (recorded.events, recorded.event) == (100, "alertmanager.alert.firing")


async def test_another_alert_and_another_tenant_start_runs_of_their_own(store: PlanStore, store_url: str):
    assert (await came(store, a_claim()))[1] is None
    assert (await came(store, a_claim(key="0" * 64)))[1] is None
    async with PlanStore(store_url, tenant_id="acme") as acme:
        run, duplicate = await came(acme, a_claim())
        assert duplicate is None
        assert (await came(acme, a_claim()))[1] is not None
    async with PlanStore(store_url, tenant_id="other") as other:
        assert await other.trigger_events.of_run(run.id) is None


async def test_an_ended_run_keeps_its_alert_until_the_cool_down_is_over(store: PlanStore, store_url: str):
    run, _ = await came(store, a_claim())
    await end(store, run)
    assert (await came(store, a_claim("e-2", cooldown_ms=3_600_000)))[1] is not None
    await Sql(store_url).change(update(triggered_runs).values(at=await store.now() - timedelta(hours=2)))
    again, duplicate = await came(store, a_claim("e-3", cooldown_ms=3_600_000))
    assert duplicate is None
    counts = [await store.trigger_events.of_run(run_id) for run_id in (run.id, again.id)]
    assert [count.events for count in counts if count is not None] == [2, 1]


async def test_without_a_cool_down_the_next_alert_after_the_end_starts_a_run(store: PlanStore):
    run, _ = await came(store, a_claim())
    assert (await came(store, a_claim("e-2")))[1] is not None
    await end(store, run)
    assert (await came(store, a_claim("e-3")))[1] is None


async def test_an_event_without_a_fingerprint_starts_one_run_for_ever(store: PlanStore):
    run, _ = await came(store, a_claim(cooldown_ms=None))
    await end(store, run)
    assert (await came(store, a_claim(cooldown_ms=None)))[1] is not None


async def test_a_run_that_never_started_is_replaced_once_with_its_count(store: PlanStore):
    dead, _ = await came(store, a_claim())
    found = [duplicate for _, duplicate in await asyncio.gather(*(came(store, a_claim(f"e-{number}")) for number in range(3)))]
    assert [duplicate.is_idle for duplicate in found if duplicate is not None] == [True] * 3
    results = await asyncio.gather(*(came(store, a_claim(f"e-{number}", replaces=dead.id)) for number in range(3)))
    started = [run for run, duplicate in results if duplicate is None]
    assert len(started) == 1
    recorded = await store.trigger_events.of_run(started[0].id)
    assert recorded is not None
    assert recorded.events == 4
    gone = await store.run(dead.id)
    assert (gone.status, gone.message) == (PlanStatus.CANCELLED, f"its process died before it started; run {started[0].id} takes its place")
    assert (await store.verify(dead.id)).ok


@pytest.mark.parametrize("how", ["claimed", "ended"])
async def test_a_run_that_has_started_meanwhile_is_not_replaced(store: PlanStore, how: str):
    run, _ = await came(store, a_claim())
    if how == "claimed":
        run.transition(PlanStatus.EXECUTING)
        await store.ledger.claim(run)
    else:
        await end(store, run)
    made, duplicate = await came(store, replace(a_claim("e-2"), replaces=run.id))
    if how == "claimed":
        assert duplicate is not None
        assert not duplicate.is_idle
        assert (await store.run(run.id)).status is PlanStatus.EXECUTING
    else:
        assert duplicate is None
        assert (await store.run(made.id)).status is PlanStatus.PENDING_APPROVAL


async def test_a_refused_run_leaves_no_claim(store: PlanStore):
    run, _ = await came(store, a_claim())
    with pytest.raises(Exception, match="there is already a run"):
        await came(store, a_claim(key="0" * 64), run=run)
    assert (await came(store, a_claim(key="0" * 64)))[1] is None


async def test_pruning_a_run_deletes_what_started_it(store: PlanStore):
    run, _ = await came(store, a_claim())
    await end(store, run)
    assert await store.retention.prune([run.id], ended_before=await store.now() + timedelta(days=1), by="ana") == {}
    assert await store.trigger_events.of_run(run.id) is None
