"""`LongestTimes`: how long a plan and its steps take at most, as far as their time limits and the scheduler decide.

The scheduler starts a call as soon as it is ready and a slot is free. So at each moment, all slots are busy or the calls that everything
else waits for make progress. The first cannot last longer than all calls together take in all slots, the second not longer than the
longest path. This is Graham's bound for list scheduling. It holds whatever the calls really take, and in whatever order they start. Where
a part of a plan is alone, because everything else comes before or after it, its calls are simply counted in rounds.

Waits for people do not count, nor does what happens after a write was interrupted.
"""

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import NamedTuple

from plan_adapter.model import graph
from plan_adapter.model.plan import Step
from plan_adapter.tools.tool import CHECK_SECONDS, CHECKS_AT_ONCE
from plan_adapter.validation import ValidatedPlan

NO_LIMIT = math.inf


class _Time(NamedTuple):
    """How long a call takes at most, in milliseconds."""

    work: float  # with a slot
    delay: float = 0.0  # between its attempts, when it holds none

    @property
    def sum(self) -> float:
        """How long it takes if no slot is missing."""
        return self.work + self.delay


class _Load(NamedTuple):
    """What a step asks of the slots of its plan, in milliseconds."""

    work: float  # of all its calls together. The slot that is kept free during the rollback of an item counts as well
    path: float  # how long its end can be away although a slot is free, less the share of that time that counts as work


class LongestTimes:
    """The longest times of one run of a plan. None means no limit."""

    def __init__(self, validated: ValidatedPlan, items_of: Callable[[Step], int | None]) -> None:
        """Return those of `validated`. `items_of` counts the items of a step; None if they are not known yet."""
        self._validated = validated
        self._items_of = items_of

    def of_run(self) -> float | None:
        """Return how long the run takes, including its `finally` steps."""
        validated, options = self._validated, self._validated.plan.options
        first = self._limited(validated.order, options.total_timeout_ms)
        return _known(first + self._limited(validated.finally_order, options.finally_timeout_ms))

    def _limited(self, order: Sequence[str], timeout_ms: int) -> float:
        """Return how long the steps in `order` take, which a timeout ends. Only the rollback of an item is finished after it."""
        steps = [self._validated.steps[step_id] for step_id in order]
        longest = self._of_part([step.id for step in steps if step.outer is None], self._validated.outer, self._slots_around(None))
        rest = max((self._rollback_ms(step) for step in steps if step.group is not None), default=0.0)
        return min(longest, timeout_ms + rest) if timeout_ms else longest

    def of_step(self, step: Step) -> float | None:
        """Return how long a step takes that no other step keeps from its slots, with all its items and the steps inside it."""
        if step.group is None:
            return _known(self._alone(step, self._slots_around(step)))
        group = self._validated.steps[step.group]
        return _known(_times(_rounds(self._items(group), self._validated.plan.items_at_once(group)), self._call(step).sum))

    def _slots_around(self, step: Step | None) -> int:
        """Return how many slots `step` has in the plans that it belongs to, or a step of the whole plan if it is None."""
        plans = [self._validated.plan] if step is None else self._validated.plan.plans_around(step)
        return min(plan.options.parallel_limit for plan in plans)

    def _of_part(self, order: Collection[str], edges: Mapping[str, tuple[str, ...]], slots: int) -> float:
        """Return how long the steps in `order` take, which are all of one plan."""
        steps, total = self._validated.steps, 0.0
        for stage in _stages(edges, order):
            if len(stage) == 1:
                total += self._alone(steps[stage[0]], slots)
                continue
            if _width(edges, {step_id: self._calls_at_once(steps[step_id], slots) for step_id in stage}) <= slots:
                alone = {step_id: self._alone(steps[step_id], slots) for step_id in stage}  # no call waits for a slot
                total += max(graph.path_lengths(edges, stage, alone).values())
                continue
            loads = {step_id: self._load(steps[step_id], slots) for step_id in stage}
            total += sum(load.work for load in loads.values()) / slots + _longest_path(edges, loads)
        return total

    def _calls_at_once(self, step: Step, slots: int) -> float:
        """Return how many slots `step` can use at once, if it had so many."""
        if not step.inner:
            return self._items(step)
        if not step.is_group:
            return self._slots_of(step, slots)
        if self._validated.plan.rolls_back_failed_items(step):
            return NO_LIMIT  # a slot is kept free for each rollback besides those in use
        width = _width(self._inner(step), dict.fromkeys(self._inner(step), 1.0))
        return _times(min(self._items(step), self._validated.plan.items_at_once(step)), width)

    def _alone(self, step: Step, slots: int) -> float:
        """Return how long `step` takes while no other step runs."""
        if step.inner and not step.is_group:
            return self._of_part(self._inner(step), self._inner(step), self._slots_of(step, slots))
        items = self._items(step)
        if not step.is_group:  # attempts wait in the order of their arrival, so each waits for at most one attempt of each other item
            call = self._call(step)
            return _times(_rounds(items, slots), call.work) + (call.delay if items else 0.0)
        if self._calls_at_once(step, slots) <= slots:
            return self._checks_ms(step) + _times(_rounds(items, self._validated.plan.items_at_once(step)), self._item_path(step))
        load = self._group_load(step, slots)
        return load.work / slots + load.path

    def _load(self, step: Step, slots: int) -> _Load:
        """Return the load that `step` puts on the `slots` of its plan."""
        if step.is_group:
            return self._group_load(step, slots)
        if step.inner:
            own, edges = self._slots_of(step, slots), self._inner(step)
            loads = {inner_id: self._load(self._validated.steps[inner_id], own) for inner_id in edges}
            work = sum(load.work for load in loads.values())
            return _Load(work, _times(1 / own - 1 / slots, work) + _longest_path(edges, loads))
        call, items = self._call(step), self._items(step)
        return _Load(_times(items, call.work), _times(1 - 1 / slots, call.work) + call.delay if items else 0.0)

    def _group_load(self, group: Step, slots: int) -> _Load:
        """Return the load of a group. While an item waits, `batch` others are in progress; then only the last ones are."""
        at_once, items = self._validated.plan.items_at_once(group), self._items(group)
        if not items:
            return _Load(0.0, 0.0)
        calls, undo = [self._call(step) for step in group.steps], self._item_rollback_ms(group)
        work, delay = sum(call.work for call in calls) + undo, sum(call.delay for call in calls)
        waits = _times(items, _times(1 / at_once - 1 / slots, work) + delay / at_once)
        last = _times(1 - 1 / at_once, self._item_path(group))
        return _Load(_times(items, work + undo), self._checks_ms(group) + waits + last)

    def _item_path(self, group: Step) -> float:
        """Return how long one item of a group takes if no slot is missing, with its rollback."""
        edges = self._inner(group)
        times = {step_id: self._call(self._validated.steps[step_id]).sum for step_id in edges}
        return max(graph.path_lengths(edges, edges, times).values(), default=0.0) + self._item_rollback_ms(group)

    def _item_rollback_ms(self, group: Step) -> float:
        return sum(map(self._rollback_ms, group.steps))

    def _rollback_ms(self, step: Step) -> float:
        """Return how long the rollback of a step of a group takes if its item fails. It is tried once."""
        group = self._validated.steps[step.group or ""]
        if step.id not in self._validated.rollbacks or not self._validated.plan.rolls_back_failed_items(group):
            return 0.0
        return self._validated.plan.timeout_ms_of(step) or NO_LIMIT

    def _checks_ms(self, group: Step) -> float:
        """Return how long it takes to check, before the first item of a group, for which items its tools can be called."""
        tools = self._validated.tools
        checks = sum(step.id in tools and tools[step.id].preflight is not None for step in group.steps)
        return _times(_rounds(_times(checks, self._items(group)), CHECKS_AT_ONCE), CHECK_SECONDS * 1000)

    def _items(self, step: Step) -> float:
        items = self._items_of(step)
        return NO_LIMIT if items is None else items

    def _inner(self, step: Step) -> Mapping[str, tuple[str, ...]]:
        """Return the steps inside a group or a step that runs a plan, in their order, with the steps that each one waits for."""
        if step.is_group:
            return self._validated.groups[step.id]
        return self._validated.sub_plans[step.id].steps

    def _slots_of(self, step: Step, slots: int) -> int:
        """Return how many slots the plan that `step` runs has within those of the plan around it."""
        return slots if step.pinned is None else min(slots, step.pinned.options.parallel_limit)

    def _call(self, step: Step) -> _Time:
        """Return how long one call of `step` takes, or the pursuit of its goal."""
        if step.ask is not None:  # only waits for a person
            return _Time(0.0)
        call = _call_time(step, attempt_ms(step, self._validated))
        if step.goal is None or all(effect == "read" for effect in self._validated.goal_effects(step.id, gated_only=False).values()):
            return call
        last_write = self._validated.plan.timeout_ms_of(step.model_copy(update={"timeout_ms": None}))  # the goal's limit does not end it
        return call._replace(work=call.work + (last_write or NO_LIMIT))


def attempt_ms(step: Step, validated: ValidatedPlan) -> int:
    """Return the limit of one attempt of `step` in milliseconds: the shorter one of the plan and the tool. For a goal, its whole limit.

    0 means no limit.
    """
    if step.goal is not None:
        return step.timeout_ms or 0
    tool = validated.tools.get(step.id)
    own = 0 if tool is None or not tool.timeout_seconds else math.ceil(tool.timeout_seconds * 1000)
    return min((limit for limit in (validated.plan.timeout_ms_of(step), own) if limit), default=0)


def longest_call_ms(step: Step, timeout_ms: int) -> float | None:
    """Return how long a call of `step` takes if every attempt takes its full timeout. None means no limit."""
    return _known(_call_time(step, timeout_ms).sum)


def _call_time(step: Step, timeout_ms: int) -> _Time:
    if timeout_ms == 0:
        return _Time(NO_LIMIT)
    try:
        return _Time((1 + step.max_retries) * timeout_ms, _total_delay_ms(step))
    except OverflowError:
        return _Time(NO_LIMIT)


def _total_delay_ms(step: Step) -> float:
    factor = step.max_retries if step.retry_backoff == 1 else (step.retry_backoff**step.max_retries - 1) / (step.retry_backoff - 1)
    return step.retry_delay_ms * factor * (1 + step.retry_jitter)


def _known(milliseconds: float) -> float | None:
    return milliseconds if math.isfinite(milliseconds) else None


def _times(count: float, milliseconds: float) -> float:
    """Return the product, which is 0 if one of the two is 0 and the other has no limit."""
    return count * milliseconds if count and milliseconds else 0.0


def _rounds(count: float, at_once: int) -> float:
    return count if count == NO_LIMIT else math.ceil(count / at_once)


def _longest_path(edges: Mapping[str, tuple[str, ...]], loads: Mapping[str, _Load]) -> float:
    paths = {step_id: load.path for step_id, load in loads.items()}
    return max(graph.path_lengths(edges, loads, paths).values(), default=0.0)


def _width(edges: Mapping[str, tuple[str, ...]], at_once: Mapping[str, float]) -> float:
    """Return how much of `at_once` can come together: each step follows one that it waits for, if no other step does, or starts a line."""
    line_of, lines, ends = dict[str, int](), list[float](), set[str]()
    for step_id, own in at_once.items():
        before = next((before for before in edges[step_id] if before in ends), None)
        if before is None:
            line_of[step_id] = len(lines)
            lines.append(own)
        else:
            ends.remove(before)
            line_of[step_id] = line = line_of[before]
            lines[line] = max(lines[line], own)
        ends.add(step_id)
    return sum(lines)


def _stages(edges: Mapping[str, tuple[str, ...]], order: Collection[str]) -> list[list[str]]:
    """Return `order` in stages: each step waits for all steps of the stages before its own, directly or not."""
    waves = graph.waves(edges, order)
    depth = {step_id: number for number, wave in enumerate(waves) for step_id in wave}
    followed_at = dict.fromkeys(order, len(waves))  # in which wave the first step follows that waits for it
    for step_id in order:
        for before in edges[step_id]:
            if before in depth:
                followed_at[before] = min(followed_at[before], depth[step_id])
    last = [0] * (len(waves) + 1)  # by wave: how many more or fewer steps than before it have no follower so far
    for step_id in order:
        last[depth[step_id]] += 1
        last[followed_at[step_id]] -= 1
    stages, count = list[list[str]](), 0
    for number, wave in enumerate(waves):
        waits_for_all = (sum(followed_at.get(before) == number for before in edges[step_id]) == count for step_id in wave)
        if not stages or all(waits_for_all):
            stages.append([])
        stages[-1] += wave
        count += last[number]
    return stages
