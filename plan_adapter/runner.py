"""The story of a run: validate, have it approved, compile, run, record. `run_plan` and its kin.

`run_plan`, `resume_run` and `cancel_run` are for code without an event loop; each has an async twin.
"""

import asyncio
from collections.abc import AsyncGenerator, Coroutine, Generator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from pydantic import JsonValue

from plan_adapter.drafts import Draft
from plan_adapter.errors import NotApprovedError, RunConflictError
from plan_adapter.execution.history import ResumeOptions, RunHistory
from plan_adapter.execution.rollback import units_to_roll_back
from plan_adapter.gates.approval import Approver, refuse_operation, requires_approval
from plan_adapter.gates.approvers import PrefectApprover
from plan_adapter.hooks import Hooks
from plan_adapter.plan import ExecutionPlan, PlanStatus
from plan_adapter.readable import one_line
from plan_adapter.record import Approval, PlanRun, Resolution, RunContext, RunReason
from plan_adapter.runs.approval import end_overdue, is_answered, not_approved, open_detached, refuse_approver
from plan_adapter.runs.cancel import cancelled_before, is_cancelled
from plan_adapter.runs.folders import in_folder, moved_here, refuse_elsewhere, refuse_rollback_elsewhere
from plan_adapter.runs.operator_requests import record_operator_request, with_operator_requests
from plan_adapter.runs.permissions import require_approver, require_operator, require_resume_operator
from plan_adapter.runs.replan import Replanner, refuse_replanning, tools_of_plan
from plan_adapter.runs.resume import action_left, needs_approval, refuse_missing_now, refuse_resume, reopened_gate, rolled_back
from plan_adapter.runs.rollback import is_guarded, refuse_unknown_outcome, roll_back, version_done, with_approved_rollbacks
from plan_adapter.runs.secrets import refuse_missing
from plan_adapter.runs.session import RunRequest, RunSession
from plan_adapter.runs.start import create_run, perform, perform_anywhere, prefect_backend
from plan_adapter.runs.tool_drift import as_recorded, is_same_but_for_tools, take_tools
from plan_adapter.settings import Settings
from plan_adapter.store.outcomes import Word
from plan_adapter.store.store import PlanStore
from plan_adapter.tools.registry import ToolRegistry
from plan_adapter.validation import BoundPlan, ValidatedPlan, bind_inputs, validate

if TYPE_CHECKING:
    from prefect import Flow

    from plan_adapter.engine.connection import Server

__all__ = [
    "RunRequest",
    "acancel_run",
    "aresolve_step",
    "aresume_run",
    "arevise_run",
    "arun_plan",
    "cancel_run",
    "compile_plan",
    "draft_revision",
    "execute_plan",
    "execute_resume",
    "resolve_step",
    "resume_run",
    "revise_run",
    "rollback_run",
    "run_plan",
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
    by: str | None = None,
) -> PlanRun:
    """Run `plan` and return the record of the run, however its steps ended.

    With a Prefect API URL in Prefect's settings the run is a flow run there; without one, on a local server that is started once.
    `offline` runs without Prefect. `store` None is the store of the settings. `by` is who starts it, taken at its word; None: the
    operating system's user. Raises InvalidPlanError, NotApprovedError (before anything is run; also for who is no operator of the
    plan), NoServerError and StoreError.
    """
    run_request = replace(_run_request(approval, approver, hooks, by), context=context or RunContext(), tools=tools)
    return await execute_plan(bind_inputs(validate(plan, tools), inputs), run_request=run_request, store=store, offline=offline)


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
    by: str | None = None,
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
            by=by,
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
    by: str | None = None,
    here: bool = False,
) -> PlanRun:
    """Go on with a run that stopped, and return its record: what has a succeeded receipt is carried, the rest is run.

    Uses the recorded plan and inputs. Resuming approves nothing: a run that waits for an approval needs one, and one whose tools
    have changed since it was approved (name, parameters, effect, permissions) opens its gate again, which shows what of them changed.
    A run goes on in the folder that it was created in; with `here` it is moved to the current one, which an approver is asked about
    first (what `approve` returns covers no folder). `by` is who resumes it, taken at its word; None: the operating system's user.
    Raises NotApprovedError, and changes nothing, where nobody is there to be asked, in another folder without `here`, and for who is no
    operator of the plan; RunConflictError for a run that has completed, was rejected, or is held by a process that lives.
    """
    return await execute_resume(
        run_id, tools=tools, run_request=_run_request(approval, approver, hooks, by), store=store, offline=offline, here=here
    )


async def execute_resume(
    run_id: str,
    *,
    tools: ToolRegistry,
    run_request: RunRequest,
    store: PlanStore | None = None,
    offline: bool = False,
    asked: ResumeOptions | None = None,
    record_pending: bool = False,
    here: bool = False,
) -> PlanRun:
    """Go on with a run that stopped: `aresume_run` for callers that have an occasion, and who want only some of its steps.

    With `record_pending` a run that nobody is there to approve is left waiting at its gate and returned, not raised. One that has not
    ended, and that somebody cancelled in Prefect while no process had it, ends as cancelled, with the reason; going on once more is a new
    word.
    """
    async with _opened(store, run_request.settings) as opened:
        recorded = await opened.recorded(run_id)
        if recorded.has_open_gates:
            await end_overdue(recorded.run, opened)
            recorded = await opened.recorded(recorded.run.id)  # all of it: a past that is older than its run would do things again
        run, plan, history = recorded.run, recorded.plan, recorded.history
        await require_resume_operator(run, plan, opened, run_request)
        await refuse_resume(run, opened)  # first: a process that has it is told by Prefect itself
        if not offline and run.flow_run_id is not None and run.completed_at is None and await _was_cancelled(run, opened, run_request):
            return await opened.run(run.id)
        work = action_left(run, plan, history, recorded.kept, asked=asked)
        if work is not perform:
            refuse_rollback_elsewhere(run, run_request.settings)
        elif not here:
            refuse_elsewhere(run, run_request.settings)
        moved_to = moved_here(run_request.settings, run) if work is perform else None
        bound = as_recorded(run, plan, tools, moved_to=moved_to)
        run_request = replace(run_request, tools=tools)
        asks = work is perform and await needs_approval(bound, run, opened, run_request)
        if asked is not None:
            history = await with_operator_requests(run, bound.validated, history, asked, opened, run_request)
        server = None if offline else await _server(run_request)
        if work is not perform:
            bound = await with_approved_rollbacks(bound, run, history, opened)
        else:
            with _known(server):
                await refuse_missing_now(bound, run, history, run_request)
        if asks:
            await refuse_approver(bound, opened, run_request, run=run)
            with _known(server):
                run, is_waiting = await reopened_gate(bound, run, opened, run_request, record_pending=record_pending)
            if is_waiting and (offline or not await opened.gates(run_id=run.id)):  # else its flow run shows the gate
                return await opened.run(run.id)
        return await perform_anywhere(RunSession(bound, run, opened, run_request, history), server=server, action=work)


def resume_run(
    run_id: str,
    *,
    tools: ToolRegistry,
    approval: Approval | None = None,
    approver: Approver | None = None,
    store: PlanStore | None = None,
    hooks: Hooks | None = None,
    offline: bool = False,
    by: str | None = None,
    here: bool = False,
) -> PlanRun:
    """Go on with a run that stopped, and return its record; see `aresume_run`."""
    return _complete(
        aresume_run(run_id, tools=tools, approval=approval, approver=approver, store=store, hooks=hooks, offline=offline, by=by, here=here),
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
    by: str | None = None,
) -> PlanRun:
    """Ask the process that holds the run to end it, and return the run as it is now.

    A run that nobody holds is cancelled at once. `by` is who cancels it, taken at its word; None: the operating system's user. Raises
    RunConflictError for a run that has ended, and NotApprovedError for who is no operator of the plan.

    With `rollback` what its steps did is undone, too: by the process that holds it, else here, with `tools`; that of a run that has
    ended failed, partial or cancelled as well, in its flow run if it has one and not `offline`. Raises RunConflictError for a run that
    has completed, and where the outcome of a step is unknown; NotApprovedError where the tools have changed.
    """
    settings = Settings()
    async with _opened(store, settings) as opened:
        run, run_request = await opened.run(run_id), _run_request(None, None, None, by)
        if not rollback:
            plan = await opened.get(run.digest)
            await require_operator(plan, run, opened, settings, by=run_request.operator, operation="cancel")
            await opened.cancel(run.id, reason)
            return await opened.run(run.id)
        return await rollback_run(run, reason=reason, tools=tools, run_request=run_request, store=opened, offline=offline)


async def rollback_run(
    run: PlanRun, *, reason: str, tools: ToolRegistry | None, run_request: RunRequest, store: PlanStore, offline: bool = False
) -> PlanRun:
    """Cancel `run` unless it has ended, and have what it did undone: `acancel_run` with `rollback`, for callers that have an occasion."""
    version = await version_done(run, store)
    plan = await store.get(run.digest if version is None else version.digest)  # a version that nobody approved says of nobody that they may
    await require_operator(plan, run, store, run_request.settings, by=run_request.operator, operation="rollback")
    if run.status is PlanStatus.COMPLETED:
        raise RunConflictError(f"run {run.id} has completed: only a run that failed or was cancelled is rolled back")
    policy = await store.policy_in_force(run_request.settings)
    await record_operator_request("undo", (), reason, run, plan, store, run_request, is_guarded=is_guarded(plan, policy))
    history = await store.history(run.id)
    was_interrupted = run.reason is RunReason.INTERRUPTED and history.has_rollbacks
    if run.completed_at is None and not was_interrupted:
        await store.cancel(run.id, reason, rollback=True)
    if await store.owner(run.id) is not None:  # who executes it undoes it
        return await store.run(run.id)
    run = await store.run(run.id)
    history = await store.history(run.id)
    refuse_unknown_outcome(run, history)
    if not units_to_roll_back(plan, history) and not was_interrupted:
        return run
    if tools is None:
        raise RunConflictError(f"nobody executes run {run.id}: what undoes it needs `tools`")
    done = run if version is None else replace(run, digest=version.digest, folder=version.folder)
    refuse_rollback_elsewhere(done, run_request.settings)
    bound = as_recorded(done, plan, tools)
    if version is not None:
        run = await store.put_back(run.id, version, bound.validated, by=run_request.operator)
    bound = await with_approved_rollbacks(bound, run, history, store)
    server = None if offline or run.flow_run_id is None else await _server(run_request)
    return await perform_anywhere(RunSession(bound, run, store, run_request, history), server=server, action=roll_back)


def cancel_run(
    run_id: str,
    *,
    reason: str = "cancelled",
    rollback: bool = False,
    tools: ToolRegistry | None = None,
    store: PlanStore | None = None,
    offline: bool = False,
    by: str | None = None,
) -> PlanRun:
    """Ask the process that holds the run to end it, and return the run as it is now; see `acancel_run`."""
    return _complete(
        acancel_run(run_id, reason=reason, rollback=rollback, tools=tools, store=store, offline=offline, by=by), twin="acancel_run"
    )


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
    the receipt of the attempt, with who gave it; a process that waits for it, in a form or at its terminal, goes on at once. Raises
    NotApprovedError for somebody who may not answer at the gates of this plan, and RunConflictError where a process executes the run
    that does not ask about it, or nothing of the step is unknown.
    """
    settings = Settings()
    async with _opened(store, settings) as opened:
        run = await opened.run(run_id)
        plan, doing = await opened.get(run.digest), f"`{one_line(step_id)}` is not resolved"
        await require_approver(plan, run, opened, settings, by=by, known_by=known_by, decision="reject", doing=doing)
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
    run_request: RunRequest,
    store: PlanStore | None = None,
    offline: bool = False,
    record_pending: bool = False,
) -> PlanRun:
    """Run a validated plan with its inputs: `arun_plan` for callers that have one.

    With `record_pending` a plan that nobody is there to approve is recorded as pending_approval and returned, not raised.
    """
    async with _opened(store, run_request.settings) as opened:
        policy = await opened.policy_in_force(run_request.settings)
        refuse_operation(bound.validated.plan, policy, by=run_request.operator, operation="run")
        server = None if offline else await _server(run_request)
        answered = await is_answered(bound, opened, run_request)
        if not answered and not record_pending:
            raise await not_approved(bound, opened, run_request.settings)
        with _known(server):
            await refuse_missing(bound.validated, run_request.settings)
            await refuse_approver(bound, opened, run_request)
            run = await create_run(bound, opened, run_request)
            if not answered and server is None:
                await open_detached(bound, run, opened, run_request.settings)
                return run
            return await perform_anywhere(RunSession(bound, run, opened, run_request), server=server)


@contextmanager
def _known(server: "Server | None") -> Generator[None]:
    """Let what is looked up within find the blocks of `server`, too."""
    if server is None:
        yield
        return
    from plan_adapter.engine.connection import use_server

    with use_server(server):
        yield


async def arevise_run(
    run_id: str, plan: ExecutionPlan, *, tools: ToolRegistry, by: str, note: str = "", store: PlanStore | None = None
) -> PlanRun:
    """Put `plan`, as a new version, into a run that has not ended, and return the run, which waits for its approval again.

    The run keeps its inputs, its receipts and the approvals of single steps that the new version leaves as they are. A process that
    waits at the run's gate asks anew, and shows what differs. Raises InvalidPlanError, NotApprovedError for who is no operator of the
    plan that the run has, and RunConflictError where the run has completed, is being executed, was rolled back, or where the new version
    changes or leaves out a step that has succeeded or may have been done; one all of whose attempts have failed may be mended.
    """
    settings = Settings()
    async with _opened(store, settings) as opened:
        run = await opened.run(run_id)
        await require_operator(await opened.get(run.digest), run, opened, settings, by=by, operation="revise")
        if (await opened.history(run.id)).has_rollbacks:
            raise rolled_back(run)
        bound = in_folder(bind_inputs(validate(plan, tools), run.inputs), run.folder)
        attended = any(gate.attended is not False for gate in await opened.gates(run_id=run.id))
        revised = await opened.revise_run(run.id, bound.validated, bound.approval_digest, by=by, note=note)
        if not attended and requires_approval(bound.validated.plan, await opened.policy_in_force(settings)):
            await open_detached(bound, revised, opened, settings)
        return revised


def revise_run(
    run_id: str, plan: ExecutionPlan, *, tools: ToolRegistry, by: str, note: str = "", store: PlanStore | None = None
) -> PlanRun:
    """Put `plan`, as a new version, into a run that has not ended, and return the run; see `arevise_run`."""
    return _complete(arevise_run(run_id, plan, tools=tools, by=by, note=note, store=store), twin="arevise_run")


async def draft_revision(
    run_id: str, words: str, *, replanner: Replanner, tools: ToolRegistry, by: str, store: PlanStore | None = None
) -> Draft:
    """Return the draft of a new version of what is left of a run's plan, made of its record and a person's words; nothing else is changed.

    Its plan, if one came of it, is for `arevise_run`. Raises NotApprovedError for who is no operator of the plan, RunConflictError where
    the run takes no new version or an outcome is unknown, ModelError, and InvalidPlanError where its tools are not at hand.
    """
    settings = Settings()
    async with _opened(store, settings) as opened:
        run = await opened.run(run_id)
        plan = await opened.get(run.digest)
        await require_operator(plan, run, opened, settings, by=by, operation="revise")
        history = await opened.history(run.id)
        if history.has_rollbacks:
            raise rolled_back(run)
        await refuse_replanning(run, plan, history, opened)
        return await replanner.drafted(run, words, validated=validate(plan, tools), tools=tools, history=history, store=opened)


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
    from plan_adapter.engine.flow import flow_of

    if tools is not None:
        validated = validate(validated.plan, tools)
    file = validated.plan._file  # pyright: ignore[reportPrivateUsage]  # where the reader of the document found it
    run_request = partial(
        RunRequest,
        approval,
        approver,
        hooks=hooks or Hooks(),
        context=context or RunContext(),
        tools=tools,
        asks_in_form=True,
        plan_file=None if file is None else Path(file),
    )
    return flow_of(validated, partial(_flow_body, validated, run_request, store))


async def _flow_body(
    validated: ValidatedPlan, given: partial[RunRequest], store: PlanStore | None, inputs: dict[str, Any], flow_run_id: str
) -> PlanRun:
    """Run `validated` inside the flow run `flow_run_id`; go on with its run where the flow run has one."""
    from plan_adapter.engine.flow_runs import origin
    from plan_adapter.engine.termination import ended_in_order

    came_from = await origin()
    run_request = given(requested_by=came_from.requested_by, schedule=came_from.schedule, deployment=came_from.deployment)
    bound = bind_inputs(validated, inputs)
    async with _opened(store, run_request.settings) as impatient:
        opened = impatient.patient(run_request.settings.store_patience_seconds)
        run, work, history = await opened.run_of_flow(flow_run_id), perform, RunHistory()
        if run is None:
            policy = await opened.policy_in_force(run_request.settings)
            refuse_operation(bound.validated.plan, policy, by=run_request.operator, operation="run")
            await refuse_missing(bound.validated, run_request.settings)
            run = await create_run(bound, opened, run_request, flow_run_id=flow_run_id)
        elif run.reason in (RunReason.REJECTED, RunReason.EXPIRED):  # while it had given its worker back
            return run
        else:
            await require_resume_operator(run, bound.validated.plan, opened, run_request)
            await refuse_resume(run, opened)
            if not is_same_but_for_tools(bound, run):
                bound, run_request = await _revised(bound, run, opened, run_request), replace(run_request, approval=None)
            else:
                bound = in_folder(bound, run.folder)
            history = await opened.history(run.id)
            work = action_left(run, bound.validated.plan, history, await opened.reason_of(run.id))
            if work is not perform:
                bound = await with_approved_rollbacks(bound, run, history, opened)
            else:
                await refuse_missing_now(bound, run, history, run_request)
                if bound.approval_digest != run.approval_digest:
                    run = await take_tools(bound, run, opened, by=run_request.requested_by)
        backend = prefect_backend(flow_run_id, opened, run_request.settings)
        async with ended_in_order(partial(is_cancelled, run, flow_run_id, opened)) as is_cut_short:
            return await work(RunSession(bound, run, opened, run_request, history, replace(backend, is_cut_short=is_cut_short)))


async def _revised(bound: BoundPlan, run: PlanRun, store: PlanStore, run_request: RunRequest) -> BoundPlan:
    """Return the version that `run` has now, where `bound` is one that it took the place of; raises NotApprovedError for any other plan."""
    if bound.inputs == run.inputs and any(one.digest == bound.validated.digest for one in await store.revisions(run.id)):
        tools = run_request.tools or tools_of_plan(bound.validated)
        return as_recorded(run, (await store.recorded(run.id)).plan, tools)
    raise NotApprovedError(
        f"the plan or the inputs of run {run.id} are not those that it was made with: start a new run, "
        f"or `plan revise {run.id}` and `plan resume {run.id}`"
    )


def _run_request(approval: Approval | None, approver: Approver | None, hooks: Hooks | None, by: str | None) -> RunRequest:
    """Return the occasion of a call from code; a PrefectApprover is the form itself."""
    is_form = isinstance(approver, PrefectApprover)
    run_request = RunRequest(approval, None if is_form else approver, asks_in_form=is_form, hooks=hooks or Hooks())
    return run_request if by is None else replace(run_request, requested_by=by)


async def _server(run_request: RunRequest) -> "Server":
    if run_request.server is not None:
        return run_request.server
    from plan_adapter.engine.local_server import server_for

    return await asyncio.to_thread(server_for, run_request.settings)


async def _was_cancelled(run: PlanRun, store: PlanStore, run_request: RunRequest) -> bool:
    """Return whether `run` ends here, because somebody cancelled it in Prefect while no process executed it."""
    from plan_adapter.engine.connection import use_server

    with use_server(await _server(run_request)):
        return await cancelled_before(run, store) is not None


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
