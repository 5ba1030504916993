"""The status messages about a rollback: how far it got, and what a person can do about calls whose outcome is unknown."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from plan_adapter.execution.history import RunHistory, Unit
from plan_adapter.execution.rollback_units import units_left_alone
from plan_adapter.model.plan import ExecutionPlan
from plan_adapter.model.readable import call_name, listed
from plan_adapter.model.record import PlanRun, RollbackStatus
from plan_adapter.text.commands import MAX_NAMES, resolve_command, resume_command, rollback_command, unit_names

OUTCOME_UNKNOWN = "its outcome is unknown"
"""Why a write failed if a person aborted the run without resolving its outcome."""

ROLLBACK_OUTCOME_UNKNOWN = "the outcome of its rollback is unknown"
"""The same for a call that rolls a step back."""

CHECK_BY_HAND = "failed, check by hand"
"""Why a failed step or item is not rolled back: part of it may have been done."""

ITEM_NOT_COMPLETED = "its item did not complete, check by hand"
"""Why a step of a group is not rolled back for an item: the group rolls back only completed items."""


@dataclass(frozen=True, slots=True)
class RollbackReport:
    """What a rollback did, in words, and whether another rollback would undo more.

    `undone` names the steps and items that are rolled back, `left` those that could have been rolled back and are not.
    """

    words: str
    can_continue: bool
    undone: tuple[str, ...] = ()
    left: tuple[str, ...] = ()

    def update_status(self, message: str | None, before: RollbackStatus | None) -> tuple[str, RollbackStatus]:
        """Return the status message and the rollback status of a run that had `message` and `before`."""
        cause = message if before is None else before.cause
        return f"{cause or 'the run has ended'}; {self.words}", RollbackStatus(cause, self.can_continue)


def report_of(
    reasons: Mapping[Unit, str],
    labels: Mapping[Unit, str],
    *,
    not_started: Sequence[Unit] = (),
    notes: Sequence[str] = (),
    of_item: bool = False,
) -> RollbackReport:
    """Return what is rolled back, what is not and why, and which items never started; `notes` come last.

    `reasons` maps each step or item that did something to why it is not rolled back. The reason is empty if it is rolled back. `of_item`:
    it is about one item of a group, so that labels alone would tell nothing.
    """
    calls = {unit: call_name(*unit, labels.get(unit)) for unit in [*reasons, *not_started]}
    names = calls if of_item else _unit_names(calls, labels)
    undone = [names[unit] for unit, why in reasons.items() if not why]
    not_undone = [f"{names[unit]} ({why})" for unit, why in reasons.items() if why]
    left = [names[unit] for unit in not_started]
    parts = ["rolled back: " + (listed(undone, MAX_NAMES) or "nothing")]
    parts += ["not rolled back: " + listed(not_undone, MAX_NAMES)] if not_undone else []
    parts += ["not started: " + listed(left, MAX_NAMES)] if left else []
    can_continue = any(why not in ("", CHECK_BY_HAND, ITEM_NOT_COMPLETED) for why in reasons.values())
    return RollbackReport(
        "; ".join([*parts, *notes]),
        can_continue,
        undone=tuple(calls[unit] for unit, why in reasons.items() if not why),
        left=tuple(calls[unit] for unit, why in reasons.items() if why),
    )


def _unit_names(calls: Mapping[Unit, str], labels: Mapping[Unit, str]) -> dict[Unit, str]:
    """Return a name for each unit in `calls`. If all are items of one step, their labels are enough."""
    if len({step_id for step_id, _ in calls}) == 1 and all(unit in labels for unit in calls):
        return {unit: labels[unit] for unit in calls}
    return dict(calls)


def recorded_report(plan: ExecutionPlan, history: RunHistory) -> RollbackReport:
    """Return how far a rollback got according to the record, which does not hold every reason why a step is not rolled back."""
    steps = {step.id: step for step in plan.all_steps if step.rollback is not None}
    reasons, rollbacks, not_undone = dict[Unit, str](), history.rollbacks, units_left_alone(plan, history)
    for unit in reversed([*history.succeeded, *history.failed]):
        step_id, _ = unit
        if step_id not in steps:
            continue
        if unit in rollbacks.succeeded:
            reasons[unit] = ""
        elif unit not in history.succeeded and not steps[step_id].rollback_failed:
            reasons[unit] = CHECK_BY_HAND
        elif unit in not_undone:
            reasons[unit] = ITEM_NOT_COMPLETED
        elif unit in rollbacks.unknown or unit in rollbacks.aborted:
            reasons[unit] = ROLLBACK_OUTCOME_UNKNOWN
        else:
            reasons[unit] = "not reached"
    return report_of(reasons, history.labels, notes=possibly_done_note(plan, history))


def possibly_done_note(plan: ExecutionPlan, history: RunHistory) -> list[str]:
    """Return a note about calls that may have changed something and are not rolled back, because their outcome is unknown."""
    units = [*aborted_steps(plan, history), *history.repeatable]
    return [f"started, and possibly done: {listed(unit_names(units, history.labels), MAX_NAMES)}"] if units else []


def aborted_steps(plan: ExecutionPlan, history: RunHistory) -> list[Unit]:
    """Return the steps and items with an unknown outcome that a person aborted, in plan order."""
    if not history.aborted:
        return []
    places = {step.id: place for place, step in enumerate(plan.all_steps)}
    return sorted((unit for unit in history.aborted if unit[0] in places), key=lambda unit: (places[unit[0]], unit[1] or 0))


def after_abort(run: PlanRun, units: Sequence[Unit], labels: Mapping[Unit, str], *, is_undone: bool) -> str:
    """Return what a person can do about `units` with an unknown outcome in an ended run. `is_undone`: the run was rolled back."""
    known = f"the outcome of {listed(unit_names(units, labels), MAX_NAMES)} is unknown"
    undoes = f"`{rollback_command(run)}` rolls it back, if it declares a rollback"
    if is_undone:
        command = resolve_command(run.id, units[0], "done", label=labels.get(units[0]))
        return f"{known}, and the call is not rolled back: check it; if it was done, `{command}` records that, and {undoes}"
    command = resolve_command(run.id, units[0], "done|again", label=labels.get(units[0]))
    return (
        f"{known}, and the call is neither rolled back nor repeated: check it, record the outcome with `{command}`, "
        f"then `{resume_command(run)}`; if it was done, {undoes}"
    )


def after_aborted_rollback(run: PlanRun, unit: Unit, labels: Mapping[Unit, str], *, is_undone: bool) -> str:
    """Return what a person can do about the rollback of `unit`, which was aborted with an unknown outcome.

    `is_undone`: the run was rolled back, not only the item of `unit`.
    """
    command = resolve_command(run.id, unit, "done|again", label=labels.get(unit), kind="rollback")
    return (
        f"the outcome of the rollback of {unit_names([unit], labels)[0]} is unknown, and the call is not repeated: check it, record the "
        f"outcome with `{command}`, then `{rollback_command(run) if is_undone else resume_command(run)}` rolls back the rest"
    )
