"""Runs on a Prefect server beside a hand-written Prefect flow of the same plan, in one process on the same server, rounds interleaved."""

import logging
import os
import socket
import statistics
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from prefect import flow, get_client, task
from prefect.cache_policies import NO_CACHE
from prefect.futures import PrefectFuture
from prefect.settings import temporary_settings
from prefect.task_runners import ThreadPoolTaskRunner

from plan_adapter.plan import PlanStatus
from plan_adapter.record import PlanRun
from plan_adapter.runner import run_plan
from plan_adapter.store.store import PlanStore
from plan_adapter.tools.registry import ToolRegistry
from plan_adapter.tools.tool import tool
from tests.benchmarks.shapes import Shape, chain, layered, sleepfan, unequal, zigzag

pytestmark = pytest.mark.benchmark

ROUNDS = 5
WARM = 10


@pytest.fixture(scope="module")
def default_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A Prefect server as `prefect server start` makes it, its recorder writing task runs one by one."""
    home = tmp_path_factory.mktemp("default-server")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
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
    """The server that the parameter names, and Prefect's settings pointing at it; Prefect's lines below a warning are off for everybody."""
    recorder: str = request.param
    url = request.getfixturevalue("default_server") if recorder == "default" else request.getfixturevalue("prefect_server").api_url
    monkeypatch.setenv("PREFECT_API_URL", url)
    level = logging.getLogger("prefect").level
    logging.getLogger("prefect").setLevel(logging.WARNING)
    with temporary_settings({"api.url": url}):
        yield url
    logging.getLogger("prefect").setLevel(level)


@pytest.fixture
def store(tmp_path: Path) -> PlanStore:
    return PlanStore(f"sqlite:///{tmp_path / 'plans.db'}")


@dataclass
class Work:
    """A tool that sleeps, and how many of its calls ran at once at most."""

    running: int = 0
    most: int = 0
    registry: ToolRegistry = field(init=False)

    def __post_init__(self) -> None:
        import asyncio

        @tool(effect="read")
        async def work(ms: int = 0) -> dict[str, bool]:
            """Sleep."""
            self.running += 1
            self.most = max(self.most, self.running)
            if ms:
                await asyncio.sleep(ms / 1000)
            self.running -= 1
            return {"ok": True}

        self.registry = ToolRegistry([work])

    def run(self, shape: Shape, store: PlanStore) -> PlanRun:
        run = run_plan(shape.plan(), tools=self.registry, store=store)
        assert run.status is PlanStatus.COMPLETED, run.message
        return run


@task(cache_policy=NO_CACHE, persist_result=False)
def hand_work(ms: int) -> dict[str, bool]:
    time.sleep(ms / 1000)
    return {"ok": True}


def hand_written(shape: Shape) -> Callable[[], Any]:
    """Return the flow that somebody would write for `shape`."""

    @flow(task_runner=ThreadPoolTaskRunner(max_workers=shape.limit))
    def hand() -> None:
        futures: dict[str, PrefectFuture[Any]] = {}
        for step, (dependencies, ms) in shape.steps.items():
            futures[step] = hand_work.with_options(name=step).submit(ms, wait_for=[futures[dependency] for dependency in dependencies])
        for future in futures.values():
            future.result()

    return hand


@dataclass(frozen=True)
class Cost:
    """Seconds of this process's CPU and of the clock."""

    cpu: float
    wall: float


def cost_of(action: Callable[[], object]) -> Cost:
    """Return what `action` cost once, its task runs included that Prefect sends in the background."""
    cpu, started = time.process_time(), time.perf_counter()
    action()
    wall = time.perf_counter() - started
    time.sleep(1.5)  # the server writes what is still queued, so that the next one finds it idle
    return Cost(time.process_time() - cpu, wall)


def beside(ours: Callable[[], object], hand: Callable[[], object], *, rounds: int) -> tuple[list[Cost], list[Cost]]:
    """Return the costs of both, measured in turn after one run of each."""
    ours(), hand()
    pairs = [(cost_of(ours), cost_of(hand)) for _ in range(rounds)]
    return [pair[0] for pair in pairs], [pair[1] for pair in pairs]


def median(costs: list[Cost], what: str) -> float:
    return statistics.median(getattr(cost, what) for cost in costs)


def ratio(ours: list[Cost], hand: list[Cost], what: str) -> float:
    return statistics.median(getattr(a, what) / getattr(b, what) for a, b in zip(ours, hand, strict=True))


@pytest.mark.parametrize("api_url", ["tuned", "default"], indirect=True)
@pytest.mark.parametrize("shape", [layered(10, 20), chain(100)], ids=lambda shape: shape.name)
@pytest.mark.timeout(900)
def test_a_step_costs_less_than_in_a_hand_written_flow(
    shape: Shape, api_url: str, store: PlanStore, request: pytest.FixtureRequest
) -> None:
    work = Work()
    ours, hand = beside(lambda: work.run(shape, store), hand_written(shape), rounds=ROUNDS)
    cpu, wall = ratio(ours, hand, "cpu"), ratio(ours, hand, "wall")
    for name, costs in (("ours", ours), ("hand-written", hand)):
        each = median(costs, "cpu") / len(shape.steps) * 1000
        print(f"\n{request.node.name} {name}: {each:.2f} ms CPU a step, {median(costs, 'wall'):.2f} s wall", end="")
    print(
        f"\n{request.node.name} ratios: CPU {cpu:.2f} (at most 0.7), wall {wall:.2f}"
        + (" (at most 0.6)" if "layered" in shape.name else "")
    )
    assert cpu <= 0.7
    assert wall <= 0.6 or "layered" not in shape.name


@pytest.mark.parametrize("api_url", ["tuned", "default"], indirect=True)
def test_a_warm_run_begins_and_ends_faster_than_a_hand_written_sync_flow(api_url: str, store: PlanStore) -> None:
    work, shape = Work(), chain(1)
    ours, hand = beside(lambda: work.run(shape, store), hand_written(shape), rounds=ROUNDS)
    fixed = ratio(ours, hand, "wall")
    each = [median(costs, "wall") * 1000 for costs in (ours, hand)]
    print(f"\nfixed cost of a warm run: {each[0]:.0f} ms beside {each[1]:.0f} ms, ratio {fixed:.2f} (at most 0.3)")
    assert fixed <= 0.3


@pytest.mark.parametrize("api_url", ["tuned"], indirect=True)
@pytest.mark.parametrize("shape", [sleepfan(), unequal(), zigzag()], ids=lambda shape: shape.name)
def test_steps_start_the_moment_they_can(shape: Shape, api_url: str, store: PlanStore) -> None:
    work = Work()
    spans = [_makespan_ms(work.run(shape, store)) for _ in range(ROUNDS)]
    span, bound = statistics.median(spans), 1.1 * max(shape.ideal_ms, len(shape.steps) * 8)
    print(f"\n{shape.name}: {span:.0f} ms from first start to last end, {shape.ideal_ms:.0f} ms at best, at most {bound:.0f} ms")
    assert span <= bound
    assert work.most == shape.limit


@pytest.mark.parametrize("api_url", ["tuned", "default"], indirect=True)
def test_ten_runs_back_to_back_do_not_stall(api_url: str, store: PlanStore) -> None:
    work, shape = Work(), layered(5, 10)
    work.run(shape, store)
    walls: list[float] = []
    for _ in range(WARM):
        started = time.perf_counter()
        work.run(shape, store)
        walls.append(time.perf_counter() - started)
    print(f"\nten runs of {shape.name}: {', '.join(f'{wall:.2f}' for wall in walls)} s")
    assert max(walls) - statistics.median(walls) <= 1.0


@pytest.mark.parametrize("api_url", ["tuned"], indirect=True)
async def test_every_step_of_a_fast_run_reaches_the_server(api_url: str, store: PlanStore) -> None:
    from plan_adapter.runner import arun_plan

    work, shape = Work(), layered(10, 20)
    run = await arun_plan(shape.plan(), tools=work.registry, store=store)
    async with get_client() as client:
        found: dict[str, str | None] = {}
        while set(found) != set(shape.steps) or set(found.values()) != {"Completed"}:
            found = await _task_run_states(client, run)


async def _task_run_states(client: Any, run: PlanRun) -> dict[str, str | None]:
    from prefect.client.schemas.filters import FlowRunFilter, FlowRunFilterId

    this = FlowRunFilter(id=FlowRunFilterId(any_=[run.flow_run_id]))
    pages = [await client.read_task_runs(flow_run_filter=this, limit=200, offset=offset) for offset in (0, 200)]
    return {task_run.name: task_run.state_name for page in pages for task_run in page}


def _makespan_ms(run: PlanRun) -> float:
    starts = [step.started_at for step in run.steps if step.started_at is not None]
    ends = [step.completed_at for step in run.steps if step.completed_at is not None]
    return (max(ends) - min(starts)).total_seconds() * 1000


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=1):
            return True
    except (urllib.error.URLError, OSError):
        return False
