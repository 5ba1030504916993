"""`Group`: the steps of a group, item by item. It decides which calls are ready and how the group ends; `GroupRuns` makes the calls."""

from collections import deque
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace

from pydantic import JsonValue

from plan_adapter.execution.items import Items, left_in_words, not_started_items
from plan_adapter.execution.ports import WORST_FIRST, AttemptEnd, GatedCall
from plan_adapter.execution.rollback_status import RollbackReport
from plan_adapter.execution.rollback_units import rolled_back_items
from plan_adapter.execution.scope import RunScope, as_value
from plan_adapter.model import graph
from plan_adapter.model.plan import Step
from plan_adapter.model.readable import counted, failure_of
from plan_adapter.model.record import GroupItem
from plan_adapter.model.status import StepStatus


@dataclass(slots=True)
class _Item:
    """One item of a group: its scope, whose expressions see the item's own results, and how its steps ended."""

    value: JsonValue
    scope: RunScope
    missing: dict[str, int]  # by step: how many other steps of the item it still waits for
    values: dict[str, dict[str, JsonValue]]  # what expressions see of the steps that have ended
    ends: list[AttemptEnd] = field(default_factory=list[AttemptEnd])  # of the calls that were made
    left_out: dict[str, str] = field(default_factory=dict[str, str])  # steps without a call, and why; not those whose `when` is false
    was_skipped: bool = False  # a person skipped one of its steps; the others are still called
    halted: str = ""  # why no further step of the item starts
    failure: str = ""  # the first failure, in words
    is_approved: bool = False
    is_unreachable: bool = False  # a tool cannot be called for it, so none was
    was_rolled_back: bool = False  # its rollback began in an earlier start of the run, so no step of it is called again
    rollback: RollbackReport | None = None  # of the item alone, once that has ended
    held: list[str] = field(default_factory=list[str])  # steps that wait until the item is approved

    @property
    def status(self) -> StepStatus:
        """How the item ended, once all its steps have."""
        if self.failure:
            return StepStatus.FAILED
        return StepStatus.SKIPPED if self.left_out or self.was_skipped else StepStatus.COMPLETED

    @property
    def is_rolled_back(self) -> bool:
        """Whether everything of the item that can be rolled back was."""
        return self.rollback is not None and bool(self.rollback.undone) and not self.rollback.left

    @property
    def error(self) -> str:
        """The first failure, and what was rolled back, in words."""
        is_worth_saying = self.rollback is not None and (self.rollback.undone or self.rollback.left)
        return f"{self.failure} ({self.rollback.words})" if self.rollback is not None and is_worth_saying else self.failure


class Group:
    """A group in progress, a state machine: `next_call` returns the calls to make, and `record_end` records how they ended.

    The items start in order, at most `batch` at once. An item in which a step failed starts no further steps, unless the step's `on_error`
    is `continue`. After more failed items than `max_failures`, no further item starts; items in progress finish.

    If the group rolls back failed items, `pop_failed` returns them, and each stays in progress until `record_rollback`.
    """

    def __init__(self, scope: RunScope, step: Step, values: Sequence[JsonValue], labels: Sequence[str | None]) -> None:
        """Prepare to run the steps of `step` once for each of `values`."""
        validated = scope.approved.bound.validated
        self.step = step
        self.labels = labels
        self.is_advancing = False  # a call of `next_call` is being made
        self.calls = {inner_step.id: Items(inner_step, labels, is_list=True) for inner_step in step.steps}
        self._names = {inner_step.id: inner_step.local_id for inner_step in step.steps}  # what expressions call them
        self._dependencies = validated.groups[step.id]
        self._dependents = graph.successors(self._dependencies)
        self._items = [self._new_item(scope, value) for value in values]
        self._rolls_back = validated.plan.rolls_back_failed_items(step)
        self._to_roll_back = deque[int]()
        for item in rolled_back_items(step, validated.plan, scope.history):
            if item < len(self._items):
                self._items[item].was_rolled_back = True
        self._max_concurrent = validated.plan.items_at_once(step)
        self._failures_allowed = _failures_allowed(step.max_failures, len(values))
        self._ready = deque[tuple[int, str]]()
        self._started = self._ended = self._failed = 0
        self._halt_reason = ""
        self._popped = set[str]()
        self.items = not_started_items(labels, StepStatus.PENDING)
        """The label of each item, and how far it is. The step's record shares this list."""

    def _new_item(self, scope: RunScope, value: JsonValue) -> _Item:
        values = dict[str, dict[str, JsonValue]]()
        missing = {step_id: len(before) for step_id, before in self._dependencies.items()}
        return _Item(value, scope.of_item(values), missing, values)

    @property
    def is_over(self) -> bool:
        """Whether every item has ended or will not start."""
        return self._ended == len(self._items)

    def scope_of(self, item: int) -> RunScope:
        """Return the scope of the calls of an item."""
        return self._items[item].scope

    def value_of(self, item: int) -> JsonValue:
        """Return what expressions call `item`."""
        return self._items[item].value

    def upstream_of(self, item: int, step_id: str) -> tuple[str, ...]:
        """Return the keys of the calls that a call of the item waited for, or else the steps that the group waited for."""
        siblings = tuple(f"{before}[{item}]" for before in self._dependencies[step_id])
        return siblings or self._items[item].scope.approved.bound.validated.outer[self.step.id]

    def next_call(self, halted: str) -> tuple[int, str] | None:
        """Return the item and step of a call that is ready, or None if none is. With `halted`, no further item starts."""
        while not self._ready and self._started < len(self._items):
            if not (halted or self._halt_reason) and self._started - self._ended >= self._max_concurrent:
                break
            item, self._started = self._started, self._started + 1
            self._items[item].halted = self._items[item].halted or halted or self._halt_reason
            self._update(item)
            self._ready += ((item, step_id) for step_id, count in self._items[item].missing.items() if not count)
        return self._ready.popleft() if self._ready else None

    def fail(self, item: int, why: str) -> None:
        """Fail an item that has not begun. No step of it is called, and it counts among the failed items from now on."""
        progress = self._items[item]
        progress.failure, progress.halted, progress.is_unreachable = why, why, True
        self._count_failure()

    def _count_failure(self) -> None:
        self._failed += 1
        if self._failed > self._failures_allowed:
            self._halt_reason = self._halt_reason or f"{counted(self._failed, 'item')} of `{self.step.id}` failed"

    def hold_until_approved(self, item: int, step_id: str) -> bool:
        """Hold a step back if its item, or the group, is not approved yet. Return whether it is held. `approve` or `refuse` releases it."""
        progress = self._items[item]
        if progress.is_approved or not self.step.requires_approval:
            return False
        progress.held.append(step_id)
        return True

    def is_first_held(self, item: int) -> bool:
        """Return whether the step that was just held is the first one that waits for this answer."""
        return sum(len(self._items[index].held) for index in self._items_approved_with(item)) == 1

    def _items_approved_with(self, item: int) -> range:
        """Return the items that the same answer approves or refuses: this item, or all."""
        return range(item, item + 1) if self.step.requires_approval == "each" else range(len(self._items))

    def gated_call(self, item: int) -> GatedCall:
        """Return the item, or the group, as it would run now, to be approved. The digest covers its steps, their tools and the items."""
        first, is_each = self._items[item], self.step.requires_approval == "each"
        parameters: dict[str, JsonValue] = {"item": first.value} if is_each else {"items": [progress.value for progress in self._items]}
        number, label = (item, self.labels[item]) if is_each else (None, None)
        gated = first.scope.gated_call(self.step, self.step.steps, "group", parameters, item=number, label=label)
        ended = [item for item, progress in zip(self.items, self._items, strict=True) if len(progress.values) == len(self._dependencies)]
        return replace(gated, ended_items=tuple(ended) if is_each else ())

    def approve(self, item: int) -> None:
        """Start the steps that waited for the approval of the item, or of the group."""
        for index in self._items_approved_with(item):
            progress = self._items[index]
            progress.is_approved = True
            self._ready += ((index, step_id) for step_id in progress.held)
            progress.held.clear()
            self._update(index)

    def refuse(self, item: int, cause: str) -> None:
        """Leave out the steps that waited for the approval of the item, or of the group, because of `cause`."""
        for index in self._items_approved_with(item):
            self._items[index].halted = self._items[index].halted or cause
        self.approve(item)

    def cause(self, item: int, step_id: str) -> str:
        """Return why a step of an item cannot be called, or an empty text."""
        progress = self._items[item]
        if progress.halted:
            return progress.halted
        first = next((before for before in self._dependencies[step_id] if before in progress.left_out), None)
        if first is None:
            return ""
        return f"`{first}` {'failed' if progress.values[self._names[first]]['status'] == StepStatus.FAILED else 'was skipped'}"

    def was_rolled_back(self, item: int) -> bool:
        """Return whether an earlier start of the run began to roll back the item. No step of it is called again."""
        return self._items[item].was_rolled_back

    def leave_out(self, item: int, step_id: str, cause: str) -> None:
        """Record that a step of an item is not called, because of `cause`. Steps that depend on it are not called either."""
        self._items[item].left_out[step_id] = cause
        self.calls[step_id].cause = self.calls[step_id].cause or cause

    def skip(self, item: int, step_id: str, *, by_person: bool) -> None:
        """Record that a step of an item is not called: a person skipped it, or else its condition is false. Its dependents still are."""
        self.calls[step_id].without_call += 1
        self._items[item].was_skipped |= by_person
        self.record_end(item, step_id, None)

    def record_end(self, item: int, step_id: str, end: AttemptEnd | None) -> None:
        """Record how a call ended. `end` is None if the call was not made."""
        progress, state = self._items[item], self.calls[step_id]
        state.end(item, end)
        progress.values[self._names[step_id]] = _step_value(end)
        if end is not None:
            progress.ends.append(end)
            if end.outcome != "succeeded":
                progress.failure = progress.failure or f"{failure_of(step_id, is_unknown=end.outcome == 'unknown')}: {end.error}"
                if state.step.on_error != "continue" or end.outcome != "failed":
                    progress.halted = progress.halted or f"`{step_id}` failed"
                else:
                    progress.left_out[step_id] = f"`{step_id}` failed"
        for after in self._dependents[step_id]:
            progress.missing[after] -= 1
            if not progress.missing[after]:
                self._ready.append((item, after))
        if len(progress.values) == len(self._dependencies):
            self._record_item_end(item)

    def _record_item_end(self, item: int) -> None:
        progress = self._items[item]
        if progress.was_rolled_back:
            progress.failure = progress.failure or "it failed in an earlier start of the run"
        has_failed = bool(progress.failure) and not progress.is_unreachable
        if has_failed:
            self._count_failure()
        if self._rolls_back and has_failed and all(end.outcome in ("succeeded", "failed") for end in progress.ends):
            self._to_roll_back.append(item)
        else:
            self._ended += 1
        self._update(item)

    def pop_failed(self) -> list[int]:
        """Return the items that failed and are to be rolled back now, each once."""
        failed = list(self._to_roll_back)
        self._to_roll_back.clear()
        return failed

    def record_rollback(self, item: int, report: RollbackReport) -> None:
        """Record how the rollback of a failed item ended."""
        self._items[item].rollback = report
        self._ended += 1
        self._update(item)

    def pop_ended(self) -> list[Items]:
        """Return the steps whose calls have all ended, each once."""
        ended = [state for step_id, state in self.calls.items() if not state.open and step_id not in self._popped]
        self._popped |= {state.step.id for state in ended}
        return ended

    def results(self) -> list[dict[str, JsonValue]]:
        """Return, for each item, the results of its steps that succeeded, by id."""
        done = StepStatus.COMPLETED.value
        return [{step_id: end["result"] for step_id, end in progress.values.items() if end["status"] == done} for progress in self._items]

    def _update(self, item: int) -> None:
        """Show in `items` how far an item is."""
        progress, label = self._items[item], self.items[item].label
        if len(progress.values) == len(self._dependencies):
            self.items[item] = GroupItem(label, progress.status, progress.is_rolled_back, is_started=bool(progress.ends))
        elif item < self._started and not progress.halted and (progress.is_approved or not self.step.requires_approval):
            self.items[item] = GroupItem(label, StepStatus.RUNNING)

    @property
    def is_skipped(self) -> bool:
        """Whether no call was made, although there are items."""
        has_begun = any(progress.ends or progress.failure for progress in self._items)
        return not has_begun and any(progress.left_out for progress in self._items)

    def summary(self) -> AttemptEnd:
        """Return the end of the group."""
        bad = [end for progress in self._items for end in progress.ends if end.outcome != "succeeded"]
        missing = [progress for progress in self._items if progress.left_out and not progress.failure]
        if not bad and not missing and not self._failed:
            return AttemptEnd("succeeded", 0)
        texts = [f"{item.label}: {progress.error}" for item, progress in zip(self.items, self._items, strict=True) if progress.failure]
        shown = "; ".join(texts[:3]) + (f"; and {len(texts) - 3} more" if len(texts) > 3 else "")
        left = [self._left_in_words([progress for progress in missing if not progress.ends], "started")]
        left += [self._left_in_words([progress for progress in missing if progress.ends], "finished")]
        worst = min(bad, key=lambda end: WORST_FIRST.index(end.outcome), default=AttemptEnd("failed", 0))
        error = "; ".join(text for text in (shown, *left) if text)
        return AttemptEnd(worst.outcome, 0, error=error, was_interrupted=any(end.was_interrupted for end in bad))

    def _left_in_words(self, left: Sequence[_Item], what: str) -> str:
        """Return how many items, `left`, were not `what` (`started`), and the first reason. Empty if there are none."""
        cause = next((cause for progress in left for cause in progress.left_out.values()), "")
        return left_in_words(len(left), len(self._items), what, cause)


def group_result(items: Collection[GroupItem], results: Sequence[dict[str, JsonValue]]) -> list[JsonValue]:
    """Return the result of a group: {label, status, rolled_back, results} for each item, with the results of its completed steps by id."""
    return [
        {"label": item.label, "status": item.status.value, "rolled_back": item.rolled_back, "results": dict(one)}
        for item, one in zip(items, results, strict=True)
    ]


def _step_value(end: AttemptEnd | None) -> dict[str, JsonValue]:
    if end is None:
        return as_value(StepStatus.SKIPPED)
    return as_value(StepStatus.COMPLETED if end.outcome == "succeeded" else StepStatus.FAILED, end.result, end.error)


def _failures_allowed(max_failures: int | str, items: int) -> int:
    """Return how many items may fail before no further item starts."""
    text = str(max_failures)
    return items * int(text[:-1]) // 100 if text.endswith("%") else int(text)
