"""`make faults HOSTS=20 N=300`: a rolling restart over SSH, whose processes and connections are killed again and again.

The server is real. Its hosts differ by name; the restart of one fails, and one cannot be reached. The process of the run is killed, or its
connections are cut, at each crash point, at each place of the program on the host, and at random moments. Then the run is resumed, until
it is over. No effect may happen twice, and no outcome may stay unknown: the probe has to find each.

The seed decides where what is killed, but not the order of connections, so a run cannot be repeated exactly.
"""

import asyncio
import random
import re
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, TypeAlias

from plan_adapter import PlanRun, PlanStore
from plan_adapter.model.errors import RunConflictError
from plan_adapter.model.status import PlanStatus, RunReason
from plan_adapter.store.proof.verification import verify
from tests.faults.child import Fault, Order, Report, Workspace
from tests.faults.evidence import Violation
from tests.faults.fleet_child import FleetFiles, execute_on_fleet, note
from tests.faults.harness import Target, item_rollbacks_left
from tests.faults.processes import NO_REPORT, Child, start
from tests.fleet import Fleet, both, ends
from tests.processes import kill_descendants
from tests.ssh import running_server

Killed: TypeAlias = Literal["run", "connection"]

START: tuple[Target, ...] = (("in-transaction", "run_started"), ("claimed", None))
FIRST_START: tuple[Target, ...] = (("in-transaction", "run_created"), ("in-transaction", "approval_used"), *START)
CALLS: tuple[Target, ...] = (
    ("before-intent", "write"),
    ("in-transaction", "attempt_started"),
    ("after-intent", "write"),
    ("command-started", None),
    ("in-transaction", "command_started"),
    ("command-recorded", None),
    ("after-effect", "write"),
    ("in-transaction", "attempt_succeeded"),
    ("after-receipt", None),
)
FAILURES: tuple[Target, ...] = (
    ("in-transaction", "attempt_failed"),
    ("before-intent", "rollback write"),
    ("after-intent", "rollback write"),
    ("after-effect", "rollback write"),
)
"""The targets of the host whose restart fails, and which is rolled back alone."""
END: tuple[Target, ...] = (("before-end", None), ("in-transaction", "run_ended"), ("after-end", None))

ON_HOST = "on the host: "
ASKED = f"{ON_HOST}asked"
HOST_PLACES = (
    f"{ON_HOST}before-claim",  # the program has arrived, and the call belongs to nobody
    f"{ON_HOST}claimed",  # the record names the process, and the command has not started
    f"{ON_HOST}before-effect",
    f"{ON_HOST}after-effect",
    f"{ON_HOST}before-exit",  # the command has ended, and its exit code is not recorded
    f"{ON_HOST}after-exit",
    ASKED,  # somebody asks how a call ended
)
AT_RANDOM = "at a random moment"


def _places(*targets: Target) -> tuple[str, ...]:
    return tuple(Fault(*target).place for target in targets)


PLACES: dict[Killed, tuple[str, ...]] = {
    "run": (*_places(*FIRST_START, *CALLS, *FAILURES, *END), *HOST_PLACES, AT_RANDOM),
    "connection": (*_places(*CALLS, *FAILURES), *HOST_PLACES, AT_RANDOM),
}
"""Where what is killed. No connection is open before the first call and after the last one."""

TARGETS = {Fault(*target).place: target for target in (*FIRST_START, *CALLS, *FAILURES, *END)}

CONCURRENT_TRIALS = 2
PROCESS_SECONDS = 300.0
MAX_PROCESSES = 80
MAX_IDLE = 3
"""Processes without a fault that a run may need to its end. One could do, but a command of the last process may still run."""

MAX_VIOLATIONS = 5

RETRIES = "defaults: {retry: {times: 4, delay: 50ms}}"
"""A connection that is cut before anything is started is a failed attempt."""

REACH = """\
#!/bin/sh
# Arrive at the place $1: kill what its fault says, if it is its turn.
cd FAULTS && [ -e "$1" ] || exit 0
for turn in "$1".*; do
    rm "$turn" 2>/dev/null && exit 0
done
/bin/mv "$1" "firing.$$" 2>/dev/null || exit 0
read -r kills <"firing.$$"
place=$1 pid=$$ cut=
case $kills in *connection*)
    while [ "$pid" -gt 1 ] && [ "$pid" != SERVER ] && read -r stat <"/proc/$pid/stat" && read -r name <"/proc/$pid/comm"; do
        set -- ${stat##*") "}
        case $name in sshd*) kill -KILL "$pid" && cut=yes ;; esac
        pid=$2
    done
    [ -z "$cut" ] || echo "connection on the host: $place" >>done
esac
case $kills in *run*) kill -KILL "$(cat run)" && echo "run on the host: $place" >>done ;; esac
case $kills in *hold*)
    : >"held.$$"
    turn=0
    while [ -e "held.$$" ] && [ $turn -lt 300 ]; do
        turn=$((turn + 1))
        sleep 0.1
    done
esac
exit 0
"""
"""A program on the host. `hold`: wait until somebody asks how a call ended."""

LN = """\
#!/bin/sh
# A process takes a call with `ln`, or somebody who asks keeps it from being taken.
read -r who _ <"$1"
if [ "$who" = never ]; then
    reach asked
    /bin/ln "$@"
    code=$?
    rm -f FAULTS/held.*
    exit $code
fi
reach before-claim
/bin/ln "$@" || exit
reach claimed
"""

MV = """\
#!/bin/sh
# The exit code of a command is recorded with `mv`.
case $1 in *exit.new) ;; *) exec /bin/mv "$@" ;; esac
reach before-exit
/bin/mv "$@" || exit
reach after-exit
"""


@dataclass(frozen=True)
class Faults:
    """What is killed while one process executes the run."""

    run: str | None = None  # the place where the process is killed
    cuts: tuple[str, ...] = ()  # the places where its connections are cut


Choice: TypeAlias = Callable[["FleetTrial"], Faults]


@dataclass
class FleetTrial:
    """One rolling restart, from its first process to its end."""

    fleet: Fleet
    workspace: Workspace
    store: PlanStore
    chance: random.Random
    variant: str | None = None
    latest: int = 5  # a fault strikes at the first to the `latest` time that its place is reached
    holds: float = 0.5  # the share of cuts on a host after which its process waits until somebody asks about it
    run_id: str | None = None
    processes: int = 0
    probed: int = 0  # outcomes that the probe found
    violations: list[Violation] = field(default_factory=list[Violation])
    events: list[str] = field(default_factory=list[str])  # what happened, for people

    def __post_init__(self) -> None:
        self.files = FleetFiles(self.workspace)
        names = self.fleet.names
        self.broken, self.away = names[len(names) // 3], names[len(names) * 5 // 8]
        self.good = [name for name in names if name not in (self.broken, self.away)]
        self.fleet.set_broken(self.broken)
        self.fleet.set_away(self.away)
        self.files.faults.mkdir()
        _install_programs(self.fleet, self.files)

    @property
    def kills(self) -> Counter[tuple[Killed, str]]:
        """How often what was killed where."""
        lines = self.files.done.read_text().splitlines() if self.files.done.exists() else []
        return Counter(("run" if killed == "run" else "connection", place) for killed, _, place in (line.partition(" ") for line in lines))

    async def run_to_end(self, choose: Choice) -> None:
        """Start processes until the run is over or a violation is found."""
        idle = 0
        while not self.violations and not await self.is_over():
            faults = choose(self)
            idle = 0 if faults != Faults() else idle + 1
            if idle > MAX_IDLE or self.processes == MAX_PROCESSES:
                self.violations.append(Violation("stuck", f"the run is not over after {self.processes} processes: {self.events[-3:]}"))
                break
            await self.run_once(faults)
            self.violations += self._repeated()
        if not self.violations:
            self.violations += await self.check()

    async def is_over(self) -> bool:
        """Return whether the run has ended, with no unknown outcome and no unfinished rollback.

        Wait for the commands that its processes left behind.
        """
        if self.run_id is None and (runs := await self.store.runs()):
            self.run_id = runs[0].id
        if self.run_id is None:
            return False
        async with asyncio.timeout(PROCESS_SECONDS):
            while any(command.state == "running" for command in await self.store.outcomes.commands(self.run_id)):
                await asyncio.sleep(0.02)
        run = await self.store.run(self.run_id)
        if run.completed_at is None or run.reason is RunReason.INTERRUPTED or await self.store.outcomes.unknown(run.id):
            return False
        return not item_rollbacks_left(await self.store.get(run.digest), await self.store.ledger.history(run.id))

    async def run_once(self, faults: Faults) -> None:
        """Execute the run in a process, with these faults."""
        self.processes += 1
        number = {
            place: 1 if place in _places(*FIRST_START, *FAILURES, *END) else self.chance.randint(1, self.latest)
            for place in faults_of(faults)
        }
        self._arm(faults, number)
        target = TARGETS.get(faults.run or "")
        cuts = tuple(Fault(*TARGETS[place], number[place]) for place in faults.cuts if place in TARGETS)
        fault = None if target is None else Fault(*target, number[faults.run or ""])
        process = start(Order("start", self.workspace, self.run_id, fault, self.variant, cuts=cuts), execute_on_fleet)
        async with asyncio.TaskGroup() as group:
            others = [group.create_task(self._kill_at_random(process, killed)) for killed in self._at_random(faults)]
            report = await process.final_report(PROCESS_SECONDS)
            for other in others:
                other.cancel()
        was_killed = process.process.exitcode == -signal.SIGKILL and "did not end" not in report.message
        if was_killed and fault is not None and report.error != NO_REPORT:
            note(self.files.done, fault.place, "run")
        self._disarm()
        self.events.append(f"{faults}, at {number}: {'killed' if was_killed else report}")
        if not was_killed and report.error is not None and not _still_runs(report):
            self.violations.append(Violation("broken", f"the process: {report.error}: {report.message}"))

    @staticmethod
    def _at_random(faults: Faults) -> list[Killed]:
        return [*(["run"] if faults.run == AT_RANDOM else []), *(["connection"] if AT_RANDOM in faults.cuts else [])]

    async def _kill_at_random(self, process: Child, killed: Killed) -> None:
        """Kill the process, or cut its connections, some time after it has made its first call."""
        while not self.files.begun.exists():
            await asyncio.sleep(0.02)
        await asyncio.sleep(self.chance.uniform(0, 3))
        if killed == "run":
            process.process.kill()
        elif not kill_descendants(self.fleet.server.process.pid, "sshd"):
            return
        note(self.files.done, AT_RANDOM, killed)

    def _arm(self, faults: Faults, number: dict[str, int]) -> None:
        """Write the faults of places on the host, each with a file for each time that it passes."""
        for place in (place for place in HOST_PLACES if place in number):
            kills = ["run"] if place == faults.run else ["connection"]
            if self.chance.random() < self.holds and place != ASKED:
                kills += ["connection", "hold"]  # a process that waits while its connection is open would not let the run resume
            name = place.removeprefix(ON_HOST)
            for turn in range(1, number[place]):
                (self.files.faults / f"{name}.{turn}").touch()
            (self.files.faults / "new").write_text(" ".join(kills) + "\n")
            (self.files.faults / "new").rename(self.files.faults / name)

    def _disarm(self) -> None:
        for file in self.files.faults.iterdir():
            if file.name != "done" and not file.name.startswith("held."):
                file.unlink(missing_ok=True)

    def _repeated(self) -> list[Violation]:
        """Return a violation for each effect that happened more than once."""
        return [Violation("twice", f"`{line}` happened {count} times") for line, count in Counter(self.fleet.done).items() if count > 1]

    async def check(self) -> list[Violation]:
        """Return the violations of the run, which is over."""
        run = await self.store.run(self.run_id or "")
        return [*self._repeated(), *self._wrong_end(run), *await self._wrong_record(run)]

    def _wrong_end(self, run: PlanRun) -> list[Violation]:
        found, done = ends(run), [*both(*self.good), f"drain {self.broken}", f"undrain {self.broken}"]
        expected = {name: "completed" if name in self.good else "failed" for name in self.fleet.names}
        undone = [item.label for item in run.step("each").items if item.rolled_back]
        wrong = [Violation("lost", f"{line} did not happen") for line in sorted({*done} - {*self.fleet.done})]
        wrong += [Violation("extra", f"{line} happened") for line in sorted({*self.fleet.done} - {*done})]
        wrong += [Violation("status", f"{name} is shown as {found.get(name)}") for name in expected if found.get(name) != expected[name]]
        if (run.status, undone) != (PlanStatus.PARTIAL, [self.broken]):
            wrong.append(Violation("status", f"the run is shown as {run.status}, with {undone} rolled back"))
        return wrong

    async def _wrong_record(self, run: PlanRun) -> list[Violation]:
        wrong = [Violation("unknown", f"the outcome of {attempt} is unknown") for attempt in await self.store.outcomes.unknown(run.id)]
        known_by = Counter(receipt.known_by for receipt in await self.store.receipts(run.id))
        self.probed = known_by.pop("probe", 0)
        if known_by.keys() - {None}:
            wrong.append(Violation("unknown", f"outcomes were found by {known_by}"))
        if not (verified := verify(dict(await self.store.export(run.id)))).ok:
            wrong.append(Violation("altered", str(verified.problem)))
        return wrong


def _still_runs(report: Report) -> bool:
    """Return whether the process was refused, because a command of the one before it still runs."""
    return report.error == RunConflictError.__name__ and "still runs here" in report.message


def faults_of(faults: Faults) -> list[str]:
    """Return the places of faults."""
    return [*([] if faults.run is None else [faults.run]), *faults.cuts]


def _install_programs(fleet: Fleet, files: FleetFiles) -> None:
    """Put the programs that reach places into the path of the hosts, and write the plan, whose scripts reach places as well."""
    (fleet.server.folder / "bin").mkdir()
    for name, text in (("reach", REACH), ("ln", LN), ("mv", MV)):
        program = fleet.server.folder / "bin" / name
        program.write_text(text.replace("FAULTS", str(files.faults)).replace("SERVER", str(fleet.server.process.pid)))
        program.chmod(0o700)
    plan = fleet.write_plan(max_failures=2)
    text = re.sub(r'(echo \w+ "\$NODE" >>"\$LOG")', r"reach before-effect; \1; reach after-effect", plan.read_text())
    plan.write_text(text.replace("\nsteps:", f"\n{RETRIES}\nsteps:", 1))


@asynccontextmanager
async def open_fleet_trial(
    folder: Path, chance: random.Random, *, hosts: int = 20, variant: str | None = None
) -> AsyncGenerator[FleetTrial]:
    """Yield a trial with its own SSH server, store and folder, which is removed if there are no violations."""
    own = Path(tempfile.mkdtemp(prefix="fleet-", dir=folder))
    workspace = Workspace(own, f"sqlite:///{own}/home/plans.db?timeout=60", 0, own.name)
    workspace.home.mkdir()
    (own / "sshd").mkdir()
    with running_server(own / "sshd") as server:
        async with PlanStore(workspace.store_url) as store:
            trial = FleetTrial(Fleet(server, own, hosts), workspace, store, chance, variant)
            yield trial
    if not trial.violations:
        shutil.rmtree(own)


@dataclass
class Totals:
    """The kills and results of all trials."""

    wanted: int
    seed: int
    hosts: int
    chance: random.Random = field(init=False)
    done: Counter[tuple[Killed, str]] = field(default_factory=Counter[tuple[Killed, str]])
    running: list[FleetTrial] = field(default_factory=list[FleetTrial])
    trials: int = 0
    processes: int = 0
    probed: int = 0
    violations: int = 0

    def __post_init__(self) -> None:
        self.chance = random.Random(self.seed)

    def count(self) -> Counter[tuple[Killed, str]]:
        """Return the kills so far."""
        return sum((trial.kills for trial in self.running), start=+self.done)

    def choose(self, trial: FleetTrial) -> Faults:
        """Choose, of the places that the next process can reach, those with the fewest kills. None once there are enough."""
        done = self.count()
        if done.total() >= self.wanted:
            return Faults()
        run = self._rarest("run", trial, done)[0]
        cuts = [place for place in self._rarest("connection", trial, done) if place != run or place == AT_RANDOM]
        return Faults(run, tuple(cuts[: self.chance.randint(1, 4)]))

    def _rarest(self, killed: Killed, trial: FleetTrial, done: Counter[tuple[Killed, str]]) -> list[str]:
        places = [place for place in PLACES[killed] if may_reach(trial, place)]
        return sorted(places, key=lambda place: (done[killed, place], self.chance.random()))

    async def run(self, folder: Path) -> None:
        """Run trials until there are enough kills, or too many violations to be worth more."""
        while self.count().total() < self.wanted and self.violations < MAX_VIOLATIONS:
            async with open_fleet_trial(folder, self.chance, hosts=self.hosts) as trial:
                self.running.append(trial)
                await trial.run_to_end(self.choose)
                self.running.remove(trial)
                self._add(trial)

    def _add(self, trial: FleetTrial) -> None:
        self.done += trial.kills
        self.trials, self.processes, self.probed = self.trials + 1, self.processes + trial.processes, self.probed + trial.probed
        self.violations += len(trial.violations)
        if trial.violations:
            print("\n  ".join([f"VIOLATION ({trial.workspace.folder})", *map(str, trial.violations), *trial.events]), flush=True)
        else:
            print(f"… {self.trials} runs, {self.done.total()} kills, {self.processes} processes", file=sys.stderr, flush=True)


def may_reach(trial: FleetTrial, place: str) -> bool:
    """Return whether the next process of a trial can reach a place. Places near the end come last, because little follows them."""
    done = trial.fleet.done
    if place in _places(*FIRST_START) and place not in _places(*START):
        return trial.run_id is None
    if place in _places(*END):
        return len(done) >= 2 * len(trial.good) - 4
    if place in _places(*FAILURES):
        return f"undrain {trial.broken}" not in done
    return place != ASKED or trial.processes > 0


def kill_fleets(count: int, seed: int, hosts: int) -> int:
    """Kill runs and connections `count` times, print where, and return the exit code."""
    began, folder = time.monotonic(), Path(tempfile.mkdtemp(prefix="plan-faults-"))  # its programs cannot be started from memory
    totals = Totals(count, seed, hosts)
    asyncio.run(_run_all(totals, folder))
    with suppress(OSError):  # it has the folders of trials with violations
        folder.rmdir()
    print("   run  connection")
    for place in PLACES["run"]:
        cut = f"{totals.done['connection', place]:10}" if place in PLACES["connection"] else " " * 10
        print(f"{totals.done['run', place]:6}  {cut}  {place}")
    runs = sum(kills for (killed, _), kills in totals.done.items() if killed == "run")
    kills = f"{totals.done.total()} kills, {runs} of runs and {totals.done.total() - runs} of connections"
    counts = f"{totals.trials} runs on {hosts} hosts, {totals.processes} processes, {totals.probed} outcomes found by the probe"
    print(f"{kills}, {counts}, {totals.violations} violations, {time.monotonic() - began:.0f} s, SEED={seed}")
    if missed := [(killed, place) for killed in PLACES for place in PLACES[killed] if not totals.done[killed, place]]:
        print(f"never reached: {missed}")
    return 1 if totals.violations or missed else 0


async def _run_all(totals: Totals, folder: Path) -> None:
    await asyncio.gather(*(totals.run(folder) for _ in range(CONCURRENT_TRIALS)))
