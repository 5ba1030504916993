"""Rows as JSON values, and the digests of rows that the audit log keeps.

A digest is the SHA-256 of a row's RFC 8785 form: its columns by name, with times in UTC with microseconds. In it, the digest of its words
takes the place of each text that `plan erase` may change: an erased word leaves its digest in the row, so that everything else can still be
checked. The words are salted, and erasing one deletes its salt: nobody can find it by trying.
"""

import json
import re
from collections.abc import Collection, Mapping
from datetime import UTC, datetime
from functools import cache, cached_property
from hashlib import sha256, shake_128
from secrets import token_urlsafe
from typing import Any, TypeAlias, cast

from pydantic import JsonValue
from sqlalchemy import RowMapping, Table

from plan_adapter.store.database.columns import Instant, SafeText, escape_unstorable

JsonRow: TypeAlias = dict[str, JsonValue]
"""A row as JSON values, as in an exported file."""

ERASED = "[erased]"
"""The text that replaces an erased word. The database's triggers check for it."""

ERASED_VALUE = '"[erased value]"'
"""The JSON that replaces an erased number, boolean or null."""

ERASABLE: Mapping[str, frozenset[str]] = {
    "runs": frozenset({"inputs", "outputs", "metadata", "message", "rejection_note", "cancel_reason", "rollback"}),
    "step_runs": frozenset({"outputs", "items", "error", "reason"}),
    "attempts": frozenset({"parameters", "label"}),
    "receipts": frozenset({"result", "error", "note"}),
    "approvals": frozenset({"result", "note"}),
    "gates": frozenset({"description", "text", "label", "fields"}),
    "revisions": frozenset({"note"}),
    "audit": frozenset({"message"}),
}
"""The texts of a run that `plan erase` may change, by table. Such a table has a column `salt`."""

JSON_COLUMNS = frozenset({"inputs", "outputs", "metadata", "rollback", "items", "parameters", "result", "fields"})
"""Those of them that hold JSON."""

BOOKKEEPING: Mapping[str, frozenset[str]] = {
    "runs": frozenset({"updated_at"}),
    "gates": frozenset({"openings", "owner", "flow_run_id", "keyset"}),  # these may change while it is open
    "leases": frozenset({"tenant_id", "agent_id", "org_id", "task_id", "owner", "until"}),
    "plans": frozenset({"agent_id", "org_id", "task_id", "created_at"}),
    "implied_dependencies": frozenset({"agent_id", "org_id", "task_id"}),
}
"""The columns that no digest covers, by table. They change while others must not, and nothing is decided by them afterwards."""

BOOKKEEPING_TABLES = frozenset(
    {
        *("concurrency_keys", "triggered_runs", "standing_approvals", "used_codes", "totp_history", "drafts", "model_calls"),
        *("tombstone_signatures", "gate_messages"),
    }
)
"""The tables that no digest covers. What a run took from them is in its own record; signatures are checked by themselves."""

_END_OF_GATE = frozenset({"closed_at", "end"})

# A row holds only texts, integers, booleans and None under ASCII names. For these, json's own encoder writes the bytes of RFC 8785 in a
# seventh of the time. Each step needs several digests. A test checks that both encoders agree.
_encode = json.JSONEncoder(sort_keys=True, separators=(",", ":"), ensure_ascii=False, check_circular=False).encode


def json_row(table: Table, row: Mapping[str, Any] | RowMapping) -> JsonRow:
    """Return a row, read or about to be written, as JSON values. Missing columns are None."""
    blank, instants, texts = _kinds(table)
    found: dict[str, Any] = {**blank, **cast("Mapping[str, Any]", row)}
    for name in instants:
        if found[name] is not None:
            found[name] = instant_text(found[name])
    for name in texts:
        if found[name] is not None:
            found[name] = escape_unstorable(found[name])
    return found


def digest_of(value: JsonValue) -> str:
    """Return the SHA-256, in hex, of the canonical form of `value`. Only for the kinds of values that rows hold."""
    return sha256(_encode(value).encode(errors="surrogatepass")).hexdigest()


def row_digest(table: str, row: JsonRow, *, open_gate: bool = False) -> str:
    """Return the digest of a row of `table`. With `open_gate`, return the digest that a gate had before it was closed."""
    content = with_words_digested(table, row)
    for name in BOOKKEEPING.get(table, ()):
        content.pop(name, None)
    for name in _END_OF_GATE if open_gate else ():
        content.pop(name, None)
    return digest_of(content)


def with_words_digested(table: str, row: JsonRow) -> JsonRow:
    """Return a row, or some of its columns, with the digest of its words in place of each text that may be erased."""
    content, has_texts = dict(row), False
    salt = content.pop("salt", None)
    for name in ERASABLE.get(table, ()):
        text = content.get(name)
        if isinstance(text, str):
            has_texts = True
            content[name] = Words(name, text, salt).digest
    if not has_texts and salt is not None:  # a row without texts keeps its salt
        content["salt"] = salt
    return content


def new_salt() -> str:
    """Return the salt of a new row."""
    return token_urlsafe(12)


class Words:
    """The words of a text that may be erased, and the digest of that text. It stays the same when words are erased.

    The text is a column of a row whose column `salt` is `salt`: a text from `new_salt`, or, once words were erased, JSON with the salts
    of the remaining words and the digests of the erased ones.
    """

    def __init__(self, column: str, text: str, salt: JsonValue) -> None:
        """Split `text`, which is the value of `column`."""
        self._text = text
        self._parts = _WORD_OF_BYTES.split(text.encode(errors="surrogatepass"))  # every second one is a word
        self._kept = _erasures_in(salt).get(column, {})
        seed = self._kept.get("seed")
        self._seed = seed if isinstance(seed, str) else sha256(f"{salt}/{column}".encode()).hexdigest()
        keys = self._kept.get("keys")
        size = KEY_BYTES * (len(self._parts) // 2)
        self._keys = bytes.fromhex(keys) if isinstance(keys, str) else shake_128(self._seed.encode()).digest(size)
        self._digests = {int(index): str(digest) for index, digest in cast("dict[str, str]", self._kept.get("erased", {})).items()}

    @property
    def erased(self) -> Collection[int]:
        """The words that were erased, by position."""
        return self._digests.keys()

    @property
    def digest(self) -> str:
        """The digest of the text as it was before any word was erased."""
        # Updated word by word: a list of their digests would need ten times the memory of a long text.
        found, keys, at = sha256(b"?".join(self._parts[::2]) + b"\0"), self._keys, 0
        for index, word in enumerate(self._parts[1::2]):
            erased = self._digests.get(index)
            if erased is not None and _MARK.fullmatch(word):  # else the word is not erased, and the digests differ
                found.update(bytes.fromhex(erased))
            else:
                found.update(sha256(keys[at : at + KEY_BYTES] + word).digest())
            at += KEY_BYTES
        return found.hexdigest()

    @cached_property
    def spans(self) -> list[tuple[int, int]]:
        """The start and the end of each word, in characters."""
        return [found.span() for found in _WORD.finditer(self._text)]

    def erase(self, words: Collection[int], values: Collection[int] = ()) -> tuple[str, dict[str, JsonValue]]:
        """Return the text without these words, and what its row's salt then says about it. `values`: those that are whole JSON values."""
        keys, digests, each = bytearray(self._keys), dict(self._digests), KEY_BYTES
        parts = list[bytes](self._parts)
        for index in set(words) - self._digests.keys():
            key, at = slice(each * index, each * (index + 1)), 2 * index + 1
            digests[index] = sha256(bytes(keys[key]) + parts[at]).hexdigest()
            keys[key] = bytes(each)
            parts[at] = (ERASED_VALUE if index in values else ERASED).encode()
        text = b"".join(parts).decode(errors="surrogatepass")
        return text, {"keys": keys.hex(), "erased": {str(index): digest for index, digest in sorted(digests.items())}}

    def unerased(self) -> dict[str, JsonValue]:
        """Return what the row's salt says about this text if only other texts of the row are erased."""
        return self._kept or {"seed": self._seed}


KEY_BYTES = 16

# An escape of JSON stays with its word, so that JSON stays JSON without the word.
_PATTERN = r'"\[erased value\]"|\[erased\]|(?:[^ \t\n\r\f\v"\\{}\[\]:,]+|\\.)+'
_WORD, _WORD_OF_BYTES = re.compile(_PATTERN), re.compile(f"({_PATTERN})".encode())
_MARK = re.compile(rb'"\[erased value\]"|\[erased\]')


def _erasures_in(salt: JsonValue) -> dict[str, dict[str, JsonValue]]:
    return json.loads(salt) if isinstance(salt, str) and salt.startswith("{") else {}


def erased_columns(row: JsonRow) -> list[str]:
    """Return the columns of a row in which words were erased, sorted."""
    return sorted(name for name, part in _erasures_in(row.get("salt")).items() if "erased" in part)


def has_erasures(row: JsonRow) -> bool:
    """Return whether words of a row were erased."""
    return bool(erased_columns(row))


def instant_text(at: datetime) -> str:
    """Return a time as text: `2026-11-21T09:30:00.123456Z`."""
    at = at if at.tzinfo is UTC else at.astimezone(UTC)
    return at.isoformat(timespec="microseconds")[:-6] + "Z"


def instant_of(text: str) -> datetime:
    """Return the time that `instant_text` wrote."""
    return datetime.fromisoformat(text)


@cache
def _kinds(table: Table) -> tuple[dict[str, None], tuple[str, ...], tuple[str, ...]]:
    """Return a table's columns in order of name: all of them as a dict of None, the time columns, and the text columns."""
    columns = sorted(table.c, key=lambda column: column.name)
    instants, texts = (tuple(column.name for column in columns if isinstance(column.type, kind)) for kind in (Instant, SafeText))
    return dict.fromkeys(column.name for column in columns), instants, texts
