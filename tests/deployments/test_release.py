"""Tests of deployed runs that release their worker while they wait for an approval."""

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from uuid import UUID

import pytest
from prefect import get_client
from prefect.client.schemas.actions import WorkPoolCreate
from prefect.client.schemas.objects import FlowRun
from prefect.client.schemas.responses import SetStateStatus
from prefect.workers.process import ProcessWorker

from plan_adapter.engine.connection import Server
from plan_adapter.engine.gate_forms import resume_released
from plan_adapter.flows import run_plan
from plan_adapter.gates.approval import answer_to
from plan_adapter.gates.gate import request_of
from plan_adapter.model.approvals import Gate
from plan_adapter.model.record import PlanRun
from plan_adapter.model.status import PlanStatus, RunReason
from plan_adapter.store.store import PlanStore
from tests.engine.gates import resume

POOL = "released"
WAIT_SECONDS = 300
POLL_SECONDS = 0.2
LIMIT_MS = 8_000  # longer than a run takes from its gate to the end of its process

PLAN = """
name: 夜间发布 nightly
description: Publish what was built
options: {{approval_timeout_ms: {limit}}}
approval: {{release: true}}
steps:
  - {{id: publish, tool_name: bash, description: Publish, parameters: {{command: "echo once >> {file}"}}}}
"""
ANSWER = {"decision": "approve", "approver": "ana", "note": ""}


@dataclass(frozen=True)
class Worksite:
    """Prefect's own worker, which starts each flow run in a process, and the store of these runs."""

    worker: ProcessWorker
    deployment_id: UUID
    store: PlanStore
    folder: Path

    def published(self, name: str) -> str:
        """Return what the step of a plan has written."""
        file = self.folder / name
        return file.read_text() if file.exists() else ""

    async def begin(self, name: str, *, limit: int = 600_000) -> UUID:
        """Schedule a run of the plan and return the id of its flow run."""
        plan = PLAN.format(limit=limit, file=self.folder / name)
        async with get_client() as client:
            return (await client.create_flow_run_from_deployment(self.deployment_id, parameters={"plan": plan})).id

    async def until(self, condition: Callable[[FlowRun], bool], *flow_run_ids: UUID) -> list[FlowRun]:
        """Let the worker work until all these flow runs meet `condition`."""
        async with get_client() as client, asyncio.timeout(WAIT_SECONDS):
            while True:
                await self.worker.get_and_submit_flow_runs()
                found = [await client.read_flow_run(flow_run_id) for flow_run_id in flow_run_ids]
                if all(map(condition, found)):
                    return found
                await asyncio.sleep(POLL_SECONDS)

    async def run(self, flow_run_id: UUID) -> PlanRun:
        """Return the run of a flow run."""
        run = await self.store.ledger.run_of_flow(str(flow_run_id))
        assert run is not None
        return run

    async def gate(self, flow_run_id: UUID) -> Gate:
        """Return the gate of a flow run's run once no process waits at it."""
        run = await self.run(flow_run_id)
        async with asyncio.timeout(WAIT_SECONDS):
            while True:
                [gate] = await self.store.gates.find(run_id=run.id, open_only=False)
                if gate.attended is False:
                    return await self.store.gates.get(gate.id)
                await asyncio.sleep(POLL_SECONDS)

    async def until_expired(self, gate: Gate) -> None:
        """Wait until `gate` has expired by the store's clock."""
        assert gate.expires_at is not None
        while await self.store.now() <= gate.expires_at:
            await asyncio.sleep(POLL_SECONDS)


def is_suspended(run: FlowRun) -> bool:
    return run.state_name == "Suspended"


def is_final(run: FlowRun) -> bool:
    return run.state is not None and run.state.is_final()


@asynccontextmanager
async def worksite(folder: Path) -> AsyncGenerator[Worksite]:
    """Yield a worker and a deployment in a work pool of this test."""
    template = ProcessWorker.get_default_base_job_template()
    async with get_client() as client:
        await client.create_work_pool(WorkPoolCreate(name=POOL, type="process", base_job_template=template), overwrite=True)
        deployment_id = await client.create_deployment(
            await client.create_flow(run_plan), name="released", entrypoint="plan_adapter.flows.run_plan", work_pool_name=POOL
        )
    async with ProcessWorker(POOL) as worker, PlanStore(f"sqlite:///{folder / 'plans.db'}") as store:
        yield Worksite(worker, deployment_id, store, folder)


@pytest.mark.thorough
async def test_released_runs_resume_after_an_answer_and_expire_without_one(
    prefect_server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PLAN_ADAPTER_DATABASE_URL", f"sqlite:///{tmp_path / 'plans.db'}")
    monkeypatch.setenv("PLAN_ADAPTER_ALLOW_LOCAL_STORE", "true")
    async with worksite(tmp_path) as site:
        in_form, in_store, unanswered = await site.begin("form"), await site.begin("store"), await site.begin("none", limit=LIMIT_MS)
        await site.until(is_suspended, in_form, in_store)
        await site.until(lambda run: is_suspended(run) or is_final(run), unanswered)  # on a busy machine it may have expired by now
        gates = [await site.gate(flow_run_id) for flow_run_id in (in_form, in_store, unanswered)]
        assert [gate.flow_run_id for gate in gates] == [str(in_form), str(in_store), str(unanswered)]

        await site.until_expired(gates[2])
        assert (await resume(in_form, ANSWER)).status is SetStateStatus.ACCEPT
        approval = answer_to(request_of(gates[1]), decision="approve", by="bo", known_by="os_user")
        await resume_released(await site.store.gates.answer(gates[1].id, approval), approval)
        ended = await site.until(is_final, in_form, in_store, unanswered)

        runs = [await site.run(flow_run_id) for flow_run_id in (in_form, in_store, unanswered)]
        assert [(run.name, run.status, run.reason, run.approved_by) for run in runs] == [
            ("夜间发布 nightly", PlanStatus.COMPLETED, None, "ana"),
            ("夜间发布 nightly", PlanStatus.COMPLETED, None, "bo"),
            ("夜间发布 nightly", PlanStatus.CANCELLED, RunReason.EXPIRED, None),
        ]
        assert [run.state_name for run in ended] == ["Completed", "Completed", "Expired"]
        assert [site.published(name) for name in ("form", "store", "none")] == ["once\n", "once\n", ""]
