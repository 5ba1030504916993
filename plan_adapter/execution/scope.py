"""`RunScope`: what all steps of one run share."""

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from pydantic import JsonValue

from plan_adapter.execution.cancellation import Leave, Stop
from plan_adapter.execution.history import RunHistory
from plan_adapter.execution.limits import RunClock, Slots
from plan_adapter.execution.ports import GateRefusal, Outcomes, StepGates
from plan_adapter.execution.printing import prints_of_call
from plan_adapter.execution.results import ResultLimit
from plan_adapter.execution.secrets import RunSecrets, redact
from plan_adapter.expressions import Variables
from plan_adapter.gates.approval import ApprovedPlan
from plan_adapter.hooks import Event, EventKind, Hooks, Listener, call_hook, tell
from plan_adapter.plan import StepStatus
from plan_adapter.record import PlanRun, Recorder, StepRun


@dataclass(slots=True)
class RunScope:
    """One run in the making. `values` holds what expressions may use: each ended step's result, status and error."""

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
    values: dict[str, dict[str, JsonValue]] = field(default_factory=dict[str, dict[str, JsonValue]])
    gates: StepGates | None = None  # None: no step is asked about
    outcomes: Outcomes | None = None  # None: nobody is asked how an attempt ended of which nobody knows it
    refusal: GateRefusal | None = None  # the first at a step's gate that ends the run
    is_left: bool = False  # nothing but gates of steps is open, and this start of the run waits at them no more
    leave: Leave = field(default_factory=Leave)
    clock: RunClock | None = None  # of the total timeout, once execution has begun
    secrets: RunSecrets = field(default_factory=RunSecrets)

    def variables(self, *, item: JsonValue = None, result: JsonValue = None, secrets: Mapping[str, str] | None = None) -> Variables:
        """Return what an expression may use now; `secrets` only for what is handed to a tool."""
        return Variables(steps=self.values, inputs=self.approved.bound.inputs, item=item, result=result, secrets=secrets or {})

    def keep_value(self, step: StepRun) -> None:
        """Let expressions use how `step` ended."""
        self.values[step.id] = {"result": step.result, "status": step.status.value, "error": step.error}

    def tell(
        self,
        kind: EventKind,
        step: StepRun | None = None,
        message: str | None = None,
        delay_ms: int | None = None,
        *,
        name: str | None = None,
    ) -> None:
        """Hand an event to the listener; one that raises is logged and changes nothing. `name` is that of a call of the step."""
        shown = message if message is None else self.secrets.redactor.text(message)
        tell(self.listener, Event(kind, self.run, step, shown, delay_ms, name=name))

    async def call_hook(self, hook: Callable[..., object] | None, *arguments: object) -> None:
        """Call one of the caller's hooks; one that raises is logged and changes nothing."""
        await call_hook(hook, *arguments)

    async def tell_end(self, step: StepRun) -> None:
        """Tell the listener and the caller's hooks how `step`, or what undoes it, ended."""
        match step.status:
            case StepStatus.COMPLETED:
                self.tell("step_completed", step)
                await self.call_hook(self.hooks.on_step_complete, self.run, step)
            case StepStatus.FAILED:
                self.tell("step_failed", step, step.error)
                await self.call_hook(self.hooks.on_step_failed, self.run, step, step.error or "")
            case _:
                self.tell("step_skipped", step, step.reason)


class StepLog(logging.Handler):
    """Hands the lines of a step's log to the listener and to the log sink (Prefect's log of the task run)."""

    def __init__(self, scope: RunScope, step: StepRun, name: str) -> None:
        """Serve `step` of `scope`, and of it the call of that `name`."""
        super().__init__()
        self._scope = scope
        self._step = step
        self._call = name

    def emit(self, record: logging.LogRecord) -> None:
        """Hand `record` on, without secrets."""
        if self._scope.secrets.redactor:
            redact(record, self._scope.secrets.redactor)
        with prints_of_call(None):  # who shows the line may print, too
            self._scope.tell("log", self._step, record.getMessage(), name=self._call)
            if self._scope.log_sink is not None:
                self._scope.log_sink(record)


def step_logger(scope: RunScope, step: StepRun, name: str) -> logging.Logger:
    """Return a logger for one call of a step; made without the registry of loggers, so that runs leave nothing behind in it."""
    logger = logging.Logger(f"plan_adapter.steps.{step.id}", logging.INFO)
    logger.addHandler(StepLog(scope, step, name))
    return logger
