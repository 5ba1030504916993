"""Encodings in which the tests search for leaked secret values."""

import html
import json
from base64 import b64encode, urlsafe_b64encode
from collections.abc import Iterator
from urllib.parse import quote, quote_plus


def encodings(value: str) -> dict[str, str]:
    """Return every readable encoding of `value` by name; of base64 only the part that no neighbouring byte changes."""
    content = value.encode()
    found = {
        "raw": value,
        "repr": repr(value)[1:-1],
        "repr of bytes": repr(content)[2:-1],
        "JSON": json.dumps(value, ensure_ascii=False)[1:-1],
        "ASCII JSON": json.dumps(value)[1:-1],
        "JSON in JSON": json.dumps(json.dumps(value))[3:-3],
        "URL": quote(value),
        "URL, all": quote(value, safe=""),
        "form": quote_plus(value),
        "HTML": html.escape(value),
        "hex": content.hex(),
        "HEX": content.hex().upper(),
    }
    return found | {f"base64, {name}": text for name, text in base64s(content)}


def base64s(content: bytes) -> Iterator[tuple[str, str]]:
    """Yield the base64 text that any data around `content` leaves unchanged, for both alphabets and three alignments."""
    for shift in range(3):
        begin, end = -(-8 * shift // 6), 8 * (shift + len(content)) // 6
        for encode in (b64encode, urlsafe_b64encode):
            letters = encode(b"\0" * shift + content + b"\0" * 3).decode()
            yield f"{encode.__name__} {shift}", letters[begin:end]


def found_in(text: str, value: str) -> list[str]:
    """Return the names of the encodings of `value` found in `text`; empty if nothing leaked."""
    return [name for name, form in encodings(value).items() if form in text]
