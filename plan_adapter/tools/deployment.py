"""`run_deployment`: a Prefect deployment as a step. This module has its own access to Prefect."""

import asyncio
from typing import TYPE_CHECKING, Annotated

from pydantic import Field, JsonValue
from typing_extensions import TypedDict

from plan_adapter.model.errors import ToolError
from plan_adapter.tools.tool import ToolContext, tool

if TYPE_CHECKING:
    from prefect.client.orchestration import PrefectClient
    from prefect.client.schemas.objects import FlowRun

POLL_SECONDS = (0.2, 3.0)
"""The first and the longest wait between two reads of the flow run."""

MAX_FAILED_POLLS = 20
"""How many reads in a row may fail: a server that is unavailable for a minute fails no step."""

CANCEL_SECONDS = 4.0


class EndedFlowRun(TypedDict):
    """A flow run that has ended."""

    flow_run_id: str
    name: str
    state: str | None


@tool(effect="idempotent_write")
async def run_deployment(
    name: Annotated[str, Field(pattern="^[^/]+/[^/]+$")], context: ToolContext, parameters: dict[str, JsonValue] | None = None
) -> EndedFlowRun:
    """Run a Prefect deployment and wait until it ends. The result is {flow_run_id, name, state}.

    The step fails unless the flow run ends as Completed. A repeated step continues with the flow run that it started before, or starts a
    new one if that one failed. A timeout or a cancellation asks Prefect to cancel the flow run.

    Args:
        name: The deployment, as `flow/deployment`.
        parameters: Parameters of the flow. They override the deployment's defaults.
    """
    # Prefect takes a second to import.
    from prefect.client.orchestration import get_client
    from prefect.exceptions import ObjectNotFound, PrefectHTTPStatusError
    from prefect.settings import get_current_settings

    if not get_current_settings().api.url:
        raise ToolError("a deployment needs a Prefect server: set PREFECT_API_URL in Prefect's settings")
    _refuse_templates(parameters or {})
    async with get_client() as client:
        try:
            flow_run = await _start_flow_run(client, name, parameters or {}, context)
        except ObjectNotFound as error:
            raise ToolError(f"the Prefect server has no deployment `{name}`") from error
        except PrefectHTTPStatusError as error:
            raise ToolError(f"deployment `{name}` cannot be run: {context.redact(str(error))[:500]}") from error
        try:
            flow_run = await _wait_for_end(client, flow_run, context)
        except asyncio.CancelledError:
            await _cancel(client, flow_run, context)
            raise
    state = flow_run.state
    if state is None or not state.is_completed():
        ending = f"{state.name}: {state.message}" if state and state.message else state.name if state else "without a state"
        raise ToolError(f"flow run `{flow_run.name}` ({flow_run.id}) of `{name}` ended {ending}")
    return {"flow_run_id": str(flow_run.id), "name": flow_run.name, "state": state.name}


def _refuse_templates(value: JsonValue) -> None:
    if isinstance(value, list):
        for part in value:
            _refuse_templates(part)
    elif isinstance(value, dict):
        for key, part in value.items():
            if key.startswith("__prefect"):
                raise ToolError(f"the parameters hold the key `{key}`, which Prefect's server would evaluate")
            _refuse_templates(part)


async def _start_flow_run(client: "PrefectClient", name: str, parameters: dict[str, JsonValue], context: ToolContext) -> "FlowRun":
    """Return the flow run of this step. On cancellation, let a flow run that is being created finish its creation, then cancel it."""
    creation = asyncio.ensure_future(_find_or_create_flow_run(client, name, parameters, context.idempotency_key))
    try:
        return await asyncio.shield(creation)
    except asyncio.CancelledError:
        await asyncio.wait((creation,), timeout=CANCEL_SECONDS / 2)
        if creation.done() and not creation.cancelled() and creation.exception() is None:
            await _cancel(client, creation.result(), context)
        creation.cancel()
        raise


async def _find_or_create_flow_run(client: "PrefectClient", name: str, parameters: dict[str, JsonValue], key: str) -> "FlowRun":
    # Prefect takes a second to import.
    from prefect.client.schemas.filters import FlowRunFilter, FlowRunFilterIdempotencyKey
    from prefect.deployments.flow_runs import arun_deployment

    current_key = key
    while True:
        same_key = FlowRunFilter(idempotency_key=FlowRunFilterIdempotencyKey(any_=[current_key]))
        known = await client.read_flow_runs(flow_run_filter=same_key, limit=1)
        if not known:
            return await arun_deployment(name, client=client, parameters=dict(parameters), timeout=0, idempotency_key=current_key)
        state = known[0].state
        if state is None or not state.is_final() or state.is_completed():
            return known[0]
        current_key = f"{key}:{known[0].id}"  # the key after a failed flow run, the same for every attempt


async def _wait_for_end(client: "PrefectClient", flow_run: "FlowRun", context: ToolContext) -> "FlowRun":
    from prefect.exceptions import ObjectNotFound  # imports Prefect

    context.logger.info("flow run `%s` (%s) is started", flow_run.name, flow_run.id)
    wait, failed_polls = POLL_SECONDS[0], 0
    while flow_run.state is None or not flow_run.state.is_final():
        await asyncio.sleep(wait)
        wait = min(wait * 1.5, POLL_SECONDS[1])
        try:
            flow_run = await client.read_flow_run(flow_run.id)
            failed_polls = 0
        except ObjectNotFound as error:
            raise ToolError(f"flow run {flow_run.id} was deleted") from error
        except Exception as error:  # any error of the client's transport
            failed_polls += 1
            context.logger.warning("flow run %s cannot be read: %s", flow_run.id, error)
            if failed_polls > MAX_FAILED_POLLS:
                raise ToolError(f"flow run {flow_run.id} was started, but the Prefect server does not answer: {error}") from error
    return flow_run


async def _cancel(client: "PrefectClient", flow_run: "FlowRun", context: ToolContext) -> None:
    from prefect.states import Cancelling  # imports Prefect

    try:
        async with asyncio.timeout(CANCEL_SECONDS):
            await client.set_flow_run_state(flow_run.id, Cancelling(message="the step that waits for this run was cancelled"))
    except Exception as error:  # the cancellation itself must continue
        context.logger.warning("flow run %s could not be cancelled: %s", flow_run.id, error)
