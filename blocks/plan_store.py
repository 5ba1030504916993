"""The block `plan-store`: the database in which the deployments keep plans, runs, approvals and receipts."""

from plan_adapter.blocks import PlanStoreDatabase
from plan_adapter.local.settings import Settings
from plan_adapter.store.store import is_local

NAME = "plan-store"


def block() -> PlanStoreDatabase:
    """Return the block for PLAN_ADAPTER_DATABASE_URL, or else for the file of the command line's store."""
    return PlanStoreDatabase.model_validate({"url": Settings().store_url})


def warning() -> str | None:
    """Return why a worker would refuse this store, or None if it would accept it."""
    settings = Settings()
    if not is_local(settings.store_url) or settings.allow_local_store:
        return None
    return (
        "the block contains a path on this machine, which workers refuse because their disks may not persist: set "
        "PLAN_ADAPTER_DATABASE_URL=postgresql://… and run `make blocks` again, or set PLAN_ADAPTER_ALLOW_LOCAL_STORE=true here "
        "and for the worker, if the worker has the same path and its disk persists"
    )
