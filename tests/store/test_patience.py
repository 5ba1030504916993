"""Tests of an unavailable, locked or full store during a run: the wait is bounded, and nothing is lost or written twice."""

import asyncio
import contextlib
import sqlite3
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Generator, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import asyncpg  # pyright: ignore[reportMissingTypeStubs]
import pytest
from sqlalchemy import Connection, Engine, event

from plan_adapter.model.errors import LeaseLostError, StoreError
from plan_adapter.model.host_process import HostProcess
from plan_adapter.model.record import PlanRun
from plan_adapter.model.status import PlanStatus, StepStatus
from plan_adapter.store.database import patience
from plan_adapter.store.proof import audit
from plan_adapter.store.store import PlanStore
from tests.postgres import PostgresServer
from tests.proxy import Cut, Proxy, running_proxy
from tests.sql import Sql
from tests.store.builders import a_gate, a_plan, a_receipt, an_answer, an_approval, an_attempt, begun, created, ended
from tests.store.conftest import store_at

PATIENCE = 60.0  # far more than any test waits


@pytest.fixture(autouse=True)
def early(monkeypatch: pytest.MonkeyPatch) -> None:
    """Retry after a short pause."""
    monkeypatch.setattr(patience, "FIRST_WAIT_SECONDS", 0.001)
    monkeypatch.setattr(patience, "LONGEST_WAIT_SECONDS", 0.01)


@pytest.fixture
async def file(tmp_path: Path) -> AsyncIterator[PlanStore]:
    """A store in a file with a lock timeout of 20 ms."""
    async with PlanStore(f"sqlite:///{tmp_path / 'plans.db'}?timeout=0.02") as store:
        yield store


@contextlib.contextmanager
def locked(folder: Path) -> Generator[sqlite3.Connection]:
    """Lock the store in `folder` as another process would."""
    with contextlib.closing(sqlite3.connect(folder / "plans.db", isolation_level=None)) as other:
        other.execute("BEGIN EXCLUSIVE")
        yield other


async def until(is_so: Callable[[], bool]) -> None:
    """Return once `is_so()` is true."""
    async with asyncio.timeout(30):
        while not is_so():
            await asyncio.sleep(0.002)


async def completed_step(store: PlanStore) -> PlanRun:
    """Return the stored run after one of its steps completed."""
    run = await begun(store)
    recorder = await store.ledger.recorder(run)
    attempt = an_attempt(run, at=recorder.now())
    await recorder.intent(attempt)
    recorder.receipt(a_receipt(attempt, "checked", at=recorder.now()))
    recorder.step_ended(ended(run, "check", StepStatus.COMPLETED, at=recorder.now()))
    await recorder.intent(an_attempt(run, "drain", at=recorder.now()))
    return run


async def test_the_store_waits_for_a_file_locked_beyond_its_timeout(file: PlanStore, tmp_path: Path, caplog: pytest.LogCaptureFixture):
    store = file.patient(PATIENCE)
    run = await begun(store)
    recorder = await store.ledger.recorder(run)
    first = an_attempt(run, at=recorder.now())
    await recorder.intent(first)
    with locked(tmp_path) as other:
        recorder.receipt(a_receipt(first, "checked", at=recorder.now()))
        second = asyncio.ensure_future(recorder.intent(an_attempt(run, "drain", at=recorder.now())))
        await until(lambda: "has been waiting since" in caplog.text)
        assert not second.done()
        other.execute("ROLLBACK")
        await second
    assert [receipt.result for receipt in await store.receipts(run.id)] == ["checked"]
    assert len(await store.attempts(run.id)) == 2
    assert (await store.verify(run.id)).ok
    waits, is_back = [record.getMessage() for record in caplog.records]
    assert waits.startswith("the run has been waiting since 2")
    assert waits.endswith(
        f"60 s at most: the store {tmp_path / 'plans.db'} is locked by another process (waited 0.02 s); "
        "wait for that process or end it, then try again"
    )
    assert is_back.startswith(f"the store {tmp_path / 'plans.db'} is available again after")


async def test_a_long_wait_is_reported_repeatedly(
    file: PlanStore, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(patience, "WARN_SECONDS", 0.05)
    store = file.patient(PATIENCE)
    run = await begun(store)
    with locked(tmp_path) as other:
        renewing = [asyncio.ensure_future(store.ledger.renew(run.id)) for _ in range(3)]
        await until(lambda: caplog.text.count("has been waiting since") == 3)
        other.execute("ROLLBACK")
    await asyncio.gather(*renewing)
    assert len({record.getMessage().partition(",")[0] for record in caplog.records[:3]}) == 1  # since when


@pytest.mark.parametrize("seconds", [0.0, 0.1])
async def test_nothing_is_written_or_waited_for_after_the_patience_is_used_up(
    file: PlanStore, tmp_path: Path, seconds: float, caplog: pytest.LogCaptureFixture
):
    store = file.patient(seconds)
    run = await begun(store)
    recorder = await store.ledger.recorder(run)
    with locked(tmp_path):
        with pytest.raises(StoreError, match=r"is locked .* everything up to here is recorded: .* `plan resume`") as raised:
            await recorder.intent(an_attempt(run, at=recorder.now()))
        assert ("PLAN_ADAPTER_STORE_PATIENCE_SECONDS" in str(raised.value), "has been waiting since" in caplog.text) == (
            seconds > 0,
            seconds > 0,
        )
        caplog.clear()
        with pytest.raises(StoreError, match="The run stopped"):
            await store.ledger.release(run.id)
        assert not caplog.records
    assert await store.attempts(run.id) == []
    assert (await store.run(run.id)).status is PlanStatus.EXECUTING


async def test_outside_a_run_the_error_is_reported_at_once(file: PlanStore, tmp_path: Path, caplog: pytest.LogCaptureFixture):
    run = await begun(file.patient(PATIENCE))
    with locked(tmp_path), pytest.raises(StoreError, match="is locked by another process") as raised:
        await file.cancel(run.id, "enough")
    assert "stops here" not in str(raised.value)
    assert not caplog.records


async def test_the_store_waits_for_a_full_disk(file: PlanStore, caplog: pytest.LogCaptureFixture):
    store = file.patient(PATIENCE)
    run = await begun(store)
    recorder = await store.ledger.recorder(run)
    await _limit_pages(file, 1)
    large = an_attempt(run, at=recorder.now(), parameters={"text": "x" * 500_000})
    intent = asyncio.ensure_future(recorder.intent(large))
    await until(lambda: "has been waiting since" in caplog.text)
    assert "cannot grow: the disk is full" in caplog.text
    assert (await store.run(run.id)).step("check").status is StepStatus.PENDING  # reads still work
    await _limit_pages(file, 100_000)
    await intent
    assert await store.attempts(run.id) == [large]
    assert (await store.verify(run.id)).ok


async def _limit_pages(store: PlanStore, pages: int) -> None:
    """Limit the file to `pages` pages. SQLite keeps the limit per connection, and the store has one."""

    def limit(connection: Connection) -> None:
        assert connection.exec_driver_sql(f"PRAGMA max_page_count={pages}").scalar()

    event.listen(Engine, "commit", limit)
    try:
        await store.now()
    finally:
        event.remove(Engine, "commit", limit)


async def test_a_permanent_error_is_not_waited_for(file: PlanStore, caplog: pytest.LogCaptureFixture):
    store = file.patient(PATIENCE)
    run = await begun(store)
    recorder = await store.ledger.recorder(run)
    await recorder.intent(an_attempt(run, at=recorder.now()))
    with pytest.raises(StoreError, match="another process is working on the same run"):
        await recorder.intent(an_attempt(run, at=recorder.now()))
    assert not caplog.records


async def test_a_run_taken_over_during_the_wait_is_released(file: PlanStore, tmp_path: Path, caplog: pytest.LogCaptureFixture):
    store = file.patient(PATIENCE)
    run = await begun(store)
    recorder = await store.ledger.recorder(run)
    with locked(tmp_path) as other:
        waiting = [
            asyncio.ensure_future(recorder.intent(an_attempt(run, at=recorder.now()))),
            asyncio.ensure_future(store.ledger.renew(run.id)),
        ]
        await until(lambda: "has been waiting since" in caplog.text)
        other.execute("UPDATE leases SET epoch = epoch + 1, owner = ?", (str(HostProcess.this()),))
        other.execute("COMMIT")
    outcomes = await asyncio.gather(*waiting, return_exceptions=True)
    assert [type(outcome) for outcome in outcomes] == [LeaseLostError, LeaseLostError]
    assert await store.attempts(run.id) == []


# PostgreSQL, whose connections end


@pytest.fixture
def migrated_url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """The URL of an empty store on PostgreSQL."""
    request.param = "postgresql"
    yield from store_at(request, tmp_path)


@asynccontextmanager
async def behind_proxy(server: PostgresServer, database: str) -> "AsyncGenerator[tuple[PlanStore, Proxy]]":
    """Yield a store that is reached through a proxy, and the proxy."""
    name = database.rpartition("/")[2]
    async with running_proxy(server.port) as proxy, PlanStore(PostgresServer(server.bin, server.folder, proxy.own_port).url(name)) as store:
        yield store, proxy


async def _record(store: PlanStore, run: PlanRun) -> Any:
    recorder = await store.ledger.recorder(run)
    attempt = an_attempt(run, at=recorder.now())
    await recorder.intent(attempt)
    return [row.id for row in await store.attempts(run.id)] == [attempt.id]


async def _end_step(store: PlanStore, run: PlanRun) -> Any:
    recorder = await store.ledger.recorder(run)
    recorder.step_ended(ended(run, "check", StepStatus.SKIPPED, at=recorder.now()))
    await recorder.flush()
    return [entry.kind for entry in await store.audit(run.id)].count("step_skipped") == 1


async def _claim(store: PlanStore, run: PlanRun) -> Any:
    await store.ledger.claim(run)
    await store.ledger.renew(run.id)
    return [entry.kind for entry in await store.audit(run.id)].count("run_started") == 2


async def _update(store: PlanStore, run: PlanRun) -> Any:
    run.status, run.completed_at = PlanStatus.COMPLETED, await store.now()
    await store.ledger.update(run)
    return (await store.run(run.id)).updated_at == run.updated_at


async def _release(store: PlanStore, run: PlanRun) -> Any:
    await store.ledger.release(run.id)
    return await store.ledger.owner(run.id) is None


async def _gate(store: PlanStore, run: PlanRun) -> Any:
    gate = await store.gates.open(a_gate(run, "drain"), timeout_ms=0)
    return [stored_gate.id for stored_gate in await store.gates.find(run_id=run.id)] == [gate.id]


async def _answer(store: PlanStore, run: PlanRun) -> Any:
    gate = await store.gates.open(a_gate(run, "drain"), timeout_ms=0)
    closed = await store.gates.answer(gate.id, answer := an_answer(gate))
    return (closed.end, (await store.gates.answer_to(gate.id) or answer).id) == ("answered", answer.id)


async def _approve(store: PlanStore, run: PlanRun) -> Any:
    other = await created(store, a_plan("another"))
    used = await store.ledger.use_approval(an_approval(run_id=other.id), run_id=other.id)
    return used.used_at is not None and len(await store.approvals(other.id)) == 1


WRITES: dict[str, Callable[[PlanStore, PlanRun], Awaitable[Any]]] = {
    "an intent": _record,
    "the end of a step": _end_step,
    "a run is claimed": _claim,
    "a run is changed": _update,
    "a run is released": _release,
    "a gate is opened": _gate,
    "a gate is answered": _answer,
    "an approval is used": _approve,
}


BRIEF = ("an intent", "a gate is answered")


@pytest.mark.parametrize(
    ("write", "cut"),
    [
        pytest.param(write, cut, id=f"{name}-{cut}", marks=() if cut == "after" or name in BRIEF else pytest.mark.thorough)
        for name, write in WRITES.items()
        for cut in ("before", "after", "at once")
    ],
)
async def test_a_commit_whose_reply_is_lost_is_applied_once(
    postgres_server: PostgresServer, migrated_url: str, write: Callable[[PlanStore, PlanRun], Awaitable[Any]], cut: Cut
):
    async with behind_proxy(postgres_server, migrated_url) as (impatient, proxy):
        store = impatient.patient(PATIENCE)
        run = await begun(store)
        if write is _claim:
            await store.ledger.release(run.id)
            run = await store.run(run.id)
            run.reason = None
        proxy.cuts.extend((cut, cut))
        assert await write(store, run)
        assert proxy.made == [cut, cut]
        assert (await store.verify(run.id)).ok
        told = [replace(entry, at=run.created_at) for entry in await store.audit(run.id)]
        assert all(entry not in told[:number] for number, entry in enumerate(told))
        run = await completed_step(store)  # later writes work
        assert (len(await store.attempts(run.id)), (await store.verify(run.id)).ok) == (2, True)


async def test_a_commit_still_in_progress_on_the_server_is_waited_for(postgres_server: PostgresServer, migrated_url: str):
    async with PlanStore(migrated_url) as store:
        run = await begun(store)
        link = audit.Link(run.id, len(await store.audit(run.id)) + 1, "d" * 64)
        driver: Any = asyncpg  # it has no types
        other = await driver.connect(migrated_url)
        appended = "INSERT INTO audit (run_id, number, tenant_id, at, kind, item, digest) VALUES ($1, $2, '', now(), 'run_changed', -1, $3)"
        try:
            await other.execute("BEGIN")
            await other.execute(f"SELECT pg_advisory_xact_lock(hashtextextended('plan_adapter.audit {run.id}', 0))")
            await other.execute(appended, *link)
            looking = asyncio.ensure_future(Sql(migrated_url).run(partial(audit.is_committed, link=link)))
            async with asyncio.timeout(30):
                while not await other.fetchval("SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"):
                    assert not looking.done()
            await other.execute("COMMIT")
            assert await looking
        finally:
            await other.close()
