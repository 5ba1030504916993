"""The story of a run: validate, have it approved, compile, run, record. `run_plan` and its kin.

`run_plan`, `resume_run` and `cancel_run` are for code without an event loop; each has an async twin.
"""

import asyncio
from collections.abc import AsyncGenerator, Coroutine, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from pydantic import JsonValue

from plan_adapter.approval import Approver, refusal, rules_of
from plan_adapter.approvers.form import PrefectApprover
from plan_adapter.errors import NotApprovedError, RunConflictError
from plan_adapter.execution.carry import Past
from plan_adapter.execution.redrive import Redrive
from plan_adapter.execution.rollback import units_to_undo
from plan_adapter.hooks import Hooks
from plan_adapter.plan import ExecutionPlan, PlanStatus
from plan_adapter.record import Approval, PlanRun, Resolution, RunContext, RunReason
from plan_adapter.runs.approving import is_answered, not_approved, open_detached
from plan_adapter.runs.occasion import Occasion
from plan_adapter.runs.performing import Work, create_run, past_of, perform, perform_anywhere, prefect_way
from plan_adapter.runs.redrive import fates_of
from plan_adapter.runs.rollback import refuse_doubt, roll_back
from plan_adapter.settings import Settings
from plan_adapter.store.outcomes import Word
from plan_adapter.store.store import PlanStore
from plan_adapter.tools.registry import ToolRegistry
from plan_adapter.validation import BoundPlan, ValidatedPlan, bind_inputs, validate

if TYPE_CHECKING:
    from prefect import Flow

    from plan_adapter.engine.connection import Server

__all__ = [
    "Occasion",
    "acancel_run",
    "aresolve_step",
    "aresume_run",
    "arevise_run",
    "arun_plan",
    "cancel_run",
    "compile_plan",
    "execute_plan",
    "go_on",
    "resolve_step",
    "resume_run",
    "revise_run",
    "run_plan",
    "undo_run",
]

T = TypeVar("T")


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
    occasion = replace(_occasion(approval, approver, hooks), context=context or RunContext(), tools=tools)
    return await execute_plan(bind_inputs(validate(plan, tools), inputs), occasion=occasion, store=store, offline=offline)


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
            plan,
            tools=tools,
            inputs=inputs,
            approval=approval,
            approver=approver,
            store=store,
            hooks=hooks,
            context=context,
            offline=offline,
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
) -> PlanRun:
    """Go on with a run that stopped, and return its record: what has a succeeded receipt is carried, the rest is run.

    Uses the recorded plan and inputs. Resuming approves nothing: a run that waits for an approval needs one, and one whose tools
    have changed since it was approved raises NotApprovedError. Raises RunConflictError for a run that has completed, was rejected,
    or is held by a process that lives.
    """
    return await go_on(run_id, tools=tools, occasion=_occasion(approval, approver, hooks), store=store, offline=offline)


async def go_on(
    run_id: str,
    *,
    tools: ToolRegistry,
    occasion: Occasion,
    store: PlanStore | None = None,
    offline: bool = False,
    asked: Redrive | None = None,
) -> PlanRun:
    """Go on with a run that stopped: `aresume_run` for callers that have an occasion, and who want only some of its steps."""
    async with _opened(store, occasion.settings) as opened:
        run = await opened.run(run_id)
        await _refuse_resume(run, opened)
        plan = await opened.get(run.digest)
        bound = _as_recorded(run, plan, tools)
        occasion = replace(occasion, tools=tools)
        if run.status is PlanStatus.PENDING_APPROVAL and not await is_answered(bound, opened, occasion, run=run):
            raise not_approved(bound)
        past = await past_of(run, opened)
        work = _work_for(run, past)
        if asked is not None:
            if asked.skipped:
                _refuse_to_leave_out(plan, run, occasion)
            past = replace(past, fates=fates_of(run, bound.validated, past, asked))
        server = None if offline else await _server(occasion)
        return await perform_anywhere(bound, run, opened, occasion, past=past, server=server, work=work)


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


async def acancel_run(
    run_id: str,
    *,
    reason: str = "cancelled",
    rollback: bool = False,
    tools: ToolRegistry | None = None,
    store: PlanStore | None = None,
    offline: bool = False,
) -> PlanRun:
    """Ask the process that holds the run to end it, and return the run as it is now.

    A run that nobody holds is cancelled at once. Raises RunConflictError for a run that has ended.

    With `rollback` what its steps did is undone, too: by the process that holds it, else here, with `tools`; that of a run that has
    ended failed, partial or cancelled as well, in its flow run if it has one and not `offline`. Raises RunConflictError for a run that
    has completed, and where the outcome of a step is unknown; NotApprovedError where the tools have changed.
    """
    settings = Settings()
    async with _opened(store, settings) as opened:
        run = await opened.run(run_id)
        if not rollback:
            await opened.cancel(run.id, reason)
            return await opened.run(run.id)
        return await undo_run(run, reason=reason, tools=tools, occasion=Occasion(settings=settings), store=opened, offline=offline)


async def undo_run(
    run: PlanRun, *, reason: str, tools: ToolRegistry | None, occasion: Occasion, store: PlanStore, offline: bool = False
) -> PlanRun:
    """Cancel `run` unless it has ended, and have what it did undone: `acancel_run` with `rollback`, for callers that have an occasion."""
    if run.status is PlanStatus.COMPLETED:
        raise RunConflictError(f"run {run.id} has completed: only a run that failed or was cancelled is rolled back")
    past = await past_of(run, store)
    was_interrupted = run.reason is RunReason.INTERRUPTED and past.has_rollbacks
    if run.completed_at is None and not was_interrupted:
        await store.cancel(run.id, reason, rollback=True)
    if await store.holder(run.id) is not None:  # who executes it undoes it
        return await store.run(run.id)
    run = await store.run(run.id)
    past, plan = await past_of(run, store), await store.get(run.digest)
    refuse_doubt(run, past)
    if not units_to_undo(plan, past) and not was_interrupted:
        return run
    if tools is None:
        raise RunConflictError(f"nobody executes run {run.id}: what undoes it needs `tools`")
    bound = _as_recorded(run, plan, tools)
    server = None if offline or run.flow_run_id is None else await _server(occasion)
    return await perform_anywhere(bound, run, store, occasion, past=past, server=server, work=roll_back)


def cancel_run(
    run_id: str,
    *,
    reason: str = "cancelled",
    rollback: bool = False,
    tools: ToolRegistry | None = None,
    store: PlanStore | None = None,
    offline: bool = False,
) -> PlanRun:
    """Ask the process that holds the run to end it, and return the run as it is now; see `acancel_run`."""
    return _complete(acancel_run(run_id, reason=reason, rollback=rollback, tools=tools, store=store, offline=offline), twin="acancel_run")


async def aresolve_step(
    run_id: str,
    step_id: str,
    resolution: Resolution,
    *,
    by: str,
    known_by: str = "unverified",
    item: int | None = None,
    result: JsonValue = None,
    note: str = "",
    store: PlanStore | None = None,
) -> PlanRun:
    """Say how a write ended of which nobody knows it, and return the run, which `resume_run` then goes on with.

    `done`: it was done, with this `result`; `again`: it was not, and is to be done; `abort`: the run ends as cancelled. The word is kept as
    the receipt of the attempt, with who gave it. Raises NotApprovedError for somebody who may not answer at the gates of this plan, and
    RunConflictError where a process executes the run or nothing of the step is unknown.
    """
    settings = Settings()
    async with _opened(store, settings) as opened:
        run = await opened.run(run_id)
        rules = rules_of(await opened.get(run.digest), settings, requested_by=run.requested_by or "")
        if (why := refusal(rules, by=by, known_by=known_by, decision="reject")) is not None:
            raise NotApprovedError(why)
        await opened.resolve(run.id, step_id, Word(resolution, by, known_by, note, result), item=item)
        return await opened.run(run.id)


def resolve_step(
    run_id: str,
    step_id: str,
    resolution: Resolution,
    *,
    by: str,
    known_by: str = "unverified",
    item: int | None = None,
    result: JsonValue = None,
    note: str = "",
    store: PlanStore | None = None,
) -> PlanRun:
    """Say how a write ended of which nobody knows it, and return the run; see `aresolve_step`."""
    return _complete(
        aresolve_step(run_id, step_id, resolution, by=by, known_by=known_by, item=item, result=result, note=note, store=store),
        twin="aresolve_step",
    )


async def execute_plan(
    bound: BoundPlan,
    *,
    occasion: Occasion,
    store: PlanStore | None = None,
    offline: bool = False,
    record_pending: bool = False,
) -> PlanRun:
    """Run a validated plan with its inputs: `arun_plan` for callers that have one.

    With `record_pending` a plan that nobody is there to approve is recorded as pending_approval and returned, not raised.
    """
    server = None if offline else await _server(occasion)
    async with _opened(store, occasion.settings) as opened:
        answered = await is_answered(bound, opened, occasion)
        if not answered and not record_pending:
            raise not_approved(bound)
        run = await create_run(bound, opened, occasion)
        if not answered:
            await open_detached(bound, run, opened, occasion.settings)
            return run
        return await perform_anywhere(bound, run, opened, occasion, past=Past(), server=server)


async def arevise_run(
    run_id: str, plan: ExecutionPlan, *, tools: ToolRegistry, by: str, note: str = "", store: PlanStore | None = None
) -> PlanRun:
    """Put `plan`, as a new version, into a run that has not ended, and return the run, which waits for its approval again.

    The run keeps its inputs, its receipts and the approvals of single steps that the new version leaves as they are. A process that
    waits at the run's gate asks anew, and shows what differs. Raises InvalidPlanError, and RunConflictError where the run has ended,
    is being executed, was rolled back, or has begun a step that the new version changes.
    """
    settings = Settings()
    async with _opened(store, settings) as opened:
        run = await opened.run(run_id)
        if (await past_of(run, opened)).has_rollbacks:
            raise _rolled_back(run)
        bound = bind_inputs(validate(plan, tools), run.inputs)
        attended = any(gate.attended is not False for gate in await opened.gates(run_id=run.id))
        revised = await opened.revise_run(run.id, bound.validated, bound.approval_digest, by=by, note=note)
        if not attended:
            await open_detached(bound, revised, opened, settings)
        return revised


def revise_run(
    run_id: str, plan: ExecutionPlan, *, tools: ToolRegistry, by: str, note: str = "", store: PlanStore | None = None
) -> PlanRun:
    """Put `plan`, as a new version, into a run that has not ended, and return the run; see `arevise_run`."""
    return _complete(arevise_run(run_id, plan, tools=tools, by=by, note=note, store=store), twin="arevise_run")


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
    store; without one it pauses at a form before its first step, and `approver`, if there is one, is asked, too. A re-run of one of
    its flow runs carries what has receipts.
    """
    from plan_adapter.engine.compiler import flow_of

    if tools is not None:
        validated = validate(validated.plan, tools)
    file = validated.plan._file  # pyright: ignore[reportPrivateUsage]  # where the reader of the document found it
    occasion = partial(
        Occasion,
        approval,
        approver,
        hooks=hooks or Hooks(),
        context=context or RunContext(),
        tools=tools,
        asks_in_form=True,
        plan_file=None if file is None else Path(file),
    )
    return flow_of(validated, partial(_flow_body, validated, occasion, store))


async def _flow_body(
    validated: ValidatedPlan, given: partial[Occasion], store: PlanStore | None, inputs: dict[str, Any], flow_run_id: str
) -> PlanRun:
    """Run `validated` inside the flow run `flow_run_id`; go on with its run where the flow run has one."""
    from plan_adapter.engine.flow_runs import origin

    came_from = await origin()
    occasion = given(requested_by=came_from.requested_by, schedule=came_from.schedule)
    bound = bind_inputs(validated, inputs)
    async with _opened(store, occasion.settings) as opened:
        run, past = await opened.run_of_flow(flow_run_id), Past()
        if run is None:
            run = await create_run(bound, opened, occasion, flow_run_id=flow_run_id)
        elif run.reason in (RunReason.REJECTED, RunReason.EXPIRED):  # while it had given its worker back
            return run
        else:
            await _refuse_resume(run, opened)
            if bound.approval_digest != run.approval_digest:
                raise NotApprovedError(
                    f"the plan, the inputs or the tools of run {run.id} are not those that it was made with: start a new run, "
                    f"or `plan revise {run.id}` and `plan resume {run.id}`"
                )
            past = await past_of(run, opened)
        return await _work_for(run, past)(bound, run, opened, occasion, past=past, way=prefect_way(flow_run_id, opened))


def _occasion(approval: Approval | None, approver: Approver | None, hooks: Hooks | None) -> Occasion:
    """Return the occasion of a call from code; a PrefectApprover is the form itself."""
    if isinstance(approver, PrefectApprover):
        return Occasion(approval, None, asks_in_form=True, hooks=hooks or Hooks())
    return Occasion(approval, approver, hooks=hooks or Hooks())


async def _server(occasion: Occasion) -> "Server":
    if occasion.server is not None:
        return occasion.server
    from plan_adapter.engine.local_server import server_for

    return await asyncio.to_thread(server_for, occasion.settings)


def _work_for(run: PlanRun, past: Past) -> Work:
    """Return what goes on with `run`: its steps, or its rollback where that was interrupted; raises RunConflictError after a rollback."""
    if not past.has_rollbacks:
        return perform
    if run.status is PlanStatus.EXECUTING:
        refuse_doubt(run, past)
        return roll_back
    raise _rolled_back(run)


def _rolled_back(run: PlanRun) -> RunConflictError:
    return RunConflictError(
        f"run {run.id} was rolled back, so that its steps cannot go on: start a new run (`plan show {run.id}` says what is undone, "
        f"`plan cancel {run.id} --rollback` undoes what is left)"
    )


def _refuse_to_leave_out(plan: ExecutionPlan, run: PlanRun, occasion: Occasion) -> None:
    """Raise NotApprovedError unless who goes on may answer at the gates of the plan: without a step it is not what was approved."""
    rules = rules_of(plan, occasion.settings, requested_by=run.requested_by or "")
    if (why := refusal(rules, by=occasion.requested_by, known_by="os_user", decision="approve")) is not None:
        raise NotApprovedError(f"a step may not be left out: {why}")


def _as_recorded(run: PlanRun, plan: ExecutionPlan, tools: ToolRegistry) -> BoundPlan:
    """Return the recorded plan of `run` with its inputs; raises NotApprovedError where its tools are not those that were approved."""
    bound = bind_inputs(validate(plan, tools), run.inputs)
    if bound.approval_digest != run.approval_digest:
        raise NotApprovedError(
            f"the tools of run {run.id} have changed since it was approved (name, parameters, effect or permissions); start a new run"
        )
    return bound


async def _refuse_resume(run: PlanRun, store: PlanStore) -> None:
    if run.status is PlanStatus.COMPLETED:
        raise RunConflictError(f"run {run.id} has completed; there is nothing to resume")
    if run.reason in (RunReason.REJECTED, RunReason.EXPIRED):
        raise RunConflictError(f"run {run.id} was {run.reason}; resuming approves nothing, start a new run")
    if run.status is PlanStatus.PENDING_APPROVAL and any(gate.attended for gate in await store.gates(run_id=run.id)):
        raise RunConflictError(f"a process on this host waits for an approval of run {run.id}: `plan approve {run.id}` answers there")
    if run.status is PlanStatus.EXECUTING and (holder := await store.holder(run.id)) is not None:
        raise RunConflictError(f"run {run.id} is executed by {holder}; cancel it first, or wait for its end")


@asynccontextmanager
async def _opened(store: PlanStore | None, settings: Settings) -> AsyncGenerator[PlanStore]:
    """Yield `store`, or the store of the settings, which is closed at the end."""
    if store is not None:
        yield store
        return
    async with PlanStore(settings.store_url) as opened:
        yield opened


def _complete(work: Coroutine[Any, Any, T], *, twin: str) -> T:
    if _is_in_event_loop():
        work.close()
        raise RuntimeError(f"an event loop is running here: await `{twin}` instead")
    return asyncio.run(work)


def _is_in_event_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True
