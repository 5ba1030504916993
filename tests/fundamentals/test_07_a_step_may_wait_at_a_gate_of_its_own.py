"""A step may wait at a gate of its own: what is approved there is this one call, with its parameters as they are then."""

from pathlib import Path

from plan_adapter import (
    Approval,
    ApprovalRequest,
    CallbackApprover,
    ExecutionPlan,
    PlanStatus,
    StepStatus,
    ToolRegistry,
    arun_plan,
    tool,
)
from plan_adapter.options import ApprovalPolicy


def world(folder: Path) -> ToolRegistry:
    """Return tools that look at and write into `folder`."""

    @tool(effect="read")
    def next_free(name: str) -> str:
        """Return a name that no file has yet."""
        return name if not (folder / name).exists() else f"{name}-2"

    @tool(effect="write")
    def make(name: str) -> str:
        """Make a file."""
        (folder / name).touch()
        return name

    return ToolRegistry([next_free, make])


def plan() -> ExecutionPlan:
    """Return a plan whose every write waits at a gate of its own."""
    plan = ExecutionPlan(description="Make a file", approval=ApprovalPolicy(effects=["write"]))
    plan.options.require_approval = False
    plan.add_step("next_free", "Find a name", {"name": "报告"}, id="find")
    plan.add_step("make", "Make it", {"name": "${{ steps.find.result }}"}, id="make")
    return plan


async def test_the_approver_sees_the_call_as_it_will_be_made(tmp_path: Path) -> None:
    (tmp_path / "报告").touch()
    asked: list[ApprovalRequest] = []

    def yes(request: ApprovalRequest) -> bool:
        asked.append(request)
        return True

    run = await arun_plan(plan(), tools=world(tmp_path), approver=CallbackApprover(yes, by="ana"), offline=True)
    assert run.status is PlanStatus.COMPLETED
    assert [request.step_id for request in asked] == ["make"]
    assert "报告-2" in asked[0].text
    assert (tmp_path / "报告-2").exists()


async def test_a_rejection_calls_nothing_and_says_who_and_why(tmp_path: Path) -> None:
    run = await arun_plan(plan(), tools=world(tmp_path), approver=CallbackApprover(lambda _: "reject", by="bo"), offline=True)
    assert (run.status, run.reason) == (PlanStatus.CANCELLED, "rejected")
    assert [step.status for step in run.steps] == [StepStatus.COMPLETED, StepStatus.SKIPPED]
    assert "bo" in (run.steps[1].reason or "")
    assert not (tmp_path / "报告").exists()


async def test_what_was_approved_is_what_was_called_and_the_record_names_it(tmp_path: Path) -> None:
    from plan_adapter import PlanStore

    async with PlanStore(f"sqlite:///{tmp_path / 'plans.db'}") as store:
        approver = CallbackApprover(lambda _: True, by="ana")
        run = await arun_plan(plan(), tools=world(tmp_path), approver=approver, store=store, offline=True)
        attempt = (await store.attempts(run.id))[-1]
        approval: Approval = next(row for row in await store.approvals(run.id) if row.step_id == "make")
        assert (attempt.approval_id, attempt.approval_digest) == (approval.id, approval.approval_digest)
        assert (approval.by, approval.decision) == ("ana", "approve")
