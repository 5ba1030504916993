"""A Prefect server that goes away: the run goes on, and only what the server was not told is lost."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from prefect.settings import temporary_settings

from plan_adapter import ExecutionPlan, NoServerError, PlanStatus, PlanStore, ToolRegistry, aresume_run, tool
from plan_adapter.engine import ending, internals
from plan_adapter.engine.connection import Server
from plan_adapter.engine.local_server import ensure_server, stop_server
from plan_adapter.plan import StepStatus
from plan_adapter.runner import Occasion, execute_plan
from plan_adapter.settings import Settings
from plan_adapter.validation import bind_inputs, validate
from tests.conftest import PrepareServer


@pytest.fixture
def server(home: Path, prepare_server: PrepareServer) -> Iterator[Server]:
    """A server of the test's own, to be killed."""
    settings = Settings(home=home)
    prepare_server(home)
    server = ensure_server(settings, notify=lambda _: None)
    yield server
    stop_server(settings)


def kill(server: Server) -> None:
    assert server.pid is not None
    os.kill(server.pid, signal.SIGKILL)


def two_steps() -> ExecutionPlan:
    plan = ExecutionPlan(description="Lose the server, go on")
    plan.options.require_approval = False
    plan.add_step("lose", "Lose the server", id="lose")
    plan.add_step("go_on", "Go on", id="go_on", depends_on=["lose"])
    return plan


@tool(effect="read")
def go_on() -> str:
    """Go on."""
    return "gone on"


async def test_a_server_that_is_killed_in_the_middle_of_a_run_changes_nothing_about_the_run(
    server: Server, store: PlanStore, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    @tool(effect="read")
    def lose() -> str:
        """Lose the server."""
        kill(server)
        return "lost"

    monkeypatch.setattr(ending, "END_SECONDS", 0.5)
    bound = bind_inputs(validate(two_steps(), ToolRegistry([lose, go_on])))
    run = await execute_plan(bound, occasion=Occasion(server=server), store=store)
    kept = await store.run(run.id)
    assert (run.status, kept.status, kept.reason) == (PlanStatus.COMPLETED, PlanStatus.COMPLETED, None)
    assert [step.status for step in kept.steps] == [StepStatus.COMPLETED, StepStatus.COMPLETED]
    assert len(await store.receipts(run.id)) == 2
    assert "went away" in caplog.text
    assert not internals.delivery_queues()  # nothing holds up the end of the process
    shown = capfd.readouterr().err
    assert ("Traceback" in shown, "Error logging" in shown) == (False, False)


@pytest.mark.thorough
async def test_a_server_that_is_gone_before_the_first_step_is_named_and_the_run_may_be_resumed(server: Server, store: PlanStore) -> None:
    @tool(effect="read")
    def lose() -> str:
        """Lose nothing."""
        return "kept"

    tools = ToolRegistry([lose, go_on])
    kill(server)
    with temporary_settings({"client.max_retries": 0}), pytest.raises(NoServerError, match=r"did not begin run .*No step was called"):  # pyright: ignore[reportArgumentType]
        await execute_plan(bind_inputs(validate(two_steps(), tools)), occasion=Occasion(server=server), store=store)
    (waiting,) = await store.runs()
    assert waiting.summary().pending == 2
    resumed = await aresume_run(waiting.id, tools=tools, store=store, offline=True)
    assert resumed.status is PlanStatus.COMPLETED


async def test_when_a_run_has_ended_the_server_was_sent_all_its_states(prefect_server: Server, store: PlanStore) -> None:
    @tool(effect="read")
    def lose() -> str:
        """Lose nothing."""
        return "kept"

    run = await execute_plan(
        bind_inputs(validate(two_steps(), ToolRegistry([lose, go_on]))), occasion=Occasion(server=prefect_server), store=store
    )
    assert run.status is PlanStatus.COMPLETED
    assert {type(queue).__name__ for queue in internals.delivery_queues()} == {"EventsWorker", "APILogWorker"}
    assert internals.undelivered() == 0
