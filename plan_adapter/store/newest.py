"""`Newest`: the newest entry of an audit about each row, of however many rows, kept in a temporary file and not in memory."""

import json
import sqlite3
from collections.abc import Callable
from types import TracebackType
from typing import Any, NamedTuple, Self, TypeAlias

Key: TypeAlias = tuple[Any, ...]
Place: TypeAlias = tuple[str, Key]
"""A table, and what names a row in it."""


class Left(NamedTuple):
    """What an entry says about a row."""

    number: int
    table: str
    kind: str
    row_digest: str | None


class Newest:
    """By row the newest entry, until somebody takes it; gone with the block in which it is used."""

    def __init__(self) -> None:
        """Open a database that SQLite keeps in a file of its own as soon as it is large, and that it removes at the end."""
        self._database = sqlite3.connect("", isolation_level=None)
        self._database.execute("PRAGMA journal_mode=OFF")
        self._database.execute(
            'CREATE TABLE newest (place TEXT PRIMARY KEY, number INTEGER, "table" TEXT, kind TEXT, row_digest TEXT) WITHOUT ROWID'
        )
        self._database.execute("BEGIN")

    def __enter__(self) -> Self:
        """Return this."""
        return self

    def __exit__(self, _kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None) -> None:
        """Remove all of it."""
        self._database.close()

    def put(self, place: Place, number: int, kind: str, row_digest: Any) -> None:
        """Keep what the entry of this number says about a row, in place of what an earlier one said."""
        row = (json.dumps(place), number, place[0], kind, row_digest)
        self._database.execute("INSERT OR REPLACE INTO newest VALUES (?, ?, ?, ?, ?)", row)

    def take(self, place: Place) -> Left | None:
        """Return what the newest entry says about a row, once; None if there is none, or it was taken."""
        taken = 'DELETE FROM newest WHERE place = ? RETURNING number, "table", kind, row_digest'
        row = self._database.execute(taken, (json.dumps(place),)).fetchone()
        return None if row is None else Left(*row)

    def first_left(self, is_wanted: Callable[[Left], bool]) -> Left | None:
        """Return of those that nobody took the first that is wanted, by its number."""
        left = self._database.execute('SELECT number, "table", kind, row_digest FROM newest ORDER BY number')
        return next((found for row in left if is_wanted(found := Left(*row))), None)
