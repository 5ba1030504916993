"""Putting an input in the place of a literal, wherever it means the same."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from pydantic import JsonValue

from plan_adapter.expressions.references import Code, UnclosedError, pieces, with_constants
from plan_adapter.plan import StepStatus
from plan_adapter.values import join

_SHORTEST_PART = 4  # characters of a text that is looked for inside of others, where nothing but its repetition speaks for it


@dataclass(frozen=True)
class Replacing:
    """Replaces `value` by the input `name`: where it is all that stands somewhere, and where it stands as a word of its own in a text."""

    value: str | int | float | bool
    name: str
    is_certain: bool  # it is known to vary, or looks so; else a short word may mean something else in a longer text

    @property
    def reference(self) -> str:
        """What takes its place."""
        return f"${{{{ inputs.{self.name} }}}}"

    @property
    def is_part(self) -> bool:
        """Whether it is looked for inside of longer texts, too."""
        return isinstance(self.value, str) and (self.is_certain or len(self.value) >= _SHORTEST_PART)

    @cached_property
    def _pattern(self) -> re.Pattern[str]:
        value = str(self.value)
        # Letters of scripts that write without blanks end no word.
        before = ("/" if value[0] in "/~" else "") + (r"A-Za-z0-9_.\-" if value[0].isascii() else "")
        after = r"(?![A-Za-z0-9_\-]|\.[A-Za-z0-9_])" if value[-1].isascii() else ""
        return re.compile((f"(?<![{before}])" if before else "") + re.escape(value) + after)

    def text(self, text: str) -> str:
        """Return `text` with the input in every place of the value."""
        if text == self.value:
            return self.reference
        if not self.is_part or str(self.value) not in text:
            return text
        try:
            cut = pieces(text)
        except UnclosedError:
            return text
        last = len(cut) - 1
        parts = [self._code(part) if isinstance(part, Code) else self._words(part, (at == 0, at == last)) for at, part in enumerate(cut)]
        same = all(new == (f"${{{{ {old.text} }}}}" if isinstance(old, Code) else old) for new, old in zip(parts, cut, strict=True))
        return text if same else "".join(parts)  # as it was written, with its white space

    def expression(self, text: str) -> str:
        """Return a text that is one expression with the input in place of the constant."""
        return self.text(text) if self.value != text else text

    def remains(self, value: JsonValue, at: str) -> Iterator[str]:
        """Yield the places in a document at which the value is still written out."""
        if isinstance(value, dict):
            for key, member in value.items():
                if self._is_in(key):
                    yield join(at, key)
                yield from self.remains(member, join(at, key))
        elif isinstance(value, list):
            for index, member in enumerate(value):
                yield from self.remains(member, join(at, index))
        elif isinstance(value, str) and self._is_in(value):
            yield at

    def _is_in(self, text: str) -> bool:
        if not self.is_part or str(self.value) not in text:
            return False
        try:
            return any(isinstance(part, str) and self._pattern.search(part) for part in pieces(text))
        except UnclosedError:
            return False

    def _words(self, piece: str, ends: tuple[bool, bool]) -> str:
        def put(found: re.Match[str]) -> str:
            # Beside an expression it is half of a name.
            alone = (found.start() > 0 or ends[0]) and (found.end() < len(piece) or ends[1])
            return self.reference if alone else found[0]

        return self._pattern.sub(put, piece)

    def _code(self, part: Code) -> str:
        if not self.is_certain or self.value in tuple(StepStatus):  # `status == 'completed'` speaks of something else
            return f"${{{{ {part.text} }}}}"
        return f"${{{{ {with_constants(part.text, str(self.value), f'inputs.{self.name}')} }}}}"


def value_at(document: Any, path: tuple[str | int, ...]) -> Any:
    """Return what `path` leads to in a document."""
    for key in path:
        document = document[key]
    return document


def put_at(document: Any, path: tuple[str | int, ...], value: JsonValue) -> None:
    """Put `value` where `path` leads to in a document."""
    value_at(document, path[:-1])[path[-1]] = value
