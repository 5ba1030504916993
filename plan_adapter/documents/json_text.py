"""Parses JSON text into a tree of nodes. The standard library reads the scalars; lists and mappings are walked here to locate them."""

import json
import re
from bisect import bisect_right
from typing import NoReturn

from plan_adapter.documents.nodes import Node, Scalar, TreeBuilder
from plan_adapter.model.problems import Problem

_SPACE = re.compile(r"[ \t\n\r]*")
_NEWLINE = re.compile("\n")


def read_json(text: str) -> tuple[Node | None, list[Problem]]:
    """Return the tree of `text` and its problems. Raises UnreadableError if it is not JSON."""
    reader = _Reader(text)
    reader.read()
    return reader.builder.root, reader.builder.problems


class _Reader:
    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0
        self.builder = TreeBuilder()
        self._scalar = json.JSONDecoder().raw_decode
        self._line_starts = [0, *(match.end() for match in _NEWLINE.finditer(text))]
        self._closers: list[str] = []

    def read(self) -> None:
        """Walk the text once. Only first members recurse, and the builder limits their depth."""
        self._read_value()
        while self._closers:
            closer = self._closers[-1]
            char = self._peek()
            if char == closer:
                self._close_container()
            elif char != ",":
                self._raise_syntax_error(f"expected `,` or `{closer}`")
            else:
                self.at += 1
                self._read_entry()
        if self._peek():
            self._raise_syntax_error("there is text after the end of the document")

    def _peek(self) -> str:
        match = _SPACE.match(self.text, self.at)
        self.at = match.end() if match else self.at
        return self.text[self.at : self.at + 1]

    def _read_entry(self) -> None:
        """Read a member of the open list, or a key and its value."""
        if self._closers[-1] == "}":
            if self._peek() != '"':
                self._raise_syntax_error("expected a key in double quotes")
            line, column = self._position()
            self.builder.key(str(self._decode()), line, column)
            if self._peek() != ":":
                self._raise_syntax_error("expected `:` after the key")
            self.at += 1
        self._read_value()

    def _read_value(self) -> None:
        char = self._peek()
        line, column = self._position()
        if char not in ("{", "["):
            self.builder.scalar(self._decode(), line, column)
            return
        self.builder.open({} if char == "{" else [], line, column)
        self._closers.append("}" if char == "{" else "]")
        self.at += 1
        if self._peek() == self._closers[-1]:
            self._close_container()
        else:
            self._read_entry()

    def _close_container(self) -> None:
        self.at += 1
        self._closers.pop()
        self.builder.close()

    def _decode(self) -> Scalar:
        try:
            value, self.at = self._scalar(self.text, self.at)
        except json.JSONDecodeError as error:
            self.at = error.pos
            self._raise_syntax_error(_reason(error, self.text))
        except ValueError:  # an integer with thousands of digits
            raise self.builder.unreadable(
                ("too-large", "a number has thousands of digits", "write it as text"), *self._position()
            ) from None
        return value

    def _position(self) -> tuple[int, int]:
        line = bisect_right(self._line_starts, self.at)
        return line, self.at - self._line_starts[line - 1] + 1

    def _raise_syntax_error(self, reason: str) -> NoReturn:
        raise self.builder.unreadable(("syntax", f"not JSON: {reason}", ""), *self._position())


def _reason(error: json.JSONDecodeError, text: str) -> str:
    if error.msg != "Expecting value":
        return error.msg[:1].lower() + error.msg[1:].removesuffix(" at")
    return "expected a value" if error.pos < len(text) else "the text ends before the document does"
