"""Starts the child processes of a run and waits for them. A process that does not end in time writes its stacks."""

import asyncio
import os
import signal
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import cast

from tests.faults import child
from tests.faults.child import STACKS, STOPPED, Execute, Order, Report
from tests.processes import FORKS

TIMEOUT_SECONDS = 60.0
STACKS_SECONDS = 10.0
MAX_LOG = 8000
"""Characters of the log that a violation shows."""
NO_REPORT = "no report"
"""The error of a process that ended, or had to be ended, without a report."""


@dataclass
class Child:
    """A process that executes an order."""

    process: BaseProcess
    pipe: Connection
    log: Path
    last_report: Report | None = None

    async def first_report(self) -> Report | None:
        """Return the first report, or None if the process ended or timed out without one."""
        await _readable_within(TIMEOUT_SECONDS, self.pipe.fileno(), self.process.sentinel)
        self._receive()
        return self.last_report

    async def final_report(self, seconds: float | None = None) -> Report:
        """Return the last report after the process has ended. Without one, return an error with the exit code and the end of the log.

        A process that does not end within `seconds` (default: TIMEOUT_SECONDS) is ended.
        """
        seconds = TIMEOUT_SECONDS if seconds is None else seconds
        in_time = await _readable_within(seconds, self.process.sentinel)
        if not in_time:
            await self._end()
        self._receive()
        self.pipe.close()
        if in_time and self.last_report is not None and self.last_report != STOPPED:
            return self.last_report
        how = f"ended with {self.process.exitcode}" if in_time else f"did not end within {seconds:g} s"
        log = self.log.read_text(errors="replace")[-MAX_LOG:] if self.log.exists() else ""
        return Report(error=NO_REPORT, message=f"it {how}, after {self.last_report}\n{log}")

    async def _end(self) -> None:
        """Make the process write its stacks and end."""
        os.kill(self.process.pid or 0, STACKS)
        os.kill(self.process.pid or 0, signal.SIGCONT)
        if not await _readable_within(STACKS_SECONDS, self.process.sentinel):
            self.process.kill()
            await _readable_within(STACKS_SECONDS, self.process.sentinel)

    def _receive(self) -> None:
        try:
            while self.pipe.poll():
                self.last_report = self.pipe.recv()
        except EOFError:
            pass


def start(order: Order, execute: Execute | None = None) -> Child:
    """Start a forked process, with all imports done, that executes `order`, with `execute` in place of a run of its seed."""
    ours, theirs = FORKS.Pipe(duplex=False)
    process = FORKS.Process(target=child.execute_order, args=(order, theirs, execute), daemon=True)
    process.start()
    theirs.close()
    return Child(process, cast("Connection", ours), order.workspace.log)


async def _readable_within(seconds: float, *files: int) -> bool:
    """Return whether one of `files` becomes readable in time.

    Only the event loop's thread reads exit codes: if two threads read one at the same time, one of them gets 255.
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
