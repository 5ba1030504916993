"""SIGTERM to the process of a flow run: what it does ends in order, and Prefect's handler is in its place before and after."""

import asyncio
import os
import signal
from collections.abc import Iterator

import pytest
from prefect.exceptions import TerminationSignal

from plan_adapter.engine import termination
from plan_adapter.engine.termination import ended_in_order


class PrefectsError(BaseException):
    """What Prefect's handler raises, in the midst of the event loop."""


@pytest.fixture(autouse=True)
def theirs() -> Iterator[object]:
    """Prefect's handler, as a flow run puts it in front."""

    def raise_it(*_: object) -> None:
        raise PrefectsError

    before = signal.signal(signal.SIGTERM, raise_it)
    yield raise_it
    signal.signal(signal.SIGTERM, before)


def end_me() -> None:
    os.kill(os.getpid(), signal.SIGTERM)


async def cancelled() -> bool:
    return True


async def not_cancelled() -> bool:
    return False


async def test_what_is_cancelled_ends_by_itself(theirs: object) -> None:
    told = asyncio.Event()

    async def is_cancelled() -> bool:
        told.set()
        return True

    async with ended_in_order(is_cancelled):
        end_me()
        await told.wait()
        end_me()  # who ends a process group and forwards the signal sends it twice
        await asyncio.sleep(0)
    assert signal.getsignal(signal.SIGTERM) is theirs


async def test_what_is_to_end_for_another_reason_is_cancelled_and_cleans_up(theirs: object) -> None:
    cleaned = False
    with pytest.raises(TerminationSignal):
        async with ended_in_order(not_cancelled):
            end_me()
            try:
                await asyncio.Event().wait()
            finally:
                await asyncio.sleep(0)
                cleaned = True
    assert cleaned
    assert signal.getsignal(signal.SIGTERM) is theirs
    task = asyncio.current_task()
    assert task is not None
    assert task.cancelling() == 0


async def test_a_handler_that_a_flow_run_within_puts_in_front_is_replaced(theirs: object, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(termination, "KEEP_SECONDS", 0.01)
    async with ended_in_order(cancelled):
        ours = signal.getsignal(signal.SIGTERM)
        signal.signal(signal.SIGTERM, theirs)  # pyright: ignore[reportArgumentType]  # a function
        while signal.getsignal(signal.SIGTERM) is not ours:
            await asyncio.sleep(0.01)
    assert signal.getsignal(signal.SIGTERM) is theirs


async def test_a_later_signal_is_prefects(theirs: object, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(termination, "AGAIN_SECONDS", 0.01)
    async with ended_in_order(cancelled):
        end_me()
        while signal.getsignal(signal.SIGTERM) is not theirs:
            await asyncio.sleep(0.01)
        with pytest.raises(PrefectsError):
            end_me()


async def test_outside_of_the_main_thread_nothing_is_taken(theirs: object) -> None:
    async def within() -> object:
        async with ended_in_order(cancelled):
            return signal.getsignal(signal.SIGTERM)

    assert await asyncio.to_thread(lambda: asyncio.run(within())) is theirs


async def test_a_cancellation_from_elsewhere_stays_one() -> None:
    begun = asyncio.Event()

    async def body() -> None:
        async with ended_in_order(cancelled):
            begun.set()
            await asyncio.Event().wait()

    task = asyncio.ensure_future(body())
    await begun.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
