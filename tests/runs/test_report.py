"""Tests of what Prefect receives at the end of a run that did not complete: the artifact `run-report` and an event for automations."""

import asyncio
from typing import Any
from uuid import UUID

from prefect import get_client
from prefect.client.schemas.filters import ArtifactFilter, ArtifactFilterFlowRunId
from prefect.events.worker import EventsWorker

from plan_adapter import PlanStore
from plan_adapter.engine.connection import Server
from plan_adapter.runs import acancel_run, arun_plan
from tests.runs.drained import World, pool


async def reports_of(flow_run_id: str | None) -> list[str]:
    """Return the artifacts `run-report` of a flow run, the oldest first."""
    of_run = ArtifactFilter(flow_run_id=ArtifactFilterFlowRunId(any_=[UUID(flow_run_id or "")]))
    async with get_client() as client:
        found = await client.read_artifacts(artifact_filter=of_run)
    return [str(artifact.data) for artifact in sorted(found, key=lambda one: str(one.created)) if artifact.key == "run-report"]


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
