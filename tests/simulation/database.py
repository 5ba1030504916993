"""`SimulatedDatabase`: the product's transactions on one SQLite database in memory, which answers late, fails, or loses an answer."""

import asyncio
import random
import sqlite3
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Literal, TypeAlias, TypeVar

from sqlalchemy import Connection, Engine, StaticPool, create_engine, event, make_url

from plan_adapter.store.database import schema_revision
from plan_adapter.store.database.columns import SQLITE_NOW
from plan_adapter.store.database.database import Database
from plan_adapter.store.database.patience import TransientStoreError, as_store_errors
from tests.simulation.loop import KilledError, current, refuse_if_over

T = TypeVar("T")

Trouble: TypeAlias = Literal["away", "conflict", "lost"]
"""How a transaction fails: before it begins, at its commit, or after its commit, when only the answer is lost."""

START = datetime(2026, 1, 1, tzinfo=UTC)


@dataclass
class Server:
    """The database behind all stores of one simulation, and its clock."""

    chance: random.Random
    engine: Engine
    skew: timedelta = timedelta()  # of the database's clock
    reads: int = 0  # of the clock: each is a microsecond later, so that no two records have the same time
    away_until: float = 0.0
    troubles: float = 0.0  # the probability that a transaction of a process fails
    watching: list["SimulatedDatabase"] = field(default_factory=list["SimulatedDatabase"])
    transactions: int = 0

    def now(self) -> datetime:
        """Return the time of the database's clock."""
        self.reads += 1
        return START + timedelta(seconds=asyncio.get_running_loop().time(), microseconds=self.reads) + self.skew

    def go_away(self, seconds: float) -> None:
        """Answer no process for some seconds."""
        self.away_until = asyncio.get_running_loop().time() + seconds

    def delay(self) -> float:
        """Return how long the next transaction takes."""
        return self.chance.choice((0.0, 0.001, 0.01, 0.01, 0.05, 0.3))

    def trouble(self) -> Trouble | None:
        """Return how the next transaction fails, or None."""
        if asyncio.get_running_loop().time() < self.away_until:
            return "away"
        return self.chance.choice(("away", "conflict", "lost")) if self.chance.random() < self.troubles else None

    def transact(self, work: Callable[[Connection], T], *, writes: bool, trouble: Trouble | None) -> T:
        """Return the result of `work`, once it is committed."""
        if trouble == "away":
            raise TransientStoreError("the store is away")
        self.transactions += 1
        before = self.version
        with as_store_errors("the store", timeout=0), self.engine.connect() as connection:
            connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")
            try:
                result = work(connection)
                refuse_if_over()
                if trouble == "conflict":
                    raise TransientStoreError("the store has a conflict")
            except BaseException:
                connection.rollback()
                raise
            connection.commit()
        if self.version != before:
            for database in tuple(self.watching):
                database.notify_soon()
        if trouble == "lost":
            raise TransientStoreError("the store ended the connection")
        return result

    @property
    def version(self) -> int:
        """The number that each signal changes."""
        return raw_of(self.engine).execute("PRAGMA user_version").fetchone()[0]


class SimulatedDatabase(Database):
    """What one store of one process has of the server."""

    def __init__(self, server: Server) -> None:
        """Use `server`."""
        super().__init__(make_url("sqlite://"), known=frozenset())
        self._server = server
        self._free_at = 0.0  # when the last transaction ends

    @property
    def label(self) -> str:
        """A description of the store."""
        return "the store"

    def _submit(self, work: Callable[[Connection], T], *, writes: bool) -> Future[T]:
        future, loop = Future[T](), asyncio.get_running_loop()
        process = current.get()
        if process is None:  # people and the harness have no trouble
            _settle(future, lambda: self._server.transact(work, writes=writes, trouble=None))
            return future
        trouble, when = self._server.trouble(), loop.time() + self._server.delay()
        self._free_at = when = max(when, self._free_at)  # in their order, as in a SQLite file
        loop.call_at(when, lambda: _settle(future, lambda: self._server.transact(work, writes=writes, trouble=trouble)))
        return future

    def _submit_upgrade(self) -> Future[str]:
        return _done(schema_revision.REVISION)

    def _watch(self) -> None:
        self._server.watching.append(self)
        self.notify_soon()

    def notify_soon(self) -> None:
        """Pass a signal on after a moment."""
        asyncio.get_running_loop().call_later(self._server.delay(), self._notify)

    def _notify(self) -> None:
        if self.changes.must_continue():
            self.changes.notify()
        elif self in self._server.watching:
            self._server.watching.remove(self)

    def _shut_down(self) -> Future[None]:
        return _done(None)


def _settle(future: Future[T], work: Callable[[], T]) -> None:
    try:
        result = work()
    except KilledError:  # nobody is there to hear of it
        return
    except Exception as error:
        future.set_exception(error)
    else:
        future.set_result(result)


def _done(value: T) -> Future[T]:
    future = Future[T]()
    future.set_result(value)
    return future


def raw_of(engine: Engine) -> sqlite3.Connection:
    """Return the only connection of `engine`."""
    connection = engine.raw_connection()
    try:
        driver = connection.driver_connection
    finally:
        connection.close()
    assert isinstance(driver, sqlite3.Connection)
    return driver


def make_engine(read_clock: Callable[[], str]) -> tuple[Engine, sqlite3.Connection]:
    """Return the engine of an empty database in memory, and a copy of that database to start again from."""
    engine = create_engine("sqlite://", poolclass=StaticPool, connect_args={"check_same_thread": False, "isolation_level": None})

    @event.listens_for(engine, "connect")
    def _prepare(connection: sqlite3.Connection, _record: object) -> None:
        connection.isolation_level = None
        connection.create_function(SQLITE_NOW, 0, read_clock)
        connection.execute("PRAGMA foreign_keys=ON")

    with engine.connect() as connection:
        connection.exec_driver_sql("BEGIN IMMEDIATE")
        schema_revision.upgrade(connection, "the store")
        connection.commit()
    empty = sqlite3.connect(":memory:", check_same_thread=False)
    raw_of(engine).backup(empty)
    return engine, empty
