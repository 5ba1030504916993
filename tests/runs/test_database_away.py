"""Tests of runs that lose their database: they wait and continue, or stop so that they can be resumed."""

import asyncio
import contextlib
import random
import sqlite3
import subprocess
import tempfile
from collections.abc import AsyncIterator, Callable, Generator, Iterator
from pathlib import Path
from uuid import UUID

import pytest
from prefect import get_client

from plan_adapter import ExecutionPlan, PlanRun, PlanStore, ToolRegistry, tool
from plan_adapter.engine.connection import Server
from plan_adapter.errors import StoreError
from plan_adapter.model.status import Outcome, RunReason, StepStatus
from plan_adapter.runs import aresume_run, arun_plan
from plan_adapter.store import PlanStatus
from plan_adapter.store.database import patience
from tests.postgres import PASSWORD, PostgresServer, running_server


@pytest.fixture(autouse=True)
def short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Retry soon while the database is unavailable."""
    monkeypatch.setattr(patience, "LONGEST_WAIT_SECONDS", 0.1)


@pytest.fixture(scope="module")
def postgres_server() -> Iterator[PostgresServer]:
    """Yield a server that these tests may stop."""
    with running_server() as server:
        yield server


@pytest.fixture
async def postgres(postgres_server: PostgresServer, postgres_database: str) -> AsyncIterator[PlanStore]:
    """Yield a store on a server that a test may stop; the server runs again afterwards."""
    async with PlanStore(postgres_database) as store:
        await store.upgrade()
        yield store
        with contextlib.suppress(AssertionError):  # it is already running
            await asyncio.to_thread(postgres_server.start)


@contextlib.contextmanager
def small_disk() -> Generator[Path]:
    """Yield a file system of 16 MB, or skip the test if this user may not mount one."""
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=16m", "tmpfs", folder], capture_output=True, check=False)
        if mounted.returncode != 0:
            pytest.skip("this user may not mount a small file system")
        try:
            yield Path(folder)
        finally:
            subprocess.run(["umount", "-l", folder], check=True)


def steps(*names: str, parallel: int = 1) -> ExecutionPlan:
    """Return a plan that calls the tools of these names, each after the one before it unless they are `parallel`."""
    plan = ExecutionPlan(name="数据库", description="Lose the database, then continue")
    plan.options.require_approval = False
    plan.options.allow_parallel, plan.options.max_parallel_steps = parallel > 1, parallel
    for number, name in enumerate(names):
        before = [f"s{number - 1}"] if number and parallel == 1 else []
        plan.add_step(name, f"步骤 {number}", id=f"s{number}", depends_on=before)
    return plan


async def until(condition: Callable[[], bool]) -> None:
    """Wait until `condition` is true."""
    async with asyncio.timeout(60):
        while not condition():
            await asyncio.sleep(0.01)


async def is_complete(run: PlanRun, store: PlanStore) -> bool:
    """Return whether every step has exactly one intent and one receipt, and the record verifies."""
    attempts, receipts = await store.attempts(run.id), await store.receipts(run.id)
    ids = sorted(step.id for step in run.steps)
    written = [sorted(row.step_id for row in rows) for rows in (attempts, receipts)]
    kinds = [(entry.kind, entry.step_id) for entry in await store.audit(run.id)]
    return written == [ids, ids] and len(set(kinds)) == len(kinds) and (await store.verify(run.id)).ok


class World:
    """Tools whose calls are counted; `lose` also takes the database away."""

    def __init__(self, lose: Callable[[], None]) -> None:
        """Use `lose` to take the database away."""
        self.calls = list[str]()

        @tool(name="lose", effect="write")
        def lose_it() -> str:
            """Lose the database."""
            self.calls.append("lose")
            lose()
            return "丢了"

        @tool(effect="write")
        def act() -> str:
            """Act once."""
            self.calls.append("act")
            return "acted"

        self.tools = ToolRegistry([lose_it, act])


async def test_a_run_completes_after_its_database_server_is_killed_and_restarted(
    postgres: PlanStore, postgres_server: PostgresServer, caplog: pytest.LogCaptureFixture
) -> None:
    world = World(postgres_server.stop)
    running = asyncio.ensure_future(arun_plan(steps("act", "lose", "act", "act"), tools=world.tools, store=postgres, offline=True))
    await until(lambda: "has been waiting since" in caplog.text)
    assert world.calls == ["act", "lose"]  # no step starts before the previous receipt is written
    with pytest.raises(StoreError, match="cannot be reached"):  # readers get the error at once
        await postgres.runs()
    await asyncio.to_thread(postgres_server.start)
    run = await running
    assert (run.status, run.reason, world.calls) == (PlanStatus.COMPLETED, None, ["act", "lose", "act", "act"])
    assert await is_complete(run, postgres)
    assert PASSWORD not in caplog.text
    assert "is available again after" in caplog.text


async def test_a_run_waits_for_a_locked_database_file_beyond_the_end_of_its_lease(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("PLAN_ADAPTER_LEASE_SECONDS", "1")
    with contextlib.closing(sqlite3.connect(tmp_path / "plans.db", isolation_level=None, check_same_thread=False)) as other:
        world = World(lambda: other.execute("BEGIN EXCLUSIVE") and None)
        async with PlanStore(f"sqlite:///{tmp_path / 'plans.db'}?timeout=0.05") as store:
            running = asyncio.ensure_future(arun_plan(steps("lose", "act"), tools=world.tools, store=store, offline=True))
            await until(lambda: "has been waiting since" in caplog.text)
            over = "SELECT until < strftime('%Y-%m-%d %H:%M:%f', 'now') FROM leases"
            await until(lambda: other.execute(over).fetchone()[0] == 1)
            assert world.calls == ["lose"]
            other.execute("ROLLBACK")
            run = await running
            assert (run.status, world.calls) == (PlanStatus.COMPLETED, ["lose", "act"])
            assert await is_complete(run, store)


async def test_a_run_waits_until_a_full_disk_has_space_again(caplog: pytest.LogCaptureFixture) -> None:
    with small_disk() as disk:

        def fill() -> None:
            with contextlib.suppress(OSError), (disk / "filler").open("wb", buffering=0) as filler:
                while filler.write(b"x" * 4096):
                    pass

        world = World(fill)
        names = ["act", "lose", *["act"] * 60]  # more than fits into the space that the write-ahead log already has
        async with PlanStore(f"sqlite:///{disk / 'plans.db'}") as store:
            running = asyncio.ensure_future(arun_plan(steps(*names), tools=world.tools, store=store, offline=True))
            await until(lambda: "has been waiting since" in caplog.text)
            assert "full" in caplog.text
            (disk / "filler").unlink()
            run = await running
            assert (run.status, len(world.calls)) == (PlanStatus.COMPLETED, 62)
            assert await is_complete(run, store)


async def test_a_run_that_waited_too_long_stops_without_failing_and_can_be_resumed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PLAN_ADAPTER_STORE_PATIENCE_SECONDS", "0.2")
    with contextlib.closing(sqlite3.connect(tmp_path / "plans.db", isolation_level=None, check_same_thread=False)) as other:
        world = World(lambda: other.execute("BEGIN EXCLUSIVE") and None)
        async with PlanStore(f"sqlite:///{tmp_path / 'plans.db'}?timeout=0.05") as store:
            with pytest.raises(StoreError, match=r"The run waited 0.2 s for it .* `plan resume` continues it"):
                await arun_plan(steps("act", "lose", "act"), tools=world.tools, store=store, offline=True)
            other.execute("ROLLBACK")
            [left] = await store.runs()
            assert (left.status, left.step("s0").status) == (PlanStatus.EXECUTING, StepStatus.COMPLETED)
            assert world.calls == ["act", "lose"]
            await store.ledger.release(left.id)  # its process is this test, which still lives
            run = await aresume_run(left.id, tools=world.tools, store=store, offline=True)
            # Only the stopped process knows whether `lose` was done, so a person decides.
            assert (run.reason, world.calls) == (RunReason.UNKNOWN, ["act", "lose"])
            assert (await store.verify(run.id)).ok


async def test_a_step_that_times_out_before_its_intent_is_not_called_and_has_a_known_outcome(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with contextlib.closing(sqlite3.connect(tmp_path / "plans.db", isolation_level=None, check_same_thread=False)) as other:
        world = World(lambda: other.execute("BEGIN EXCLUSIVE") and None)
        plan = steps("lose", "act")
        plan.options.total_timeout_ms = 500
        async with PlanStore(f"sqlite:///{tmp_path / 'plans.db'}?timeout=0.05") as store:
            running = asyncio.ensure_future(arun_plan(plan, tools=world.tools, store=store, offline=True))
            await until(lambda: "has been waiting since" in caplog.text)
            await asyncio.wait([running], timeout=0.6)  # the total timeout of the run
            other.execute("ROLLBACK")
            run = await running
            assert (run.reason, run.step("s1").outcome, world.calls) == (RunReason.TIMED_OUT, Outcome.FAILED, ["lose"])
            assert await store.outcomes.unknown(run.id) == []
            again = await aresume_run(run.id, tools=world.tools, store=store, offline=True)
            assert (again.status, world.calls) == (PlanStatus.COMPLETED, ["lose", "act"])


async def test_prefect_shows_a_stopped_run_as_crashed_and_as_completed_after_it_is_resumed(
    prefect_server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PLAN_ADAPTER_STORE_PATIENCE_SECONDS", "0.2")
    with contextlib.closing(sqlite3.connect(tmp_path / "plans.db", isolation_level=None, check_same_thread=False)) as other:

        @tool(effect="read")
        def lose() -> str:
            """Lose the database, the first time."""
            if not lost:
                other.execute("BEGIN EXCLUSIVE")
                lost.append(1)
            return "seen"

        lost, tools = list[int](), ToolRegistry([lose])
        async with PlanStore(f"sqlite:///{tmp_path / 'plans.db'}?timeout=0.05") as store:
            with pytest.raises(StoreError, match="is locked"):
                await arun_plan(steps("lose", "lose"), tools=tools, store=store)
            other.execute("ROLLBACK")
            [left] = await store.runs()
            assert await shown(left) == ("CRASHED", "Interrupted")
            await store.ledger.release(left.id)
            run = await aresume_run(left.id, tools=tools, store=store)
            assert (run.status, await shown(run)) == (PlanStatus.COMPLETED, ("COMPLETED", "Completed"))


async def shown(run: PlanRun) -> tuple[str, str | None]:
    """Return the type and the name of the state in which Prefect shows `run`."""
    assert run.flow_run_id is not None
    async with get_client() as client:
        state = (await client.read_flow_run(UUID(run.flow_run_id))).state
    assert state is not None
    return state.type.value, state.name


@pytest.mark.thorough
async def test_a_database_server_killed_repeatedly_loses_and_repeats_nothing(
    postgres: PlanStore, postgres_server: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(patience, "LONGEST_WAIT_SECONDS", 0.02)
    chance = random.Random(20261122)
    world = World(lambda: None)
    running = asyncio.ensure_future(arun_plan(steps(*["act"] * 400, parallel=4), tools=world.tools, store=postgres, offline=True))
    restarts = 0
    while not running.done():
        begun = len(world.calls)
        await until(lambda begun=begun: running.done() or len(world.calls) > begun + chance.randrange(60))
        await asyncio.to_thread(postgres_server.stop)
        await asyncio.to_thread(postgres_server.start)
        restarts += 1
    run = await running
    assert (run.status, len(world.calls)) == (PlanStatus.COMPLETED, 400)
    assert restarts > 5
    assert await is_complete(run, postgres)
