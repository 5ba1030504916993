"""Tests of cancelling a flow run in Prefect: the worker or `serve` sends SIGTERM, and the run ends cleanly with the reason."""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import Literal, TypeAlias
from uuid import UUID

import pytest
from prefect import get_client
from prefect.client.orchestration import PrefectClient
from prefect.client.schemas.objects import State
from prefect.exceptions import ObjectNotFound
from prefect.states import Cancelling

from plan_adapter import ExecutionPlan, PlanRun, PlanStore
from plan_adapter.engine.connection import Server
from plan_adapter.model.host_process import HostProcess
from plan_adapter.model.status import RunReason, StepStatus
from plan_adapter.runs.reconcile import reconcile
from plan_adapter.store import PlanStatus, dump_plan
from plan_adapter.store.leases import of_run
from tests.sql import Sql
from tests.workers import ROOT, deployed, worker

pytestmark = pytest.mark.thorough

Place: TypeAlias = Literal["worker", "serve"]

POOL = "cancelled"
LOG = "log"
REASON = "取消 aus der UI"


def a_plan(folder: Path, *, asks: str = "") -> ExecutionPlan:
    """Return a plan with a long write. `asks` puts a gate before the `plan` or before its `step`."""
    plan = ExecutionPlan(name="夜间 deployment", description="Write, and then say so")
    plan.options.require_approval = asks == "plan"
    folder.mkdir()
    script = f"echo begun > {folder / 'begun'}; sleep 120 & echo $! > {folder / 'pid'}; wait; echo ended > {folder / 'ended'}"
    plan.add_step("bash", "Write", {"command": script}, id="w", requires_approval=asks == "step")
    plan.add_step("bash", "Say so", {"command": "true"}, id="after", depends_on=["w"])
    return plan


@asynccontextmanager
async def flow_host(place: Place, server: Server, home: Path) -> AsyncGenerator[Callable[[ExecutionPlan], Awaitable[UUID]]]:
    """Run a worker or a process that serves the flow, and yield a function that starts a plan there."""
    home.mkdir(exist_ok=True)
    found = {"PLAN_ADAPTER_HOME": str(home), "PREFECT_LOGGING_LEVEL": "INFO"}
    of_place = worker(server, pool=POOL, log=home / LOG, environment=found) if place == "worker" else served(server, found, home / LOG)
    with of_place:
        async with get_client() as client:
            deployment = await (deployed(client, pool=POOL) if place == "worker" else served_deployment(client))

            async def start(plan: ExecutionPlan) -> UUID:
                parameters = {"plan": dump_plan(plan), "tools": []}
                return (await client.create_flow_run_from_deployment(deployment, parameters=parameters)).id

            yield start


@contextmanager
def served(server: Server, environment: dict[str, str], log: Path) -> Generator[None]:
    """Run `run_plan.serve()` in a separate process."""
    serves = f"from plan_adapter.flows import run_plan; run_plan.serve({POOL!r})"
    found = {**os.environ, "PREFECT_API_URL": server.api_url, "PREFECT_RUNNER_POLL_FREQUENCY": "1", "PYTHONPATH": str(ROOT), **environment}
    with log.open("w") as output:
        process = subprocess.Popen([sys.executable, "-c", serves], cwd=ROOT, env=found, stdout=output, stderr=output)
        try:
            yield
        finally:
            process.terminate()
            process.wait()


async def served_deployment(client: PrefectClient) -> UUID:
    """Return the deployment of the serving process once it exists."""
    while True:
        try:
            return (await client.read_deployment_by_name(f"run-plan/{POOL}")).id
        except ObjectNotFound:
            await asyncio.sleep(0.2)


async def wait_until(what: Callable[[], Awaitable[bool]]) -> None:
    while not await what():
        await asyncio.sleep(0.2)


async def state_of(client: PrefectClient, flow_run_id: UUID) -> State:
    state = (await client.read_flow_run(flow_run_id)).state
    assert state is not None
    return state


async def process_of(run: PlanRun, sql: Sql) -> int:
    lease = await sql.run(lambda connection: of_run(connection, run.id))
    assert lease is not None
    return HostProcess.parse(lease["owner"]).pid


def processes_with_home(home: Path) -> set[int]:
    """Return the processes with this home: the worker or serving process, and its children."""
    mark, found = f"PLAN_ADAPTER_HOME={home}".encode(), set[int]()
    for place in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it has ended in the meantime
            is_tracker = b"resource_tracker" in (place / "cmdline").read_bytes()  # multiprocessing's own, as long as its parent
            if mark in (place / "environ").read_bytes().split(b"\0") and not is_tracker:
                found.add(int(place.name))
    return found


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.mark.timeout(300)
@pytest.mark.parametrize("place", ["worker", "serve"])
async def test_runs_cancelled_in_the_ui_end_with_the_reason(
    place: Place, prefect_server: Server, store: PlanStore, home: Path, tmp_path: Path
) -> None:
    async with flow_host(place, prefect_server, home) as start, get_client() as client:
        places = {asks: tmp_path / f"asks {asks}".strip().replace(" ", "-") for asks in ("", "plan", "step")}
        existing = processes_with_home(home)
        flow_runs = {asks: await start(a_plan(folder, asks=asks)) for asks, folder in places.items()}

        async def all_have_started() -> bool:
            waiting = {gate.step_id for gate in await store.gates.find() if gate.keyset is not None}
            return (places[""] / "pid").exists() and waiting == {None, "w"}

        await wait_until(all_have_started)
        begun = processes_with_home(home) - existing
        for flow_run_id in flow_runs.values():
            await client.set_flow_run_state(flow_run_id, Cancelling(message=REASON))

        async def all_have_ended() -> bool:  # the processes of the flow runs, and those that a worker started for them
            return not any(map(is_alive, begun))

        await wait_until(all_have_ended)
        for asks, flow_run_id in flow_runs.items():
            shown = await state_of(client, flow_run_id)
            assert (shown.is_cancelled(), shown.name) == (True, "Cancelled"), asks
            assert REASON in (shown.message or ""), asks
            run = await store.ledger.run_of_flow(str(flow_run_id))
            assert run is not None
            assert (run.status, run.reason) == (PlanStatus.CANCELLED, RunReason.CANCELLED), asks
            assert run.message == REASON + ("; the outcome of `w` is unknown" if not asks else "")
            if asks != "plan":
                assert run.steps[1].status is StepStatus.SKIPPED
                assert REASON in (run.steps[1].reason or "")
        assert await store.gates.find() == []
        assert not is_alive(int((places[""] / "pid").read_text()))
        assert not (places[""] / "ended").exists()
        log = (home / LOG).read_text()
        assert "Traceback" not in log
        assert "unhandled exception" not in log

        assert await reconcile(store, with_prefect=True) == []


@pytest.mark.timeout(300)
async def test_a_process_terminated_without_a_cancellation_leaves_a_resumable_run(
    prefect_server: Server, store: PlanStore, sql: Sql, home: Path, tmp_path: Path
) -> None:
    async with flow_host("worker", prefect_server, home) as start, get_client() as client:
        flow_run_id = await start(a_plan(tmp_path / "work"))

        async def has_begun() -> bool:
            return (tmp_path / "work" / "pid").exists()

        await wait_until(has_begun)
        os.kill(await process_of(await found_run(store, flow_run_id), sql), signal.SIGTERM)

        async def has_crashed() -> bool:
            return (await state_of(client, flow_run_id)).is_crashed()

        await wait_until(has_crashed)
        assert (await found_run(store, flow_run_id)).reason is RunReason.INTERRUPTED
        assert not is_alive(int((tmp_path / "work" / "pid").read_text()))
        assert "unhandled exception" not in (home / LOG).read_text()


async def found_run(store: PlanStore, flow_run_id: UUID) -> PlanRun:
    run = await store.ledger.run_of_flow(str(flow_run_id))
    assert run is not None
    return run
