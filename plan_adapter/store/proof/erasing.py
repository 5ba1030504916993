"""Erase values in the record of a run that has ended. Functions of a connection.

A row keeps its digest: each erased word leaves its own in the row (`digests.Words`). Texts of at least `MIN_CHARACTERS` characters are
erased wherever they occur in the run's rows and result files; other values only in the fields that were named.
"""

import json
import re
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from operator import itemgetter
from pathlib import Path
from typing import Any, Literal, TypeAlias, cast

from pydantic import JsonValue
from sqlalchemy import Connection, Table, select, update

from plan_adapter.execution.redactor import Redactor
from plan_adapter.local.secrets import MIN_CHARACTERS
from plan_adapter.model.errors import RunNotFoundError
from plan_adapter.model.plan import STEP_ID
from plan_adapter.store.database.columns import database_now
from plan_adapter.store.database.rows import NO_ITEM, Row, dump_json, load_json
from plan_adapter.store.database.tables import approvals, attempts, audit, concurrency_keys, gates, receipts, revisions, runs, step_runs
from plan_adapter.store.proof import entries, tombstones
from plan_adapter.store.proof.audit import append
from plan_adapter.store.proof.digests import ERASABLE, ERASED, ERASED_VALUE, JSON_COLUMNS, Words, new_salt
from plan_adapter.store.proof.entries import OPERATOR_REQUEST_KINDS

FieldPath: TypeAlias = tuple[str | int | None, ...]
"""Keys and indices from the outside to the inside. None: every member of a list."""

Part: TypeAlias = Literal["inputs", "outputs", "parameters", "result", "error", "gate", "message", "notes"]

_FIELD = re.compile(
    rf"(?:(inputs|outputs)|(message|notes|gate)|steps\.({STEP_ID}(?:\.{STEP_ID})*?)\.(?:(parameters|result)|(error|gate)))(?=[.\[]|$)(.*)",
    re.S,
)
_MEMBER = re.compile(r"\.([^.\[\]\"]+)|\[(\d{0,9})\]|\[\"([^\"]+)\"\]")
_FORMS = "inputs.NAME, outputs.NAME, steps.ID.parameters.NAME, steps.ID.result, steps.ID.error, steps.ID.gate, gate, message or notes"


@dataclass(frozen=True, slots=True)
class Field:
    """One field to erase: a part of the record, and inside it a path."""

    text: str
    part: Part
    step_id: str | None = None
    path: FieldPath = ()


def read_fields(texts: Sequence[str]) -> list[Field]:
    """Return the fields that these texts name. Raises RunNotFoundError that lists all texts that name no field."""
    found = {text: _field(text) for text in dict.fromkeys(texts)}
    if unknown := [text for text, field in found.items() if field is None]:
        listed = ", ".join(f"`{text}`" for text in unknown)
        raise RunNotFoundError(f'no field is called {listed}; write {_FORMS}; [] stands for every member of a list, ["a.b"] for a key')
    return [field for field in found.values() if field is not None]


def _field(text: str) -> Field | None:
    found = _FIELD.fullmatch(text)
    if found is None:
        return None
    whole, words, step_id, values, step_words, rest = found.groups()
    path = _path(rest)
    if path is None or (path and (words or step_words)) or (whole and not path):
        return None
    return Field(text, cast("Part", whole or words or values or step_words), step_id, path)


def _path(text: str) -> FieldPath | None:
    path, at = list[str | int | None](), 0
    while at < len(text):
        found = _MEMBER.match(text, at)
        if found is None:
            return None
        name, index, quoted = found.groups()
        path.append(name if name is not None else quoted if quoted is not None else int(index) if index else None)
        at = found.end()
    return tuple(path)


@dataclass(frozen=True, slots=True)
class Leaf:
    """A key or a scalar in a JSON value: what it is, and the path to the object that has the key, or to the scalar."""

    value: JsonValue
    path: FieldPath
    is_key: bool = False

    def is_at(self, wanted: FieldPath) -> bool:
        """Return whether the leaf is part of the value at `wanted`."""
        return len(self.path) >= len(wanted) and all(
            step == part or (part is None and isinstance(step, int)) for part, step in zip(wanted, self.path, strict=False)
        )


class Members(tuple[tuple[str, Any], ...]):
    """The members of a JSON object in their order. Keys that were erased are all called the same."""

    __slots__ = ()


def leaves_in(text: str) -> Iterator[Leaf]:
    """Yield the keys and scalars in a JSON text, in their order."""
    return _leaves_of(json.loads(text, object_pairs_hook=Members), ())


def _leaves_of(value: Any, path: FieldPath) -> Iterator[Leaf]:
    if isinstance(value, Members):
        for key, member in value:
            yield Leaf(key, path, is_key=True)
            yield from _leaves_of(member, (*path, key))
    elif isinstance(value, list):
        for index, member in enumerate(cast("list[Any]", value)):
            yield from _leaves_of(member, (*path, index))
    else:
        yield Leaf(value, path)


WINDOW = 12
"""How many letters and digits in a row of a long value are enough to find a part of it, where a text was wrapped or cut."""

_TABLES = (runs, step_runs, concurrency_keys, attempts, receipts, approvals, gates, revisions, audit)
_NOTES = ((runs, "rejection_note"), (runs, "cancel_reason"), (approvals, "note"), (receipts, "note"), (revisions, "note"))
_JSON_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|[^\s"{}\[\]:,]+')
_FOLD = re.compile(r" ↩\n\s*")  # as `gates.text.fold` writes it


Stage: TypeAlias = Callable[[Mapping[str, JsonValue]], None]
"""Writes the new contents of result files, by path, beside the old ones."""


@dataclass(slots=True)
class Erasable:
    """A text of the record, or the content of a result file, and which of its words are to be erased."""

    words: Words
    text: str
    is_json: bool
    marked: set[int] = field(default_factory=set[int])
    values: set[int] = field(default_factory=set[int])  # those of `marked` that are JSON values outside a string

    @classmethod
    def of(cls, column: str, text: str, salt: JsonValue, *, is_json: bool) -> "Erasable":
        """Return the text of a row's `column`."""
        return cls(Words(column, text, salt), text, is_json)

    @property
    def is_changed(self) -> bool:
        """Whether any word is to be erased that is not erased already."""
        return not self.marked <= set(self.words.erased)

    def leaves(self) -> list[tuple[Leaf, tuple[int, int]]]:
        """Return the keys and scalars of a JSON text, each with its span in it."""
        spans = [found.span() for found in _JSON_TOKEN.finditer(self.text)]
        return list(zip(leaves_in(self.text), spans, strict=True))

    def mark(self, start: int, end: int, *, is_value: bool = False) -> None:
        """Erase the words between these characters. `is_value`: they are a JSON value outside a string."""
        spans = self.words.spans
        for index in range(bisect_right(spans, start, key=itemgetter(1)), bisect_left(spans, end, key=itemgetter(0))):
            self.marked.add(index)
            if is_value and self.text[slice(*spans[index])] != ERASED_VALUE:
                self.values.add(index)

    def mark_all(self) -> None:
        """Erase the whole text."""
        self.mark(0, len(self.text))

    def mark_at(self, path: FieldPath) -> list[JsonValue]:
        """Erase the value at `path`, and return the keys and scalars in it."""
        found = [(leaf, span) for leaf, span in self.leaves() if leaf.is_at(path)]
        for leaf, span in found:
            self.mark(*span, is_value=not isinstance(leaf.value, str))
        return [leaf.value for leaf, _ in found if not leaf.is_key] or [leaf.value for leaf, _ in found]

    def mark_known(self, known: "Known") -> None:
        """Erase the known values, and parts of them, wherever they occur."""
        if not self.is_json:
            for start, end in known.found_in(self.text):
                self.mark(start, end)
            return
        for leaf, (start, end) in self.leaves():
            is_value = not isinstance(leaf.value, str)
            inside = [] if is_value else [*known.found_in(self.text[start:end])]
            for first, last in inside:
                self.mark(start + first, start + last)
            if not inside and known.redactor.value(leaf.value) != leaf.value:
                self.mark(start, end, is_value=is_value)

    def erased(self) -> tuple[str, dict[str, JsonValue]]:
        """Return the new text, and what the row's salt says about it."""
        return self.words.erase(self.marked, self.values)


@dataclass(slots=True)
class Known:
    """The values that are erased wherever they occur."""

    redactor: Redactor
    windows: set[str] = field(default_factory=set[str])

    @classmethod
    def of(cls, values: Collection[str]) -> "Known":
        """Return what is known of these texts."""
        known = cls(Redactor(ERASED))
        for value in values:
            known.redactor.add(value)
            letters = "".join(filter(str.isalnum, value))
            known.windows |= {letters[at : at + WINDOW] for at in range(len(letters) - WINDOW + 1)}
        return known

    def found_in(self, text: str) -> Iterator[tuple[int, int]]:
        """Yield the spans of known values in `text`, also where a value was folded over lines, cut, or put into Markdown."""
        yield from self.redactor.spans(text)
        folds = [found.span() for found in _FOLD.finditer(text)]
        unfolded = [at for at in range(len(text)) if not any(start <= at < end for start, end in folds)] if folds else range(len(text))
        letters = [at for at in unfolded if text[at].isalnum()]
        if folds:
            for start, end in self.redactor.spans("".join(text[at] for at in unfolded)):
                yield unfolded[start], unfolded[end - 1] + 1
        joined = "".join(text[at] for at in letters)
        for at in range(len(joined) - WINDOW + 1):
            if joined[at : at + WINDOW] in self.windows:
                yield letters[at], letters[at + WINDOW - 1] + 1


@dataclass(slots=True)
class Content:
    """A row of the run, and its texts that may be erased, by column."""

    table: Table
    row: Row
    texts: dict[str, Erasable]

    @classmethod
    def of(cls, table: Table, row: Row) -> "Content":
        """Return the content of a row of `table`."""
        names = ("key",) if table is concurrency_keys else sorted(ERASABLE[table.name])
        salt = row.get("salt")
        texts = {name: Erasable.of(name, row[name], salt, is_json=name in JSON_COLUMNS) for name in names if row[name] is not None}
        return cls(table, row, texts)

    def json(self, name: str) -> Any:
        """Return the value of a column with JSON, or None."""
        return load_json(self.texts[name].text) if name in self.texts else None

    def changed_columns(self) -> list[str]:
        """Return the columns that change."""
        return [name for name, text in self.texts.items() if text.is_changed]

    def changes(self) -> dict[str, str]:
        """Return the columns that change, and the salt, as they are stored."""
        if not (changed := self.changed_columns()):
            return {}
        written = {name: self.texts[name].erased() for name in changed}
        texts = {name: text for name, (text, _) in written.items()}
        if self.table is concurrency_keys:  # the audit log does not cover these keys
            return texts
        kept = {name: proof for name, (_, proof) in written.items()}
        kept |= {name: text.words.unerased() for name, text in self.texts.items() if name not in changed}
        kept |= {name: Words(name, "", self.row["salt"]).unerased() for name in ERASABLE[self.table.name] - self.texts.keys()}
        return {**texts, "salt": dump_json(dict[str, JsonValue](kept))}

    @property
    def place(self) -> str:
        """The name of the row in a tombstone."""
        return tombstones.place_text(self.table.name, [self.row[name] for name in _KEYS.get(self.table.name, ("id",))])


# In the order in which `verification.ROW_CHECKS` identifies these rows.
_KEYS = {
    "attempts": ("step_id", "kind", "item", "number"),
    "receipts": ("step_id", "kind", "item", "number"),
    "step_runs": ("step_id",),
    "revisions": ("number",),
    "audit": ("number",),
    "concurrency_keys": ("run_id",),
}


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
    """The rows of a run and its result files while words in them are erased."""

    contents: list[Content]
    files: dict[str, Erasable]  # by path
    found: list[JsonValue] = field(default_factory=list[JsonValue])

    def rows_of(self, table: Table) -> list[Content]:
        """Return the rows of a table."""
        return [content for content in self.contents if content.table is table]

    def unread_files(self) -> list[str]:
        """Return the paths of the result files that were not read."""
        paths = [file_of(content.json("result"), content.row["run_id"]) for content in self.rows_of(receipts)]
        return sorted({path for path in paths if path is not None and path not in self.files})

    def all_texts(self) -> Iterator[Erasable]:
        """Yield every text in which the known values are erased. A signature is not text, and a reference to a file is one of ours."""
        for content in self.contents:
            is_signature = content.table is audit and content.row["kind"] == "signed"
            is_file = content.table is receipts and file_of(content.json("result"), content.row["run_id"]) is not None
            for name, text in content.texts.items():
                if not is_signature and not (is_file and name == "result"):
                    yield text
        yield from self.files.values()


def file_of(result: JsonValue, run_id: str) -> str | None:
    """Return the path of the file that holds a result of the run, or None if the result is in its receipt."""
    if not isinstance(result, dict) or result.keys() != {"path", "size", "digest"} or not isinstance(result["path"], str):
        return None
    return result["path"] if Path(result["path"]).parent.name == run_id else None


def file_text(content: JsonValue) -> bytes:
    """Return the bytes of a result file."""
    return dump_json(content).encode()


def file_digest(content: bytes) -> str:
    """Return the digest of a result file, as a receipt or a tombstone has it."""
    return "sha256:" + sha256(content).hexdigest()


def erasure_of(connection: Connection, run: Row, fields: Sequence[str], files: Mapping[str, JsonValue]) -> tuple[Erasure, list[Content]]:
    """Return what erasing these fields changes, without writing. `files` are the contents of the run's result files by path.

    Raises RunConflictError, which lists them, for fields that the record does not have or whose result file is on another machine.
    """
    texts = {path: Erasable.of("result", dump_json(content), new_salt(), is_json=True) for path, content in files.items()}
    record = _Record([content for table in _TABLES for content in _contents(connection, table, run["id"])], texts)
    missing = list[str]()
    for wanted in read_fields(fields):
        before = len(record.found)
        _erase_field(record, wanted)
        if len(record.found) == before:
            missing.append(f"`{wanted.text}`")
    elsewhere = record.unread_files()
    if missing:
        hint = f"; results that are not on this machine: {', '.join(elsewhere)}" if elsewhere else ""
        raise RunNotFoundError(f"run {run['id']} has no value at {', '.join(missing)}{hint}")
    known = Known.of({value for value in record.found if isinstance(value, str) and _is_searchable(value)})
    for text in record.all_texts():
        text.mark_known(known)
    _mark_files(record)
    changed = [content for content in record.contents if content.changed_columns()]
    counts = {table.name: sum(content.table is table for content in changed) for table in _TABLES}
    erasure = Erasure(
        run["id"],
        tuple(dict.fromkeys(fields)),
        {name: count for name, count in counts.items() if count},
        {path: load_json(text.erased()[0]) for path, text in record.files.items() if text.is_changed},
        tuple(elsewhere),
        sum(not _is_erased(value) and not (isinstance(value, str) and _is_searchable(value)) for value in record.found),
    )
    return erasure, changed


def write_erasure(
    connection: Connection, run: Row, erasure: Erasure, changed: Sequence[Content], *, by: str, known_by: str, stage: Stage
) -> None:
    """Write what `erasure_of` found, with a tombstone. `stage` prepares the result files, before the transaction is committed."""
    stage(erasure.files)
    covered = [content for content in changed if content.table is not concurrency_keys]
    replaced = {content.place: ", ".join({*content.changed_columns()}) for content in covered}
    replaced |= {path: file_digest(file_text(content)) for path, content in erasure.files.items()}
    tombstone = tombstones.add(connection, run, "erased", by=by, known_by=known_by, fields=erasure.fields, replaced=replaced)
    for content in changed:
        keys = [column == content.row[column.name] for column in content.table.primary_key.columns]
        connection.execute(update(content.table).where(*keys).values(content.changes()))
    connection.execute(update(runs).where(runs.c.id == run["id"]).values(updated_at=database_now()))
    append(connection, run["id"], [entries.of_erasure(tombstone)])


def _is_erased(value: JsonValue) -> bool:
    return isinstance(value, str) and value in (ERASED, ERASED_VALUE.strip('"'))


def _is_searchable(value: str) -> bool:
    """Return whether a text is long enough to be looked for in the rest of the record."""
    return len(value) >= MIN_CHARACTERS and not re.fullmatch(r"(?:\[erased(?: value)?\]|\W)*", value)


def _contents(connection: Connection, table: Table, run_id: str) -> list[Content]:
    same = (table.c.id if table is runs else table.c.run_id) == run_id
    rows = connection.execute(select(table).where(same).order_by(*table.primary_key.columns)).mappings()
    return [Content.of(table, row) for row in rows]


def _erase_field(record: _Record, wanted: Field) -> None:
    if wanted.part in ("inputs", "outputs"):
        for content in record.rows_of(runs):
            record.found += content.texts[wanted.part].mark_at(wanted.path)
    elif wanted.part == "parameters":
        for content in record.rows_of(attempts):
            if content.row["step_id"] == wanted.step_id:
                record.found += content.texts["parameters"].mark_at(wanted.path)
    elif wanted.part == "result":
        _erase_result(record, wanted)
    else:
        for content, name in _texts_of(record, wanted):
            if name in content.texts and content.texts[name].text:
                record.found.append(content.texts[name].text)
                content.texts[name].mark_all()


def _erase_result(record: _Record, wanted: Field) -> None:
    for content in record.rows_of(step_runs):
        if content.row["step_id"] == wanted.step_id and "outputs" in content.texts:
            record.found += content.texts["outputs"].mark_at(wanted.path)
    for content in record.rows_of(receipts):
        item, path, result = content.row["item"], wanted.path, content.json("result")
        if content.row["step_id"] != wanted.step_id or result is None:
            continue
        if item != NO_ITEM and path:  # the result of a step with `for_each` is the list of its items' results
            if path[0] not in (None, item):
                continue
            path = path[1:]
        file = file_of(result, content.row["run_id"])
        if file is None:
            record.found += content.texts["result"].mark_at(path)
        elif file in record.files:
            record.found += record.files[file].mark_at(path)


def _mark_files(record: _Record) -> None:
    """Erase the size and the digest of each file that changes in its receipt. The tombstone has the new digest."""
    for content in record.rows_of(receipts):
        file = file_of(content.json("result"), content.row["run_id"])
        if file is not None and file in record.files and record.files[file].is_changed:
            for name in ("size", "digest"):
                content.texts["result"].mark_at((name,))


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
