"""A plan requires approval unless it opts out. An approval covers one plan, its inputs and its tools, and is used up by one run."""

import asyncio

import pytest

from plan_adapter import ExecutionPlan, ToolRegistry, approve, run_plan, tool
from plan_adapter.errors import NotApprovedError
from plan_adapter.gates import Approval, ApprovalRequest, reject

pushed: list[str] = []


@tool(effect="write")
def push(branch: str) -> None:
    """Push a branch."""
    pushed.append(branch)


def deploy_plan(branch: str = "main") -> ExecutionPlan:
    plan = ExecutionPlan(description="部署应用到生产环境")
    plan.add_step("push", "推送", {"branch": branch})
    return plan


tools = ToolRegistry([push])


@pytest.fixture(autouse=True)
def clear_pushed_branches() -> None:
    pushed.clear()


def test_a_plan_without_an_approval_does_not_run() -> None:
    with pytest.raises(NotApprovedError, match="requires an approval"):
        run_plan(deploy_plan(), tools=tools, offline=True)
    assert pushed == []


def test_an_approved_plan_runs_and_records_who_approved_it() -> None:
    run = run_plan(deploy_plan(), tools=tools, approval=approve(deploy_plan(), tools=tools, by="ana"), offline=True)
    assert (run.status, run.approved_by, run.is_approved) == ("completed", "ana", True)
    assert pushed == ["main"]


def test_an_approval_of_another_plan_is_refused() -> None:
    approval = approve(deploy_plan("main"), tools=tools, by="ana")
    with pytest.raises(NotApprovedError, match="covers other content"):
        run_plan(deploy_plan("develop"), tools=tools, approval=approval, offline=True)
    assert pushed == []


def test_an_approval_is_used_up_by_the_first_run() -> None:
    approval = approve(deploy_plan(), tools=tools, by="ana")
    run_plan(deploy_plan(), tools=tools, approval=approval, offline=True)
    with pytest.raises(NotApprovedError):
        run_plan(deploy_plan(), tools=tools, approval=approval, offline=True)
    assert pushed == ["main"]


def test_a_rejection_is_recorded_with_its_note() -> None:
    run = run_plan(deploy_plan(), tools=tools, approval=reject(deploy_plan(), tools=tools, by="bo", note="不符合安全要求"), offline=True)
    assert (run.status, run.reason, run.rejection_note) == ("cancelled", "rejected", "不符合安全要求")
    assert pushed == []


def test_a_run_is_cancelled_if_the_approver_does_not_answer_in_time() -> None:
    class SilentApprover:
        async def ask(self, request: ApprovalRequest) -> Approval:
            return await asyncio.get_running_loop().create_future()

    plan = deploy_plan()
    plan.options.approval_timeout_ms = 20
    run = run_plan(plan, tools=tools, approver=SilentApprover(), offline=True)
    assert (run.status, run.reason, run.message) == ("cancelled", "expired", "nobody answered within 20 ms")
    assert pushed == []
