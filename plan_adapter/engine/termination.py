"""`end_cleanly_on_sigterm`: handles SIGTERM while a flow run's function works, so that the function can finish cleanly.

Prefect's own handler raises in the middle of whatever the event loop is doing: nothing is awaited any more, and no step's end is recorded.
"""

import asyncio
import signal
import sys
import threading
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager

from prefect.exceptions import TerminationSignal

from plan_adapter.engine.internals import conclude_cancellation_here

KEEP_SECONDS = 0.25
"""How often to check whether a flow run that began inside this one, such as a step gate, has installed Prefect's handler again."""
AGAIN_SECONDS = 2.0
"""How long further SIGTERMs count as the first one. A supervisor that ends the process group and forwards the signal sends it twice."""


@asynccontextmanager
async def end_cleanly_on_sigterm(is_cancelled: Callable[[], Awaitable[bool]]) -> AsyncGenerator[Callable[[], bool]]:
    """Handle SIGTERM while the body works. Yield a function that returns whether a SIGTERM interrupted the body.

    The first signal awaits `is_cancelled`. If that is true, the body has been asked to stop and ends by itself. Otherwise the process must
    end for another reason: the body is cancelled, and TerminationSignal is raised after its cleanup, which Prefect shows as Crashed.
    Prefect handles any later signal.

    A worker that wants to cancel the flow run sends no signal and leaves the cancellation to the body. Outside the main thread, where
    Prefect handles no signals either, and on Windows, nothing is handled.
    """
    body = asyncio.current_task()
    assert body is not None  # a coroutine always runs in a task
    handler = _SigtermHandler(body, is_cancelled)
    if threading.current_thread() is threading.main_thread() and sys.platform != "win32":
        handler.install()
    try:
        with conclude_cancellation_here():
            yield lambda: handler.has_interrupted
    except asyncio.CancelledError:
        if not handler.has_interrupted:
            raise
        body.uncancel()
        raise TerminationSignal(signal.SIGTERM) from None
    finally:
        handler.restore()


class _SigtermHandler:
    def __init__(self, body: "asyncio.Task[object]", is_cancelled: Callable[[], Awaitable[bool]]) -> None:
        self.has_interrupted = False
        self._body = body
        self._is_cancelled = is_cancelled
        self._loop = asyncio.get_running_loop()
        self._previous_handler = signal.getsignal(signal.SIGTERM)
        self._own_handler: object = None
        self._ending_task: asyncio.Task[None] | None = None
        self._keeping_task: asyncio.Task[None] | None = None

    def install(self) -> None:
        """Install this handler for SIGTERM, and keep it installed."""
        self._install_handler()
        self._keeping_task = asyncio.ensure_future(self._keep_installed())

    def restore(self) -> None:
        """Restore Prefect's handler, and stop asking whether the run is cancelled."""
        if self._ending_task is not None:
            self._ending_task.cancel()
        self._hand_over_to_prefect()

    def _install_handler(self) -> None:
        self._loop.add_signal_handler(signal.SIGTERM, self._on_sigterm)
        self._own_handler = signal.getsignal(signal.SIGTERM)

    async def _keep_installed(self) -> None:
        while True:
            await asyncio.sleep(KEEP_SECONDS)
            if self._own_handler is not None and signal.getsignal(signal.SIGTERM) is not self._own_handler:
                self._install_handler()

    def _on_sigterm(self) -> None:
        if self._ending_task is None:
            self._ending_task = asyncio.ensure_future(self._end_body())
            self._loop.call_later(AGAIN_SECONDS, self._hand_over_to_prefect)

    def _hand_over_to_prefect(self) -> None:
        if self._keeping_task is not None:
            self._keeping_task.cancel()
        if self._own_handler is not None:
            self._own_handler = None
            self._loop.remove_signal_handler(signal.SIGTERM)
            signal.signal(signal.SIGTERM, self._previous_handler)

    async def _end_body(self) -> None:
        if not await self._is_cancelled():
            self.has_interrupted = True
            self._body.cancel()
