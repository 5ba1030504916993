"""What tools print. Inside `captured_prints` it becomes lines of the step's log; elsewhere it goes to the real stream, redacted."""

import sys
import threading
from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager
from contextvars import ContextVar
from logging import Logger
from typing import Any, TextIO, cast


class Printed:
    """Collects what one call prints and logs it line by line."""

    def __init__(self, logger: Logger) -> None:
        """Log the lines to `logger`."""
        self._logger = logger
        self._line = ""

    def write(self, text: str) -> None:
        """Add `text` and log every line that it completes."""
        *lines, self._line = (self._line + text).split("\n")
        for line in lines:
            self._logger.info("%s", line)

    def end(self) -> None:
        """Log the last line if it has no newline."""
        if self._line:
            self.write("\n")


_PRINTED: ContextVar[Printed | None] = ContextVar("printed", default=None)


@contextmanager
def prints_of_call(logger: Logger | None) -> Generator[None]:
    """Send what is printed in this context, and in tasks and threads started in it, to `logger`; None restores the usual output."""
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
    """Turn what tools print to stdout into lines of their steps' logs. Otherwise it would mix with a command's own output."""
    before = sys.stdout
    sys.stdout = cast(TextIO, _Stdout(before))
    try:
        yield
    finally:
        sys.stdout = before


def capture_all_prints() -> None:
    """Do the same for good, in a process whose threads call tools of several runs."""
    if not isinstance(sys.stdout, _Stdout):
        sys.stdout = cast(TextIO, _Stdout(sys.stdout))


_REDACT: ContextVar[Callable[[str], str] | None] = ContextVar("redact", default=None)
_streams_lock = threading.Lock()
_streams_users = 0


@contextmanager
def redacted_prints(redact: Callable[[str], str]) -> Generator[None]:
    """Apply `redact` to what is written to stdout and stderr in this context, and in tasks and threads started in it."""
    token = _REDACT.set(redact)
    _use_streams(1)
    try:
        yield
    finally:
        _use_streams(-1)
        _REDACT.reset(token)


@contextmanager
def keep_prints_redacted() -> Generator[None]:
    """Keep the `redacted_prints` of this context active for this block, even if its own block ends earlier."""
    change = int(_REDACT.get() is not None)
    _use_streams(change)
    try:
        yield
    finally:
        _use_streams(-change)


def _use_streams(change: int) -> None:
    """Redact both streams while anybody needs it. A stream that somebody else has wrapped since is left alone."""
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
