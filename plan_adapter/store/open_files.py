"""`OpenFiles`: whether the files that a SQLite connection has open are still those at their paths."""

import os
import sqlite3
from pathlib import Path
from typing import TypeAlias

from plan_adapter.errors import StoreError

Identity: TypeAlias = tuple[int, int]
"""Device and inode."""

LOG = ("-wal", "-shm")
"""How the names of the files end in which SQLite keeps what is newest."""


class OpenFiles:
    """The files of one connection. SQLite itself goes on writing to a file that was deleted or replaced, which nobody reads again."""

    def __init__(self, path: Path) -> None:
        """Know nothing yet of the files at `path`."""
        self._path = path
        self._known = dict[str, Identity]()  # by the end of the name
        self._sizes = dict[str, int]()

    def connect(self, timeout: float) -> sqlite3.Connection:
        """Open the database, which must exist; raises StoreError where it is another file than the one of an earlier connection."""
        for end in LOG:  # they went with the earlier connection
            self._known.pop(end, None)
        before = self._identity("")
        connection = sqlite3.connect(f"{self._path.as_uri()}?mode=rw", uri=True, timeout=timeout)
        try:
            self._take("", before)
        except StoreError:
            connection.close()
            raise
        return connection

    def note_log(self, connection: sqlite3.Connection) -> None:
        """Take note of the files that the connection has opened for its first transaction."""
        if LOG[0] not in self._known and connection.execute("PRAGMA journal_mode").fetchone()[0] == "wal":
            for end in LOG:
                self._take(end, self._identity(end))

    def check(self) -> None:
        """Raise StoreError unless every file is the one that is open, with all that it held."""
        is_shorter = False
        sizes = dict[str, int]()
        for end, known in self._known.items():
            found = self._status(end)
            if found is None or (found.st_dev, found.st_ino) != known:
                raise self._lost(end, "deleted or moved" if found is None else "replaced by another file")
            sizes[end] = found.st_size
            is_shorter |= end != LOG[1] and found.st_size < self._sizes.get(end, 0)
        if is_shorter:
            self._read_anew(sizes[""])
        self._sizes = sizes

    def _take(self, end: str, before: Identity | None) -> None:
        """Remember the file at the path, which must be one that this process has open, and have been there before it was opened."""
        found = self._identity(end)
        if found is None or found != before or not _is_open_here(found) or self._known.setdefault(end, found) != found:
            raise self._lost(end, "deleted or moved" if found is None else "replaced by another file")

    def _identity(self, end: str) -> Identity | None:
        found = self._status(end)
        return None if found is None else (found.st_dev, found.st_ino)

    def _status(self, end: str) -> os.stat_result | None:
        try:
            return os.stat(f"{self._path}{end}")  # noqa: PTH116  # called for every transaction, and a Path takes three times as long
        except (FileNotFoundError, NotADirectoryError):
            return None

    def _read_anew(self, size: int) -> None:
        """Read the whole file through a connection of its own, which holds nothing in memory; VACUUM and checkpoints shorten files, too."""
        what = "truncated or overwritten"
        if not size:  # SQLite would take it for a new database, and delete its log
            raise self._lost("", what)
        reader = sqlite3.connect(f"{self._path.as_uri()}?mode=ro", uri=True, timeout=0.1)
        try:
            found = reader.execute("PRAGMA quick_check(1)").fetchall()
        except sqlite3.Error as error:
            if error.sqlite_errorname.startswith(("SQLITE_BUSY", "SQLITE_LOCKED")):
                raise
            raise self._lost("", what) from error
        finally:
            reader.close()
        if found != [("ok",)]:
            raise self._lost("", what)

    def _lost(self, end: str, what: str) -> StoreError:
        name = f"the file {self._path.name}{end} of the store {self._path}" if end else f"the store {self._path}"
        return StoreError(
            f"{name} was {what} while it was in use, so nothing more is recorded, and no further step is called. "
            f"Put the file back, with {self._path.name}-wal and {self._path.name}-shm if they were beside it, then `plan resume RUN`; "
            "if it is lost, find out what the steps have done before you start a new run"
        )


def _is_open_here(identity: Identity) -> bool:
    """Return whether this process has the file open; true where that cannot be told."""
    try:
        names = os.listdir("/dev/fd")  # noqa: PTH208
    except OSError:
        return True
    for name in names:
        try:
            status = os.fstat(int(name))
        except OSError:  # of the listing itself, or closed meanwhile
            continue
        if (status.st_dev, status.st_ino) == identity:
            return True
    return False
