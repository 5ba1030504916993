"""Tests of runs whose process was killed, and of how they resume."""

import os
import signal
import time
from pathlib import Path

import pytest

from plan_adapter import PlanRun, PlanStore, ToolRegistry, tool
from plan_adapter.errors import RunConflictError
from plan_adapter.model.status import Outcome, RunReason
from plan_adapter.runs import aresolve_step, aresume_run
from plan_adapter.store import PlanStatus
from tests.processes import Program

SCRIPT = """\
import os, sys, time
from pathlib import Path
from plan_adapter import ExecutionPlan, ToolRegistry, run_plan, tool

world = Path(sys.argv[1])

@tool(effect="read")
def look(name: str) -> str:
    "Look."
    with (world / "looked").open("a") as file:
        file.write(name + chr(10))
    return name

@tool(effect=sys.argv[2])
def act() -> str:
    "Act, and never come back."
    (world / "begun").write_text(str(os.getpid()))
    time.sleep(600)
    return "done"

plan = ExecutionPlan(description="Look, act, look again")
plan.options.require_approval = False
plan.add_step("look", "Look", {"name": "before"}, id="before")
plan.add_step("act", "Act", id="act", depends_on=["before"])
plan.add_step("look", "Look again", {"name": "after"}, id="after", depends_on=["act"])
run_plan(plan, tools=ToolRegistry([look, act]), offline=True)
"""


@tool(effect="read")
def look(name: str) -> str:
    """Look."""
    calls.append(name)
    return name


def act() -> str:
    """Act, and return."""
    calls.append("acted")
    return "done"


calls: list[str] = []


@pytest.fixture
def url(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Return the URL of the store that the killed process and this one share."""
    monkeypatch.setenv("PLAN_ADAPTER_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("PLAN_ADAPTER_DATABASE_URL", f"sqlite:///{tmp_path / 'plans.db'}")
    calls.clear()
    return f"sqlite:///{tmp_path / 'plans.db'}"


def start_and_wait_until_it_acts(world: Path, effect: str) -> Program:
    process = Program(SCRIPT, world, effect)
    while not (world / "begun").exists():
        assert process.poll() is None, "the run ended before it acted"
        time.sleep(0.01)
    return process


async def _resolve_and_resume(run: PlanRun, store: PlanStore, tools: ToolRegistry) -> None:
    """Record the write as done, and check that the run resumes without repeating anything."""
    with pytest.raises(RunConflictError, match=r"the outcome of `before` in run .* is not unknown; that of `act` is"):
        await aresolve_step(run.id, "before", "again", by="ana", store=store)
    with pytest.raises(RunConflictError, match="`before` has succeeded"):
        await aresolve_step(run.id, "before", "done", by="ana", store=store)
    resolved = await aresolve_step(run.id, "act", "done", by="ana", result="it was", note="我看过了", store=store)
    assert (resolved.reason, resolved.step("act").outcome) == (RunReason.INTERRUPTED, Outcome.SUCCEEDED)
    again = await aresume_run(run.id, tools=tools, store=store, offline=True)
    assert (again.status, again.step("act").result, again.step("act").carried, calls) == (PlanStatus.COMPLETED, "it was", True, ["after"])
    receipt = next(receipt for receipt in await store.receipts(run.id) if receipt.step_id == "act")
    assert (receipt.by, receipt.known_by, receipt.note) == ("ana", "unverified", "我看过了")


@pytest.mark.parametrize(("effect", "expected"), [("idempotent_write", PlanStatus.COMPLETED), ("write", PlanStatus.PARTIAL)])
async def test_only_idempotent_writes_are_repeated_after_a_kill(effect: str, expected: PlanStatus, tmp_path: Path, url: str) -> None:
    process = start_and_wait_until_it_acts(tmp_path, effect)
    tools = ToolRegistry([look, tool(effect=effect)(act)])
    async with PlanStore(url) as store:
        held = (await store.runs())[0]
        assert held.status is PlanStatus.EXECUTING
        with pytest.raises(RunConflictError, match="is executed by process"):
            await aresume_run(held.id, tools=tools, store=store, offline=True)

        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        found = await store.run(held.id)
        assert (found.status, found.reason) == (PlanStatus.EXECUTING, RunReason.INTERRUPTED)

        run = await aresume_run(held.id, tools=tools, store=store, offline=True)
        assert run.status is expected
        assert run.step("before").carried
        assert (tmp_path / "looked").read_text() == "before\n"
        if effect == "write":
            assert calls == []
            assert (run.reason, run.step("act").outcome) == (RunReason.UNKNOWN, Outcome.UNKNOWN)
            await _resolve_and_resume(run, store, tools)
        else:
            assert calls == ["acted", "after"]
            first, second = [attempt for attempt in await store.attempts(run.id) if attempt.step_id == "act"]
            assert (first.number, second.number) == (1, 2)
            assert first.idempotency_key == second.idempotency_key


async def test_an_aborted_write_is_not_called_again_until_its_outcome_is_resolved(tmp_path: Path, url: str) -> None:
    process = start_and_wait_until_it_acts(tmp_path, "write")
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    tools = ToolRegistry([look, tool(effect="write")(act)])
    async with PlanStore(url) as store:
        run = (await store.runs())[0]
        await aresolve_step(run.id, "act", "abort", by="ana", store=store)
        with pytest.raises(RunConflictError, match=r"`act` is still unknown, so it is not called .*resolve .* act done\|again"):
            await aresume_run(run.id, tools=tools, store=store, offline=True)
        assert calls == []
        await aresolve_step(run.id, "act", "done", by="ana", result="it was", store=store)
        again = await aresume_run(run.id, tools=tools, store=store, offline=True)
    assert (again.status, calls) == (PlanStatus.COMPLETED, ["after"])
