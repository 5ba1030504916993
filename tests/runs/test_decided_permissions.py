"""Permissions that the inputs of a run decide, at its gate, in its tools, when it is resumed or revised, and under a standing approval."""

from typing import Any

import pytest

from plan_adapter import ExecutionPlan, PlanStore, ToolRegistry, tool
from plan_adapter.errors import InvalidPlanError, ToolError
from plan_adapter.gates import CallbackApprover
from plan_adapter.gates.coverage import new_standing_approval, why_not_covered
from plan_adapter.model.approvals import ApprovalRequest
from plan_adapter.model.plan import Step
from plan_adapter.runner import arevise_run
from plan_adapter.runs import aresume_run, arun_plan
from plan_adapter.store import PlanStatus
from plan_adapter.tools import ToolContext
from plan_adapter.validation import bind_inputs, validate
from tests.runs.sub_plans import NO_APPROVAL

MAY = "${{ inputs.may ? ['重排'] : [] }}"


class World:
    """Tools that tell their permissions. `reorder` fails until it is repaired."""

    def __init__(self) -> None:
        self.is_broken = False
        self.asked = list[ApprovalRequest]()

        @tool(effect="write", permissions=["重排"])
        def reorder(context: ToolContext) -> list[str]:
            """Reorder everything."""
            if self.is_broken:
                raise ToolError("broken")
            return sorted(context.permissions)

        @tool(effect="read")
        def tell(context: ToolContext) -> list[str]:
            """Tell which permissions there are."""
            return sorted(context.permissions)

        self.tools = ToolRegistry([reorder, tell])

    def approver(self) -> CallbackApprover:
        def answer(request: ApprovalRequest) -> bool:
            self.asked.append(request)
            return True

        return CallbackApprover(answer, by="ana")


def asks(**fields: Any) -> ExecutionPlan:
    steps = [Step(id="tell", tool_name="tell"), Step(id="go", tool_name="reorder", when="${{ inputs.may }}", depends_on=["tell"])]
    inputs = {"may": {"type": "boolean", "default": False}}
    return ExecutionPlan.model_validate({"description": "Reorder", "permissions": MAY, "inputs": inputs, **fields, "steps": steps})


@pytest.mark.parametrize(("may", "shown", "given"), [(True, "`重排`", ["重排"]), (False, "none", [])])
async def test_the_gate_shows_the_permissions_of_this_run_and_its_tools_get_them(
    may: bool, shown: str, given: list[str], store: PlanStore
) -> None:
    world = World()
    ended = await arun_plan(asks(), tools=world.tools, inputs={"may": may}, store=store, offline=True, approver=world.approver())
    assert f"permissions that its tools get: {shown} (from `inputs.may`)" in world.asked[0].text
    assert (ended.status, ended.step("tell").result, ended.step("go").result) == (PlanStatus.COMPLETED, given, given or None)


async def test_a_run_without_a_permission_that_a_step_needs_is_refused_before_anything_runs(store: PlanStore) -> None:
    plan = asks()
    plan.steps[1].when = None
    with pytest.raises(InvalidPlanError, match="`reorder` needs the permission `重排`, which this run does not give"):
        await arun_plan(plan, tools=World().tools, store=store, offline=True)
    assert await store.runs() == []


async def test_a_resumed_run_keeps_the_permissions_that_were_approved(store: PlanStore) -> None:
    world = World()
    world.is_broken = True
    run = await arun_plan(asks(), tools=world.tools, inputs={"may": True}, store=store, offline=True, approver=world.approver())
    assert run.status is PlanStatus.PARTIAL
    world.is_broken = False
    run = await aresume_run(run.id, tools=world.tools, store=store, offline=True)
    assert (run.status, run.step("go").result, len(world.asked)) == (PlanStatus.COMPLETED, ["重排"], 1)


async def test_a_new_version_is_refused_if_the_inputs_of_the_run_do_not_permit_it(store: PlanStore) -> None:
    world = World()
    world.is_broken = True
    run = await arun_plan(asks(), tools=world.tools, inputs={"may": True}, store=store, offline=True, approver=world.approver())
    with pytest.raises(InvalidPlanError, match="which this run does not give"):
        await arevise_run(run.id, asks(permissions="${{ inputs.may ? [] : ['重排'] }}"), tools=world.tools, store=store)
    world.is_broken = False
    await arevise_run(run.id, asks(permissions="${{ inputs.may ? ['重排', 'net'] : [] }}"), tools=world.tools, store=store)
    run = await aresume_run(run.id, tools=world.tools, store=store, offline=True, approver=world.approver())
    assert (run.status, run.step("go").result, len(world.asked)) == (PlanStatus.COMPLETED, ["net", "重排"], 2)
    assert "permissions that its tools get: `重排`, `net` (from `inputs.may`)" in world.asked[1].text


async def test_a_standing_approval_covers_a_permission_only_if_it_names_the_input(store: PlanStore) -> None:
    validated, now = validate(asks(), World().tools), await store.now()
    plain = new_standing_approval(validated, by="ana", known_by="unverified", at=now, schedules=["f/d"], max_runs=1)
    named = new_standing_approval(validated, by="ana", known_by="unverified", at=now, schedules=["f/d"], max_runs=1, inputs={"may": True})
    allowed, usual = bind_inputs(validated, {"may": True}), bind_inputs(validated)
    assert why_not_covered(plain, usual, schedule="f/d", now=now) is None
    assert why_not_covered(named, allowed, schedule="f/d", now=now) is None
    assert "does not name the input `may`" in (why_not_covered(plain, allowed, schedule="f/d", now=now) or "")


async def test_the_gate_of_a_sub_plan_shows_the_permissions_that_its_own_inputs_decide(store: PlanStore) -> None:
    world = World()
    inner = asks(name="inner")
    part = Step(id="part", plan="inner.yaml", pinned=inner, inputs={"may": "${{ inputs.who == 'ana' }}"})
    plan = ExecutionPlan.model_validate(
        {
            "description": "Outer",
            "permissions": ["重排", "net"],
            "inputs": {"who": {}},
            "options": NO_APPROVAL.model_copy(),
            "steps": [part],
        }
    )
    ended = await arun_plan(plan, tools=world.tools, inputs={"who": "ana"}, store=store, offline=True, approver=world.approver())
    (text,) = [request.text for request in world.asked if request.step_id == "part"]
    assert "permissions that its tools get: `重排` (from `inputs.may`)" in text
    assert (ended.status, ended.step("part.go").result, ended.step("part.tell").result) == (PlanStatus.COMPLETED, ["重排"], ["重排"])
