"""What a tool prints: lines of its step's log within `captured_prints`; elsewhere it goes where it always went, without secrets."""

import sys
import threading
from collections.abc import Callable, Generator, Iterable
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


_REDACT: ContextVar[Callable[[str], str] | None] = ContextVar("redact", default=None)
_streams_lock = threading.Lock()
_streams_users = 0


@contextmanager
def redacted_prints(redact: Callable[[str], str]) -> Generator[None]:
    """Let `clean` change what is written to stdout and stderr in this context, and in the tasks and threads begun in it."""
    token = _REDACT.set(redact)
    _use_streams(1)
    try:
        yield
    finally:
        _use_streams(-1)
        _REDACT.reset(token)


@contextmanager
def prints_stay_redacted() -> Generator[None]:
    """Keep what is in force of `redacted_prints` in this context for as long as this lasts, also where its block ends before."""
    change = int(_REDACT.get() is not None)
    _use_streams(change)
    try:
        yield
    finally:
        _use_streams(-change)


def _use_streams(change: int) -> None:
    """Have both streams cleaned while anybody needs that; one that somebody else has put something over is left to them."""
    global _streams_users  # noqa: PLW0603  # a process has one stdout
    with _streams_lock:
        _streams_users += change
        for name in ("stdout", "stderr"):
            stream = getattr(sys, name)
            if _streams_users and stream is not None and not isinstance(stream, _Redacted):
                setattr(sys, name, _Redacted(stream))
            elif not _streams_users and isinstance(stream, _Redacted):
                setattr(sys, name, stream.stream)


class _Redacted:
    def __init__(self, stream: TextIO) -> None:
        self.stream = stream

    def write(self, text: str) -> int:
        redact = _REDACT.get()
        self.stream.write(text if redact is None else redact(text))
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)


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
