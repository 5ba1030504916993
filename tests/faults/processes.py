"""The processes of a run, from outside: each is started, waited for with patience, and asked what it waits for where it does not end."""

import asyncio
import os
import signal
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path

from tests.faults import child
from tests.faults.child import STACKS, STOPPED, Order, Told
from tests.processes import FORKS

PATIENCE_SECONDS = 60.0
STACKS_SECONDS = 10.0
MOST_LOG = 8000
"""Characters of the log that a violation shows."""
SILENT = "no last word"
"""The error of a process that ended, or had to be ended, without telling how its order went."""


@dataclass
class Child:
    """A process that does an order."""

    process: BaseProcess
    pipe: Connection
    log: Path
    heard: Told | None = None

    async def said(self) -> Told | None:
        """Return what it tells first; None where it ended, or goes on for too long, without telling anything."""
        await _readable_within(PATIENCE_SECONDS, self.pipe.fileno(), self.process.sentinel)
        self._hear()
        return self.heard

    async def ended(self) -> Told:
        """Return its last word, once it has ended; where it has none, an error that says how it ended, and the end of its log."""
        in_time = await _readable_within(PATIENCE_SECONDS, self.process.sentinel)
        if not in_time:
            await self._end()
        self._hear()
        self.pipe.close()
        if in_time and self.heard is not None and self.heard != STOPPED:
            return self.heard
        how = f"ended with {self.process.exitcode}" if in_time else f"did not end within {PATIENCE_SECONDS:g} s"
        log = self.log.read_text(errors="replace")[-MOST_LOG:] if self.log.exists() else ""
        return Told(error=SILENT, words=f"it {how}, after {self.heard}\n{log}")

    async def _end(self) -> None:
        """Have it write what it waits for, which ends it."""
        os.kill(self.process.pid or 0, STACKS)
        os.kill(self.process.pid or 0, signal.SIGCONT)
        if not await _readable_within(STACKS_SECONDS, self.process.sentinel):
            self.process.kill()
            await _readable_within(STACKS_SECONDS, self.process.sentinel)

    def _hear(self) -> None:
        try:
            while self.pipe.poll():
                self.heard = self.pipe.recv()
        except EOFError:
            pass


def start(order: Order) -> Child:
    """Start a process that does `order`: a forked one, that has imported all."""
    ours, theirs = FORKS.Pipe(duplex=False)
    process = FORKS.Process(target=child.obey, args=(order, theirs), daemon=True)
    process.start()
    theirs.close()
    return Child(process, ours, order.place.log)


async def _readable_within(seconds: float, *files: int) -> bool:
    """Return whether one of `files` can be read in time.

    No other thread than the event loop's asks how a process ended: of two that ask at once, one reads it, and the other is told 255.
    """
    loop, ready = asyncio.get_running_loop(), asyncio.Event()
    for file in files:
        loop.add_reader(file, ready.set)
    try:
        async with asyncio.timeout(seconds):
            await ready.wait()
    except TimeoutError:
        return False
    finally:
        for file in files:
            loop.remove_reader(file)
    return True
