"""What is in doubt of a run that no process executes, and what a person types about it."""

from dataclasses import dataclass

from plan_adapter.execution.carry import is_rollback
from plan_adapter.execution.standing import (
    aborted_rollbacks,
    aborted_steps,
    after_abort,
    after_aborted_rollback,
    names,
    resolve_command,
    resume_command,
    rollback_command,
)
from plan_adapter.plan import PlanStatus
from plan_adapter.record import PlanRun, RunReason
from plan_adapter.store.store import PlanStore


@dataclass(frozen=True, slots=True)
class Doubt:
    """What is to be said of a run, and the command with which it goes on: `plan resume`, or `plan resolve` while a write is unknown."""

    message: str
    command: str
    then: str | None  # what is typed after that


async def doubt_of(run: PlanRun, store: PlanStore) -> Doubt | None:
    """Return what is in doubt of `run`; None where nothing is, and its process is not gone either."""
    is_gone = run.reason is RunReason.INTERRUPTED
    gone = ["its process is gone"] if is_gone else []
    if not is_gone and run.completed_at is None:  # what its process has begun is no doubt
        return None
    if unknown := await store.unknown(run.id):
        first = unknown[0]
        message = ", and ".join([*gone, f"whether {names(dict.fromkeys(lost.step_id for lost in unknown))} was done is unknown"])
        goes_on = rollback_command(run) if any(is_rollback(lost.step_id) for lost in unknown) else resume_command(run)
        return Doubt(message, resolve_command(run.id, (first.step_id, first.item), label=first.label), goes_on)
    return Doubt("its process is gone; no outcome is unknown", resume_command(run), None) if is_gone else None


async def hint_of(run: PlanRun, store: PlanStore) -> str | None:
    """Return what a person may type now that `run` has stopped with something in doubt; None where it has not."""
    if (doubt := await doubt_of(run, store)) is not None:
        says = f"`{doubt.command}` resumes the run" if doubt.then is None else f"record it with `{doubt.command}`, then `{doubt.then}`"
        return f"{doubt.message}: {says}"
    if run.completed_at is None:
        return None
    past = await store.past(run.id)
    if run.status is PlanStatus.CANCELLED and (units := aborted_steps(await store.get(run.digest), past)):
        return after_abort(run.id, units, past.labels, is_undone=past.has_rollbacks)
    left = aborted_rollbacks(past)
    return after_aborted_rollback(run.id, left[0], past.labels) if left else None
