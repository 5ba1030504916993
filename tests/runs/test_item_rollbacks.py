"""Tests of groups that roll back each item as soon as it has failed, and only that item."""

import asyncio
import re
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from plan_adapter import ExecutionPlan, PlanRun, PlanStore, ToolRegistry, tool
from plan_adapter.engine.connection import Server
from plan_adapter.errors import RunConflictError
from plan_adapter.execution.history import ResumeOptions, RunHistory
from plan_adapter.execution.rollback_units import is_rolled_back
from plan_adapter.gates import ApprovalRequest, CallbackApprover
from plan_adapter.model.errors import UnknownOutcomeError
from plan_adapter.model.options import ExecutionOptions
from plan_adapter.model.plan import Rollback, Step
from plan_adapter.model.status import RunReason
from plan_adapter.plans import format_plan
from plan_adapter.runs import acancel_run, aresolve_step, aresume_run, arevise_run, arun_plan
from plan_adapter.runs.reconcile import hint_of
from plan_adapter.runs.resume import execute_resume
from plan_adapter.runs.run_session import RunRequest
from plan_adapter.store import PlanStatus, dump_plan
from plan_adapter.text.preview import preview_plan, preview_text
from plan_adapter.tools import Done
from plan_adapter.validation import bind_inputs, validate
from tests.cli.test_unknown_outcomes import ANSWERS, CHECK_FIRST
from tests.engine.calls import task_runs
from tests.processes import Program
from tests.runs.cluster import Cluster, act, rolling, run

STEPS = (act("drain", undo=True), act("restart", "drain", undo=True, rollback_failed=True), act("check", "restart"))


def alone(*steps: Step, **fields: Any) -> ExecutionPlan:
    """Return a plan whose group rolls back each failed item by itself."""
    return rolling(*(steps or STEPS), **{"rollback_failed": True, "on_error": "continue", **fields})


def items_of(run: PlanRun) -> list[str]:
    return [f"{item.label} {item.in_words}" for item in run.step("nodes").items]


async def test_a_failed_item_is_rolled_back_before_the_next_begins_and_completed_items_stay(cluster: Cluster, any_store: PlanStore) -> None:
    cluster.broken.add("restart b")
    plan = alone(max_failures=1)
    plan.finally_ = [Step(id="tell", tool_name="do", parameters={"what": "${{ run.rolled_back.join(' ') }}"})]

    ended = await run(plan, cluster, any_store)

    in_a, in_c = (["drain " + node, "restart " + node, "check " + node] for node in "ac")
    assert cluster.done == [*in_a, "drain b", "unrestart b", "undrain b", *in_c, "restart[b] drain[b]"]
    assert (ended.status, ended.reason) == (PlanStatus.PARTIAL, RunReason.STEP_FAILED)
    assert ended.message == "`nodes` failed: b: `restart` failed: ValueError: restart b is broken (rolled back: restart[b], drain[b])"
    stored = await any_store.run(ended.id)
    for kept in (ended, stored):
        assert items_of(kept) == ["a completed", "b failed and rolled back", "c completed"]
        assert isinstance(kept.step("nodes").result, list)
        assert [one["rolled_back"] for one in kept.step("nodes").result if isinstance(one, dict)] == [False, True, False]
    assert "items: a completed, b failed and rolled back, c completed" in format_plan(stored)
    assert (await any_store.verify(ended.id)).ok


async def test_no_further_item_starts_after_more_failed_items_than_allowed(cluster: Cluster, store: PlanStore) -> None:
    cluster.broken |= {"restart a", "check c"}
    ended = await run(alone(items="['a', 'b', 'c', 'd', 'e']", max_failures=1), cluster, store)
    assert items_of(ended) == ["a failed and rolled back", "b completed", "c failed and rolled back", "d skipped", "e skipped"]
    assert cluster.done[-2:] == ["unrestart c", "undrain c"]
    assert "un" not in "".join(what for what in cluster.done if what.endswith("b"))
    assert (ended.message or "").endswith("; 2 of 5 items were not started: 2 items of `nodes` failed")
    assert ended.step("drain").reason == "done for 3 of 5 items, not called for 2: 2 items of `nodes` failed"


async def test_the_message_names_the_steps_of_the_item_that_was_rolled_back(cluster: Cluster, store: PlanStore) -> None:
    cluster.broken.add("check b")
    ended = await run(alone(act("drain", undo=True), act("restart", "drain"), act("check", "restart")), cluster, store)
    assert ended.message == (
        "`nodes` failed: b: `check` failed: ValueError: check b is broken (rolled back: drain[b]; cannot be rolled back: restart (writes, "
        "declares no rollback)); 1 of 3 items was not started: 1 item of `nodes` failed"
    )


@pytest.mark.parametrize("nested", [False, True])
async def test_a_failed_item_is_rolled_back_before_other_work_begins(cluster: Cluster, store: PlanStore, *, nested: bool) -> None:
    cluster.broken.add("check b")
    plan = alone(items="['a', 'b']")
    plan.steps.append(Step(id="other", tool_name="do", parameters={"what": "other"}))
    if nested:
        plan = ExecutionPlan(description="Run it inside", steps=[Step(id="inner", plan="store:inner@1", pinned=plan, on_error="continue")])
        plan.options.require_approval = False
    await run(plan, cluster, store)
    assert cluster.done[-5:] == ["drain b", "restart b", "unrestart b", "undrain b", "other"]


async def test_a_failed_item_is_rolled_back_before_other_work_begins_in_prefect(
    cluster: Cluster, store: PlanStore, prefect_server: Server
) -> None:
    cluster.broken.add("check b")
    plan = alone(items="['a', 'b']")
    plan.steps.append(Step(id="other", tool_name="do", parameters={"what": "other"}))
    await arun_plan(plan, tools=cluster.tools, store=store)
    assert cluster.done[-5:] == ["drain b", "restart b", "unrestart b", "undrain b", "other"]


async def test_the_failure_of_an_approved_call_leaves_its_slot_to_the_next_items(cluster: Cluster, store: PlanStore) -> None:
    cluster.broken.add("restart b")
    restart = act("restart", "drain", undo=True, rollback_failed=True, requires_approval=True)
    plan = alone(act("drain", undo=True), restart, max_failures=1)
    ended = await arun_plan(plan, tools=cluster.tools, store=store, offline=True, approver=CallbackApprover(lambda _: True, by="ana"))
    assert items_of(ended) == ["a completed", "b failed and rolled back", "c completed"]


async def test_a_run_resumes_after_the_rollback_of_an_item_that_failed_before_its_call(cluster: Cluster, store: PlanStore) -> None:
    check = act("check", "restart")
    check.parameters = {"what": "${{ {'a': 'check a'}[item] }}"}
    ended = await run(alone(STEPS[0], STEPS[1], check, items="['a', 'b', 'c']"), cluster, store)
    assert items_of(ended) == ["a completed", "b failed and rolled back", "c skipped"]
    done = [*cluster.done]

    resumed = await aresume_run(ended.id, tools=cluster.tools, store=store, offline=True)

    assert (cluster.done, items_of(resumed)) == (done, items_of(ended))


@pytest.mark.parametrize("effect", ["read", "idempotent_write"])
async def test_an_item_whose_interrupted_call_failed_later_is_rolled_back_alone(effect: Any, cluster: Cluster, store: PlanStore) -> None:
    cluster.broken.add("check a")
    plan = alone(items="['a']")
    ended = await run(plan, cluster, store)
    attempts = [replace(row, number=2) for row in await store.attempts(ended.id)]
    receipts = [replace(row, number=2) for row in await store.receipts(ended.id)]
    (failed,) = [row for row in attempts if row.step_id == "check"]
    history = RunHistory.of([replace(failed, number=1, effect=effect), *attempts], receipts)
    assert not is_rolled_back(plan, history, ended.rollback)
    assert (("check", 0) in history.failed) == (effect == "read")


async def test_the_policy_of_the_plan_counts_and_so_does_that_of_a_sub_plan(cluster: Cluster, store: PlanStore) -> None:
    cluster.broken.add("restart b")
    plan = alone(on_error=None)
    plan.options = ExecutionOptions(require_approval=False, continue_on_error=True)
    await run(plan, cluster, store)
    assert cluster.done[3:] == ["drain b", "unrestart b", "undrain b"]

    cluster.done.clear()
    outer = ExecutionPlan(description="Run it inside", steps=[Step(id="inner", plan="store:inner@1", pinned=plan, on_error="continue")])
    outer.options.require_approval = False
    ended = await run(outer, cluster, store)
    assert cluster.done[3:] == ["drain b", "unrestart b", "undrain b"]
    assert [item.in_words for item in ended.step("inner.nodes").items] == ["completed", "failed and rolled back", "skipped"]


@pytest.mark.parametrize("fields", [{"on_error": "stop"}, {"on_error": None}, {"rollback_failed": False}], ids=str)
async def test_other_groups_roll_back_no_item_by_itself(fields: dict[str, Any], cluster: Cluster, store: PlanStore) -> None:
    cluster.broken.add("restart b")
    ended = await run(alone(**fields), cluster, store)
    undone = [what for what in cluster.done if what.startswith("un")]
    assert undone == ([] if "rollback_failed" in fields else ["unrestart b", "undrain b", "unrestart a", "undrain a"])
    assert [item.status.value for item in ended.step("nodes").items] == ["completed", "failed", "skipped"]


async def test_an_item_counts_towards_the_batch_until_it_is_rolled_back(store: PlanStore) -> None:
    busy, most = set[str](), 0
    released = asyncio.Event()

    @tool(effect="write")
    async def enter(node: str) -> str:
        """Take the node out, unless it is broken."""
        nonlocal most
        busy.add(node)
        most = max(most, len(busy))
        if len(busy) > 1:
            released.set()
        return node

    @tool(effect="write")
    async def leave(node: str) -> str:
        """Put the node back."""
        if node in "ab":
            await released.wait()  # until both are out
        busy.discard(node)
        return node

    @tool(effect="read")
    async def check(node: str) -> None:
        """Fail."""
        raise ValueError(f"{node} is broken")

    parameters: dict[str, Any] = {"node": "${{ item }}"}
    first = Step(id="enter", tool_name="enter", parameters=parameters, rollback=Rollback(tool_name="leave", parameters=parameters))
    then = Step(id="check", tool_name="check", parameters=parameters, depends_on=["enter"])
    plan = alone(first, then, items="['a', 'b', 'c', 'd', 'e']", batch=2, max_failures="100%")
    plan.options.allow_parallel, plan.options.max_parallel_steps = True, 10
    ended = await arun_plan(plan, tools=ToolRegistry([enter, leave, check]), store=store, offline=True)
    assert (most, busy) == (2, set[str]())
    assert items_of(ended) == [f"{node} failed and rolled back" for node in "abcde"]


async def test_a_failed_step_without_rollback_failed_is_left_to_a_person(cluster: Cluster, store: PlanStore) -> None:
    cluster.broken.add("restart b")
    ended = await run(alone(act("drain", undo=True), act("restart", "drain", undo=True)), cluster, store)
    assert cluster.done[-1] == "undrain b"
    assert "(rolled back: drain[b]; not rolled back: restart[b] (failed, check by hand))" in (ended.message or "")
    assert items_of(ended) == ["a completed", "b failed", "c skipped"]


async def test_a_resume_finishes_a_rollback_that_failed_and_calls_nothing_else(cluster: Cluster, any_store: PlanStore) -> None:
    cluster.broken |= {"restart b", "undrain b"}
    plan = alone()
    plan.finally_ = [Step(id="tell", tool_name="do", parameters={"what": "${{ run.not_rolled_back.join(' ') + '!' }}"})]
    ended = await run(plan, cluster, any_store)
    assert cluster.done[3:] == ["drain b", "unrestart b", "drain[b]!"]
    assert "not rolled back: drain[b] (its rollback failed: ValueError: undrain b is broken)" in (ended.message or "")

    cluster.broken.clear()
    cluster.done.clear()
    resumed = await aresume_run(ended.id, tools=cluster.tools, store=any_store, offline=True)
    assert cluster.done == ["undrain b", "!"]
    assert (resumed.status, items_of(resumed)) == (PlanStatus.PARTIAL, ["a completed", "b failed and rolled back", "c skipped"])
    assert "`restart` failed: ValueError: restart b is broken (rolled back: restart[b], drain[b])" in (resumed.message or "")

    again = await aresume_run(ended.id, tools=cluster.tools, store=any_store, offline=True)
    assert cluster.done == ["undrain b", "!"]
    assert again.message == resumed.message
    assert (await any_store.verify(ended.id)).ok


async def test_the_whole_run_can_be_rolled_back_afterwards(cluster: Cluster, store: PlanStore) -> None:
    cluster.broken.add("restart b")
    ended = await run(alone(), cluster, store)
    cluster.done.clear()
    undone = await acancel_run(ended.id, rollback=True, tools=cluster.tools, store=store)
    assert cluster.done == ["unrestart a", "undrain a"]
    assert "rolled back: restart[b], drain[b], restart[a], drain[a]" in (undone.message or "")
    with pytest.raises(RunConflictError, match="was rolled back and cannot be resumed"):
        await aresume_run(ended.id, tools=cluster.tools, store=store, offline=True)


async def test_a_failure_elsewhere_that_stops_the_run_also_undoes_the_completed_items(cluster: Cluster, store: PlanStore) -> None:
    cluster.broken |= {"restart b", "other"}
    plan = alone()
    plan.steps.append(Step(id="other", tool_name="do", parameters={"what": "other"}))
    await run(plan, cluster, store)
    assert [what for what in cluster.done if what.startswith("un")] == ["unrestart b", "undrain b", "unrestart a", "undrain a"]


async def test_an_item_with_an_unknown_outcome_is_not_rolled_back(cluster: Cluster, store: PlanStore) -> None:
    plan = alone(act("drain", undo=True), act("restart", "drain", tool_name="hang", timeout_ms=1))
    ended = await run(plan, cluster, store)
    assert (cluster.done, ended.reason) == (["drain a"], RunReason.UNKNOWN)
    await aresolve_step(ended.id, "restart", "again", item=0, by="ana", store=store)
    ended = await aresume_run(ended.id, tools=cluster.tools, store=store, offline=True)
    assert (cluster.done, ended.reason) == (["drain a"], RunReason.UNKNOWN)


async def test_a_resume_asks_the_probe_again_although_another_item_was_rolled_back(cluster: Cluster, store: PlanStore) -> None:
    is_reachable = False

    async def find(what: str) -> Done | None:
        return Done(f"{what} done") if is_reachable else None

    @tool(effect="write", probe=find)
    async def restart(what: str) -> str:
        """Restart a node, or lose the connection to it."""
        if what.endswith("b"):
            raise ValueError(f"{what} is broken")
        cluster.done.append(what)
        if what.endswith("c"):
            raise UnknownOutcomeError("the connection is lost")
        return f"{what} done"

    tools = ToolRegistry([*cluster.tools, restart])
    plan = alone(act("drain", undo=True), act("restart", "drain", tool_name="restart"), items="['a', 'b', 'c', 'd']", max_failures=1)
    ended = await arun_plan(plan, tools=tools, store=store, offline=True)
    assert (items_of(ended), ended.reason) == (
        ["a completed", "b failed and rolled back", "c failed", "d skipped"],
        RunReason.UNKNOWN,
    )
    assert "rolled back: nothing, because the outcome of `restart[c]` is unknown" in (ended.message or "")
    is_reachable, done = True, [*cluster.done]

    resumed = await aresume_run(ended.id, tools=tools, store=store, offline=True)

    assert cluster.done == [*done, "drain d", "restart d"]
    assert items_of(resumed) == ["a completed", "b failed and rolled back", "c completed", "d completed"]
    assert (resumed.status, resumed.reason) == (PlanStatus.PARTIAL, RunReason.STEP_FAILED)


async def test_an_unknown_outcome_of_the_rollback_waits_for_a_person_and_a_resume_continues(cluster: Cluster, any_store: PlanStore) -> None:
    cluster.broken.add("check a")
    hang = Rollback(tool_name="hang", parameters={"what": "unrestart ${{ item }}"})
    restart = act("restart", "drain", timeout_ms=50).model_copy(update={"rollback": hang})
    plan = alone(act("drain", undo=True), restart, act("check", "restart"))
    ended = await run(plan, cluster, any_store)
    assert cluster.done == ["drain a", "restart a"]
    command = f"plan resolve {ended.id} restart done|again|abort --item a --rollback"
    assert f"the outcome of its rollback is unknown: `{command}`, then `plan resume {ended.id} --offline`" in (ended.message or "")
    assert await hint_of(ended, any_store) == (
        f"the outcome of the rollback of `restart` is unknown: {CHECK_FIRST} `{command}` ({ANSWERS}), "
        f"then `plan resume {ended.id} --offline`"
    )
    resumed = await aresume_run(ended.id, tools=cluster.tools, store=any_store, offline=True)
    assert (cluster.done, command in (resumed.message or "")) == (["drain a", "restart a"], True)

    await aresolve_step(ended.id, "restart", "done", item=0, rollback=True, by="ana", store=any_store)
    resumed = await aresume_run(ended.id, tools=cluster.tools, store=any_store, offline=True)
    assert cluster.done == ["drain a", "restart a", "undrain a"]
    assert items_of(resumed) == ["a failed and rolled back", "b skipped", "c skipped"]
    assert (await any_store.verify(ended.id)).ok


async def test_an_aborted_rollback_of_an_item_is_not_repeated_until_it_is_resolved(cluster: Cluster, store: PlanStore) -> None:
    cluster.broken.add("check a")
    hang = Rollback(tool_name="hang", parameters={"what": "undrain ${{ item }}"})
    plan = alone(act("drain", timeout_ms=50).model_copy(update={"rollback": hang}), act("check", "drain"))
    ended = await run(plan, cluster, store)
    await aresolve_step(ended.id, "drain", "abort", item=0, rollback=True, by="ana", store=store)
    aborted = await store.run(ended.id)
    assert (aborted.status, aborted.rollback) == (PlanStatus.CANCELLED, None)
    assert f"then `plan resume {ended.id} --offline` rolls back the rest" in (await hint_of(aborted, store) or "")
    resumed = await aresume_run(ended.id, tools=cluster.tools, store=store, offline=True)
    assert "the outcome of its rollback is unknown: check, then" in (resumed.message or "")


async def test_a_cancellation_lets_a_rollback_call_finish_and_a_resume_does_the_rest(cluster: Cluster, store: PlanStore) -> None:
    cluster.broken.add("check b")
    begun, is_stopping = asyncio.Event(), asyncio.Event()

    @tool(effect="write")
    async def undo(what: str) -> str:
        """Undo it, once the run is stopping."""
        begun.set()
        await is_stopping.wait()
        cluster.done.append(what)
        return what

    @tool(effect="read")
    async def watch() -> None:
        """Run until the run stops."""
        try:
            await asyncio.Event().wait()
        finally:
            is_stopping.set()

    slow = Rollback(tool_name="undo", parameters={"what": "unrestart ${{ item }}"})
    plan = alone(act("drain", undo=True), act("restart", "drain").model_copy(update={"rollback": slow}), act("check", "restart"), batch=1)
    plan.steps.append(Step(id="watch", tool_name="watch"))
    plan.options.allow_parallel = True
    tools = ToolRegistry([*(cluster.tools.get(name) for name in cluster.tools.names()), undo, watch])
    running = asyncio.ensure_future(arun_plan(plan, tools=tools, store=store, offline=True))
    await begun.wait()
    await acancel_run((await store.runs())[0].id, reason="not today", store=store)
    ended = await running
    assert cluster.done[3:] == ["drain b", "restart b", "unrestart b"]
    assert "not rolled back: drain[b] (not today)" in (ended.step("nodes").error or "")
    asked = ResumeOptions(skipped={"watch": "the test has seen enough"})
    ended = await execute_resume(ended.id, tools=tools, run_request=RunRequest(), store=store, offline=True, options=asked)
    assert cluster.done[6:] == ["undrain b"]
    assert items_of(ended) == ["a completed", "b failed and rolled back", "c skipped"]


async def test_what_was_rolled_back_cannot_be_recorded_as_done_or_revised(cluster: Cluster, store: PlanStore) -> None:
    cluster.broken.add("restart b")
    plan = alone()
    ended = await run(plan, cluster, store)
    with pytest.raises(RunConflictError, match="the item of `restart` was rolled back"):
        await aresolve_step(ended.id, "restart", "done", item=1, by="ana", store=store)
    with pytest.raises(RunConflictError, match="was rolled back"):
        await arevise_run(ended.id, plan, tools=cluster.tools, by="ana", store=store)


async def test_a_rolled_back_item_is_a_task_run_for_each_call(cluster: Cluster, store: PlanStore, prefect_server: Server) -> None:
    cluster.broken.add("restart b")
    ended = await arun_plan(alone(), tools=cluster.tools, store=store)

    by_name = await task_runs(UUID(ended.flow_run_id), ["restart[b]", "rollback restart[b]", "rollback drain[b]", "nodes"])
    assert {name: by_name[name].state_name for name in ("rollback restart[b]", "rollback drain[b]", "restart[b]", "nodes")} == {
        "rollback restart[b]": "Completed",
        "rollback drain[b]": "Completed",
        "restart[b]": "Failed",
        "nodes": "Failed",
    }


PROGRAM = """
import asyncio, os, signal, sys
from pathlib import Path
from plan_adapter import PlanStore, ToolRegistry, tool
from plan_adapter.runs import arun_plan
from plan_adapter.documents import read_document

log, effect, killed_at = Path(sys.argv[1]), sys.argv[4], sys.argv[5]

@tool(effect="write")
def do(what: str) -> str:
    \"\"\"Do something, or fail.\"\"\"
    if what in ("check a", "check c"):
        raise ValueError(f"{what} failed")
    with log.open("a") as file:
        file.write(what + "\\n")
    return what

@tool(effect=effect)
def undo(what: str) -> str:
    \"\"\"Undo something, and die in the middle.\"\"\"
    with log.open("a") as file:
        file.write(what + "\\n")
    if what == killed_at:
        os.kill(os.getpid(), signal.SIGKILL)
    return what

plan, _ = read_document(Path(sys.argv[2]).read_text())
asyncio.run(arun_plan(plan, tools=ToolRegistry([do, undo]), store=PlanStore(sys.argv[3]), offline=True))
"""


def undone_by_another_tool(name: str, *after: str) -> Step:
    return act(name, *after).model_copy(update={"rollback": Rollback(tool_name="undo", parameters={"what": f"un{name} ${{{{ item }}}}"})})


@pytest.mark.parametrize("effect", ["idempotent_write", "write"])
@pytest.mark.parametrize("max_failures", [1, 2])
async def test_a_kill_in_the_middle_of_an_items_rollback_loses_and_repeats_nothing(
    effect: Any, max_failures: int, store_url: str, tmp_path: Path
) -> None:
    log = tmp_path / "log"
    plan = alone(
        undone_by_another_tool("drain"),
        undone_by_another_tool("restart", "drain"),
        act("check", "restart"),
        items="['a', 'b', 'c', 'd']",
        max_failures=max_failures,
    )
    (tmp_path / "plan.yaml").write_text(dump_plan(plan))
    program = Program(PROGRAM, log, tmp_path / "plan.yaml", store_url, effect, "unrestart c")
    assert program.wait() == -signal.SIGKILL
    before = ["drain a", "restart a", "unrestart a", "undrain a", "drain b", "restart b", "check b", "drain c", "restart c", "unrestart c"]
    assert log.read_text().splitlines() == before
    done: list[str] = []

    @tool(effect="write")
    def do(what: str) -> str:
        """Do something."""
        done.append(what)
        return what

    def undo(what: str) -> str:
        """Undo something."""
        done.append(what)
        return what

    tools = ToolRegistry([do, tool(effect=effect)(undo)])
    async with PlanStore(store_url) as store:
        (killed,) = await store.runs()
        assert (killed.status, killed.reason) == (PlanStatus.EXECUTING, RunReason.INTERRUPTED)
        resumed = await aresume_run(killed.id, tools=tools, store=store, offline=True)
        of_d = ["drain d", "restart d", "check d"] if max_failures == 2 else []
        if effect == "write":
            assert done == of_d
            assert f"`plan resolve {killed.id} restart done|again|abort --item c --rollback`" in (resumed.message or "")
            await aresolve_step(killed.id, "restart", "done", item=2, rollback=True, by="ana", store=store)
            resumed = await aresume_run(killed.id, tools=tools, store=store, offline=True)
            assert done == [*of_d, "undrain c"]
        else:
            assert done == ["unrestart c", "undrain c", *of_d]
        last = "d completed" if max_failures == 2 else "d skipped"
        assert items_of(resumed) == ["a failed and rolled back", "b completed", "c failed and rolled back", last]
        assert (resumed.status, resumed.reason) == (PlanStatus.PARTIAL, RunReason.STEP_FAILED)
        attempts = [row for row in await store.attempts(killed.id) if (row.kind, row.step_id, row.item) == ("rollback", "restart", 2)]
        assert len({row.idempotency_key for row in attempts}) == 1
        assert (await store.verify(killed.id)).ok


async def test_a_killed_run_can_be_rolled_back_as_a_whole_instead(store_url: str, tmp_path: Path) -> None:
    plan = alone(undone_by_another_tool("drain"), undone_by_another_tool("restart", "drain"), act("check", "restart"), items="['b', 'a']")
    (tmp_path / "plan.yaml").write_text(dump_plan(plan))
    program = Program(PROGRAM, tmp_path / "log", tmp_path / "plan.yaml", store_url, "idempotent_write", "unrestart a")
    assert program.wait() == -signal.SIGKILL
    undone: list[str] = []

    @tool(effect="idempotent_write")
    def undo(what: str) -> str:
        """Undo something."""
        undone.append(what)
        return what

    @tool(effect="write")
    def do(what: str) -> str:
        """Do nothing any more."""
        raise AssertionError(what)

    async with PlanStore(store_url) as store:
        (killed,) = await store.runs()
        ended = await acancel_run(killed.id, rollback=True, tools=ToolRegistry([do, undo]), store=store)
    assert undone == ["unrestart a", "undrain a", "unrestart b", "undrain b"]
    assert ended.status is PlanStatus.CANCELLED
    assert "rolled back: restart[a], drain[a], restart[b], drain[b]" in (ended.message or "")


ALONE = "rolls back an item as soon as it has failed, and only that item; completed items stay"


@pytest.mark.parametrize(
    ("fields", "promise"),
    [
        ({}, ALONE),
        ({"on_error": "stop"}, "if the run fails, rolls back the items that completed, and those that failed"),
        ({"on_error": "stop", "rollback_failed": False}, "if the run fails, rolls back the items that completed"),
        (
            {"rollback_failed": False},
            "rolls back no item when an item fails; if another step ends the run, rolls back the items that completed",
        ),
    ],
    ids=str,
)
async def test_the_preview_and_the_gates_say_what_is_rolled_back(
    fields: dict[str, Any], promise: str, cluster: Cluster, store: PlanStore
) -> None:
    cluster.broken.add("restart b")
    drain = act("drain", undo=True, requires_approval=True)
    plan = alone(drain, act("restart", "drain", undo=True, rollback_failed=True), requires_approval="each", max_failures=1, **fields)
    plan.options.require_approval = True
    bound = bind_inputs(validate(plan, cluster.tools))
    shown = preview_plan(bound.validated, inputs={}, approval_digest=None, requires_approval=True)
    assert [line.strip() for line in preview_text(shown).splitlines()].count(f"- {promise}") == 1
    assert f"- {promise}\n" in format_plan(plan)
    asked = list[ApprovalRequest]()

    def answer(request: ApprovalRequest) -> bool:
        asked.append(request)
        return True

    await arun_plan(plan, tools=cluster.tools, store=store, offline=True, approver=CallbackApprover(answer, by="ana"))
    texts = {(request.step_id, request.label): request.text for request in asked}
    assert promise in texts[None, None]
    assert ("- undone as soon as their item has failed: `drain`, `restart`" in texts[None, None]) == (promise == ALONE)
    assert f"- {promise}\n" in texts["nodes", "a"]
    what = "its item or the run" if promise == ALONE else "the run"
    assert f"It is undone if {what} fails after it" in texts["drain", "a"]
    assert f"if {what} fails or an approver requests it:" in texts["drain", "a"]
    assert bool(re.search("Before it: b failed and rolled back: `.*`; a completed", texts["nodes", "c"])) == (promise == ALONE)
