import asyncio
from collections.abc import AsyncIterator, Callable
from uuid import UUID

import pytest
from prefect import flow
from prefect.client.orchestration import PrefectClient, get_client
from prefect.client.schemas.filters import FlowRunFilter, FlowRunFilterIdempotencyKey
from prefect.client.schemas.objects import FlowRun
from prefect.states import Completed, Failed, Running, State
from pydantic import JsonValue

from plan_adapter.engine.connection import Server
from plan_adapter.model.errors import ToolError
from plan_adapter.tools.deployment import run_deployment
from plan_adapter.tools.tool import ToolContext

NAME = "tools-flow/nightly"


@flow(name="tools-flow")
def tools_flow(day: str = "today", sizes: list[int] | None = None) -> None: ...


@pytest.fixture
async def client(prefect_server: Server) -> AsyncIterator[PrefectClient]:
    async with get_client() as client:
        flow_id = await client.create_flow(tools_flow)
        await client.create_deployment(flow_id, name="nightly", parameters={"day": "yesterday"}, enforce_parameter_schema=False)
        yield client


async def runs_of(client: PrefectClient, key: str) -> list[FlowRun]:
    return await client.read_flow_runs(flow_run_filter=FlowRunFilter(idempotency_key=FlowRunFilterIdempotencyKey(any_=[key])))


async def first_run(client: PrefectClient, key: str) -> FlowRun:
    """Return the flow run that a step created, once it exists. No worker runs it; the test sets its states."""
    while not (runs := await runs_of(client, key)):
        await asyncio.sleep(0.02)
    return runs[0]


async def end(client: PrefectClient, run_id: UUID, state: State[object]) -> None:
    await client.set_flow_run_state(run_id, Running(), force=True)
    await client.set_flow_run_state(run_id, state, force=True)


def start(context: ToolContext, parameters: dict[str, JsonValue] | None = None) -> asyncio.Future[dict[str, JsonValue]]:
    return asyncio.ensure_future(run_deployment(NAME, context, parameters))


async def test_the_step_waits_until_the_flow_run_ends(client: PrefectClient, another_step: Callable[[str], ToolContext]) -> None:
    step = start(another_step("completes"), {"sizes": [1, 2]})
    flow_run = await first_run(client, "completes")
    assert flow_run.parameters == {"day": "yesterday", "sizes": [1, 2]}
    await end(client, flow_run.id, Completed())
    assert await step == {"flow_run_id": str(flow_run.id), "name": flow_run.name, "state": "Completed"}


async def test_a_failed_flow_run_fails_the_step_and_the_next_attempt_starts_a_new_one(
    client: PrefectClient, another_step: Callable[[str], ToolContext]
) -> None:
    context = another_step("fails")
    step = start(context)
    failed = await first_run(client, "fails")
    await end(client, failed.id, Failed(message="no disk left"))
    with pytest.raises(ToolError, match=f"flow run `{failed.name}` .{failed.id}. of `{NAME}` ended Failed: no disk left"):
        await step

    again = start(context)
    second = await first_run(client, f"fails:{failed.id}")
    await end(client, second.id, Completed())
    assert (await again)["flow_run_id"] == str(second.id)


@pytest.mark.thorough
async def test_a_repeated_step_reuses_its_flow_run(client: PrefectClient, another_step: Callable[[str], ToolContext]) -> None:
    context = another_step("repeated")
    both = start(context), start(context)
    flow_run = await first_run(client, "repeated")
    await end(client, flow_run.id, Completed())
    results = await asyncio.gather(*both)
    assert {result["flow_run_id"] for result in results} == {str(flow_run.id)}
    assert len(await runs_of(client, "repeated")) == 1


async def test_a_cancelled_step_cancels_its_flow_run(client: PrefectClient, another_step: Callable[[str], ToolContext]) -> None:
    step = start(another_step("cancelled"))
    flow_run = await first_run(client, "cancelled")
    step.cancel()
    with pytest.raises(asyncio.CancelledError):
        await step
    state = (await client.read_flow_run(flow_run.id)).state
    assert state is not None
    assert state.name in ("Cancelling", "Cancelled")


@pytest.mark.thorough
async def test_parameters_that_the_server_would_evaluate_are_refused(client: PrefectClient, context: ToolContext) -> None:
    with pytest.raises(ToolError, match="`__prefect_kind`, which Prefect's server would evaluate"):
        await run_deployment(NAME, context, {"sizes": [{"__prefect_kind": "jinja", "template": "{{ 1 }}"}]})


async def test_a_missing_deployment_gives_a_clear_error(client: PrefectClient, context: ToolContext) -> None:
    with pytest.raises(ToolError, match="the Prefect server has no deployment `tools-flow/weekly`"):
        await run_deployment("tools-flow/weekly", context)


async def test_a_deployment_cannot_be_run_without_a_server(context: ToolContext) -> None:
    with pytest.raises(ToolError, match="a deployment needs a Prefect server"):
        await run_deployment(NAME, context)
