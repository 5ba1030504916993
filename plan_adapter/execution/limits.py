"""The total timeout of a run, and the limit on concurrent calls."""

import asyncio
import heapq
from collections.abc import Callable
from itertools import count

ITEM_ROLLBACK_URGENCY = 1e9
"""The least urgency of the calls that roll back an item of a group. Those of all other calls are smaller."""


class RunClock:
    """Calls `on_timeout` once it has run for `seconds`. Starts when created. Belongs to one event loop."""

    def __init__(self, seconds: float | None, on_timeout: Callable[[], None]) -> None:
        """Start the clock. `seconds` None means no limit."""
        self._loop = asyncio.get_running_loop()
        self._on_timeout = on_timeout
        self._remaining = seconds
        self._timer: asyncio.TimerHandle | None = None
        self.resume()

    @property
    def deadline(self) -> float | None:
        """When the time is up, by the event loop's clock. None without a limit and while the clock is paused."""
        return None if self._timer is None else self._timer.when()

    def pause(self) -> None:
        """Pause the clock until `resume`."""
        if self._timer is not None:
            self._remaining = max(0.0, self._timer.when() - self._loop.time())
            self._timer.cancel()
            self._timer = None

    def resume(self) -> None:
        """Start the clock again. Does nothing if it is running."""
        if self._timer is None and self._remaining is not None:
            self._timer = self._loop.call_later(self._remaining, self._on_timeout)

    def end(self) -> None:
        """Stop for good: `on_timeout` is never called after this."""
        self.pause()
        self._remaining = None


class Slots:
    """A semaphore whose waiters have priorities. Belongs to one event loop."""

    def __init__(self, limit: int) -> None:
        """Create `limit` free slots."""
        self._free = limit
        self._reserved = 0
        self._waiting: list[tuple[float, int, Callable[[], None]]] = []
        self._arrival = count()
        self._granting = False

    def request(self, urgency: float, on_granted: Callable[[], None]) -> None:
        """Call `on_granted` once a slot is free. The greatest `urgency` goes first; equal ones go in order of arrival."""
        heapq.heappush(self._waiting, (-urgency, next(self._arrival), on_granted))
        self._grant_soon()

    async def acquire(self, urgency: float) -> None:
        """Return once a slot is acquired."""
        turn = asyncio.get_running_loop().create_future()
        self.request(urgency, lambda: self.release() if turn.cancelled() else turn.set_result(None))
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self.release()
            raise

    def release(self) -> None:
        """Give a slot back."""
        self._free += 1
        self._grant_soon()

    def reserve(self) -> None:
        """Keep one slot for the rollback of an item until `unreserve`: other calls are granted only what is free besides."""
        self._reserved += 1

    def unreserve(self) -> None:
        """Undo one `reserve`."""
        self._reserved -= 1
        self._grant_soon()

    def _grant_soon(self) -> None:
        # Not at once: the end of a step may make other steps ready, and the most urgent of all should win.
        if self._free and self._waiting and not self._granting:
            self._granting = True
            asyncio.get_running_loop().call_soon(self._grant)

    def _grant(self) -> None:
        self._granting = False
        while self._waiting and self._free > (0 if -self._waiting[0][0] >= ITEM_ROLLBACK_URGENCY else self._reserved):
            self._free -= 1
            heapq.heappop(self._waiting)[2]()


class InnerSlots(Slots):
    """The slots of a sub-plan: its own limit, within that of the outer plan."""

    def __init__(self, limit: int, outer: Slots) -> None:
        """Create `limit` free slots. A slot in use also takes one of `outer`."""
        super().__init__(limit)
        self._outer = outer

    def request(self, urgency: float, on_granted: Callable[[], None]) -> None:
        """Call `on_granted` once a slot is free here and in the outer slots."""
        super().request(urgency, lambda: self._outer.request(urgency, on_granted))

    def reserve(self) -> None:
        """Keep one of the outer slots, which every call takes, for the rollback of an item."""
        self._outer.reserve()

    def unreserve(self) -> None:
        """Undo one `reserve`."""
        self._outer.unreserve()

    def release(self) -> None:
        """Give a slot back, here and to the outer slots."""
        super().release()  # first, so that a call that waits here can request the outer slot before others get it
        self._outer.release()
