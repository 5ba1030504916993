"""Run, resume, revise, resolve and cancel plans from Python.

`run_plan`, `resume_run` and `cancel_run` are for code without an event loop; each has an async twin.
"""

import asyncio
from collections.abc import Coroutine, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from pydantic import JsonValue

from plan_adapter.drafts import Draft
from plan_adapter.gates.approval import Approver, requires_approval
from plan_adapter.gates.approvers import PrefectApprover
from plan_adapter.hooks import Hooks
from plan_adapter.plan import CallKind, ExecutionPlan
from plan_adapter.readable import call_name, one_line
from plan_adapter.record import Approval, PlanRun, Resolution, RunContext
from plan_adapter.runs.approval import open_detached
from plan_adapter.runs.folders import in_folder
from plan_adapter.runs.permissions import require_approver, require_operator
from plan_adapter.runs.replan import Replanner, refuse_replanning
from plan_adapter.runs.resume import execute_in_flow, execute_resume, rolled_back
from plan_adapter.runs.rollback import rollback_run
from plan_adapter.runs.session import RunRequest, opened_store
from plan_adapter.runs.start import execute_plan
from plan_adapter.settings import Settings
from plan_adapter.store.outcomes import Word
from plan_adapter.store.store import PlanStore
from plan_adapter.tools.registry import ToolRegistry
from plan_adapter.validation import ValidatedPlan, bind_inputs, validate

if TYPE_CHECKING:
    from prefect import Flow


__all__ = [
    "acancel_run",
    "aresolve_step",
    "aresume_run",
    "arevise_run",
    "arun_plan",
    "cancel_run",
    "compile_plan",
    "draft_revision",
    "resolve_step",
    "resume_run",
    "revise_run",
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
    async with opened_store(store, settings) as opened:
        run, run_request = await opened.run(run_id), _run_request(None, None, None, by)
        if not rollback:
            plan = await opened.get(run.digest)
            await require_operator(plan, run, opened, settings, by=run_request.operator, operation="cancel")
            await opened.cancel(run.id, reason)
            return await opened.run(run.id)
        return await rollback_run(run, reason=reason, tools=tools, run_request=run_request, store=opened, offline=offline)


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
    rollback: bool = False,
    store: PlanStore | None = None,
) -> PlanRun:
    """Say how a write ended of which nobody knows it, and return the run, which `resume_run` then goes on with.

    `done`: it was done, with this `result`; `again`: it was not, and is to be done; `abort`: the run ends as cancelled. The word is kept as
    the receipt of the attempt, with who gave it; a process that waits for it, in a form or at its terminal, goes on at once. Raises
    NotApprovedError for somebody who may not answer at the gates of this plan, and RunConflictError where a process executes the run
    that does not ask about it, or nothing of the step is unknown. With `rollback` it is said of the rollback of the step.
    """
    settings = Settings()
    async with opened_store(store, settings) as opened:
        run = await opened.run(run_id)
        kind: CallKind = "rollback" if rollback else "step"
        plan, doing = await opened.get(run.digest), f"`{one_line(call_name(step_id, None, kind=kind))}` is not resolved"
        await require_approver(plan, run, opened, settings, by=by, known_by=known_by, decision="reject", doing=doing)
        await opened.resolve(run.id, step_id, Word(resolution, by, known_by, note, result), item=item, kind=kind)
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
    rollback: bool = False,
    store: PlanStore | None = None,
) -> PlanRun:
    """Say how a write ended of which nobody knows it, and return the run; see `aresolve_step`."""
    return _complete(
        aresolve_step(
            run_id, step_id, resolution, by=by, known_by=known_by, item=item, result=result, note=note, rollback=rollback, store=store
        ),
        twin="aresolve_step",
    )


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
    async with opened_store(store, settings) as opened:
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
    async with opened_store(store, settings) as opened:
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
    return flow_of(validated, partial(execute_in_flow, validated, run_request, store))


def _run_request(approval: Approval | None, approver: Approver | None, hooks: Hooks | None, by: str | None) -> RunRequest:
    """Return the occasion of a call from code; a PrefectApprover is the form itself."""
    is_form = isinstance(approver, PrefectApprover)
    run_request = RunRequest(approval, None if is_form else approver, asks_in_form=is_form, hooks=hooks or Hooks())
    return run_request if by is None else replace(run_request, requested_by=by)


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
