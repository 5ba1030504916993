"""`ended_in_order`: SIGTERM while the function of a flow run works, taken so that the function can end what it does.

Prefect's own handler raises in the midst of whatever the event loop does: nothing is awaited any more, and no end of a step is kept.
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
"""How often is looked whether a flow run that began within, a step's gate for one, has put Prefect's handler in front."""
AGAIN_SECONDS = 2.0
"""After which time a second SIGTERM is another word: who ends a whole process group and forwards the signal sends it twice at once."""


@asynccontextmanager
async def ended_in_order(is_cancelled: Callable[[], Awaitable[bool]]) -> AsyncGenerator[Callable[[], bool]]:
    """Take SIGTERM as long as the body works; yield whether it was cut short by one.

    The first one asks `is_cancelled`, which lets the body end by itself where that is so: it was told to. Else the process is to end for
    another reason: the body is cancelled, and TerminationSignal is raised once it has cleaned up, which Prefect shows as Crashed. A later
    signal is Prefect's. A worker that wants the flow run cancelled sends none, and leaves that to the body. Nothing is taken outside of the
    main thread, where Prefect takes none either, nor on Windows.
    """
    body = asyncio.current_task()
    assert body is not None  # there always is one around a coroutine
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
        """Be the one who is told of SIGTERM, and stay it."""
        self._put_in_front()
        self._keeping = asyncio.ensure_future(self._keep())

    def give_back(self) -> None:
        """Let Prefect be told again, and ask nobody any more."""
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
