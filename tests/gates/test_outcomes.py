"""Tests of gates for unknown outcomes: who is asked, and what each answer does."""

import asyncio
import os
import re
from collections.abc import AsyncIterator
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from plan_adapter import ExecutionPlan, PlanStore, ToolRegistry, tool
from plan_adapter.errors import NotApprovedError, RunConflictError, UnknownOutcomeError
from plan_adapter.gates.approval import answer_to
from plan_adapter.gates.gate import request_of
from plan_adapter.local.settings import Settings
from plan_adapter.model.approvals import Answer
from plan_adapter.model.hooks import Event
from plan_adapter.model.options import ApprovalPolicy, Question
from plan_adapter.model.plan import Step
from plan_adapter.model.readable import moment
from plan_adapter.model.status import Outcome, RunReason
from plan_adapter.plans import Input
from plan_adapter.runs import aresolve_step
from plan_adapter.runs.step_gates import RESULT_FIELD
from plan_adapter.store import PlanStatus
from plan_adapter.store.outcomes import ResolutionRecord, outcome_digest
from plan_adapter.tools import ToolContext
from tests.gates.unknown_outcome import SENDING, Person, UnknownOutcomeWorld
from tests.gates.world import FormAnswers, Silent
from tests.processes import Program
from tests.sql import Sql
from tests.store.conftest import on_both_databases

DONE = Answer("done", "ana", note="看过了", channel="form", result={"order": "a"})


@pytest.fixture
async def world(store_url: str) -> AsyncIterator[UnknownOutcomeWorld]:
    """Return a store and a tool whose first call has an unknown outcome."""
    async with PlanStore(store_url) as store:
        world = UnknownOutcomeWorld(store, store_url)
        yield world
        await world.close()


@pytest.mark.parametrize(
    ("answer", "status", "sent", "end"),
    [
        (DONE, PlanStatus.COMPLETED, 1, "done"),
        (Answer("again", "ana", channel="form"), PlanStatus.COMPLETED, 2, "again"),
        (Answer("abort", "ana", note="lieber nicht", channel="form"), PlanStatus.CANCELLED, 1, "abort"),
    ],
    ids=["done", "again", "abort"],
)
async def test_a_form_resolution_records_a_receipt_and_not_an_approval(
    answer: Answer, status: PlanStatus, sent: int, end: str, world: UnknownOutcomeWorld
) -> None:
    form = FormAnswers((answer,))
    run = await world.start_with_form(form)
    assert (run.status, len(world.sent), form.replies) == (status, sent, [None])
    [gate] = await world.store.gates.find(run_id=run.id, open_only=False)
    assert (gate.kind, gate.end, gate.step_id) == ("outcome", end, "send")
    receipt = (await world.store.receipts(run.id))[0]
    assert (receipt.by, receipt.known_by, receipt.note) == ("ana", "form", answer.note or None)
    assert receipt.outcome is (Outcome.SUCCEEDED if end == "done" else Outcome.FAILED)
    assert [row.known_by for row in await world.store.approvals(run.id)] == ["not_required"]
    if end == "done":
        assert run.step("send").result == {"order": "a"}
        assert run.step("send").reason == "ana recorded `done` for `send` (看过了)"
    if end == "abort":
        assert (run.reason, run.message) == (RunReason.CANCELLED, "ana recorded `abort` for `send` (lieber nicht)")
    kinds = [entry.kind for entry in await world.store.audit(run.id)]
    assert kinds.count("gate_opened") == kinds.count("gate_resolved") == 1
    assert (await world.store.verify(run.id)).ok


async def test_a_run_at_an_outcome_gate_shows_why_it_waits_and_what_each_answer_does(world: UnknownOutcomeWorld) -> None:
    task = world.start_with_form(FormAnswers(()))
    gate = await world.gate()
    while (run := await world.store.run(gate.run_id)).reason is None:  # the reason is stored just after the gate opens
        await world.store.changed(0.5)
    assert (run.status, run.reason) == (PlanStatus.EXECUTING, RunReason.UNKNOWN)
    for part in (
        "## Did send take effect?",
        " and was interrupted; its outcome was not recorded. It called `send` with:",
        "- attempt 1, started at ",
        "start 1, by process ",
        "the line went dead",
        "**done**",
        "**again**",
        "**abort**",
        "- `order`: `a`",
        "`***` stands for a secret",
    ):
        assert part in gate.text
    assert "hunter2" not in gate.text
    assert not task.done()


@pytest.mark.parametrize("is_used", [False, True])
async def test_an_outcome_gate_asks_for_a_result_only_if_a_step_uses_it(is_used: bool, world: UnknownOutcomeWorld) -> None:
    plan = world.plan()
    plan.steps = plan.steps[: 1 + is_used]
    world.start_with_form(FormAnswers(()), plan)
    gate = await world.gate()
    assert f"(run …{gate.run_id[-6:]}), asked by runner.\n" in gate.text
    assert f" started at {moment((await world.store.attempts(gate.run_id))[0].started_at)} by start 1, by process " in gate.text
    assert "- why the outcome is unknown: the line went dead\n" in gate.text
    assert (gate.kind, gate.call_kind, gate.step_id, gate.item, gate.label) == ("outcome", "step", "send", None, None)
    assert (gate.name, gate.description, gate.expires_at) == (plan.name, "Send it", None)
    assert (gate.gate_policy.requested_by, gate.fields) == ("runner", RESULT_FIELD if is_used else {})
    assert gate.approval_digest == outcome_digest((await world.store.attempts(gate.run_id))[0].id)


async def test_the_approvers_of_the_plan_around_a_step_answer_its_outcome_gate(world: UnknownOutcomeWorld) -> None:
    world.settings = Settings(groups={"duty": ["bo"], "others": ["zoe"]})
    asks = Question(question="Well?", fields={"answer": Input()})
    inside = Step(id="inside", plan="store:send@1", pinned=world.plan(policy=ApprovalPolicy(approvers=["duty"])))
    later = Step(id="later", ask=asks, description="Ask", approvers=["others"], depends_on=["inside"])
    plan = ExecutionPlan(description="Send inside", steps=[inside, later])
    plan.options.require_approval = False
    world.start_with_form(FormAnswers(()), plan)
    gate = await world.gate()
    assert (gate.step_id, gate.gate_policy.approvers) == ("inside.send", ("bo",))
    assert "`duty` is a group of PLAN_ADAPTER_GROUPS" in gate.text
    assert "`others`" not in gate.text


async def test_an_outcome_gate_names_the_commands_of_its_own_attempt(world: UnknownOutcomeWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    pids = {"a": os.getpid(), "b": os.getppid()}

    @tool(effect="write")
    async def send(order: str, context: ToolContext, token: str = "") -> str:
        """Send an order with a command."""
        assert context.commands is not None
        context.commands.command_started(pids[order])
        while pids[order] not in [command.process.pid for command in await world.store.outcomes.commands(context.run_id)]:
            await world.store.changed(0.05)
        raise UnknownOutcomeError("the line went dead")

    tools = ToolRegistry([send, world.tools().get("look")])
    monkeypatch.setattr(world, "tools", lambda: tools)
    plan = world.plan(orders=[*pids])
    plan.options.allow_parallel = True
    world.start_with_form(FormAnswers(()), plan)
    await world.gate(count=2)
    for gate in await world.store.gates.find():
        text = (await world.store.gates.get(gate.id)).text
        assert [order for order, pid in pids.items() if re.search(rf"Its command \*\*[^*]* pid {pid}\b", text)] == [gate.label]
        assert f"## Did send\\[{gate.label}\\] take effect?" in text


async def test_a_listener_gets_the_step_of_an_outcome_gate(world: UnknownOutcomeWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    events = list[Event]()
    monkeypatch.setattr(world, "run_request", partial(world.run_request, listener=events.append))
    await world.start_with_form(FormAnswers((DONE,)))
    at_gate = [(event.kind, event.step.id) for event in events if event.step is not None and event.gate is not None]
    assert at_gate == [("gate_opened", "send"), ("gate_answered", "send")]


async def test_a_closed_outcome_gate_without_a_receipt_is_an_error(world: UnknownOutcomeWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("plan_adapter.runs.keeper.POLL_SECONDS", 0.05)
    task = world.start_with_form(FormAnswers(()))
    gate = await world.gate()
    await Sql(world.url).change("UPDATE gates SET \"end\" = 'done', closed_at = opened_at WHERE id = :gate", gate=gate.id)
    with pytest.raises(RunConflictError, match=f"the gate of `send` in run {gate.run_id} is closed as done, but no receipt records that"):
        await task


async def test_a_wrong_answer_is_refused_with_the_reason(world: UnknownOutcomeWorld) -> None:
    policy = ApprovalPolicy(approvers=["ana"])
    form = FormAnswers((replace(DONE, by="bo"), Answer("approve", "ana", channel="form"), DONE))
    run = await world.start_with_form(form, world.plan(policy=policy))
    assert run.status is PlanStatus.COMPLETED
    assert form.replies[0] == "bo may not answer here; only ana may"
    assert "instead of `approve`" in (form.replies[1] or "")
    assert form.replies[2:] == [None]


async def test_approvals_and_resolutions_are_not_interchangeable(world: UnknownOutcomeWorld) -> None:
    task = world.start_with_form(FormAnswers(()))
    gate = await world.gate()
    approval = answer_to(request_of(gate), decision="approve", by="ana", known_by="os_user")
    with pytest.raises(NotApprovedError, match="takes no approval: answer it with `plan resolve"):
        await world.store.gates.answer(gate.id, approval)
    assert await world.store.ledger.find_approval(gate.approval_digest) is None
    assert not task.done()
    assert (await world.store.gates.get(gate.id)).end is None


@on_both_databases
async def test_plan_resolve_in_another_process_closes_the_form_and_continues_the_run(world: UnknownOutcomeWorld) -> None:
    task = world.start_with_form(FormAnswers(()))
    gate = await world.gate()
    with pytest.raises(RunConflictError, match="is executed by process"):
        await world.store.outcomes.resolve(gate.run_id, "look", ResolutionRecord("done", "ana", "os_user"))
    async with PlanStore(world.url) as elsewhere:
        await aresolve_step(gate.run_id, "send", "done", by="ana", result="it was", store=elsewhere)
        with pytest.raises(RunConflictError):
            await elsewhere.outcomes.resolve(gate.run_id, "send", ResolutionRecord("again", "bo", "os_user"))
    run = await task
    assert (run.status, run.step("send").result, world.sent) == (PlanStatus.COMPLETED, "it was", ["a"])


async def test_abort_from_another_process_ends_the_run(world: UnknownOutcomeWorld) -> None:
    task = world.start_with_form(FormAnswers(()))
    gate = await world.gate()
    await world.store.outcomes.resolve(gate.run_id, "send", ResolutionRecord("abort", "ana", "os_user"))
    run = await task
    assert (run.status, run.reason, run.message) == (PlanStatus.CANCELLED, RunReason.CANCELLED, "ana recorded `abort` for `send`")
    assert (await world.store.verify(run.id)).ok


@on_both_databases
async def test_one_of_several_concurrent_resolutions_wins(world: UnknownOutcomeWorld) -> None:
    task = world.start_with_form(FormAnswers(()))
    gate = await world.gate()

    async def resolve(number: int) -> bool:
        try:
            await world.store.outcomes.resolve(
                gate.run_id, "send", ResolutionRecord("done" if number % 2 else "again", f"p{number}", "os_user")
            )
        except RunConflictError:
            return False
        return True

    assert (await asyncio.gather(*(resolve(number) for number in range(8)))).count(True) == 1
    run = await task
    assert run.status is PlanStatus.COMPLETED
    assert len([row for row in await world.store.receipts(run.id) if row.by is not None]) == 1
    assert (await world.store.verify(run.id)).ok


async def test_cancelling_the_run_closes_the_outcome_gate_and_leaves_the_outcome_unknown(world: UnknownOutcomeWorld) -> None:
    task = world.start_with_form(FormAnswers(()))
    gate = await world.gate()
    await world.store.cancel(gate.run_id, "enough")
    run = await task
    assert (run.status, run.step("send").outcome) == (PlanStatus.CANCELLED, Outcome.UNKNOWN)
    assert (await world.store.gates.get(gate.id)).end == "cancelled"
    assert [attempt.step_id for attempt in await world.store.outcomes.unknown(run.id)] == ["send"]


async def test_each_item_gets_its_own_outcome_gate(world: UnknownOutcomeWorld) -> None:
    world.unknown_calls = 2
    plan = world.plan(orders=["a", "b", "c"])
    plan.options.allow_parallel = True
    task = world.start_with_form(FormAnswers(()), plan)
    gate = await world.gate(count=2)
    first, second = await world.store.gates.find()
    assert {first.item, second.item} < {0, 1, 2}
    with pytest.raises(RunConflictError, match="name one with --item"):
        await world.store.outcomes.resolve(gate.run_id, "send", ResolutionRecord("done", "ana", "os_user"))
    await world.store.outcomes.resolve(gate.run_id, "send", ResolutionRecord("done", "ana", "os_user", result="by ana"), item=first.item)
    await world.store.outcomes.resolve(gate.run_id, "send", ResolutionRecord("again", "ana", "os_user"), item=second.item)
    run = await task
    assert run.status is PlanStatus.COMPLETED
    result: Any = run.step("send").result
    assert result.count("by ana") == 1
    assert len(world.sent) == 4


async def test_a_run_has_an_unknown_outcome_until_its_last_outcome_gate_is_closed(world: UnknownOutcomeWorld) -> None:
    world.unknown_calls = 2
    plan = world.plan(orders=["a", "b"])
    plan.options.allow_parallel = True
    task = world.start_with_form(FormAnswers(()), plan)
    run_id = (await world.gate(count=2)).run_id
    gates = await world.store.gates.find()
    assert [(gate.item, gate.label) for gate in gates] == [(0, "a"), (1, "b")]
    await world.store.outcomes.resolve(run_id, "send", ResolutionRecord("again", "ana", "os_user"), item=0)
    while len(world.sent) < 3:
        await world.store.changed(0.05)
    run = await world.store.run(run_id)
    assert (run.status, run.reason) == (PlanStatus.EXECUTING, RunReason.UNKNOWN)
    await world.store.outcomes.resolve(run_id, "send", ResolutionRecord("abort", "ana", "os_user"), item=1)
    run = await task
    assert (run.reason, run.message) == (RunReason.CANCELLED, "ana recorded `abort` for `send[b]`")


async def test_a_run_whose_outcome_is_resolved_continues_without_a_reason(
    world: UnknownOutcomeWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = list[RunReason | None]()

    @tool(effect="read")
    async def look(order: Any) -> Any:
        """Look at the run."""
        seen.extend(run.reason for run in await world.store.runs())
        return order

    tools = ToolRegistry([world.tools().get("send"), look])
    monkeypatch.setattr(world, "tools", lambda: tools)
    assert ((await world.start_with_form(FormAnswers((DONE,)))).status, seen) == (PlanStatus.COMPLETED, [None])


async def test_a_gated_step_needs_no_second_approval_in_the_same_start(world: UnknownOutcomeWorld) -> None:
    plan = world.plan(gated=True)
    task = world.start_with_form(FormAnswers(()), plan)
    while not (gates := [gate for gate in await world.store.gates.find() if gate.kind == "approval"]):
        await world.store.changed(0.5)
    await world.store.gates.answer(gates[0].id, answer_to(request_of(gates[0]), decision="approve", by="ana", known_by="os_user"))
    while not (outcome_gates := [gate for gate in await world.store.gates.find() if gate.kind == "outcome"]):
        await world.store.changed(0.5)
    await world.store.outcomes.resolve(outcome_gates[0].run_id, "send", ResolutionRecord("again", "ana", "os_user"))
    run = await task
    assert (run.status, len(world.sent)) == (PlanStatus.COMPLETED, 2)


# Offline: with and without somebody at a terminal


async def test_the_terminal_asks_again_offline_until_the_answer_is_accepted(world: UnknownOutcomeWorld) -> None:
    world.settings = Settings(approvers=["ana"])
    person = Person([Answer("done", "bo", channel="os_user"), Answer("done", "ana", channel="os_user", result=[1])])
    run = await world.start(approver=person)
    assert (run.status, run.step("send").result) == (PlanStatus.COMPLETED, [1])
    assert [request.refused for request in person.asked] == [None, "bo may not answer here; only ana may"]


@pytest.mark.parametrize("approver", [None, Silent(), Person([])], ids=["nobody", "only_approves", "end_of_input"])
async def test_an_offline_run_without_a_resolution_ends_as_unknown(approver: Any, world: UnknownOutcomeWorld) -> None:
    run = await world.start(approver=approver)
    assert (run.status, run.reason, run.step("send").outcome) == (PlanStatus.FAILED, RunReason.UNKNOWN, Outcome.UNKNOWN)
    assert await world.store.gates.find() == []


async def test_resume_asks_about_the_attempt_of_the_earlier_start(world: UnknownOutcomeWorld) -> None:
    first = await world.start()
    person = Person([Answer("again", "ana", channel="os_user")])
    run = await world.resume(first.id, approver=person)
    assert (run.status, len(world.sent)) == (PlanStatus.COMPLETED, 2)
    assert "an earlier start of this run began this write" in person.asked[0].text


SCRIPT = f"""{SENDING}
import asyncio

class Waits:
    async def ask(self, request):
        raise AssertionError("no approval is asked for")

    async def ask_outcome(self, request):
        await asyncio.Event().wait()

run_plan(plan, tools=ToolRegistry([send, look]), approver=Waits(), offline=True)
"""


async def test_an_outcome_gate_of_a_killed_process_can_be_answered_and_is_asked_again_on_resume(world: UnknownOutcomeWorld) -> None:
    world.unknown_calls = 0
    process = Program(SCRIPT, env={**os.environ, "PLAN_ADAPTER_DATABASE_URL": world.url})
    try:
        gate = await world.gate()
    finally:
        process.kill()
        process.wait()
    found = await world.store.run(gate.run_id)
    assert (found.status, found.reason) == (PlanStatus.EXECUTING, RunReason.INTERRUPTED)
    person = Person([])
    assert (await world.resume(gate.run_id, approver=person)).reason is RunReason.UNKNOWN
    assert person.asked[0].gate_id == gate.id
    assert (await world.store.gates.get(gate.id)).end == "cancelled"
    await world.store.outcomes.resolve(gate.run_id, "send", ResolutionRecord("done", "ana", "os_user", result=1))
    run = await world.resume(gate.run_id)
    assert (run.status, run.step("send").result, world.sent) == (PlanStatus.COMPLETED, 1, [])


# Altered records


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE gates SET kind = 'approval'",
        "UPDATE gates SET \"end\" = 'again'",
        'UPDATE receipts SET "by" = NULL',
        "DELETE FROM gates",
    ],
)
@on_both_databases
async def test_every_alteration_of_a_resolution_is_detected(statement: str, world: UnknownOutcomeWorld) -> None:
    run = await world.start_with_form(FormAnswers((DONE,)))
    await Sql(world.url).change(statement)
    assert not (await world.store.verify(run.id)).ok


async def test_a_resolution_of_one_attempt_is_not_accepted_for_another(world: UnknownOutcomeWorld) -> None:
    run = await world.start()
    digest_of = partial(world.store.outcomes.digest_of, run.id, "send")
    digest = await digest_of("done")
    assert digest == await digest_of("abort")
    with pytest.raises(RunConflictError, match="is not unknown"):
        await world.store.outcomes.digest_of(run.id, "look", "again")
    await world.store.outcomes.resolve(run.id, "send", ResolutionRecord("again", "ana", "os_user", digest=digest))
    world.unknown_calls = 2
    assert (await world.resume(run.id)).reason is RunReason.UNKNOWN
    with pytest.raises(RunConflictError, match="another attempt of `send`"):
        await world.store.outcomes.resolve(
            run.id, "send", ResolutionRecord("done", "ana", "ssh_signature", digest=digest, signature="of the first one")
        )
    assert await digest_of("done") != digest
    await world.store.outcomes.resolve(
        run.id, "send", ResolutionRecord("done", "ana", "ssh_signature", digest=await digest_of("done"), signature="now")
    )
    signed = [entry for entry in await world.store.audit(run.id) if entry.kind == "signed"]
    assert [(entry.step_id, entry.number, entry.by, entry.message) for entry in signed] == [("send", 2, "ana", "now")]
    assert (await world.store.verify(run.id)).ok
    assert (await world.resume(run.id)).status is PlanStatus.COMPLETED


async def test_the_digest_of_a_step_done_by_hand_is_valid_until_it_is_resolved(world: UnknownOutcomeWorld) -> None:
    run = await world.start()
    digest = await world.store.outcomes.digest_of(run.id, "look", "done")
    assert digest != await world.store.outcomes.digest_of(run.id, "send", "done")
    await world.store.outcomes.resolve(run.id, "look", ResolutionRecord("done", "ana", "os_user", digest=digest))
    with pytest.raises(RunConflictError, match="has succeeded"):
        await world.store.outcomes.digest_of(run.id, "look", "done")
