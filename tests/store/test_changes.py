"""Tests of waiting for store changes: a change by any process wakes the waiter soon and cheaply, and none is missed."""

import asyncio
import subprocess
import threading
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

from plan_adapter.store.database.tables import REVISION
from plan_adapter.store.store import PlanStore
from tests.postgres import PostgresServer
from tests.processes import Program
from tests.store.builders import a_gate, a_standing_approval, an_answer, an_approval, begun, created, validated
from tests.store.builders import a_plan as plan_of

BOUND = 20.0


async def settled(store: PlanStore) -> None:
    """Return once the store is watched, with nothing new since."""
    while True:
        await store.now()
        started = time.monotonic()
        await store.changed(0.4)
        if time.monotonic() - started >= 0.39:
            await store.now()
            return


CHANGES: dict[str, Callable[[PlanStore, str, str], Awaitable[object]]] = {
    "a request to cancel": lambda store, run_id, _gate: store.ledger.request_cancel(run_id, "enough"),
    "an approval": lambda store, run_id, _gate: store.add_approval(an_approval(run_id=run_id)),
    "an approval that is used": lambda store, run_id, _gate: store.ledger.use_approval(an_approval(), run_id=run_id),
    "a standing approval": lambda store, _run, _gate: store.standing.add(a_standing_approval()),
    "the end of a gate": lambda store, _run, gate_id: store.gates.close(gate_id, "cancelled"),
    "a form": lambda store, _run, gate_id: store.gates.show(gate_id, flow_run_id="f", keyset="k"),
    "a revision": lambda store, run_id, _gate: store.revisions.revise(
        run_id, validated(plan_of(steps=("x",))), "e" * 64, by="ana", note=""
    ),
}


async def test_a_change_on_another_connection_wakes_waiting_tasks(store: PlanStore, store_url: str):
    async with PlanStore(store_url) as other:
        for name, change in CHANGES.items():
            run = await created(store)
            gate = await store.gates.open(a_gate(run), timeout_ms=0)
            await settled(store)
            waits = [asyncio.create_task(store.changed(BOUND)) for _ in range(20)]
            await other.now()
            assert not any(wait.done() for wait in waits), name
            started = time.monotonic()
            await change(other, run.id, gate.id)
            await asyncio.gather(*waits)
            assert time.monotonic() - started < BOUND / 2, name


async def test_an_answer_wakes_the_task_waiting_at_its_gate_and_a_receipt_does_not(store: PlanStore):
    run = await begun(store)
    gate = await store.gates.open(a_gate(run, "drain"), timeout_ms=0)
    await settled(store)
    recorder = await store.ledger.recorder(run)
    await recorder.flush()
    wait = asyncio.create_task(store.changed(BOUND))
    await asyncio.wait([wait], timeout=0.2)
    assert not wait.done()
    await store.gates.answer(gate.id, an_answer(gate))
    async with asyncio.timeout(BOUND / 2):
        await wait


async def test_a_change_between_a_read_and_the_wait_is_not_missed(store: PlanStore, store_url: str):
    run = await created(store)
    async with PlanStore(store_url) as other:
        for watched in (False, True):
            if watched:
                await settled(store)
            gate = await store.gates.open(a_gate(run), timeout_ms=0)
            assert (await store.gates.get(gate.id)).end is None
            await other.gates.close(gate.id, "cancelled")  # after the read, before the wait
            await other.now()
            async with asyncio.timeout(BOUND / 2):
                await store.changed(BOUND)
            assert (await store.gates.get(gate.id)).end == "cancelled"


async def test_a_read_counts_for_waits_in_tasks_started_after_it(store: PlanStore, store_url: str):
    run = await created(store)
    await settled(store)
    async with PlanStore(store_url) as other:
        await store.now()
        is_waiting = asyncio.Event()
        noticing = asyncio.create_task(_notice(store, is_waiting))
        await is_waiting.wait()
        await other.ledger.request_cancel(run.id, "enough")
        await noticing
        await asyncio.wait_for(asyncio.create_task(store.changed(BOUND)), BOUND / 2)
        await store.now()
        wait = asyncio.create_task(store.changed(0.1))
        started = time.monotonic()
        await wait
        assert time.monotonic() - started >= 0.09


async def _notice(store: PlanStore, is_waiting: asyncio.Event) -> None:
    """Return after a change to the store that the parent task has not seen."""
    await store.now()
    is_waiting.set()
    started = time.monotonic()
    await store.changed(BOUND)
    assert time.monotonic() - started < BOUND / 2


async def test_the_wait_times_out_without_a_change(store: PlanStore):
    await settled(store)
    started = time.monotonic()
    await store.changed(0.15)
    assert 0.14 < time.monotonic() - started < 5


def test_several_loops_can_wait_at_once_and_a_closed_loop_does_not_affect_others(store_url: str):
    store, run_id = PlanStore(store_url), ""

    async def prepare() -> str:
        return (await created(store)).id

    async def wait() -> None:
        await settled(store)
        ready.wait(BOUND)
        await store.ledger.cancel_request(run_id)
        while await store.ledger.cancel_request(run_id) is None:
            await store.changed(BOUND)

    async def left() -> None:
        _ = asyncio.ensure_future(store.changed(BOUND))  # noqa: RUF006  # left to the end of the loop on purpose
        await asyncio.sleep(0)

    run_id = asyncio.run(prepare())
    ready = threading.Barrier(4)
    threads = [threading.Thread(target=lambda: asyncio.run(wait())) for _ in range(3)]
    for thread in threads:
        thread.start()
    asyncio.run(left())
    ready.wait(BOUND)
    asyncio.run(store.ledger.request_cancel(run_id, "enough"))
    for thread in threads:
        thread.join(BOUND)
        assert not thread.is_alive()
    asyncio.run(store.close())


async def test_closing_a_store_ends_the_wait_and_the_watch(store_url: str):
    before = set(threading.enumerate())
    store = PlanStore(store_url)
    await created(store)
    await settled(store)
    wait = asyncio.create_task(store.changed(BOUND))
    await asyncio.sleep(0)
    await store.close()
    await asyncio.wait_for(wait, BOUND / 2)
    for thread in set(threading.enumerate()) - before:
        if thread.name.startswith("plan-store"):
            thread.join(10)
            assert not thread.is_alive(), thread.name


async def test_a_file_created_later_is_watched(tmp_path: Path):
    url = f"sqlite:///{tmp_path / 'plans.db'}"
    async with PlanStore(url) as store, PlanStore(url) as other:
        await store.changed(0.05)
        assert list(tmp_path.iterdir()) == []
        run = await created(other)
        await settled(store)
        wait = asyncio.create_task(store.changed(BOUND))
        await other.ledger.request_cancel(run.id, "enough")
        await asyncio.wait_for(wait, BOUND / 2)


async def test_a_lost_connection_is_restored(postgres_server: PostgresServer, postgres_database: str):
    async with PlanStore(postgres_database) as store, PlanStore(postgres_database) as other:
        assert await store.upgrade() == REVISION
        run = await created(store)
        await settled(store)
        lost = asyncio.create_task(store.changed(BOUND))
        await asyncio.sleep(0)
        await asyncio.to_thread(
            postgres_server.execute,
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE query LIKE 'LISTEN%' AND pid <> pg_backend_pid()",
        )
        await asyncio.wait_for(lost, BOUND / 2)  # changes during the outage were not reported
        await settled(store)
        wait = asyncio.create_task(store.changed(BOUND))
        await other.ledger.request_cancel(run.id, "enough")
        await asyncio.wait_for(wait, BOUND / 2)


WRITING = """
import asyncio, sys
from plan_adapter.store.store import PlanStore

async def main():
    async with PlanStore(sys.argv[1]) as store:
        await store.now()
        print("ready", flush=True)
        while line := sys.stdin.readline():
            await store.ledger.request_cancel(line.strip(), "enough")

asyncio.run(main())
"""


async def test_every_commit_of_another_process_is_seen(store: PlanStore, store_url: str):
    runs = [await created(store) for _ in range(15)]
    process = Program(WRITING, store_url, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdout.readline()
    await settled(store)
    for run in runs:
        process.stdin.write(f"{run.id}\n")
        process.stdin.flush()
        while await store.ledger.cancel_request(run.id) is None:
            async with asyncio.timeout(BOUND / 2):
                await store.changed(BOUND)
    process.communicate()
