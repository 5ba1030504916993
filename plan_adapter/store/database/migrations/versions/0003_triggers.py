"""Add the runs that events started."""

import sqlalchemy as sa
from alembic import op

from plan_adapter.store.database.columns import Instant, SafeText, keeping_guard

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None

_TABLE = "triggered_runs"


def upgrade() -> None:
    """Create the table, with its trigger on PostgreSQL."""
    op.create_table(
        _TABLE,
        sa.Column("run_id", sa.Text, nullable=False),
        sa.Column("tenant_id", sa.Text, nullable=False),
        sa.Column("agent_id", sa.Text),
        sa.Column("org_id", sa.Text),
        sa.Column("task_id", sa.Text),
        sa.Column("key", sa.Text, nullable=False),
        sa.Column("event", SafeText, nullable=False),
        sa.Column("event_id", SafeText, nullable=False),
        sa.Column("events", sa.Integer, nullable=False),
        sa.Column("at", Instant, nullable=False),
        sa.PrimaryKeyConstraint("run_id", name="pk_triggered_runs"),
        sa.ForeignKeyConstraint(["run_id"], ["runs.id"], name="fk_triggered_runs_runs"),
        sqlite_with_rowid=False,
    )
    op.create_index("ix_triggered_runs_tenant_id_key", _TABLE, ["tenant_id", "key"])
    if op.get_bind().dialect.name == "postgresql":
        for statement in keeping_guard(_TABLE):
            op.execute(statement)
