"""Tests of rollbacks with unknown outcomes or a killed process: nothing is undone twice."""

import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from plan_adapter import PlanStore, ToolRegistry, tool
from plan_adapter.errors import RunConflictError
from plan_adapter.model.plan import Rollback
from plan_adapter.model.record import RollbackStatus
from plan_adapter.model.status import Outcome, RunReason
from plan_adapter.runs import acancel_run, aresolve_step, aresume_run, arun_plan
from plan_adapter.runs.reconcile import reconcile
from plan_adapter.runs.resume import resume_action
from plan_adapter.runs.run_rollback import roll_back
from plan_adapter.store import PlanStatus
from tests.processes import Program
from tests.runs.drained import World, pool, undone
from tests.store.conftest import on_both_databases


async def test_nothing_is_rolled_back_while_an_outcome_is_unknown(store: PlanStore, world: World) -> None:
    plan = pool("hang")
    plan.step("last").timeout_ms = 30
    run = await arun_plan(plan, tools=world.tools, store=store, offline=True)
    assert (run.reason, world.put_back) == (RunReason.UNKNOWN, [])
    assert (run.message or "").endswith(
        f"; rolled back: nothing, because the outcome of `last` is unknown: `plan resolve {run.id} last done|again|abort`, "
        f"then `plan rollback {run.id} --offline`"
    )
    with pytest.raises(RunConflictError, match="while the outcome of `last` is unknown"):
        await acancel_run(run.id, rollback=True, tools=world.tools, store=store)
    await aresolve_step(run.id, "last", "done", by="ana", store=store)
    later = await acancel_run(run.id, rollback=True, tools=world.tools, store=store)
    assert world.put_back == ["节点-2", "web-1"]
    assert "rolled back: two, one; cannot be rolled back: last (writes, declares no rollback)" in (later.message or "")


@pytest.mark.parametrize("is_resolved", [False, True])
async def test_an_aborted_write_is_rolled_back_only_once_it_is_recorded_as_done(
    is_resolved: bool, any_store: PlanStore, world: World
) -> None:
    plan = pool("hang")
    plan.step("last").timeout_ms = 30
    plan.step("last").rollback = Rollback(tool_name="undrain", parameters={"node": "last"})
    run = await arun_plan(plan, tools=world.tools, store=any_store, offline=True)
    ended = await aresolve_step(run.id, "last", "abort", by="ana", store=any_store)
    assert ended.step("last").error == "ana recorded `abort` for `last`; its outcome is unknown"
    if is_resolved:
        await aresolve_step(run.id, "last", "done", by="ana", note="我看过了", store=any_store)
    later = await acancel_run(run.id, rollback=True, tools=world.tools, store=any_store)
    ending = "rolled back: last, two, one" if is_resolved else "rolled back: two, one; started, and possibly done: `last`"
    assert (later.message or "").endswith(ending)
    assert world.put_back == [*(["last"] if is_resolved else []), "节点-2", "web-1"]
    assert (await any_store.verify(run.id)).ok


SCRIPT = """\
import os, sys, time
from pathlib import Path
from plan_adapter import ExecutionPlan, ToolRegistry, run_plan, tool
from plan_adapter.model.options import ApprovalPolicy
from plan_adapter.model.plan import Rollback

world = Path(sys.argv[1])

def note(name, line):
    with (world / name).open("a") as file:
        file.write(line + chr(10))

@tool(effect="write")
def drain(node: str) -> dict:
    "Take it out."
    note("done", node)
    return {"node": node}

@tool(effect=sys.argv[2])
def undrain(node: str) -> str:
    "Put it back, or never come back."
    if node == "two":
        (world / "begun").write_text(str(os.getpid()))
        time.sleep(600)
    note("undone", node)
    return node

@tool(effect="read")
def verify() -> None:
    "Fail."
    raise ValueError("nothing answers")

plan = ExecutionPlan(description="Drain three, then look")
plan.options.require_approval = False
before = []
for name in ("one", "two", "three"):
    undo = Rollback(tool_name="undrain", parameters={"node": "${{ result.node }}"})
    plan.add_step("drain", name, {"node": name}, id=name, depends_on=before, rollback=undo)
    before = [name]
plan.add_step("verify", "Look", id="last", depends_on=before)
run_plan(plan, tools=ToolRegistry([drain, undrain, verify]), offline=True)
"""


def kill_during_the_rollback(folder: Path, effect: str) -> None:
    process = Program(SCRIPT, folder, effect)
    while not (folder / "begun").exists():
        assert process.poll() is None, "the run ended before it was undone"
        time.sleep(0.01)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()


@pytest.mark.parametrize("command", ["abort", "cancel"])
@on_both_databases
async def test_ending_a_killed_rollback_keeps_the_reason_of_the_run(
    command: str, store_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PLAN_ADAPTER_DATABASE_URL", store_url)
    kill_during_the_rollback(tmp_path, "write")
    async with PlanStore(store_url) as store:
        run = (await store.runs())[0]
        assert (run.status, run.reason) == (PlanStatus.EXECUTING, RunReason.INTERRUPTED)
        [finding] = await reconcile(store, with_prefect=False)
        assert finding.message == "its process died; the outcome of the rollback of `two` is unknown"
        if command == "abort":
            ended = await aresolve_step(run.id, "two", "abort", by="ana", note="我去看", rollback=True, store=store)
            note, two = "ana recorded `abort` for `rollback two` (我去看)", "the outcome of its rollback is unknown"
        else:
            ended = await acancel_run(run.id, reason="leave it (by ana)", store=store)
            note, two = "leave it (by ana)", "the outcome of its rollback is unknown"
        assert (ended.status, ended.reason, ended.completed_at is not None) == (PlanStatus.PARTIAL, RunReason.STEP_FAILED, True)
        assert ended.message == (
            f"`last` failed: ValueError: nothing answers; rolled back: three; not rolled back: two ({two}), one (not reached); {note}"
        )
        assert ended.rollback == RollbackStatus("`last` failed: ValueError: nothing answers", can_continue=True)
        found = await store.verify(run.id)
        assert found.ok, str(found.problem)
        assert await store.ledger.owner(run.id) is None


async def test_aborting_a_rollback_of_an_ended_run_changes_only_its_message(store: PlanStore, world: World) -> None:
    plan = pool()
    plan.step("two").rollback = Rollback(tool_name="hang")
    plan.step("two").timeout_ms = 50
    run = await arun_plan(plan, tools=world.tools, store=store, offline=True)
    assert "the outcome of its rollback is unknown" in (run.message or "")
    ended = await aresolve_step(run.id, "two", "abort", by="ana", rollback=True, store=store)
    assert (ended.status, ended.reason, ended.completed_at) == (run.status, run.reason, run.completed_at)
    assert ended.message == (
        "`last` failed: ValueError: nothing answers; rolled back: nothing; "
        "not rolled back: two (the outcome of its rollback is unknown), one (not reached); ana recorded `abort` for `rollback two`"
    )
    assert (await store.verify(run.id)).ok


@pytest.mark.parametrize("effect", ["idempotent_write", "write"])
async def test_a_killed_rollback_resumes_and_undoes_nothing_twice(
    effect: Any, store_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, world: World
) -> None:
    monkeypatch.setenv("PLAN_ADAPTER_DATABASE_URL", store_url)
    kill_during_the_rollback(tmp_path, effect)
    undrained: list[str] = []

    def undrain(node: str) -> str:
        """Put it back, or never come back."""
        undrained.append(node)
        return node

    tools = ToolRegistry([*(world.tools.get(name) for name in ("drain", "verify")), tool(effect=effect)(undrain)])
    async with PlanStore(store_url) as store:
        run = (await store.runs())[0]
        assert (run.status, run.reason) == (PlanStatus.EXECUTING, RunReason.INTERRUPTED)
        recorded = await store.ledger.snapshot(run.id)
        action = resume_action(run, recorded.plan, recorded.history, recorded.last_reason, commands=recorded.commands)
        assert (action, recorded.history.has_rollbacks) == (roll_back, True)  # as `plan preview --resume` shows
        resumed = await aresume_run(run.id, tools=tools, store=store, offline=True)  # resumes the rollback
        assert (resumed.status, resumed.reason) == (PlanStatus.PARTIAL, RunReason.STEP_FAILED)
        if effect == "write":
            assert undrained == []
            assert f"`plan resolve {run.id} two done|again|abort --rollback`" in (resumed.message or "")
            assert undone(resumed) == {"one": False, "two": False, "three": True, "last": False}
            await aresolve_step(run.id, "two", "done", by="ana", note="我看过了", rollback=True, store=store)
            resumed = await acancel_run(run.id, rollback=True, tools=tools, store=store)
        assert undrained == (["one"] if effect == "write" else ["two", "one"])
        assert (tmp_path / "undone").read_text() == "three\n"
        assert undone(resumed) == {"one": True, "two": True, "three": True, "last": False}
        assert (resumed.message or "").endswith("rolled back: three, two, one")
        keys = {row.idempotency_key for row in await store.attempts(run.id) if (row.kind, row.step_id) == ("rollback", "two")}
        assert len(keys) == 1
        assert all(row.outcome is Outcome.SUCCEEDED for row in await store.receipts(run.id) if row.kind == "rollback")
