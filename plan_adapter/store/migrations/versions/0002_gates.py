"""Gates, standing approvals, one-time codes and revisions; approvals and attempts know of steps and gates."""

from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

_ADDED: dict[str, tuple[str, ...]] = {
    "approvals": ("step_id", "gate_id", "standing_id", "signature"),
    "runs": ("requested_by",),
    "attempts": ("approval_id", "approval_digest"),
}


def upgrade() -> None:
    """Add the columns and the tables."""
    for table, names in _ADDED.items():
        # Columns are only added, so that SQLite copies no table: a copy of `attempts` would have row ids.
        with op.batch_alter_table(table) as batch:
            for name in names:
                batch.add_column(sa.Column(name, sa.Text))
    with op.batch_alter_table("approvals") as batch:
        batch.add_column(sa.Column("item", sa.Integer, nullable=False, server_default=sa.text("-1")))
    op.create_index("ix_approvals_gate_id", "approvals", ["gate_id"], unique=True)
    _gates()
    _standing_approvals()
    _used_codes_and_revisions()


def downgrade() -> None:
    """Drop the tables and columns and everything in them."""
    for table in ("revisions", "used_codes", "standing_approvals", "gates"):
        op.drop_table(table)
    op.drop_index("ix_approvals_gate_id", "approvals")
    op.drop_column("approvals", "item")
    for table, names in _ADDED.items():
        for name in names:
            op.drop_column(table, name)


def _whose() -> list[sa.Column[Any]]:
    return [
        sa.Column("tenant_id", sa.Text, nullable=False),
        sa.Column("agent_id", sa.Text),
        sa.Column("org_id", sa.Text),
        sa.Column("task_id", sa.Text),
    ]


def _texts(*names: str) -> list[sa.Column[Any]]:
    return [sa.Column(name, sa.Text, nullable=False) for name in names]


def _instant(name: str, *, nullable: bool = True) -> sa.Column[Any]:
    return sa.Column(name, sa.DateTime(timezone=True), nullable=nullable)


def _gates() -> None:
    op.create_table(
        "gates",
        *_texts("id"),
        *_whose(),
        *_texts("run_id", "step_id"),
        sa.Column("item", sa.Integer, nullable=False),
        *_texts("approval_digest", "name", "description", "rules"),
        _instant("opened_at", nullable=False),
        _instant("expires_at"),
        _instant("closed_at"),
        sa.Column("end", sa.Text),
        sa.Column("flow_run_id", sa.Text),
        sa.Column("keyset", sa.Text),
        sa.Column("openings", sa.Integer, nullable=False),
        sa.Column("owner", sa.Text),
        *_texts("text"),
        sa.PrimaryKeyConstraint("id", name="pk_gates"),
        sa.ForeignKeyConstraint(["run_id"], ["runs.id"], name="fk_gates_runs"),
    )
    is_open = sa.text("closed_at IS NULL")
    key = ["run_id", "step_id", "item"]
    op.create_index("ix_gates_open", "gates", key, unique=True, sqlite_where=is_open, postgresql_where=is_open)
    op.create_index("ix_gates_run_id", "gates", ["run_id"])


def _standing_approvals() -> None:
    op.create_table(
        "standing_approvals",
        *_texts("id"),
        *_whose(),
        *_texts("runbook_digest", "name", "by", "known_by"),
        _instant("at", nullable=False),
        *_texts("inputs", "schedules", "steps"),
        _instant("until"),
        sa.Column("max_runs", sa.Integer),
        sa.Column("runs", sa.Integer, nullable=False),
        *_texts("note"),
        sa.Column("signature", sa.Text),
        sa.Column("source", sa.Text),
        _instant("revoked_at"),
        sa.Column("revoked_by", sa.Text),
        sa.PrimaryKeyConstraint("id", name="pk_standing_approvals"),
    )


def _used_codes_and_revisions() -> None:
    op.create_table(
        "used_codes",
        *_whose(),
        *_texts("name"),
        sa.Column("counter", sa.BigInteger, nullable=False),
        _instant("used_at", nullable=False),
        sa.PrimaryKeyConstraint("name", "counter", name="pk_used_codes"),
    )
    op.create_table(
        "revisions",
        *_texts("run_id"),
        sa.Column("number", sa.Integer, nullable=False),
        *_whose(),
        *_texts("digest", "approval_digest", "by", "note"),
        _instant("at", nullable=False),
        sa.PrimaryKeyConstraint("run_id", "number", name="pk_revisions"),
        sa.ForeignKeyConstraint(["run_id"], ["runs.id"], name="fk_revisions_runs"),
    )
