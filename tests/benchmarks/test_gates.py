"""Benchmarks of gates: the latency from an answer to the waiting run, and the cost of waiting and listing."""

import asyncio
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from plan_adapter import PlanStore
from plan_adapter.engine.connection import Server
from plan_adapter.gates.approval import answer_to
from plan_adapter.model.approvals import ApprovalRequest, Gate, GatePolicy
from plan_adapter.model.plan import new_id
from plan_adapter.text.plan_text import plan_gate_text
from tests.gates.plans import big_plan, bound
from tests.postgres import PostgresServer

pytestmark = pytest.mark.benchmark

RUNS = 12

WAITING = """
import asyncio, sys, time
from plan_adapter import ExecutionPlan, PlanStore, ToolRegistry, tool
from plan_adapter.gates import PrefectApprover
from plan_adapter.runs import arun_plan

class NeverAnswers:
    async def ask(self, request):
        await asyncio.Event().wait()

@tool(effect="read")
def begin() -> None:
    "Say when the step begins."
    print("begun", time.monotonic(), flush=True)

async def main():
    plan = ExecutionPlan(description="Wait")
    plan.add_step("begin", "Begin")
    async with PlanStore(sys.argv[1]) as store:
        for _ in range(int(sys.argv[3])):
            with_server = sys.argv[2] == "form"
            approver = PrefectApprover() if with_server else NeverAnswers()
            await arun_plan(plan, tools=ToolRegistry([begin]), approver=approver, store=store, offline=not with_server)
            if sys.stdin.readline().strip() == "cpu":
                print("cpu", time.process_time(), flush=True)

asyncio.run(main())
"""

PLAIN = """
import asyncio, time
from typing import Literal
from prefect import flow, task
from prefect.flow_runs import pause_flow_run
from prefect.input import RunInput

class Form(RunInput):
    decision: Literal["approve", "reject"]

@task
def begin():
    print("begun", time.monotonic(), flush=True)

@flow
def plain():
    print("waits", flush=True)
    pause_flow_run(wait_for_input=Form, timeout=600)
    begin()

plain()
"""


@pytest.fixture(params=["sqlite", "postgresql"])
def store_url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """The URL of a store with the current schema."""
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path / 'plans.db'}"
        return
    server: PostgresServer = request.getfixturevalue("postgres_server")
    name = server.make_database()

    async def upgrade() -> None:
        async with PlanStore(server.url(name)) as store:
            await store.upgrade()

    asyncio.run(upgrade())
    yield server.url(name)
    server.drop_database(name)


async def open_gate(store: PlanStore, *, shown: bool) -> Gate:
    """Return the gate once it is open and, if `shown`, its form is shown."""
    while True:
        for gate in await store.gates.find():
            if not shown or gate.keyset is not None:
                return gate
        await store.changed(0.2)


async def latencies(url: str, how: str) -> list[float]:
    """Return the milliseconds from answers in this process to the first line of the tool in the other."""
    found: list[float] = []
    process = subprocess.Popen([sys.executable, "-c", WAITING, url, how, str(RUNS)], stdin=-1, stdout=-1, text=True, env=dict(os.environ))
    assert process.stdin is not None
    assert process.stdout is not None
    async with PlanStore(url) as store:
        for _ in range(RUNS):
            gate = await open_gate(store, shown=how == "form")
            await asyncio.sleep(1.3)  # so that the process is really waiting
            request = ApprovalRequest(gate.approval_digest, gate.name, "", "", run_id=gate.run_id, gate_id=gate.id)
            answer = answer_to(request, decision="approve", by="ana", known_by="os_user")
            began = time.monotonic()
            await store.gates.answer(gate.id, answer)
            line = await asyncio.to_thread(process.stdout.readline)
            found.append(1000 * (float(line.split()[1]) - began))
            process.stdin.write("continue\n")
            process.stdin.flush()
    process.wait()
    return found


@pytest.mark.parametrize("how", ["offline", "form"])
async def test_latency_from_an_answer_in_another_process_to_the_step(how: str, store_url: str, prefect_server: Server) -> None:
    found = await latencies(store_url, how)
    kind = store_url.partition(":")[0]
    print(f"\nanswer -> step start, {how}, {kind}: p50 {statistics.median(found):.0f} ms, max {max(found):.0f} ms of {len(found)}")


async def test_an_answer_arrives_ten_times_faster_than_in_plain_prefect(tmp_path: Path, prefect_server: Server) -> None:
    from prefect import get_client
    from prefect.client.schemas.filters import FlowRunFilter

    ours = statistics.median(await latencies(f"sqlite:///{tmp_path / 'plans.db'}", "form"))
    process = subprocess.Popen([sys.executable, "-c", PLAIN], stdout=-1, text=True, env=dict(os.environ))
    assert process.stdout is not None
    await asyncio.to_thread(process.stdout.readline)
    async with get_client() as client:
        paused = FlowRunFilter.model_validate({"state": {"type": {"any_": ["PAUSED"]}}})
        while not (waiting := [run for run in await client.read_flow_runs(flow_run_filter=paused) if run.name]):
            await asyncio.sleep(0.05)
        await asyncio.sleep(1.0)
        began = time.monotonic()
        await client.resume_flow_run(waiting[0].id, run_input={"decision": "approve"})
    line = ""
    while not line.startswith("begun"):
        line = await asyncio.to_thread(process.stdout.readline)
    plain = 1000 * (float(line.split()[1]) - began)
    process.wait()
    print(f"\nanswer -> step start: ours {ours:.0f} ms, plain Prefect {plain:.0f} ms, ratio {ours / plain:.3f}")
    assert ours / plain < 0.1


@pytest.mark.parametrize("how", ["offline", "form"])
async def test_a_waiting_run_uses_almost_no_cpu(how: str, store_url: str, prefect_server: Server) -> None:
    seconds = 20
    process = subprocess.Popen([sys.executable, "-c", WAITING, store_url, how, "1"], stdin=-1, stdout=-1, text=True, env=dict(os.environ))
    async with PlanStore(store_url) as store:
        await open_gate(store, shown=how == "form")
    await asyncio.sleep(3)
    before = cpu_of(process.pid)
    await asyncio.sleep(seconds)
    share = (cpu_of(process.pid) - before) / seconds
    process.kill()
    process.wait()
    print(f"\nwaiting run, {how}, {store_url.partition(':')[0]}: {100 * share:.2f} % of a core")
    assert share < 0.02


def cpu_of(pid: int) -> float:
    """Return the CPU seconds that a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def test_duration_of_listing_a_thousand_gates(store_url: str) -> None:
    from tests.store.builders import created

    async with PlanStore(store_url) as store:
        run = await created(store)
        policy = GatePolicy(approvers=("ana", "bo"))
        gate = Gate("", run.id, None, None, "d" * 64, run.name, "", "text\n" * 500, policy, opened_at=run.created_at)
        for number in range(1000):
            await store.gates.open(replace(gate, id=new_id(), step_id=f"s{number}"), timeout_ms=0)
        began = time.perf_counter()
        assert len(await store.gates.find()) == 1000
        took = time.perf_counter() - began
    environment = {**os.environ, "PLAN_ADAPTER_DATABASE_URL": store_url}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)  # an installed package is compiled
    walls: list[float] = []
    for _ in range(5):
        started = time.perf_counter()
        command = [sys.executable, "-c", "from plan_adapter.cli.app import main; main()", "gates", "--limit", "2000"]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
        walls.append(time.perf_counter() - started)
        assert len(done.stdout.splitlines()) == 1001
    kind = store_url.partition(":")[0]
    print(f"\n1,000 open gates, {kind}: read in {1000 * took:.0f} ms, `plan gates` in {min(walls):.2f} s with its start")


def test_duration_of_the_gate_text_of_a_thousand_steps() -> None:
    plan = bound(big_plan(1000))
    took: list[float] = []
    for _ in range(5):
        start = time.process_time()
        plan_gate_text(plan, gated=[], approval_digest="d" * 64, expires_ms=0)
        took.append(time.process_time() - start)
    print(f"\nthe text of 1,000 steps: {1000 * min(took):.0f} ms CPU")
