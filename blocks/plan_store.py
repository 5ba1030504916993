"""The block `plan-store`: where the deployments keep plans, runs, approvals and receipts."""

from plan_adapter.blocks import PlanStoreDatabase
from plan_adapter.settings import Settings
from plan_adapter.store.urls import is_local

NAME = "plan-store"


def block() -> PlanStoreDatabase:
    """Return the block as the environment describes it: PLAN_ADAPTER_DATABASE_URL, else the file of the command line's store."""
    return PlanStoreDatabase.model_validate({"url": Settings().store_url})


def unknown_outcome() -> str | None:
    """Return why a worker would refuse the store as the environment describes it, None where none would."""
    settings = Settings()
    if not is_local(settings.store_url) or settings.allow_local_store:
        return None
    return (
        "the block holds a path of this machine, which workers refuse because it may vanish with their host: set "
        "PLAN_ADAPTER_DATABASE_URL=postgresql://… and run `make blocks` again, or PLAN_ADAPTER_ALLOW_LOCAL_STORE=true, here and "
        "for the worker, if it has this path, too, and outlives its runs"
    )
