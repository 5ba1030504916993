"""Processes of a run that is a flow run end, too: of a script's, and under a worker, which starts the run again."""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from uuid import UUID

import pytest
from prefect import get_client
from prefect.client.orchestration import PrefectClient
from prefect.client.schemas.objects import FlowRun
from prefect.states import Scheduled

from plan_adapter import ExecutionPlan, PlanStatus, dump_plan
from plan_adapter.engine.connection import Server
from tests.faults.child import CANARY, resolve
from tests.faults.deployed import FOLDER, faults_in, leave
from tests.faults.harness import TARGETS, Each, Target, Trial, opened
from tests.faults.plans import EVERYTHING

pytestmark = pytest.mark.thorough

SHOWN: Target = ("after-prefect-state", None)
POOL = "faults"
ROOT = Path(__file__).parents[2]
GATES = ("gate", "approval_used", "run_created")


async def test_a_flow_run_of_a_script_goes_on_after_each_kill(prefect_server: Server, tmp_path: Path) -> None:
    faults: list[Target] = [SHOWN, ("after-effect", "write")]
    async with opened(EVERYTHING, tmp_path, None, Each(faults)) as trial:
        trial.server = prefect_server.api_url
        await trial.go_on()
    assert trial.found == [], "\n".join(trial.told)
    assert trial.kills == dict.fromkeys(faults, 1)


@pytest.mark.timeout(1200)
async def test_a_worker_brings_a_run_to_its_end_that_is_killed_at_every_place(prefect_server: Server, tmp_path: Path) -> None:
    faults = [target for target in TARGETS if not f"{target[0]} {target[1]}".replace("in-transaction ", "").startswith(GATES)]
    faults.insert(faults.index(("after-receipt", None)), SHOWN)
    async with opened(EVERYTHING, tmp_path, None, Each([])) as trial:
        trial.scenario.plan.options.require_approval = False
        leave(faults, trial.place.folder)
        with worker(trial, prefect_server):
            async with get_client() as client:
                started = await client.create_flow_run_from_deployment(await deployed(client, trial.scenario.plan))
                while (ended := await crashed_or_ended(client, started.id)).state_name == "Crashed":
                    await look_and_answer(trial, started.id)
                    assert trial.found == [], (len(faults_in(trial.place.folder)), trial.found)
                    await start_again(client, ended)
        trial.found += await trial.look(is_over=True)
        run = await trial.store.run_of_flow(str(started.id))
    assert trial.found == []
    assert (faults_in(trial.place.folder) if trial.place.folder.exists() else [], ended.run_count) == ([], len(faults) + 1)
    assert run is not None
    assert run.status is PlanStatus.PARTIAL


@contextmanager
def worker(trial: Trial, server: Server) -> Iterator[None]:
    """Have a worker serve the pool; its runs find the store, the secret, and the next fault in their environment."""
    environment = {
        **os.environ,
        "PREFECT_API_URL": server.api_url,
        "PREFECT_WORKER_QUERY_SECONDS": "1",
        "PYTHONPATH": str(ROOT),
        "PLAN_ADAPTER_DATABASE_URL": trial.place.store_url,
        "PLAN_ADAPTER_HOME": str(trial.place.home),
        "PLAN_ADAPTER_ALLOW_LOCAL_STORE": "true",
        "PLAN_ADAPTER_SECRET_CANARY": CANARY,
        FOLDER: str(trial.place.folder),
    }
    prefect = [sys.executable, "-m", "prefect", "--no-prompt"]
    subprocess.run(
        [*prefect, "work-pool", "create", POOL, "--type", "process", "--overwrite"], env=environment, check=True, capture_output=True
    )
    with (trial.place.home / "worker.log").open("w") as log:
        start = [*prefect, "worker", "start", "--pool", POOL, "--type", "process"]
        process = subprocess.Popen(start, cwd=ROOT, env=environment, stdout=log, stderr=log, start_new_session=True)
        try:
            yield
        finally:
            os.killpg(process.pid, signal.SIGTERM)
            try:
                process.wait(timeout=30)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()


async def deployed(client: PrefectClient, plan: ExecutionPlan) -> UUID:
    """Return the deployment that runs `plan`."""
    from plan_adapter.flows import run_plan

    return await client.create_deployment(
        flow_id=await client.create_flow(run_plan),
        name="faults",
        work_pool_name=POOL,
        entrypoint="plan_adapter.flows.run_plan",
        path=str(ROOT),
        parameters={"plan": dump_plan(plan), "tools": ["tests.faults.deployed:TOOLS"]},
    )


async def crashed_or_ended(client: PrefectClient, flow_run_id: UUID) -> FlowRun:
    """Return the flow run once its process has ended and its worker has said so."""
    while True:
        found = await client.read_flow_run(flow_run_id)
        if found.state is not None and found.state.is_final():
            return found
        await asyncio.sleep(0.2)


async def look_and_answer(trial: Trial, flow_run_id: UUID) -> None:
    """Check what a killed process has left, and say what became of unknown writes."""
    run = await trial.store.run_of_flow(str(flow_run_id))
    if run is not None:
        trial.run_id = run.id
        trial.found += await trial.look()
        await resolve(trial.store, run.id, trial.place.world)


async def start_again(client: PrefectClient, crashed: FlowRun) -> None:
    """Have the worker start the flow run once more; a retry that comes before the last report of the crash is lost, and sent again."""
    while (now := await client.read_flow_run(crashed.id)).run_count == crashed.run_count:
        if now.state_name == "Crashed":
            await client.set_flow_run_state(crashed.id, Scheduled(name="AwaitingRetry"))
        await asyncio.sleep(0.2)
