"""Blocking work in a thread that does not keep the process alive."""

import asyncio
import contextvars
import threading
from collections.abc import Callable
from functools import partial
from typing import TypeVar

T = TypeVar("T")


async def in_daemon_thread(work: Callable[[], T]) -> T:
    """Run `work` in a daemon thread and return its value or raise its error. Unlike `to_thread`, it does not delay exit after Ctrl-C."""
    loop = asyncio.get_running_loop()
    answer: asyncio.Future[T] = loop.create_future()

    def settle(deliver: Callable[[], None]) -> None:
        if not answer.done():
            deliver()

    def body() -> None:
        try:
            value = work()
        except BaseException as error:  # whatever it is, it is the caller's
            _call_in_loop(loop, settle, partial(answer.set_exception, error))
        else:
            _call_in_loop(loop, settle, partial(answer.set_result, value))

    context = contextvars.copy_context()
    threading.Thread(target=context.run, args=(body,), name="plan-daemon-thread", daemon=True).start()
    return await answer


def _call_in_loop(loop: asyncio.AbstractEventLoop, settle: Callable[[Callable[[], None]], None], deliver: Callable[[], None]) -> None:
    if not loop.is_closed():  # nobody waits any more
        loop.call_soon_threadsafe(settle, deliver)
