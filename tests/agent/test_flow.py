"""Tests of the flow `draft-plan`: a question to the model is a task run, a question to a person a form, and the draft an artifact."""

import asyncio
import os
import signal
import subprocess
import sys
import threading
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast
from uuid import UUID

import pytest
from prefect import get_client
from prefect.client.schemas.filters import ArtifactFilter, ArtifactFilterFlowRunId, FlowRunFilter, FlowRunFilterId
from prefect.client.schemas.objects import FlowRun, State
from prefect.client.schemas.responses import SetStateStatus
from prefect.flow_engine import run_flow_async
from prefect.states import Scheduled

from plan_adapter.engine import draft_flow as drafting_in_prefect
from plan_adapter.engine.connection import Server, use_server
from plan_adapter.flows import draft_plan
from plan_adapter.store.store import PlanStore
from tests.agent.server import Reply, Request, says, scripted
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


async def test_a_resumed_flow_run_requests_only_missing_answers(
    prefect_server: Server, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with scripted(says(done(step("deploi", {}))), Reply(status=401, error="expired"), says(GOOD)) as server, use_server(prefect_server):
        monkeypatch.setenv("PLAN_ADAPTER_MODEL_URL", server.url)
        state: Any = await cast("Any", draft_plan).with_options(retries=1)(TASK.task, tools=TOOLS, return_state=True)
        assert state.is_completed(), state.message
        assert len(server.requests) == 3


QUESTION = says({"action": "ask_user", "speak": "哪个数据库? **bold**", "reason": "two"})


async def test_a_question_to_a_person_is_asked_in_a_form(prefect_server: Server, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with scripted(QUESTION, says(GOOD)) as server, use_server(prefect_server):
        monkeypatch.setenv("PLAN_ADAPTER_MODEL_URL", server.url)
        async with drafting_flow_run(draft_plan) as (flow_run_id, drafting):
            await answer_form(flow_run_id, drafting, {"answer": "生产库"})
            state = await drafting
        assert state.is_completed(), state.message
        assert "生产库" in server.requests[-1]["messages"][-1]["content"]


async def test_an_unanswered_question_is_asked_again_when_the_flow_run_resumes(
    prefect_server: Server, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with scripted(QUESTION, Reply(status=401, error="expired"), says(GOOD)) as server, use_server(prefect_server):
        monkeypatch.setenv("PLAN_ADAPTER_MODEL_URL", server.url)
        async with drafting_flow_run(draft_plan.with_options(retries=2)) as (flow_run_id, drafting):
            await answer_form(flow_run_id, drafting, {"answer": "测试库"})
            await answer_form(flow_run_id, drafting, {"answer": "生产库"})
            state = await drafting
        assert state.is_completed(), state.message
        assert "生产库" in server.requests[-1]["messages"][-1]["content"]


SCRIPT = """\
import asyncio, sys
from uuid import UUID
from prefect import get_client
from prefect.flow_engine import run_flow_async
from plan_adapter.flows import draft_plan

async def resume():
    async with get_client() as client:
        flow_run = await client.read_flow_run(UUID(sys.argv[1]))
    await run_flow_async(draft_plan, flow_run=flow_run, parameters=flow_run.parameters, return_type="state")

asyncio.run(resume())
"""


async def test_a_killed_flow_run_that_runs_again_requests_no_answer_twice(
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
        assert [len(request["messages"]) for request in server.requests] == [2, 4, 4]  # the second request was never answered
    ended = await run_of(str(flow_run.id))
    assert ended.state is not None
    assert ended.state.is_completed(), ended.state.message
    async with PlanStore(f"sqlite:///{home / 'plans.db'}") as store:
        kept = await store.drafts.get(str(flow_run.id))
    assert (kept.plan is not None, [call.number for call in kept.calls]) == (True, [1, 2])


async def test_a_question_without_an_answer_in_time_ends_the_draft(
    prefect_server: Server, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(drafting_in_prefect, "ANSWER_SECONDS", 1)
    with scripted(QUESTION) as server, use_server(prefect_server):
        monkeypatch.setenv("PLAN_ADAPTER_MODEL_URL", server.url)
        async with drafting_flow_run(draft_plan) as (flow_run_id, drafting):
            state = await drafting
    assert state.is_failed()
    assert "nobody answered" in (state.message or "")
    async with PlanStore(f"sqlite:///{home / 'plans.db'}") as store:
        kept = await store.drafts.get(str(flow_run_id))
    assert (kept.plan, len(kept.calls)) == (None, 1)


@asynccontextmanager
async def drafting_flow_run(flow: Any) -> AsyncGenerator[tuple[UUID, "asyncio.Task[State]"]]:
    """Yield a new flow run of `flow` and the task that executes it. The task is cancelled when the block ends."""
    async with get_client() as client:
        flow_run = await client.create_flow_run(flow, parameters={"task": TASK.task, "tools": TOOLS})
    work = run_flow_async(flow, flow_run=flow_run, parameters=flow_run.parameters, return_type="state")
    drafting: asyncio.Task[State] = asyncio.ensure_future(cast("Any", work))
    try:
        yield flow_run.id, drafting
    finally:
        drafting.cancel()
        await asyncio.gather(drafting, return_exceptions=True)


async def answer_form(flow_run_id: UUID, drafting: "asyncio.Task[State]", values: dict[str, str]) -> None:
    """Answer the next form of this flow run. The form appears a moment after the flow run pauses."""
    async with get_client() as client:
        while not drafting.done():
            if (await client.resume_flow_run(flow_run_id, run_input=values)).status is SetStateStatus.ACCEPT:
                return
            await asyncio.sleep(0.05)
    pytest.fail(f"no form was there to answer: {drafting.result().message}")
