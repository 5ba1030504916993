"""Runs whose process seems to have died while it executed them."""

from plan_adapter import PlanRun
from plan_adapter.store import PlanStatus
from plan_adapter.store.database import tables
from tests.sql import Sql
from tests.store.builders import dead_owner


async def let_executor_die(run: PlanRun, sql: Sql) -> None:
    """Make an ended run look as if its process had died while it executed it."""
    executing = tables.runs.update().where(tables.runs.c.id == run.id).values(status=PlanStatus.EXECUTING.value, completed_at=None)
    held = tables.leases.update().where(tables.leases.c.run_id == run.id).values(owner=str(dead_owner()))
    await sql.change(executing, held)
