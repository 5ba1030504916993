"""A plan requires approval unless it says otherwise; an approval binds to the plan, its inputs and its tools, and is used up once."""

import asyncio

import pytest

from plan_adapter import Approval, ApprovalRequest, ExecutionPlan, NotApprovedError, ToolRegistry, approve, reject, run_plan, tool

pushed: list[str] = []


@tool(effect="write")
def push(branch: str) -> None:
    """Push a branch."""
    pushed.append(branch)


def a_plan(branch: str = "main") -> ExecutionPlan:
    plan = ExecutionPlan(description="部署应用到生产环境")
    plan.add_step("push", "推送", {"branch": branch})
    return plan


tools = ToolRegistry([push])


@pytest.fixture(autouse=True)
def nothing_pushed() -> None:
    pushed.clear()


def test_without_an_approval_nothing_runs() -> None:
    with pytest.raises(NotApprovedError, match="requires an approval"):
        run_plan(a_plan(), tools=tools, offline=True)
    assert pushed == []


def test_with_one_it_runs_and_says_who_it_was() -> None:
    run = run_plan(a_plan(), tools=tools, approval=approve(a_plan(), tools=tools, by="ana"), offline=True)
    assert (run.status, run.approved_by, run.is_approved) == ("completed", "ana", True)
    assert pushed == ["main"]


def test_an_approval_of_other_content_is_refused() -> None:
    approval = approve(a_plan("main"), tools=tools, by="ana")
    with pytest.raises(NotApprovedError, match="covers other content"):
        run_plan(a_plan("develop"), tools=tools, approval=approval, offline=True)
    assert pushed == []


def test_an_approval_is_used_up_by_the_first_run() -> None:
    approval = approve(a_plan(), tools=tools, by="ana")
    run_plan(a_plan(), tools=tools, approval=approval, offline=True)
    with pytest.raises(NotApprovedError):
        run_plan(a_plan(), tools=tools, approval=approval, offline=True)
    assert pushed == ["main"]


def test_a_rejection_is_recorded_with_its_note() -> None:
    run = run_plan(a_plan(), tools=tools, approval=reject(a_plan(), tools=tools, by="bo", note="不符合安全要求"), offline=True)
    assert (run.status, run.reason, run.rejection_note) == ("cancelled", "rejected", "不符合安全要求")
    assert pushed == []


def test_an_approver_who_does_not_answer_in_time_has_not_approved() -> None:
    class Asleep:
        async def ask(self, request: ApprovalRequest) -> Approval:
            return await asyncio.get_running_loop().create_future()

    plan = a_plan()
    plan.options.approval_timeout_ms = 20
    run = run_plan(plan, tools=tools, approver=Asleep(), offline=True)
    assert (run.status, run.reason, run.message) == ("cancelled", "expired", "nobody answered within 20 ms")
    assert pushed == []
