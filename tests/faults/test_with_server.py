"""Processes of a run that is a flow run end, too: of a script's, and under a worker, which starts the run again."""

import asyncio
from pathlib import Path
from uuid import UUID

import pytest
from prefect import get_client
from prefect.client.orchestration import PrefectClient
from prefect.client.schemas.objects import FlowRun
from prefect.events.filters import EventFilter, EventNameFilter, EventRelatedFilter
from prefect.states import Scheduled

from plan_adapter import PlanStatus, dump_plan
from plan_adapter.engine.connection import Server
from tests.faults.child import CANARY, resolve
from tests.faults.deployed import FOLDER, faults_in, leave
from tests.faults.harness import TARGETS, Each, Target, Trial, opened
from tests.faults.plans import EVERYTHING
from tests.workers import deployed, worker

pytestmark = pytest.mark.thorough

SHOWN: Target = ("after-prefect-state", None)
POOL = "faults"
GATES = ("gate", "approval_used", "run_created")


async def test_a_scripts_flow_run_resumes_after_each_kill(prefect_server: Server, tmp_path: Path) -> None:
    faults: list[Target] = [SHOWN, ("after-effect", "write")]
    async with opened(EVERYTHING, tmp_path, None, Each(faults)) as trial:
        trial.server = prefect_server.api_url
        await trial.execute_resume()
    assert trial.found == [], "\n".join(trial.told)
    assert trial.kills == dict.fromkeys(faults, 1)


@pytest.mark.timeout(3600)
async def test_a_worker_brings_a_run_to_its_end_that_is_killed_at_every_place_of_a_write(prefect_server: Server, tmp_path: Path) -> None:
    reads = ("read", "idempotent_write", "rollback idempotent_write")  # the other fault tests kill runs there, without a worker
    faults = [target for target in TARGETS if not f"{target[0]} {target[1]}".replace("in-transaction ", "").startswith(GATES)]
    faults = [(point, effect) for point, effect in faults if effect not in reads]
    faults.insert(faults.index(("after-receipt", None)), SHOWN)
    async with opened(EVERYTHING, tmp_path, None, Each([])) as trial:
        trial.scenario.plan.options.require_approval = False
        leave(faults, trial.place.folder)
        with worker(prefect_server, pool=POOL, log=trial.place.home / "worker.log", environment=of_runs(trial)):
            async with get_client() as client:
                parameters = {"plan": dump_plan(trial.scenario.plan), "tools": ["tests.faults.deployed:TOOLS"]}
                started = await client.create_flow_run_from_deployment(await deployed(client, pool=POOL, parameters=parameters))
                for number, fault in enumerate(faults, start=1):
                    ended = await left_by_its_worker(client, started.id, processes=number)
                    assert (ended.state_name, ended.run_count, faults_in(trial.place.folder)) == ("Crashed", number, faults[number:]), fault
                    await look_and_answer(trial, started.id)
                    assert trial.found == [], f"process {number}, which was killed at {fault}"
                    await client.set_flow_run_state(started.id, Scheduled(name="AwaitingRetry"))
                ended = await left_by_its_worker(client, started.id, processes=len(faults) + 1)
        trial.found += await trial.look(is_over=True)
        run = await trial.store.ledger.run_of_flow(str(started.id))
    assert trial.found == []
    assert (ended.state_name, ended.run_count) == ("Failed", len(faults) + 1)  # the last one finds a run that is over
    assert run is not None
    assert run.status is PlanStatus.PARTIAL


def of_runs(trial: Trial) -> dict[str, str]:
    """Return where the runs under a worker find the store, the secret, and the next fault."""
    return {
        "PLAN_ADAPTER_DATABASE_URL": trial.place.store_url,
        "PLAN_ADAPTER_HOME": str(trial.place.home),
        "PLAN_ADAPTER_SECRET_CANARY": CANARY,
        FOLDER: str(trial.place.folder),
    }


async def left_by_its_worker(client: PrefectClient, flow_run_id: UUID, *, processes: int) -> FlowRun:
    """Return the flow run once its worker has nothing more to say of the first `processes` that it started for it.

    It reports each crash twice. In between it looks for the flow's hooks, for seconds, and the second report also ends what was started
    since: Prefect would show as crashed, and its worker start once more, a flow run whose next process lives.
    """
    executed = EventNameFilter(name=["prefect.worker.executed-flow-run"])  # comes after the second report
    of_flow_run = EventRelatedFilter(id=[f"prefect.flow-run.{flow_run_id}"])
    while (await client.read_events(EventFilter(event=executed, related=of_flow_run), limit=1)).total < processes:
        await asyncio.sleep(0.2)
    return await client.read_flow_run(flow_run_id)


async def look_and_answer(trial: Trial, flow_run_id: UUID) -> None:
    """Check what a killed process has left, and say what became of unknown writes."""
    run = await trial.store.ledger.run_of_flow(str(flow_run_id))
    if run is not None:
        trial.run_id = run.id
        trial.found += await trial.look()
        await resolve(trial.store, run.id, trial.place.world)
