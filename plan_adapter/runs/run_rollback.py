"""`roll_back`: rolls back the completed steps of a run that has ended, or resumes an interrupted rollback."""

from contextlib import suppress
from dataclasses import replace

from plan_adapter.execution.history import RunHistory
from plan_adapter.execution.ports import Cluster
from plan_adapter.execution.rollback import Rollback
from plan_adapter.execution.rollback_units import is_rolled_back, units_to_roll_back
from plan_adapter.execution.run_status import Ending, ended_status, with_finally_steps
from plan_adapter.execution.scope import RunScope
from plan_adapter.execution.sub_plans import sub_plan_inputs
from plan_adapter.gates.approval import approved_plan
from plan_adapter.gates.policy import EffectivePolicy
from plan_adapter.model.approvals import Approval
from plan_adapter.model.errors import ExpressionError, NotApprovedError, RunConflictError
from plan_adapter.model.options import ApprovalPolicy
from plan_adapter.model.plan import ExecutionPlan, flattened
from plan_adapter.model.record import PlanRun
from plan_adapter.model.status import Outcome, PlanStatus, RunReason, StepStatus
from plan_adapter.runs.ending import end_run, finally_steps_of
from plan_adapter.runs.folders import refuse_rollback_elsewhere
from plan_adapter.runs.keeper import GateKeeper
from plan_adapter.runs.operator_requests import record_operator_request
from plan_adapter.runs.plan_approval import is_plan_answer
from plan_adapter.runs.resolve import refuse_running_commands
from plan_adapter.runs.run_session import RunRequest, RunSession, cluster_of, require_operator, server_of
from plan_adapter.runs.stages import execute_finally_steps, execute_rollback, scope_of
from plan_adapter.runs.start import execute_session
from plan_adapter.runs.tool_drift import bind_recorded_plan, describe_tool_changes, find_changed_tools
from plan_adapter.store.revisions import Revision
from plan_adapter.store.store import PlanStore
from plan_adapter.text.commands import resolve_command, rollback_command
from plan_adapter.tools.registry import ToolRegistry
from plan_adapter.validation import BoundPlan


async def roll_back(session: RunSession) -> PlanRun:
    """Roll back the completed steps of the session's run, and return the run. The approval that the run has used covers this.

    Raises NotApprovedError if the run has used no approval of this content, and RunConflictError if another process executes it or the
    outcome of a step is unknown.
    """
    async with cluster_of(session.bound.validated, session.run_request.settings) as cluster:
        return await _roll_back_with(cluster, session)


async def _roll_back_with(cluster: Cluster | None, session: RunSession) -> PlanRun:
    run, store = session.run, session.store
    approved = approved_plan(session.bound, await _used_approval(run, store), now=await store.now())
    reason = await store.ledger.reason(run.id) or RunReason.CANCELLED
    run.transition(PlanStatus.EXECUTING, reason=reason, message=run.message if run.rollback is None else run.rollback.cause)
    run.rollback = None
    await store.ledger.claim(run, keeps_ends=True)
    keeper = GateKeeper(session)
    scope = scope_of(approved, keeper, await store.ledger.recorder(run), cluster=cluster)
    _end_steps(scope)
    rollback = Rollback(scope, session.history, session.backend.run_step)
    scope.notify("run_started")
    ended = ended_status(reason, completed=any(step.status is StepStatus.COMPLETED for step in run.steps))
    try:
        await execute_rollback(rollback, store, session.backend.cancellation)
        await execute_finally_steps(scope, keeper, ended, rollback)
    finally:
        status, why, message = with_finally_steps(
            Ending(ended, run.reason, run.message), finally_steps_of(scope), scope.why_finally_stopped
        )
        run.transition(status, reason=why, message=message)
        await end_run(scope, store, rollback)
        await keeper.finish_forms()
    return run


async def approved_version(run: PlanRun, store: PlanStore) -> Revision | None:
    """Return the version of the plan that the calls of `run` were approved under, or None if that is the current one or there is none.

    It is the last version with a used approval. Later versions were never approved and have called nothing, and steps that had started are
    the same in all versions since. If no version was approved, nothing was called.
    """
    rows = [row for row in await store.approvals(run.id) if is_plan_answer(row, run) and row.used_at is not None]
    used = {row.approval_digest for row in rows if row.decision == "approve"}
    if run.approval_digest in used:
        return None
    return next((version for version in reversed(await store.revisions.of_run(run.id)) if version.approval_digest in used), None)


async def with_approved_rollbacks(bound: BoundPlan, run: PlanRun, history: RunHistory, store: PlanStore) -> BoundPlan:
    """Return `bound` with the approval digest of `run`, after checking that all remaining rollback calls use approved tools.

    Other tools may have changed. Raises NotApprovedError, which names the changed tools that would be called.
    """
    if bound.approval_digest == run.approval_digest:
        return bound
    validated = bound.validated
    called = {validated.rollbacks[step_id].tool.name for step_id, _ in units_to_roll_back(validated.plan, history)}
    changed = [change for change in await find_changed_tools(validated, run, store) if change.name in called]
    if changed:
        raise NotApprovedError(
            f"tools of run {run.id} have changed since it was approved: {describe_tool_changes(changed)}; it can be rolled back "
            "only with the approved tools"
        )
    return replace(bound, approval_digest=run.approval_digest)


def rollback_needs_approver(plan: ExecutionPlan, policy: EffectivePolicy) -> bool:
    """Return whether only somebody who is allowed to approve `plan` can request a rollback of its runs.

    This is the case if calls of the plan have step gates. Rollback calls have none: the plan's approval covers rollbacks after a failure,
    and a person who requests any other rollback approves it with that request.
    """
    effects = {effect for each in plan.plans.values() for effect in (each.approval or ApprovalPolicy()).effects}
    return bool(effects or policy.gate_effects) or any(step.requires_approval or plan.asks_before(step) for step in plan.all_steps)


def refuse_unknown_outcome_to_roll_back(run: PlanRun, history: RunHistory) -> None:
    """Raise RunConflictError if the outcome of a step is unknown, because rolling back around it could do harm."""
    if unknown := history.unknown_steps:
        names, first = ", ".join(f"`{step_id}`" for step_id in unknown), next(iter(history.unknown))
        command = resolve_command(run.id, first, label=history.labels.get(first))
        raise RunConflictError(
            f"run {run.id} is not rolled back while the outcome of {names} is unknown: `{command}`, then `{rollback_command(run)}`"
        )


async def _used_approval(run: PlanRun, store: PlanStore) -> Approval:
    rows = [row for row in await store.approvals(run.id) if is_plan_answer(row, run) and row.used_at is not None]
    used = [row for row in rows if row.approval_digest == run.approval_digest and row.decision == "approve"]
    if not used:
        raise NotApprovedError(f"run {run.id} never started with an approval of its plan, so there is nothing to roll back")
    return replace(used[-1], expires_at=None)


def _end_steps(scope: RunScope) -> None:
    """Make the results of the steps available to expressions, and end the steps that a dead process left unfinished."""
    finally_steps, planned = finally_steps_of(scope), scope.approved.bound.validated.steps
    tried = {step_id for step_id, _ in scope.history.attempts}
    _begin_sub_plans(scope)
    for step in scope.run.steps:
        if step in finally_steps:  # they run after the rollback
            continue
        if step.completed_at is None:
            receipt = scope.history.succeeded.get((step.id, None))
            if receipt is not None:
                step.status, step.outcome, step.result = StepStatus.COMPLETED, Outcome.SUCCEEDED, receipt.result
            elif step.attempts or not tried.isdisjoint(inner.id for inner in flattened([planned[step.id]])):
                step.status, step.outcome, step.reason = StepStatus.FAILED, Outcome.FAILED, "cancelled"
                step.error = "its process ended before it did"
            else:
                step.status, step.reason = StepStatus.SKIPPED, scope.run.message
            step.completed_at = scope.recorder.now()
            scope.recorder.step_ended(step)
        scope.keep_value(step)
    for step_id, inside in scope.inside.items():
        with suppress(ExpressionError):  # the step before it failed, so the sub-plan did nothing that could be undone
            inside.inputs = sub_plan_inputs(scope, planned[step_id])


def _begin_sub_plans(scope: RunScope) -> None:
    """Create the scopes of all sub-plans, so that each can keep the results of its own steps. The inputs follow from results around it."""
    for step in scope.approved.bound.validated.plan.all_steps:
        if step.pinned is not None:
            scope.begin_plan(step, {})


async def rollback_run(
    run: PlanRun, *, reason: str, tools: ToolRegistry | None, run_request: RunRequest, store: PlanStore, offline: bool = False
) -> PlanRun:
    """Cancel `run` unless it has ended, and roll it back. Same as `acancel_run` with `rollback`, for callers with a run request."""
    version = await approved_version(run, store)
    plan = await store.get(run.digest if version is None else version.digest)  # an unapproved version grants no permissions
    policy = await store.policy.effective(run_request.settings)
    await require_operator(plan, run, store, policy, by=run_request.operator, operation="rollback")
    if run.status is PlanStatus.COMPLETED:
        raise RunConflictError(f"run {run.id} has completed: only a run that failed or was cancelled is rolled back")
    await record_operator_request(
        "rollback", (), reason, run, plan, store, run_request, rollback_needs_approver=rollback_needs_approver(plan, policy)
    )
    history = await store.ledger.history(run.id)
    was_interrupted = run.reason is RunReason.INTERRUPTED and is_rolled_back(plan, history, run.rollback)
    if run.completed_at is None and not was_interrupted:
        await store.cancel(run.id, reason, rollback=True)
    if await store.ledger.owner(run.id) is not None:  # the owner rolls it back
        return await store.run(run.id)
    run = await store.run(run.id)
    history = await store.ledger.history(run.id)
    refuse_unknown_outcome_to_roll_back(run, history)
    refuse_running_commands(run, history, await store.outcomes.commands(run.id), kinds=("rollback",))
    if not units_to_roll_back(plan, history) and not was_interrupted:
        return run
    if tools is None:
        raise RunConflictError(f"no process executes run {run.id}: pass `tools` to roll it back")
    approved_run = run if version is None else replace(run, digest=version.digest, folder=version.folder)
    refuse_rollback_elsewhere(approved_run, run_request.settings)
    bound = bind_recorded_plan(approved_run, plan, tools)
    if version is not None:
        run = await store.revisions.restore(run.id, version, bound.validated, by=run_request.operator)
    bound = await with_approved_rollbacks(bound, run, history, store)
    server = None if offline or run.flow_run_id is None else await server_of(run_request)
    return await execute_session(RunSession(bound, run, store, run_request, history), server=server, action=roll_back)
