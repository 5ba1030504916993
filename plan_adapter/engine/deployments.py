"""Prefect deployments of runbooks: what one consists of, how it differs from the deployed one, and how it is created, served or deleted."""

import asyncio
import signal
import socket
import sys
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any, Literal, TypeAlias, cast
from uuid import UUID

from prefect import get_client
from prefect.client.orchestration import PrefectClient
from prefect.client.schemas.actions import DeploymentCreate, DeploymentScheduleCreate, WorkPoolCreate
from prefect.client.schemas.filters import DeploymentFilter, DeploymentFilterName, FlowFilter, FlowFilterName
from prefect.client.schemas.objects import DeploymentSchedule, DeploymentStatus
from prefect.client.schemas.responses import DeploymentResponse
from prefect.client.schemas.schedules import SCHEDULE_TYPES, CronSchedule, IntervalSchedule, RRuleSchedule
from prefect.deployments.runner import RunnerDeployment
from prefect.events.schemas.automations import Automation
from prefect.exceptions import ObjectAlreadyExists, ObjectNotFound, PrefectHTTPStatusError
from prefect.runner import Runner
from prefect.settings import get_current_settings
from pydantic import JsonValue, ValidationError

from plan_adapter.engine.automations import apply_automations, automation_name, automations_of, delete_automations, differ, read_automations
from plan_adapter.engine.outgoing import label, markdown
from plan_adapter.model.errors import DeploymentError
from plan_adapter.model.options import Trigger

DEFAULT_POOL = "plans"

PLAN_LABEL = "plan-adapter.plan"
"""The label of a deployment that `plan deploy` made; its value is the digest of the plan."""
TRIGGERS_LABEL = "plan-adapter.triggers"
"""The label of a deployment that has automations for the triggers of its plan; its value is their number."""
TOOL_LABEL = "plan-adapter.tool."
"""The beginning of a label for each tool that a package defines; its value names the package and its version."""

STORE, ALLOW_LOCAL, STORE_HOST = "PLAN_ADAPTER_DATABASE_URL", "PLAN_ADAPTER_ALLOW_LOCAL_STORE", "PLAN_ADAPTER_STORE_HOST"
"""Settings of workers. Only `plan deploy` sets the last one, so a store without it was named by a person."""

NAMES_PER_REQUEST = 100
PAGE = 200
"""The most that Prefect's server returns for one request."""

HEARTBEAT_SECONDS = 60.0
"""A worker that sent no heartbeat for longer than this counts as gone. By default one is sent every 30 seconds."""

Action: TypeAlias = Literal["created", "updated", "unchanged", "checked"]


@dataclass(frozen=True, slots=True)
class DeploymentOptions:
    """Where and when the runs of a deployment start. None keeps what the deployment has, or else takes Prefect's default."""

    schedule: SCHEDULE_TYPES | None = None
    pool: str | None = None
    queue: str | None = None
    job_variables: Mapping[str, Any] | None = None
    pull_steps: Sequence[Mapping[str, Any]] | None = None
    concurrency_limit: int | None = None
    paused: bool | None = None
    is_served: bool = False  # by a process of `plan serve`, without a work pool
    local_store: str | None = None  # the URL of a store in a file of this machine; its workers use it, unless job variables name another


@dataclass(frozen=True, slots=True)
class RunbookDeployment:
    """A runbook as a Prefect deployment. `name` is that of the flow and of the deployment."""

    name: str
    digest: str  # of the plan
    entrypoint: str
    description: str
    form: Mapping[str, JsonValue]  # JSON Schema of the inputs
    tags: tuple[str, ...]
    tool_packages: Mapping[str, str]  # tool -> the package that defines it, with its version
    inputs: Mapping[str, JsonValue] | None  # the inputs of a run that does not set them; None keeps those of the deployment
    options: DeploymentOptions
    triggers: tuple[Trigger, ...] = ()  # the events that start it

    @property
    def full_name(self) -> str:
        """The deployment's name in Prefect: `flow/deployment`."""
        return f"{self.name}/{self.name}"

    @property
    def labels(self) -> dict[str, str]:
        """The labels of the deployment."""
        tools = {f"{TOOL_LABEL}{tool}": label(package) for tool, package in self.tool_packages.items()}
        return {PLAN_LABEL: self.digest, **({TRIGGERS_LABEL: str(len(self.triggers))} if self.triggers else {}), **tools}


@dataclass(frozen=True, slots=True)
class PlannedDeployment:
    """A deployment compared with the one in Prefect. `changes` names the parts that differ."""

    name: str
    action: Action
    changes: tuple[str, ...]
    create: DeploymentCreate
    deployment_id: str | None  # None while it does not exist
    triggers: tuple[Trigger, ...] = ()
    automations: tuple[Automation, ...] = ()  # those of its triggers that exist

    @property
    def automation_names(self) -> list[str]:
        """The names of the automations that its triggers have, or will have."""
        return [automation_name(self.name, number, trigger.event) for number, trigger in enumerate(self.triggers, start=1)]

    @property
    def removed_automation_names(self) -> list[str]:
        """The names of the automations that it no longer has, or will no longer have."""
        return [found.name for found in self.automations if found.name not in self.automation_names]

    @property
    def pool(self) -> str | None:
        """The work pool of its runs; None if it needs no worker."""
        return self.create.work_pool_name


@dataclass(frozen=True, slots=True)
class DeployedRunbook:
    """A deployment that `plan deploy` made, as Prefect has it."""

    id: str
    name: str  # flow/deployment
    digest: str  # of the plan
    inputs: Mapping[str, JsonValue]  # the inputs of a run that does not set them
    pool: str | None  # None if a process serves it without a worker
    is_attended: bool  # whether a worker polled its pool, or a process served it, in the last minute


@dataclass(frozen=True, slots=True)
class FlowRunEnd:
    """How a flow run ended in Prefect."""

    name: str  # of its state
    message: str
    is_cancelled: bool


@asynccontextmanager
async def deployer() -> "AsyncGenerator[Deployer]":
    """Yield a `Deployer` for the server of Prefect's settings."""
    async with get_client() as client:
        yield Deployer(client)


@dataclass(frozen=True, slots=True)
class Deployer:
    """Creates, updates and deletes the deployments of runbooks on one Prefect server."""

    client: PrefectClient

    async def compare(self, wanted: Sequence[RunbookDeployment]) -> list[PlannedDeployment]:
        """Return each deployment compared with the existing one.

        Raises DeploymentError if `plan deploy` did not make one of them, or if one that a process should serve has a work pool.
        """
        names = [deployment.name for deployment in wanted]
        existing = dict[str, DeploymentResponse]()
        for start in range(0, len(names), NAMES_PER_REQUEST):
            existing |= await self._read_deployments(names[start : start + NAMES_PER_REQUEST])
        return [await self._with_triggers(_compare(one, existing.get(one.name)), one, existing.get(one.name)) for one in wanted]

    async def _with_triggers(
        self, planned: PlannedDeployment, wanted: RunbookDeployment, existing: DeploymentResponse | None
    ) -> PlannedDeployment:
        """Return `planned` with the triggers that it should have, compared with its automations."""
        if existing is None or not (wanted.triggers or TRIGGERS_LABEL in existing.labels):
            return replace(planned, triggers=wanted.triggers)
        automations = await read_automations(self.client, planned.name, existing.id)
        if differ(automations, automations_of(planned.name, existing.id, wanted.triggers)):
            planned = replace(planned, action="updated", changes=(*planned.changes, "triggers"))
        return replace(planned, triggers=wanted.triggers, automations=tuple(automations))

    async def _read_deployments(self, names: list[str]) -> dict[str, DeploymentResponse]:
        """Return the deployments `name/name` of these names."""
        flow_filter, own = FlowFilter(name=FlowFilterName(any_=names)), DeploymentFilter(name=DeploymentFilterName(any_=names))
        flows = {flow.id: flow.name for flow in await self.client.read_flows(flow_filter=flow_filter)}
        found = list[DeploymentResponse]()
        for offset in range(0, sys.maxsize, PAGE):  # the flow of one name may also have deployments with other names
            page = await self.client.read_deployments(flow_filter=flow_filter, deployment_filter=own, limit=PAGE, offset=offset)
            found += page
            if len(page) < PAGE:
                break
        return {deployment.name: deployment for deployment in found if flows.get(deployment.flow_id) == deployment.name}

    async def apply(self, planned: PlannedDeployment) -> PlannedDeployment:
        """Create or update the deployment, unless it is unchanged, and return it with its id. Raises DeploymentError."""
        if planned.action == "unchanged":
            return planned
        create = planned.create
        if planned.deployment_id is None:
            create = create.model_copy(update={"flow_id": await self.client.create_flow_from_name(create.name)})
        deployment_id = await self._submit(create, planned.name)
        try:
            await apply_automations(self.client, planned.automations, automations_of(planned.name, UUID(deployment_id), planned.triggers))
        except PrefectHTTPStatusError as error:
            raise DeploymentError(f"Prefect refuses a trigger of `{planned.name}`: {_error_detail(error)}") from error
        return replace(planned, deployment_id=deployment_id)

    async def _read_runbook_deployment(self, name: str, *, if_missing: str, if_foreign: str) -> tuple[str, DeploymentResponse]:
        """Return the full name and the deployment of a runbook.

        Raises DeploymentError with the hint `if_missing` if there is none, or with `if_foreign` if `plan deploy` did not make it.
        """
        full_name = name if "/" in name else f"{name}/{name}"
        existing = await self._read_deployment(full_name)
        if existing is None:
            raise DeploymentError(f"Prefect has no deployment `{full_name}`: {if_missing}`prefect deployment ls` lists them")
        if PLAN_LABEL not in existing.labels:
            raise DeploymentError(f"`plan deploy` did not make `{full_name}`: {if_foreign.format(full_name)}")
        return full_name, existing

    async def _read_deployment(self, full_name: str) -> DeploymentResponse | None:
        try:
            return await self.client.read_deployment_by_name(full_name)
        except ObjectNotFound:
            return None

    async def _submit(self, create: DeploymentCreate, full_name: str) -> str:
        body = create.model_dump(mode="json", exclude_unset=True)
        try:
            response = await self.client.request("POST", "/deployments/", json=body)
        except PrefectHTTPStatusError as error:
            raise DeploymentError(f"Prefect refuses the deployment `{full_name}`: {_error_detail(error)}") from error
        return str(response.json()["id"])

    async def has_pool(self, name: str) -> bool:
        """Return whether the server has this work pool."""
        try:
            await self.client.read_work_pool(name)
        except ObjectNotFound:
            return False
        return True

    async def create_pool(self, name: str) -> None:
        """Create a process work pool: its workers run each flow run in a process on their own machine. Keeps one that exists."""
        with suppress(ObjectAlreadyExists):
            await self.client.create_work_pool(WorkPoolCreate(name=name, type="process"))

    async def read_runbook(self, name: str) -> DeployedRunbook:
        """Return the deployment of a runbook. Raises DeploymentError if there is none."""
        if_foreign = "start it with `prefect deployment run {}`"
        full_name, existing = await self._read_runbook_deployment(name, if_missing="`plan deploy` makes one, ", if_foreign=if_foreign)
        digest, pool = str(existing.labels[PLAN_LABEL]), existing.work_pool_name
        is_attended = await self._has_worker(pool) if pool is not None else existing.status is DeploymentStatus.READY
        return DeployedRunbook(str(existing.id), full_name, digest, existing.parameters, pool, is_attended)

    async def _has_worker(self, pool: str) -> bool:
        since = datetime.now(UTC) - timedelta(seconds=HEARTBEAT_SECONDS)
        workers = await self.client.read_workers_for_work_pool(pool)
        return any(worker.last_heartbeat_time is not None and worker.last_heartbeat_time >= since for worker in workers)

    async def start(self, runbook: DeployedRunbook, inputs: Mapping[str, JsonValue]) -> str:
        """Create a flow run of the deployment and return its id. A worker starts it. Raises DeploymentError if Prefect refuses it."""
        try:
            flow_run = await self.client.create_flow_run_from_deployment(UUID(runbook.id), parameters=dict(inputs))
        except PrefectHTTPStatusError as error:
            raise DeploymentError(f"Prefect refuses a run of `{runbook.name}`: {_error_detail(error)}") from error
        return str(flow_run.id)

    async def read_end(self, flow_run_id: str) -> FlowRunEnd | None:
        """Return how a flow run ended; None while it has not. Raises DeploymentError if somebody deleted it."""
        try:
            state = (await self.client.read_flow_run(UUID(flow_run_id))).state
        except ObjectNotFound:
            raise DeploymentError(f"Prefect no longer has the flow run {flow_run_id}: somebody deleted it") from None
        if state is None or not state.is_final():
            return None
        return FlowRunEnd(state.name or state.type.value, state.message or "", state.is_cancelled())

    async def undeploy(self, name: str) -> str:
        """Delete the deployment of a runbook and return its name. Its flow runs stay. Raises DeploymentError if there is none."""
        full_name, existing = await self._read_runbook_deployment(
            name, if_missing="", if_foreign="delete it with `prefect deployment delete {}`"
        )
        if TRIGGERS_LABEL in existing.labels:  # Prefect keeps them when it deletes the deployment
            await delete_automations(self.client, await read_automations(self.client, full_name, existing.id))
        await self.client.delete_deployment(existing.id)
        return full_name


def default_pool() -> str:
    """Return the work pool of Prefect's settings, or this package's default."""
    return get_current_settings().deployments.default_work_pool_name or DEFAULT_POOL


@dataclass(frozen=True, slots=True)
class FlowRunSource:
    """What a flow run was started with: the names of its parameters, and which package defined each tool when it was deployed."""

    parameters: tuple[str, ...]
    tool_packages: Mapping[str, str]


async def read_flow_run_source(flow_run_id: str) -> FlowRunSource:
    """Return the parameter names of a flow run, and the tool packages of its deployment."""
    async with get_client() as client:
        flow_run = await client.read_flow_run(UUID(flow_run_id))
        labels = {} if flow_run.deployment_id is None else (await client.read_deployment(flow_run.deployment_id)).labels
    packages = {name.removeprefix(TOOL_LABEL): str(package) for name, package in _tool_labels(labels).items()}
    return FlowRunSource(tuple(flow_run.parameters), packages)


def make_schedule(kind: Literal["cron", "interval", "rrule"], value: str | timedelta, time_zone: str | None) -> SCHEDULE_TYPES:
    """Return a schedule: a cron expression, an interval, or an iCalendar rule, in a time zone (None: UTC). Raises DeploymentError."""
    try:
        match kind:
            case "cron":
                return CronSchedule.model_validate({"cron": value, "timezone": time_zone})
            case "interval":
                return IntervalSchedule.model_validate({"interval": value, "timezone": time_zone})
            case "rrule":
                return RRuleSchedule.model_validate({"rrule": value, "timezone": time_zone or "UTC"})
    except ValueError as error:
        raise DeploymentError(f"the schedule `{kind} {value}` is not valid: {_first_message(error)}") from None


def without_server(wanted: RunbookDeployment) -> PlannedDeployment:
    """Return a deployment that was checked, and compared with nothing because no server is running."""
    return replace(_compare(wanted, None), action="checked", triggers=wanted.triggers)


def _compare(wanted: RunbookDeployment, existing: DeploymentResponse | None) -> PlannedDeployment:
    if existing is not None and PLAN_LABEL not in existing.labels:
        raise DeploymentError(f"Prefect already has a deployment `{wanted.full_name}`, which `plan deploy` did not make; rename the plan")
    if wanted.options.is_served and existing is not None and (pool := existing.work_pool_name) is not None:
        raise DeploymentError(
            f"workers of the pool `{pool}` run `{wanted.full_name}`: start one with `prefect worker start --pool {pool}`; or type "
            f"`plan deploy --delete {wanted.name}`, which also deletes its schedule, and then serve it"
        )
    create = _deployment_to_create(wanted, existing)
    if existing is None:
        return PlannedDeployment(wanted.full_name, "created", (), create, None)
    changes = tuple(_differences(create, existing))
    return PlannedDeployment(wanted.full_name, "updated" if changes else "unchanged", changes, create, str(existing.id))


def _deployment_to_create(wanted: RunbookDeployment, existing: DeploymentResponse | None) -> DeploymentCreate:
    """Return the complete deployment to send. The server replaces all schedules with those in it."""
    options = wanted.options
    fields: dict[str, Any] = {
        "name": wanted.name,
        "flow_id": UUID(int=0) if existing is None else existing.flow_id,  # known once the flow exists
        "version": wanted.digest[:12],
        "entrypoint": wanted.entrypoint,
        "description": markdown(wanted.description),
        "tags": sorted(wanted.tags),
        "labels": wanted.labels,
        "parameter_openapi_schema": dict(wanted.form),
        "enforce_parameter_schema": True,
        "parameters": dict(wanted.inputs or {}),
        "work_pool_name": None if options.is_served else default_pool(),
    }
    if existing is not None:
        fields |= _kept_fields(existing, keep_inputs=wanted.inputs is None)
        if existing.work_pool_name is None and not options.is_served:  # `plan serve` made it
            fields["work_pool_name"] = default_pool()
    fields["job_variables"] = _job_variables({} if existing is None else existing.job_variables, options)
    given: dict[str, Any] = {
        "work_pool_name": options.pool,
        "work_queue_name": options.queue,
        "pull_steps": options.pull_steps,
        "concurrency_limit": options.concurrency_limit,
        "paused": options.paused,
        "schedules": None if options.schedule is None else [DeploymentScheduleCreate(schedule=options.schedule, active=True)],
    }
    return DeploymentCreate(**fields | {name: value for name, value in given.items() if value is not None})


def _kept_fields(existing: DeploymentResponse, *, keep_inputs: bool) -> dict[str, Any]:
    """Return the fields that an existing deployment keeps unless an option changes them."""
    kept: dict[str, Any] = {
        "work_pool_name": existing.work_pool_name,
        "work_queue_name": existing.work_queue_name,
        "pull_steps": existing.pull_steps,
        "concurrency_limit": _concurrency_limit(existing),
        "schedules": [_copy_schedule(schedule) for schedule in existing.schedules],
    }
    if keep_inputs:
        kept["parameters"] = existing.parameters
    return {name: value for name, value in kept.items() if value is not None or name == "work_pool_name"}


def _job_variables(existing: Mapping[str, Any], options: DeploymentOptions) -> dict[str, Any]:
    """Return the existing job variables updated with those of `options`. Environment variables are merged one by one."""
    given = options.job_variables or {}
    env = _environment(existing.get("env", {}), given.get("env", {}), options.local_store)
    return {**existing, **given, **({"env": env} if env else {})}


def _environment(existing: Mapping[str, str], given: Mapping[str, str], local_store: str | None) -> dict[str, str]:
    """Return the environment of workers. `local_store` is part of it unless somebody named another store, now or earlier."""
    if STORE in given:
        return {**{name: value for name, value in existing.items() if name not in (ALLOW_LOCAL, STORE_HOST)}, **given}
    if local_store is None or (STORE in existing and STORE_HOST not in existing):
        return {**existing, **given}
    return {**existing, STORE: local_store, ALLOW_LOCAL: "true", STORE_HOST: socket.gethostname(), **given}


def _copy_schedule(schedule: DeploymentSchedule) -> DeploymentScheduleCreate:
    return DeploymentScheduleCreate(
        schedule=schedule.schedule, active=schedule.active, parameters=schedule.parameters, slug=schedule.slug or None
    )


def _concurrency_limit(existing: DeploymentResponse) -> int | None:
    return None if existing.global_concurrency_limit is None else existing.global_concurrency_limit.limit


def _differences(create: DeploymentCreate, existing: DeploymentResponse) -> list[str]:
    """Return the names of the parts that would change, as the command line shows them."""
    parts = {
        "version": ((create.version, create.entrypoint), (existing.version, existing.entrypoint)),
        "description": (create.description, existing.description),
        "tags": (create.tags, sorted(existing.tags)),
        "tool packages": (_tool_labels(create.labels), _tool_labels(existing.labels)),
        "form": (create.parameter_openapi_schema, existing.parameter_openapi_schema),
        "inputs": (create.parameters, existing.parameters),
        "schedule": (
            [_comparable_schedule(schedule) for schedule in create.schedules],
            [_comparable_schedule(schedule) for schedule in existing.schedules],
        ),
        "work pool": (create.work_pool_name, existing.work_pool_name),
        "work queue": (create.work_queue_name or existing.work_queue_name, existing.work_queue_name),
        "job variables": (create.job_variables, existing.job_variables),
        "pull steps": (create.pull_steps or None, existing.pull_steps or None),
        "concurrency limit": (create.concurrency_limit, _concurrency_limit(existing)),
        "paused": (existing.paused if create.paused is None else create.paused, existing.paused),
    }
    return [name for name, (new, old) in parts.items() if new != old]


def _tool_labels(labels: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in labels.items() if name.startswith(TOOL_LABEL)}


def _comparable_schedule(schedule: DeploymentScheduleCreate | DeploymentSchedule) -> tuple[object, ...]:
    """Return the parts of a schedule that count in a comparison: all but the date from which an interval is counted."""
    fields = schedule.schedule.model_dump(mode="json", exclude={"anchor_date"}, exclude_none=True)
    return type(schedule.schedule).__name__, {"timezone": "UTC", **fields}, schedule.active, schedule.parameters


def _error_detail(error: PrefectHTTPStatusError) -> str:
    try:
        detail: Any = error.response.json()
    except ValueError:
        return str(error)
    return str(cast("Mapping[str, Any]", detail).get("detail", detail)) if isinstance(detail, Mapping) else str(detail)


def _first_message(error: ValueError) -> str:
    if not isinstance(error, ValidationError):
        return str(error)
    return error.errors(include_url=False, include_input=False)[0]["msg"].removeprefix("Value error, ")


class _ExistingDeployment(RunnerDeployment):
    """A deployment for a runner, which already exists in Prefect."""

    id: UUID

    async def aapply(self, *_arguments: Any, **_options: Any) -> UUID:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Return the id. Prefect is not changed."""
        return self.id


def poll_seconds() -> float:
    """Return how often to look for runs that are due: 1 s, unless Prefect's setting says otherwise. Prefect's own default is 10 s."""
    runner = get_current_settings().runner
    return runner.poll_frequency if "poll_frequency" in runner.model_fields_set else 1.0


async def serve_deployments(deployments: Mapping[str, str], *, limit: int | None, on_started: Callable[[], None]) -> None:
    """Start the flow runs of these deployments (ids by name), at most `limit` at once, until cancelled or SIGTERM.

    Calls `on_started` once it serves them. On exit, it ends the runs in progress. The deployments' schedules stay active: runs that are due
    meanwhile start late, when the deployments are served again.
    """
    runner = Runner(name="plan serve", limit=limit, pause_on_shutdown=False, query_seconds=poll_seconds())
    for name, deployment_id in deployments.items():
        await runner.aadd_deployment(
            _ExistingDeployment(name=name.partition("/")[2], flow_name=name.partition("/")[0], id=UUID(deployment_id))
        )
    serving = asyncio.ensure_future(runner.start(webserver=False))
    await asyncio.sleep(0)  # lets the runner install its SIGTERM handler, which does not stop a runner inside an event loop
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, serving.cancel)
    on_started()
    try:
        await serving
    except asyncio.CancelledError:
        task = asyncio.current_task()
        if task is not None and task.cancelling():  # by the caller; otherwise SIGTERM ended it
            raise
