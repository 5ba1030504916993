"""The example plans of Aster's guide and reference, with unchanged text and built as in the examples."""

from collections.abc import Callable
from typing import TypeAlias

from plan_adapter.model.plan import ExecutionPlan

SeedPlan: TypeAlias = tuple[ExecutionPlan, list[str]]
"""A plan and the names of the tools that it calls."""


def _with_tools(plan: ExecutionPlan) -> SeedPlan:
    return plan, list(dict.fromkeys(step.tool_name for step in plan.steps if step.tool_name))


def manual_plan() -> SeedPlan:
    """手动创建执行计划."""
    plan = ExecutionPlan(description="部署应用到生产环境")
    plan.add_step("git_pull", "拉取最新代码", {"repository": "https://github.com/example/app", "branch": "main"})
    step2 = plan.add_step("run_tests", "运行测试", {"test_suite": "integration"})
    step3 = plan.add_step("deploy", "部署应用", {"environment": "production"})
    step2.depends_on = [plan.steps[0].id]
    step3.depends_on = [step2.id]
    plan.options.require_approval = True
    plan.options.stop_on_error = True
    return _with_tools(plan)


def parallel_build() -> SeedPlan:
    """并行执行."""
    plan = ExecutionPlan(description="并行构建和测试")
    plan.add_step("build_frontend", "构建前端", None)
    plan.add_step("build_backend", "构建后端", None)
    plan.add_step("run_linter", "运行代码检查", None)
    plan.options.allow_parallel = True
    plan.options.max_parallel_steps = 3
    return _with_tools(plan)


def dependencies() -> SeedPlan:
    """依赖管理."""
    plan = ExecutionPlan(description="CI/CD 流程")
    step1 = plan.add_step("install", "安装依赖", None)
    step2 = plan.add_step("build", "构建项目", None)
    step2.depends_on = [step1.id]
    step3 = plan.add_step("lint", "代码检查", None)
    step3.depends_on = [step1.id]
    step4 = plan.add_step("test", "运行测试", None)
    step4.depends_on = [step2.id]
    step5 = plan.add_step("deploy", "部署", None)
    step5.depends_on = [step2.id, step4.id]
    plan.options.allow_parallel = True
    return _with_tools(plan)


def retries() -> SeedPlan:
    """重试机制."""
    plan = ExecutionPlan(description="调用外部 API")
    step = plan.add_step("api_call", "调用外部 API", {"url": "https://api.example.com/data"})
    step.max_retries = 3
    step.retry_delay_ms = 1000
    return _with_tools(plan)


def timeouts() -> SeedPlan:
    """超时控制: 单步超时：30秒, 总超时：5分钟."""
    plan, _ = manual_plan()
    plan.options.step_timeout_ms = 30000
    plan.options.total_timeout_ms = 300000
    return _with_tools(plan)


def approval() -> SeedPlan:
    """审批流程: 1分钟审批超时."""
    plan, _ = manual_plan()
    plan.options.require_approval = True
    plan.options.approval_timeout_ms = 60000
    return _with_tools(plan)


def continuing_on_error() -> SeedPlan:
    """错误处理, 策略 2: 继续执行其他步骤."""
    plan, _ = parallel_build()
    plan.options.stop_on_error = False
    plan.options.continue_on_error = True
    return _with_tools(plan)


def small_steps() -> SeedPlan:
    """合理分解步骤: 步骤职责单一."""
    plan = ExecutionPlan(description="部署应用")
    plan.add_step("validate_input", "验证输入参数")
    plan.add_step("backup_database", "备份数据库")
    plan.add_step("run_migration", "运行数据库迁移")
    plan.add_step("deploy_code", "部署代码")
    plan.add_step("verify_deployment", "验证部署")
    return _with_tools(plan)


def explicit_dependencies() -> SeedPlan:
    """明确依赖关系."""
    plan = ExecutionPlan(description="部署应用")
    build = plan.add_step("build", "构建", None)
    test = plan.add_step("test", "测试", None)
    test.depends_on = [build.id]
    deploy = plan.add_step("deploy", "部署", None)
    deploy.depends_on = [build.id, test.id]
    return _with_tools(plan)


def descriptive_names() -> SeedPlan:
    """使用描述性名称."""
    plan = ExecutionPlan(description="部署应用")
    plan.add_step("git_pull", "从 main 分支拉取最新代码")
    plan.add_step("npm_install", "安装 Node.js 依赖包")
    return _with_tools(plan)


def sensible_retries() -> SeedPlan:
    """合理配置重试: 非幂等操作不应重试."""
    plan = ExecutionPlan(description="部署应用")
    fetch = plan.add_step("fetch_data", "获取远程数据")
    fetch.max_retries = 3
    fetch.retry_delay_ms = 2000
    deploy = plan.add_step("deploy", "部署应用")
    deploy.max_retries = 2
    payment = plan.add_step("process_payment", "处理支付")
    payment.max_retries = 0
    return _with_tools(plan)


def sensible_timeouts() -> SeedPlan:
    """设置合理的超时: 快速操作 5秒, 耗时操作 5分钟."""
    plan = ExecutionPlan(description="编译大型项目")
    plan.add_step("validate", "验证配置", timeout_ms=5000)
    plan.add_step("build", "编译大型项目", timeout_ms=300000)
    return _with_tools(plan)


def media() -> SeedPlan:
    """利用并行执行."""
    plan = ExecutionPlan(description="多任务处理")
    plan.add_step("process_images", "处理图片", None)
    plan.add_step("process_videos", "处理视频", None)
    plan.add_step("generate_thumbnails", "生成缩略图", None)
    plan.options.allow_parallel = True
    plan.options.max_parallel_steps = 3
    return _with_tools(plan)


def ci_cd() -> SeedPlan:
    """示例场景: CI/CD 流程."""
    plan = ExecutionPlan(description="CI/CD 流程")
    # 阶段 1: 准备
    checkout = plan.add_step("git_checkout", "检出代码", {"branch": "main"})
    # 阶段 2: 构建和检查（并行）
    install = plan.add_step("npm_install", "安装依赖", None)
    install.depends_on = [checkout.id]
    build = plan.add_step("npm_build", "构建项目", None)
    build.depends_on = [install.id]
    lint = plan.add_step("npm_lint", "代码检查", None)
    lint.depends_on = [install.id]
    # 阶段 3: 测试
    test = plan.add_step("npm_test", "运行测试", None)
    test.depends_on = [build.id]
    # 阶段 4: 部署
    deploy = plan.add_step("deploy", "部署到生产", None)
    deploy.depends_on = [build.id, lint.id, test.id]
    plan.options.allow_parallel = True
    plan.options.require_approval = True
    plan.options.stop_on_error = True
    return _with_tools(plan)


def data_pipeline() -> SeedPlan:
    """示例场景: 数据处理流水线."""
    plan = ExecutionPlan(description="数据处理流水线")
    # 提取
    extract = plan.add_step("extract_data", "从数据源提取数据", {"source": "database"})
    # 转换（并行）
    transform1 = plan.add_step("transform_users", "转换用户数据", None)
    transform1.depends_on = [extract.id]
    transform2 = plan.add_step("transform_orders", "转换订单数据", None)
    transform2.depends_on = [extract.id]
    # 加载
    load = plan.add_step("load_data", "加载到目标系统", None)
    load.depends_on = [transform1.id, transform2.id]
    # 验证
    validate = plan.add_step("validate_data", "验证数据完整性", None)
    validate.depends_on = [load.id]
    plan.options.allow_parallel = True
    plan.options.continue_on_error = False
    return _with_tools(plan)


def many_in_parallel() -> SeedPlan:
    """并行度控制: 对于 I/O 密集型任务."""
    plan, _ = media()
    plan.options.max_parallel_steps = 20
    return _with_tools(plan)


def large_results() -> SeedPlan:
    """内存管理: 将结果写入文件或数据库，只存储引用."""
    plan = ExecutionPlan(description="处理大文件")
    plan.add_step("process_large_file", "处理大文件")
    return _with_tools(plan)


def reference_step() -> SeedPlan:
    """The step in the reference of AddStep."""
    plan = ExecutionPlan(description="部署应用到生产环境")
    plan.add_step("bash", "运行测试", {"command": "npm test"})
    return _with_tools(plan)


def reference_program() -> SeedPlan:
    """The complete example of the reference."""
    plan = ExecutionPlan(description="CI/CD 流程")
    step1 = plan.add_step("git_checkout", "检出代码", {"branch": "main"})
    step2 = plan.add_step("npm_install", "安装依赖", None)
    step2.depends_on = [step1.id]
    step3 = plan.add_step("npm_test", "运行测试", None)
    step3.depends_on = [step2.id]
    plan.options.require_approval = True
    plan.options.allow_parallel = True
    return _with_tools(plan)


SEED_PLANS: tuple[Callable[[], SeedPlan], ...] = (
    manual_plan,
    parallel_build,
    dependencies,
    retries,
    timeouts,
    approval,
    continuing_on_error,
    small_steps,
    explicit_dependencies,
    descriptive_names,
    sensible_retries,
    sensible_timeouts,
    media,
    ci_cd,
    data_pipeline,
    many_in_parallel,
    large_results,
    reference_step,
    reference_program,
)
