"""Tests of the gates of sub-plans: steps ask the approvers of their own plan, and a stricter sub-plan asks first."""

import asyncio

import pytest

from plan_adapter import ExecutionPlan, PlanStore
from plan_adapter.errors import NotApprovedError
from plan_adapter.gates import CallbackApprover
from plan_adapter.gates.approval import gate_policy_of, refuse_operation
from plan_adapter.gates.policy import EffectivePolicy
from plan_adapter.model.approvals import ApprovalRequest
from plan_adapter.model.options import ApprovalPolicy, ExecutionOptions
from plan_adapter.model.plan import Step
from plan_adapter.model.status import RunReason
from plan_adapter.runs import acancel_run, aresume_run, arevise_run, arun_plan
from plan_adapter.runs.run_session import RunRequest
from plan_adapter.runs.start import execute_plan
from plan_adapter.store import PlanStatus
from plan_adapter.validation import bind_inputs, validate
from tests.runs.cluster import Cluster
from tests.runs.sub_plans import around, do, site

WITH_APPROVAL = ExecutionOptions()


def answering(asked: list[ApprovalRequest], refused: str | None = None) -> CallbackApprover:
    async def answer(request: ApprovalRequest) -> bool:
        asked.append(request)
        return refused is None or request.step_id != refused

    return CallbackApprover(answer, by="ana")


async def test_the_plan_gate_covers_a_sub_plan(cluster: Cluster, store: PlanStore) -> None:
    asked = list[ApprovalRequest]()
    plan = around(site(options=WITH_APPROVAL))
    plan.options = ExecutionOptions()
    ended = await arun_plan(plan, tools=cluster.tools, store=store, offline=True, approver=answering(asked))
    assert (ended.status, [request.step_id for request in asked]) == (PlanStatus.COMPLETED, [None])
    text = asked[0].text.replace("\\", "")
    assert "- **1. verify** · plan `store:verify-site@3` · runs 2 steps of verify-site · digest `" in text
    assert "  - **2. verify.check** · **write** · `do` · `what` `check 北京`" in text


@pytest.mark.parametrize(
    ("inner", "outer", "asks"),
    [
        (ApprovalPolicy(), ApprovalPolicy(approvers=["bo"]), False),
        (ApprovalPolicy(approvers=["ana"]), ApprovalPolicy(approvers=["ana"]), False),
        (ApprovalPolicy(approvers=["ana"]), ApprovalPolicy(approvers=["ana", "bo"]), True),
        (ApprovalPolicy(approvers=["ana"]), None, True),
        (ApprovalPolicy(known_by=["totp"]), ApprovalPolicy(known_by=["totp", "os_user"]), True),
        (ApprovalPolicy(known_by=["totp", "os_user"]), ApprovalPolicy(known_by=["totp"]), False),
        (ApprovalPolicy(self_approval=False), ApprovalPolicy(), True),
    ],
)
def test_a_sub_plan_with_a_stricter_policy_asks_before_it_starts(
    inner: ApprovalPolicy, outer: ApprovalPolicy | None, *, asks: bool, cluster: Cluster
) -> None:
    plan = around(site(options=WITH_APPROVAL, approval=inner))
    plan.options, plan.approval = ExecutionOptions(), outer
    validated = validate(plan, cluster.tools)
    assert validated.has_gate(validated.steps["verify"]) is asks
    plan.options = ExecutionOptions(require_approval=False)  # no plan gate covers the sub-plan
    validated = validate(plan, cluster.tools)
    assert validated.has_gate(validated.steps["verify"])


async def test_the_gate_of_a_sub_plan_shows_its_steps_and_its_inputs(cluster: Cluster, store: PlanStore) -> None:
    asked = list[ApprovalRequest]()
    plan = around(site(options=WITH_APPROVAL, approval=ApprovalPolicy(approvers=["ana"])))
    plan.options = ExecutionOptions()
    ended = await arun_plan(plan, tools=cluster.tools, store=store, offline=True, approver=answering(asked))
    assert (ended.status, [request.step_id for request in asked]) == (PlanStatus.COMPLETED, [None, "verify"])
    text = asked[1].text.replace("\\", "")
    assert "Approve verify?" in text
    assert "It runs 2 steps of the plan `store:verify-site@3`, for:" in text
    assert '`{"site": "北京"}`' in text
    assert ". verify.check**: `do` `check 北京`" in text
    assert "· undone with `what` `uncheck 北京`" in text


async def test_a_rejected_sub_plan_ends_the_run_before_the_sub_plan_starts(cluster: Cluster, store: PlanStore) -> None:
    plan = around(site(), do("after", "after", "verify"), before=(do("before", "before"),), requires_approval=True)
    ended = await arun_plan(plan, tools=cluster.tools, store=store, offline=True, approver=answering([], refused="verify"))
    assert (ended.status, ended.reason, cluster.done) == (PlanStatus.CANCELLED, RunReason.REJECTED, ["before"])
    assert {step.status.value for step in ended.steps[1:]} == {"skipped"}


async def test_a_rejected_step_of_a_sub_plan_ends_the_run(cluster: Cluster, store: PlanStore) -> None:
    inner = site(do("first", "first"), do("second", "second", "first", requires_approval=True), do("third", "third", "second"))
    plan = around(inner, do("after", "after", "verify"))
    ended = await arun_plan(plan, tools=cluster.tools, store=store, offline=True, approver=answering([], refused="verify.second"))
    assert (ended.status, ended.reason) == (PlanStatus.CANCELLED, RunReason.REJECTED)
    assert cluster.done == ["first"]
    assert (ended.step("verify").status.value, ended.step("verify").reason) == ("failed", "not_approved")


async def test_an_approved_sub_plan_is_not_asked_again_on_resume(cluster: Cluster, store: PlanStore) -> None:
    asked = list[ApprovalRequest]()
    cluster.broken = {"second"}
    plan = around(site(do("first", "first"), do("second", "second", "first")), requires_approval=True)
    failed = await arun_plan(plan, tools=cluster.tools, store=store, offline=True, approver=answering(asked))
    cluster.broken.clear()
    ended = await aresume_run(failed.id, tools=cluster.tools, store=store, offline=True, approver=answering(asked))
    assert (ended.status, cluster.done) == (PlanStatus.COMPLETED, ["first", "second"])
    assert [request.step_id for request in asked] == ["verify"]


async def test_a_run_without_a_waiting_process_stops_at_the_gate_of_a_sub_plan(cluster: Cluster, store: PlanStore) -> None:
    bound = bind_inputs(validate(around(site(), requires_approval=True), cluster.tools))
    left = await execute_plan(bound, run_request=RunRequest(waits=False), store=store, offline=True, record_pending=True)
    assert (left.status, cluster.done) == (PlanStatus.PENDING_APPROVAL, [])
    (gate,) = await store.gates.find(run_id=left.id)
    assert (gate.step_id, gate.item) == ("verify", None)
    asked = list[ApprovalRequest]()
    ended = await aresume_run(left.id, tools=cluster.tools, store=store, offline=True, approver=answering(asked))
    assert (ended.status, len(cluster.done)) == (PlanStatus.COMPLETED, 2)


def test_the_gates_of_a_sub_plan_keep_its_own_policy(cluster: Cluster) -> None:
    ask = Step.model_validate({"id": "ask", "ask": {"question": "Go?", "fields": {"go": {}}}})
    asks = ExecutionOptions(approval_timeout_ms=1000)
    own = ApprovalPolicy(approvers=["duty"], effects=["write"], expires="skip", known_by=["totp", "os_user"], operators=["ana", "bo"])
    inner = site(do("check", "x", timeout_ms=7), ask, do("free", "y", on_error="continue"), approval=own, options=asks)
    plan = around(inner, do("after", "after"))
    plan.approval = ApprovalPolicy(approvers=["boss"], known_by=["totp"], self_approval=False, operators=["bo", "cy"])
    plan.options = ExecutionOptions(step_timeout_ms=5, continue_on_error=True)
    validated = validate(plan, cluster.tools)
    plan, steps, policy = validated.plan, validated.steps, EffectivePolicy()
    for step_id in ("verify.check", "verify.ask", "verify"):
        gate = gate_policy_of(plan, policy, requested_by="ana", step_id=step_id)
        assert (gate.approvers, gate.known_by, gate.self_approval, gate.expires) == (("duty",), ("totp",), False, "skip")
    assert gate_policy_of(plan, policy, requested_by="ana", step_id="after").approvers == ("boss",)
    assert [plan.gate_timeout_ms(steps[step_id]) for step_id in ("verify.check", "after")] == [1000, 0]
    assert [validated.has_gate(steps[step_id]) for step_id in ("verify", "verify.check", "verify.ask", "after")] == [
        True,
        True,
        True,
        False,
    ]
    assert [plan.timeout_ms_of(steps[step_id]) for step_id in ("verify.check", "verify.free", "after")] == [7, 5, 5]
    assert [plan.on_error_of(steps[step_id]) for step_id in ("verify.check", "verify.free", "verify")] == ["stop", "continue", "continue"]
    refuse_operation(plan, policy, by="bo", operation="run")
    for other in ("ana", "cy"):
        with pytest.raises(NotApprovedError, match="operators: bo"):
            refuse_operation(plan, policy, by=other, operation="run")


async def test_only_the_approvers_of_a_sub_plan_can_answer_its_gates(cluster: Cluster, store: PlanStore) -> None:
    inner = site(do("first", "first", requires_approval=True), approval=ApprovalPolicy(approvers=["duty"]))
    plan: ExecutionPlan = around(inner)
    bound = bind_inputs(validate(plan, cluster.tools))
    left = await execute_plan(bound, run_request=RunRequest(waits=False), store=store, offline=True, record_pending=True)
    (gate,) = await store.gates.find(run_id=left.id)
    assert (gate.step_id, gate.gate_policy.approvers) == ("verify.first", ("duty",))


async def test_a_sub_plan_that_waits_for_a_second_approval_is_rolled_back(cluster: Cluster, store: PlanStore) -> None:
    asks = asyncio.Event()

    async def wait(_: ApprovalRequest) -> bool:
        asks.set()
        return await asyncio.Event().wait()

    cluster.broken = {"second"}
    inner = site(do("first", "first of ${{ inputs.site }}", undo=True), do("second", "second", "first"))
    plan = around(inner, on_error="continue", requires_approval=True)
    failed = await arun_plan(plan, tools=cluster.tools, store=store, offline=True, approver=answering([]))
    assert (failed.status, cluster.done) == (PlanStatus.PARTIAL, ["first of 北京"])
    inner.step("second").parameters = {"what": "second, otherwise"}
    await arevise_run(failed.id, plan, tools=cluster.tools, by="ana", note="it was broken", store=store)
    resuming = asyncio.ensure_future(
        aresume_run(failed.id, tools=cluster.tools, store=store, offline=True, approver=CallbackApprover(wait, by="ana"))
    )
    await asks.wait()  # the sub-plan has not begun in this start
    await acancel_run(failed.id, reason="enough", rollback=True, store=store)
    ended = await resuming
    assert cluster.done[1:] == ["unfirst of 北京"]
    assert "rolled back: verify.first" in (ended.message or "")
