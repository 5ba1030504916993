"""The index of the words about steps in the audit holds their kind, without which SQLite does not use it."""

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Put the kind into it."""
    _make(["run_id", "kind"])


def downgrade() -> None:
    """Leave it out again."""
    _make(["run_id"])


def _make(columns: list[str]) -> None:
    is_wish = sa.text("kind IN ('left_out', 'taken_back')")
    op.drop_index("ix_audit_operator_requests", "audit")
    op.create_index("ix_audit_operator_requests", "audit", columns, sqlite_where=is_wish, postgresql_where=is_wish)
