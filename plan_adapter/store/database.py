"""`Database`: runs work on a connection, from any event loop and thread. `StorePart`: methods that run as such work.

Work is a plain function of an SQLAlchemy connection. It runs in one transaction, in a thread that belongs to the database. The thread
outlives the callers' event loops, which come and go while a store stays. On SQLite it also makes a whole transaction cost one change of
threads instead of one per statement.
"""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable
from concurrent.futures import Future
from functools import wraps
from inspect import Signature, signature
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar

from sqlalchemy import URL, Connection

from plan_adapter.errors import RunConflictError, StoreError, StoreSettingsError
from plan_adapter.record import RunContext
from plan_adapter.store.changes import Changes
from plan_adapter.store.rows import HasContext

if TYPE_CHECKING:
    from types import CoroutineType

    from plan_adapter.store.patience import PatientDatabase

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
