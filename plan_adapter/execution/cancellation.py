"""`Stop`: the one signal that ends all work of a run, and why."""

import asyncio
from typing import Literal, TypeAlias

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
