"""Tests of step gates: what runs while a step waits, and what each answer does."""

import asyncio
from dataclasses import dataclass, field
from datetime import UTC, datetime

import pytest

from plan_adapter.execution.limits import RunClock
from plan_adapter.execution.ports import GatedCall, GateRefusal
from plan_adapter.model.approvals import Approval
from plan_adapter.model.canonical import call_digest
from plan_adapter.model.plan import Step, new_id
from plan_adapter.model.status import Outcome, PlanStatus, RunReason, StepStatus
from plan_adapter.tools.tool import tool
from tests.execution.support import Execution, plan_of
from tests.execution.test_scheduler import World


@dataclass
class Approvers:
    """Approvers who answer when the test says so. Implements `ports.StepGates`."""

    asked: dict[str, GatedCall] = field(default_factory=dict)
    answers: dict[str, asyncio.Future[Approval | GateRefusal]] = field(default_factory=dict)
    changed: asyncio.Condition = field(default_factory=asyncio.Condition)
    waits: bool = True

    def is_gated(self, step: Step) -> bool:
        return step.requires_approval

    async def ask(self, call: GatedCall) -> Approval | GateRefusal:
        self.asked[call.name] = call
        self.answers[call.name] = asyncio.get_running_loop().create_future()
        async with self.changed:
            self.changed.notify_all()
        return await self.answers[call.name]

    async def until_asked(self, *names: str) -> None:
        async with self.changed:
            await self.changed.wait_for(lambda: set(names) <= set(self.asked))

    def approve(self, name: str) -> Approval:
        call = self.asked[name]
        approval = Approval(
            new_id(), call.approval_digest, "approve", "ana", "os_user", datetime.now(UTC), step_id=call.step.id, item=call.item
        )
        self.answers[name].set_result(approval)
        return approval

    def refuse(self, name: str, refusal: GateRefusal) -> None:
        self.answers[name].set_result(refusal)


REJECTED = GateRefusal(RunReason.REJECTED, "bo rejected it: not today")


def gated(edges: dict[str, list[str]], *names: str, **options: object):
    plan = plan_of(edges, **{"allow_parallel": True, **options})
    for step in plan.steps:
        step.requires_approval = step.id in names
    return plan


async def test_other_branches_continue_while_a_step_waits_without_a_slot():
    world, approvers = World(), Approvers()
    plan = gated({"gate": [], "a": [], "b": ["a"]}, "gate", max_parallel_steps=1)
    execution = Execution(plan, [world.work], gates=approvers)
    running = asyncio.create_task(execution.go())
    await world.until_begun("a", "b")
    await approvers.until_asked("gate")
    assert "gate" not in world.begun
    approvers.approve("gate")
    assert (await running).status is PlanStatus.COMPLETED
    assert world.begun == ["a", "b", "gate"]


async def test_the_intent_names_the_approval_and_the_digest_of_the_actual_call():
    world, approvers = World(), Approvers()
    plan = gated({"first": [], "second": ["first"]}, "second")
    plan.steps[1].parameters = {"name": "${{ steps.first.result }}"}
    execution = Execution(plan, [world.work], gates=approvers)
    running = asyncio.create_task(execution.go())
    await approvers.until_asked("second")
    call = approvers.asked["second"]
    assert call.parameters == {"name": "FIRST"}
    approval = approvers.approve("second")
    await running
    ungated, intent = execution.recorder.attempts
    assert (ungated.approval_id, ungated.approval_digest) == (None, None)
    assert (intent.approval_id, intent.approval_digest) == (approval.id, call.approval_digest)
    step = execution.scope.approved.bound.validated.plan.step("second")
    assert call.approval_digest == call_digest(step, None, {"name": "FIRST"}, world.work.definition())
    assert call.approval_digest != call_digest(step, None, {"name": "OTHER"}, world.work.definition())
    assert call.approval_digest != call_digest(step, 0, {"name": "FIRST"}, world.work.definition())
    assert call.approval_digest != call_digest(step, None, {"name": "FIRST"}, {**world.work.definition(), "effect": "write"})


async def test_a_rejection_starts_no_further_step_and_cancels_the_run_as_rejected():
    world, approvers = World(held=("long",)), Approvers()
    plan = gated({"long": [], "gate": [], "after": ["gate"], "later": ["long"]}, "gate")
    execution = Execution(plan, [world.work], gates=approvers)
    running = asyncio.create_task(execution.go())
    await approvers.until_asked("gate")
    await world.until_begun("long")
    approvers.refuse("gate", REJECTED)
    world.gates["long"].set()
    run = await running
    assert (run.status, run.reason, run.message) == (PlanStatus.CANCELLED, RunReason.REJECTED, REJECTED.message)
    assert world.ended == ["long"]
    assert run.step("long").status is StepStatus.COMPLETED
    assert run.step("gate").reason == REJECTED.message
    assert {step.status for step in run.steps if step.id != "long"} == {StepStatus.SKIPPED}


async def test_a_rejection_with_continue_on_error_skips_only_dependent_steps():
    world, approvers = World(), Approvers()
    plan = gated({"gate": [], "after": ["gate"], "other": []}, "gate", continue_on_error=True)
    execution = Execution(plan, [world.work], gates=approvers)
    running = asyncio.create_task(execution.go())
    await approvers.until_asked("gate")
    approvers.refuse("gate", REJECTED)
    run = await running
    assert (run.status, run.reason) == (PlanStatus.CANCELLED, RunReason.REJECTED)
    assert world.ended == ["other"]
    assert run.step("after").reason == f"`gate` was skipped: {REJECTED.message}"


async def test_a_refusal_that_does_not_end_the_run_skips_the_step_and_its_dependents():
    world, approvers = World(), Approvers()
    execution = Execution(gated({"gate": [], "after": ["gate"], "other": []}, "gate"), [world.work], gates=approvers)
    running = asyncio.create_task(execution.go())
    await approvers.until_asked("gate")
    approvers.refuse("gate", GateRefusal(RunReason.EXPIRED, "nobody answered", ends_run=False))
    run = await running
    assert run.status is PlanStatus.COMPLETED
    assert [step.status for step in run.steps] == [StepStatus.SKIPPED, StepStatus.SKIPPED, StepStatus.COMPLETED]


async def test_a_failed_step_takes_precedence_over_a_rejection():
    world, approvers = World(failing=("bad",)), Approvers()
    plan = gated({"gate": [], "bad": []}, "gate", continue_on_error=True)
    execution = Execution(plan, [world.work], gates=approvers)
    running = asyncio.create_task(execution.go())
    await approvers.until_asked("gate")
    approvers.refuse("gate", REJECTED)
    run = await running
    assert (run.status, run.reason) == (PlanStatus.FAILED, RunReason.STEP_FAILED)


async def test_each_item_of_a_loop_has_its_own_gate():
    world, approvers = World(), Approvers()
    plan = gated({"each": []}, "each", max_parallel_steps=1, continue_on_error=True)
    plan.steps[0].for_each, plan.steps[0].parameters = "${{ ['x', 'y', 'z'] }}", {"name": "${{ item }}"}
    execution = Execution(plan, [world.work], gates=approvers)
    running = asyncio.create_task(execution.go())
    await approvers.until_asked("each[x]", "each[y]", "each[z]")
    assert len({call.approval_digest for call in approvers.asked.values()}) == 3
    approvers.approve("each[z]")
    await world.until_begun("z")
    approvers.refuse("each[y]", REJECTED)
    approvers.approve("each[x]")
    run = await running
    assert sorted(world.ended) == ["x", "z"]
    assert run.step("each").status is StepStatus.FAILED
    assert run.step("each").error == f"1 of 3 items was not started: {REJECTED.message}"


async def test_no_approval_is_requested_for_a_call_that_cannot_be_made():
    world, approvers = World(), Approvers()
    plan = gated({"first": [], "gate": ["first"]}, "gate")
    plan.steps[1].parameters = {"name": "${{ string(int(steps.first.result)) }}"}
    run = await Execution(plan, [world.work], gates=approvers).go()
    assert approvers.asked == {}
    assert run.step("gate").status is StepStatus.FAILED
    assert run.reason is RunReason.STEP_FAILED


async def test_a_step_approved_after_another_step_failed_is_not_called():
    world, approvers = World(failing=("bad",)), Approvers()
    execution = Execution(gated({"gate": [], "bad": []}, "gate"), [world.work], gates=approvers)
    running = asyncio.create_task(execution.go())
    await approvers.until_asked("gate")
    await world.until_begun("bad")
    while execution.kinds("bad")[-1:] != ["step_failed"]:
        await asyncio.sleep(0)
    approvers.approve("gate")
    run = await running
    assert world.begun == ["bad"]
    assert run.step("gate").status is StepStatus.SKIPPED


async def test_an_approved_call_is_retried_under_the_same_approval():
    tries: list[str] = []

    @tool(effect="read")
    def work(name: str) -> str:
        """Fail once."""
        tries.append(name)
        if len(tries) == 1:
            raise ValueError("not yet")
        return name

    approvers = Approvers()
    plan = gated({"gate": []}, "gate")
    plan.steps[0].max_retries = 1
    execution = Execution(plan, [work], gates=approvers)
    running = asyncio.create_task(execution.go())
    await approvers.until_asked("gate")
    approval = approvers.approve("gate")
    assert (await running).status is PlanStatus.COMPLETED
    assert [attempt.approval_id for attempt in execution.recorder.attempts] == [approval.id, approval.id]


async def test_a_refused_intent_fails_the_step_without_a_call_or_retry():
    from plan_adapter.model.errors import NotApprovedError

    world, approvers = World(), Approvers()
    plan = gated({"gate": []}, "gate")
    plan.steps[0].max_retries = 3
    execution = Execution(plan, [world.work], gates=approvers)

    async def refuse(_attempt: object) -> None:
        raise NotApprovedError("the approval was revoked")

    execution.recorder.intent = refuse  # type: ignore[method-assign]
    running = asyncio.create_task(execution.go())
    await approvers.until_asked("gate")
    approvers.approve("gate")
    run = await running
    step = run.step("gate")
    assert (world.begun, step.attempts, step.outcome, step.error) == ([], 0, Outcome.FAILED, "the approval was revoked")


async def test_the_total_timeout_pauses_while_only_gates_are_open():
    world, approvers = World(), Approvers()
    execution = Execution(
        gated({"a": [], "gate": ["a"], "after": ["gate"]}, "gate", total_timeout_ms=60_000), [world.work], gates=approvers
    )
    running = asyncio.create_task(execution.go())
    await approvers.until_asked("gate")
    clock = execution.scope.clock
    assert clock is not None
    assert clock.deadline is None
    approvers.approve("gate")
    await world.until_begun("after")
    assert (await running).status is PlanStatus.COMPLETED


async def test_the_total_timeout_runs_while_a_step_runs_beside_the_gate():
    world, approvers = World(held=("long",)), Approvers()
    execution = Execution(gated({"long": [], "gate": []}, "gate", total_timeout_ms=60_000), [world.work], gates=approvers)
    running = asyncio.create_task(execution.go())
    await approvers.until_asked("gate")
    await world.until_begun("long")
    clock = execution.scope.clock
    assert clock is not None
    assert clock.deadline is not None
    world.gates["long"].set()
    while clock.deadline is not None:
        await asyncio.sleep(0)
    approvers.approve("gate")
    await running


async def test_a_paused_clock_spends_no_time():
    loop, spent = asyncio.get_running_loop(), asyncio.Event()
    clock = RunClock(30.0, spent.set)
    first = clock.deadline
    assert first is not None
    clock.pause()
    clock.pause()
    assert clock.deadline is None
    clock.resume()
    assert clock.deadline == pytest.approx(loop.time() + 30.0, abs=1.0)
    clock.end()
    clock.resume()
    assert clock.deadline is None
    RunClock(0.0, spent.set)
    await spent.wait()
