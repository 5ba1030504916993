"""Benchmark of offline runs on SQLite against bare commits of two inserts per step, in one process and in alternating rounds."""

import statistics
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from sqlalchemy import event, text
from sqlalchemy.ext.asyncio import create_async_engine

from plan_adapter.model.status import PlanStatus
from plan_adapter.runner import arun_plan
from plan_adapter.store.store import PlanStore
from plan_adapter.tools.registry import ToolRegistry
from plan_adapter.tools.tool import tool
from tests.benchmarks.shapes import Shape, chain, layered

pytestmark = pytest.mark.benchmark

ROUNDS = 7


@tool(effect="read")
async def work(ms: int = 0) -> dict[str, bool]:
    """Do nothing."""
    return {"ok": True}


async def bare_commits(folder: Path, steps: int) -> None:
    """Commit two rows per step, one step after the other, with the store's own PRAGMAs."""
    engine = create_async_engine(f"sqlite+aiosqlite:///{folder / 'bare.db'}")

    @event.listens_for(engine.sync_engine, "connect")
    def pragmas(connection, _record):
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute("PRAGMA synchronous=FULL")

    async with engine.begin() as connection:
        await connection.execute(text("create table if not exists intent(id text primary key, step text, parameters text)"))
        await connection.execute(text("create table if not exists receipt(id text primary key, step text, result text)"))
    for n in range(steps):
        async with engine.begin() as connection:
            key = f"{time.monotonic_ns()}-{n}"
            await connection.execute(text("insert into intent values (:id, :step, '{}')"), {"id": key, "step": str(n)})
            await connection.execute(text("insert into receipt values (:id, :step, '{}')"), {"id": key, "step": str(n)})
    await engine.dispose()


async def timed(action: Callable[[], Awaitable[object]]) -> float:
    started = time.perf_counter()
    await action()
    return time.perf_counter() - started


@pytest.mark.parametrize(("shape", "limit"), [(chain(100), 1.5), (layered(10, 20), 0.5)], ids=lambda value: getattr(value, "name", ""))
async def test_an_offline_run_is_about_as_fast_as_bare_commits(shape: Shape, limit: float, tmp_path: Path):
    registry = ToolRegistry([work])
    async with PlanStore(f"sqlite:///{tmp_path / 'ours.db'}") as store:

        async def ours() -> None:
            run = await arun_plan(shape.plan(), tools=registry, store=store, offline=True)
            assert run.status is PlanStatus.COMPLETED

        async def bare() -> None:
            await bare_commits(tmp_path, len(shape.steps))

        await ours(), await bare()
        rounds = [(await timed(ours), await timed(bare)) for _ in range(ROUNDS)]
    ratio = statistics.median(a / b for a, b in rounds)
    each = [statistics.median(column) / len(shape.steps) * 1000 for column in zip(*rounds, strict=True)]
    print(f"\n{shape.name}: offline run {each[0]:.2f} ms a step, bare commits {each[1]:.2f} ms a step, ratio {ratio:.2f} (at most {limit})")
    assert ratio <= limit
