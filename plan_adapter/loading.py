"""Load plans: from a file, a text, or the store (`store:NAME`, `store:NAME@VERSION`)."""

from pathlib import Path
from typing import TYPE_CHECKING

from plan_adapter import documents
from plan_adapter.errors import StoreError

if TYPE_CHECKING:
    from plan_adapter.plan import ExecutionPlan
    from plan_adapter.store.store import PlanStore

STORED = "store:"


async def stored_plan(source: str, store: "PlanStore") -> "ExecutionPlan":
    """Return the plan that `store:NAME` (the newest version) or `store:NAME@VERSION` names. Raises StoreError."""
    name, at, version = source.removeprefix(STORED).rpartition("@")
    if at and not version.isdecimal():
        raise StoreError(f"`{source}`: a version is a number, as in `{STORED}{name}@3`")
    return await store.get(name, version=int(version)) if at else await store.get(version)


async def aload_plan(source: str | Path, *, store: "PlanStore | None" = None) -> "ExecutionPlan":
    """Return a plan. The async twin of `load_plan`."""
    if not _is_stored(source):
        return documents.load_plan(source)
    if store is not None:
        return await stored_plan(str(source), store)
    from plan_adapter.store.store import PlanStore  # imports SQLAlchemy

    async with PlanStore() as opened:
        return await stored_plan(str(source), opened)


def load_plan(source: str | Path, *, store: "PlanStore | None" = None) -> "ExecutionPlan":
    """Return a plan from a file, from a text, or from the store: `store:NAME@3`, or `store:NAME` for the newest version.

    A text counts as a path if a file of that name exists, or if it is one line that ends in .yaml, .yml or .json. If `store` is None, the
    settings name the store. Raises InvalidPlanError with every problem, and StoreError. Inside a running event loop, use `aload_plan` to
    load from the store.
    """
    if not _is_stored(source):
        return documents.load_plan(source)
    from plan_adapter.runner import complete  # imports SQLAlchemy

    return complete(aload_plan(source, store=store), twin="aload_plan")


def _is_stored(source: str | Path) -> bool:
    return isinstance(source, str) and source.startswith(STORED) and "\n" not in source
