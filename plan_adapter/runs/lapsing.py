"""Answers that were taken at a gate and start nothing: those that count no more by today's rules, and those that ask for changes."""

import asyncio
from collections.abc import Sequence

from plan_adapter.approval import refusal, rules_of
from plan_adapter.errors import NotApprovedError
from plan_adapter.identity.known import recheck
from plan_adapter.plan import ExecutionPlan
from plan_adapter.record import Approval, PlanRun
from plan_adapter.settings import Settings
from plan_adapter.store.store import PlanStore


async def why_lapsed(answer: Approval, plan: ExecutionPlan, run: PlanRun, store: PlanStore, settings: Settings) -> str | None:
    """Return why an approval that was given at a gate, and that nobody has used yet, would not be taken now; None where it would.

    The policy, groups and allowed signers may have changed since, or be others in the process that took it.
    """
    if answer.decision != "approve" or answer.gate_id is None or answer.used_at is not None:
        return None
    policy = await store.policy_in_force(settings)
    rules = rules_of(plan, policy, requested_by=run.requested_by or "")
    if (reason := refusal(rules, by=answer.by, known_by=answer.known_by, decision=answer.decision)) is not None:
        return reason
    try:
        await asyncio.to_thread(recheck, answer, await store.gate(answer.gate_id), policy)
    except NotApprovedError as error:
        return str(error)
    return None


async def said_before(
    answers: Sequence[Approval], plan: ExecutionPlan, run: PlanRun, store: PlanStore, settings: Settings
) -> tuple[list[str], list[str]]:
    """Return in words who asked for changes of what a gate asks about, and whose approval of it counts no more, and why."""
    changes = [f"{row.by} asks for changes: {row.note}" for row in answers if row.decision == "request_changes"]
    lapsed = list[str]()
    for row in answers:
        if (why := await why_lapsed(row, plan, run, store, settings)) is not None:
            lapsed.append(f"the approval by {row.by} counts no more: {why}")
    return changes, lapsed
