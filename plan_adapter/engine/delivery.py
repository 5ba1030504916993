"""What Prefect's client still has to send when a run has ended: waited for while the server takes it, dropped when it does not.

Prefect sends the states of task runs and the logs from queues that it empties at the end of the process, however long that takes: with
the server gone, minutes, and with lines about it on stderr.
"""

import asyncio
from typing import Any

from prefect.events.worker import EventsWorker
from prefect.logging.handlers import APILogWorker

STALL_SECONDS = 5.0
"""How long the server may take none of what is queued before it counts as gone."""
CLOSE_SECONDS = 2.0


async def deliver() -> bool:
    """Return whether the server has taken every state of a task run; waits as long as it goes on taking some."""
    loop = asyncio.get_running_loop()
    left, deadline = waiting(), loop.time() + STALL_SECONDS
    while left and loop.time() < deadline:
        await asyncio.sleep(0.01)
        if (now := waiting()) != left:
            left, deadline = now, loop.time() + STALL_SECONDS
    return not left


async def drop() -> None:
    """End Prefect's queues in this process without sending what is in them; later runs get new ones."""
    deadline = asyncio.get_running_loop().time() + CLOSE_SECONDS
    working = [(queue, task) for queue in queues() if (task := getattr(queue, "_task", None)) is not None]
    while working and asyncio.get_running_loop().time() < deadline:
        for queue, task in working:  # more than once: the first one lets it close its connection, which may hang, too
            queue._loop.call_soon_threadsafe(task.cancel)
        await asyncio.sleep(0.1)
        working = [(queue, task) for queue, task in working if not task.done()]


def waiting() -> int:
    """Return how many states of task runs have not been sent."""
    items = [getattr(queue, "_queue", None) for queue in queues() if type(queue) is EventsWorker]
    return sum(getattr(found, "unfinished_tasks", 0) for found in items)


def queues() -> list[Any]:
    """Return Prefect's queues of this process; none where a later Prefect keeps them elsewhere, which then ends them in its own way."""
    every: dict[int, Any] = getattr(EventsWorker, "_instances", {})  # of every kind of queue
    return [queue for queue in list(every.values()) if isinstance(queue, (EventsWorker, APILogWorker))]
