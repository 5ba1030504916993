"""Tests of runs that wait in the Prefect UI: which answers continue them, and that Prefect's API cannot bypass a gate."""

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from prefect import get_client
from prefect.client.schemas.objects import State
from prefect.client.schemas.responses import SetStateStatus
from prefect.input import aread_flow_run_input, keyset_from_base_key
from prefect.states import Cancelled, Completed, Running

from plan_adapter import PlanRun, compile_plan
from plan_adapter.engine.connection import current_server
from plan_adapter.engine.gate_forms import answer_form, form_fields, open_forms
from plan_adapter.engine.internals import rerun
from plan_adapter.errors import NotApprovedError, RunConflictError
from plan_adapter.gates import PrefectApprover
from plan_adapter.model.approvals import Answer, Decision, Gate
from plan_adapter.model.options import ApprovalPolicy, Escalation
from plan_adapter.model.status import RunReason
from plan_adapter.plans import validate
from plan_adapter.runs import arun_plan
from plan_adapter.runs import reconcile as reconciling
from plan_adapter.runs.reconcile import reconcile
from plan_adapter.store import PlanStatus
from tests.engine.gates import flow_run, form_text, resume
from tests.gates.questions import plan_with_question
from tests.gates.test_escalation import waited
from tests.gates.world import Silent, World, raise_if_over

pytestmark = pytest.mark.usefixtures("prefect_server")


@pytest.fixture
def store_url(tmp_path: Path) -> str:
    """Return the URL of an empty SQLite store; PostgreSQL is tested without a server."""
    return f"sqlite:///{tmp_path / 'plans.db'}"


APPROVE = {"decision": "approve", "approver": "ana", "note": "ок"}


def run_in_prefect(world: World, *, gated: bool = False, policy: ApprovalPolicy | None = None) -> "asyncio.Task[PlanRun]":
    """Start a run that asks only in the form."""
    plan = world.plan(gated=gated, policy=policy)
    work = arun_plan(plan, tools=world.tools(), approver=PrefectApprover(), store=world.store)
    world.tasks.append(asyncio.ensure_future(work))
    return world.tasks[-1]


async def shown(world: World, *, step: str | None = None, after: Gate | None = None) -> tuple[Gate, UUID]:
    """Return the open gate and the flow run that shows its form; with `after`, only a newer form counts."""
    while True:
        gate = await world.gate(step=step)
        if gate.keyset is not None and (after is None or gate.keyset != after.keyset):
            forms = [form for form in await open_forms() if form.keyset == gate.keyset]
            if forms:
                return gate, UUID(forms[0].flow_run_id)
        raise_if_over(world.tasks)
        await asyncio.sleep(0.05)


async def set_state(flow_run_id: UUID, state: State[Any]) -> None:
    async with get_client() as client:
        await client.set_flow_run_state(flow_run_id, state, force=True)


@pytest.mark.parametrize("gated", [False, True], ids=["plan", "step"])
async def test_a_form_answer_continues_the_run_and_is_recorded_as_an_unproven_name(gated: bool, world: World) -> None:
    task = run_in_prefect(world, gated=gated)
    gate, flow_run_id = await shown(world, step="strike" if gated else None)
    page = current_server().run_url((await world.store.run(gate.run_id)).flow_run_id or "")
    assert (f"]({page})" in await form_text(flow_run_id, str(gate.keyset))) == gated, "the page of a step links the run"
    await resume(flow_run_id, APPROVE)
    run = await task
    assert (run.status, world.struck) == (PlanStatus.COMPLETED, ["a"])
    answer = await world.store.gates.answer_to(gate.id)
    assert answer is not None
    assert (answer.by, answer.known_by, answer.note) == ("ana", "form", "ок")
    assert run.flow_run_id is not None
    state = (await flow_run(UUID(run.flow_run_id))).state
    assert state is not None
    assert state.is_completed()


async def test_a_question_is_answered_in_a_form_with_its_typed_fields(world: World) -> None:
    work = arun_plan(plan_with_question(), tools=world.tools(), approver=PrefectApprover(), store=world.store)
    world.tasks.append(asyncio.ensure_future(work))
    gate, flow_run_id = await shown(world, step="decide")
    keys = keyset_from_base_key(str(gate.keyset))
    schema: Any = await aread_flow_run_input(keys["schema"], flow_run_id=flow_run_id)
    assert {name: schema["properties"][name]["type"] for name in ("choice", "nodes")} == {"choice": "string", "nodes": "integer"}
    (form,) = [form for form in await open_forms() if form.run_id == gate.run_id]  # other tests share the server
    assert (form.kind, [*await form_fields(form)]) == ("question", ["choice", "nodes"])
    async with get_client() as client:
        refused = await client.resume_flow_run(flow_run_id, run_input={"choice": "run", "approver": "ana"})
    assert refused.status is SetStateStatus.REJECT
    await resume(flow_run_id, {"choice": "switch", "nodes": 3, "approver": "ana", "note": "ок"})
    run = await world.tasks[-1]
    assert (run.status, run.step("decide").result, world.struck) == (
        PlanStatus.COMPLETED,
        {"choice": "switch", "nodes": 3},
        ["switch on 3"],
    )
    answer = await world.store.gates.answer_to(gate.id)
    assert answer is not None
    assert (answer.by, answer.known_by, answer.note, answer.result) == ("ana", "form", "ок", {"choice": "switch", "nodes": 3})
    state = (await flow_run(flow_run_id)).state
    assert state is not None
    assert (state.name, state.message) == ("Answered", "Answered by ana (form): ок")


async def events_of(gate: Gate, name: str) -> list[dict[str, Any]]:
    """Return the payloads of the events `name` of `gate`, as soon as the server has one."""
    resource = {"filter": {"any_resource": {"id": [f"plan.gate.{gate.id}"]}, "event": {"name": [name]}}}
    async with get_client() as client, asyncio.timeout(60):
        while not (found := (await client.request("POST", "/events/filter", json=resource)).json()["events"]):
            await asyncio.sleep(0.1)
    return [event["payload"] for event in found]


@pytest.mark.parametrize("kind", ["plan", "step", "question"])
async def test_the_notification_of_a_gate_links_the_page_that_has_its_form(kind: str, world: World) -> None:
    if kind == "question":
        work = arun_plan(plan_with_question(), tools=world.tools(), approver=PrefectApprover(), store=world.store)
        world.tasks.append(asyncio.ensure_future(work))
    else:
        run_in_prefect(world, gated=kind == "step")
    gate, flow_run_id = await shown(world, step={"plan": None, "step": "strike", "question": "decide"}[kind])
    (opened,) = await events_of(gate, "plan.gate.opened")
    assert opened["link"].endswith(str(flow_run_id))
    run = await world.store.run(gate.run_id)
    assert (str(flow_run_id) == run.flow_run_id) == (kind == "plan"), "a step has a page of its own"
    await world.answer(gate, "reject", by="bo")
    await world.tasks[-1]
    (answered,) = await events_of(gate, "plan.gate.answered")
    assert answered["link"] == opened["link"]


async def test_a_reminder_of_a_step_gate_links_the_page_that_has_its_form(world: World) -> None:
    run_in_prefect(world, gated=True, policy=ApprovalPolicy(remind_after_ms=200))
    gate, flow_run_id = await shown(world, step="strike")
    reminders = await events_of(gate, "plan.gate.reminder")
    assert all(payload["link"].endswith(str(flow_run_id)) for payload in reminders)


async def test_an_escalation_is_announced_with_those_who_may_answer_now(world: World) -> None:
    policy = ApprovalPolicy(approvers=["ana"], escalate=Escalation(after_ms=1000, to=["老板"]))
    run_in_prefect(world, gated=True, policy=policy)
    gate, flow_run_id = await shown(world, step="strike")
    (escalated,) = await events_of(gate, "plan.gate.escalated")
    assert escalated["message"] == "nobody has answered for 1 s: 老板 may answer as well"
    assert escalated["link"].endswith(str(flow_run_id))
    await resume(flow_run_id, {"decision": "approve", "approver": "老板"})
    assert (await world.tasks[-1]).status is PlanStatus.COMPLETED


async def test_a_gate_without_a_form_is_announced_with_the_page_of_its_run(world: World) -> None:
    work = arun_plan(world.plan(gated=True), tools=world.tools(), approver=Silent(), store=world.store)
    world.tasks.append(asyncio.ensure_future(work))
    gate = await world.gate(step="strike")
    (opened,) = await events_of(gate, "plan.gate.opened")
    assert opened["link"].endswith(str((await world.store.run(gate.run_id)).flow_run_id))


async def test_a_rejection_in_the_form_ends_the_run_as_rejected(world: World) -> None:
    task = run_in_prefect(world)
    _, flow_run_id = await shown(world)
    await resume(flow_run_id, {"decision": "reject", "approver": "bo", "note": "not today"})
    run = await task
    assert (run.status, run.reason, run.rejection_note, world.struck) == (PlanStatus.CANCELLED, RunReason.REJECTED, "not today", [])
    state = (await flow_run(flow_run_id)).state
    assert state is not None
    assert (state.type.value, state.name) == ("CANCELLED", "Rejected")


@pytest.mark.parametrize(
    "state",
    [
        pytest.param(Running(), id="running"),
        pytest.param(Completed(), id="completed", marks=pytest.mark.thorough),
        pytest.param(Cancelled(name="Approved"), id="approved", marks=pytest.mark.thorough),
    ],
)
@pytest.mark.parametrize("gated", [False, True], ids=["plan", "step"])
async def test_setting_a_state_does_not_open_a_gate(state: State[Any], gated: bool, world: World) -> None:
    task = run_in_prefect(world, gated=gated)
    gate, flow_run_id = await shown(world, step="strike" if gated else None)
    await set_state(flow_run_id, state)
    if state.is_cancelled():
        run = await task
    else:
        await shown(world, step=gate.step_id)
        run = await world.end(task)
    assert world.struck == []
    assert run.status is PlanStatus.CANCELLED


@pytest.mark.parametrize(
    "answer",
    [
        pytest.param(None, id="nothing"),
        pytest.param({}, id="empty", marks=pytest.mark.thorough),
        pytest.param({"decision": "approve"}, id="no_name"),
        pytest.param({"approver": "ana"}, id="no_decision", marks=pytest.mark.thorough),
        pytest.param({"decision": {"__prefect_kind": "jinja", "template": "{{ 'approve' ~ 1 }}"}, "approver": "ana"}, id="a_template"),
    ],
)
async def test_an_invalid_form_answer_does_not_open_a_gate(answer: dict[str, Any] | None, world: World) -> None:
    task = run_in_prefect(world)
    _, flow_run_id = await shown(world)
    await resume(flow_run_id, answer)
    await shown(world)
    run = await world.end(task)
    assert (world.struck, run.reason) == ([], RunReason.REJECTED)


@pytest.mark.thorough
async def test_a_disallowed_approver_is_refused_and_the_form_asks_again(world: World) -> None:
    task = run_in_prefect(world, policy=ApprovalPolicy(known_by=["form"], self_approval=False))
    first, flow_run_id = await shown(world)
    starter = (await world.store.run(first.run_id)).requested_by
    await resume(flow_run_id, {**APPROVE, "approver": starter})
    second, flow_run_id = await shown(world, after=first)
    assert (second.id, world.struck) == (first.id, [])
    await resume(flow_run_id, APPROVE)
    assert (await task).status is PlanStatus.COMPLETED


@pytest.mark.thorough
async def test_cancelling_a_waiting_run_in_the_ui_cancels_it(world: World) -> None:
    task = run_in_prefect(world)
    _, flow_run_id = await shown(world)
    await set_state(flow_run_id, Cancelled(message="not needed"))
    run = await task
    assert (run.status, run.reason, world.struck) == (PlanStatus.CANCELLED, RunReason.CANCELLED, [])


async def test_an_answer_in_the_store_ends_the_pause_and_later_form_answers_are_ignored(world: World) -> None:
    task = run_in_prefect(world)
    gate, flow_run_id = await shown(world)
    await world.answer(gate)
    run = await task
    await resume(flow_run_id, {"decision": "reject", "approver": "bo"})
    assert (run.status, (await world.store.run(run.id)).status) == (PlanStatus.COMPLETED, PlanStatus.COMPLETED)
    with pytest.raises(RunConflictError, match="ana"):
        await world.answer(gate, "reject", by="bo")


@pytest.mark.thorough
async def test_one_of_fifty_concurrent_answers_wins_and_none_gets_a_server_error(
    world: World,
) -> None:
    task = run_in_prefect(world)
    gate, _ = await shown(world)
    form = next(form for form in await open_forms() if form.gate_id == gate.id)

    async def answer(number: int) -> str:
        decision: Decision = "approve" if number % 2 else "reject"
        try:
            if number % 5 == 0:
                await answer_form(form, Answer(decision, f"form-{number}"))
                return "submitted to the form"  # the run reads it and finds the gate closed
            await world.answer(gate, decision, by=f"store-{number}")
        except RunConflictError as error:
            return str(error)
        return "won"

    results = await asyncio.gather(*(answer(number) for number in range(50)))
    run = await task
    given = await world.store.gates.answer_to(gate.id)
    assert given is not None
    assert results.count("won") == (1 if given.by.startswith("store-") else 0)
    assert results.count("submitted to the form") <= 1
    assert world.struck == (["a"] if given.decision == "approve" else [])
    assert run.reason is (None if given.decision == "approve" else RunReason.REJECTED)
    assert not [result for result in results if "500" in result or "Internal" in result]


# Flows made by `compile_plan`, as deployments run them


@contextlib.asynccontextmanager
async def compiled_run(world: World) -> AsyncIterator[tuple[Any, "asyncio.Future[State[Any]]"]]:
    """Yield a compiled flow and its run, which waits at the plan's gate."""
    flow = compile_plan(validate(world.plan(), world.tools()), store=world.store)
    task = asyncio.ensure_future(flow(return_state=True))
    try:
        yield flow, task
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


@pytest.mark.parametrize("parameters", [{"target": "b"}, {"target": "a"}], ids=["edited", "the_same"])
@pytest.mark.thorough
async def test_rerunning_a_waiting_flow_run_does_not_bypass_its_gate_whatever_its_parameters(
    parameters: dict[str, str], world: World
) -> None:
    async with compiled_run(world) as (flow, task):
        gate, flow_run_id = await shown(world)
        task.cancel()  # as if its process had died: Prefect still shows the pause
        await asyncio.gather(task, return_exceptions=True)
        await world.sql("UPDATE runs SET status = 'pending_approval', reason = NULL, completed_at = NULL WHERE id = :run", run=gate.run_id)
        again = asyncio.ensure_future(rerun(flow, await flow_run(flow_run_id), parameters))
        world.tasks.append(again)  # type: ignore[arg-type]
        if parameters["target"] == "b":
            state = await again
            assert state.is_failed()
            assert "was created with another plan or other inputs" in (state.message or "")
        else:
            await shown(world)
            await world.answer(await world.gate(), "reject", by="bo")
            assert (await again).name == "Rejected"
        assert world.struck == []


async def test_rerunning_a_rejected_flow_run_keeps_it_rejected(world: World) -> None:
    async with compiled_run(world) as (flow, task):
        gate, flow_run_id = await shown(world)
        await world.answer(gate, "reject", by="bo")
        await task
        state = await rerun(flow, await flow_run(flow_run_id), {})
        assert not state.is_completed()
        assert "rejected" in (state.message or "")
        assert world.struck == []


# Processes killed while they wait

SCRIPT = """
import sys
from pathlib import Path
from plan_adapter import ExecutionPlan, ToolRegistry, run_plan, tool
from plan_adapter.gates import PrefectApprover

@tool(effect="write")
def strike(target: str) -> str:
    "Strike."
    with Path(sys.argv[1]).open("a") as file:
        file.write(target)
    return target

plan = ExecutionPlan(description="Strike")
plan.add_step("strike", "Strike it", {"target": "a"}, id="strike")
run_plan(plan, tools=ToolRegistry([strike]), approver=PrefectApprover())
"""


async def test_an_escalation_that_no_process_announced_is_announced_once(world: World) -> None:
    run_in_prefect(world, gated=True, policy=ApprovalPolicy(approvers=["ana"], escalate=Escalation(after_ms=3_600_000, to=["老板"])))
    gate, flow_run_id = await shown(world, step="strike")
    assert await escalations_found(world) == []
    await waited(world, gate, timedelta(hours=1, minutes=1))
    assert await escalations_found(world) == [(gate.run_id, True)]
    (escalated,) = await events_of(gate, "plan.gate.escalated")
    assert escalated["message"] == "nobody has answered for 1 h: 老板 may answer as well"
    assert escalated["link"].endswith(str(flow_run_id))
    assert escalated["first_screen"]
    assert await escalations_found(world) == []
    assert len(await events_of(gate, "plan.gate.escalated")) == 1
    await resume(flow_run_id, {"decision": "approve", "approver": "老板"})
    assert (await world.tasks[-1]).status is PlanStatus.COMPLETED


async def escalations_found(world: World) -> list[tuple[str, bool]]:
    found = await reconcile(world.store, with_prefect=True)
    return [(finding.run_id, finding.is_corrected) for finding in found if finding.kind == "escalated"]


@pytest.mark.parametrize(
    "answered", [pytest.param(False, id="unanswered", marks=pytest.mark.thorough), pytest.param(True, id="answered_in_the_form")]
)
async def test_a_run_killed_at_its_gate_continues_only_if_it_was_approved(
    answered: bool, world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reconciling, "REACTION", timedelta(0))
    struck = tmp_path / "struck"
    environment = {**os.environ, "PLAN_ADAPTER_DATABASE_URL": world.url}
    process = subprocess.Popen([sys.executable, "-c", SCRIPT, str(struck)], env=environment)
    try:
        gate, flow_run_id = await shown(world)
        os.kill(process.pid, signal.SIGKILL)
    finally:
        process.kill()
        process.wait()
    if answered:
        await resume(flow_run_id, APPROVE)
    else:
        await set_state(flow_run_id, Running())
    found = await reconcile(world.store, with_prefect=True)  # where nothing runs, the page shows the form again and an answer is kept
    assert [(finding.kind, finding.is_corrected) for finding in found] == [("shown", True), *[("answered", False)] * answered]
    assert [form.keyset != gate.keyset for form in await open_forms() if form.run_id == gate.run_id] == [True] * (not answered)
    from plan_adapter import tool
    from plan_adapter.runs import aresume_run

    def strike(target: str) -> str:
        """Strike."""
        struck.write_text(target)
        return target

    from plan_adapter import ToolRegistry

    tools = ToolRegistry([tool(effect="write")(strike)])
    if not answered:
        with pytest.raises(NotApprovedError):
            await aresume_run(gate.run_id, tools=tools, store=world.store)
        assert not struck.exists()
        return
    run = await aresume_run(gate.run_id, tools=tools, store=world.store, approver=PrefectApprover())
    assert (run.status, run.flow_run_id, struck.read_text()) == (PlanStatus.COMPLETED, str(flow_run_id), "a")


@pytest.mark.parametrize("gated", [False, True], ids=["plan", "step"])
async def test_the_form_is_shown_again_after_the_first_of_two_approvals(gated: bool, world: World) -> None:
    policy = ApprovalPolicy(approvers=["ana", "ben", "chi"], quorum=2)
    task, step = run_in_prefect(world, gated=gated, policy=policy), "strike" if gated else None
    gate, flow_run_id = await shown(world, step=step)
    assert "**Needs 2 approvals by different people.**" in await form_text(flow_run_id, str(gate.keyset))
    await resume(flow_run_id, APPROVE)
    second, flow_run_id = await shown(world, step=step, after=gate)
    text = await form_text(flow_run_id, str(second.keyset))
    assert text.startswith("**1 of 2 approvals; the gate waits for ben or chi (ana approved at ")
    assert "refused" not in text
    (form,) = [form for form in await open_forms() if form.gate_id == gate.id]
    assert (form.progress, form.refused) == ("1 of 2 approvals; the gate waits for ben or chi", None)
    await resume(flow_run_id, {**APPROVE, "approver": "ana"})
    third, flow_run_id = await shown(world, step=step, after=second)
    refused = await form_text(flow_run_id, str(third.keyset))
    assert refused.startswith("**The last answer was refused:** ana has already approved; 1 more approval needed, by ben or chi.")
    assert world.struck == []
    await resume(flow_run_id, {**APPROVE, "approver": "ben"})
    run = await task
    assert (run.status, world.struck) == (PlanStatus.COMPLETED, ["a"])
    answer = await world.store.gates.answer_to(gate.id)
    assert answer is not None
    assert answer.givers == "ana (form) and ben (form)"
