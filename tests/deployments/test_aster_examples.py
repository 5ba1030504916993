"""Tests that every example plan of Aster's guide and reference runs unchanged, as the guide says."""

from collections.abc import Callable
from pathlib import Path

import pytest

from plan_adapter import ExecutionPlan, PlanRun, PlanStore, ToolRegistry, approve, run_plan
from plan_adapter.errors import ToolError
from plan_adapter.gates import Approval
from plan_adapter.runs import Hooks, aresume_run, arun_plan
from plan_adapter.store import PlanStatus, RunContext, StepStatus
from plan_adapter.tools import Tool, ToolContext
from tests import seed_plans
from tests.seed_plans import SEED_PLANS, SeedPlan


class Workshop:
    """The tools of the examples. Each records its calls; those in `broken` fail."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.broken: set[str] = set()

    def tools(self, names: list[str]) -> ToolRegistry:
        return ToolRegistry([self._tool(name) for name in names])

    def _tool(self, name: str) -> Tool[..., str]:
        def act(
            context: ToolContext,
            *,
            repository: str = "",
            branch: str = "",
            test_suite: str = "",
            environment: str = "",
            url: str = "",
            source: str = "",
            command: str = "",
        ) -> str:
            self.calls.append(name)
            if name in self.broken:
                raise ToolError(f"{name} is broken")
            return context.step_id

        return Tool(act, name=name)

    def approval_of(self, plan: ExecutionPlan, tools: ToolRegistry) -> Approval | None:
        """Return the approval that the examples give, if the plan requires one."""
        return approve(plan, tools=tools, by="user@example.com") if plan.options.require_approval else None


@pytest.fixture
def workshop() -> Workshop:
    return Workshop()


@pytest.fixture
def store(tmp_path: Path) -> PlanStore:
    return PlanStore(f"sqlite:///{tmp_path / 'plans.db'}")


async def run_example(example: SeedPlan, workshop: Workshop, store: PlanStore) -> PlanRun:
    plan, names = example
    for step in plan.steps:
        step.retry_delay_ms = min(step.retry_delay_ms, 1)  # the examples wait for seconds
    tools = workshop.tools(names)
    return await arun_plan(plan, tools=tools, approval=workshop.approval_of(plan, tools), store=store, offline=True)


@pytest.mark.parametrize("build", SEED_PLANS, ids=lambda build: build.__name__)
async def test_an_example_completes_with_every_step_after_its_dependencies(
    build: Callable[[], SeedPlan], workshop: Workshop, store: PlanStore
) -> None:
    plan, names = build()

    run = await run_example((plan, names), workshop, store)

    assert run.status is PlanStatus.COMPLETED
    assert [step.description for step in run.steps] == [step.description for step in plan.steps]
    assert sorted(workshop.calls) == sorted(step.tool_name or "" for step in plan.steps)
    ended = {step.id: step.completed_at for step in run.steps}
    for step in run.steps:
        assert step.started_at is not None
        assert all(at is not None and at <= step.started_at for at in (ended[other] for other in step.depends_on))


async def test_a_failed_test_keeps_the_pipeline_from_deploying(workshop: Workshop, store: PlanStore) -> None:
    workshop.broken = {"npm_test"}

    run = await run_example(seed_plans.ci_cd(), workshop, store)

    assert run.status is PlanStatus.PARTIAL
    assert "deploy" not in workshop.calls
    ends = {step.tool_name: (step.status, step.error) for step in run.steps}
    assert ends["npm_test"] == (StepStatus.FAILED, "npm_test is broken")
    assert ends["deploy"] == (StepStatus.SKIPPED, None)


async def test_the_pipeline_resumes_from_the_point_of_failure(workshop: Workshop, store: PlanStore) -> None:
    workshop.broken = {"npm_test"}
    example = seed_plans.ci_cd()
    run = await run_example(example, workshop, store)
    ran = set(workshop.calls) - {"npm_test"}
    workshop.broken = set()
    workshop.calls.clear()

    resumed = await aresume_run(run.id, tools=workshop.tools(example[1]), store=store, offline=True)

    assert resumed.status is PlanStatus.COMPLETED
    assert workshop.calls[-2:] == ["npm_test", "deploy"]
    assert not ran & set(workshop.calls)


async def test_continuing_on_error_ends_partial_and_names_the_failed_steps(workshop: Workshop, store: PlanStore) -> None:
    example = seed_plans.continuing_on_error()
    workshop.broken = {example[1][0]}

    run = await run_example(example, workshop, store)

    assert run.status is PlanStatus.PARTIAL
    failures = [f"步骤 {step.index + 1} 失败: {step.error}" for step in run.steps if step.status is StepStatus.FAILED]
    assert failures == [f"步骤 1 失败: {example[1][0]} is broken"]


async def test_a_failed_call_of_an_external_service_is_retried(workshop: Workshop, store: PlanStore) -> None:
    workshop.broken = {"api_call"}

    run = await run_example(seed_plans.retries(), workshop, store)

    assert workshop.calls == ["api_call"] * 4
    assert [(step.retry_count, step.max_retries) for step in run.steps] == [(3, 3)]


def test_the_program_of_the_reference_completes(workshop: Workshop, store: PlanStore) -> None:
    plan, names = seed_plans.reference_program()
    tools = workshop.tools(names)
    done: list[str] = []

    run = run_plan(
        plan,
        tools=tools,
        approval=workshop.approval_of(plan, tools),
        hooks=Hooks(on_step_complete=lambda _, step: done.append(f"完成: {step.description}")),
        context=RunContext(agent_id="agent-123"),
        store=store,
        offline=True,
    )

    summary = run.summary()
    assert f"完成: {summary.completed}/{summary.total_steps} 步骤" == "完成: 3/3 步骤"
    assert done == ["完成: 检出代码", "完成: 安装依赖", "完成: 运行测试"]
    assert (run.approved_by, run.agent_id) == ("user@example.com", "agent-123")
