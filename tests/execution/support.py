"""Helpers of the tests of execution: a recorder in memory, one execution of a plan, and builders of plans and tools."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from plan_adapter.execution.cancellation import Stop
from plan_adapter.execution.direct import DirectStepRunner
from plan_adapter.execution.history import RunHistory
from plan_adapter.execution.limits import Slots
from plan_adapter.execution.ports import Cluster, Outcomes, StepGates
from plan_adapter.execution.redactor import RunSecrets
from plan_adapter.execution.results import ResultLimit
from plan_adapter.execution.run_status import ending_of
from plan_adapter.execution.scheduler import execute
from plan_adapter.execution.scope import Publish, RunScope
from plan_adapter.gates.approval import approval_not_required, approved_plan
from plan_adapter.model.errors import StoreError, ToolError
from plan_adapter.model.goals import GoalModel
from plan_adapter.model.hooks import Event, Hooks
from plan_adapter.model.host_process import HostProcess
from plan_adapter.model.plan import ExecutionPlan, new_id
from plan_adapter.model.record import Attempt, PlanRun, Receipt, StepRun
from plan_adapter.model.status import PlanStatus
from plan_adapter.tools.registry import ToolRegistry
from plan_adapter.tools.tool import tool
from plan_adapter.validation import bind_inputs, validate


@dataclass
class MemoryRecorder:
    """Records in memory. From the intent number `fail_at` on, it raises StoreError."""

    attempts: list[Attempt] = field(default_factory=list)
    receipts: list[Receipt] = field(default_factory=list)
    ended: list[StepRun] = field(default_factory=list)
    commands: list[tuple[str, int]] = field(default_factory=list)  # the id of the attempt, and the process
    fail_at: int | None = None

    def now(self) -> datetime:
        return datetime.now(UTC)

    async def intent(self, attempt: Attempt) -> None:
        await asyncio.sleep(0)
        if self.fail_at is not None and len(self.attempts) + 1 >= self.fail_at:
            raise StoreError("the disk is full")
        self.attempts.append(attempt)

    def receipt(self, receipt: Receipt) -> None:
        self.receipts.append(receipt)

    def command_started(self, attempt: Attempt, process: HostProcess) -> None:
        self.commands.append((attempt.id, process.pid))

    def step_ended(self, step: StepRun) -> None:
        self.ended.append(step)

    async def calls_of_item(self, step_ids: Collection[str], item: int) -> tuple[list[Attempt], list[Receipt]]:
        of_item = [[row for row in rows if row.step_id in step_ids and row.item == item] for rows in (self.attempts, self.receipts)]
        return tuple(of_item)

    async def flush(self) -> None:
        await asyncio.sleep(0)


@dataclass
class Execution:
    """One execution of a plan: its run, record, events, and the handle to stop it."""

    plan: ExecutionPlan
    tools: list[Any]
    inputs: dict[str, Any] = field(default_factory=dict)
    hooks: Hooks = field(default_factory=Hooks)
    history: RunHistory = field(default_factory=RunHistory)
    recorder: MemoryRecorder = field(default_factory=MemoryRecorder)
    listener: Callable[[Event], None] | None = None
    limit_bytes: int = 64 * 1024
    folder: Path = Path("unused")
    gates: StepGates | None = None
    outcomes: Outcomes | None = None
    cluster: Cluster | None = None
    goal_model: GoalModel | None = None
    goal_tokens: int | None = None
    publish: Publish | None = None
    secrets: RunSecrets = field(default_factory=RunSecrets)
    events: list[Event] = field(default_factory=list)
    run: PlanRun = field(init=False)
    scope: RunScope = field(init=False)

    def _listen(self, event: Event) -> None:
        self.events.append(event)
        if self.listener is not None:
            self.listener(event)

    async def go(self) -> PlanRun:
        """Execute the plan offline and return its concluded run."""
        validated = validate(self.plan, ToolRegistry(self.tools))
        bound = bind_inputs(validated, self.inputs)
        now = datetime.now(UTC)
        steps = [StepRun(step.id, step.index, step.tool_name or "", step.description) for step in validated.plan.all_steps]
        self.run = PlanRun(
            new_id(), validated.plan.id, validated.plan.name, validated.plan.description, validated.digest, bound.approval_digest,
            bound.inputs, steps, now, now, PlanStatus.EXECUTING, agent_id="agent-7",
        )  # fmt: skip
        self.scope = RunScope(
            approved=approved_plan(bound, approval_not_required(bound, now=now), now=now),
            run=self.run,
            recorder=self.recorder,
            stop=Stop(),
            slots=Slots(validated.plan.options.parallel_limit),
            limit=ResultLimit(self.limit_bytes, self.folder),
            history=self.history,
            hooks=self.hooks,
            listener=self._listen,
            gates=self.gates,
            outcomes=self.outcomes,
            cluster=self.cluster,
            goal_model=self.goal_model,
            goal_tokens=self.goal_tokens,
            publish=self.publish,
            secrets=self.secrets,
        )
        await execute(self.scope, DirectStepRunner())
        status, reason, message = ending_of(self.run.steps, self.scope.stop, self.scope.refusal)
        self.run.transition(status, reason=reason, message=message)
        return self.run

    @property
    def log(self) -> list[str]:
        """The log lines of all steps, in order."""
        return [event.message or "" for event in self.events if event.kind == "log"]

    def kinds(self, step_id: str) -> list[str]:
        """Return the kinds of the events of one step, in order."""
        return [event.kind for event in self.events if event.step is not None and event.step.id == step_id]


def plan_of(edges: dict[str, list[str]], *, tool: str = "work", **options: Any) -> ExecutionPlan:
    """Return a plan with one step of `tool` per key of `edges`, whose value lists its dependencies; its `name` is its own id."""
    plan = ExecutionPlan(description="A plan of a test")
    for step_id, depends_on in edges.items():
        plan.add_step(tool, step_id, {"name": step_id}, id=step_id, depends_on=depends_on)
    for name, value in options.items():
        setattr(plan.options, name, value)
    return plan


def ancestors(edges: dict[str, list[str]], node: str) -> set[str]:
    """Return the ids of all direct and indirect dependencies of `node`."""
    found: set[str] = set()
    queue = deque(edges[node])
    while queue:
        dependency = queue.popleft()
        if dependency in found or dependency not in edges:
            continue
        found.add(dependency)
        queue.extend(edges[dependency])
    return found


def flaky(failures: int, *, effect: str = "read"):
    """Return a tool that fails `failures` times, and then returns the number of its try."""
    tries = 0

    @tool(effect=effect)
    def work(name: str) -> int:
        """Fail, then work."""
        nonlocal tries
        tries += 1
        if tries <= failures:
            raise ToolError(f"try {tries} failed")
        return tries

    return work
