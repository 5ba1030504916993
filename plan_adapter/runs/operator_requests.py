"""Verifies, authorizes and records operator requests: requests about a run that are made outside a gate."""

from collections.abc import Sequence
from dataclasses import replace

from plan_adapter.execution.history import Record, ResumeOptions, RunHistory, StepChoice, choices, skipped_by
from plan_adapter.gates.approval import refusal, strictest
from plan_adapter.gates.identity import Identity, identity_of_account
from plan_adapter.gates.quorum import why_one_is_too_few
from plan_adapter.model.approvals import ApprovalRequest, GatePolicy, OperatorRequestKind
from plan_adapter.model.errors import NotApprovedError
from plan_adapter.model.plan import ExecutionPlan
from plan_adapter.model.record import PlanRun
from plan_adapter.model.status import StepStatus
from plan_adapter.runs.gate_policies import gate_policy_at
from plan_adapter.runs.run_session import Requester, RunRequest, proof_options
from plan_adapter.store.database.columns import escape_unstorable
from plan_adapter.store.operator_requests import OperatorRequest
from plan_adapter.store.store import PlanStore
from plan_adapter.text.commands import resume_command, rollback_command
from plan_adapter.validation import ValidatedPlan

_REFUSED: dict[OperatorRequestKind, str] = {
    "skip": "the step is not skipped",
    "run_from": "the skipped step does not run",
    "rollback": "the run is not rolled back",
    "override_freeze": "the freeze is not overridden",
}


def choices_of(run: PlanRun, validated: ValidatedPlan, history: RunHistory, options: ResumeOptions) -> dict[str, StepChoice]:
    """Return the choice of a resume for each step, by step id. Skipped steps stay skipped, except the one that the run resumes from.

    Raises RunConflictError, which names every request that cannot be met.
    """
    by_status = {status: {step.id for step in run.steps if step.status is status} for status in StepStatus}
    succeeded = by_status[StepStatus.COMPLETED] | {step_id for step_id, item in history.succeeded if item is None}
    if _reruns_finally_steps(run, validated):
        succeeded -= set(validated.finally_order)
    record = Record(
        succeeded=succeeded,
        failed=(by_status[StepStatus.FAILED] | by_status[StepStatus.RUNNING]) - succeeded,
        skipped=by_status[StepStatus.SKIPPED],
    )
    before = {step_id: why for step_id, why in history.skipped.items() if step_id not in succeeded}
    found = choices(validated.dependencies, record, replace(options, skipped=options.all_skipped(before)))
    return found | {step_id: StepChoice("run") for step_id in validated.finally_order if found[step_id].kind == "left"}


def _reruns_finally_steps(run: PlanRun, validated: ValidatedPlan) -> bool:
    """Return whether a resume runs all `finally` steps again. It does if it runs any other step."""
    ended = {step.id for step in run.steps if step.status in (StepStatus.COMPLETED, StepStatus.SKIPPED)}
    return any(step_id not in ended for step_id in validated.order)


async def with_operator_requests(
    run: PlanRun, validated: ValidatedPlan, history: RunHistory, options: ResumeOptions, store: PlanStore, run_request: RunRequest
) -> RunHistory:
    """Return `history` with the requested choice for each step, and record which steps are skipped or run again.

    Nothing is recorded if a request is refused. Raises RunConflictError for a request that cannot be met, and NotApprovedError if the
    caller is not allowed to make it.
    """
    choices = choices_of(run, validated, history, options)
    by = _requester(run_request).by
    new = [
        step_id
        for step_id, because in options.skipped.items()
        if history.skipped.get(step_id) != skipped_by(by, escape_unstorable(because))
    ]
    for because in dict.fromkeys(options.skipped[step_id] for step_id in new):
        steps = [step_id for step_id in new if options.skipped[step_id] == because]
        await record_operator_request("skip", steps, because, run, validated.plan, store, run_request)
    if options.from_step in history.skipped:
        await record_operator_request("run_from", [options.from_step], "", run, validated.plan, store, run_request)
    elif not new:
        return replace(history, choices=choices)
    again = validated.finally_order if _reruns_finally_steps(run, validated) else ()
    history = history.with_skipped(await store.operator_requests.skipped_steps(run.id), again=again)
    return replace(history, choices=choices_of(run, validated, history, replace(options, skipped={})))


async def record_operator_request(
    kind: OperatorRequestKind,
    steps: Sequence[str],
    because: str,
    run: PlanRun,
    plan: ExecutionPlan,
    store: PlanStore,
    run_request: RunRequest,
    *,
    rollback_needs_approver: bool = True,
) -> None:
    """Record a request about `steps`, or about the whole run if `steps` is empty, under the identity in `run_request`.

    If `rollback_needs_approver`, the requester must be allowed to approve these steps, or `plan`, with the proof that is demanded there.
    Anyone may request to override a freeze: the gate of the plan then asks those who decide that.
    Raises NotApprovedError, which is also written to the audit log. Raises RunConflictError if the run has changed in the meantime.
    """
    policy = await store.policy.effective(run_request.settings)
    places = [await gate_policy_at(plan, run, store, policy, step_id=step_id) for step_id in steps or [None]]
    is_open = kind == "override_freeze" or not rollback_needs_approver
    gate_policy = GatePolicy() if is_open else strictest(*places)
    digest = await store.operator_requests.digest_of(run.id, kind, steps)
    request = ApprovalRequest(digest, run.name, run.description, text="", run_id=run.id, gate_policy=gate_policy, operator_request=kind)
    identity, because = _requester(run_request), escape_unstorable(because)
    try:
        proved, signature = await _prove(identity, because, request, store)
    except NotApprovedError as error:
        refused = f"{_REFUSED[kind]}: {error}"
        await store.ledger.record_refusal(
            run.id, refused, by=identity.by, known_by=identity.channel, step_id=steps[0] if len(steps) == 1 else None
        )
        raise NotApprovedError(refused + _permission_hint(kind, steps, run, gate_policy, identity)) from error
    run.updated_at = await store.operator_requests.record(
        run.id, OperatorRequest(kind, tuple(steps), because, proved.by, proved.known_by, digest, signature)
    )


async def _prove(identity: Requester, because: str, request: ApprovalRequest, store: PlanStore) -> tuple[Identity, str | None]:
    """Return the identity of a requester, and their signature if any. Raises NotApprovedError, also where several people must approve."""
    if (reason := why_one_is_too_few(request.gate_policy, "this request")) is not None:
        raise NotApprovedError(reason)
    return await identity.prove(because, request, store)


class _NamedRequester:
    """The identity of a caller who gives a name but no proof."""

    has_proof = False

    def __init__(self, by: str) -> None:
        self.by = by
        self.channel = identity_of_account(by).known_by

    async def prove(self, _because: str, request: ApprovalRequest, _store: PlanStore) -> tuple[Identity, str | None]:
        identity = identity_of_account(self.by)
        if reason := refusal(request.gate_policy, identity, decision="approve"):
            raise NotApprovedError(reason)
        return identity, None


def _requester(run_request: RunRequest) -> Requester:
    return run_request.identity or _NamedRequester(run_request.requested_by)


def _permission_hint(kind: OperatorRequestKind, steps: Sequence[str], run: PlanRun, gate_policy: GatePolicy, identity: Requester) -> str:
    """Return how a caller without a proof of identity can make the request: the command and its options."""
    if identity.has_proof:
        return ""
    flags = {
        "skip": "".join(f" --skip {step_id}" for step_id in steps) + " --note …",
        "run_from": f" --from {''.join(steps)}",
        "override_freeze": " --override-freeze …",
    }
    command = rollback_command(run) if kind == "rollback" else resume_command(run) + flags[kind]
    proofs = proof_options(gate_policy, command, by=identity.by, decision="approve")
    if proofs:
        return proofs
    revised = f"; `plan revise {run.id} FILE` without the step asks at the plan's gate instead" if kind == "skip" else ""
    return f"; no option proves your identity here{revised}"
