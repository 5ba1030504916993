"""Convert database errors to StoreErrors that name the store, the problem and the fix. Never shows a password or a row."""

import sqlite3
from collections.abc import Generator
from contextlib import contextmanager

from sqlalchemy.exc import DBAPIError, SQLAlchemyError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError

from plan_adapter.errors import StoreError, StoreSettingsError


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
