"""Drafts of plans, with every question to a model and its answer."""

from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the tables."""
    op.create_table(
        "drafts",
        sa.Column("id", sa.Text, nullable=False),
        *_whose(),
        sa.Column("task", sa.Text, nullable=False),
        sa.Column("request", sa.Text, nullable=False),
        sa.Column("model", sa.Text, nullable=False),
        sa.Column("digest", sa.Text),
        sa.Column("failure", sa.Text),
        sa.Column("result", sa.Text),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("ended_at", sa.DateTime(timezone=True)),
        sa.PrimaryKeyConstraint("id", name="pk_drafts"),
    )
    op.create_table(
        "model_calls",
        sa.Column("draft_id", sa.Text, nullable=False),
        sa.Column("number", sa.Integer, nullable=False),
        *_whose(),
        sa.Column("model", sa.Text, nullable=False),
        sa.Column("rung", sa.Text, nullable=False),
        sa.Column("phase", sa.Text, nullable=False),
        sa.Column("prompt_digest", sa.Text, nullable=False),
        sa.Column("prompt_tokens", sa.Integer, nullable=False),
        sa.Column("completion_tokens", sa.Integer, nullable=False),
        sa.Column("milliseconds", sa.Integer, nullable=False),
        sa.Column("problems", sa.Text, nullable=False),
        sa.Column("is_whole", sa.Boolean, nullable=False),
        sa.Column("at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("prompt", sa.Text, nullable=False),
        sa.Column("answer", sa.Text, nullable=False),
        sa.PrimaryKeyConstraint("draft_id", "number", name="pk_model_calls"),
        sa.ForeignKeyConstraint(["draft_id"], ["drafts.id"], name="fk_model_calls_drafts"),
    )


def downgrade() -> None:
    """Drop them, and everything in them."""
    op.drop_table("model_calls")
    op.drop_table("drafts")


def _whose() -> list[sa.Column[Any]]:
    return [
        sa.Column("tenant_id", sa.Text, nullable=False),
        sa.Column("agent_id", sa.Text),
        sa.Column("org_id", sa.Text),
        sa.Column("task_id", sa.Text),
    ]
