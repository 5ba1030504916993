"""Whether a recorded run goes on, and with what: its steps, or its rollback where that was interrupted."""

from collections.abc import Collection
from dataclasses import replace

from plan_adapter.errors import RunConflictError
from plan_adapter.execution.carry import Past
from plan_adapter.execution.redrive import Redrive
from plan_adapter.execution.standing import aborted_steps, answer_command, leaves_to_undo, resolve_command, unit_names
from plan_adapter.plan import ExecutionPlan, PlanStatus
from plan_adapter.record import PlanRun, RunReason
from plan_adapter.runs.approving import is_answered
from plan_adapter.runs.occasion import Occasion
from plan_adapter.runs.performing import Work, perform
from plan_adapter.runs.redrive import fates_of
from plan_adapter.runs.rollback import refuse_doubt, roll_back
from plan_adapter.runs.secrets import refuse_missing
from plan_adapter.store.store import PlanStore
from plan_adapter.validation import BoundPlan


async def must_be_asked(bound: BoundPlan, run: PlanRun, store: PlanStore, occasion: Occasion) -> bool:
    """Return whether `run` may have to be asked about before it goes on: it waits for that, its tools are others, or nobody approved it."""
    is_as_it_was = run.status is not PlanStatus.PENDING_APPROVAL and bound.approval_digest == run.approval_digest
    return not is_as_it_was or not await is_answered(bound, store, replace(occasion, approver=None, asks_in_form=False), run=run)


async def refuse_missing_now(bound: BoundPlan, run: PlanRun, past: Past, occasion: Occasion) -> None:
    """Raise InvalidPlanError where `run` cannot go on for want of secrets of the steps that are still to be called."""
    validated = bound.validated
    if validated.secrets:
        fates = {**fates_of(run, validated, past, Redrive()), **past.fates}
        done = [step_id for step_id, fate in fates.items() if fate.kind != "run"]
        await refuse_missing(validated, occasion.settings, done=done)


def work_left(run: PlanRun, plan: ExecutionPlan, past: Past, kept: RunReason | None, *, asked: Redrive | None = None) -> Work:
    """Return what goes on with `run`, which `refuse_resume` has let pass: its steps, or its interrupted rollback.

    `kept` is why it ends, as the process that executed it last has kept it. Raises RunConflictError, which says why, where nothing goes on.
    """
    work = _work_for(run, past, kept)
    _refuse_what_was_aborted(run, plan, past, left_out=(asked or Redrive()).left_out(past.left_out))
    return work


def _work_for(run: PlanRun, past: Past, kept: RunReason | None) -> Work:
    """Return what goes on with `run`: its steps, or its rollback where that was interrupted; raises RunConflictError after a rollback."""
    # A run that is undone keeps why it ends, from before the first call on; one whose steps are executed has no reason, or is in doubt.
    is_ending = run.reason is RunReason.INTERRUPTED and kept not in (None, RunReason.UNKNOWN, RunReason.INTERRUPTED)
    if not past.has_rollbacks and not is_ending:
        return perform
    if run.status is PlanStatus.EXECUTING:
        refuse_doubt(run, past)
        return roll_back
    raise rolled_back(run)


def rolled_back(run: PlanRun) -> RunConflictError:
    """Return the error that says why a run that was undone does not go on, and what can be done."""
    return RunConflictError(
        f"run {run.id} was rolled back and cannot be resumed: start a new run (`plan show {run.id}` shows what was rolled back"
        + (f", `plan cancel {run.id} --rollback` rolls back the rest)" if leaves_to_undo(run.message) else ")")
    )


async def refuse_resume(run: PlanRun, store: PlanStore) -> None:
    """Raise RunConflictError, which says what can be done, for a run that has ended for good, or that a living process has."""
    if run.status is PlanStatus.COMPLETED:
        raise RunConflictError(f"run {run.id} has completed; there is nothing to resume")
    if run.reason in (RunReason.REJECTED, RunReason.EXPIRED):
        how = "was rejected" if run.reason is RunReason.REJECTED else "has expired"
        raise RunConflictError(f"run {run.id} {how}; resuming approves nothing, start a new run", ended=run.reason)
    waiting = [gate for gate in await store.gates(run_id=run.id) if gate.attended] if run.status is PlanStatus.PENDING_APPROVAL else []
    if waiting:
        raise RunConflictError(
            f"a process on this host waits for an approval of run {run.id}: `{answer_command(waiting[0])}` answers there, and "
            f"`plan resume {run.id} --wait` waits for its end"
        )
    is_held = run.status is PlanStatus.EXECUTING and run.reason is not RunReason.INTERRUPTED
    if is_held and (holder := await store.holder(run.id)) is not None:
        raise RunConflictError(f"run {run.id} is executed by {holder}; cancel it first, or `plan resume {run.id} --wait` waits for its end")


def _refuse_what_was_aborted(run: PlanRun, plan: ExecutionPlan, past: Past, *, left_out: Collection[str]) -> None:
    """Raise RunConflictError where a step that is still to be done may have been: who ended the run over it did not say."""
    left = [unit for unit in aborted_steps(plan, past) if unit[0] not in left_out]
    if left and not past.has_rollbacks:
        names = ", ".join(unit_names(left, past.labels))
        command = resolve_command(run.id, left[0], "done|again", label=past.labels.get(left[0]))
        raise RunConflictError(
            f"run {run.id} was ended by `abort`, and whether {names} was done was never known, so it is not called again: look, and "
            f"say it with `{command}`, or leave it out (`plan resume {run.id} --skip {left[0][0]} --because …`)"
        )
