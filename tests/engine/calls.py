"""Step calls with scripted attempts, a plan to compile, and what Prefect's API shows of a flow run."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

from prefect import get_client
from prefect.client.schemas.filters import FlowRunFilter, FlowRunFilterId, LogFilter, LogFilterTaskRunId
from prefect.client.schemas.objects import FlowRun, State, TaskRun

from plan_adapter.execution.ports import AttemptEnd
from plan_adapter.model.plan import ExecutionPlan, Step
from plan_adapter.model.record import PlanRun, StepRun
from plan_adapter.model.status import PlanStatus, RunReason, StepStatus
from plan_adapter.tools.registry import ToolRegistry
from plan_adapter.tools.tool import tool
from plan_adapter.validation import ValidatedPlan, validate


@dataclass
class ScriptedCall:
    """A step call whose attempts end with `ends`, in order, retried after `retry_delays`. Implements `ports.StepCall`."""

    name: str
    ends: list[AttemptEnd] = field(default_factory=lambda: [succeeded()])
    upstream: tuple[str, ...] = ()
    retry_delays: list[float] = field(default_factory=list[float])
    timeout_seconds: float | None = None
    before: Any = None  # awaited in each attempt
    task: Any = None  # the Prefect task that the tool wraps

    @property
    def key(self) -> str:
        return self.name

    def __post_init__(self) -> None:
        self.made = 0
        self.stop: asyncio.Future[AttemptEnd] = asyncio.get_running_loop().create_future()
        self.waiting = asyncio.Event()
        step_id = self.name.partition("[")[0]
        self.step = Step(id=step_id, tool_name="noop", max_retries=len(self.retry_delays))
        self.step_run = StepRun(id=step_id, index=0, tool_name="noop", description="")
        self.run = plan_run([self.step_run])

    async def attempt(self) -> AttemptEnd:
        if self.before is not None:
            await self.before()
        self.made += 1
        return self.ends[self.made - 1]

    def retry_delay(self, end: AttemptEnd) -> float | None:
        return self.retry_delays[self.made - 1] if self.made < len(self.ends) else None

    async def stopped(self) -> AttemptEnd:
        self.waiting.set()
        return await asyncio.shield(self.stop)


def succeeded(number: int = 1, result: Any = None) -> AttemptEnd:
    return AttemptEnd("succeeded", number, result=result)


def failed(number: int = 1, error: str = "ConnectionError: refused") -> AttemptEnd:
    return AttemptEnd("failed", number, error=error)


def plan_run(
    steps: Sequence[StepRun] = (), *, status: PlanStatus = PlanStatus.COMPLETED, reason: RunReason | None = None, **fields: Any
) -> PlanRun:
    now = datetime.now(UTC)
    return PlanRun(
        id="r1",
        plan_id="p1",
        name="plan",
        description="A plan",
        digest="d" * 64,
        approval_digest="a" * 64,
        inputs={},
        steps=list(steps),
        created_at=now,
        updated_at=now,
        status=status,
        reason=reason,
        **fields,
    )


def step_run(step_id: str, status: StepStatus, **fields: Any) -> StepRun:
    return StepRun(id=step_id, index=0, tool_name="noop", description="", status=status, **fields)


@tool(effect="read")
def noop() -> None:
    """Do nothing."""


def validated(**fields: Any) -> ValidatedPlan:
    """Return a validated plan with one step and these `fields`."""
    plan = ExecutionPlan(**{"name": "a plan", "description": "A plan", **fields})
    plan.add_step("noop", "nothing", id="a")
    return validate(plan, ToolRegistry([noop]))


async def task_runs(flow_run_id: UUID, names: Sequence[str]) -> dict[str, TaskRun]:
    """Return the task runs called `names` by name, as soon as the server has all of them in a final state."""
    async with get_client() as client:
        while True:
            found = await client.read_task_runs(flow_run_filter=FlowRunFilter(id=FlowRunFilterId(any_=[flow_run_id])))
            ended = {run.name: run for run in found if run.state is not None and run.state.is_final()}
            if set(names) <= ended.keys():
                assert len(found) == len({run.name for run in found})
                return ended
            await asyncio.sleep(0.1)


async def states_of(task_run: TaskRun, count: int) -> list[State]:
    """Return the states of `task_run`, oldest first, as soon as there are `count`."""
    async with get_client() as client:
        while True:
            states = await client.read_task_run_states(task_run.id)
            if len(states) >= count:
                return sorted(states, key=lambda state: state.timestamp)
            await asyncio.sleep(0.1)


async def logs_of(task_run: TaskRun, count: int) -> list[tuple[int, str]]:
    """Return level and message of each log line of the task run, as soon as there are `count`."""
    async with get_client() as client:
        while True:
            lines = await client.read_logs(LogFilter(task_run_id=LogFilterTaskRunId(any_=[task_run.id])))
            if len(lines) >= count:
                return [(line.level, line.message) for line in sorted(lines, key=lambda line: line.timestamp)]
            await asyncio.sleep(0.1)


async def flow_run(flow_run_id: UUID) -> FlowRun:
    async with get_client() as client:
        return await client.read_flow_run(flow_run_id)
