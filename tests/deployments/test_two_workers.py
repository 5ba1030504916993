"""A test of runs on two workers, one of them killed twice: every run ends, and every write happens once. RUNS sets the number."""

import asyncio
import json
import os
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
import yaml
from prefect import get_client
from prefect.client.orchestration import PrefectClient
from prefect.client.schemas.objects import StateType
from prefect.settings import temporary_settings
from prefect.states import Scheduled

from plan_adapter import PlanRun, PlanStore
from plan_adapter.model.status import RunReason
from plan_adapter.store import PlanStatus
from tests.deployments.composed import VALUES, Composed, composed, has_namespaces

pytestmark = pytest.mark.thorough

RUNS = int(os.environ.get("RUNS", "12"))
MINUTES = 15 + 2 * RUNS
START_LIMIT = timedelta(minutes=2)
"""A flow run that a worker took begins within this time."""
NODES = ["web-1", "web-2", "网-3"]


def write(step: str, what: str = "", **fields: Any) -> dict[str, Any]:
    """Return a step that writes one line into the file of the run's writes."""
    line = f"${{{{ inputs.run }}}} {what or step}"
    parameters = {"command": 'sleep 1; echo "$LINE" >> "$WRITES"', "env": {"LINE": line, "WRITES": "${{ inputs.writes }}"}}
    return {"id": step, "tool_name": "bash", "description": f"Write {step}", "parameters": parameters, **fields}


def undo(step: str) -> dict[str, Any]:
    """Return a rollback that writes one line."""
    return {name: value for name, value in write(f"undo-{step}").items() if name in ("tool_name", "parameters")}


NODE = "${{ item }}"
FAIL = {"id": "fail", "tool_name": "bash", "description": "Fail", "parameters": {"command": "exit 3"}, "depends_on": ["two"]}
PLANS: dict[str, tuple[list[dict[str, Any]], list[str]]] = {
    "parallel": ([write("a"), write("b"), write("c"), write("end", depends_on=["a", "b", "c"])], ["a", "b", "c", "end"]),
    "items": (
        [write("each", f"each {NODE}", for_each="${{ inputs.nodes }}"), write("end", depends_on=["each"])],
        [*(f"each {node}" for node in NODES), "end"],
    ),
    "groups": (
        [
            {
                "id": "nodes",
                "description": "Node by node",
                "for_each": "${{ inputs.nodes }}",
                "steps": [write("drain", f"drain {NODE}"), write("restart", f"restart {NODE}", depends_on=["drain"])],
            }
        ],
        [f"{verb} {node}" for node in NODES for verb in ("drain", "restart")],
    ),
    "undone": (
        [write("one", rollback=undo("one")), write("two", rollback=undo("two"), depends_on=["one"]), FAIL],
        ["one", "two", "undo-two", "undo-one"],
    ),
    "asked": ([write("first"), write("second", depends_on=["first"], requires_approval=True)], ["first", "second"]),
}
"""The steps of each plan, and the lines that a run of it writes."""
ENDS = {"undone": PlanStatus.PARTIAL}


def save(folder: Path) -> Path:
    """Write the plans into a folder."""
    folder.mkdir()
    inputs = {"run": {}, "writes": {}, "nodes": {"type": "array", "items": "string", "default": NODES}}
    options = {"require_approval": False, "allow_parallel": True, "max_parallel_steps": 3}
    for name, (steps, _) in PLANS.items():
        document = {"name": name, "description": name, "inputs": inputs, "options": options, "steps": steps}
        (folder / f"{name}.yaml").write_text(yaml.safe_dump(document, allow_unicode=True), encoding="utf-8")
    return folder


@dataclass
class Started:
    """The runs that were started, and counts of what an operator did for them."""

    services: Composed
    store: PlanStore
    client: PrefectClient
    writes: Path
    flow_runs: dict[UUID, tuple[str, str]] = field(default_factory=dict)  # -> plan, input `run`
    done: Counter[str] = field(default_factory=Counter)

    async def start(self) -> None:
        """Start RUNS runs, of each plan in turn."""
        deployments = {name: (await self.client.read_deployment_by_name(f"{name}/{name}")).id for name in PLANS}
        for number in range(RUNS):
            name = list(PLANS)[number % len(PLANS)]
            inputs = {"run": f"run{number}", "writes": str(self.writes)}
            flow_run = await self.client.create_flow_run_from_deployment(deployments[name], parameters=inputs)
            self.flow_runs[flow_run.id] = name, inputs["run"]

    def lines(self) -> list[str]:
        """Return what was written so far."""
        return self.writes.read_text(encoding="utf-8").splitlines() if self.writes.exists() else []

    async def runs(self) -> dict[UUID, PlanRun | None]:
        """Return the run of each flow run."""
        return {flow_run: await self.store.ledger.run_of_flow(str(flow_run)) for flow_run in self.flow_runs}

    def run(self, *command: str) -> str:
        """Run a command of the operator."""
        done = self.services.run(*command)
        self.done[" ".join(command[: 2 if command[0] == "plan" else 3])] += 1
        assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
        return done.stdout

    async def kill(self, name: str, *, after: int) -> None:
        """Kill and restart a worker once `after` lines are written and it executes a run. Answer gates in the meantime."""
        while len(self.lines()) < after or not (executed := await self.executed_by(name)):
            await self.answer()
            await self.start_lost()
            await asyncio.sleep(0.1)
        self.services.kill_worker(name)
        self.done["killed in the middle"] += executed
        print(f"\n{len(self.lines())} lines: killed {name}, which executed {executed} runs")
        self.services.start_worker(name)

    async def executed_by(self, name: str) -> int:
        """Return how many runs a worker executes; without namespaces, how many both workers execute."""
        owners = [await self.store.ledger.owner(run.id) for run in await self.store.runs(status=PlanStatus.EXECUTING)]
        return len([owner for owner in owners if owner is not None and (not has_namespaces() or owner.endswith(f" on {name}"))])

    async def answer(self) -> None:
        """Approve every waiting step, and record every outcome that a run asks for."""
        for gate in await self.store.gates.find():
            if gate.kind == "outcome":
                await self.resolve(await self.store.run(gate.run_id))
            else:
                self.run("plan", "approve", gate.run_id, "--step", str(gate.step_id), "--digest", gate.approval_digest)

    async def end(self) -> None:
        """Follow the guide for runs whose worker died until every run has ended."""
        while any(run is None or run.completed_at is None for run in (await self.runs()).values()):
            await self.answer()
            for line in self.run("plan", "reconcile", "--json").splitlines():
                finding = json.loads(line)
                if finding["kind"] == "interrupted":
                    await self.resume(await self.store.run(finding["run_id"]))
            await self.start_lost()

    async def resume(self, run: PlanRun) -> None:
        """Record the outcome of each write whose outcome is unknown, and let a worker resume the run, unless one is about to."""
        assert run.flow_run_id is not None
        state = (await self.client.read_flow_run(UUID(run.flow_run_id))).state
        if state is None or not state.is_final():  # a worker is about to start it, or died before it did
            await self.start_again(UUID(run.flow_run_id))
        elif (found := await self.store.run(run.id)).reason is RunReason.INTERRUPTED or found.status is PlanStatus.PENDING_APPROVAL:
            await self.resolve(run)
            self.run("prefect", "flow-run", "retry", run.flow_run_id)

    async def resolve(self, run: PlanRun) -> None:
        """Record the outcome of each write of a stopped run whose outcome is unknown."""
        for lost in await self.store.outcomes.unknown(run.id):
            named = f"undo-{lost.step_id}" if lost.kind == "rollback" else lost.step_id
            line = " ".join([self.flow_runs[UUID(str(run.flow_run_id))][1], named, *([] if lost.item is None else [NODES[lost.item]])])
            outcome = "done" if line in self.lines() else "again"
            item = [] if lost.item is None else ["--item", str(lost.item + 1)]
            self.run("plan", "resolve", run.id, lost.step_id, outcome, *item, *(["--rollback"] if lost.kind == "rollback" else []))
            self.done[outcome] += 1

    async def start_lost(self) -> None:
        """Start flow runs again that a worker took long ago and that have no run."""
        for flow_run_id in [key for key, run in (await self.runs()).items() if run is None]:
            await self.start_again(flow_run_id)

    async def start_again(self, flow_run_id: UUID) -> None:
        """Start a flow run again if a worker took it long ago and died before it began."""
        state = (await self.client.read_flow_run(flow_run_id)).state
        if state is not None and state.type in (StateType.PENDING, StateType.RUNNING) and datetime.now(UTC) - state.timestamp > START_LIMIT:
            await self.client.set_flow_run_state(flow_run_id, Scheduled(), force=True)
            self.done["lost before it began"] += 1


@pytest.fixture
def services(tmp_path: Path) -> Iterator[Composed]:
    with composed(tmp_path) as found:
        yield found


@pytest.mark.timeout(MINUTES * 60)
async def test_runs_survive_a_worker_that_is_killed_twice(services: Composed, tmp_path: Path) -> None:
    began = time.monotonic()
    done = services.run("plan", "deploy", str(save(tmp_path / "plans")))
    assert done.returncode == 0, done.stderr
    for name in ("worker-1", "worker-2"):
        services.start_worker(name)
    url = services.environment("worker")["PLAN_ADAPTER_DATABASE_URL"]
    connection = {"api.url": services.server.api_url, "api.auth_string": f"admin:{VALUES['PREFECT_PASSWORD']}"}
    with temporary_settings(connection):
        async with PlanStore(url) as store, get_client() as client:
            started = Started(services, store, client, tmp_path / "writes")
            await started.start()
            expected = [f"{run} {line}" for name, run in started.flow_runs.values() for line in PLANS[name][1]]
            for share in (0.1, 0.4):
                await started.kill("worker-1", after=int(share * len(expected)))
            await started.end()
            print(f"{RUNS} runs, {len(expected)} writes, {time.monotonic() - began:.0f} s: {dict(started.done)}")
            runs = await started.runs()
    assert sorted(started.lines()) == sorted(expected)
    assert started.done["prefect flow-run retry"] > 0 or not has_namespaces()
    for flow_run, (name, _) in started.flow_runs.items():
        run = runs[flow_run]
        assert run is not None
        assert run.status is ENDS.get(name, PlanStatus.COMPLETED), (name, run.message)
