"""Prefect deployments of runbooks: what one consists of, which parts differ from the deployed one, and how it is created or deleted."""

from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Literal, TypeAlias, cast
from uuid import UUID

from prefect import get_client
from prefect.client.orchestration import PrefectClient
from prefect.client.schemas.actions import DeploymentCreate, DeploymentScheduleCreate, WorkPoolCreate
from prefect.client.schemas.objects import DeploymentSchedule
from prefect.client.schemas.responses import DeploymentResponse
from prefect.client.schemas.schedules import SCHEDULE_TYPES, CronSchedule, IntervalSchedule, RRuleSchedule
from prefect.exceptions import ObjectNotFound, PrefectHTTPStatusError
from prefect.settings import get_current_settings
from pydantic import JsonValue, ValidationError

from plan_adapter.errors import DeploymentError

DEFAULT_POOL = "plans"

PLAN_LABEL = "plan-adapter.plan"
"""The label of a deployment that `plan deploy` made; its value is the digest of the plan."""
TOOL_LABEL = "plan-adapter.tool."
"""The beginning of a label for each tool that a package defines; its value names the package and its version."""

Action: TypeAlias = Literal["created", "updated", "unchanged"]


@dataclass(frozen=True, slots=True)
class Schedule:
    """When a deployment starts runs: a cron expression, an interval, or an iCalendar rule, in a time zone (None: UTC)."""

    kind: Literal["cron", "interval", "rrule"]
    value: str | timedelta
    time_zone: str | None = None

    def __str__(self) -> str:
        every = f"every {self.value}" if self.kind == "interval" else f"{self.kind} {self.value}"
        return f"{every} ({self.time_zone})" if self.time_zone else every


@dataclass(frozen=True, slots=True)
class RunbookDeployment:
    """A runbook as a Prefect deployment. None keeps what the deployment has, or else takes Prefect's default."""

    name: str  # of the flow and of the deployment
    digest: str  # of the plan
    entrypoint: str
    description: str
    form: Mapping[str, JsonValue]  # JSON Schema of the inputs
    tags: tuple[str, ...]
    tool_packages: Mapping[str, str]  # tool -> the package that defines it, with its version
    inputs: Mapping[str, JsonValue] | None = None  # what a run gets unless it says otherwise
    schedule: Schedule | None = None
    pool: str | None = None
    queue: str | None = None
    job_variables: Mapping[str, Any] | None = None
    pull_steps: Sequence[Mapping[str, Any]] | None = None
    concurrency_limit: int | None = None
    paused: bool | None = None

    @property
    def full_name(self) -> str:
        """The deployment's name in Prefect: `flow/deployment`."""
        return f"{self.name}/{self.name}"

    @property
    def labels(self) -> dict[str, str]:
        """The labels of the deployment."""
        return {PLAN_LABEL: self.digest, **{f"{TOOL_LABEL}{tool}": package for tool, package in self.tool_packages.items()}}


@dataclass(frozen=True, slots=True)
class Deployed:
    """What happened to one deployment, or would happen. `changes` names the parts that differ."""

    name: str
    action: Action
    changes: tuple[str, ...]
    deployment_id: str | None  # None if it would be created
    pool: str | None


@asynccontextmanager
async def deployer() -> "AsyncGenerator[Deployer]":
    """Yield a `Deployer` for the server of Prefect's settings."""
    async with get_client() as client:
        yield Deployer(client)


@dataclass(frozen=True, slots=True)
class Deployer:
    """Creates, updates and deletes the deployments of runbooks on one Prefect server."""

    client: PrefectClient

    async def deploy(self, wanted: RunbookDeployment, *, dry_run: bool = False) -> Deployed:
        """Create the deployment, or update what differs. Raises DeploymentError."""
        existing = await self._existing(wanted.full_name)
        if existing is not None and PLAN_LABEL not in existing.labels:
            raise DeploymentError(
                f"Prefect already has a deployment `{wanted.full_name}`, which `plan deploy` did not make: rename the plan"
            )
        pool = wanted.pool or (existing.work_pool_name if existing is not None else default_pool())
        create = _create(wanted, existing, pool)
        changes = () if existing is None else tuple(_differences(create, existing))
        action: Action = "created" if existing is None else "updated" if changes else "unchanged"
        deployment_id = None if existing is None else str(existing.id)
        if action != "unchanged" and not dry_run:
            create.flow_id = await self.client.create_flow_from_name(wanted.name)
            deployment_id = await self._post(create, wanted.full_name)
        return Deployed(wanted.full_name, action, changes, deployment_id, pool)

    async def _existing(self, full_name: str) -> DeploymentResponse | None:
        try:
            return await self.client.read_deployment_by_name(full_name)
        except ObjectNotFound:
            return None

    async def _post(self, create: DeploymentCreate, full_name: str) -> str:
        body = create.model_dump(mode="json", exclude_unset=True)
        try:
            response = await self.client.request("POST", "/deployments/", json=body)
        except PrefectHTTPStatusError as error:
            raise DeploymentError(f"Prefect refuses the deployment `{full_name}`: {_reason(error)}") from error
        return str(response.json()["id"])

    async def missing_pools(self, names: Sequence[str]) -> list[str]:
        """Return those of these work pools that the server does not have."""
        found = {pool.name for pool in await self.client.read_work_pools(limit=200)}
        return [name for name in dict.fromkeys(names) if name not in found]

    async def create_pool(self, name: str) -> None:
        """Create a process work pool: its workers run each flow run in a process on their own machine."""
        await self.client.create_work_pool(WorkPoolCreate(name=name, type="process"))

    async def undeploy(self, name: str) -> str:
        """Delete the deployment of a runbook and return its name. Its flow runs stay. Raises DeploymentError if there is none."""
        full_name = name if "/" in name else f"{name}/{name}"
        existing = await self._existing(full_name)
        if existing is None:
            raise DeploymentError(f"Prefect has no deployment `{full_name}`: `prefect deployment ls` lists them")
        if PLAN_LABEL not in existing.labels:
            raise DeploymentError(f"`plan deploy` did not make `{full_name}`: delete it with `prefect deployment delete {full_name}`")
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


async def source_of_flow_run(flow_run_id: str) -> FlowRunSource:
    """Return what a flow run was started with."""
    async with get_client() as client:
        flow_run = await client.read_flow_run(UUID(flow_run_id))
        labels = {} if flow_run.deployment_id is None else (await client.read_deployment(flow_run.deployment_id)).labels
    packages = {name.removeprefix(TOOL_LABEL): str(package) for name, package in _tool_labels(labels).items()}
    return FlowRunSource(tuple(flow_run.parameters), packages)


def check_schedule(schedule: Schedule) -> None:
    """Raise DeploymentError if Prefect would refuse the schedule."""
    _schedule(schedule)


def _schedule(schedule: Schedule) -> SCHEDULE_TYPES:
    try:
        match schedule.kind:
            case "cron":
                return CronSchedule(cron=str(schedule.value), timezone=schedule.time_zone)
            case "interval":
                assert isinstance(schedule.value, timedelta)
                return IntervalSchedule(interval=schedule.value, timezone=schedule.time_zone)
            case "rrule":
                return RRuleSchedule(rrule=str(schedule.value), timezone=schedule.time_zone or "UTC")
    except ValueError as error:
        raise DeploymentError(f"the schedule `{schedule}` is not valid: {_first_message(error)}") from None


def _create(wanted: RunbookDeployment, existing: DeploymentResponse | None, pool: str | None) -> DeploymentCreate:
    """Return the whole deployment as it should be; the server replaces its schedules with those given here."""
    fields: dict[str, Any] = {
        "name": wanted.name,
        "flow_id": "00000000-0000-0000-0000-000000000000",  # known once the flow exists
        "version": wanted.digest[:12],
        "entrypoint": wanted.entrypoint,
        "description": wanted.description,
        "tags": sorted(wanted.tags),
        "labels": wanted.labels,
        "parameter_openapi_schema": dict(wanted.form),
        "enforce_parameter_schema": True,
        "work_pool_name": pool,
        "parameters": dict(_kept(wanted.inputs, existing and existing.parameters, {})),
        "job_variables": _merged({} if existing is None else existing.job_variables, wanted.job_variables or {}),
        "pull_steps": _kept(wanted.pull_steps, existing and existing.pull_steps, None),
    }
    if wanted.queue is not None or (existing is not None and existing.work_queue_name):
        fields["work_queue_name"] = wanted.queue or (existing and existing.work_queue_name)
    limit = wanted.concurrency_limit if wanted.concurrency_limit is not None else _limit(existing)
    if limit is not None:
        fields["concurrency_limit"] = limit
    if wanted.paused is not None:
        fields["paused"] = wanted.paused
    if wanted.schedule is not None:
        fields["schedules"] = [DeploymentScheduleCreate(schedule=_schedule(wanted.schedule), active=True)]
    elif existing is not None:
        fields["schedules"] = [_again(one) for one in existing.schedules]
    return DeploymentCreate(**fields)


def _kept(given: Any, existing: Any, default: Any) -> Any:
    return given if given is not None else existing if existing is not None else default


def _merged(existing: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the job variables with those given; environment variables are merged one by one."""
    env = {**existing.get("env", {}), **given.get("env", {})}
    return {**existing, **given, **({"env": env} if env else {})}


def _again(schedule: DeploymentSchedule) -> DeploymentScheduleCreate:
    return DeploymentScheduleCreate(
        schedule=schedule.schedule, active=schedule.active, parameters=schedule.parameters, slug=schedule.slug or None
    )


def _limit(existing: DeploymentResponse | None) -> int | None:
    limit = None if existing is None else existing.global_concurrency_limit
    return None if limit is None else limit.limit


def _differences(create: DeploymentCreate, existing: DeploymentResponse) -> list[str]:
    """Return the parts that would change, in the words of the command line."""
    parts = {
        "version": ((create.version, create.entrypoint), (existing.version, existing.entrypoint)),
        "description": (create.description, existing.description),
        "tags": (create.tags, sorted(existing.tags)),
        "tool packages": (_tool_labels(create.labels), _tool_labels(existing.labels)),
        "form": (create.parameter_openapi_schema, existing.parameter_openapi_schema),
        "inputs": (create.parameters, existing.parameters),
        "schedule": ([_comparable(one) for one in create.schedules], [_comparable(one) for one in existing.schedules]),
        "work pool": (create.work_pool_name, existing.work_pool_name),
        "work queue": (create.work_queue_name or existing.work_queue_name, existing.work_queue_name),
        "job variables": (create.job_variables, existing.job_variables),
        "pull steps": (create.pull_steps or None, existing.pull_steps or None),
        "concurrency limit": (create.concurrency_limit, _limit(existing)),
        "paused": (existing.paused if create.paused is None else create.paused, existing.paused),
    }
    return [name for name, (new, old) in parts.items() if new != old]


def _tool_labels(labels: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in labels.items() if name.startswith(TOOL_LABEL)}


def _comparable(one: DeploymentScheduleCreate | DeploymentSchedule) -> tuple[object, ...]:
    """Return what makes a schedule that schedule. The date from which an interval counts is not part of it."""
    described = one.schedule.model_dump(mode="json", exclude={"anchor_date"}, exclude_none=True)
    return type(one.schedule).__name__, {"timezone": "UTC", **described}, one.active, one.parameters


def _reason(error: PrefectHTTPStatusError) -> str:
    try:
        detail: Any = error.response.json()
    except ValueError:
        return str(error)
    return str(cast("Mapping[str, Any]", detail).get("detail", detail)) if isinstance(detail, Mapping) else str(detail)


def _first_message(error: ValueError) -> str:
    if not isinstance(error, ValidationError):
        return str(error)
    return error.errors(include_url=False, include_input=False)[0]["msg"].removeprefix("Value error, ")
