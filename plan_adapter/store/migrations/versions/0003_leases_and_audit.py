"""Leases in place of the runner of a run, the word of a person in a receipt, and the audit as a chain of rows."""

from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None

_REFUSALS: dict[str, tuple[str, ...]] = {
    "sqlite": (
        "CREATE TRIGGER audit_refuses_update BEFORE UPDATE ON audit BEGIN SELECT RAISE(ABORT, 'the audit is only added to'); END",
        "CREATE TRIGGER audit_refuses_delete BEFORE DELETE ON audit BEGIN SELECT RAISE(ABORT, 'the audit is only added to'); END",
    ),
    "postgresql": (
        "CREATE OR REPLACE FUNCTION plan_adapter_refuse_change() RETURNS trigger LANGUAGE plpgsql AS "
        "$$ BEGIN RAISE EXCEPTION 'the audit is only added to'; END $$",
        "CREATE TRIGGER audit_refuses_changes BEFORE UPDATE OR DELETE ON audit FOR EACH ROW EXECUTE FUNCTION plan_adapter_refuse_change()",
    ),
}


def upgrade() -> None:
    """Add the tables and columns; who executes a run is known from then on by its lease."""
    op.create_table(
        "leases",
        sa.Column("run_id", sa.Text, nullable=False),
        *_whose(),
        sa.Column("epoch", sa.Integer, nullable=False),
        sa.Column("owner", sa.Text),
        sa.Column("until", sa.DateTime(timezone=True)),
        sa.PrimaryKeyConstraint("run_id", name="pk_leases"),
        sa.ForeignKeyConstraint(["run_id"], ["runs.id"], name="fk_leases_runs"),
    )
    op.execute(
        "INSERT INTO leases (run_id, tenant_id, agent_id, org_id, task_id, epoch, owner, until) "
        "SELECT id, tenant_id, agent_id, org_id, task_id, 1, runner, updated_at FROM runs WHERE runner IS NOT NULL"
    )
    op.drop_column("runs", "runner")
    for name in ("by", "known_by", "note"):
        op.add_column("receipts", sa.Column(name, sa.Text))
    op.add_column("runs", sa.Column("cancel_rollback", sa.Boolean))
    op.add_column("gates", sa.Column("kind", sa.Text, nullable=False, server_default=sa.text("'approval'")))
    op.add_column("step_runs", sa.Column("rolled_back", sa.Boolean, nullable=False, server_default=sa.text("false")))
    op.create_table(
        "audit",
        sa.Column("run_id", sa.Text, nullable=False),
        sa.Column("number", sa.Integer, nullable=False),
        *_whose(),
        sa.Column("at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("kind", sa.Text, nullable=False),
        sa.Column("step_id", sa.Text),
        sa.Column("item", sa.Integer, nullable=False),
        sa.Column("attempt", sa.Integer),
        sa.Column("by", sa.Text),
        sa.Column("known_by", sa.Text),
        sa.Column("message", sa.Text),
        sa.Column("row_id", sa.Text),
        sa.Column("row_digest", sa.Text),
        sa.Column("digest", sa.Text, nullable=False),
        sa.PrimaryKeyConstraint("run_id", "number", name="pk_audit"),
        sa.ForeignKeyConstraint(["run_id"], ["runs.id"], name="fk_audit_runs"),
        sqlite_with_rowid=False,
    )
    op.add_column("runs", sa.Column("audited", sa.Boolean))
    op.add_column("attempts", sa.Column("code_digest", sa.Text))
    op.add_column("revisions", sa.Column("definitions", sa.Text))
    for statement in _REFUSALS[op.get_bind().dialect.name]:
        op.execute(statement)


def downgrade() -> None:
    """Drop them, and everything in them."""
    op.drop_table("audit")
    if op.get_bind().dialect.name == "postgresql":
        op.execute("DROP FUNCTION plan_adapter_refuse_change()")
    op.drop_column("revisions", "definitions")
    op.drop_column("attempts", "code_digest")
    op.drop_column("runs", "audited")
    op.drop_column("step_runs", "rolled_back")
    op.drop_column("runs", "cancel_rollback")
    op.execute("DELETE FROM gates WHERE kind <> 'approval'")
    op.drop_column("gates", "kind")
    for name in ("by", "known_by", "note"):
        op.drop_column("receipts", name)
    op.add_column("runs", sa.Column("runner", sa.Text))
    op.execute("UPDATE runs SET runner = (SELECT owner FROM leases WHERE leases.run_id = runs.id)")
    op.drop_table("leases")


def _whose() -> list[sa.Column[Any]]:
    return [
        sa.Column("tenant_id", sa.Text, nullable=False),
        sa.Column("agent_id", sa.Text),
        sa.Column("org_id", sa.Text),
        sa.Column("task_id", sa.Text),
    ]
