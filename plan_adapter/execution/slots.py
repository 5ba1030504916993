"""`Slots`: at most so many calls at once, the most urgent waiter first."""

import asyncio
import heapq
from collections.abc import Callable
from itertools import count


class Slots:
    """A semaphore whose waiters have priorities. Belongs to one event loop."""

    def __init__(self, limit: int) -> None:
        """Make `limit` slots."""
        self._free = limit
        self._waiting: list[tuple[float, int, Callable[[], None]]] = []
        self._arrival = count()
        self._granting = False

    def request(self, urgency: float, granted: Callable[[], None]) -> None:
        """Call `granted` once a slot is there; of those that wait, the greatest `urgency` first, then the first to come."""
        heapq.heappush(self._waiting, (-urgency, next(self._arrival), granted))
        self._grant_soon()

    async def acquire(self, urgency: float) -> None:
        """Return once a slot is there."""
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

    def _grant_soon(self) -> None:
        # Not at once: what the end of a step makes ready is to be asked for first, so that the most urgent of all wins.
        if self._free and self._waiting and not self._granting:
            self._granting = True
            asyncio.get_running_loop().call_soon(self._grant)

    def _grant(self) -> None:
        self._granting = False
        while self._free and self._waiting:
            self._free -= 1
            heapq.heappop(self._waiting)[2]()
