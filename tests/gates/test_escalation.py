"""Tests of who else may answer at a gate: after an escalation, in the place of an approver, and who may not because they wrote the plan."""

import json
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from plan_adapter import ExecutionPlan
from plan_adapter.errors import ApprovalRequiredError, InvalidAnswerError, NotApprovedError, RunConflictError
from plan_adapter.gates.approval import gate_policy_of, policy_in_force, with_current_policy
from plan_adapter.gates.policy import Policy, effective_policy
from plan_adapter.local.settings import Settings
from plan_adapter.model.approvals import Answer, Gate, GatePolicy
from plan_adapter.model.options import ApprovalPolicy, Escalation
from plan_adapter.runs import arevise_run
from plan_adapter.runs.answers import GateAnswers
from plan_adapter.runs.resume import execute_resume
from plan_adapter.store import PlanStatus
from plan_adapter.store.database.rows import gate_policy_in, gate_policy_text
from plan_adapter.store.policies import NewPolicy
from plan_adapter.waiting_runs import aanswer_gate, close_gate
from tests.gates.world import FixedApprover, World

HALF_AN_HOUR = 1_800_000
ESCALATES = ApprovalPolicy(approvers=["ana", "ben"], escalate=Escalation(after_ms=HALF_AN_HOUR, to=["chi"]))
DELEGATES = ApprovalPolicy(approvers=["ana", "ben"], delegate=True)


async def answered(world: World, gate: Gate, by: str, decision: Any = "approve", *, to: str = "") -> Gate:
    """Answer as the command line does, with the account of this process as `by`."""
    return await close_gate(gate, Answer(decision, by, to=to), GateAnswers(world.store, world.settings))


async def waited(world: World, gate: Gate, time: timedelta) -> Gate:
    """Return the gate as if it had opened earlier by `time`."""
    opened_at = gate.opened_at - time
    if world.url.startswith("sqlite"):
        await world.sql("UPDATE gates SET opened_at = :at", at=opened_at.strftime("%Y-%m-%d %H:%M:%S.%f"))
    else:
        await world.sql("UPDATE gates SET opened_at = :at", at=opened_at)
    return await world.store.gates.get(gate.id)


async def policy_set(world: World, **policy: Any) -> None:
    await world.store.policy.set(NewPolicy(Policy(**policy), 1, "root", "os_user"))


def step_plan(world: World, policy: ApprovalPolicy) -> ExecutionPlan:
    return world.plan(gated=True, policy=policy)


async def test_others_may_answer_once_the_gate_has_waited(world: World) -> None:
    run, gate = await world.detached(world.plan(policy=ESCALATES))
    assert (gate.gate_policy.approvers, gate.gate_policy.is_escalated) == (("ana", "ben"), False)
    with pytest.raises(NotApprovedError, match="chi may not answer here; only ana, ben may"):
        await answered(world, gate, "chi")
    almost = await waited(world, gate, timedelta(minutes=29))
    assert not almost.gate_policy.is_escalated
    with pytest.raises(NotApprovedError):
        await answered(world, gate, "chi")
    now = await waited(world, almost, timedelta(minutes=1))
    assert (now.gate_policy.approvers, now.gate_policy.is_escalated) == (("ana", "ben", "chi"), True)
    assert [each.gate_policy.is_escalated for each in await world.store.gates.find()] == [True]
    closed = await answered(world, gate, "chi")  # the gate as it was listed before
    assert closed.end == "answered"
    assert (await world.resume(run.id)).status is PlanStatus.COMPLETED
    assert world.struck == ["a"]


@pytest.mark.parametrize("after", [timedelta(minutes=29), timedelta(hours=5)])
async def test_an_escalation_takes_nothing_from_the_approvers_and_answers_nothing(world: World, after: timedelta) -> None:
    _, gate = await world.detached(world.plan(policy=ESCALATES))
    gate = await waited(world, gate, after)
    assert gate.end is None
    assert (await answered(world, gate, "ana")).end == "answered"


async def test_an_answer_by_others_is_as_valid_later_as_it_was(world: World) -> None:
    """A resume checks an unused answer under the policy of today: the gate had escalated when it was given."""
    run, gate = await world.detached(world.plan(policy=ESCALATES))
    await policy_set(world, groups={"sre": ["zoe"]})
    await waited(world, gate, timedelta(hours=1))
    await answered(world, gate, "chi")
    assert (await world.resume(run.id)).approved_by == "chi"


async def test_an_escalation_counts_for_a_quorum(world: World) -> None:
    run, gate = await world.detached(world.plan(policy=ESCALATES.model_copy(update={"quorum": 2})))
    await waited(world, gate, timedelta(hours=1))
    assert (await answered(world, gate, "chi")).end is None
    assert (await answered(world, gate, "ana")).end == "answered"
    assert (await world.resume(run.id)).approved_by == "chi and ana"


async def test_the_record_of_an_escalated_answer_is_intact(world: World) -> None:
    policy = ApprovalPolicy(approvers=["ana"], escalate=Escalation(after_ms=1000, to=["chi"]))
    run, gate = await world.detached(world.plan(policy=policy))
    while not gate.gate_policy.is_escalated:
        await world.store.changed(0.2)
        gate = await world.store.gates.get(gate.id)
    await answered(world, gate, "chi")
    await world.resume(run.id)
    assert (await world.store.verify(run.id)).ok


async def test_a_gate_of_a_step_escalates(world: World) -> None:
    run = world.start(step_plan(world, ESCALATES))
    gate = await world.gate(step="strike")
    await waited(world, gate, timedelta(hours=1))
    await answered(world, gate, "chi")
    assert (await run).status is PlanStatus.COMPLETED


def test_the_policies_of_today_restrict_an_escalation() -> None:
    plan = ExecutionPlan(description="x", approval=ESCALATES.model_copy(update={"escalate": Escalation(after_ms=1000, to=["sre", "zoe"])}))
    groups = {"sre": ["chi", "dan"]}
    free = effective_policy(Settings(), Policy(groups=groups), number=1)
    opened = gate_policy_of(plan, free, requested_by="")
    assert (opened.escalate_after_ms, opened.escalate_to) == (1000, ("chi", "dan", "zoe"))
    only = effective_policy(Settings(), Policy(groups=groups, approvers=["ana", "dan"]), number=2)
    assert gate_policy_of(plan, only, requested_by="").escalate_to == ("dan",)
    escalated = policy_in_force(opened, is_escalated=True)
    assert with_current_policy(escalated, plan, only, step_id=None).approvers == ("ana", "dan")
    joined = effective_policy(Settings(), Policy(groups={"sre": ["chi", "dan", "eve"]}), number=3)
    assert with_current_policy(escalated, plan, joined, step_id=None).approvers == ("ana", "ben", "chi", "dan", "zoe", "eve")
    assert with_current_policy(opened, plan, joined, step_id=None).approvers == ("ana", "ben")


def test_where_anyone_may_answer_an_escalation_only_tells() -> None:
    plan = ExecutionPlan(description="x", approval=ApprovalPolicy(escalate=Escalation(after_ms=1000, to=["chi"])))
    gate_policy = policy_in_force(gate_policy_of(plan, effective_policy(Settings()), requested_by=""), is_escalated=True)
    assert (gate_policy.approvers, gate_policy.escalate_to) == (None, ("chi",))


# Delegation


async def test_an_approver_lets_another_person_answer(world: World) -> None:
    run, gate = await world.detached(world.plan(policy=DELEGATES))
    open_gate = await answered(world, gate, "ana", "delegate", to="dana")
    assert (open_gate.end, open_gate.gate_policy.approvers) == (None, ("ben", "dana"))
    with pytest.raises(NotApprovedError, match="ana may not answer here; only ben, dana may"):
        await answered(world, gate, "ana")
    assert (await answered(world, gate, "dana")).end == "answered"
    done = await world.resume(run.id)
    assert (done.status, done.approved_by) == (PlanStatus.COMPLETED, "dana")
    assert (await world.store.verify(run.id)).ok
    exported = await world.store.export(run.id)
    kinds = [(entry["kind"], entry["by"], entry["message"]) for entry in exported["audit"]]
    assert ("delegated", "ana", "dana") in kinds


async def test_delegations_give_nobody_two_votes(world: World) -> None:
    policy = ApprovalPolicy(approvers=["ana", "ben", "chi"], quorum=2, delegate=True)
    run, gate = await world.detached(world.plan(policy=policy))
    await answered(world, gate, "ana", "delegate", to="dana")
    await answered(world, gate, "dana", "delegate", to="ben")
    assert (await world.store.gates.get(gate.id)).gate_policy.approvers == ("ben", "chi")
    await answered(world, gate, "ben")
    with pytest.raises(NotApprovedError, match="ben has already approved"):
        await answered(world, gate, "ben")
    for by in ("ana", "dana"):
        with pytest.raises(NotApprovedError, match="may not answer here"):
            await answered(world, gate, by)
    with pytest.raises(NotApprovedError, match="ben has already approved"):
        await answered(world, gate, "ben", "delegate", to="dana")
    with pytest.raises(NotApprovedError, match="2 different people must approve, and only ben may"):
        await answered(world, gate, "chi", "delegate", to="ben")
    await answered(world, gate, "chi")
    assert (await world.resume(run.id)).approved_by == "ben and chi"


async def test_an_approval_given_before_a_delegation_does_not_count_beside_it(world: World) -> None:
    """Both arrive at once: the approval is checked before the delegation is recorded."""
    policy = ApprovalPolicy(approvers=["ana", "ben", "chi"], quorum=2, delegate=True)
    _, gate = await world.detached(world.plan(policy=policy))
    await answered(world, gate, "ana", "delegate", to="dana")
    await world.store.gates.answer(gate.id, world.approval(gate, by="ana"), gate_policy=gate.gate_policy)
    assert (await answered(world, gate, "dana")).end is None
    assert (await answered(world, gate, "chi")).end == "answered"


@pytest.mark.parametrize(
    ("by", "to", "why"),
    [
        ("zoe", "dana", "zoe may not answer here"),
        ("ana", "ana", "ana may answer already: name another person"),
        ("ana", "ANA", "ANA may answer already|ana may answer already"),
        ("ana", "", "cannot be the name of a person"),
        ("ana", "da\u200bna", "cannot be the name of a person"),
        ("ana", "sre", "sre is a group: name one person"),
        ("ana", "runner", "runner started this run and may not approve it"),
        ("runner", "dana", "runner started this run and may not approve it"),
        ("ana", "eve", "let only ana, ben, runner, dana answer at gates"),
    ],
)
async def test_a_delegation_that_is_refused(world: World, by: str, to: str, why: str) -> None:
    policy = ApprovalPolicy(approvers=["ana", "ben", "runner"], delegate=True, self_approval=False)
    await policy_set(world, groups={"sre": ["zoe"]}, approvers=["ana", "ben", "runner", "dana"])
    run, gate = await world.detached(world.plan(policy=policy))
    with pytest.raises(NotApprovedError, match=why):
        await answered(world, gate, by, "delegate", to=to)
    exported = await world.store.export(run.id)
    assert [row["decision"] for row in exported["approvals"]] == []
    assert [entry["kind"] for entry in exported["audit"]].count("refused") == 1


async def test_a_plan_that_does_not_say_so_lets_nobody_delegate(world: World) -> None:
    _, gate = await world.detached(world.plan(policy=ApprovalPolicy(approvers=["ana"])))
    with pytest.raises(NotApprovedError, match=r"the plan does not say `approval: \{delegate: true\}`"):
        await answered(world, gate, "ana", "delegate", to="dana")
    _, free = await world.detached(world.plan(policy=ApprovalPolicy(delegate=True)))
    with pytest.raises(NotApprovedError, match="anyone may answer here"):
        await answered(world, free, "ana", "delegate", to="dana")


async def test_nobody_delegates_at_a_closed_gate_or_about_other_content(world: World) -> None:
    _, gate = await world.detached(world.plan(policy=DELEGATES))
    with pytest.raises(NotApprovedError, match="the content of the gate changed"):
        await close_gate(gate, Answer("delegate", "ana", to="dana", digest="f" * 12), GateAnswers(world.store, world.settings))
    await answered(world, gate, "ben")
    with pytest.raises(RunConflictError, match="ben answered"):
        await answered(world, gate, "ana", "delegate", to="dana")


async def test_a_delegation_ends_with_the_content(world: World) -> None:
    run, gate = await world.detached(world.plan(policy=DELEGATES))
    await answered(world, gate, "ana", "delegate", to="dana")
    revised = world.plan(policy=DELEGATES).model_copy(update={"description": "Strike elsewhere"})
    await arevise_run(run.id, revised, tools=world.tools(), store=world.store)
    with pytest.raises(ApprovalRequiredError):
        await world.resume(run.id)
    resumed = await execute_resume(
        run.id, tools=world.tools(), run_request=world.run_request(waits=False), store=world.store, offline=True, record_pending=True
    )
    assert resumed.status is PlanStatus.PENDING_APPROVAL
    assert (await world.gate()).gate_policy.approvers == ("ana", "ben")


async def test_delegate_from_python(world: World) -> None:
    _, gate = await world.detached(world.plan(policy=DELEGATES))
    await aanswer_gate(gate, "delegate", by="ana", to="dana", store=world.store)
    assert (await world.store.gates.get(gate.id)).gate_policy.approvers == ("ben", "dana")
    with pytest.raises(InvalidAnswerError, match="this gate takes `done`, `again`, `abort`, not `delegate`"):
        await aanswer_gate(replace(gate, kind="outcome"), "delegate", by="ana", to="dana", store=world.store)


# Authors


async def test_whoever_saved_the_plan_may_not_approve_it(world: World) -> None:
    plan = world.plan(policy=ApprovalPolicy(approvers=["ana", "ben"], author_approval=False))
    await world.store.save(plan, author="ana")
    run, gate = await world.detached(plan)
    assert gate.gate_policy.authors == ("ana",)
    with pytest.raises(NotApprovedError, match="ana is an author of this plan and may not approve it; only ben may"):
        await answered(world, gate, "ana")
    await answered(world, gate, "ben")
    assert (await world.resume(run.id)).approved_by == "ben"


async def test_an_author_may_reject(world: World) -> None:
    plan = world.plan(policy=ApprovalPolicy(approvers=["ana", "ben"], author_approval=False))
    await world.store.save(plan, author="ana")
    _, gate = await world.detached(plan)
    assert (await answered(world, gate, "ana", "reject")).end == "answered"


async def test_of_a_plan_that_nobody_saved_the_requester_is_the_author(world: World) -> None:
    plan = world.plan(policy=ApprovalPolicy(author_approval=False))
    _, gate = await world.detached(plan)
    with pytest.raises(NotApprovedError, match="runner is an author of this plan and may not approve it; somebody else must approve it"):
        await answered(world, gate, "runner")


async def test_whoever_revised_the_run_is_an_author(world: World) -> None:
    policy = ApprovalPolicy(author_approval=False)
    plan = world.plan(policy=policy)
    await world.store.save(plan, author="ana")
    run, _ = await world.detached(plan)
    other = world.plan(policy=policy).model_copy(update={"description": "Strike 另一个"})
    await arevise_run(run.id, other, tools=world.tools(), by="ben", store=world.store)
    with pytest.raises(NotApprovedError, match="ben is an author of this plan"):
        await world.resume(run.id, approver=FixedApprover(by="ben"))


async def test_an_author_may_not_approve_at_the_gate_of_a_step(world: World) -> None:
    plan = step_plan(world, ApprovalPolicy(approvers=["ana", "ben"], author_approval=False))
    await world.store.save(plan, author="ana")
    run = world.start(plan)
    gate = await world.gate(step="strike")
    with pytest.raises(NotApprovedError, match="ana is an author of this plan"):
        await answered(world, gate, "ana")
    await answered(world, gate, "ben")
    assert (await run).status is PlanStatus.COMPLETED


async def test_a_run_does_not_start_if_only_its_author_could_complete_the_quorum(world: World) -> None:
    plan = world.plan(policy=ApprovalPolicy(approvers=["ana", "ben"], quorum=2, author_approval=False))
    await world.store.save(plan, author="ana")
    with pytest.raises(NotApprovedError, match=r"could never be passed.*only ben may"):
        await world.detached(plan)


# The record


def test_a_stored_policy_has_the_new_fields_only_if_they_say_something() -> None:
    plain = GatePolicy(approvers=("ana",), requested_by="ben")
    added = {"authors", "escalate_to", "escalate_after_ms", "delegate", "delegations", "is_escalated"}
    assert added.isdisjoint(json.loads(gate_policy_text(plain)))
    full = GatePolicy(
        approvers=("ana",), authors=("ben",), escalate_after_ms=1000, escalate_to=("chi",), delegate=True, requested_by="安娜"
    )
    assert gate_policy_in(gate_policy_text(full)) == full
    assert gate_policy_in(gate_policy_text(plain)) == plain
