"""Tests of runs on many hosts, with a real SSH server that has twenty names: rolling restarts, hosts that are away, limits and kills."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from plan_adapter import PlanStore, ToolRegistry
from plan_adapter.loading import load_plan
from plan_adapter.model.record import PlanRun
from plan_adapter.model.status import PlanStatus
from plan_adapter.runs import aresume_run, arun_plan
from tests.fleet import Fleet, both, ends
from tests.processes import Program
from tests.ssh import SshServer

RUN = """
import sys
from plan_adapter import ToolRegistry, run_plan
run_plan(sys.argv[1], inputs={"on": sys.argv[2]}, tools=ToolRegistry.with_builtins(), offline=True)
"""


@pytest.fixture
def fleet(ssh_server: SshServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Fleet:
    fleet = Fleet(ssh_server, tmp_path)
    monkeypatch.setenv("PLAN_ADAPTER_SSH_CONFIG", str(fleet.config))
    monkeypatch.setenv("PLAN_ADAPTER_HOME", str(tmp_path / "home"))
    return fleet


async def run_on(fleet: Fleet, *, max_failures: int = 0, **inputs: Any) -> PlanRun:
    """Run the plan of the fleet to its end."""
    plan = load_plan(fleet.write_plan(max_failures))
    return await arun_plan(plan, inputs=inputs, tools=ToolRegistry.with_builtins(), offline=True)


async def test_only_the_hosts_of_the_run_are_touched(fleet: Fleet) -> None:
    run = await run_on(fleet, on="node-1?:!node-1[0-8]")
    assert (run.status, fleet.done) == (PlanStatus.COMPLETED, both("node-19"))


async def test_no_host_is_touched_if_too_many_are_away(fleet: Fleet) -> None:
    fleet.set_away("node-03")
    run = await run_on(fleet, on="node-0?")
    assert (run.status, fleet.done) == (PlanStatus.FAILED, [])
    assert "node-03: no connection to node-03" in (run.step("each").error or "")


@pytest.mark.thorough  # 40 s
async def test_a_rolling_restart_of_twenty_leaves_the_two_bad_ones(fleet: Fleet) -> None:
    fleet.set_broken("node-07")
    fleet.set_away("node-13")
    run = await run_on(fleet, max_failures=2)
    good = [name for name in fleet.names if name not in ("node-07", "node-13")]
    assert run.status is PlanStatus.PARTIAL
    assert ends(run) == {name: "completed" if name in good else "failed" for name in fleet.names}
    assert fleet.done == sorted([*both(*good), "drain node-07", "undrain node-07"])


@pytest.mark.thorough  # a minute
@pytest.mark.parametrize("lines", range(1, 10, 2))
async def test_a_run_that_is_killed_repeats_nothing(lines: int, fleet: Fleet) -> None:
    program = Program(RUN, str(fleet.write_plan(0)), "node-0?")
    while len(fleet.done) < lines and program.poll() is None:
        await asyncio.sleep(0.01)
    program.kill()
    program.wait()
    async with PlanStore() as store:
        (run,) = await store.runs()
        resumed = await aresume_run(run.id, tools=ToolRegistry.with_builtins(), store=store, offline=True)
    assert (resumed.status, fleet.done) == (PlanStatus.COMPLETED, both(*fleet.names[:9]))
