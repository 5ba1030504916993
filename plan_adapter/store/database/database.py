"""`Database`: runs work on a connection, from any event loop and thread. `StorePart`: methods that run as such work.

Work is a plain function of an SQLAlchemy connection. It runs in one transaction, in a thread that belongs to the database. The thread
outlives the callers' event loops, which come and go while a store stays. On SQLite it also makes a whole transaction cost one change of
threads instead of one per statement.
"""

import asyncio
import contextlib
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from contextvars import ContextVar
from functools import wraps
from inspect import Signature, signature
from itertools import count
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Concatenate, Final, ParamSpec, TypeAlias, TypeVar

from sqlalchemy import URL, Connection, func, select

from plan_adapter.model.errors import RunConflictError, StoreError, StoreSettingsError
from plan_adapter.model.record import RunContext
from plan_adapter.store.database.rows import HasContext

if TYPE_CHECKING:
    from types import CoroutineType

    from plan_adapter.store.database.patience import PatientDatabase

CHANNEL: Final = "plan_adapter_changed"
"""The PostgreSQL notification channel."""

LINGER_SECONDS = 3.0
"""How long the watch continues after the last wait, so that a caller that reads and waits in a loop does not restart it each time."""

PAUSE_SECONDS = 0.01
"""The shortest wait. It prevents a busy loop in a caller that reads in another task than it waits in."""

_Waiter: TypeAlias = tuple[asyncio.AbstractEventLoop, asyncio.Future[None]]

_numbers = count()
_seen_generations: ContextVar[Mapping[int, int]] = ContextVar("plan_store_generations", default=MappingProxyType({}))

_MAX_SEEN_STORES = 16
"""The largest number of stores whose generations are noted in one context."""


def signal(connection: Connection) -> None:
    """Notify everybody who waits for the store, once this transaction is committed."""
    if connection.dialect.name == "postgresql":
        connection.execute(select(func.pg_notify(CHANNEL, "")))
        return
    # In the file's header: transactional like any row, and cheap to read from another connection.
    version = connection.exec_driver_sql("PRAGMA user_version").scalar_one()
    connection.exec_driver_sql(f"PRAGMA user_version = {(version + 1) % 2**31}")


class Changes:
    """The generation of a store that this process knows, and the callers that wait for the next one. Safe for all loops and threads."""

    def __init__(self) -> None:
        """Start without knowledge of the store. The first watch begins a new generation."""
        self._number = next(_numbers)
        self._generation = 0
        self._lock = threading.Lock()
        self._waiting = set[_Waiter]()
        self._last_wanted = 0.0
        self._is_watched = False
        self.stopped = threading.Event()

    def note_read(self) -> None:
        """Note in the caller's context that it reads the current generation."""
        noted = _seen_generations.get()
        if noted.get(self._number) != self._generation:
            others = [pair for pair in noted.items() if pair[0] != self._number]
            _seen_generations.set(dict([*others[1 - _MAX_SEEN_STORES :], (self._number, self._generation)]))

    async def wait(self, seconds: float, start: Callable[[], None]) -> None:
        """Wait until a generation is newer than the one the caller noted, at most `seconds`. `start` starts the watch."""
        seen = _seen_generations.get().get(self._number, self._generation)
        loop = asyncio.get_running_loop()
        waiter: _Waiter = loop, loop.create_future()
        with self._lock:
            is_behind = seen != self._generation
            self._waiting.add(waiter)
            must_start, self._is_watched = not self._is_watched, True
        try:
            if must_start:
                start()
            await asyncio.wait([waiter[1]], timeout=min(seconds, PAUSE_SECONDS) if is_behind else seconds)
        finally:
            with self._lock:
                self._waiting.discard(waiter)
                self._last_wanted = time.monotonic()
        self.note_read()

    def notify(self) -> None:
        """Begin a new generation and wake all waiters."""
        with self._lock:
            self._generation += 1
            waiting, self._waiting = self._waiting, set[_Waiter]()
        for loop, woken in waiting:
            with contextlib.suppress(RuntimeError):  # the loop has closed
                loop.call_soon_threadsafe(_wake, woken)

    def must_continue(self) -> bool:
        """Return whether the watch must continue. After False, the next wait starts a new watch."""
        with self._lock:
            is_wanted = bool(self._waiting) or time.monotonic() - self._last_wanted < LINGER_SECONDS
            self._is_watched = is_wanted and not self.stopped.is_set()
            return self._is_watched

    def stop(self) -> None:
        """Make the watch end soon, and wake all waiters."""
        self.stopped.set()
        self.notify()


def _wake(woken: asyncio.Future[None]) -> None:
    if not woken.done():
        woken.set_result(None)


P = ParamSpec("P")
T = TypeVar("T")

LOCK_SECONDS = 10.0
"""How long to wait for a locked file or a silent server, unless the URL's `timeout` says otherwise."""


class Database(ABC):
    """Runs work in transactions. The first call also checks the schema."""

    def __init__(self, url: URL, *, known: frozenset[str]) -> None:
        """Store `url` without opening it. Raises StoreSettingsError for parameters other than `timeout` and those in `known`."""
        if unknown := sorted(set(url.query) - known - {"timeout"}):
            shown = ", ".join(sorted(known | {"timeout"}))
            raise StoreSettingsError(f"the store's URL has unknown parameters: {', '.join(unknown)}; known: {shown}")
        self.url = url.difference_update_query(["timeout"])
        self.timeout = _seconds(url.query.get("timeout"))
        self.is_closed = False
        self.changes = Changes()

    @property
    @abstractmethod
    def label(self) -> str:
        """A description of the database, without a password."""

    @abstractmethod
    def _submit(self, work: Callable[[Connection], T], *, writes: bool) -> Future[T]: ...

    @abstractmethod
    def _submit_upgrade(self) -> Future[str]: ...

    @abstractmethod
    def _watch(self) -> None:
        """Start passing the signals of all processes to `changes`, until it no longer needs them."""

    @abstractmethod
    def _shut_down(self) -> Future[None]: ...

    async def read(self, work: Callable[[Connection], T]) -> T:
        """Return the result of `work`. All its reads see one snapshot. Raises StoreError."""
        self._refuse_closed()
        self.changes.note_read()
        return await asyncio.wrap_future(self._submit(work, writes=False))

    async def write(self, work: Callable[[Connection], T]) -> T:
        """Return the result of `work` once it is committed. If it raises, nothing is written. Raises StoreError."""
        self._refuse_closed()
        return await asyncio.wrap_future(self._submit(work, writes=True))

    async def changed(self, seconds: float) -> None:
        """Return once a signal was sent since the caller's last read, or after `seconds`; see `changes`."""
        self._refuse_closed()
        await self.changes.wait(seconds, self._watch)

    async def upgrade(self) -> str:
        """Migrate to the newest schema and return its revision. Raises StoreError if the schema is newer than this package."""
        self._refuse_closed()
        return await asyncio.wrap_future(self._submit_upgrade())

    async def close(self) -> None:
        """Close every connection. The database cannot be used afterwards."""
        if not self.is_closed:
            self.is_closed = True
            self.changes.stop()
            await asyncio.wrap_future(self._shut_down())

    def _refuse_closed(self) -> None:
        if self.is_closed:
            raise StoreError(f"{self.label} is closed")


def _seconds(timeout: object) -> float:
    if timeout is None:
        return LOCK_SECONDS
    try:
        return float(str(timeout))
    except ValueError:
        raise StoreSettingsError(f"the store's URL has the timeout {timeout!r}; write seconds, as in ?timeout=10") from None


class StorePart:
    """Base of the parts of a store. Has a database, and the tenant whose rows are visible (None: all). Every method raises StoreError."""

    def __init__(self, database: "Database | PatientDatabase", tenant_id: str | None) -> None:
        """Use `database` without opening it."""
        self._database = database
        self.tenant_id = tenant_id

    def _with_tenant(self, context: HasContext | None = None) -> RunContext:
        """Return `context` with this store's tenant. Raises RunConflictError if it has another tenant."""
        context = context or RunContext()
        if self.tenant_id is not None and context.tenant_id not in (None, self.tenant_id):
            raise RunConflictError(f"this store is open for tenant {self.tenant_id}, not for {context.tenant_id}")
        tenant = self.tenant_id or context.tenant_id
        return RunContext(agent_id=context.agent_id, org_id=context.org_id, tenant_id=tenant, task_id=context.task_id)


S = TypeVar("S", bound=StorePart)


def reads(work: Callable[Concatenate[S, Connection, P], T]) -> "Callable[Concatenate[S, P], CoroutineType[Any, Any, T]]":
    """Turn a method that reads from a connection into one that callers await without a connection. Its reads see one snapshot."""
    return _transaction(work, writes=False)


def writes(work: Callable[Concatenate[S, Connection, P], T]) -> "Callable[Concatenate[S, P], CoroutineType[Any, Any, T]]":
    """Turn a method that writes to a connection into one that callers await without a connection. If it raises, nothing is written."""
    return _transaction(work, writes=True)


def _transaction(
    work: Callable[Concatenate[S, Connection, P], T], *, writes: bool
) -> "Callable[Concatenate[S, P], CoroutineType[Any, Any, T]]":
    @wraps(work)
    async def transaction(part: S, *args: P.args, **kwargs: P.kwargs) -> T:
        database = part._database  # pyright: ignore[reportPrivateUsage]
        run = database.write if writes else database.read
        return await run(lambda connection: work(part, connection, *args, **kwargs))

    vars(transaction)["__signature__"] = _without_connection(work)
    return transaction


def _without_connection(work: Callable[..., object]) -> Signature:
    """Return the signature that callers see, for `help` and editors."""
    whole = signature(work)
    part, _, *others = whole.parameters.values()
    return whole.replace(parameters=[part, *others])
