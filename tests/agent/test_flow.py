"""The flow `draft-plan`: each question to the model is a task run, a question to a person a form, the draft an artifact."""

import asyncio
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any, cast
from uuid import UUID

import pytest
from prefect import get_client
from prefect.client.schemas.filters import ArtifactFilter, ArtifactFilterFlowRunId, FlowRunFilter, FlowRunFilterId
from prefect.client.schemas.objects import FlowRun
from prefect.states import Scheduled

from plan_adapter.engine.connection import Server, use_server
from plan_adapter.flows import draft_plan
from plan_adapter.store.store import PlanStore
from tests.agent.server import Reply, Request, ScriptedServer, says, scripted
from tests.agent.test_planner import GOOD, TASK, done, step

pytestmark = pytest.mark.thorough

TOOLS = ["tests.agent.test_planner:look", "tests.agent.test_planner:back_up", "tests.agent.test_planner:deploy"]


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PLAN_ADAPTER_HOME", str(tmp_path))
    monkeypatch.setenv("PLAN_ADAPTER_MODEL", "m")
    return tmp_path


async def run_of(draft_id: str) -> FlowRun:
    async with get_client() as client:
        return await client.read_flow_run(UUID(draft_id))


async def test_each_round_is_a_task_run_and_the_draft_is_kept_and_shown(
    prefect_server: Server, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with scripted(says(done(step("deploi", {}))), says(GOOD)) as server, use_server(prefect_server):
        monkeypatch.setenv("PLAN_ADAPTER_MODEL_URL", server.url)
        state: Any = await cast("Any", draft_plan)(TASK.task, constraints=list(TASK.constraints), tools=TOOLS, return_state=True)
    assert state.is_completed(), state.message
    async with PlanStore(f"sqlite:///{home / 'plans.db'}") as store:
        [listed] = await store.drafts.newest()
        draft = await store.drafts.get(listed.id)
    assert draft.plan is not None
    assert len(draft.calls) == 2
    async with get_client() as client:
        in_run = FlowRunFilter(id=FlowRunFilterId(any_=[UUID(draft.id)]))
        while len(task_runs := await client.read_task_runs(flow_run_filter=in_run)) < 2:  # they come as events, a moment later
            await asyncio.sleep(0.05)
        artifacts = await client.read_artifacts(artifact_filter=ArtifactFilter(flow_run_id=ArtifactFilterFlowRunId(any_=[UUID(draft.id)])))
    assert [task_run.name.rpartition("-")[0] for task_run in task_runs] == ["ask m", "ask m"]
    assert "completes before" in str(artifacts[0].data)


async def test_a_flow_run_that_goes_on_pays_only_for_what_it_has_not(
    prefect_server: Server, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with scripted(says(done(step("deploi", {}))), Reply(status=401, error="expired"), says(GOOD)) as server, use_server(prefect_server):
        monkeypatch.setenv("PLAN_ADAPTER_MODEL_URL", server.url)
        state: Any = await cast("Any", draft_plan).with_options(retries=1)(TASK.task, tools=TOOLS, return_state=True)
        assert state.is_completed(), state.message
        assert len(server.requests) == 3


async def test_a_question_is_a_form(prefect_server: Server, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with (
        scripted(says({"action": "ask_user", "speak": "哪个数据库? **bold**", "reason": "two"}), says(GOOD)) as server,
        use_server(prefect_server),
    ):
        monkeypatch.setenv("PLAN_ADAPTER_MODEL_URL", server.url)
        drafting: asyncio.Task[Any] = asyncio.ensure_future(cast("Any", draft_plan(TASK.task, tools=TOOLS, return_state=True)))
        await _answer_form(server, drafting, {"answer": "生产库"})
        state: Any = await drafting
        assert state.is_completed(), state.message
        assert "生产库" in server.requests[-1]["messages"][-1]["content"]


SCRIPT = """\
import asyncio, sys
from uuid import UUID
from prefect import get_client
from prefect.flow_engine import run_flow_async
from plan_adapter.flows import draft_plan

async def go_on():
    async with get_client() as client:
        flow_run = await client.read_flow_run(UUID(sys.argv[1]))
    await run_flow_async(draft_plan, flow_run=flow_run, parameters=flow_run.parameters, return_type="state")

asyncio.run(go_on())
"""


async def test_a_flow_run_that_was_killed_and_is_run_again_pays_for_no_answer_twice(
    prefect_server: Server, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, never = threading.Event(), threading.Event()

    def held(_: Request) -> Reply:
        asked.set()
        return Reply(hold=never)

    with scripted(says(done(step("deploi", {}))), held, says(GOOD)) as server, use_server(prefect_server):
        monkeypatch.setenv("PLAN_ADAPTER_MODEL_URL", server.url)
        environment = {**os.environ, "PREFECT_API_URL": prefect_server.api_url, "PLAN_ADAPTER_ALLOW_LOCAL_STORE": "true"}
        async with get_client() as client:
            flow_run = await client.create_flow_run(draft_plan, parameters={"task": TASK.task, "tools": TOOLS})
            command = [sys.executable, "-c", SCRIPT, str(flow_run.id)]
            process = subprocess.Popen(command, env=environment)
            assert await asyncio.to_thread(asked.wait, 120)
            os.kill(process.pid, signal.SIGKILL)
            process.wait()
            never.set()
            await client.set_flow_run_state(flow_run.id, Scheduled(name="AwaitingRetry"), force=True)
        await asyncio.to_thread(subprocess.run, command, env=environment, check=True)
        assert [len(request["messages"]) for request in server.requests] == [2, 4, 4]  # the answer to the second was never there
    ended = await run_of(str(flow_run.id))
    assert ended.state is not None
    assert ended.state.is_completed(), ended.state.message
    async with PlanStore(f"sqlite:///{home / 'plans.db'}") as store:
        kept = await store.drafts.get(str(flow_run.id))
    assert (kept.plan is not None, [call.number for call in kept.calls]) == (True, [1, 2])


async def _answer_form(server: ScriptedServer, drafting: "asyncio.Task[Any]", values: dict[str, str]) -> None:
    async with get_client() as client:
        while not drafting.done():
            paused = [run for run in await client.read_flow_runs() if run.state is not None and run.state.is_paused()]
            if paused:
                await client.resume_flow_run(paused[0].id, run_input=values)
                return
            await asyncio.sleep(0.05)
    assert server.requests
