"""Run, resume, revise, resolve and cancel plans from Python.

A function whose name begins with `a` is awaited. Its twin without the `a` is for code without an event loop: `run_plan` for `arun_plan`.
"""

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

from pydantic import JsonValue

from plan_adapter.gates.approval import Approver, os_user, requires_approval
from plan_adapter.gates.approvers import PrefectApprover
from plan_adapter.gates.identity import identity_of_account
from plan_adapter.loading import PlanSource, aplan_of, plan_of
from plan_adapter.local.settings import Settings
from plan_adapter.model.approvals import Approval, Resolution
from plan_adapter.model.hooks import Hooks
from plan_adapter.model.options import CallKind
from plan_adapter.model.problems import did_you_mean
from plan_adapter.model.readable import call_name, one_line
from plan_adapter.model.record import PlanRun, RunContext
from plan_adapter.runs import resolve as started_commands
from plan_adapter.runs.folders import in_folder
from plan_adapter.runs.plan_approval import open_detached_gate
from plan_adapter.runs.replan import Replanner, refuse_replanning
from plan_adapter.runs.resume import execute_in_flow, execute_resume, rolled_back_error
from plan_adapter.runs.run_rollback import rollback_run
from plan_adapter.runs.run_session import RunRequest, opened_store, require_approver, require_operator, server_of
from plan_adapter.runs.start import execute_plan
from plan_adapter.runs.variables import note_variables, with_variables
from plan_adapter.store.outcomes import ResolutionRecord
from plan_adapter.store.store import PlanStore
from plan_adapter.tools.registry import Tools, as_registry
from plan_adapter.twins import sync_twin
from plan_adapter.validation import ValidatedPlan, bind_inputs, validate

if TYPE_CHECKING:
    from prefect import Flow

    from plan_adapter.model.drafts import Draft


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


async def arun_plan(
    plan: PlanSource,
    *,
    tools: Tools,
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

    `plan` is an ExecutionPlan, a path, the text of a document, or `store:NAME@VERSION` (see `load_plan`). `tools` is a registry, a list of
    tools and functions, or a module.

    If Prefect's settings name an API URL, the run is a flow run on that server. Otherwise it is a flow run on a local server, which is
    started once. With `offline` the run does not use Prefect. If `store` is None, the settings name the store. `by` is who starts the run,
    and is not verified; the default is the operating system's user.

    Raises InvalidPlanError; NotApprovedError before any step is run, also if `by` is not an operator of the plan; NoServerError; and
    StoreError.
    """
    registry = as_registry(tools)
    run_request = replace(_run_request(approval, approver, hooks, by), context=context or RunContext(), tools=registry)
    validated, given = validate(await aplan_of(plan, store=store), registry), inputs or {}
    if validated.plan.unread_variables(given):
        run_request = run_request if offline else replace(run_request, server=await server_of(run_request))
        given = await with_variables(validated.plan, given, server=run_request.server)
    bound = note_variables(bind_inputs(validated, given), before=inputs or {}, after=given)
    return await execute_plan(bound, run_request=run_request, store=store, offline=offline)


run_plan = sync_twin(arun_plan)


async def aresume_run(
    run_id: str,
    *,
    tools: Tools,
    approval: Approval | None = None,
    approver: Approver | None = None,
    store: PlanStore | None = None,
    hooks: Hooks | None = None,
    offline: bool = False,
    by: str | None = None,
    here: bool = False,
) -> PlanRun:
    """Resume a run and return its record. Completed steps are carried; the rest run now.

    A step counts as completed if it has a receipt with the outcome succeeded. The recorded plan and inputs are used.

    Resuming approves nothing. A run that waits for an approval still needs one. If a tool's name, parameters, effect or permissions have
    changed since the approval, the gate opens again and shows the changes.

    A run resumes in the folder that it was created in. With `here` it moves to the current folder, which an approver has to approve first
    (an approval returned by `approve` covers no folder). `by` is who resumes the run, and is not verified; the default is the operating
    system's user.

    Raises NotApprovedError, and changes nothing, if an approval is needed and there is nobody to ask, if the folder differs and `here` is
    false, or if `by` is not an operator of the plan. Raises RunConflictError if the run has completed, was rejected, or has a live owner.
    """
    registry, run_request = as_registry(tools), _run_request(approval, approver, hooks, by)
    return await execute_resume(run_id, tools=registry, run_request=run_request, store=store, offline=offline, here=here)


resume_run = sync_twin(aresume_run)


async def acancel_run(
    run_id: str,
    *,
    reason: str = "cancelled",
    rollback: bool = False,
    tools: Tools | None = None,
    hooks: Hooks | None = None,
    store: PlanStore | None = None,
    offline: bool = False,
    by: str | None = None,
) -> PlanRun:
    """Cancel a run and return its current record.

    If a process is executing the run, that process is asked to end it. Otherwise the run is cancelled at once. `by` is who cancels the run,
    and is not verified; the default is the operating system's user. Raises RunConflictError if the run has ended, and NotApprovedError if
    `by` is not an operator of the plan.

    With `rollback`, completed steps are also rolled back: by the process that executes the run, or here, with `tools`, if there is none.
    This also works for a run that has ended as failed, partial or cancelled; it is rolled back in its flow run if it has one, unless
    `offline`. `hooks` follow a rollback that runs here. Raises RunConflictError if the run has completed or the outcome of a step is
    unknown, and NotApprovedError if the tools have changed.
    """
    settings, registry = Settings(), None if tools is None else as_registry(tools)
    async with opened_store(store, settings) as opened:
        run, run_request = await opened.run(run_id), _run_request(None, None, hooks, by)
        if not rollback:
            plan = await opened.get(run.digest)
            policy = await opened.policy.effective(settings)
            await require_operator(plan, run, opened, policy, by=run_request.operator, operation="cancel")
            await opened.cancel(run.id, reason)
            return await opened.run(run.id)
        return await rollback_run(run, reason=reason, tools=registry, run_request=run_request, store=opened, offline=offline)


cancel_run = sync_twin(acancel_run)


async def aresolve_step(
    run_id: str,
    step_id: str,
    resolution: Resolution,
    *,
    by: str | None = None,
    item: int | None = None,
    result: JsonValue = None,
    note: str = "",
    rollback: bool = False,
    end_command: bool = False,
    store: PlanStore | None = None,
) -> PlanRun:
    """Record the outcome of a write that was interrupted, and return the run, ready for `resume_run`.

    Resolutions: `done` means the write was done and returned `result`; `again` means it was not done, so it is called again; `abort` ends
    the run as cancelled. With `rollback`, the resolution is about the rollback of the step. With `end_command`, a command of the call that
    outlived its run and still runs on this host is ended first, and the receipt's note says so.

    The resolution is stored as the receipt of the attempt, with the name of the person who gave it: as `os_user` if `by` is left out or the
    account of this process, else as unverified. A process that waits for it, in a form
    or at its terminal, continues at once.

    Raises NotApprovedError if `by` is not allowed to answer at the plan's gates. Raises RunConflictError if the step has no unknown
    outcome, if a process executes the run and is not asking about this outcome, and for `again` while a command of the call still runs on
    this host.
    """
    if resolution not in (known := get_args(Resolution)):
        raise ValueError(f"there is no resolution `{resolution}`; {did_you_mean(str(resolution), known)}")
    settings, by = Settings(), by or os_user()
    async with opened_store(store, settings) as opened:
        run = await opened.run(run_id)
        kind: CallKind = "rollback" if rollback else "step"
        identity = identity_of_account(by)
        plan, doing = await opened.get(run.digest), f"`{one_line(call_name(step_id, None, kind=kind))}` is not resolved"
        await require_approver(plan, run, opened, settings, identity=identity, decision="reject", step_id=step_id, doing=doing)
        if end_command and (ended := await started_commands.end_command(run, step_id, opened, item=item, kind=kind)) is not None:
            note = "; ".join(text for text in (note, ended) if text)
        await opened.outcomes.resolve(
            run.id, step_id, ResolutionRecord(resolution, by, identity.known_by, note, result), item=item, kind=kind
        )
        return await opened.run(run.id)


resolve_step = sync_twin(aresolve_step)


async def arevise_run(
    run_id: str, plan: PlanSource, *, tools: Tools, by: str | None = None, note: str = "", store: PlanStore | None = None
) -> PlanRun:
    """Make `plan` the new version of a run's plan, and return the run, which waits for an approval again.

    The run keeps its inputs, its receipts, and the approvals of single steps that the new version does not change. A process that waits at
    the run's gate asks again and shows the differences. A step can be corrected if all its attempts have failed.

    `by` defaults to the account of this process.

    Raises InvalidPlanError, and NotApprovedError if `by` is not an operator of the run's current plan. Raises RunConflictError if the run
    has completed, is executing or was rolled back, or if the new version changes or removes a step that has succeeded or may have been
    done.
    """
    settings, by, registry = Settings(), by or os_user(), as_registry(tools)
    async with opened_store(store, settings) as opened:
        run = await opened.run(run_id)
        policy = await opened.policy.effective(settings)
        await require_operator(await opened.get(run.digest), run, opened, policy, by=by, operation="revise")
        if (await opened.ledger.history(run.id)).has_rollbacks:
            raise rolled_back_error(run)
        bound = in_folder(bind_inputs(validate(await aplan_of(plan, store=opened), registry), run.inputs), run.folder)
        attended = any(gate.attended is not False for gate in await opened.gates.find(run_id=run.id))
        revised = await opened.revisions.revise(run.id, bound.validated, bound.approval_digest, by=by, note=note)
        if not attended and requires_approval(bound.validated.plan, await opened.policy.effective(settings)):
            await open_detached_gate(bound, revised, opened, settings)
        return revised


revise_run = sync_twin(arevise_run)


async def draft_revision(
    run_id: str, words: str, *, replanner: Replanner, tools: Tools, by: str | None = None, store: PlanStore | None = None
) -> "Draft":
    """Draft a new version of the remaining steps of a run, from its record and a person's `words`. The run itself is not changed.

    If the draft has a plan, pass it to `arevise_run`. Raises NotApprovedError if `by` is not an operator of the plan, RunConflictError if
    the run cannot take a new version or an outcome is unknown, InvalidPlanError if a tool of the plan is missing, and ModelError.
    """
    settings, by, registry = Settings(), by or os_user(), as_registry(tools)
    async with opened_store(store, settings) as opened:
        run = await opened.run(run_id)
        plan = await opened.get(run.digest)
        await require_operator(plan, run, opened, await opened.policy.effective(settings), by=by, operation="revise")
        history = await opened.ledger.history(run.id)
        if history.has_rollbacks:
            raise rolled_back_error(run)
        await refuse_replanning(run, plan, history, opened)
        return await replanner.draft(run, words, validated=validate(plan, registry), tools=registry, history=history, store=opened)


def compile_plan(
    plan: ValidatedPlan | PlanSource,
    *,
    tools: Tools | None = None,
    approval: Approval | None = None,
    approver: Approver | None = None,
    store: PlanStore | None = None,
    hooks: Hooks | None = None,
    context: RunContext | None = None,
) -> "Flow[..., Any]":
    """Return `plan` as an async Prefect flow whose parameters are the plan's inputs. Call it, serve it, deploy it or nest it.

    A plan that was not validated yet needs `tools`. For a ValidatedPlan, `tools` replace those that it was validated with.

    The flow looks for an approval in the store. If there is none, it pauses at a form before its first step; `approver`, if given, is asked
    as well. A re-run of a flow run carries the steps that have receipts.
    """
    from plan_adapter.engine.flow import build_flow  # imports Prefect

    validated, registry = _validated(plan, tools, store), None if tools is None else as_registry(tools)
    file = validated.plan._file  # pyright: ignore[reportPrivateUsage]  # the path of the plan document, set by its loader
    run_request = partial(
        RunRequest,
        approval,
        approver,
        hooks=hooks or Hooks(),
        context=context or RunContext(),
        tools=registry,
        asks_in_form=True,
        plan_file=None if file is None else Path(file),
    )
    return build_flow(validated, partial(execute_in_flow, validated, run_request, store))


def _validated(plan: ValidatedPlan | PlanSource, tools: Tools | None, store: PlanStore | None) -> ValidatedPlan:
    if isinstance(plan, ValidatedPlan):
        return plan if tools is None else validate(plan.plan, as_registry(tools))
    if tools is None:
        raise TypeError("`tools` is missing: pass the tools of the plan, or a plan that `validate` returned")
    return validate(plan_of(plan, store=store, twin="aload_plan"), as_registry(tools))


def _run_request(approval: Approval | None, approver: Approver | None, hooks: Hooks | None, by: str | None) -> RunRequest:
    """Return the run request of a call from Python. A PrefectApprover only enables the form."""
    is_form = isinstance(approver, PrefectApprover)
    run_request = RunRequest(approval, None if is_form else approver, asks_in_form=is_form, hooks=hooks or Hooks())
    return run_request if by is None else replace(run_request, requested_by=by)
