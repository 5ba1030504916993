"""Tests of attacks on gates: only a valid approval of exactly the waiting content opens one. `make thorough` adds PostgreSQL.

Each attack acts on a run that waits at its gate. Afterwards the test rejects every gate that is still open. If the attack opened
the gate, the run has called the tool `strike`, or calls it instead of ending as rejected.
"""

from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta

import pytest

from plan_adapter import approve
from plan_adapter.errors import NotApprovedError, RunConflictError
from plan_adapter.model.approvals import Answer, Gate, StandingApproval
from plan_adapter.model.canonical import call_digest, runbook_digest
from plan_adapter.model.options import ApprovalPolicy
from plan_adapter.model.plan import new_id
from plan_adapter.model.status import RunReason
from plan_adapter.runs import arevise_run
from plan_adapter.store import PlanStatus, StepStatus
from tests.gates.world import FormAnswers, World, another
from tests.store.conftest import on_both_databases

Attack = Callable[[World, Gate], Awaitable[None]]


async def nothing(_world: World, _gate: Gate) -> None:
    pass


async def an_approval_of_another_plan(world: World, _gate: Gate) -> None:
    plan = world.plan()
    plan.steps[1].description = "Strike it harder"
    await world.store.add_approval(approve(plan, tools=world.tools(), by="ana"))


async def an_approval_of_other_inputs(world: World, _gate: Gate) -> None:
    await world.store.add_approval(approve(world.plan(), tools=world.tools(), by="ana", inputs={"target": "b"}))


async def an_approval_with_another_effect_of_the_tool(world: World, _gate: Gate) -> None:
    await world.store.add_approval(approve(world.plan(), tools=world.tools(effect="idempotent_write"), by="ana"))


async def an_approval_with_other_parameters_of_the_tool(world: World, _gate: Gate) -> None:
    await world.store.add_approval(approve(world.plan(), tools=world.tools(schema=object), by="ana"))


async def an_expired_approval(world: World, _gate: Gate) -> None:
    await world.store.add_approval(approve(world.plan(), tools=world.tools(), by="ana", valid_for=timedelta(seconds=-1)))


async def the_approval_of_another_run(world: World, gate: Gate) -> None:
    other, _ = await other_run(world, gate)
    await world.store.add_approval(another(world.approval(gate), gate_id=None, run_id=other))


async def the_answer_at_the_gate_of_another_run(world: World, gate: Gate) -> None:
    _, others = await other_run(world, gate)
    await world.answer(others)


async def the_used_approval_of_another_run(world: World, gate: Gate) -> None:
    other, others = await other_run(world, gate)
    await world.answer(others)
    approval = (await world.store.approvals(other))[-1]
    await world.store.ledger.use_approval(approval, run_id=other)
    with pytest.raises(NotApprovedError):
        await world.store.ledger.use_approval(approval, run_id=gate.run_id)


async def an_answer_for_other_content(world: World, gate: Gate) -> None:
    with pytest.raises(NotApprovedError):
        await world.answer(gate, approval_digest="0" * 64)


async def an_answer_with_an_empty_digest(world: World, gate: Gate) -> None:
    with pytest.raises(NotApprovedError):
        await world.answer(gate, approval_digest="")


async def an_answer_to_a_gate_that_does_not_exist(world: World, gate: Gate) -> None:
    with pytest.raises(RunConflictError):
        await world.answer(replace(gate, id=new_id()))


async def an_approval_row_without_a_gate(world: World, gate: Gate) -> None:
    await world.store.add_approval(another(world.approval(gate), gate_id=None))


async def an_approval_of_a_step(world: World, gate: Gate) -> None:
    await world.store.add_approval(another(world.approval(gate), gate_id=None, step_id="strike"))


async def an_approval_row_with_an_unknown_standing_approval(world: World, gate: Gate) -> None:
    await world.store.add_approval(another(world.approval(gate), gate_id=None, standing_id=new_id()))


async def a_run_status_of_approved(world: World, gate: Gate) -> None:
    await world.sql("UPDATE runs SET status = 'approved' WHERE id = :run", run=gate.run_id)


async def a_run_status_of_executing(world: World, gate: Gate) -> None:
    await world.sql("UPDATE runs SET status = 'executing' WHERE id = :run", run=gate.run_id)


async def an_approver_written_into_the_run(world: World, gate: Gate) -> None:
    await world.sql("UPDATE runs SET approved_by = 'ana', approved_at = created_at WHERE id = :run", run=gate.run_id)


async def a_closed_gate_without_an_answer(world: World, gate: Gate) -> None:
    await world.store.gates.close(gate.id, "cancelled")


async def an_answer_after_a_cancellation(world: World, gate: Gate) -> None:
    await world.store.cancel(gate.run_id, "not needed any more")
    with pytest.raises(RunConflictError, match="cancelled"):
        await world.answer(gate)


async def an_approval_after_a_rejection(world: World, gate: Gate) -> None:
    await world.answer(gate, "reject", by="bo")
    with pytest.raises(RunConflictError, match="bo"):
        await world.answer(gate)


async def a_request_for_changes(world: World, gate: Gate) -> None:
    await world.answer(gate, "request_changes", by="bo", note="look twice")
    with pytest.raises(RunConflictError, match="bo"):
        await world.answer(gate)


async def an_approval_of_the_previous_version(world: World, gate: Gate) -> None:
    changed = world.plan()
    changed.steps[1].description = "Strike it harder"
    await arevise_run(gate.run_id, changed, tools=world.tools(), by="bo", store=world.store)
    with pytest.raises(RunConflictError):
        await world.answer(gate)
    await world.store.add_approval(approve(world.plan(), tools=world.tools(), by="ana"))


async def a_standing_approval_for_a_schedule(world: World, _gate: Gate) -> None:
    await world.store.standing.add(await standing(world))


async def an_approval_of_another_tenant(world: World, gate: Gate) -> None:
    from plan_adapter import PlanStore

    async with PlanStore(world.url, tenant_id="others") as others:
        await others.add_approval(approve(world.plan(), tools=world.tools(), by="ana"))
        with pytest.raises(RunConflictError):
            await others.gates.answer(gate.id, world.approval(gate))


PLAN_GATE_ATTACKS: tuple[Attack, ...] = (
    nothing,
    an_approval_of_another_plan,
    an_approval_of_other_inputs,
    an_approval_with_another_effect_of_the_tool,
    an_approval_with_other_parameters_of_the_tool,
    an_expired_approval,
    the_approval_of_another_run,
    the_answer_at_the_gate_of_another_run,
    the_used_approval_of_another_run,
    an_answer_for_other_content,
    an_answer_with_an_empty_digest,
    an_answer_to_a_gate_that_does_not_exist,
    an_approval_row_without_a_gate,
    an_approval_of_a_step,
    an_approval_row_with_an_unknown_standing_approval,
    a_run_status_of_approved,
    a_run_status_of_executing,
    an_approver_written_into_the_run,
    a_closed_gate_without_an_answer,
    an_answer_after_a_cancellation,
    an_approval_after_a_rejection,
    a_request_for_changes,
    an_approval_of_the_previous_version,
    a_standing_approval_for_a_schedule,
    an_approval_of_another_tenant,
)


@pytest.mark.parametrize("attack", PLAN_GATE_ATTACKS, ids=lambda attack: attack.__name__)
async def test_a_plan_gate_is_not_opened_by(attack: Attack, world: World) -> None:
    task = world.start()
    await attack(world, await world.gate())
    run = await world.end(task)
    assert await world.store.attempts(run.id) == []
    assert run.status is PlanStatus.CANCELLED
    assert run.reason in (RunReason.REJECTED, RunReason.CANCELLED)


@pytest.mark.parametrize("attack", PLAN_GATE_ATTACKS, ids=lambda attack: attack.__name__)
async def test_a_run_whose_process_died_at_its_gate_is_not_resumed_by(attack: Attack, world: World) -> None:
    run, gate = await world.detached()
    await attack(world, gate)
    with suppress(NotApprovedError, RunConflictError):
        await world.resume(run.id)
    assert await world.store.attempts(run.id) == []


@on_both_databases
async def test_an_approval_lets_the_same_runs_through(world: World) -> None:
    task = world.start()
    await world.answer(await world.gate())
    assert (await task).status is PlanStatus.COMPLETED
    run, gate = await world.detached()
    await world.answer(gate)
    assert (await world.resume(run.id)).status is PlanStatus.COMPLETED
    assert world.struck == ["a", "a"]


# Step gates


async def the_plans_own_approval(world: World, gate: Gate) -> None:
    run = await world.store.run(gate.run_id)
    await world.store.add_approval(another(world.approval(gate), gate_id=None, step_id=None, approval_digest=run.approval_digest))


async def an_approval_of_another_step(world: World, gate: Gate) -> None:
    await world.store.add_approval(another(world.approval(gate), gate_id=None, step_id="look"))


async def an_approval_of_an_item(world: World, gate: Gate) -> None:
    await world.store.add_approval(another(world.approval(gate), gate_id=None, item=0))


async def an_approval_of_the_step_in_another_run(world: World, gate: Gate) -> None:
    other, _ = await other_run(world, gate)
    await world.store.add_approval(another(world.approval(gate), gate_id=None, run_id=other))


async def an_approval_of_other_parameters(world: World, gate: Gate) -> None:
    step = world.bound(world.plan(gated=True)).validated.plan.step("strike")
    digest = call_digest(step, None, {"target": "b"}, world.tools().get("strike").definition())  # type: ignore[union-attr]
    assert digest != gate.approval_digest
    await world.store.add_approval(another(world.approval(gate), gate_id=None, approval_digest=digest))


async def an_answer_with_the_plans_digest(world: World, gate: Gate) -> None:
    run = await world.store.run(gate.run_id)
    with pytest.raises(NotApprovedError):
        await world.answer(gate, approval_digest=run.approval_digest)


STEP_GATE_ATTACKS: tuple[Attack, ...] = (
    nothing,
    the_plans_own_approval,
    an_approval_of_another_step,
    an_approval_of_an_item,
    an_approval_of_the_step_in_another_run,
    an_approval_of_other_parameters,
    an_answer_with_the_plans_digest,
    an_answer_for_other_content,
    an_answer_to_a_gate_that_does_not_exist,
    a_closed_gate_without_an_answer,
    an_approval_after_a_rejection,
    a_request_for_changes,
    a_standing_approval_for_a_schedule,
    an_approver_written_into_the_run,
    a_run_status_of_approved,
)


@pytest.mark.parametrize("attack", STEP_GATE_ATTACKS, ids=lambda attack: attack.__name__)
async def test_a_step_gate_is_not_opened_by(attack: Attack, world: World) -> None:
    task = world.start(world.plan(gated=True))
    await attack(world, await world.gate(step="strike"))
    run = await world.end(task)
    assert world.struck == []
    assert run.step("look").status is StepStatus.COMPLETED
    assert run.step("strike").status is StepStatus.SKIPPED


@on_both_databases
async def test_an_approval_of_the_call_opens_the_step_gate(world: World) -> None:
    task = world.start(world.plan(gated=True))
    await world.answer(await world.gate(step="strike"))
    assert (await task).status is PlanStatus.COMPLETED
    assert world.struck == ["a"]


# Gate policies: who may answer, and with which proof

POLICIES = {
    "somebody_who_is_not_an_approver": (ApprovalPolicy(approvers=["bo"]), Answer("approve", "ana", channel="os_user")),
    "a_lookalike_of_an_approvers_name": (ApprovalPolicy(approvers=["ana"]), Answer("approve", "аna", channel="os_user")),
    "the_requester_of_the_run": (ApprovalPolicy(self_approval=False), Answer("approve", "runner", channel="os_user")),
    "a_name_in_a_form": (ApprovalPolicy(known_by=["os_user"]), Answer("approve", "ana", channel="form")),
    "a_name_from_a_program": (ApprovalPolicy(known_by=["form", "os_user"]), Answer("approve", "ana")),
    "a_code_without_an_enrolled_seed": (ApprovalPolicy(known_by=["totp"]), Answer("approve", "ana", code="123456")),
    "a_malformed_signature": (
        ApprovalPolicy(known_by=["ssh_signature"]),
        Answer("approve", "ana", signature="-----BEGIN SSH SIGNATURE-----"),
    ),
    "a_wrong_code_that_was_not_required": (ApprovalPolicy(), Answer("approve", "ana", code="000000", channel="os_user")),
    "a_wrong_signature_that_was_not_required": (ApprovalPolicy(), Answer("approve", "ana", signature="x", channel="os_user")),
    "an_empty_name": (ApprovalPolicy(approvers=["bo"]), Answer("approve", "", channel="os_user")),
}


@pytest.mark.parametrize(("policy", "answer"), POLICIES.values(), ids=POLICIES)
@pytest.mark.parametrize("gated", [False, True], ids=["plan", "step"])
async def test_the_gate_policy_refuses(policy: ApprovalPolicy, answer: Answer, gated: bool, world: World) -> None:
    form = FormAnswers((answer,))
    task = world.start_with_form(world.plan(gated=gated, policy=policy), form)
    await world.gate(step="strike" if gated else None)
    while not form.replies:
        await world.store.changed(0.05)
    run = await world.end(task)
    assert world.struck == []
    assert (run.status, run.reason) == (PlanStatus.CANCELLED, RunReason.REJECTED)
    assert form.replies[0] is not None
    assert answer.code is None or answer.code not in form.replies[0]


async def other_run(world: World, gate: Gate) -> tuple[str, Gate]:
    """Return the id of another run of the same content that waits at its gate, and that gate."""
    world.start(world.plan(gated=gate.step_id is not None))
    other = await world.gate(step=gate.step_id, count=2)
    assert other.run_id != gate.run_id
    assert other.approval_digest == gate.approval_digest
    return other.run_id, other


async def standing(world: World, **changes: object) -> StandingApproval:
    """Return a standing approval of the ordinary plan for one schedule."""
    bound = world.bound()
    given = StandingApproval(
        id=new_id(),
        runbook_digest=runbook_digest(bound.validated.digest, bound.validated.definitions),
        name=bound.validated.plan.name,
        by="ana",
        known_by="os_user",
        at=await world.now(),
        inputs={"target": "a"},
        schedules=("nightly/strike",),
        max_runs=2,
    )
    return replace(given, **changes)  # type: ignore[arg-type]
