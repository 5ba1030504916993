"""Tests of SIGTERM in the process of a flow run: it ends in order, and Prefect's handler is in place before and after."""

import asyncio
import os
import signal
from collections.abc import Iterator

import pytest
from prefect.exceptions import TerminationSignal

from plan_adapter.engine import termination
from plan_adapter.engine.termination import end_cleanly_on_sigterm


class PrefectHandlerError(BaseException):
    """Raised by Prefect's handler, in the middle of the event loop."""


@pytest.fixture(autouse=True)
def prefect_handler() -> Iterator[object]:
    """Install a handler as Prefect does for a flow run."""

    def raise_it(*_: object) -> None:
        raise PrefectHandlerError

    before = signal.signal(signal.SIGTERM, raise_it)
    yield raise_it
    signal.signal(signal.SIGTERM, before)


def send_sigterm() -> None:
    os.kill(os.getpid(), signal.SIGTERM)


async def cancelled() -> bool:
    return True


async def not_cancelled() -> bool:
    return False


async def test_a_cancelled_run_ends_by_itself(prefect_handler: object) -> None:
    asked = asyncio.Event()

    async def is_cancelled() -> bool:
        asked.set()
        return True

    async with end_cleanly_on_sigterm(is_cancelled):
        send_sigterm()
        await asked.wait()
        send_sigterm()  # a parent that signals the process group and also forwards the signal sends it twice
        await asyncio.sleep(0)
    assert signal.getsignal(signal.SIGTERM) is prefect_handler


async def test_a_run_that_was_not_cancelled_is_interrupted_and_cleans_up(prefect_handler: object) -> None:
    cleaned = False
    with pytest.raises(TerminationSignal):
        async with end_cleanly_on_sigterm(not_cancelled):
            send_sigterm()
            try:
                await asyncio.Event().wait()
            finally:
                await asyncio.sleep(0)
                cleaned = True
    assert cleaned
    assert signal.getsignal(signal.SIGTERM) is prefect_handler
    task = asyncio.current_task()
    assert task is not None
    assert task.cancelling() == 0


async def test_a_handler_that_a_nested_flow_run_installs_is_replaced(prefect_handler: object, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(termination, "KEEP_SECONDS", 0.01)
    async with end_cleanly_on_sigterm(cancelled):
        ours = signal.getsignal(signal.SIGTERM)
        signal.signal(signal.SIGTERM, prefect_handler)  # pyright: ignore[reportArgumentType]  # a function
        while signal.getsignal(signal.SIGTERM) is not ours:
            await asyncio.sleep(0.01)
    assert signal.getsignal(signal.SIGTERM) is prefect_handler


async def test_a_later_signal_goes_to_prefects_handler(prefect_handler: object, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(termination, "AGAIN_SECONDS", 0.01)
    async with end_cleanly_on_sigterm(cancelled):
        send_sigterm()
        while signal.getsignal(signal.SIGTERM) is not prefect_handler:
            await asyncio.sleep(0.01)
        with pytest.raises(PrefectHandlerError):
            send_sigterm()


async def test_no_handler_is_installed_outside_the_main_thread(prefect_handler: object) -> None:
    async def within() -> object:
        async with end_cleanly_on_sigterm(cancelled):
            return signal.getsignal(signal.SIGTERM)

    assert await asyncio.to_thread(lambda: asyncio.run(within())) is prefect_handler


async def test_cancelling_the_task_from_outside_still_cancels_it() -> None:
    begun = asyncio.Event()

    async def body() -> None:
        async with end_cleanly_on_sigterm(cancelled):
            begun.set()
            await asyncio.Event().wait()

    task = asyncio.ensure_future(body())
    await begun.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
