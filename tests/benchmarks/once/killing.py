"""Kills programs at each place, starts them again until they end, and counts."""

import json
import random
import signal
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import cycle, islice
from pathlib import Path
from types import TracebackType

from tests.benchmarks.once.world import World

PLACES = ("before the gate", "at the gate", "before the effect", "in the effect", "after the effect", "after the call", "in the next step")
"""Where each program is killed. `after the call` is up to 50 ms after the call has returned, drawn for each trial."""
AFTER_CALL_SECONDS = 0.05
MAX_STARTS = 4
"""How often a program may be started again until it must have ended."""


@dataclass(frozen=True)
class Kill:
    """What came of one approved charge whose process was killed."""

    place: str
    effects: int
    unknowns: int  # how often the person was told that the outcome is unknown

    @property
    def is_repeated(self) -> bool:
        """Whether it was charged again, and nobody was told that it may have been charged already."""
        return self.effects > 1 and not self.unknowns


class Program:
    """A program that forks a process for each start."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str], world: World, folder: Path) -> None:
        """Start it."""
        self._process = subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1)
        self._world, self._folder = world, folder

    def __enter__(self) -> "Program":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._process.__exit__(kind, error, trace)

    def kill(self, place: str, seconds: float) -> Kill | None:
        """Kill a new charge at `place`, and start it again until it ends. Return None if it ended before the place was reached."""
        folder = Path(tempfile.mkdtemp(dir=self._folder))
        exits = [self._start(folder, place, seconds)]
        while exits[-1] != 0 and len(exits) <= MAX_STARTS:
            exits.append(self._start(folder))
        if exits[0] == 0:
            return None
        if exits[0] != -signal.SIGKILL:
            raise RuntimeError(f"the program ended with {exits}; its log:\n{(folder / 'log').read_text(encoding='utf-8')[-4000:]}")
        return Kill(place, self._world.charges[f"/{folder.name}"], len(_lines(folder / "unknown")))

    def places(self) -> list[str]:
        """Return the crash points that a charge passes, in order, each once."""
        folder = Path(tempfile.mkdtemp(dir=self._folder))
        if self._start(folder, "list") != 0:
            raise RuntimeError((folder / "log").read_text(encoding="utf-8")[-4000:])
        return list(dict.fromkeys(_lines(folder / "places")))

    def _start(self, folder: Path, place: str = "", seconds: float = 0.0) -> int:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        order = {"folder": str(folder), "world": self._world.url(f"/{folder.name}"), "place": place, "seconds": seconds}
        self._process.stdin.write(json.dumps(order) + "\n")
        return int(self._process.stdout.readline())


def kill_often(programs: Sequence[Program], places: Sequence[str], count: int, seed: int) -> list[Kill]:
    """Kill `count` charges, at each place equally often, with each program at the same time."""
    drawn = random.Random(seed)
    trials = [(place, drawn.uniform(0, AFTER_CALL_SECONDS)) for place in islice(cycle(places), count)]

    def share(number: int) -> list[Kill]:
        found = [programs[number].kill(place, seconds) for place, seconds in trials[number :: len(programs)]]
        return [kill for kill in found if kill is not None]

    with ThreadPoolExecutor(len(programs)) as pool:
        return [kill for kills in pool.map(share, range(len(programs))) for kill in kills]


def _lines(path: Path) -> list[str]:
    return path.read_text(encoding="utf-8").splitlines() if path.exists() else []
