"""Whether the record of a run is what was written: its audit as a chain, and every row that the audit tells of."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from hashlib import sha256
from typing import Any, Literal

from pydantic import JsonValue

from plan_adapter.readable import one_line
from plan_adapter.store import entries
from plan_adapter.store.chain import beginning, digest_of_adopted, entry_digest
from plan_adapter.store.digests import Plain, row_digest
from plan_adapter.store.entries import RUN_KINDS, Entry
from plan_adapter.store.rows import NO_ITEM

ENDED = ("completed", "failed", "cancelled", "partial")

Key = tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class Alteration:
    """A row that is not as it was written, and in words what is wrong with it."""

    table: str
    message: str
    step_id: str | None = None
    item: int | None = None
    attempt: int | None = None
    entry: int | None = None  # the number of the audit's entry that it is, or that tells of it

    def __str__(self) -> str:
        """Return the alteration in a line."""
        where = [self.table]
        where += [f"entry {self.entry}"] if self.table == "audit" and self.entry is not None else []
        where += [f"step `{one_line(self.step_id)}`"] if self.step_id is not None else []
        where += [f"item {self.item}"] if self.item is not None else []
        where += [f"attempt {self.attempt}"] if self.attempt is not None else []
        return f"{', '.join(where)}: {one_line(self.message)}"


@dataclass(frozen=True, slots=True)
class Verification:
    """What was found: whether all is as it was written, of how many entries, the newest digest, and the first row that is not."""

    ok: bool
    entries: int
    digest: str | None
    problem: Alteration | None = None


def verify(document: dict[str, Any]) -> Verification:
    """Return whether an exported run is as it was written; `document` is one of `export.document_of`, from whatever file.

    A run of a version that kept no audit has no entries, and nothing that could be wrong. Who can write the whole database can write a
    whole new audit, too: what that cannot fake is a digest of the newest entry that was kept elsewhere.
    """
    try:
        problem = next(_problems(document), None)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        problem = Alteration("document", f"it is no exported run, or parts of it are missing ({type(error).__name__}: {error})")
    return Verification(problem is None, _count(document.get("audit")), document.get("head"), problem)


def _count(audit: Any) -> int:
    try:
        return len(audit)
    except TypeError:
        return 0


def _problems(document: dict[str, Any]) -> Iterator[Alteration]:
    run, audit = document["run"], document["audit"]
    if run is None:
        yield Alteration("runs", "the row of the run is missing")
        return
    yield from _of_chain(run, audit, document["head"])
    if not audit:
        if run["audited"] is not None:
            yield Alteration("audit", "all entries are missing: the run was audited from its beginning")
        return
    yield from _of_plans(document)
    yield from _of_rows(document)
    yield from _of_run(run, audit)
    yield from _of_lease(document["lease"], audit)
    yield from _of_gates(document)


def _of_chain(run: Plain, audit: list[Plain], head: JsonValue) -> Iterator[Alteration]:
    before = beginning(run)
    for expected, entry in enumerate(audit, 1):
        number = entry["number"]
        if number != expected:
            yield Alteration("audit", f"the entry is missing: after {expected - 1} comes {number}", entry=expected)
        if entry["run_id"] != run["id"]:
            yield _altered_entry(entry, f"it is of another run, {entry['run_id']}")
        if entry_digest(entry, before) != entry["digest"]:
            first = ", or what the run was created with" if expected == 1 else ""
            yield _altered_entry(entry, f"it was altered{first}: its digest is not that of its content and of the entry before it")
        before = str(entry["digest"])
    if head != (audit[-1]["digest"] if audit else None):
        yield Alteration("audit", "the newest entries are missing: the newest digest is not that of the last entry")
    if audit and run["audited"] and audit[0]["kind"] != "run_created":
        yield _altered_entry(audit[0], "it does not tell of the creation of the run, which was audited from its beginning")


def _of_plans(document: dict[str, Any]) -> Iterator[Alteration]:
    kept = {row["digest"]: row for row in document["plans"]}
    wanted = [document["run"]["digest"], *(row["digest"] for row in document["revisions"])]
    for digest in wanted:
        row = kept.get(digest)
        if row is None:
            yield Alteration("plans", f"the plan {digest} is missing")
        elif sha256(str(row["document"]).encode(errors="surrogatepass")).hexdigest() != digest:
            yield Alteration("plans", f"the document of the plan {digest} was altered: that is not its digest")


@dataclass(frozen=True, slots=True)
class _Kept:
    """How the rows of a table are told of."""

    table: str
    key: Callable[[Plain], Key]  # of a row
    tell: Callable[[Plain], Entry]  # the newest entry about a row as it is now


def _of_attempt(row: Plain) -> Key:
    return (row["step_id"], row["item"], row["number"])


def _tell_of_approval(row: Plain) -> Entry:
    return entries.of_approval(row) if row["used_at"] is None else entries.of_use(row)


def _tell_of_gate(row: Plain) -> Entry:
    return entries.of_gate(row) if row["end"] in (None, "answered") else entries.of_gate_end(row)


_KEPT = {
    kept.table: kept
    for kept in (
        _Kept("attempts", _of_attempt, entries.of_attempt),
        _Kept("receipts", _of_attempt, entries.of_receipt),
        _Kept("step_runs", lambda row: (row["step_id"],), entries.of_step),
        _Kept("approvals", lambda row: (row["id"],), _tell_of_approval),
        _Kept("gates", lambda row: (row["id"],), _tell_of_gate),
        _Kept("revisions", lambda row: (row["number"],), entries.of_revision),
    )
}

_Place = tuple[str, Key]


def _place_of(entry: Plain) -> _Place | None:
    """Return the table, and the key in it, of the row that an entry tells of; None for the run itself."""
    kind, attempt = str(entry["kind"]), (entry["step_id"], entry["item"], entry["attempt"])
    if kind == "attempt_started":
        return "attempts", attempt
    if kind in ("attempt_succeeded", "attempt_failed"):
        return "receipts", attempt
    if kind.startswith("step_"):
        return "step_runs", (entry["step_id"],)
    if kind in ("approved", "rejected", "changes_requested", "approval_used", "gate_answered"):
        return "approvals", (entry["row_id"],)
    if kind.startswith("gate_"):
        return "gates", (entry["row_id"],)
    return ("revisions", (int(str(entry["row_id"])),)) if kind == "revised" else None


def _of_rows(document: dict[str, Any]) -> Iterator[Alteration]:
    audit: list[Plain] = document["audit"]
    rows: dict[_Place, Plain] = {(name, kept.key(row)): row for name, kept in _KEPT.items() for row in document[name]}
    newest = dict[_Place, Plain]()
    restarts = 0
    for entry in audit:
        if entry["kind"] in ("run_started", "new_version"):
            restarts = int(str(entry["number"]))
        place = _place_of(entry)
        if place is not None:
            newest.pop(place, None)
            newest[place] = entry
    for place, entry in newest.items():
        row = rows.get(place)
        # What had not completed is forgotten when a run starts again, or gets a new version.
        is_forgotten = place[0] == "step_runs" and entry["kind"] != "step_completed" and int(str(entry["number"])) < restarts
        if row is None and not is_forgotten:
            yield _alteration(place[0], entry, f"the row is missing that entry {entry['number']} of the audit tells of")
        elif row is not None and (why := _difference(_KEPT[place[0]].tell(row), entry)):
            yield _alteration(place[0], entry, why)
    untold = [(place, row) for place, row in rows.items() if place not in newest]
    yield from _of_untold(untold, audit)


def _of_untold(untold: list[tuple[_Place, Plain]], audit: list[Plain]) -> Iterator[Alteration]:
    """Yield the rows that no entry tells of; those of a run of an earlier version are told of all together."""
    adopted = audit[0] if audit[0]["kind"] == "run_adopted" else None
    if adopted is not None:
        earlier = [(place[0], row) for place, row in untold if place[0] in ("attempts", "receipts")]
        if digest_of_adopted(earlier) != adopted["row_digest"]:
            yield Alteration("attempts", "the attempts and receipts of before the run was audited were altered, or others were inserted")
        return
    for (table, _key), row in untold:
        told = _KEPT[table].tell(row)
        words = "no entry of the audit tells of this row: it was inserted behind its back, or the end of the audit is missing"
        yield Alteration(table, words, told.step_id, None if told.item == NO_ITEM else told.item, told.attempt)


def _of_run(run: Plain, audit: list[Plain]) -> Iterator[Alteration]:
    newest = next((entry for entry in reversed(audit) if entry["kind"] in RUN_KINDS), None)
    if newest is None or row_digest("runs", run) == newest["row_digest"]:
        return
    if run["status"] in ENDED and newest["kind"] != "run_ended":
        words = f"the run has ended, it is {run['status']}, and no entry tells so: the end of the audit is missing, or the row was altered"
    else:
        words = f"the row of the run is not as entry {newest['number']} of the audit ({newest['kind']}) tells: it was altered"
    yield Alteration("runs", words, entry=_number(newest))


def _of_lease(lease: Plain | None, audit: list[Plain]) -> Iterator[Alteration]:
    started = [entry for entry in audit if entry["kind"] == "run_started"]
    if started and (lease is None or str(lease["epoch"]) != started[-1]["row_id"]):
        found = "is missing" if lease is None else f"has the epoch {lease['epoch']}"
        yield Alteration(
            "leases", f"the lease {found}, and the newest start of the run has {started[-1]['row_id']}", entry=_number(started[-1])
        )
    elif lease is not None and not started and audit[0]["kind"] == "run_created":
        yield Alteration("leases", "the run has a lease, and no entry of the audit tells of a start: the end of the audit is missing")


def _of_gates(document: dict[str, Any]) -> Iterator[Alteration]:
    answers = {row["gate_id"]: row for row in document["approvals"] if row["gate_id"] is not None}
    for gate in document["gates"]:
        given = answers.get(gate["id"])
        if gate["end"] == "answered" and (given is None or given["at"] != gate["closed_at"]):
            yield Alteration("gates", "it is closed as answered, and there is no answer of that moment", gate["step_id"] or None)
        elif gate["end"] != "answered" and given is not None:
            yield Alteration("gates", "it was answered, and is not closed as answered", gate["step_id"] or None)
        elif gate["end"] is None and gate["closed_at"] is not None:
            yield Alteration("gates", "it is closed without an end", gate["step_id"] or None)


def _difference(now: Entry, told: Plain) -> str | None:
    """Return in words how a row differs from what the audit tells of it; None where it does not."""
    if now.row_digest == told["row_digest"]:
        return None
    fields: dict[str, Literal["at", "kind", "by", "known_by", "message", "row_id"]] = {
        "its time": "at",
        "what came of it": "kind",
        "by whom": "by",
        "how they were known": "known_by",
        "its words": "message",
        "its id": "row_id",
    }
    differs = [words for words, name in fields.items() if getattr(now, name) != told[name]]
    which = ", ".join(differs) if differs else "what only its digest covers"
    return f"the row was altered: it is not as entry {told['number']} of the audit tells ({which} differs)"


def _altered_entry(entry: Plain, words: str) -> Alteration:
    return _alteration("audit", entry, words)


def _alteration(table: str, entry: Plain, words: str) -> Alteration:
    step_id, item, attempt = entry["step_id"], entry["item"], entry["attempt"]
    return Alteration(
        table,
        words,
        step_id=None if step_id is None else str(step_id),
        item=item if isinstance(item, int) and item != NO_ITEM else None,
        attempt=attempt if isinstance(attempt, int) else None,
        entry=_number(entry),
    )


def _number(entry: Plain) -> int | None:
    number = entry["number"]
    return number if isinstance(number, int) else None
