"""Tests of interrupted idempotent writes: a repeated call keeps its idempotency key, even in a revised plan."""

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest

from plan_adapter import ExecutionPlan, PlanStore, ToolRegistry, tool
from plan_adapter.model.errors import RunConflictError
from plan_adapter.model.record import PlanRun
from plan_adapter.model.status import Outcome, PlanStatus
from plan_adapter.runs import aresolve_step, aresume_run, arevise_run, arun_plan
from plan_adapter.tools.tool import ToolContext


class Shop:
    """A shop that never answers its first `silent` orders."""

    def __init__(self, *, silent: int) -> None:
        self.orders: list[tuple[str, str]] = []
        self._silent = silent

    @property
    def tools(self) -> ToolRegistry:
        @tool(effect="idempotent_write")
        async def order(what: str, context: ToolContext) -> str:
            """Order it."""
            self.orders.append((what, context.idempotency_key))
            if len(self.orders) <= self._silent:
                await asyncio.Event().wait()
            return what

        return ToolRegistry([order])


def ordering(what: str = "茶", *, description: str = "Order", **fields: Any) -> ExecutionPlan:
    """Return a plan with one order and a timeout of 30 ms."""
    plan = ExecutionPlan(description=description)
    plan.options.require_approval = False
    plan.add_step("order", "Order it", {"what": what}, **{"id": "order", "timeout_ms": 30, **fields})
    return plan


async def unanswered(shop: Shop, store: PlanStore, **fields: Any) -> PlanRun:
    run = await arun_plan(ordering(**fields), tools=shop.tools, store=store, offline=True)
    assert (run.status, run.step("order").error) == (PlanStatus.FAILED, "no answer within 0.03 s")
    return run


@pytest.mark.parametrize("new", [{"description": "Order, and say so"}, {"timeout_ms": 30_000, "max_retries": 2}], ids=["plan", "limits"])
async def test_the_same_call_in_a_new_version_keeps_its_idempotency_key(store: PlanStore, new: Mapping[str, Any]) -> None:
    shop = Shop(silent=2)
    run = await unanswered(shop, store, max_retries=1)
    await arevise_run(run.id, ordering(**new), tools=shop.tools, by="ana", store=store)
    done = await aresume_run(run.id, tools=shop.tools, store=store, offline=True)
    assert (done.status, len(shop.orders), len(set(shop.orders))) == (PlanStatus.COMPLETED, 3, 1)
    # The outcome of the other attempts is unknown.
    assert [receipt.outcome for receipt in await store.receipts(run.id)] == [Outcome.SUCCEEDED]


async def test_a_changed_call_is_refused_until_the_first_one_is_resolved(store: PlanStore) -> None:
    shop, other = Shop(silent=1), ordering("咖啡")
    run = await unanswered(shop, store)
    with pytest.raises(RunConflictError, match=f"may have been done \\(order\\); .*`plan resolve {run.id} order done.again` records"):
        await arevise_run(run.id, other, tools=shop.tools, by="ana", store=store)
    await aresolve_step(run.id, "order", "again", by="ana", note="The shop has nothing", store=store)
    await arevise_run(run.id, other, tools=shop.tools, by="ana", store=store)
    done = await aresume_run(run.id, tools=shop.tools, store=store, offline=True)
    assert (done.status, [what for what, _ in shop.orders]) == (PlanStatus.COMPLETED, ["茶", "咖啡"])
    assert len({key for _, key in shop.orders}) == 2  # with the old key, the shop would refuse the call or return the old result
    assert (await store.verify(run.id)).ok


async def test_a_failed_call_may_be_changed_and_keeps_its_idempotency_key_while_unchanged(store: PlanStore) -> None:
    keys: list[str] = []

    @tool(effect="idempotent_write")
    def order(what: str, context: ToolContext) -> str:
        """Order it."""
        keys.append(context.idempotency_key)
        if len(keys) < 3:
            raise ValueError("sold out")
        return what

    tools = ToolRegistry([order])
    run = await arun_plan(ordering(), tools=tools, store=store, offline=True)
    for plan in (ordering(description="Order, and say so"), ordering("咖啡")):
        await arevise_run(run.id, plan, tools=tools, by="ana", store=store)
        run = await aresume_run(run.id, tools=tools, store=store, offline=True)
    assert (run.status, keys[0] == keys[1], keys[1] == keys[2]) == (PlanStatus.COMPLETED, True, False)
