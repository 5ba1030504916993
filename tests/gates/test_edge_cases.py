"""Tests of gate edge cases: stopped runs, misbehaving approvers, hanging hooks, and answers given while no process waits."""

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from plan_adapter import PlanRun, PlanStore, approve
from plan_adapter.cli.progress_lines import gate_line
from plan_adapter.errors import NotApprovedError, RunConflictError, StoreError
from plan_adapter.execution.history import RunHistory
from plan_adapter.gates.approvers import CallbackApprover
from plan_adapter.local.settings import Settings
from plan_adapter.model.approvals import Approval, ApprovalRequest, Decision, Gate
from plan_adapter.model.hooks import Event
from plan_adapter.model.options import ApprovalPolicy
from plan_adapter.model.status import RunReason
from plan_adapter.runner import arevise_run
from plan_adapter.runs import Hooks
from plan_adapter.runs.run_session import Backend, RunSession
from plan_adapter.runs.start import create_run, execute_plan, execute_run
from plan_adapter.store import PlanStatus, StepStatus
from tests.gates.test_attacks import standing
from tests.gates.test_starts import SCHEDULE
from tests.gates.world import FixedApprover, Silent, World

BOUND_SECONDS = 15

pytestmark = pytest.mark.parametrize("store_url", ["sqlite"], indirect=True)  # test_attacks.py covers both databases


async def ended(task: "asyncio.Task[PlanRun]") -> PlanRun:
    """Return the ended run; fail after `BOUND_SECONDS`."""
    return await asyncio.wait_for(asyncio.shield(task), BOUND_SECONDS)


def items_plan(world: World, **options: Any) -> Any:
    plan = world.plan(gated=True)
    plan.steps[1].for_each = "${{ ['a', 'b', 'c'] }}"
    plan.steps[1].parameters = {"target": "${{ item }}"}
    for name, value in options.items():
        setattr(plan.options, name, value)
    return plan


async def gates_of_items(world: World) -> dict[int | None, Gate]:
    await world.gate(step="strike", count=3)
    return {gate.item: gate for gate in await world.store.gates.find()}


async def test_rejecting_one_item_closes_the_other_gates_and_ends_the_run(world: World) -> None:
    task = world.start(items_plan(world))
    gates = await gates_of_items(world)
    await world.answer(gates[1], "reject", by="bo")
    run = await ended(task)
    assert (run.status, run.reason) == (PlanStatus.CANCELLED, RunReason.REJECTED)
    assert run.message == "bo rejected it at the gate of `strike`"
    assert await world.store.gates.find() == []
    assert world.struck == []


async def test_a_rejection_after_other_items_were_called_ends_the_run_as_rejected(world: World) -> None:
    task = world.start(items_plan(world))
    gates = await gates_of_items(world)
    await world.answer(gates[0])
    while not world.struck:
        await world.store.changed(0.05)
    await world.answer(gates[1], "reject", by="bo")
    run = await ended(task)
    assert (run.status, run.reason) == (PlanStatus.CANCELLED, RunReason.REJECTED)
    assert "2 of 3 items were not started: bo rejected it" in (run.step("strike").error or "")
    assert world.struck == ["a"]


async def test_a_failed_step_closes_the_gates_of_other_branches(world: World) -> None:
    plan = world.plan(gated=True)
    plan.add_step("look", "Fail", {"target": "x"}, id="fails", done_when="${{ result == 'y' }}", depends_on=["look"])
    run = await ended(world.start(plan))
    assert (run.status, run.reason) == (PlanStatus.PARTIAL, RunReason.STEP_FAILED)
    assert (run.step("strike").status, run.step("strike").reason) == (StepStatus.SKIPPED, "stopped because `fails` failed")
    assert await world.store.gates.find() == []


async def test_a_gate_closed_without_a_reason_cancels_the_run(world: World) -> None:
    task = world.start(world.plan(gated=True))
    await world.store.gates.close((await world.gate(step="strike")).id, "cancelled")
    run = await ended(task)
    assert (run.status, run.reason, run.message) == (PlanStatus.CANCELLED, RunReason.CANCELLED, "the gate of `strike` was closed")


GARBAGE: dict[str, Any] = {
    "none": None,
    "a_word": "approve",
    "true": True,
    "the_request_itself": ...,
}


@pytest.mark.parametrize("returned", GARBAGE.values(), ids=GARBAGE)
@pytest.mark.parametrize("gated", [False, True], ids=["plan", "step"])
async def test_an_approver_that_returns_no_approval_opens_no_gate_and_gets_an_error(returned: Any, gated: bool, world: World) -> None:
    class Garbage:
        async def ask(self, request: ApprovalRequest) -> Any:
            return request if returned is ... else returned

    task = world.start(world.plan(gated=gated), approver=Garbage())
    if gated:
        run = await ended(task)
        assert run.reason is RunReason.REJECTED
        assert (run.message or "").startswith("at the gate of `strike`: the approver Garbage returned ")
        assert (run.message or "").endswith(" instead of an approval")
    else:
        with pytest.raises(NotApprovedError, match="instead of an approval"):
            await ended(task)
    assert world.struck == []


@pytest.mark.parametrize("gated", [False, True], ids=["plan", "step"])
async def test_an_approver_that_returns_the_same_approval_twice_gets_an_error(gated: bool, world: World) -> None:
    kept: list[Approval] = []

    class Repeats:
        async def ask(self, request: ApprovalRequest) -> Approval:
            kept.append(world.approval(await world.store.gates.get(request.gate_id or "")))
            return replace(kept[0], approval_digest=request.approval_digest)

    assert (await ended(world.start(world.plan(gated=gated), approver=Repeats()))).status is PlanStatus.COMPLETED
    task = world.start(world.plan(gated=gated), approver=Repeats())
    if gated:
        assert (await ended(task)).reason is RunReason.REJECTED
    else:
        with pytest.raises(NotApprovedError):
            await ended(task)
    assert world.struck == ["a"]


async def test_an_approver_that_always_requests_changes_is_asked_once_per_content(world: World) -> None:
    asked: list[str] = []

    def answer(request: ApprovalRequest) -> str:
        asked.append(request.approval_digest)
        return "request_changes"

    with pytest.raises(NotApprovedError, match="asks for changes"):
        await ended(world.start(approver=CallbackApprover(answer)))
    assert len(asked) == 1
    run = (await world.store.runs())[0]
    assert run.status is PlanStatus.PENDING_APPROVAL


@pytest.mark.parametrize("kind", ["on_gate_open", "on_gate_answered"])
async def test_a_hanging_hook_does_not_delay_an_answer(kind: str, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    from plan_adapter.runs import keeper as gate_keeper

    monkeypatch.setattr(gate_keeper, "HOOK_SECONDS", 0.1)

    async def hang(*_: object) -> None:
        await asyncio.Event().wait()

    task = world.start(hooks=Hooks(**{kind: hang}))  # type: ignore[arg-type]
    await world.answer(await world.gate())
    assert (await ended(task)).status is PlanStatus.COMPLETED


async def test_a_call_rejected_while_no_process_waited_stays_rejected_on_resume(world: World) -> None:
    gate = await killed_at_the_gate(world)
    assert gate.end is None
    await world.answer(gate, "reject", by="bo")
    run = await asyncio.wait_for(world.resume(gate.run_id, approver=FixedApprover()), BOUND_SECONDS)
    assert (run.status, run.reason, world.struck) == (PlanStatus.CANCELLED, RunReason.REJECTED, [])


@pytest.mark.parametrize(
    ("decision", "message"),
    [
        ("reject", "bo rejected it at the gate of `strike`: look twice"),
        ("request_changes", "at the gate of `strike`: bo asks for changes: look twice"),
    ],
)
async def test_a_new_plan_version_asks_again_about_a_rejected_call(decision: Decision, message: str, world: World) -> None:
    plan, asked = world.plan(gated=True), list[str]()

    def approve_and_keep(request: ApprovalRequest) -> bool:
        asked.append(request.text)
        return True

    run = await ended(world.start(plan, approver=FixedApprover(decision, by="bo", note="look twice")))
    assert (run.reason, run.message) == (RunReason.REJECTED, message)
    revised = world.plan(gated=True)
    revised.add_step("look", "Look again", {"target": "b"}, id="again", depends_on=["look"])
    await arevise_run(run.id, revised, tools=world.tools(), by="ana", store=world.store)
    again = await asyncio.wait_for(world.resume(run.id, approver=CallbackApprover(approve_and_keep)), BOUND_SECONDS)
    assert (again.status, world.struck) == (PlanStatus.COMPLETED, ["a"])
    assert "look twice" not in asked[-1], "the note is about the earlier version"


def test_a_limit_that_is_not_a_timedelta_is_refused_with_advice(world: World) -> None:
    with pytest.raises(TypeError, match=r"valid_for is 0.1: give a timedelta, as in timedelta\(minutes=30\)"):
        approve(world.plan(), tools=world.tools(), by="ana", valid_for=0.1)  # type: ignore[arg-type]


@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize("where", ["command", "prefect"])
async def test_a_gate_closed_by_a_cancellation_says_why(where: str, gated: bool, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("keeper.CANCELLATION_SECONDS", "ending.PREFECT_POLL_SECONDS"):
        monkeypatch.setattr(f"plan_adapter.runs.{name}", 0.05)
    events, cancellations = list[Event](), list[str]()

    async def in_prefect() -> str | None:
        return cancellations[0] if cancellations else None

    run_request = world.run_request(Silent(), listener=events.append)
    bound = world.bound(world.plan(gated=gated))
    run = await create_run(bound, world.store, run_request)
    backend = Backend(cancellation=in_prefect)
    task = asyncio.ensure_future(execute_run(RunSession(bound, run, world.store, run_request, RunHistory(), backend)))
    world.tasks.append(task)
    await world.gate(step="strike" if gated else None)
    if where == "prefect":
        cancellations.append("够了 (by ana)")
    else:
        await world.store.cancel(run.id, "够了 (by ana)")
    run = await ended(task)
    assert (run.status, run.message) == (PlanStatus.CANCELLED, "够了 (by ana)")
    assert [gate_line(event) for event in events if event.kind == "gate_answered"] == [
        f"{'strike' if gated else 'the plan'}: the run ends: 够了 (by ana)"
    ]


async def killed_at_the_gate(world: World) -> Gate:
    """Return the open step gate of a run whose process was killed."""
    killed = replace(world, store=PlanStore(world.url), tasks=[])
    task = killed.start(world.plan(gated=True))
    gate = await world.gate(step="strike")
    await killed.store.close()
    with pytest.raises(StoreError):
        await ended(task)
    await world.sql("UPDATE leases SET owner = NULL WHERE run_id = :run", run=gate.run_id)
    await world.sql("UPDATE gates SET owner = NULL WHERE id = :gate", gate=gate.id)
    return await world.store.gates.get(gate.id)


async def test_the_last_use_of_a_standing_approval_also_approves_its_step_gates(world: World) -> None:
    plan = world.plan(gated=True)
    plan.options.require_approval = True
    bound = world.bound(plan)
    from plan_adapter.gates.coverage import standing_digest

    await world.store.standing.add(await standing(world, runbook_digest=standing_digest(bound.validated), steps=("strike",), max_runs=1))
    run = await execute_plan(
        bound, run_request=world.run_request(FixedApprover("reject"), schedule=SCHEDULE), store=world.store, offline=True
    )
    assert (run.status, world.struck) == (PlanStatus.COMPLETED, ["a"])


async def test_settings_can_refuse_an_advance_approval_by_the_person_who_starts_the_run(world: World) -> None:
    world.settings = Settings(allow_self_approval=False)
    given = approve(world.plan(), tools=world.tools(), by="runner")
    with pytest.raises(NotApprovedError, match="may not approve"):
        await execute_plan(world.bound(), run_request=world.run_request(approval=given), store=world.store, offline=True)
    await world.store.add_approval(given)
    with pytest.raises(NotApprovedError, match="may not approve"):
        await execute_plan(world.bound(), run_request=world.run_request(), store=world.store, offline=True)
    assert world.struck == []


@pytest.mark.parametrize("gated", [False, True], ids=["plan", "step"])
async def test_an_answer_that_violates_the_policy_opens_no_gate_even_if_it_is_in_the_store(gated: bool, world: World) -> None:
    world.settings = Settings(known_by=("ssh_signature",), gate_effects=())
    task = world.start(world.plan(gated=gated))
    gate = await world.gate(step="strike" if gated else None)
    await world.answer(gate, known_by="os_user")
    while (again := await world.gate(step=gate.step_id)).id == gate.id:
        await world.store.changed(0.5)
    assert "the approval by ana is stale" in (await world.store.gates.get(again.id)).text
    assert (await world.end(task)).reason is RunReason.REJECTED
    assert world.struck == []


async def test_a_second_resume_leaves_a_run_that_waits_in_another_process_alone(world: World) -> None:
    task = world.start()
    gate = await world.gate()
    before = (await world.store.run(gate.run_id)).updated_at
    await world.sql("UPDATE runs SET flow_run_id = 'f' WHERE id = :run", run=gate.run_id)
    with pytest.raises(RunConflictError, match="waits"):
        await world.resume(gate.run_id, approver=Silent())
    assert (await world.store.run(gate.run_id)).updated_at == before
    await world.answer(gate)
    assert (await ended(task)).status is PlanStatus.COMPLETED


async def test_a_gate_closed_by_a_late_answer_ends_its_run_as_expired(world: World) -> None:
    from plan_adapter.runs.plan_approval import end_expired

    run, gate = await world.detached(world.plan(timeout_ms=50))
    while await world.now() <= (gate.expires_at or gate.opened_at):
        await asyncio.sleep(0.01)
    with pytest.raises(RunConflictError):
        await world.answer(gate)
    await end_expired(world.store)
    run = await world.store.run(run.id)
    assert (run.status, run.reason) == (PlanStatus.CANCELLED, RunReason.EXPIRED)


async def test_an_unanswered_item_is_skipped_without_stopping_the_others(world: World) -> None:
    plan = items_plan(world, approval_timeout_ms=1500)
    plan.approval = ApprovalPolicy(expires="skip")
    plan.add_step("look", "Look at something else, later", {"target": "${{ string(size(steps.look.result)) }}"}, id="other")
    task = world.start(plan)
    gates = await gates_of_items(world)
    await world.answer(gates[0])
    run = await ended(task)
    assert world.struck == ["a"]
    assert "2 of 3 items were not started: nobody answered" in (run.step("strike").error or "")
    assert run.step("other").status is StepStatus.COMPLETED


async def test_a_cancellation_at_the_moment_a_hook_ends_is_not_lost(world: World) -> None:
    def hook(*_args: object) -> None:
        asyncio.get_running_loop().call_soon(world.tasks[0].cancel)

    task = world.start(hooks=Hooks(on_gate_open=hook))
    await asyncio.wait({task}, timeout=BOUND_SECONDS)
    assert task.cancelled()
