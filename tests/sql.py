"""Direct SQL for tests that read the tables of a store, or change them as the owner of the database."""

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, TypeVar

from sqlalchemy import Connection, Executable, RowMapping, event, make_url, text
from sqlalchemy.ext.asyncio import AsyncConnection, create_async_engine
from sqlalchemy.pool import NullPool

T = TypeVar("T")
DRIVERS = {"sqlite": "sqlite+aiosqlite", "postgresql": "postgresql+asyncpg"}


class Sql:
    """The database at `url`, which must have the tables of a store. Each call has its own connection and transaction."""

    def __init__(self, url: str) -> None:
        self._url = make_url(url)
        self.dialect = self._url.get_backend_name()

    async def rows(self, statement: str | Executable) -> Sequence[RowMapping]:
        """Return the rows of a query."""
        return await self.run(lambda connection: connection.execute(_executable(statement)).mappings().all())

    async def change(self, *statements: str | Executable, **values: Any) -> None:
        """Run statements in one transaction. `values` are the parameters of text statements."""
        await self.run(partial(_change, statements=statements, values=values))

    async def run(self, work: Callable[[Connection], T]) -> T:
        """Return the result of `work` after its commit. If it raises, nothing is committed."""
        async with self._connection() as connection:
            return await connection.run_sync(work)

    @asynccontextmanager
    async def _connection(self) -> AsyncIterator[AsyncConnection]:
        engine = create_async_engine(self._url.set(drivername=DRIVERS[self.dialect]), poolclass=NullPool)
        if self.dialect == "sqlite":  # its driver begins no transaction before DDL statements
            event.listen(engine.sync_engine, "connect", lambda connection, _: _prepare(connection))
            event.listen(engine.sync_engine, "begin", lambda connection: connection.exec_driver_sql("BEGIN IMMEDIATE"))
        async with engine.begin() as connection:
            yield connection


def _prepare(connection: Any) -> None:
    connection.isolation_level = None
    connection.execute("PRAGMA foreign_keys=ON")


def _change(connection: Connection, statements: Sequence[str | Executable], values: dict[str, Any]) -> None:
    for statement in statements:
        connection.execute(_executable(statement), values)


def _executable(statement: str | Executable) -> Executable:
    return text(statement) if isinstance(statement, str) else statement
