"""Tests of flow runs whose processes are killed: those of a script, and those of a worker, which starts the run again."""

import asyncio
from pathlib import Path
from uuid import UUID

import pytest
from prefect import get_client
from prefect.client.orchestration import PrefectClient
from prefect.client.schemas.objects import FlowRun
from prefect.events.filters import EventFilter, EventNameFilter, EventRelatedFilter
from prefect.states import Scheduled

from plan_adapter.engine.connection import Server
from plan_adapter.store import PlanStatus, dump_plan
from tests.faults.child import CANARY, resolve
from tests.faults.deployed import FOLDER, read_faults, write_faults
from tests.faults.harness import TARGETS, InOrder, Target, Trial, open_trial
from tests.faults.plans import EVERYTHING
from tests.workers import deployed, worker

pytestmark = pytest.mark.thorough

AFTER_PREFECT_STATE: Target = ("after-prefect-state", None)
POOL = "faults"
GATES = ("gate", "approval_used", "run_created")


async def test_a_scripts_flow_run_resumes_after_each_kill(prefect_server: Server, tmp_path: Path) -> None:
    faults: list[Target] = [AFTER_PREFECT_STATE, ("after-effect", "write")]
    async with open_trial(EVERYTHING, tmp_path, None, InOrder(faults)) as trial:
        trial.server = prefect_server.api_url
        await trial.run_to_end()
    assert trial.violations == [], "\n".join(trial.events)
    assert trial.kills == dict.fromkeys(faults, 1)


@pytest.mark.timeout(3600)
async def test_a_worker_finishes_a_run_killed_at_every_crash_point_of_a_write(prefect_server: Server, tmp_path: Path) -> None:
    reads = ("read", "idempotent_write", "rollback idempotent_write")  # other fault tests cover these, without a worker
    faults = [target for target in TARGETS if not f"{target[0]} {target[1]}".replace("in-transaction ", "").startswith(GATES)]
    faults = [target for target in faults if target[1] not in reads]
    faults.insert(faults.index(("after-receipt", None)), AFTER_PREFECT_STATE)
    async with open_trial(EVERYTHING, tmp_path, None, InOrder([])) as trial:
        trial.scenario.plan.options.require_approval = False
        write_faults(faults, trial.workspace.folder)
        with worker(prefect_server, pool=POOL, log=trial.workspace.home / "worker.log", environment=worker_environment(trial)):
            async with get_client() as client:
                parameters = {"plan": dump_plan(trial.scenario.plan), "tools": ["tests.faults.deployed:TOOLS"]}
                started = await client.create_flow_run_from_deployment(await deployed(client, pool=POOL, parameters=parameters))
                for number, fault in enumerate(faults, start=1):
                    flow_run = await wait_for_worker(client, started.id, processes=number)
                    assert (flow_run.state_name, flow_run.run_count, read_faults(trial.workspace.folder)) == (
                        "Crashed",
                        number,
                        faults[number:],
                    ), fault
                    await check_and_resolve(trial, started.id)
                    assert trial.violations == [], f"process {number}, which was killed at {fault}"
                    await client.set_flow_run_state(started.id, Scheduled(name="AwaitingRetry"))
                flow_run = await wait_for_worker(client, started.id, processes=len(faults) + 1)
        trial.violations += await trial.check(is_over=True)
        run = await trial.store.ledger.run_of_flow(str(started.id))
    assert trial.violations == []
    assert (flow_run.state_name, flow_run.run_count) == ("Failed", len(faults) + 1)  # the last process finds a run that is over
    assert run is not None
    assert run.status is PlanStatus.PARTIAL


def worker_environment(trial: Trial) -> dict[str, str]:
    """Return the environment of a worker's runs, with the store, the secret and the next fault."""
    return {
        "PLAN_ADAPTER_DATABASE_URL": trial.workspace.store_url,
        "PLAN_ADAPTER_HOME": str(trial.workspace.home),
        "PLAN_ADAPTER_SECRET_CANARY": CANARY,
        FOLDER: str(trial.workspace.folder),
    }


async def wait_for_worker(client: PrefectClient, flow_run_id: UUID, *, processes: int) -> FlowRun:
    """Return the flow run once its worker has reported the end of the first `processes` processes.

    A worker reports each crash twice and spends seconds in between on the flow's hooks. The second report would also apply to a process
    that has started since: Prefect would show the flow run as crashed, and the worker would start it again, although its process is alive.
    """
    executed = EventNameFilter(name=["prefect.worker.executed-flow-run"])  # comes after the second report
    of_flow_run = EventRelatedFilter(id=[f"prefect.flow-run.{flow_run_id}"])
    while (await client.read_events(EventFilter(event=executed, related=of_flow_run), limit=1)).total < processes:
        await asyncio.sleep(0.2)
    return await client.read_flow_run(flow_run_id)


async def check_and_resolve(trial: Trial, flow_run_id: UUID) -> None:
    """Check the run after a process was killed, and resolve its unknown outcomes."""
    run = await trial.store.ledger.run_of_flow(str(flow_run_id))
    if run is not None:
        trial.run_id = run.id
        trial.violations += await trial.check()
        await resolve(trial.store, run.id, trial.lines())
