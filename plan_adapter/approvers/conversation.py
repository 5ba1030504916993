"""`Conversation`: one question at a time on a terminal, beside whatever else writes there; and the lines that are typed."""

import asyncio
import os
import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress

from plan_adapter.readable import visible

CLEARED_LINE = "\r\x1b[K"
CHUNK_BYTES = 4096


class Lines:
    """The lines of a file descriptor; waiting for one can be cancelled, and takes nothing from who waits next."""

    def __init__(self, descriptor: int | None = None) -> None:
        """Read from `descriptor`: a terminal, a pipe or a file; None is stdin, as it is when it is first read."""
        self._given = descriptor
        self._rest = b""
        self._was_terminal = False

    @property
    def _descriptor(self) -> int:
        return sys.stdin.fileno() if self._given is None else self._given

    def forget(self) -> None:
        """Drop what was typed before a question was shown: it answers nothing. What was written into a pipe stays."""
        self._was_terminal = os.isatty(self._descriptor)
        if not self._was_terminal:
            return
        import termios

        self._rest = b""
        with suppress(termios.error):  # the terminal is gone
            termios.tcflush(self._descriptor, termios.TCIFLUSH)

    @property
    def has_hung_up(self) -> bool:
        """Whether these were the lines of a terminal that is gone."""
        return self._was_terminal and not os.isatty(self._descriptor)

    async def next(self) -> str | None:
        """Return the next line without its end, None where the input has ended (Ctrl-D at a terminal)."""
        while b"\n" not in self._rest:
            chunk = await self._chunk()
            if not chunk:
                last, self._rest = self._rest, b""
                return last.decode(errors="replace") if last else None
            self._rest += chunk
        line, _, self._rest = self._rest.partition(b"\n")
        return line.decode(errors="replace")

    async def _chunk(self) -> bytes:
        loop = asyncio.get_running_loop()
        ready: asyncio.Future[None] = loop.create_future()
        try:
            loop.add_reader(self._descriptor, _wake, ready)
        except (OSError, NotImplementedError):  # a plain file is always ready
            return self._read()
        try:
            await ready
        finally:
            loop.remove_reader(self._descriptor)
        return self._read()

    def _read(self) -> bytes:
        try:
            return os.read(self._descriptor, CHUNK_BYTES)
        except OSError:  # a terminal that was closed
            return b""


class Conversation:
    """What is asked at this process's terminal: on stderr, answered on stdin.

    A display that moves gives way while a question is open: it sets `pause` and `go_on`, and writes its lines through `above`. Who asks,
    and finds the terminal gone, calls `hung_up`.
    """

    def __init__(self, descriptor: int | None = None) -> None:
        """Answers come from `descriptor`; None is stdin."""
        self.pause: Callable[[], None] = _nothing
        self.go_on: Callable[[], None] = _nothing
        self.hung_up: Callable[[], None] = _nothing
        self._lines = Lines(descriptor)
        self._question = ""
        self._turn = asyncio.Lock()

    @property
    def has_hung_up(self) -> bool:
        """Whether the terminal is gone: the input has ended then, and nobody has ended it."""
        return self._lines.has_hung_up

    @property
    def turn(self) -> asyncio.Lock:
        """Held by who asks now."""
        return self._turn

    @contextmanager
    def foreground(self) -> Generator[None]:
        """Have the terminal: what moves there stands still meanwhile."""
        self.pause()
        try:
            yield
        finally:
            self.go_on()

    def say(self, text: str) -> None:
        """Write `text` and end the line."""
        self.above(lambda: _write(visible(text) + "\n"))

    async def ask(self, question: str, *, forget: bool = False) -> str | None:
        """Return the line that answers `question`, None where the input has ended; a cancelled question ends its line.

        With `forget` a line that was typed at the terminal before the question was there is no answer.
        """
        if forget:
            self._lines.forget()
        self._question = visible(question)
        _write(self._question)
        try:
            answer = await self._lines.next()
        except asyncio.CancelledError:
            _write("\n")
            raise
        finally:
            self._question = ""
        if answer is None:
            _write("\n")
        return None if answer is None else answer.strip()

    def above(self, write: Callable[[], object]) -> None:
        """Let `write` write whole lines; an open question is shown again below them."""
        if not self._question:
            write()
            return
        _write(CLEARED_LINE if os.environ.get("TERM", "dumb") != "dumb" else "\n")
        write()
        _write(self._question)


def _write(text: str) -> None:
    with suppress(OSError):  # nobody looks any more
        sys.stderr.write(text)
        sys.stderr.flush()


def _wake(ready: asyncio.Future[None]) -> None:
    if not ready.done():
        ready.set_result(None)


def _nothing() -> None:
    """Nothing moves."""
