"""Benchmarks of runs on a Prefect server against hand-written flows of the same plan, in one process and in alternating rounds."""

import asyncio
import logging
import math
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any
from uuid import UUID

import httpx
import pytest
from prefect import flow, task
from prefect.cache_policies import NO_CACHE
from prefect.events.worker import EventsWorker
from prefect.futures import PrefectFuture
from prefect.logging.handlers import APILogWorker
from prefect.settings import get_current_settings, temporary_settings
from prefect.task_runners import ThreadPoolTaskRunner

from plan_adapter.model.record import PlanRun
from plan_adapter.model.status import PlanStatus
from plan_adapter.runner import run_plan
from plan_adapter.store.store import PlanStore
from plan_adapter.tools.registry import ToolRegistry
from plan_adapter.tools.tool import tool
from tests.benchmarks.shapes import Shape, chain, fanout, layered, sleepfan, unequal, zigzag
from tests.postgres import free_port

pytestmark = pytest.mark.benchmark

ROUNDS = 5
SERIES = (sleepfan(), layered(10, 20), fanout(100), layered(10, 20), chain(100), layered(10, 20))
SERIES_ROUNDS = 3


@pytest.fixture(scope="module")
def default_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A Prefect server with the defaults of `prefect server start`, which writes task runs one by one."""
    home = tmp_path_factory.mktemp("default-server")
    port = free_port()
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PREFECT_")}
    environment |= {"PREFECT_HOME": str(home), "PREFECT_SERVER_ANALYTICS_ENABLED": "false", "DO_NOT_TRACK": "1"}
    command = [str(Path(sys.executable).with_name("prefect")), "server", "start", "--host", "127.0.0.1", "--port", str(port)]
    with (home / "log").open("w") as log, subprocess.Popen(command, env=environment, stdout=log, stderr=log) as server:
        url = f"http://127.0.0.1:{port}/api"
        while not _answers(f"{url}/health"):
            assert server.poll() is None, (home / "log").read_text()
            time.sleep(0.2)
        yield url
        server.terminate()


@pytest.fixture
def api_url(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The API of the server that the parameter names. Prefect's settings point to it, and its log level is warning."""
    recorder: str = request.param
    url = request.getfixturevalue("default_server") if recorder == "default" else request.getfixturevalue("prefect_server").api_url
    monkeypatch.setenv("PREFECT_API_URL", url)
    level = logging.getLogger("prefect").level
    logging.getLogger("prefect").setLevel(logging.WARNING)
    _flush_queues()
    with temporary_settings({"api.url": url}):
        yield url
        _flush_queues()
    logging.getLogger("prefect").setLevel(level)


@pytest.fixture
def store(tmp_path: Path) -> PlanStore:
    return PlanStore(f"sqlite:///{tmp_path / 'plans.db'}")


@dataclass
class Work:
    """A tool that sleeps, and the maximum number of its concurrent calls."""

    running: int = 0
    max_running: int = 0
    first: float | None = None  # start of the first call, in seconds of time.perf_counter
    registry: ToolRegistry = field(init=False)

    def __post_init__(self) -> None:
        @tool(effect="read")
        async def work(ms: int = 0) -> dict[str, bool]:
            """Sleep."""
            self.first = self.first or time.perf_counter()
            self.running += 1
            self.max_running = max(self.max_running, self.running)
            if ms:
                await asyncio.sleep(ms / 1000)
            self.running -= 1
            return {"ok": True}

        self.registry = ToolRegistry([work])

    def run(self, shape: Shape, store: PlanStore) -> PlanRun:
        run = run_plan(shape.plan(), tools=self.registry, store=store)
        assert run.status is PlanStatus.COMPLETED, run.message
        return run

    def run_id(self, shape: Shape, store: PlanStore) -> UUID:
        return UUID(self.run(shape, store).flow_run_id)


hand_calls: list[float] = []
"""The starts of the calls of `hand_work`, in seconds of time.perf_counter."""


@task(cache_policy=NO_CACHE, persist_result=False)
def hand_work(ms: int) -> dict[str, bool]:
    hand_calls.append(time.perf_counter())
    time.sleep(ms / 1000)
    return {"ok": True}


def hand_written(shape: Shape) -> Callable[[], UUID]:
    """Return a function that runs a hand-written flow of `shape` and returns its flow run id."""

    @flow(task_runner=ThreadPoolTaskRunner(max_workers=shape.limit))
    def hand() -> None:
        futures: dict[str, PrefectFuture[Any]] = {}
        for step, (dependencies, ms) in shape.steps.items():
            futures[step] = hand_work.with_options(name=step).submit(ms, wait_for=[futures[dependency] for dependency in dependencies])
        for future in futures.values():
            future.result()

    def run() -> UUID:
        flow_run_id = hand(return_state=True).state_details.flow_run_id
        assert flow_run_id is not None
        return flow_run_id

    return run


@dataclass(frozen=True)
class Cost:
    """CPU seconds of this process, and wall-clock seconds."""

    cpu: float
    wall: float


def cost_of(action: Callable[[], UUID], steps: int) -> Cost:
    """Return the cost of one `action`, which returns a flow run id, once the server has written all its task runs."""
    cpu, started = time.process_time(), time.perf_counter()
    flow_run_id = action()
    wall = time.perf_counter() - started
    EventsWorker.instance().wait_until_empty()
    cost = Cost(time.process_time() - cpu, wall)
    _wait_until_written(flow_run_id, steps)
    return cost


def measure_both(ours: Callable[[], UUID], hand: Callable[[], UUID], *, steps: int) -> tuple[list[Cost], list[Cost]]:
    """Return the costs of both, measured in turn after one warm-up run of each."""
    cost_of(ours, steps), cost_of(hand, steps)
    pairs = [(cost_of(ours, steps), cost_of(hand, steps)) for _ in range(ROUNDS)]
    return [pair[0] for pair in pairs], [pair[1] for pair in pairs]


def median(costs: list[Cost], what: str) -> float:
    return statistics.median(getattr(cost, what) for cost in costs)


def ratio(ours: list[Cost], hand: list[Cost], what: str) -> float:
    return statistics.median(getattr(a, what) / getattr(b, what) for a, b in zip(ours, hand, strict=True))


@pytest.mark.parametrize("api_url", ["tuned", "default"], indirect=True)
@pytest.mark.parametrize(
    ("shape", "limits"),
    [(layered(10, 20), Cost(cpu=0.7, wall=0.6)), (chain(100), Cost(cpu=math.inf, wall=math.inf))],
    ids=["layered-200", "chain-100"],
)
@pytest.mark.timeout(900)
def test_a_step_costs_less_than_in_a_hand_written_flow(shape: Shape, limits: Cost, api_url: str, store: PlanStore) -> None:
    steps = len(shape.steps)
    ours, hand = measure_both(partial(Work().run_id, shape, store), hand_written(shape), steps=steps)
    found = Cost(ratio(ours, hand, "cpu"), ratio(ours, hand, "wall"))
    for name, costs in (("our run", ours), ("hand-written", hand)):
        print(f"\n{shape.name} {name}: {median(costs, 'cpu') / steps * 1000:.2f} ms CPU a step, {median(costs, 'wall'):.2f} s wall", end="")
    print(f"\n{shape.name} ratios: CPU {found.cpu:.2f} (at most {limits.cpu}), wall {found.wall:.2f} (at most {limits.wall})")
    assert found.cpu <= limits.cpu
    assert found.wall <= limits.wall


@pytest.mark.parametrize("api_url", ["tuned", "default"], indirect=True)
def test_a_warm_run_has_less_fixed_cost_than_a_hand_written_sync_flow(api_url: str, store: PlanStore) -> None:
    shape = chain(1)
    ours, hand = measure_both(partial(Work().run_id, shape, store), hand_written(shape), steps=1)
    fixed = ratio(ours, hand, "wall")
    each = [median(costs, "wall") * 1000 for costs in (ours, hand)]
    print(f"\nfixed cost of a warm run: {each[0]:.0f} ms, hand-written {each[1]:.0f} ms, ratio {fixed:.2f} (at most 0.3)")
    assert fixed <= 0.3


@pytest.mark.parametrize("api_url", ["tuned"], indirect=True)
@pytest.mark.parametrize("shape", [sleepfan(), unequal(), zigzag()], ids=lambda shape: shape.name)
def test_steps_start_as_soon_as_they_are_ready(shape: Shape, api_url: str, store: PlanStore) -> None:
    work = Work()
    spans = [_makespan_ms(work.run(shape, store)) for _ in range(ROUNDS)]
    span, bound = statistics.median(spans), 1.1 * max(shape.ideal_ms, len(shape.steps) * 8)
    print(f"\n{shape.name}: {span:.0f} ms from first start to last end, {shape.ideal_ms:.0f} ms at best, at most {bound:.0f} ms")
    assert span <= bound
    assert work.max_running == shape.limit


@pytest.mark.parametrize("api_url", ["tuned", "default"], indirect=True)
@pytest.mark.timeout(900)
def test_ten_consecutive_runs_stall_no_more_than_hand_written_flows(api_url: str, store: PlanStore) -> None:
    work, shape = Work(), layered(5, 10)
    ours, hand = _walls(partial(work.run_id, shape, store), len(shape.steps)), _walls(hand_written(shape), len(shape.steps))
    for name, walls in (("our runs", ours), ("hand-written", hand)):
        print(f"\nten {name} of {shape.name}: {', '.join(f'{wall:.2f}' for wall in walls)} s", end="")
    assert max(ours) <= max(statistics.median(ours) + 1.0, max(hand))


def _walls(action: Callable[[], UUID], steps: int) -> list[float]:
    """Return the seconds of each of ten consecutive runs, after one warm-up run."""
    cost_of(action, steps)
    walls, last = list[float](), UUID(int=0)
    for _ in range(10):
        started = time.perf_counter()
        last = action()
        walls.append(time.perf_counter() - started)
    _wait_until_written(last, steps)
    return walls


@pytest.mark.parametrize("api_url", ["tuned", "default"], indirect=True)
@pytest.mark.timeout(1800)
def test_consecutive_runs_call_their_first_step_as_early_as_hand_written_flows(api_url: str, store: PlanStore) -> None:
    first_calls: dict[str, list[float]] = {"our runs": [], "hand-written": []}
    walls: dict[str, list[float]] = {"our runs": [], "hand-written": []}
    for _ in range(SERIES_ROUNDS):
        for name, found in first_calls.items():
            last = UUID(int=0)
            for shape in SERIES:
                work, hand = Work(), hand_written(shape)
                hand_calls.clear()
                started = time.perf_counter()
                last = work.run_id(shape, store) if name == "our runs" else hand()
                walls[name].append(time.perf_counter() - started)
                found.append((work.first or hand_calls[0]) - started)
            _wait_until_written(last, len(SERIES[-1].steps))
    ours, hand_p95 = (statistics.quantiles(found, n=20, method="inclusive")[-1] for found in first_calls.values())
    for name, found in first_calls.items():
        print(f"\n{name}: first step after {_seconds(found)}; whole runs {_seconds(walls[name])}", end="")
    print(f"\nfirst step, p95: our runs {ours:.2f} s, hand-written {hand_p95:.2f} s, ratio {ours / hand_p95:.2f}")
    assert ours <= 1.2 * hand_p95


def _seconds(values: list[float]) -> str:
    return ", ".join(f"{value:.2f}" for value in values) + " s"


def _wait_until_written(flow_run_id: UUID, steps: int) -> None:
    """Return once the server has every task run as completed and is idle again."""
    completed = {"state": {"type": {"any_": ["COMPLETED"]}}}
    filters = {"flow_runs": {"id": {"any_": [str(flow_run_id)]}}, "task_runs": completed}
    while httpx.post(f"{get_current_settings().api.url}/task_runs/count", json=filters, timeout=60).json() != steps:
        time.sleep(0.2)
    time.sleep(0.5)


def _flush_queues() -> None:
    """Empty and stop Prefect's queues: each queue stays connected to its first server."""
    for queue in (EventsWorker, APILogWorker):
        queue.drain_all(timeout=30)


def _makespan_ms(run: PlanRun) -> float:
    starts = [step.started_at for step in run.steps if step.started_at is not None]
    ends = [step.completed_at for step in run.steps if step.completed_at is not None]
    return (max(ends) - min(starts)).total_seconds() * 1000


def _answers(url: str) -> bool:
    try:
        return httpx.get(url, timeout=1).is_success
    except httpx.HTTPError:
        return False
