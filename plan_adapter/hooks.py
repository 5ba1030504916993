"""`Hooks`: the caller's functions, told of what happens; and `Event`, what the command line shows.

A hook that raises is logged and changes nothing.
"""

import inspect
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Literal, TypeAlias

from plan_adapter.record import Gate, PlanRun, StepRun

log = logging.getLogger(__name__)

EventKind: TypeAlias = Literal[
    "run_started",  # the run exists in the store; with a server its flow_run_id is known
    "step_started",  # the first attempt of a step begins
    "attempt_failed",  # an attempt failed and another follows; `message` is the error, `delay_ms` the wait
    "step_completed",
    "step_failed",
    "step_skipped",
    "gate_opened",  # somebody is asked: about the step, or about the whole plan where `step` is None; `gate` says what
    "gate_shown",  # the form of a step's gate is on a page of its own: that of the flow run that `gate` names
    "gate_refused",  # an answer given in a form is not taken, and is asked for again; `message` says whose and why
    "gate_answered",  # the gate is closed; `gate` says how, `message` by whom and their note
    "log",  # a line of a step's log (a command's output, the tool's own logger)
    "replanning",  # a failed step has ended the run, and a model drafts what is left anew; `message` says what failed
    "run_ended",
]


@dataclass(frozen=True, slots=True)
class Event:
    """One thing that happened in a run, in the order in which it happened."""

    kind: EventKind
    run: PlanRun
    step: StepRun | None = None
    message: str | None = None
    delay_ms: int | None = None
    gate: Gate | None = None
    in_form: bool = False  # of a gate that opened: whether a form on the run's page asks, too


Listener: TypeAlias = Callable[[Event], None]
"""Takes events; must not block. Internal: the command line's display."""

RunHook: TypeAlias = Callable[[PlanRun], Awaitable[None] | None]
StepHook: TypeAlias = Callable[[PlanRun, StepRun], Awaitable[None] | None]
FailureHook: TypeAlias = Callable[[PlanRun, StepRun, str], Awaitable[None] | None]
GateHook: TypeAlias = Callable[[PlanRun, StepRun | None, Gate], Awaitable[None] | None]


@dataclass(frozen=True, slots=True)
class Hooks:
    """The caller's functions, sync or async; each is given the run, then the step run, then the error or the gate.

    At the gate of a whole plan the step run is None. What undoes a step is told by the same hooks as steps are: its step run is none of
    the run's, its `undoes` is the id of the step, which of a step itself is None.

    Sync hooks are called on the event loop: keep them short.
    """

    on_step_start: StepHook | None = None
    on_step_complete: StepHook | None = None
    on_step_failed: FailureHook | None = None
    on_plan_complete: RunHook | None = None
    on_gate_open: GateHook | None = None
    on_gate_answered: GateHook | None = None


def tell(listener: Listener | None, event: Event) -> None:
    """Hand `event` to the listener; one that raises is logged and changes nothing."""
    if listener is not None:
        try:
            listener(event)
        except Exception:
            log.exception("the listener failed on %s", event.kind)


async def call_hook(hook: Callable[..., object] | None, *arguments: object) -> None:
    """Call one of the caller's hooks; one that raises is logged and changes nothing."""
    if hook is None:
        return
    try:
        answer = hook(*arguments)
        if inspect.isawaitable(answer):
            await answer
    except Exception:
        log.exception("hook %s failed", getattr(hook, "__name__", hook))
