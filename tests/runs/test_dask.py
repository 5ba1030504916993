"""Tests of runs with steps on Dask: records, secrets, and the temporary cluster of a run."""

import os
import sys
from pathlib import Path
from typing import Any

import pytest
from distributed import LocalCluster

from plan_adapter import PlanStore, ToolRegistry
from plan_adapter.errors import InvalidPlanError
from plan_adapter.model.hooks import Event
from plan_adapter.model.options import ExecutionOptions
from plan_adapter.model.plan import ExecutionPlan, Rollback
from plan_adapter.runs import arun_plan
from plan_adapter.runs.run_session import RunRequest
from plan_adapter.runs.start import execute_plan
from plan_adapter.store import PlanStatus, load_plan
from plan_adapter.validation import bind_inputs, validate
from tests.engine import dask_tools

pytestmark = pytest.mark.xdist_group("dask")

TOOLS = ToolRegistry([dask_tools.look, dask_tools.look_soon])

PLAN = """\
description: Look at each host on Dask
options: {require_approval: false}
steps:
  - id: hosts
    for_each: "${{ ['甲', '乙'] }}"
    runner: dask
    steps:
      - {id: see, tool_name: look, description: Look, parameters: {text: "${{ item }} ${{ secrets.token }}"}}
  - {id: here, tool_name: look_soon, description: Not on Dask, parameters: {text: x}, depends_on: [hosts]}
"""


@pytest.fixture
def store(tmp_path: Path) -> PlanStore:
    """Return an empty store."""
    return PlanStore(f"sqlite:///{tmp_path / 'plans.db'}")


@pytest.mark.usefixtures("prefect_server")
@pytest.mark.parametrize("offline", [True, pytest.param(False, marks=pytest.mark.thorough)], ids=["offline", "in Prefect"])
async def test_a_run_starts_a_cluster_redacts_secrets_and_shuts_it_down(
    store: PlanStore, offline: bool, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
):
    monkeypatch.setenv("PLAN_ADAPTER_SECRET_TOKEN", "correct-horse-battery")
    events, bound = list[Event](), bind_inputs(validate(load_plan(PLAN), TOOLS))
    async with store:
        run = await execute_plan(bound, run_request=RunRequest(listener=events.append), store=store, offline=offline)
        receipts = await store.receipts(run.id)
    assert (run.status, run.reason) == (PlanStatus.COMPLETED, None)
    seen: list[Any] = [receipt.result for receipt in receipts if receipt.step_id == "see"]
    assert [(result["text"], result["credentials"]) for result in seen] == [("甲 ***", []), ("乙 ***", [])]
    lines = [event.message for event in events if event.kind == "log"]
    assert lines == ["printed 甲 ***", "logged 甲 ***", "printed 乙 ***", "logged 乙 ***"]
    assert "correct-horse" not in "".join(capfd.readouterr())
    with pytest.raises(ProcessLookupError):
        os.kill(seen[0]["pid"], 0)


async def test_a_rollback_runs_on_the_configured_cluster_like_its_step(store: PlanStore, monkeypatch: pytest.MonkeyPatch):
    plan = ExecutionPlan(description="D", options=ExecutionOptions(require_approval=False))
    plan.add_step("name_worker", "Do it", id="a", runner="dask", rollback=Rollback(tool_name="name_worker"))
    plan.add_step("fail", "Fail", {"how": "known"}, id="b", runner="dask", depends_on=["a"])
    tools = ToolRegistry([dask_tools.name_worker, dask_tools.fail])
    with LocalCluster(n_workers=1, processes=False, protocol="tcp", host="127.0.0.1", dashboard_address=":0") as existing:
        monkeypatch.setenv("PLAN_ADAPTER_DASK_ADDRESS", existing.scheduler_address)
        async with store:
            run = await arun_plan(plan, tools=tools, store=store, offline=True)
            receipts = await store.receipts(run.id)
        worker = existing.workers[0].address
    assert [(receipt.kind, receipt.step_id, receipt.result) for receipt in receipts if receipt.error is None] == [
        ("step", "a", worker),
        ("rollback", "a", worker),
    ]


async def test_a_missing_dask_extra_is_reported_before_the_run_starts(store: PlanStore, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "prefect_dask", None)
    monkeypatch.setenv("PLAN_ADAPTER_SECRET_TOKEN", "correct-horse-battery")
    async with store:
        with pytest.raises(InvalidPlanError) as raised:
            await arun_plan(load_plan(PLAN), tools=TOOLS, store=store, offline=True)
        assert await store.runs() == []
    assert [(problem.code, problem.at) for problem in raised.value.problems] == [("no-dask", "steps[0].steps[0].runner")]
    assert "pip install 'prefect-plan-adapter[dask]'" in str(raised.value)
