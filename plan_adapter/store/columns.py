"""The differences between SQLite and PostgreSQL: shared column types, the database's clock, and INSERT with ON CONFLICT."""

import time
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from sqlalchemy import Connection, DateTime, Table, Text, select
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
    """Return the time in UTC in the format in which SQLAlchemy stores a DateTime on SQLite."""
    return datetime.now(UTC).strftime("%Y-%m-%d %H:%M:%S.%f")


@compiles(database_now, "sqlite")
def _sqlite_now(_element: Any, _compiler: Any, **_options: Any) -> str:
    return f"{SQLITE_NOW}()"


@compiles(database_now, "postgresql")
def _postgresql_now(_element: Any, _compiler: Any, **_options: Any) -> str:
    return "clock_timestamp()"
