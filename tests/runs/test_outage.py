"""Tests of a server outage during a run or while a form waits: afterwards Prefect shows the true states."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Callable
from contextvars import Context
from pathlib import Path
from uuid import UUID

import pytest
from prefect import get_client
from prefect.client.schemas.filters import FlowRunFilter, FlowRunFilterId
from pydantic import JsonValue

from plan_adapter import ExecutionPlan, PlanRun, PlanStore, ToolRegistry, tool
from plan_adapter.engine.connection import Server, use_server
from plan_adapter.engine.flow import drop_queues
from plan_adapter.engine.local_server import ensure_server, stop_server
from plan_adapter.local.settings import Settings
from plan_adapter.model.approvals import Gate
from plan_adapter.runs.reconcile import reconcile
from plan_adapter.runs.run_session import RunRequest
from plan_adapter.runs.start import execute_plan
from plan_adapter.store import PlanStatus, dump_plan
from plan_adapter.tools import ToolContext
from plan_adapter.validation import bind_inputs, validate
from tests.conftest import PrepareServer
from tests.engine.gates import resume
from tests.workers import deployed, worker

pytestmark = [pytest.mark.thorough, pytest.mark.timeout(600)]

STEPS = 8
AWAY_SECONDS = 90.0
"""Longer than Prefect retries a request by default, and longer than its event queue tries to connect."""


@pytest.fixture
async def outage(home: Path, prepare_server: PrepareServer) -> AsyncIterator["Outage"]:
    """Yield a server that the test can take down for a while."""
    await drop_queues()  # Prefect's queues of an earlier test would send to the server of that test
    settings = Settings(home=home)
    prepare_server(home)
    yield Outage(settings, ensure_server(settings, notify=lambda _: None))
    stop_server(settings)


class Outage:
    """A server that can be killed and is restarted later with the same database and port."""

    def __init__(self, settings: Settings, server: Server) -> None:
        self.settings, self.server = settings, server
        self._over: asyncio.Task[None] | None = None

    def begin(self) -> None:
        """Kill the server, and restart it after `AWAY_SECONDS`."""
        assert self.server.pid is not None
        os.kill(self.server.pid, signal.SIGKILL)
        self._over = asyncio.get_running_loop().create_task(self._end())

    @property
    def is_active(self) -> bool:
        """Whether the server is down."""
        return self._over is not None and not self._over.done()

    async def over(self) -> None:
        """Wait until the server answers again."""
        assert self._over is not None
        await asyncio.shield(self._over)

    async def _end(self) -> None:
        await asyncio.sleep(AWAY_SECONDS)
        again = await asyncio.to_thread(Context().run, ensure_server, self.settings, notify=lambda _: None)  # as another process would
        assert (again.api_url, again.pid == self.server.pid) == (self.server.api_url, False)


async def shown(run: PlanRun, *, wanted: Callable[[dict[str, str | None]], bool]) -> dict[str, str | None]:
    """Return the state names of a run (under the empty name) and of its steps in Prefect, once `wanted` accepts them."""
    assert run.flow_run_id is not None
    only = FlowRunFilter(id=FlowRunFilterId(any_=[UUID(run.flow_run_id)]))
    found = dict[str, str | None]()
    async with get_client() as client:
        for _ in range(300):
            found = {task_run.name: task_run.state_name for task_run in await client.read_task_runs(flow_run_filter=only)}
            found[""] = (await client.read_flow_run(UUID(run.flow_run_id))).state_name
            if wanted(found):
                break
            await asyncio.sleep(0.1)  # the server records states with a delay
    return found


async def test_a_run_continues_without_its_server_and_is_shown_completely_afterwards(outage: Outage, store: PlanStore) -> None:
    called_away = list[str]()

    @tool(effect="read")
    async def work(context: ToolContext) -> str:
        """Work, and record the call if the server is down."""
        await asyncio.sleep(AWAY_SECONDS / 8)
        if outage.is_active:
            called_away.append(context.step_id)
        return "done"

    @tool(effect="read")
    async def lose() -> str:
        """Lose the server."""
        outage.begin()
        return "lost"

    @tool(effect="read")
    async def find() -> str:
        """Wait for the server."""
        await outage.over()
        return "found"

    plan = ExecutionPlan(description="Lose the server for a while, and continue")
    plan.options.require_approval = False
    plan.add_step("work", "Work", id="before")
    plan.add_step("lose", "Lose the server", id="lose", depends_on=["before"])
    plan.add_step("work", "Work without it", id="away", depends_on=["lose"])
    plan.add_step("work", "Work on without it", id="away_too", depends_on=["away"])
    plan.add_step("work", "Work beside that", id="aside", depends_on=["lose"])
    plan.add_step("find", "Wait for the server", id="find", depends_on=["away_too", "aside"])
    plan.add_step("work", "Work on", id="after", depends_on=["find"])
    bound = bind_inputs(validate(plan, ToolRegistry([work, lose, find])))
    run = await execute_plan(bound, run_request=RunRequest(server=outage.server), store=store)
    assert (run.status, set(called_away)) == (PlanStatus.COMPLETED, {"away", "away_too", "aside"})
    with use_server(outage.server):
        completed = dict.fromkeys(["", *(step.id for step in plan.steps)], "Completed")
        assert await shown(run, wanted=completed.__eq__) == completed
        assert await reconcile(store, with_prefect=True) == []
    await drop_queues()  # otherwise the exit of the process would wait for the server that the fixture stops


@pytest.mark.parametrize("gated", [False, True], ids=["plan", "step"])
async def test_a_gate_form_reopens_with_its_server_and_can_be_answered(gated: bool, outage: Outage, store: PlanStore) -> None:
    @tool(effect="write")
    def strike() -> str:
        """Strike."""
        return "struck"

    plan = ExecutionPlan(description="Wait for an approval, without the server for a while")
    plan.options.require_approval = not gated
    plan.add_step("strike", "Strike", id="first")
    plan.add_step("strike", "Strike again", id="second", depends_on=["first"], requires_approval=gated)
    bound = bind_inputs(validate(plan, ToolRegistry([strike])))
    run_request = RunRequest(asks_in_form=True, server=outage.server, settings=outage.settings)
    running = asyncio.ensure_future(execute_plan(bound, run_request=run_request, store=store))
    gate = await paused(store, running, outage)
    outage.begin()
    await outage.over()
    assert not running.done()
    gate = await paused(store, running, outage)
    with use_server(outage.server):
        await resume(UUID(gate.flow_run_id), {"decision": "approve", "approver": "ana", "note": ""})
    run = await running
    assert run.status is PlanStatus.COMPLETED
    with use_server(outage.server):
        right = dict.fromkeys(["", "first", "second"], "Completed") | ({"approval-0": "Approved"} if gated else {})
        assert await shown(run, wanted=right.__eq__) == right
        assert await reconcile(store, with_prefect=True) == []
    await drop_queues()


async def paused(store: PlanStore, running: "asyncio.Future[PlanRun]", outage: Outage) -> Gate:
    """Return the open gate once its form waits in Prefect."""
    while not running.done():
        for gate in await store.gates.find():
            if gate.flow_run_id is not None and gate.keyset is not None:
                with use_server(outage.server):
                    async with get_client() as client:
                        state = (await client.read_flow_run(UUID(gate.flow_run_id))).state
                if state is not None and state.is_paused():
                    return gate
        await asyncio.sleep(0.1)
    raise AssertionError(f"the run has ended: {running.result()}")


async def test_a_worker_and_its_run_survive_a_server_outage(outage: Outage, store: PlanStore, home: Path) -> None:
    plan = ExecutionPlan(description="Sleep longer than the server is away")
    plan.options.require_approval = False
    for number in range(STEPS):
        sleep: JsonValue = f"sleep {(AWAY_SECONDS + 30) / STEPS}"
        plan.add_step("bash", "Sleep", {"command": sleep}, id=f"s{number}", depends_on=[f"s{number - 1}"] if number else [])
    environment = {"PLAN_ADAPTER_HOME": str(home)}
    with use_server(outage.server), worker(outage.server, pool="outage", log=home / "worker.log", environment=environment):
        async with get_client() as client:
            deployment = await deployed(client, pool="outage", parameters={"plan": dump_plan(plan)})
            started = await client.create_flow_run_from_deployment(deployment)
            while not (found := await store.runs()) or not await store.receipts(found[0].id):
                await asyncio.sleep(0.2)
            outage.begin()
            await outage.over()
            lives = await store.run(found[0].id)
            while (ended := await store.run(found[0].id)).completed_at is None:
                await asyncio.sleep(0.2)
        assert (lives.reason, ended.status, len(await store.receipts(ended.id))) == (None, PlanStatus.COMPLETED, STEPS)
        assert ended.flow_run_id == str(started.id)
        completed = dict.fromkeys(["", *(step.id for step in plan.steps)], "Completed")
        assert await shown(ended, wanted=completed.__eq__) == completed, (home / "worker.log").read_text()[-5000:]
        assert await reconcile(store, with_prefect=True) == []
