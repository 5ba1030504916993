"""Tests of rollbacks after a failure, a timeout or a request, and of how a run reports them."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from plan_adapter import PlanStore, ToolRegistry, tool
from plan_adapter.cli.app import main
from plan_adapter.engine.connection import Server
from plan_adapter.errors import NotApprovedError, RunConflictError
from plan_adapter.gates import CallbackApprover
from plan_adapter.model.options import ApprovalPolicy
from plan_adapter.model.plan import Rollback
from plan_adapter.model.record import RollbackStatus
from plan_adapter.model.status import RunOutcome, RunReason
from plan_adapter.plans import Input, format_plan
from plan_adapter.runs import acancel_run, aresume_run, arevise_run, arun_plan
from plan_adapter.store import PlanStatus
from plan_adapter.text.call_text import step_gate_text
from plan_adapter.text.plan_text import plan_gate_text
from plan_adapter.text.preview import preview_plan, preview_text
from plan_adapter.validation import bind_inputs, validate
from tests.engine.calls import flow_run, task_runs
from tests.runs.drained import World, pool, undone
from tests.store.conftest import on_both_databases


@on_both_databases
async def test_a_failed_run_is_rolled_back_and_cannot_be_resumed(any_store: PlanStore, world: World) -> None:
    run = await arun_plan(pool(), tools=world.tools, store=any_store, offline=True)
    assert (run.status, run.reason) == (PlanStatus.PARTIAL, RunReason.STEP_FAILED)
    assert run.message == "`last` failed: ValueError: nothing answers; rolled back: two, one"
    assert world.put_back == ["节点-2", "web-1"]
    kept = await any_store.run(run.id)
    assert (kept.message, undone(kept)) == (run.message, {"one": True, "two": True, "last": False})
    assert kept.rollback == run.rollback == RollbackStatus("`last` failed: ValueError: nothing answers", can_continue=False)
    assert (run.outcome, kept.outcome) == (RunOutcome.ROLLED_BACK, RunOutcome.ROLLED_BACK)
    assert format_plan(kept).count(", rolled back\n") == 2
    assert [(row.kind, row.step_id, row.parameters) for row in (await any_store.attempts(run.id))[-2:]] == [
        ("rollback", "two", {"node": "节点-2"}),
        ("rollback", "one", {"node": "web-1"}),
    ]
    assert await any_store.ledger.owner(run.id) is None
    with pytest.raises(RunConflictError, match="was rolled back and cannot be resumed: start a new run"):
        await aresume_run(run.id, tools=world.tools, store=any_store, offline=True)
    with pytest.raises(RunConflictError, match="was rolled back"):
        await arevise_run(run.id, pool("wait"), tools=world.tools, by="ana", store=any_store)
    again = await acancel_run(run.id, rollback=True, tools=world.tools, store=any_store)
    assert (again.message, len(world.put_back)) == (run.message, 2)


async def test_a_run_that_exceeds_its_total_timeout_is_rolled_back(store: PlanStore, world: World) -> None:
    run = await arun_plan(pool("wait", total_timeout_ms=1000), tools=world.tools, store=store, offline=True)
    assert (run.status, run.reason, world.put_back) == (PlanStatus.PARTIAL, RunReason.TIMED_OUT, ["节点-2", "web-1"])
    assert run.message == "the total timeout of 1 s was exceeded; rolled back: two, one"


async def test_a_run_that_continues_on_error_is_rolled_back_only_on_request(store: PlanStore, world: World) -> None:
    run = await arun_plan(pool(stop_on_error=False), tools=world.tools, store=store, offline=True)
    assert (run.status, world.put_back, run.message) == (PlanStatus.PARTIAL, [], "`last` failed: ValueError: nothing answers")
    with pytest.raises(RunConflictError, match="pass `tools` to roll it back"):
        await acancel_run(run.id, rollback=True, store=store)
    later = await acancel_run(run.id, rollback=True, tools=world.tools, store=store)
    assert (later.status, later.reason, later.completed_at is not None) == (PlanStatus.PARTIAL, RunReason.STEP_FAILED, True)
    assert later.message == "`last` failed: ValueError: nothing answers; rolled back: two, one"
    assert (await store.run(run.id)).step("last").error == "ValueError: nothing answers"  # the rollback keeps the step results


async def test_a_failed_rollback_reports_its_progress_and_can_be_retried(store: PlanStore, world: World) -> None:
    world.stuck.add("节点-2")
    run = await arun_plan(pool(), tools=world.tools, store=store, offline=True)
    assert run.message == (
        "`last` failed: ValueError: nothing answers; rolled back: nothing; not rolled back: two (its rollback failed: "
        "ValueError: 节点-2 卡住了), one (`two` must be rolled back first)"
    )
    assert run.rollback == RollbackStatus("`last` failed: ValueError: nothing answers", can_continue=True)
    with pytest.raises(RunConflictError, match=r"`plan rollback .* --offline` rolls back the rest"):
        await aresume_run(run.id, tools=world.tools, store=store, offline=True)
    world.stuck.clear()
    later = await acancel_run(run.id, rollback=True, tools=world.tools, store=store)
    assert (world.put_back, undone(later)) == (["节点-2", "web-1"], {"one": True, "two": True, "last": False})
    assert later.message == "`last` failed: ValueError: nothing answers; rolled back: two, one"


async def test_a_run_without_rollbacks_does_not_mention_them(store: PlanStore, world: World) -> None:
    plan = pool()
    for step in plan.steps:
        step.rollback = None
    run = await arun_plan(plan, tools=world.tools, store=store, offline=True)
    assert run.message == "`last` failed: ValueError: nothing answers"
    assert (await acancel_run(run.id, rollback=True, store=store)).message == run.message


@pytest.mark.parametrize("gated", ["effects", "step", "settings", "nothing"])
async def test_only_approvers_can_roll_back_a_run_with_gated_calls(
    gated: str, any_store: PlanStore, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = pool(stop_on_error=False)
    plan.approval = ApprovalPolicy(approvers=["ana"], effects=["write"] if gated == "effects" else [])
    plan.step("one").requires_approval = gated == "step"
    if gated == "settings":
        monkeypatch.setenv("PLAN_ADAPTER_GATE_EFFECTS", "write")
    approver = CallbackApprover(lambda request: True, by="ana")
    run = await arun_plan(plan, tools=world.tools, approver=approver, store=any_store, offline=True, by="bo")
    assert (run.status, world.drained) == (PlanStatus.PARTIAL, ["web-1", "节点-2"])
    if gated == "nothing":
        await acancel_run(run.id, rollback=True, tools=world.tools, store=any_store, by="bo")
    else:
        with pytest.raises(NotApprovedError, match="is not rolled back: bo may not answer here; only ana may"):
            await acancel_run(run.id, rollback=True, tools=world.tools, store=any_store, by="bo")
        assert world.put_back == []
        assert (await any_store.audit(run.id))[-1].by == "bo"
        await acancel_run(run.id, rollback=True, tools=world.tools, store=any_store, by="ana")
    assert world.put_back == ["节点-2", "web-1"]


async def test_the_approval_of_the_plan_covers_an_automatic_rollback(store: PlanStore, world: World) -> None:
    plan = pool()
    plan.approval = ApprovalPolicy(approvers=["ana"], effects=["write"])
    approver = CallbackApprover(lambda request: True, by="ana")
    run = await arun_plan(plan, tools=world.tools, approver=approver, store=store, offline=True, by="bo")
    assert (world.put_back, undone(run)["one"]) == (["节点-2", "web-1"], True)


async def test_completed_runs_and_runs_with_tool_drift_are_not_rolled_back(store: PlanStore, world: World) -> None:
    plan = pool()
    plan.steps.pop()
    done = await arun_plan(plan, tools=world.tools, store=store, offline=True)
    with pytest.raises(RunConflictError, match="has completed: only a run that failed or was cancelled is rolled back"):
        await acancel_run(done.id, rollback=True, tools=world.tools, store=store)

    failed = await arun_plan(pool(stop_on_error=False), tools=world.tools, store=store, offline=True)

    def undrain(node: str, force: bool = True) -> None:
        """Put it back in another way."""

    changed = ToolRegistry([*(world.tools.get(name) for name in world.tools.names() if name != "undrain"), tool(undrain)])
    with pytest.raises(NotApprovedError, match="have changed since it was approved"):
        await acancel_run(failed.id, rollback=True, tools=changed, store=store)
    assert world.put_back == []


def test_plan_cancel_rolls_back_an_ended_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    document = {
        "description": "Leave a file, then fail",
        "options": {"require_approval": False, "stop_on_error": False},
        "steps": [
            {
                "id": "leave", "tool_name": "run_command", "parameters": {"argv": ["touch", str(tmp_path / "文件")]},
                "rollback": {"tool_name": "run_command", "parameters": {"argv": ["rm", str(tmp_path / "文件")]}},
            },
            {"id": "fail", "tool_name": "run_command", "parameters": {"argv": ["false"]}, "depends_on": ["leave"]},
        ],
    }  # fmt: skip
    path = tmp_path / "plan.json"
    path.write_text(json.dumps(document))
    assert main(["run", str(path), "--offline", "--json"]) == 1
    run = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert (tmp_path / "文件").exists()
    assert main(["rollback", run["id"]]) == 0
    output = capsys.readouterr()
    assert "rolled back: leave" in output.out
    assert "rollback leave: completed in" in output.err
    assert "a run that was rolled back cannot be resumed: `plan run " in output.err
    assert not (tmp_path / "文件").exists()
    assert main(["show", run["id"], "--json"]) == 0
    assert [step["rolled_back"] for step in json.loads(capsys.readouterr().out)["steps"]] == [True, False]
    assert main(["preview", str(path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["steps"][0]["rollback"] == {
        "tool_name": "run_command",
        "effect": "write",
        "parameters": {"argv": ["rm", str(tmp_path / "文件")]},
    }


async def test_rollbacks_are_task_runs_of_the_flow_run_even_after_it_ended(prefect_server: Server, store: PlanStore, world: World) -> None:
    world.stuck.add("web-1")
    run = await arun_plan(pool(), tools=world.tools, store=store)
    assert run.flow_run_id is not None
    flow_run_id: Any = run.flow_run_id
    names = ["one", "two", "last", "rollback two", "rollback one"]
    runs = await task_runs(flow_run_id, names)
    while (await task_runs(flow_run_id, names))["two"].state_name != "RolledBack":
        await asyncio.sleep(0.1)
    states = {name: runs[name].state_name for name in names if name != "two"}
    assert states == {"one": "Completed", "last": "Failed", "rollback two": "Completed", "rollback one": "Failed"}
    assert (await flow_run(flow_run_id)).state_name == "RollbackIncomplete"
    upstream = {found.id for found in runs["rollback one"].task_inputs["wait_for"]}
    assert upstream == {runs["one"].id, runs["rollback two"].id}
    world.stuck.clear()
    later = await acancel_run(run.id, rollback=True, tools=world.tools, store=store)
    assert (later.flow_run_id, undone(later)["one"], later.status) == (run.flow_run_id, True, PlanStatus.PARTIAL)
    while (await flow_run(flow_run_id)).state_name != "RolledBack":
        await asyncio.sleep(0.1)
    while {(await task_runs(flow_run_id, names))[name].state_name for name in ("one", "two")} != {"RolledBack"}:
        await asyncio.sleep(0.1)
    while (await task_runs(flow_run_id, names))["rollback one"].state_name != "Completed":
        await asyncio.sleep(0.1)


async def test_approvers_see_how_each_step_is_undone_before_they_approve(world: World) -> None:
    plan = pool("hang", stop_on_error=True)
    plan.inputs = {"api_token": Input()}
    undo: dict[str, Any] = {"node": "${{ result.node + inputs.api_token }}\n| <b>第二</b> " + "长" * 90}
    plan.step("two").rollback = Rollback(tool_name="undrain", parameters=undo)
    bound = bind_inputs(validate(plan, world.tools), {"api_token": "s3cr3t-值"})
    text = plan_gate_text(bound, gated=[], approval_digest=bound.approval_digest, expires_ms=0)
    assert "**Cannot be undone:**\n\n- **3. last**: " in text
    assert "- undone if the run fails: `one`, `two`\n" in text
    assert "**undone by** `undrain` (**write**) · undone with `node` `${{ result.node }}`" in text
    assert "- `two` undone with `node` (2 lines" in text
    assert "s3cr3t" not in text
    asked = step_gate_text(
        bound, plan.step("one"), effect="write", parameters={"node": "web-1"}, item=None, approval_digest="a" * 64, expires_ms=0
    )
    assert "It **writes**. It is undone if the run fails after it, as described below." in asked
    by = "By `undrain` (**write**), without another approval, if the run fails or an approver requests it:"
    assert f"### How it is undone\n\n{by}\n\n- `node`: `${{{{ result.node }}}}`\n" in asked
    assert "- undone if the run fails, or if an approver requests it: `one`, `two`\n" in plan_gate_text(
        bound, gated=["one"], approval_digest=bound.approval_digest, expires_ms=0
    )
    shown = preview_text(preview_plan(bound.validated, inputs=bound.inputs, approval_digest=None, requires_approval=True))
    assert "   - undone by `undrain` (write)\n   - undone with `node`: `${{ result.node }}`\n" in shown
    assert format_plan(plan).count("   - undone by `undrain`\n") == 2


async def test_a_secret_in_a_rollback_reaches_its_tool_and_is_not_stored(
    store: PlanStore, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PLAN_ADAPTER_SECRET_POOL", "geheim-密码-42")
    plan = pool()
    plan.step("two").rollback = Rollback(tool_name="undrain", parameters={"node": "${{ secrets.POOL }}"})
    run = await arun_plan(plan, tools=world.tools, store=store, offline=True)
    assert world.put_back == ["geheim-密码-42", "web-1"]
    kept = [await store.run(run.id), *await store.attempts(run.id), *await store.receipts(run.id)]
    assert "geheim" not in "\n".join(map(repr, kept))
