"""No plan and no environment loosens what the settings and the store's policy demand."""

import pytest

from plan_adapter.plan import ApprovalPolicy, Effect, ExecutionPlan
from plan_adapter.record import RunReason
from plan_adapter.settings import Settings
from tests.gates.world import World


def striking(effect: Effect | None, *, policy: ApprovalPolicy | None = None) -> ExecutionPlan:
    """A plan that asks nobody, and whose only step calls a tool that writes and says this of its effect."""
    plan = ExecutionPlan(description="Strike 目标", approval=policy)
    plan.add_step("strike", "Strike it", {"target": "a"}, id="strike", effect=effect)
    plan.options.require_approval = False
    return plan


@pytest.mark.parametrize("asks", ["the settings", "the plan"])
@pytest.mark.parametrize("declared", ["write", "idempotent_write"])
@pytest.mark.parametrize("said", ["read", "idempotent_write", None])
async def test_a_step_cannot_lower_the_effect_by_which_it_is_gated(said: Effect | None, declared: Effect, asks: str, world: World) -> None:
    world.settings = Settings(gate_effects=("write",)) if asks == "the settings" else Settings()
    plan = striking(said, policy=ApprovalPolicy(effects=["write"]) if asks == "the plan" else None)
    going = world.start(plan, tools=world.tools(effect=declared))
    assert (await world.gate(step="strike")).step_id == "strike"
    assert (await world.end(going)).reason is RunReason.REJECTED
    assert world.struck == []
