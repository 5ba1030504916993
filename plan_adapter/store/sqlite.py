"""`SqliteDatabase`: a store in a file, made and migrated on first use."""

import os
import sqlite3
import stat
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import TypeVar

from sqlalchemy import URL, Connection, Engine, create_engine, event

from plan_adapter.errors import StoreError
from plan_adapter.private_files import UnsafePathError, make_folder, open_file, refuse_world_writable, tighten_file
from plan_adapter.store import schema
from plan_adapter.store.columns import SQLITE_NOW, sqlite_now
from plan_adapter.store.database import Database
from plan_adapter.store.failures import as_store_errors
from plan_adapter.store.open_files import OpenFiles
from plan_adapter.store.sqlite_watch import watch

T = TypeVar("T")


class SqliteDatabase(Database):
    """One connection in one thread: SQLite lets one transaction write at a time anyway."""

    def __init__(self, url: URL, *, home: Path) -> None:
        """Keep the path that `url` names, made absolute; raises StoreError for a database in memory."""
        name = url.database or ""
        if name in ("", ":memory:") or name.startswith("file:"):
            raise StoreError(
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
        """The file."""
        return f"the store {self.path}"

    def _submit(self, work: Callable[[Connection], T], *, writes: bool) -> Future[T]:
        return self._thread.submit(self._run, work, writes)

    def _submit_upgrade(self) -> Future[str]:
        return self._thread.submit(self._run, lambda _connection: schema.REVISION, False)

    def _watch(self) -> None:
        threading.Thread(target=watch, args=(self.path, self.changes), name="plan-store-watch", daemon=True).start()

    def _shut_down(self) -> Future[None]:
        closed = self._thread.submit(lambda: self._engine.dispose() if self._engine else None)
        self._thread.shutdown(wait=False)
        return closed

    def _run(self, work: Callable[[Connection], T], writes: bool) -> T:
        with as_store_errors(self.label, timeout=self.timeout):
            if self._engine is None:
                self._make_file()
                self._engine = self._make_engine()
            if not self._is_current:
                self._migrate(self._engine)
                self._is_current = True
            return self._transact(self._engine, work, writes=writes)

    def _transact(self, engine: Engine, work: Callable[[Connection], T], *, writes: bool) -> T:
        """Do `work` in a transaction; raises StoreError where the files are not there any more, before or after it."""
        self._files.check()
        try:
            with engine.connect().execution_options(writes=writes) as connection:
                with connection.begin():
                    result = work(connection)
                self._files.note_log(connection.connection.driver_connection)  # pyright: ignore[reportArgumentType]
        finally:
            self._files.check()
        return result

    def _migrate(self, engine: Engine) -> None:
        found = self._transact(engine, schema.found_revision, writes=False)
        if found != schema.REVISION:
            if found is not None:
                schema.load()  # takes a while, so before the file is locked
            self._transact(engine, lambda connection: schema.upgrade(connection, self.label), writes=True)

    def _make_file(self) -> None:
        try:
            if self.path.is_relative_to(self._home):
                make_folder(self._home)
                make_folder(self.path.parent)
                for file in (self.path, *(Path(f"{self.path}{end}") for end in ("-wal", "-shm"))):
                    tighten_file(file)
            elif not self.path.parent.exists():
                make_folder(self.path.parent)
            elif self.path.is_file():
                refuse_world_writable(self.path)
            os.close(open_file(self.path, os.O_EXCL | os.O_WRONLY))  # SQLite gives its other files the mode of this one
        except FileExistsError:
            if self.path.exists() and not stat.S_ISREG(self.path.stat().st_mode):
                raise StoreError(f"{self.label} is no file; give the path of one, or of none yet") from None
        except UnsafePathError as error:
            raise StoreError(f"{self.label} is not opened: {error.strerror}") from error
        except OSError as error:
            raise StoreError(f"{self.label} cannot be made: {error.strerror}; give another one with PLAN_ADAPTER_DATABASE_URL") from error

    def _make_engine(self) -> Engine:
        # hide_parameters: an error's text may reach a log, and rows may hold what no log should.
        connect = partial(self._files.connect, self.timeout)
        engine = create_engine(self.url, creator=connect, pool_size=1, max_overflow=0, hide_parameters=True)
        event.listen(engine, "connect", partial(_prepare, timeout=self.timeout))
        event.listen(engine, "begin", _begin)
        return engine


def _prepare(connection: sqlite3.Connection, _record: object, *, timeout: float) -> None:
    connection.isolation_level = None  # transactions are begun by `_begin`, not by the driver
    connection.create_function(SQLITE_NOW, 0, sqlite_now)
    connection.execute("PRAGMA foreign_keys=ON")
    connection.execute("PRAGMA synchronous=FULL")
    deadline = time.monotonic() + timeout
    # While another process changes a new file to WAL, SQLite does not wait but says at once that it is locked.
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
