"""The code of a child process, which executes a run and is killed or stopped at a crash point."""

import asyncio
import faulthandler
import logging
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from types import FrameType
from typing import Any, Literal

import asyncpg  # noqa: F401  # loaded once by the fork server, not by each process
from pydantic import JsonValue

from plan_adapter import ToolRegistry, approve
from plan_adapter.gates.approvers import CallbackApprover
from plan_adapter.local import crash_points
from plan_adapter.local.crash_points import CrashPoint
from plan_adapter.local.settings import Settings
from plan_adapter.model.approvals import ApprovalRequest, Gate
from plan_adapter.model.goals import GoalModel
from plan_adapter.model.readable import call_name
from plan_adapter.model.record import Attempt, PlanRun, RunContext
from plan_adapter.runs.resume import execute_resume
from plan_adapter.runs.run_rollback import rollback_run
from plan_adapter.runs.run_session import RunRequest
from plan_adapter.runs.start import execute_plan
from plan_adapter.store import leases  # as above
from plan_adapter.store.database import postgresql, sqlite  # noqa: F401  # as above
from plan_adapter.store.outcomes import ResolutionRecord
from plan_adapter.store.store import PlanStore
from plan_adapter.validation import bind_inputs, validate
from tests.faults.broken import HOST_VARIANTS, VARIANTS
from tests.faults.goals import UNWANTED, LoggedModel
from tests.faults.plans import ANSWERS, SCHEDULE, scenario_of
from tests.faults.world import HERE, TOOLS, Line, Unit, lines_of

CANARY = "canary-Zq7/4w+Kp"
BY = "ana"

Verb = Literal["start", "resume", "undo", "resolve"]


@dataclass(frozen=True)
class Fault:
    """Where a process is killed or stopped: at the `number`-th time it reaches this crash point, with this detail if given."""

    point: CrashPoint
    detail: str | None = None
    number: int = 1
    stops: bool = False  # with SIGSTOP, instead of being killed

    def is_at(self, point: CrashPoint, detail: str) -> bool:
        """Return whether this crash point is the fault's, whatever its number."""
        return point == self.point and self.detail in (None, detail)

    @property
    def place(self) -> str:
        """The crash point and the detail."""
        return f"{self.point}{'' if self.detail is None else f' ({self.detail})'}"

    def __str__(self) -> str:
        return f"{self.place} #{self.number}"


@dataclass(frozen=True)
class Workspace:
    """The files of a run and of its world."""

    folder: Path
    store_url: str
    seed: int
    task_id: str  # identifies the run in a shared store

    @property
    def home(self) -> Path:
        """The product's home folder."""
        return self.folder / "home"

    @property
    def log(self) -> Path:
        """The output of the processes."""
        return self.home / "log"

    @property
    def model(self) -> Path:
        """The log of model calls, in the folder that must not contain secrets."""
        return self.home / "model"

    @property
    def world(self) -> Path:
        """The world's file."""
        return self.folder / "world"


@dataclass(frozen=True)
class Order:
    """What a process has to do."""

    verb: Verb
    workspace: Workspace
    run_id: str | None = None
    fault: Fault | None = None
    variant: str | None = None
    lease: tuple[float, float] | None = None  # its seconds, and the grace period in seconds
    server: str | None = None  # Prefect's API
    cuts: tuple[Fault, ...] = ()  # where the connections to hosts are cut


@dataclass(frozen=True)
class Report:
    """What a process reports before it ends: the status of the run, or the error."""

    status: str | None = None
    error: str | None = None  # the name of its class
    message: str = ""


Execute = Callable[[Order], Coroutine[Any, Any, PlanRun | None]]
"""Executes an order and returns the run, if there is one."""

STACKS = signal.SIGUSR1
"""The signal that makes a process write its stacks to its log and end."""

REACHED = Report("reached")
"""The report of a process just before its fault kills it."""
STOPPED = Report("stopped")
"""The report of a process just before its fault stops it."""


def execute_order(order: Order, pipe: Connection, execute: Execute | None = None) -> None:
    """Execute `order`, with `execute` in place of a run of its seed, and send a report."""
    workspace = order.workspace
    log = os.open(workspace.log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    os.dup2(log, 1)
    os.dup2(log, 2)
    faulthandler.enable(log)
    signal.signal(STACKS, _end_with_stacks)
    faulthandler.register(STACKS, log, all_threads=True, chain=True)  # also when no Python code runs any more
    logging.basicConfig(level=logging.INFO, force=True)
    os.environ |= environment_of(order)
    crash_points.listener = Listener(order.fault, pipe)
    if order.lease is not None:
        leases.GRACE_SECONDS = order.lease[1]
    if order.variant is not None:
        {**VARIANTS, **HOST_VARIANTS}[order.variant].breaks()
    try:
        run = asyncio.run((execute or _execute)(order))
        report = Report("none" if run is None else run.status.value)
    except Exception as error:
        logging.getLogger(__name__).exception("it raised")
        report = Report(error=type(error).__name__, message=str(error))
    pipe.send(report)


def _end_with_stacks(_signal: int, _frame: FrameType | None) -> None:
    """Write what each task of the event loop waits for, and end this process."""
    for task in asyncio.all_tasks():
        print(f"\n{task.get_name()}, outermost frame first:", file=sys.stderr)
        traceback.print_list(traceback.StackSummary.extract(_frames_of(task.get_coro())), file=sys.stderr)
    sys.stderr.flush()
    os._exit(1)


def _frames_of(awaited: Any) -> Iterator[tuple[FrameType, int]]:
    """Yield the frames of the awaited coroutines of a task, outermost first; `Task.get_stack` returns only the first."""
    while awaited is not None:
        frame = next((frame for name in ("cr_frame", "gi_frame", "ag_frame") if (frame := getattr(awaited, name, None))), None)
        if frame is not None:
            yield frame, frame.f_lineno
        awaited = next((inner for name in ("cr_await", "gi_yieldfrom", "ag_await") if (inner := getattr(awaited, name, None))), None)


def environment_of(order: Order) -> dict[str, str]:
    """Return the environment variables of the process."""
    server = {} if order.server is None else {"PREFECT_API_URL": order.server}
    return {"PLAN_ADAPTER_HOME": str(order.workspace.home), "PLAN_ADAPTER_SECRET_CANARY": CANARY, **server}


class Listener:
    """Kills or stops this process at its fault, if it has one. Lets its commands end once their processes are recorded."""

    def __init__(self, fault: Fault | None, pipe: Connection) -> None:
        self._fault = fault
        self._pipe = pipe
        self._seen = 0
        self.store: PlanStore | None = None

    def __call__(self, point: CrashPoint, detail: str) -> None:
        if not self._is_fault(point, detail):
            return HERE.release(detail) if point == "command-recorded" else None
        assert self._fault is not None
        if not self._fault.stops:
            self._pipe.send(REACHED)
            os.kill(os.getpid(), signal.SIGKILL)
        self._wait_for_transactions()
        self._pipe.send(STOPPED)
        os.kill(os.getpid(), signal.SIGSTOP)
        return None

    def _is_fault(self, point: CrashPoint, detail: str) -> bool:
        if self._fault is None or not self._fault.is_at(point, detail):
            return False
        self._seen += 1
        return self._seen == self._fault.number

    def _wait_for_transactions(self) -> None:
        """Return when no transaction is open or pending: it would block the database for other processes while this one sleeps.

        This call blocks the event loop, so no new transaction begins meanwhile.
        """
        # Private: no public method tells whether a transaction is open, and a store call would wait for this event loop.
        database: Any = self.store and self.store._database
        if isinstance(database, sqlite.SqliteDatabase):
            database._thread.submit(int).result()  # runs after all queued work
            return
        asyncio.run_coroutine_threadsafe(asyncio.sleep(0), database._pool.loop).result()  # earlier requests have started by now
        while database._pool.writing or database._pool.reading:
            time.sleep(0.002)


def _answer(request: ApprovalRequest) -> bool | Mapping[str, JsonValue]:
    if request.kind == "question":
        return answer_to_fields(request.fields)
    return not is_unwanted(request)


def answer_to_fields(fields: Iterable[str]) -> dict[str, JsonValue]:
    """Return the answer that people give to a question with these fields."""
    return {name: ANSWERS[name] for name in fields}


def is_unwanted(gate: ApprovalRequest | Gate) -> bool:
    """Return whether people reject this gate."""
    return gate.step_id is not None and UNWANTED in gate.text


async def _execute(order: Order) -> PlanRun | None:
    workspace = order.workspace
    async with PlanStore(workspace.store_url) as store:
        if order.lease is not None:
            store.ledger.lease_seconds = order.lease[0]
        HERE.path, HERE.epoch_of = workspace.world, lambda run_id: (claim := store._claims.get(run_id)) and claim.epoch
        if isinstance(listener := crash_points.listener, Listener):
            listener.store = store
        return await perform(order, store, tools=TOOLS, model=LoggedModel(workspace.model), lines=lines_of(workspace.world))


async def perform(order: Order, store: PlanStore, *, tools: ToolRegistry, model: GoalModel, lines: Sequence[Line]) -> PlanRun | None:
    """Execute `order` with this store, in a world with these effects. Return the run, or None if only outcomes are resolved."""
    scenario = scenario_of(order.workspace.seed)
    run_request = RunRequest(
        approver=CallbackApprover(_answer, by=BY) if scenario.approved_by != "elsewhere" or order.run_id is not None else None,
        approval=approve(scenario.plan, tools=tools, by=BY) if scenario.approved_by == "beforehand" and order.verb == "start" else None,
        schedule=SCHEDULE if scenario.approved_by == "standing" else None,
        context=RunContext(task_id=order.workspace.task_id),
        settings=Settings(),
        goal_model=model,
        tools=tools,
    )
    offline = order.server is None
    match order.verb:
        case "start":
            bound = bind_inputs(validate(scenario.plan, tools))
            return await execute_plan(bound, run_request=run_request, store=store, offline=offline, record_pending=True)
        case "resume":
            return await execute_resume(order.run_id or "", tools=tools, run_request=run_request, store=store, offline=offline)
        case "undo":
            run = await store.run(order.run_id or "")
            return await rollback_run(run, reason="undo it", tools=tools, run_request=run_request, store=store, offline=offline)
        case "resolve":
            await resolve(store, order.run_id or "", lines)
            return None


async def resolve(store: PlanStore, run_id: str, lines: Sequence[Line]) -> list[Unit]:
    """Resolve each write with an unknown outcome as the world has it, and return these writes."""
    done = {(line.unit, line.attempt): line for line in lines if line.run == run_id}
    unknown = await store.outcomes.unknown(run_id)
    for attempt in unknown:
        line = done.get((_unit(attempt), attempt.number))
        result: JsonValue = None if line is None else {"token": line.token}
        resolution = ResolutionRecord("again" if line is None else "done", BY, "unverified", "the world says so", result)
        await store.outcomes.resolve(run_id, attempt.step_id, resolution, item=attempt.item, kind=attempt.kind)
    return [_unit(attempt) for attempt in unknown]


def _unit(attempt: Attempt) -> Unit:
    """Return the unit of an attempt in the world."""
    return call_name(attempt.step_id, None, kind=attempt.kind), attempt.item


# Loads expressions and table statements once, in the fork server.
for _seed in range(3):
    validate(scenario_of(_seed).plan, TOOLS)
