"""`python -m tests.faults N=1000 SEED=1`: N kills and N/2 races, half on SQLite and half on PostgreSQL.

With `GOALS=1`, every run has a goal. `REPLAY=kind/seed/database` does one of them again, and shows what happened. The seed decides about
plans, people and faults; which of several threads comes first it cannot.
"""

import asyncio
import multiprocessing
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import ExitStack
from pathlib import Path

import pytest

from plan_adapter import PlanStore
from tests.faults.harness import GOAL_TARGETS, TARGETS, Each, at_random, trial
from tests.faults.races import RACES, race
from tests.faults.shares import AIMED, AIMS, Share, share
from tests.postgres import running_server


def main(words: Sequence[str]) -> int:
    """Do what the words of the command line say, and return the exit code."""
    given = dict(word.partition("=")[::2] for word in words)
    for name in [name for name in os.environ if name.startswith(("PREFECT_", "PLAN_ADAPTER_"))]:
        del os.environ[name]
    memory = Path("/dev/shm")  # what a killed process has written stays there, too, and nobody waits for a disk
    folder = Path(tempfile.mkdtemp(prefix="plan-faults-", dir=memory if memory.is_dir() else None))
    with ExitStack() as stack:
        try:
            server = stack.enter_context(running_server())
            stores = [None, f"{server.url(server.make_database())}?timeout=60"]  # on a busy machine it takes its time
            asyncio.run(_migrate(stores[1] or ""))
        except pytest.skip.Exception as missing:
            print(f"only on SQLite: {missing}")
            stores = [None]
        if replay := given.get("REPLAY"):
            return asyncio.run(_replay(replay, stores, folder))
        return _all(int(given.get("N") or 1000), int(given.get("SEED") or 1), stores, folder, with_goals=bool(given.get("GOALS")))


def _all(count: int, seed: int, stores: Sequence[str | None], folder: Path, *, with_goals: bool) -> int:
    began, cores = time.monotonic(), 2
    shares = [
        Share(-(-count // cores), -(-count // 2 // cores), range(seed + core, sys.maxsize, cores), stores, folder, with_goals)
        for core in range(cores)
    ]
    every = Share(0, 0, range(seed, sys.maxsize), stores, folder, with_goals)
    with ProcessPoolExecutor(cores, mp_context=multiprocessing.get_context("spawn")) as pool:
        for part in as_completed([pool.submit(share, work) for work in shares]):
            ended = part.result()
            every.done, every.raced, every.found = every.done + ended.done, every.raced + ended.raced, every.found + ended.found
            every.in_goal_runs += ended.in_goal_runs
            every.processes, every.trials = every.processes + ended.processes, every.trials + ended.trials
    asyncio.run(every.aim())
    done, raced = every.done, every.raced
    places = (*TARGETS, *GOAL_TARGETS)
    for point, detail in places:
        print(f"{done[point, detail]:6}  {point}" + (f" ({detail})" if detail else ""))
    for kind in RACES:
        print(f"{raced[kind.__name__]:6}  {kind.__name__}")
    missed = [target for target in places if not done[target]] + [kind.__name__ for kind in RACES if not raced[kind.__name__]]
    seconds = time.monotonic() - began
    kills = f"{done.total()} kills, {every.in_goal_runs} of them in runs with goals"
    counts = f"{kills}, {raced.total()} races, {every.trials} runs, {every.processes} processes, {len(every.found)} violations"
    print(f"{counts}, {seconds:.0f} s, SEED={seed}")
    if missed:
        print(f"never came to: {missed}")
    return 1 if every.found or missed else 0


async def _replay(words: str, stores: Sequence[str | None], folder: Path) -> int:
    name, seed, database = words.split("/")
    store = next((url for url in stores if (url is None) == (database == "sqlite")), None)
    kind = next((kind for kind in RACES if kind.__name__ == name), None)
    choose = Each(AIMS[int(seed)]) if name == AIMED else at_random
    ended = await trial(int(seed), folder, store, choose=choose) if kind is None else (await race(kind, int(seed), folder, store))[0]
    print("\n".join([*ended.told, *map(str, ended.found)]))
    return 1 if ended.found else 0


async def _migrate(url: str) -> None:
    async with PlanStore(url) as store:
        await store.upgrade()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
