"""Tests of wrapped tasks that run again and keep their task run, and of task runners that are refused."""

import asyncio
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from prefect import get_client, task
from prefect.futures import PrefectFuture
from prefect.task_runners import TaskRunner, ThreadPoolTaskRunner

from plan_adapter import PlanRun, PlanStore, ToolRegistry, tool
from plan_adapter.engine.tasks import PrefectStepRunner
from plan_adapter.model.errors import ToolDefinitionError
from plan_adapter.runner import compile_plan
from plan_adapter.runs import aresume_run
from plan_adapter.store import PlanStatus
from plan_adapter.tools import as_tool
from plan_adapter.validation import validate
from tests.engine.calls import ScriptedCall, failed, flow_run, succeeded, task_runs
from tests.engine.wrapped import a_plan, shown

pytestmark = pytest.mark.usefixtures("prefect_server")


@pytest.fixture
def store(tmp_path: Path) -> PlanStore:
    return PlanStore(f"sqlite:///{tmp_path / 'plans.db'}")


class RemoteTaskRunner(TaskRunner[PrefectFuture[Any]]):
    """A task runner that would run tasks outside the process, like Dask."""

    def duplicate(self) -> "RemoteTaskRunner":
        return RemoteTaskRunner()

    def submit(self, task: Any, parameters: Any, wait_for: Any = None, dependencies: Any = None) -> Any:
        raise AssertionError("nothing is submitted")


@pytest.mark.parametrize("runner", [RemoteTaskRunner(), ThreadPoolTaskRunner(max_workers=7)], ids=["remote", "threads"])
async def test_a_compiled_plan_with_another_task_runner_is_refused_before_its_first_step(
    runner: TaskRunner[PrefectFuture[Any]], store: PlanStore
) -> None:
    called = list[str]()

    @tool(effect="read")
    def act() -> None:
        """Act."""
        called.append("act")

    plan = a_plan()
    plan.add_step("act", "Act", id="act")
    registry = ToolRegistry([act])
    compiled = compile_plan(validate(plan, registry), tools=registry, store=store).with_options(task_runner=runner)
    with pytest.raises(ToolDefinitionError, match=r"steps of a plan cannot run in it.*`options.max_parallel_steps`.*`run_deployment`"):
        await compiled()
    assert called == []


async def test_a_step_that_runs_again_in_its_flow_run_keeps_its_task_run() -> None:
    from prefect import flow

    from plan_adapter.engine.flow_runs import run_flow

    ids = list[UUID]()

    @task
    def act() -> None: ...

    @flow(persist_result=False)
    async def steps() -> None:
        await PrefectStepRunner()(ScriptedCall("act", task=act, ends=[failed(), succeeded(2)], retry_delays=[0.0]))

    first = await run_flow(steps, {})
    flow_run_id = first.state_details.flow_run_id
    assert flow_run_id is not None
    ids.append((await task_runs(flow_run_id, ["act"]))["act"].id)
    await run_flow(steps, {}, flow_run_id=str(flow_run_id))
    again = (await task_runs(flow_run_id, ["act"]))["act"]
    assert [*ids, (await flow_run(flow_run_id)).run_count] == [again.id, 2]


SCRIPT = """\
import os, sys, time
from pathlib import Path
from prefect import task
from plan_adapter import ExecutionPlan, ToolRegistry, run_plan
from plan_adapter.tools import as_tool

world = Path(sys.argv[1])

@task(tags=["wrapped-killed"])
def act(name: str) -> str:
    "Act; the second never comes back."
    with (world / "acted").open("a") as file:
        file.write(name + chr(10))
    if name == "second":
        (world / "begun").write_text("")
        time.sleep(600)
    return name

plan = ExecutionPlan(description="Act twice")
plan.options.require_approval = False
plan.add_step("act", "Act", {"name": "first"}, id="first", tags=["早"])
plan.add_step("act", "Act", {"name": "second"}, id="second", depends_on=["first"])
run_plan(plan, tools=ToolRegistry([as_tool(act, effect="idempotent_write")]))
"""


@pytest.mark.thorough
async def test_a_resume_after_a_kill_in_a_task_keeps_the_task_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PLAN_ADAPTER_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("PLAN_ADAPTER_DATABASE_URL", f"sqlite:///{tmp_path / 'plans.db'}")
    completed = list[str]()

    @task(tags=["wrapped-killed"], on_completion=[lambda _task, run, _state: completed.append(run.name)])
    def act(name: str) -> str:
        return name

    process = subprocess.Popen([sys.executable, "-c", SCRIPT, str(tmp_path)])
    while not (tmp_path / "begun").exists():
        assert process.poll() is None, "the run ended before it acted"
        time.sleep(0.05)
    async with PlanStore() as store:
        run = (await store.runs())[0]
        before = await _all_task_runs(run, 2)
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        again = await aresume_run(run.id, tools=ToolRegistry([as_tool(act, effect="idempotent_write")]), store=store)
    assert (again.status, [step.carried for step in again.steps], completed) == (PlanStatus.COMPLETED, [True, False], ["second"])
    assert (tmp_path / "acted").read_text() == "first\nsecond\n"
    after = await shown(again, "first", "second")
    assert {name: (found.id, found.state_name, sorted(found.tags)) for name, found in after.items()} == {
        "first": (before["first"], "Carried", ["早"]),
        "second": (before["second"], "Completed", ["wrapped-killed"]),
    }


async def _all_task_runs(run: PlanRun, count: int) -> dict[str, UUID]:
    from prefect.client.schemas.filters import FlowRunFilter, FlowRunFilterId

    async with get_client() as client:
        while True:
            wanted = FlowRunFilter(id=FlowRunFilterId(any_=[UUID(run.flow_run_id or "")]))
            task_runs = await client.read_task_runs(flow_run_filter=wanted)
            if len(task_runs) == count:
                return {task_run.name: task_run.id for task_run in task_runs}
            await asyncio.sleep(0.1)
