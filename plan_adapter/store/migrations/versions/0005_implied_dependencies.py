"""What steps wait for because they refer to it, once for all runs of the same plan; and an index of the words about steps in the audit."""

import json
from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add them; runs that are there keep what they know of their steps, because their audit covers the rows as they are."""
    op.create_table(
        "implied_dependencies",
        sa.Column("tenant_id", sa.Text, nullable=False),
        sa.Column("agent_id", sa.Text),
        sa.Column("org_id", sa.Text),
        sa.Column("task_id", sa.Text),
        sa.Column("digest", sa.Text, nullable=False),
        sa.Column("steps", sa.Text, nullable=False),
        sa.PrimaryKeyConstraint("tenant_id", "digest", name="pk_implied_dependencies"),
    )
    is_wish = sa.text("kind IN ('left_out', 'taken_back')")
    op.create_index("ix_audit_operator_requests", "audit", ["run_id"], sqlite_where=is_wish, postgresql_where=is_wish)


def downgrade() -> None:
    """Put all that is known of the steps back into the rows of their runs."""
    connection = op.get_bind()
    rows = connection.execute(
        sa.text(
            "SELECT runs.id, plans.document, implied_dependencies.steps FROM runs "
            "JOIN plans ON plans.tenant_id = runs.tenant_id AND plans.digest = runs.digest "
            "JOIN implied_dependencies ON implied_dependencies.tenant_id = runs.tenant_id AND implied_dependencies.digest = runs.steps"
        )
    )
    for run_id, document, implied in rows.all():
        known = _known(json.loads(document)["steps"], json.loads(implied)["steps"])
        steps = json.dumps(known, ensure_ascii=False, separators=(",", ":"))
        connection.execute(sa.text("UPDATE runs SET steps = :steps WHERE id = :id"), {"steps": steps, "id": run_id})
    op.drop_index("ix_audit_operator_requests", "audit")
    op.drop_table("implied_dependencies")


def _known(steps: list[dict[str, Any]], implied: dict[str, list[str]]) -> list[dict[str, Any]]:
    return [
        {
            "id": step["id"],
            "index": index,
            "tool_name": step.get("tool_name") or "",
            "description": step.get("description", ""),
            "max_retries": step.get("max_retries", 0),
            "retry_delay_ms": step.get("retry_delay_ms", 0),
            "metadata": step.get("metadata", {}),
            "depends_on": implied.get(step["id"]) or step.get("depends_on", []),
            "is_list": "for_each" in step,
        }
        for index, step in enumerate(steps)
    ]
