"""What a tool prints: lines of its step's log within `captured_prints`; elsewhere it goes where it always went."""

import sys
from collections.abc import Generator
from contextlib import contextmanager
from contextvars import ContextVar
from logging import Logger
from typing import Any, TextIO, cast


class Printed:
    """What one call prints, line by line."""

    def __init__(self, logger: Logger) -> None:
        """Hand lines to `logger`."""
        self._logger = logger
        self._line = ""

    def write(self, text: str) -> None:
        """Take `text`, and hand on the lines that it ends."""
        *lines, self._line = (self._line + text).split("\n")
        for line in lines:
            self._logger.info("%s", line)

    def end(self) -> None:
        """Hand on the line that was not ended."""
        if self._line:
            self.write("\n")


_PRINTED: ContextVar[Printed | None] = ContextVar("printed", default=None)


@contextmanager
def prints_of_call(logger: Logger | None) -> Generator[None]:
    """Take what is printed in this context, and in the tasks and threads begun in it, for `logger`; for nobody with None."""
    printed = None if logger is None else Printed(logger)
    token = _PRINTED.set(printed)
    try:
        yield
    finally:
        _PRINTED.reset(token)
        if printed is not None:
            printed.end()


@contextmanager
def captured_prints() -> Generator[None]:
    """Let what tools print to stdout become lines of their steps' logs: it would stand in the middle of a command's own output."""
    before = sys.stdout
    sys.stdout = cast(TextIO, _Stdout(before))
    try:
        yield
    finally:
        sys.stdout = before


class _Stdout:
    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        printed = _PRINTED.get()
        if printed is None:
            return self._stream.write(text)
        printed.write(text)
        return len(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)
