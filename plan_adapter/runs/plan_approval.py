"""Finds, requests, checks and uses up the approval of a run's plan."""

import asyncio
from dataclasses import fields, replace
from typing import Protocol, assert_never, runtime_checkable

from plan_adapter.gates.approval import (
    ApprovedPlan,
    approval_not_required,
    approved_plan,
    approves_in_advance,
    gate_policy_of,
    gated_steps,
    group_notices,
    names_without_group,
    refusal,
    requires_approval,
    why_nobody_may_answer,
)
from plan_adapter.gates.gate import changes_text, expiry_message, new_gate
from plan_adapter.gates.identity import identity_of_given, recorded_identity
from plan_adapter.gates.policy import EffectivePolicy
from plan_adapter.gates.quorum import why_one_is_too_few, why_quorum_out_of_reach
from plan_adapter.local.secrets import SecretChain
from plan_adapter.local.settings import Settings
from plan_adapter.model.approvals import Approval, Gate, GatePolicy, people_in
from plan_adapter.model.errors import ApprovalRequiredError, NotApprovedError, RunConflictError
from plan_adapter.model.language import language_of, speaking
from plan_adapter.model.plan import ExecutionPlan
from plan_adapter.model.readable import one_line
from plan_adapter.model.record import PlanRun, RunContext
from plan_adapter.model.status import PlanStatus, RunReason
from plan_adapter.runs.answers import earlier_answer_notices, why_stale
from plan_adapter.runs.folders import folder_text, in_folder, move_text
from plan_adapter.runs.frozen import Frozen, frozen_now, refuse_frozen, still_frozen
from plan_adapter.runs.gate_policies import authors_at, gate_policy_at
from plan_adapter.runs.keeper import GateKeeper
from plan_adapter.runs.run_session import RunRequest
from plan_adapter.runs.secret_lookup import missing_secret_notices
from plan_adapter.runs.standing import use_standing_approval
from plan_adapter.runs.tool_drift import code_notices, tool_drift_lines, version_to_compare
from plan_adapter.store.store import PlanStore
from plan_adapter.text.gate_text import GateContext
from plan_adapter.text.plan_text import plan_gate_text
from plan_adapter.text.preview import name_of_run
from plan_adapter.validation import BoundPlan, bind_inputs, validate

MAX_PENDING = 200
"""How many of the newest waiting runs `end_expired` checks for an expired gate."""


async def is_answered(
    bound: BoundPlan, store: PlanStore, run_request: RunRequest, policy: EffectivePolicy, *, run: PlanRun | None = None
) -> bool:
    """Return whether the plan needs no approval, already has an answer (also at a gate of `run`), or has somebody to ask.

    While a change freeze is to be overridden, only an answer at a gate of `run` counts that overrides it.
    """
    frozen = await frozen_now(bound.validated.plan, store, policy, run=run, asked=run_request.override_freeze)
    if not requires_approval(bound.validated.plan, policy) and not frozen.overrides:
        return True
    has_advance = run_request.approval is not None and not frozen.overrides
    if has_advance or run_request.approver is not None or run_request.asks_in_form:
        return True
    if run is not None and await _last_answer(run, bound, store, run_request.settings, frozen) is not None:
        return True
    if frozen.overrides:
        return False
    if gate_policy_of(bound.validated.plan, policy, requested_by="").quorum > 1:  # people approve at the gate
        return False
    return await store.ledger.find_approval(bound.approval_digest, context=run_request.context) is not None


async def refuse_frozen_start(
    bound: BoundPlan, store: PlanStore, run_request: RunRequest, policy: EffectivePolicy, *, run: PlanRun | None = None
) -> Frozen:
    """Return the change freezes in force. Raise NotApprovedError if the plan does not start, or `run` does not resume, because of them.

    Nothing keeps a run from starting if an approval of it overrides every freeze, or if people are to be asked for one.
    """
    frozen = await frozen_now(bound.validated.plan, store, policy, run=run, asked=run_request.override_freeze)
    answers = [] if run is None or not frozen.active else await _answers(run, bound, store)
    left = await still_frozen(frozen.active, next(reversed(answers), None), store)
    refuse_frozen(frozen, left, run=run)
    if left and frozen.overrides and approves_in_advance(run_request.approver):
        raise NotApprovedError("an override of a change freeze is approved by people who see it at the gate, never in advance")
    return frozen


async def refuse_quorum_out_of_reach(
    bound: BoundPlan, store: PlanStore, policy: EffectivePolicy, *, requested_by: str, frozen: Frozen
) -> None:
    """Return if enough people may approve at each gate of a run that `requested_by` starts; raise NotApprovedError otherwise.

    `frozen` has the change freezes that an approval of the plan is to override.
    """
    plan = bound.validated.plan
    asks = requires_approval(plan, policy) or bool(frozen.overrides)
    asking = [*([None] if asks else []), *gated_steps(bound.validated, policy)]
    for step_id in asking:
        step = plan.find_step(step_id)
        if step is not None and step.ask is not None:
            continue
        overrides = frozen.overrides if step_id is None else ()
        authors = await authors_at(plan, store, policy, step_id=step_id, requested_by=requested_by)
        gate_policy = gate_policy_of(plan, policy, requested_by=requested_by, authors=authors, step_id=step_id, overrides=overrides)
        if (why := why_quorum_out_of_reach(gate_policy)) is not None:
            where = "of the plan" if step_id is None else f"of step `{one_line(step_id)}`"
            raise NotApprovedError(f"the gate {where} could never be passed, so the run does not start: {why}")


async def missing_approval_error(bound: BoundPlan, store: PlanStore, settings: Settings, *, run: PlanRun | None = None) -> NotApprovedError:
    """Return the error that says which approval is missing and how to give it."""
    plan, stale = bound.validated.plan, list[str]()
    if run is not None:
        _, stale = await earlier_answer_notices(await _answers(run, bound, store), plan, run, store, settings)
    return ApprovalRequiredError(
        "".join(f"{notice}; " for notice in stale)
        + f"`{plan.name}` requires an approval of {bound.approval_digest[:12]}…: pass `approval=approve(plan, …)` "
        "or an approver, or set `options: {require_approval: false}` in the plan"
    )


async def approve_run(bound: BoundPlan, run: PlanRun, keeper: GateKeeper) -> ApprovedPlan | None:
    """Return the plan as approved for `run`, or None if the run was rejected, expired or cancelled. The end is recorded.

    Also returns None if nobody has approved the plan and the caller does not wait; the gate stays open. If a new version of the plan
    arrives in the meantime, it replaces the one in `run` and is asked about instead. Raises NotApprovedError for an answer to other
    content, and if the caller waits but there is nobody to ask.
    """
    while True:
        policy = await keeper.store.policy.effective(keeper.run_request.settings)
        if run.started_at is None and (refused := await _why_frozen(bound, run, keeper, policy)) is not None:
            await end_unapproved(run, keeper.store, RunReason.CANCELLED, refused)
            return None
        answer = await _find_answer(bound, run, keeper, policy)
        if answer is None:
            try:
                answer = await _ask_at_gate(bound, run, keeper)
            except _RevisedError:
                bound = await load_new_version(run, keeper)
                continue
            if answer is None:
                return None
            if await why_stale(answer, bound.validated.plan, run, keeper.store, keeper.run_request.settings) is not None:
                continue  # another process accepted it under another policy: ask again
        match answer.decision:
            case "approve":
                if answer.gate_id is not None:
                    await _close_plan_gates(run, keeper.store)
                return await _use_answer(bound, run, answer, keeper)
            case "reject":
                return await end_rejected(run, answer, keeper.store)
            case "request_changes":
                if keeper.has_answered(bound.approval_digest) and not keeper.run_request.asks_in_form:  # else this never ends
                    raise ApprovalRequiredError(f"{changes_text(answer)}; submit a new version with `plan revise {run.id} FILE`")
            case _:
                assert_never(answer.decision)


async def _why_frozen(bound: BoundPlan, run: PlanRun, keeper: GateKeeper, policy: EffectivePolicy) -> str | None:
    """Return why a change freeze keeps `run` from starting, or None."""
    try:
        await refuse_frozen_start(bound, keeper.store, keeper.run_request, policy, run=run)
    except NotApprovedError as error:
        return str(error)
    return None


async def _close_plan_gates(run: PlanRun, store: PlanStore) -> None:
    """Close the plan gates that are still open although an earlier answer is valid: it was stale for a while, so a new gate asked again."""
    for gate in await store.gates.find(run_id=run.id):
        if gate.step_id is None and gate.kind == "approval":
            await store.gates.close(gate.id, "cancelled")


async def open_detached_gate(bound: BoundPlan, run: PlanRun, store: PlanStore, settings: Settings) -> Gate:
    """Open and return the gate of a run that no process waits at, ready for `plan approve`."""
    with speaking(language_of(bound.validated.plan.language, settings.language)):
        draft = await _prepare_gate(bound, run, store, settings)
    gate = await store.gates.open(draft, timeout_ms=bound.validated.plan.options.approval_timeout_ms)
    await store.gates.leave(gate.id)
    return gate


@runtime_checkable
class PolicyCheckingApprover(Protocol):
    """An approver that knows in advance whether its approval would be accepted."""

    def check_policy(self, gate_policy: GatePolicy) -> None:
        """Raise NotApprovedError if the gate policy would refuse the approval."""
        ...


async def refuse_approver(
    bound: BoundPlan, store: PlanStore, run_request: RunRequest, policy: EffectivePolicy, *, run: PlanRun | None = None
) -> None:
    """Raise NotApprovedError, before anything starts, if the approver knows that its approval would be refused.

    Does nothing if a form asks as well, or if the plan needs no further answer.
    """
    if run_request.asks_in_form or not isinstance(run_request.approver, PolicyCheckingApprover):
        return
    if await is_answered(bound, store, replace(run_request, approver=None), policy, run=run):
        return
    revisions = [] if run is None else await store.revisions.of_run(run.id)
    requested_by = run_request.requested_by if run is None else run.requested_by or ""
    plan = bound.validated.plan
    gate_policy = gate_policy_of(
        plan,
        policy,
        requested_by=requested_by,
        revised_by=revisions[-1].by if revisions else "",
        authors=await authors_at(plan, store, policy, requested_by=requested_by, run_id=None if run is None else run.id),
        overrides=(await frozen_now(plan, store, policy, run=run, asked=run_request.override_freeze)).overrides,
    )
    run_request.approver.check_policy(gate_policy)


async def end_overdue(run: PlanRun, store: PlanStore) -> PlanRun:
    """End the expired gates of `run` that no process waits at, and return the run as it is now."""
    if run.completed_at is not None:  # ending the run closed its gates
        return run
    waiting = [gate for gate in await store.gates.find(run_id=run.id) if gate.can_be_over]
    now = await store.now() if waiting else None
    if now is None or not any(gate.is_over(now) for gate in waiting):
        return run
    await end_expired(store, run_id=run.id)
    return await store.run(run.id)


async def end_expired(store: PlanStore, *, run_id: str | None = None) -> None:
    """End the expired gates that no process waits at, of one run or of all runs, and the runs that end with them."""
    now = await store.now()
    for gate in await store.gates.find(run_id=run_id):
        if gate.is_over(now):
            closed, run = await store.gates.expire(gate.id), await store.run(gate.run_id)
            if closed.end == "expired" and run.status is PlanStatus.PENDING_APPROVAL and await _ends_run(closed, run, store):
                await end_unapproved(run, store, RunReason.EXPIRED, _expiry_message_with_step(closed))
    waiting = await store.runs(limit=MAX_PENDING, status=PlanStatus.PENDING_APPROVAL) if run_id is None else [await store.run(run_id)]
    for run in waiting:
        last = next(reversed([gate for gate in await store.gates.find(run_id=run.id, open_only=False) if gate.step_id is None]), None)
        is_over = last is not None and last.end == "expired" and last.approval_digest == run.approval_digest
        if last is not None and is_over and run.status is PlanStatus.PENDING_APPROVAL:  # expired by a late answer
            await end_unapproved(run, store, RunReason.EXPIRED, _expiry_message_with_step(last))


async def _ends_run(gate: Gate, run: PlanRun, store: PlanStore) -> bool:
    """Return whether `run`, which has no process, ends when `gate` expires. If not, the next resume handles the expired gate."""
    if gate.step_id is None:
        return True
    plan = await store.get(run.digest)
    step = plan.find_step(gate.step_id)
    while step is not None and step.within is not None and plan.on_error_of(step) == "stop":
        step = step.within  # its failure is one of the plan around it
    on_error = plan.options.on_error if step is None else plan.on_error_of(step)
    return gate.gate_policy.expires == "reject" and on_error == "stop"


def _expiry_message_with_step(gate: Gate) -> str:
    return expiry_message(gate) if gate.step_id is None else f"{expiry_message(gate)} at the gate of `{gate.step_id}`"


async def end_unapproved(run: PlanRun, store: PlanStore, reason: RunReason, message: str) -> None:
    """Record that `run` ended before any step started."""
    run.transition(PlanStatus.CANCELLED, reason=reason, message=message, completed_at=await store.now())
    await store.ledger.update(run)


async def _find_answer(bound: BoundPlan, run: PlanRun, keeper: GateKeeper, policy: EffectivePolicy) -> Approval | None:
    """Return an answer that exists already, or None if somebody has to be asked."""
    store, run_request, plan = keeper.store, keeper.run_request, bound.validated.plan
    frozen = await frozen_now(plan, store, policy, run=run)
    answer = await _last_answer(run, bound, store, run_request.settings, frozen)
    if answer is not None or frozen.overrides:  # nobody overrides a freeze in advance
        return answer
    if run_request.approval is not None:
        return await _check_given_answer(run_request.approval, bound, run, keeper)
    if not requires_approval(plan, policy):
        return approval_not_required(bound, now=await store.now())
    if (await _gate_policy_now(bound, run, keeper)).quorum == 1:  # otherwise people approve at the gate
        waiting = await store.ledger.find_approval(bound.approval_digest, context=_context_of(run))
    else:
        waiting = None
    if waiting is not None:
        return await _check_given_answer(waiting, bound, run, keeper)
    return await use_standing_approval(bound, run, store, run_request)


def _context_of(run: PlanRun) -> RunContext:
    return RunContext(agent_id=run.agent_id, org_id=run.org_id, tenant_id=run.tenant_id, task_id=run.task_id)


async def _last_answer(run: PlanRun, bound: BoundPlan, store: PlanStore, settings: Settings, frozen: Frozen) -> Approval | None:
    """Return the last answer about exactly this content that was given at a gate of `run` or that the run has used.

    Returns None for a request for changes, for a stale approval, and for one that does not override the change freezes as asked.
    """
    last = next(reversed(await _answers(run, bound, store)), None)
    if last is None or last.decision == "request_changes":
        return None
    if last.decision == "approve" and frozen.overrides and await still_frozen(frozen.overridable, last, store):
        return None
    return last if await why_stale(last, bound.validated.plan, run, store, settings) is None else None


async def _answers(run: PlanRun, bound: BoundPlan, store: PlanStore) -> list[Approval]:
    return [row for row in await store.approvals(run.id) if is_plan_answer(row, run) and row.approval_digest == bound.approval_digest]


def is_plan_answer(row: Approval, run: PlanRun) -> bool:
    """Return whether `row` was given at the plan gate of `run`, or was used for it."""
    return row.run_id == run.id and row.step_id is None and (row.gate_id is not None or row.used_at is not None)


async def _check_given_answer(given: Approval, bound: BoundPlan, run: PlanRun, keeper: GateKeeper) -> Approval:
    """Return `given`, an answer that is older than the run. Raises NotApprovedError if the gate policy refuses it."""
    gate_policy = await _gate_policy_now(bound, run, keeper)
    if given.decision == "request_changes":
        raise ApprovalRequiredError(changes_text(given))
    if given.approval_digest == bound.approval_digest:
        if given.known_by in ("ssh_signature", "totp"):
            raise NotApprovedError("signatures and codes are accepted only at a gate: start the run, then answer there")
        identity = identity_of_given(given, None)
        reason = refusal(gate_policy, identity, decision=given.decision)
        if reason is None and given.decision == "approve":
            reason = why_one_is_too_few(gate_policy, f"the approval that {one_line(given.by)} gave before")
        if reason is not None:
            raise NotApprovedError(reason)
        given = replace(given, known_by=identity.known_by)
    return given


async def _gate_policy_now(bound: BoundPlan, run: PlanRun, keeper: GateKeeper) -> GatePolicy:
    """Return the gate policy of the plan of `run` as it is now."""
    revisions = await keeper.store.revisions.of_run(run.id)
    revised_by = revisions[-1].by if revisions else ""
    policy = await keeper.store.policy.effective(keeper.run_request.settings)
    return await gate_policy_at(bound.validated.plan, run, keeper.store, policy, revised_by=revised_by)


async def _ask_at_gate(bound: BoundPlan, run: PlanRun, keeper: GateKeeper) -> Approval | None:
    """Return the answer at the plan gate, or None if there is none. If the run has ended with the gate, that is recorded."""
    store, run_request = keeper.store, keeper.run_request
    if run_request.waits and not run_request.asks:
        raise await missing_approval_error(bound, store, run_request.settings, run=run)
    draft = await _prepare_gate(bound, run, store, run_request.settings, run_request.secrets)
    gate = await keeper.open(draft, timeout_ms=bound.validated.plan.options.approval_timeout_ms)
    left: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    if _leaves_gate_open(run_request):
        left.set_result(None)
    with run_request.leave.handled_by(lambda: _signal_left(left)):
        closed = await keeper.collect_answer(gate) or await keeper.ask_until_left(gate, left)
    if closed.end is None:
        return None
    if closed.end == "expired":
        await end_unapproved(run, store, RunReason.EXPIRED, expiry_message(closed))
        return None
    answer = await keeper.answer_at(closed)
    if closed.end == "answered" and answer is not None:
        return answer
    fresh = await store.run(run.id)
    if closed.end == "superseded" and fresh.status is PlanStatus.PENDING_APPROVAL:
        raise _RevisedError
    run.take_status(fresh)
    if run.completed_at is None:
        await end_unapproved(run, store, RunReason.CANCELLED, "its gate was closed")
    return None


def _leaves_gate_open(run_request: RunRequest) -> bool:
    """Return whether the plan gate stays open for others, with nobody waiting here."""
    return not (run_request.waits or run_request.asks)


def _signal_left(left: "asyncio.Future[None]") -> bool:
    if not left.done():
        left.set_result(None)
    return True


class _RevisedError(Exception):
    """A new version of the plan replaced the one being asked about."""


async def load_new_version(run: PlanRun, keeper: GateKeeper) -> BoundPlan:
    """Update `run` to the new version of its plan, and return that version. Raises RunConflictError if its tools are missing or differ."""
    tools = keeper.run_request.tools
    if tools is None:
        raise RunConflictError(f"run {run.id} has a new version of its plan: `plan resume {run.id}` asks about it")
    fresh, flow_run_id = await keeper.store.run(run.id), run.flow_run_id
    for field in fields(run):
        setattr(run, field.name, getattr(fresh, field.name))
    run.flow_run_id = flow_run_id
    bound = in_folder(bind_inputs(validate(await keeper.store.get(run.digest), tools), run.inputs), run.folder)
    if bound.approval_digest != run.approval_digest:
        raise RunConflictError(f"run {run.id} has a new version of its plan, validated with other tools: revise it again with these")
    return bound


async def _prepare_gate(bound: BoundPlan, run: PlanRun, store: PlanStore, settings: Settings, secrets: SecretChain | None = None) -> Gate:
    """Return the plan gate of `run` to open, and record that the run waits. Its message names stale approvals."""
    plan = bound.validated.plan
    answers, revisions = await store.approvals(run.id), await store.revisions.of_run(run.id)
    policy = await store.policy.effective(settings)
    frozen = await frozen_now(plan, store, policy, run=run)
    revised_by = revisions[-1].by if revisions else ""
    gate_policy = await gate_policy_at(plan, run, store, policy, revised_by=revised_by, overrides=frozen.overrides)
    changes, stale = await earlier_answer_notices(await _answers(run, bound, store), plan, run, store, settings)
    await _record_waiting(run, store, message="; ".join(stale) or None)
    replaced = version_to_compare(revisions, answers)
    moved = move_text(replaced.folder, run.folder) if replaced is not None else None
    text = plan_gate_text(
        bound,
        gated=gated_steps(bound.validated, policy),
        approval_digest=bound.approval_digest,
        expires_ms=plan.options.approval_timeout_ms,
        context=await gate_context(run, plan, store),
        nobody=why_nobody_may_answer(gate_policy),
        quorum=gate_policy.quorum,
        earlier=await store.get(replaced.digest) if replaced is not None and replaced.digest != run.digest else None,
        tools=tool_drift_lines(bound, run, replaced),
        origin=await _origin_lines(run, [revision.digest for revision in revisions], store),
        folder="" if run.folder is None else folder_text(run.folder),
        notices=[
            *frozen.notices(started=run.started_at is not None and not frozen.overrides),
            *([] if moved is None else [f"{moved[0].upper()}{moved[1:]}."]),
            *changes,
            *stale,
            *_unknown_names(plan, policy),
            *group_notices(plan, policy),
            *await code_notices(bound.validated, run, store),
            *await missing_secret_notices(bound.validated, settings, secrets),
        ],
    )
    return new_gate(run, approval_digest=bound.approval_digest, description=plan.description, text=text, gate_policy=gate_policy)


async def gate_context(run: PlanRun, plan: ExecutionPlan, store: PlanStore) -> GateContext:
    """Return the context of a gate of `run` that opens now."""
    name = name_of_run(plan, run.inputs)
    run_name = f"run …{run.id[-6:]}" if name in (None, plan.name) else name
    return GateContext(run=run_name, requested_by=run.requested_by, at=await store.now())


def _unknown_names(plan: ExecutionPlan, policy: EffectivePolicy) -> list[str]:
    """Return notices about approvers that may be misspelt or missing groups. If no groups exist, every name is a person."""
    approvers = plan.all_approvers
    names = [name for name in names_without_group(plan, policy) if name in approvers] if policy.groups else []
    where = "PLAN_ADAPTER_GROUPS" if policy.number is None else "the store's policy"
    return [f"`{one_line(name)}` may answer as a person: {where} has no group with this name." for name in names]


async def _origin_lines(run: PlanRun, earlier: list[str], store: PlanStore) -> list[str]:
    """Return lines about the draft that the plan of `run`, or one of its `earlier` versions, came from."""
    found = await store.drafts.of_plans([run.digest, *reversed(earlier)], tenant_id=run.tenant_id)
    if found is None:
        return []
    from plan_adapter.text.draft_text import origin_lines  # only runs of drafted plans load this

    return origin_lines(found[1], is_as_drafted=found[0] == run.digest)


async def _record_waiting(run: PlanRun, store: PlanStore, *, message: str | None) -> None:
    """Record that `run` waits at its plan gate, with its flow run, which a resume has to find."""
    waiting_state = (PlanStatus.PENDING_APPROVAL, None, message, None)
    if run.flow_run_id is not None or (run.status, run.reason, run.message, run.completed_at) != waiting_state:
        run.transition(PlanStatus.PENDING_APPROVAL, message=message)
        await store.ledger.update(run)


async def _use_answer(bound: BoundPlan, run: PlanRun, answer: Approval, keeper: GateKeeper) -> ApprovedPlan:
    """Use up `answer` for `run`, and return the approved plan."""
    store, used = keeper.store, answer
    if answer.run_id == run.id and answer.used_at is not None:  # used in an earlier start of this run, so it stays valid
        approved = approved_plan(bound, replace(answer, expires_at=None), now=answer.used_at)
    else:
        approved = approved_plan(bound, replace(answer, expires_at=None) if answer.run_id == run.id else answer, now=await store.now())
        used = await store.ledger.use_approval(answer, run_id=run.id)
    run.transition(PlanStatus.APPROVED)
    run.approved_at, run.approved_by = used.at, " and ".join(people_in(answer.people))
    return approved


async def end_rejected(run: PlanRun, answer: Approval, store: PlanStore) -> None:
    """Record that `run` ends because `answer` rejected it."""
    run.rejection_note = answer.note
    if answer.run_id is None:
        await store.add_approval(replace(answer, run_id=run.id), identity=recorded_identity(answer))
    await end_unapproved(run, store, RunReason.REJECTED, f"rejected by {answer.by}")
