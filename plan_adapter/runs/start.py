"""Starts a run: creates its record, approves it and executes its steps, directly or as task runs of a flow run."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from functools import partial
from typing import Any, Protocol

from pydantic import JsonValue

from plan_adapter.engine.connection import Server, use_server
from plan_adapter.execution.cancellation import Stop
from plan_adapter.execution.history import RunHistory
from plan_adapter.execution.limits import Slots
from plan_adapter.execution.ports import Cluster
from plan_adapter.execution.results import ResultLimit
from plan_adapter.execution.rollback import Rollback
from plan_adapter.execution.run_status import FAILURES, kept_from_starting, rolls_back
from plan_adapter.execution.scheduler import execute
from plan_adapter.execution.scope import RunScope
from plan_adapter.gates.approval import ApprovedPlan, approves_in_advance, refuse_operation
from plan_adapter.local.crash_points import reached
from plan_adapter.local.settings import Settings
from plan_adapter.model.errors import PlanAdapterError, StoreError
from plan_adapter.model.goals import GoalModel
from plan_adapter.model.hooks import call_hook
from plan_adapter.model.plan import new_id
from plan_adapter.model.record import PlanRun, Recorder, StepRun
from plan_adapter.model.status import PlanStatus, RunReason, StepStatus
from plan_adapter.runs.approval import (
    approve_run,
    is_answered,
    load_new_version,
    missing_approval_error,
    open_detached_gate,
    refuse_approver,
)
from plan_adapter.runs.ending import (
    check_prefect_cancellation,
    conclude_run,
    ending_without_finally_steps,
    leave_waiting,
    release_run,
    watch_run,
)
from plan_adapter.runs.folders import current_folder, in_folder
from plan_adapter.runs.keeper import GateKeeper
from plan_adapter.runs.replan import AUTOMATIC_REPLAN, draft_automatically, revision_note, wants_replanning
from plan_adapter.runs.secret_lookup import refuse_missing_secrets, secrets_of
from plan_adapter.runs.session import (
    Backend,
    RunRequest,
    RunSession,
    cluster_of,
    goal_model_of,
    look_up_secrets_on,
    opened_store,
    refuse_without_dask,
    refuse_without_model,
    server_of,
)
from plan_adapter.runs.step_gates import CallGates, OutcomeGates
from plan_adapter.runs.turn import refuse_turn, wait_for_turn
from plan_adapter.store.store import PlanStore
from plan_adapter.validation import BoundPlan, ValidatedPlan, bind_inputs, validate


class RunAction(Protocol):
    """What to do in a session: `execute_run` executes the steps, `roll_back` rolls them back."""

    async def __call__(self, session: RunSession, /) -> PlanRun:
        """Perform the action, and return the run with its end recorded."""
        ...


async def execute_session(session: RunSession, *, server: Server | None, action: RunAction | None = None) -> PlanRun:
    """Run `action` on a session, by default `execute_run`: as a flow run on `server`, or directly if `server` is None."""
    action, run = action or execute_run, session.run
    session.store = session.store.patient(session.run_request.settings.store_patience_seconds)
    if server is None:
        return await action(session)
    from plan_adapter.engine.flow import build_flow, fit_as_parameters, flow_run_name, run_to_end  # imports Prefect

    ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def body(_inputs: dict[str, Any], flow_run_id: str) -> PlanRun:
        run.flow_run_id = flow_run_id
        session.backend = prefect_backend(flow_run_id, session.store, session.run_request.settings, server)
        try:
            await action(session)
        except BaseException as error:
            ended.set_exception(error)
            if run.completed_at is None or not isinstance(error, asyncio.CancelledError):
                raise  # otherwise let the flow run end as Cancelled first, with the reason
        else:
            ended.set_result(None)
        return run

    inputs = session.bound.inputs if fit_as_parameters(session.bound.inputs) else {}
    flow = build_flow(session.bound.validated, body, with_inputs=bool(inputs))
    name = flow_run_name(run, session.bound.validated)
    with use_server(server):
        await run_to_end(flow, inputs, run, ended, name=name)
    return run


def prefect_backend(flow_run_id: str, store: PlanStore, settings: Settings, server: Server | None = None) -> Backend:
    """Return the backend for the flow run `flow_run_id`, in whose context this is called. `server` provides links to its UI."""
    # These import Prefect.
    from plan_adapter.engine.flow_runs import cancellation_reason
    from plan_adapter.engine.outgoing import publish_text
    from plan_adapter.engine.tasks import PrefectStepRunner, log_to_prefect
    from plan_adapter.runs.forms import prefect_forms

    steps = PrefectStepRunner(carried_task_runs=settings.carried_task_runs)
    return Backend(
        steps, partial(cancellation_reason, flow_run_id), log_to_prefect, prefect_forms(flow_run_id, store, server), publish_text
    )


async def execute_run(session: RunSession) -> PlanRun:
    """Approve the run of `session`, execute its steps, and return it with its record, however the steps end."""
    keeper, run, store = GateKeeper(session), session.run, session.store
    # Only for the gate of the plan. The steps look up their secrets once it is answered, because a value may change until then.
    secrets = secrets_of(session.run_request.settings, session.run_request.secrets)
    await secrets.look_up_early(session.bound.validated.secrets)
    keeper.answers.redact = secrets.redactor.value
    try:
        while (approved := await approve_run(session.bound, run, keeper)) is not None:
            version = await _execute_approved(approved, keeper)
            if version is None:
                return run
            session.bound, session.history = version, await store.ledger.history(run.id)
            session.run_request = _request_for_draft(session.run_request)
            if session.run_request.approver is None and not session.run_request.asks_in_form:
                await open_detached_gate(version, run, store, session.run_request.settings)
                return run
        run.steps = (await store.run(run.id)).steps  # current state, now that the run has ended or waits
        if run.status.has_ended:  # it was rejected, has expired or was cancelled at the plan gate
            await call_hook(session.run_request.hooks.on_plan_complete, run)
        return run
    finally:
        await keeper.finish_forms()


def _request_for_draft(run_request: RunRequest) -> RunRequest:
    """Return the run request for a plan that a model drafted. Approvals and answers given before the draft are dropped."""
    return replace(run_request, approval=None, approver=None if approves_in_advance(run_request.approver) else run_request.approver)


async def _execute_approved(approved: ApprovedPlan, keeper: GateKeeper) -> BoundPlan | None:
    """Execute the steps of the approved plan. Return the new version that a failure led to, which waits for approval, or None."""
    validated, run_request = approved.bound.validated, keeper.run_request
    async with goal_model_of(validated, run_request) as goal_model, cluster_of(validated, run_request.settings) as cluster:
        return await _execute_with(goal_model, cluster, approved, keeper)


async def _execute_with(
    goal_model: GoalModel | None, cluster: Cluster | None, approved: ApprovedPlan, keeper: GateKeeper
) -> BoundPlan | None:
    session, run, store = keeper.session, keeper.run, keeper.store
    backend = session.backend
    run.transition(PlanStatus.EXECUTING)
    run.rollback = None
    run.steps = _pending_steps(approved.bound.validated, session.history)
    run.started_at = run.started_at or await store.now()
    await store.ledger.claim(run)
    reached("claimed")
    scope = scope_of(approved, session, await store.ledger.recorder(run), cluster)
    scope.gates = CallGates(approved, keeper, scope.stop, await store.policy.effective(keeper.run_request.settings), session.history.asked)
    scope.goal_model, scope.goal_tokens = goal_model, keeper.run_request.settings.goal_tokens
    enable_outcome_gates(scope, keeper)
    scope.notify("run_started")
    rollback = replan_failure = None
    try:
        try:
            async with watch_run(scope, store, partial(store.ledger.cancel_request, run.id), backend.cancellation):
                may_start = await wait_for_turn(scope, store)
                await execute(scope, backend.run_step)
            if not may_start:
                return None
            if scope.is_left:
                await leave_waiting(run, store)
                return None
            version, replan_failure = await _replan_after_failure(scope, keeper)
            if version is not None:
                return version
            rollback = await _prepare_rollback(scope, session)
            if rollback is not None:
                # A run cancelled in Prefect still shows as cancelled. That stopped the steps, but must not stop their rollback.
                await execute_rollback(rollback, store, None if scope.stop.is_from_prefect else backend.cancellation)
        except asyncio.CancelledError:
            await execute_finally_steps(scope, keeper, ending_without_finally_steps(scope).status, rollback)
            raise
        await execute_finally_steps(scope, keeper, ending_without_finally_steps(scope).status, rollback)
        if scope.is_left:
            await leave_waiting(run, store)
            return None
    finally:
        if all(step.status.has_ended for step in run.steps) and not (backend.is_cut_short() and scope.stop.is_set):
            await conclude_run(scope, store, rollback, replan_failure)
        elif run.status is PlanStatus.EXECUTING:
            await release_run(run, store)
    return None


async def execute_finally_steps(scope: RunScope, keeper: GateKeeper, status: PlanStatus, rollback: Rollback | None) -> None:
    """Execute the plan's `finally` steps once all others have ended, with `status` as `run.status`. Sets `scope.is_left` if they wait.

    Their expressions also see what `rollback` undid, or else what the rollbacks of items that failed did.

    Cancelling the run does not stop them; their own timeout does. If the process has to end now, they run when the run is resumed.
    """
    session, run, validated = keeper.session, scope.run, scope.approved.bound.validated
    main = [step for step in run.steps if step.id not in validated.finally_order]
    if not validated.finally_order or not all(step.status.has_ended for step in main):
        return
    if session.backend.is_cut_short() and scope.stop.is_set:
        return
    reports = scope.item_rollbacks if rollback is None else [rollback.report()]
    end: dict[str, JsonValue] = {
        "status": status.value,
        "progress": replace(run, steps=main).summary().text,
        "failed_steps": [step.id for step in main if step.status is StepStatus.FAILED],
        "rolled_back": [name for report in reports for name in report.undone],
        "not_rolled_back": [name for report in reports for name in report.left],
    }
    run.transition(PlanStatus.EXECUTING, reason=run.reason, message=run.message)
    history = (await keeper.store.ledger.history(run.id)).for_finally_steps(validated.finally_order)
    run.steps = [*main, *(step for step in _pending_steps(validated, history) if step.id in validated.finally_order)]
    finally_scope = replace(
        scope,
        stop=Stop(),
        history=replace(history, choices=scope.history.choices),
        refusal=None,
        end=end,
    )
    policy = await keeper.store.policy.effective(keeper.run_request.settings)
    finally_scope.gates = CallGates(scope.approved, keeper, finally_scope.stop, policy, history.asked)
    enable_outcome_gates(finally_scope, keeper)
    async with watch_run(finally_scope, keeper.store, _no_cancel_request, None):
        await execute(finally_scope, session.backend.run_step, is_finally=True)
    scope.is_left, scope.refusal = finally_scope.is_left, scope.refusal or finally_scope.refusal
    if kept_from_starting(run.steps, finally_scope.stop):
        scope.why_finally_stopped = finally_scope.stop.message


async def _no_cancel_request() -> str | None:
    return None


async def _replan_after_failure(scope: RunScope, keeper: GateKeeper) -> tuple[BoundPlan | None, str | None]:
    """Return the new version if a failure led to one, or why replanning failed.

    Both are None if nothing is replanned or the run was stopped. A run with a new version waits for its approval. Cancelling the run also
    ends the drafting.
    """
    run, store, validated = scope.run, keeper.store, scope.approved.bound.validated
    ending = ending_without_finally_steps(scope)
    if ending.reason not in FAILURES or not await wants_replanning(run, validated.plan, store):
        return None, None
    if (await store.ledger.history(run.id)).has_rollbacks:
        return None, "an item was rolled back, and no new version can follow a rollback"
    run.transition(ending.status, reason=ending.reason, message=ending.message)
    run.message = scope.secrets.redactor.text(run.message or "")  # it goes to a model and into the note of the version
    scope.notify("replanning", message=run.message)
    ended = await store.now()
    drafting = asyncio.ensure_future(draft_automatically(run, validated, await store.ledger.history(run.id), store, keeper.run_request))
    try:
        async with watch_run(scope, store, partial(store.ledger.cancel_request, run.id), keeper.session.backend.cancellation):
            await asyncio.wait({drafting, scope.stop.future}, return_when=asyncio.FIRST_COMPLETED)
        if (reason := await store.ledger.cancel_request(run.id)) is not None:  # cancelled just as the draft arrived
            scope.stop.set("cancelled", reason)
        if scope.stop.is_set:
            return None, None
        draft, tools = await drafting
        if draft.plan is None:
            return None, draft.failure
        bound = in_folder(bind_inputs(validate(draft.plan, tools), run.inputs), run.folder)
        if bound.approval_digest == run.approval_digest:
            return None, f"the model's draft changes nothing (`plan show --draft {draft.id}`)"
    except StoreError:
        raise
    except PlanAdapterError as error:
        return None, str(error)
    finally:
        drafting.cancel()
        await asyncio.gather(drafting, return_exceptions=True)
    run.completed_at = ended
    await store.ledger.update(run)  # end it here: the new version runs in the next start
    note = revision_note(draft, run.message or "")
    await store.revisions.revise(run.id, bound.validated, bound.approval_digest, by=AUTOMATIC_REPLAN, note=note)
    keeper.session.run_request = replace(keeper.run_request, tools=tools)
    return await load_new_version(run, keeper), None


def enable_outcome_gates(scope: RunScope, keeper: GateKeeper) -> None:
    """Let calls of `scope` ask at outcome gates of `keeper` about their unknown outcomes."""
    scope.outcomes = OutcomeGates(scope.approved, keeper)
    keeper.answers.redact, keeper.why_stopped = scope.secrets.redactor.value, lambda: scope.stop.message


def scope_of(approved: ApprovedPlan, session: RunSession, recorder: Recorder, cluster: Cluster | None) -> RunScope:
    """Return the state that all calls of one start of a run share. No step gates are open yet."""
    run_request = session.run_request
    return RunScope(
        approved=approved,
        run=session.run,
        recorder=recorder,
        stop=Stop(),
        slots=Slots(approved.bound.validated.plan.options.parallel_limit),
        limit=ResultLimit(run_request.settings.result_limit_bytes, run_request.settings.results_path),
        history=session.history,
        cluster=cluster,
        hooks=run_request.hooks,
        listener=run_request.listener,
        leave=run_request.leave,
        log_sink=session.backend.log_sink,
        publish=session.backend.publish,
        secrets=secrets_of(run_request.settings, run_request.secrets),
    )


async def _prepare_rollback(scope: RunScope, session: RunSession) -> Rollback | None:
    """Return the rollback of a run whose steps have ended, recorded as in progress, or None if nothing is rolled back."""
    run, store, plan = session.run, session.store, scope.approved.bound.validated.plan
    if not scope.approved.bound.validated.rollbacks:
        return None
    ending = ending_without_finally_steps(scope)
    if ending.status is PlanStatus.COMPLETED:
        return None
    run.transition(ending.status, reason=ending.reason, message=ending.message)
    requested = await store.ledger.is_rollback_requested(run.id) if run.reason is RunReason.CANCELLED else None
    if requested is None and not rolls_back(run, plan):
        return None
    rollback = Rollback(scope, await store.ledger.history(run.id), session.backend.run_step)
    if not rollback.left:
        return None
    if requested is False:  # the request was withdrawn: only report the state of the rollback
        rollback.halt.set("cancelled", await store.ledger.cancel_request(run.id) or "cancelled")
    run.transition(PlanStatus.EXECUTING, reason=run.reason, message=run.message)
    await store.ledger.update(run)  # with its reason, needed to resume an interrupted rollback
    return rollback


async def execute_rollback(rollback: Rollback, store: PlanStore, in_prefect: Callable[[], Awaitable[str | None]] | None) -> None:
    """Roll back a run. If the run is cancelled, here or `in_prefect`, calls in progress finish and no further call starts."""
    run = rollback.scope.run

    async def stop_reason() -> str | None:
        return None if await store.ledger.is_rollback_requested(run.id) else await store.ledger.cancel_request(run.id)

    if (
        in_prefect is not None
        and run.reason is RunReason.CANCELLED
        and (reason := await check_prefect_cancellation(in_prefect)) is not None
    ):
        rollback.halt.set("cancelled", reason)
    async with watch_run(rollback.scope, store, stop_reason, in_prefect, stop=rollback.halt):
        await rollback.undo()


async def create_run(bound: BoundPlan, store: PlanStore, run_request: RunRequest, *, flow_run_id: str | None = None) -> PlanRun:
    """Create a run of `bound`, record it as pending approval, and return it."""
    plan, context, now = bound.validated.plan, run_request.context, await store.now()
    run = PlanRun(
        id=new_id(),
        plan_id=plan.id,
        name=plan.name,
        description=plan.description,
        digest=bound.validated.digest,
        approval_digest=bound.approval_digest,
        inputs=bound.inputs,
        steps=_pending_steps(bound.validated, RunHistory()),
        created_at=now,
        updated_at=now,
        status=PlanStatus.PENDING_APPROVAL,
        flow_run_id=flow_run_id,
        requested_by=run_request.requested_by,
        task_id=context.task_id,
        agent_id=context.agent_id,
        org_id=context.org_id,
        tenant_id=context.tenant_id,
        metadata=dict(plan.metadata),
        folder=current_folder(run_request.settings),
    )
    await store.ledger.create(run, bound.validated)
    return run


def _pending_steps(validated: ValidatedPlan, history: RunHistory) -> list[StepRun]:
    """Return the steps of a plan at the start of a run, with their attempts from earlier starts."""
    tried = dict[str, int]()
    for (step_id, _), number in history.attempts.items():
        tried[step_id] = tried.get(step_id, 0) + number
    return [
        StepRun.pending(vars(step), index, depends_on=validated.dependencies[step.id], group=step.outer, attempts=tried.get(step.id, 0))
        for index, step in enumerate(validated.plan.all_steps)
    ]


async def execute_plan(
    bound: BoundPlan,
    *,
    run_request: RunRequest,
    store: PlanStore | None = None,
    offline: bool = False,
    record_pending: bool = False,
) -> PlanRun:
    """Run a validated plan with its inputs. Same as `arun_plan`, for callers with a bound plan and a run request.

    With `record_pending`, a plan that nobody can approve is recorded as pending_approval and returned, instead of raising an error.
    """
    async with opened_store(store, run_request.settings) as opened:
        policy = await opened.policy.effective(run_request.settings)
        refuse_operation(bound.validated.plan, policy, by=run_request.operator, operation="run")
        server = None if offline else await server_of(run_request)
        answered = await is_answered(bound, opened, run_request, policy)
        if not answered and not record_pending:
            raise await missing_approval_error(bound, opened, run_request.settings)
        with look_up_secrets_on(server):
            refuse_without_model(bound.validated, run_request)
            refuse_without_dask(bound.validated)
            await refuse_missing_secrets(bound.validated, run_request.settings)
            await refuse_approver(bound, opened, run_request, policy)
            await refuse_turn(bound, opened, run_request.context)
            run = await create_run(bound, opened, run_request)
            if not answered and server is None:
                await open_detached_gate(bound, run, opened, run_request.settings)
                return run
            return await execute_session(RunSession(bound, run, opened, run_request), server=server)
