"""Decides whether a recorded run can be resumed, and resumes its steps or its interrupted rollback."""

from collections.abc import Collection, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from plan_adapter.engine.connection import use_server
from plan_adapter.execution.history import ResumeOptions, RunHistory
from plan_adapter.execution.rollback_status import aborted_steps
from plan_adapter.execution.rollback_units import is_rolled_back
from plan_adapter.gates.approval import approved_plan
from plan_adapter.gates.policy import EffectivePolicy
from plan_adapter.model.errors import NotApprovedError, RunConflictError
from plan_adapter.model.plan import ExecutionPlan
from plan_adapter.model.record import PlanRun, StartedCommand
from plan_adapter.model.status import PlanStatus, RunReason
from plan_adapter.model.triggers import EVENT_PARAMETER, UnusedEvent
from plan_adapter.runs.cancel import apply_cancellation, is_cancelled
from plan_adapter.runs.folders import in_folder, move_target, refuse_elsewhere, refuse_rollback_elsewhere
from plan_adapter.runs.frozen import frozen_now
from plan_adapter.runs.operator_requests import choices_of, record_operator_request, with_operator_requests
from plan_adapter.runs.plan_approval import (
    end_overdue,
    is_answered,
    missing_approval_error,
    open_detached_gate,
    refuse_approver,
    refuse_frozen_start,
)
from plan_adapter.runs.replan import tools_of_plan
from plan_adapter.runs.resolve import refuse_running_commands
from plan_adapter.runs.run_rollback import refuse_unknown_outcome_to_roll_back, roll_back, with_approved_rollbacks
from plan_adapter.runs.run_session import (
    RunRequest,
    RunSession,
    look_up_secrets_on,
    opened_store,
    refuse_without_dask,
    refuse_without_model,
    require_resume_operator,
    server_of,
)
from plan_adapter.runs.secret_lookup import refuse_missing_secrets
from plan_adapter.runs.start import RunAction, execute_run, execute_session, prefect_backend
from plan_adapter.runs.tool_drift import adopt_tools, bind_recorded_plan, has_same_plan_and_inputs, refuse_changed_tools
from plan_adapter.runs.triggered import start_in_flow
from plan_adapter.store.store import PlanStore
from plan_adapter.text.commands import answer_command, resolve_command, rollback_command, unit_names
from plan_adapter.tools.registry import ToolRegistry
from plan_adapter.validation import BoundPlan, ValidatedPlan, bind_inputs


async def needs_approval(bound: BoundPlan, run: PlanRun, store: PlanStore, run_request: RunRequest, policy: EffectivePolicy) -> bool:
    """Return whether `run` may need an approval before it resumes: it waits for one, its tools have changed, or it has none."""
    is_unchanged = run.status is not PlanStatus.PENDING_APPROVAL and bound.approval_digest == run.approval_digest
    unasked = replace(run_request, approver=None, asks_in_form=False)
    return not is_unchanged or not await is_answered(bound, store, unasked, policy, run=run)


async def refuse_missing_requirements(bound: BoundPlan, run: PlanRun, history: RunHistory, run_request: RunRequest) -> None:
    """Raise InvalidPlanError if secrets, a model or Dask are missing for steps of `run` that are not done yet."""
    validated = bound.validated
    if validated.secrets or validated.goal_tools or validated.steps_on_dask:
        choices = {**choices_of(run, validated, history, ResumeOptions()), **history.choices}
        done = [step_id for step_id, choice in choices.items() if choice.kind != "run"]
        refuse_without_model(validated, run_request, done=done)
        refuse_without_dask(validated, done=done)
        await refuse_missing_secrets(validated, run_request.settings, choices)


def resume_action(
    run: PlanRun,
    plan: ExecutionPlan,
    history: RunHistory,
    last_reason: RunReason | None,
    *,
    commands: Sequence[StartedCommand],
    options: ResumeOptions | None = None,
) -> RunAction:
    """Return the action that resumes `run`: `execute_run` for its steps, or `roll_back` for an interrupted rollback.

    Call `refuse_resume` first. `last_reason` is the last reason that an owner recorded for the end of the run; `commands` are those that
    its attempts started. Raises RunConflictError if nothing can be resumed, and if a call would be repeated while its command still runs.
    """
    action, skipped = _action_for(run, plan, history, last_reason), (options or ResumeOptions()).all_skipped(history.skipped)
    _refuse_aborted_steps(run, plan, history, skipped=skipped)
    if action is execute_run:  # which also rolls back failed items
        refuse_running_commands(run, history, commands, skipped=skipped)
    else:
        refuse_running_commands(run, history, commands, kinds=("rollback",))
    return action


def _action_for(run: PlanRun, plan: ExecutionPlan, history: RunHistory, last_reason: RunReason | None) -> RunAction:
    """Return `execute_run`, or `roll_back` if a rollback of the run was interrupted. Raises RunConflictError after a finished one."""
    # A rollback records the reason for the end before its first call. While steps execute, the reason is empty or `unknown`.
    is_ending = run.reason is RunReason.INTERRUPTED and last_reason not in (None, RunReason.UNKNOWN, RunReason.INTERRUPTED)
    if not (is_rolled_back(plan, history, run.rollback) or is_ending):
        return execute_run
    if run.status is PlanStatus.EXECUTING:
        refuse_unknown_outcome_to_roll_back(run, history)
        return roll_back
    raise rolled_back_error(run)


def rolled_back_error(run: PlanRun) -> RunConflictError:
    """Return the error that says a run was rolled back and cannot be continued, and what to do instead."""
    return RunConflictError(
        f"run {run.id} was rolled back and cannot be resumed: start a new run (`plan show {run.id}` shows what was rolled back"
        + (f", `{rollback_command(run)}` rolls back the rest)" if run.rollback is not None and run.rollback.can_continue else ")")
    )


async def refuse_resume(run: PlanRun, store: PlanStore) -> None:
    """Raise RunConflictError, with what to do instead, if `run` has ended for good or a live process executes it or waits at its gate."""
    if run.status is PlanStatus.COMPLETED:
        raise RunConflictError(f"run {run.id} has completed; there is nothing to resume")
    if run.reason is RunReason.REJECTED or (run.reason is RunReason.EXPIRED and not await can_ask_again(run, store)):
        how = "was rejected" if run.reason is RunReason.REJECTED else "has expired"
        raise RunConflictError(f"run {run.id} {how}; resuming does not approve it: start a new run", ended=run.reason)
    waiting = [gate for gate in await store.gates.find(run_id=run.id) if gate.attended] if run.status is PlanStatus.PENDING_APPROVAL else []
    if waiting:
        raise RunConflictError(
            f"a process on this host waits for an approval of run {run.id}: `{answer_command(waiting[0])}` answers there, and "
            f"`plan resume {run.id} --wait` waits until it has ended"
        )
    is_executing = run.status is PlanStatus.EXECUTING and run.reason is not RunReason.INTERRUPTED
    if is_executing and (owner := await store.ledger.owner(run.id)) is not None:
        raise RunConflictError(
            f"run {run.id} is executed by {owner}; cancel it first, or `plan resume {run.id} --wait` waits until it has ended"
        )


async def owner_text(run_id: str, store: PlanStore) -> str | None:
    """Return a phrase that says which process owns the run or waits at its gate; None if there is none."""
    if (owner := await store.ledger.owner(run_id)) is not None:
        return f"run {run_id} is owned by {owner}"
    if (gate := next((gate for gate in await store.gates.find(run_id=run_id) if gate.attended), None)) is not None:
        return f"a process on this host waits for an answer about run {run_id}: `{answer_command(gate)}`"
    return None


async def can_ask_again(run: PlanRun, store: PlanStore) -> bool:
    """Return whether an expired run can be resumed: nobody answered at the gate of a step, so the steps before it are kept."""
    steps = await _expired_steps(run, store)
    return bool(steps) and steps[-1] is not None


async def _expired_steps(run: PlanRun, store: PlanStore) -> list[str | None]:
    """Return the steps whose gates have expired, in order. None stands for the gate of the plan."""
    return [gate.step_id for gate in await store.gates.find(run_id=run.id, open_only=False) if gate.end == "expired"]


def _refuse_aborted_steps(run: PlanRun, plan: ExecutionPlan, history: RunHistory, *, skipped: Collection[str]) -> None:
    """Raise RunConflictError if a step to be called may have been done already: an `abort` ended the run and left its outcome unknown."""
    unresolved = [unit for unit in aborted_steps(plan, history) if unit[0] not in skipped]
    if unresolved and not is_rolled_back(plan, history, run.rollback):
        names = ", ".join(unit_names(unresolved, history.labels))
        command = resolve_command(run.id, unresolved[0], "done|again", label=history.labels.get(unresolved[0]))
        raise RunConflictError(
            f"run {run.id} ended with `abort`, and the outcome of {names} is still unknown, so it is not called again: check it, "
            f"and record it with `{command}`, or skip it (`plan resume {run.id} --skip {unresolved[0][0]} --note …`)"
        )


async def reopen_plan_gate(
    bound: BoundPlan, run: PlanRun, store: PlanStore, run_request: RunRequest, policy: EffectivePolicy, *, record_pending: bool
) -> tuple[PlanRun, bool]:
    """Return `run` updated to the current tools, and whether it waits because there is nobody to ask.

    If it waits, its plan gate is open, also after a request for changes. Raises NotApprovedError, and changes nothing, if there is nobody
    to ask and `record_pending` is false, or if the approval in `run_request` is for other content.
    """
    if run_request.approval is not None and run_request.approval.approval_digest != bound.approval_digest:
        approved_plan(bound, run_request.approval, now=await store.now())  # raises the precise error
    is_waiting = not await is_answered(bound, store, run_request, policy, run=run)
    if is_waiting and not record_pending:
        await refuse_changed_tools(
            bound, run, store, then=f"pass an approver or an approval of the new version, or type `plan resume {run.id}`"
        )
        raise await missing_approval_error(bound, store, run_request.settings, run=run)
    if bound.approval_digest != run.approval_digest:
        run = await adopt_tools(bound, run, store, by=run_request.requested_by)
    if is_waiting and not await _is_asked(bound, run, store, policy):
        await open_detached_gate(bound, run, store, run_request.settings)
    return run, is_waiting


async def _is_asked(bound: BoundPlan, run: PlanRun, store: PlanStore, policy: EffectivePolicy) -> bool:
    """Return whether the plan gate of `run` is open, and overrides the change freezes as somebody asks for."""
    overrides = (await frozen_now(bound.validated.plan, store, policy, run=run)).overrides
    return any(gate.step_id is None and gate.gate_policy.overrides == overrides for gate in await store.gates.find(run_id=run.id))


async def execute_resume(
    run_id: str,
    *,
    tools: ToolRegistry,
    run_request: RunRequest,
    store: PlanStore | None = None,
    offline: bool = False,
    options: ResumeOptions | None = None,
    record_pending: bool = False,
    here: bool = False,
) -> PlanRun:
    """Resume a run. Same as `aresume_run`, for callers with a run request and `options`, their choice of steps.

    With `record_pending`, a run that nobody can approve is left waiting at its gate and returned, instead of raising an error. If a run was
    cancelled in Prefect while no process executed it, it ends as cancelled with that reason; to resume it, call this again.
    """
    async with opened_store(store, run_request.settings) as opened:
        recorded = await opened.ledger.snapshot(run_id)
        if recorded.has_open_gates and await end_overdue(recorded.run, opened) is not recorded.run:
            recorded = await opened.ledger.snapshot(recorded.run.id)  # reload it all: a history older than its run would repeat calls
        run, plan, history = recorded.run, recorded.plan, recorded.history
        policy = await opened.policy.effective(run_request.settings)
        await require_resume_operator(run, plan, opened, run_request, policy)
        await refuse_resume(run, opened)  # before looking in Prefect, which notifies a live owner itself
        if not offline and run.flow_run_id is not None and run.completed_at is None and await _was_cancelled(run, opened, run_request):
            return await opened.run(run.id)
        if run.reason is RunReason.EXPIRED:
            expired = [step_id for step_id in await _expired_steps(run, opened) if step_id is not None]
            history = replace(history, asked=history.asked.union(expired))  # so that they are asked about again
        action = resume_action(run, plan, history, recorded.last_reason, commands=recorded.commands, options=options)
        if action is not execute_run:
            refuse_rollback_elsewhere(run, run_request.settings)
        elif not here:
            refuse_elsewhere(run, run_request.settings)
        moved_to = move_target(run_request.settings, run) if action is execute_run else None
        bound = bind_recorded_plan(run, plan, tools, moved_to=moved_to)
        run_request = replace(run_request, tools=tools)
        if action is execute_run:
            frozen = await refuse_frozen_start(bound, opened, run_request, policy, run=run)
            if run_request.override_freeze is not None and frozen.active:
                await record_operator_request("override_freeze", (), run_request.override_freeze, run, plan, opened, run_request)
        asks = action is execute_run and await needs_approval(bound, run, opened, run_request, policy)
        if options is not None:
            history = await with_operator_requests(run, bound.validated, history, options, opened, run_request)
        server = None if offline else await server_of(run_request)
        if action is not execute_run:
            bound = await with_approved_rollbacks(bound, run, history, opened)
        else:
            with look_up_secrets_on(server):
                await refuse_missing_requirements(bound, run, history, run_request)
        if asks:
            await refuse_approver(bound, opened, run_request, policy, run=run)
            with look_up_secrets_on(server):
                run, is_waiting = await reopen_plan_gate(bound, run, opened, run_request, policy, record_pending=record_pending)
            if is_waiting and (offline or not await opened.gates.find(run_id=run.id)):  # otherwise its flow run shows the gate
                return await opened.run(run.id)
        return await execute_session(RunSession(bound, run, opened, run_request, history), server=server, action=action)


async def execute_in_flow(
    validated: ValidatedPlan, make_request: partial[RunRequest], store: PlanStore | None, inputs: dict[str, Any], flow_run_id: str
) -> PlanRun | UnusedEvent:
    """Run `validated` inside the flow run `flow_run_id`, or resume the run if the flow run has one already.

    If an event started the flow run, its trigger gives the inputs, and it may be that no run is started.
    """
    # These import Prefect.
    from plan_adapter.engine.flow_runs import read_origin
    from plan_adapter.engine.termination import end_cleanly_on_sigterm

    flow_origin = await read_origin()
    run_request = make_request(requested_by=flow_origin.requested_by, schedule=flow_origin.schedule, deployment=flow_origin.deployment)
    async with opened_store(store, run_request.settings) as default_store:
        opened = default_store.patient(run_request.settings.store_patience_seconds)
        run, action, history = await opened.ledger.run_of_flow(flow_run_id), execute_run, RunHistory()
        event, policy = inputs.pop(EVENT_PARAMETER, None), await opened.policy.effective(run_request.settings)
        if run is None:
            started = await start_in_flow(validated, inputs, event, opened, run_request, policy, flow_run_id=flow_run_id)
            if isinstance(started, UnusedEvent):
                return started
            bound, run = started
        elif run.reason in (RunReason.REJECTED, RunReason.EXPIRED):  # while its worker was released
            return run
        else:
            recorded = {name: run.inputs[name] for name in validated.plan.unread_variables(inputs) if name in run.inputs}
            bound = bind_inputs(validated, inputs | recorded if event is None else run.inputs)
            await require_resume_operator(run, bound.validated.plan, opened, run_request, policy)
            await refuse_resume(run, opened)
            if not has_same_plan_and_inputs(bound, run):
                bound, run_request = await _load_current_version(bound, run, opened, run_request), replace(run_request, approval=None)
            else:
                bound = in_folder(bound, run.folder)
            history = await opened.ledger.history(run.id)
            commands = await opened.outcomes.commands(run.id)
            action = resume_action(run, bound.validated.plan, history, await opened.ledger.reason(run.id), commands=commands)
            if action is not execute_run:
                bound = await with_approved_rollbacks(bound, run, history, opened)
            else:
                if run.started_at is not None:  # else its plan gate says that it is refused
                    await refuse_frozen_start(bound, opened, run_request, policy, run=run)
                await refuse_missing_requirements(bound, run, history, run_request)
                if bound.approval_digest != run.approval_digest:
                    run = await adopt_tools(bound, run, opened, by=run_request.requested_by)
        backend = prefect_backend(flow_run_id, opened, run_request.settings)
        async with end_cleanly_on_sigterm(partial(is_cancelled, run, flow_run_id, opened)) as is_cut_short:
            return await action(RunSession(bound, run, opened, run_request, history, replace(backend, is_cut_short=is_cut_short)))


async def _load_current_version(bound: BoundPlan, run: PlanRun, store: PlanStore, run_request: RunRequest) -> BoundPlan:
    """Return the current version of the run's plan if `bound` is an earlier one. Raises NotApprovedError for any other plan or inputs."""
    if bound.inputs == run.inputs and any(revision.digest == bound.validated.digest for revision in await store.revisions.of_run(run.id)):
        tools = run_request.tools or tools_of_plan(bound.validated)
        return bind_recorded_plan(run, (await store.ledger.snapshot(run.id)).plan, tools)
    raise NotApprovedError(
        f"run {run.id} was created with another plan or other inputs: start a new run, or `plan revise {run.id}` and `plan resume {run.id}`"
    )


async def _was_cancelled(run: PlanRun, store: PlanStore, run_request: RunRequest) -> bool:
    """Return whether `run` was cancelled in Prefect while no process executed it. If so, it is now recorded as cancelled."""
    with use_server(await server_of(run_request)):
        return await apply_cancellation(run, store) is not None
