"""Read an exported run from a file of any size. Lists are read one row at a time."""

import codecs
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

LISTS = frozenset({"plans", "implied_dependencies", "approvals", "gates", "attempts", "receipts", "step_runs", "revisions", "audit"})
"""The parts of the document that are lists of rows."""

CHUNK_BYTES = 256 * 1024

_BLANKS = frozenset(" \t\r\n")


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
            raise ValueError("something follows after its end")
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
        self._is_all = False

    @property
    def offset(self) -> int:
        """The position of the next character in the file, in bytes."""
        return self._before + len(self._text[: self._at].encode())

    def next(self) -> str:
        """Skip blanks and return the next character without consuming it, or an empty text at the end."""
        while True:
            while self._text[self._at : self._at + 1] in _BLANKS:
                self._at += 1
            if self._at < len(self._text) or self._is_all:
                return self._text[self._at : self._at + 1]
            self._load()

    def value(self) -> Any:
        """Consume and return the next value. Raises ValueError if there is none."""
        self.next()
        while True:
            try:
                value, end = self._read(self._text, self._at)
            except ValueError:
                if self._is_all:
                    raise
            else:
                if end < len(self._text) or self._is_all:  # otherwise a number may continue
                    self._at = end
                    return value
            self._load()

    def names(self) -> Iterator[str]:
        """Yield the names of an object. The caller must read each value before the next name."""
        for _ in self._between("{", "}"):
            name = self.value()
            if not isinstance(name, str):
                raise ValueError(f"a name is {type(name).__name__}, not text")  # noqa: TRY004  # in the file, not an argument
            self._take(":")
            yield name

    def members_of_list(self) -> Iterator[Any]:
        """Yield the members of a list."""
        for _ in self._between("[", "]"):
            yield self.value()

    def _between(self, begin: str, end: str) -> Iterator[None]:
        self._take(begin)
        if self.next() != end:
            yield
            while self.next() == ",":
                self._take(",")
                yield
        self._take(end)

    def _take(self, character: str) -> None:
        if self.next() != character:
            raise ValueError(f"at byte {self.offset} there is no `{character}`")
        self._at += 1

    def _load(self) -> None:
        self._before = self.offset
        chunk = self._file.read(max(CHUNK_BYTES, len(self._text)))  # so a long value is parsed again only a few times
        self._text = self._text[self._at :] + self._decode.decode(chunk, final=not chunk)
        self._at = 0
        self._is_all = not chunk
