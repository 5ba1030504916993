"""The store on PostgreSQL: a pool of connections in a thread of its own, and a listener for signals of other processes.

The pool is SQLAlchemy's. It has its own thread and event loop because asyncpg's connections belong to one loop, while one store serves
the loops of several callers, such as each `asyncio.run` of the synchronous functions.
"""

import asyncio
import logging
import threading
import weakref
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, field
from typing import Any, TypeVar

from sqlalchemy import URL, Connection
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine
from sqlalchemy.pool import NullPool

from plan_adapter.store.database import schema_revision
from plan_adapter.store.database.database import CHANNEL, Changes, Database
from plan_adapter.store.database.patience import as_store_errors

log = logging.getLogger(__name__)

TURN_SECONDS = 1.0
"""How often the listener checks whether the watch must continue."""

PING_TURNS = 15
"""The number of turns between pings. A connection that a firewall dropped reports nothing by itself."""

RECONNECT_SECONDS = 0.5


async def listen(engine: AsyncEngine, changes: Changes, store: str) -> None:
    """Pass every signal to `changes`, and one more after each connect, until it needs none. `engine` keeps no pool.

    A lost connection is reopened. Callers wait for their full time meanwhile.
    """
    try:
        while changes.must_continue():
            try:
                await _listen_once(engine, changes)
            except Exception as error:  # whatever the driver or the system raised, the next connection may work
                log.debug("cannot listen to %s, trying again: %s", store, error)
                await asyncio.sleep(RECONNECT_SECONDS)
    finally:
        await engine.dispose()


async def _listen_once(engine: AsyncEngine, changes: Changes) -> None:
    """Listen on one connection until it is lost or the watch is no longer needed."""
    async with engine.connect() as connection:
        # asyncpg's own connection: SQLAlchemy has no API for notifications.
        driver: Any = (await connection.get_raw_connection()).driver_connection
        lost = asyncio.Event()
        driver.add_termination_listener(lambda _connection: lost.set())  # pyright: ignore[reportUnknownLambdaType]  # asyncpg has no types
        await driver.add_listener(CHANNEL, lambda *_of_signal: changes.notify())  # pyright: ignore[reportUnknownLambdaType]
        changes.notify()  # earlier signals may have been missed
        turn = 0
        while not lost.is_set() and changes.must_continue():
            with suppress(TimeoutError):
                async with asyncio.timeout(TURN_SECONDS):
                    await lost.wait()
            turn += 1
            if turn % PING_TURNS == 0:
                await driver.execute("SELECT 1", timeout=TURN_SECONDS * 5)
        if lost.is_set():
            await connection.invalidate()


T = TypeVar("T")

ANSWER_SECONDS = 60.0
"""How long a statement may take before the server counts as lost."""

CONNECT_TO_READ_SECONDS = 4.0
"""How long a read waits for a silent server, unless the URL's `timeout` says otherwise. Readers should get an error soon."""

CLOSE_SECONDS = 0.25
"""How long closing the store, for example by Ctrl-C, waits for reads. It always waits for writes."""

_ASYNCPG_NAMES = {"sslmode": "ssl", "connect_timeout": "timeout"}
_KNOWN = frozenset({"host", "port", "ssl", "target_session_attrs", "passfile", "krbsrvname", "prepared_statement_cache_size"})


@dataclass(slots=True)
class _Pool:
    """The connections, and the event loop, in a thread of its own, that they belong to."""

    engine: AsyncEngine
    loop: asyncio.AbstractEventLoop = field(default_factory=asyncio.new_event_loop)
    writing: set[asyncio.Task[Any]] = field(default_factory=set[asyncio.Task[Any]])
    reading: set[asyncio.Task[Any]] = field(default_factory=set[asyncio.Task[Any]])
    watching: set[asyncio.Task[None]] = field(default_factory=set[asyncio.Task[None]])

    def serve(self) -> None:
        self.loop.run_forever()
        self.loop.close()

    async def complete(self, work: Coroutine[Any, Any, T], *, writes: bool) -> T:
        # Shielded: a caller that stops waiting must not kill a connection in the middle of a transaction.
        task, working = asyncio.ensure_future(work), self.writing if writes else self.reading
        working.add(task)
        task.add_done_callback(working.discard)
        return await asyncio.shield(task)

    def watch(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.ensure_future(work)
        self.watching.add(task)
        task.add_done_callback(self.watching.discard)

    async def close(self) -> None:
        watching = tuple(self.watching)
        for task in watching:
            task.cancel()
        await asyncio.gather(*watching, return_exceptions=True)
        await asyncio.gather(*self.writing, return_exceptions=True)
        if reading := tuple(self.reading):  # do not wait for a server that does not answer
            _, late = await asyncio.wait(reading, timeout=CLOSE_SECONDS)
            for task in late:
                task.cancel()
            await asyncio.gather(*late, return_exceptions=True)
        await self.engine.dispose()
        self.loop.call_soon(self.loop.stop)

    def schedule_close(self) -> None:
        asyncio.run_coroutine_threadsafe(self.close(), self.loop)


class PostgresDatabase(Database):
    """A pool of asyncpg connections. The first call opens it."""

    def __init__(self, url: URL) -> None:
        """Store `url` with the asyncpg driver, and libpq's parameters under asyncpg's names."""
        query = {_ASYNCPG_NAMES.get(name, name): value for name, value in url.query.items()}
        super().__init__(url.set(drivername="postgresql+asyncpg", query=query), known=_KNOWN)
        self._connects_to_read = self.timeout if "timeout" in query else CONNECT_TO_READ_SECONDS
        self._is_current = False
        self._pool: _Pool | None = None
        self._starting = threading.Lock()
        self._upgrading = asyncio.Lock()

    @property
    def label(self) -> str:
        """The server, the database and the user."""
        host = self.url.host or self.url.query.get("host") or "localhost"
        port = f":{self.url.port}" if self.url.port else ""
        return f"the store on PostgreSQL ({host}{port}, database {self.url.database}, user {self.url.username})"

    def _submit(self, work: Callable[[Connection], T], *, writes: bool) -> Future[T]:
        pool = self._open_pool()
        return asyncio.run_coroutine_threadsafe(pool.complete(self._run(pool.engine, work, writes=writes), writes=writes), pool.loop)

    def _submit_upgrade(self) -> Future[str]:
        pool = self._open_pool()
        return asyncio.run_coroutine_threadsafe(pool.complete(self._upgrade(pool.engine), writes=True), pool.loop)

    def _watch(self) -> None:
        pool = self._open_pool()
        pool.loop.call_soon_threadsafe(pool.watch, listen(self._make_engine(poolclass=NullPool), self.changes, self.label))

    def _shut_down(self) -> Future[None]:
        pool = self._open_pool()
        self._finalizer.detach()
        return asyncio.run_coroutine_threadsafe(pool.close(), pool.loop)

    def _open_pool(self) -> _Pool:
        with self._starting:
            if self._pool is None:
                with as_store_errors(self.label, timeout=self.timeout):
                    self._pool = pool = _Pool(self._make_engine())
                threading.Thread(target=pool.serve, name="plan-store", daemon=True).start()
                self._finalizer = weakref.finalize(self, pool.schedule_close)
            return self._pool

    def _make_engine(self, **options: Any) -> AsyncEngine:
        limits = {"timeout": self.timeout, "command_timeout": ANSWER_SECONDS}
        # hide_parameters: an error's text may be logged, and rows may hold values that must not be.
        return create_async_engine(self.url, connect_args=limits, pool_pre_ping=True, hide_parameters=True, **options)

    async def _run(self, engine: AsyncEngine, work: Callable[[Connection], T], *, writes: bool) -> T:
        connects = None if writes else self._connects_to_read  # None: the engine's default
        with as_store_errors(self.label, timeout=self.timeout):
            if not self._is_current:
                found = await _transact(engine, schema_revision.read_revision, writes=False, connects=connects)
                schema_revision.refuse_unless_current(found, self.label)
                self._is_current = True
            return await _transact(engine, work, writes=writes, connects=connects)

    async def _upgrade(self, engine: AsyncEngine) -> str:
        with as_store_errors(self.label, timeout=self.timeout):
            schema_revision.load_alembic()  # slow, so before the lock is taken
            async with self._upgrading:  # alembic's context is global: one migration at a time in this thread
                return await _transact(engine, lambda connection: schema_revision.upgrade(connection, self.label), writes=True)


async def _transact(engine: AsyncEngine, work: Callable[[Connection], T], *, writes: bool, connects: float | None = None) -> T:
    """Run `work` in a transaction. Raises TimeoutError if there is no connection after `connects` seconds."""
    level = "READ COMMITTED" if writes else "REPEATABLE READ"
    async with AsyncExitStack() as stack:
        async with asyncio.timeout(connects):
            connection = await stack.enter_async_context(engine.execution_options(isolation_level=level).connect())
        async with connection.begin():
            return await connection.run_sync(work)
