"""Create every table, index and trigger of the store."""

from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

_APPEND_ONLY = ("versions", "tombstones", "tombstone_signatures", "policy_history", "totp_history")

_ERASABLE = ("runs", "step_runs", "attempts", "receipts", "approvals", "gates", "revisions", "audit")


def upgrade() -> None:
    """Create the schema in an empty database."""
    _plans()
    _versions()
    _implied_dependencies()
    _runs()
    _leases()
    _audit()
    _tombstones()
    _step_runs()
    _concurrency_keys()
    _attempts()
    _receipts()
    _commands()
    _approvals()
    _gates()
    _standing_approvals()
    _used_codes()
    _revisions()
    _drafts()
    _model_calls()
    _policy_history()
    _totp_history()
    _guard_audit()
    for table in _ERASABLE:
        _guard_erasable(table)
    for table in _APPEND_ONLY:
        _refuse_changes(table)


def _owner() -> list[sa.Column[Any]]:
    return [*_texts("tenant_id"), *_texts("agent_id", "org_id", "task_id", nullable=True)]


def _texts(*names: str, nullable: bool = False) -> list[sa.Column[Any]]:
    return [sa.Column(name, sa.Text, nullable=nullable) for name in names]


def _instants(*names: str, nullable: bool = False) -> list[sa.Column[Any]]:
    return [sa.Column(name, sa.DateTime(timezone=True), nullable=nullable) for name in names]


def _plans() -> None:
    op.create_table(
        "plans",
        *_owner(),
        *_texts("digest", "name", "description", "document"),
        *_instants("created_at"),
        sa.PrimaryKeyConstraint("tenant_id", "digest", name="pk_plans"),
    )


def _versions() -> None:
    op.create_table(
        "versions",
        *_owner(),
        *_texts("name"),
        sa.Column("version", sa.Integer, nullable=False),
        *_texts("digest", "author"),
        *_instants("created_at"),
        *_texts("row_digest"),
        sa.PrimaryKeyConstraint("tenant_id", "name", "version", name="pk_versions"),
        sa.ForeignKeyConstraint(["tenant_id", "digest"], ["plans.tenant_id", "plans.digest"], name="fk_versions_plans"),
    )


def _implied_dependencies() -> None:
    op.create_table(
        "implied_dependencies",
        *_owner(),
        *_texts("digest", "steps"),
        sa.PrimaryKeyConstraint("tenant_id", "digest", name="pk_implied_dependencies"),
    )


def _runs() -> None:
    op.create_table(
        "runs",
        *_texts("id"),
        *_owner(),
        *_texts(
            "plan_id",
            "name",
            "description",
            "digest",
            "approval_digest",
            "inputs",
            "implied_dependencies_digest",
            "definitions",
            "metadata",
            "status",
        ),
        *_texts("reason", "message", nullable=True),
        *_texts("outputs"),
        *_texts("flow_run_id", "requested_by", nullable=True),
        *_instants("created_at", "updated_at"),
        *_instants("started_at", "completed_at", nullable=True),
        sa.Column("total_duration_ms", sa.BigInteger, nullable=False),
        *_instants("approved_at", nullable=True),
        *_texts("approved_by", "rejection_note", nullable=True),
        *_instants("claimed_at", nullable=True),
        *_texts("cancel_reason", nullable=True),
        *_instants("cancel_requested_at", nullable=True),
        sa.Column("cancel_rollback", sa.Boolean),
        *_texts("folder", "rollback", nullable=True),
        *_texts("salt", nullable=True),
        sa.PrimaryKeyConstraint("id", name="pk_runs"),
        sa.ForeignKeyConstraint(["tenant_id", "digest"], ["plans.tenant_id", "plans.digest"], name="fk_runs_plans"),
    )
    op.create_index("ix_runs_created_at", "runs", ["created_at"])
    op.create_index("ix_runs_flow_run_id", "runs", ["flow_run_id"])


def _leases() -> None:
    op.create_table(
        "leases",
        *_texts("run_id"),
        *_owner(),
        sa.Column("epoch", sa.Integer, nullable=False),
        *_texts("owner", nullable=True),
        *_instants("until", nullable=True),
        sa.PrimaryKeyConstraint("run_id", name="pk_leases"),
        sa.ForeignKeyConstraint(["run_id"], ["runs.id"], name="fk_leases_runs"),
    )


def _audit() -> None:
    op.create_table(
        "audit",
        *_texts("run_id"),
        sa.Column("number", sa.Integer, nullable=False),
        *_owner(),
        *_instants("at"),
        *_texts("kind"),
        *_texts("step_id", nullable=True),
        sa.Column("item", sa.Integer, nullable=False),
        sa.Column("attempt", sa.Integer),
        *_texts("call_kind", "by", "known_by", "message", "row_id", "row_digest", nullable=True),
        *_texts("salt", nullable=True),
        *_texts("digest"),
        sa.PrimaryKeyConstraint("run_id", "number", name="pk_audit"),
        sa.ForeignKeyConstraint(["run_id"], ["runs.id"], name="fk_audit_runs"),
        sqlite_with_rowid=False,
    )
    where = sa.text("kind IN ('skip_requested', 'run_from_requested')")
    op.create_index("ix_audit_operator_requests", "audit", ["run_id", "kind"], sqlite_where=where, postgresql_where=where)


def _tombstones() -> None:
    op.create_table(
        "tombstones",
        sa.Column("number", sa.Integer, nullable=False, autoincrement=False),
        *_owner(),
        *_texts("run_id", "kind", "name", "plan_digest", "status"),
        *_instants("completed_at", nullable=True),
        sa.Column("entries", sa.Integer, nullable=False),
        *_texts("first_digest", "last_digest", "fields", "replaced", "by", "known_by"),
        *_instants("at"),
        *_texts("digest"),
        sa.PrimaryKeyConstraint("number", name="pk_tombstones"),
    )
    op.create_index("ix_tombstones_run_id", "tombstones", ["run_id"])
    op.create_table(
        "tombstone_signatures",
        sa.Column("number", sa.Integer, nullable=False, autoincrement=False),
        *_texts("by", "signature"),
        *_instants("at"),
        sa.PrimaryKeyConstraint("number", name="pk_tombstone_signatures"),
        sa.ForeignKeyConstraint(["number"], ["tombstones.number"], name="fk_tombstone_signatures_tombstones"),
    )


def _step_runs() -> None:
    op.create_table(
        "step_runs",
        *_texts("run_id", "step_id"),
        *_owner(),
        sa.Column("index", sa.Integer, nullable=False),
        *_texts("status"),
        *_texts("outcome", "error", "reason", nullable=True),
        sa.Column("retry_count", sa.Integer, nullable=False),
        sa.Column("attempts", sa.Integer, nullable=False),
        sa.Column("carried", sa.Boolean, nullable=False),
        sa.Column("rolled_back", sa.Boolean, nullable=False),
        *_instants("started_at", "completed_at", nullable=True),
        sa.Column("duration_ms", sa.BigInteger, nullable=False),
        *_texts("items", "outputs", nullable=True),
        *_texts("salt", nullable=True),
        sa.PrimaryKeyConstraint("run_id", "step_id", name="pk_step_runs"),
        sa.ForeignKeyConstraint(["run_id"], ["runs.id"], name="fk_step_runs_runs"),
        sqlite_with_rowid=False,
    )


def _concurrency_keys() -> None:
    op.create_table(
        "concurrency_keys",
        *_texts("run_id"),
        *_owner(),
        *_texts("key"),
        *_instants("since"),
        sa.Column("is_held", sa.Boolean, nullable=False),
        sa.PrimaryKeyConstraint("run_id", name="pk_concurrency_keys"),
        sa.ForeignKeyConstraint(["run_id"], ["runs.id"], name="fk_concurrency_keys_runs"),
        sqlite_with_rowid=False,
    )
    op.create_index("ix_concurrency_keys_tenant_id_key", "concurrency_keys", ["tenant_id", "key"])


def _attempts() -> None:
    op.create_table(
        "attempts",
        *_texts("run_id", "step_id", "kind"),
        sa.Column("item", sa.Integer, nullable=False),
        sa.Column("number", sa.Integer, nullable=False),
        *_owner(),
        *_texts("id", "tool_name", "effect", "parameters", "idempotency_key"),
        *_instants("started_at"),
        *_texts("approval_id", "approval_digest", "code_digest", "label", nullable=True),
        *_texts("salt", nullable=True),
        sa.PrimaryKeyConstraint("run_id", "step_id", "kind", "item", "number", name="pk_attempts"),
        sa.ForeignKeyConstraint(["run_id"], ["runs.id"], name="fk_attempts_runs"),
        sqlite_with_rowid=False,
    )


def _receipts() -> None:
    op.create_table(
        "receipts",
        *_texts("run_id", "step_id", "kind"),
        sa.Column("item", sa.Integer, nullable=False),
        sa.Column("number", sa.Integer, nullable=False),
        *_owner(),
        *_texts("attempt_id", "outcome", "result"),
        *_texts("error", nullable=True),
        *_instants("ended_at"),
        sa.Column("duration_ms", sa.BigInteger, nullable=False),
        *_texts("by", "known_by", "note", nullable=True),
        *_texts("salt", nullable=True),
        sa.PrimaryKeyConstraint("run_id", "step_id", "kind", "item", "number", name="pk_receipts"),
        sa.ForeignKeyConstraint(
            ["run_id", "step_id", "kind", "item", "number"],
            ["attempts.run_id", "attempts.step_id", "attempts.kind", "attempts.item", "attempts.number"],
            name="fk_receipts_attempts",
        ),
        sqlite_with_rowid=False,
    )


def _commands() -> None:
    op.create_table(
        "commands",
        *_texts("run_id", "step_id", "kind"),
        sa.Column("item", sa.Integer, nullable=False),
        sa.Column("number", sa.Integer, nullable=False),
        *_texts("process"),
        *_owner(),
        *_texts("attempt_id"),
        sa.PrimaryKeyConstraint("run_id", "step_id", "kind", "item", "number", "process", name="pk_commands"),
        sa.ForeignKeyConstraint(
            ["run_id", "step_id", "kind", "item", "number"],
            ["attempts.run_id", "attempts.step_id", "attempts.kind", "attempts.item", "attempts.number"],
            name="fk_commands_attempts",
        ),
        sqlite_with_rowid=False,
    )


def _approvals() -> None:
    op.create_table(
        "approvals",
        *_texts("id"),
        *_owner(),
        *_texts("approval_digest", "decision", "by", "known_by"),
        *_instants("at"),
        *_texts("note"),
        *_instants("expires_at", nullable=True),
        *_texts("run_id", nullable=True),
        *_instants("used_at", nullable=True),
        *_texts("step_id", nullable=True),
        sa.Column("item", sa.Integer, nullable=False),
        *_texts("gate_id", "standing_id", "signature", "result", nullable=True),
        *_texts("salt", nullable=True),
        sa.PrimaryKeyConstraint("id", name="pk_approvals"),
    )
    op.create_index("ix_approvals_approval_digest", "approvals", ["approval_digest"])
    op.create_index("ix_approvals_gate_id", "approvals", ["gate_id"], unique=True)
    op.create_index("ix_approvals_run_id", "approvals", ["run_id"])


def _gates() -> None:
    op.create_table(
        "gates",
        *_texts("id"),
        *_owner(),
        *_texts("run_id", "step_id"),
        sa.Column("item", sa.Integer, nullable=False),
        *_texts("approval_digest", "name", "description", "rules"),
        *_instants("opened_at"),
        *_instants("expires_at", "closed_at", nullable=True),
        *_texts("end", "flow_run_id", "keyset", nullable=True),
        sa.Column("openings", sa.Integer, nullable=False),
        *_texts("owner", nullable=True),
        *_texts("kind", "call_kind"),
        *_texts("label", "fields", nullable=True),
        *_texts("salt", nullable=True),
        *_texts("text"),
        sa.PrimaryKeyConstraint("id", name="pk_gates"),
        sa.ForeignKeyConstraint(["run_id"], ["runs.id"], name="fk_gates_runs"),
    )
    where = sa.text("closed_at IS NULL")
    op.create_index(
        "ix_gates_open", "gates", ["run_id", "step_id", "call_kind", "item"], unique=True, sqlite_where=where, postgresql_where=where
    )
    op.create_index("ix_gates_run_id", "gates", ["run_id"])


def _standing_approvals() -> None:
    op.create_table(
        "standing_approvals",
        *_texts("id"),
        *_owner(),
        *_texts("runbook_digest", "name", "by", "known_by"),
        *_instants("at"),
        *_texts("inputs", "schedules", "steps"),
        *_instants("until", nullable=True),
        sa.Column("max_runs", sa.Integer),
        sa.Column("runs", sa.Integer, nullable=False),
        *_texts("note"),
        *_texts("signature", "source", nullable=True),
        *_instants("revoked_at", nullable=True),
        *_texts("revoked_by", nullable=True),
        sa.PrimaryKeyConstraint("id", name="pk_standing_approvals"),
    )


def _used_codes() -> None:
    op.create_table(
        "used_codes",
        *_owner(),
        *_texts("name"),
        sa.Column("counter", sa.BigInteger, nullable=False),
        *_instants("used_at"),
        sa.PrimaryKeyConstraint("name", "counter", name="pk_used_codes"),
    )


def _revisions() -> None:
    op.create_table(
        "revisions",
        *_texts("run_id"),
        sa.Column("number", sa.Integer, nullable=False),
        *_owner(),
        *_texts("digest", "approval_digest", "by", "note"),
        *_instants("at"),
        *_texts("definitions"),
        *_texts("folder", nullable=True),
        *_texts("salt", nullable=True),
        sa.PrimaryKeyConstraint("run_id", "number", name="pk_revisions"),
        sa.ForeignKeyConstraint(["run_id"], ["runs.id"], name="fk_revisions_runs"),
    )


def _drafts() -> None:
    op.create_table(
        "drafts",
        *_texts("id"),
        *_owner(),
        *_texts("task", "request", "model"),
        *_texts("digest", "failure", "result", nullable=True),
        *_instants("created_at"),
        *_instants("ended_at", nullable=True),
        sa.PrimaryKeyConstraint("id", name="pk_drafts"),
    )


def _model_calls() -> None:
    op.create_table(
        "model_calls",
        *_texts("draft_id"),
        sa.Column("number", sa.Integer, nullable=False),
        *_owner(),
        *_texts("model", "rung", "phase", "prompt_digest"),
        sa.Column("prompt_tokens", sa.Integer, nullable=False),
        sa.Column("completion_tokens", sa.Integer, nullable=False),
        sa.Column("milliseconds", sa.Integer, nullable=False),
        *_texts("problems"),
        sa.Column("is_whole", sa.Boolean, nullable=False),
        *_instants("at"),
        *_texts("prompt", "answer"),
        sa.PrimaryKeyConstraint("draft_id", "number", name="pk_model_calls"),
        sa.ForeignKeyConstraint(["draft_id"], ["drafts.id"], name="fk_model_calls_drafts"),
    )


def _policy_history() -> None:
    op.create_table(
        "policy_history",
        sa.Column("number", sa.Integer, nullable=False, autoincrement=False),
        *_owner(),
        *_texts("document", "by", "known_by"),
        *_instants("at"),
        *_texts("signature", nullable=True),
        *_texts("digest"),
        sa.PrimaryKeyConstraint("number", name="pk_policy_history"),
    )


def _totp_history() -> None:
    op.create_table(
        "totp_history",
        *_texts("name"),
        sa.Column("number", sa.Integer, nullable=False),
        *_owner(),
        *_texts("seed", "by", "known_by"),
        *_instants("at"),
        sa.PrimaryKeyConstraint("name", "number", name="pk_totp_history"),
    )


_AUDIT = (
    "run_id", "number", "tenant_id", "agent_id", "org_id", "task_id", "at", "kind", "step_id", "item", "attempt", "call_kind", "by",
    "known_by", "row_id", "row_digest", "digest",
)  # fmt: skip


def _guard_audit() -> None:
    """Add triggers to the audit log: a tombstone must come before a delete, or before erasing texts in messages."""
    old, new = (", ".join(f'{row}."{column}"' for column in _AUDIT) for row in ("OLD", "NEW"))
    told = "EXISTS (SELECT 1 FROM tombstones WHERE run_id = OLD.run_id AND kind = '{kind}')"
    pruned, erased = told.format(kind="pruned"), told.format(kind="erased")
    refusal = "rows of audit cannot be changed or deleted"
    if op.get_bind().dialect.name == "postgresql":
        op.execute(
            "CREATE OR REPLACE FUNCTION plan_adapter_refuse_audit_change() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN "
            f"IF TG_OP = 'DELETE' THEN IF {pruned} THEN RETURN OLD; END IF; "
            f"ELSIF {erased} AND position('[erased]' IN NEW.message) > 0 AND to_jsonb(NEW) - 'message' - 'salt' = "
            "to_jsonb(OLD) - 'message' - 'salt' "
            f"THEN RETURN NEW; END IF; RAISE EXCEPTION '{refusal}'; END $$"
        )
        op.execute(
            "CREATE TRIGGER audit_refuses_changes BEFORE UPDATE OR DELETE ON audit FOR EACH ROW "
            "EXECUTE FUNCTION plan_adapter_refuse_audit_change()"
        )
        return
    conditions = {"UPDATE": f"{erased} AND instr(NEW.message, '[erased]') AND ({new}) IS ({old})", "DELETE": pruned}
    for change, condition in conditions.items():
        op.execute(
            f"CREATE TRIGGER audit_refuses_{change.lower()} BEFORE {change} ON audit WHEN NOT coalesce({condition}, 0) "
            f"BEGIN SELECT RAISE(ABORT, '{refusal}'); END"
        )


def _guard_erasable(table: str) -> None:
    """Add a trigger on PostgreSQL: the role that erases can change a row only once there is a tombstone, and only by erasing words."""
    if op.get_bind().dialect.name != "postgresql":
        return
    is_keeper = "has_table_privilege('tombstones', 'INSERT') AND NOT has_table_privilege('attempts', 'INSERT')"
    run_id = "id" if table == "runs" else "run_id"
    event, refused, refusal = "INSERT", "NEW.kind NOT IN ('erased', 'refused')", "this role adds no such entry to the audit log"
    if table != "audit":
        event, refusal = "UPDATE", f"this role only erases words in rows of {table}"
        refused = (
            f"(NOT EXISTS (SELECT 1 FROM tombstones WHERE run_id = OLD.{run_id} AND kind = 'erased') OR EXISTS (SELECT 1 FROM "  # noqa: S608
            "jsonb_each_text(to_jsonb(NEW)) AS now JOIN jsonb_each_text(to_jsonb(OLD)) AS before USING (key) WHERE now.value IS DISTINCT "
            "FROM before.value AND key NOT IN ('salt', 'updated_at') AND coalesce(position('[erased' IN now.value), 0) = 0))"
        )
    op.execute(
        f"CREATE OR REPLACE FUNCTION plan_adapter_guard_{table}() RETURNS trigger LANGUAGE plpgsql AS "
        f"$$ BEGIN IF {is_keeper} AND {refused} THEN RAISE EXCEPTION '{refusal}'; END IF; RETURN NEW; END $$"
    )
    op.execute(
        f"CREATE TRIGGER {table}_guards_erasing BEFORE {event} ON {table} FOR EACH ROW EXECUTE FUNCTION plan_adapter_guard_{table}()"
    )


def _refuse_changes(table: str) -> None:
    """Add triggers that reject updates and deletes in `table`."""
    if op.get_bind().dialect.name == "postgresql":
        op.execute(
            "CREATE OR REPLACE FUNCTION plan_adapter_refuse_change() RETURNS trigger LANGUAGE plpgsql AS "
            "$$ BEGIN RAISE EXCEPTION 'rows of % cannot be changed or deleted', TG_TABLE_NAME; END $$"
        )
        op.execute(
            f"CREATE TRIGGER {table}_refuses_changes BEFORE UPDATE OR DELETE ON {table} FOR EACH ROW "
            "EXECUTE FUNCTION plan_adapter_refuse_change()"
        )
        return
    refusal = f"rows of {table} cannot be changed or deleted"
    for change in ("UPDATE", "DELETE"):
        op.execute(
            f"CREATE TRIGGER {table}_refuses_{change.lower()} BEFORE {change} ON {table} BEGIN SELECT RAISE(ABORT, '{refusal}'); END"
        )
