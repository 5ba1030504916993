"""`PatientDatabase`: the database for a run in progress. It retries while the database is unreachable, locked or full.

Nothing is written twice. A transaction whose work failed was not committed. If the connection was lost during COMMIT, the transaction may
have been committed; its audit entry shows whether it was. Writes without an audit entry are safe to repeat: renewing a lease, leaving a
gate, marking a code as used.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from datetime import datetime, timedelta
from functools import partial
from typing import Generic, TypeVar

from sqlalchemy import Connection

from plan_adapter.errors import StoreError
from plan_adapter.store import audit
from plan_adapter.store.database import Database
from plan_adapter.store.failures import TransientStoreError

log = logging.getLogger(__name__)

T = TypeVar("T")

FIRST_WAIT_SECONDS = 0.1
LONGEST_WAIT_SECONDS = 2.0
WARN_SECONDS = 10.0
"""The interval between warnings that the run is still waiting for the database."""


class _Write(Generic[T]):
    """Work that is committed once, however often it is tried."""

    def __init__(self, work: Callable[[Connection], T]) -> None:
        self._work = work
        self._result: list[T] = []
        self._links: list[audit.Link] = []

    async def __call__(self, database: Database) -> T:
        """Do the work, unless an earlier try was committed after all."""
        if self._links and await database.write(partial(audit.is_committed, link=self._links[-1])):
            return self._result[0]
        return await database.write(self._run_recorded)

    def _run_recorded(self, connection: Connection) -> T:
        self._links, self._result = [], []
        result = self._work(connection.execution_options(**{audit.LINKS: self._links}))
        self._result.append(result)
        return result


class PatientDatabase:
    """Wraps `database` for one run, and retries failures that may pass for up to `seconds`.

    After a call has timed out, the run ends, and further calls fail at once until one succeeds.
    """

    def __init__(self, database: Database, seconds: float) -> None:
        """Let each call wait at most `seconds` from its first failure; 0: do not wait."""
        self._database = database
        self._seconds = seconds
        self._has_timed_out = False
        self._waiting = 0
        self._has_recovered = False  # whether a call has succeeded since the current wait started
        self._began = 0.0  # monotonic time when the current wait started
        self._warned = -WARN_SECONDS  # monotonic time of the last warning
        self._has_warned = False

    @property
    def label(self) -> str:
        """A description of the database, without a password."""
        return self._database.label

    async def read(self, work: Callable[[Connection], T]) -> T:
        """Return the result of `work`, like `Database.read`."""
        return await self._call_with_retries(partial(self._database.read, work))

    async def write(self, work: Callable[[Connection], T]) -> T:
        """Return the result of `work` once it is committed, like `Database.write`. `work` may be called several times."""
        return await self._call_with_retries(partial(_Write(work), self._database))

    async def changed(self, seconds: float) -> None:
        """Return once a signal was sent, or after `seconds`, like `Database.changed`."""
        await self._database.changed(seconds)

    async def upgrade(self) -> str:
        """Migrate to the newest schema and return its revision."""
        return await self._database.upgrade()

    async def close(self) -> None:
        """Close every connection, including those of the wrapped database."""
        await self._database.close()

    async def _call_with_retries(self, attempt: Callable[[], Awaitable[T]]) -> T:
        try:
            result = await attempt()
        except TransientStoreError as error:
            result = await self._retry_until_deadline(attempt, error)
        self._has_timed_out = False
        return result

    async def _retry_until_deadline(self, attempt: Callable[[], Awaitable[T]], error: TransientStoreError) -> T:
        """Retry a call that failed with `error`."""
        pause, deadline = FIRST_WAIT_SECONDS, time.monotonic() + self._seconds
        if not self._waiting:
            self._began, self._has_recovered = time.monotonic(), False
        self._waiting += 1
        try:
            while not self._has_timed_out and (left := deadline - time.monotonic()) > 0:
                self._warn(error)
                await asyncio.sleep(min(pause, left))
                pause = min(pause * 2, LONGEST_WAIT_SECONDS)
                try:
                    result = await attempt()
                except TransientStoreError as again:
                    error = again
                else:
                    self._has_recovered = True
                    return result
        finally:  # also if the call is cancelled, because the run has ended by then
            self._waiting -= 1
            if self._has_recovered and not self._waiting:  # on a disk that is nearly full, some writes succeed while others wait
                self._log_recovery()
        self._has_timed_out = True
        waited = f". The run waited {self._seconds:g} s for it (PLAN_ADAPTER_STORE_PATIENCE_SECONDS)" if self._seconds else ""
        raise StoreError(
            f"{error}{waited}. The run stopped, and everything up to here is recorded: fix the database, then `plan resume` continues it"
        ) from error

    def _warn(self, error: TransientStoreError) -> None:
        now = time.monotonic()
        if now - self._warned >= WARN_SECONDS:
            self._warned, self._has_warned = now, True
            since = datetime.now().astimezone() - timedelta(seconds=now - self._began)
            log.warning(
                "the run has been waiting since %s, and waits %g s at most: %s",
                since.isoformat(sep=" ", timespec="seconds"),
                self._seconds,
                error,
            )

    def _log_recovery(self) -> None:
        if self._has_warned:
            self._has_warned = False
            log.warning("%s is available again after %.1f s; the run continues", self.label, time.monotonic() - self._began)
