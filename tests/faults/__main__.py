"""`python -m tests.faults N=1000 SEED=1`: N kills and N/2 races, half on SQLite and half on PostgreSQL.

With `GOALS=1`, every run has a goal. `REPLAY=kind/seed/database` repeats one trial and prints its events. The seed decides plans, people's
actions and faults, but not the order of threads. With `HOSTS=20`, restarts of 20 hosts are killed instead: see `fleet`.
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
from tests.faults.fleet import kill_fleets
from tests.faults.harness import ALL_TARGETS, InOrder, random_fault, run_trial
from tests.faults.races import RACES, race
from tests.faults.shares import AIMED, AIMED_TARGETS, Share, run_share
from tests.postgres import running_server


def main(arguments: Sequence[str]) -> int:
    """Run the command line and return the exit code."""
    options = {name: value for name, _, value in (argument.partition("=") for argument in arguments)}
    for name in [name for name in os.environ if name.startswith(("PREFECT_", "PLAN_ADAPTER_"))]:
        del os.environ[name]
    if hosts := options.get("HOSTS"):
        return kill_fleets(int(options.get("N") or 300), int(options.get("SEED") or 1), int(hosts))
    memory = Path("/dev/shm")  # it keeps what a killed process wrote, and is faster than a disk
    folder = Path(tempfile.mkdtemp(prefix="plan-faults-", dir=memory if memory.is_dir() else None))
    with ExitStack() as stack:
        try:
            server = stack.enter_context(running_server())
            stores = [None, f"{server.url(server.make_database())}?timeout=60"]  # a busy machine is slow
            asyncio.run(_migrate(stores[1] or ""))
        except pytest.skip.Exception as missing:
            print(f"only on SQLite: {missing}")
            stores = [None]
        if replay := options.get("REPLAY"):
            return asyncio.run(_replay(replay, stores, folder))
        return _all(int(options.get("N") or 1000), int(options.get("SEED") or 1), stores, folder, with_goals=bool(options.get("GOALS")))


def _all(count: int, seed: int, stores: Sequence[str | None], folder: Path, *, with_goals: bool) -> int:
    began, cores = time.monotonic(), 2
    shares = [
        Share(-(-count // cores), -(-count // 2 // cores), range(seed + core, sys.maxsize, cores), stores, folder, with_goals)
        for core in range(cores)
    ]
    total = Share(0, 0, range(seed, sys.maxsize), stores, folder, with_goals)
    with ProcessPoolExecutor(cores, mp_context=multiprocessing.get_context("spawn")) as pool:
        for future in as_completed([pool.submit(run_share, share) for share in shares]):
            part = future.result()
            total.done, total.raced, total.violations = total.done + part.done, total.raced + part.raced, total.violations + part.violations
            total.in_goal_runs += part.in_goal_runs
            total.processes, total.trials = total.processes + part.processes, total.trials + part.trials
    asyncio.run(total.run_missed())
    done, raced = total.done, total.raced
    for point, detail in ALL_TARGETS:
        print(f"{done[point, detail]:6}  {point}" + (f" ({detail})" if detail else ""))
    for kind in RACES:
        print(f"{raced[kind.__name__]:6}  {kind.__name__}")
    missed = [target for target in ALL_TARGETS if not done[target]] + [kind.__name__ for kind in RACES if not raced[kind.__name__]]
    seconds = time.monotonic() - began
    kills = f"{done.total()} kills, {total.in_goal_runs} of them in runs with goals"
    counts = f"{kills}, {raced.total()} races, {total.trials} runs, {total.processes} processes, {len(total.violations)} violations"
    print(f"{counts}, {seconds:.0f} s, SEED={seed}")
    if missed:
        print(f"never reached: {missed}")
    return 1 if total.violations or missed else 0


async def _replay(replay: str, stores: Sequence[str | None], folder: Path) -> int:
    name, seed, database = replay.split("/")
    store = next((url for url in stores if (url is None) == (database == "sqlite")), None)
    kind = next((kind for kind in RACES if kind.__name__ == name), None)
    choose = InOrder(AIMED_TARGETS[int(seed)]) if name == AIMED else random_fault
    trial = await run_trial(int(seed), folder, store, choose=choose) if kind is None else (await race(kind, int(seed), folder, store))[0]
    print("\n".join([*trial.events, *map(str, trial.violations)]))
    return 1 if trial.violations else 0


async def _migrate(url: str) -> None:
    async with PlanStore(url) as store:
        await store.upgrade()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
