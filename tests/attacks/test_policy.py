"""Tests that neither a plan nor an environment can loosen the settings or the store's policy."""

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from plan_adapter import tool
from plan_adapter.errors import NotApprovedError, ToolError
from plan_adapter.gates.approval import PendingGate, text_to_sign
from plan_adapter.gates.gate import request_of
from plan_adapter.gates.identity import ProofContext, approval_from
from plan_adapter.gates.policy import Policy
from plan_adapter.local.settings import Settings
from plan_adapter.model.approvals import Answer, StandingApproval
from plan_adapter.model.canonical import runbook_digest
from plan_adapter.model.errors import StoreError
from plan_adapter.model.options import ApprovalPolicy, Effect
from plan_adapter.model.plan import ExecutionPlan, Rollback, new_id
from plan_adapter.model.status import RunReason
from plan_adapter.runs import acancel_run, arevise_run
from plan_adapter.runs.start import execute_plan
from plan_adapter.store import PlanStatus
from plan_adapter.store.policies import NewPolicy
from tests.gates.world import FormAnswers, World
from tests.identity.conftest import make_key
from tests.store.conftest import on_both_databases


def striking(effect: Effect | None, *, policy: ApprovalPolicy | None = None) -> ExecutionPlan:
    """Return a plan without a plan gate, whose only step calls a writing tool and declares `effect`."""
    plan = ExecutionPlan(description="Strike 目标", approval=policy)
    plan.add_step("strike", "Strike it", {"target": "a"}, id="strike", effect=effect)
    plan.options.require_approval = False
    return plan


@pytest.mark.parametrize("gated_by", ["the settings", "the plan"])
@pytest.mark.parametrize("declared", ["write", "idempotent_write"])
@pytest.mark.parametrize("step_effect", ["read", "idempotent_write", None])
async def test_a_step_cannot_lower_its_effect_to_avoid_a_gate(
    step_effect: Effect | None, declared: Effect, gated_by: str, world: World
) -> None:
    world.settings = Settings(gate_effects=("write",)) if gated_by == "the settings" else Settings()
    plan = striking(step_effect, policy=ApprovalPolicy(effects=["write"]) if gated_by == "the plan" else None)
    going = world.start(plan, tools=world.tools(effect=declared))
    assert (await world.gate(step="strike")).step_id == "strike"
    assert (await world.end(going)).reason is RunReason.REJECTED
    assert world.struck == []


@pytest.mark.parametrize("gated_by", ["the settings", "the plan", "the store"])
async def test_a_read_with_a_writing_rollback_is_gated_as_a_write(gated_by: str, world: World) -> None:
    world.settings = Settings(gate_effects=("write",)) if gated_by == "the settings" else Settings()
    if gated_by == "the store":
        await set_policy(world, gate_effects=["write"])
    plan = ExecutionPlan(description="Read", approval=ApprovalPolicy(effects=["write"]) if gated_by == "the plan" else None)
    plan.add_step("look", "Look", {"target": "a"}, id="look", rollback=Rollback(tool_name="strike", parameters={"target": "a"}))
    plan.add_step("fail", "Fail", {}, id="fail", depends_on=["look"])
    plan.options.require_approval = False

    @tool(effect="read")
    def fail() -> None:
        """Fail."""
        raise ToolError("it failed")

    tools = world.tools()
    tools.add(fail)
    going = world.start(plan, tools=tools)
    assert (await world.gate(step="look")).step_id == "look"
    assert (await world.end(going)).reason is RunReason.REJECTED
    assert world.struck == []


async def set_policy(world: World, **fields: Any) -> None:
    """Set the policy of the store of `world`."""
    version = await world.store.policy.current()
    await world.store.policy.set(NewPolicy(Policy(**fields), 1 if version is None else version.number + 1, "ana", "totp"))


def gated_plan(world: World, **policy: Any) -> ExecutionPlan:
    """Return a plan that waits at its gate."""
    return world.plan(policy=ApprovalPolicy(**policy) if policy else None)


LOOSER: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    # the store's policy, and the environment of the attacker
    "approvers": ({"approvers": ["bo"]}, {"approvers": ("ana", "bo")}),
    "a member of a group": ({"approvers": ["sre"], "groups": {"sre": ["bo"]}}, {"groups": {"sre": ["bo", "ana"]}}),
    "a group of the plan": ({"groups": {"sre": ["bo"]}}, {"groups": {"sre": ["ana"]}}),
    "an empty group": ({"approvers": ["sre"], "groups": {"sre": ["bo"]}}, {"groups": {"sre": []}, "approvers": ("sre",)}),
    "proofs": ({"known_by": ["ssh_signature"]}, {"known_by": ("os_user",)}),
    "self approval": ({"self_approval": False}, {"allow_self_approval": True}),
}


@pytest.mark.parametrize(("kept", "environment"), LOOSER.values(), ids=LOOSER)
async def test_the_environment_cannot_loosen_the_stores_policy(kept: dict[str, Any], environment: dict[str, Any], world: World) -> None:
    await set_policy(world, **kept)
    world.settings = Settings(**environment)
    by = "runner" if "self_approval" in kept else "ana"
    going = world.start(gated_plan(world, approvers=["sre"]) if "groups" in kept and "approvers" not in kept else gated_plan(world))
    gate = await world.gate()
    await world.answer(gate, by=by, known_by="os_user")  # bypasses every check, so the resumed run must check it
    run = await world.end(going)
    assert (run.reason, world.struck) == (RunReason.REJECTED, [])


@pytest.mark.parametrize("allowed", [True, False], ids=["allowed", "not allowed"])
async def test_the_environment_cannot_allow_unapproved_plans(allowed: bool, world: World) -> None:
    await set_policy(world, allow_unapproved=allowed)
    world.settings = Settings(allow_unapproved=True)
    run = await execute_plan(
        world.bound(striking(None)), run_request=world.run_request(), store=world.store, offline=True, record_pending=True
    )
    assert (run.status, bool(world.struck)) == ((PlanStatus.COMPLETED, True) if allowed else (PlanStatus.PENDING_APPROVAL, False))


@pytest.mark.parametrize("step_effect", ["read", None])
async def test_plan_and_environment_cannot_turn_off_the_policys_write_gates(step_effect: Effect | None, world: World) -> None:
    await set_policy(world, gate_effects=["write"])
    world.settings = Settings(gate_effects=())
    going = world.start(striking(step_effect))
    assert (await world.gate(step="strike")).step_id == "strike"
    assert (await world.end(going)).reason is RunReason.REJECTED
    assert world.struck == []


@pytest.mark.parametrize("operation", ["run", "resume", "cancel", "revise"])
async def test_the_environment_cannot_name_operators(operation: str, world: World) -> None:
    run, _ = await world.detached(gated_plan(world))
    await set_policy(world, operators=["ops"], groups={"ops": ["bo"]})
    world.settings = Settings(operators=("mallory",), groups={"ops": ["mallory"]})
    with pytest.raises(NotApprovedError, match="mallory may not"):
        if operation == "run":
            await execute_plan(world.bound(), run_request=world.run_request(requested_by="mallory"), store=world.store, offline=True)
        elif operation == "resume":
            await world.resume(run.id, requested_by="mallory")
        elif operation == "cancel":
            await acancel_run(run.id, store=world.store, by="mallory")
        else:
            await arevise_run(run.id, striking(None), tools=world.tools(), by="mallory", store=world.store)
    assert (await world.store.run(run.id)).status is PlanStatus.PENDING_APPROVAL


@on_both_databases
async def test_an_approval_that_a_stricter_policy_refuses_becomes_stale(world: World) -> None:
    run, gate = await world.detached(gated_plan(world))
    await world.answer(gate)
    await set_policy(world, approvers=["bo"])
    with pytest.raises(NotApprovedError, match="is stale: ana may not answer here; only bo may"):
        await world.resume(run.id)
    assert world.struck == []


async def test_an_answer_in_a_form_is_checked_against_the_current_policy(world: World) -> None:
    form = FormAnswers((Answer("approve", "ana", channel="form"),))
    gated = gated_plan(world)

    async def restricted(asking: PendingGate) -> None:
        await set_policy(world, approvers=["bo"])
        form.replies.append(await asking.submit(form.answers[0]))
        await asyncio.shield(asking.closed)

    form.ask = restricted  # type: ignore[method-assign]
    going = world.start_with_form(gated, form)
    while not form.replies:
        await world.store.changed(0.5)
    assert form.replies == ["ana may not answer here; only bo may"]
    assert (await world.end(going)).reason is RunReason.REJECTED
    assert world.struck == []


async def test_a_standing_approval_becomes_stale_when_the_policy_changes(world: World) -> None:
    plan = gated_plan(world)
    validated = world.bound(plan).validated
    standing = StandingApproval(
        id=new_id(),
        runbook_digest=runbook_digest(validated.digest, validated.definitions),
        name=plan.name,
        by="ana",
        known_by="os_user",
        at=await world.now(),
        inputs={"target": "a"},
        schedules=("run-plan/nightly",),
        max_runs=9,
    )
    await world.store.standing.add(standing)
    assert (await world.start(plan, schedule="run-plan/nightly")).status is PlanStatus.COMPLETED
    assert world.struck == ["a"]
    await set_policy(world, known_by=["ssh_signature"])
    assert (await world.end(world.start(plan, schedule="run-plan/nightly"))).reason is RunReason.REJECTED
    assert world.struck == ["a"]


async def test_a_signature_counts_only_with_a_key_of_the_policy(world: World, tmp_path: Path) -> None:
    mallory = make_key(tmp_path / "mallory")
    (tmp_path / "allowed").write_text(f"ana {mallory.public}\n", encoding="utf-8")
    ana = make_key(tmp_path / "ana")
    await set_policy(world, known_by=["ssh_signature"], allowed_signers=[f"ana {ana.public}"])
    world.settings = Settings(allowed_signers=tmp_path / "allowed")
    run, gate = await world.detached(gated_plan(world))
    policy = await world.store.policy.effective(world.settings)
    request = request_of(gate)
    answer = Answer("approve", "ana", channel="os_user")
    forged = replace(answer, signature=mallory.signs(text_to_sign(answer, request)))
    with pytest.raises(NotApprovedError, match="the signature is by a key that the allowed signers of the store's policy"):
        await approval_from(forged, request, ProofContext(policy, world.settings, world.store.codes))
    await world.store.gates.answer(gate.id, replace(world.approval(gate), known_by="ssh_signature", signature=forged.signature))
    with pytest.raises(NotApprovedError, match="is stale"):
        await world.resume(run.id)
    assert world.struck == []


@on_both_databases
async def test_no_run_starts_under_an_altered_policy(world: World) -> None:
    await set_policy(world, gate_effects=["write"])
    triggers = ["policy_history_refuses_update"] if world.url.startswith("sqlite") else []
    for trigger in triggers:
        await world.sql(f"DROP TRIGGER {trigger}")
    if not triggers:
        await world.sql("ALTER TABLE policy_history DISABLE TRIGGER USER")
    await world.sql("UPDATE policy_history SET document = '{}'")
    if not triggers:
        await world.sql("ALTER TABLE policy_history ENABLE TRIGGER USER")
    with pytest.raises(StoreError, match="was altered"):
        await execute_plan(world.bound(striking(None)), run_request=world.run_request(), store=world.store, offline=True)
    assert world.struck == []
