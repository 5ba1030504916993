"""Tests that each check is needed: with one check removed the gate opens, with all of them it stays closed."""

from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import true

from plan_adapter import PlanRun, approve
from plan_adapter.errors import NotApprovedError, RunConflictError
from plan_adapter.local.settings import Settings
from plan_adapter.model.approvals import Answer
from plan_adapter.model.options import ApprovalPolicy
from plan_adapter.runs import Hooks
from plan_adapter.runs.start import execute_plan
from tests.gates.test_attacks import standing
from tests.gates.test_starts import SCHEDULE, start
from tests.gates.world import FixedApprover, FormAnswers, World, another

Scenario = Callable[[World], Awaitable[None]]


async def the_approval_is_deleted_while_steps_run(world: World) -> None:
    async def delete(run: PlanRun, _step: object) -> None:
        await world.sql("DELETE FROM approvals WHERE run_id = :run", run=run.id)

    await world.start(approver=FixedApprover(), hooks=Hooks(on_step_complete=delete))


async def the_content_is_changed_while_steps_run(world: World) -> None:
    async def change(run: PlanRun, _step: object) -> None:
        await world.sql("UPDATE runs SET approval_digest = 'x' WHERE id = :run", run=run.id)

    await world.start(approver=FixedApprover(), hooks=Hooks(on_step_complete=change))


async def the_standing_approval_is_revoked_while_steps_run(world: World) -> None:
    given = await standing(world)
    await world.store.standing.add(given)

    async def revoke(_run: PlanRun, _step: object) -> None:
        await world.store.standing.revoke(given.id, by="bo")

    await start(world, schedule=SCHEDULE, approver=FixedApprover("reject"), hooks=Hooks(on_step_complete=revoke))


async def an_approval_of_other_inputs_is_given(world: World) -> None:
    with suppress(NotApprovedError):
        await start(world, approve(world.plan(), tools=world.tools(), by="ana", inputs={"target": "b"}))


async def an_expired_approval_is_given(world: World) -> None:
    with suppress(NotApprovedError):
        await start(world, approve(world.plan(), tools=world.tools(), by="ana", valid_for=timedelta(seconds=-1)))


async def an_approval_is_used_twice(world: World) -> None:
    approval = approve(world.plan(), tools=world.tools(), by="ana")
    await start(world, approval)
    world.struck.clear()
    with suppress(NotApprovedError):
        await start(world, approval)


async def somebody_who_is_not_an_approver_approves(world: World) -> None:
    with suppress(NotApprovedError):
        await world.start(world.plan(policy=ApprovalPolicy(approvers=["bo"])), approver=FixedApprover(by="ana"))


async def a_wrong_signature_is_given(world: World) -> None:
    plan = world.plan(policy=ApprovalPolicy(known_by=["ssh_signature"]))
    world.settings = Settings(allowed_signers=world.folder / "signers")
    (world.folder / "signers").write_text("", encoding="utf-8")
    form = FormAnswers((Answer("approve", "ana", signature="-----BEGIN SSH SIGNATURE-----\nx\n-----END SSH SIGNATURE-----\n"),))
    await world.end(world.start_with_form(plan, form))


async def an_answer_comes_after_the_gate_was_answered(world: World) -> None:
    run, gate = await world.detached()
    await world.answer(gate, "request_changes", by="bo")
    await world.sql("UPDATE approvals SET gate_id = NULL")  # else the unique index on gate_id refuses the second answer as well
    with suppress(RunConflictError):
        await world.answer(gate)
    with suppress(NotApprovedError):
        await world.resume(run.id)


async def an_answer_comes_after_the_expiry(world: World) -> None:
    run, gate = await world.detached(world.plan(timeout_ms=60_000))
    await world.sql("UPDATE gates SET expires_at = opened_at WHERE id = :id", id=gate.id)
    with suppress(RunConflictError):
        await world.answer(gate)
    with suppress(NotApprovedError):
        await world.resume(run.id)


async def an_answer_for_other_content_is_given(world: World) -> None:
    run, gate = await world.detached()
    await world.sql("UPDATE gates SET approval_digest = 'x' WHERE id = :id", id=gate.id)
    with suppress(NotApprovedError):
        await world.answer(gate)
    with suppress(NotApprovedError):
        await world.resume(run.id)


async def an_approval_row_has_no_gate(world: World) -> None:
    run, gate = await world.detached()
    await world.store.add_approval(another(world.approval(gate), gate_id=None))
    with suppress(NotApprovedError):
        await world.resume(run.id)


async def a_step_was_approved_with_other_parameters(world: World) -> None:
    run = await _step_approved_before_a_crash(world)
    await world.sql("UPDATE approvals SET approval_digest = 'x' WHERE step_id = 'strike'")
    with suppress(NotApprovedError):
        await world.resume(run.id, approver=FixedApprover("reject"))


async def the_approval_of_a_step_was_used_in_an_earlier_start(world: World) -> None:
    plan = world.plan(gated=True)
    plan.steps[1].done_when = "${{ inputs.target == 'b' }}"  # never met
    run = await world.start(plan, approver=FixedApprover())
    world.struck.clear()
    await world.resume(run.id, approver=FixedApprover("reject"))


async def a_gated_step_is_rejected(world: World) -> None:
    await world.start(world.plan(gated=True), approver=FixedApprover("reject"))


async def a_scheduled_run_has_uncovered_inputs(world: World) -> None:
    await world.store.standing.add(await standing(world, inputs={"target": "[b-z]"}))
    await start(world, schedule=SCHEDULE, approver=FixedApprover("reject"))


async def a_standing_approval_is_used_up(world: World) -> None:
    await world.store.standing.add(await standing(world, max_runs=1))
    await start(world, schedule=SCHEDULE, approver=FixedApprover("reject"))
    world.struck.clear()
    await start(world, schedule=SCHEDULE, approver=FixedApprover("reject"))


async def a_standing_approval_is_given_by_somebody_who_is_not_an_approver(world: World) -> None:
    world.settings = Settings(approvers=("bo",))
    await world.store.standing.add(await standing(world))
    with suppress(NotApprovedError):
        await start(world, schedule=SCHEDULE, approver=FixedApprover("reject", by="bo"))


async def an_approval_of_another_tenant_is_given(world: World) -> None:
    from plan_adapter import PlanStore

    async with PlanStore(world.url, tenant_id="others") as others:
        await others.add_approval(approve(world.plan(), tools=world.tools(), by="ana"))
    with suppress(NotApprovedError):
        await execute_plan(world.bound(), run_request=world.run_request(), store=world.store, offline=True)


async def one_person_approves_twice_where_two_must(world: World) -> None:
    run, gate = await world.detached(world.plan(policy=TWO))
    for _ in range(2):
        with suppress(NotApprovedError):
            await world.answer(gate)
    with suppress(NotApprovedError):
        await world.resume(run.id)


async def somebody_else_approves_where_two_must(world: World) -> None:
    run, gate = await world.detached(world.plan(policy=TWO))
    for by in ("zoe", "ana"):
        with suppress(NotApprovedError):
            await world.answer(gate, by=by)
    with suppress(NotApprovedError):
        await world.resume(run.id)


async def an_approval_of_two_was_of_other_content(world: World) -> None:
    run, gate = await world.detached(world.plan(policy=TWO))
    await world.answer(gate)
    await world.sql("UPDATE approvals SET approval_digest = 'x'")
    with suppress(NotApprovedError):
        await world.answer(gate, by="bo")
    with suppress(NotApprovedError):
        await world.resume(run.id)


async def an_approval_of_two_is_deleted_while_steps_run(world: World) -> None:
    async def delete(_run: PlanRun, _step: object) -> None:
        await world.sql("DELETE FROM approvals WHERE decision = 'agree'")

    run, gate = await world.detached(world.plan(policy=TWO))
    for by in ("ana", "bo"):
        await world.answer(gate, by=by)
    await world.resume(run.id, hooks=Hooks(on_step_complete=delete))


async def one_person_gives_a_standing_approval_where_two_must(world: World) -> None:
    world.settings = Settings(approvers=("ana", "bo"), quorum=2)
    await world.store.standing.add(await standing(world))
    with suppress(NotApprovedError):
        await start(world, schedule=SCHEDULE, approver=FixedApprover("reject"))


async def one_person_approves_in_advance_where_two_must(world: World) -> None:
    world.settings = Settings(approvers=("ana", "bo"), quorum=2)
    with suppress(NotApprovedError):
        await start(world, approve(world.plan(), tools=world.tools(), by="ana"))


async def _step_approved_before_a_crash(world: World) -> PlanRun:
    from plan_adapter.errors import StoreError
    from plan_adapter.store.recorder import StoreRecorder
    from tests.gates.test_starts import disk_full_at

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(StoreRecorder, "intent", disk_full_at(StoreRecorder.intent, step="strike"))
        with pytest.raises(StoreError):
            await world.start(world.plan(gated=True), approver=FixedApprover())
    return (await world.store.runs())[0]


TWO = ApprovalPolicy(approvers=["ana", "bo"], quorum=2)

ANSWERS = "plan_adapter.runs.answers"
PERMISSION, APPROVALS, GATES = "plan_adapter.store.permission", "plan_adapter.store.approvals", "plan_adapter.store.gates"

VARIANTS: dict[str, tuple[Scenario, dict[str, Any]]] = {
    "no approval check in the transaction of the intent": (
        the_approval_is_deleted_while_steps_run,
        {f"{PERMISSION}.why_plan_not_approved": lambda *_: None},
    ),
    "digests are not compared in the transaction of the intent": (
        the_content_is_changed_while_steps_run,
        {f"{PERMISSION}.is_same_content": lambda *_: True},
    ),
    "revocations are ignored": (the_standing_approval_is_revoked_while_steps_run, {f"{PERMISSION}.why_revoked": lambda _: None}),
    "the digest of a given approval is not compared": (
        an_approval_of_other_inputs_is_given,
        {
            "plan_adapter.runs.plan_approval.approved_plan": lambda bound, approval, now: _approved(bound, approval),
            f"{PERMISSION}.is_same_content": lambda *_: True,
        },
    ),
    "the expiry is not checked": (
        an_expired_approval_is_given,
        {
            "plan_adapter.runs.plan_approval.approved_plan": lambda bound, approval, now: _approved(bound, approval),
            f"{APPROVALS}._is_usable": lambda _: true(),
        },
    ),
    "the use is not counted": (
        an_approval_is_used_twice,
        {f"{APPROVALS}.use": lambda _, approval, **__: approval, f"{PERMISSION}.why_plan_not_approved": lambda *_: None},
    ),
    "the gate policy is not checked": (
        somebody_who_is_not_an_approver_approves,
        {f"plan_adapter.runs.{module}.refusal": lambda *_, **__: None for module in ("keeper", "answers")},
    ),
    "signatures are not verified": (a_wrong_signature_is_given, {"plan_adapter.gates.identity.verify_signature": lambda *_, **__: "ana"}),
    "a closed gate takes answers": (an_answer_comes_after_the_gate_was_answered, {f"{GATES}._is_open": true}),
    "a gate never expires": (an_answer_comes_after_the_expiry, {f"{GATES}._is_in_time": true}),
    "any approval of the run is accepted": (
        an_approval_row_has_no_gate,
        {"plan_adapter.runs.plan_approval.is_plan_answer": lambda row, run: row.run_id == run.id},
    ),
    "the digest of a call is not compared": (
        a_step_was_approved_with_other_parameters,
        {
            "plan_adapter.runs.step_gates.is_call_answer": lambda row, _run, call: row.step_id == call.step.id,
            f"{PERMISSION}.is_same_content": lambda *_: True,
        },
    ),
    "the use of a call's approval is not counted": (
        the_approval_of_a_step_was_used_in_an_earlier_start,
        {f"{PERMISSION}.count_use": lambda *_: None, f"{PERMISSION}.is_use_left": lambda _: True},
    ),
    "no step is gated": (a_gated_step_is_rejected, {"plan_adapter.runs.step_gates.needs_gate": lambda *_: False}),
    "inputs of standing approvals are not compared": (
        a_scheduled_run_has_uncovered_inputs,
        {"plan_adapter.runs.standing.why_not_covered": lambda *_, **__: None},
    ),
    "uses of standing approvals are not counted": (
        a_standing_approval_is_used_up,
        {"plan_adapter.runs.standing.why_not_covered": lambda *_, **__: None, "plan_adapter.store.standing._is_usable": true},
    ),
    "answers are counted instead of people": (
        one_person_approves_twice_where_two_must,
        {
            f"{GATES}.agreements_that_count": lambda _, given, **__: [*given],
            f"{GATES}.why_already_given": lambda *_: None,
            f"{ANSWERS}.why_too_few": lambda *_: None,
            f"{PERMISSION}.why_too_few": lambda *_: None,
        },
    ),
    "anybody counts among several": (
        somebody_else_approves_where_two_must,
        {
            f"{GATES}.refusal": lambda *_, **__: None,
            f"{GATES}.agreements_that_count": lambda _, given, **__: [*given],
            f"{ANSWERS}.why_too_few": lambda *_: None,
        },
    ),
    "approvals of another digest are counted": (
        an_approval_of_two_was_of_other_content,
        {
            f"{GATES}.agreements_that_count": lambda _, given, **__: [*given],
            f"{ANSWERS}.why_too_few": lambda *_: None,
            f"{PERMISSION}.why_too_few": lambda *_: None,
        },
    ),
    "no quorum in the transaction of the intent": (
        an_approval_of_two_is_deleted_while_steps_run,
        {f"{PERMISSION}.why_too_few": lambda *_: None},
    ),
    "a standing approval meets a quorum": (
        one_person_gives_a_standing_approval_where_two_must,
        {"plan_adapter.runs.standing.why_one_is_too_few": lambda *_: None},
    ),
    "an approval in advance meets a quorum": (
        one_person_approves_in_advance_where_two_must,
        {"plan_adapter.runs.plan_approval.why_one_is_too_few": lambda *_: None},
    ),
    "anybody may give a standing approval": (
        a_standing_approval_is_given_by_somebody_who_is_not_an_approver,
        {"plan_adapter.runs.standing.refusal": lambda *_, **__: None},
    ),
}


def _approved(bound: Any, approval: Any) -> Any:
    from plan_adapter.gates.approval import ApprovedPlan

    return ApprovedPlan(bound, replace(approval, expires_at=None))


@pytest.mark.parametrize(("scenario", "patches"), VARIANTS.values(), ids=VARIANTS)
async def test_the_gate_opens_without_a_check(
    scenario: Scenario, patches: dict[str, Any], world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, replacement in patches.items():
        monkeypatch.setattr(name, replacement)
    with suppress(NotApprovedError, RunConflictError):
        await scenario(world)
    assert world.struck


SCENARIOS = dict.fromkeys(
    [*(scenario for scenario, _ in VARIANTS.values()), an_answer_for_other_content_is_given, an_approval_of_another_tenant_is_given]
)


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.__name__)
async def test_the_gate_stays_closed_with_all_checks(scenario: Scenario, world: World) -> None:
    await scenario(world)
    assert world.struck == []


CHECKED_IN_A_TRANSACTION = (
    the_approval_is_deleted_while_steps_run,
    the_content_is_changed_while_steps_run,
    the_standing_approval_is_revoked_while_steps_run,
    an_approval_of_two_is_deleted_while_steps_run,
    one_person_approves_twice_where_two_must,
    an_approval_is_used_twice,
    the_approval_of_a_step_was_used_in_an_earlier_start,
    an_answer_comes_after_the_expiry,
    a_standing_approval_is_used_up,
    an_approval_of_another_tenant_is_given,
)


@pytest.mark.parametrize("store_url", ["postgresql"], indirect=True)
@pytest.mark.parametrize("scenario", CHECKED_IN_A_TRANSACTION, ids=lambda scenario: scenario.__name__)
async def test_the_gate_stays_closed_with_all_checks_on_postgresql(scenario: Scenario, world: World) -> None:
    await scenario(world)
    assert world.struck == []
