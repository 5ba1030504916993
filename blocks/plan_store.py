"""The block `plan-store`: where the deployments keep plans, runs, approvals and receipts."""

from plan_adapter.blocks import PlanStoreDatabase
from plan_adapter.settings import Settings

NAME = "plan-store"


def block() -> PlanStoreDatabase:
    """Return the block as the environment describes it: PLAN_ADAPTER_DATABASE_URL, else the file of the command line's store."""
    return PlanStoreDatabase.model_validate({"url": Settings().store_url})
