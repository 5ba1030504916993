"""Every example plan of Aster's guide and reference, its text unchanged, runs as the guide says."""

from collections.abc import Callable
from pathlib import Path

import pytest

from plan_adapter import (
    ExecutionPlan,
    Hooks,
    PlanRun,
    PlanStatus,
    PlanStore,
    RunContext,
    StepStatus,
    Tool,
    ToolContext,
    ToolError,
    ToolRegistry,
    approve,
    arun_plan,
    aresume_run,
    run_plan,
)


class Workshop:
    """The tools that the examples name. Each notes its call; those in `broken` fail."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.broken: set[str] = set()

    def tools(self, *names: str) -> ToolRegistry:
        return ToolRegistry([Tool(self._parameters_of(name), name=name) for name in names])

    def _parameters_of(self, name: str) -> Callable[..., str]:
        def act(context: ToolContext) -> str:
            return self._act(name, context)

        def git_pull(context: ToolContext, repository: str = "", branch: str = "main") -> str:
            return self._act(name, context)

        def run_tests(context: ToolContext, test_suite: str) -> str:
            return self._act(name, context)

        def deploy(context: ToolContext, environment: str = "production") -> str:
            return self._act(name, context)

        def git_checkout(context: ToolContext, branch: str) -> str:
            return self._act(name, context)

        def bash(context: ToolContext, command: str) -> str:
            return self._act(name, context)

        def api_call(context: ToolContext, url: str) -> str:
            return self._act(name, context)

        def extract_data(context: ToolContext, source: str) -> str:
            return self._act(name, context)

        special = (git_pull, run_tests, deploy, git_checkout, bash, api_call, extract_data)
        return next((function for function in special if function.__name__ == name), act)

    def _act(self, name: str, context: ToolContext) -> str:
        self.calls.append(name)
        if name in self.broken:
            raise ToolError(f"{name} is broken")
        return name

    def called_before(self, first: str, second: str) -> bool:
        return self.calls.index(first) < self.calls.index(second)


@pytest.fixture
def workshop() -> Workshop:
    return Workshop()


@pytest.fixture
def store(tmp_path: Path) -> PlanStore:
    return PlanStore(f"sqlite:///{tmp_path / 'plans.db'}")


async def perform(plan: ExecutionPlan, tools: ToolRegistry, store: PlanStore, hooks: Hooks | None = None) -> PlanRun:
    """Approve as the examples do, and run offline."""
    approval = approve(plan, tools=tools, by="user@example.com") if plan.options.require_approval else None
    context = RunContext(agent_id="agent-123")
    return await arun_plan(plan, tools=tools, approval=approval, store=store, hooks=hooks, context=context, offline=True)


async def test_deploying_an_application_to_production(workshop: Workshop, store: PlanStore) -> None:
    plan = ExecutionPlan(description="部署应用到生产环境")
    plan.add_step("git_pull", "拉取最新代码", {"repository": "https://github.com/example/app", "branch": "main"})
    step2 = plan.add_step("run_tests", "运行测试", {"test_suite": "integration"})
    step3 = plan.add_step("deploy", "部署应用", {"environment": "production"})
    step2.depends_on = [plan.steps[0].id]
    step3.depends_on = [step2.id]
    plan.options.require_approval = True
    plan.options.stop_on_error = True

    run = await perform(plan, workshop.tools("git_pull", "run_tests", "deploy"), store)

    assert run.status is PlanStatus.COMPLETED
    assert run.description == "部署应用到生产环境"
    assert [step.description for step in run.steps] == ["拉取最新代码", "运行测试", "部署应用"]
    assert workshop.calls == ["git_pull", "run_tests", "deploy"]
    assert (run.approved_by, run.agent_id) == ("user@example.com", "agent-123")


async def test_building_and_testing_side_by_side(workshop: Workshop, store: PlanStore) -> None:
    plan = ExecutionPlan(description="并行构建和测试")
    plan.add_step("build_frontend", "构建前端")
    plan.add_step("build_backend", "构建后端")
    plan.add_step("run_linter", "运行代码检查")
    plan.options.allow_parallel = True
    plan.options.max_parallel_steps = 3

    run = await perform(plan, workshop.tools("build_frontend", "build_backend", "run_linter"), store)

    assert run.summary().completed == 3
    assert sorted(workshop.calls) == ["build_backend", "build_frontend", "run_linter"]


async def test_dependencies_order_the_steps_of_a_pipeline(workshop: Workshop, store: PlanStore) -> None:
    plan = ExecutionPlan(description="CI/CD 流程")
    step1 = plan.add_step("install", "安装依赖")
    step2 = plan.add_step("build", "构建项目", depends_on=[step1.id])
    step3 = plan.add_step("lint", "代码检查", depends_on=[step1.id])
    step4 = plan.add_step("test", "运行测试", depends_on=[step2.id])
    plan.add_step("deploy", "部署", depends_on=[step2.id, step4.id])
    plan.options.allow_parallel = True

    run = await perform(plan, workshop.tools("install", "build", "lint", "test", "deploy"), store)

    assert run.status is PlanStatus.COMPLETED
    assert workshop.calls[0] == "install"
    assert workshop.called_before("build", "test")
    assert workshop.called_before("test", "deploy")
    assert run.step(step3.id).status is StepStatus.COMPLETED


def ci_cd_scenario() -> ExecutionPlan:
    plan = ExecutionPlan(description="CI/CD 流程")
    # 阶段 1: 准备
    checkout = plan.add_step("git_checkout", "检出代码", {"branch": "main"})
    # 阶段 2: 构建和检查（并行）
    install = plan.add_step("npm_install", "安装依赖", depends_on=[checkout.id])
    build = plan.add_step("npm_build", "构建项目", depends_on=[install.id])
    lint = plan.add_step("npm_lint", "代码检查", depends_on=[install.id])
    # 阶段 3: 测试
    test = plan.add_step("npm_test", "运行测试", depends_on=[build.id])
    # 阶段 4: 部署
    plan.add_step("deploy", "部署到生产", depends_on=[build.id, lint.id, test.id])
    plan.options.allow_parallel = True
    plan.options.require_approval = True
    plan.options.stop_on_error = True
    return plan


CI_CD_TOOLS = ("git_checkout", "npm_install", "npm_build", "npm_lint", "npm_test", "deploy")


async def test_the_ci_cd_scenario(workshop: Workshop, store: PlanStore) -> None:
    run = await perform(ci_cd_scenario(), workshop.tools(*CI_CD_TOOLS), store)

    assert run.status is PlanStatus.COMPLETED
    assert workshop.calls[:2] == ["git_checkout", "npm_install"]
    assert workshop.called_before("npm_build", "npm_test")
    assert workshop.calls[-1] == "deploy"


async def test_the_ci_cd_scenario_deploys_nothing_after_a_failed_test(workshop: Workshop, store: PlanStore) -> None:
    workshop.broken = {"npm_test"}

    run = await perform(ci_cd_scenario(), workshop.tools(*CI_CD_TOOLS), store)

    assert run.status is PlanStatus.PARTIAL
    assert "deploy" not in workshop.calls
    assert [step.status for step in run.steps if step.tool_name in ("npm_test", "deploy")] == [StepStatus.FAILED, StepStatus.SKIPPED]
    assert [step.error for step in run.steps if step.status is StepStatus.FAILED] == ["npm_test is broken"]


async def test_going_on_from_the_point_of_failure(workshop: Workshop, store: PlanStore) -> None:
    workshop.broken = {"npm_test"}
    tools = workshop.tools(*CI_CD_TOOLS)
    run = await perform(ci_cd_scenario(), tools, store)
    workshop.broken = set()
    workshop.calls.clear()

    resumed = await aresume_run(run.id, tools=tools, store=store, offline=True)

    assert resumed.status is PlanStatus.COMPLETED
    assert [name for name in workshop.calls if name != "npm_lint"] == ["npm_test", "deploy"]  # lint may have been stopped the first time


async def test_the_data_pipeline_scenario(workshop: Workshop, store: PlanStore) -> None:
    plan = ExecutionPlan(description="数据处理流水线")
    # 提取
    extract = plan.add_step("extract_data", "从数据源提取数据", {"source": "database"})
    # 转换（并行）
    transform1 = plan.add_step("transform_users", "转换用户数据", depends_on=[extract.id])
    transform2 = plan.add_step("transform_orders", "转换订单数据", depends_on=[extract.id])
    # 加载
    load = plan.add_step("load_data", "加载到目标系统", depends_on=[transform1.id, transform2.id])
    # 验证
    plan.add_step("validate_data", "验证数据完整性", depends_on=[load.id])
    plan.options.allow_parallel = True
    plan.options.continue_on_error = False

    run = await perform(plan, workshop.tools("extract_data", "transform_users", "transform_orders", "load_data", "validate_data"), store)

    assert run.status is PlanStatus.COMPLETED
    assert workshop.calls[0] == "extract_data"
    assert sorted(workshop.calls[1:3]) == ["transform_orders", "transform_users"]
    assert workshop.calls[3:] == ["load_data", "validate_data"]


async def test_continuing_on_error_ends_partial_and_tells_which_steps_failed(workshop: Workshop, store: PlanStore) -> None:
    plan = ExecutionPlan(description="并行构建和测试")
    plan.add_step("build_frontend", "构建前端")
    plan.add_step("build_backend", "构建后端")
    plan.options.stop_on_error = False
    plan.options.continue_on_error = True
    workshop.broken = {"build_frontend"}

    run = await perform(plan, workshop.tools("build_frontend", "build_backend"), store)

    assert run.status is PlanStatus.PARTIAL
    failures = [f"步骤 {step.index + 1} 失败: {step.error}" for step in run.steps if step.status is StepStatus.FAILED]
    assert failures == ["步骤 1 失败: build_frontend is broken"]
    assert workshop.calls == ["build_frontend", "build_backend"]


async def test_a_call_of_an_external_service_is_tried_again(workshop: Workshop, store: PlanStore) -> None:
    plan = ExecutionPlan(description="调用外部 API")
    step = plan.add_step("api_call", "调用外部 API", {"url": "https://api.example.com/data"})
    step.max_retries = 3
    step.retry_delay_ms = 1
    workshop.broken = {"api_call"}

    run = await perform(plan, workshop.tools("api_call"), store)

    assert workshop.calls == ["api_call"] * 4
    assert (run.step(step.id).retry_count, run.step(step.id).max_retries) == (3, 3)


async def test_steps_of_one_purpose_each(workshop: Workshop, store: PlanStore) -> None:
    plan = ExecutionPlan(description="部署应用")
    for tool_name, description in (
        ("validate_input", "验证输入参数"),
        ("backup_database", "备份数据库"),
        ("run_migration", "运行数据库迁移"),
        ("deploy_code", "部署代码"),
        ("verify_deployment", "验证部署"),
    ):
        plan.add_step(tool_name, description)

    run = await perform(plan, workshop.tools(*(step.tool_name or "" for step in plan.steps)), store)

    assert run.summary().progress == 100
    assert workshop.calls == ["validate_input", "backup_database", "run_migration", "deploy_code", "verify_deployment"]


async def test_explicit_dependencies_of_build_test_and_deploy(workshop: Workshop, store: PlanStore) -> None:
    plan = ExecutionPlan(description="部署应用")
    build = plan.add_step("build", "构建")
    test = plan.add_step("test", "测试")
    test.depends_on = [build.id]
    deploy = plan.add_step("deploy", "部署")
    deploy.depends_on = [build.id, test.id]

    run = await perform(plan, workshop.tools("build", "test", "deploy"), store)

    assert run.step(deploy.id).depends_on == (build.id, test.id)
    assert workshop.calls == ["build", "test", "deploy"]


@pytest.mark.parametrize(
    ("tool_name", "description"),
    [
        ("deploy_everything", "部署所有内容"),
        ("git_pull", "从 main 分支拉取最新代码"),
        ("npm_install", "安装 Node.js 依赖包"),
        ("step1", "执行操作"),
        ("validate", "验证配置"),
        ("build", "编译大型项目"),
        ("process_large_file", "处理大文件"),
    ],
)
async def test_a_plan_of_one_step(workshop: Workshop, store: PlanStore, tool_name: str, description: str) -> None:
    plan = ExecutionPlan(description=description)
    plan.add_step(tool_name, description)
    plan.options.step_timeout_ms = 30_000
    plan.options.total_timeout_ms = 300_000

    run = await perform(plan, workshop.tools(tool_name), store)

    assert [(step.description, step.status) for step in run.steps] == [(description, StepStatus.COMPLETED)]


async def test_retries_as_each_operation_bears_them(workshop: Workshop, store: PlanStore) -> None:
    plan = ExecutionPlan(description="部署应用")
    api = plan.add_step("fetch_data", "获取远程数据", max_retries=3, retry_delay_ms=1)  # 网络请求应该重试
    deploy = plan.add_step("deploy", "部署应用", max_retries=2)  # 幂等操作可以重试
    payment = plan.add_step("process_payment", "处理支付", max_retries=0)  # 不重试
    plan.options.continue_on_error = True
    workshop.broken = {"fetch_data", "deploy", "process_payment"}

    run = await perform(plan, workshop.tools("fetch_data", "deploy", "process_payment"), store)

    assert [run.step(step.id).attempts for step in (api, deploy, payment)] == [4, 3, 1]
    assert run.status is PlanStatus.FAILED


async def test_processing_several_kinds_of_media(workshop: Workshop, store: PlanStore) -> None:
    plan = ExecutionPlan(description="多任务处理")
    plan.add_step("process_images", "处理图片")
    plan.add_step("process_videos", "处理视频")
    plan.add_step("generate_thumbnails", "生成缩略图")
    plan.options.allow_parallel = True
    plan.options.max_parallel_steps = 3

    run = await perform(plan, workshop.tools("process_images", "process_videos", "generate_thumbnails"), store)

    assert run.summary().completed == 3


async def test_a_shell_command_as_the_reference_adds_it(store: PlanStore) -> None:
    plan = ExecutionPlan(description="部署应用到生产环境")
    step = plan.add_step("bash", "运行测试", {"command": "printf '测试通过'"})

    run = await perform(plan, ToolRegistry.with_builtins(), store)

    assert run.step(step.id).result == {"exit_code": 0, "stdout": "测试通过", "stderr": ""}


def test_the_whole_program_of_the_reference(workshop: Workshop, store: PlanStore) -> None:
    plan = ExecutionPlan(description="CI/CD 流程")
    step1 = plan.add_step("git_checkout", "检出代码", {"branch": "main"})
    step2 = plan.add_step("npm_install", "安装依赖", depends_on=[step1.id])
    plan.add_step("npm_test", "运行测试", depends_on=[step2.id])
    plan.options.require_approval = True
    plan.options.allow_parallel = True
    tools = workshop.tools("git_checkout", "npm_install", "npm_test")
    done: list[str] = []

    run = run_plan(
        plan,
        tools=tools,
        approval=approve(plan, tools=tools, by="user@example.com"),
        hooks=Hooks(on_step_complete=lambda _, step: done.append(f"完成: {step.description}")),
        context=RunContext(agent_id="agent-123"),
        store=store,
        offline=True,
    )

    summary = run.summary()
    assert f"完成: {summary.completed}/{summary.total_steps} 步骤" == "完成: 3/3 步骤"
    assert done == ["完成: 检出代码", "完成: 安装依赖", "完成: 运行测试"]
