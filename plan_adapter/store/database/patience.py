"""`PatientDatabase`: the database for a run in progress. It retries while the database is unreachable, locked or full.

SQLAlchemy retries nothing, and cannot know whether repeating a transaction is safe.

Nothing is written twice. A transaction whose work failed was not committed. If the connection was lost during COMMIT, the transaction may
have been committed; its audit entry shows whether it was. Writes without an audit entry are safe to repeat: renewing a lease, leaving a
gate, marking a code as used.
"""

import asyncio
import logging
import sqlite3
import time
from collections.abc import Awaitable, Callable, Generator
from contextlib import contextmanager
from datetime import datetime, timedelta
from functools import partial
from typing import Generic, TypeVar

from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError, SQLAlchemyError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError

from plan_adapter.model.errors import StoreError, StoreSettingsError
from plan_adapter.store.database.database import Database
from plan_adapter.store.proof import audit


class TransientStoreError(StoreError):
    """The database is unreachable, locked or full for now. The same work may succeed in a moment."""


_SQLITE = {
    "SQLITE_BUSY": "is locked by another process (waited {timeout:g} s); wait for that process or end it, then try again",
    "SQLITE_LOCKED": "is locked by another process; wait for that process or end it, then try again",
    "SQLITE_READONLY": "is read-only: make the file and its folder writable, or name another store with PLAN_ADAPTER_DATABASE_URL",
    "SQLITE_PERM": "cannot be opened by this user",
    "SQLITE_CANTOPEN": "cannot be opened: its folder is missing or read-only, or it is not a file",
    "SQLITE_FULL": "cannot grow: the disk is full; free some space and try again",
    "SQLITE_CORRUPT": "is damaged: restore a backup, or move the file away and recover what you can with `sqlite3 FILE .recover`",
    "SQLITE_NOTADB": "is not a SQLite database: give the path of a plan store, or of a file that does not exist yet",
    "SQLITE_IOERR": "cannot be read or written: the disk reports an error, is full, or has a limit on file sizes",
}
_TRANSIENT_ON_SQLITE = ("SQLITE_BUSY", "SQLITE_LOCKED", "SQLITE_PROTOCOL", "SQLITE_FULL", "SQLITE_IOERR", "SQLITE_CANTOPEN")

_POSTGRESQL = {  # SQLSTATE, or its two-character class
    "28P01": "refuses the password of this user",
    "28": "refuses this user",
    "3D000": "has no database of this name; create it first",
    "42501": "does not let this user do that; grant the user rights on the tables of the plan store",
    "42P07": "already has another application's table with a name that the plan store needs; give the plan store a database of its own",
    "25006": "is read-only; give the URL of the primary server",
    "53100": "cannot grow: its disk is full",
    "53300": "has no free connection for this user",
    "57P01": "was shut down while it was in use",
    "57P03": "is starting or stopping; try again",
    "08": "ended the connection",
}
_TRANSIENT_ON_POSTGRESQL = ("08", "25006", "40001", "40P01", "53", "55P03", "57P01", "57P02", "57P03", "57P05", "58030")
"""SQLSTATEs or prefixes of them: connection, standby, serialization and deadlock, resources, locks, shutdown, disk."""


_SETTINGS_ON_POSTGRESQL = ("28", "3D000")
"""SQLSTATEs of a URL with a wrong user, password or database."""


@contextmanager
def as_store_errors(store: str, *, timeout: float) -> Generator[None]:
    """Convert errors of the database or its driver to a StoreError about `store`, without a password.

    Raises TransientStoreError if a retry may succeed, and StoreSettingsError if the settings are wrong.
    """
    try:
        yield
    except (DBAPIError, sqlite3.Error) as error:  # sqlite3's own: from `sqlite`, which opens and probes the file without SQLAlchemy
        raise _error_class(error)(f"{store} {_problem_text(error, timeout)}") from error
    except ImportError as error:
        raise StoreSettingsError(f"{store} needs the driver `{error.name}`, which is not installed") from error
    except TimeoutError as error:
        raise TransientStoreError(f"{store} did not answer in time") from error
    except OSError as error:
        raise TransientStoreError(
            f"{store} cannot be reached: {error.strerror or error}; is it running, and is the address right?"
        ) from error
    except PoolTimeoutError as error:
        raise TransientStoreError(f"{store} has no free connection in this process: {error}") from error
    except SQLAlchemyError as error:
        raise StoreError(f"{store} cannot be used: {type(error).__name__}: {error}") from error
    except Exception as error:
        # SQLAlchemy 2.0 does not wrap what asyncpg raises while connecting.
        if not hasattr(error, "sqlstate"):
            raise
        raise _error_class(error)(f"{store} {_problem_text(error, timeout)}") from error


def _error_class(error: Exception) -> type[StoreError]:
    if isinstance(error, DBAPIError) and error.connection_invalidated:
        return TransientStoreError
    orig = error.orig if isinstance(error, DBAPIError) else error
    name, state = str(getattr(orig, "sqlite_errorname", "") or ""), str(getattr(orig, "sqlstate", "") or "")
    is_transient = any(name == code or name.startswith(code + "_") for code in _TRANSIENT_ON_SQLITE) or state.startswith(
        _TRANSIENT_ON_POSTGRESQL
    )
    if is_transient:
        return TransientStoreError
    return StoreSettingsError if state.startswith(_SETTINGS_ON_POSTGRESQL) else StoreError


def _problem_text(error: Exception, timeout: float) -> str:
    """Return a message with the problem and the fix. For unknown errors, this is the driver's own text."""
    orig = error.orig if isinstance(error, DBAPIError) else error
    if name := str(getattr(orig, "sqlite_errorname", "") or ""):
        problem = next((text for code, text in _SQLITE.items() if name == code or name.startswith(code + "_")), None)
        if problem is not None:
            return problem.format(timeout=timeout)
    if state := str(getattr(orig, "sqlstate", "") or ""):
        problem = _POSTGRESQL.get(state) or _POSTGRESQL.get(state[:2])
        if problem is not None:
            return problem
        if state == "23505":
            name = "SQLITE_CONSTRAINT_UNIQUE"
    if name in ("SQLITE_CONSTRAINT_UNIQUE", "SQLITE_CONSTRAINT_PRIMARYKEY"):
        return "already has this row: another process is working on the same run or plan"
    if isinstance(error, DBAPIError) and error.connection_invalidated:
        return "ended the connection; try again"
    return f"refused the statement: {orig}"


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
