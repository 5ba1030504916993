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
from tests.processes import Program
from tests.ssh import SshServer

NAMES = [f"node-{number:02}" for number in range(1, 21)]

PLAN = """
name: rolling
description: Restart every node
hosts: {web: ["node-[01:20]"]}
max_parallel: 4
approval: {required: false}
env: {LOG: LOGFILE}
steps:
  - id: each
    for_each: "${{ hosts('web') }}"
    max_failures: MAX
    on_error: continue
    rollback_failed: true
    steps:
      - id: drain
        description: Take it out of the pool
        ssh: {host: "${{ item.host }}", script: 'echo drain "$NODE" >>"$LOG"'}
        env: {NODE: "${{ item.name }}"}
        rollback: {ssh: {host: "${{ item.host }}", script: 'echo undrain "$NODE" >>"$LOG"'}}
      - id: restart
        needs: drain
        description: Restart it
        ssh: {host: "${{ item.host }}", script: 'test ! -e "$LOG.$NODE"; echo restart "$NODE" >>"$LOG"'}
        env: {NODE: "${{ item.name }}"}
"""

RUN = """
import sys
from plan_adapter import ToolRegistry, run_plan
run_plan(sys.argv[1], inputs={"on": sys.argv[2]}, tools=ToolRegistry.with_builtins(), offline=True)
"""


class Fleet:
    """Twenty names of one server, the plan that restarts them, and what happened on them."""

    def __init__(self, server: SshServer, folder: Path) -> None:
        self.server, self.folder, self.log = server, folder, folder / "log"
        self.log.touch()
        self.set_away()

    def set_away(self, *away: str) -> None:
        """Close the port of these hosts, and open that of all others."""
        config = self.server.config.read_text()
        closed = [line if "Port" not in line else "  Port 1" for line in config.replace("web-1 127.0.0.1", " ".join(away)).splitlines()]
        here = config.replace("web-1 127.0.0.1", " ".join(name for name in NAMES if name not in away))
        (self.server.folder / "fleet").write_text("\n".join([*(closed if away else []), here]))

    def write_plan(self, max_failures: int) -> Path:
        """Write the plan and return its file."""
        (self.folder / "plan.yaml").write_text(PLAN.replace("MAX", str(max_failures)).replace("LOGFILE", str(self.log)), encoding="utf-8")
        return self.folder / "plan.yaml"

    async def run(self, *, max_failures: int = 0, **inputs: Any) -> PlanRun:
        """Run the plan to its end."""
        plan = load_plan(self.write_plan(max_failures))
        return await arun_plan(plan, inputs=inputs, tools=ToolRegistry.with_builtins(), offline=True)

    @property
    def done(self) -> list[str]:
        """What happened on the hosts, sorted."""
        return sorted(self.log.read_text().splitlines())


@pytest.fixture
def fleet(ssh_server: SshServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Fleet:
    monkeypatch.setenv("PLAN_ADAPTER_SSH_CONFIG", str(ssh_server.folder / "fleet"))
    monkeypatch.setenv("PLAN_ADAPTER_HOME", str(tmp_path / "home"))
    return Fleet(ssh_server, tmp_path)


def both(*names: str) -> list[str]:
    return sorted(f"{what} {name}" for what in ("drain", "restart") for name in names)


def ends(run: PlanRun) -> dict[str, str]:
    return {item.label: item.status.value for item in run.step("each").items}


async def test_only_the_hosts_of_the_run_are_touched(fleet: Fleet) -> None:
    run = await fleet.run(on="node-1?:!node-1[0-8]")
    assert (run.status, fleet.done) == (PlanStatus.COMPLETED, both("node-19"))


async def test_no_host_is_touched_if_too_many_are_away(fleet: Fleet) -> None:
    fleet.set_away("node-03")
    run = await fleet.run(on="node-0?")
    assert (run.status, fleet.done) == (PlanStatus.FAILED, [])
    assert "node-03: no connection to node-03" in (run.step("each").error or "")


@pytest.mark.thorough  # 40 s
async def test_a_rolling_restart_of_twenty_leaves_the_two_bad_ones(fleet: Fleet) -> None:
    Path(f"{fleet.log}.node-07").touch()
    fleet.set_away("node-13")
    run = await fleet.run(max_failures=2)
    good = [name for name in NAMES if name not in ("node-07", "node-13")]
    assert run.status is PlanStatus.PARTIAL
    assert ends(run) == {name: "completed" if name in good else "failed" for name in NAMES}
    assert fleet.done == sorted([*both(*good), "drain node-07", "undrain node-07"])


@pytest.mark.thorough  # a minute
@pytest.mark.parametrize("lines", range(0, 9, 2))
async def test_a_run_that_is_killed_repeats_nothing(lines: int, fleet: Fleet) -> None:
    program = Program(RUN, str(fleet.write_plan(0)), "node-0?")
    while len(fleet.done) < lines and program.poll() is None:
        await asyncio.sleep(0.01)
    program.kill()
    program.wait()
    async with PlanStore() as store:
        (run,) = await store.runs()
        resumed = await aresume_run(run.id, tools=ToolRegistry.with_builtins(), store=store, offline=True)
    assert (resumed.status, fleet.done) == (PlanStatus.COMPLETED, both(*NAMES[:9]))
