"""`RunClock`: the total timeout of a run, whose clock stands still while nothing but gates is open."""

import asyncio
from collections.abc import Callable


class RunClock:
    """Calls `spent` once `seconds` of work have passed. Belongs to one event loop; runs from its making."""

    def __init__(self, seconds: float | None, spent: Callable[[], None]) -> None:
        """Start; `seconds` None is no limit."""
        self._loop = asyncio.get_running_loop()
        self._spent = spent
        self._left = seconds
        self._timer: asyncio.TimerHandle | None = None
        self.go_on()

    @property
    def deadline(self) -> float | None:
        """When the time is spent, on the event loop's clock; None without a limit, and while the clock stands still."""
        return None if self._timer is None else self._timer.when()

    def stand_still(self) -> None:
        """Let no time pass until `go_on`."""
        if self._timer is not None:
            self._left = max(0.0, self._timer.when() - self._loop.time())
            self._timer.cancel()
            self._timer = None

    def go_on(self) -> None:
        """Let time pass; does nothing where it passes already."""
        if self._timer is None and self._left is not None:
            self._timer = self._loop.call_later(self._left, self._spent)

    def end(self) -> None:
        """Never call `spent` any more."""
        self.stand_still()
        self._left = None
