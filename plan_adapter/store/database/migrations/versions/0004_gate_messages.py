"""Add the messages about gates that `plan desk` sent."""

import sqlalchemy as sa
from alembic import op

from plan_adapter.store.database.columns import Instant, SafeText, keeping_guard

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None

_TABLE = "gate_messages"


def upgrade() -> None:
    """Create the table, with its trigger on PostgreSQL."""
    op.create_table(
        _TABLE,
        sa.Column("gate_id", sa.Text, nullable=False),
        sa.Column("channel", sa.Text, nullable=False),
        sa.Column("tenant_id", sa.Text, nullable=False),
        sa.Column("agent_id", sa.Text),
        sa.Column("org_id", sa.Text),
        sa.Column("task_id", sa.Text),
        sa.Column("run_id", sa.Text, nullable=False),
        sa.Column("shown", sa.Text, nullable=False),
        sa.Column("reference", SafeText),
        sa.Column("not_before", Instant, nullable=False),
        sa.Column("failures", sa.Integer, nullable=False),
        sa.Column("sent_at", Instant),
        sa.PrimaryKeyConstraint("gate_id", "channel", name="pk_gate_messages"),
        sa.ForeignKeyConstraint(["gate_id"], ["gates.id"], name="fk_gate_messages_gates"),
        sqlite_with_rowid=False,
    )
    op.create_index("ix_gate_messages_run_id", _TABLE, ["run_id"])
    unfinished = sa.text("shown <> 'closed'")
    op.create_index("ix_gate_messages_unfinished", _TABLE, ["channel"], sqlite_where=unfinished, postgresql_where=unfinished)
    if op.get_bind().dialect.name == "postgresql":
        for statement in keeping_guard(_TABLE):
            op.execute(statement)
