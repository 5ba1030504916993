"""Tests of who else may answer at a gate: after an escalation, in the place of an approver, and who may not because they wrote the plan."""

import json
import re
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any, get_args

import pytest

from plan_adapter import ExecutionPlan
from plan_adapter.errors import ApprovalRequiredError, InvalidAnswerError, NotApprovedError, RunConflictError
from plan_adapter.gates.approval import (
    as_far_as,
    gate_policy_of,
    policy_in_force,
    strictest,
    text_to_sign,
    why_not_delegated,
    why_not_taken_back,
    with_current_policy,
)
from plan_adapter.gates.freezes import Freeze
from plan_adapter.gates.gate import request_of
from plan_adapter.gates.policy import Policy, effective_policy
from plan_adapter.gates.signatures import sign
from plan_adapter.local.settings import Settings
from plan_adapter.model.approvals import Agreement, Answer, Decision, Delegation, DelegationKind, FreezeOverride, Gate, GatePolicy
from plan_adapter.model.options import ApprovalPolicy, Escalation
from plan_adapter.runs import arevise_run
from plan_adapter.runs.answers import GateAnswers
from plan_adapter.runs.resume import execute_resume
from plan_adapter.store import PlanStatus
from plan_adapter.store.database.rows import gate_policy_in, gate_policy_text
from plan_adapter.store.policies import NewPolicy
from plan_adapter.store.proof.signed import signed_statements
from plan_adapter.waiting_runs import aanswer_gate, close_gate
from tests.gates.world import FixedApprover, World
from tests.identity.conftest import Key, ana
from tests.store.builders import a_delegation

__all__ = ["ana"]

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


YEAR_END = Freeze.model_validate(
    {"name": "year-end", "from": "2026-12-20T00:00", "until": "2027-01-04T06:00", "override": {"approvers": ["cab"], "quorum": 2}}
)
CLOSED = YEAR_END.model_copy(update={"name": "closed", "override": None})
FROZEN = effective_policy(Settings(), Policy(groups={"cab": ["ana", "chi"]}, freezes=[YEAR_END, CLOSED]), number=1)


def overriding(*names: str) -> tuple[FreezeOverride, ...]:
    return tuple(FreezeOverride(name, datetime(2027, 1, 4, 6, tzinfo=UTC)) for name in names)


def test_those_who_override_a_freeze_restrict_the_gate_its_escalation_and_delegation() -> None:
    plan = ExecutionPlan(description="x", approval=ESCALATES.model_copy(update={"delegate": True}))
    free = gate_policy_of(plan, FROZEN, requested_by="")
    assert (free.approvers, free.escalate_to, free.quorum, free.delegate) == (("ana", "ben"), ("chi",), 1, True)
    gate_policy = gate_policy_of(plan, FROZEN, requested_by="", overrides=overriding("year-end"))
    assert (gate_policy.approvers, gate_policy.escalate_to, gate_policy.quorum, gate_policy.delegate) == (("ana",), ("chi",), 2, False)
    assert gate_policy.overrides == overriding("year-end")
    assert gate_policy_of(plan, FROZEN, requested_by="", overrides=overriding("closed")).approvers == ()
    eve_too = ESCALATES.model_copy(update={"escalate": Escalation(after_ms=1000, to=["chi", "eve"])})
    restricted = gate_policy_of(ExecutionPlan(description="x", approval=eve_too), FROZEN, requested_by="", overrides=overriding("year-end"))
    assert restricted.escalate_to == ("chi",)


def test_an_open_gate_keeps_what_it_overrides_under_the_policy_of_today() -> None:
    plan = ExecutionPlan(description="x", approval=ApprovalPolicy(approvers=["ana", "ben"]))
    opened = gate_policy_of(plan, FROZEN, requested_by="", overrides=overriding("year-end"))
    now = with_current_policy(opened, plan, FROZEN, step_id=None)
    assert (now.approvers, now.quorum, now.overrides) == (("ana",), 2, overriding("year-end"))
    left = effective_policy(Settings(), Policy(groups={"cab": ["chi"]}, freezes=[YEAR_END]), number=2)
    assert with_current_policy(opened, plan, left, step_id=None).approvers == ()


def nested(policy: ApprovalPolicy) -> ExecutionPlan:
    """Return a plan without a policy whose step runs a plan with `policy`."""
    step = {"id": "go", "tool_name": "strike", "parameters": {"target": "a"}}
    inner = {"description": "inner", "approval": policy.model_dump(exclude_unset=True), "steps": [step]}
    return ExecutionPlan.model_validate({"description": "outer", "steps": [{"id": "part", "plan": "inner.yaml", "pinned": inner}]})


def test_the_gate_of_a_step_has_the_rules_of_the_plan_that_it_runs() -> None:
    policy = ESCALATES.model_copy(update={"delegate": True, "author_approval": False})
    plan, free = nested(policy), effective_policy(Settings())
    at_step = gate_policy_of(plan, free, requested_by="", authors=("zoe",), step_id="part")
    assert (at_step.authors, at_step.escalate_after_ms, at_step.escalate_to, at_step.delegate) == (("zoe",), HALF_AN_HOUR, ("chi",), True)
    at_plan = gate_policy_of(plan, free, requested_by="", authors=("zoe",))
    assert (at_plan.authors, at_plan.escalate_after_ms, at_plan.escalate_to, at_plan.delegate) == ((), 0, (), False)
    all_plans = effective_policy(Settings(), Policy(author_approval=False), number=1)
    assert gate_policy_of(plan, all_plans, requested_by="", authors=("zoe",)).authors == ("zoe",)


def test_of_two_plans_whose_approvers_must_agree_the_later_escalation_counts() -> None:
    inner = {
        "description": "inner",
        "approval": {"approvers": ["ana", "ben"], "escalate": {"after_ms": 1000, "to": ["chi"]}},
        "steps": [{"id": "go", "tool_name": "strike", "requires_approval": True}],
    }
    outer = {"approvers": ["ana", "dan"], "effects": ["write"], "escalate": {"after_ms": 5000, "to": ["chi", "eve"]}}
    plan = ExecutionPlan.model_validate(
        {"description": "outer", "approval": outer, "steps": [{"id": "part", "plan": "inner.yaml", "pinned": inner}]}
    )
    (step,) = [step for step in plan.all_steps if step.local_id == "go"]
    gate_policy = gate_policy_of(plan, effective_policy(Settings()), requested_by="", step_id=step.id)
    assert (gate_policy.approvers, gate_policy.escalate_after_ms, gate_policy.escalate_to) == (("ana",), 5000, ("chi",))


def given(by: str, to: str) -> Delegation:
    return Delegation("d-1", "g-1", "c" * 64, by, to, "totp", datetime(2026, 6, 1, tzinfo=UTC))


@pytest.mark.parametrize(
    ("approvers", "delegations", "in_force"),
    [
        (("ana", "ben"), [("ana", "dan")], ("ben", "dan")),
        (("ana", "ben"), [("zoe", "dan")], ("ana", "ben")),
        (("ana", "ben"), [("ana", "ben")], ("ben",)),
        (("ana", "ben"), [("ana", "dan"), ("dan", "eve")], ("ben", "eve")),
        (("ana", "ben"), [("dan", "eve"), ("ana", "dan")], ("ben", "dan")),
        (None, [("ana", "dan")], None),
    ],
    ids=["one", "by nobody", "to another approver", "twice", "in the wrong order", "anyone may answer"],
)
def test_a_delegation_replaces_the_person_who_gives_it(
    approvers: tuple[str, ...] | None, delegations: list[tuple[str, str]], in_force: tuple[str, ...] | None
) -> None:
    found = policy_in_force(GatePolicy(approvers=approvers), is_escalated=False, delegations=[given(*each) for each in delegations])
    assert found.approvers == in_force


def test_the_policy_of_today_restricts_whom_an_approver_named() -> None:
    only = effective_policy(Settings(), Policy(approvers=["ana", "ben"]), number=1)
    at_gate = policy_in_force(GatePolicy(approvers=("ana", "ben")), is_escalated=False, delegations=[given("ana", "dan")])
    assert as_far_as(GatePolicy(approvers=("ana", "ben")), only, at_gate).approvers == ("ben",)
    free = effective_policy(Settings(), Policy(), number=1)
    assert as_far_as(GatePolicy(approvers=("ana", "ben")), free, at_gate).approvers == ("ben", "dan")


def test_the_strictest_of_policies_excludes_all_authors_and_delegates_only_where_all_do() -> None:
    one, two = GatePolicy(authors=("ana", "ben"), delegate=True), GatePolicy(authors=("ben", "chi"))
    assert (strictest(one, two).authors, strictest(one, two).delegate) == (("ana", "ben", "chi"), False)
    assert (strictest(two, one).delegate, strictest(one, one).delegate) == (False, True)


def test_the_authors_of_today_may_not_approve_at_an_open_gate() -> None:
    plan, today = ExecutionPlan(description="x"), effective_policy(Settings(), Policy(author_approval=False), number=2)
    opened = GatePolicy(authors=("ben",))
    assert with_current_policy(opened, plan, today, step_id=None, authors=("ana",)).authors == ("ben", "ana")


@pytest.mark.parametrize(
    ("changed", "to", "why"),
    [
        ({"delegate": False}, "dan", "approvers may not let others answer here: the plan does not say `approval: {delegate: true}`"),
        ({"approvers": None}, "dan", "anyone may answer here, so nobody has to be named"),
        ({}, " " + "d" * 99, repr(" " + "d" * 79) + " cannot be the name of a person"),
        ({}, "", "'' cannot be the name of a person"),
        ({}, "cab", "cab is a group: name one person"),
        ({}, "ANA", "ana may answer already: name another person"),
        ({"authors": ("dan",)}, "dan", "dan is an author of this plan and may not approve it: name another person"),
        ({}, "eve", "the settings or the store's policy let only ana, ben, dan answer at gates"),
        ({}, "ben", "ben may answer already: name another person"),
        ({}, "dan", None),
    ],
    ids=["not allowed", "anyone", "a long name", "no name", "a group", "oneself", "an author", "not in the policy", "an approver", "fine"],
)
def test_why_an_approver_cannot_let_a_person_answer(changed: dict[str, Any], to: str, why: str | None) -> None:
    gate_policy = replace(GatePolicy(approvers=("ana", "ben"), delegate=True), **changed)
    policy = effective_policy(Settings(), Policy(groups={"cab": ["zoe"]}, approvers=["ana", "ben", "dan"]), number=1)
    assert why_not_delegated(gate_policy, policy, by="ana", to=to) == why


def test_nobody_delegates_under_a_policy_that_excludes_everybody() -> None:
    nobody = effective_policy(Settings(approvers=("ben",)), Policy(approvers=["ana"]), number=1)
    gate_policy = GatePolicy(approvers=("ana",), delegate=True)
    assert why_not_delegated(gate_policy, nobody, by="ana", to="dan") == (
        "the settings or the store's policy let only nobody answer at gates"
    )


# Delegation


async def test_an_approver_lets_another_person_answer(world: World) -> None:
    run, gate = await world.detached(world.plan(policy=DELEGATES))
    open_gate = await answered(world, gate, "ana", "delegate", to="dana")
    assert (open_gate.end, open_gate.gate_policy.approvers) == (None, ("ben", "dana"))
    with pytest.raises(NotApprovedError, match="ana let dana answer instead; only ben, dana may"):
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
    with pytest.raises(NotApprovedError, match="ben may answer already: name another person"):
        await answered(world, gate, "dana", "delegate", to="ben")
    await answered(world, gate, "dana", "delegate", to="eve")
    assert (await world.store.gates.get(gate.id)).gate_policy.approvers == ("ben", "chi", "eve")
    await answered(world, gate, "ben")
    with pytest.raises(NotApprovedError, match="ben has already approved"):
        await answered(world, gate, "ben")
    for by, to in (("ana", "dana"), ("dana", "eve")):
        with pytest.raises(NotApprovedError, match=f"{by} let {to} answer instead; only ben, chi, eve may"):
            await answered(world, gate, by)
    with pytest.raises(NotApprovedError, match="ben has already approved"):
        await answered(world, gate, "ben", "delegate", to="dana")
    with pytest.raises(NotApprovedError, match="ben has already approved"):
        await answered(world, gate, "chi", "delegate", to="ben")
    await answered(world, gate, "chi")
    assert (await world.resume(run.id)).approved_by == "ben and chi"


CHANGED = "an approver changed who answers here in their place meanwhile: look at the gate again, then answer"


@pytest.mark.parametrize("quorum", [1, 2])
async def test_an_approval_that_arrives_with_a_delegation_is_refused(world: World, quorum: int) -> None:
    """Both arrive at once: the approval is checked before the delegation is recorded."""
    policy = ApprovalPolicy(approvers=["ana", "ben", "chi"], quorum=quorum, delegate=True)
    _, gate = await world.detached(world.plan(policy=policy))
    await answered(world, gate, "ana", "delegate", to="dana")
    with pytest.raises(NotApprovedError, match=CHANGED):
        await world.store.gates.answer(gate.id, world.approval(gate, by="ana"), gate_policy=gate.gate_policy)
    by_another = await world.store.gates.answer(gate.id, world.approval(gate, by="chi"), gate_policy=gate.gate_policy)
    assert (by_another.end, len(by_another.agreements)) == (("answered", 0) if quorum == 1 else (None, 1))


@pytest.mark.parametrize("quorum", [1, 2])
@pytest.mark.parametrize("decision", ["approve", "reject", "request_changes"])
async def test_an_answer_that_arrives_with_the_end_of_a_delegation_is_refused(world: World, quorum: int, decision: Decision) -> None:
    policy = ApprovalPolicy(approvers=["ana", "ben", "chi"], quorum=quorum, delegate=True)
    _, gate = await world.detached(world.plan(policy=policy))
    checked = (await answered(world, gate, "ana", "delegate", to="dana")).gate_policy
    await answered(world, gate, "ana", "take_back", to="dana")
    with pytest.raises(NotApprovedError, match=CHANGED):
        await world.store.gates.answer(gate.id, replace(world.approval(gate, by="dana"), decision=decision), gate_policy=checked)
    left_open = await world.store.gates.get(gate.id)
    assert (left_open.end, left_open.agreements) == (None, ())


async def test_of_two_who_arrive_at_once_the_first_decides_whether_a_delegation_can_be_taken_back(world: World) -> None:
    policy = ApprovalPolicy(approvers=["ana", "ben", "chi"], quorum=2, delegate=True)
    _, gate = await world.detached(world.plan(policy=policy))
    delegated = await answered(world, gate, "ana", "delegate", to="dana")
    taken_back = a_delegation(delegated, by="ana", to="dana", decision="take_back")
    await answered(world, gate, "dana")
    with pytest.raises(NotApprovedError, match="dana has already approved, so it is too late to take that back"):
        await world.store.gates.delegate(taken_back)
    _, other = await world.detached(world.plan(policy=policy))
    delegated = await answered(world, other, "ana", "delegate", to="dana")
    twice = [a_delegation(delegated, by="ana", to="dana", decision="take_back") for _ in range(2)]
    await world.store.gates.delegate(twice[0])
    with pytest.raises(NotApprovedError, match="ana lets no 'dana' answer here"):
        await world.store.gates.delegate(twice[1])
    again = [a_delegation(await world.store.gates.get(other.id), by="ana", to="dana") for _ in range(2)]
    await world.store.gates.delegate(again[0])
    with pytest.raises(NotApprovedError, match=CHANGED):
        await world.store.gates.delegate(again[1])


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


async def test_a_signed_delegation(world: World, ana: Key) -> None:
    await policy_set(world, allowed_signers=[f"ana {ana.public}"])
    policy = ApprovalPolicy(approvers=["ana"], known_by=["ssh_signature"], delegate=True)
    run, gate = await world.detached(world.plan(policy=policy))
    answer, answers = Answer("delegate", "ana", to="dan"), GateAnswers(world.store, world.settings)
    with pytest.raises(NotApprovedError, match="ana is identified only by unverified"):
        await close_gate(gate, answer, answers)
    for_another = sign(text_to_sign(replace(answer, to="eve"), request_of(gate)), key=ana.path)
    with pytest.raises(NotApprovedError, match="signature"):
        await close_gate(gate, replace(answer, signature=for_another), answers)
    signed = replace(answer, signature=sign(text_to_sign(answer, request_of(gate)), key=ana.path))
    open_gate = await close_gate(gate, signed, answers)
    assert open_gate.gate_policy.approvers == ("dan",)
    assert (await world.store.verify(run.id)).ok
    (statement,) = signed_statements(await world.store.export(run.id))
    assert (statement.by, statement.signature) == ("ana", signed.signature)
    assert statement.text == text_to_sign(answer, request_of(gate))


async def test_delegate_from_python(world: World) -> None:
    _, gate = await world.detached(world.plan(policy=DELEGATES))
    await aanswer_gate(gate, "delegate", by="ana", to="dana", store=world.store)
    assert (await world.store.gates.get(gate.id)).gate_policy.approvers == ("ben", "dana")
    await aanswer_gate(gate, "take_back", by="ana", to="dana", store=world.store)
    assert (await world.store.gates.get(gate.id)).gate_policy.approvers == ("ana", "ben")
    for decision in get_args(DelegationKind):
        with pytest.raises(InvalidAnswerError, match=f"this gate takes `done`, `again`, `abort`, not `{decision}`"):
            await aanswer_gate(replace(gate, kind="outcome"), decision, by="ana", to="dana", store=world.store)


# Taking a delegation back


def in_force(*given: tuple[str, str] | tuple[str, str, int]) -> GatePolicy:
    """Return the policy in force at a gate of ana and ben after delegations (by, to); a number says which of these is taken back."""
    delegations = list[Delegation]()
    for number, (by, to, *follows) in enumerate(given):
        at, kind, earlier = datetime(2026, 6, 1, 8, number, tzinfo=UTC), "take_back" if follows else "delegate", None
        if follows:
            earlier = delegations[follows[0]].id
        delegations.append(Delegation(f"d-{number}", "g-1", "c" * 64, by, to, "totp", at, decision=kind, follows=earlier))
    return policy_in_force(GatePolicy(approvers=("ana", "ben")), is_escalated=False, delegations=delegations)


@pytest.mark.parametrize(
    ("given", "approvers"),
    [
        ([("ana", "dan"), ("ana", "dan", 0)], ("ana", "ben")),
        ([("ana", "dan"), ("dan", "eve"), ("ana", "dan", 0)], ("ana", "ben")),
        ([("ana", "dan"), ("dan", "eve"), ("dan", "eve", 1)], ("ben", "dan")),
        ([("ana", "dan"), ("ben", "dan"), ("ana", "dan", 0)], ("ana", "dan")),
        ([("ana", "dan"), ("ana", "dan", 0), ("ana", "dan")], ("ben", "dan")),
        ([("ana", "ben"), ("ana", "ben", 0)], ("ana", "ben")),
    ],
    ids=["one", "with what follows from it", "only the last", "of two to one person", "given again", "to another approver"],
)
def test_what_holds_after_a_delegation_was_taken_back(given: list[Any], approvers: tuple[str, ...]) -> None:
    assert in_force(*given).approvers == approvers


@pytest.mark.parametrize(
    ("given", "by", "to", "approved", "why"),
    [
        ([("ana", "dan")], "ana", "dan", [], None),
        ([("ana", "dan")], "ana", "dan", ["ben"], None),
        ([], "ana", "dan", [], "ana lets no 'dan' answer here"),
        ([("ana", "dan")], "ben", "dan", [], "ben lets no 'dan' answer here"),
        ([("ana", "dan")], "ana", "d" * 99, [], f"ana lets no {'d' * 80!r} answer here; take back dan"),
        ([("ana", "dan"), ("ana", "dan", 0)], "ana", "dan", [], "ana lets no 'dan' answer here"),
        ([("ana", "dan")], "ana", "dan", ["ＤＡＮ"], "ＤＡＮ has already approved, so it is too late to take that back"),
        ([("ana", "dan"), ("dan", "eve")], "ana", "dan", ["eve"], "eve has already approved, so it is too late to take that back"),
        ([("dan", "eve"), ("ana", "dan")], "ana", "dan", ["eve"], None),
        ([("ana", "dan"), ("dan", "eve"), ("dan", "eve", 1)], "ana", "dan", ["eve"], None),
    ],
    ids=["fine", "another approved", "none", "of somebody else", "a typo", "twice", "too late", "too late further on", "earlier", "ended"],
)
def test_why_a_delegation_cannot_be_taken_back(given: list[Any], by: str, to: str, approved: list[str], why: str | None) -> None:
    at = datetime(2026, 6, 1, tzinfo=UTC)
    agreements = [Agreement(f"a-{name}", "g-1", "c" * 64, name, "totp", at) for name in approved]
    assert why_not_taken_back(in_force(*given), by=by, to=to, agreements=agreements) == why


async def test_an_approver_takes_a_delegation_back(world: World) -> None:
    run, gate = await world.detached(world.plan(policy=DELEGATES))
    await answered(world, gate, "ana", "delegate", to="dana")
    for by in ("ben", "dana", "zoe"):
        with pytest.raises(NotApprovedError, match=f"{by} lets no 'dana' answer here"):
            await answered(world, gate, by, "take_back", to="dana")
    open_gate = await answered(world, gate, "ana", "take_back", to=" dana ")
    assert (open_gate.end, open_gate.gate_policy.approvers) == (None, ("ana", "ben"))
    at = open_gate.gate_policy.delegations[-1].at.isoformat(timespec="seconds")
    with pytest.raises(
        NotApprovedError, match=re.escape(f"dana may no longer answer here: ana took the delegation back at {at}; only ana")
    ):
        await answered(world, gate, "dana")
    with pytest.raises(NotApprovedError, match="ana lets no 'dana' answer here"):
        await answered(world, gate, "ana", "take_back", to="dana")
    assert (await answered(world, gate, "ana")).end == "answered"
    with pytest.raises(RunConflictError, match="ana answered"):
        await answered(world, gate, "ana", "delegate", to="dana")
    assert (await world.resume(run.id)).approved_by == "ana"
    assert (await world.store.verify(run.id)).ok
    entries = [(entry["kind"], entry["by"], entry["message"]) for entry in (await world.store.export(run.id))["audit"]]
    assert [each for each in entries if each[2] == "dana"] == [("delegated", "ana", "dana"), ("delegation_taken_back", "ana", "dana")]


async def test_a_person_can_be_named_again(world: World) -> None:
    run, gate = await world.detached(world.plan(policy=DELEGATES))
    await answered(world, gate, "ana", "delegate", to="dana")
    await answered(world, gate, "ana", "take_back", to="dana")
    await answered(world, gate, "ana", "delegate", to="dana")
    await answered(world, gate, "dana")
    assert (await world.resume(run.id)).status is PlanStatus.COMPLETED


async def test_with_a_quorum_the_place_counts_once(world: World) -> None:
    policy = ApprovalPolicy(approvers=["ana", "ben", "chi"], quorum=2, delegate=True)
    run, gate = await world.detached(world.plan(policy=policy))
    await answered(world, gate, "ana", "delegate", to="dana")
    await answered(world, gate, "dana", "delegate", to="eve")
    await answered(world, gate, "eve")
    for by, to in (("ana", "dana"), ("dana", "eve")):
        with pytest.raises(NotApprovedError, match="eve has already approved, so it is too late to take that back"):
            await answered(world, gate, by, "take_back", to=to)
    assert (await answered(world, gate, "chi")).end == "answered"
    assert (await world.resume(run.id)).approved_by == "eve and chi"


async def test_who_takes_a_delegation_back_proves_who_they_are(world: World, ana: Key) -> None:
    await policy_set(world, allowed_signers=[f"ana {ana.public}"])
    policy = ApprovalPolicy(approvers=["ana", "ben"], known_by=["ssh_signature"], delegate=True)
    run, gate = await world.detached(world.plan(policy=policy))
    answers = GateAnswers(world.store, world.settings)

    async def signed(decision: DelegationKind) -> tuple[Answer, str]:
        answer = Answer(decision, "ana", to="dan")
        text = text_to_sign(answer, request_of(await world.store.gates.get(gate.id)))
        return replace(answer, signature=sign(text, key=ana.path)), text

    first, first_text = await signed("delegate")
    await close_gate(gate, first, answers)
    with pytest.raises(NotApprovedError, match="ana is identified only by unverified"):
        await close_gate(gate, Answer("take_back", "ana", to="dan"), answers)
    taken_back, back_text = await signed("take_back")
    assert (await close_gate(gate, taken_back, answers)).gate_policy.approvers == ("ana", "ben")
    with pytest.raises(NotApprovedError, match="signature"):  # who read the record repeats the delegation
        await close_gate(gate, first, answers)
    again, again_text = await signed("delegate")
    assert (await close_gate(gate, again, answers)).gate_policy.approvers == ("ben", "dan")
    with pytest.raises(NotApprovedError, match="signature"):
        await close_gate(gate, taken_back, answers)
    assert (await world.store.verify(run.id)).ok
    statements = signed_statements(await world.store.export(run.id))
    assert {(each.signature, each.text) for each in statements} == {
        (first.signature, first_text),
        (taken_back.signature, back_text),
        (again.signature, again_text),
    }


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
