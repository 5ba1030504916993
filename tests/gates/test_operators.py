"""Tests of operators: the stricter of plan and settings decides who may run, resume, revise, cancel and roll back."""

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from plan_adapter import ExecutionPlan, PlanRun, Step, ToolRegistry, tool
from plan_adapter.errors import NotApprovedError
from plan_adapter.gates.approval import gate_policy_of, os_user, refusal, refuse_operation, with_current_policy
from plan_adapter.gates.identity import identity_of_name
from plan_adapter.gates.policy import Policy, effective_policy
from plan_adapter.local.settings import Settings
from plan_adapter.model.options import ApprovalPolicy, Question
from plan_adapter.plans import Input
from plan_adapter.runs import acancel_run, aresolve_step, arevise_run
from plan_adapter.runs.start import execute_plan
from plan_adapter.store import PlanStatus
from plan_adapter.text.preview import preview_plan, preview_text
from tests.gates.world import World

GROUPS = {"sre": ["bo", "李雷"], "all": ["ana", "bo", "李雷"]}

EXCLUDED = "the environment variable PLAN_ADAPTER_OPERATORS excludes everything that the plan and the store's policy allow"

WHO: dict[
    str, tuple[list[str], tuple[str, ...], str, str | None]
] = {  # plan operators, settings operators, who asks, who may (None: allowed)
    "nobody_is_named": ([], (), "ana", None),
    "named_by_the_plan": (["ana"], (), "ana", None),
    "named_by_the_settings": ([], ("ana",), "ana", None),
    "named_by_both": (["ana", "bo"], ("li", "ana"), "ana", None),
    "in_a_group": (["sre"], ("all",), "李雷", None),
    "a_deployment": (["sre", "run-plan/nightly"], (), "run-plan/nightly", None),
    "not_named_by_the_plan": (["bo"], (), "ana", "bo"),
    "not_named_by_the_settings": ([], ("bo",), "ana", "bo"),
    "only_by_the_plan": (["ana", "bo"], ("bo",), "ana", "bo"),
    "only_by_the_settings": (["bo"], ("ana", "bo"), "ana", "bo"),
    "not_in_the_group": (["sre"], (), "ana", "bo, 李雷"),
    "by_the_name_of_the_group": (["sre"], (), "sre", "bo, 李雷"),
    "the_settings_exclude_all": (["bo"], ("ana",), "ana", f"nobody: {EXCLUDED}"),
    "a_name_that_looks_the_same": (["ana"], (), "аna", "ana"),
    "another_deployment": (["run-plan/nightly"], (), "run-plan/hourly", "run-plan/nightly"),
    "nobody_at_all": (["ana"], (), "", "ana"),
}


@pytest.mark.parametrize(("of_plan", "of_settings", "by", "who"), WHO.values(), ids=WHO)
def test_the_stricter_of_plan_and_settings_applies(of_plan: list[str], of_settings: tuple[str, ...], by: str, who: str | None) -> None:
    plan = ExecutionPlan(description="x", name="发布", approval=ApprovalPolicy(operators=of_plan))
    policy = effective_policy(Settings(operators=of_settings, groups=GROUPS))
    if who is None:
        refuse_operation(plan, policy, by=by, operation="resume")
        return
    with pytest.raises(NotApprovedError) as refused:
        refuse_operation(plan, policy, by=by, operation="resume")
    assert str(refused.value) == f"{by} may not resume runs of `发布`; operators: {who}"


def test_a_conflict_of_plan_and_stored_policy_does_not_blame_an_environment_variable() -> None:
    plan = ExecutionPlan(description="x", name="发布", approval=ApprovalPolicy(operators=["bo"]))
    for settings in (Settings(), Settings(operators=("bo",))):
        with pytest.raises(NotApprovedError, match="operators: nobody: the plan, those around it and the policy contradict each other"):
            refuse_operation(plan, effective_policy(settings, Policy(operators=["ana"]), number=1), by="ana", operation="resume")


@pytest.mark.parametrize(
    ("policy", "settings", "why"),
    [
        (
            {"approvers": ["bo"]},
            {"approvers": ("ana",)},
            "ana may not answer here; nobody may: the environment variable PLAN_ADAPTER_APPROVERS",
        ),
        (
            {"known_by": ["totp"]},
            {"known_by": ("os_user",)},
            "needs a proof that nobody can give: the environment variable PLAN_ADAPTER_KNOWN_BY",
        ),
    ],
    ids=["approvers", "known_by"],
)
def test_an_environment_variable_that_excludes_everyone_is_named(policy: Any, settings: Any, why: str) -> None:
    plan = ExecutionPlan(description="x", approval=ApprovalPolicy(**policy))
    gate_policy = gate_policy_of(plan, effective_policy(Settings(**settings)), requested_by="")
    assert f"{why} excludes everything" in (refusal(gate_policy, identity_of_name("ana"), decision="approve") or "")


def failing(*, policy: ApprovalPolicy) -> tuple[ExecutionPlan, ToolRegistry]:
    """Return a plan that writes, then fails, and its tools."""

    @tool(effect="write")
    def put() -> str:
        """Put it there."""
        return "there"

    @tool(effect="read")
    def check() -> None:
        """Find that it is wrong."""
        raise ValueError("wrong")

    plan = ExecutionPlan(description="Put it there, then check", approval=policy, options={"require_approval": False})  # type: ignore[arg-type]
    plan.add_step("put", "Put", id="put")
    plan.add_step("check", "Check", id="check", depends_on=["put"])
    return plan, ToolRegistry([put, check])


async def stopped(world: World, policy: ApprovalPolicy) -> tuple[PlanRun, ToolRegistry]:
    """Return a partial run, started by an allowed operator, and its tools."""
    plan, tools = failing(policy=policy)
    run_request = world.run_request(requested_by="bo")
    run = await execute_plan(world.bound(plan, tools=tools), run_request=run_request, store=world.store, offline=True)
    assert run.status is PlanStatus.PARTIAL
    return run, tools


Attempt = Callable[[World, PlanRun, ToolRegistry], Awaitable[Any]]

ATTEMPTS: dict[str, tuple[Attempt, str]] = {
    "resume": (lambda world, run, tools: world.resume(run.id, tools=tools, requested_by="eve"), "resume runs of"),
    "resume_by_a_schedule": (
        lambda world, run, tools: world.resume(run.id, tools=tools, requested_by="schedule of a/b", schedule="a/b", deployment="eve"),
        "resume runs of",
    ),
    "cancel": (lambda world, run, _: acancel_run(run.id, by="eve", store=world.store), "cancel runs of"),
    "roll back": (
        lambda world, run, tools: acancel_run(run.id, rollback=True, tools=tools, by="eve", store=world.store),
        "roll back runs of",
    ),
    "revise": (
        lambda world, run, tools: arevise_run(run.id, failing(policy=ApprovalPolicy())[0], tools=tools, by="eve", store=world.store),
        "revise runs of",
    ),
}


@pytest.mark.parametrize(("attempt", "doing"), ATTEMPTS.values(), ids=ATTEMPTS)
async def test_a_refused_operator_changes_nothing_and_is_recorded_in_the_audit_log(attempt: Attempt, doing: str, world: World) -> None:
    run, tools = await stopped(world, ApprovalPolicy(operators=["bo", "小明"]))
    before = await world.store.export(run.id)
    with pytest.raises(NotApprovedError) as refused:
        await attempt(world, run, tools)
    assert str(refused.value) == f"eve may not {doing} `Put it there, then check`; operators: bo, 小明"
    after = await world.store.export(run.id)
    assert {**after, "audit": None, "head": None} == {**before, "audit": None, "head": None}
    last = (await world.store.audit(run.id))[-1]
    assert (last.kind, last.by, last.message) == ("refused", "eve", str(refused.value))
    assert (await world.store.verify(run.id)).ok


async def test_a_refused_start_creates_no_run(world: World) -> None:
    plan, tools = failing(policy=ApprovalPolicy(operators=["bo"]))
    bound = world.bound(plan, tools=tools)
    for pending in (False, True):
        with pytest.raises(NotApprovedError, match=r"eve may not run `Put it there, then check`; operators: bo"):
            await execute_plan(
                bound, run_request=world.run_request(requested_by="eve"), store=world.store, offline=True, record_pending=pending
            )
    assert await world.store.runs() == []


async def test_an_allowed_operator_resumes_the_run(world: World) -> None:
    run, tools = await stopped(world, ApprovalPolicy(operators=["bo"]))
    assert (await world.resume(run.id, tools=tools, requested_by="bo")).status is PlanStatus.PARTIAL
    revised = await arevise_run(run.id, failing(policy=ApprovalPolicy(operators=["li"]))[0], tools=tools, by="bo", store=world.store)
    with pytest.raises(NotApprovedError, match="bo may not cancel"):  # the current version of the plan decides
        await acancel_run(revised.id, by="bo", store=world.store)
    assert (await acancel_run(revised.id, by="li", store=world.store)).status is PlanStatus.CANCELLED


async def test_operators_may_not_approve_and_approvers_may_not_operate(world: World) -> None:
    run, _ = await stopped(world, ApprovalPolicy(operators=["bo"], approvers=["ana"]))
    with pytest.raises(NotApprovedError, match=r"`check` is not resolved: bo may not answer here; only ana may"):
        await aresolve_step(run.id, "check", "done", by="bo", store=world.store)
    last = (await world.store.audit(run.id))[-1]
    assert (last.kind, last.by, last.known_by) == ("refused", "bo", "unverified")
    resolved = await aresolve_step(run.id, "check", "done", by="ana", store=world.store)
    assert resolved.step("check").status == "completed"
    with pytest.raises(NotApprovedError, match="ana may not resume runs of"):
        await world.resume(run.id, requested_by="ana")


async def test_the_operator_defaults_to_the_operating_system_account(world: World) -> None:
    run, _ = await stopped(world, ApprovalPolicy(operators=["bo"]))
    with pytest.raises(NotApprovedError, match=f"^{os_user()} may not cancel"):
        await acancel_run(run.id, store=world.store)


@pytest.mark.parametrize("named_by", ["plan", "settings"])
def test_the_groups_of_whoever_answers_count_only_as_part_of_the_stores_policy(named_by: str) -> None:
    named: dict[str, Any] = {"approvers": ("sre",)} if named_by == "settings" else {}
    plan = ExecutionPlan(description="x", approval=ApprovalPolicy(approvers=["sre"] if named_by == "plan" else []))
    opened = gate_policy_of(plan, effective_policy(Settings(groups={"sre": ["bo"]}, **named)), requested_by="")
    mine = Settings(groups={"sre": ["bo", "mallory"]}, **named)
    assert with_current_policy(opened, plan, effective_policy(mine), step_id=None).approvers == ("bo",)
    stored = effective_policy(mine, Policy(groups={"sre": ["bo", "li"]}), number=1)
    assert with_current_policy(opened, plan, stored, step_id=None).approvers == ("bo", "li")


GROUP_NOTICE = "`sre` is a group of PLAN_ADAPTER_GROUPS in the process that opened this gate: the store has no policy with groups."


async def test_a_gate_says_that_its_groups_come_from_the_environment(world: World) -> None:
    world.settings = Settings(approvers=("sre",), groups={"sre": ["bo"], "unused": ["li"]})
    _, gate = await world.detached()
    text = (await world.store.gates.get(gate.id)).text
    assert (
        "`sre` is a group of PLAN_ADAPTER_GROUPS in the process that opened this gate: the store has no policy with groups."
        in text.replace("\\", "")
    )
    assert "unused" not in text


async def test_the_gates_of_steps_questions_and_outcomes_say_where_their_groups_come_from(world: World) -> None:
    world.settings = Settings(groups={"sre": ["ana"]})
    plan = world.plan(gated=True, policy=ApprovalPolicy(approvers=["sre"]))
    plan.steps.append(Step(id="why", ask=Question(question="Why?", fields={"why": Input()}), approvers=["sre"]))
    world.start(plan)
    for step in ("strike", "why"):
        gate = await world.gate(step=step)
        assert GROUP_NOTICE in (await world.store.gates.get(gate.id)).text.replace("\\", "")


@pytest.mark.parametrize("seconds", [0, 600])
async def test_a_gate_of_an_inner_plan_that_nobody_may_answer_says_so(seconds: int, world: World) -> None:
    inner = world.plan(policy=ApprovalPolicy(approvers=["sre"]), timeout_ms=seconds * 1000)
    inner.inputs["target"].default = "a"
    outer = ExecutionPlan(description="x", approval=ApprovalPolicy(approvers=["boss"], effects=["write"]))
    outer.options.require_approval = inner.options.require_approval = False
    outer.steps.append(Step(id="p", plan="in", pinned=inner))
    world.start(outer)
    text = (await world.store.gates.get((await world.gate(step="p.strike")).id)).text
    assert "**Nobody may answer: the plan, those around it and the policy contradict each other.**" in text
    assert ("Rejected if nobody answers by " in text, "waits until somebody" in text) == (bool(seconds), False)
    bound = world.bound(outer)
    whole = preview_plan(bound.validated, inputs=bound.inputs, approval_digest=bound.approval_digest, requires_approval=True)
    shown = preview_text(whole)
    assert "nobody may answer at gates of its calls" in shown and "may answer: `sre`" not in shown
