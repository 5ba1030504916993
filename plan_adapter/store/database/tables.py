"""The tables. Rows carry the context of their run or plan: `tenant_id` (empty for none), `agent_id`, `org_id`, `task_id`.

JSON is stored as text, because PostgreSQL's own JSON types refuse or reorder what a tool may return.
"""

from typing import Any

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    ForeignKey,
    ForeignKeyConstraint,
    Index,
    Integer,
    MetaData,
    Table,
    Text,
    text,
)

from plan_adapter.store.database.columns import Instant, SafeText, guard_audit_log, guard_keeping, make_append_only

REVISION = "0004"
"""The newest migration. A test checks it."""

REVISION_TABLE = "plan_adapter_revision"
"""Differs from alembic's default, which another application in the same database may use."""


metadata = MetaData(
    naming_convention={
        "pk": "pk_%(table_name)s",
        "fk": "fk_%(table_name)s_%(referred_table_name)s",
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "uq": "uq_%(table_name)s",
    }
)


def _salt() -> Column[Any]:
    """Return the column with the salt of a row's words, or, once some were erased, what remains of it: see `digests.Words`."""
    return Column("salt", Text)


def _context_columns(*, is_key: bool = False) -> list[Column[Any]]:
    return [
        Column("tenant_id", Text, primary_key=is_key, nullable=False),
        Column("agent_id", Text),
        Column("org_id", Text),
        Column("task_id", Text),
    ]


plans = Table(
    "plans",
    metadata,
    *_context_columns(is_key=True),
    Column("digest", Text, primary_key=True),
    Column("name", SafeText, nullable=False),
    Column("description", SafeText, nullable=False),
    Column("document", Text, nullable=False),  # the canonical form, which the digest covers
    Column("created_at", Instant, nullable=False),
)

versions = Table(
    "versions",
    metadata,
    *_context_columns(is_key=True),
    Column("name", SafeText, primary_key=True),
    Column("version", Integer, primary_key=True, autoincrement=False),
    Column("digest", Text, nullable=False),
    Column("author", SafeText, nullable=False),
    Column("created_at", Instant, nullable=False),
    Column("row_digest", Text, nullable=False),  # of this row and that of the version before it
    ForeignKeyConstraint(["tenant_id", "digest"], ["plans.tenant_id", "plans.digest"]),
)

make_append_only(versions)

implied_dependencies = Table(
    "implied_dependencies",
    metadata,
    *_context_columns(is_key=True),
    Column("digest", Text, primary_key=True),
    Column("steps", Text, nullable=False),  # dependencies implied by references; the digest covers this text
)

runs = Table(
    "runs",
    metadata,
    Column("id", Text, primary_key=True),
    *_context_columns(),
    Column("plan_id", Text, nullable=False),
    Column("name", SafeText, nullable=False),
    Column("description", SafeText, nullable=False),
    Column("digest", Text, nullable=False),
    Column("approval_digest", Text, nullable=False),
    Column("inputs", Text, nullable=False),
    Column("implied_dependencies_digest", Text, nullable=False),
    Column("definitions", Text, nullable=False),  # of the tools, as the approval digest covers them
    Column("metadata", Text, nullable=False),
    Column("status", Text, nullable=False),
    Column("reason", Text),
    Column("message", SafeText),
    Column("outputs", Text, nullable=False),
    Column("flow_run_id", Text),
    Column("requested_by", SafeText),
    Column("created_at", Instant, nullable=False),
    Column("updated_at", Instant, nullable=False),
    Column("started_at", Instant),
    Column("completed_at", Instant),
    Column("total_duration_ms", BigInteger, nullable=False),
    Column("approved_at", Instant),
    Column("approved_by", SafeText),
    Column("rejection_note", SafeText),
    Column("claimed_at", Instant),  # when a process last began to execute it
    Column("cancel_reason", SafeText),
    Column("cancel_requested_at", Instant),
    Column("cancel_rollback", Boolean),  # whether to roll back when cancelled
    Column("folder", Text),  # where it works, if recorded
    Column("rollback", Text),  # the status of its last rollback
    _salt(),
    ForeignKeyConstraint(["tenant_id", "digest"], ["plans.tenant_id", "plans.digest"]),
    Index(None, "created_at"),
    Index(None, "flow_run_id"),
)

leases = Table(
    "leases",
    metadata,
    Column("run_id", Text, ForeignKey("runs.id"), primary_key=True),
    *_context_columns(),
    Column("epoch", Integer, nullable=False),  # incremented by every process that takes the run
    Column("owner", Text),  # the process that executes the run, NULL if none does
    Column("until", Instant),  # the deadline for the next renewal
)

IS_OPERATOR_REQUEST = text("kind IN ('skip_requested', 'run_from_requested')")  # literals, so that the planner matches the partial index

audit = Table(
    "audit",
    metadata,
    Column("run_id", Text, ForeignKey("runs.id"), primary_key=True),
    Column("number", Integer, primary_key=True, autoincrement=False),  # from 1, without gaps
    *_context_columns(),
    Column("at", Instant, nullable=False),
    Column("kind", Text, nullable=False),
    Column("step_id", Text),
    Column("item", Integer, nullable=False),
    Column("attempt", Integer),
    Column("call_kind", Text),  # of the attempt or the gate
    Column("by", SafeText),
    Column("known_by", Text),
    Column("message", SafeText),
    Column("row_id", Text),  # of the row that the entry is about, if step, item and attempt do not identify it
    Column("row_digest", Text),  # of that row
    _salt(),
    Column("digest", Text, nullable=False),  # of the entry and the digest before it
    # A long run has tens of thousands of entries, and every start looks for requests.
    Index("ix_audit_operator_requests", "run_id", "kind", sqlite_where=IS_OPERATOR_REQUEST, postgresql_where=IS_OPERATOR_REQUEST),
    sqlite_with_rowid=False,
)

guard_audit_log(audit)

tombstones = Table(
    "tombstones",
    metadata,
    Column("number", Integer, primary_key=True, autoincrement=False),  # from 1, without gaps, in the whole store
    *_context_columns(),
    Column("run_id", Text, nullable=False),  # no foreign key: a pruned run is gone
    Column("kind", Text, nullable=False),  # pruned or erased
    Column("name", SafeText, nullable=False),  # of the plan
    Column("plan_digest", Text, nullable=False),
    Column("status", Text, nullable=False),
    Column("completed_at", Instant),
    Column("entries", Integer, nullable=False),  # of the run's audit log
    Column("first_digest", Text, nullable=False),  # of the first entry
    Column("last_digest", Text, nullable=False),  # of the newest entry
    Column("fields", SafeText, nullable=False),  # the erased fields, as JSON; empty list if pruned
    Column("replaced", Text, nullable=False),  # the columns with erased words by row, and the digests of changed files by path, as JSON
    Column("by", SafeText, nullable=False),
    Column("known_by", Text, nullable=False),
    Column("at", Instant, nullable=False),
    Column("digest", Text, nullable=False),  # of this row and the digest before it
    Index(None, "run_id"),
)

make_append_only(tombstones)

tombstone_signatures = Table(
    "tombstone_signatures",
    metadata,
    Column("number", Integer, ForeignKey("tombstones.number"), primary_key=True, autoincrement=False),
    Column("by", SafeText, nullable=False),
    Column("signature", Text, nullable=False),  # of the tombstone's digest, and so of all tombstones before it
    Column("at", Instant, nullable=False),
)

make_append_only(tombstone_signatures)

# The next three tables are written while steps run. On SQLite they have no row ids: one tree each instead of two or three, so a commit
# writes fewer pages. Their keys start with the run, because they are read by run.

step_runs = Table(
    "step_runs",
    metadata,
    Column("run_id", Text, ForeignKey("runs.id"), primary_key=True),
    Column("step_id", Text, primary_key=True),
    *_context_columns(),
    Column("index", Integer, nullable=False),
    Column("status", Text, nullable=False),
    Column("outcome", Text),
    Column("error", SafeText),
    Column("reason", SafeText),
    Column("retry_count", Integer, nullable=False),
    Column("attempts", Integer, nullable=False),
    Column("carried", Boolean, nullable=False),
    Column("rolled_back", Boolean, nullable=False),
    Column("started_at", Instant),
    Column("completed_at", Instant),
    Column("duration_ms", BigInteger, nullable=False),
    Column("items", Text),  # of a group: label, status, whether it was rolled back and whether it started, of each item, as JSON
    Column("outputs", Text),  # of a step that ran a plan: its outputs, as JSON
    _salt(),
    sqlite_with_rowid=False,
)

concurrency_keys = Table(
    "concurrency_keys",
    metadata,
    Column("run_id", Text, ForeignKey("runs.id"), primary_key=True),
    *_context_columns(),
    Column("key", SafeText, nullable=False),
    Column("since", Instant, nullable=False),  # when the run began to wait for it
    Column("is_held", Boolean, nullable=False),  # until the run has ended
    Index(None, "tenant_id", "key"),
    sqlite_with_rowid=False,
)

triggered_runs = Table(
    "triggered_runs",
    metadata,
    Column("run_id", Text, ForeignKey("runs.id"), primary_key=True),
    *_context_columns(),
    Column("key", Text, nullable=False),  # a digest of the trigger and of the alert's fingerprint
    Column("event", SafeText, nullable=False),  # the name of the event that started the run
    Column("event_id", SafeText, nullable=False),
    Column("events", Integer, nullable=False),  # that came for it, with that one
    Column("at", Instant, nullable=False),  # when it started the run
    Index(None, "tenant_id", "key"),
    sqlite_with_rowid=False,
)


def _attempt_key() -> list[Column[Any]]:
    # Two processes that execute one run cannot both begin the same attempt.
    return [
        Column("run_id", Text, primary_key=True),
        Column("step_id", Text, primary_key=True),
        Column("kind", Text, primary_key=True),  # a `CallKind`
        Column("item", Integer, primary_key=True, autoincrement=False),  # -1 for a step without `for_each`
        Column("number", Integer, primary_key=True, autoincrement=False),
    ]


def _of_attempt() -> ForeignKeyConstraint:
    key = [column.name for column in _attempt_key()]
    return ForeignKeyConstraint(key, [f"attempts.{name}" for name in key])


attempts = Table(
    "attempts",
    metadata,
    *_attempt_key(),
    *_context_columns(),
    Column("id", Text, nullable=False),
    Column("tool_name", Text, nullable=False),
    Column("effect", Text, nullable=False),
    Column("parameters", Text, nullable=False),
    Column("idempotency_key", Text, nullable=False),
    Column("started_at", Instant, nullable=False),
    Column("approval_id", Text),  # of a step that waited at its own gate
    Column("approval_digest", Text),  # of that call, as it was made
    Column("code_digest", Text),  # of the tool's source, if known
    Column("label", SafeText),  # the item's name, unless it is named by number
    _salt(),
    ForeignKeyConstraint(["run_id"], ["runs.id"]),
    sqlite_with_rowid=False,
)

receipts = Table(
    "receipts",
    metadata,
    *_attempt_key(),
    *_context_columns(),
    Column("attempt_id", Text, nullable=False),
    Column("outcome", Text, nullable=False),
    Column("result", Text, nullable=False),
    Column("error", SafeText),
    Column("ended_at", Instant, nullable=False),
    Column("duration_ms", BigInteger, nullable=False),
    Column("by", SafeText),  # who resolved it, if the outcome does not come from the tool
    Column("known_by", Text),
    Column("note", SafeText),
    _salt(),
    _of_attempt(),
    sqlite_with_rowid=False,
)

commands = Table(
    "commands",
    metadata,
    *_attempt_key(),  # of the attempt whose tool started it
    Column("process", Text, primary_key=True),  # a `HostProcess`
    *_context_columns(),
    Column("attempt_id", Text, nullable=False),
    _of_attempt(),
    sqlite_with_rowid=False,
)

approvals = Table(
    "approvals",
    metadata,
    Column("id", Text, primary_key=True),
    *_context_columns(),
    Column("approval_digest", Text, nullable=False),
    Column("decision", Text, nullable=False),
    Column("by", SafeText, nullable=False),
    Column("known_by", Text, nullable=False),
    Column("at", Instant, nullable=False),
    Column("note", SafeText, nullable=False),
    Column("expires_at", Instant),
    Column("run_id", Text),  # the run that it was given for, or that used it
    Column("used_at", Instant),
    Column("step_id", Text),  # NULL: for the whole plan
    Column("item", Integer, nullable=False),  # -1: for a plan, or a step without `for_each`
    Column("gate_id", Text),
    Column("standing_id", Text),
    Column("signature", Text),
    Column("result", SafeText),  # the answer to a question, as JSON
    _salt(),
    Index(None, "approval_digest"),
    Index(None, "run_id"),
    Index(None, "gate_id", unique=True),  # a gate has one answer; NULLs are not compared
)

_IS_OPEN = text("closed_at IS NULL")

gates = Table(
    "gates",
    metadata,
    Column("id", Text, primary_key=True),
    *_context_columns(),
    Column("run_id", Text, ForeignKey("runs.id"), nullable=False),
    Column("step_id", Text, nullable=False),  # empty for a plan gate, because NULLs are distinct in an index
    Column("item", Integer, nullable=False),  # -1 for none
    Column("approval_digest", Text, nullable=False),
    Column("name", SafeText, nullable=False),
    Column("description", SafeText, nullable=False),
    Column("rules", Text, nullable=False),  # the gate policy; the name is part of the digests of rows
    Column("opened_at", Instant, nullable=False),
    Column("expires_at", Instant),
    Column("closed_at", Instant),
    Column("end", Text),
    Column("flow_run_id", Text),
    Column("keyset", Text),
    Column("openings", Integer, nullable=False),
    Column("owner", Text),  # the process that waits at it
    Column("kind", Text, nullable=False),
    Column("call_kind", Text, nullable=False),
    Column("label", SafeText),  # the item's name, unless it is named by number
    Column("fields", SafeText),  # of the answer to a question, as JSON
    _salt(),
    Column("text", SafeText, nullable=False),  # last, because SQLite reads a row from its start and this may be long
    Index("ix_gates_open", "run_id", "step_id", "call_kind", "item", unique=True, sqlite_where=_IS_OPEN, postgresql_where=_IS_OPEN),
    Index(None, "run_id"),
)

IS_UNFINISHED = text("shown <> 'closed'")

gate_messages = Table(
    "gate_messages",
    metadata,
    Column("gate_id", Text, ForeignKey("gates.id"), primary_key=True),
    Column("channel", Text, primary_key=True),  # slack, teams or mail
    *_context_columns(),
    Column("run_id", Text, nullable=False),
    Column("shown", Text, nullable=False),  # how far the gate was: empty if it was not sent yet, and `closed` at the end
    Column("reference", SafeText),  # by which the channel knows the message
    Column("not_before", Instant, nullable=False),  # until then, one process sends it, or waits to try again
    Column("failures", Integer, nullable=False),  # since it was last sent
    Column("sent_at", Instant),
    Index(None, "run_id"),
    Index("ix_gate_messages_unfinished", "channel", sqlite_where=IS_UNFINISHED, postgresql_where=IS_UNFINISHED),
    sqlite_with_rowid=False,
)

standing_approvals = Table(
    "standing_approvals",
    metadata,
    Column("id", Text, primary_key=True),
    *_context_columns(),
    Column("runbook_digest", Text, nullable=False),
    Column("name", SafeText, nullable=False),
    Column("by", SafeText, nullable=False),
    Column("known_by", Text, nullable=False),
    Column("at", Instant, nullable=False),
    Column("inputs", Text, nullable=False),
    Column("schedules", Text, nullable=False),
    Column("steps", Text, nullable=False),
    Column("until", Instant),
    Column("max_runs", Integer),
    Column("runs", Integer, nullable=False),
    Column("note", SafeText, nullable=False),
    Column("signature", Text),
    Column("source", SafeText),
    Column("revoked_at", Instant),
    Column("revoked_by", SafeText),
)

used_codes = Table(
    "used_codes",
    metadata,
    *_context_columns(),
    Column("name", SafeText, primary_key=True),
    Column("counter", BigInteger, primary_key=True, autoincrement=False),
    Column("used_at", Instant, nullable=False),
)

revisions = Table(
    "revisions",
    metadata,
    Column("run_id", Text, ForeignKey("runs.id"), primary_key=True),
    Column("number", Integer, primary_key=True, autoincrement=False),
    *_context_columns(),
    Column("digest", Text, nullable=False),  # of the replaced version
    Column("approval_digest", Text, nullable=False),
    Column("by", SafeText, nullable=False),
    Column("note", SafeText, nullable=False),
    Column("at", Instant, nullable=False),
    Column("definitions", Text, nullable=False),  # of its tools
    Column("folder", Text),  # where the run worked
    _salt(),
)

drafts = Table(
    "drafts",
    metadata,
    Column("id", Text, primary_key=True),
    *_context_columns(),
    Column("task", SafeText, nullable=False),
    Column("request", Text, nullable=False),
    Column("model", SafeText, nullable=False),
    Column("digest", Text),  # of the drafted plan
    Column("failure", SafeText),
    Column("result", Text),  # constraints, notes etc., once the draft has ended
    Column("created_at", Instant, nullable=False),
    Column("ended_at", Instant),
)

model_calls = Table(
    "model_calls",
    metadata,
    Column("draft_id", Text, ForeignKey("drafts.id"), primary_key=True),
    Column("number", Integer, primary_key=True, autoincrement=False),
    *_context_columns(),
    Column("model", SafeText, nullable=False),
    Column("rung", Text, nullable=False),
    Column("phase", Text, nullable=False),
    Column("prompt_digest", Text, nullable=False),
    Column("prompt_tokens", Integer, nullable=False),
    Column("completion_tokens", Integer, nullable=False),
    Column("milliseconds", Integer, nullable=False),
    Column("problems", Text, nullable=False),
    Column("is_whole", Boolean, nullable=False),  # whether nothing was redacted from the answer
    Column("at", Instant, nullable=False),
    Column("prompt", SafeText, nullable=False),
    Column("answer", SafeText, nullable=False),
)

policy_history = Table(
    "policy_history",
    metadata,
    Column("number", Integer, primary_key=True, autoincrement=False),  # from 1, without gaps; the newest one is in force
    *_context_columns(),
    Column("document", Text, nullable=False),  # the canonical form
    Column("by", SafeText, nullable=False),
    Column("known_by", Text, nullable=False),
    Column("at", Instant, nullable=False),
    Column("signature", Text),
    Column("digest", Text, nullable=False),  # of this row and the digest before it
)

make_append_only(policy_history)

totp_history = Table(
    "totp_history",
    metadata,
    Column("name", SafeText, primary_key=True),
    Column("number", Integer, primary_key=True, autoincrement=False),  # from 1; the newest one is valid
    *_context_columns(),
    Column("seed", Text, nullable=False),  # encrypted; its key is not in the database
    Column("by", SafeText, nullable=False),
    Column("known_by", Text, nullable=False),
    Column("at", Instant, nullable=False),
)

make_append_only(totp_history)

for _table in (
    *(runs, leases, concurrency_keys, triggered_runs, step_runs, attempts, receipts, commands, approvals, gates, revisions, audit),
    *(tombstones, gate_messages),
):
    guard_keeping(_table)
