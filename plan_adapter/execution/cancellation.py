"""`Stop`: the one signal that ends all work of a run, and why; `watch`, which sets it from outside; and `Leave`, which ends no work."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Generator
from contextlib import contextmanager
from typing import Literal, TypeAlias

log = logging.getLogger(__name__)

StopKind: TypeAlias = Literal["cancelled", "timed_out"]


class Stop:
    """Set once, by a cancellation or the total timeout; the first reason stays. Belongs to one event loop."""

    def __init__(self) -> None:
        """Make a signal that is not set."""
        self.kind: StopKind | None = None
        self.message = ""
        self.future: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    @property
    def is_set(self) -> bool:
        """True once the run is to end."""
        return self.kind is not None

    def set(self, kind: StopKind, message: str) -> None:
        """End all work for the reason given in words; does nothing where it was set before."""
        if self.kind is None:
            self.kind, self.message = kind, message
            self.future.set_result(None)


class Leave:
    """A way to have a run wait at its gates no more, which stay open: others answer them, and a later start goes on with the run."""

    def __init__(self) -> None:
        """Know of no gate yet."""
        self._do: Callable[[], bool] | None = None

    def ask(self) -> bool:
        """Return whether the run is left; not if it does anything but wait at gates."""
        return self._do is not None and self._do()

    @contextmanager
    def by(self, do: Callable[[], bool]) -> Generator[None]:
        """Let `do` leave the run as long as the block lasts; it returns whether it does."""
        before, self._do = self._do, do
        try:
            yield
        finally:
            self._do = before


async def watch(stop: Stop, asked: Callable[[], Awaitable[str | None]], *, every_seconds: float) -> None:
    """Stop the run as cancelled once `asked` gives a reason."""
    reason = await first_reason(asked, every_seconds=every_seconds, is_over=lambda: stop.is_set)
    if reason is not None:
        stop.set("cancelled", reason)


async def first_reason(asked: Callable[[], Awaitable[str | None]], *, every_seconds: float, is_over: Callable[[], bool]) -> str | None:
    """Return the first reason that `asked` gives, None once it `is_over`; a question that fails is asked again the next time."""
    while not is_over():
        await asyncio.sleep(every_seconds)
        try:
            reason = await asked()
        except Exception as error:
            log.info("whether the run is to be cancelled cannot be told now: %s", error)
            continue
        if reason is not None:
            return reason
    return None
