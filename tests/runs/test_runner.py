"""Tests of `run_plan`, `aresume_run` and `acancel_run`: context, inputs, cancellation, approval and records."""

import asyncio
import contextvars
from typing import Any

import pytest

from plan_adapter import ExecutionPlan, PlanStore, ToolRegistry, approve, compile_plan, run_plan, tool
from plan_adapter.errors import InvalidPlanError, NoServerError, NotApprovedError, RunConflictError, StoreError
from plan_adapter.gates.approval import answer_to
from plan_adapter.model.approvals import Approval, ApprovalRequest
from plan_adapter.model.status import RunReason
from plan_adapter.plans import Input, validate
from plan_adapter.runs import Hooks, acancel_run, aresume_run, arun_plan
from plan_adapter.store import PlanStatus, RunContext, StepStatus
from plan_adapter.tools import ToolContext

caller = contextvars.ContextVar("caller", default="nobody")


@tool(effect="read")
def echo(text: str) -> str:
    """Return the text."""
    return text


@tool(effect="read")
def who(context: ToolContext) -> dict[str, Any]:
    """Return what the tool knows of the caller."""
    return {"caller": caller.get(), "agent": context.agent_id, "tenant": context.tenant_id}


tools = ToolRegistry([echo, who])


def free_plan(**fields: Any) -> ExecutionPlan:
    plan = ExecutionPlan(description="A plan of a test", **fields)
    plan.options.require_approval = False
    return plan


def test_a_tool_in_a_thread_sees_the_context_of_the_caller_and_of_the_run() -> None:
    caller.set("ana")
    plan = free_plan()
    plan.add_step("who", "Who")
    run = run_plan(plan, tools=tools, context=RunContext(agent_id="a-1", tenant_id="t-1"), offline=True)
    assert run.steps[0].result == {"caller": "ana", "agent": "a-1", "tenant": "t-1"}
    assert (run.agent_id, run.tenant_id) == ("a-1", "t-1")


async def test_run_plan_inside_an_event_loop_names_arun_plan() -> None:
    with pytest.raises(RuntimeError, match="arun_plan"):
        run_plan(free_plan(), tools=tools, offline=True)


async def test_a_tenant_sees_only_its_own_runs() -> None:
    plan = free_plan()
    plan.add_step("echo", "Echo", {"text": "x"})
    async with PlanStore(tenant_id="t-1") as one, PlanStore(tenant_id="t-2") as two:
        run = await arun_plan(plan, tools=tools, store=one, offline=True)
        assert run.tenant_id == "t-1"
        assert [row.id for row in await one.runs()] == [run.id]
        assert await two.runs() == []


async def test_all_input_problems_are_reported_before_anything_is_recorded(store: PlanStore) -> None:
    plan = free_plan(inputs={"host": Input(type="string", pattern="^web-[0-9]+$"), "count": Input(type="integer")})
    plan.add_step("echo", "Echo", {"text": "${{ inputs.host }}"})
    with pytest.raises(InvalidPlanError) as refused:
        await arun_plan(plan, tools=tools, inputs={"host": "db-1", "cuont": 3}, store=store, offline=True)
    assert sorted(problem.code for problem in refused.value.problems) == ["bad-input", "missing-input", "unknown-input"]
    assert await store.runs() == []


async def test_a_run_cancelled_from_elsewhere_ends_with_the_reason(store: PlanStore) -> None:
    begun = asyncio.Event()

    @tool(effect="read")
    async def hang() -> None:
        """Hang."""
        begun.set()
        await asyncio.Event().wait()

    plan = free_plan()
    plan.add_step("hang", "Hang", id="hang")
    plan.add_step("echo", "Echo", {"text": "x"}, id="echo", depends_on=["hang"])
    running = asyncio.create_task(arun_plan(plan, tools=ToolRegistry([hang, echo]), store=store, offline=True))
    await begun.wait()
    run_id = (await store.runs())[0].id
    asked = await acancel_run(run_id, reason="用户取消", store=store)
    assert asked.status is PlanStatus.EXECUTING
    run = await running
    assert (run.status, run.reason, run.message) == (PlanStatus.CANCELLED, RunReason.CANCELLED, "用户取消")
    assert run.step("echo").reason == "用户取消"
    with pytest.raises(RunConflictError, match="has ended"):
        await acancel_run(run_id, store=store)


async def test_a_cancelled_run_can_be_resumed(store: PlanStore) -> None:
    holding = True

    @tool(effect="read")
    async def hold() -> str:
        """Hang at first."""
        begun.set()
        await (asyncio.Event().wait() if holding else asyncio.sleep(0))
        return "held"

    begun = asyncio.Event()
    plan = free_plan()
    plan.add_step("hold", "Hold", id="hold")
    running = asyncio.create_task(arun_plan(plan, tools=ToolRegistry([hold]), store=store, offline=True))
    await begun.wait()
    run_id = (await store.runs())[0].id
    await acancel_run(run_id, reason="later", store=store)
    assert (await running).status is PlanStatus.CANCELLED
    holding = False
    run = await aresume_run(run_id, tools=ToolRegistry([hold]), store=store, offline=True)
    assert (run.status, run.step("hold").result) == (PlanStatus.COMPLETED, "held")


async def test_resuming_does_not_approve_a_rejected_run(store: PlanStore) -> None:
    class Sceptic:
        async def ask(self, request: ApprovalRequest) -> Approval:
            return answer_to(request, decision="reject", by="bo", known_by="os_user", note="not today")

    plan = ExecutionPlan(description="Needs an approval")
    plan.add_step("echo", "Echo", {"text": "x"})
    run = await arun_plan(plan, tools=tools, approver=Sceptic(), store=store, offline=True)
    assert (run.status, run.rejection_note) == (PlanStatus.CANCELLED, "not today")
    with pytest.raises(RunConflictError, match="rejected"):
        await aresume_run(run.id, tools=tools, store=store, offline=True)


async def test_a_resume_does_not_call_a_tool_that_changed_since_the_approval(store: PlanStore) -> None:
    @tool(effect="read", name="echo")
    def broken(text: str) -> str:
        """Fail."""
        raise ValueError("no")

    @tool(effect="write", name="echo")
    def changed(text: str) -> str:
        """Return the text."""
        return text

    plan = ExecutionPlan(description="Needs an approval")
    plan.add_step("echo", "Echo", {"text": "x"})
    before = ToolRegistry([broken])
    run = await arun_plan(plan, tools=before, store=store, offline=True, approval=approve(plan, tools=before, by="ana"))
    with pytest.raises(NotApprovedError, match=r"have changed since it was approved: `echo` \(effect\)"):
        await aresume_run(run.id, tools=ToolRegistry([changed]), store=store, offline=True)
    assert (await aresume_run(run.id, tools=tools, store=store, offline=True)).status is PlanStatus.COMPLETED


async def test_stored_step_runs_equal_the_returned_ones(store: PlanStore) -> None:
    plan = free_plan(outputs={"all": "${{ steps.each.result }}", "text": "n=${{ steps.echo.result }}"})
    plan.add_step("echo", "回声", {"text": "甲"}, id="echo")
    plan.add_step("echo", "Each", {"text": "${{ item }}"}, id="each", for_each="${{ ['乙', '丙'] }}", depends_on=["echo"])
    plan.add_step("echo", "Never", {"text": "x"}, id="never", when="${{ false }}", depends_on=["each"])
    run = await arun_plan(plan, tools=tools, store=store, offline=True)
    kept = await store.run(run.id[:30])
    assert kept.outputs == run.outputs == {"all": ["乙", "丙"], "text": "n=甲"}
    assert [(s.status, s.result, s.reason) for s in kept.steps] == [(s.status, s.result, s.reason) for s in run.steps]
    assert kept.step("never").status is StepStatus.SKIPPED


async def test_an_output_that_cannot_be_computed_is_null_and_the_message_says_why(store: PlanStore) -> None:
    plan = free_plan(outputs={"x": "${{ int(steps.echo.result) }}"})
    plan.add_step("echo", "Echo", {"text": "x"}, id="echo")
    run = await arun_plan(plan, tools=tools, store=store, offline=True)
    assert (run.status, run.outputs) == (PlanStatus.COMPLETED, {"x": None})
    assert run.message is not None
    assert run.message.startswith("output `x`: ")


async def test_a_run_without_a_server_is_refused_and_the_error_names_offline(store: PlanStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PLAN_ADAPTER_LOCAL_SERVER", "never")
    plan = free_plan()
    plan.add_step("echo", "Echo", {"text": "x"})
    with pytest.raises(NoServerError, match="offline"):
        await arun_plan(plan, tools=tools, store=store)
    assert await store.runs() == []


async def test_a_store_that_cannot_be_opened_raises_a_store_error_before_any_call(tmp_path: Any) -> None:
    called: list[str] = []
    (tmp_path / "folder").mkdir()
    plan = free_plan()
    plan.add_step("echo", "Echo", {"text": "x"})
    with pytest.raises(StoreError):
        await arun_plan(
            plan,
            tools=tools,
            hooks=Hooks(on_step_start=lambda run, step: called.append(step.id)),
            store=PlanStore(f"sqlite:///{tmp_path / 'folder'}"),
            offline=True,
        )
    assert called == []


async def test_settings_can_require_an_approval_for_every_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PLAN_ADAPTER_ALLOW_UNAPPROVED", "false")
    plan = free_plan()
    plan.add_step("echo", "Echo", {"text": "x"})
    with pytest.raises(NotApprovedError):
        await arun_plan(plan, tools=tools, offline=True)


async def test_each_flow_run_is_one_run_however_it_is_started(prefect_server: Any, store: PlanStore) -> None:
    plan = free_plan(name="一个 计划")
    plan.add_step("echo", "Echo", {"text": "x"}, id="echo")
    run = await arun_plan(plan, tools=tools, store=store)
    assert run.flow_run_id is not None
    again = await compile_plan(validate(plan, tools), store=store)()
    assert again.flow_run_id is not None
    assert {row.flow_run_id for row in await store.runs()} == {run.flow_run_id, again.flow_run_id}


async def test_cancelling_the_flow_run_in_prefect_ends_the_run_with_its_reason(prefect_server: Any, store: PlanStore) -> None:
    from prefect import get_client
    from prefect.states import Cancelling

    begun = asyncio.Event()

    @tool(effect="read")
    async def hang() -> None:
        """Hang."""
        begun.set()
        await asyncio.Event().wait()

    plan = free_plan()
    plan.add_step("hang", "Hang", id="hang")
    running = asyncio.create_task(arun_plan(plan, tools=ToolRegistry([hang]), store=store))
    await begun.wait()
    flow_run_id = (await store.runs())[0].flow_run_id
    assert flow_run_id is not None
    async with get_client() as client:
        await client.set_flow_run_state(flow_run_id, Cancelling(message="停"))
        run = await running
        state = (await client.read_flow_run(flow_run_id)).state
    assert (run.status, run.message) == (PlanStatus.CANCELLED, "停")
    assert state is not None
    assert (state.type, state.name) == ("CANCELLED", "Cancelled")
    assert "停" in (state.message or "")
