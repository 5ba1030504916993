"""`Simulation`: one run from its first process to its end, on virtual time. Its seed decides everything that happens."""

import asyncio
import logging
import os
import random
import time
from collections import Counter
from collections.abc import Generator, Sequence
from contextlib import contextmanager, redirect_stdout, suppress
from contextvars import Context
from dataclasses import dataclass, field, replace
from datetime import timedelta
from functools import cache, partial
from io import StringIO
from pathlib import Path
from sqlite3 import Connection
from typing import Any
from uuid import UUID

import pytest
from sqlalchemy import Engine

from plan_adapter import PlanStore, ToolRegistry, tool
from plan_adapter.local import crash_points
from plan_adapter.local.crash_points import CrashPoint
from plan_adapter.model import host_process
from plan_adapter.model import plan as plan_model
from plan_adapter.model.errors import LeaseLostError, RunConflictError, StoreError
from plan_adapter.model.host_process import HostProcess
from plan_adapter.model.options import Effect
from plan_adapter.store import outcomes
from plan_adapter.store import store as store_module
from plan_adapter.store.database.columns import sqlite_text
from plan_adapter.store.database.patience import TransientStoreError
from plan_adapter.tools import ToolContext
from tests.faults.broken import VARIANTS
from tests.faults.child import CANARY, Fault, Order, Report, Workspace, perform
from tests.faults.evidence import Violation
from tests.faults.goals import LoggedModel, ModelCall
from tests.faults.harness import Trial, random_fault
from tests.faults.world import Line, World
from tests.simulation.database import START, Server, SimulatedDatabase, make_engine, raw_of
from tests.simulation.loop import DeadlockError, Process, VirtualLoop, current, refuse_if_over

HOME = Path("/nonexistent")  # nothing is written there
STORE_URL = "sqlite:////nonexistent/plans.db"


@dataclass
class Strike:
    """What happens to a process: it is killed, or frozen for some seconds, at a crash point or after some seconds."""

    fault: Fault | None
    after: float = 0.0  # without a crash point
    freezes: float | None = None  # for how many seconds; None: it is killed
    seen: int = 0


@dataclass
class SimulatedWorld(World):
    """The world of all simulated processes: its tools take time, fail, and hang."""

    simulation: "Simulation | None" = None
    lines: list[Line] = field(default_factory=list[Line])

    async def call(self, effect: Effect, token: str, arguments: tuple[str, str, int | None, int], context: ToolContext) -> dict[str, Any]:
        """Perform the effect of a tool call some time after it began, and return its result some time later."""
        simulation = self.simulation
        assert simulation is not None
        chance = simulation.chance
        await asyncio.sleep(chance.choice((0.0, 0.0, 0.02, 0.5, 3.0)))
        if simulation.hangs and chance.random() < simulation.hangs:
            simulation.happened["a tool hung"] += 1
            simulation.hung.add(current.get())
            await asyncio.sleep(10_000)
        result = self.act(effect, token, arguments, context)
        await asyncio.sleep(chance.choice((0.0, 0.0, 0.02, 0.5)))
        return result

    def line(self, effect: Effect, token: str, arguments: tuple[str, str, int | None, int], context: ToolContext) -> Line:
        """Return the line of an effect, at the database's time."""
        assert self.simulation is not None
        return replace(super().line(effect, token, arguments, context), at=self.simulation.database.now().timestamp())

    def append(self, line: Line) -> None:
        """Keep an effect."""
        refuse_if_over()
        self.lines.append(line)


class SimulatedModel(LoggedModel):
    """The model of goals, with its log in memory."""

    def __init__(self) -> None:
        """Begin without calls."""
        super().__init__(HOME)
        self.calls = list[ModelCall]()

    def append(self, call: ModelCall) -> None:
        """Keep a call."""
        refuse_if_over()
        self.calls.append(call)


HERE = SimulatedWorld()


@tool(effect="read")
async def look(body: str, secret: str, context: ToolContext, item: int | None = None, fails: int = 0) -> dict[str, Any]:
    """Look. Each call returns a new token."""
    return await HERE.call("read", os.urandom(6).hex(), (body, secret, item, fails), context)


@tool(effect="idempotent_write")
async def put(body: str, secret: str, context: ToolContext, item: int | None = None, fails: int = 0) -> dict[str, Any]:
    """Put something. Calls with the same key return the same token."""
    return await HERE.call("idempotent_write", context.idempotency_key[:12], (body, secret, item, fails), context)


@tool(effect="write")
async def write(body: str, secret: str, context: ToolContext, item: int | None = None, fails: int = 0) -> dict[str, Any]:
    """Write, which must not be repeated."""
    return await HERE.call("write", os.urandom(6).hex(), (body, secret, item, fails), context)


@tool(effect="write")
async def command(effect: Effect, body: str, secret: str, context: ToolContext, item: int | None = None, fails: int = 0) -> dict[str, Any]:
    """Act with the effect that its step declares. There are no commands here."""
    token = context.idempotency_key[:12] if effect == "idempotent_write" else os.urandom(6).hex()
    return await HERE.call(effect, token, (body, secret, item, fails), context)


TOOLS = ToolRegistry([look, put, write, command])

MAX_TROUBLED = 4
"""How many rounds have trouble. After them, the run must reach its end."""
PATIENCE_SECONDS = 1000.0
"""How long people let a process run."""


@dataclass
class Simulation(Trial):
    """One run of one seed. Its processes, its people and its database share a loop."""

    loop: VirtualLoop = field(default_factory=VirtualLoop)
    database: Server = field(init=False)
    model: SimulatedModel = field(default_factory=SimulatedModel)
    happened: Counter[str] = field(default_factory=Counter[str])
    trace: list[str] = field(default_factory=list[str])
    hangs: float = 0.0  # the probability that a tool hangs
    troubled: int = 0  # rounds with trouble so far
    is_stormy: bool = False  # whether the store fails at times in this round
    calm_from: float = 0.0  # when the last outage ends
    living: list[Process] = field(default_factory=list[Process])
    hung: set[Process | None] = field(default_factory=set[Process | None])  # those with a tool that never ends
    strikes: dict[Process, Strike] = field(default_factory=dict[Process, Strike])
    stores: dict[Process, PlanStore] = field(default_factory=dict[Process, PlanStore])
    output: StringIO = field(default_factory=StringIO)

    async def run_process(self, order: Order) -> Report | None:
        """Execute `order` in a process, beside people and perhaps a rival process. Return its report once all of them are over."""
        self.processes += 1
        main = asyncio.create_task(self._live(order, self._next_strike()))
        others = [asyncio.create_task(self._people(main))]
        if self.run_id is not None and order.verb != "resolve" and self.chance.random() < 0.3:
            others.append(asyncio.create_task(self._rival(main)))
        report = await main
        await asyncio.gather(*others)
        await self.find_run()
        await asyncio.sleep(self.chance.choice((0, 1, 60)))
        return report

    async def _live(self, order: Order, strike: Strike | None) -> Report | None:
        """Execute `order` in a process of its own, and return its report, or None if it was killed."""
        process = Process(self.chance.choice(("north", "south")), 1000 + len(self.living))
        self.living.append(process)
        self._note(process, f"{order.verb}, {strike}")
        if strike is not None:
            self.strikes[process] = strike
            if strike.fault is None:
                self.loop.call_later(strike.after, partial(self._hit, process, strike))
        task = self.loop.start(process, self._execute(order))
        await asyncio.wait((task, process.over), timeout=PATIENCE_SECONDS, return_when=asyncio.FIRST_COMPLETED)
        if not task.done() and not process.is_over:
            if process not in self.hung:
                self.violations.append(Violation("stuck", f"{process} does not end: {order.verb}"))
            self.loop.kill(process)
        report = None if process.is_over else task.result()
        process.is_over = True
        self._note(process, str(report or "killed"))
        self.events.append(f"{self.loop.time():.2f} {process} {order.verb}: {report or 'killed'}")
        if report is not None and report.error is not None and not self.is_expected(report):
            self.violations.append(Violation("broken", f"{process}: {report.error}: {report.message}"))
        return report

    async def _execute(self, order: Order) -> Report:
        process = current.get()
        assert process is not None
        try:
            async with PlanStore(STORE_URL) as store:
                self.stores[process] = store
                run = await perform(order, store, tools=TOOLS, model=self.model, lines=HERE.lines)
        except Exception as error:
            return Report(error=type(error).__name__, message=str(error))
        return Report("none" if run is None else run.status.value)

    async def _rival(self, main: asyncio.Task[Report | None]) -> None:
        """Try to resume the run while another process may be executing it."""
        await asyncio.sleep(self.chance.choice((0, 0.01, 1, 5, 20)))
        while not main.done() and not self.violations:
            report = await self._live(self.order("resume", fault=None), None)
            self.happened["a rival was refused" if report and report.error == RunConflictError.__name__ else "a rival went on"] += 1
            await asyncio.sleep(10)

    async def _people(self, main: asyncio.Task[Report | None]) -> None:
        """Answer at gates while a process executes the run."""
        while not main.done():
            await asyncio.sleep(self.chance.choice((0.1, 1, 10, 50)))
            if self.run_id is not None:
                with suppress(RunConflictError):  # it was closed meanwhile
                    await self.answer_gates(self.run_id)

    async def _answer(self) -> None:
        with suppress(RunConflictError):  # a process of another host may still be executing the run
            await super()._answer()

    # What fate does.

    def _next_strike(self) -> Strike | None:
        """Decide what troubles the next round."""
        self.database.troubles, self.hangs, self.is_stormy = 0.0, 0.0, self.loop.time() < self.calm_from
        if self.troubled >= MAX_TROUBLED:
            return None
        self.troubled += 1
        if self.chance.random() < 0.3:
            self.database.troubles, self.is_stormy = self.chance.choice((0.02, 0.1, 0.3)), True
        if self.chance.random() < 0.15:
            begins, seconds = self.chance.uniform(0, 5), self.chance.choice((0.5, 10, 40, 150))
            self.is_stormy, self.calm_from = True, max(self.calm_from, self.loop.time() + begins + seconds)
            self.loop.call_later(begins, self.database.go_away, seconds)
        if self.chance.random() < 0.15:
            self.loop.call_later(self.chance.uniform(0, 5), self._step_clock, self.chance.choice((-3600, -30, -1, 1, 30, 3600)))
        kind = self.chance.random()
        if kind < 0.5:
            return Strike(self._fault())
        if kind < 0.6:
            return Strike(None, after=self.chance.uniform(0, 8))
        if kind < 0.7:
            self.hangs = 0.2
            return Strike(None, after=self.chance.uniform(20, 200))
        fault = self._fault() if self.chance.random() < 0.7 else None
        return Strike(fault, after=self.chance.uniform(0, 8), freezes=self.chance.choice((1, 10, 40, 200)))

    def _fault(self) -> Fault | None:
        """Return a crash point, in half of the cases one around a call that writes."""
        if self.chance.random() < 0.5:
            return random_fault(self)
        point = self.chance.choice(("after-intent", "mid-effect", "after-effect", "after-effect"))
        return Fault(point, self.chance.choice(("write", "write", "idempotent_write")), self.chance.choice((1, 1, 2)))

    def reach(self, point: CrashPoint, detail: str) -> None:
        """Strike a process that reaches its crash point."""
        process = current.get()
        if process is None:
            return
        refuse_if_over()
        self._note(process, f"{point} {detail}")
        strike = self.strikes.get(process)
        if strike is None or strike.fault is None or not strike.fault.is_at(point, detail):
            return
        strike.seen += 1
        if strike.seen == strike.fault.number:
            self._hit(process, strike)
            refuse_if_over()

    def _hit(self, process: Process, strike: Strike) -> None:
        if process.is_over or process.is_frozen:
            return
        self._note(process, "is hit")
        if strike.freezes is None:
            self.happened["killed"] += 1
            self.loop.kill(process)
        else:
            self.happened["frozen"] += 1
            self.loop.freeze(process)
            self.loop.call_later(strike.freezes, self.loop.thaw, process, context=Context())

    def _step_clock(self, seconds: float) -> None:
        self.happened["the clock stepped"] += 1
        self.trace.append(f"{self.loop.time():.4f} the database's clock steps by {seconds} s")
        self.database.skew += timedelta(seconds=seconds)

    def _note(self, process: Process, what: str) -> None:
        self.trace.append(f"{self.loop.time():.4f} {process} {what}")

    # What the harness knows.

    async def check(self, *, is_over: bool = False) -> list[Violation]:
        """Return the violations of the run as it is now, while no process executes it."""
        found = await super().check(is_over=is_over)
        if self.happened["the clock stepped"]:  # this rule compares times
            found = [violation for violation in found if violation.kind != "unapproved"]
        if self.run_id is not None and await self.store.ledger.owner(self.run_id) is not None:  # it was killed on another host
            found = [violation for violation in found if "no process executes it" not in violation.message]
        return found

    async def leaks(self) -> list[str]:
        """Return where the secret was printed or logged."""
        return ["the output"] if CANARY in self.output.getvalue() else []

    def lines(self) -> list[Line]:
        """Return the effects of the run."""
        return [line for line in HERE.lines if line.run == self.run_id]

    def model_calls(self) -> list[ModelCall]:
        """Return the calls of the model."""
        return self.model.calls

    def is_expected(self, report: Report) -> bool:
        """Return whether the product may raise this error in this round."""
        if report.error == RunConflictError.__name__ or (report.error == LeaseLostError.__name__ and self.troubled):
            return True
        return super().is_expected(report) or (report.error in (StoreError.__name__, TransientStoreError.__name__) and self.is_stormy)

    def epoch_of(self, run_id: str) -> int | None:
        """Return the epoch of the calling process's lease on the run."""
        process = current.get()
        claim = None if process is None else self.stores[process]._claims.get(run_id)
        return None if claim is None else claim.epoch


@dataclass
class Outcome:
    """What came of a seed."""

    seed: int
    violations: list[str]
    happened: Counter[str]
    trace: list[str]
    events: list[str]


def simulate(seed: int) -> Outcome:
    """Run the simulation of `seed`. The same seed has the same trace."""
    engine, empty = _database()
    empty.backup(raw_of(engine))
    loop, chance = VirtualLoop(), random.Random(f"simulation {seed}")
    loop_server = Server(chance, engine)
    _clock.server = loop_server

    async def run() -> Simulation:
        workspace = Workspace(HOME, STORE_URL, seed, f"seed-{seed}")
        simulation = Simulation(seed, workspace, PlanStore(STORE_URL), lambda _: None, tools=TOOLS, loop=loop)
        simulation.database = loop_server
        simulation.chance = chance
        HERE.simulation, HERE.lines, HERE.epoch_of = simulation, [], simulation.epoch_of
        crash_points.listener = simulation.reach
        with redirect_stdout(simulation.output):
            await simulation.prepare()
            try:
                await simulation.run_to_end()
            except DeadlockError as error:
                simulation.violations.append(Violation("stuck", str(error)))
        return simulation

    with _virtual(loop, loop_server, chance):
        try:
            simulation = loop.run_until_complete(run())
        finally:
            crash_points.listener = None
            loop.forget_tasks()
            loop.close()
    happened = simulation.happened + Counter(processes=simulation.processes, transactions=loop_server.transactions)
    return Outcome(seed, [str(violation) for violation in simulation.violations], happened, simulation.trace, simulation.events)


def simulate_all(seeds: Sequence[int], variant: str | None) -> list[Outcome]:
    """Simulate the runs of `seeds`, with a rule removed if a variant is named. For a process of its own."""
    logging.disable()
    if variant is not None:
        VARIANTS[variant].breaks()
    return [simulate(seed) for seed in seeds]


@contextmanager
def _virtual(loop: VirtualLoop, server: Server, chance: random.Random) -> Generator[None]:
    """Let the product see virtual time, simulated processes, and randomness that the seed decides."""
    ids = iter(range(1, 1 << 40))

    def place() -> str:
        return f"{_host()}/boot/pid"

    def start_of(pid: int) -> str | None:
        simulation = HERE.simulation
        processes = [] if simulation is None else simulation.living
        found = next((process for process in processes if process.pid == pid), None)
        return found.started if found is not None and not found.is_over and found.host == _host() else None

    def this() -> HostProcess:
        process = current.get()
        return HostProcess(place(), 1, "people") if process is None else HostProcess(place(), process.pid, process.started)

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PLAN_ADAPTER_HOME", str(HOME))
        patch.setenv("PLAN_ADAPTER_SECRET_CANARY", CANARY)
        patch.setattr(time, "monotonic", loop.time)
        patch.setattr(os, "urandom", chance.randbytes)
        patch.setattr(plan_model, "uuid7", lambda: UUID(int=(next(ids) << 64) | chance.getrandbits(64)))
        patch.setattr(store_module, "_open_database", lambda _url, home: SimulatedDatabase(server))
        patch.setattr(host_process, "_place", place)
        patch.setattr(host_process, "start_of", start_of)
        patch.setattr(HostProcess, "this", this)
        patch.setattr(outcomes, "marked_leaders", dict)
        state = random.getstate()
        random.seed(chance.random())
        try:
            yield
        finally:
            random.setstate(state)


def _host() -> str:
    process = current.get()
    return "north" if process is None else process.host


class _Clock:
    """Reads the clock of the present simulation, because the engine outlives it."""

    server: Server | None = None

    def read(self) -> str:
        """Return the time as SQLite stores it."""
        now = START if self.server is None else self.server.now()
        return sqlite_text(now)


_clock = _Clock()


@cache
def _database() -> tuple[Engine, Connection]:
    return make_engine(_clock.read)
