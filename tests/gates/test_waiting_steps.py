"""Tests of step gates: detached runs, requests for changes, stale approvals, and expiry without a process."""

import asyncio
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from plan_adapter import ExecutionPlan, PlanRun
from plan_adapter.cli.progress_lines import plain_lines
from plan_adapter.errors import RunConflictError
from plan_adapter.execution.direct import DirectStepRunner
from plan_adapter.execution.history import RunHistory
from plan_adapter.gates.approvers import CallbackApprover
from plan_adapter.gates.gate import GateForms
from plan_adapter.local.settings import Settings
from plan_adapter.model.approvals import Answer, ApprovalRequest, Gate
from plan_adapter.model.hooks import Event
from plan_adapter.model.options import ApprovalPolicy, Question
from plan_adapter.model.plan import Step
from plan_adapter.model.status import RunReason
from plan_adapter.runs import arevise_run
from plan_adapter.runs.plan_approval import end_overdue
from plan_adapter.runs.reconcile import reconcile
from plan_adapter.runs.resume import execute_resume
from plan_adapter.runs.run_session import Backend, RunSession
from plan_adapter.runs.start import create_run, execute_plan, execute_run
from plan_adapter.store import PlanStatus, StepStatus
from plan_adapter.text.gate_text import at_minute
from tests.gates.questions import FIELDS, plan_with_question
from tests.gates.test_questions import ANSWER
from tests.gates.world import FixedApprover, FormAnswers, World
from tests.store.conftest import on_both_databases

BOUND_SECONDS = 30.0


def plan_with_branches(world: World, **options: Any) -> ExecutionPlan:
    """Return a plan with a gated step beside an ungated branch of two steps."""
    plan = world.plan(gated=True, **options)
    plan.add_step("look", "Look elsewhere", {"target": "b"}, id="aside", depends_on=["look"])
    plan.add_step("look", "And again", {"target": "c"}, id="after", depends_on=["aside"])
    plan.options.allow_parallel = True
    return plan


async def detached(world: World, plan: ExecutionPlan | None = None, *, approver: Any = None) -> PlanRun:
    """Return a run that was started without waiting at its gates."""
    run_request = replace(world.run_request(approver), waits=False)
    work = execute_plan(
        world.bound(plan or plan_with_branches(world)), run_request=run_request, store=world.store, offline=True, record_pending=True
    )
    return await asyncio.wait_for(work, BOUND_SECONDS)


async def resumed(world: World, run_id: str, *, waits: bool = False, approver: Any = None) -> PlanRun:
    run_request = replace(world.run_request(approver), waits=waits)
    work = execute_resume(run_id, tools=world.tools(), run_request=run_request, store=world.store, offline=True, record_pending=True)
    return await asyncio.wait_for(work, BOUND_SECONDS)


async def test_whoever_sees_a_gate_also_sees_the_end_of_the_step_before_it(world: World) -> None:
    seen = list[StepStatus]()

    async def look(request: ApprovalRequest) -> str:
        if request.step_id == "strike":
            seen.extend(step.status for step in (await world.store.run(request.run_id or "")).steps if step.id == "look")
        return "approve"

    await detached(world, world.plan(gated=True), approver=CallbackApprover(look))
    assert seen == [StepStatus.COMPLETED]


async def test_a_detached_run_stops_once_only_gates_remain(world: World) -> None:
    run = await detached(world)
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
async def test_an_answer_takes_effect_at_once_while_other_branches_continue(world: World) -> None:
    reached, may_continue = asyncio.Event(), asyncio.Event()

    class Slow(DirectStepRunner):
        async def __call__(self, call: Any) -> Any:
            if call.step.id == "aside":
                reached.set()
                await may_continue.wait()
            return await super().__call__(call)

    bound, run_request = world.bound(plan_with_branches(world)), replace(world.run_request(), waits=False)
    run = await create_run(bound, world.store, run_request)
    task = asyncio.ensure_future(execute_run(RunSession(bound, run, world.store, run_request, RunHistory(), Backend(Slow()))))
    world.tasks.append(task)
    gate = await world.gate(step="strike")
    await asyncio.wait_for(reached.wait(), BOUND_SECONDS)
    await world.answer(gate)
    while not world.struck:
        await world.store.changed(0.1)
    may_continue.set()
    assert (await asyncio.wait_for(task, BOUND_SECONDS)).status is PlanStatus.COMPLETED


async def test_a_detached_run_can_be_cancelled_and_revised(world: World) -> None:
    run = await detached(world)
    await world.store.cancel(run.id, "no more")
    ended = await world.store.run(run.id)
    assert (ended.status, ended.step("look").status) == (PlanStatus.CANCELLED, StepStatus.COMPLETED)
    assert (ended.step("strike").status, ended.step("strike").reason) == (StepStatus.SKIPPED, "no more")
    assert await world.store.gates.find(run_id=run.id) == []
    second = await detached(world)
    plan = plan_with_branches(world)
    plan.add_step("look", "One more", {"target": "d"}, id="more", depends_on=["after"])
    revised = await arevise_run(second.id, plan, tools=world.tools(), by="bo", store=world.store)
    assert (revised.status, await world.store.gates.find(run_id=second.id)) == (
        PlanStatus.PENDING_APPROVAL,
        [],
    )  # the plan itself needs no approval
    done = await resumed(world, second.id, waits=True, approver=FixedApprover())
    assert (done.status, done.step("more").status, world.struck) == (PlanStatus.COMPLETED, StepStatus.COMPLETED, ["a"])


async def test_a_disallowed_answer_for_a_detached_run_leaves_the_gate_open(world: World) -> None:
    plan = plan_with_branches(world, policy=ApprovalPolicy(approvers=["bo"]))
    run = await detached(world, plan, approver=FixedApprover(by="ana"))
    assert (run.status, world.struck) == (PlanStatus.PENDING_APPROVAL, [])
    assert "at the gate of `strike`: ana may not answer here; only bo may" in ((await world.store.run(run.id)).message or "")
    await world.answer(await world.gate(step="strike"), by="bo")
    assert (await resumed(world, run.id)).status is PlanStatus.COMPLETED


# What a gate shows and records


async def test_a_gate_shows_what_led_to_the_call_and_who_may_answer_until_when(world: World) -> None:
    world.settings = Settings(approvers=("sre",), groups={"sre": ["bo"]})
    plan = world.plan(gated=True, timeout_ms=60_000)
    plan.add_step("look", "Not now", {"target": "x"}, id="aside", when="${{ inputs.target == 'b' }}")
    plan.add_step("look", "Look at something else", {"target": "y"}, id="elsewhere")
    plan.steps[1].depends_on = ["look", "aside"]
    run = await detached(world, plan)
    gate = await world.store.gates.get((await world.gate(step="strike")).id)
    first, _, rest = gate.text.partition("### The call")
    skipped = "`aside` skipped: its condition is false: ${{ inputs.target == 'b' }}"
    until = at_minute(gate.expires_at or gate.opened_at, since=gate.opened_at)
    assert first.startswith("**⚠️ `sre` is a group of PLAN_ADAPTER_GROUPS in the process that opened this gate")
    assert "## Approve strike?\n\n> Strike it\n\n**It writes and cannot be undone.** It calls `strike` with:\n\n- `target`: `a`\n" in first
    assert f"\n\nBefore it: `look` completed: `a`; {skipped}. " in first
    assert f"(run …{run.id[-6:]}), asked by runner. Rejected if nobody answers by {until} (1 min).\n" in first
    assert f"### What it depends on\n\n- `look` completed: `a`\n- {skipped}: `null`\n\n### Digests" in rest
    assert f"approval digest\n{gate.approval_digest}\n" in rest
    assert (gate.name, gate.description, gate.item, gate.label) == (run.name, "Strike it", None, None)
    assert (gate.kind, gate.call_kind, gate.fields) == ("approval", "step", {})
    assert (gate.gate_policy.approvers, gate.gate_policy.requested_by) == (("bo",), "runner")


async def test_a_gate_of_a_step_in_a_group_shows_the_earlier_steps_of_its_item(world: World) -> None:
    call: dict[str, Any] = {"tool_name": "look", "description": "Look", "parameters": {"target": "${{ item }}"}}
    inner = [
        Step(id="look", **call),
        Step(id="never", when="${{ item == 'x' }}", **call),
        Step(id="strike", depends_on=["look", "never"], requires_approval=True, **{**call, "tool_name": "strike"}),
    ]
    plan = ExecutionPlan(description="Strike each")
    plan.options.require_approval = False
    plan.steps.append(Step(id="nodes", for_each="${{ ['b', 'c'] }}", label="${{ 'node ' + item }}", steps=inner))
    await detached(world, plan)
    gate = await world.store.gates.get((await world.gate(step="strike")).id)
    assert (gate.item, gate.label) == (0, "node b")
    assert gate.text.startswith("## Approve strike for node b (1 of 2)?\n")
    assert "Before it: `look` completed: `b`; `never` skipped. " in gate.text
    assert "### What it depends on\n\n- `look` completed: `b`\n- `never` skipped: `null`\n" in gate.text


async def test_a_gate_inside_a_sub_plan_follows_the_rules_of_that_plan(world: World) -> None:
    world.settings = Settings(groups={"duty": ["bo"], "others": ["zoe"]})
    inner = world.plan(gated=True, timeout_ms=60_000, policy=ApprovalPolicy(approvers=["duty"]))
    asks = Question(question="Well?", fields=FIELDS)
    later = Step(id="later", ask=asks, description="Ask", approvers=["others"], depends_on=["inside"])
    plan = ExecutionPlan(description="Strike inside", steps=[Step(id="inside", plan="store:strike@1", pinned=inner), later])
    plan.options.require_approval = False
    await detached(world, plan)
    gate = await world.store.gates.get((await world.gate(step="inside.strike")).id)
    assert (gate.gate_policy.approvers, gate.expires_at) == (("bo",), gate.opened_at + timedelta(minutes=1))
    assert " (1 min).\n" in gate.text
    assert "`duty` is a group of PLAN_ADAPTER_GROUPS" in gate.text
    assert "`others`" not in gate.text


async def test_a_gate_that_nobody_may_answer_says_why(world: World) -> None:
    world.settings = Settings(approvers=("bo",))
    plan = world.plan(policy=ApprovalPolicy(approvers=["ana"]))
    plan.options.require_approval, plan.steps[0].requires_approval = False, True
    await detached(world, plan)
    gate = await world.store.gates.get((await world.gate(step="look")).id)
    assert "It reads and changes nothing. It calls `look` with:" in gate.text
    assert "**Nobody may answer: the environment variable PLAN_ADAPTER_APPROVERS excludes everything" in gate.text


async def test_a_listener_gets_the_step_of_a_gate(world: World) -> None:
    events = list[Event]()
    await world.start(world.plan(gated=True), approver=FixedApprover(), listener=events.append)
    at_gate = [(event.kind, event.step.id) for event in events if event.step is not None and event.gate is not None]
    assert at_gate == [("gate_opened", "strike"), ("gate_answered", "strike")]


async def test_a_question_names_only_later_writes_that_ask_nobody(world: World) -> None:
    for gated in (False, True):
        plan = plan_with_question()
        plan.steps[1].requires_approval = gated
        run = await detached(world, plan)
        (gate,) = await world.store.gates.find(run_id=run.id)
        text = (await world.store.gates.get(gate.id)).text
        assert ("cannot be undone: `strike`" in text) is not gated
    assert gate.description == "Switch to 东站?"


# Requests for changes


async def test_a_change_request_at_a_step_gate_keeps_the_run_waiting(world: World) -> None:
    task = world.start(plan_with_branches(world))
    gate = await world.gate(step="strike")
    await world.answer(gate, "request_changes", by="bo", note="先看看")
    while (again := await world.gate(step="strike")).id == gate.id:
        await world.store.changed(0.5)
    assert "bo asks for changes: 先看看" in (await world.store.gates.get(again.id)).text
    assert {where: answer.note for where, answer in (await world.store.gates.change_requests()).items()} == {again.id: "先看看"}
    with pytest.raises(RunConflictError, match=r"takes no new version of the plan.*plan cancel"):
        await arevise_run(gate.run_id, world.plan(), tools=world.tools(), by="bo", store=world.store)
    await world.answer(again)
    run = await asyncio.wait_for(task, BOUND_SECONDS)
    assert (run.status, world.struck) == (PlanStatus.COMPLETED, ["a"])


async def test_a_detached_run_with_a_change_request_is_asked_again_or_revised(world: World) -> None:
    run = await detached(world)
    gate = await world.gate(step="strike")
    await world.answer(gate, "request_changes", by="bo", note="look twice")
    assert (await resumed(world, run.id)).status is PlanStatus.PENDING_APPROVAL
    again = await world.gate(step="strike")
    assert again.id != gate.id
    assert "bo asks for changes: look twice" in (await world.store.gates.get(again.id)).text


async def test_an_approver_that_requests_changes_leaves_the_gate_of_a_detached_run_to_others(world: World) -> None:
    run = await detached(world, approver=FixedApprover("request_changes", note="look twice"))
    assert (run.status, run.reason, world.struck) == (PlanStatus.PENDING_APPROVAL, None, [])
    gate = await world.store.gates.get((await world.gate(step="strike")).id)
    assert gate.text.count("ana asks for changes: look twice") == 1


async def test_a_change_request_in_the_plan_form_opens_a_new_gate(world: World) -> None:
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


async def test_listeners_are_notified_of_a_refused_form_answer(world: World) -> None:
    events = list[Event]()
    answers = FormAnswers((Answer("approve", "eve", channel="form"), Answer("approve", "bo", channel="form")))
    bound = world.bound(world.plan(policy=ApprovalPolicy(approvers=["bo"])))
    run_request = world.run_request(asks_in_form=True, listener=events.append)
    run = await create_run(bound, world.store, run_request)
    forms = GateForms(answers.ask, answers.collected, lambda *_: None, answers.publish, answers.resume_released, answers.is_private)
    done = await asyncio.wait_for(
        execute_run(RunSession(bound, run, world.store, run_request, RunHistory(), Backend(forms=forms))), BOUND_SECONDS
    )
    assert done.status is PlanStatus.COMPLETED
    (refused,) = [event for event in events if event.kind == "gate_refused"]
    assert plain_lines(refused) == ["the plan: the answer by eve is refused: eve may not answer here; only bo may"]


# Stale approvals


async def test_a_stale_approval_is_reported_and_asked_for_again(world: World) -> None:
    run, gate = await world.detached()
    await world.answer(gate)
    world.settings = Settings(approvers=("sre",), groups={"sre": ["bo"]})
    waiting = await resumed(world, run.id)
    message = "the approval by ana is stale: ana may not answer here; only bo may"
    assert (waiting.status, waiting.message) == (PlanStatus.PENDING_APPROVAL, message)
    again = await world.gate()
    assert (again.id != gate.id, message in (await world.store.gates.get(again.id)).text) == (True, True)
    assert (await resumed(world, run.id)).status is PlanStatus.PENDING_APPROVAL
    await world.answer(again, by="bo")
    done = await resumed(world, run.id)
    assert (done.status, done.approved_by, world.struck) == (PlanStatus.COMPLETED, "bo", ["a"])


async def test_a_call_approval_that_violates_the_current_policy_is_asked_for_again(world: World) -> None:
    run = await detached(world)
    await world.answer(await world.gate(step="strike"))
    world.settings = Settings(approvers=("bo",))
    assert (await resumed(world, run.id)).status is PlanStatus.PENDING_APPROVAL
    again = await world.gate(step="strike")
    assert "the approval by ana is stale" in (await world.store.gates.get(again.id)).text
    await world.answer(again, by="bo")
    assert ((await resumed(world, run.id)).status, world.struck) == (PlanStatus.COMPLETED, ["a"])


async def test_an_approval_from_before_a_revision_is_reported_if_it_is_stale(world: World) -> None:
    run = await detached(world)
    await world.answer(await world.gate(step="strike"))
    plan = plan_with_branches(world)
    plan.add_step("look", "One more", {"target": "d"}, id="more", depends_on=["after"])
    await arevise_run(run.id, plan, tools=world.tools(), by="bo", store=world.store)
    world.settings = Settings(approvers=("bo",))
    assert (await resumed(world, run.id)).status is PlanStatus.PENDING_APPROVAL
    again = await world.gate(step="strike")
    assert "the approval by ana is stale" in (await world.store.gates.get(again.id)).text


# Without a process


async def test_resuming_a_cancelled_run_as_detached_reopens_its_gate(world: World) -> None:
    run, gate = await world.detached()
    await world.store.cancel(run.id, "its process was told to end (SIGTERM)")
    again = await resumed(world, run.id)
    assert (again.status, again.reason, again.completed_at) == (PlanStatus.PENDING_APPROVAL, None, None)
    assert (await world.gate()).id != gate.id
    await world.answer(await world.gate())
    assert (await resumed(world, run.id)).status is PlanStatus.COMPLETED


async def after_expiry(world: World, run: PlanRun) -> PlanRun:
    """Return the run after its gate expired and a process checked it."""
    await world.sql("UPDATE gates SET expires_at = opened_at WHERE run_id = :run", run=run.id)
    return await end_overdue(await world.store.run(run.id), world.store)


async def test_a_step_gate_that_expires_without_a_process_ends_the_run_as_expired(world: World) -> None:
    ended = await after_expiry(world, await detached(world, plan_with_branches(world, timeout_ms=60_000)))
    assert (ended.status, ended.reason) == (PlanStatus.CANCELLED, RunReason.EXPIRED)
    assert ended.message == ended.step("strike").reason == "nobody answered within 0 ms at the gate of `strike`"
    assert ended.step("strike").status is StepStatus.SKIPPED


async def test_the_expired_gate_of_another_run_does_not_expire_the_same_call(world: World) -> None:
    run = await detached(world)
    other = await after_expiry(world, await detached(world, plan_with_branches(world, timeout_ms=60_000)))
    assert other.reason is RunReason.EXPIRED
    assert (await resumed(world, run.id)).status is PlanStatus.PENDING_APPROVAL


async def test_an_expired_run_asks_again_when_it_is_resumed_and_keeps_its_completed_steps(world: World) -> None:
    ended = await after_expiry(world, await detached(world, plan_with_branches(world, timeout_ms=60_000)))
    before = {attempt.step_id: attempt.number for attempt in await world.store.attempts(ended.id)}
    for _ in range(2):  # also after it has expired once more
        again = await resumed(world, ended.id)
        assert (again.status, again.reason, (await world.gate(step="strike")).end) == (PlanStatus.PENDING_APPROVAL, None, None)
        assert (await after_expiry(world, again)).reason is RunReason.EXPIRED
    await resumed(world, ended.id)
    await world.answer(await world.gate(step="strike"))
    done = await resumed(world, ended.id)
    assert (done.status, world.struck, done.step("look").carried) == (PlanStatus.COMPLETED, ["a"], True)
    assert {attempt.step_id: attempt.number for attempt in await world.store.attempts(ended.id)} == {**before, "strike": 1}
    assert (await world.store.verify(ended.id)).ok


@pytest.mark.parametrize("waits", [False, True], ids=["without a process", "while a process waits"])
async def test_an_expired_question_is_asked_again_when_its_run_is_resumed(waits: bool, world: World) -> None:
    plan = plan_with_question(timeout_ms=1_500 if waits else 60_000)
    ended = await world.start(plan) if waits else await after_expiry(world, await detached(world, plan))
    assert (ended.status, ended.reason) == (PlanStatus.CANCELLED, RunReason.EXPIRED)
    again = await resumed(world, ended.id, waits=True, approver=CallbackApprover(lambda _: ANSWER))
    assert (again.status, world.struck) == (PlanStatus.COMPLETED, ["switch on 3"]), again.message


async def test_an_expired_item_is_asked_about_again_and_the_other_items_are_kept(world: World) -> None:
    plan = world.plan(gated=True, timeout_ms=60_000)
    plan.steps[1].for_each, plan.steps[1].parameters = "${{ ['a', 'b'] }}", {"target": "${{ item }}"}
    run = await detached(world, plan)
    await world.answer(next(gate for gate in await world.store.gates.find(run_id=run.id) if gate.item == 0))
    await resumed(world, run.id)
    ended = await after_expiry(world, run)
    assert (ended.reason, world.struck) == (RunReason.EXPIRED, ["a"])
    await resumed(world, run.id)
    (gate,) = await world.store.gates.find(run_id=run.id)
    assert gate.item == 1
    await world.answer(gate)
    assert ((await resumed(world, run.id)).status, world.struck) == (PlanStatus.COMPLETED, ["a", "b"])


async def test_a_run_whose_plan_nobody_approved_in_time_is_over(world: World) -> None:
    run, _ = await world.detached(world.plan(timeout_ms=60_000))
    ended = await after_expiry(world, run)
    with pytest.raises(RunConflictError, match="has expired; resuming does not approve it: start a new run"):
        await resumed(world, ended.id)


async def test_a_step_skipped_at_expiry_stays_skipped_on_resume(world: World) -> None:
    run = await after_expiry(
        world, await detached(world, plan_with_branches(world, timeout_ms=60_000, policy=ApprovalPolicy(expires="skip")))
    )
    assert (run.status, await world.store.gates.find(run_id=run.id)) == (PlanStatus.PENDING_APPROVAL, [])
    done = await resumed(world, run.id)
    assert (done.step("strike").status, done.completed_at is not None, world.struck) == (StepStatus.SKIPPED, True, [])
