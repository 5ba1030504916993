"""`PostgresDatabase`: a store on a server, for several workers; migrated only when asked to."""

import asyncio
import threading
import weakref
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

from sqlalchemy import URL, Connection
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

from plan_adapter.store import schema
from plan_adapter.store.database import Database
from plan_adapter.store.failures import as_store_errors

T = TypeVar("T")

ANSWER_SECONDS = 60.0
"""How long a statement may take before the server counts as gone."""


_AS_ASYNCPG = {"sslmode": "ssl", "connect_timeout": "timeout"}
_KNOWN = frozenset({"host", "port", "ssl", "target_session_attrs", "passfile", "krbsrvname", "prepared_statement_cache_size"})


class PostgresDatabase(Database):
    """A pool of asyncpg connections on an event loop in a thread of its own."""

    def __init__(self, url: URL) -> None:
        """Keep `url` with the asyncpg driver, and libpq's parameters under asyncpg's names."""
        query = {_AS_ASYNCPG.get(name, name): value for name, value in url.query.items()}
        super().__init__(url.set(drivername="postgresql+asyncpg", query=query), known=_KNOWN)
        self._engines: list[AsyncEngine] = []  # none before the first call, then one
        self._is_current = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._starting = threading.Lock()
        self._checking = asyncio.Lock()

    @property
    def label(self) -> str:
        """The server, the database and the user."""
        host = self.url.host or self.url.query.get("host") or "localhost"
        port = f":{self.url.port}" if self.url.port else ""
        return f"the store on PostgreSQL ({host}{port}, database {self.url.database}, user {self.url.username})"

    def _submit(self, work: Callable[[Connection], T], *, writes: bool) -> Future[T]:
        async def unless_cancelled() -> T:
            # One who stops waiting must not tear down a connection in the middle of a transaction.
            return await asyncio.shield(self._run(work, writes=writes))

        return asyncio.run_coroutine_threadsafe(unless_cancelled(), self._running_loop())

    def _submit_upgrade(self) -> Future[str]:
        return asyncio.run_coroutine_threadsafe(self._upgrade(), self._running_loop())

    def _shut_down(self) -> Future[None]:
        loop = self._running_loop()
        return asyncio.run_coroutine_threadsafe(_dispose(self._engines, loop), loop)

    def _running_loop(self) -> asyncio.AbstractEventLoop:
        with self._starting:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                threading.Thread(target=_serve, args=(self._loop,), name="plan-store", daemon=True).start()
                weakref.finalize(self, _end, self._engines, self._loop)
            return self._loop

    async def _run(self, work: Callable[[Connection], T], *, writes: bool) -> T:
        with as_store_errors(self.label, timeout=self.timeout):
            engine = self._the_engine()
            if not self._is_current:
                found = await _transact(engine, schema.found_revision, writes=False)
                schema.refuse_unless_current(found, self.label)
                self._is_current = True
            return await _transact(engine, work, writes=writes)

    async def _upgrade(self) -> str:
        with as_store_errors(self.label, timeout=self.timeout):
            schema.load()  # takes a while, so before the lock is taken
            async with self._checking:  # alembic's context is global: one migration at a time in this thread
                return await _transact(self._the_engine(), lambda connection: schema.upgrade(connection, self.label), writes=True)

    def _the_engine(self) -> AsyncEngine:
        if not self._engines:
            limits = {"timeout": self.timeout, "command_timeout": ANSWER_SECONDS}
            # hide_parameters: an error's text may reach a log, and rows may hold what no log should.
            self._engines.append(create_async_engine(self.url, connect_args=limits, pool_pre_ping=True, hide_parameters=True))
        return self._engines[0]


async def _transact(engine: AsyncEngine, work: Callable[[Connection], T], *, writes: bool) -> T:
    level = "READ COMMITTED" if writes else "REPEATABLE READ"
    async with engine.execution_options(isolation_level=level).begin() as connection:
        return await connection.run_sync(work)


def _serve(loop: asyncio.AbstractEventLoop) -> None:
    loop.run_forever()
    loop.close()


async def _dispose(engines: list[AsyncEngine], loop: asyncio.AbstractEventLoop) -> None:
    for engine in engines:
        await engine.dispose()
    loop.call_soon(loop.stop)


def _end(engines: list[AsyncEngine], loop: asyncio.AbstractEventLoop) -> None:
    """Close what a database that nobody closed has left; called when it is forgotten."""
    if not loop.is_closed():
        asyncio.run_coroutine_threadsafe(_dispose(engines, loop), loop)
