"""Benchmarks of deployments: `plan deploy` against Prefect's own client, and runs on two workers against hand-written flows.

RUNS=200 measures the throughput of more runs, in one round.
"""

import asyncio
import os
import time
from collections.abc import Iterator
from pathlib import Path
from uuid import UUID, uuid4

import pytest
from prefect import get_client
from prefect.client.orchestration import PrefectClient
from prefect.settings import temporary_settings

from plan_adapter import ExecutionPlan
from plan_adapter.model.options import Input
from plan_adapter.store import dump_plan
from tests.benchmarks.by_hand import SHAPE
from tests.deployments.composed import VALUES, Composed, composed

pytestmark = pytest.mark.benchmark

RUNS = int(os.environ.get("RUNS", "10"))
ROUNDS = 2 if RUNS < 100 else 1
BOOKS = 100
BARE = 20


@pytest.fixture(scope="module")
def services(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Composed]:
    with composed(tmp_path_factory.mktemp("composed")) as found:
        connection = {"api.url": found.server.api_url, "api.auth_string": f"admin:{VALUES['PREFECT_PASSWORD']}"}
        with temporary_settings(connection):
            yield found


def runbook(name: str) -> ExecutionPlan:
    """Return a plan of SHAPE with no-op steps."""
    plan = ExecutionPlan(name=name, description=f"Measure {name}", inputs={"host": Input(default="web-1")})
    plan.options.require_approval = False
    plan.options.allow_parallel, plan.options.max_parallel_steps = True, SHAPE.limit
    for step, (dependencies, _) in SHAPE.steps.items():
        plan.add_step("noop", step, {}, id=step, depends_on=list(dependencies))
    return plan


def deploy(services: Composed, folder: Path) -> tuple[float, str]:
    """Deploy a folder. Return the seconds that it took and the printed counts."""
    began = time.perf_counter()
    done = services.run("plan", "deploy", str(folder), "--tools", "tests.benchmarks.tools:noop")
    assert done.returncode == 0, done.stderr
    return time.perf_counter() - began, next(line for line in done.stderr.splitlines() if "runbooks:" in line)


@pytest.mark.timeout(900)
def test_deploying_100_runbooks_takes_at_most_twice_as_long_as_bare_requests(services: Composed, tmp_path: Path) -> None:
    for number in range(BOOKS):
        (tmp_path / f"book-{number}.yaml").write_text(dump_plan(runbook(f"book-{number}")), encoding="utf-8")
    first, created = deploy(services, tmp_path)
    again, unchanged = deploy(services, tmp_path)
    bare = asyncio.run(_bare_deployments())
    ratio = first / BOOKS / bare
    print(f"\n{BOOKS} runbooks: {first:.1f} s, again {again:.1f} s; a bare deployment takes {bare * 1000:.0f} ms, ratio {ratio:.2f}")
    assert f"{BOOKS} runbooks: {BOOKS} created" in created
    assert f"{BOOKS} runbooks: {BOOKS} unchanged" in unchanged
    assert ratio <= 2.0
    assert again <= 0.5 * first


async def _bare_deployments() -> float:
    """Return the seconds that Prefect's client takes to create a flow and its deployment with a form."""
    form = {"type": "object", "properties": {"host": {"type": "string", "default": "web-1", "title": "host", "position": 0}}}
    async with get_client() as client:
        began = time.perf_counter()
        for _ in range(BARE):
            name = f"bare-{uuid4().hex[:8]}"
            flow_id = await client.create_flow_from_name(name)
            text = "\n".join(f"{number}. `{step}` (noop, read): {step}" for number, step in enumerate(SHAPE.steps))
            await client.create_deployment(
                flow_id, name, entrypoint="x.y", work_pool_name="plans", description=text, parameter_openapi_schema=form
            )
        return (time.perf_counter() - began) / BARE


@pytest.mark.timeout(3600)
def test_runs_on_two_workers_are_about_as_fast_as_hand_written_flows(services: Composed, tmp_path: Path) -> None:
    (tmp_path / "layered.yaml").write_text(dump_plan(runbook("layered")), encoding="utf-8")
    done = services.run("plan", "deploy", str(tmp_path / "layered.yaml"), "--tools", "tests.benchmarks.tools:noop")
    assert done.returncode == 0, done.stderr
    for name in ("worker-1", "worker-2"):
        services.start_worker(name, PREFECT_WORKER_QUERY_SECONDS="1")
    ours, hand = asyncio.run(_both())
    steps = RUNS * len(SHAPE.steps)
    for name, seconds in (("our runs", ours), ("hand-written", hand)):
        print(f"\n{name}: {RUNS} runs of {len(SHAPE.steps)} steps in {seconds:.1f} s, {steps / seconds:.1f} steps a second", end="")
    print(f"\nratio {ours / hand:.2f} (at most 1.2)")
    assert ours <= 1.2 * hand


async def _both() -> tuple[float, float]:
    """Return the best time of our runs and of hand-written flows, measured in turn."""
    from tests.benchmarks.by_hand import by_hand

    async with get_client() as client:
        ours = (await client.read_deployment_by_name("layered/layered")).id
        flow_id = await client.create_flow(by_hand)
        hand = await client.create_deployment(flow_id, "by-hand", entrypoint="tests.benchmarks.by_hand.by_hand", work_pool_name="plans")
        walls = [(await _wall(client, ours), await _wall(client, hand)) for _ in range(ROUNDS)]
    return min(wall for wall, _ in walls), min(wall for _, wall in walls)


async def _wall(client: PrefectClient, deployment: UUID) -> float:
    """Return the seconds from the request for the first of RUNS runs to the end of the last."""
    began = time.time()
    started = [(await client.create_flow_run_from_deployment(deployment)).id for _ in range(RUNS)]
    last = began
    for flow_run_id in started:
        while (flow_run := await client.read_flow_run(flow_run_id)).end_time is None:
            await asyncio.sleep(0.5)
        assert flow_run.state_name == "Completed", flow_run.state
        last = max(last, flow_run.end_time.timestamp())
    return last - began
