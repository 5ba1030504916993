"""Tests of step groups: their steps run, resume and roll back item by item."""

import asyncio
import signal
from pathlib import Path
from uuid import UUID

import pytest
from prefect.client.schemas.objects import TaskRunResult
from pydantic import JsonValue

from plan_adapter import PlanStore, ToolRegistry, tool
from plan_adapter.cli.progress_lines import plain_lines
from plan_adapter.engine.connection import Server
from plan_adapter.execution.history import ResumeOptions
from plan_adapter.gates import ApprovalRequest, CallbackApprover
from plan_adapter.model.hooks import Event
from plan_adapter.model.options import Input
from plan_adapter.model.plan import Rollback, Step
from plan_adapter.model.status import RunReason
from plan_adapter.plans import format_plan
from plan_adapter.runs import acancel_run, aresolve_step, aresume_run, arun_plan
from plan_adapter.runs.resume import execute_resume
from plan_adapter.runs.run_session import RunRequest
from plan_adapter.runs.start import execute_plan
from plan_adapter.store import PlanStatus, StepStatus, dump_plan
from plan_adapter.validation import bind_inputs, validate
from tests.engine.calls import task_runs
from tests.processes import Program
from tests.runs.cluster import Cluster, act, rolling, run


async def test_one_item_ends_before_the_next_begins(cluster: Cluster, store: PlanStore) -> None:
    after = Step(
        id="after", tool_name="do", parameters={"what": "${{ steps.nodes.result.map(one, one.label).join(' ') }}"}, depends_on=["nodes"]
    )
    ended = await run(rolling(after=(after,)), cluster, store)
    assert ended.status is PlanStatus.COMPLETED
    assert cluster.done == [f"{action} {node}" for node in "abc" for action in ("drain", "restart", "check")] + ["a b c"]
    stored = await store.run(ended.id)
    assert [(step.id, step.index, step.group) for step in stored.steps] == [
        ("nodes", 0, None),
        ("drain", 1, "nodes"),
        ("restart", 2, "nodes"),
        ("check", 3, "nodes"),
        ("after", 4, None),
    ]
    first = {
        "label": "a",
        "status": "completed",
        "rolled_back": False,
        "results": {"drain": "drain a done", "restart": "restart a done", "check": "check a seen"},
    }
    for kept in (ended, stored):
        result = kept.step("nodes").result
        assert isinstance(result, list)
        assert (len(result), result[0]) == (3, first)
        assert kept.step("drain").result == [f"drain {node} done" for node in "abc"]
    text = format_plan(stored)
    assert "items: a completed, b completed, c completed" in text


async def test_each_item_sees_its_own_results(cluster: Cluster, store: PlanStore) -> None:
    first = act("ask")
    then = Step(id="use", tool_name="do", parameters={"what": "use ${{ steps.ask.result }} of ${{ item }}"}, when="${{ item != 'b' }}")
    last = Step(id="last", tool_name="do", parameters={"what": "${{ 'last ' + steps.use.status }}"})
    ended = await run(rolling(first, then, last), cluster, store)
    assert cluster.done == [
        *("ask a", "use ask a done of a", "last completed"),
        *("ask b", "last skipped"),
        *("ask c", "use ask c done of c", "last completed"),
    ]
    assert (ended.status, ended.step("use").status) == (PlanStatus.COMPLETED, StepStatus.COMPLETED)


async def test_a_step_whose_condition_is_false_for_every_item_is_skipped(cluster: Cluster, store: PlanStore) -> None:
    ended = await run(rolling(act("ask"), act("use", when="${{ item == 'z' }}")), cluster, store)
    assert (ended.status, ended.step("use").status) == (PlanStatus.COMPLETED, StepStatus.SKIPPED)
    assert "false for every item" in str(ended.step("use").reason)


async def test_no_item_starts_after_a_failed_item_and_completed_items_are_rolled_back(cluster: Cluster, store: PlanStore) -> None:
    cluster.broken.add("restart b")
    before = Step(
        id="before", tool_name="do", parameters={"what": "before"}, rollback=Rollback(tool_name="do", parameters={"what": "unbefore"})
    )
    after = Step(id="after", tool_name="do", parameters={"what": "after"}, depends_on=["nodes"])
    plan = rolling(before=(before,), after=(after,), depends_on=["before"])
    ended = await run(plan, cluster, store)
    assert (ended.status, ended.reason) == (PlanStatus.PARTIAL, RunReason.STEP_FAILED)
    assert cluster.done == ["before", "drain a", "restart a", "check a", "drain b", "undrain a", "unbefore"]
    statuses = {step.id: step.status.value for step in ended.steps}
    assert statuses == {
        "before": "completed",
        "nodes": "failed",
        "drain": "skipped",
        "restart": "failed",
        "check": "skipped",
        "after": "skipped",
    }
    assert [(item.label, item.status) for item in ended.step("nodes").items] == [("a", "completed"), ("b", "failed"), ("c", "skipped")]
    message = str(ended.message)
    assert message.startswith("`nodes` failed: b: `restart` failed: ")
    assert "rolled back: drain[a], before; not rolled back: drain[b] (its item did not complete, check by hand)" in message
    assert "**drain** `do`: done for some items in " in format_plan(ended)
    assert (ended.step("drain").is_partly_done, ended.step("after").is_partly_done) == (True, False)
    assert ended.step("drain").reason == "done for 2 of 3 items, not called for 1: 1 item of `nodes` failed"


async def test_progress_lines_name_the_item_of_each_call(cluster: Cluster, store: PlanStore) -> None:
    cluster.broken.add("restart b")
    bound, events = bind_inputs(validate(rolling(act("drain"), act("restart", "drain")), cluster.tools)), list[Event]()
    await execute_plan(bound, run_request=RunRequest(listener=events.append), store=store, offline=True)
    progress = [line for event in events if event.step is not None for line in plain_lines(event)]
    calls = [f"{what}[{node}]: {end}" for node in "ab" for what in ("drain", "restart") for end in ("started", "completed")]
    failure = "restart[b]: failed: ValueError: restart b is broken"
    assert progress[:8] == [*calls[:7], failure]
    assert progress[8] == "drain: done for 2 of 3 items, not called for 1: 1 item of `nodes` failed"


async def test_rollback_failed_also_rolls_back_the_failed_item(cluster: Cluster, store: PlanStore) -> None:
    cluster.broken.add("restart b")
    steps = (act("drain", undo=True), act("restart", "drain", undo=True), act("check", "restart"))
    await run(rolling(*steps, rollback_failed=True), cluster, store)
    assert cluster.done[-3:] == ["undrain b", "unrestart a", "undrain a"]


async def test_max_failures_lets_further_items_start(cluster: Cluster, store: PlanStore) -> None:
    cluster.broken |= {"drain a", "drain c"}
    ended = await run(rolling(act("drain"), items="['a', 'b', 'c', 'd']", max_failures=1), cluster, store)
    assert (cluster.done, ended.status) == (["drain b"], PlanStatus.PARTIAL)
    cluster.done.clear()
    await run(rolling(act("drain"), items="['a', 'b', 'c', 'd']", max_failures="50%"), cluster, store)
    assert cluster.done == ["drain b", "drain d"]


async def test_finally_steps_see_the_result_of_a_failed_group(cluster: Cluster, store: PlanStore) -> None:
    cluster.broken.add("drain b")
    failed = "${{ steps.nodes.result.filter(one, one.status == 'failed').map(one, one.label).join(',') }}"
    plan = rolling(act("drain"), max_failures=3, on_error="continue")
    plan.finally_ = [Step(id="tell", tool_name="do", parameters={"what": failed})]
    await run(plan, cluster, store)
    assert cluster.done == ["drain a", "drain c", "b"]


async def test_items_run_in_parallel_up_to_the_batch_size(cluster: Cluster, store: PlanStore) -> None:
    plan = rolling(act("one", tool_name="look"), act("two", "one", tool_name="look"), items="[1, 2, 3, 4, 5, 6]", batch=2)
    plan.steps[0].steps[0].parameters = {"what": "one ${{ string(item) }}"}
    plan.steps[0].steps[1].parameters = {"what": "two ${{ string(item) }}"}
    plan.options.allow_parallel, plan.options.max_parallel_steps = True, 4
    await run(plan, cluster, store)
    assert (cluster.most_busy, len(cluster.done)) == (2, 12)
    assert cluster.done.index("two 1") < cluster.done.index("one 4")


async def test_a_run_resumes_in_the_middle_of_an_item(cluster: Cluster, store: PlanStore) -> None:
    cluster.broken.add("restart b")
    plan = rolling(act("drain"), act("restart", "drain"), act("check", "restart"))
    ended = await run(plan, cluster, store)
    assert ended.status is PlanStatus.PARTIAL
    cluster.broken.clear()
    resumed = await aresume_run(ended.id, tools=cluster.tools, store=store, offline=True)
    assert resumed.status is PlanStatus.COMPLETED
    rest = ["restart b", "check b", "drain c", "restart c", "check c"]
    assert cluster.done == ["drain a", "restart a", "check a", "drain b", *rest]
    assert [item.status.value for item in (await store.run(ended.id)).step("nodes").items] == ["completed"] * 3


async def test_a_step_that_a_person_skips_is_not_shown_as_completed(cluster: Cluster, store: PlanStore) -> None:
    cluster.broken.add("restart b")
    labels = "${{ steps.nodes.result.map(one, one.label + ' ' + one.status).join(', ') + ' for ' + steps.nodes.status }}"
    after = Step(id="after", tool_name="do", parameters={"what": labels}, depends_on=["nodes"])
    plan = rolling(act("drain"), act("restart", "drain"), act("check", "restart"), after=(after,))
    failed = await run(plan, cluster, store)
    asked, request = ResumeOptions(skipped={"restart": "b is dead"}), RunRequest(requested_by="ana")
    ended = await execute_resume(failed.id, tools=cluster.tools, run_request=request, store=store, offline=True, options=asked)
    assert ended.status is PlanStatus.COMPLETED
    assert cluster.done[4:] == ["check b", "drain c", "check c", "a completed, b skipped, c skipped for completed"]
    stored = await store.run(failed.id)
    for kept in (ended, stored):
        restart, nodes = kept.step("restart"), kept.step("nodes")
        assert (restart.status, restart.reason) == (StepStatus.SKIPPED, "completed for 1 of 3 items; skipped by ana: b is dead")
        assert [(item.label, item.status) for item in nodes.items] == [("a", "completed"), ("b", "skipped"), ("c", "skipped")]
        assert isinstance(nodes.result, list)
        assert [one["status"] for one in nodes.result if isinstance(one, dict)] == ["completed", "skipped", "skipped"]
        assert (nodes.status, kept.step("drain").status, kept.step("check").status) == (StepStatus.COMPLETED,) * 3
    assert "skipped by ana: b is dead" in format_plan(stored)


async def test_an_item_that_did_not_need_a_skipped_step_completes(cluster: Cluster, store: PlanStore) -> None:
    cluster.broken.add("restart b")
    plan = rolling(act("drain"), act("restart", "drain", when="${{ item == 'b' }}"))
    failed = await run(plan, cluster, store)
    asked, request = ResumeOptions(skipped={"restart": "b is dead"}), RunRequest(requested_by="ana")
    ended = await execute_resume(failed.id, tools=cluster.tools, run_request=request, store=store, offline=True, options=asked)
    assert (ended.status, ended.step("restart").reason) == (PlanStatus.COMPLETED, "skipped by ana: b is dead")
    assert [item.status.value for item in ended.step("nodes").items] == ["completed", "skipped", "completed"]


async def test_a_skipped_step_of_a_group_runs_when_the_run_resumes_from_it(cluster: Cluster, store: PlanStore) -> None:
    cluster.broken |= {"restart b", "after"}
    after = Step(id="after", tool_name="do", parameters={"what": "after"}, depends_on=["nodes"])
    failed = await run(rolling(act("drain"), act("restart", "drain"), after=(after,)), cluster, store)
    for options in (ResumeOptions(skipped={"restart": "b is dead"}), ResumeOptions()):
        again = await execute_resume(
            failed.id, tools=cluster.tools, run_request=RunRequest(requested_by="ana"), store=store, offline=True, options=options
        )
        assert again.step("restart").reason == "completed for 1 of 3 items; skipped by ana: b is dead"
    cluster.broken.clear()
    asked = ResumeOptions(from_step="restart")
    ended = await execute_resume(failed.id, tools=cluster.tools, run_request=RunRequest(), store=store, offline=True, options=asked)
    assert (ended.status, cluster.done[-3:]) == (PlanStatus.COMPLETED, ["restart b", "restart c", "after"])
    assert [item.status.value for item in ended.step("nodes").items] == ["completed"] * 3


async def test_a_completed_group_is_carried(cluster: Cluster, store: PlanStore) -> None:
    cluster.broken.add("after")
    after = Step(id="after", tool_name="do", parameters={"what": "after"}, depends_on=["nodes"])
    ended = await run(rolling(act("drain"), after=(after,)), cluster, store)
    cluster.broken.clear()
    asked = ResumeOptions(from_step="after")
    resumed = await execute_resume(ended.id, tools=cluster.tools, run_request=RunRequest(), store=store, offline=True, options=asked)
    assert (resumed.status, cluster.done) == (PlanStatus.COMPLETED, ["drain a", "drain b", "drain c", "after"])
    assert (resumed.step("nodes").carried, resumed.step("drain").carried) == (True, True)


async def test_an_unknown_outcome_stops_its_item_and_can_be_resolved(cluster: Cluster, store: PlanStore) -> None:
    cluster.hanging = asyncio.Event()
    plan = rolling(
        act("drain", undo=True), act("restart", "drain", tool_name="hang", timeout_ms=1), act("check", "restart", tool_name="look")
    )
    ended = await run(plan, cluster, store)
    assert (ended.reason, ended.step("nodes").outcome) == (RunReason.UNKNOWN, "unknown")
    assert "the outcome of `restart` is unknown: no answer within " in (ended.step("nodes").error or "")
    assert cluster.done == ["drain a"]
    await aresolve_step(ended.id, "restart", "done", item=0, by="ana", result="restart a done", store=store)
    resumed = await aresume_run(ended.id, tools=cluster.tools, store=store, offline=True)
    assert (resumed.reason, cluster.done) == (RunReason.UNKNOWN, ["drain a", "check a", "drain b"])


async def test_a_cancelled_run_starts_no_further_steps(cluster: Cluster, store: PlanStore) -> None:
    cluster.hanging = asyncio.Event()
    running = asyncio.ensure_future(run(rolling(act("drain"), act("restart", "drain", tool_name="hang")), cluster, store))
    await cluster.hanging.wait()
    await acancel_run((await store.runs())[0].id, reason="不再需要", store=store)
    ended = await running
    assert (ended.status, cluster.done) == (PlanStatus.CANCELLED, ["drain a"])
    assert {step.id: step.status.value for step in ended.steps} == {"nodes": "failed", "drain": "skipped", "restart": "failed"}


@pytest.mark.parametrize("fields", [{"items": "[]"}, {"items": "inputs.xs"}, {"items": "['a']", "when": "${{ 1 > 2 }}"}, {}], ids=str)
async def test_a_group_says_carried_only_if_it_ended_in_an_earlier_start(
    fields: dict[str, str], cluster: Cluster, store: PlanStore
) -> None:
    inner = [act("drain", when="${{ item == 'none' }}")] if not fields else []  # no item is called
    plan = rolling(*inner, after=(Step(id="last", tool_name="do", parameters={"what": "last"}, depends_on=["nodes"]),), **fields)
    plan.inputs = {"xs": Input(type="array", default=[])}
    cluster.broken.add("last")
    first = await run(plan, cluster, store)
    assert {name: first.step(name).carried for name in ("nodes", "drain", "last")} == dict.fromkeys(("nodes", "drain", "last"), False)
    assert "carried" not in format_plan(await store.run(first.id))
    cluster.broken.clear()
    again = await aresume_run(first.id, tools=cluster.tools, store=store, offline=True)
    is_empty = fields.get("items") in ("[]", "inputs.xs")
    assert (again.status, again.step("nodes").carried, again.step("last").carried) == (PlanStatus.COMPLETED, is_empty, False)


async def test_an_empty_list_completes(cluster: Cluster, store: PlanStore) -> None:
    ended = await run(rolling(items="[]"), cluster, store)
    assert (ended.status, ended.step("nodes").result, ended.step("drain").result) == (PlanStatus.COMPLETED, [], [])


async def test_a_false_condition_skips_the_whole_group(cluster: Cluster, store: PlanStore) -> None:
    ended = await run(rolling(when="${{ 1 > 2 }}"), cluster, store)
    assert {step.status.value for step in ended.steps} == {"skipped"}
    assert cluster.done == []


async def test_a_list_that_cannot_be_computed_fails_the_group(cluster: Cluster, store: PlanStore) -> None:
    before = Step(id="before", tool_name="do", parameters={"what": "before"})
    plan = rolling(items="[1 / (size(steps.before.result) - size(steps.before.result))]", before=(before,))
    ended = await run(plan, cluster, store)
    assert (ended.step("nodes").status, ended.step("drain").status) == (StepStatus.FAILED, StepStatus.SKIPPED)


async def test_hundreds_of_completed_items_are_carried(cluster: Cluster, store: PlanStore) -> None:
    cluster.broken.add("drain 400")
    plan = rolling(act("drain"), act("restart", "drain"), items="inputs.nodes")
    plan.inputs = {"nodes": Input(type="array")}
    plan.options.allow_parallel, plan.options.max_parallel_steps = True, 50
    nodes: list[JsonValue] = [str(number) for number in range(401)]
    ended = await arun_plan(plan, tools=cluster.tools, inputs={"nodes": nodes}, store=store, offline=True)
    cluster.broken.clear()
    cluster.done.clear()
    resumed = await aresume_run(ended.id, tools=cluster.tools, store=store, offline=True)
    assert (resumed.status, cluster.done) == (PlanStatus.COMPLETED, ["drain 400", "restart 400"])


PROGRAM = """
import asyncio, os, signal, sys
from pathlib import Path
from plan_adapter import PlanStore, ToolRegistry, tool
from plan_adapter.runs import arun_plan
from plan_adapter.documents import read_document

log = Path(sys.argv[1])

@tool(effect="idempotent_write")
def do(what: str) -> str:
    \"\"\"Do something.\"\"\"
    with log.open("a") as file:
        file.write(what + "\\n")
    if what == "restart b":
        os.kill(os.getpid(), signal.SIGKILL)
    return what

plan, _ = read_document(Path(sys.argv[2]).read_text())
asyncio.run(arun_plan(plan, tools=ToolRegistry([do]), store=PlanStore(sys.argv[3]), offline=True))
"""


async def test_a_kill_in_the_middle_of_an_item_loses_and_repeats_nothing(tmp_path: Path) -> None:
    log, url = tmp_path / "log", f"sqlite:///{tmp_path / 'plans.db'}"
    plan = rolling(act("drain"), act("restart", "drain"), act("check", "restart"))
    (tmp_path / "plan.yaml").write_text(dump_plan(plan))
    program = Program(PROGRAM, log, tmp_path / "plan.yaml", url)
    assert program.wait() == -signal.SIGKILL
    async with PlanStore(url) as store:
        (killed,) = await store.runs()
        done: list[str] = []

        @tool(effect="idempotent_write")
        def do(what: str) -> str:
            """Do something."""
            done.append(what)
            return what

        resumed = await aresume_run(killed.id, tools=ToolRegistry([do]), store=store, offline=True)
    assert resumed.status is PlanStatus.COMPLETED
    assert log.read_text().splitlines() == ["drain a", "restart a", "check a", "drain b", "restart b"]
    assert done == ["restart b", "check b", "drain c", "restart c", "check c"]  # the killed call may be repeated: it is idempotent


async def test_each_call_is_a_task_run_after_the_previous_call_of_its_item(
    cluster: Cluster, store: PlanStore, prefect_server: Server
) -> None:
    cluster.broken.add("restart b")
    before = Step(id="before", tool_name="look", parameters={"what": "before"})
    plan = rolling(act("drain"), act("restart", "drain"), before=(before,), depends_on=["before"])
    ended = await arun_plan(plan, tools=cluster.tools, store=store)
    by_name = await task_runs(UUID(ended.flow_run_id), ["before", "drain[a]", "restart[a]", "drain[b]", "restart[b]", "nodes"])
    states = {name: task_run.state_name for name, task_run in by_name.items()}
    assert states == {**dict.fromkeys(states, "Completed"), "restart[b]": "Failed", "nodes": "Failed"}
    names = {task_run.id: name for name, task_run in by_name.items()}

    def upstream(name: str) -> set[str]:
        return {names[task_input.id] for task_input in by_name[name].task_inputs["wait_for"] if isinstance(task_input, TaskRunResult)}

    assert (upstream("drain[b]"), upstream("restart[b]")) == ({"before"}, {"drain[b]"})
    assert upstream("nodes") == {"restart[a]", "restart[b]"}


async def test_a_skipped_step_names_the_failed_step_that_it_depends_on(cluster: Cluster, store: PlanStore) -> None:
    cluster.broken.add("check b")
    check = act("check", on_error="continue")
    fix = act("fix", "check", when="${{ item == 'z' }}")
    ended = await run(rolling(check, fix, items="['a', 'b']", max_failures=2), cluster, store)
    assert ended.step("fix").reason == "`check` failed"


async def test_the_gate_of_a_step_shows_how_the_steps_of_its_item_ended(cluster: Cluster, store: PlanStore) -> None:
    cluster.broken |= {"warn b", "check a"}
    steps = (
        act("drain"),
        act("warn", on_error="continue"),
        act("only", when="${{ item == 'b' }}"),
        act("restart", "drain", "only", requires_approval=True),
        act("check", "restart"),
    )
    steps[3].parameters["what"] = "restart ${{ item }} after ${{ steps.drain.result }}"
    texts = dict[str, str]()

    def answer(request: ApprovalRequest) -> bool:
        texts[request.label or ""] = request.text
        return request.label == "a"

    plan = rolling(*steps, items="['a', 'b']", batch=2, max_failures=2)
    plan.options.allow_parallel, plan.options.max_parallel_steps = True, 4
    ended = await arun_plan(plan, tools=cluster.tools, store=store, offline=True, approver=CallbackApprover(answer, by="ana"))
    for label, what in (("a", "drain a done"), ("b", "drain b done")):
        assert f"- `drain` completed: `{what}`" in texts[label]
        assert "running" not in texts[label]
    assert "`only` skipped: `null`" in texts["a"]
    assert "`only` completed: `only b done`" in texts["b"]
    assert ended.status is PlanStatus.PARTIAL


async def test_the_gate_of_a_step_shows_its_own_item_behind_a_skipped_step(cluster: Cluster, store: PlanStore) -> None:
    texts = dict[str, str]()

    def answer(request: ApprovalRequest) -> bool:
        texts[request.label or ""] = request.text
        return True

    maybe = act("maybe", "drain", when="${{ item == 'b' }}")
    restart = act("restart", "drain", "maybe", requires_approval=True)
    plan = rolling(
        act("drain"), maybe, restart, items="['a', 'b']", before=(Step(id="first", tool_name="do", parameters={"what": "first"}),)
    )
    ended = await arun_plan(plan, tools=cluster.tools, store=store, offline=True, approver=CallbackApprover(answer, by="ana"))
    assert ended.status is PlanStatus.COMPLETED
    for label, other in (("a", "skipped: `null`"), ("b", "completed: `maybe b done`")):
        assert f"- `drain` completed: `drain {label} done`\n- `maybe` {other}\n" in texts[label]


async def test_the_gate_of_a_resumed_item_shows_the_steps_that_were_kept(cluster: Cluster, store: PlanStore) -> None:
    plan = rolling(act("drain"), act("restart", "drain", requires_approval=True), items="['a', 'b']")
    tools = {"tools": cluster.tools, "store": store, "offline": True}
    bound = bind_inputs(validate(plan, cluster.tools))
    waiting = await execute_plan(bound, run_request=RunRequest(waits=False), store=store, offline=True, record_pending=True)
    (gate,) = await store.gates.find(run_id=waiting.id)
    assert "- `drain` completed: `drain a done`" in gate.text
    texts = list[str]()

    def answer(request: ApprovalRequest) -> bool:
        texts.append(request.text)
        return True

    await aresume_run(waiting.id, approver=CallbackApprover(answer, by="ana"), **tools)
    assert ["- `drain` completed: `drain a done`" in texts[0], "- `drain` completed: `drain b done`" in texts[1]] == [True, True]
