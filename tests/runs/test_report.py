"""Tests of what Prefect receives of how a run stands: the artifact `run-report`, and at its end an event for automations."""

import asyncio
from typing import Any
from uuid import UUID

from prefect import get_client
from prefect.client.schemas.filters import ArtifactFilter, ArtifactFilterFlowRunId
from prefect.client.schemas.objects import Artifact
from prefect.events.worker import EventsWorker

from plan_adapter import ExecutionPlan, PlanStore, Step, ToolRegistry, tool
from plan_adapter.engine.connection import Server
from plan_adapter.gates import PrefectApprover
from plan_adapter.runs import acancel_run, arun_plan
from tests.engine.gates import flow_run, resume
from tests.runs.drained import World, pool


async def artifacts_of(flow_run_id: str | None) -> list[Artifact]:
    """Return the artifacts `run-report` of a flow run, the oldest first."""
    of_run = ArtifactFilter(flow_run_id=ArtifactFilterFlowRunId(any_=[UUID(flow_run_id or "")]))
    async with get_client() as client:
        found = await client.read_artifacts(artifact_filter=of_run)
    return [artifact for artifact in sorted(found, key=lambda one: str(one.created)) if artifact.key == "run-report"]


async def reports_of(flow_run_id: str | None) -> list[str]:
    """Return the texts of the artifacts `run-report` of a flow run, the oldest first."""
    return [str(artifact.data) for artifact in await artifacts_of(flow_run_id)]


async def ends_of(run_id: str, count: int) -> list[dict[str, Any]]:
    """Return the events about the ends of a run, the oldest first, as soon as there are `count`."""
    await asyncio.to_thread(EventsWorker.instance().wait_until_empty)
    resources = {"filter": {"any_resource": {"id": [f"plan.run.{run_id}"]}, "event": {"prefix": ["plan.run."]}}}
    async with get_client() as client, asyncio.timeout(20):
        while len(found := (await client.request("POST", "/events/filter", json=resources)).json()["events"]) < count:
            await asyncio.sleep(0.1)
    return sorted(found, key=lambda event: event["occurred"])


async def test_each_failed_end_of_a_run_becomes_a_report_and_an_event(prefect_server: Server, store: PlanStore, world: World) -> None:
    world.stuck.add("web-1")
    run = await arun_plan(pool(), tools=world.tools, store=store)
    (report,) = await reports_of(run.flow_run_id)
    assert report.splitlines()[0] == "## ✗ RollbackIncomplete: 排空两个节点"
    assert "nothing answers" in report.splitlines()[2]
    assert "**rollback not completed**: `one`" in report
    assert "- ↶ **two** (drain)" in report
    world.stuck.clear()
    await acancel_run(run.id, rollback=True, tools=world.tools, store=store)
    _, newest = await reports_of(run.flow_run_id)
    assert newest.splitlines()[0] == "## ↶ RolledBack: 排空两个节点"
    assert "Every change was undone, and each undo succeeded" in newest
    first, second = await ends_of(run.id, 2)
    assert [event["event"] for event in (first, second)] == ["plan.run.rollback_incomplete", "plan.run.rolled_back"]
    payload = first["payload"]
    assert (payload["plan"], payload["outcome"], payload["run_id"]) == ("排空两个节点", "RollbackIncomplete", run.id)
    assert payload["left_behind"] == ["rollback not completed: one"]
    assert payload["link"] == prefect_server.run_url(run.flow_run_id or "")


async def test_the_state_of_a_failed_run_links_its_report(prefect_server: Server, store: PlanStore, world: World) -> None:
    world.stuck.add("web-1")
    run = await arun_plan(pool(), tools=world.tools, store=store)
    (artifact,) = await artifacts_of(run.flow_run_id)
    state = (await flow_run(UUID(run.flow_run_id or ""))).state
    assert state is not None
    assert str(state.message).endswith(f"; report: {prefect_server.artifact_url(artifact.id or '')}")


async def test_the_report_says_where_a_run_waits_and_then_how_it_ended(prefect_server: Server, store: PlanStore) -> None:
    @tool
    def look() -> str:
        return "fine"

    plan = ExecutionPlan(description="报告", steps=[Step(id="look", tool_name="look", requires_approval=True)])
    plan.options.require_approval = False
    work = asyncio.create_task(arun_plan(plan, tools=ToolRegistry([look]), approver=PrefectApprover(), store=store))
    while not (gates := [gate for gate in await store.gates.find() if gate.keyset is not None]):
        await asyncio.sleep(0.05)
    while not (reports := await reports_of((await store.run(gates[0].run_id)).flow_run_id)):
        await asyncio.sleep(0.05)
    assert reports[-1].startswith("## ⏸ Waiting: ")
    assert "- ⏸ **look**" in reports[-1]
    await resume(UUID(gates[0].flow_run_id or ""), {"decision": "approve", "approver": "ana"})
    run = await work
    ended = (await reports_of(run.flow_run_id))[-1]
    assert ended.startswith("## ✓ Completed: ")
