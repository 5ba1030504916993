"""The exported document of a run: read it from the database, write it to a file, and read it from a file of any size.

The lists of the document are read one row at a time.
"""

import codecs
import json
import re
import sqlite3
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from pydantic import JsonValue
from sqlalchemy import Boolean, ColumnElement, Connection, Table, and_, select, type_coerce, union_all
from sqlalchemy.types import NullType

from plan_adapter.store.database.columns import Instant
from plan_adapter.store.database.tables import (
    approvals,
    attempts,
    audit,
    gates,
    implied_dependencies,
    leases,
    plans,
    receipts,
    revisions,
    runs,
    step_runs,
    tombstones,
)
from plan_adapter.store.proof.audit import witnessed_by
from plan_adapter.store.proof.digests import JsonRow, json_row

FORMAT = "plan-adapter-run/1"

FETCH_SIZE = 150
"""How many rows are fetched from a server at a time."""

LISTS = frozenset(
    {"plans", "implied_dependencies", "approvals", "gates", "attempts", "receipts", "step_runs", "revisions", "tombstones", "audit"}
)
"""The parts of the document that are lists of rows."""

CHUNK_BYTES = 256 * 1024

_BLANKS = frozenset(" \t\r\n")
_INSTANT = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{6}")


@dataclass(frozen=True, slots=True)
class Rows:
    """Rows of a table as stored. Each iteration reads them again, within the connection's transaction."""

    connection: Connection
    table: Table
    condition: ColumnElement[bool]

    def __iter__(self) -> Iterator[JsonRow]:
        """Read the rows in order of their key. The order does not depend on the database."""
        is_sqlite = self.connection.dialect.name == "sqlite"
        # An altered SQLite file may hold values that a column's type cannot read. Without types, they are exported, too.
        columns = [type_coerce(column, NullType()) if is_sqlite else column for column in self.table.c]
        query = select(*columns).where(self.condition).order_by(*self.table.primary_key.columns)
        with (
            _reading_invalid_text(self.connection),
            self.connection.execute(query, execution_options={"yield_per": FETCH_SIZE}) as found,
        ):
            for row in found:
                values = zip(self.table.c, row, strict=True)
                if is_sqlite:
                    yield {column.name: _as_stored(column, value) for column, value in values}
                else:
                    yield json_row(self.table, {column.name: value for column, value in values})

    def first(self) -> JsonRow | None:
        """Return the first row, or None."""
        return next(iter(self), None)


def parts_of(connection: Connection, run_id: str) -> dict[str, Any]:
    """Return the document of a run. Its lists are `Rows`, readable until the transaction ends; a missing row is None."""
    # As subqueries, not values read before: an altered digest may not even be valid text for a parameter.
    digests = union_all(select(runs.c.digest).where(runs.c.id == run_id), select(revisions.c.digest).where(revisions.c.run_id == run_id))
    tenant = select(runs.c.tenant_id).where(runs.c.id == run_id).scalar_subquery()
    implied = select(runs.c.implied_dependencies_digest).where(runs.c.id == run_id).scalar_subquery()
    newest = select(audit.c.number).where(audit.c.run_id == run_id).order_by(audit.c.number.desc()).limit(1).scalar_subquery()
    head = Rows(connection, audit, and_(audit.c.run_id == run_id, audit.c.number == newest)).first()
    listed = (approvals, gates, attempts, receipts, step_runs, revisions, tombstones, audit)
    return {
        "format": FORMAT,
        "run": Rows(connection, runs, runs.c.id == run_id).first(),
        "plans": Rows(connection, plans, and_(plans.c.tenant_id == tenant, plans.c.digest.in_(digests))),
        "implied_dependencies": Rows(
            connection, implied_dependencies, and_(implied_dependencies.c.tenant_id == tenant, implied_dependencies.c.digest == implied)
        ),
        "lease": Rows(connection, leases, leases.c.run_id == run_id).first(),
        **{table.name: Rows(connection, table, table.c.run_id == run_id) for table in listed},
        "head": None if head is None else head["digest"],
        "witnessed": witnessed_by(connection, run_id),
    }


def document_of(connection: Connection, run_id: str) -> dict[str, JsonValue]:
    """Return the document of a run with all its rows."""
    return {name: list(part) if isinstance(part, Rows) else part for name, part in parts_of(connection, run_id).items()}


def write_document(document: Mapping[str, Any], write: Callable[[str], object], *, in_lines: bool, only_ascii: bool = False) -> None:
    """Write a document of `parts_of` as JSON with sorted names, one row at a time. Texts are UTF-8 unless they cannot be encoded.

    `in_lines`: indented by one space, like `json.dumps(…, indent=1)`; otherwise in one line.
    """
    between = ",\n " if in_lines else ", "
    write("{\n " if in_lines else "{")
    for number, name in enumerate(sorted(document)):
        part = document[name]
        write(between if number else "")
        write(f"{json.dumps(name)}: ")
        if isinstance(part, Rows):
            _write_rows(part, write, in_lines=in_lines, only_ascii=only_ascii)
        else:
            write(_text(part, 1, in_lines=in_lines, only_ascii=only_ascii))
    write("\n}\n" if in_lines else "}\n")


def _write_rows(rows: Rows, write: Callable[[str], object], *, in_lines: bool, only_ascii: bool) -> None:
    is_empty = True
    for row in rows:
        write(("[\n  " if in_lines else "[") if is_empty else (",\n  " if in_lines else ", "))
        write(_text(row, 2, in_lines=in_lines, only_ascii=only_ascii))
        is_empty = False
    write("[]" if is_empty else "\n ]" if in_lines else "]")


def _text(value: Any, depth: int, *, in_lines: bool, only_ascii: bool) -> str:
    text = json.dumps(value, ensure_ascii=only_ascii, sort_keys=True, indent=1 if in_lines else None)
    try:
        text.encode()
    except UnicodeEncodeError:  # an altered row whose text is not valid
        return _text(value, depth, in_lines=in_lines, only_ascii=True)
    return text.replace("\n", "\n" + " " * depth)  # line ends inside texts are escaped


@contextmanager
def _reading_invalid_text(connection: Connection) -> Generator[None]:
    """Let texts that are not valid UTF-8 be read from a SQLite file. SQLAlchemy has no such setting, sqlite3 has."""
    driver: Any = connection.connection.driver_connection
    if not isinstance(driver, sqlite3.Connection):
        yield
        return
    before, driver.text_factory = driver.text_factory, _decode_text
    try:
        yield
    finally:
        driver.text_factory = before


def _decode_text(found: bytes) -> str:
    return found.decode(errors="surrogateescape")


def _as_stored(column: Any, value: Any) -> JsonValue:
    if isinstance(value, bytes):
        return {"bytes": value.hex()}
    if isinstance(column.type, Instant) and isinstance(value, str) and _INSTANT.fullmatch(value):
        return value.replace(" ", "T") + "Z"
    if isinstance(column.type, Boolean) and isinstance(value, int) and value in (0, 1):
        return bool(value)
    return value


@dataclass(frozen=True, slots=True)
class FileRows:
    """The rows of one list in a file. Each iteration reads them again."""

    path: Path
    offset: int  # of the list's bracket, in bytes

    def __iter__(self) -> Iterator[Any]:
        """Read the rows in order."""
        with self.path.open("rb") as file:
            file.seek(self.offset)
            yield from _Scanner(file, self.offset).members_of_list()


def read_exported(path: Path) -> dict[str, Any] | None:
    """Return the document in a file, with its lists as `FileRows`, or None for another JSON value. Raises OSError and ValueError."""
    with path.open("rb") as file:
        scanner = _Scanner(file, 0)
        if scanner.next() != "{":
            return None
        document = dict[str, Any]()
        for name in scanner.names():
            if name in LISTS and scanner.next() == "[":
                document[name] = FileRows(path, scanner.offset)
                for _ in scanner.members_of_list():
                    pass
            else:
                document[name] = scanner.value()
        if scanner.next():
            raise ValueError("there is text after its end")
        return document


class _Scanner:
    """Reads JSON values from a UTF-8 file. Holds little more than the current value in memory."""

    def __init__(self, file: IO[bytes], offset: int) -> None:
        self._file = file
        self._decode = codecs.getincrementaldecoder("utf-8")()
        self._read = json.JSONDecoder().raw_decode
        self._before = offset  # bytes of the file before the text
        self._text = ""
        self._at = 0
        self._is_at_end = False

    @property
    def offset(self) -> int:
        """The position of the next character in the file, in bytes."""
        return self._before + len(self._text[: self._at].encode())

    def next(self) -> str:
        """Skip blanks and return the next character without consuming it, or an empty text at the end."""
        while True:
            while self._text[self._at : self._at + 1] in _BLANKS:
                self._at += 1
            if self._at < len(self._text) or self._is_at_end:
                return self._text[self._at : self._at + 1]
            self._read_chunk()

    def value(self) -> Any:
        """Consume and return the next value. Raises ValueError if there is none."""
        self.next()
        while True:
            try:
                value, end = self._read(self._text, self._at)
            except ValueError:
                if self._is_at_end:
                    raise
            else:
                if end < len(self._text) or self._is_at_end:  # otherwise a number may continue
                    self._at = end
                    return value
            self._read_chunk()

    def names(self) -> Iterator[str]:
        """Yield the names of an object. The caller must read each value before the next name."""
        for _ in self._between("{", "}"):
            name = self.value()
            if not isinstance(name, str):
                raise ValueError(f"expected a name before byte {self.offset}, found {type(name).__name__}")  # noqa: TRY004  # in the file, not an argument
            self._expect(":")
            yield name

    def members_of_list(self) -> Iterator[Any]:
        """Yield the members of a list."""
        for _ in self._between("[", "]"):
            yield self.value()

    def _between(self, begin: str, end: str) -> Iterator[None]:
        self._expect(begin)
        if self.next() != end:
            yield
            while self.next() == ",":
                self._expect(",")
                yield
        self._expect(end)

    def _expect(self, character: str) -> None:
        if self.next() != character:
            raise ValueError(f"expected `{character}` at byte {self.offset}")
        self._at += 1

    def _read_chunk(self) -> None:
        self._before = self.offset
        chunk = self._file.read(max(CHUNK_BYTES, len(self._text)))  # so a long value is parsed again only a few times
        self._text = self._text[self._at :] + self._decode.decode(chunk, final=not chunk)
        self._at = 0
        self._is_at_end = not chunk
