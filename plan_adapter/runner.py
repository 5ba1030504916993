"""The story of a run: validate, have it approved, compile, run, record. `run_plan` and its kin.

`run_plan`, `resume_run` and `cancel_run` are for code without an event loop; each has an async twin.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from pydantic import JsonValue

from plan_adapter.approval import (
    ApprovedPlan,
    Approver,
    approved_plan,
    requires_approval,
    without_approval,
)
from plan_adapter.errors import ExpressionError, NotApprovedError, RunConflictError
from plan_adapter.execution.cancellation import Stop, watch
from plan_adapter.execution.carry import Past
from plan_adapter.execution.direct import DirectCalls
from plan_adapter.execution.ports import CallStep
from plan_adapter.execution.results import ResultLimit
from plan_adapter.execution.scheduler import execute
from plan_adapter.execution.scope import RunScope
from plan_adapter.execution.slots import Slots
from plan_adapter.execution.status import conclude
from plan_adapter.formatting import format_plan
from plan_adapter.hooks import Hooks, Listener
from plan_adapter.plan import ExecutionPlan, PlanStatus, new_id
from plan_adapter.record import Approval, ApprovalRequest, PlanRun, RunContext, RunReason, StepRun
from plan_adapter.settings import Settings
from plan_adapter.store.store import PlanStore
from plan_adapter.tools.registry import ToolRegistry
from plan_adapter.validation import BoundPlan, ValidatedPlan, bind_inputs, validate

if TYPE_CHECKING:
    from prefect import Flow

log = logging.getLogger(__name__)
T = TypeVar("T")

STORE_POLL_SECONDS = 0.5
PREFECT_POLL_SECONDS = 2.0


@dataclass(frozen=True, slots=True)
class Occasion:
    """What a run is given beside its plan and inputs."""

    approval: Approval | None = None
    approver: Approver | None = None
    hooks: Hooks = field(default_factory=Hooks)
    context: RunContext = field(default_factory=RunContext)
    listener: Listener | None = None
    settings: Settings = field(default_factory=Settings)


@dataclass(frozen=True, slots=True)
class Way:
    """How steps are called: directly, or as task runs of a flow run, which may be cancelled there and keeps their logs."""

    call_step: CallStep
    cancellation: Callable[[], Awaitable[str | None]] | None = None
    log_sink: Callable[[logging.LogRecord], None] | None = None


async def arun_plan(
    plan: ExecutionPlan,
    *,
    tools: ToolRegistry,
    inputs: Mapping[str, object] | None = None,
    approval: Approval | None = None,
    approver: Approver | None = None,
    store: PlanStore | None = None,
    hooks: Hooks | None = None,
    context: RunContext | None = None,
    offline: bool = False,
) -> PlanRun:
    """Run `plan` and return the record of the run, however its steps ended.

    With a Prefect API URL in Prefect's settings the run is a flow run there; without one, on a local server that is started once.
    `offline` runs without Prefect. `store` None is the store of the settings. Raises InvalidPlanError, NotApprovedError (before
    anything is run), NoServerError and StoreError.
    """
    occasion = Occasion(approval, approver, hooks or Hooks(), context or RunContext())
    return await execute_plan(validate(plan, tools), inputs=inputs, occasion=occasion, store=store, offline=offline)


def run_plan(
    plan: ExecutionPlan,
    *,
    tools: ToolRegistry,
    inputs: Mapping[str, object] | None = None,
    approval: Approval | None = None,
    approver: Approver | None = None,
    store: PlanStore | None = None,
    hooks: Hooks | None = None,
    context: RunContext | None = None,
    offline: bool = False,
) -> PlanRun:
    """Run `plan` and return the record of the run, however its steps ended; see `arun_plan`, which a running event loop needs."""
    return _complete(
        arun_plan(
            plan, tools=tools, inputs=inputs, approval=approval, approver=approver, store=store, hooks=hooks, context=context, offline=offline
        ),
        twin="arun_plan",
    )


async def aresume_run(
    run_id: str,
    *,
    tools: ToolRegistry,
    approval: Approval | None = None,
    approver: Approver | None = None,
    store: PlanStore | None = None,
    hooks: Hooks | None = None,
    offline: bool = False,
    listener: Listener | None = None,
) -> PlanRun:
    """Go on with a run that stopped, and return its record: what has a succeeded receipt is carried, the rest is run.

    Uses the recorded plan and inputs. Resuming approves nothing: a run that waits for an approval needs one, and one whose tools
    have changed since it was approved raises NotApprovedError. Raises RunConflictError for a run that has completed, was rejected,
    or is held by a process that lives.
    """
    occasion = Occasion(approval, approver, hooks or Hooks(), listener=listener)
    async with _opened(store, occasion.settings) as opened:
        run = await opened.run(run_id)
        await _refuse_resume(run, opened)
        plan = await opened.get(run.digest)
        bound = bind_inputs(validate(plan, tools), run.inputs)
        if bound.approval_digest != run.approval_digest:
            raise NotApprovedError(
                f"the tools of run {run.id} have changed since it was approved (name, parameters, effect or permissions); start a new run"
            )
        approved = await _approved(bound, run, opened, occasion)
        if approved is None:
            return run
        past = Past.of(await opened.attempts(run.id), await opened.receipts(run.id))
        return await _perform_anywhere(approved, run, opened, occasion, past=past, offline=offline)


def resume_run(
    run_id: str,
    *,
    tools: ToolRegistry,
    approval: Approval | None = None,
    approver: Approver | None = None,
    store: PlanStore | None = None,
    hooks: Hooks | None = None,
    offline: bool = False,
) -> PlanRun:
    """Go on with a run that stopped, and return its record; see `aresume_run`."""
    return _complete(
        aresume_run(run_id, tools=tools, approval=approval, approver=approver, store=store, hooks=hooks, offline=offline),
        twin="aresume_run",
    )


async def acancel_run(run_id: str, *, reason: str = "cancelled", store: PlanStore | None = None) -> PlanRun:
    """Ask the process that holds the run to end it, and return the run as it is now.

    A run that nobody holds is cancelled at once. Raises RunConflictError for a run that has ended.
    """
    async with _opened(store, Settings()) as opened:
        run = await opened.run(run_id)
        if run.status not in (PlanStatus.PENDING_APPROVAL, PlanStatus.APPROVED, PlanStatus.EXECUTING):
            raise RunConflictError(f"run {run.id} has ended: {run.status}")
        await opened.request_cancel(run.id, reason)
        if run.status is not PlanStatus.EXECUTING or not await opened.is_held(run.id):
            run.status, run.reason, run.message = PlanStatus.CANCELLED, RunReason.CANCELLED, reason
            await opened.update_run(run)
        return run


def cancel_run(run_id: str, *, reason: str = "cancelled", store: PlanStore | None = None) -> PlanRun:
    """Ask the process that holds the run to end it, and return the run as it is now; see `acancel_run`."""
    return _complete(acancel_run(run_id, reason=reason, store=store), twin="acancel_run")


async def execute_plan(
    validated: ValidatedPlan,
    *,
    inputs: Mapping[str, object] | None = None,
    from_text: bool = False,
    occasion: Occasion,
    store: PlanStore | None = None,
    offline: bool = False,
    record_pending: bool = False,
) -> PlanRun:
    """Run a validated plan: `arun_plan` for callers that have one. `from_text`: the inputs are texts of a command line.

    With `record_pending` a plan that nobody is there to approve is recorded as pending_approval and returned, not raised.
    """
    bound = bind_inputs(validated, inputs, from_text=from_text)
    if not record_pending:
        _refuse_unapproved(bound, occasion)
    async with _opened(store, occasion.settings) as opened:
        run = await _create(bound, opened, occasion)
        if record_pending and not _is_answered(bound, occasion):
            return run
        approved = await _approved(bound, run, opened, occasion)
        if approved is None:
            return run
        return await _perform_anywhere(approved, run, opened, occasion, past=Past(), offline=offline)


def compile_plan(
    validated: ValidatedPlan,
    *,
    tools: ToolRegistry | None = None,
    approval: Approval | None = None,
    approver: Approver | None = None,
    store: PlanStore | None = None,
    hooks: Hooks | None = None,
    context: RunContext | None = None,
) -> "Flow[..., Any]":
    """Return `validated` as an async Prefect flow whose parameters are the plan's inputs: call it, serve it, deploy it, nest it.

    `tools` is the registry to call where it is not the one that the plan was validated with. The flow looks for an approval in the
    store; without one it ends as Failed before its first step. A re-run of one of its flow runs carries what has receipts.
    """
    from plan_adapter.engine.compiler import flow_of

    if tools is not None:
        validated = validate(validated.plan, tools)
    given = partial(Occasion, approval, approver, hooks or Hooks(), context or RunContext())
    return flow_of(validated, partial(_flow_body, validated, given, store))


# One run, from its first row to its last.


async def _flow_body(validated: ValidatedPlan, given: partial[Occasion], store: PlanStore | None, inputs: dict[str, Any], flow_run_id: str) -> PlanRun:
    """Run `validated` inside the flow run `flow_run_id`; go on with its run where the flow run has one."""
    occasion = given()
    bound = bind_inputs(validated, inputs)
    async with _opened(store, occasion.settings) as opened:
        run, past = await opened.run_of_flow(flow_run_id), Past()
        if run is None:
            run = await _create(bound, opened, occasion, flow_run_id=flow_run_id)
        else:
            await _refuse_resume(run, opened)
            past = Past.of(await opened.attempts(run.id), await opened.receipts(run.id))
        approved = await _approved(bound, run, opened, occasion)
        if approved is None:
            return run
        return await _perform(approved, run, opened, occasion, past=past, way=_prefect_way(flow_run_id))


async def _perform_anywhere(
    approved: ApprovedPlan, run: PlanRun, store: PlanStore, occasion: Occasion, *, past: Past, offline: bool
) -> PlanRun:
    """Run what is approved: directly, or as a flow run on the server that Prefect's settings or ours name."""
    if offline:
        return await _perform(approved, run, store, occasion, past=past, way=Way(DirectCalls()))
    from plan_adapter.engine.compiler import flow_of, run_flow
    from plan_adapter.engine.connection import use_server
    from plan_adapter.engine.local_server import server_for
    async def body(_inputs: dict[str, Any], flow_run_id: str) -> PlanRun:
        run.flow_run_id = flow_run_id
        return await _perform(approved, run, store, occasion, past=past, way=_prefect_way(flow_run_id))

    server = await asyncio.to_thread(server_for, occasion.settings)
    with use_server(server):
        await run_flow(flow_of(approved.bound.validated, body), approved.bound.inputs, flow_run_id=run.flow_run_id)
    return run


def _prefect_way(flow_run_id: str) -> Way:
    from plan_adapter.engine.flow_runs import cancellation_of
    from plan_adapter.engine.tasks import PrefectSteps, log_to_prefect

    return Way(PrefectSteps(), partial(cancellation_of, flow_run_id), log_to_prefect)


async def _perform(
    approved: ApprovedPlan, run: PlanRun, store: PlanStore, occasion: Occasion, *, past: Past, way: Way
) -> PlanRun:
    """Execute the steps and keep the record, whatever happens to them."""
    options = approved.bound.validated.plan.options
    recorder = await store.recorder(run)
    scope = RunScope(
        approved=approved,
        run=run,
        recorder=recorder,
        stop=Stop(),
        slots=Slots(options.parallel_limit),
        limit=ResultLimit(occasion.settings.result_limit_bytes, occasion.settings.results_path),
        past=past,
        hooks=occasion.hooks,
        listener=occasion.listener,
        log_sink=way.log_sink,
    )
    run.status, run.reason, run.message = PlanStatus.EXECUTING, None, None
    run.started_at = run.started_at or recorder.now()
    run.steps = _step_runs(approved.bound.validated)
    await store.claim(run)
    scope.tell("run_started")
    watches = [asyncio.ensure_future(work) for work in _watches(scope, store, way)]
    try:
        await execute(scope, way.call_step)
    finally:
        for task in watches:
            task.cancel()
        if all(step.completed_at for step in run.steps):
            await _conclude(scope, store)
    return run


def _watches(scope: RunScope, store: PlanStore, way: Way) -> Iterator[Coroutine[Any, Any, None]]:
    yield watch(scope.stop, partial(store.cancel_request, scope.run.id), every_seconds=STORE_POLL_SECONDS)
    if way.cancellation is not None:
        yield watch(scope.stop, way.cancellation, every_seconds=PREFECT_POLL_SECONDS)


async def _conclude(scope: RunScope, store: PlanStore) -> None:
    run, now = scope.run, scope.recorder.now()
    conclude(run, scope.stop)
    run.outputs, problem = _outputs(scope)
    run.message = run.message or problem
    run.completed_at = run.updated_at = now
    run.total_duration_ms = round((now - (run.started_at or now)).total_seconds() * 1000)
    await store.update_run(run)
    scope.tell("run_ended", message=run.message)
    await scope.call_hook(scope.hooks.on_plan_complete, run)


def _outputs(scope: RunScope) -> tuple[dict[str, JsonValue], str | None]:
    """Return the plan's outputs; those that cannot be computed are null, and the first one's error is returned in words."""
    outputs, problem = dict[str, JsonValue](), None
    for name, template in scope.approved.bound.validated.outputs.items():
        try:
            outputs[name] = template.resolve(scope.variables())
        except ExpressionError as error:
            outputs[name] = None
            problem = problem or f"output `{name}`: {error}"
    return outputs, problem


async def _create(bound: BoundPlan, store: PlanStore, occasion: Occasion, *, flow_run_id: str | None = None) -> PlanRun:
    """Return a new run of `bound`, recorded as pending its approval."""
    plan, context, now = bound.validated.plan, occasion.context, await store.now()
    run = PlanRun(
        id=new_id(),
        plan_id=plan.id,
        name=plan.name,
        description=plan.description,
        digest=bound.validated.digest,
        approval_digest=bound.approval_digest,
        inputs=bound.inputs,
        steps=_step_runs(bound.validated),
        created_at=now,
        updated_at=now,
        status=PlanStatus.PENDING_APPROVAL,
        flow_run_id=flow_run_id,
        task_id=context.task_id,
        agent_id=context.agent_id,
        org_id=context.org_id,
        tenant_id=context.tenant_id,
        metadata=dict(plan.metadata),
    )
    await store.create_run(run, bound.validated)
    return run


def _step_runs(validated: ValidatedPlan) -> list[StepRun]:
    return [
        StepRun(
            id=step.id,
            index=step.index,
            tool_name=step.tool_name or "",
            description=step.description,
            depends_on=validated.dependencies[step.id],
            max_retries=step.max_retries,
            retry_delay_ms=step.retry_delay_ms,
            metadata=dict(step.metadata),
        )
        for step in validated.plan.steps
    ]


# Approval.


def _is_answered(bound: BoundPlan, occasion: Occasion) -> bool:
    needed = requires_approval(bound.validated.plan, allow_unapproved=occasion.settings.allow_unapproved)
    return not needed or occasion.approval is not None or occasion.approver is not None


def _refuse_unapproved(bound: BoundPlan, occasion: Occasion) -> None:
    if not _is_answered(bound, occasion):
        raise NotApprovedError(
            f"`{bound.validated.plan.name}` requires an approval of {bound.approval_digest[:12]}…: give `approval=approve(plan, …)` "
            "or an approver, or let the plan say `options.require_approval: false`"
        )


async def _approved(bound: BoundPlan, run: PlanRun, store: PlanStore, occasion: Occasion) -> ApprovedPlan | None:
    """Return the plan as approved for `run`, or None where it was rejected, which is then recorded."""
    now = await store.now()
    used = next((row for row in await store.approvals(run.id) if row.decision == "approve"), None)
    if used is not None:
        return approved_plan(bound, replace(used, expires_at=None), now=now)
    answer = await _answer(bound, run, store, occasion)
    if answer.decision == "reject" and answer.approval_digest == bound.approval_digest:
        run.status, run.reason, run.message = PlanStatus.CANCELLED, RunReason.REJECTED, f"rejected by {answer.by}"
        run.rejection_note, run.completed_at = answer.note, now
        await store.add_approval(replace(answer, run_id=run.id))
        await store.update_run(run)
        return None
    approved = approved_plan(bound, answer, now=now)
    await store.use_approval(answer, run_id=run.id)
    run.status, run.approved_at, run.approved_by = PlanStatus.APPROVED, answer.at, answer.by
    return approved


async def _answer(bound: BoundPlan, run: PlanRun, store: PlanStore, occasion: Occasion) -> Approval:
    plan = bound.validated.plan
    if occasion.approval is not None:
        return occasion.approval
    if not requires_approval(plan, allow_unapproved=occasion.settings.allow_unapproved):
        return without_approval(bound, now=await store.now())
    if (waiting := await store.find_approval(bound.approval_digest)) is not None:
        return waiting
    if occasion.approver is None:
        _refuse_unapproved(bound, occasion)
    request = ApprovalRequest(bound.approval_digest, plan.name, plan.description, format_plan(plan), run_id=run.id)
    assert occasion.approver is not None  # noqa: S101
    return await occasion.approver.ask(request)


async def _refuse_resume(run: PlanRun, store: PlanStore) -> None:
    if run.status is PlanStatus.COMPLETED:
        raise RunConflictError(f"run {run.id} has completed; there is nothing to resume")
    if run.reason in (RunReason.REJECTED, RunReason.EXPIRED):
        raise RunConflictError(f"run {run.id} was {run.reason}; resuming approves nothing, start a new run")
    if run.status is PlanStatus.EXECUTING and await store.is_held(run.id):
        raise RunConflictError(f"run {run.id} is held by a process that lives; cancel it first, or wait for its end")


@asynccontextmanager
async def _opened(store: PlanStore | None, settings: Settings) -> AsyncIterator[PlanStore]:
    """Yield `store`, or the store of the settings, which is closed at the end."""
    if store is not None:
        yield store
        return
    async with PlanStore(settings.store_url) as opened:
        yield opened


def _complete(work: Coroutine[Any, Any, T], *, twin: str) -> T:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(work)
    work.close()
    raise RuntimeError(f"an event loop is running here: await `{twin}` instead")
