"""Starting and rerunning flow runs, finding out who started or cancelled them, and reading their logs."""

import logging
from collections.abc import Collection, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from datetime import datetime
from itertools import takewhile
from typing import Any
from uuid import UUID

import httpx
from prefect import Flow, get_client
from prefect.client.orchestration import PrefectClient
from prefect.client.schemas.filters import FlowRunFilter, FlowRunFilterId, LogFilter, LogFilterFlowRunId
from prefect.client.schemas.objects import FlowRun, Log, State, StateType
from prefect.client.schemas.sorting import LogSort
from prefect.context import FlowRunContext
from prefect.exceptions import ObjectNotFound, Pause

from plan_adapter.engine.internals import busy_retries, missing_prefect_features, name_new_flow_run, rerun
from plan_adapter.gates.approval import os_user
from plan_adapter.model.errors import NoServerError, RunFailedError

log = logging.getLogger(__name__)

PAGE = 100
NO_REASON = "cancelled in Prefect"
_CANCELLATION_TYPES = (StateType.CANCELLING, StateType.CANCELLED)


async def run_flow(
    flow: Flow[..., Any], parameters: Mapping[str, Any], *, flow_run_id: str | None = None, name: str | None = None
) -> State:
    """Run `flow` in this process and return its final state.

    With `flow_run_id`, run it as that flow run, whatever its state. If the server does not have that flow run, or this Prefect cannot run
    it again, create a new one called `name`. Raises what the flow's function raised, except RunFailedError: a failed run is a result. So is
    a paused one.
    """
    async with busy_retries():
        can_rerun = not missing_prefect_features("reruns")
        flow_run = await _find_flow_run(flow_run_id) if flow_run_id is not None and can_rerun else None
        try:
            if flow_run is None:
                with nullcontext() if name is None else name_new_flow_run(flow, name):
                    state = await flow(**parameters, return_state=True)
            else:
                state = await rerun(flow, flow_run, dict(parameters))
        except Pause as paused:
            if paused.state is None:
                raise
            return paused.state
    error = await state.aresult(raise_on_failure=False)
    if isinstance(error, Exception) and not isinstance(error, RunFailedError):
        raise error
    return state


CHECKS_ITSELF = "plan_adapter_checks_parameters"
"""An attribute of a flow's function. It makes Prefect pass the parameters through unchecked, whatever the signature says."""


async def _find_flow_run(flow_run_id: str) -> FlowRun | None:
    async with get_client() as client:
        try:
            return await client.read_flow_run(UUID(flow_run_id))
        except ObjectNotFound:
            return None


async def tag_flow_run(flow_run: FlowRun, tags: Collection[str]) -> None:
    """Add `tags` to those of `flow_run`. If the server does not accept them, log a warning and continue.

    Only the flow run gets the plan's tags. Prefect's `tags(...)` would add them to every task run as well.
    """
    missing = [tag for tag in dict.fromkeys(tags) if tag not in flow_run.tags]
    if missing and await _try_update(flow_run, "tags", tags=[*flow_run.tags, *missing]):
        flow_run.tags = [*flow_run.tags, *missing]


async def name_flow_run(name: str) -> None:
    """Name the current flow run. If the server does not accept the name, log a warning and continue."""
    context = FlowRunContext.get()
    assert context is not None and context.flow_run is not None  # only called inside a flow run
    if context.flow_run.name != name and await _try_update(context.flow_run, "name", name=name):
        context.flow_run.name = name


async def _try_update(flow_run: FlowRun, what: str, **fields: Any) -> bool:
    """Return whether the server accepted `fields` of the flow run. If not, log a warning that names `what` is missing."""
    try:
        async with get_client() as client:
            response = await client.update_flow_run(flow_run.id, **fields)
        response.raise_for_status()
    except Exception as error:
        log.warning("flow run %s did not get the %s of its plan: %s", flow_run.id, what, error)
        return False
    return True


@dataclass(frozen=True, slots=True)
class Origin:
    """Who started a flow run. `schedule` is the `flow/deployment` whose schedule started it.

    `deployment` is the `flow/deployment` of a flow run that no known person started: a schedule, an automation, or a creator without a
    name.
    """

    requested_by: str
    schedule: str | None = None
    deployment: str | None = None


async def read_origin() -> Origin:
    """Return who started the current flow run: the operating system's user if it belongs to no deployment."""
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
    if creator.type == "AUTOMATION":  # anyone who can reach the API can name an automation, so its name identifies nobody
        return Origin(f"automation {name}", deployment=deployment)
    return Origin(name)


async def cancellation_reason(flow_run_id: str) -> str | None:
    """Return why the flow run was set to Cancelling or Cancelled, in the UI or through the API, or None if it was not."""
    async with get_client() as client:
        state = (await client.read_flow_run(UUID(flow_run_id))).state
    return (state.message or NO_REASON) if state is not None and _is_cancellation(state) else None


async def has_ended(flow_run_id: str) -> bool:
    """Return whether the flow run has a final state, or was deleted."""
    flow_run = await _find_flow_run(flow_run_id)
    return flow_run is None or (flow_run.state is not None and flow_run.state.is_final())


@dataclass(frozen=True, slots=True)
class Cancellation:
    """Why a flow run is Cancelling or Cancelled, and when it entered its current state, by the server's clock."""

    reason: str
    at: datetime


async def read_cancellations(flow_run_ids: Collection[str]) -> dict[str, Cancellation]:
    """Return the cancellation of each of these flow runs that is Cancelling or Cancelled, by id. Raises NoServerError.

    The reason is the first one given: once the process has ended, its worker sets the flow run to Cancelled with its own message.
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
                    if since_cancelled := list(takewhile(_is_cancellation, states)):
                        reasons = [state.message for state in reversed(since_cancelled) if state.message]
                        found[str(flow_run.id)] = Cancellation((reasons or [NO_REASON])[0], since_cancelled[0].timestamp)
    except httpx.HTTPError as error:
        raise NoServerError(f"Prefect cannot report which runs were cancelled there: {type(error).__name__}: {error}") from error
    return found


def _is_cancellation(state: State) -> bool:
    return state.type in _CANCELLATION_TYPES


LOG_PAGE = 200
"""The most log lines or task runs that Prefect's API returns at once."""


@dataclass(frozen=True, slots=True)
class LogLine:
    """One log record. `step` is the name of its task run, or None for a record of the flow itself."""

    at: datetime
    level: int
    step: str | None
    text: str


async def flow_run_logs(flow_run_id: str) -> list[LogLine]:
    """Return the records of a flow run and its task runs, oldest first, from the current server."""
    async with get_client() as client:
        lines = await _read_logs(client, flow_run_id)
        names = await _task_names(client, flow_run_id)
    return [LogLine(line.timestamp, line.level, names.get(line.task_run_id), line.message) for line in lines]


async def _read_logs(client: PrefectClient, flow_run_id: str) -> list[Log]:
    wanted = LogFilter(flow_run_id=LogFilterFlowRunId(any_=[UUID(flow_run_id)]))
    logs: list[Log] = []
    while True:
        page = await client.read_logs(log_filter=wanted, limit=LOG_PAGE, offset=len(logs), sort=LogSort.TIMESTAMP_ASC)
        logs += page
        if len(page) < LOG_PAGE:
            return logs


async def _task_names(client: PrefectClient, flow_run_id: str) -> dict[UUID | None, str]:
    this = FlowRunFilter(id=FlowRunFilterId(any_=[UUID(flow_run_id)]))
    names: dict[UUID | None, str] = {}
    while True:
        page = await client.read_task_runs(flow_run_filter=this, limit=LOG_PAGE, offset=len(names))
        names |= {run.id: run.name for run in page}
        if len(page) < LOG_PAGE:
            return names
