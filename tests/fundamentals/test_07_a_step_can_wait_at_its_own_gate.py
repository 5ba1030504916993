"""A step can wait at its own gate. The approval covers this one call, with the parameters it has at that time."""

from pathlib import Path

from plan_adapter import ExecutionPlan, ToolRegistry, tool
from plan_adapter.gates import Approval, ApprovalRequest, CallbackApprover
from plan_adapter.model.options import ApprovalPolicy
from plan_adapter.runs import arun_plan
from plan_adapter.store import PlanStatus, StepStatus


def tools_for(folder: Path) -> ToolRegistry:
    """Return tools that read and write files in `folder`."""

    @tool(effect="read")
    def next_free(name: str) -> str:
        """Return a file name that is still free."""
        return name if not (folder / name).exists() else f"{name}-2"

    @tool(effect="write")
    def make(name: str) -> str:
        """Create a file."""
        (folder / name).touch()
        return name

    return ToolRegistry([next_free, make])


def plan() -> ExecutionPlan:
    """Return a plan in which every write waits at its own gate."""
    plan = ExecutionPlan(description="Make a file", approval=ApprovalPolicy(effects=["write"]))
    plan.options.require_approval = False
    plan.add_step("next_free", "Find a name", {"name": "报告"}, id="find")
    plan.add_step("make", "Make it", {"name": "${{ steps.find.result }}"}, id="make")
    return plan


async def test_the_approver_sees_the_resolved_parameters_of_the_call(tmp_path: Path) -> None:
    (tmp_path / "报告").touch()
    asked: list[ApprovalRequest] = []

    def approve(request: ApprovalRequest) -> bool:
        asked.append(request)
        return True

    run = await arun_plan(plan(), tools=tools_for(tmp_path), approver=CallbackApprover(approve, by="ana"), offline=True)
    assert run.status is PlanStatus.COMPLETED
    assert [request.step_id for request in asked] == ["make"]
    assert "报告-2" in asked[0].text
    assert (tmp_path / "报告-2").exists()


async def test_a_rejected_step_is_skipped_and_its_reason_names_who_rejected_it(tmp_path: Path) -> None:
    run = await arun_plan(plan(), tools=tools_for(tmp_path), approver=CallbackApprover(lambda _: "reject", by="bo"), offline=True)
    assert (run.status, run.reason) == (PlanStatus.CANCELLED, "rejected")
    assert [step.status for step in run.steps] == [StepStatus.COMPLETED, StepStatus.SKIPPED]
    assert "bo" in (run.steps[1].reason or "")
    assert not (tmp_path / "报告").exists()


async def test_an_attempt_records_the_approval_that_allowed_it(tmp_path: Path) -> None:
    from plan_adapter import PlanStore

    async with PlanStore(f"sqlite:///{tmp_path / 'plans.db'}") as store:
        approver = CallbackApprover(lambda _: True, by="ana")
        run = await arun_plan(plan(), tools=tools_for(tmp_path), approver=approver, store=store, offline=True)
        attempt = (await store.attempts(run.id))[-1]
        approval: Approval = next(row for row in await store.approvals(run.id) if row.step_id == "make")
        assert (attempt.approval_id, attempt.approval_digest) == (approval.id, approval.approval_digest)
        assert (approval.by, approval.decision) == ("ana", "approve")
