"""Blocking work in a thread that does not keep the process alive."""

import asyncio
import contextvars
import threading
from collections.abc import Callable
from functools import partial
from typing import TypeVar

T = TypeVar("T")


async def in_daemon_thread(work: Callable[[], T]) -> T:
    """Run `work` in a daemon thread and return its value or raise its error. Unlike `to_thread`, this does not delay exit after Ctrl-C."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[T] = loop.create_future()

    def set_if_pending(set_outcome: Callable[[], None]) -> None:
        if not future.done():
            set_outcome()

    def run_work() -> None:
        try:
            value = work()
        except BaseException as error:  # the caller gets every error
            _call_in_loop(loop, set_if_pending, partial(future.set_exception, error))
        else:
            _call_in_loop(loop, set_if_pending, partial(future.set_result, value))

    context = contextvars.copy_context()
    threading.Thread(target=context.run, args=(run_work,), name="plan-daemon-thread", daemon=True).start()
    return await future


def _call_in_loop(
    loop: asyncio.AbstractEventLoop, set_if_pending: Callable[[Callable[[], None]], None], set_outcome: Callable[[], None]
) -> None:
    if not loop.is_closed():  # nobody waits any more
        loop.call_soon_threadsafe(set_if_pending, set_outcome)
