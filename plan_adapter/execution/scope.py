"""`RunScope`: what all steps of one run share, and the logger of a step."""

import logging
from collections import ChainMap
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from pydantic import JsonValue

from plan_adapter.execution.cancellation import LeaveSignal, Stop
from plan_adapter.execution.history import RunHistory
from plan_adapter.execution.limits import InnerSlots, RunClock, Slots
from plan_adapter.execution.ports import Cluster, GatedCall, GateRefusal, Outcomes, StepGates
from plan_adapter.execution.printing import prints_of_call
from plan_adapter.execution.redactor import RunSecrets, redact
from plan_adapter.execution.results import ResultLimit
from plan_adapter.execution.rollback_status import RollbackReport
from plan_adapter.expressions import Variables
from plan_adapter.gates.approval import ApprovedPlan
from plan_adapter.model.canonical import call_digest
from plan_adapter.model.goals import GoalModel
from plan_adapter.model.hooks import Event, EventKind, Hooks, Listener, call_hook, notify
from plan_adapter.model.options import strongest
from plan_adapter.model.plan import Step
from plan_adapter.model.readable import call_name
from plan_adapter.model.record import PlanRun, Recorder, StepRun
from plan_adapter.model.status import StepStatus


class ReportRun(Protocol):
    """Reports how a run ended, outside the store."""

    async def __call__(self, run: PlanRun) -> None:
        """Report it. A failure is logged and nothing else changes."""
        ...


class Publish(Protocol):
    """Shows a Markdown text beside a run."""

    async def __call__(self, text: str, *, key: str, description: str) -> object:
        """Show `text`. A failure is logged and nothing else changes."""
        ...


def as_value(status: StepStatus, result: JsonValue = None, error: str | None = None) -> dict[str, JsonValue]:
    """Return what expressions see of a step that has ended."""
    return {"result": result, "status": status.value, "error": error}


@dataclass(slots=True)
class RunScope:
    """A run in progress. `values` holds what expressions can use: the result, status and error of each step that has ended."""

    approved: ApprovedPlan
    run: PlanRun
    recorder: Recorder
    stop: Stop
    slots: Slots
    limit: ResultLimit
    history: RunHistory
    hooks: Hooks
    listener: Listener | None = None
    log_sink: Callable[[logging.LogRecord], None] | None = None
    values: MutableMapping[str, dict[str, JsonValue]] = field(default_factory=dict[str, dict[str, JsonValue]])
    gates: StepGates | None = None  # None: no step has a gate
    outcomes: Outcomes | None = None  # None: nobody is asked about unknown outcomes
    cluster: Cluster | None = None  # makes the calls of steps with a runner; None: no step has one
    goal_model: GoalModel | None = None  # None: no model is configured
    goal_tokens: int | None = None  # how many tokens the model of one goal may use; None means no limit
    publish: Publish | None = None  # shows a Markdown text beside the run; None: nowhere
    report: ReportRun | None = None
    refusal: GateRefusal | None = None  # the first refusal at a step gate that ends the run
    item_rollbacks: list[RollbackReport] = field(default_factory=list[RollbackReport])  # of items that failed, each rolled back by itself
    is_left: bool = False  # only step gates are open, and this start of the run stopped waiting at them
    leave: LeaveSignal = field(default_factory=LeaveSignal)
    clock: RunClock | None = None  # of the total timeout, once execution has started
    secrets: RunSecrets = field(default_factory=RunSecrets)
    end: Mapping[str, JsonValue] = field(default_factory=dict[str, JsonValue])  # what `finally` steps call `run`
    why_finally_stopped: str = ""  # if not all `finally` steps could start
    inputs: Mapping[str, JsonValue] | None = None  # of a sub-plan; None: those of the run
    hosts: Mapping[str, JsonValue] = field(default_factory=dict[str, JsonValue])  # of a sub-plan
    assume: Callable[[Step, str], None] | None = None  # in a dry run: notes a condition that is taken to be true. None: a real run
    inside: dict[str, "RunScope"] = field(default_factory=dict[str, "RunScope"])  # the sub-plans that began, by the step that runs each

    def variables(self, *, item: JsonValue = None, result: JsonValue = None, secrets: Mapping[str, str] | None = None) -> Variables:
        """Return what an expression can use now. Pass `secrets` only for what goes to a tool."""
        inputs = self.approved.bound.inputs if self.inputs is None else self.inputs
        hosts = self.approved.bound.hosts if self.inputs is None else self.hosts
        return Variables(self.values, inputs, item, result, secrets or {}, self.end, hosts, may_be_unknown=self.assume is not None)

    def keep_value(self, step: StepRun) -> None:
        """Let expressions of the step's own plan use how `step` ended."""
        planned = self.approved.bound.validated.steps[step.id]
        if planned.within is None or planned.within.id in self.inside:  # nothing sees the steps of a sub-plan that did not begin
            self.of(planned).values[planned.local_id] = as_value(step.status, step.result, step.error)

    def of(self, step: Step) -> "RunScope":
        """Return the scope of the plan that `step` belongs to. A sub-plan must have begun."""
        return self if step.within is None else self.inside[step.within.id]

    def begin_plan(self, step: Step, inputs: Mapping[str, JsonValue]) -> "RunScope":
        """Begin the plan that `step` runs with `inputs`, and return its scope."""
        outer, plan = self.of(step), step.pinned
        limit, hosts = (1, dict[str, JsonValue]()) if plan is None else (plan.options.parallel_limit, plan.host_lists(inputs))
        self.inside[step.id] = begun = replace(outer, values={}, inputs=inputs, hosts=hosts, slots=InnerSlots(limit, outer.slots))
        return begun

    def gated_call(
        self, step: Step, inner: Sequence[Step], kind: str, parameters: dict[str, JsonValue], *, item: int | None, label: str | None
    ) -> GatedCall:
        """Return the steps `inner` of `step` as they would run now with `parameters`, for one approval.

        The digest covers the steps, their tools and the parameters. `kind` is `group`, or `plan` for a step that runs a plan.
        """
        bound = self.approved.bound
        tool_steps = [inner_step for inner_step in inner if inner_step.id in bound.validated.tools]
        tools = {tool.name: tool.definition() for inner_step in tool_steps for tool in bound.validated.tools_of(inner_step.id)}
        definition: dict[str, JsonValue] = {"name": kind, "tools": [tools[name] for name in sorted(tools)]}
        folder = None if bound.folder is None else bound.folder.content
        return GatedCall(
            step=step,
            step_run=self.run.step(step.id),
            name=call_name(step.id, item, label),
            item=item,
            effect=strongest({bound.validated.effect_of(inner_step.id) for inner_step in tool_steps}),
            parameters=parameters,
            approval_digest=call_digest(step, item, parameters, definition, folder),
            label=label,
        )

    def of_item(self, values: MutableMapping[str, dict[str, JsonValue]]) -> "RunScope":
        """Return the scope of an item of a group. Its expressions see `values`, how the steps of the item ended, before all others."""
        return replace(self, values=ChainMap(values, self.values))

    def take_over(self, finally_scope: "RunScope") -> None:
        """Note how the `finally` steps of `finally_scope` ended, for the end of the run."""
        self.is_left, self.refusal = finally_scope.is_left, self.refusal or finally_scope.refusal
        if finally_scope.stop.kept_from_starting:
            self.why_finally_stopped = finally_scope.stop.message

    def notify(
        self,
        kind: EventKind,
        step: StepRun | None = None,
        message: str | None = None,
        delay_ms: int | None = None,
        *,
        name: str | None = None,
    ) -> None:
        """Send an event to the listener. If the listener raises, the error is logged and nothing else changes.

        `name` is the name of a call of the step. Secrets in `message` are redacted.
        """
        shown = message if message is None else self.secrets.redactor.text(message)
        notify(self.listener, Event(kind, self.run, step, shown, delay_ms, name=name))

    async def call_hook(self, hook: Callable[..., object] | None, *arguments: object) -> None:
        """Call one of the caller's hooks. If it raises, the error is logged and nothing else changes."""
        await call_hook(hook, *arguments)

    async def notify_end(self, step: StepRun) -> None:
        """Report to the listener and the caller's hooks how `step`, or the rollback of a step, ended.

        The hooks were called for a carried step in the start in which it completed, and are not called again.
        """
        match step.status:
            case StepStatus.COMPLETED:
                self.notify("step_completed", step)
                if not step.carried:
                    await self.call_hook(self.hooks.on_step_complete, self.run, step)
            case StepStatus.FAILED:
                self.notify("step_failed", step, step.error)
                await self.call_hook(self.hooks.on_step_failed, self.run, step, step.error or "")
            case _:
                self.notify("step_skipped", step, step.reason)


SPOKEN: Mapping[str, EventKind] = {"event": "spoken"}
"""The `extra` of a log line with what the model of a goal says to the person."""


class StepLog(logging.Handler):
    """Sends the lines of a step's log to the listener and to the log sink (Prefect's log of the task run)."""

    def __init__(self, scope: RunScope, step: StepRun, name: str) -> None:
        """Log for `step` of `scope`. `name` is the call of the step that logs."""
        super().__init__()
        self._scope = scope
        self._step = step
        self._call = name

    def emit(self, record: logging.LogRecord) -> None:
        """Redact `record` and pass it on."""
        if self._scope.secrets.redactor:
            redact(record, self._scope.secrets.redactor)
        with prints_of_call(None):  # the listener or the sink may print, too
            self._scope.notify(getattr(record, "event", "log"), self._step, record.getMessage(), name=self._call)
            if self._scope.log_sink is not None:
                self._scope.log_sink(record)


def step_logger(scope: RunScope, step: StepRun, name: str) -> logging.Logger:
    """Return a logger for one call of a step. It bypasses the logger registry, so that runs leave nothing behind in it."""
    logger = logging.Logger(f"plan_adapter.steps.{step.id}", logging.INFO)
    logger.addHandler(StepLog(scope, step, name))
    return logger
