"""Whether a recorded run can be resumed, and with what: its steps, or a rollback that was interrupted."""

from collections.abc import Collection
from dataclasses import replace

from plan_adapter.commands import answer_command, resolve_command
from plan_adapter.errors import RunConflictError
from plan_adapter.execution.history import Record, ResumeOptions, RunHistory, StepChoice, choices
from plan_adapter.execution.standing import aborted_steps, leaves_to_undo, unit_names
from plan_adapter.gates.approval import approved_plan
from plan_adapter.plan import ExecutionPlan, PlanStatus, StepStatus
from plan_adapter.record import PlanRun, RunReason
from plan_adapter.runs.approval import is_answered, not_approved, open_detached
from plan_adapter.runs.rollback import refuse_unknown_outcome, roll_back
from plan_adapter.runs.secrets import refuse_missing
from plan_adapter.runs.session import RunRequest
from plan_adapter.runs.start import RunAction, perform
from plan_adapter.runs.tool_drift import refuse_other_tools, take_tools
from plan_adapter.store.store import PlanStore
from plan_adapter.validation import BoundPlan, ValidatedPlan


def choices_of(run: PlanRun, validated: ValidatedPlan, history: RunHistory, asked: ResumeOptions) -> dict[str, StepChoice]:
    """Return by step what becomes of it: what was left out before stays so, unless the run is to go on from there.

    Raises RunConflictError, which names everything that cannot be done as it is asked.
    """
    by_status = {status: {step.id for step in run.steps if step.status is status} for status in StepStatus}
    succeeded = by_status[StepStatus.COMPLETED] | {step_id for step_id, item in history.succeeded if item is None}
    record = Record(
        succeeded=succeeded,
        failed=(by_status[StepStatus.FAILED] | by_status[StepStatus.RUNNING]) - succeeded,
        skipped=by_status[StepStatus.SKIPPED],
    )
    before = {step_id: why for step_id, why in history.left_out.items() if step_id not in succeeded}
    return choices(validated.dependencies, record, replace(asked, skipped=asked.left_out(before)))


async def needs_approval(bound: BoundPlan, run: PlanRun, store: PlanStore, run_request: RunRequest) -> bool:
    """Return whether `run` may have to be asked about before it goes on: it waits for that, its tools are others, or nobody approved it."""
    is_as_it_was = run.status is not PlanStatus.PENDING_APPROVAL and bound.approval_digest == run.approval_digest
    return not is_as_it_was or not await is_answered(bound, store, replace(run_request, approver=None, asks_in_form=False), run=run)


async def refuse_missing_now(bound: BoundPlan, run: PlanRun, history: RunHistory, run_request: RunRequest) -> None:
    """Raise InvalidPlanError where `run` cannot go on for want of secrets of the steps that are still to be called."""
    validated = bound.validated
    if validated.secrets:
        choices = {**choices_of(run, validated, history, ResumeOptions()), **history.choices}
        done = [step_id for step_id, fate in choices.items() if fate.kind != "run"]
        await refuse_missing(validated, run_request.settings, done=done)


def action_left(
    run: PlanRun, plan: ExecutionPlan, history: RunHistory, kept: RunReason | None, *, asked: ResumeOptions | None = None
) -> RunAction:
    """Return what goes on with `run`, which `refuse_resume` has let pass: its steps, or its interrupted rollback.

    `kept` is why it ends, as the process that executed it last has kept it. Raises RunConflictError, which says why, where nothing goes on.
    """
    work = _action_for(run, history, kept)
    _refuse_what_was_aborted(run, plan, history, left_out=(asked or ResumeOptions()).left_out(history.left_out))
    return work


def _action_for(run: PlanRun, history: RunHistory, kept: RunReason | None) -> RunAction:
    """Return what goes on with `run`: its steps, or its rollback where that was interrupted; raises RunConflictError after a rollback."""
    # A run that is undone keeps why it ends, from before the first call on; one whose steps are executed has no reason, or is in doubt.
    is_ending = run.reason is RunReason.INTERRUPTED and kept not in (None, RunReason.UNKNOWN, RunReason.INTERRUPTED)
    if not history.has_rollbacks and not is_ending:
        return perform
    if run.status is PlanStatus.EXECUTING:
        refuse_unknown_outcome(run, history)
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
    if is_held and (owner := await store.owner(run.id)) is not None:
        raise RunConflictError(f"run {run.id} is executed by {owner}; cancel it first, or `plan resume {run.id} --wait` waits for its end")


def _refuse_what_was_aborted(run: PlanRun, plan: ExecutionPlan, history: RunHistory, *, left_out: Collection[str]) -> None:
    """Raise RunConflictError where a step that is still to be done may have been: who ended the run over it did not say."""
    left = [unit for unit in aborted_steps(plan, history) if unit[0] not in left_out]
    if left and not history.has_rollbacks:
        names = ", ".join(unit_names(left, history.labels))
        command = resolve_command(run.id, left[0], "done|again", label=history.labels.get(left[0]))
        raise RunConflictError(
            f"run {run.id} was ended by `abort`, and whether {names} was done was never known, so it is not called again: look, and "
            f"say it with `{command}`, or leave it out (`plan resume {run.id} --skip {left[0][0]} --because …`)"
        )


async def reopened_gate(
    bound: BoundPlan, run: PlanRun, store: PlanStore, run_request: RunRequest, *, record_pending: bool
) -> tuple[PlanRun, bool]:
    """Return `run` as one that can be asked about, with the tools as they are now, and whether it waits because nobody is there.

    Its gate is open then, unless somebody who was asked wants it changed. Raises NotApprovedError, and changes nothing, where nobody is
    there and that is not to be recorded, and for an approval of other content.
    """
    if run_request.approval is not None and run_request.approval.approval_digest != bound.approval_digest:
        approved_plan(bound, run_request.approval, now=await store.now())  # raises what is wrong with it
    is_waiting = not await is_answered(bound, store, run_request, run=run)
    if is_waiting and not record_pending:
        await refuse_other_tools(bound, run, store, then=f"give an approver or an approval of that, or `plan resume {run.id}` asks")
        raise await not_approved(bound, store, run_request.settings, run=run)
    if bound.approval_digest != run.approval_digest:
        run = await take_tools(bound, run, store, by=run_request.requested_by)
    if is_waiting and not await _is_asked_about(run, store):
        await open_detached(bound, run, store, run_request.settings)
    return run, is_waiting


async def _is_asked_about(run: PlanRun, store: PlanStore) -> bool:
    """Return whether what `run` has now is asked about, or was and is wanted otherwise."""
    if run.status is not PlanStatus.PENDING_APPROVAL:
        return False
    if any(gate.step_id is None for gate in await store.gates(run_id=run.id)):
        return True
    answers = [row for row in await store.approvals(run.id) if row.step_id is None and row.approval_digest == run.approval_digest]
    return bool(answers) and answers[-1].decision == "request_changes"
