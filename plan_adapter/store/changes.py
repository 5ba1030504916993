"""That a store has changed, noticed by who waits for it: a generation number, the waiters, and the signal that writers give.

Writers call `signal` in their transaction. While somebody waits, and a little longer, the database watches for signals of any
process and tells each as a new generation. A caller cannot miss one between its read and its wait: each read notes the generation
it began with, in the caller's context, and a wait returns at once where a newer one is known by then.
"""

import asyncio
import contextlib
import threading
import time
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from itertools import count
from types import MappingProxyType
from typing import Final, TypeAlias

from sqlalchemy import Connection, func, select

CHANNEL: Final = "plan_adapter_changed"
"""What is notified on PostgreSQL."""

LINGER_SECONDS = 3.0
"""How long a store is watched after the last wait, so that a caller that reads and waits in turn starts no watch each time."""

PAUSE_SECONDS = 0.01
"""How long a wait takes that need not wait: a caller whose reads are not seen in its context is slowed down, not spinning."""

_Waiter: TypeAlias = tuple[asyncio.AbstractEventLoop, asyncio.Future[None]]

_numbers = count()
_noted: ContextVar[Mapping[int, int]] = ContextVar("plan_store_generations", default=MappingProxyType({}))

_MOST_NOTED = 16
"""Of how many stores the generations are noted in one context."""


def signal(connection: Connection) -> None:
    """Tell all who wait for the store that it has changed, once this transaction is committed."""
    if connection.dialect.name == "postgresql":
        connection.execute(select(func.pg_notify(CHANNEL, "")))
        return
    # In the header of the file, transactional like any row, and cheap to look at from another connection.
    version = connection.exec_driver_sql("PRAGMA user_version").scalar_one()
    connection.exec_driver_sql(f"PRAGMA user_version = {(version + 1) % 2**31}")


class Changes:
    """The generation that this process knows of a store, and who waits for the next one; usable from every loop and thread."""

    def __init__(self) -> None:
        """Know nothing yet: the first watch begins a new generation."""
        self._number = next(_numbers)
        self._generation = 0
        self._lock = threading.Lock()
        self._waiting = set[_Waiter]()
        self._last_wanted = 0.0
        self._is_watched = False
        self.stopped = threading.Event()

    def note(self) -> None:
        """Note in the caller's context that it reads what is there now."""
        noted = _noted.get()
        if noted.get(self._number) != self._generation:
            others = [pair for pair in noted.items() if pair[0] != self._number]
            _noted.set(dict([*others[1 - _MOST_NOTED :], (self._number, self._generation)]))

    async def wait(self, seconds: float, start: Callable[[], None]) -> None:
        """Return at a generation newer than the one that the caller noted, or after `seconds`; `start` starts the watch."""
        seen = _noted.get().get(self._number, self._generation)
        loop = asyncio.get_running_loop()
        waiter: _Waiter = loop, loop.create_future()
        with self._lock:
            is_behind = seen != self._generation
            self._waiting.add(waiter)
            must_start, self._is_watched = not self._is_watched, True
        try:
            if must_start:
                start()
            await asyncio.wait([waiter[1]], timeout=min(seconds, PAUSE_SECONDS) if is_behind else seconds)
        finally:
            with self._lock:
                self._waiting.discard(waiter)
                self._last_wanted = time.monotonic()
        self.note()

    def tell(self) -> None:
        """Begin a new generation and wake all who wait."""
        with self._lock:
            self._generation += 1
            waiting, self._waiting = self._waiting, set[_Waiter]()
        for loop, woken in waiting:
            with contextlib.suppress(RuntimeError):  # the loop has ended
                loop.call_soon_threadsafe(_wake, woken)

    def continues(self) -> bool:
        """Return whether the watch must go on; once it is told that it need not, the next wait starts another."""
        with self._lock:
            is_wanted = bool(self._waiting) or time.monotonic() - self._last_wanted < LINGER_SECONDS
            self._is_watched = is_wanted and not self.stopped.is_set()
            return self._is_watched

    def stop(self) -> None:
        """Let the watch end soon, and wake all who wait."""
        self.stopped.set()
        self.tell()


def _wake(woken: asyncio.Future[None]) -> None:
    if not woken.done():
        woken.set_result(None)
