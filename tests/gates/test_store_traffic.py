"""Tests of how much a resume asks of its store: readings, writes and readings of the policy, counted on the database itself."""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest
from sqlalchemy import Connection, Engine, event

from plan_adapter import ExecutionPlan, PlanRun, approve
from plan_adapter.runs.start import execute_plan
from plan_adapter.store import PlanStatus
from tests.gates.world import FixedApprover, World

pytestmark = pytest.mark.parametrize("store_url", ["sqlite"], indirect=True)


@contextmanager
def counted() -> Iterator[Counter[str]]:
    """Count what the databases of this process are asked inside the block: `reads` and `writes` are transactions."""
    counts = Counter[str]()

    def note(_connection: Connection, _cursor: Any, statement: str, *_: Any) -> None:
        counts["reads"] += statement == "BEGIN"
        counts["writes"] += statement == "BEGIN IMMEDIATE"
        counts["policy"] += "FROM policy_history" in statement

    event.listen(Engine, "before_cursor_execute", note)
    try:
        yield counts
    finally:
        event.remove(Engine, "before_cursor_execute", note)


def plan_with_two_gates(world: World) -> ExecutionPlan:
    """Return a plan that needs an approval itself, with two parallel steps that have gates."""
    plan = world.plan(gated=True)
    plan.add_step("strike", "Strike again", {"target": "b"}, id="again", requires_approval=True)
    plan.options.allow_parallel = plan.options.require_approval = True
    return plan


async def waiting_at_two_gates(world: World) -> PlanRun:
    """Return a run of an approved plan that was left waiting at the gates of two steps."""
    plan = plan_with_two_gates(world)
    request = replace(world.run_request(approval=approve(plan, tools=world.tools(), by="ana")), waits=False)
    run = await execute_plan(world.bound(plan), run_request=request, store=world.store, offline=True)
    assert {gate.step_id for gate in await world.store.gates.find(run_id=run.id)} == {"strike", "again"}
    return run


def assert_at_most(counts: Counter[str], **most: int) -> None:
    """Fail if a count is over its limit."""
    assert {name: count for name, count in counts.items() if count > most[name]} == {}, dict(counts)


async def test_a_resume_after_both_gates_were_answered_reads_little(world: World) -> None:
    run = await waiting_at_two_gates(world)
    for gate in await world.store.gates.find(run_id=run.id):
        await world.answer(gate)
    with counted() as counts:
        done = await world.resume(run.id)
    assert (done.status, sorted(world.struck)) == (PlanStatus.COMPLETED, ["a", "b"])
    assert_at_most(counts, policy=5, reads=11, writes=8)


async def test_a_resume_that_asks_at_both_gates_reads_little(world: World) -> None:
    run = await waiting_at_two_gates(world)
    with counted() as counts:
        done = await world.resume(run.id, approver=FixedApprover())
    assert (done.status, sorted(world.struck)) == (PlanStatus.COMPLETED, ["a", "b"])
    assert_at_most(counts, policy=9, reads=26, writes=12)  # waiting processes read their gate again at every change of the store
