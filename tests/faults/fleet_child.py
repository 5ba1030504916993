"""The code of a child process that restarts a fleet. The connections to its hosts are cut at crash points, and it is killed at one."""

import os
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from plan_adapter import PlanStore, ToolRegistry
from plan_adapter.loading import load_plan
from plan_adapter.local import crash_points
from plan_adapter.local.crash_points import CrashPoint
from plan_adapter.model.record import PlanRun
from plan_adapter.runs import aresume_run, arun_plan
from tests.faults.child import Fault, Order, Workspace
from tests.faults.world import HERE
from tests.processes import kill_descendants


class FleetFiles:
    """The files of a fleet's run: those of its SSH server, and those by which its processes are killed."""

    def __init__(self, workspace: Workspace) -> None:
        self.server = workspace.folder / "sshd"
        self.plan = workspace.folder / "plan.yaml"
        self.faults = workspace.folder / "faults"

    @property
    def pid(self) -> Path:
        """The id of the process of the run."""
        return self.faults / "run"

    @property
    def begun(self) -> Path:
        """Exists once the run makes calls. Before, it checks its hosts, and leaves out those it cannot reach."""
        return self.faults / "begun"

    @property
    def done(self) -> Path:
        """A line for each kill that another process made: the place and what was killed."""
        return self.faults / "done"


async def execute_on_fleet(order: Order) -> PlanRun:
    """Run the plan of the workspace, or resume it."""
    files = FleetFiles(order.workspace)
    HERE.path = order.workspace.world
    os.environ["PLAN_ADAPTER_SSH_CONFIG"] = str(files.server / "fleet")
    files.pid.write_text(f"{os.getpid()}\n")
    crash_points.listener = _Cutter(order.cuts, files, crash_points.listener)
    tools = ToolRegistry.with_builtins()
    async with PlanStore(order.workspace.store_url) as store:
        if order.run_id is None:
            return await arun_plan(load_plan(files.plan), tools=tools, store=store, offline=True)
        return await aresume_run(order.run_id, tools=tools, store=store, offline=True)


class _Cutter:
    """Cuts all connections to the hosts at its faults, and calls the listener of the process."""

    def __init__(self, cuts: tuple[Fault, ...], files: FleetFiles, listener: Callable[[CrashPoint, str], None] | None) -> None:
        self._cuts, self._files, self._listener = cuts, files, listener
        self._server = int((files.server / "sshd.pid").read_text())
        self._seen = Counter[Fault]()

    def __call__(self, point: CrashPoint, detail: str) -> None:
        if point == "before-intent":
            self._files.begun.touch()
        for cut in self._cuts:
            self._seen[cut] += cut.is_at(point, detail)
            if cut.is_at(point, detail) and self._seen[cut] == cut.number and kill_descendants(self._server, "sshd"):
                note(self._files.done, cut.place, "connection")
        if self._listener is not None:
            self._listener(point, detail)


def note(file: Path, place: str, killed: str) -> None:
    """Note a kill. One call writes the line, so that those of several processes do not mix."""
    with file.open("ab", buffering=0) as lines:
        lines.write(f"{killed} {place}\n".encode())
