"""Tests of operator requests: each applies once, and a start that has not seen it cannot claim the run."""

from dataclasses import replace

import pytest

from plan_adapter.model.errors import RunConflictError
from plan_adapter.model.record import PlanRun
from plan_adapter.store.operator_requests import OperatorRequest
from plan_adapter.store.store import PlanStore
from tests.store.builders import begun, created

WHY = "它没有用\x00"


async def request(store: PlanStore, run: PlanRun, *steps: str, kind: str = "skip") -> OperatorRequest:
    digest = await store.operator_requests.digest_of(run.id, kind, steps)  # type: ignore[arg-type]
    return OperatorRequest(kind, steps, WHY, "安娜", "os_user", digest)  # type: ignore[arg-type]


async def test_the_newest_request_for_a_step_applies_and_each_request_applies_once(store: PlanStore):
    run = await created(store)
    assert await store.operator_requests.skipped_steps(run.id) == {}
    first = await request(store, run, "check", "drain")
    await store.operator_requests.record(run.id, first)
    skipped_steps = "skipped by 安娜: 它没有用\\x00"  # no database keeps a NUL in text
    assert await store.operator_requests.skipped_steps(run.id) == {"check": skipped_steps, "drain": skipped_steps}
    await store.operator_requests.record(run.id, await request(store, run, "check", kind="run_from"))
    assert await store.operator_requests.skipped_steps(run.id) == {"drain": skipped_steps}
    with pytest.raises(RunConflictError, match="another request about run"):
        await store.operator_requests.record(run.id, first)
    with pytest.raises(RunConflictError, match=r"no step of run .* is called `nowhere`; no step of run .* is called `无处`"):
        await store.operator_requests.digest_of(run.id, "skip", ["check", "nowhere", "无处"])
    assert await store.operator_requests.digest_of(run.id, "skip", ["check"]) != await store.operator_requests.digest_of(
        run.id, "skip", ["drain"]
    )
    assert (await store.verify(run.id)).ok


async def test_a_run_read_before_the_request_cannot_be_claimed(store: PlanStore):
    run = await created(store)
    seen = replace(run)
    changed = await store.operator_requests.record(run.id, await request(store, run, "check"))
    with pytest.raises(RunConflictError, match="was changed by another process"):
        await store.ledger.claim(seen)
    await store.ledger.claim(replace(run, updated_at=changed))


async def test_a_run_in_progress_accepts_a_rollback_request_but_no_skip(store: PlanStore):
    run = await begun(store)
    with pytest.raises(RunConflictError, match="is executed by"):
        await store.operator_requests.record(run.id, await request(store, run, "check"))
    await store.operator_requests.record(run.id, await request(store, run, kind="rollback"))
    asked = (await store.audit(run.id))[-1]
    assert (asked.kind, asked.step_id, asked.by, asked.known_by) == ("rollback_requested", None, "安娜", "os_user")
    assert (await store.verify(run.id)).ok
