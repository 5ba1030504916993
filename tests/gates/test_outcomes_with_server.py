"""Tests of gates for unknown outcomes in the Prefect UI."""

import asyncio
import os
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from uuid import UUID

import pytest
from prefect import get_client
from prefect.client.schemas.filters import FlowRunFilter
from prefect.client.schemas.responses import SetStateStatus

from plan_adapter import PlanRun, PlanStore
from plan_adapter.engine.gate_forms import open_forms
from plan_adapter.model.approvals import Gate
from plan_adapter.model.status import RunReason
from plan_adapter.runs import aresume_run, arun_plan
from plan_adapter.store import PlanStatus
from plan_adapter.store.outcomes import ResolutionRecord
from tests.engine.gates import flow_run, form_text, resume
from tests.gates.unknown_outcome import SENDING, UnknownOutcomeWorld

pytestmark = [pytest.mark.usefixtures("prefect_server"), pytest.mark.thorough]


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[UnknownOutcomeWorld]:
    """Return an SQLite store and a tool whose first call has an unknown outcome; PostgreSQL is tested without a server."""
    url = f"sqlite:///{tmp_path / 'plans.db'}"
    async with PlanStore(url) as store:
        world = UnknownOutcomeWorld(store, url)
        yield world
        await world.close()


def run_in_prefect(world: UnknownOutcomeWorld) -> "asyncio.Task[PlanRun]":
    """Start a run that needs no approval."""
    world.tasks.append(asyncio.ensure_future(arun_plan(world.plan(), tools=world.tools(), store=world.store)))
    return world.tasks[-1]


async def shown(world: UnknownOutcomeWorld, *, after: Gate | None = None) -> tuple[Gate, UUID]:
    """Return the open gate and the flow run that shows its form; with `after`, only a newer form counts."""
    while True:
        gate = await world.gate()
        if gate.keyset is not None and (after is None or gate.keyset != after.keyset):
            forms = [form for form in await open_forms() if form.keyset == gate.keyset]
            if forms:
                return gate, UUID(forms[0].flow_run_id)
        await world.store.changed(0.1)


async def states_of_task_runs(run: PlanRun, name: str) -> list[tuple[str | None, str | None]]:
    """Return name and message of the final state of each task run called `name`, oldest first."""
    of_run = FlowRunFilter.model_validate({"id": {"any_": [run.flow_run_id]}})
    async with get_client() as client:
        found = [task_run for task_run in await client.read_task_runs(flow_run_filter=of_run) if task_run.name == name]
    found.sort(key=lambda task_run: (task_run.created is None, task_run.created))
    return [(task_run.state.name, task_run.state.message) for task_run in found if task_run.state is not None]


async def test_the_outcome_form_asks_again_after_a_wrong_answer_and_done_continues_the_run(world: UnknownOutcomeWorld) -> None:
    task = run_in_prefect(world)
    gate, flow_run_id = await shown(world)
    page = await flow_run(flow_run_id)
    assert page.name.startswith("resolve send of ")
    assert "Did send take effect?" in await form_text(flow_run_id, gate.keyset or "")
    [form] = [form for form in await open_forms() if form.gate_id == gate.id]
    assert (form.kind, form.step_id) == ("outcome", "send")
    assert (await resume(flow_run_id, {"decision": "approve", "approver": "ana"})).status is SetStateStatus.REJECT
    await resume(flow_run_id, {"decision": "done", "approver": "ana", "result": "{not json"})
    again, flow_run_id = await shown(world, after=gate)
    assert "**The last answer was refused:** the result is not JSON" in await form_text(flow_run_id, again.keyset or "")
    await resume(flow_run_id, {"decision": "done", "approver": "ana", "result": '{"order": "订单"}', "note": "看过了"})
    run = await task
    assert (run.status, run.step("send").result, world.sent) == (PlanStatus.COMPLETED, {"order": "订单"}, ["a"])
    receipt = (await world.store.receipts(run.id))[0]
    assert (receipt.by, receipt.known_by, receipt.note) == ("ana", "form", "看过了")
    end = (await flow_run(flow_run_id)).state
    assert end is not None
    assert end.name == "Done"
    state = (await flow_run(UUID(run.flow_run_id or ""))).state
    assert state is not None
    assert state.is_completed()


@pytest.mark.parametrize(("decision", "status", "sent"), [("again", PlanStatus.COMPLETED, 2), ("abort", PlanStatus.CANCELLED, 1)])
async def test_the_outcome_form_accepts_again_and_abort(decision: str, status: PlanStatus, sent: int, world: UnknownOutcomeWorld) -> None:
    task = run_in_prefect(world)
    _, flow_run_id = await shown(world)
    await resume(flow_run_id, {"decision": decision, "approver": "ana"})
    run = await task
    assert (run.status, len(world.sent)) == (status, sent)
    state = (await flow_run(UUID(run.flow_run_id or ""))).state
    assert state is not None
    assert state.name == ("Completed" if decision == "again" else "Cancelled")


async def test_a_resolution_from_another_process_closes_the_form(world: UnknownOutcomeWorld) -> None:
    task = run_in_prefect(world)
    gate, flow_run_id = await shown(world)
    await world.store.outcomes.resolve(gate.run_id, "send", ResolutionRecord("done", "bo", "os_user", result="it was"))
    run = await task
    assert (run.status, run.step("send").result) == (PlanStatus.COMPLETED, "it was")
    state = (await flow_run(flow_run_id)).state
    assert state is not None
    assert state.name == "Done"
    found = await states_of_task_runs(run, "send")
    while not found or ("UnknownOutcome", "the line went dead") in found:
        await asyncio.sleep(0.1)  # the server stores task runs with a delay
        found = await states_of_task_runs(run, "send")
    assert found == [("Completed", "bo recorded `done` for `send`")]


SCRIPT = f"{SENDING}run_plan(plan, tools=ToolRegistry([send, look]))\n"


@pytest.mark.parametrize(
    "answered", [False, pytest.param(True, marks=pytest.mark.thorough)], ids=["unanswered", "answered_before_the_resume"]
)
async def test_a_run_killed_while_its_form_is_open_asks_again(answered: bool, world: UnknownOutcomeWorld) -> None:
    world.unknown_calls = 0
    process = subprocess.Popen([sys.executable, "-c", SCRIPT], env={**os.environ, "PLAN_ADAPTER_DATABASE_URL": world.url})
    try:
        gate, flow_run_id = await shown(world)
    finally:
        process.kill()
        process.wait()
    found = await world.store.run(gate.run_id)
    assert (found.status, found.reason) == (PlanStatus.EXECUTING, RunReason.INTERRUPTED)
    if answered:
        await resume(flow_run_id, {"decision": "again", "approver": "ana"})
    task = asyncio.ensure_future(aresume_run(gate.run_id, tools=world.tools(), store=world.store))
    world.tasks.append(task)
    if not answered:
        again, flow_run_id = await shown(world, after=gate)
        assert again.id == gate.id
        assert world.sent == []
        await resume(flow_run_id, {"decision": "again", "approver": "ana"})
    run = await task
    assert (run.status, run.flow_run_id, world.sent) == (PlanStatus.COMPLETED, found.flow_run_id, ["a"])
    assert (await world.store.verify(run.id)).ok
