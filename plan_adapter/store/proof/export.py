"""The exported document of a run: read it from the database, write it to a file, and read it from a file.

A file is JSON Lines. Its first line is a header: the format, the run, and every other part that is not a list. Each further line is one row
with its table, the audit log last, so that a file that was cut off lacks the end of its audit log. Rows are written and read one at a time.
A file of an earlier version is one JSON object, which is read as a whole.
"""

import json
import re
import sqlite3
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from pydantic import JsonValue
from sqlalchemy import Boolean, ColumnElement, Connection, Table, and_, select, type_coerce, union_all
from sqlalchemy.types import NullType

from plan_adapter.store.database.columns import Instant
from plan_adapter.store.database.tables import (
    approvals,
    attempts,
    audit,
    commands,
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
"""A whole document, also as one JSON object in files of earlier versions."""

LINES_FORMAT = "plan-adapter-run/2"
"""JSON Lines."""

FETCH_SIZE = 150
"""How many rows are fetched from a server at a time."""

LISTED = (approvals, gates, attempts, receipts, commands, step_runs, revisions, tombstones, audit)
"""The tables whose rows of the run are lists of the document."""

LISTS = (plans.name, implied_dependencies.name, *(table.name for table in LISTED))
"""The parts of the document that are lists of rows, in the order in which they are written."""

MAX_WHOLE_BYTES = 256 * 1024 * 1024
"""The size up to which a file that is one JSON object is read."""

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
    with _reading_invalid_text(connection):
        witnessed = witnessed_by(connection, run_id)
    return {
        "format": FORMAT,
        "run": Rows(connection, runs, runs.c.id == run_id).first(),
        "plans": Rows(connection, plans, and_(plans.c.tenant_id == tenant, plans.c.digest.in_(digests))),
        "implied_dependencies": Rows(
            connection, implied_dependencies, and_(implied_dependencies.c.tenant_id == tenant, implied_dependencies.c.digest == implied)
        ),
        "lease": Rows(connection, leases, leases.c.run_id == run_id).first(),
        **{table.name: Rows(connection, table, table.c.run_id == run_id) for table in LISTED},
        "head": None if head is None else head["digest"],
        "witnessed": witnessed,
    }


def document_of(connection: Connection, run_id: str) -> dict[str, JsonValue]:
    """Return the document of a run with all its rows."""
    return {name: list(part) if isinstance(part, Rows) else part for name, part in parts_of(connection, run_id).items()}


def write_document(document: Mapping[str, Any], write: Callable[[str], object], *, only_ascii: bool = False) -> None:
    """Write a document of `parts_of` as JSON Lines, one row at a time. Texts are UTF-8 unless they cannot be encoded."""
    header = {name: part for name, part in document.items() if name not in LISTS}
    write(_line(header | {"format": LINES_FORMAT}, only_ascii=only_ascii))
    for table in LISTS:
        for row in document[table]:
            write(_line({"table": table, "row": row}, only_ascii=only_ascii))


def _line(value: dict[str, Any], *, only_ascii: bool) -> str:
    text = json.dumps(value, ensure_ascii=only_ascii)
    try:
        text.encode()
    except UnicodeEncodeError:  # an altered row whose text is not valid
        return _line(value, only_ascii=True)
    return f"{text}\n"


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


@dataclass(slots=True)
class FileRows:
    """The rows of one table in a file. Each iteration reads them again."""

    path: Path
    table: str
    offset: int = 0  # of its first row, in bytes
    count: int = 0

    def __iter__(self) -> Iterator[Any]:
        """Read the rows in order."""
        remaining = self.count
        with self.path.open("rb") as file:
            file.seek(self.offset)
            while remaining:
                table, row = _table_and_row(file.readline())
                if table == self.table:
                    remaining -= 1
                    yield row


def read_exported(path: Path) -> dict[str, Any] | None:
    """Return the document in a file, or None for another JSON value. Raises OSError and ValueError.

    The lists of a document in lines are `FileRows`.
    """
    with path.open("rb") as file:
        try:
            header = json.loads(file.readline(MAX_WHOLE_BYTES))
        except ValueError:  # of an older file, whose object has several lines
            header = None
        if not isinstance(header, dict) or header.get("format") in (FORMAT, None):  # pyright: ignore[reportUnknownMemberType]
            return _read_whole(path)
        if header["format"] != LINES_FORMAT:
            raise ValueError(f"its format {header['format']!r} is unknown; it may be of a newer version of this package")
        return header | _find_rows(file, path)  # pyright: ignore[reportUnknownVariableType]


def _read_whole(path: Path) -> dict[str, Any] | None:
    if path.stat().st_size > MAX_WHOLE_BYTES:
        raise ValueError(
            f"it is no JSON Lines, and as one JSON value it is too large ({MAX_WHOLE_BYTES >> 20} MiB at most): export the run again"
        )
    document = json.loads(path.read_bytes())
    return document if isinstance(document, dict) else None  # pyright: ignore[reportUnknownVariableType]


def _find_rows(file: BinaryIO, path: Path) -> dict[str, FileRows]:
    """Return the lists of a document in lines. `file` is behind the header. Raises ValueError for a line that is no row."""
    lists = {table: FileRows(path, table) for table in LISTS}
    number, offset = 1, file.tell()
    while line := file.readline():
        number += 1
        try:
            table, _ = _table_and_row(line)
            rows = lists[table]
        except (ValueError, TypeError, KeyError) as error:
            raise ValueError(f"line {number} is not a row of a table ({type(error).__name__}: {error})") from None
        if not rows.count:
            rows.offset = offset
        rows.count += 1
        offset += len(line)
    return lists


def _table_and_row(line: bytes) -> tuple[str, Any]:
    found = json.loads(line)
    return found["table"], found["row"]
