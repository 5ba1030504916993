"""Erase values in the record of a run that has ended. Functions of a connection.

A row keeps its entry in the audit log: the tombstone records the digest that it had before. Texts of at least `MIN_CHARACTERS` characters
are erased wherever they occur in the run's rows and result files; other values only in the fields that were named.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any, TypeAlias

from pydantic import JsonValue
from sqlalchemy import Connection, Table, select, update

from plan_adapter.errors import RunConflictError
from plan_adapter.execution.secrets import Redactor
from plan_adapter.secrets import MIN_CHARACTERS
from plan_adapter.store import entries, tombstones
from plan_adapter.store.audit import append, entry_digest, genesis_digest
from plan_adapter.store.columns import database_now, escape_unstorable
from plan_adapter.store.digests import JsonRow, json_row, row_digest
from plan_adapter.store.entries import OPERATOR_REQUEST_KINDS
from plan_adapter.store.erased_fields import ERASED, Field, erase_at, read_fields, texts_in
from plan_adapter.store.rows import NO_ITEM, Row, dump_json, load_json
from plan_adapter.store.tables import approvals, attempts, audit, concurrency_keys, gates, receipts, revisions, runs, step_runs
from plan_adapter.store.tombstones import Erased
from plan_adapter.store.verification import ROW_CHECKS

_JSON: dict[Table, tuple[str, ...]] = {
    runs: ("inputs", "outputs", "metadata"),
    step_runs: ("outputs",),
    attempts: ("parameters",),
    receipts: ("result",),
    approvals: ("result",),
}
_TEXTS: dict[Table, tuple[str, ...]] = {
    runs: ("message", "rejection_note", "cancel_reason"),
    step_runs: ("error", "reason"),
    concurrency_keys: ("key",),
    attempts: ("label",),
    receipts: ("error", "note"),
    approvals: ("note",),
    gates: ("description", "text", "label"),
    revisions: ("note",),
    audit: ("message",),
}
_NOTES = ((runs, "rejection_note"), (runs, "cancel_reason"), (approvals, "note"), (receipts, "note"), (revisions, "note"))


Stage: TypeAlias = Callable[[Mapping[str, JsonValue]], None]
"""Writes the new contents of result files, by path, beside the old ones."""


@dataclass(slots=True)
class Content:
    """A row of the run: the stored row, and its new column values with JSON parsed."""

    table: Table
    row: Row
    values: dict[str, Any]

    def stored(self) -> JsonRow:
        """Return the columns that change, as a digest covers them."""
        return {name: escape_unstorable(value) for name, value in self.changes().items()}

    def changes(self) -> dict[str, str]:
        """Return the columns that change, as they are stored."""
        as_json = [name for name in _JSON.get(self.table, ()) if self.values[name] != load_json(self.row[name] or "null")]
        changed = {name: dump_json(self.values[name]) for name in as_json}
        changed |= {name: self.values[name] for name in _TEXTS.get(self.table, ()) if self.values[name] != self.row[name]}
        if self.table is step_runs and (self.values["items"] or []) != load_json(self.row["items"] or "[]"):
            changed["items"] = dump_json(self.values["items"])
        return changed


@dataclass(frozen=True, slots=True)
class Erasure:
    """What was erased, or would be: how many rows of each table, and the new contents of result files."""

    run_id: str
    fields: tuple[str, ...]
    rows: dict[str, int]
    files: dict[str, JsonValue]
    elsewhere: tuple[str, ...] = ()  # result files that are not on this machine
    short: int = 0  # values that were too short to be looked for elsewhere


@dataclass(slots=True)
class _Record:
    """The rows of a run and its result files while values in them are replaced."""

    contents: list[Content]
    files: dict[str, JsonValue]  # by path
    original_files: Mapping[str, JsonValue]
    found: list[JsonValue] = field(default_factory=list[JsonValue])

    def rows_of(self, table: Table) -> list[Content]:
        """Return the rows of a table."""
        return [content for content in self.contents if content.table is table]

    def unread_files(self) -> list[str]:
        """Return the paths of the result files that were not read."""
        paths = [file_of(content.values["result"], content.row["run_id"]) for content in self.rows_of(receipts)]
        return sorted({path for path in paths if path is not None and path not in self.files})


def file_of(result: JsonValue, run_id: str) -> str | None:
    """Return the path of the file that holds a result of the run, or None if the result is in its receipt."""
    if not isinstance(result, dict) or result.keys() != {"path", "size", "digest"} or not isinstance(result["path"], str):
        return None
    return result["path"] if Path(result["path"]).parent.name == run_id else None


def file_text(content: JsonValue) -> bytes:
    """Return the bytes of a result file."""
    return dump_json(content).encode()


def erasure_of(connection: Connection, run: Row, fields: Sequence[str], files: Mapping[str, JsonValue]) -> tuple[Erasure, list[Content]]:
    """Return what erasing these fields changes, without writing. `files` are the contents of the run's result files by path.

    Raises RunConflictError, which lists them, for fields that the record does not have or whose result file is on another machine.
    """
    record = _Record([content for table in _tables() for content in _contents(connection, table, run["id"])], dict(files), files)
    missing = list[str]()
    for wanted in read_fields(fields):
        before = len(record.found)
        _erase_field(record, wanted)
        if len(record.found) == before:
            missing.append(f"`{wanted.text}`")
    elsewhere = record.unread_files()
    if missing:
        hint = f"; results that are not on this machine: {', '.join(elsewhere)}" if elsewhere else ""
        raise RunConflictError(f"run {run['id']} has no value at {', '.join(missing)}{hint}")
    redactor = Redactor(ERASED)
    for text in set(texts_in(record.found, shortest=MIN_CHARACTERS)):
        redactor.add(text)
    _redact(record, redactor)
    changed = [content for content in record.contents if content.changes()]
    counts = {table.name: sum(content.table is table for content in changed) for table in _tables()}
    erasure = Erasure(
        run["id"],
        tuple(dict.fromkeys(fields)),
        {name: count for name, count in counts.items() if count},
        {path: content for path, content in record.files.items() if content != files[path]},
        tuple(elsewhere),
        sum(value != ERASED and not list(texts_in([value], shortest=MIN_CHARACTERS)) for value in record.found),
    )
    return erasure, changed


def write_erasure(
    connection: Connection, run: Row, erasure: Erasure, changed: Sequence[Content], *, by: str, known_by: str, stage: Stage
) -> None:
    """Write what `erasure_of` found, with a tombstone. `stage` prepares the result files, before the transaction is committed."""
    stage(erasure.files)
    replaced = _replaced_digests(connection, run, changed)
    tombstone = tombstones.add(connection, run, "erased", by=by, known_by=known_by, fields=erasure.fields, replaced=replaced)
    for content in changed:
        keys = [column == content.row[column.name] for column in content.table.primary_key.columns]
        connection.execute(update(content.table).where(*keys).values(content.changes()))
    connection.execute(update(runs).where(runs.c.id == run["id"]).values(updated_at=database_now()))
    append(connection, run["id"], [entries.of_erasure(tombstone)])


def _tables() -> list[Table]:
    return list({**_TEXTS, **_JSON})


def _contents(connection: Connection, table: Table, run_id: str) -> list[Content]:
    same = (table.c.id if table is runs else table.c.run_id) == run_id
    found = list[Content]()
    for row in connection.execute(select(table).where(same).order_by(*table.primary_key.columns)).mappings():
        values: dict[str, Any] = {name: load_json(row[name] or "null") for name in _JSON.get(table, ())}
        values |= {name: row[name] for name in _TEXTS.get(table, ())}
        if table is step_runs:
            values["items"] = load_json(row["items"] or "[]")
        found.append(Content(table, row, values))
    return found


def _erase_field(record: _Record, wanted: Field) -> None:
    if wanted.part in ("inputs", "outputs"):
        for content in record.rows_of(runs):
            content.values[wanted.part] = erase_at(content.values[wanted.part], wanted.path, record.found)
    elif wanted.part == "parameters":
        for content in record.rows_of(attempts):
            if content.row["step_id"] == wanted.step_id:
                content.values["parameters"] = erase_at(content.values["parameters"], wanted.path, record.found)
    elif wanted.part == "result":
        _erase_result(record, wanted)
    else:
        for content, name in _texts_of(record, wanted):
            if content.values[name]:
                record.found.append(content.values[name])
                content.values[name] = ERASED


def _erase_result(record: _Record, wanted: Field) -> None:
    for content in record.rows_of(step_runs):
        if content.row["step_id"] == wanted.step_id and content.values["outputs"] is not None:
            content.values["outputs"] = erase_at(content.values["outputs"], wanted.path, record.found)
    for content in record.rows_of(receipts):
        item, path, result = content.row["item"], wanted.path, content.values["result"]
        if content.row["step_id"] != wanted.step_id or result is None:
            continue
        if item != NO_ITEM and path:  # the result of a step with `for_each` is the list of its items' results
            if path[0] not in (None, item):
                continue
            path = path[1:]
        file = file_of(result, content.row["run_id"])
        if file is None:
            content.values["result"] = erase_at(result, path, record.found)
        elif file in record.files:
            record.files[file] = erase_at(record.files[file], path, record.found)


def _texts_of(record: _Record, wanted: Field) -> list[tuple[Content, str]]:
    """Return the rows and columns of a field that holds whole texts."""
    if wanted.part == "message":
        return [(content, "message") for content in record.rows_of(runs)]
    if wanted.part == "notes":
        reasons = [(content, "message") for content in record.rows_of(audit) if content.row["kind"] in OPERATOR_REQUEST_KINDS.values()]
        return [*((content, name) for table, name in _NOTES for content in record.rows_of(table)), *reasons]
    if wanted.part == "error":
        return [
            (content, "error")
            for table in (step_runs, receipts)
            for content in record.rows_of(table)
            if content.row["step_id"] == wanted.step_id
        ]
    asked = [content for content in record.rows_of(gates) if content.row["step_id"] == (wanted.step_id or "")]
    return [(content, name) for content in asked for name in ("description", "text")]


def _redact(record: _Record, redactor: Redactor) -> None:
    """Erase the known texts wherever they occur."""
    record.files = {path: redactor.value(content) for path, content in record.files.items()}
    for content in record.contents:
        values = content.values
        if content.table is audit and content.row["kind"] == "signed":  # a signature, not text
            continue
        for name in _TEXTS.get(content.table, ()):
            values[name] = None if values[name] is None else redactor.text(values[name])
        for name in _JSON.get(content.table, ()):
            file = file_of(values[name], content.row["run_id"]) if content.table is receipts else None
            values[name] = redactor.value(values[name]) if file is None else _file_reference(record, values[name], file)
        if content.table is step_runs:
            values["items"] = [[redactor.text(label) if isinstance(label, str) else label, status] for label, status in values["items"]]


def _file_reference(record: _Record, result: dict[str, JsonValue], file: str) -> dict[str, JsonValue]:
    """Return the receipt's reference to a result file, with the size and digest of its new content."""
    if file not in record.files or record.files[file] == record.original_files[file]:
        return result
    text = file_text(record.files[file])
    return {"path": file, "size": len(text), "digest": "sha256:" + sha256(text).hexdigest()}


def _replaced_digests(connection: Connection, run: Row, changed: Sequence[Content]) -> dict[str, str]:
    """Return the original digests of the changed rows and entries, by the digests that they get."""
    before = Erased.of(tombstones.rows_of(connection, run["id"]))
    chain = {0: before.original(genesis_digest(json_row(runs, run)))}  # the digest of each entry
    entries_of_run = select(audit.c.number, audit.c.digest).where(audit.c.run_id == run["id"])
    chain |= {number: digest for number, digest in connection.execute(entries_of_run)}  # noqa: C416  # a result is no mapping
    replaced = dict[str, str]()
    for content in changed:
        old = json_row(content.table, content.row)
        new = {**old, **content.stored()}
        if content.table is audit:
            number = content.row["number"]
            replaced[entry_digest(new, chain[number - 1])] = chain[number]
        elif content.table is runs:
            replaced[row_digest("runs", new)] = before.original(row_digest("runs", old))
            replaced[genesis_digest(new)] = chain[0]
        elif content.table is not concurrency_keys:  # the audit log does not cover these keys
            entry_of = ROW_CHECKS[content.table.name].entry_of
            replaced[str(entry_of(new).row_digest)] = before.original(str(entry_of(old).row_digest))
    return replaced
