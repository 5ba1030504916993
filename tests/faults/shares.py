"""The kills and races that one process of the harness runs."""

import asyncio
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path

from tests.faults.harness import COMMAND_TARGETS, GOAL_TARGETS, TARGETS, InOrder, Target, Trial, run_trial
from tests.faults.plans import COMMANDS, EVERYTHING, GOAL, has_goals, scenario_of
from tests.faults.races import RACES, Race, race

KILLS = "kills"
AIMED = "aimed"
AIMED_TARGETS = {EVERYTHING: TARGETS, GOAL: GOAL_TARGETS, COMMANDS: COMMAND_TARGETS}
"""The seeds of runs that reach every target of a list."""
MAX_SEEDS = 20
"""A race does not happen if the run ends before it. Of this many seeds, at least one leads to a race."""
CONCURRENT_TRIALS = 3
"""Trials that run at the same time in each process of the harness."""


@dataclass
class Share:
    """What one process has to run, and its results."""

    kills: int
    races: int
    seeds: range
    stores: Sequence[str | None]  # None: SQLite
    folder: Path
    with_goals: bool = False  # only runs with goals
    done: Counter[Target] = field(default_factory=Counter[Target])
    raced: Counter[str] = field(default_factory=Counter[str])
    in_goal_runs: int = 0  # kills of runs with goals
    processes: int = 0
    trials: int = 0
    violations: list[str] = field(default_factory=list[str])

    async def run(self) -> "Share":
        """Run all kills and races."""
        seeds = self._seeds()
        await asyncio.gather(*(self._kill(seeds) for _ in range(CONCURRENT_TRIALS)))
        await asyncio.gather(*(self._race(seeds) for _ in range(CONCURRENT_TRIALS)))
        return self

    async def run_missed(self) -> "Share":
        """Run the targets and races that no random draw reached: targets in a run that reaches all of them, races with more seeds."""
        for seed, targets in AIMED_TARGETS.items():
            if missed := [target for target in targets if not self.done[target]]:
                self._count(AIMED, await run_trial(seed, self.folder, self.stores[0], choose=InOrder(missed)))
        seeds = self._seeds()
        for kind in RACES:
            for seed in islice(seeds, MAX_SEEDS):
                if self.raced[kind.__name__]:
                    break
                await self._race_once(kind, seed)
        return self

    def _seeds(self) -> Iterator[int]:
        return (seed for seed in self.seeds if not self.with_goals or has_goals(scenario_of(seed).plan))

    async def _kill(self, seeds: Iterator[int]) -> None:
        while self.done.total() < self.kills:
            seed = next(seeds)
            self._count(KILLS, await run_trial(seed, self.folder, self._store(seed)))

    async def _race(self, seeds: Iterator[int]) -> None:
        while self.raced.total() < self.races:
            seed = next(seeds)
            await self._race_once(RACES[seed % len(RACES)], seed)

    async def _race_once(self, kind: Race, seed: int) -> None:
        trial, happened = await race(kind, seed, self.folder, self._store(seed))
        self.raced[kind.__name__] += happened
        self._count(kind.__name__, trial)

    def _store(self, seed: int) -> str | None:
        return self.stores[seed // len(RACES) % len(self.stores)]

    def _count(self, kind: str, trial: Trial) -> None:
        self.trials += 1
        self.processes += trial.processes
        if kind in (KILLS, AIMED):
            self.done += trial.kills
            self.in_goal_runs += trial.kills.total() if trial.has_goals else 0
        database = "sqlite" if trial.workspace.store_url.startswith("sqlite") else "postgresql"
        if trial.violations:
            lines = [f"VIOLATION: make faults REPLAY={kind}/{trial.seed}/{database}   ({trial.workspace.folder})"]
            self.violations.append("\n  ".join([*lines, *map(str, trial.violations), *trial.events]))
            print(self.violations[-1], flush=True)
        elif self.trials % 25 == 0:
            print(f"… {self.trials} runs, {self.done.total()} kills, {self.raced.total()} races", file=sys.stderr, flush=True)


def run_share(share: Share) -> Share:
    """Run the share of one process."""
    return asyncio.run(share.run())
