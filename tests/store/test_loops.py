"""One store serves several event loops and threads, one after the other and at once."""

import asyncio
import threading

import pytest

from plan_adapter.model.errors import StoreError
from plan_adapter.store.store import PlanStore
from tests.store.builders import a_plan, a_receipt, an_attempt, begun


async def record(store: PlanStore, name: str) -> str:
    run = await begun(store, a_plan(name))
    recorder = await store.ledger.recorder(run)
    for step in run.steps:
        attempt = an_attempt(run, step.id, at=recorder.now())
        await recorder.intent(attempt)
        recorder.receipt(a_receipt(attempt, name, at=recorder.now()))
    await recorder.flush()
    return run.id


def test_one_store_serves_event_loops_one_after_another(store_url: str):
    store = PlanStore(store_url)
    ids = [asyncio.run(record(store, f"loop {number}")) for number in range(3)]
    assert [run.id for run in asyncio.run(store.runs())] == ids[::-1]
    asyncio.run(store.close())


def test_one_store_serves_the_loops_of_several_threads_at_once(store_url: str):
    store, ids = PlanStore(store_url), list[str]()

    def work(number: int) -> None:
        ids.append(asyncio.run(record(store, f"thread {number}")))

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert {run.id for run in asyncio.run(store.runs())} == set(ids)
    assert len(ids) == 4
    asyncio.run(store.close())


async def test_a_caller_that_stops_waiting_leaves_the_store_usable(store: PlanStore, caplog: pytest.LogCaptureFixture):
    for turns in range(6):
        call = asyncio.ensure_future(store.save(a_plan(f"plan {turns}"), author="ana"))
        for _ in range(turns):
            await asyncio.sleep(0)
        call.cancel()
        await asyncio.gather(call, return_exceptions=True)
    assert (await store.save(a_plan("last"), author="ana")).version >= 1
    assert caplog.records == []


def test_a_loop_that_ends_during_a_call_leaves_the_store_usable(store_url: str, caplog: pytest.LogCaptureFixture):
    store = PlanStore(store_url)

    async def interrupted() -> None:
        _ = asyncio.ensure_future(store.save(a_plan(), author="ana"))  # noqa: RUF006  # left to the end of the loop on purpose
        await asyncio.sleep(0)

    asyncio.run(interrupted())
    assert asyncio.run(store.runs()) == []
    asyncio.run(store.close())
    assert caplog.records == []


async def test_a_closed_store_raises_a_clear_error(store: PlanStore):
    await store.now()
    await store.close()
    await store.close()
    with pytest.raises(StoreError, match="is closed"):
        await store.runs()


async def test_closing_a_store_ends_its_thread(store_url: str):
    before = set(threading.enumerate())
    async with PlanStore(store_url) as store:
        await store.now()
        started = [thread for thread in threading.enumerate() if thread not in before and thread.name.startswith("plan-store")]
        assert len(started) == 1
    started[0].join(10)
    assert not started[0].is_alive()


def test_a_garbage_collected_store_leaves_no_thread(store_url: str):
    store = PlanStore(store_url)
    before = set(threading.enumerate())
    asyncio.run(store.now())
    started = [thread for thread in threading.enumerate() if thread not in before and thread.name.startswith("plan-store")]
    del store
    for thread in started:
        thread.join(10)
        assert not thread.is_alive()
