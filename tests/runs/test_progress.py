"""Tests of the progress of a run: what has completed, of all. A group counts as its items."""

import asyncio
import signal
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from plan_adapter import ExecutionPlan, PlanStore
from plan_adapter.cli.app import main
from plan_adapter.cli.records import run_json, run_status_line
from plan_adapter.engine.connection import Server
from plan_adapter.model.hooks import Event
from plan_adapter.model.options import Input
from plan_adapter.model.plan import Step
from plan_adapter.plans import format_plan
from plan_adapter.runs import acancel_run, aresume_run, arun_plan
from plan_adapter.runs.run_session import RunRequest
from plan_adapter.runs.start import execute_plan
from plan_adapter.store import dump_plan
from plan_adapter.validation import bind_inputs, validate
from tests.engine.calls import flow_run
from tests.processes import Program
from tests.runs.cluster import Cluster, act, rolling, run

STEPS = (act("drain", undo=True), act("restart", "drain", undo=True, rollback_failed=True), act("check", "restart"))
ALONE: dict[str, Any] = {"rollback_failed": True, "on_error": "continue"}
ONE_FAILED = "1 of 3 nodes done, 1 failed and rolled back, 1 not started"


async def test_progress_is_what_completed_of_all(cluster: Cluster, store: PlanStore) -> None:
    cluster.broken.add("one")
    plan = ExecutionPlan(description="Three steps, of which the first fails")
    plan.options.require_approval = False
    for name, before in (("one", []), ("two", ["one"]), ("three", ["two"])):
        plan.add_step("do", name, {"what": name}, id=name, depends_on=before)
    failed = await run(plan, cluster, store)
    assert (failed.summary().progress, failed.summary().text) == (0.0, "0 of 3 steps done, 1 failed, 2 skipped")
    cluster.broken = {"two"}
    resumed = await aresume_run(failed.id, tools=cluster.tools, store=store, offline=True)
    for kept in (resumed, await store.run(failed.id)):
        assert (kept.summary().progress, kept.summary().text) == (33.3, "1 of 3 steps done, 1 failed, 1 skipped")


async def test_a_group_counts_as_its_items_everywhere(
    cluster: Cluster, store: PlanStore, prefect_server: Server, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster.broken.add("restart b")
    plan = rolling(*STEPS, **ALONE)
    plan.finally_ = [Step(id="tell", tool_name="do", parameters={"what": "${{ run.progress }}"})]
    ended = await arun_plan(plan, tools=cluster.tools, store=store)
    assert cluster.done[-1] == ONE_FAILED
    text = f"1 of 1 step done; {ONE_FAILED}"
    stored = await store.run(ended.id)
    for kept in (ended, stored):
        summary = kept.summary()
        assert (summary.text, summary.progress) == (text, 50.0)
        assert (summary.total_steps, summary.completed, summary.failed, summary.skipped) == (4, 2, 1, 1)
        assert run_json(kept, steps=False)["summary"]["text"] == text
        assert f": {text}; `nodes` failed: b: " in run_status_line(kept)
        assert f"- progress: {text} (50 %)\n" in format_plan(kept)
    state = (await flow_run(UUID(ended.flow_run_id))).state
    assert state is not None
    assert (state.message or "").startswith(f"{text}: `nodes` failed: b: ")
    assert await asyncio.to_thread(main, ["runs", "--wide"]) == 0
    assert f"  {text}  " in capsys.readouterr().out


async def test_a_running_group_and_a_waiting_one_count_as_their_items(cluster: Cluster, any_store: PlanStore) -> None:
    cluster.hanging, seen = asyncio.Event(), list[str]()
    plan = rolling(act("drain"), act("hang", "drain", tool_name="hang", when="${{ item == 'b' }}"), items="inputs.nodes")
    plan.inputs = {"nodes": Input(type="array", default=["a", "b", "c"])}
    bound = bind_inputs(validate(plan, cluster.tools))
    request = RunRequest(listener=lambda event: seen.append(event.run.summary().text))
    running = asyncio.ensure_future(execute_plan(bound, run_request=request, store=any_store, offline=True))
    await cluster.hanging.wait()
    run_id = (await any_store.runs())[0].id
    text = "1 of 3 nodes done, 1 running, 1 not started"
    assert seen[-1] == text
    assert (await any_store.run(run_id)).summary().text == text
    await acancel_run(run_id, store=any_store)
    ended = await running
    assert ended.summary().text == "1 of 3 nodes done, 1 failed, 1 not started"

    gated = rolling(*STEPS, requires_approval="each")
    waits = await execute_plan(
        bind_inputs(validate(gated, cluster.tools)),
        run_request=RunRequest(waits=False),
        store=any_store,
        offline=True,
        record_pending=True,
    )
    assert (await any_store.run(waits.id)).summary().text == "0 of 3 nodes done, 3 not started"


async def test_an_interrupted_run_shows_how_far_its_items_are(store_url: str, tmp_path: Path) -> None:
    (tmp_path / "plan.yaml").write_text(dump_plan(rolling(*STEPS, items="['a', 'b', 'c', 'd']", max_failures=1, **ALONE)))
    program = Program(KILLED, tmp_path / "plan.yaml", store_url)
    assert program.wait() == -signal.SIGKILL
    async with PlanStore(store_url) as store:
        (killed,) = await store.runs()
        assert killed.summary().text == "1 of 4 nodes done, 1 failed and rolled back, 1 running, 1 not started"
        assert (await store.run(killed.id)).summary().text == killed.summary().text


KILLED = """
import asyncio, os, signal, sys
from pathlib import Path
from plan_adapter import PlanStore, ToolRegistry, tool
from plan_adapter.runs import arun_plan
from plan_adapter.documents import read_document

@tool(effect="write")
def do(what: str) -> str:
    \"\"\"Do something, fail, or die.\"\"\"
    if what == "restart a":
        raise ValueError("broken")
    if what == "check c":
        os.kill(os.getpid(), signal.SIGKILL)
    return what

plan, _ = read_document(Path(sys.argv[1]).read_text())
asyncio.run(arun_plan(plan, tools=ToolRegistry([do]), store=PlanStore(sys.argv[2]), offline=True))
"""


async def test_items_that_the_rollback_of_the_run_undid_are_named(cluster: Cluster, store: PlanStore) -> None:
    cluster.broken.add("restart b")
    ended = await run(rolling(*STEPS, rollback_failed=True), cluster, store)
    for kept in (ended, await store.run(ended.id)):
        assert kept.summary().text == "1 of 3 nodes done, 1 of them rolled back, 1 failed and rolled back, 1 not started"
    assert (await store.verify(ended.id)).ok


async def test_items_are_named_by_a_plural_id_or_as_items_of_the_group(cluster: Cluster, store: PlanStore) -> None:
    plan = rolling(act("drain"))
    plan.steps[0].id = "rollout"
    plan.steps.append(Step(id="after", tool_name="do", parameters={"what": "after"}, depends_on=["rollout"]))
    ended = await run(plan, cluster, store)
    assert ended.summary().text == "1 of 1 step done; 3 of 3 items of rollout done"


async def test_a_group_inside_a_sub_plan_and_an_empty_group(cluster: Cluster, store: PlanStore) -> None:
    inner = rolling(act("drain"))
    outer = ExecutionPlan(description="Run it inside", steps=[Step(id="inner", plan="store:inner@1", pinned=inner)])
    outer.options.require_approval = False
    ended = await run(outer, cluster, store)
    assert (ended.summary().text, ended.summary().total_steps) == ("1 of 1 step done; 3 of 3 inner.nodes done", 4)
    empty = await run(rolling(act("drain"), items="[]"), cluster, store)
    assert (empty.summary().text, empty.summary().progress) == ("1 of 1 step done", 100.0)


@pytest.mark.parametrize(
    ("items", "text"),
    [
        ("['x', 'y']", "0 of 1 step done, 1 failed; 0 of 2 nodes done, 2 not started"),
        ("['x']", "0 of 1 step done, 1 failed; 0 of 1 item of nodes done, 1 not started"),
        ("inputs.names", "0 of 1 step done, 1 failed; 0 of 3 nodes done, 3 not started"),
        ("steps.first.status == 'completed' ? ['a'] : []", "0 of 2 steps done, 1 failed, 1 skipped"),
        ("[1].filter(x, x > 5)", "0 of 2 steps done, 1 failed, 1 skipped"),
    ],
)
async def test_a_group_that_was_not_reached_counts_by_item_or_as_one(items: str, text: str, cluster: Cluster, store: PlanStore) -> None:
    cluster.broken.add("first")
    first = Step(id="first", tool_name="do", parameters={"what": "first"})
    plan = rolling(act("drain"), act("check", "drain"), items=items, before=(first,), depends_on=["first"])
    plan.inputs = {"names": Input(type="array", default=["a", "b", "c"])}
    plan.finally_ = [Step(id="tell", tool_name="do", parameters={"what": "${{ run.progress }}"})]
    ended = await run(plan, cluster, store)
    assert cluster.done == [text]
    total = text.replace("0 of 2 steps", "1 of 3 steps").replace("0 of 1 step ", "1 of 2 steps ")  # with the `finally` step
    for kept in (ended, await store.run(ended.id), *(await store.runs())):
        assert (kept.summary().text, kept.step("nodes").result) == (total, None)


@pytest.mark.parametrize(
    ("items", "counts"), [("['x', 'y']", "0 of 2 nodes done, 2 not started"), ("[1].filter(x, x > 5)", "0 of 1 step done, 1 skipped")]
)
async def test_a_skipped_group_counts_by_item_or_as_one(items: str, counts: str, cluster: Cluster, store: PlanStore) -> None:
    ended = await run(rolling(act("drain"), act("check", "drain"), items=items, when="${{ false }}"), cluster, store)
    for kept in (ended, await store.run(ended.id)):
        assert (kept.summary().text, kept.step("nodes").result) == (counts, None)


async def test_an_empty_group_counts_as_one_step(cluster: Cluster, store: PlanStore) -> None:
    cluster.broken.add("last")
    last = Step(id="last", tool_name="do", parameters={"what": "last"}, depends_on=["nodes"])
    ended = await run(rolling(act("drain"), act("check", "drain"), items="[1].filter(x, x > 5)", after=(last,)), cluster, store)
    for kept in (ended, await store.run(ended.id)):
        assert (kept.summary().text, kept.summary().progress) == ("1 of 2 steps done, 1 failed", 50.0)


async def test_a_run_that_waits_at_its_gate_counts_the_items_of_its_groups(cluster: Cluster, store: PlanStore) -> None:
    plan = rolling(act("drain", undo=True))
    plan.options.require_approval = True
    bound = bind_inputs(validate(plan, cluster.tools))
    waits = await execute_plan(bound, run_request=RunRequest(waits=False), store=store, offline=True, record_pending=True)
    assert (await store.run(waits.id)).summary().text == "0 of 3 nodes done, 3 not started"
    await acancel_run(waits.id, store=store)
    assert (await store.run(waits.id)).summary().text == "0 of 3 nodes done, 3 not started"


async def test_hooks_see_the_progress_of_the_moment(cluster: Cluster, store: PlanStore) -> None:
    events = list[Event]()
    bound = bind_inputs(validate(rolling(act("drain")), cluster.tools))
    await execute_plan(bound, run_request=RunRequest(listener=events.append), store=store, offline=True)
    assert events[-1].run.summary().text == "3 of 3 nodes done"
