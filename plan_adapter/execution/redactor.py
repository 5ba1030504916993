"""`RunSecrets`: the secrets of one run, looked up once and kept in memory. `Redactor` replaces their values in everything that is kept."""

import asyncio
import contextlib
import json
import logging
import re
import threading
import traceback
from base64 import b64encode
from collections.abc import Collection, Generator, Iterable, Iterator, Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from pydantic import JsonValue

from plan_adapter.local.secrets import SecretChain
from plan_adapter.model.errors import ExpressionError
from plan_adapter.model.readable import MASK, free_key

LINE_CHARACTERS = 8
"""The shortest line of a multi-line value that is redacted by itself."""

WRAPPED_BYTES = 256
"""Up to this size of a value, its base64 may contain line ends, because `base64` wraps its output."""

FORM_CHARACTERS = 16
"""The most characters that one byte of a value takes in any known encoding."""

_ANCHOR_CHARACTERS = 16
_RUN = re.compile(r"[A-Za-z0-9]{3,}")
_SHORT = {"\n": "n", "\t": "t", "\r": "r", "\b": "b", "\f": "f", "\v": "v", "\a": "a"}
_ENTITIES = {"&": "amp", "<": "lt", ">": "gt", '"': "quot", "'": "apos"}
_ALPHABET = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
_BASE64 = {character: character for character in _ALPHABET} | {"+": r"(?:[+-]|%2[bB])", "/": r"(?:\\{0,7}/|_|%2[fF])"}
_PADDING = r"(?:=|%3[dD]|\\{1,8}u003[dD]){0,2}"
_WRAP = r"(?:\r?\n|(?:\\{1,8}r)?\\{1,8}n)?"


@dataclass(frozen=True)
class _Form:
    """One way in which a value may appear in a text. A text that contains none of `anchors` cannot match the pattern."""

    anchors: frozenset[str]
    source: str

    @cached_property
    def pattern(self) -> re.Pattern[str]:
        """The pattern, compiled on first use because most forms of a value never appear."""
        return re.compile(self.source)

    def redact_in(self, text: str, mask: str) -> str:
        """Return `text` with `mask` in place of this form."""
        return self.pattern.sub(lambda _: mask, text) if any(anchor in text for anchor in self.anchors) else text


class Redactor:
    """Replaces every known value with a mask, `***` by default: as it is, inside longer text, and encoded.

    Known encodings are base64 (both alphabets, at any offset, with or without padding), hex, and the escapes of URLs, JSON, HTML and
    `repr`, also mixed and nested (JSON in JSON). In a multi-line value, each line of at least `LINE_CHARACTERS` is redacted by itself. A
    value that was cut in half, compressed, encrypted or spelled out cannot be found.
    """

    longest: int
    """The most characters that one of the values takes in a text."""

    def __init__(self, mask: str = MASK) -> None:
        """Start without values. Everything then passes unchanged, at no cost. No value may be part of `mask`."""
        self._mask = mask
        self._pieces: dict[str, list[_Form]] = {}
        self._anchors: tuple[str, ...] = ()
        self._forms: tuple[_Form, ...] = ()
        self._has_numeric_values = False
        self.longest = 0

    @classmethod
    def of(cls, values: Iterable[str]) -> "Redactor":
        """Return a redactor of these values."""
        redactor = cls()
        for value in values:
            redactor.add(value)
        return redactor

    def __bool__(self) -> bool:
        """Return whether there is anything to redact."""
        return bool(self._pieces)

    def add(self, value: str) -> None:
        """Redact `value` from now on."""
        lines = [line for line in re.split(r"[\r\n]+", value) if len(line) >= LINE_CHARACTERS]
        for piece in {value, value.strip("\r\n"), *lines} - {""}:
            self._pieces.setdefault(piece, _forms(piece))
        longest_first = sorted(self._pieces, key=len, reverse=True)
        self._forms = tuple(form for piece in longest_first for form in self._pieces[piece])
        self._anchors = tuple({anchor for form in self._forms for anchor in form.anchors})
        self.longest = FORM_CHARACTERS * max(len(piece.encode(errors="replace")) for piece in longest_first)
        self._has_numeric_values = any(re.fullmatch(r"[0-9.eE+-]+", piece) for piece in self._pieces)

    def text(self, text: str) -> str:
        """Return `text` with the values redacted."""
        while self._may_be_in(text):  # again, if a mask and its neighbor form a value
            before = text
            for form in self._forms:
                text = form.redact_in(text, self._mask)
            if text == before:
                break
        return text

    def spans(self, text: str) -> Iterator[tuple[int, int]]:
        """Yield where the values stand in `text`: start and end."""
        for form in self._forms:
            if any(anchor in text for anchor in form.anchors):
                yield from (found.span() for found in form.pattern.finditer(text))

    def value(self, value: JsonValue) -> JsonValue:
        """Return a JSON value with the values redacted, in keys and numbers, too."""
        if not self._pieces or value is None or isinstance(value, bool):
            return value
        if isinstance(value, str):
            return self.text(value)
        try:
            # Anchors are letters and digits, which JSON does not escape.
            return self._redact_member(value) if self._may_be_in(json.dumps(value, ensure_ascii=False)) else value
        except RecursionError:
            return self._mask

    def _may_be_in(self, text: str) -> bool:
        return any(anchor in text for anchor in self._anchors)

    def _redact_member(self, value: JsonValue) -> JsonValue:
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, list):
            return [self._redact_member(member) for member in value]
        if isinstance(value, dict):
            shown: dict[str, JsonValue] = {}
            for key, member in value.items():
                shown[free_key(self.text(key), key, shown, value)] = self._redact_member(member)
            return shown
        if not self._has_numeric_values or value is None or isinstance(value, bool):
            return value
        written = json.dumps(value)
        return value if self.text(written) == written else self._mask


class RunSecrets:
    """The secrets of one run. Each is looked up once, and again after a step that creates it. Belongs to one event loop."""

    def __init__(self, chain: SecretChain | None = None) -> None:
        """Look up secrets in `chain`. Without one, there are no secrets."""
        self.redactor = Redactor()
        self._chain = chain or SecretChain(())
        self._known: dict[str, str] = {}
        self._lookup_lock = asyncio.Lock()

    async def values(self, names: Collection[str]) -> Mapping[str, str]:
        """Return the values by name. They are redacted everywhere from now on. Raise ExpressionError as `SecretChain.value` does."""
        async with self._lookup_lock:
            for name in sorted(names):
                if name not in self._known:
                    value = await self._chain.value(name)
                    self.redactor.add(value)
                    self._known[name] = value
            return {name: self._known[name] for name in names}

    async def look_up_early(self, names: Collection[str]) -> None:
        """Look up `names` before any step runs, so that no step shows a value that only a later step uses.

        A missing secret is reported by the step that needs it.
        """
        for name in sorted(names):
            with contextlib.suppress(ExpressionError):
                await self.values([name])

    async def look_up_created(self, names: Collection[str]) -> None:
        """Look up `names` again after the step that creates them, before its result is kept. Earlier values stay redacted."""
        async with self._lookup_lock:
            for name in names:
                self._known.pop(name, None)
        await self.look_up_early(names)


def redact(record: logging.LogRecord, redactor: Redactor) -> None:
    """Redact the message and the traceback of `record`."""
    try:
        message = record.getMessage()
    except Exception:  # wrong arguments, which logging would print
        message = f"{record.msg} {record.args}"
    if (shown := redactor.text(message)) != message:
        record.msg, record.args = shown, None
    if record.exc_info and record.exc_info[0] is not None:
        trace = "".join(traceback.format_exception(*record.exc_info)).rstrip("\n")
        if (shown := redactor.text(trace)) != trace:
            record.exc_info, record.exc_text = None, shown


_REDACTOR: ContextVar[Redactor | None] = ContextVar("redactor", default=None)
_lock = threading.Lock()
_users = 0


@contextlib.contextmanager
def redacted_logs(redactor: Redactor) -> Generator[None]:
    """Apply `redactor` to what any logger logs in this context, and in tasks and threads started in it."""
    token = _REDACTOR.set(redactor)
    _add_redactor_users(1)
    try:
        yield
    finally:
        _add_redactor_users(-1)
        _REDACTOR.reset(token)


@contextlib.contextmanager
def keep_logs_redacted() -> Generator[None]:
    """Keep the `redacted_logs` of this context active for this block, even if its own block ends earlier."""
    change = int(_REDACTOR.get() is not None)
    _add_redactor_users(change)
    try:
        yield
    finally:
        _add_redactor_users(-change)


class _RedactingFilter:
    """Creates log records with the factory `before` and redacts them."""

    def __init__(self, before: Any) -> None:
        self.before = before

    def __call__(self, *args: Any, **kwargs: Any) -> logging.LogRecord:
        record: logging.LogRecord = self.before(*args, **kwargs)
        if redactor := _REDACTOR.get():
            redact(record, redactor)
        return record


def _add_redactor_users(change: int) -> None:
    """Redact log records while any run of this process has secrets."""
    global _users  # noqa: PLW0603  # logging has one record factory per process
    with _lock:
        _users += change
        factory = logging.getLogRecordFactory()
        if _users and not isinstance(factory, _RedactingFilter):
            logging.setLogRecordFactory(_RedactingFilter(factory))
        elif not _users and isinstance(factory, _RedactingFilter):
            logging.setLogRecordFactory(factory.before)


def _forms(piece: str) -> list[_Form]:
    content = piece.encode()
    digits = content.hex()
    shown = digits[:_ANCHOR_CHARACTERS]
    return [
        _Form(_anchors_of([piece]), _escaped_pattern(piece)),
        *(_base64_form(content, shift) for shift in range(3)),
        _Form(frozenset({shown, shown.upper()}), f"(?i:{digits})"),
    ]


def _anchors_of(parts: list[str]) -> frozenset[str]:
    """Return the longest run of letters and digits in each part, which no encoding changes.

    A part without one gives `""`, which is in every text.
    """
    runs = (max(_RUN.findall(part), key=len, default="")[:_ANCHOR_CHARACTERS] for part in parts)
    return frozenset(runs)


def _escaped_pattern(piece: str) -> str:
    """Return a pattern for `piece` in which every character except letters and digits may be escaped in any known way."""
    return "".join(
        re.escape(part)
        if part[0].isascii() and part[0].isalnum()
        else _backslash_pattern(len(part))
        if part[0] == "\\"
        else _character_pattern(part)
        for part in re.findall(r"[A-Za-z0-9]+|\\+|[\s\S]", piece)
    )


def _backslash_pattern(count: int) -> str:
    escapes = (r"(?:%(?:25){0,2}5[cC])", r"(?:\\{1,8}u005[cC])", r"(?:\\{1,8}x5[cC])")
    return rf"(?:\\{{{count},{8 * count}}}|" + "|".join(f"{escape}{{{count}}}" for escape in escapes) + ")"


def _character_pattern(character: str) -> str:
    content = character.encode()
    utf16 = character.encode("utf-16-be")
    units = [utf16[index : index + 2].hex() for index in range(0, len(utf16), 2)]
    patterns = [
        rf"\\{{0,7}}{re.escape(character)}",
        "(?i:" + "".join(f"%(?:25){{0,2}}{byte:02x}" for byte in content) + ")",
        "(?i:" + "".join(rf"\\{{1,8}}x{byte:02x}" for byte in content) + ")",
        "(?i:" + "".join(rf"\\{{1,8}}u{unit}" for unit in units) + ")",
        rf"(?i:\\{{1,8}}(?:u{ord(character):08x}|x{ord(character):02x})|&#(?:0*{ord(character)}|x0*{ord(character):x});)",
    ]
    if character in _SHORT:
        patterns.append(rf"\\{{1,8}}{_SHORT[character]}")
    if character in _ENTITIES:
        patterns.append(f"&{_ENTITIES[character]};")
    return "(?:" + "|".join([*patterns, *([r"\+"] if character == " " else [])]) + ")"


def _base64_form(content: bytes, shift: int) -> _Form:
    """Return how `content` appears in base64 if `shift` bytes (modulo 3) were encoded before it.

    The letter at either end may also hold bits of a neighboring byte.
    """
    first, last = 8 * shift, 8 * (shift + len(content))
    letters = b64encode(b"\0" * shift + content + b"\0" * 3).decode()
    begin, end = -(-first // 6), last // 6
    core = letters[begin:end]
    parts = [_BASE64[letter] for letter in core]
    pattern = (_WRAP if len(content) <= WRAPPED_BYTES else "").join(parts)
    if known := begin * 6 - first:
        low = _ALPHABET.index(letters[begin - 1]) % (1 << known)
        pattern = _any_letter_pattern(high << known | low for high in range(1 << (6 - known))) + pattern
    if known := last - end * 6:
        high = _ALPHABET.index(letters[end]) >> (6 - known) << (6 - known)
        pattern += _any_letter_pattern(high | low for low in range(1 << (6 - known)))
    count = len(core) // 32 + 2  # more pieces than line ends, at least 64 letters apart, can break
    pieces = [core[len(core) * index // count : len(core) * (index + 1) // count] for index in range(count)]
    return _Form(_anchors_of(pieces), pattern + _PADDING)


def _any_letter_pattern(indices: Any) -> str:
    return "(?:" + "|".join(_BASE64[_ALPHABET[index]] for index in indices) + ")?"
