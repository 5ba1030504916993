"""Column types that mean the same on SQLite and PostgreSQL, and the database's clock."""

from datetime import UTC, datetime
from typing import Any

from sqlalchemy import DateTime, Text
from sqlalchemy.engine import Dialect
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.functions import FunctionElement
from sqlalchemy.types import TypeDecorator


class Instant(TypeDecorator[datetime]):
    """An aware datetime in UTC. SQLite keeps it as text that sorts by time, PostgreSQL as timestamptz."""

    impl = DateTime(timezone=True)
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        """Return `value` in UTC."""
        return None if value is None else value.astimezone(UTC)

    def process_result_value(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        """Return `value` with its time zone, which SQLite does not keep."""
        return None if value is None else value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)


class Words(TypeDecorator[str]):
    """Text that may come from a tool: what a database cannot hold (NUL, unpaired surrogates) is kept as an escape that can be read."""

    impl = Text
    cache_ok = True

    def process_bind_param(self, value: str | None, dialect: Dialect) -> str | None:
        """Return `value` as text that both databases take."""
        if value is None or (value.isascii() and "\0" not in value):
            return value
        return value.replace("\0", "\\x00").encode(errors="backslashreplace").decode()


class database_now(FunctionElement[datetime]):  # written like an SQL function
    """The database's clock at the moment of the call."""

    type = Instant()
    inherit_cache = True


SQLITE_NOW = "plan_store_now"
"""SQLite's own clock has milliseconds; `sqlite_now` is registered under this name on each connection."""


def sqlite_now() -> str:
    """Return the time in UTC in the form in which SQLAlchemy keeps a DateTime on SQLite."""
    return datetime.now(UTC).strftime("%Y-%m-%d %H:%M:%S.%f")


@compiles(database_now, "sqlite")
def _sqlite_now(_element: Any, _compiler: Any, **_options: Any) -> str:
    return f"{SQLITE_NOW}()"


@compiles(database_now, "postgresql")
def _postgresql_now(_element: Any, _compiler: Any, **_options: Any) -> str:
    return "clock_timestamp()"
