"""`Hooks`: the caller's functions, told of what happens; and `Event`, what the command line shows.

Hooks and listeners get copies: what they write into a run, a step or a gate reaches nobody else. One that raises is logged and changes
nothing; KeyboardInterrupt and SystemExit end the process as they do anywhere, and the run can be resumed.
"""

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any, Literal, TypeAlias

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
    name: str | None = None  # of the call of a step that it is about: `restart[web-2]`
    in_form: bool = False  # of a gate that opened: whether a form on the run's page asks, too


Listener: TypeAlias = Callable[[Event], None]
"""Takes events; must not block. Internal: the command line's display."""

RunHook: TypeAlias = Callable[[PlanRun], Awaitable[None] | None]
StepHook: TypeAlias = Callable[[PlanRun, StepRun], Awaitable[None] | None]
FailureHook: TypeAlias = Callable[[PlanRun, StepRun, str], Awaitable[None] | None]
GateHook: TypeAlias = Callable[[PlanRun, StepRun | None, Gate], Awaitable[None] | None]


@dataclass(frozen=True, slots=True)
class Hooks:
    """The caller's functions, sync or async; each is given the run, then the step run, then the error or the gate, all as copies.

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
    """Hand a copy of `event` to the listener; one that raises is logged and changes nothing."""
    if listener is not None:
        try:
            listener(replace(event, run=_copy(event.run), step=_copy(event.step), gate=_copy(event.gate)))
        except (Exception, asyncio.CancelledError):
            log.exception("the listener failed on %s", event.kind)


async def call_hook(hook: Callable[..., object] | None, *arguments: object) -> None:
    """Call one of the caller's hooks with copies of `arguments`; one that raises is logged and changes nothing."""
    if hook is None:
        return
    try:
        answer = hook(*map(_copy, arguments))
        if inspect.isawaitable(answer):
            await answer
    except asyncio.CancelledError:
        task = asyncio.current_task()
        if task is not None and task.cancelling():  # somebody cancels the run; else only something that the hook awaited was cancelled
            raise
        log.exception("hook %s failed", getattr(hook, "__name__", hook))
    except Exception:
        log.exception("hook %s failed", getattr(hook, "__name__", hook))


def _copy(value: Any) -> Any:
    match value:
        case PlanRun():
            return _run_copy(value)
        case StepRun():
            return _step_copy(value)
        case Gate():
            return replace(value)
        case _:
            return value


class _RunCopy(PlanRun):
    """A copy of a run. It copies the steps when a hook first looks at them: a run of thousands of steps tells of each."""

    original: PlanRun

    @cached_property
    def steps(self) -> list[StepRun]:  # pyright: ignore[reportIncompatibleVariableOverride]  # a field of the run
        return [_step_copy(step) for step in self.original.steps]


def _run_copy(run: PlanRun) -> PlanRun:
    copied = _RunCopy(**{name: getattr(run, name) for name in _RUN_FIELDS}, steps=[])
    copied.inputs, copied.outputs, copied.metadata = _json_copy(run.inputs), _json_copy(run.outputs), _json_copy(run.metadata)
    copied.original = run
    del copied.steps  # the empty list; the property makes the copies
    return copied


def _step_copy(step: StepRun) -> StepRun:
    return replace(step, result=_json_copy(step.result), metadata=_json_copy(step.metadata))


_RUN_FIELDS = [field.name for field in fields(PlanRun) if field.name != "steps"]


def _json_copy(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _json_copy(member) for key, member in value.items()}  # pyright: ignore[reportUnknownVariableType]  # any JSON
    return [_json_copy(member) for member in value] if isinstance(value, list) else value  # pyright: ignore[reportUnknownVariableType]
