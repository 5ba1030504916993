"""Approvals in code: `approve`, `reject`, the `Approver` protocol, and `ApprovedPlan`, the only thing that can be executed."""

import getpass
import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Protocol

from plan_adapter.errors import NotApprovedError
from plan_adapter.plan import ExecutionPlan, new_id
from plan_adapter.record import Approval, ApprovalRequest
from plan_adapter.tools.registry import ToolRegistry
from plan_adapter.validation import BoundPlan, bind_inputs, validate


class Approver(Protocol):
    """Who or what answers when a plan needs an approval."""

    async def ask(self, request: ApprovalRequest) -> Approval:
        """Return the answer; its `approval_digest` is that of the request."""
        ...


@dataclass(frozen=True, slots=True)
class ApprovedPlan:
    """A plan, its inputs, and the approval of exactly these; made by `approved_plan` only."""

    bound: BoundPlan
    approval: Approval


def approve(
    plan: ExecutionPlan,
    *,
    tools: ToolRegistry,
    by: str,
    inputs: Mapping[str, object] | None = None,
    note: str = "",
    valid_for: timedelta | None = None,
) -> Approval:
    """Return an approval of `plan` as it is now, with these inputs and tool definitions, to be given to `run_plan`.

    The first run that uses it uses it up. `valid_for` limits it in time. Raises InvalidPlanError.
    """
    return _answer("approve", plan, tools=tools, by=by, inputs=inputs, note=note, valid_for=valid_for)


def reject(
    plan: ExecutionPlan,
    *,
    tools: ToolRegistry,
    by: str,
    inputs: Mapping[str, object] | None = None,
    note: str = "",
    valid_for: timedelta | None = None,
) -> Approval:
    """Return a rejection of `plan`; a run that is given it is recorded as cancelled, reason rejected."""
    return _answer("reject", plan, tools=tools, by=by, inputs=inputs, note=note, valid_for=valid_for)


def answer_to(request: ApprovalRequest, *, approve: bool, by: str, known_by: str, note: str = "") -> Approval:
    """Return the answer to `request`, for approvers."""
    return Approval(
        id=new_id(),
        approval_digest=request.approval_digest,
        decision="approve" if approve else "reject",
        by=by,
        known_by=known_by,
        at=datetime.now(UTC),
        note=note,
        run_id=request.run_id,
    )


def os_user() -> str:
    """Return the name of the operating system's user, its number where it has no name."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return str(os.getuid())


def approved_plan(bound: BoundPlan, approval: Approval, *, now: datetime) -> ApprovedPlan:
    """Return `bound` as approved; raises NotApprovedError if `approval` is of other content, no approval, or expired at `now`."""
    if approval.approval_digest != bound.approval_digest:
        raise NotApprovedError(
            f"the approval by {approval.by} is of other content: it names {approval.approval_digest[:12]}…, "
            f"this plan with these inputs and tools is {bound.approval_digest[:12]}…; have it approved as it is now"
        )
    if approval.decision != "approve":
        raise NotApprovedError(
            f"`{bound.validated.plan.name}` was rejected by {approval.by}" + (f": {approval.note}" if approval.note else "")
        )
    if approval.expires_at is not None and approval.expires_at <= now:
        raise NotApprovedError(f"the approval by {approval.by} expired at {approval.expires_at.isoformat(timespec='seconds')}")
    return ApprovedPlan(bound, approval)


def without_approval(bound: BoundPlan, *, now: datetime) -> Approval:
    """Return the record that this plan's author asked for no approval."""
    return Approval(id=new_id(), approval_digest=bound.approval_digest, decision="approve", by="author", known_by="not_required", at=now)


def requires_approval(plan: ExecutionPlan, *, allow_unapproved: bool) -> bool:
    """Return whether somebody must be asked; `allow_unapproved` False takes the author's word away."""
    options = plan.options
    return not allow_unapproved or (options.require_approval and not options.auto_approve)


def _answer(
    decision: str,
    plan: ExecutionPlan,
    *,
    tools: ToolRegistry,
    by: str,
    inputs: Mapping[str, object] | None,
    note: str,
    valid_for: timedelta | None,
) -> Approval:
    bound = bind_inputs(validate(plan, tools), inputs)
    request = ApprovalRequest(bound.approval_digest, plan.name, plan.description, text="")
    answer = answer_to(request, approve=decision == "approve", by=by, known_by="unverified", note=note)
    return answer if valid_for is None else replace(answer, expires_at=answer.at + valid_for)
