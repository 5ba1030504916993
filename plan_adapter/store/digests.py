"""Rows as JSON values, and the digests of rows that the audit log keeps.

A digest is the SHA-256 of a row's RFC 8785 form: its columns by name, with times in UTC with microseconds.
"""

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from functools import cache
from hashlib import sha256
from typing import Any, TypeAlias, cast

from pydantic import JsonValue
from sqlalchemy import RowMapping, Table

from plan_adapter.store.columns import Instant, SafeText, escape_unstorable

JsonRow: TypeAlias = dict[str, JsonValue]
"""A row as JSON values, as in an exported file."""

_LEFT_OUT: dict[str, frozenset[str]] = {
    "runs": frozenset({"updated_at"}),
    "gates": frozenset({"openings", "owner", "flow_run_id", "keyset"}),  # these may change while it is open
}
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
    left_out = (_LEFT_OUT.get(table) or frozenset[str]()) | (_END_OF_GATE if open_gate else frozenset[str]())
    return digest_of({name: value for name, value in row.items() if name not in left_out} if left_out else row)


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
