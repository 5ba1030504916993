"""Gates of steps at which nobody is waited for, at which changes are asked for, and whose answers count no more."""

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from plan_adapter import ExecutionPlan, PlanRun, PlanStatus, RunConflictError, StepStatus, arevise_run
from plan_adapter.approvals import Answer, Gate
from plan_adapter.cli.progress import plain_lines
from plan_adapter.execution.direct import DirectStepRunner
from plan_adapter.execution.history import RunHistory
from plan_adapter.gates.gate import GateForms
from plan_adapter.hooks import Event
from plan_adapter.options import ApprovalPolicy
from plan_adapter.runs.approval import end_overdue
from plan_adapter.runs.reconcile import reconcile
from plan_adapter.runs.resume import execute_resume
from plan_adapter.runs.session import Backend, RunSession
from plan_adapter.runs.start import create_run, execute_plan, execute_run
from plan_adapter.settings import Settings
from plan_adapter.status import RunReason
from tests.gates.world import FormAnswers, Says, World
from tests.store.conftest import on_both_databases

BOUND_SECONDS = 30.0


def branches(world: World, **options: Any) -> ExecutionPlan:
    """A plan whose gated step stands beside a branch of two steps that is not gated."""
    plan = world.plan(gated=True, **options)
    plan.add_step("look", "Look elsewhere", {"target": "b"}, id="aside", depends_on=["look"])
    plan.add_step("look", "And again", {"target": "c"}, id="after", depends_on=["aside"])
    plan.options.allow_parallel = True
    return plan


async def left(world: World, plan: ExecutionPlan | None = None, *, approver: Any = None) -> PlanRun:
    """A run at whose gates nobody is waited for."""
    run_request = replace(world.run_request(approver), waits=False)
    work = execute_plan(world.bound(plan or branches(world)), run_request=run_request, store=world.store, offline=True, record_pending=True)
    return await asyncio.wait_for(work, BOUND_SECONDS)


async def resumed(world: World, run_id: str, *, waits: bool = False, approver: Any = None) -> PlanRun:
    run_request = replace(world.run_request(approver), waits=waits)
    work = execute_resume(run_id, tools=world.tools(), run_request=run_request, store=world.store, offline=True, record_pending=True)
    return await asyncio.wait_for(work, BOUND_SECONDS)


async def test_a_run_that_waits_for_nobody_is_left_once_nothing_but_gates_is_open(world: World) -> None:
    run = await left(world)
    assert (run.status, run.reason, run.completed_at) == (PlanStatus.PENDING_APPROVAL, None, None)
    kept = await world.store.run(run.id)
    assert {step.id: step.status for step in kept.steps} == {
        "look": StepStatus.COMPLETED,
        "strike": StepStatus.PENDING,
        "aside": StepStatus.COMPLETED,
        "after": StepStatus.COMPLETED,
    }
    (gate,) = await world.store.gates.find(run_id=run.id)
    assert (gate.step_id, gate.attended, await world.store.ledger.owner(run.id)) == ("strike", False, None)
    again = await resumed(world, run.id)
    assert (again.status, world.struck) == (PlanStatus.PENDING_APPROVAL, [])
    assert [(open_gate.id, open_gate.openings) for open_gate in await world.store.gates.find(run_id=run.id)] == [(gate.id, 2)]
    await world.answer(await world.gate(step="strike"))
    (finding,) = await reconcile(world.store, with_prefect=False)
    assert finding.message == "answered while no process waited: approve of `strike` by ana"
    assert finding.command == f"plan resume {run.id} --offline"
    done = await resumed(world, run.id)
    assert (done.status, world.struck) == (PlanStatus.COMPLETED, ["a"])


@on_both_databases
async def test_an_answer_is_used_at_once_while_other_branches_continue(world: World) -> None:
    reached, goes_on = asyncio.Event(), asyncio.Event()

    class Slow(DirectStepRunner):
        async def __call__(self, call: Any) -> Any:
            if call.step.id == "aside":
                reached.set()
                await goes_on.wait()
            return await super().__call__(call)

    bound, run_request = world.bound(branches(world)), replace(world.run_request(), waits=False)
    run = await create_run(bound, world.store, run_request)
    going = asyncio.ensure_future(execute_run(RunSession(bound, run, world.store, run_request, RunHistory(), Backend(Slow()))))
    world.going.append(going)
    gate = await world.gate(step="strike")
    await asyncio.wait_for(reached.wait(), BOUND_SECONDS)
    await world.answer(gate)
    while not world.struck:
        await world.store.changed(0.1)
    goes_on.set()
    assert (await asyncio.wait_for(going, BOUND_SECONDS)).status is PlanStatus.COMPLETED


async def test_a_run_that_was_left_can_be_cancelled_and_revised(world: World) -> None:
    run = await left(world)
    await world.store.cancel(run.id, "no more")
    ended = await world.store.run(run.id)
    assert (ended.status, ended.step("look").status) == (PlanStatus.CANCELLED, StepStatus.COMPLETED)
    assert (ended.step("strike").status, ended.step("strike").reason) == (StepStatus.SKIPPED, "no more")
    assert await world.store.gates.find(run_id=run.id) == []
    second = await left(world)
    plan = branches(world)
    plan.add_step("look", "One more", {"target": "d"}, id="more", depends_on=["after"])
    revised = await arevise_run(second.id, plan, tools=world.tools(), by="bo", store=world.store)
    assert (revised.status, await world.store.gates.find(run_id=second.id)) == (PlanStatus.PENDING_APPROVAL, [])  # its author asks for none
    done = await resumed(world, second.id, waits=True, approver=Says())
    assert (done.status, done.step("more").status, world.struck) == (PlanStatus.COMPLETED, StepStatus.COMPLETED, ["a"])


async def test_who_answers_for_a_run_that_waits_for_nobody_and_may_not_leaves_the_gate_to_others(world: World) -> None:
    plan = branches(world, policy=ApprovalPolicy(approvers=["bo"]))
    run = await left(world, plan, approver=Says(by="ana"))
    assert (run.status, world.struck) == (PlanStatus.PENDING_APPROVAL, [])
    assert "at the gate of `strike`: ana may not answer here; only bo may" in ((await world.store.run(run.id)).message or "")
    await world.answer(await world.gate(step="strike"), by="bo")
    assert (await resumed(world, run.id)).status is PlanStatus.COMPLETED


# Changes


async def test_a_request_for_changes_at_a_steps_gate_keeps_the_run_waiting_there(world: World) -> None:
    going = world.start(branches(world))
    gate = await world.gate(step="strike")
    await world.answer(gate, "request_changes", by="bo", note="先看看")
    while (again := await world.gate(step="strike")).id == gate.id:
        await world.store.changed(0.5)
    assert "bo asks for changes: 先看看" in (await world.store.gates.get(again.id)).text
    assert {where: answer.note for where, answer in (await world.store.gates.changes_asked()).items()} == {again.id: "先看看"}
    with pytest.raises(RunConflictError, match=r"takes no new version of the plan.*plan cancel"):
        await arevise_run(gate.run_id, world.plan(), tools=world.tools(), by="bo", store=world.store)
    await world.answer(again)
    run = await asyncio.wait_for(going, BOUND_SECONDS)
    assert (run.status, world.struck) == (PlanStatus.COMPLETED, ["a"])


async def test_a_request_for_changes_of_a_run_that_was_left_is_asked_about_again_or_revised(world: World) -> None:
    run = await left(world)
    gate = await world.gate(step="strike")
    await world.answer(gate, "request_changes", by="bo", note="look twice")
    assert (await resumed(world, run.id)).status is PlanStatus.PENDING_APPROVAL
    again = await world.gate(step="strike")
    assert again.id != gate.id
    assert "bo asks for changes: look twice" in (await world.store.gates.get(again.id)).text


async def test_a_request_for_changes_in_the_plans_form_opens_a_new_gate(world: World) -> None:
    run, gate = await world.detached()
    await world.store.gates.show(gate.id, flow_run_id="f", keyset="k")
    form, run_request = FormAnswers(()), replace(world.run_request(), waits=False)

    async def collected(_gate: Gate) -> Answer:
        return Answer("request_changes", "bo", "look twice", channel="form")

    forms = GateForms(form.ask, collected, lambda *_: None, form.publish, form.resume_released, form.is_private)
    left = await execute_run(RunSession(world.bound(), run, world.store, run_request, RunHistory(), Backend(forms=forms)))
    again = await world.gate()
    assert (left.status, again.id != gate.id, again.attended) == (PlanStatus.PENDING_APPROVAL, True, False)
    assert "bo asks for changes: look twice" in (await world.store.gates.get(again.id)).text


async def test_a_refused_answer_in_the_form_is_shown_to_watchers(world: World) -> None:
    told = list[Event]()
    answers = FormAnswers((Answer("approve", "eve", channel="form"), Answer("approve", "bo", channel="form")))
    bound = world.bound(world.plan(policy=ApprovalPolicy(approvers=["bo"])))
    run_request = world.run_request(asks_in_form=True, listener=told.append)
    run = await create_run(bound, world.store, run_request)
    forms = GateForms(answers.ask, answers.collected, lambda *_: None, answers.publish, answers.resume_released, answers.is_private)
    done = await asyncio.wait_for(
        execute_run(RunSession(bound, run, world.store, run_request, RunHistory(), Backend(forms=forms))), BOUND_SECONDS
    )
    assert done.status is PlanStatus.COMPLETED
    (refused,) = [event for event in told if event.kind == "gate_refused"]
    assert plain_lines(refused) == ["the plan: the answer by eve is refused: eve may not answer here; only bo may"]


# Answers that count no more


async def test_a_stale_approval_is_reported_and_asked_for_again(world: World) -> None:
    run, gate = await world.detached()
    await world.answer(gate)
    world.settings = Settings(approvers=("sre",), groups={"sre": ["bo"]})
    waiting = await resumed(world, run.id)
    said = "the approval by ana no longer counts: ana may not answer here; only bo may"
    assert (waiting.status, waiting.message) == (PlanStatus.PENDING_APPROVAL, said)
    again = await world.gate()
    assert (again.id != gate.id, said in (await world.store.gates.get(again.id)).text) == (True, True)
    assert (await resumed(world, run.id)).status is PlanStatus.PENDING_APPROVAL
    await world.answer(again, by="bo")
    done = await resumed(world, run.id)
    assert (done.status, done.approved_by, world.struck) == (PlanStatus.COMPLETED, "bo", ["a"])


async def test_an_approval_of_a_call_that_todays_rules_do_not_take_is_asked_for_again(world: World) -> None:
    run = await left(world)
    await world.answer(await world.gate(step="strike"))
    world.settings = Settings(approvers=("bo",))
    assert (await resumed(world, run.id)).status is PlanStatus.PENDING_APPROVAL
    again = await world.gate(step="strike")
    assert "the approval by ana no longer counts" in (await world.store.gates.get(again.id)).text
    await world.answer(again, by="bo")
    assert ((await resumed(world, run.id)).status, world.struck) == (PlanStatus.COMPLETED, ["a"])


# Without a process


async def test_a_run_that_was_cancelled_at_its_gate_opens_it_again_where_nobody_is_waited_for(world: World) -> None:
    run, gate = await world.detached()
    await world.store.cancel(run.id, "its process was told to end (SIGTERM)")
    again = await resumed(world, run.id)
    assert (again.status, again.reason, again.completed_at) == (PlanStatus.PENDING_APPROVAL, None, None)
    assert (await world.gate()).id != gate.id
    await world.answer(await world.gate())
    assert (await resumed(world, run.id)).status is PlanStatus.COMPLETED


async def over(world: World, run: PlanRun) -> PlanRun:
    """The run once somebody has looked at it after the time of its gate was over."""
    await world.sql("UPDATE gates SET expires_at = opened_at WHERE run_id = :run", run=run.id)
    return await end_overdue(await world.store.run(run.id), world.store)


async def test_a_step_whose_time_is_over_while_no_process_waits_ends_the_run_as_expired(world: World) -> None:
    ended = await over(world, await left(world, branches(world, timeout_ms=60_000)))
    assert (ended.status, ended.reason) == (PlanStatus.CANCELLED, RunReason.EXPIRED)
    assert ended.message == ended.step("strike").reason == "nobody answered within 0 ms at the gate of `strike`"
    assert ended.step("strike").status is StepStatus.SKIPPED
    with pytest.raises(RunConflictError, match="has expired"):
        await resumed(world, ended.id)


async def test_a_step_skipped_at_expiry_stays_skipped_on_resume(world: World) -> None:
    run = await over(world, await left(world, branches(world, timeout_ms=60_000, policy=ApprovalPolicy(expires="skip"))))
    assert (run.status, await world.store.gates.find(run_id=run.id)) == (PlanStatus.PENDING_APPROVAL, [])
    done = await resumed(world, run.id)
    assert (done.step("strike").status, done.completed_at is not None, world.struck) == (StepStatus.SKIPPED, True, [])
