"""What is known of the steps of a run before they run, once for all runs of the same plan and not in the row of each."""

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the table; runs that are there keep their lists, because their audit covers the rows as they are."""
    op.create_table(
        "step_lists",
        sa.Column("tenant_id", sa.Text, nullable=False),
        sa.Column("agent_id", sa.Text),
        sa.Column("org_id", sa.Text),
        sa.Column("task_id", sa.Text),
        sa.Column("digest", sa.Text, nullable=False),
        sa.Column("steps", sa.Text, nullable=False),
        sa.PrimaryKeyConstraint("tenant_id", "digest", name="pk_step_lists"),
    )


def downgrade() -> None:
    """Put the lists back into the rows of their runs."""
    op.execute(
        "UPDATE runs SET steps = COALESCE((SELECT step_lists.steps FROM step_lists "
        "WHERE step_lists.tenant_id = runs.tenant_id AND step_lists.digest = runs.steps), steps)"
    )
    op.drop_table("step_lists")
