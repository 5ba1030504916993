"""Handles what tools print. Inside `captured_prints` it goes to the step's log, elsewhere to the real stream, redacted."""

import sys
import threading
from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager
from contextvars import ContextVar
from logging import Logger
from typing import Any, TextIO, cast


class PrintLogger:
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


_PRINT_LOGGER: ContextVar[PrintLogger | None] = ContextVar("print_logger", default=None)


@contextmanager
def prints_of_call(logger: Logger | None) -> Generator[None]:
    """Send what is printed in this context, and in tasks and threads started in it, to `logger`. None restores the usual output."""
    print_logger = None if logger is None else PrintLogger(logger)
    token = _PRINT_LOGGER.set(print_logger)
    try:
        yield
    finally:
        _PRINT_LOGGER.reset(token)
        if print_logger is not None:
            print_logger.end()


@contextmanager
def captured_prints() -> Generator[None]:
    """Send what tools print to stdout to their steps' logs, so that it does not mix with a command's own output."""
    before = sys.stdout
    sys.stdout = cast(TextIO, _CapturedStdout(before))
    try:
        yield
    finally:
        sys.stdout = before


def capture_all_prints() -> None:
    """Capture prints until the process ends, for a process whose threads call tools of several runs."""
    if not isinstance(sys.stdout, _CapturedStdout):
        sys.stdout = cast(TextIO, _CapturedStdout(sys.stdout))


_REDACT: ContextVar[Callable[[str], str] | None] = ContextVar("redact", default=None)
_streams_lock = threading.Lock()
_streams_users = 0


@contextmanager
def redacted_prints(redact: Callable[[str], str]) -> Generator[None]:
    """Apply `redact` to what is written to stdout and stderr in this context, and in tasks and threads started in it."""
    token = _REDACT.set(redact)
    _add_stream_users(1)
    try:
        yield
    finally:
        _add_stream_users(-1)
        _REDACT.reset(token)


@contextmanager
def keep_prints_redacted() -> Generator[None]:
    """Keep the `redacted_prints` of this context active for this block, even if its own block ends earlier."""
    change = int(_REDACT.get() is not None)
    _add_stream_users(change)
    try:
        yield
    finally:
        _add_stream_users(-change)


def _add_stream_users(change: int) -> None:
    """Count the users of redaction, and redact both streams while there are any. A stream that was wrapped since is left alone."""
    global _streams_users  # noqa: PLW0603  # a process has one stdout
    with _streams_lock:
        _streams_users += change
        for name in ("stdout", "stderr"):
            stream = getattr(sys, name)
            if _streams_users and stream is not None and not isinstance(stream, _RedactedStream):
                setattr(sys, name, _RedactedStream(stream))
            elif not _streams_users and isinstance(stream, _RedactedStream):
                setattr(sys, name, stream.stream)


class _RedactedStream:
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


class _CapturedStdout:
    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        print_logger = _PRINT_LOGGER.get()
        if print_logger is None:
            return self._stream.write(text)
        print_logger.write(text)
        return len(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)
