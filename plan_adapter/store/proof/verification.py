"""Verify an exported run against its audit log. `NewestEntries` keeps the newest entry per row on disk, so runs of any size fit."""

import json
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from itertools import islice
from types import TracebackType
from typing import Any, Literal, NamedTuple, Self, TypeAlias

from pydantic import JsonValue

from plan_adapter.gates.quorum import why_too_few
from plan_adapter.model.approvals import AGREE
from plan_adapter.model.readable import one_line
from plan_adapter.store.database.rows import NO_ITEM, OVERRIDE_MARK, QUORUM_MARK, agreed_at, gate_policy_in
from plan_adapter.store.plans import problem_of_plan
from plan_adapter.store.proof import entries
from plan_adapter.store.proof.audit import entry_digest, genesis_digest, read_witness
from plan_adapter.store.proof.digests import JsonRow, erased_columns, row_digest
from plan_adapter.store.proof.entries import DESCRIBED_TABLES, RUN_KINDS, Entry
from plan_adapter.store.proof.tombstones import place_text

Key: TypeAlias = tuple[Any, ...]
Place: TypeAlias = tuple[str, Key]
"""A table, and the key of a row in it."""


FINAL = frozenset({"attempts", "receipts", "commands", "revisions", "tombstones"})
"""The tables whose rows are written once: one entry records each."""


class NewestEntry(NamedTuple):
    """The part of an audit entry that identifies the state of a row."""

    number: int
    table: str
    kind: str
    row_digest: str | None


class NewestEntries:
    """The newest audit entry of each row, until it is taken. Deleted when its `with` block ends."""

    def __init__(self) -> None:
        """Open a temporary database. SQLite moves it to a file of its own once it is large, and deletes it on close."""
        # A scratch table that no other process sees, with two statements per entry: sqlite3 itself is enough.
        self._database = sqlite3.connect("", isolation_level=None)
        self._database.execute("PRAGMA journal_mode=OFF")
        self._database.execute(
            'CREATE TABLE newest (place TEXT PRIMARY KEY, number INTEGER, "table" TEXT, kind TEXT, row_digest TEXT) WITHOUT ROWID'
        )
        self._database.execute("BEGIN")

    def __enter__(self) -> Self:
        """Return the opened entries."""
        return self

    def __exit__(self, _kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None) -> None:
        """Delete the data."""
        self._database.close()

    def put(self, place: Place, number: int, kind: str, row_digest: Any) -> bool:
        """Store the entry with this number as the newest about a row. Return False, and store nothing, for a row that never changes."""
        row = (json.dumps(place), number, place[0], kind, row_digest)
        otherwise = "IGNORE" if place[0] in FINAL else "REPLACE"
        return self._database.execute(f"INSERT OR {otherwise} INTO newest VALUES (?, ?, ?, ?, ?)", row).rowcount == 1  # noqa: S608

    def take(self, place: Place) -> NewestEntry | None:
        """Remove and return the newest entry about a row, or None if there is none or it was taken."""
        taken = 'DELETE FROM newest WHERE place = ? RETURNING number, "table", kind, row_digest'
        row = self._database.execute(taken, (json.dumps(place),)).fetchone()
        return None if row is None else NewestEntry(*row)

    def first_untaken(self, is_wanted: Callable[[NewestEntry], bool]) -> NewestEntry | None:
        """Return the first entry, by number, that was not taken and that `is_wanted` accepts, or None."""
        left = self._database.execute('SELECT number, "table", kind, row_digest FROM newest ORDER BY number')
        return next((found for row in left if is_wanted(found := NewestEntry(*row))), None)


Verdict: TypeAlias = Literal["intact", "altered", "not_verifiable"]
"""`not_verifiable`: there are no audit entries to compare the rows with."""

ENDED = ("completed", "failed", "cancelled", "partial")


@dataclass(frozen=True, slots=True)
class Alteration:
    """A row that differs from what was written, and a message that says how."""

    table: str
    message: str
    step_id: str | None = None
    item: int | None = None
    attempt: int | None = None
    entry: int | None = None  # the number of the audit entry that was altered, or that describes the row
    call_kind: str | None = None  # `rollback`: of the call that rolls back the step

    def __str__(self) -> str:
        """Return the alteration in one line."""
        where = [self.table]
        where += [f"entry {self.entry}"] if self.table == "audit" and self.entry is not None else []
        where += (
            [f"{'rollback of ' if self.call_kind == 'rollback' else ''}step `{one_line(self.step_id)}`"] if self.step_id is not None else []
        )
        where += [f"item {self.item + 1}"] if self.item is not None else []
        where += [f"attempt {self.attempt}"] if self.attempt is not None else []
        return f"{', '.join(where)}: {one_line(self.message)}"


@dataclass(frozen=True, slots=True)
class Verification:
    """The result of a verification: the number of audit entries, the newest digest, and the first alteration.

    `erased_rows` names the rows in which words were erased, each with those columns. Everything else in these rows is as it was written.
    """

    entries: int
    digest: str | None
    problem: Alteration | None = None
    erased_rows: Mapping[str, str] = field(default_factory=dict[str, str])

    @property
    def verdict(self) -> Verdict:
        """The result in one word. A run without audit entries is never intact."""
        if self.problem is not None:
            return "altered"
        return "intact" if self.entries else "not_verifiable"

    @property
    def ok(self) -> bool:
        """Whether the record was verified and is unaltered."""
        return self.verdict == "intact"


def verify(document: Mapping[str, Any]) -> Verification:
    """Return whether an exported run is unaltered. `document` comes from `export.parts_of` or from a file.

    Lists are read one row at a time. A run without audit entries is not verifiable. Whoever can write the whole database can also forge its
    audit log; compare the newest digest with a copy kept elsewhere.
    """
    with NewestEntries() as newest:
        summary = _AuditSummary(newest)
        try:
            problem = next(_problems(document, summary), None)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            problem = Alteration("document", f"it is not an exported run, or parts of it are missing ({type(error).__name__}: {error})")
    return Verification(summary.count if problem is None else _count(document.get("audit")), document.get("head"), problem, summary.erased)


def _count(audit: Any) -> int:
    try:
        return sum(1 for _ in audit)
    except TypeError:
        return 0


@dataclass(slots=True)
class _AuditSummary:
    """The facts that one pass over the audit log collects."""

    newest: NewestEntries
    count: int = 0
    of_run: JsonRow | None = None  # the newest entry about the run itself
    started: JsonRow | None = None  # the newest start of the run
    restarts: int = 0  # the newest entry that cleared the steps that had not completed

    erased: dict[str, str] = field(default_factory=dict[str, str])  # the columns with erased words, by row

    def note_erasures(self, table: str, key: Key, row: JsonRow) -> None:
        """Remember in which columns of a row words were erased, if in any."""
        if columns := erased_columns(row):
            self.erased[place_text(table, key)] = ", ".join(columns)

    def add(self, entry: JsonRow) -> bool:
        """Add an entry whose digest was checked. Return whether the row that it records may have changed since an earlier entry."""
        self.count += 1
        self.note_erasures("audit", (entry["number"],), entry)
        if entry["kind"] in RUN_KINDS:
            self.of_run = entry
        if entry["kind"] == "run_started":
            self.started = entry
        if entry["kind"] in ("run_started", "new_version"):
            self.restarts = self.count
        if (place := _place_of(entry)) is None:
            return True
        return self.newest.put(place, self.count, str(entry["kind"]), entry["row_digest"])


def _problems(document: Mapping[str, Any], summary: _AuditSummary) -> Iterator[Alteration]:
    run = document["run"]
    if run is None:
        yield Alteration("runs", "the row of the run is missing")
        return
    yield from _chain_problems(run, document["audit"], document["head"], summary)
    if not summary.count:
        return
    yield from _plan_problems(document)
    yield from _dependency_problems(document)
    yield from _row_problems(document, summary)
    yield from _run_problems(run, summary)
    yield from _erasure_problems(document, summary)
    yield from _witness_problems(document)
    yield from _lease_problems(document["lease"], summary)
    yield from _gate_problems(document)


def _chain_problems(run: JsonRow, audit: Iterable[JsonRow], head: JsonValue, summary: _AuditSummary) -> Iterator[Alteration]:
    before = genesis_digest(run)
    for expected, entry in enumerate(audit, 1):
        number = entry["number"]
        if number != expected:
            yield Alteration("audit", f"the entry is missing: entry {expected - 1} is followed by entry {number}", entry=expected)
        if entry["run_id"] != run["id"]:
            yield _altered_entry(entry, f"it belongs to another run, {entry['run_id']}")
        if entry_digest(entry, before) != entry["digest"]:
            altered = "it, or the data that the run was created with, was altered" if expected == 1 else "it was altered"
            yield _altered_entry(entry, f"{altered}: its digest does not match its content and the entry before it")
        if expected == 1 and entry["kind"] != "run_created":
            yield _altered_entry(entry, "it is the first entry, but it does not record the creation of the run")
        before = str(entry["digest"])
        if not summary.add(entry):
            yield _altered_entry(entry, "it was appended: an earlier entry records the same row, which never changes")
    if head != (before if summary.count else None):
        yield Alteration("audit", "the newest entries are missing: the newest digest does not match the last entry")


def _plan_problems(document: Mapping[str, Any]) -> Iterator[Alteration]:
    found = {row["digest"] for row in document["plans"]}
    for digest in [document["run"]["digest"], *(row["digest"] for row in document["revisions"])]:
        if digest not in found:
            yield Alteration("plans", f"the plan {digest} is missing")
    for row in document["plans"]:
        if (problem := problem_of_plan(row)) is not None:
            yield Alteration("plans", problem)


def _dependency_problems(document: Mapping[str, Any]) -> Iterator[Alteration]:
    wanted: str = document["run"]["implied_dependencies_digest"]
    found = [row["steps"] for row in document["implied_dependencies"] if row["digest"] == wanted]
    if not found:
        yield Alteration("implied_dependencies", f"the dependencies implied by references are missing ({wanted})")
    elif sha256(str(found[0]).encode(errors="surrogatepass")).hexdigest() != wanted:
        yield Alteration(
            "implied_dependencies",
            f"the dependencies implied by references were altered: they do not match the digest {wanted}",
        )


@dataclass(frozen=True, slots=True)
class RowCheck:
    """How to verify the rows of a table against the audit log."""

    table: str
    key: Callable[[JsonRow], Key]  # of a row
    entry_of: Callable[[JsonRow], Entry]  # the entry that a row's current state should have


def _attempt_key(row: JsonRow) -> Key:
    return (row["step_id"], row["kind"], row["item"], row["number"])


def _approval_entry(row: JsonRow) -> Entry:
    return entries.of_approval(row) if row["used_at"] is None else entries.of_use(row)


def _gate_entry(row: JsonRow) -> Entry:
    return entries.of_gate(row) if row["end"] in (None, "answered") else entries.of_gate_end(row)


ROW_CHECKS = {
    check.table: check
    for check in (
        RowCheck("attempts", _attempt_key, entries.of_attempt),
        RowCheck("receipts", _attempt_key, entries.of_receipt),
        RowCheck("commands", lambda row: (*_attempt_key(row), row["process"]), entries.of_command),
        RowCheck("step_runs", lambda row: (row["step_id"],), entries.of_step),
        RowCheck("approvals", lambda row: (row["id"],), _approval_entry),
        RowCheck("gates", lambda row: (row["id"],), _gate_entry),
        RowCheck("revisions", lambda row: (row["number"],), entries.of_revision),
        RowCheck("tombstones", lambda row: (row["number"],), entries.of_erasure),
    )
}


def _place_of(entry: JsonRow) -> Place | None:
    """Return the table and key of the row that an entry describes, or None for the run itself."""
    table, attempt = DESCRIBED_TABLES.get(str(entry["kind"])), (entry["step_id"], entry["call_kind"], entry["item"], entry["attempt"])
    match table:
        case None:
            return None
        case "attempts" | "receipts":
            return table, attempt
        case "commands":
            return table, (*attempt, entry["row_id"])
        case "step_runs":
            return table, (entry["step_id"],)
        case "revisions" | "tombstones":
            return table, (int(str(entry["row_id"])),)
        case _:
            return table, (entry["row_id"],)


def _row_problems(document: Mapping[str, Any], summary: _AuditSummary) -> Iterator[Alteration]:
    """Yield the first row that is missing or differs from its newest entry; then the first row that no entry describes."""
    altered: tuple[int, RowCheck, JsonRow] | None = None  # the one with the earliest entry
    unrecorded: tuple[RowCheck, JsonRow] | None = None
    for check in ROW_CHECKS.values():
        # Files of earlier versions have no list of commands.
        for row in document.get("commands", ()) if check.table == "commands" else document[check.table]:
            summary.note_erasures(check.table, check.key(row), row)
            found = summary.newest.take((check.table, check.key(row)))
            if found is None:
                unrecorded = unrecorded or (check, row)
            elif check.entry_of(row).row_digest != found.row_digest and (altered is None or found.number < altered[0]):
                altered = (found.number, check, row)
    # A new start or version of the run deletes the ends of steps that had not completed.
    missing = summary.newest.first_untaken(
        lambda left: left.table != "step_runs" or left.kind == "step_completed" or left.number > summary.restarts
    )
    if missing is not None and (altered is None or missing.number < altered[0]):
        entry = _entry(document, missing.number)
        yield _alteration(missing.table, entry, f"the row is missing: entry {missing.number} of the audit log records it")
    elif altered is not None:
        number, check, row = altered
        entry = _entry(document, number)
        yield _alteration(check.table, entry, _describe_difference(check.entry_of(row), entry))
    if unrecorded is not None:
        yield _inserted_row(*unrecorded)


def _entry(document: Mapping[str, Any], number: int) -> JsonRow:
    """Return an entry by its number, which is its position."""
    return next(islice(iter(document["audit"]), number - 1, None))


def _inserted_row(check: RowCheck, row: JsonRow) -> Alteration:
    entry = check.entry_of(row)
    message = "the audit log has no entry for this row: the row was inserted directly, or the end of the log is missing"
    item = None if entry.item == NO_ITEM else entry.item
    return Alteration(check.table, message, entry.step_id, item, entry.attempt, call_kind=entry.call_kind)


def _run_problems(run: JsonRow, summary: _AuditSummary) -> Iterator[Alteration]:
    newest = summary.of_run
    summary.note_erasures("runs", (run["id"],), run)
    if newest is None or row_digest("runs", run) == newest["row_digest"]:
        return
    if run["status"] in ENDED and newest["kind"] != "run_ended":
        message = f"the run is {run['status']}, but the audit log records no end: the end of the log is missing, or the row was altered"
    else:
        message = f"the row of the run was altered: it does not match entry {newest['number']} of the audit log ({newest['kind']})"
    yield Alteration("runs", message, entry=_number(newest))


def _erasure_problems(document: Mapping[str, Any], summary: _AuditSummary) -> Iterator[Alteration]:
    """Yield the first row in which words were erased that no tombstone names."""
    named = dict[str, set[str]]()
    for tombstone in document["tombstones"]:
        for place, columns in json.loads(str(tombstone["replaced"])).items():
            named.setdefault(place, set()).update(str(columns).split(", "))
    for place, columns in summary.erased.items():
        if not named.get(place, set()).issuperset(columns.split(", ")):
            table, _, key = place.partition(" ")
            yield Alteration(table, f"words were erased in the row {key}, but no tombstone names it")


def _witness_problems(document: Mapping[str, Any]) -> Iterator[Alteration]:
    """Yield the policy or tombstone that was the newest when the run was created, if it is not there as it was."""
    first = next(iter(document["audit"]))
    for table, (number, digest) in read_witness(first["row_id"]).items():
        if document["witnessed"].get(table) != digest:
            message = f"row {number}, the newest one when the run was created, is missing or was altered"
            yield Alteration(table, message)


def _lease_problems(lease: JsonRow | None, summary: _AuditSummary) -> Iterator[Alteration]:
    started = summary.started
    if started is not None and (lease is None or str(lease["epoch"]) != started["row_id"]):
        found = "is missing" if lease is None else f"has epoch {lease['epoch']}"
        yield Alteration("leases", f"the lease {found}, but the newest start has epoch {started['row_id']}", entry=_number(started))
    elif lease is not None and started is None:
        yield Alteration("leases", "the run has a lease, but the audit log records no start: the end of the log is missing")


_RESOLVED_OUTCOMES = {"done": "succeeded", "again": "failed", "abort": "failed"}
"""How a gate was closed -> the outcome that its receipt must have."""


def _gate_problems(document: Mapping[str, Any]) -> Iterator[Alteration]:
    closing = {row["gate_id"]: row for row in document["approvals"] if row["gate_id"] is not None}
    agreed = [row for row in document["approvals"] if row["decision"] == AGREE]
    answers = {gate_id: row["at"] for gate_id, row in closing.items()}
    by_people = (row for row in document["receipts"] if row["by"] is not None)
    outcomes = {(row["step_id"], row["kind"], row["item"], row["ended_at"]): row["outcome"] for row in by_people}
    for gate in document["gates"]:
        answered_at = answers.get(gate["id"])
        outcome = outcomes.get((gate["step_id"], gate["call_kind"], gate["item"], gate["closed_at"]))
        if gate["end"] in _RESOLVED_OUTCOMES and (gate["kind"] != "outcome" or outcome != _RESOLVED_OUTCOMES[gate["end"]]):
            yield Alteration("gates", f"it was closed as `{gate['end']}`, but no receipt was recorded at that time", gate["step_id"])
        if gate["end"] == "answered" and (answered_at is None or answered_at != gate["closed_at"]):
            yield Alteration("gates", "it was closed as answered, but no answer was recorded at that time", gate["step_id"] or None)
        elif gate["end"] != "answered" and answered_at is not None:
            yield Alteration("gates", "it was answered, but it was not closed as answered", gate["step_id"] or None)
        elif gate["end"] is None and gate["closed_at"] is not None:
            yield Alteration("gates", "it was closed, but its row does not say how", gate["step_id"] or None)
        answer = closing.get(gate["id"])
        if answer is not None and answer["decision"] == "approve" and QUORUM_MARK in str(gate["rules"]):
            same = [row for row in agreed if (row["result"], row["approval_digest"]) == (agreed_at(gate["id"]), answer["approval_digest"])]
            why = why_too_few(gate_policy_in(str(gate["rules"])), [str(row["by"]) for row in (*same, answer)])
            if why is not None:
                yield Alteration("gates", f"it was closed as approved, but {why}", gate["step_id"] or None)
        is_override = OVERRIDE_MARK in str(gate["rules"])
        if is_override and not any(entry["kind"] == "override_requested" for entry in document["audit"]):
            yield Alteration("gates", "its approval overrides a change freeze, but nobody asked for that")


def _describe_difference(now: Entry, recorded: JsonRow) -> str:
    """Return in words how a row differs from its audit entry. `now` is the entry that the row should have."""
    fields: dict[str, Literal["at", "kind", "by", "known_by", "message", "row_id"]] = {
        "its time": "at",
        "its outcome": "kind",
        "the person": "by",
        "the proof of identity": "known_by",
        "its message": "message",
        "its id": "row_id",
    }
    differences = [label for label, name in fields.items() if getattr(now, name) != recorded[name] and (name != "at" or now.at)]
    where = ", ".join(differences) if differences else "columns that only its digest covers"
    return f"the row was altered: it differs from entry {recorded['number']} of the audit log in {where}"


def _altered_entry(entry: JsonRow, message: str) -> Alteration:
    return _alteration("audit", entry, message)


def _alteration(table: str, entry: JsonRow, message: str) -> Alteration:
    step_id, item, attempt = entry["step_id"], entry["item"], entry["attempt"]
    return Alteration(
        table,
        message,
        step_id=None if step_id is None else str(step_id),
        item=item if isinstance(item, int) and item != NO_ITEM else None,
        attempt=attempt if isinstance(attempt, int) else None,
        entry=_number(entry),
        call_kind=None if entry["call_kind"] is None else str(entry["call_kind"]),
    )


def _number(entry: JsonRow) -> int | None:
    number = entry["number"]
    return number if isinstance(number, int) else None
