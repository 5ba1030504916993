"""Notify waiters that a store has changed: a generation number, the waiters, and the signal that writers send.

Writers call `signal` in their transaction. While somebody waits, and for a short time after, the store is watched for signals from any
process; each signal starts a new generation. A caller cannot miss a signal between its read and its wait: each read notes the current
generation in the caller's context, and a wait returns within `PAUSE_SECONDS` if a newer one is known.
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
"""The PostgreSQL notification channel."""

LINGER_SECONDS = 3.0
"""How long the watch continues after the last wait, so that a caller that reads and waits in a loop does not restart it each time."""

PAUSE_SECONDS = 0.01
"""The shortest wait. It prevents a busy loop in a caller that reads in another task than it waits in."""

_Waiter: TypeAlias = tuple[asyncio.AbstractEventLoop, asyncio.Future[None]]

_numbers = count()
_seen_generations: ContextVar[Mapping[int, int]] = ContextVar("plan_store_generations", default=MappingProxyType({}))

_MAX_SEEN_STORES = 16
"""The largest number of stores whose generations are noted in one context."""


def signal(connection: Connection) -> None:
    """Notify everybody who waits for the store, once this transaction is committed."""
    if connection.dialect.name == "postgresql":
        connection.execute(select(func.pg_notify(CHANNEL, "")))
        return
    # In the file's header: transactional like any row, and cheap to read from another connection.
    version = connection.exec_driver_sql("PRAGMA user_version").scalar_one()
    connection.exec_driver_sql(f"PRAGMA user_version = {(version + 1) % 2**31}")


class Changes:
    """The generation of a store that this process knows, and the callers that wait for the next one. Safe for all loops and threads."""

    def __init__(self) -> None:
        """Start without knowledge of the store. The first watch begins a new generation."""
        self._number = next(_numbers)
        self._generation = 0
        self._lock = threading.Lock()
        self._waiting = set[_Waiter]()
        self._last_wanted = 0.0
        self._is_watched = False
        self.stopped = threading.Event()

    def note_read(self) -> None:
        """Note in the caller's context that it reads the current generation."""
        noted = _seen_generations.get()
        if noted.get(self._number) != self._generation:
            others = [pair for pair in noted.items() if pair[0] != self._number]
            _seen_generations.set(dict([*others[1 - _MAX_SEEN_STORES :], (self._number, self._generation)]))

    async def wait(self, seconds: float, start: Callable[[], None]) -> None:
        """Wait until a generation is newer than the one the caller noted, at most `seconds`. `start` starts the watch."""
        seen = _seen_generations.get().get(self._number, self._generation)
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
        self.note_read()

    def notify(self) -> None:
        """Begin a new generation and wake all waiters."""
        with self._lock:
            self._generation += 1
            waiting, self._waiting = self._waiting, set[_Waiter]()
        for loop, woken in waiting:
            with contextlib.suppress(RuntimeError):  # the loop has closed
                loop.call_soon_threadsafe(_wake, woken)

    def must_continue(self) -> bool:
        """Return whether the watch must continue. After False, the next wait starts a new watch."""
        with self._lock:
            is_wanted = bool(self._waiting) or time.monotonic() - self._last_wanted < LINGER_SECONDS
            self._is_watched = is_wanted and not self.stopped.is_set()
            return self._is_watched

    def stop(self) -> None:
        """Make the watch end soon, and wake all waiters."""
        self.stopped.set()
        self.notify()


def _wake(woken: asyncio.Future[None]) -> None:
    if not woken.done():
        woken.set_result(None)
