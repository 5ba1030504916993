"""What Prefect's client still has to send when a run has ended: waited for while the server takes it, dropped when it does not.

Prefect sends the states of task runs and the logs from queues that it empties at the end of the process, however long that takes: with
the server gone, minutes, and with lines about it on stderr. A queue of states that finds no server when it begins ends with what it
holds, and one whose connection was lost sends what the server had not confirmed only with its next state.
"""

import asyncio
import logging

from plan_adapter.engine.internals import confirm, end_queues, forget, rescue, undelivered

log = logging.getLogger(__name__)

STALL_SECONDS = 5.0
"""How long the server may take none of what is queued before it counts as gone."""
CLOSE_SECONDS = 2.0


async def deliver() -> bool:
    """Return whether the server has taken every state of a task run; waits as long as it goes on taking some."""
    loop = asyncio.get_running_loop()
    rescue()
    left, deadline = undelivered(), loop.time() + STALL_SECONDS
    while left and loop.time() < deadline:
        await asyncio.sleep(0.01)
        if (now := undelivered()) != left:
            left, deadline = now, loop.time() + STALL_SECONDS
    return not left and await _is_confirmed()


async def _is_confirmed() -> bool:
    try:
        async with asyncio.timeout(STALL_SECONDS):
            await confirm()
    except Exception as error:
        log.info("whether the server has taken all states cannot be told: %s", error)
        return False
    return True


async def drop() -> None:
    """End Prefect's queues in this process without sending what is in them; later runs get new ones."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + CLOSE_SECONDS
    # More than once: the first lets a queue close its connection, which may hang, too.
    while end_queues() and loop.time() < deadline:  # noqa: ASYNC110  # threads of Prefect end them, and tell nobody
        await asyncio.sleep(0.1)
    forget()
