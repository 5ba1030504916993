"""Tests of plans with `on_failure: replan`: a model drafts the remaining steps, and a person approves them before they run."""

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from prefect import get_client
from prefect.client.schemas.filters import FlowRunFilter, FlowRunFilterId
from sqlalchemy import update

from plan_adapter import ExecutionPlan, PlanStore, approve, compile_plan
from plan_adapter.engine.connection import Server, use_server
from plan_adapter.engine.internals import rerun
from plan_adapter.execution.history import ResumeOptions
from plan_adapter.gates import CallbackApprover
from plan_adapter.gates.approval import answer_to
from plan_adapter.gates.gate import request_of
from plan_adapter.model.approvals import Gate
from plan_adapter.model.canonical import canonical_document
from plan_adapter.runs import acancel_run, aresolve_step, aresume_run, arun_plan
from plan_adapter.runs.replan import AUTOMATIC_REPLAN, MAX_REPLANS
from plan_adapter.runs.resume import execute_resume
from plan_adapter.runs.run_session import RunRequest
from plan_adapter.store import PlanStatus, RunReason, load_plan
from plan_adapter.store.database.tables import runs
from plan_adapter.text.listing import REPLAN_FACT
from plan_adapter.validation import lint, validate
from tests.agent.releases import ANA, GOOD, PLAN, World, context_of, failed, remaining, step, undoable
from tests.agent.server import Reply, Request, says, scripted
from tests.engine.gates import flow_run
from tests.sql import Sql


def replanning_plan(**fields: Any) -> ExecutionPlan:
    return undoable(on_failure="replan", **fields)


async def test_a_failed_run_is_replanned_and_approved_before_any_rollback(world: World, store: PlanStore, configured: Any) -> None:
    texts: list[str] = []
    answers = CallbackApprover(lambda request: texts.append(request.text) is None, by="ana")
    with scripted(GOOD) as server:
        configured(server)
        run = await arun_plan(replanning_plan(), tools=world.tools, inputs={"host": "web-1"}, approver=answers, store=store, offline=True)
    assert (run.status, run.outputs) == (PlanStatus.COMPLETED, {"版本": "1"})
    assert world.did == ["look web-1", "deploy 1", "deploy bad-2", "deploy 2 on web-1", "look three"]
    assert "redeploy" in texts[0]
    assert REPLAN_FACT in texts[0]
    (revision,) = await store.revisions.of_run(run.id)
    assert (revision.by, "没有 bad-2" in revision.note) == (AUTOMATIC_REPLAN, True)
    assert (await store.get(run.digest)).on_failure == "replan"
    assert (await store.verify(run.id)).problem is None


async def test_a_run_is_replanned_at_most_twice_and_then_rolled_back(
    world: World, store: PlanStore, configured: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PLAN_ADAPTER_DRAFT_ANSWER_TOKENS", "777")

    def worse(request: Request) -> Reply:
        return remaining(step("deploy", {"version": f"bad-{len(context_of(request)['ids_taken'])}"}, id=f"try_{len(world.did)}"))

    with scripted(worse) as server:
        configured(server)
        run = await arun_plan(replanning_plan(), tools=world.tools, inputs={"host": "web-1"}, approver=ANA, store=store, offline=True)
        assert len(server.requests) == MAX_REPLANS == 2
        assert {request["max_completion_tokens"] for request in server.requests} == {777}
    assert (run.status, run.reason) == (PlanStatus.PARTIAL, RunReason.STEP_FAILED)
    assert world.did == ["look web-1", "deploy 1", "deploy bad-2", "deploy bad-3", "deploy bad-4", "undo 1"]


@pytest.mark.parametrize("yes", [False, True])
async def test_a_drafted_version_needs_an_approval_of_its_own(world: World, store: PlanStore, configured: Any, yes: bool) -> None:
    from plan_adapter.cli.asking import YesApprover

    plan = replanning_plan()
    approval = None if yes else approve(plan, tools=world.tools, by="ana", inputs={"host": "web-1"})
    with scripted(GOOD) as server:
        configured(server)
        run = await arun_plan(
            plan,
            tools=world.tools,
            inputs={"host": "web-1"},
            approval=approval,
            approver=YesApprover() if yes else None,
            store=store,
            offline=True,
        )
    assert (run.status, (await store.run(run.id)).status) == (PlanStatus.PENDING_APPROVAL, PlanStatus.PENDING_APPROVAL)
    assert world.did == ["look web-1", "deploy 1", "deploy bad-2"]
    (gate,) = await store.gates.find(run_id=run.id)
    assert gate.attended is False
    done = await aresume_run(run.id, tools=world.tools, approver=ANA, store=store, offline=True)
    assert done.status is PlanStatus.COMPLETED


async def test_a_rejected_version_ends_the_run_and_does_not_run(world: World, store: PlanStore, configured: Any) -> None:
    with scripted(GOOD) as server:
        configured(server)
        no = CallbackApprover(lambda _: ("reject", "不行"), by="ana")
        run = await arun_plan(replanning_plan(), tools=world.tools, inputs={"host": "web-1"}, approver=no, store=store, offline=True)
    assert (run.status, run.reason, run.rejection_note) == (PlanStatus.CANCELLED, RunReason.REJECTED, "不行")
    assert world.did == ["look web-1", "deploy 1", "deploy bad-2"]


async def test_a_run_that_cannot_be_replanned_ends_as_failed_and_reports_why(
    world: World, store: PlanStore, configured: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PLAN_ADAPTER_MODEL", raising=False)
    run = await failed(world, store, replanning_plan())
    assert (run.status, run.reason) == (PlanStatus.PARTIAL, RunReason.STEP_FAILED)
    assert "could not be replanned: no model is configured" in (run.message or "")
    assert world.did[-1] == "undo 1"
    with scripted(says({"action": "ask_user", "speak": "哪个版本？", "reason": ""})) as server:
        configured(server)
        other = await failed(world, store, replanning_plan())
    assert "the model asked, and nobody answered: 哪个版本？" in (other.message or "")
    assert (await store.run(other.id)).message == other.message


@pytest.fixture
def held() -> Iterator[threading.Event]:
    event = threading.Event()
    yield event
    event.set()


async def test_a_run_can_be_cancelled_while_the_model_drafts(
    world: World, store: PlanStore, configured: Any, held: threading.Event
) -> None:
    with scripted(Reply(hold=held)) as server:
        configured(server)
        work = asyncio.ensure_future(failed(world, store, replanning_plan()))
        while not server.requests:
            await asyncio.sleep(0.01)
        (run,) = await store.runs()
        await acancel_run(run.id, reason="够了", store=store)
        ended = await work
        held.set()
    assert (ended.status, ended.reason, ended.message) == (PlanStatus.CANCELLED, RunReason.CANCELLED, "够了")
    assert await store.revisions.of_run(run.id) == []


async def test_an_unknown_outcome_does_not_start_replanning(world: World, store: PlanStore, configured: Any) -> None:
    lost = replanning_plan()
    lost.steps[2].parameters = {"version": "lost"}
    with scripted(GOOD) as server:
        configured(server)
        run = await failed(world, store, lost)
        assert (run.reason, server.requests) == (RunReason.UNKNOWN, [])


async def test_skipped_steps_stay_skipped_and_an_unknown_outcome_stops_replanning(world: World, store: PlanStore, configured: Any) -> None:
    skip_first = ResumeOptions(skipped={"first": "nobody needs it"})
    plan = load_plan(PLAN.replace('"1"', "bad-1"))
    plan.on_failure, plan.step("second").parameters = "replan", {"version": "2"}
    third = plan.step("third")
    third.tool_name, third.parameters, third.requires_approval = "deploy", {"version": "bad-3"}, False
    with scripted(remaining(step("look", {"host": "three"}, id="third_again", depends_on=["second"]))) as server:
        run = await failed(world, store, plan)  # no model yet
        configured(server)
        run_request = RunRequest(approver=ANA)
        done = await execute_resume(run.id, tools=world.tools, run_request=run_request, store=store, offline=True, options=skip_first)
        assert [(step.id, step.status.value) for step in done.steps] == [
            *(("check", "completed"), ("first", "skipped"), ("second", "completed"), ("third_again", "completed"))
        ]
        lost = load_plan(PLAN.replace('"1"', "lost"))
        lost.on_failure = "replan"
        lost_run = await failed(world, store, lost)
        await aresolve_step(lost_run.id, "first", "abort", by="ana", store=store)
        count = len(server.requests)
        stopped = await execute_resume(
            lost_run.id, tools=world.tools, run_request=run_request, store=store, offline=True, options=skip_first
        )
        assert "could not be replanned: the outcome of `first` is unknown" in (stopped.message or "")
        assert len(server.requests) == count


def test_on_failure_is_part_of_the_digest_and_warns_without_a_model(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PLAN_ADAPTER_MODEL", raising=False)
    assert [(problem.code, problem.at, problem.severity) for problem in lint(replanning_plan(), world.tools)] == [
        ("no-model", "on_failure", "warning")
    ]
    assert canonical_document(replanning_plan())["on_failure"] == "replan"
    monkeypatch.setenv("PLAN_ADAPTER_MODEL", "m")
    assert lint(replanning_plan(), world.tools) == []


async def wait_for_gate_form(store: PlanStore, work: "asyncio.Future[Any]", *, after: Gate | None = None) -> Gate:
    """Wait for the form of an open gate and return the gate; with `after`, wait for a newer form."""
    while True:
        gates = [gate for gate in await store.gates.find() if gate.keyset is not None and (after is None or gate.keyset != after.keyset)]
        if gates:
            return await store.gates.get(gates[0].id)
        assert not work.done(), work.result()
        await asyncio.sleep(0.05)


@pytest.mark.thorough
async def test_a_new_version_is_approved_in_a_form_of_the_same_flow_run(
    world: World, store: PlanStore, configured: Any, prefect_server: Server
) -> None:
    plan = replanning_plan()
    plan.step("third").requires_approval = False
    with scripted(GOOD) as server, use_server(prefect_server):
        configured(server)
        flow = compile_plan(validate(plan, world.tools), tools=world.tools, store=store)
        work = asyncio.ensure_future(flow(host="web-1", return_state=True))
        gate = await wait_for_gate_form(store, work)
        run = await store.run(gate.run_id)
        assert (run.status, gate.flow_run_id is not None) == (PlanStatus.PENDING_APPROVAL, True)
        answer = answer_to(request_of(gate), decision="approve", by="ana", known_by="form")
        await store.gates.answer(gate.id, answer)
        state: Any = await work
        assert state.is_completed(), state.message
        done = await store.run(run.id)
        assert (done.status, done.flow_run_id) == (PlanStatus.COMPLETED, run.flow_run_id)
        async with get_client() as client:
            in_run = FlowRunFilter(id=FlowRunFilterId(any_=[UUID(run.flow_run_id)]))
            while len(names := {row.name for row in await client.read_task_runs(flow_run_filter=in_run)}) < 5:
                await asyncio.sleep(0.05)
    assert {"check", "first", "second", "redeploy", "third"} <= names
    assert world.did == ["look web-1", "deploy 1", "deploy bad-2", "deploy 2 on web-1", "look three"]


@pytest.mark.thorough
async def test_a_flow_run_whose_process_ended_at_the_gate_resumes_with_the_drafted_version(
    world: World, store: PlanStore, configured: Any, prefect_server: Server, tmp_path: Path
) -> None:
    plan = replanning_plan()
    plan.step("third").requires_approval = False
    with scripted(GOOD) as server, use_server(prefect_server):
        configured(server)
        flow = compile_plan(validate(plan, world.tools), store=store)
        work = asyncio.ensure_future(flow(host="web-1", return_state=True))
        gate = await wait_for_gate_form(store, work)
        work.cancel()
        await asyncio.gather(work, return_exceptions=True)
        waits = update(runs).values(status="pending_approval", reason=None, completed_at=None)  # as if the process had ended on its own
        await Sql(f"sqlite:///{tmp_path / 'plans.db'}").change(waits)
        again = asyncio.ensure_future(rerun(flow, await flow_run(UUID(gate.flow_run_id)), {"host": "web-1"}))
        gate = await wait_for_gate_form(store, again, after=gate)
        await store.gates.answer(gate.id, answer_to(request_of(gate), decision="approve", by="ana", known_by="form"))
        state = await again
        assert state.is_completed(), state.message
        assert len(server.requests) == 1
    assert world.did == ["look web-1", "deploy 1", "deploy bad-2", "deploy 2 on web-1", "look three"]
