"""The differences between SQLite and PostgreSQL: shared column types, the database's clock, and INSERT with ON CONFLICT."""

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from sqlalchemy import DDL, Connection, DateTime, Table, Text, event, select
from sqlalchemy.engine import Dialect
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.functions import FunctionElement
from sqlalchemy.types import TypeDecorator


def insert_into(table: Table, dialect: str) -> Any:
    """Return an INSERT that supports ON CONFLICT. Imports only the modules of this dialect."""
    if dialect == "postgresql":
        from sqlalchemy.dialects.postgresql import insert
    else:
        from sqlalchemy.dialects.sqlite import insert
    return insert(table)


class Instant(TypeDecorator[datetime]):
    """An aware datetime in UTC. SQLite stores it as text that sorts by time, PostgreSQL as timestamptz."""

    impl = DateTime(timezone=True)
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        """Return `value` in UTC."""
        return None if value is None else value.astimezone(UTC)

    def process_result_value(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        """Return `value` in UTC."""
        return None if value is None else value.astimezone(UTC)

    def result_processor(self, dialect: Dialect, coltype: object) -> Any:
        """Return the function that reads a value. SQLite's texts get a fast path, because a long run has thousands of them."""
        return _read_text if dialect.name == "sqlite" else super().result_processor(dialect, coltype)


def _read_text(value: str | None) -> datetime | None:
    return None if value is None else datetime.fromisoformat(f"{value}+00:00")  # SQLite stores no time zone


class SafeText(TypeDecorator[str]):
    """Text that may come from a tool. Characters that a database cannot store (NUL, unpaired surrogates) become readable escapes."""

    impl = Text
    cache_ok = True

    def process_bind_param(self, value: str | None, dialect: Dialect) -> str | None:
        """Return `value` as text that both databases accept."""
        return None if value is None else escape_unstorable(value)


def escape_unstorable(value: str) -> str:
    """Return `value` with escapes for characters that a database cannot store."""
    if value.isascii() and "\0" not in value:
        return value
    return value.replace("\0", "\\x00").encode(errors="backslashreplace").decode()


class database_now(FunctionElement[datetime]):  # written like an SQL function
    """The database's clock at the moment of the call."""

    type = Instant()
    inherit_cache = True


def now_of(connection: Connection) -> datetime:
    """Return the database's time."""
    return connection.execute(select(database_now())).scalar_one()


@dataclass(frozen=True, slots=True)
class Clock:
    """The database's time, read once and advanced by this process's monotonic clock. Never behind the database's."""

    database_time: datetime
    monotonic_time: float

    def now(self) -> datetime:
        """Return the database's time."""
        return self.database_time + timedelta(seconds=time.monotonic() - self.monotonic_time)


def clock_of(connection: Connection) -> Clock:
    """Return a `Clock` set to the database's time."""
    before = time.monotonic()
    return Clock(now_of(connection), before)


SQLITE_NOW = "plan_store_now"
"""The name under which `sqlite_now` is registered on each connection. SQLite's own clock only has milliseconds."""


def sqlite_now() -> str:
    """Return the time in UTC, as SQLite stores it."""
    return sqlite_text(datetime.now(UTC))


def sqlite_text(at: datetime) -> str:
    """Return `at`, which is in UTC, in the format in which SQLAlchemy stores a DateTime on SQLite."""
    return at.strftime("%Y-%m-%d %H:%M:%S.%f")


@compiles(database_now, "sqlite")
def _sqlite_now(_element: Any, _compiler: Any, **_options: Any) -> str:
    return f"{SQLITE_NOW}()"


@compiles(database_now, "postgresql")
def _postgresql_now(_element: Any, _compiler: Any, **_options: Any) -> str:
    return "clock_timestamp()"


def make_append_only(table: Table) -> None:
    """Add triggers that reject updates and deletes in `table`. Only the table's owner can drop them."""
    name = table.name
    refusal = f"rows of {name} cannot be changed or deleted"
    statements = {
        "sqlite": tuple(
            f"CREATE TRIGGER {name}_refuses_{change.lower()} BEFORE {change} ON {name} BEGIN SELECT RAISE(ABORT, '{refusal}'); END"
            for change in ("UPDATE", "DELETE")
        ),
        "postgresql": (
            "CREATE OR REPLACE FUNCTION plan_adapter_refuse_change() RETURNS trigger LANGUAGE plpgsql AS "
            "$$ BEGIN RAISE EXCEPTION 'rows of % cannot be changed or deleted', TG_TABLE_NAME; END $$",
            f"CREATE TRIGGER {name}_refuses_changes BEFORE UPDATE OR DELETE ON {name} FOR EACH ROW "
            "EXECUTE FUNCTION plan_adapter_refuse_change()",
        ),
    }
    _after_create(table, statements)


def guard_audit_log(table: Table) -> None:
    """Add triggers to the audit log: a tombstone must come before a delete, or before erasing texts in messages."""
    columns = [f'"{column.name}"' for column in table.c if column.name not in ("message", "salt")]
    old, new = (", ".join(f"{row}.{column}" for column in columns) for row in ("OLD", "NEW"))
    has_tombstone = "EXISTS (SELECT 1 FROM tombstones WHERE run_id = OLD.run_id AND kind = '{kind}')"
    pruned, erased = has_tombstone.format(kind="pruned"), has_tombstone.format(kind="erased")
    refusal = "rows of audit cannot be changed or deleted"
    conditions = {"UPDATE": f"{erased} AND instr(NEW.message, '[erased]') AND ({new}) IS ({old})", "DELETE": pruned}
    statements = {
        "sqlite": tuple(
            f"CREATE TRIGGER audit_refuses_{change.lower()} BEFORE {change} ON audit WHEN NOT coalesce({condition}, 0) "
            f"BEGIN SELECT RAISE(ABORT, '{refusal}'); END"
            for change, condition in conditions.items()
        ),
        "postgresql": (
            "CREATE OR REPLACE FUNCTION plan_adapter_refuse_audit_change() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN "
            f"IF TG_OP = 'DELETE' THEN IF {pruned} THEN RETURN OLD; END IF; "
            f"ELSIF {erased} AND position('[erased]' IN NEW.message) > 0 AND to_jsonb(NEW) - 'message' - 'salt' = "
            "to_jsonb(OLD) - 'message' - 'salt' "
            f"THEN RETURN NEW; END IF; RAISE EXCEPTION '{refusal}'; END $$",
            "CREATE TRIGGER audit_refuses_changes BEFORE UPDATE OR DELETE ON audit FOR EACH ROW "
            "EXECUTE FUNCTION plan_adapter_refuse_audit_change()",
        ),
    }
    _after_create(table, statements)


def guard_keeping(table: Table) -> None:
    """Add a trigger on PostgreSQL that limits the role that prunes and erases: see `keeping_guard`."""
    _after_create(table, {"postgresql": keeping_guard(table.name)})


def keeping_guard(table: str) -> tuple[str, str]:
    """Return the statements that limit, on PostgreSQL, the role that prunes and erases to what `plan prune` and `plan erase` do in `table`.

    Both first write a tombstone of a run that has ended. In that transaction, the role may delete the rows of a pruned run, or erase words
    in rows of an erased one and add the entry that names the tombstone. Roles are what the privileges of `grants.sql` make of an account:
    this one writes tombstones and no attempts.
    """
    is_keeper = "has_table_privilege('tombstones', 'INSERT') AND NOT has_table_privilege('attempts', 'INSERT')"
    rules = _keeping_rules(table)
    checks = "".join(
        f"IF TG_OP = '{operation}' AND NOT coalesce({allowed}, false) THEN RAISE EXCEPTION '{refusal}'; END IF; "
        for operation, (allowed, refusal) in rules.items()
    )
    return (
        f"CREATE OR REPLACE FUNCTION plan_adapter_guard_{table}() RETURNS trigger LANGUAGE plpgsql AS "
        f"$$ BEGIN IF {is_keeper} THEN {checks}END IF; RETURN coalesce(NEW, OLD); END $$",
        f"CREATE TRIGGER {table}_guards_keeping BEFORE {' OR '.join(rules)} ON {table} FOR EACH ROW "
        f"EXECUTE FUNCTION plan_adapter_guard_{table}()",
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


def _after_create(table: Table, statements: Mapping[str, Iterable[str]]) -> None:
    """Execute the statements of the database's dialect once `table` is created."""
    for dialect, texts in statements.items():
        for statement in texts:
            event.listen(table, "after_create", DDL(statement.replace("%", "%%")).execute_if(dialect=dialect))
