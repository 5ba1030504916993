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
        self.is_from_prefect = False
        self.kept_from_starting = False  # whether a step was skipped because of it
        self.future: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    @property
    def is_set(self) -> bool:
        """Whether the run must end."""
        return self.kind is not None

    def set(self, kind: StopKind, message: str, *, is_from_prefect: bool = False) -> None:
        """End all work, with `message` as the reason in words. Does nothing if already set.

        `is_from_prefect`: the flow run was cancelled, not the run.
        """
        if self.kind is None:
            self.kind, self.message, self.is_from_prefect = kind, message, is_from_prefect
            self.future.set_result(None)


class LeaveSignal:
    """Lets a run stop waiting at its gates. The gates stay open for others to answer, and a later start resumes the run."""

    def __init__(self) -> None:
        """Create a signal without a run to leave."""
        self._leave_run: Callable[[], bool] | None = None

    def ask(self) -> bool:
        """Stop waiting if the run waits only at gates. Return whether it stopped waiting."""
        return self._leave_run is not None and self._leave_run()

    @contextmanager
    def handled_by(self, leave_run: Callable[[], bool]) -> Generator[None]:
        """Use `leave_run` to leave the run while the block runs. It returns whether the run was left."""
        before, self._leave_run = self._leave_run, leave_run
        try:
            yield
        finally:
            self._leave_run = before


async def watch(
    stop: Stop, find_reason: Callable[[], Awaitable[str | None]], *, every_seconds: float, is_from_prefect: bool = False
) -> None:
    """Stop the run as cancelled once `find_reason` returns a reason."""
    reason = await first_reason(find_reason, every_seconds=every_seconds, is_over=lambda: stop.is_set)
    if reason is not None:
        stop.set("cancelled", reason, is_from_prefect=is_from_prefect)


async def first_reason(
    find_reason: Callable[[], Awaitable[str | None]], *, every_seconds: float, is_over: Callable[[], bool]
) -> str | None:
    """Return the first reason that `find_reason` returns, or None once `is_over()`. If it raises, it is called again next time."""
    while not is_over():
        await asyncio.sleep(every_seconds)
        try:
            reason = await find_reason()
        except Exception as error:
            log.info("cannot check whether the run is to be cancelled: %s", error)
            continue
        if reason is not None:
            return reason
    return None
