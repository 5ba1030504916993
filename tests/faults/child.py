"""What runs in the process that is killed, or stopped, at a place of its run."""

import asyncio
import faulthandler
import logging
import os
import signal
import sys
import time
import traceback
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from types import FrameType
from typing import Any, Literal

import asyncpg  # noqa: F401  # loaded once, by the server that forks, and not by each process
from pydantic import JsonValue

from plan_adapter import crash_points
from plan_adapter.approvals import ApprovalRequest, Gate
from plan_adapter.crash_points import CrashPoint
from plan_adapter.gates.approval import approve
from plan_adapter.gates.approvers import CallbackApprover
from plan_adapter.readable import call_name
from plan_adapter.record import Attempt, PlanRun, RunContext
from plan_adapter.runs.resume import execute_resume
from plan_adapter.runs.rollback import rollback_run
from plan_adapter.runs.session import RunRequest
from plan_adapter.runs.start import execute_plan
from plan_adapter.settings import Settings
from plan_adapter.store import leases, postgresql, sqlite  # noqa: F401  # the two databases, as above
from plan_adapter.store.outcomes import ResolutionRecord
from plan_adapter.store.store import PlanStore
from plan_adapter.validation import bind_inputs, validate
from tests.faults.broken import VARIANTS
from tests.faults.goals import UNWANTED, LoggedModel
from tests.faults.plans import ANSWERS, SCHEDULE, scenario_of
from tests.faults.world import HERE, TOOLS, Unit, lines_of

CANARY = "canary-Zq7/4w+Kp"
BY = "ana"

Verb = Literal["start", "resume", "undo", "resolve"]


@dataclass(frozen=True)
class Fault:
    """Where a process ends, or stands still: at the `number`-th time that this place is reached, with this detail if one is given."""

    point: CrashPoint
    detail: str | None = None
    number: int = 1
    stops: bool = False

    def __str__(self) -> str:
        return f"{self.point}{'' if self.detail is None else f' ({self.detail})'} #{self.number}"


@dataclass(frozen=True)
class Place:
    """Where a run and its world are."""

    folder: Path
    store_url: str
    seed: int
    task_id: str  # finds the run in a store of many

    @property
    def home(self) -> Path:
        """The product's own folder."""
        return self.folder / "home"

    @property
    def log(self) -> Path:
        """What the processes write."""
        return self.home / "log"

    @property
    def model(self) -> Path:
        """The log of the calls of the model. It stands where no secret may."""
        return self.home / "model"

    @property
    def world(self) -> Path:
        """The world's file."""
        return self.folder / "world"


@dataclass(frozen=True)
class Order:
    """What a process is to do."""

    verb: Verb
    place: Place
    run_id: str | None = None
    fault: Fault | None = None
    variant: str | None = None
    lease: tuple[float, float] | None = None  # seconds, and those of grace
    server: str | None = None  # Prefect's API


@dataclass(frozen=True)
class Told:
    """What a process says before it ends by itself: how the run is, or what was raised."""

    status: str | None = None
    error: str | None = None  # the name of its class
    words: str = ""


STACKS = signal.SIGUSR1
"""Has a process write its stacks into its log, and end."""

REACHED = Told("reached")
"""What a process says at the place of its fault, just before it is killed there."""
STOPPED = Told("stopped")
"""What it says where it stands still there."""


def obey(order: Order, pipe: Connection) -> None:
    """Do `order` and tell how it went."""
    place = order.place
    log = os.open(place.log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    os.dup2(log, 1)
    os.dup2(log, 2)
    faulthandler.enable(log)
    signal.signal(STACKS, _end_with_stacks)
    faulthandler.register(STACKS, log, all_threads=True, chain=True)  # also where no Python is executed any more
    logging.basicConfig(level=logging.INFO, force=True)
    os.environ |= environment_of(order)
    crash_points.listener = Listener(order.fault, pipe) if order.fault is not None else None
    if order.lease is not None:
        leases.GRACE_SECONDS = order.lease[1]
    if order.variant is not None:
        VARIANTS[order.variant].breaks()
    try:
        run = asyncio.run(_obey(order))
        told = Told("none" if run is None else run.status.value)
    except Exception as error:
        logging.getLogger(__name__).exception("it raised")
        told = Told(error=type(error).__name__, words=str(error))
    pipe.send(told)


def _end_with_stacks(_signal: int, _frame: FrameType | None) -> None:
    """Write what each task of the event loop waits for, and end this process, which did not end by itself."""
    for task in asyncio.all_tasks():
        print(f"\n{task.get_name()}, where it began first:", file=sys.stderr)
        traceback.print_list(traceback.StackSummary.extract(_frames_of(task.get_coro())), file=sys.stderr)
    sys.stderr.flush()
    os._exit(1)


def _frames_of(awaited: Any) -> Iterator[tuple[FrameType, int]]:
    """Yield the frames of what a task awaits, from the outermost one; `Task.get_stack` knows only that one."""
    while awaited is not None:
        frame = next((frame for name in ("cr_frame", "gi_frame", "ag_frame") if (frame := getattr(awaited, name, None))), None)
        if frame is not None:
            yield frame, frame.f_lineno
        awaited = next((inner for name in ("cr_await", "gi_yieldfrom", "ag_await") if (inner := getattr(awaited, name, None))), None)


def environment_of(order: Order) -> dict[str, str]:
    """Return what the product finds in the environment of the process."""
    server = {} if order.server is None else {"PREFECT_API_URL": order.server}
    return {"PLAN_ADAPTER_HOME": str(order.place.home), "PLAN_ADAPTER_SECRET_CANARY": CANARY, **server}


class Listener:
    """Ends or stops this process where the fault says."""

    def __init__(self, fault: Fault, pipe: Connection) -> None:
        self._fault = fault
        self._pipe = pipe
        self._seen = 0
        self.store: PlanStore | None = None

    def __call__(self, point: CrashPoint, detail: str) -> None:
        if point != self._fault.point or self._fault.detail not in (None, detail):
            return
        self._seen += 1
        if self._seen != self._fault.number:
            return
        if not self._fault.stops:
            self._pipe.send(REACHED)
            os.kill(os.getpid(), signal.SIGKILL)
        self._wait_for_transactions()
        self._pipe.send(STOPPED)
        os.kill(os.getpid(), signal.SIGSTOP)

    def _wait_for_transactions(self) -> None:
        """Return when none is open or waited for: one would keep others from the database for as long as this process sleeps.

        The event loop, in which this waits, begins no other one meanwhile.
        """
        # Private: nothing public says that no transaction is open, and a call of the store itself would wait for this loop.
        database: Any = self.store and self.store._database
        if isinstance(database, sqlite.SqliteDatabase):
            database._thread.submit(int).result()  # comes after all that the loop has asked for
            return
        asyncio.run_coroutine_threadsafe(asyncio.sleep(0), database._pool.loop).result()  # what was asked for before is at work now
        while database._pool.writing or database._pool.reading:
            time.sleep(0.002)


def _answered(request: ApprovalRequest) -> bool | Mapping[str, JsonValue]:
    if request.kind == "question":
        return answer_to_fields(request.fields)
    return not is_unwanted(request)


def answer_to_fields(fields: Iterable[str]) -> dict[str, JsonValue]:
    """Return what people answer to a question with these fields."""
    return {name: ANSWERS[name] for name in fields}


def is_unwanted(gate: ApprovalRequest | Gate) -> bool:
    """Return whether people reject what a gate asks about."""
    return gate.step_id is not None and UNWANTED in gate.text


async def _obey(order: Order) -> PlanRun | None:
    place, scenario = order.place, scenario_of(order.place.seed)
    async with PlanStore(place.store_url) as store:
        if order.lease is not None:
            store.ledger.lease_seconds = order.lease[0]
        HERE.path, HERE.epoch_of = place.world, lambda run_id: (claim := store._claims.get(run_id)) and claim.epoch
        if isinstance(listener := crash_points.listener, Listener):
            listener.store = store
        run_request = RunRequest(
            approver=CallbackApprover(_answered, by=BY) if scenario.approved_by != "elsewhere" or order.run_id is not None else None,
            approval=approve(scenario.plan, tools=TOOLS, by=BY) if scenario.approved_by == "beforehand" and order.verb == "start" else None,
            schedule=SCHEDULE if scenario.approved_by == "standing" else None,
            context=RunContext(task_id=place.task_id),
            settings=Settings(),
            goal_model=LoggedModel(place.model),
            tools=TOOLS,
        )
        offline = order.server is None
        match order.verb:
            case "start":
                bound = bind_inputs(validate(scenario.plan, TOOLS))
                return await execute_plan(bound, run_request=run_request, store=store, offline=offline, record_pending=True)
            case "resume":
                return await execute_resume(order.run_id or "", tools=TOOLS, run_request=run_request, store=store, offline=offline)
            case "undo":
                run = await store.run(order.run_id or "")
                return await rollback_run(run, reason="undo it", tools=TOOLS, run_request=run_request, store=store, offline=offline)
            case "resolve":
                await resolve(store, order.run_id or "", place.world)
                return None


async def resolve(store: PlanStore, run_id: str, world: Path) -> list[Unit]:
    """Say of each write whose outcome is unknown what the world knows of it, and return which they were."""
    done = {line.unit: line for line in lines_of(world) if line.run == run_id}
    unknown = await store.outcomes.unknown(run_id)
    for attempt in unknown:
        line = done.get(_unit(attempt))
        result = None if line is None else {"token": line.token}
        word = ResolutionRecord("again" if line is None else "done", BY, "unverified", "the world says so", result)
        await store.outcomes.resolve(run_id, attempt.step_id, word, item=attempt.item, kind=attempt.kind)
    return [_unit(attempt) for attempt in unknown]


def _unit(attempt: Attempt) -> Unit:
    """Return the unit that the world knows the attempt by."""
    return call_name(attempt.step_id, None, kind=attempt.kind), attempt.item


# Loaded once, by the server that forks: expressions, and the tables' statements.
for _seed in range(3):
    validate(scenario_of(_seed).plan, TOOLS)
