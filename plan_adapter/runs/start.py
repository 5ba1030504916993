"""Starts a run: creates its record, approves it and executes its stages, directly or as task runs of a flow run."""

import asyncio
from dataclasses import replace
from functools import partial
from typing import Any, Protocol

from plan_adapter.engine.connection import Server, use_server
from plan_adapter.execution.history import RunHistory
from plan_adapter.gates.approval import approves_in_advance, refuse_operation
from plan_adapter.gates.policy import EffectivePolicy
from plan_adapter.local import telemetry
from plan_adapter.local.settings import Settings
from plan_adapter.model.hooks import call_hook
from plan_adapter.model.language import language_of, speaking
from plan_adapter.model.plan import new_id
from plan_adapter.model.record import PlanRun
from plan_adapter.model.status import PlanStatus, RunOutcome
from plan_adapter.runs.folders import current_folder
from plan_adapter.runs.frozen import Frozen
from plan_adapter.runs.keeper import GateKeeper
from plan_adapter.runs.operator_requests import record_operator_request
from plan_adapter.runs.plan_approval import (
    approve_run,
    is_answered,
    missing_approval_error,
    open_detached_gate,
    refuse_approver,
    refuse_frozen_start,
    refuse_quorum_out_of_reach,
)
from plan_adapter.runs.run_session import (
    Backend,
    RunRequest,
    RunSession,
    look_up_secrets_on,
    opened_store,
    refuse_without_dask,
    refuse_without_model,
    server_of,
)
from plan_adapter.runs.secret_lookup import refuse_missing_secrets, secrets_of
from plan_adapter.runs.stages import execute_approved, pending_steps
from plan_adapter.runs.turn import refuse_turn
from plan_adapter.store.store import PlanStore
from plan_adapter.validation import BoundPlan


class RunAction(Protocol):
    """What to do in a session: `execute_run` executes the steps, `roll_back` rolls them back."""

    async def __call__(self, session: RunSession, /) -> PlanRun:
        """Perform the action, and return the run with its end recorded."""
        ...


async def execute_session(session: RunSession, *, server: Server | None, action: RunAction | None = None) -> PlanRun:
    """Run `action` on a session, by default `execute_run`: as a flow run on `server`, or directly if `server` is None."""
    with speaking(language_of(session.bound.validated.plan.language, session.run_request.settings.language)):
        return await _execute_session(session, server, action or execute_run)


async def _execute_session(session: RunSession, server: Server | None, action: RunAction) -> PlanRun:
    run = session.run
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
    from plan_adapter.runs.forms import PrefectReport, prefect_forms

    report = PrefectReport(flow_run_id, store, server)
    steps = PrefectStepRunner(carried_task_runs=settings.carried_task_runs)
    return Backend(
        steps,
        partial(cancellation_reason, flow_run_id),
        log_to_prefect,
        prefect_forms(flow_run_id, store, server, report=report),
        publish_text,
        report,
    )


async def execute_run(session: RunSession) -> PlanRun:
    """Approve the run of `session`, execute its steps, and return it with its record, however the steps end."""
    run = session.run
    about = {"plan.name": run.name, "plan.digest": run.digest, "plan.run.id": run.id, "plan.flow_run.id": run.flow_run_id}
    with telemetry.span(f"plan run {run.name}", about) as opened:
        await _execute_run(session)
        if run.outcome is not None:
            telemetry.count("plan.runs", {"plan.name": run.name, "plan.outcome": run.outcome.value})
        outcome = run.status.value if run.outcome is None else run.outcome.value
        opened.end(outcome, is_ok=run.outcome in (None, RunOutcome.COMPLETED))
    return run


async def _execute_run(session: RunSession) -> PlanRun:
    keeper, run, store = GateKeeper(session), session.run, session.store
    # Only for the gate of the plan. The steps look up their secrets once it is answered, because a value may change until then.
    secrets = secrets_of(session.run_request.settings, session.run_request.secrets)
    await secrets.look_up_early(session.bound.validated.secrets)
    keeper.answers.redact = secrets.redactor.value
    try:
        while (approved := await approve_run(session.bound, run, keeper)) is not None:
            version = await execute_approved(approved, keeper)
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


async def create_run(bound: BoundPlan, store: PlanStore, run_request: RunRequest, *, flow_run_id: str | None = None) -> PlanRun:
    """Create a run of `bound`, record it as pending approval, and return it."""
    run = await new_run(bound, store, run_request, flow_run_id=flow_run_id)
    await store.ledger.create(run, bound.validated, variables=bound.variables)
    return run


async def new_run(bound: BoundPlan, store: PlanStore, run_request: RunRequest, *, flow_run_id: str | None) -> PlanRun:
    """Return a run of `bound`, pending approval, that is not recorded yet."""
    plan, context, now = bound.validated.plan, run_request.context, await store.now()
    return PlanRun(
        id=run_request.run_id or new_id(),
        plan_id=plan.id,
        name=plan.name,
        description=plan.description,
        digest=bound.validated.digest,
        approval_digest=bound.approval_digest,
        inputs=bound.inputs,
        steps=pending_steps(bound.validated, RunHistory()),
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


async def refuse_unready(
    bound: BoundPlan, store: PlanStore, run_request: RunRequest, policy: EffectivePolicy, frozen: Frozen | None = None
) -> None:
    """Raise if a new run lacks what it needs: a model, Dask, secrets, or enough people who may approve.

    `frozen` has the change freezes that an approval is to override.
    """
    refuse_without_model(bound.validated, run_request)
    refuse_without_dask(bound.validated)
    await refuse_missing_secrets(bound.validated, run_request.settings)
    await refuse_quorum_out_of_reach(bound, store, policy, requested_by=run_request.requested_by, frozen=frozen or Frozen())


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
        frozen = await refuse_frozen_start(bound, opened, run_request, policy)
        server = None if offline else await server_of(run_request)
        answered = await is_answered(bound, opened, run_request, policy)
        if not answered and not record_pending:
            raise await missing_approval_error(bound, opened, run_request.settings)
        with look_up_secrets_on(server):
            await refuse_unready(bound, opened, run_request, policy, frozen)
            await refuse_approver(bound, opened, run_request, policy)
            await refuse_turn(bound, opened, run_request.context)
            run = await create_run(bound, opened, run_request)
            if run_request.override_freeze is not None and frozen.active:
                because = run_request.override_freeze
                await record_operator_request("override_freeze", (), because, run, bound.validated.plan, opened, run_request)
            if not answered and server is None:
                await open_detached_gate(bound, run, opened, run_request.settings)
                return run
            return await execute_session(RunSession(bound, run, opened, run_request), server=server)
