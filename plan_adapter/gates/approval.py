"""Approvals: `answer_to`, the `Approver` protocol, gate policies, and `ApprovedPlan`, the only executable form of a plan."""

import asyncio
import hashlib
import json
import os
import pwd
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Literal, Protocol, TypeAlias, runtime_checkable

from pydantic import JsonValue

from plan_adapter.gates.freezes import Override
from plan_adapter.gates.policy import EffectivePolicy, intersect, is_name
from plan_adapter.gates.quorum import nobody_is_named, why_quorum_out_of_reach
from plan_adapter.model.approvals import (
    DELEGATE,
    TAKE_BACK,
    Agreement,
    Answer,
    Approval,
    ApprovalRequest,
    Decision,
    Delegation,
    DelegationKind,
    ExcludedAs,
    FreezeOverride,
    Gate,
    GateKind,
    GatePolicy,
    delegation_result,
    delegations_in_force,
    followed_by,
    person_of,
)
from plan_adapter.model.errors import ContentChangedError, InvalidAnswerError, NotApprovedError
from plan_adapter.model.language import tr
from plan_adapter.model.options import ApprovalPolicy
from plan_adapter.model.plan import ExecutionPlan, Step, new_id
from plan_adapter.model.readable import one_line
from plan_adapter.model.record import AUTHOR
from plan_adapter.validation import BoundPlan, ValidatedPlan
from plan_adapter.validation.inputs import read_values

if TYPE_CHECKING:
    from plan_adapter.gates.identity import Identity

Operation: TypeAlias = Literal["run", "resume", "revise", "cancel", "rollback", "prune", "erase"]
"""What a plan's operators control. Everything else is up to the approvers, or open to anyone."""


class Approver(Protocol):
    """Answers when a plan needs an approval: a person or a program."""

    async def ask(self, request: ApprovalRequest) -> Approval:
        """Return the answer. Its `approval_digest` is the request's."""
        ...


@runtime_checkable
class AdvanceApprover(Protocol):
    """An approver that says whether its approval was given before the content existed, so that it does not cover what a model writes."""

    approves_in_advance: bool


@runtime_checkable
class PatientApprover(Protocol):
    """An approver that says whether it can give another answer once it learns why the first was refused."""

    asks_again: bool


def approves_in_advance(approver: Approver | None) -> bool:
    """Return whether `approver` approved before the content existed. False for one that does not say."""
    return isinstance(approver, AdvanceApprover) and approver.approves_in_advance


def asks_again(approver: Approver) -> bool:
    """Return whether `approver` is asked again after a refused answer. False for one that does not say."""
    return isinstance(approver, PatientApprover) and approver.asks_again


class PendingGate(Protocol):
    """An open gate, as seen by those that ask at it. Several may ask at once, and the first valid answer wins."""

    @property
    def request(self) -> ApprovalRequest:
        """What the gate asks."""
        ...

    @property
    def closed(self) -> asyncio.Future[Gate]:
        """Done once anybody has closed the gate. Holds the gate as it ended."""
        ...

    async def submit(self, answer: Answer) -> str | None:
        """Submit `answer`. Return why it was refused, as text for the person, or None if it was recorded or the gate was closed already.

        An approval that needs others as well is recorded, and leaves the gate open: `request` then has it among its agreements.
        """
        ...

    async def record_form(self, *, flow_run_id: str, keyset: str) -> None:
        """Record where the gate's form will be, before it exists, so that an answer that nobody waited for can be found."""
        ...

    async def report_form(self, *, flow_run_id: str, keyset: str | None) -> None:
        """Report that the form exists, or, with None as `keyset`, that Prefect does not keep it."""
        ...


@dataclass(frozen=True, slots=True)
class ApprovedPlan:
    """A plan, its inputs and the approval of exactly these. Only `approved_plan` creates one."""

    bound: BoundPlan
    approval: Approval


def answer_to(
    request: ApprovalRequest,
    *,
    decision: Decision,
    by: str,
    known_by: str,
    note: str = "",
    signature: str | None = None,
    result: JsonValue = None,
) -> Approval:
    """Return the answer to `request`, for use in approvers. At a question, `approve` needs a `result`: the values of its fields.

    The gate checks `known_by`: `os_user` counts for the account of this process, `ssh_signature` with a valid `signature`, and anything
    else is recorded as `unverified`.
    """
    return Approval(
        id=new_id(),
        approval_digest=request.approval_digest,
        decision=decision,
        by=by,
        known_by=known_by,
        at=datetime.now(UTC),
        note=note,
        run_id=request.run_id,
        step_id=request.step_id,
        item=request.item,
        gate_id=request.gate_id,
        signature=signature,
        result=result,
    )


def gate_policy_of(
    plan: ExecutionPlan,
    policy: EffectivePolicy,
    *,
    requested_by: str,
    revised_by: str = "",
    authors: tuple[str, ...] = (),
    step_id: str | None = None,
    kind: GateKind = "approval",
    overrides: tuple[FreezeOverride, ...] = (),
) -> GatePolicy:
    """Return the gate policy of `plan`, or of the gate of a step: the stricter of its own policy and `policy`, with groups as names.

    The largest quorum of the plans there and of `policy` applies to an approval. One person answers any other `kind` of gate. `authors` of
    the plan count if it does not let them approve. `overrides` are the change freezes that an approval of the plan overrides, which
    restrict it to the people whom `policy` names for that.
    """
    step = None if step_id is None else plan.find_step(step_id)
    policies, stored = plan.policies_at(step), policy.stored
    overriding, proofs = _deciders(policy, overrides), None
    deciders = [tuple(policy.members(override.approvers) or ()) for override in overriding]
    named = _in_all_lists([policy.members(names) for names in plan.approvers_at(step_id)], deciders)
    for own in policies:
        proofs = intersect(proofs, tuple(own.known_by) or None)
    approvers, known_by, excluded_by = intersect(named, policy.approvers), intersect(proofs, policy.known_by), ""
    if approvers == () and intersect(named, policy.members(stored.approvers)) != ():
        excluded_by = "PLAN_ADAPTER_APPROVERS"
    elif known_by == () and intersect(proofs, tuple(stored.known_by) or None) != ():
        excluded_by = "PLAN_ADAPTER_KNOWN_BY"
    return GatePolicy(
        approvers=approvers,
        known_by=known_by,
        quorum=max(policy.quorum, *(own.quorum for own in (*policies, *overriding)), 1) if kind == "approval" else 1,
        self_approval=all(own.self_approval for own in policies) and policy.self_approval,
        requested_by=requested_by,
        revised_by=revised_by,
        authors=authors if excludes_authors(plan, policy, step_id) else (),
        escalate_after_ms=0 if (escalation := plan.escalation_at(step_id)) is None else escalation.after_ms,
        escalate_to=_escalates_to(plan, policy, deciders, step_id=step_id, approvers=approvers),
        delegate=not overrides and plan.lets_delegate(step_id),
        expires=plan.expires_at(step_id),
        remind_after_ms=next((own.remind_after_ms for own in policies if own.remind_after_ms), 0),
        release=(plan.approval or ApprovalPolicy()).release,
        excluded_by=excluded_by,
        overrides=overrides,
    )


def excludes_authors(plan: ExecutionPlan, policy: EffectivePolicy, step_id: str | None) -> bool:
    """Return whether the plan gate or a step's gate takes no approval by an author of the plan."""
    return plan.excludes_authors(step_id) or not policy.author_approval


def _in_all_lists(*lists: Sequence[tuple[str, ...] | None]) -> tuple[str, ...] | None:
    """Return the names that are in every list, where None stands for anyone."""
    named: tuple[str, ...] | None = None
    for names in (names for some in lists for names in some):
        named = intersect(named, names)
    return named


def _escalates_to(
    plan: ExecutionPlan,
    policy: EffectivePolicy,
    deciders: Sequence[tuple[str, ...]],
    *,
    step_id: str | None,
    approvers: tuple[str, ...] | None,
) -> tuple[str, ...]:
    """Return the people who may answer besides `approvers` once the gate has escalated. If anyone may answer, they are only told."""
    escalation = plan.escalation_at(step_id)
    if escalation is None:
        return ()
    lists = [policy.members(names) for names in plan.approvers_at(step_id, is_escalated=True)] or [policy.members(escalation.to)]
    able = intersect(_in_all_lists(lists, deciders), policy.approvers) or ()
    return tuple(name for name in able if name not in (approvers or ()))


def policy_in_force(gate_policy: GatePolicy, *, is_escalated: bool, delegations: Sequence[Delegation] = ()) -> GatePolicy:
    """Return `gate_policy` with the people who may answer by now: those that the gate escalated to, and those that approvers named.

    An approver who let another person answer may not answer any more, unless they took that back.
    """
    approvers = gate_policy.approvers
    if approvers is not None and is_escalated:
        approvers = tuple(dict.fromkeys((*approvers, *gate_policy.escalate_to)))
    for delegation in delegations_in_force(delegations):
        if approvers is not None and delegation.by in approvers:
            others = (name for name in approvers if name != delegation.by)
            approvers = tuple(dict.fromkeys((*others, delegation.to)))
    return replace(gate_policy, approvers=approvers, is_escalated=is_escalated, delegations=tuple(delegations))


def as_far_as(gate_policy: GatePolicy, policy: EffectivePolicy, at_gate: GatePolicy) -> GatePolicy:
    """Return `gate_policy` with those who may answer because the gate with `at_gate` escalated, or because approvers there named them.

    `policy` restricts them, too.
    """
    found = policy_in_force(gate_policy, is_escalated=at_gate.is_escalated, delegations=at_gate.delegations)
    return replace(found, approvers=intersect(found.approvers, policy.approvers))


def _deciders(policy: EffectivePolicy, overrides: tuple[FreezeOverride, ...]) -> list[Override]:
    """Return the people who decide about `overrides` under the current policy: none for a freeze that can no longer be overridden."""
    names = {each.name for each in overrides}
    return [freeze.override or Override() for freeze in policy.stored.freezes if freeze.name in names]


def with_current_policy(
    gate_policy: GatePolicy,
    plan: ExecutionPlan,
    policy: EffectivePolicy,
    *,
    step_id: str | None,
    kind: GateKind = "approval",
    authors: tuple[str, ...] = (),
) -> GatePolicy:
    """Return the current form of `gate_policy`, the policy that an open gate started with.

    No process that resumes the run changes it. But people who joined a group of the store's policy since then can answer as well, and that
    policy applies as it is today, to those who are `authors` of the plan today. Without such a policy, groups come from the environment,
    and whoever resumes could put themselves into one.
    """
    if policy.number is None:
        return gate_policy
    overrides, approvers = gate_policy.overrides, gate_policy.approvers
    # Who started and who revised the run stay as they were.
    today = gate_policy_of(plan, policy, requested_by="", authors=authors, step_id=step_id, kind=kind, overrides=overrides)
    today = as_far_as(today, policy, gate_policy)
    if approvers is not None and today.approvers is not None:
        lists = plan.approvers_at(step_id, is_escalated=gate_policy.is_escalated)
        lists += [override.approvers for override in _deciders(policy, overrides)]
        named = (*(name for names in lists for name in names), *policy.named)
        members = [member for name in named for member in policy.groups.get(name, ()) if member in today.approvers]
        approvers = tuple(dict.fromkeys((*approvers, *members)))
    return strictest(replace(gate_policy, approvers=approvers), today)


def strictest(first: GatePolicy, *others: GatePolicy) -> GatePolicy:
    """Return `first`, restricted to the answers that all the policies accept."""
    for other in others:
        first = replace(
            first,
            approvers=intersect(first.approvers, other.approvers),
            known_by=intersect(first.known_by, other.known_by),
            quorum=max(first.quorum, other.quorum),
            self_approval=first.self_approval and other.self_approval,
            authors=tuple(dict.fromkeys((*first.authors, *other.authors))),
            delegate=first.delegate and other.delegate,
            excluded_by=first.excluded_by or other.excluded_by,
        )
    return first


def names_without_group(plan: ExecutionPlan, policy: EffectivePolicy) -> list[str]:
    """Return who may answer or operate, as `plan` names them, without groups and their members: single people, or missing groups."""
    known = {*policy.groups, *(member for members in policy.groups.values() for member in members)}
    policies = [each.approval for each in plan.plans.values() if each.approval is not None]
    named = [name for own in policies for name in (*own.approvers, *own.operators)]
    return [name for name in dict.fromkeys((*named, *plan.approvers_of_questions)) if name not in known and "/" not in name]


def group_notices(plan: ExecutionPlan, policy: EffectivePolicy, step_id: str | None = None) -> list[str]:
    """Return a notice for each group of the environment that may answer at a step's gate; without a step, at any gate of `plan`."""
    if policy.number is not None:
        return []
    named = plan.all_approvers if step_id is None else [name for names in plan.approvers_at(step_id) for name in names]
    return [
        tr(
            "`{name}` is a group of PLAN_ADAPTER_GROUPS in the process that opened this gate: the store has no policy with groups.",
            name=one_line(name),
        )
        for name in dict.fromkeys((*named, *policy.named))
        if name in policy.groups
    ]


def refusal(gate_policy: GatePolicy, identity: "Identity", *, decision: Decision) -> str | None:
    """Return why an answer violates the gate policy, for the person who gave it, or None. Anyone who is allowed to answer can reject."""
    by, known_by = identity.by, identity.known_by
    if gate_policy.approvers is not None and by not in gate_policy.approvers:
        who = ", ".join(gate_policy.approvers)
        return f"{one_line(by)} {_why_not_named(gate_policy, by)}; " + (
            f"only {who} may" if who else f"nobody may: {_exclusion_reason(gate_policy.excluded_by)}"
        )
    if gate_policy.known_by is not None and known_by not in gate_policy.known_by:
        proofs = " or ".join(gate_policy.known_by) or f"a proof that nobody can give: {_exclusion_reason(gate_policy.excluded_by)}"
        return f"{one_line(by)} is identified only by {known_by}; an answer here needs {proofs}"
    if decision == "approve" and gate_policy.quorum > 1 and gate_policy.approvers is None:
        return nobody_is_named(gate_policy)
    if decision == "approve" and (excluded_as := (excluded := gate_policy.may_not_approve).get(by)) is not None:
        others = [name for name in gate_policy.approvers or () if name not in excluded]
        instead = f"only {', '.join(others)} may" if others else "somebody else must approve it"
        return f"{one_line(by)} {_EXCLUDED_AS[excluded_as]} and may not approve it; {instead}"
    return None


_EXCLUDED_AS: dict[ExcludedAs, str] = {
    "requester": "started this run",
    "reviser": "changed this run",
    "author": "is an author of this plan",
}


def _why_not_named(gate_policy: GatePolicy, by: str) -> str:
    """Return why `by` is not among the approvers: because of the last delegation by them, or of one to them that was taken back."""
    in_force = delegations_in_force(gate_policy.delegations)
    for each in reversed(gate_policy.delegations):
        if each.by == by and each in in_force:
            return f"let {one_line(each.to)} answer instead"
        if each.to == by and each.decision == TAKE_BACK:
            return f"may no longer answer here: {one_line(each.by)} took the delegation back at {each.at.isoformat(timespec='seconds')}"
    return "may not answer here"


def why_not_delegated(
    gate_policy: GatePolicy, policy: EffectivePolicy, *, by: str, to: str, agreements: Sequence[Agreement] = ()
) -> str | None:
    """Return why `by` may not let `to` answer at the gate in their place, or None. That `by` may answer is checked elsewhere.

    `policy` is the store's and the settings': nobody can add people whom it excludes. `agreements` are those that the gate has.
    """
    if not gate_policy.delegate:
        return "approvers may not let others answer here: the plan does not say `approval: {delegate: true}`"
    if gate_policy.approvers is None:
        return "anyone may answer here, so nobody has to be named"
    if not to or not is_name(to):
        return f"{to[:80]!r} cannot be the name of a person"
    if to in policy.groups:
        return f"{one_line(to)} is a group: name one person"
    if person_of(to) == person_of(by):
        return f"{one_line(by)} may answer already: name another person"
    for name in (by, to):
        if person_of(name) in {person_of(agreement.by) for agreement in agreements}:
            return f"{one_line(name)} has already approved"
    if (excluded_as := gate_policy.may_not_approve.get(to)) is not None:
        return f"{one_line(to)} {_EXCLUDED_AS[excluded_as]} and may not approve it: name another person"
    if policy.approvers is not None and to not in policy.approvers:
        return f"the settings or the store's policy let only {', '.join(policy.approvers) or 'nobody'} answer at gates"
    if person_of(to) in map(person_of, gate_policy.approvers):  # the gate would have one approver fewer
        return f"{one_line(to)} may answer already: name another person"
    return None


def why_not_taken_back(gate_policy: GatePolicy, *, by: str, to: str, agreements: Sequence[Agreement] = ()) -> str | None:
    """Return why `by` may not take their delegation to `to` back, or None. `agreements` are those that the gate has.

    Once the other person has approved, or a person whom they named in turn, the place of `by` has been used.
    """
    given = delegations_in_force(gate_policy.delegations)
    if (id_ := followed_by(given, decision=TAKE_BACK, by=by, to=to)) is None:
        named = ", ".join(one_line(each.to) for each in given if each.by == by)
        return f"{one_line(by)} lets no {to[:80]!r} answer here" + (f"; take back {named}" if named else "")
    instead, ids = {to}, [each.id for each in given]
    for each in given[ids.index(id_) + 1 :]:
        instead |= {each.to} if each.by in instead else set()
    people = {person_of(name) for name in instead}
    answered = next((each.by for each in agreements if person_of(each.by) in people), None)
    return None if answered is None else f"{one_line(answered)} has already approved, so it is too late to take that back"


def with_delegator(gate_policy: GatePolicy, by: str) -> GatePolicy:
    """Return `gate_policy` with `by` among the approvers, for the check of who takes a delegation back."""
    return replace(gate_policy, approvers=tuple(dict.fromkeys((*(gate_policy.approvers or ()), by))))


def why_nobody_may_answer(gate_policy: GatePolicy) -> str | None:
    """Return why nobody at all may answer under this gate policy, or too few people may approve, or None."""
    excluded = gate_policy.approvers == () or gate_policy.known_by == ()
    return _exclusion_reason(gate_policy.excluded_by) if excluded else why_quorum_out_of_reach(gate_policy)


def refuse_operation(plan: ExecutionPlan, policy: EffectivePolicy, *, by: str, operation: Operation) -> None:
    """Return if `by` is allowed to perform `operation` on runs of `plan`; raise NotApprovedError otherwise.

    The stricter of the plan's own policy and `policy` decides.
    """
    named = None
    for own in plan.plans.values():  # who operates a run also operates the plans inside it
        named = intersect(named, policy.members((own.approval or ApprovalPolicy()).operators))
    operators = intersect(named, policy.operators)
    if operators is not None and by not in operators:
        is_environment = intersect(named, policy.members(policy.stored.operators)) != ()
        who = ", ".join(map(one_line, operators)) or f"nobody: {_exclusion_reason('PLAN_ADAPTER_OPERATORS' if is_environment else '')}"
        raise NotApprovedError(f"{one_line(by)} may not {_OPERATION_VERBS[operation]} `{one_line(plan.name)}`; operators: {who}")


def refuse_prune(policy: EffectivePolicy, *, by: str) -> None:
    """Return if `policy` allows `by` to prune runs; raise NotApprovedError otherwise. Plans may name further operators."""
    if policy.operators is not None and by not in policy.operators:
        who = ", ".join(map(one_line, policy.operators)) or "nobody"
        raise NotApprovedError(f"{one_line(by)} may not prune runs; operators: {who}")


def _exclusion_reason(excluded_by: str) -> str:
    """Return why nobody is allowed to answer, or no proof is accepted.

    `excluded_by` is the environment variable that causes it, if one does.
    """
    if not excluded_by:
        return "the plan, those around it and the policy contradict each other"
    return f"the environment variable {excluded_by} excludes everything that the plan and the store's policy allow"


_OPERATION_VERBS: dict[Operation, str] = {
    "run": "run",
    "resume": "resume runs of",
    "revise": "revise runs of",
    "cancel": "cancel runs of",
    "rollback": "roll back runs of",
    "prune": "prune runs of",
    "erase": "erase values in runs of",
}


def needs_gate(step: Step, validated: ValidatedPlan, policy: EffectivePolicy) -> bool:
    """Return whether `step` waits at a gate of its own."""
    return validated.has_gate(step, gate_effects=policy.gate_effects)


def gated_steps(validated: ValidatedPlan, policy: EffectivePolicy) -> list[str]:
    """Return the ids of the steps that wait at a gate of their own."""
    return [step.id for step in validated.plan.all_steps if needs_gate(step, validated, policy)]


def approval_text_to_sign(
    *, approval_digest: str, decision: Decision | DelegationKind, run_id: str, gate_id: str, result: JsonValue = None
) -> str:
    """Return the text that an approver's SSH key signs. It binds this answer, at a question with its `result`, to this content here.

    The `result` of a delegation is `delegation_result`.
    """
    answer = "" if result is None else f"result: {_digest_of_result(result)}\n"
    return f"prefect-plan-adapter approval\ndigest: {approval_digest}\ndecision: {decision}\n{answer}run: {run_id}\ngate: {gate_id}\n"


def resolution_text_to_sign(*, digest: str, resolution: str, result: JsonValue, run_id: str) -> str:
    """Return the text that an SSH key signs to resolve an unknown outcome. It binds this resolution and result to this attempt."""
    result_digest = _digest_of_result(result)
    return f"prefect-plan-adapter outcome\ndigest: {digest}\nresolution: {resolution}\nresult: {result_digest}\nrun: {run_id}\n"


def _digest_of_result(result: JsonValue) -> str:
    return hashlib.sha256(json.dumps(result, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def operator_request_text_to_sign(*, digest: str, operator_request: str, because: str, run_id: str) -> str:
    """Return the text that an SSH key signs for an operator request. It binds this request and reason to these steps, once."""
    reason_digest = hashlib.sha256(because.encode()).hexdigest()
    return (
        f"prefect-plan-adapter operator request\ndigest: {digest}\nrequest: {operator_request}\nbecause: {reason_digest}\nrun: {run_id}\n"
    )


def text_to_sign(answer: Answer, request: ApprovalRequest) -> str:
    """Return the text that an SSH key signs to give `answer` to `request`. Raise NotApprovedError if `request` accepts no signature."""
    if request.run_id is None or (request.gate_id is None and request.kind == "approval" and request.operator_request is None):
        raise NotApprovedError("only an answer at a gate of a run can be signed")
    if request.operator_request is not None:
        return operator_request_text_to_sign(
            digest=request.approval_digest, operator_request=request.operator_request, because=answer.note, run_id=request.run_id
        )
    if request.kind == "outcome":
        return resolution_text_to_sign(
            digest=request.approval_digest, resolution=answer.decision, result=answer.result, run_id=request.run_id
        )
    gate_id = request.gate_id or ""
    if answer.decision in (DELEGATE, TAKE_BACK):
        follows = followed_by(request.gate_policy.delegations, decision=answer.decision, by=answer.by, to=answer.to)
        return approval_text_to_sign(
            approval_digest=request.approval_digest,
            decision=answer.decision,
            run_id=request.run_id,
            gate_id=gate_id,
            result=delegation_result(answer.to, follows),
        )
    decision = decision_of(answer)
    result = read_answer(request, answer.result) if request.kind == "question" and decision == "approve" else None
    return approval_text_to_sign(
        approval_digest=request.approval_digest, decision=decision, run_id=request.run_id, gate_id=gate_id, result=result
    )


def read_answer(request: ApprovalRequest | Gate, result: JsonValue) -> JsonValue:
    """Return the answer to a question, with the defaults of its fields. Raises InvalidAnswerError with every problem."""
    if not isinstance(result, dict):
        names = ", ".join(f"`{name}`" for name in request.fields)
        raise InvalidAnswerError(f"this gate asks a question: answer with its fields {names}")
    values, problems = read_values(request.fields, result, from_text=False, what="field")
    if problems:
        raise InvalidAnswerError("; ".join(f"`{problem.at.removeprefix('fields.')}`: {problem.message}" for problem in problems))
    return values


def decision_of(answer: Answer) -> Decision:
    """Return the decision in `answer`. Raise InvalidAnswerError if it answers an outcome gate instead."""
    if answer.decision not in ("approve", "reject", "request_changes"):
        raise InvalidAnswerError(f"`{answer.decision}` records how a call ended; it cannot approve or reject anything")
    return answer.decision


def os_user() -> str:
    """Return the account name of this process's real user id, or the id if no account has it.

    The environment is ignored, because anybody can set LOGNAME and USER.
    """
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return str(os.getuid())


def approved_plan(bound: BoundPlan, approval: Approval, *, now: datetime) -> ApprovedPlan:
    """Return `bound` as approved.

    Raises ContentChangedError if `approval` covers other content, and NotApprovedError if it is a rejection or has expired at `now`.
    """
    if approval.approval_digest != bound.approval_digest:
        raise ContentChangedError(
            f"the approval by {approval.by} covers other content: it names the digest {approval.approval_digest[:12]}…, and "
            f"this plan with these inputs and tools has {bound.approval_digest[:12]}…; approve it as it is now"
        )
    if approval.decision != "approve":
        raise NotApprovedError(
            f"`{bound.validated.plan.name}` was rejected by {approval.by}" + (f": {approval.note}" if approval.note else "")
        )
    if approval.expires_at is not None and approval.expires_at <= now:
        raise NotApprovedError(f"the approval by {approval.by} expired at {approval.expires_at.isoformat(timespec='seconds')}")
    return ApprovedPlan(bound, approval)


def approval_not_required(bound: BoundPlan, *, now: datetime) -> Approval:
    """Return the record that the author of this plan required no approval."""
    return Approval(id=new_id(), approval_digest=bound.approval_digest, decision="approve", by=AUTHOR, known_by="not_required", at=now)


def requires_approval(plan: ExecutionPlan, policy: EffectivePolicy) -> bool:
    """Return whether somebody must be asked. The policy can override a plan that requires no approval."""
    options = plan.options
    return not policy.allow_unapproved or (options.require_approval and not options.auto_approve)
