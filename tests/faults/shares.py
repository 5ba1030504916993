"""The kills and races that one process of the harness looks after."""

import asyncio
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path

from tests.faults.harness import GOAL_TARGETS, TARGETS, Each, Target, Trial, trial
from tests.faults.plans import EVERYTHING, GOAL, has_goals, scenario_of
from tests.faults.races import RACES, Race, race

KILLS = "kills"
AIMED = "aimed"
AIMS = {EVERYTHING: TARGETS, GOAL: GOAL_TARGETS}
"""The seeds of runs that come to every place of a list."""
MOST_SEEDS = 20
"""A race does not come about where the run ends before it; of so many seeds one does."""
SIDE_BY_SIDE = 3
"""Trials at once in each process of the harness."""


@dataclass
class Share:
    """What one process is to do, or has done."""

    kills: int
    races: int
    seeds: range
    stores: Sequence[str | None]  # None: SQLite
    folder: Path
    with_goals: bool = False  # whether every drawn run has a goal
    done: Counter[Target] = field(default_factory=Counter[Target])
    raced: Counter[str] = field(default_factory=Counter[str])
    in_goal_runs: int = 0  # kills of runs with goals
    processes: int = 0
    trials: int = 0
    found: list[str] = field(default_factory=list[str])

    async def do(self) -> "Share":
        """Do all of it."""
        seeds = self._drawn()
        await asyncio.gather(*(self._kill(seeds) for _ in range(SIDE_BY_SIDE)))
        await asyncio.gather(*(self._race(seeds) for _ in range(SIDE_BY_SIDE)))
        return self

    async def aim(self) -> "Share":
        """Come to what all draws together have left out: to places in a run that comes to every place, to races with further seeds."""
        for seed, targets in AIMS.items():
            if left := [target for target in targets if not self.done[target]]:
                self._count(AIMED, await trial(seed, self.folder, self.stores[0], choose=Each(left)))
        seeds = self._drawn()
        for kind in RACES:
            for seed in islice(seeds, MOST_SEEDS):
                if self.raced[kind.__name__]:
                    break
                await self._race_once(kind, seed)
        return self

    def _drawn(self) -> Iterator[int]:
        return (seed for seed in self.seeds if not self.with_goals or has_goals(scenario_of(seed).plan))

    async def _kill(self, seeds: Iterator[int]) -> None:
        while self.done.total() < self.kills:
            seed = next(seeds)
            self._count(KILLS, await trial(seed, self.folder, self._store(seed)))

    async def _race(self, seeds: Iterator[int]) -> None:
        while self.raced.total() < self.races:
            seed = next(seeds)
            await self._race_once(RACES[seed % len(RACES)], seed)

    async def _race_once(self, kind: Race, seed: int) -> None:
        ended, happened = await race(kind, seed, self.folder, self._store(seed))
        self.raced[kind.__name__] += happened
        self._count(kind.__name__, ended)

    def _store(self, seed: int) -> str | None:
        return self.stores[seed // len(RACES) % len(self.stores)]

    def _count(self, kind: str, ended: Trial) -> None:
        self.trials += 1
        self.processes += ended.processes
        if kind in (KILLS, AIMED):
            self.done += ended.kills
            self.in_goal_runs += ended.kills.total() if ended.has_goals else 0
        database = "sqlite" if ended.place.store_url.startswith("sqlite") else "postgresql"
        if ended.found:
            words = [f"VIOLATION: make faults REPLAY={kind}/{ended.seed}/{database}   ({ended.place.folder})"]
            self.found.append("\n  ".join([*words, *map(str, ended.found), *ended.told]))
            print(self.found[-1], flush=True)
        elif self.trials % 25 == 0:
            print(f"… {self.trials} runs, {self.done.total()} kills, {self.raced.total()} races", file=sys.stderr, flush=True)


def share(work: Share) -> Share:
    """Do one process's share."""
    return asyncio.run(work.do())
