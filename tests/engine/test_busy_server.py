"""Tests of a Prefect server on SQLite that answers 503 while it is busy: runs still start and end, without long waits."""

from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit
from uuid import UUID

import pytest
from prefect.client.schemas.objects import State
from prefect.events.worker import EventsWorker
from prefect.logging.handlers import APILogWorker
from prefect.settings import temporary_settings

from plan_adapter.engine.connection import Server
from plan_adapter.model.plan import ExecutionPlan
from plan_adapter.model.record import PlanRun
from plan_adapter.model.status import PlanStatus, RunOutcome
from plan_adapter.runner import acancel_run, arun_plan, compile_plan
from plan_adapter.store.store import PlanStore
from plan_adapter.tools.registry import ToolRegistry
from plan_adapter.validation import validate
from tests.engine.calls import flow_run, noop, task_runs
from tests.proxy import BusyServer, running_busy_server
from tests.runs.drained import World, pool, undone

MORE_THAN_PREFECT_RETRIES = 7  # its client tries six times
ALWAYS = 1000
CREATE_FLOW_RUN = b"POST /api/flow_runs/ HTTP"
SET_COMPLETED = b'"type":"COMPLETED"'
TOOLS = ToolRegistry([noop])


@pytest.fixture(scope="module")
def proxy(prefect_server: Server) -> Iterator[BusyServer]:
    """A proxy in front of the session's Prefect server. Prefect's queues in this process keep the first server that they used."""
    port = urlsplit(prefect_server.api_url).port
    assert port is not None
    with running_busy_server(port) as proxy:
        yield proxy
        for queue in (EventsWorker, APILogWorker):
            queue.drain_all(timeout=10)


@pytest.fixture
def busy(proxy: BusyServer) -> Iterator[BusyServer]:
    """The proxy with Prefect's settings pointing at it."""
    proxy.refusals.clear()
    proxy.requests.clear()
    proxy.refused_by_server.clear()
    with temporary_settings({"api.url": proxy.url}):  # pyright: ignore[reportArgumentType]  # typed for its old names
        yield proxy


@pytest.fixture
def store(tmp_path: Path) -> PlanStore:
    return PlanStore(f"sqlite:///{tmp_path / 'plans.db'}")


def plan() -> ExecutionPlan:
    plan = ExecutionPlan(name="busy", description="One step")
    plan.options.require_approval = False
    plan.add_step("noop", "nothing", id="a")
    return plan


async def state_of(run: PlanRun) -> State | None:
    assert run.flow_run_id is not None
    return (await flow_run(UUID(run.flow_run_id))).state


async def test_a_run_starts_even_if_a_busy_server_refuses_its_flow_run_repeatedly(busy: BusyServer, store: PlanStore) -> None:
    busy.refusals[CREATE_FLOW_RUN] = MORE_THAN_PREFECT_RETRIES
    run = await arun_plan(plan(), tools=TOOLS, store=store)
    assert (run.status, busy.refusals[CREATE_FLOW_RUN]) == (PlanStatus.COMPLETED, 0)
    asked, refused_by_server = (sum(CREATE_FLOW_RUN in line for line in lines) for lines in (busy.requests, busy.refused_by_server))
    assert asked - refused_by_server == MORE_THAN_PREFECT_RETRIES + 1  # a loaded server refuses some of its own


async def test_a_run_ends_even_if_a_busy_server_refuses_its_final_state_repeatedly(
    busy: BusyServer, store: PlanStore, caplog: pytest.LogCaptureFixture
) -> None:
    busy.refusals[SET_COMPLETED] = MORE_THAN_PREFECT_RETRIES
    run = await arun_plan(plan(), tools=TOOLS, store=store)
    state = await state_of(run)
    assert state is not None
    assert (state.is_completed(), busy.refusals[SET_COMPLETED]) == (True, 0)
    assert "went away" not in caplog.text


@pytest.mark.thorough  # 5 s: as any flow above
async def test_a_compiled_flow_ends_on_a_busy_server_too(busy: BusyServer, store: PlanStore) -> None:
    busy.refusals[SET_COMPLETED] = MORE_THAN_PREFECT_RETRIES
    flow = compile_plan(validate(plan(), TOOLS), tools=TOOLS, store=store)
    state = await flow(return_state=True)
    assert (state.is_completed(), busy.refusals[SET_COMPLETED]) == (True, 0)


async def test_a_csrf_token_is_requested_only_once_if_the_server_has_none(busy: BusyServer, store: PlanStore) -> None:
    await arun_plan(plan(), tools=TOOLS, store=store)
    busy.requests.clear()
    await arun_plan(plan(), tools=TOOLS, store=store)
    assert any(CREATE_FLOW_RUN in line for line in busy.requests)
    assert not any(b"csrf-token" in line for line in busy.requests), busy.requests


async def test_a_rollback_goes_on_though_the_server_does_not_take_that_a_call_is_undone(busy: BusyServer, store: PlanStore) -> None:
    world = World()
    world.stuck.add("web-1")
    run = await arun_plan(pool(), tools=world.tools, store=store)
    assert (run.outcome, undone(run)["one"]) == (RunOutcome.ROLLBACK_INCOMPLETE, False)
    one = (await task_runs(UUID(run.flow_run_id or ""), ["one"]))["one"]
    world.stuck.clear()
    refused = f"/task_runs/{one.id}/set_state".encode()
    busy.refusals[refused] = ALWAYS
    later = await acancel_run(run.id, rollback=True, tools=world.tools, store=store)
    assert (later.outcome, undone(later)["one"]) == (RunOutcome.ROLLED_BACK, True)
    assert busy.refusals[refused] < ALWAYS
