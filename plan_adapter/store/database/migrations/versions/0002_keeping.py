"""Let the role that prunes and erases delete and change only what `plan prune` and `plan erase` do, and drop commands without entries."""

from alembic import op
from sqlalchemy import inspect

from plan_adapter.model.errors import StoreError
from plan_adapter.store.database.columns import keeping_guard

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

_GUARDED_BEFORE = ("runs", "step_runs", "attempts", "receipts", "approvals", "gates", "revisions", "audit")
_GUARDED = (*_GUARDED_BEFORE, "leases", "concurrency_keys", "commands", "tombstones")


def upgrade() -> None:
    """Replace the triggers of PostgreSQL. The audit log now covers started commands; older ones that run are found by their mark.

    Raises StoreError if the first schema was not final yet when it made the store.
    """
    if not inspect(op.get_bind()).has_table("commands"):
        raise StoreError("a development version before 2026-11-26 made this store, and no version upgrades it: use a new file or database")
    op.execute("DELETE FROM commands")
    if op.get_bind().dialect.name != "postgresql":
        return
    for table in _GUARDED_BEFORE:
        op.execute(f"DROP TRIGGER {table}_guards_erasing ON {table}")
    for table in _GUARDED:
        for statement in keeping_guard(table):
            op.execute(statement)
