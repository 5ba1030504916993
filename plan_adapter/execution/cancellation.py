"""How a run is stopped or left: `Stop` ends all its work, `LeaveSignal` ends only the waiting at gates."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Generator
from contextlib import contextmanager
from typing import Literal, TypeAlias

log = logging.getLogger(__name__)

StopKind: TypeAlias = Literal["cancelled", "timed_out"]


class Stop:
    """The signal that ends all work of a run. A cancellation or the total timeout sets it once, and the first reason wins.

    Belongs to one event loop.
    """

    def __init__(self) -> None:
        """Create a signal that is not set."""
        self.kind: StopKind | None = None
        self.message = ""
        self.future: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    @property
    def is_set(self) -> bool:
        """Whether the run must end."""
        return self.kind is not None

    def set(self, kind: StopKind, message: str) -> None:
        """End all work, with `message` as the reason in words. Does nothing if already set."""
        if self.kind is None:
            self.kind, self.message = kind, message
            self.future.set_result(None)


class LeaveSignal:
    """Lets a run stop waiting at its gates. The gates stay open for others to answer, and a later start resumes the run."""

    def __init__(self) -> None:
        """Create one that has no run to leave yet."""
        self._do: Callable[[], bool] | None = None

    def ask(self) -> bool:
        """Leave the run if it only waits at gates; return whether it was left."""
        return self._do is not None and self._do()

    @contextmanager
    def by(self, do: Callable[[], bool]) -> Generator[None]:
        """Let `do` leave the run while the block runs. `do` returns whether the run was left."""
        before, self._do = self._do, do
        try:
            yield
        finally:
            self._do = before


async def watch(stop: Stop, asked: Callable[[], Awaitable[str | None]], *, every_seconds: float) -> None:
    """Stop the run as cancelled once `asked` returns a reason."""
    reason = await first_reason(asked, every_seconds=every_seconds, is_over=lambda: stop.is_set)
    if reason is not None:
        stop.set("cancelled", reason)


async def first_reason(asked: Callable[[], Awaitable[str | None]], *, every_seconds: float, is_over: Callable[[], bool]) -> str | None:
    """Return the first reason that `asked` returns, or None once `is_over()`. If `asked` raises, it is called again next time."""
    while not is_over():
        await asyncio.sleep(every_seconds)
        try:
            reason = await asked()
        except Exception as error:
            log.info("cannot check whether the run is to be cancelled: %s", error)
            continue
        if reason is not None:
            return reason
    return None
