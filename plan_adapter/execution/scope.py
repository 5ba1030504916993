"""`RunScope`: what all steps of one run share."""

import inspect
import logging
from collections.abc import Callable
from dataclasses import dataclass, field

from pydantic import JsonValue

from plan_adapter.approval import ApprovedPlan
from plan_adapter.execution.cancellation import Stop
from plan_adapter.execution.carry import Past
from plan_adapter.execution.clock import RunClock
from plan_adapter.execution.ports import GateRefusal, StepGates
from plan_adapter.execution.printing import prints_of_call
from plan_adapter.execution.results import ResultLimit
from plan_adapter.execution.slots import Slots
from plan_adapter.expressions import Variables
from plan_adapter.hooks import Event, EventKind, Hooks, Listener
from plan_adapter.record import PlanRun, Recorder, StepRun

log = logging.getLogger(__name__)


@dataclass(slots=True)
class RunScope:
    """One run in the making. `values` holds what expressions may use: each ended step's result, status and error."""

    approved: ApprovedPlan
    run: PlanRun
    recorder: Recorder
    stop: Stop
    slots: Slots
    limit: ResultLimit
    past: Past
    hooks: Hooks
    listener: Listener | None = None
    log_sink: Callable[[logging.LogRecord], None] | None = None
    values: dict[str, dict[str, JsonValue]] = field(default_factory=dict[str, dict[str, JsonValue]])
    gates: StepGates | None = None  # None: no step is asked about
    refusal: GateRefusal | None = None  # the first at a step's gate that ends the run
    clock: RunClock | None = None  # of the total timeout, once execution has begun

    def variables(self, *, item: JsonValue = None, result: JsonValue = None) -> Variables:
        """Return what an expression may use now."""
        return Variables(steps=self.values, inputs=self.approved.bound.inputs, item=item, result=result)

    def tell(self, kind: EventKind, step: StepRun | None = None, message: str | None = None, delay_ms: int | None = None) -> None:
        """Hand an event to the listener; one that raises is logged and changes nothing."""
        if self.listener is not None:
            try:
                self.listener(Event(kind, self.run, step, message, delay_ms))
            except Exception:
                log.exception("the listener failed on %s", kind)

    async def call_hook(self, hook: Callable[..., object] | None, *arguments: object) -> None:
        """Call one of the caller's hooks; one that raises is logged and changes nothing."""
        if hook is None:
            return
        try:
            answer = hook(*arguments)
            if inspect.isawaitable(answer):
                await answer
        except Exception:
            log.exception("hook %s failed", getattr(hook, "__name__", hook))


class StepLog(logging.Handler):
    """Hands the lines of a step's log to the listener and to the log sink (Prefect's log of the task run)."""

    def __init__(self, scope: RunScope, step: StepRun) -> None:
        """Serve `step` of `scope`."""
        super().__init__()
        self._scope = scope
        self._step = step

    def emit(self, record: logging.LogRecord) -> None:
        """Hand `record` on."""
        with prints_of_call(None):  # who shows the line may print, too
            self._scope.tell("log", self._step, record.getMessage())
            if self._scope.log_sink is not None:
                self._scope.log_sink(record)


def step_logger(scope: RunScope, step: StepRun) -> logging.Logger:
    """Return a logger for one step; made without the registry of loggers, so that runs leave nothing behind in it."""
    logger = logging.Logger(f"plan_adapter.steps.{step.id}", logging.INFO)
    logger.addHandler(StepLog(scope, step))
    return logger
