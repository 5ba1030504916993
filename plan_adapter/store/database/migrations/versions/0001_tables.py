"""The first schema. It is never executed: new stores are created from `tables.py`, and no store is older."""

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Raise, because alembic only runs the revisions after that of a store."""
    raise NotImplementedError("a new store is created from its tables")
