"""Tests of the recorder: intents are durable before the tool is called, and records ready together share a commit."""

import asyncio
import signal
import subprocess
from datetime import timedelta

import pytest

from plan_adapter.model.errors import StoreError
from plan_adapter.model.status import Outcome, PlanStatus, RunReason, StepStatus
from plan_adapter.store.store import PlanStore
from tests.processes import Program
from tests.store.builders import a_plan, a_receipt, an_attempt, begun, ended


async def test_an_intent_is_durable_when_the_call_returns(store: PlanStore, store_url: str):
    run = await begun(store)
    recorder = await store.ledger.recorder(run)
    attempt = an_attempt(run, at=recorder.now())
    await recorder.intent(attempt)
    async with PlanStore(store_url) as other:
        assert await other.attempts(run.id) == [attempt]


async def test_a_receipt_the_end_of_its_step_and_the_next_intent_share_one_commit(store: PlanStore, commits: list[str]):
    run = await begun(store, a_plan(steps=tuple(f"s{n}" for n in range(20))))
    recorder = await store.ledger.recorder(run)
    commits.clear()
    for step in run.steps:
        attempt = an_attempt(run, step.id, at=recorder.now())
        await recorder.intent(attempt)
        recorder.receipt(a_receipt(attempt, at=recorder.now()))
        recorder.step_ended(ended(run, step.id, StepStatus.COMPLETED, at=recorder.now()))
    await recorder.flush()
    assert len(commits) == 21
    assert [len(rows) for rows in (await store.attempts(run.id), await store.receipts(run.id))] == [20, 20]


async def test_steps_that_start_together_share_one_commit(store: PlanStore, commits: list[str]):
    run = await begun(store)
    recorder = await store.ledger.recorder(run)
    commits.clear()
    await asyncio.gather(*(recorder.intent(an_attempt(run, item=item, at=recorder.now())) for item in range(50)))
    assert len(commits) == 1
    assert len(await store.attempts(run.id)) == 50


async def test_records_submitted_during_a_commit_share_the_next_one(store: PlanStore, commits: list[str]):
    run = await begun(store)
    recorder = await store.ledger.recorder(run)
    commits.clear()
    first = asyncio.ensure_future(recorder.intent(an_attempt(run, item=0, at=recorder.now())))
    await asyncio.sleep(0)  # the call submits its record
    await asyncio.sleep(0)  # the commit begins
    rest = [asyncio.ensure_future(recorder.intent(an_attempt(run, item=item, at=recorder.now()))) for item in range(1, 30)]
    await asyncio.gather(first, *rest)
    assert len(commits) == 2


async def test_a_receipt_becomes_durable_without_another_call(store: PlanStore, store_url: str):
    run = await begun(store)
    recorder = await store.ledger.recorder(run)
    attempt = an_attempt(run, at=recorder.now())
    await recorder.intent(attempt)
    recorder.receipt(a_receipt(attempt, at=recorder.now()))
    async with PlanStore(store_url) as other, asyncio.timeout(20):
        while not await other.receipts(run.id):
            await asyncio.sleep(0.005)


async def test_a_value_is_recorded_as_it_was_when_submitted(store: PlanStore):
    run = await begun(store)
    recorder = await store.ledger.recorder(run)
    attempt = an_attempt(run, at=recorder.now())
    await recorder.intent(attempt)
    result = {"rows": [1]}
    step = ended(run, "check", StepStatus.COMPLETED, at=recorder.now())
    recorder.receipt(a_receipt(attempt, result, at=recorder.now()))
    recorder.step_ended(step)
    result["rows"].append(2)
    step.status = StepStatus.FAILED
    await recorder.flush()
    shown = (await store.run(run.id)).steps[0]
    assert (shown.status, shown.result) == (StepStatus.COMPLETED, {"rows": [1]})


async def test_a_cancelled_waiter_does_not_affect_the_others(store: PlanStore):
    run = await begun(store)
    recorder = await store.ledger.recorder(run)
    calls = [asyncio.ensure_future(recorder.intent(an_attempt(run, item=item, at=recorder.now()))) for item in range(3)]
    await asyncio.sleep(0)
    calls[1].cancel()
    outcomes = await asyncio.gather(*calls, return_exceptions=True)
    assert [type(outcome).__name__ for outcome in outcomes] == ["NoneType", "CancelledError", "NoneType"]
    await recorder.intent(an_attempt(run, item=3, at=recorder.now()))
    assert len(await store.attempts(run.id)) == 4


async def test_nothing_starts_after_a_failed_commit(store: PlanStore):
    run = await begun(store)
    recorder = await store.ledger.recorder(run)
    first = an_attempt(run, at=recorder.now())
    await recorder.intent(first)
    twin = an_attempt(run, at=recorder.now())  # the same step, item and number
    calls = [recorder.intent(twin), recorder.intent(an_attempt(run, "drain", at=recorder.now())), recorder.flush()]
    outcomes = await asyncio.gather(*calls, return_exceptions=True)
    assert all(isinstance(outcome, StoreError) for outcome in outcomes)
    recorder.receipt(a_receipt(first, at=recorder.now()))
    for call in (recorder.intent(an_attempt(run, "restart", at=recorder.now())), recorder.flush()):
        with pytest.raises(StoreError, match="another process is working on the same run"):
            await call
    assert await store.attempts(run.id) == [first]
    assert await store.receipts(run.id) == []


async def test_only_one_of_two_processes_can_begin_the_same_attempt(store_url: str, store: PlanStore):
    run = await begun(store)
    async with PlanStore(store_url) as other:
        recorders = [await ledger.recorder(run) for ledger in (store.ledger, other.ledger)]
        outcomes = await asyncio.gather(
            *(recorder.intent(an_attempt(run, at=recorder.now())) for recorder in recorders), return_exceptions=True
        )
    assert sorted(type(outcome).__name__ for outcome in outcomes) == ["NoneType", "StoreError"]
    assert len(await store.attempts(run.id)) == 1


async def test_a_flush_with_nothing_submitted_returns(store: PlanStore):
    recorder = await store.ledger.recorder(await begun(store))
    await recorder.flush()


async def test_the_recorder_uses_the_database_clock(store: PlanStore):
    recorder = await store.ledger.recorder(await begun(store))
    before = await store.now()
    now = recorder.now()
    assert timedelta(seconds=-1) < now - before < timedelta(seconds=1)
    assert now.utcoffset() == timedelta(0)
    assert recorder.now() >= now


async def test_two_runs_can_be_recorded_concurrently_in_one_store(store: PlanStore):
    async def perform(name: str) -> str:
        run = await begun(store, a_plan(name, steps=tuple(f"s{n}" for n in range(10))))
        recorder = await store.ledger.recorder(run)
        for step in run.steps:
            attempt = an_attempt(run, step.id, at=recorder.now())
            await recorder.intent(attempt)
            recorder.receipt(a_receipt(attempt, name, at=recorder.now()))
        await recorder.flush()
        return run.id

    ids = await asyncio.gather(*(perform(name) for name in ("left", "right", "middle")))
    for run_id, name in zip(ids, ("left", "right", "middle"), strict=True):
        assert [receipt.result for receipt in await store.receipts(run_id)] == [name] * 10


KILLED = """
import asyncio, sys
from plan_adapter.store.store import PlanStore
from tests.store.builders import a_receipt, an_attempt, begun

async def main():
    store = PlanStore(sys.argv[1])
    run = await begun(store)
    recorder = await store.ledger.recorder(run)
    done = an_attempt(run, "check", at=recorder.now())
    await recorder.intent(done)
    recorder.receipt(a_receipt(done, "checked", at=recorder.now()))
    await recorder.intent(an_attempt(run, "drain", at=recorder.now(), effect="write"))
    print(run.id, flush=True)
    await asyncio.Event().wait()

asyncio.run(main())
"""


async def test_a_recorded_intent_survives_the_death_of_its_process(store_url: str):
    process = Program(KILLED, store_url, stdout=subprocess.PIPE)
    try:
        assert process.stdout is not None
        run_id = process.stdout.readline().strip()
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
        if process.stdout is not None:
            process.stdout.close()
    async with PlanStore(store_url) as store:
        run = await store.run(run_id)
        assert (run.status, run.reason) == (PlanStatus.EXECUTING, RunReason.INTERRUPTED)
        assert [attempt.step_id for attempt in await store.attempts(run_id)] == ["check", "drain"]
        assert [receipt.result for receipt in await store.receipts(run_id)] == ["checked"]
        assert (run.step("drain").status, run.step("drain").outcome) == (StepStatus.RUNNING, Outcome.UNKNOWN)
        await store.ledger.claim(run)
