"""Tests of leases: at most one process executes a run, and a process that lost its lease writes nothing more."""

import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

from plan_adapter import PlanStore, ToolRegistry, tool
from plan_adapter.errors import RunConflictError
from plan_adapter.runs import aresume_run
from plan_adapter.store import PlanStatus, leases
from tests.processes import Program

SCRIPT = """\
import os, sys, time
from pathlib import Path
from plan_adapter import ExecutionPlan, ToolRegistry, run_plan, tool

world = Path(sys.argv[1])

def note(line):
    with (world / "world").open("a") as file:
        file.write(line + chr(10))

@tool(effect="idempotent_write")
def wait() -> str:
    "Begin, and return once the file `continue` exists."
    (world / "begun").write_text("")
    while not (world / "continue").exists():
        time.sleep(0.01)
    return "the stalled one"

@tool(effect="write")
def act() -> str:
    "Act once."
    note("acted by the stalled one")
    return "acted"

plan = ExecutionPlan(description="Wait, then act")
plan.options.require_approval = False
plan.add_step("wait", "Wait", id="wait")
plan.add_step("act", "Act", id="act", depends_on=["wait"])
run_plan(plan, tools=ToolRegistry([wait, act]), offline=True)
"""


@pytest.fixture
def url(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Return the URL of the store that both processes use; leases are as short as possible."""
    monkeypatch.setenv("PLAN_ADAPTER_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("PLAN_ADAPTER_LEASE_SECONDS", "1")
    monkeypatch.setenv("PLAN_ADAPTER_DATABASE_URL", f"sqlite:///{tmp_path / 'plans.db'}")
    return f"sqlite:///{tmp_path / 'plans.db'}"


async def test_a_stalled_owner_writes_nothing_after_another_process_took_over(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    @tool(effect="idempotent_write")
    def wait() -> str:
        """Return at once."""
        return "the second one"

    @tool(effect="write")
    def act() -> str:
        """Act once."""
        with (tmp_path / "world").open("a") as file:
            file.write("acted by the second one\n")
        return "acted"

    tools = ToolRegistry([wait, act])
    stalled = Program(SCRIPT, tmp_path, stderr=subprocess.PIPE)
    try:
        while not (tmp_path / "begun").exists():
            assert stalled.poll() is None
            time.sleep(0.01)
        async with PlanStore(url) as store:
            [held] = await store.runs()
            with pytest.raises(RunConflictError, match=f"executed by process {stalled.pid} on this host"):
                await aresume_run(held.id, tools=tools, store=store, offline=True)
            os.kill(stalled.pid, signal.SIGSTOP)
            monkeypatch.setattr(leases, "GRACE_SECONDS", 1.0)
            while await store.ledger.owner(held.id) is not None:
                time.sleep(0.05)

            run = await aresume_run(held.id, tools=tools, store=store, offline=True)
            assert run.status is PlanStatus.COMPLETED
            before = await store.receipts(run.id)
            (tmp_path / "continue").write_text("")
            os.kill(stalled.pid, signal.SIGCONT)
            _, errors = stalled.communicate()
            assert "was taken over by another process" in errors
            assert stalled.returncode != 0
            assert await store.receipts(run.id) == before
            assert (await store.run(run.id)).status is PlanStatus.COMPLETED
    finally:
        stalled.kill()
    assert (tmp_path / "world").read_text() == "acted by the second one\n"
    assert [receipt.result for receipt in before] == ["the second one", "acted"]
