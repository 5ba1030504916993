"""Flow runs: started, run again, asked whether somebody cancelled them."""

import logging
from collections.abc import Collection, Mapping
from contextlib import AbstractAsyncContextManager, AbstractContextManager, nullcontext
from dataclasses import dataclass
from datetime import datetime
from itertools import takewhile
from typing import Any
from uuid import UUID

import httpx
from prefect import Flow, get_client
from prefect.client.schemas.filters import FlowRunFilter
from prefect.client.schemas.objects import FlowRun, State, StateType
from prefect.context import FlowRunContext
from prefect.exceptions import ObjectNotFound

from plan_adapter.errors import NoServerError, RunFailedError
from plan_adapter.gates.approval import os_user

log = logging.getLogger(__name__)

PAGE = 100
NO_REASON = "cancelled in Prefect"
_CANCELLATIONS = (StateType.CANCELLING, StateType.CANCELLED)


async def run_flow(
    flow: Flow[..., Any], parameters: Mapping[str, Any], *, flow_run_id: str | None = None, name: str | None = None
) -> State:
    """Run `flow` in this process and return its final state; with `flow_run_id` as that flow run, from whatever state it is in.

    Where the server knows no such flow run (any more) a new one is made, called `name`. Raises what the flow's function raised,
    RunFailedError excepted: a run that failed is a result.
    """
    async with busy_retries():
        flow_run = None if flow_run_id is None else await _known(flow_run_id)
        if flow_run is None:
            with _named(flow, name):
                state = await flow(**parameters, return_state=True)
        else:
            from plan_adapter.engine.internals import rerun  # the one thing here that Prefect's public calls cannot do

            state = await rerun(flow, flow_run, dict(parameters))
    error = await state.aresult(raise_on_failure=False)
    if isinstance(error, Exception) and not isinstance(error, RunFailedError):
        raise error
    return state


CHECKS_ITSELF = "plan_adapter_checks_parameters"
"""The attribute of a flow's function that is given the parameters of its flow run as they are, whatever its signature says."""


def let_flows_check_parameters() -> None:
    """Do as `internals.let_flows_check_parameters`; nothing where a later Prefect lacks what the internals need."""
    try:
        from plan_adapter.engine import internals
    except ImportError:
        return
    internals.let_flows_check_parameters(CHECKS_ITSELF)


def busy_retries() -> AbstractAsyncContextManager[None]:
    """Return `internals.busy_retries`, or nothing special where a later Prefect lacks what the internals need."""
    try:
        from plan_adapter.engine import internals
    except ImportError:
        return nullcontext()
    return internals.busy_retries()


def _named(flow: Flow[..., Any], name: str | None) -> AbstractContextManager[None]:
    """Return `internals.named`, or nothing special where there is no name or a later Prefect lacks what the internals need."""
    if name is None:
        return nullcontext()
    try:
        from plan_adapter.engine.internals import named
    except ImportError:
        return nullcontext()
    return named(flow, name)


async def _known(flow_run_id: str) -> FlowRun | None:
    async with get_client() as client:
        try:
            return await client.read_flow_run(UUID(flow_run_id))
        except ObjectNotFound:
            return None


async def tag_flow_run(flow_run: FlowRun, tags: Collection[str]) -> None:
    """Add `tags` to those of `flow_run`; a server that does not take them holds nothing up.

    The tags of a plan are those of its flow run alone: within Prefect's `tags(...)` every task run would have them, too.
    """
    missing = [tag for tag in dict.fromkeys(tags) if tag not in flow_run.tags]
    if not missing:
        return
    try:
        async with get_client() as client:
            response = await client.update_flow_run(flow_run.id, tags=[*flow_run.tags, *missing])
        response.raise_for_status()
    except Exception as error:
        log.warning("flow run %s lacks the tags of its plan: %s", flow_run.id, error)
    else:
        flow_run.tags = [*flow_run.tags, *missing]


@dataclass(frozen=True, slots=True)
class Origin:
    """Who started a flow run; `schedule` names the `flow/deployment` whose schedule did.

    `deployment` is the `flow/deployment` of one that no person is known to have started: its schedule did, an automation, or somebody of
    whom the server has no name.
    """

    requested_by: str
    schedule: str | None = None
    deployment: str | None = None


async def origin() -> Origin:
    """Return who started the current flow run: the operating system's user for one that is no deployment's."""
    context = FlowRunContext.get()
    assert context is not None and context.flow_run is not None and context.flow is not None  # only called inside a flow run
    flow_run = context.flow_run
    if flow_run.deployment_id is None:
        return Origin(os_user())
    async with get_client() as client:
        deployment = f"{context.flow.name}/{(await client.read_deployment(flow_run.deployment_id)).name}"
    if flow_run.auto_scheduled:
        return Origin(f"schedule of {deployment}", schedule=deployment, deployment=deployment)
    creator = flow_run.created_by
    name = creator.display_value if creator is not None else None
    if creator is None or not name:
        return Origin(f"deployment {deployment}", deployment=deployment)
    if creator.type == "AUTOMATION":  # whoever reaches the API may call one as they like: its name is nobody's
        return Origin(f"automation {name}", deployment=deployment)
    return Origin(name)


async def cancellation_of(flow_run_id: str) -> str | None:
    """Return why somebody has set the flow run to Cancelling or Cancelled, in the UI or through the API; None if nobody has."""
    async with get_client() as client:
        state = (await client.read_flow_run(UUID(flow_run_id))).state
    return (state.message or NO_REASON) if state is not None and _is_cancellation(state) else None


@dataclass(frozen=True, slots=True)
class Cancellation:
    """Why somebody has set a flow run to Cancelling or Cancelled, and when it came to the state that it has now, by the server's clock."""

    reason: str
    at: datetime


async def cancellations(flow_run_ids: Collection[str]) -> dict[str, Cancellation]:
    """Return by its id why each of these flow runs that is Cancelling or Cancelled is so; raises NoServerError.

    The reason is the first that was given: once the process has ended, its worker sets the flow run to Cancelled with words of its own.
    """
    ids, found = list(flow_run_ids), dict[str, Cancellation]()
    try:
        async with get_client() as client:
            for start in range(0, len(ids), PAGE):
                wanted = {
                    "id": {"any_": ids[start : start + PAGE]},
                    "state": {"type": {"any_": [StateType.CANCELLING, StateType.CANCELLED]}},
                }
                for flow_run in await client.read_flow_runs(flow_run_filter=FlowRunFilter.model_validate(wanted), limit=PAGE):
                    states = sorted(await client.read_flow_run_states(flow_run.id), key=lambda state: state.timestamp, reverse=True)
                    if said := list(takewhile(_is_cancellation, states)):
                        reasons = [state.message for state in reversed(said) if state.message]
                        found[str(flow_run.id)] = Cancellation((reasons or [NO_REASON])[0], said[0].timestamp)
    except httpx.HTTPError as error:
        raise NoServerError(f"Prefect cannot be asked which runs were cancelled there: {type(error).__name__}: {error}") from error
    return found


def _is_cancellation(state: State) -> bool:
    return state.type in _CANCELLATIONS
