"""The first tables: plans, versions, runs, step runs, attempts, receipts, approvals."""

from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Make the tables."""
    _plans_and_versions()
    _runs()
    _attempts_and_receipts()
    _approvals()


def downgrade() -> None:
    """Drop the tables and everything in them."""
    for table in ("approvals", "receipts", "attempts", "step_runs", "runs", "versions", "plans"):
        op.drop_table(table)


def _whose() -> list[sa.Column[Any]]:
    return [
        sa.Column("tenant_id", sa.Text, nullable=False),
        sa.Column("agent_id", sa.Text),
        sa.Column("org_id", sa.Text),
        sa.Column("task_id", sa.Text),
    ]


def _instant(name: str, *, nullable: bool = True) -> sa.Column[Any]:
    return sa.Column(name, sa.DateTime(timezone=True), nullable=nullable)


def _plans_and_versions() -> None:
    op.create_table(
        "plans",
        *_whose(),
        sa.Column("digest", sa.Text, nullable=False),
        sa.Column("name", sa.Text, nullable=False),
        sa.Column("description", sa.Text, nullable=False),
        sa.Column("document", sa.Text, nullable=False),
        _instant("created_at", nullable=False),
        sa.PrimaryKeyConstraint("tenant_id", "digest", name="pk_plans"),
    )
    op.create_table(
        "versions",
        *_whose(),
        sa.Column("name", sa.Text, nullable=False),
        sa.Column("version", sa.Integer, nullable=False),
        sa.Column("digest", sa.Text, nullable=False),
        sa.Column("author", sa.Text, nullable=False),
        _instant("created_at", nullable=False),
        sa.PrimaryKeyConstraint("tenant_id", "name", "version", name="pk_versions"),
        sa.ForeignKeyConstraint(["tenant_id", "digest"], ["plans.tenant_id", "plans.digest"], name="fk_versions_plans"),
    )


def _runs() -> None:
    op.create_table(
        "runs",
        sa.Column("id", sa.Text, nullable=False),
        *_whose(),
        *(sa.Column(name, sa.Text, nullable=False) for name in ("plan_id", "name", "description", "digest", "approval_digest")),
        *(sa.Column(name, sa.Text, nullable=False) for name in ("inputs", "steps", "definitions", "metadata")),
        sa.Column("status", sa.Text, nullable=False),
        sa.Column("reason", sa.Text),
        sa.Column("message", sa.Text),
        sa.Column("outputs", sa.Text, nullable=False),
        sa.Column("flow_run_id", sa.Text),
        _instant("created_at", nullable=False),
        _instant("updated_at", nullable=False),
        _instant("started_at"),
        _instant("completed_at"),
        sa.Column("total_duration_ms", sa.BigInteger, nullable=False),
        _instant("approved_at"),
        sa.Column("approved_by", sa.Text),
        sa.Column("rejection_note", sa.Text),
        sa.Column("runner", sa.Text),
        _instant("claimed_at"),
        sa.Column("cancel_reason", sa.Text),
        _instant("cancel_requested_at"),
        sa.PrimaryKeyConstraint("id", name="pk_runs"),
        sa.ForeignKeyConstraint(["tenant_id", "digest"], ["plans.tenant_id", "plans.digest"], name="fk_runs_plans"),
    )
    op.create_index("ix_runs_created_at", "runs", ["created_at"])
    op.create_index("ix_runs_flow_run_id", "runs", ["flow_run_id"])
    op.create_table(
        "step_runs",
        sa.Column("run_id", sa.Text, nullable=False),
        sa.Column("step_id", sa.Text, nullable=False),
        *_whose(),
        sa.Column("index", sa.Integer, nullable=False),
        sa.Column("status", sa.Text, nullable=False),
        sa.Column("outcome", sa.Text),
        sa.Column("error", sa.Text),
        sa.Column("reason", sa.Text),
        sa.Column("retry_count", sa.Integer, nullable=False),
        sa.Column("attempts", sa.Integer, nullable=False),
        sa.Column("carried", sa.Boolean, nullable=False),
        _instant("started_at"),
        _instant("completed_at"),
        sa.Column("duration_ms", sa.BigInteger, nullable=False),
        sa.PrimaryKeyConstraint("run_id", "step_id", name="pk_step_runs"),
        sa.ForeignKeyConstraint(["run_id"], ["runs.id"], name="fk_step_runs_runs"),
        sqlite_with_rowid=False,
    )


def _attempts_and_receipts() -> None:
    op.create_table(
        "attempts",
        *_attempt_key(),
        *_whose(),
        *(sa.Column(name, sa.Text, nullable=False) for name in ("id", "tool_name", "effect", "parameters", "idempotency_key")),
        _instant("started_at", nullable=False),
        sa.PrimaryKeyConstraint(*_KEY, name="pk_attempts"),
        sa.ForeignKeyConstraint(["run_id"], ["runs.id"], name="fk_attempts_runs"),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "receipts",
        *_attempt_key(),
        *_whose(),
        sa.Column("attempt_id", sa.Text, nullable=False),
        sa.Column("outcome", sa.Text, nullable=False),
        sa.Column("result", sa.Text, nullable=False),
        sa.Column("error", sa.Text),
        _instant("ended_at", nullable=False),
        sa.Column("duration_ms", sa.BigInteger, nullable=False),
        sa.PrimaryKeyConstraint(*_KEY, name="pk_receipts"),
        sa.ForeignKeyConstraint(_KEY, [f"attempts.{name}" for name in _KEY], name="fk_receipts_attempts"),
        sqlite_with_rowid=False,
    )


_KEY = ["run_id", "step_id", "item", "number"]


def _attempt_key() -> list[sa.Column[Any]]:
    return [
        sa.Column("run_id", sa.Text, nullable=False),
        sa.Column("step_id", sa.Text, nullable=False),
        sa.Column("item", sa.Integer, nullable=False),
        sa.Column("number", sa.Integer, nullable=False),
    ]


def _approvals() -> None:
    op.create_table(
        "approvals",
        sa.Column("id", sa.Text, nullable=False),
        *_whose(),
        *(sa.Column(name, sa.Text, nullable=False) for name in ("approval_digest", "decision", "by", "known_by")),
        _instant("at", nullable=False),
        sa.Column("note", sa.Text, nullable=False),
        _instant("expires_at"),
        sa.Column("run_id", sa.Text),
        _instant("used_at"),
        sa.PrimaryKeyConstraint("id", name="pk_approvals"),
    )
    op.create_index("ix_approvals_approval_digest", "approvals", ["approval_digest"])
    op.create_index("ix_approvals_run_id", "approvals", ["run_id"])
