"""Tests of the flow `pursue-goal`: a goal is drafted, approved in a form, run as task runs and summarized in an artifact."""

import asyncio
from pathlib import Path
from typing import Any, cast
from uuid import UUID

import pytest
from prefect import get_client
from prefect.client.schemas.filters import ArtifactFilter, ArtifactFilterFlowRunId, FlowRunFilter, FlowRunFilterId

from plan_adapter.engine.connection import Server, use_server
from plan_adapter.flows import pursue_goal
from plan_adapter.gates.approval import answer_to
from plan_adapter.gates.gate import request_of
from plan_adapter.model.status import PlanStatus, StepStatus
from plan_adapter.store.store import PlanStore
from tests.agent.server import Reply, says, scripted
from tests.agent.test_automatic_replanning import wait_for_gate_form
from tests.agent.test_planner import GOOD, TASK

pytestmark = pytest.mark.thorough

TOOLS = ["tests.agent.test_planner:look", "tests.agent.test_planner:back_up", "tests.agent.test_planner:deploy"]


SUMMARIES = {"by the model": says({"summary": "部署好了。"}), "by the record": Reply(status=500, error="out of order")}


@pytest.mark.parametrize("summary", SUMMARIES.values(), ids=[*SUMMARIES])
@pytest.mark.parametrize("decision", ["approve", "reject"])
async def test_a_goal_is_drafted_approved_run_and_summarized(
    prefect_server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, summary: Reply, decision: Any
) -> None:
    monkeypatch.setenv("PLAN_ADAPTER_HOME", str(tmp_path))
    monkeypatch.setenv("PLAN_ADAPTER_MODEL", "m")
    with scripted(says(GOOD), summary) as server, use_server(prefect_server):
        monkeypatch.setenv("PLAN_ADAPTER_MODEL_URL", server.url)
        async with PlanStore(f"sqlite:///{tmp_path / 'plans.db'}") as store:
            goal = cast("Any", pursue_goal)(TASK.task, permissions=["net"], tools=TOOLS, return_state=True)
            work = asyncio.ensure_future(goal)
            gate = await wait_for_gate_form(store, work)
            assert "- permissions that its tools get: `net`\n" in (await store.gates.get(gate.id)).text
            await store.gates.answer(gate.id, answer_to(request_of(gate), decision=decision, by="ana", known_by="form"))
            state: Any = await work
            run = await store.run(gate.run_id)
    flow_run_id = UUID(str(run.flow_run_id))
    with use_server(prefect_server):
        async with get_client() as client:
            of_run = ArtifactFilter(flow_run_id=ArtifactFilterFlowRunId(any_=[flow_run_id]))
            artifacts = {artifact.key: str(artifact.data) for artifact in await client.read_artifacts(artifact_filter=of_run)}
            in_run = FlowRunFilter(id=FlowRunFilterId(any_=[flow_run_id]))
            done = {step.id for step in run.steps if step.status is StepStatus.COMPLETED}
            while not done <= {task_run.name for task_run in await client.read_task_runs(flow_run_filter=in_run)}:
                await asyncio.sleep(0.05)  # task runs arrive a moment later
    assert "draft" in artifacts
    if decision == "reject":
        assert (state.name, run.status) == ("Rejected", PlanStatus.CANCELLED)
        assert "summary" not in artifacts
        assert len(server.requests) == 1
        return
    assert state.is_completed(), state.message
    assert run.status is PlanStatus.COMPLETED
    facts = f"The run is completed. {len(run.steps)} of {len(run.steps)} steps done."
    assert artifacts["summary"] == (f"{facts}\n\nSummary by the model:\n\n部署好了。" if summary.status == 200 else facts)
