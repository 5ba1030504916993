"""Where the rollback of a run stands, in the words that stand in the run's message."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Protocol

from plan_adapter.execution.carry import Past, Unit, is_rollback, rollback_id, undone_by
from plan_adapter.plan import ExecutionPlan
from plan_adapter.readable import listed
from plan_adapter.record import GateKind, PlanRun

NAMED = 20
"""How many steps are named in one list."""

NEVER_KNOWN = "whether it was done was never known"
"""What is said of a write about which a person only said that the run is to end."""

ROLLBACK_NEVER_KNOWN = "whether its rollback was done was never known"
"""The same of the call that undoes a step."""

_MARK = "; rollback: "


def standing(done: Mapping[str, Sequence[int | None]], undone: Collection[Unit], causes: Mapping[Unit, str]) -> list[str]:
    """Return what is undone and what is not; `done` are the items of each step that was done, `causes` why one is not undone."""
    gone, kept = list[str](), list[str]()
    for step_id, items in done.items():
        whys = {item: "" if (step_id, item) in undone else causes.get((step_id, item), "not reached") for item in items}
        told = {f"`{step_id}`": whys[items[0]]} if len(set(whys.values())) == 1 else {f"`{step_id}[{i}]`": why for i, why in whys.items()}
        gone += [name for name, why in told.items() if not why]
        kept += [f"{name} ({why})" for name, why in told.items() if why]
    return ["undone: " + (listed(gone, NAMED) or "nothing"), *(["not undone: " + listed(kept, NAMED)] if kept else [])]


def recorded_standing(plan: ExecutionPlan, past: Past) -> str:
    """Return where the rollback of a run stands by its record alone, without a reason for each step that is not undone."""
    done = dict[str, list[int | None]]()
    undoable = {step.id for step in plan.steps if step.rollback is not None}
    for step_id, item in reversed(past.succeeded):
        if step_id in undoable:
            done.setdefault(step_id, []).append(item)
    undone = {unit for unit in past.succeeded if (rollback_id(unit[0]), unit[1]) in past.succeeded}
    causes = dict[Unit, str]()
    for step_id, item in past.succeeded:
        if (unit := (rollback_id(step_id), item)) in past.unknown or unit in past.aborted:
            causes[step_id, item] = "whether its rollback was done is unknown" if unit in past.unknown else ROLLBACK_NEVER_KNOWN
    return "; ".join([*standing(done, undone, causes), *perhaps_done(plan, past)])


def perhaps_done(plan: ExecutionPlan, past: Past) -> list[str]:
    """Return what may have been changed and is not undone, because nobody said whether it was done; nothing where that is said of all."""
    units = [*aborted_steps(plan, past), *((step_id, item) for step_id, item in past.repeatable if not is_rollback(step_id))]
    return [f"begun, and perhaps done: {listed(unit_names(units), NAMED)}"] if units else []


def aborted_steps(plan: ExecutionPlan, past: Past) -> list[Unit]:
    """Return the steps, and items, that a person left in doubt when they ended the run, in the order of the plan."""
    if not past.aborted:
        return []
    places = {step.id: place for place, step in enumerate(plan.steps)}
    return sorted((unit for unit in past.aborted if unit[0] in places), key=lambda unit: (places[unit[0]], unit[1] or 0))


def after_abort(run_id: str, units: Sequence[Unit], *, is_undone: bool) -> str:
    """Return what a person may do about `units`, which are left in doubt in a run that has ended; `is_undone`: it was rolled back."""
    known = f"whether {listed(unit_names(units), NAMED)} was done was never known"
    undoes = f"`plan cancel {run_id} --rollback` undoes it, where it declares how"
    if is_undone:
        command = resolve_command(run_id, units[0], "done")
        return f"{known}, and it is not undone: look; if it was done, `{command}` says so, and {undoes}"
    command = resolve_command(run_id, units[0], "done|again")
    return (
        f"{known}, and it is neither undone nor called again: look; `{command}` says whether it was, then `plan resume {run_id}` goes on; "
        f"if it was done, {undoes}"
    )


def aborted_rollbacks(past: Past) -> list[Unit]:
    """Return the rollbacks, of steps and items, that a person left in doubt."""
    return [unit for unit in past.aborted if is_rollback(unit[0])]


def after_aborted_rollback(run_id: str, unit: Unit) -> str:
    """Return what a person may do about the rollback `unit`, which they left in doubt."""
    command, of_step = resolve_command(run_id, unit, "done|again"), unit_names([(undone_by(unit[0]), unit[1])])[0]
    return (
        f"{ROLLBACK_NEVER_KNOWN}, that of {of_step}, and it is not called again: look; `{command}` says whether it was, "
        f"then `plan cancel {run_id} --rollback` undoes what is left"
    )


def unit_names(units: Iterable[Unit]) -> list[str]:
    """Return steps, and items of steps, as code."""
    return [f"`{step_id}`" if item is None else f"`{step_id}[{item}]`" for step_id, item in units]


def resolve_command(run_id: str, unit: Unit, words: str = "done|again|abort") -> str:
    """Return what a person types who says how a call ended of which nobody knows it."""
    step_id, item = unit
    name = f'"{step_id}"' if is_rollback(step_id) else step_id
    return f"plan resolve {run_id} {name} {words}" + ("" if item is None else f" --item {item}")


SHOWN_DIGITS = 12
"""How much of a digest a command shows: enough to tell two contents of one gate apart, short enough to read."""


class Asked(Protocol):
    """What a gate asks about: a `Gate`, an `ApprovalRequest`, or the form of one."""

    @property
    def run_id(self) -> str | None: ...  # noqa: D102
    @property
    def step_id(self) -> str | None: ...  # noqa: D102
    @property
    def item(self) -> int | None: ...  # noqa: D102
    @property
    def approval_digest(self) -> str: ...  # noqa: D102
    @property
    def kind(self) -> GateKind: ...  # noqa: D102


def answer_command(asked: Asked, *, verb: str = "approve", api: bool = False) -> str:
    """Return the command that answers at a gate, bound by `--digest` to the content that the gate asks about.

    A gate that asks how a call ended is answered by `plan resolve`. With `api` the command needs Prefect's API alone.
    """
    option, digest = " --api" if api else "", f" --digest {asked.approval_digest[:SHOWN_DIGITS]}"
    if asked.kind == "outcome":
        return resolve_command(str(asked.run_id), (asked.step_id or "", asked.item)) + option + digest
    return f"plan {verb} {asked.run_id}{option}{_place(asked)}{digest}"


def open_form_notice(asked: Asked) -> str:
    """Return why no one-time code counts in the form of a Prefect server that demands no authentication, and where to give it instead."""
    return (
        "This Prefect server demands no authentication: whoever reaches it can read and send forms, so a one-time code in a form proves "
        f"nobody. Answer with `{answer_command(asked)} --code CODE`."
    )


def show_command(asked: Asked, *, api: bool = False) -> str:
    """Return the command that prints everything that a gate asks about, and answers nothing."""
    return f"plan approve {asked.run_id}{' --api' if api else ''}{_place(asked)} --show"


def _place(asked: Asked) -> str:
    step = f" --step {asked.step_id}" if asked.step_id is not None else ""
    return step + (f" --item {asked.item}" if asked.item is not None else "")


def resume_command(run: PlanRun, *, offline: bool = False) -> str:
    """Return what a person types so that `run` goes on where it ran; `offline`: known to be without Prefect before it has begun."""
    return f"plan resume {run.id}{' --offline' if offline else offline_option(run)}"


def resume_asked(run: PlanRun) -> str:
    """Return what a person types so that `run`, at whose gate somebody was asked, goes on: one without a flow run by then has none."""
    return resume_command(run, offline=run.flow_run_id is None)


def rollback_command(run: PlanRun) -> str:
    """Return what a person types so that what `run` did is undone, where it ran."""
    return f"plan cancel {run.id} --rollback{offline_option(run)}"


def offline_option(run: PlanRun) -> str:
    """Return the option without which a run that began without Prefect would go on in it; nothing for any other run."""
    return " --offline" if run.started_at is not None and run.flow_run_id is None else ""


def with_rollback(message: str | None, stands: str) -> str:
    """Return the message of a run with where its rollback stands, once: where an earlier one stood is left out."""
    return (without_rollback(message) or "the run has ended") + _MARK + stands


def without_rollback(message: str | None) -> str | None:
    """Return the message of a run without where its rollback stood."""
    return message.rpartition(_MARK)[0] or message if message is not None else None


def leaves_to_undo(message: str | None) -> bool:
    """Return whether the message of a run that was rolled back names something that was done and is not undone."""
    return "; not undone: " in (message or "").rpartition(_MARK)[2]


def names(step_ids: Iterable[str]) -> str:
    """Return the ids as code, with commas; of many the first ones."""
    return listed([f"`{step_id}`" for step_id in step_ids], NAMED)
