"""Tests of what a plan around or inside another one may loosen: permissions, confirmations, standing approvals, outcomes and skips."""

import pytest

from plan_adapter import ExecutionPlan, PlanRun, PlanStore, ToolRegistry, tool
from plan_adapter.errors import NotApprovedError
from plan_adapter.execution.history import ResumeOptions
from plan_adapter.gates import CallbackApprover
from plan_adapter.model.approvals import ApprovalRequest, StandingApproval
from plan_adapter.model.canonical import runbook_digest
from plan_adapter.model.options import ApprovalPolicy, ExecutionOptions
from plan_adapter.model.plan import Step, new_id
from plan_adapter.runs import aresolve_step, aresume_run, arun_plan
from plan_adapter.runs.resume import execute_resume
from plan_adapter.runs.run_session import RunRequest
from plan_adapter.runs.start import execute_plan
from plan_adapter.store import PlanStatus, StepStatus
from plan_adapter.tools import ToolContext
from plan_adapter.validation import bind_inputs, validate
from tests.execution.pursuing import Board, ScriptedModel, ends, says, writes
from tests.runs.cluster import Cluster, run
from tests.runs.sub_plans import NO_APPROVAL, around, do, site

GOAL = Step(id="fix", goal="Post a note", tools=["look", "post"])
DUTY = ApprovalPolicy(approvers=["duty"])


def in_plans(*policies: ApprovalPolicy | None, step: Step) -> ExecutionPlan:
    """Return plans inside each other, the outermost first, with these policies. The innermost has `step`."""
    plan = ExecutionPlan(description="Innermost", options=NO_APPROVAL.model_copy(), approval=policies[-1], steps=[step])
    for policy in reversed(policies[:-1]):
        part = Step(id="part", plan="inner.yaml", pinned=plan)
        plan = ExecutionPlan(description="Around", options=NO_APPROVAL.model_copy(), approval=policy, steps=[part])
    return plan


def always(*tools: str, **fields: list[str]) -> ApprovalPolicy:
    return ApprovalPolicy(always_execute=[*tools], **fields)


def answering(asked: list[ApprovalRequest], *, refuses_calls: bool = False) -> CallbackApprover:
    def answer(request: ApprovalRequest) -> bool:
        asked.append(request)
        return request.item is None or not refuses_calls

    return CallbackApprover(answer, by="duty")


@pytest.mark.parametrize(
    ("policies", "is_confirmed"),
    [
        ((always("post"), DUTY), True),
        ((None, always("post", approvers=["duty"])), True),
        ((always("post"), None, always("post")), True),
        ((always("post"), always("post"), None), True),
        ((always("post"), always("post"), always("post")), False),
        ((always("post"),), False),
    ],
)
async def test_a_model_calls_without_a_confirmation_only_if_every_plan_around_it_allows_it(
    policies: tuple[ApprovalPolicy | None, ...], store: PlanStore, *, is_confirmed: bool
) -> None:
    board, asked = Board(), list[ApprovalRequest]()
    plan = in_plans(*policies, step=GOAL.model_copy(deep=True))
    model = ScriptedModel([writes(note="hello"), says("done", goal_check="E1"), ends("E1")])
    bound = bind_inputs(validate(plan, ToolRegistry(board.tools)))
    request = RunRequest(approver=answering(asked, refuses_calls=True), goal_model=model)
    await execute_plan(bound, run_request=request, store=store, offline=True)
    assert board.notes == ([] if is_confirmed else ["hello"])
    assert [call.item for call in asked if call.item is not None] == ([0] if is_confirmed else [])


async def test_the_gate_of_a_sub_plan_shows_what_its_models_may_do(store: PlanStore) -> None:
    board, asked = Board(), list[ApprovalRequest]()
    inner = ExecutionPlan(description="Fix", approval=DUTY, permissions=["网络"], steps=[GOAL.model_copy(deep=True)])
    deeper = ExecutionPlan(description="Deeper", options=NO_APPROVAL.model_copy(), steps=[Step(id="sub", plan="in.yaml", pinned=inner)])
    deeper.permissions = ["网络", "disk"]
    plan = in_plans(always("post"), step=Step(id="part", plan="inner.yaml", pinned=deeper))
    plan.permissions = ["网络"]
    bound = bind_inputs(validate(plan, ToolRegistry(board.tools)))
    model = ScriptedModel([says("done", goal_check="nothing to do"), ends("E1")])
    await execute_plan(bound, run_request=RunRequest(approver=answering(asked), goal_model=model), store=store, offline=True)
    text = next(request.text for request in asked if request.step_id == "part.sub")
    assert "permissions that its tools get: `网络`" in text
    assert "`post` (write, each call asks, because not every plan around the goal has it in `always_execute`)" in text
    assert "a model may call `look`" in text


async def test_the_plan_gate_shows_the_permissions_of_a_sub_plan(store: PlanStore) -> None:
    @tool(effect="write", permissions=["reorder"])
    def arrange(context: ToolContext) -> list[str]:
        """Arrange everything."""
        return sorted(context.permissions)

    @tool(effect="read")
    def tell(context: ToolContext) -> list[str]:
        """Tell which permissions there are."""
        return sorted(context.permissions)

    inner = ExecutionPlan(
        description="Inner", permissions=["reorder"], steps=[Step(id="go", tool_name="arrange"), Step(id="tell", tool_name="tell")]
    )
    plan = ExecutionPlan(
        description="Outer",
        permissions=["reorder", "disk"],
        steps=[Step(id="part", plan="inner.yaml", pinned=inner), Step(id="own", tool_name="tell")],
    )
    asked = list[ApprovalRequest]()
    ended = await arun_plan(plan, tools=ToolRegistry([arrange, tell]), store=store, offline=True, approver=answering(asked))
    (line,) = [line for line in asked[0].text.splitlines() if "**1. part**" in line and "digest" in line]
    assert "permissions that its tools get: `reorder` ·" in line
    assert [ended.step(name).result for name in ("part.go", "part.tell", "own")] == [["reorder"], ["reorder"], ["disk", "reorder"]]


@pytest.mark.parametrize(("by", "done"), [("boss", []), ("duty", ["first"])])
async def test_a_standing_approval_answers_a_gate_of_a_sub_plan_only_from_its_approvers(
    by: str, done: list[str], cluster: Cluster, store: PlanStore
) -> None:
    plan = around(site(do("first", "first", requires_approval=True), approval=DUTY))
    plan.options = ExecutionOptions()
    bound = bind_inputs(validate(plan, cluster.tools))
    given = StandingApproval(
        id=new_id(),
        runbook_digest=runbook_digest(bound.validated.digest, bound.validated.definitions),
        name=plan.name,
        by=by,
        known_by="unverified",
        at=await store.now(),
        inputs={},
        schedules=("f/d",),
        steps=("verify.first",),
        max_runs=1,
    )
    await store.standing.add(given)
    asked = list[ApprovalRequest]()

    def reject(request: ApprovalRequest) -> bool:
        asked.append(request)
        return False

    request = RunRequest(approver=CallbackApprover(reject, by="duty"), schedule="f/d")
    ended = await execute_plan(bound, run_request=request, store=store, offline=True)
    assert (cluster.done, ended.status is PlanStatus.COMPLETED) == (done, bool(done))
    assert [gate.step_id for gate in asked] == ([] if done else ["verify.first"])


async def test_only_the_approvers_of_a_sub_plan_resolve_its_unknown_outcomes(cluster: Cluster, store: PlanStore) -> None:
    hang = Step(id="hang", tool_name="hang", parameters={"what": "x"}, timeout_ms=1)
    plan = around(site(hang, do("after", "after", "hang"), approval=DUTY))
    plan.approval = ApprovalPolicy(approvers=["boss"])
    failed = await run(plan, cluster, store)
    with pytest.raises(NotApprovedError, match="boss may not answer here; only duty may"):
        await aresolve_step(failed.id, "verify.hang", "done", by="boss", store=store)
    await aresolve_step(failed.id, "verify.hang", "done", by="duty", store=store)
    ended = await aresume_run(failed.id, tools=cluster.tools, store=store, offline=True)
    assert (ended.status, cluster.done) == (PlanStatus.COMPLETED, ["after"])


async def test_only_the_approvers_of_a_sub_plan_skip_its_steps(cluster: Cluster, store: PlanStore) -> None:
    cluster.broken = {"check"}
    plan = around(site(do("check", "check"), do("after", "after", "check"), approval=DUTY))
    failed = await run(plan, cluster, store)
    skipped = ResumeOptions(skipped={"verify.check": "checked by hand"})

    async def resumed_by(name: str) -> PlanRun:
        request = RunRequest(requested_by=name)
        return await execute_resume(failed.id, tools=cluster.tools, run_request=request, store=store, offline=True, options=skipped)

    with pytest.raises(NotApprovedError, match="boss may not answer here; only duty may"):
        await resumed_by("boss")
    ended = await resumed_by("duty")
    assert (ended.step("verify.check").status, cluster.done) == (StepStatus.SKIPPED, ["after"])
