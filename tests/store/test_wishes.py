"""What people ask for of a run, in both databases: it counts once, and no start that has not seen it goes on."""

from dataclasses import replace

import pytest

from plan_adapter.errors import RunConflictError
from plan_adapter.record import PlanRun
from plan_adapter.store.store import PlanStore
from plan_adapter.store.wishes import Wished
from tests.store.builders import begun, created

WHY = "它没有用\x00"


async def wished(store: PlanStore, run: PlanRun, *steps: str, wish: str = "leave_out") -> Wished:
    digest = await store.digest_of_wish(run.id, wish, steps)  # type: ignore[arg-type]
    return Wished(wish, steps, WHY, "安娜", "os_user", digest)  # type: ignore[arg-type]


async def test_the_newest_word_about_a_step_holds_and_each_counts_once(store: PlanStore):
    run = await created(store)
    assert await store.left_out(run.id) == {}
    first = await wished(store, run, "check", "drain")
    await store.wish(run.id, first)
    left_out = "left out by 安娜: 它没有用\\x00"  # no database keeps a NUL in text
    assert await store.left_out(run.id) == {"check": left_out, "drain": left_out}
    await store.wish(run.id, await wished(store, run, "check", wish="take_back"))
    assert await store.left_out(run.id) == {"drain": left_out}
    with pytest.raises(RunConflictError, match="somebody else has asked for something of run"):
        await store.wish(run.id, first)
    with pytest.raises(RunConflictError, match=r"no step of run .* is called `nowhere`; no step of run .* is called `无处`"):
        await store.digest_of_wish(run.id, "leave_out", ["check", "nowhere", "无处"])
    assert await store.digest_of_wish(run.id, "leave_out", ["check"]) != await store.digest_of_wish(run.id, "leave_out", ["drain"])
    assert (await store.verify(run.id)).ok


async def test_whoever_has_read_the_run_before_cannot_claim_it_any_more(store: PlanStore):
    run = await created(store)
    seen = replace(run)
    changed = await store.wish(run.id, await wished(store, run, "check"))
    with pytest.raises(RunConflictError, match="was changed by another process"):
        await store.claim(seen)
    await store.claim(replace(run, updated_at=changed))


async def test_of_a_run_that_is_executed_a_rollback_is_asked_for_and_no_step_left_out(store: PlanStore):
    run = await begun(store)
    with pytest.raises(RunConflictError, match="is executed by"):
        await store.wish(run.id, await wished(store, run, "check"))
    await store.wish(run.id, await wished(store, run, wish="undo"))
    asked = (await store.audit(run.id))[-1]
    assert (asked.kind, asked.step_id, asked.by, asked.known_by) == ("rollback_asked", None, "安娜", "os_user")
    assert (await store.verify(run.id)).ok
