"""Benchmark of runs that wait at a gate without a process: what they cost meanwhile, and how soon a run continues after an answer.

Prefect's server and the store are on PostgreSQL, a Prefect worker starts the runs, and a person answers at `plan desk`. Hand-written flows
that suspend themselves continue under the same worker for comparison. RUNS=1000 lets more runs wait.
"""

import asyncio
import os
import signal
import statistics
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from uuid import UUID

import httpx
import pytest
from prefect import get_client
from prefect.client.orchestration import PrefectClient
from prefect.client.schemas.filters import FlowRunFilter, FlowRunFilterId, FlowRunFilterState, FlowRunFilterStateName
from prefect.settings import temporary_settings

from plan_adapter.model.approvals import Gate
from plan_adapter.store.store import PlanStore
from tests.benchmarks.by_hand import wait_by_hand
from tests.deployments.composed import VALUES, Composed, composed
from tests.desk.people import HEADER, SECRET, Desk, said
from tests.postgres import free_port

pytestmark = pytest.mark.benchmark

RUNS = int(os.environ.get("RUNS", "10"))
ANSWERS = min(RUNS, 50)
BY_HAND = min(RUNS, 20)
IDLE_SECONDS = 30
WORKER = "worker-1"
ANA = "ana@example.org"

PLAN = f"""
name: waiting
description: Wait for an answer
approval: {{release: true, approvers: [{ANA}], known_by: [proxy]}}
options: {{approval_timeout_ms: 86400000}}
steps:
  - {{id: next, tool_name: bash, description: Continue, parameters: {{command: "true"}}}}
"""


@pytest.mark.timeout(4 * 3600)
def test_runs_that_wait_hold_no_process_and_continue_as_soon_as_hand_written_flows(tmp_path: Path) -> None:
    (tmp_path / "waiting.yaml").write_text(PLAN, encoding="utf-8")
    with composed(tmp_path) as services:
        password = f"admin:{VALUES['PREFECT_PASSWORD']}"
        settings = temporary_settings({"api.url": services.server.api_url, "api.auth_string": password})
        with settings, desk_of(services) as (desk, desk_pid):
            done = services.run("plan", "deploy", str(tmp_path / "waiting.yaml"))
            assert done.returncode == 0, done.stderr
            services.start_worker(WORKER, PREFECT_WORKER_QUERY_SECONDS="0.5")
            asyncio.run(_measure(services, desk, {"worker": services.workers[WORKER].pid, "desk": desk_pid}))


async def _measure(services: Composed, desk: Desk, pids: dict[str, int]) -> None:
    async with get_client() as client, PlanStore(services.environment("worker")["PLAN_ADAPTER_DATABASE_URL"]) as store:
        alone = len(_processes(pids["worker"]))

        async def until_suspended(wanted: int) -> None:
            """Return once so many flow runs wait, and the worker runs no process for them."""
            suspended = FlowRunFilter(state=FlowRunFilterState(name=FlowRunFilterStateName(any_=["Suspended"])))
            while await client.count_flow_runs(flow_run_filter=suspended) < wanted or len(_processes(pids["worker"])) > alone:
                await asyncio.sleep(1)

        by_hand = await client.create_deployment(
            await client.create_flow(wait_by_hand),
            "waiting",
            entrypoint="tests.benchmarks.by_hand.wait_by_hand",
            work_pool_name="plans",
        )
        hand_runs = [(await client.create_flow_run_from_deployment(by_hand)).id for _ in range(BY_HAND)]
        await until_suspended(BY_HAND)
        before = {name: _megabytes(pid) for name, pid in pids.items()}
        deployment = await client.read_deployment_by_name("waiting/waiting")
        for _ in range(RUNS):
            await client.create_flow_run_from_deployment(deployment.id)
        await until_suspended(RUNS + BY_HAND)
        used = {name: _cpu_seconds(pid) for name, pid in pids.items()}
        await asyncio.sleep(IDLE_SECONDS)
        print(f"\nmore than {RUNS} runs wait", end="")
        for name, pid in pids.items():
            percent = (_cpu_seconds(pid) - used[name]) / IDLE_SECONDS * 100
            print(f"\n{name}: {before[name]:.0f} MB before, {_megabytes(pid):.0f} MB now, {percent:.1f} % of a core", end="")
        gates = await store.gates.find()
        assert len(gates) == RUNS
        ours = [await _continue(gate, desk, store) for gate in gates[:ANSWERS]]
        hand = [await _continue_by_hand(flow_run_id, client) for flow_run_id in hand_runs]
    for name, waits in (("our runs", ours), ("hand-written", hand)):
        print(
            f"\n{name}: {_median(waits):.2f} s from an answer to the next step, p95 {_p95(waits):.2f} s, at most {max(waits):.2f} s", end=""
        )
    print(f"\nratio {_median(ours) / _median(hand):.2f} (at most 1.5)")
    assert _median(ours) <= 1.5 * _median(hand)


async def _continue(gate: Gate, desk: Desk, store: PlanStore) -> float:
    """Approve at the desk. Return the seconds until the next step starts."""
    person = desk.person(ANA)
    path = f"/gates/{gate.id}"
    hidden = await person.hidden(path)
    began = time.time()
    response = await person.post(path, **hidden, decision="approve")
    assert response.is_success or response.is_redirect, said(response)
    await person.client.aclose()
    while not (attempts := await store.attempts(gate.run_id)):
        await asyncio.sleep(0.05)
    return attempts[0].started_at.timestamp() - began


async def _continue_by_hand(flow_run_id: UUID, client: PrefectClient) -> float:
    """Resume a hand-written flow. Return the seconds until its task starts."""
    began = time.time()
    await client.resume_flow_run(flow_run_id)
    wanted = FlowRunFilter(id=FlowRunFilterId(any_=[flow_run_id]))
    while True:
        for task_run in await client.read_task_runs(flow_run_filter=wanted):
            if task_run.start_time is not None:
                return task_run.start_time.timestamp() - began
        await asyncio.sleep(0.05)


@contextmanager
def desk_of(services: Composed) -> Iterator[tuple[Desk, int]]:
    """Run `plan desk` behind a proxy. Yield it and its process id."""
    port = free_port()
    address = f"http://127.0.0.1:{port}"
    variables = {"PLAN_ADAPTER_DESK_URL": address, "PLAN_ADAPTER_DESK_PROXY_HEADER": HEADER, "PLAN_ADAPTER_DESK_PROXY_SECRET": SECRET}
    environment = {**services.environment("worker"), **variables}
    with (services.folder / "desk.log").open("wb") as log:
        process = subprocess.Popen(["plan", "desk", "--port", str(port)], env=environment, stdout=log, stderr=log, start_new_session=True)
    try:
        while not _listens(address):
            assert process.poll() is None, (services.folder / "desk.log").read_text()
            time.sleep(0.1)
        yield Desk(address), process.pid
    finally:
        os.killpg(process.pid, signal.SIGTERM)
        process.wait()


def _listens(address: str) -> bool:
    try:
        httpx.get(address, trust_env=False)
    except httpx.ConnectError:
        return False
    return True


def _processes(pid: int) -> list[int]:
    """Return a process and its descendants."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [pid, *(one for child in children for one in _processes(int(child)))]


def _megabytes(pid: int) -> float:
    """Return the memory of a process and its descendants that they share with no other."""
    lines = [line for one in _processes(pid) for line in Path(f"/proc/{one}/smaps_rollup").read_text().splitlines()]
    return sum(int(line.split()[1]) for line in lines if line.startswith("Private_")) / 1000


def _cpu_seconds(pid: int) -> float:
    """Return the CPU time that a process and its descendants have used."""
    fields = [Path(f"/proc/{one}/stat").read_text().rpartition(")")[2].split() for one in _processes(pid)]
    return sum(int(found[11]) + int(found[12]) for found in fields) / os.sysconf("SC_CLK_TCK")


def _median(waits: Sequence[float]) -> float:
    return statistics.median(waits)


def _p95(waits: Sequence[float]) -> float:
    return statistics.quantiles(waits, n=20)[-1]
