"""`StorePart`: what the store and its parts share, and methods that each run in one transaction."""

from collections.abc import Callable
from functools import wraps
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar

from sqlalchemy import Connection

from plan_adapter.errors import RunConflictError
from plan_adapter.record import RunContext
from plan_adapter.store.database import Database
from plan_adapter.store.patience import PatientDatabase
from plan_adapter.store.rows import HasContext

if TYPE_CHECKING:
    from types import CoroutineType

P = ParamSpec("P")
T = TypeVar("T")


class StorePart:
    """A database, and the tenant whose rows are visible. None: those of all tenants. Every method of a part raises StoreError."""

    def __init__(self, database: Database | PatientDatabase, tenant_id: str | None) -> None:
        """Use `database` without opening it."""
        self._database = database
        self.tenant_id = tenant_id

    def _whose(self, context: HasContext | None = None) -> RunContext:
        """Return `context` with this store's tenant. Raises RunConflictError if it has another tenant."""
        context = context or RunContext()
        if self.tenant_id is not None and context.tenant_id not in (None, self.tenant_id):
            raise RunConflictError(f"this store is open for tenant {self.tenant_id}, not for {context.tenant_id}")
        tenant = self.tenant_id or context.tenant_id
        return RunContext(agent_id=context.agent_id, org_id=context.org_id, tenant_id=tenant, task_id=context.task_id)


S = TypeVar("S", bound=StorePart)


def reads(work: Callable[Concatenate[S, Connection, P], T]) -> "Callable[Concatenate[S, P], CoroutineType[Any, Any, T]]":
    """Turn a method that reads from a connection into one that callers await without a connection. Its reads see one snapshot."""

    @wraps(work)
    async def transaction(part: S, *args: P.args, **kwargs: P.kwargs) -> T:
        return await part._database.read(lambda connection: work(part, connection, *args, **kwargs))  # pyright: ignore[reportPrivateUsage]

    return transaction


def writes(work: Callable[Concatenate[S, Connection, P], T]) -> "Callable[Concatenate[S, P], CoroutineType[Any, Any, T]]":
    """Turn a method that writes to a connection into one that callers await without a connection. If it raises, nothing is written."""

    @wraps(work)
    async def transaction(part: S, *args: P.args, **kwargs: P.kwargs) -> T:
        return await part._database.write(lambda connection: work(part, connection, *args, **kwargs))  # pyright: ignore[reportPrivateUsage]

    return transaction
