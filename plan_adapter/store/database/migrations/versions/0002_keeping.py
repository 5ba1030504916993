"""Let the role that prunes and erases delete and change only what `plan prune` and `plan erase` do, and drop commands without entries."""

from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

_GUARDED_BEFORE = ("runs", "step_runs", "attempts", "receipts", "approvals", "gates", "revisions", "audit")
_GUARDED = (*_GUARDED_BEFORE, "leases", "concurrency_keys", "commands", "tombstones")


def upgrade() -> None:
    """Replace the triggers of PostgreSQL. The audit log now covers started commands; older ones that run are found by their mark."""
    op.execute("DELETE FROM commands")
    if op.get_bind().dialect.name != "postgresql":
        return
    for table in _GUARDED_BEFORE:
        op.execute(f"DROP TRIGGER {table}_guards_erasing ON {table}")
    for table in _GUARDED:
        _guard_keeping(table)


def _guard_keeping(table: str) -> None:
    """Add a trigger that limits the role that prunes and erases."""
    is_keeper = "has_table_privilege('tombstones', 'INSERT') AND NOT has_table_privilege('attempts', 'INSERT')"
    checks = "".join(
        f"IF TG_OP = '{operation}' AND NOT coalesce({allowed}, false) THEN RAISE EXCEPTION '{refusal}'; END IF; "
        for operation, (allowed, refusal) in _keeping_rules(table).items()
    )
    op.execute(
        f"CREATE OR REPLACE FUNCTION plan_adapter_guard_{table}() RETURNS trigger LANGUAGE plpgsql AS "
        f"$$ BEGIN IF {is_keeper} THEN {checks}END IF; RETURN coalesce(NEW, OLD); END $$"
    )
    op.execute(
        f"CREATE TRIGGER {table}_guards_keeping BEFORE {' OR '.join(_keeping_rules(table))} ON {table} FOR EACH ROW "
        f"EXECUTE FUNCTION plan_adapter_guard_{table}()"
    )


def _keeping_rules(table: str) -> dict[str, tuple[str, str]]:
    """Return, for each operation on `table`, when the role that prunes and erases may do it, and the message of its refusal."""
    run_id = "id" if table == "runs" else "run_id"
    # Only the transaction that wrote a tombstone may use it.
    now_written = "xmin::text = (txid_current() % 4294967296)::text"
    has_tombstone = f"EXISTS (SELECT 1 FROM tombstones WHERE run_id = {{row}} AND kind = '{{kind}}' AND {now_written}{{more}})"  # noqa: S608
    erased = has_tombstone.format(row=f"OLD.{run_id}", kind="erased", more="")
    if table == "tombstones":
        of_ended_run = (
            "EXISTS (SELECT 1 FROM runs WHERE id = NEW.run_id AND status IN ('completed', 'failed', 'cancelled', 'partial') AND "
            "ROW(tenant_id, name, digest, status, completed_at) IS NOT DISTINCT FROM "
            "ROW(NEW.tenant_id, NEW.name, NEW.plan_digest, NEW.status, NEW.completed_at)) AND NOT EXISTS (SELECT 1 FROM leases WHERE "
            "run_id = NEW.run_id AND owner IS NOT NULL AND until > clock_timestamp())"
        )
        is_new = (
            "NEW.number = (SELECT coalesce(max(number), 0) + 1 FROM tombstones) AND (NEW.entries, NEW.last_digest) = (SELECT number, "
            "digest FROM audit WHERE run_id = NEW.run_id ORDER BY number DESC LIMIT 1) AND NOT EXISTS (SELECT 1 FROM tombstones WHERE "
            "run_id = NEW.run_id AND last_digest = NEW.last_digest)"
        )
        return {"INSERT": (f"({of_ended_run} AND {is_new})", "this role adds only the next tombstone of a run that has ended")}
    if table == "audit":
        named = has_tombstone.format(row="NEW.run_id", kind="erased", more=" AND number::text = NEW.row_id")
        is_first = "NOT EXISTS (SELECT 1 FROM audit WHERE run_id = NEW.run_id AND kind = 'erased' AND row_id = NEW.row_id)"
        allowed = f"(NEW.kind = 'refused' OR (NEW.kind = 'erased' AND {named} AND {is_first}))"
        return {
            "INSERT": (allowed, "this role adds no such entry to the audit log"),
            "UPDATE": (erased, "this role only erases words in rows of audit"),
        }
    other_change = (
        "EXISTS (SELECT 1 FROM jsonb_each_text(to_jsonb(NEW)) AS now JOIN jsonb_each_text(to_jsonb(OLD)) AS before USING (key) WHERE "
        "now.value IS DISTINCT FROM before.value AND key NOT IN ('salt', 'updated_at') "
        "AND coalesce(position('[erased' IN now.value), 0) = 0)"
    )
    pruned = has_tombstone.format(row=f"OLD.{run_id}", kind="pruned", more="")
    return {
        "UPDATE": (f"({erased} AND NOT {other_change})", f"this role only erases words in rows of {table}"),
        "DELETE": (pruned, f"this role deletes rows of {table} only by pruning"),
    }
