"""`make bench-once`: kill an approved call at each place, with each program, and print what arrived in the outside world.

    python -m tests.benchmarks.once KILLS=520 PEER_KILLS=42 SEED=1 ONLY=langgraph

Each peer is installed, as new as the registry has it, in an environment of its own in `.matrix`.
"""

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from statistics import fmean

from tests.benchmarks.once.killing import PLACES, Kill, Program, kill_often
from tests.benchmarks.once.world import World, running_world
from tests.matrix import FOLDER, INSTALL, started

PROGRAMS = Path(__file__).with_name("programs")
CORES = 2
CERTAIN = ("in the effect", "after the effect")
"""The places where the effect has happened and no record of it can exist."""
LATER = ("after the call", "in the next step")
"""The places where a record of it may exist, or does."""


@dataclass(frozen=True)
class Peer:
    """A program and what it needs installed."""

    name: str
    program: str
    packages: tuple[str, ...]
    needs_server: bool = False

    @property
    def interpreter(self) -> Path:
        """The Python of its environment."""
        return FOLDER / f"once-{self.program}" / "bin" / "python" if self.packages else Path(sys.executable)

    def install(self) -> str:
        """Install the newest versions and return that of its first package."""
        if not self.packages:
            return version("prefect-plan-adapter")
        if not self.interpreter.exists():
            subprocess.run([sys.executable, "-m", "venv", str(self.interpreter.parents[1])], check=True)
        subprocess.run([str(self.interpreter), *INSTALL, "--upgrade", *self.packages], check=True, stderr=subprocess.DEVNULL)
        code = f"import importlib.metadata as m; print(m.version({self.packages[0]!r}))"
        return subprocess.run([str(self.interpreter), "-c", code], check=True, capture_output=True, text=True).stdout.strip()

    @contextmanager
    def running(self, folder: Path, world: World) -> Iterator[list[Program]]:
        """Yield a program for each core."""
        environment = {name: value for name, value in os.environ.items() if not name.startswith(("PREFECT_", "PLAN_ADAPTER_"))}
        with ExitStack() as stack:
            if self.needs_server:
                environment["PREFECT_API_URL"] = stack.enter_context(started(self.interpreter))
            if not self.packages:
                environment["PLAN_ADAPTER_HOME"] = str(folder / "home")
            command = [str(self.interpreter), str(PROGRAMS / f"{self.program}.py")]
            yield [stack.enter_context(Program(command, environment, world, folder)) for _ in range(CORES)]


US = Peer("this package", "by_us", ())
PEERS = (
    Peer("Prefect, by hand", "by_prefect", ("prefect",), needs_server=True),
    Peer("LangGraph", "by_langgraph", ("langgraph", "langgraph-checkpoint-sqlite")),
    Peer("pydantic-ai", "by_pydantic_ai", ("pydantic-ai-slim",)),
    Peer("OpenAI Agents SDK", "by_openai_agents", ("openai-agents",)),
    Peer("DBOS", "by_dbos", ("dbos",)),
)


@dataclass(frozen=True)
class Row:
    """What came of the kills of one program."""

    name: str
    version: str
    kills: Sequence[Kill]

    def cells(self) -> list[str]:
        """Return its cells of the table."""
        return [
            f"{self.name} {self.version}",
            str(len(self.kills)),
            _mean(self.kills),
            _mean(kill for kill in self.kills if kill.place in CERTAIN),
            _mean(kill for kill in self.kills if kill.place in LATER),
            str(sum(kill.is_repeated for kill in self.kills)),
            str(sum(kill.unknowns > 0 for kill in self.kills)),
            str(sum(kill.effects == 0 for kill in self.kills)),
        ]


def _mean(kills: Iterable[Kill]) -> str:
    return f"{fmean(kill.effects for kill in kills):.2f}"


HEADER = (
    *("program", "kills", "effects per approved call", "killed in or right after the effect", "killed later"),
    *("repeated silently", "reported as unknown", "never done"),
)


def main(arguments: Sequence[str]) -> int:
    """Run the command line and return the exit code: 1 if our own program repeated or lost an effect."""
    options = {name: value for name, _, value in (argument.partition("=") for argument in arguments)}
    seed, only = int(options.get("SEED") or 1), options.get("ONLY") or ""
    rows, began = list[Row](), time.monotonic()
    print("| " + " | ".join(HEADER) + " |\n|" + "---|" * len(HEADER))
    for peer in (US, *PEERS):
        if only not in peer.program:
            continue
        count = int(options.get("KILLS") or 520) if peer is US else int(options.get("PEER_KILLS") or 42)
        row = measure(peer, count, seed)
        rows.append(row)
        print("| " + " | ".join(row.cells()) + " |", flush=True)
    print(f"{time.monotonic() - began:.0f} s, SEED={seed}, Python {sys.version.split()[0]}")
    return max((int(any(kill.effects != 1 for kill in row.kills)) for row in rows if row.name == US.name), default=0)


def measure(peer: Peer, count: int, seed: int) -> Row:
    """Install a program and kill it `count` times."""
    installed = peer.install()
    with tempfile.TemporaryDirectory(prefix="once-") as folder, running_world() as world, peer.running(Path(folder), world) as programs:
        inside = programs[0].places() if peer is US else []
        return Row(peer.name, installed, kill_often(programs, (*PLACES, *inside), count, seed))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
