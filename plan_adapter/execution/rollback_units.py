"""Which steps and items a rollback undoes, and in which order."""

from collections.abc import Mapping
from dataclasses import dataclass

from pydantic import JsonValue

from plan_adapter.execution.history import RunHistory, Unit
from plan_adapter.model.plan import ExecutionPlan, Step
from plan_adapter.model.record import Receipt, RollbackStatus
from plan_adapter.validation import ValidatedPlan


@dataclass(frozen=True, slots=True)
class FailedUnit:
    """The end of a failed step or item that is rolled back anyway."""

    step_id: str
    item: int | None
    number: int
    outcome: str = "failed"
    result: JsonValue = None
    by: str | None = None
    is_abort: bool = False


def units_to_roll_back(plan: ExecutionPlan, history: RunHistory) -> list[Unit]:
    """Return the steps and items that still need a rollback: those that succeeded, and failed ones if the plan says so."""
    undoable = {step.id: step for step in plan.all_steps if step.rollback is not None}
    failed = [unit for unit in history.failed if unit[0] in undoable and undoable[unit[0]].rollback_failed]
    units = [*(unit for unit in history.succeeded if unit[0] in undoable), *failed]
    kept = units_left_alone(plan, history)
    return [unit for unit in units if unit not in history.rollbacks.succeeded and unit not in kept]


def units_left_alone(plan: ExecutionPlan, history: RunHistory) -> set[Unit]:
    """Return the calls of items that did not complete, in groups that roll back only completed items."""
    kept = set[Unit]()
    for group in plan.all_steps:
        if group.steps and not group.rollback_failed:
            begun = {item for step in group.steps for step_id, item in history.attempts if step_id == step.id and item is not None}
            kept |= {(step.id, item) for item in begun if not is_complete(group, item, history) for step in group.steps}
    return kept


def rolled_back_items(group: Step, plan: ExecutionPlan, history: RunHistory) -> set[int]:
    """Return the items of `group` whose own rollback has begun. They are not called again, and a resume finishes their rollback."""
    if not plan.rolls_back_failed_items(group):
        return set()
    steps = {step.id for step in group.steps}
    return {item for step_id, item in history.rollbacks.attempts if step_id in steps and item is not None}


def is_rolled_back(plan: ExecutionPlan, history: RunHistory, ended: RollbackStatus | None) -> bool:
    """Return whether the run itself has begun to roll back. False if only items that failed were rolled back, each by itself.

    A failure need not have a receipt: the expressions of a call may fail before it. But an item that completed is only rolled back with the
    run. `ended` tells how the run's last rollback ended (`PlanRun.rollback`): it may have undone nothing but the rest of a failed item. It
    undid nothing at all if the outcome of a step is still unknown.
    """
    final = {step.id for step in plan.finally_}  # they run after the rollback
    if ended is not None and history.has_rollbacks and final.issuperset(history.unknown_steps):
        return True
    own = {
        (step.id, item)
        for group in plan.all_steps
        for item in rolled_back_items(group, plan, history)
        if not is_complete(group, item, history)
        for step in group.steps
    }
    return not own.issuperset(history.rollbacks.attempts)


def is_complete(group: Step, item: int, history: RunHistory) -> bool:
    """Return whether every step of an item that began succeeded. A step with a `when` that was not called counts as skipped by it."""
    units = [(step, (step.id, item)) for step in group.steps]
    return all(unit in history.succeeded or (step.when is not None and unit not in history.attempts) for step, unit in units)


def rollback_graph(validated: ValidatedPlan, history: RunHistory) -> dict[Unit, tuple[Unit, ...]]:
    """Return, for each step in order, what it ran after. A step outside of groups stands for all its items.

    In a group, each item of each step is a node of its own: the items are undone one after the other, the last one first. A step that runs
    a plan ended after all steps of that plan.
    """
    found = dict[Unit, tuple[Unit, ...]]()
    for step_id in validated.order:
        step = validated.steps[step_id]
        if step.group is None:
            after = tuple(validated.sub_plans[step_id].steps) if step_id in validated.sub_plans else _dependencies_of(step, validated)
            before = tuple((step_id_before, None) for step_id_before in after)
            found[step_id, None] = _add_items(found, validated.groups.get(step_id, {}), before, history)
    return found


def _dependencies_of(step: Step, validated: ValidatedPlan) -> tuple[str, ...]:
    """Return what a step waited for. The first steps of a sub-plan waited for what the step that runs it waited for."""
    while not validated.outer[step.id] and step.within is not None:
        step = step.within
    return validated.outer[step.id]


def _add_items(
    found: dict[Unit, tuple[Unit, ...]], steps: Mapping[str, tuple[str, ...]], before: tuple[Unit, ...], history: RunHistory
) -> tuple[Unit, ...]:
    """Add the items of a group with `steps`, which began after `before`. Return what the group itself ends after."""
    count = 1 + max((item for step_id, item in history.attempts if step_id in steps and item is not None), default=-1)
    waited_for = {sibling for siblings in steps.values() for sibling in siblings}
    for item in range(count):
        for step_id, siblings in steps.items():
            found[step_id, item] = tuple((sibling, item) for sibling in siblings) or before
        before = tuple((step_id, item) for step_id in steps if step_id not in waited_for)
    return before


def by_node(graph: Mapping[Unit, tuple[Unit, ...]], units: Mapping[Unit, Receipt | FailedUnit]) -> dict[Unit, list[Receipt | FailedUnit]]:
    """Return the receipts of `units` by node of the rollback's `graph`."""
    done = dict[Unit, list[Receipt | FailedUnit]]()
    for unit, receipt in sorted(units.items(), key=lambda entry: -1 if entry[0][1] is None else entry[0][1]):
        done.setdefault(unit if unit in graph else (unit[0], None), []).append(receipt)
    return done
