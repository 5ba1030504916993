"""`Hooks`: functions that the caller passes to follow a run. `Event`: what the command line displays.

Hooks and listeners receive copies, so their changes to a run, step or gate affect nobody else. An exception in one is logged and changes
nothing. KeyboardInterrupt and SystemExit end the process as usual, and the run can be resumed.
"""

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any, Literal, TypeAlias

from plan_adapter.model.approvals import Gate
from plan_adapter.model.record import PlanRun, PlanSummary, StepRun

log = logging.getLogger(__name__)

EventKind: TypeAlias = Literal[
    "run_started",  # the run is in the store; with a server, its flow_run_id is known
    "step_started",  # the first attempt of a step begins
    "call_started",  # of a group: the step is called for another item, which is named in `name`
    "call_ended",  # of a group: the call for the item in `name` ended; `message` says how
    "attempt_failed",  # another attempt follows; `message` is the error, `delay_ms` the wait
    "step_completed",
    "step_failed",
    "step_skipped",
    "gate_opened",  # a person is asked about the step, or about the whole plan if `step` is None; see `gate`
    "gate_shown",  # a step gate's form has its own page: that of the flow run named in `gate`
    "gate_refused",  # an answer given in a form was refused and is asked for again; `message` says whose and why
    "gate_agreed",  # an approval at a gate that needs more of them; `message` says whose, and whom the gate waits for
    "gate_answered",  # the gate is closed; `gate` says how, `message` by whom and their note
    "spoken",  # what the model of a goal says to the person in a round, except at a gate, which shows it itself; `message` is the text
    "log",  # a line of a step's log (a command's output, the tool's own logger)
    "replanning",  # a failed step has ended the run, and a model drafts the remaining steps again; `message` is the failure
    "waits",  # the run is approved and cannot start yet; `message` says why
    "run_ended",
]


@dataclass(frozen=True, slots=True)
class Event:
    """One event of a run. Events arrive in the order in which they happened."""

    kind: EventKind
    run: PlanRun
    step: StepRun | None = None
    message: str | None = None
    delay_ms: int | None = None
    gate: Gate | None = None
    name: str | None = None  # of the step's call that the event is about: `restart[web-2]`
    in_form: bool = False  # for `gate_opened`: whether a form on the run's page asks, too
    in_advance: bool = False  # for `gate_opened`: whether it is answered at once, by an approval that was given in advance


Listener: TypeAlias = Callable[[Event], None]
"""Receives events and must not block. Internal: the command line's display."""

RunHook: TypeAlias = Callable[[PlanRun], Awaitable[None] | None]
StepHook: TypeAlias = Callable[[PlanRun, StepRun], Awaitable[None] | None]
FailureHook: TypeAlias = Callable[[PlanRun, StepRun, str], Awaitable[None] | None]
GateHook: TypeAlias = Callable[[PlanRun, StepRun | None, Gate], Awaitable[None] | None]


@dataclass(frozen=True, slots=True)
class Hooks:
    """The caller's hooks, sync or async. Each receives the run, then the step run, then the error or the gate, all as copies.

    At a plan gate, the step run is None. `on_plan_complete` is called when a start of the run has ended it, however: also if it was
    rejected. Steps that completed in an earlier start are not reported again. Rollbacks use the same hooks: their step run is not one of
    the run's, and its `undoes` is the id of the step being rolled back. For a regular step, `undoes` is None.
    Sync hooks run on the event loop, so keep them short.
    """

    on_step_start: StepHook | None = None  # before the first call of a step
    on_step_complete: StepHook | None = None  # after a step completed
    on_step_failed: FailureHook | None = None  # after a step failed
    on_plan_complete: RunHook | None = None  # after a run ended, however it ended
    on_gate_open: GateHook | None = None  # when a gate opens
    on_gate_answered: GateHook | None = None  # when a gate is answered

    def __post_init__(self) -> None:
        """Raise TypeError for a hook that cannot be called."""
        for known in fields(self):
            if (hook := getattr(self, known.name)) is not None and not callable(hook):
                raise TypeError(f"`{known.name}` is {hook!r:.100}: pass a function")


def notify(listener: Listener | None, event: Event) -> None:
    """Pass a copy of `event` to the listener. An exception is logged and changes nothing."""
    if listener is not None:
        try:
            listener(replace(event, run=_copy(event.run), step=_copy(event.step), gate=_copy(event.gate)))
        except (Exception, asyncio.CancelledError):
            log.exception("the listener failed on %s", event.kind)


async def call_hook(hook: Callable[..., object] | None, *arguments: object) -> None:
    """Call a hook with copies of `arguments`. An exception is logged and changes nothing."""
    if hook is None:
        return
    try:
        answer = hook(*map(_copy, arguments))
        if inspect.isawaitable(answer):
            await answer
    except asyncio.CancelledError:
        task = asyncio.current_task()
        if task is not None and task.cancelling():  # the run itself is cancelled; otherwise only something the hook awaited
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
    """A copy of a run. Its steps are copied on first access, because a run of thousands of steps calls hooks for each."""

    original: PlanRun

    @cached_property
    def steps(self) -> list[StepRun]:  # pyright: ignore[reportIncompatibleVariableOverride]  # a field of the run
        return [_step_copy(step) for step in self.original.steps]

    def summary(self) -> PlanSummary:
        """Return the progress of the run, without copying its steps for that."""
        return super().summary() if "steps" in vars(self) else self.original.summary()


def _run_copy(run: PlanRun) -> PlanRun:
    copied = _RunCopy(**{name: getattr(run, name) for name in _RUN_FIELDS}, steps=[])
    copied.inputs, copied.outputs, copied.metadata = _json_copy(run.inputs), _json_copy(run.outputs), _json_copy(run.metadata)
    copied.original = run
    del copied.steps  # the empty list; the property makes the copies
    return copied


def _step_copy(step: StepRun) -> StepRun:
    return replace(step, result=_json_copy(step.result), metadata=_json_copy(step.metadata), items=[*step.items])


_RUN_FIELDS = [field.name for field in fields(PlanRun) if field.name != "steps"]


def _json_copy(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _json_copy(member) for key, member in value.items()}  # pyright: ignore[reportUnknownVariableType]  # any JSON
    return [_json_copy(member) for member in value] if isinstance(value, list) else value  # pyright: ignore[reportUnknownVariableType]
