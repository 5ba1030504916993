"""The store in a SQLite file: its connection, a check that the open files are still in place, and a watch for other processes' writes.

Uses sqlite3 itself for what SQLAlchemy has no API for: opening a file without creating it, probing it outside the pool, and error codes.
"""

import os
import sqlite3
import stat
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import TypeAlias, TypeVar

from sqlalchemy import URL, Connection, Engine, create_engine, event

from plan_adapter.local.private_files import UnsafePathError, make_folder, open_file, refuse_world_writable, tighten_file
from plan_adapter.model.errors import StoreLostError, StoreSettingsError
from plan_adapter.store.database import schema_revision
from plan_adapter.store.database.columns import SQLITE_NOW, sqlite_now
from plan_adapter.store.database.database import Changes, Database
from plan_adapter.store.database.patience import as_store_errors

FileId: TypeAlias = tuple[int, int]
"""Device and inode."""

LOG_SUFFIXES = ("-wal", "-shm")
"""The suffixes of the files in which SQLite keeps the newest data."""


class OpenFiles:
    """The files of one connection. SQLite would keep writing to a deleted or replaced file, which nobody reads again."""

    def __init__(self, path: Path) -> None:
        """Start without knowledge of the files at `path`."""
        self._path = path
        self._known = dict[str, FileId]()  # by suffix
        self._sizes = dict[str, int]()

    def connect(self, timeout: float) -> sqlite3.Connection:
        """Open the database, which must exist. Raises StoreLostError if an earlier connection had a different file."""
        for suffix in LOG_SUFFIXES:  # closed with the earlier connection
            self._known.pop(suffix, None)
        before = self._file_id("")
        connection = sqlite3.connect(f"{self._path.as_uri()}?mode=rw", uri=True, timeout=timeout)
        try:
            self._record_file("", before)
        except StoreLostError:
            connection.close()
            raise
        return connection

    def record_log_files(self, connection: sqlite3.Connection) -> None:
        """Record the files that the connection opened for its first transaction."""
        if LOG_SUFFIXES[0] not in self._known and connection.execute("PRAGMA journal_mode").fetchone()[0] == "wal":
            for suffix in LOG_SUFFIXES:
                self._record_file(suffix, self._file_id(suffix))

    def check(self) -> None:
        """Raise StoreLostError unless every open file is still at its path with its full content."""
        is_shorter = False
        sizes = dict[str, int]()
        for suffix, known in self._known.items():
            found = self._status(suffix)
            if found is None or (found.st_dev, found.st_ino) != known:
                raise self._lost_error(suffix, "deleted or moved" if found is None else "replaced by another file")
            sizes[suffix] = found.st_size
            is_shorter |= suffix != LOG_SUFFIXES[1] and found.st_size < self._sizes.get(suffix, 0)
        if is_shorter:
            self._check_content(sizes[""])
        self._sizes = sizes

    def _record_file(self, suffix: str, before: FileId | None) -> None:
        """Record the file at the path. It must be open in this process, and have existed before it was opened."""
        found = self._file_id(suffix)
        if found is None or found != before or not _is_open_here(found) or self._known.setdefault(suffix, found) != found:
            raise self._lost_error(suffix, "deleted or moved" if found is None else "replaced by another file")

    def _file_id(self, suffix: str) -> FileId | None:
        found = self._status(suffix)
        return None if found is None else (found.st_dev, found.st_ino)

    def _status(self, suffix: str) -> os.stat_result | None:
        try:
            return os.stat(f"{self._path}{suffix}")  # noqa: PTH116  # called for every transaction, and a Path takes three times as long
        except (FileNotFoundError, NotADirectoryError):
            return None

    def _check_content(self, size: int) -> None:
        """Check the whole file through a new connection without a cache. VACUUM and checkpoints shorten files, too."""
        what = "truncated or overwritten"
        if not size:  # SQLite would take it for a new database, and delete its log
            raise self._lost_error("", what)
        reader = sqlite3.connect(f"{self._path.as_uri()}?mode=ro", uri=True, timeout=0.1)
        try:
            found = reader.execute("PRAGMA quick_check(1)").fetchall()
        except sqlite3.Error as error:
            if error.sqlite_errorname.startswith(("SQLITE_BUSY", "SQLITE_LOCKED")):
                raise
            raise self._lost_error("", what) from error
        finally:
            reader.close()
        if found != [("ok",)]:
            raise self._lost_error("", what)

    def _lost_error(self, suffix: str, what: str) -> StoreLostError:
        name = f"the file {self._path.name}{suffix} of the store {self._path}" if suffix else f"the store {self._path}"
        return StoreLostError(
            f"{name} was {what} while it was in use, so nothing more is recorded, and no further step is called. "
            f"Put the file back, with {self._path.name}-wal and {self._path.name}-shm if they were beside it, then `plan resume RUN`; "
            "if it is lost, find out what the steps have done before you start a new run"
        )


def _is_open_here(file_id: FileId) -> bool:
    """Return whether this process has the file open, or True if that is unknown."""
    try:
        names = os.listdir("/dev/fd")  # noqa: PTH208
    except OSError:
        return True
    for name in names:
        try:
            status = os.fstat(int(name))
        except OSError:  # the listing's own descriptor, or one closed meanwhile
            continue
        if (status.st_dev, status.st_ino) == file_id:
            return True
    return False


POLL_SECONDS = 0.035

AWAKE_TURNS = 30
"""For how many turns after a write the watch reads the file itself. A write becomes visible only once it is on disk."""

IDLE_TURNS = 8
"""While nothing is written, the watch reads the file only every so many turns."""


def watch(path: Path, changes: Changes) -> None:
    """Pass every signal in the file at `path` to `changes`, and one at the start, until it needs none. For a thread.

    A separate connection reads a number in the file's header, which takes locks. So while nothing is written, mostly only the status of the
    write-ahead log is checked, to which every commit appends.
    """
    connection: sqlite3.Connection | None = None
    log, written, awake, seen = f"{path}-wal", _log_state(f"{path}-wal"), AWAKE_TURNS, -1
    turn = 0
    try:
        while changes.must_continue():
            turn += 1
            if (now := _log_state(log)) != written:
                written, awake = now, AWAKE_TURNS
            if awake or turn % IDLE_TURNS == 0:
                awake -= awake > 0
                try:
                    connection = connection or _connect(path)
                    found: int = connection.execute("PRAGMA user_version").fetchall()[0][0]
                except sqlite3.Error:  # not created yet, or locked meanwhile; readers of the store get the error
                    awake = AWAKE_TURNS
                else:
                    if found != seen:
                        seen = found
                        changes.notify()
            time.sleep(POLL_SECONDS)
    finally:
        if connection is not None:
            connection.close()


def _connect(path: Path) -> sqlite3.Connection:
    # Never creates the file. `rw`, not `ro`, because a reader in WAL mode must be able to create the shared memory file.
    return sqlite3.connect(f"{path.as_uri()}?mode=rw", uri=True, isolation_level=None, timeout=POLL_SECONDS)


def _log_state(log: str) -> tuple[int, int, int] | None:
    try:
        found = os.stat(log)  # noqa: PTH116  # called 30 times a second, and a Path takes three times as long
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns, found.st_size


T = TypeVar("T")


class SqliteDatabase(Database):
    """One connection in one thread. SQLite allows only one writing transaction at a time anyway."""

    def __init__(self, url: URL, *, home: Path) -> None:
        """Store the absolute path that `url` names. Raises StoreSettingsError for a database in memory."""
        name = url.database or ""
        if name in ("", ":memory:") or name.startswith("file:"):
            raise StoreSettingsError(
                "a plan store is kept in a file: give its path, as in sqlite:////var/lib/plans.db (an absolute path has four slashes)"
            )
        self.path = Path(name).expanduser().absolute()
        self._home = home.expanduser().absolute()
        super().__init__(url.set(drivername="sqlite+pysqlite", database=str(self.path)), known=frozenset())
        self._engine: Engine | None = None
        self._is_current = False
        self._files = OpenFiles(self.path)
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="plan-store")

    @property
    def label(self) -> str:
        """The path of the file, as a description of the store."""
        return f"the store {self.path}"

    def _submit(self, work: Callable[[Connection], T], *, writes: bool) -> Future[T]:
        return self._thread.submit(self._run, work, writes)

    def _submit_upgrade(self) -> Future[str]:
        return self._thread.submit(self._run, lambda _connection: schema_revision.REVISION, False)

    def _watch(self) -> None:
        threading.Thread(target=watch, args=(self.path, self.changes), name="plan-store-watch", daemon=True).start()

    def _shut_down(self) -> Future[None]:
        closed = self._thread.submit(lambda: self._engine.dispose() if self._engine else None)
        self._thread.shutdown(wait=False)
        return closed

    def _run(self, work: Callable[[Connection], T], writes: bool) -> T:
        with as_store_errors(self.label, timeout=self.timeout):
            if self._engine is None:
                self._create_file()
                self._engine = self._make_engine()
            if not self._is_current:
                self._migrate(self._engine)
                self._is_current = True
            return self._transact(self._engine, work, writes=writes)

    def _transact(self, engine: Engine, work: Callable[[Connection], T], *, writes: bool) -> T:
        """Run `work` in a transaction. Raises StoreError if the files are gone before or after it."""
        self._files.check()
        try:
            with engine.connect().execution_options(writes=writes) as connection:
                with connection.begin():
                    result = work(connection)
                self._files.record_log_files(connection.connection.driver_connection)  # pyright: ignore[reportArgumentType]
        finally:
            self._files.check()
        return result

    def _migrate(self, engine: Engine) -> None:
        found = self._transact(engine, schema_revision.read_revision, writes=False)
        if found != schema_revision.REVISION:
            if found is not None:
                schema_revision.load_alembic()  # slow, so before the file is locked
            self._transact(engine, lambda connection: schema_revision.upgrade(connection, self.label), writes=True)

    def _create_file(self) -> None:
        try:
            if self.path.is_relative_to(self._home):
                make_folder(self._home)
                make_folder(self.path.parent)
                for file in (self.path, *(Path(f"{self.path}{suffix}") for suffix in ("-wal", "-shm"))):
                    tighten_file(file)
            elif not self.path.parent.exists():
                make_folder(self.path.parent)
            elif self.path.is_file():
                refuse_world_writable(self.path)
            os.close(open_file(self.path, os.O_EXCL | os.O_WRONLY))  # SQLite gives its other files the same mode
        except FileExistsError:
            if self.path.exists() and not stat.S_ISREG(self.path.stat().st_mode):
                raise StoreSettingsError(
                    f"{self.label} is not a file; give the path of a file, or of one that does not exist yet"
                ) from None
        except UnsafePathError as error:
            raise StoreSettingsError(f"{self.label} is not opened: {error.strerror}") from error
        except OSError as error:
            raise StoreSettingsError(
                f"{self.label} cannot be created: {error.strerror}; name another with PLAN_ADAPTER_DATABASE_URL"
            ) from error

    def _make_engine(self) -> Engine:
        # hide_parameters: an error's text may be logged, and rows may hold values that must not be.
        connect = partial(self._files.connect, self.timeout)
        engine = create_engine(self.url, creator=connect, pool_size=1, max_overflow=0, hide_parameters=True)
        event.listen(engine, "connect", partial(_prepare_connection, timeout=self.timeout))
        event.listen(engine, "begin", _begin)
        return engine


def _prepare_connection(connection: sqlite3.Connection, _record: object, *, timeout: float) -> None:
    connection.isolation_level = None  # `_begin` begins transactions, not the driver
    connection.create_function(SQLITE_NOW, 0, sqlite_now)
    connection.execute("PRAGMA foreign_keys=ON")
    connection.execute("PRAGMA synchronous=FULL")
    deadline = time.monotonic() + timeout
    # While another process switches a new file to WAL, SQLite reports a lock at once instead of waiting.
    while not _is_wal(connection, give_up=time.monotonic() > deadline):
        time.sleep(0.01)


def _is_wal(connection: sqlite3.Connection, *, give_up: bool) -> bool:
    try:
        connection.execute("PRAGMA journal_mode=WAL")
    except sqlite3.OperationalError as error:
        if give_up or error.sqlite_errorname != "SQLITE_BUSY":
            raise
        return False
    return True


def _begin(connection: Connection) -> None:
    # IMMEDIATE: a transaction that reads first and then writes could not wait for another writer.
    writes = connection.get_execution_options().get("writes")
    connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")
