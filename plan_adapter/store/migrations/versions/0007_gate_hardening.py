"""Policy and one-time code seeds kept in the store; runs know the folder that they were approved in; items have labels."""

from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None

_COLUMNS = (("runs", "folder"), ("revisions", "folder"), ("attempts", "label"), ("gates", "label"))
_REFUSE = """CREATE OR REPLACE FUNCTION plan_adapter_refuse_change() RETURNS trigger LANGUAGE plpgsql AS
$$ BEGIN RAISE EXCEPTION {message}; END $$"""


def upgrade() -> None:
    """Add tables and columns."""
    _add_policy_and_seeds()
    for table, column in _COLUMNS:
        op.add_column(table, sa.Column(column, sa.Text))


def downgrade() -> None:
    """Drop them again."""
    _drop_policy_and_seeds()
    for table, column in _COLUMNS:
        op.drop_column(table, column)


def _add_policy_and_seeds() -> None:
    op.create_table(
        "policy_history",
        sa.Column("number", sa.Integer, nullable=False, autoincrement=False),
        *_whose(),
        *(sa.Column(name, sa.Text, nullable=False) for name in ("document", "by", "known_by")),
        sa.Column("at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("signature", sa.Text),
        sa.Column("digest", sa.Text, nullable=False),
        sa.PrimaryKeyConstraint("number", name="pk_policy_history"),
    )
    op.create_table(
        "totp_history",
        sa.Column("name", sa.Text, nullable=False),
        sa.Column("number", sa.Integer, nullable=False),
        *_whose(),
        *(sa.Column(name, sa.Text, nullable=False) for name in ("seed", "by", "known_by")),
        sa.Column("at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("name", "number", name="pk_totp_history"),
    )
    if op.get_bind().dialect.name == "postgresql":
        op.execute(_REFUSE.format(message="'the % is only added to', replace(TG_TABLE_NAME, '_', ' ')"))
    for table in ("policy_history", "totp_history"):
        _only_added_to(table)


def _drop_policy_and_seeds() -> None:
    op.drop_table("totp_history")
    op.drop_table("policy_history")
    if op.get_bind().dialect.name == "postgresql":
        op.execute(_REFUSE.format(message="'the audit is only added to'"))


def _only_added_to(table: str) -> None:
    if op.get_bind().dialect.name == "postgresql":
        op.execute(
            f"CREATE TRIGGER {table}_refuses_changes BEFORE UPDATE OR DELETE ON {table} FOR EACH ROW "
            "EXECUTE FUNCTION plan_adapter_refuse_change()"
        )
        return
    refusal = f"the {table.replace('_', ' ')} is only added to"
    for change in ("UPDATE", "DELETE"):
        op.execute(
            f"CREATE TRIGGER {table}_refuses_{change.lower()} BEFORE {change} ON {table} BEGIN SELECT RAISE(ABORT, '{refusal}'); END"
        )


def _whose() -> list[sa.Column[Any]]:
    return [
        sa.Column("tenant_id", sa.Text, nullable=False),
        sa.Column("agent_id", sa.Text),
        sa.Column("org_id", sa.Text),
        sa.Column("task_id", sa.Text),
    ]
