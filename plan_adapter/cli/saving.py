"""Storing a plan as a version, by the person who types the command."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from plan_adapter.plan import ExecutionPlan
    from plan_adapter.store.plans import PlanVersion
    from plan_adapter.store.store import PlanStore


async def save_plan(plan: "ExecutionPlan", store: "PlanStore") -> "PlanVersion":
    """Store `plan` as the next version of its name, with the account at the operating system as its author; return that version."""
    from plan_adapter.approval import os_user

    return await store.save(plan, author=os_user())


def saved_json(version: "PlanVersion | None") -> dict[str, Any] | None:
    """Return a version as `--json` prints it, None where nothing was saved."""
    return None if version is None else {name: getattr(version, name) for name in ("name", "version", "digest", "author")}
