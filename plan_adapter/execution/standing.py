"""Where the rollback of a run stands, in the words that stand in the run's message."""

import re
from collections.abc import Iterable, Mapping, Sequence

from plan_adapter.commands import resolve_command
from plan_adapter.execution.history import RunHistory, Unit, is_rollback, rollback_id, undone_by
from plan_adapter.plan import ExecutionPlan
from plan_adapter.readable import call_name, listed

NAMED = 20
"""How many steps are named in one list."""

NEVER_KNOWN = "whether it was done was never known"
"""What is said of a write about which a person only said that the run is to end."""

ROLLBACK_NEVER_KNOWN = "whether its rollback was done was never known"
"""The same of the call that undoes a step."""

CHECK_BY_HAND = "failed, check by hand"
"""Why a step, or an item, is not rolled back that failed: part of it may have been done."""

_MARK = "; rolled back: "


def standing(whys: Mapping[Unit, str], labels: Mapping[Unit, str], not_started: Sequence[Unit] = ()) -> list[str]:
    """Return what is rolled back, what is not and why, and which items were not started.

    `whys` are the steps and items that did something, each with why it is not rolled back: empty for one that is.
    """
    names = _unit_names([*whys, *not_started], labels)
    gone = [names[unit] for unit, why in whys.items() if not why]
    kept = [f"{names[unit]} ({why})" for unit, why in whys.items() if why]
    left = [names[unit] for unit in not_started]
    parts = ["rolled back: " + (listed(gone, NAMED) or "nothing")]
    parts += ["not rolled back: " + listed(kept, NAMED)] if kept else []
    return [*parts, "not started: " + listed(left, NAMED)] if left else parts


def _unit_names(units: Sequence[Unit], labels: Mapping[Unit, str]) -> dict[Unit, str]:
    """Return what units are called: the items of one step by their labels alone."""
    if len({step_id for step_id, _ in units}) == 1 and all(unit in labels for unit in units):
        return {unit: labels[unit] for unit in units}
    return {unit: call_name(*unit, labels.get(unit)) for unit in units}


def recorded_standing(plan: ExecutionPlan, history: RunHistory) -> str:
    """Return where the rollback of a run stands by its record alone, without a reason for each step that is not rolled back."""
    steps = {step.id: step for step in plan.steps if step.rollback is not None}
    whys = dict[Unit, str]()
    for unit in reversed([*history.succeeded, *history.failed]):
        step_id, item = unit
        rollback = (rollback_id(step_id), item)
        if step_id not in steps:
            continue
        if rollback in history.succeeded:
            whys[unit] = ""
        elif unit not in history.succeeded and not steps[step_id].rollback_failed:
            whys[unit] = CHECK_BY_HAND
        elif rollback in history.unknown or rollback in history.aborted:
            whys[unit] = "whether its rollback was done is unknown" if rollback in history.unknown else ROLLBACK_NEVER_KNOWN
        else:
            whys[unit] = "not reached"
    return "; ".join([*standing(whys, history.labels), *perhaps_done(plan, history)])


def perhaps_done(plan: ExecutionPlan, history: RunHistory) -> list[str]:
    """Return what may have been changed and is not undone, because nobody said whether it was done; nothing where that is said of all."""
    units = [*aborted_steps(plan, history), *((step_id, item) for step_id, item in history.repeatable if not is_rollback(step_id))]
    return [f"begun, and perhaps done: {listed(unit_names(units, history.labels), NAMED)}"] if units else []


def aborted_steps(plan: ExecutionPlan, history: RunHistory) -> list[Unit]:
    """Return the steps, and items, that a person left in doubt when they ended the run, in the order of the plan."""
    if not history.aborted:
        return []
    places = {step.id: place for place, step in enumerate(plan.steps)}
    return sorted((unit for unit in history.aborted if unit[0] in places), key=lambda unit: (places[unit[0]], unit[1] or 0))


def after_abort(run_id: str, units: Sequence[Unit], labels: Mapping[Unit, str], *, is_undone: bool) -> str:
    """Return what a person may do about `units`, which are left in doubt in a run that has ended; `is_undone`: it was rolled back."""
    known = f"whether {listed(unit_names(units, labels), NAMED)} was done was never known"
    undoes = f"`plan cancel {run_id} --rollback` rolls it back, if it declares a rollback"
    if is_undone:
        command = resolve_command(run_id, units[0], "done", label=label_of(units[0], labels))
        return f"{known}, and it is not rolled back: check it; if it was done, `{command}` records that, and {undoes}"
    command = resolve_command(run_id, units[0], "done|again", label=label_of(units[0], labels))
    return (
        f"{known}, and it is neither rolled back nor repeated: check it, record the outcome with `{command}`, then `plan resume {run_id}`; "
        f"if it was done, {undoes}"
    )


def aborted_rollbacks(history: RunHistory) -> list[Unit]:
    """Return the rollbacks, of steps and items, that a person left in doubt."""
    return [unit for unit in history.aborted if is_rollback(unit[0])]


def after_aborted_rollback(run_id: str, unit: Unit, labels: Mapping[Unit, str]) -> str:
    """Return what a person may do about the rollback `unit`, which they left in doubt."""
    command = resolve_command(run_id, unit, "done|again", label=label_of(unit, labels))
    of_step = unit_names([(undone_by(unit[0]), unit[1])], labels)[0]
    return (
        f"{ROLLBACK_NEVER_KNOWN}, that of {of_step}, and it is not repeated: check it, record the outcome with `{command}`, "
        f"then `plan cancel {run_id} --rollback` rolls back the rest"
    )


def unit_names(units: Iterable[Unit], labels: Mapping[Unit, str]) -> list[str]:
    """Return steps, and items of steps by their labels, as code."""
    return [f"`{call_name(*unit, label_of(unit, labels))}`" for unit in units]


def label_of(unit: Unit, labels: Mapping[Unit, str]) -> str | None:
    """Return what an item is called, also that of a rollback; None for one that its number names."""
    step_id, item = unit
    return labels.get(unit) or labels.get((undone_by(step_id), item))


def with_rollback(message: str | None, stands: str) -> str:
    """Return the message of a run with where its rollback stands, once: where an earlier one stood is left out."""
    return f"{without_rollback(message) or 'the run has ended'}; {stands}"


def without_rollback(message: str | None) -> str | None:
    """Return the message of a run without where its rollback stood."""
    return message.rpartition(_MARK)[0] or message if message is not None else None


def is_told(message: str | None) -> bool:
    """Return whether the message of a run says where its rollback stands."""
    return _MARK in (message or "")


def leaves_to_undo(message: str | None) -> bool:
    """Return whether the message of a run that was rolled back names something that another rollback would undo."""
    kept = (message or "").rpartition(_MARK)[2].partition("; not rolled back: ")[2].partition("; ")[0]
    return bool(re.sub(rf"[^,]*\({CHECK_BY_HAND}\)(, )?", "", kept).strip())


def names(step_ids: Iterable[str]) -> str:
    """Return the ids as code, with commas; of many the first ones."""
    return listed([f"`{step_id}`" for step_id in step_ids], NAMED)
