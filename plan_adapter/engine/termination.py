"""`ended_in_order`: handles SIGTERM while a flow run's function works, so that the function can finish cleanly.

Prefect's own handler raises in the middle of whatever the event loop is doing: nothing is awaited any more, and no step's end is recorded.
"""

import asyncio
import signal
import sys
import threading
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager

from prefect.exceptions import TerminationSignal

from plan_adapter.engine.internals import concluded_here

KEEP_SECONDS = 0.25
"""How often to check whether a flow run that began inside this one, such as a step gate, has installed Prefect's handler again."""
AGAIN_SECONDS = 2.0
"""How long further SIGTERMs count as the first one. Whoever ends a process group and forwards the signal sends it twice at once."""


@asynccontextmanager
async def ended_in_order(is_cancelled: Callable[[], Awaitable[bool]]) -> AsyncGenerator[Callable[[], bool]]:
    """Handle SIGTERM while the body works. Yield a function that returns whether a SIGTERM interrupted the body.

    The first signal awaits `is_cancelled`. If that is true, the body has been asked to stop and ends by itself. Otherwise the process must
    end for another reason: the body is cancelled, and TerminationSignal is raised after its cleanup, which Prefect shows as Crashed.
    Prefect handles any later signal.

    A worker that wants to cancel the flow run sends no signal and leaves the cancellation to the body. Outside the main thread, where
    Prefect handles no signals either, and on Windows, nothing is handled.
    """
    body = asyncio.current_task()
    assert body is not None  # a coroutine always runs in a task
    signals = _Signals(body, is_cancelled)
    if threading.current_thread() is threading.main_thread() and sys.platform != "win32":
        signals.take()
    try:
        with concluded_here():
            yield lambda: signals.has_cut
    except asyncio.CancelledError:
        if not signals.has_cut:
            raise
        body.uncancel()
        raise TerminationSignal(signal.SIGTERM) from None
    finally:
        signals.give_back()


class _Signals:
    def __init__(self, body: "asyncio.Task[object]", is_cancelled: Callable[[], Awaitable[bool]]) -> None:
        self.has_cut = False
        self._body = body
        self._is_cancelled = is_cancelled
        self._loop = asyncio.get_running_loop()
        self._before = signal.getsignal(signal.SIGTERM)
        self._ours: object = None
        self._ending: asyncio.Task[None] | None = None
        self._keeping: asyncio.Task[None] | None = None

    def take(self) -> None:
        """Install this handler for SIGTERM, and keep it installed."""
        self._put_in_front()
        self._keeping = asyncio.ensure_future(self._keep())

    def give_back(self) -> None:
        """Restore Prefect's handler, and stop asking whether the run is cancelled."""
        if self._ending is not None:
            self._ending.cancel()
        self._leave_the_next()

    def _put_in_front(self) -> None:
        self._loop.add_signal_handler(signal.SIGTERM, self._told)
        self._ours = signal.getsignal(signal.SIGTERM)

    async def _keep(self) -> None:
        while True:
            await asyncio.sleep(KEEP_SECONDS)
            if self._ours is not None and signal.getsignal(signal.SIGTERM) is not self._ours:
                self._put_in_front()

    def _told(self) -> None:
        if self._ending is None:
            self._ending = asyncio.ensure_future(self._end())
            self._loop.call_later(AGAIN_SECONDS, self._leave_the_next)

    def _leave_the_next(self) -> None:
        if self._keeping is not None:
            self._keeping.cancel()
        if self._ours is not None:
            self._ours = None
            self._loop.remove_signal_handler(signal.SIGTERM)
            signal.signal(signal.SIGTERM, self._before)

    async def _end(self) -> None:
        if not await self._is_cancelled():
            self.has_cut = True
            self._body.cancel()
