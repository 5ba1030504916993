"""Tests of a lost Prefect server: the run continues, and only states that were not sent are missing."""

import asyncio
import os
import signal
from collections.abc import Iterator
from contextlib import suppress
from contextvars import Context
from pathlib import Path
from uuid import UUID

import pytest
from prefect import get_client
from prefect.client.schemas.filters import FlowRunFilter, FlowRunFilterId
from prefect.events.clients import PrefectEventsClient
from prefect.events.worker import EventsWorker
from prefect.settings import temporary_settings

from plan_adapter import ExecutionPlan, PlanRun, PlanStore, ToolRegistry, tool
from plan_adapter.engine import flow as ending
from plan_adapter.engine import internals
from plan_adapter.engine.connection import Server, use_server
from plan_adapter.engine.flow import drop_queues
from plan_adapter.engine.local_server import ensure_server, stop_server
from plan_adapter.errors import NoServerError
from plan_adapter.local.settings import Settings
from plan_adapter.model.status import StepStatus
from plan_adapter.runs import aresume_run
from plan_adapter.runs.reconcile import reconcile
from plan_adapter.runs.run_session import RunRequest
from plan_adapter.runs.start import execute_plan
from plan_adapter.store import PlanStatus
from plan_adapter.tools import ToolContext
from plan_adapter.validation import bind_inputs, validate
from tests.conftest import PrepareServer


@pytest.fixture
def server(home: Path, prepare_server: PrepareServer) -> Iterator[Server]:
    """Yield a server that the test may kill."""
    settings = Settings(home=home)
    prepare_server(home)
    server = ensure_server(settings, notify=lambda _: None)
    yield server
    stop_server(settings)


def kill(server: Server) -> None:
    assert server.pid is not None
    os.kill(server.pid, signal.SIGKILL)


def two_steps() -> ExecutionPlan:
    plan = ExecutionPlan(description="Lose the server, then proceed")
    plan.options.require_approval = False
    plan.add_step("lose", "Lose the server", id="lose")
    plan.add_step("proceed", "Proceed", id="proceed", depends_on=["lose"])
    return plan


@tool(effect="read")
def proceed() -> str:
    """Proceed."""
    return "proceeded"


@pytest.mark.thorough
async def test_a_run_completes_after_its_server_is_killed(
    server: Server, store: PlanStore, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    @tool(effect="read")
    def lose() -> str:
        """Lose the server."""
        kill(server)
        return "lost"

    monkeypatch.setattr(ending, "END_SECONDS", 0.5)
    bound = bind_inputs(validate(two_steps(), ToolRegistry([lose, proceed])))
    run = await execute_plan(bound, run_request=RunRequest(server=server), store=store)
    kept = await store.run(run.id)
    assert (run.status, kept.status, kept.reason) == (PlanStatus.COMPLETED, PlanStatus.COMPLETED, None)
    assert [step.status for step in kept.steps] == [StepStatus.COMPLETED, StepStatus.COMPLETED]
    assert len(await store.receipts(run.id)) == 2
    assert "went away" in caplog.text
    assert not internals.delivery_queues()  # nothing delays the exit of the process
    shown = capfd.readouterr().err
    assert ("Traceback" in shown, "Error logging" in shown) == (False, False)


async def test_a_deleted_flow_run_is_reported_as_deleted(
    prefect_server: Server, store: PlanStore, caplog: pytest.LogCaptureFixture
) -> None:
    @tool(effect="read")
    async def lose(context: ToolContext) -> str:
        """Lose the flow run."""
        async with get_client() as client:
            await client.delete_flow_run(UUID((await store.run(context.run_id)).flow_run_id))
        return "lost"

    bound = bind_inputs(validate(two_steps(), ToolRegistry([lose, proceed])))
    run = await execute_plan(bound, run_request=RunRequest(server=prefect_server), store=store)
    assert (run.status, (await store.run(run.id)).status) == (PlanStatus.COMPLETED, PlanStatus.COMPLETED)
    assert ("somebody deleted it in Prefect" in caplog.text, "went away" in caplog.text) == (True, False)


async def task_runs(run: PlanRun) -> dict[str, str | None]:
    """Return the state names of the steps of `run` in Prefect, once all have completed there or after 30 seconds."""
    assert run.flow_run_id is not None
    wanted = FlowRunFilter(id=FlowRunFilterId(any_=[UUID(run.flow_run_id)]))
    shown = dict[str, str | None]()
    with suppress(TimeoutError):
        async with get_client() as client, asyncio.timeout(30):
            while set(shown.values()) != {"Completed"} or len(shown) < len(run.steps):
                shown = {found.name: found.state_name for found in await client.read_task_runs(flow_run_filter=wanted)}
                await asyncio.sleep(0.1)
    return shown


async def test_states_queued_without_a_server_are_sent_when_the_run_ends(prefect_server: Server, store: PlanStore) -> None:
    await asyncio.to_thread(EventsWorker.drain_all)  # the next worker starts without a server, and ends with its queued states
    # If a worker fails at once, Prefect may drop the state that it was started for. With four more attempts it lasts a second.
    EventsWorker.set_client_override(PrefectEventsClient, api_url="http://127.0.0.1:9/api", reconnection_attempts=4)

    @tool(effect="read")
    async def lose() -> str:
        """Make the server available again once the queue of states has ended without it."""
        async with asyncio.timeout(30):
            while any(isinstance(queue, EventsWorker) for queue in internals.delivery_queues()):
                await asyncio.sleep(0.01)
        EventsWorker.set_client_override(None)
        return "there"

    plan = two_steps()
    plan.add_step("proceed", "Be done before that", id="before")
    plan.step("lose").depends_on = ["before"]
    try:
        bound = bind_inputs(validate(plan, ToolRegistry([lose, proceed])))
        run = await execute_plan(bound, run_request=RunRequest(server=prefect_server), store=store)
    finally:
        EventsWorker.set_client_override(None)
    assert run.status is PlanStatus.COMPLETED
    assert await task_runs(run) == {"before": "Completed", "lose": "Completed", "proceed": "Completed"}


@pytest.mark.thorough
async def test_a_restarted_server_gets_the_whole_run(server: Server, home: Path, store: PlanStore) -> None:
    @tool(effect="read")
    def lose() -> str:
        """Lose the server."""
        kill(server)
        return "lost"

    @tool(effect="read")
    def proceed() -> str:
        """Proceed once the server runs again."""
        again = Context().run(ensure_server, Settings(home=home), notify=lambda _: None)  # as another process would
        assert again.api_url == server.api_url
        return "proceeded"

    run = await execute_plan(
        bind_inputs(validate(two_steps(), ToolRegistry([lose, proceed]))), run_request=RunRequest(server=server), store=store
    )
    assert (run.status, len(await store.receipts(run.id))) == (PlanStatus.COMPLETED, 2), run.message
    with use_server(server):
        assert await task_runs(run) == {"lose": "Completed", "proceed": "Completed"}
        assert await reconcile(store, with_prefect=True) == []
    await drop_queues()  # otherwise the exit of the process would wait for the server that the fixture stops


@pytest.mark.thorough
async def test_a_server_lost_before_the_first_step_is_reported_and_the_run_can_be_resumed(server: Server, store: PlanStore) -> None:
    @tool(effect="read")
    def lose() -> str:
        """Lose nothing."""
        return "kept"

    tools = ToolRegistry([lose, proceed])
    kill(server)
    with temporary_settings({"client.max_retries": 0}), pytest.raises(NoServerError, match=r"did not start run .*No step was called"):  # pyright: ignore[reportArgumentType]
        await execute_plan(bind_inputs(validate(two_steps(), tools)), run_request=RunRequest(server=server), store=store)
    (waiting,) = await store.runs()
    assert waiting.summary().pending == 2
    resumed = await aresume_run(waiting.id, tools=tools, store=store, offline=True)
    assert resumed.status is PlanStatus.COMPLETED


async def test_all_states_are_sent_to_the_server_before_a_run_ends(prefect_server: Server, store: PlanStore) -> None:
    @tool(effect="read")
    def lose() -> str:
        """Lose nothing."""
        return "kept"

    run = await execute_plan(
        bind_inputs(validate(two_steps(), ToolRegistry([lose, proceed]))), run_request=RunRequest(server=prefect_server), store=store
    )
    assert run.status is PlanStatus.COMPLETED
    assert {type(queue).__name__ for queue in internals.delivery_queues()} == {"EventsWorker", "APILogWorker"}
    assert internals.count_undelivered() == 0
