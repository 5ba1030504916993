"""`run_facts` returns what is true of a run, as values. Views, reports and lists word and lay out these, and compute none of their own."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from pydantic import JsonValue

from plan_adapter.model.language import later, tr
from plan_adapter.model.plan import ASK, GOAL
from plan_adapter.model.readable import as_text, call_name, code, counted, cut, duration, listed, moment, one_line, redacted
from plan_adapter.model.record import Attempt, GroupItem, PlanRun, Receipt, StartedCommand, StepRun
from plan_adapter.model.status import Outcome, PlanStatus, RunOutcome, RunReason, StepStatus
from plan_adapter.model.triggers import TriggerRecord

SHOWN_CHARACTERS = 200
"""How many characters of a value or a result are a fact. The record keeps all of it."""

Unit = tuple[str, int | None]
"""A step and the index of an item: what is called, tried again and undone on its own."""


class Mark(StrEnum):
    """How a run, a step, an item or a call stands. Every surface has one shape and one colour for each."""

    DONE = "done"
    FAILED = "failed"
    UNDONE = "undone"  # it completed, and its rollback undid it
    UNKNOWN = "unknown"  # a write whose outcome is unknown, or a run that one stopped
    RUNNING = "running"
    WAITING = "waiting"  # for an answer
    SKIPPED = "skipped"
    PENDING = "pending"  # not started, or stopped and not ended


SHAPES: Mapping[Mark, str] = {
    Mark.DONE: "✓",
    Mark.FAILED: "✗",
    Mark.UNDONE: "↶",
    Mark.UNKNOWN: "?",
    Mark.RUNNING: "▶",
    Mark.WAITING: "⏸",
    Mark.SKIPPED: "-",
    Mark.PENDING: "·",
}
"""The shape of each mark. Color repeats it, so that a surface without color says the same."""

ASCII_SHAPES: Mapping[Mark, str] = {
    Mark.DONE: "+",
    Mark.FAILED: "x",
    Mark.UNDONE: "<",
    Mark.UNKNOWN: "?",
    Mark.RUNNING: ">",
    Mark.WAITING: "=",
    Mark.SKIPPED: "-",
    Mark.PENDING: ".",
}


@dataclass(frozen=True, slots=True)
class CallFacts:
    """The last call of a step for one item."""

    step_id: str
    mark: Mark


@dataclass(frozen=True, slots=True)
class ItemFacts:
    """One item of a step or of a group."""

    label: str
    mark: Mark
    calls: tuple[CallFacts, ...] = ()  # of a group: one for each step in it
    detail: str = ""  # its duration and result, or why it failed

    def text(self, shapes: Mapping[Mark, str]) -> str:
        """Return the calls, each with its shape, and the detail, in one line."""
        calls = "  ".join(f"{shapes[call.mark]} {call.step_id}" for call in self.calls)
        return ": ".join(part for part in (calls, self.detail) if part)


@dataclass(frozen=True, slots=True)
class StepFacts:
    """A step and how it ended. The steps of a group with items are the calls of its items."""

    id: str
    mark: Mark
    what: str  # the tool that it calls, or what else it is: `question`, `goal`, `group`, `plan NAME`
    detail: str  # its duration and result, or why it failed or was skipped
    depth: int = 0  # inside how many groups and plans
    items: tuple[ItemFacts, ...] = ()


@dataclass(frozen=True, slots=True)
class LeftBehind:
    """What a run that did not complete has changed and not undone, or may have changed."""

    what: str
    calls: tuple[str, ...]

    def text(self, most: int) -> str:
        """Return it in one line, with the names of at most `most` calls."""
        return f"{self.what}: {listed(self.calls, most)}" if self.calls else self.what


NOTHING_LEFT = later("every change was undone, and each undo succeeded; nothing was checked afterwards")


@dataclass(frozen=True, slots=True)
class RunFacts:
    """What is true of a run. Times are aware, durations are in milliseconds. Secrets are masked."""

    id: str
    name: str  # of its plan
    run_name: str | None  # what its plan calls this run
    mark: Mark
    outcome: str  # how it ended, or what it does
    cause: str | None  # why it did not complete, or what it waits for
    requested_by: str | None
    started_at: datetime | None
    ended_at: datetime | None
    duration_ms: int
    progress: str
    inputs: Mapping[str, str]
    outputs: Mapping[str, str]
    steps: tuple[StepFacts, ...]
    left_behind: tuple[LeftBehind, ...]
    trigger: TriggerRecord | None = None  # the event that started it, and how many came for it so far

    @property
    def full_name(self) -> str:
        """The name of the plan, and in parentheses what it calls this run."""
        return self.name if self.run_name in (None, self.name) else f"{self.name} ({self.run_name})"

    @property
    def is_undone(self) -> bool:
        """Whether the run was rolled back and left nothing behind."""
        return self.mark is Mark.UNDONE and not self.left_behind


@dataclass(frozen=True, slots=True)
class RunAccount:
    """A run as people read it: its facts, and what else its record says, as text."""

    facts: RunFacts
    state: str  # its outcome, or what it waits for
    asked: Sequence[str]  # what its open gates ask
    next_text: str | None  # what to type
    approvals: Sequence[str]  # oldest first
    notes: Sequence[str]  # steps of earlier versions, changed code
    now: datetime


def started_text(facts: RunFacts, shown: Callable[[str], str] = str) -> str:
    """Return when a run started, by whom, and how long it took, in words. `shown` escapes a name."""
    by = shown(facts.requested_by) if facts.requested_by else ""
    if facts.started_at is None:
        return tr("by {who}, not started", who=by) if by else tr("not started")
    when = moment(facts.started_at)
    started = tr("started {when} by {who}", when=when, who=by) if by else tr("started {when}", when=when)
    return started if facts.ended_at is None else tr("{started}, took {time}", started=started, time=duration(facts.duration_ms))


def trigger_text(trigger: TriggerRecord) -> str:
    """Return which event started a run, and how many came for it, in words."""
    event, number = code(trigger.event), counted(trigger.events, "event")
    return tr("started by the event {event} ({id}); so far {events} came for this run", event=event, id=trigger.event_id, events=number)


def outcome_in_words(run: PlanRun) -> str:
    """Return how `run` ended, with the reason that its outcome hides, or what it does if it has not ended."""
    if run.outcome is None:
        waits = tr("Waiting") if run.status is PlanStatus.PENDING_APPROVAL else run.status.capitalize()
        return tr("Running") if run.status is PlanStatus.EXECUTING else waits
    return tr(run.outcome.value) + ("" if run.hidden_reason is None else f" ({tr(run.hidden_reason.value)})")


def run_facts(
    run: PlanRun,
    attempts: Sequence[Attempt],
    receipts: Sequence[Receipt],
    commands: Sequence[StartedCommand] = (),
    *,
    run_name: str | None = None,
    waiting: Collection[tuple[str | None, int | None]] = (),
    trigger: TriggerRecord | None = None,
) -> RunFacts:
    """Return the facts of `run`. `attempts` and `receipts` are all of its own, and `commands` those without a recorded end.

    `waiting`: the steps and items at whose gates it waits for an answer; a step None stands for the plan. `trigger`: the event that
    started it.
    """
    calls = _Calls(run, attempts, receipts, waiting)
    return RunFacts(
        id=run.id,
        name=run.name,
        run_name=run_name,
        mark=_mark_of_run(run, is_waiting=bool(waiting)),
        outcome=tr("Waiting") if waiting else outcome_in_words(run),
        cause=one_line((run.rollback.cause if run.rollback is not None else run.message) or run.rejection_note or "") or None,
        requested_by=run.requested_by,
        started_at=run.started_at,
        ended_at=run.completed_at,
        duration_ms=run.total_duration_ms,
        progress=run.summary().text,
        inputs={name: _short(value) for name, value in run.inputs.items()},
        outputs={name: _short(value) for name, value in run.outputs.items()},
        steps=tuple(_step_facts(run, calls)),
        left_behind=tuple(_left_behind(run, calls, commands)),
        trigger=trigger,
    )


_MARKS_OF_OUTCOMES = {
    RunOutcome.COMPLETED: Mark.DONE,
    RunOutcome.ROLLED_BACK: Mark.UNDONE,
    RunOutcome.UNKNOWN_OUTCOME: Mark.UNKNOWN,
    RunOutcome.INTERRUPTED: Mark.UNKNOWN,
    RunOutcome.CANCELLED: Mark.SKIPPED,
    RunOutcome.REJECTED: Mark.SKIPPED,
    RunOutcome.EXPIRED: Mark.SKIPPED,
}


def _mark_of_run(run: PlanRun, *, is_waiting: bool) -> Mark:
    if is_waiting or run.status is PlanStatus.PENDING_APPROVAL:
        return Mark.WAITING
    if run.outcome is None:
        return Mark.RUNNING if run.status is PlanStatus.EXECUTING else Mark.PENDING
    return _MARKS_OF_OUTCOMES.get(run.outcome, Mark.FAILED)


_MARKS_OF_STATUSES = {
    StepStatus.COMPLETED: Mark.DONE,
    StepStatus.FAILED: Mark.FAILED,
    StepStatus.SKIPPED: Mark.SKIPPED,
    StepStatus.RUNNING: Mark.RUNNING,
    StepStatus.PENDING: Mark.PENDING,
}


def mark_of(step: StepRun | GroupItem) -> Mark:
    """Return the mark of a step, or of an item of a group."""
    if isinstance(step, StepRun) and step.outcome is Outcome.UNKNOWN:
        return Mark.UNKNOWN
    if step.rolled_back and step.status is StepStatus.COMPLETED:
        return Mark.UNDONE
    if isinstance(step, GroupItem) and step.status is StepStatus.SKIPPED and not step.is_started:
        return Mark.PENDING
    return _MARKS_OF_STATUSES[step.status]


class _Calls:
    """The last call and the last rollback of each step and item, with their ends."""

    def __init__(
        self, run: PlanRun, attempts: Sequence[Attempt], receipts: Sequence[Receipt], waiting: Collection[tuple[str | None, int | None]]
    ) -> None:
        self.waiting = frozenset(waiting)
        self._is_live = run.completed_at is None and run.reason is not RunReason.INTERRUPTED
        self._ends = {receipt.attempt_id: receipt for receipt in receipts}
        self.steps, self.rollbacks = dict[Unit, Attempt](), dict[Unit, Attempt]()
        for attempt in attempts:
            last = self.rollbacks if attempt.kind == "rollback" else self.steps
            unit = (attempt.step_id, attempt.item)
            if unit not in last or attempt.number > last[unit].number:
                last[unit] = attempt

    def end(self, attempt: Attempt) -> Receipt | None:
        """Return how `attempt` ended, or None if that is not recorded or a person left it open."""
        end = self._ends.get(attempt.id)
        return None if end is None or end.is_abort else end

    def is_undone(self, unit: Unit) -> bool:
        """Return whether the last rollback of `unit` succeeded."""
        undo = self.rollbacks.get(unit)
        end = None if undo is None else self.end(undo)
        return end is not None and end.outcome is Outcome.SUCCEEDED

    def mark(self, unit: Unit) -> Mark:
        """Return how the last call of `unit` stands."""
        if unit in self.waiting:
            return Mark.WAITING
        attempt = self.steps.get(unit)
        if attempt is None:
            return Mark.PENDING
        end = self.end(attempt)
        if end is None:
            if self._is_live and attempt.id not in self._ends:
                return Mark.RUNNING
            return Mark.UNKNOWN if attempt.effect == "write" else Mark.PENDING
        if end.outcome is Outcome.FAILED:
            return Mark.FAILED
        return Mark.UNDONE if self.is_undone(unit) else Mark.DONE


def _step_facts(run: PlanRun, calls: _Calls) -> list[StepFacts]:
    facts, depths, groups = list[StepFacts](), dict[str, int](), {step.id: step for step in run.steps if step.items}
    hidden = set[str]()  # steps that are calls of the items of a group
    for step in run.steps:
        depths[step.id] = 0 if step.group is None else depths.get(step.group, 0) + 1
        if step.group is not None and (step.group in groups or step.group in hidden):
            hidden.add(step.id)
            continue
        items = _group_items(run, step, calls) if step.items else _list_items(step, calls)
        has_failed_item = any(item.mark is Mark.FAILED for item in items)
        detail = _count_text(items) if has_failed_item else _detail(step)
        mark = Mark.WAITING if any(name == step.id for name, _ in calls.waiting) else mark_of(step)
        facts.append(StepFacts(step.id, mark, _what(step), detail, depths[step.id], items))
    return facts


def _what(step: StepRun) -> str:
    if step.plan:
        return tr("plan {plan}", plan=one_line(step.plan))
    kinds = {GOAL: tr("goal"), ASK: tr("question"), "": tr("group")}
    return kinds.get(step.tool_name, step.tool_name)


def _count_text(items: Sequence[ItemFacts]) -> str:
    failed = sum(item.mark is Mark.FAILED for item in items)
    return tr("{count} of {items} failed", count=failed, items=counted(len(items), "item"))


def _detail(step: StepRun) -> str:
    text = step_end_text(step) if step.status.has_ended else ""
    if step.status is not StepStatus.COMPLETED or step.items:
        return text
    return ", ".join(part for part in (text, short_result(step.result)) if part)


def _group_items(run: PlanRun, group: StepRun, calls: _Calls) -> tuple[ItemFacts, ...]:
    inside, names = list[StepRun](), {group.id}
    for step in run.steps:
        if step.group in names:
            names.add(step.id)
            if step.tool_name:
                inside.append(step)
    found = list[ItemFacts]()
    for number, item in enumerate(group.items):
        units = [(step.id, number) for step in inside]
        errors = [end.error for unit in units if (end := _end_of(unit, calls)) is not None and end.error and not end.is_abort]
        detail = one_line(errors[0]) if errors and item.status is StepStatus.FAILED else ""
        if item.status is StepStatus.COMPLETED and not item.rolled_back:
            detail = _proof([end for unit in units if (end := _end_of(unit, calls)) is not None])
        made = tuple(CallFacts(step.id, calls.mark(unit)) for step, unit in zip(inside, units, strict=True))
        mark = Mark.WAITING if (group.id, number) in calls.waiting else mark_of(item)
        found.append(ItemFacts(item.label, mark, made, detail))
    return tuple(found)


def _proof(ends: Sequence[Receipt]) -> str:
    """Return what the last call of an item gave, if that is short, and how long it took."""
    last = max(ends, key=lambda end: end.ended_at, default=None)
    result = "" if last is None else short_result(last.result)
    return f"{result}, {duration(last.duration_ms)}" if last is not None and result else ""


def _end_of(unit: Unit, calls: _Calls) -> Receipt | None:
    attempt = calls.steps.get(unit)
    return None if attempt is None else calls.end(attempt)


def _list_items(step: StepRun, calls: _Calls) -> tuple[ItemFacts, ...]:
    """Return the items of a step that makes one call for each. The calls of a goal are no items."""
    if step.tool_name == GOAL:
        return ()
    units = sorted((item, attempt) for (step_id, item), attempt in calls.steps.items() if step_id == step.id and item is not None)
    found = list[ItemFacts]()
    for item, attempt in units:
        end, mark = calls.end(attempt), calls.mark((step.id, item))
        detail = "" if end is None else one_line(end.error) if end.error else f"{duration(end.duration_ms)}, {short_result(end.result)}"
        found.append(ItemFacts(attempt.label or str(item + 1), mark, detail=detail.rstrip(", ")))
    return tuple(found)


CALL_COLUMNS = 70
"""How much of the call is shown whose outcome is unknown."""


def _called_with(attempt: Attempt) -> str:
    """Return the tool and the parameters of a call in one line, as recorded, with secrets masked."""
    values = [value for value in attempt.parameters.values() if value not in (None, "", [], {})]
    flat = [word for value in values for word in (value if isinstance(value, list) else [value])]
    words = [word if isinstance(word, str) else as_text(word) for word in flat]
    text = one_line(" ".join([attempt.tool_name, *words]))
    return text if len(text) <= CALL_COLUMNS else f"{cut(text, CALL_COLUMNS - 1)}…"


def _left_behind(run: PlanRun, calls: _Calls, commands: Sequence[StartedCommand]) -> list[LeftBehind]:
    """Return the changes that stand after a run stopped. A run that is completed, or still runs, leaves nothing behind."""
    running = [
        LeftBehind(tr("the command of {call} {state}", call=command.call, state=command.in_words), ())
        for command in commands
        if command.state == "running"
    ]
    if run.outcome in (None, RunOutcome.COMPLETED):
        return running
    done, failed, unknown = list[str](), list[str](), list[str]()
    for unit, attempt in calls.steps.items():
        if attempt.effect == "read":
            continue
        name = call_name(*unit, attempt.label)
        match calls.mark(unit):
            case Mark.DONE if unit not in calls.rollbacks:
                done.append(name)
            case Mark.FAILED if not calls.is_undone(unit):
                failed.append(name)
            case Mark.UNKNOWN:
                unknown.append(f"{name} ({_called_with(attempt)})")
            case _:
                pass
    undo = [call_name(*unit, attempt.label) for unit, attempt in calls.rollbacks.items() if not calls.is_undone(unit)]
    kinds = {
        tr("outcome unknown, it may have been done"): unknown,
        tr("rollback not completed"): undo,
        tr("failed, and may have changed something"): failed,
        tr("done, and not undone"): done,
    }
    return [*running, *(LeftBehind(what, tuple(names)) for what, names in kinds.items() if names)]


_STEP_ENDS = {"cancelled": later("cancelled"), "timed_out": later("timed out")}
"""The reasons of steps that were stopped, in words."""


def step_end_text(step: StepRun) -> str:
    """Return how `step` ended, in words: its duration and retries, or why it failed or was skipped."""
    if step.status is StepStatus.SKIPPED:
        reason = one_line(step.reason or tr("not reached"))
        return reason if step.is_partly_done else tr("skipped: {reason}", reason=reason)
    tries = tr(" after {retries}", retries=counted(step.retry_count, "retry", "retries")) if step.retry_count else ""
    if step.status is StepStatus.COMPLETED:
        return (tr("carried from an earlier start of this run") if step.carried else duration(step.duration_ms)) + tries
    how = tr(_STEP_ENDS.get(step.reason or "", "failed"))
    if step.outcome is Outcome.UNKNOWN:
        how = tr("its outcome is unknown")
    text = f"{how}{tries}: {one_line(step.error or tr('no reason was given'))}"
    return tr("{end}; rolled back", end=text) if step.rolled_back else text


def short_result(result: JsonValue) -> str:
    """Return a result as one short line: the last line that a command wrote, the status of a response, or the value."""
    if isinstance(result, dict):
        if isinstance(summary := result.get("summary"), str):
            return _cut(one_line(summary))
        if isinstance(written := result.get("stdout"), str):
            lines = written.strip().splitlines()
            return _cut(one_line(lines[-1])) if lines else ""
        if isinstance(status := result.get("status"), int) and "body" in result:
            return f"HTTP {status}"
    return "" if result in (None, "", [], {}) else _short(result)


def _short(value: JsonValue) -> str:
    return _cut(one_line(as_text(redacted(value, expressions=False))))


def _cut(text: str) -> str:
    return text if len(text) <= SHOWN_CHARACTERS else cut(text, SHOWN_CHARACTERS) + "…"
