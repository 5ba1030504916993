"""Tests of sub-plans: a step runs another plan, with its own inputs, results, limits and rollbacks."""

import asyncio
import signal
from pathlib import Path
from uuid import UUID

import pytest
from prefect.client.schemas.objects import TaskRunResult

from plan_adapter import ExecutionPlan, PlanStore, ToolRegistry, tool
from plan_adapter.engine.connection import Server
from plan_adapter.errors import InvalidPlanError
from plan_adapter.execution.history import ResumeOptions
from plan_adapter.execution.items import recorded_items
from plan_adapter.model.inventory import HostGroup
from plan_adapter.model.options import ExecutionOptions, Input
from plan_adapter.model.plan import Step
from plan_adapter.model.status import RunReason
from plan_adapter.plans import format_plan
from plan_adapter.rehearsal import adry_run_plan
from plan_adapter.runs import acancel_run, aresolve_step, aresume_run, arun_plan
from plan_adapter.runs.resume import execute_resume
from plan_adapter.runs.run_session import RunRequest
from plan_adapter.store import PlanStatus, StepStatus, aload_plan, dump_plan
from tests.engine.calls import task_runs
from tests.processes import Program
from tests.runs.cluster import Cluster, run
from tests.runs.sub_plans import around, do, site


async def test_a_sub_plan_has_its_own_inputs_and_steps_and_returns_its_outputs(cluster: Cluster, store: PlanStore) -> None:
    after = do("check", "then ${{ steps.verify.result.marked }} at ${{ inputs.where }}")
    ended = await run(around(site(), after, before=(do("mark", "mine"),)), cluster, store)
    assert ended.status is PlanStatus.COMPLETED
    assert cluster.done == ["mine", "check 北京", "mark check 北京 done", "then mark check 北京 done done at 北京"]
    stored = await store.run(ended.id)
    for kept in (ended, stored):
        assert [(step.id, step.index, step.group) for step in kept.steps] == [
            ("mark", 0, None),
            ("verify", 1, None),
            ("verify.check", 2, "verify"),
            ("verify.mark", 3, "verify"),
            ("check", 4, None),
        ]
        assert kept.step("verify").result == {"marked": "mark check 北京 done done"}
        assert kept.step("verify.mark").depends_on == ("verify.check",)
    assert {attempt.step_id for attempt in await store.attempts(ended.id)} == {"mark", "verify.check", "verify.mark", "check"}
    text = format_plan(stored)
    assert "2. **verify** plan `store:verify-site@3`: completed" in text
    assert "   3. **verify.check** `do`: completed" in text


async def test_expressions_in_a_sub_plan_see_its_own_names(cluster: Cluster, store: PlanStore) -> None:
    each = Step(id="each", tool_name="do", for_each="${{ ['a', inputs.site] }}", parameters={"what": "each ${{ item }}"})
    inner = [do("drain", "drain ${{ item }}"), do("restart", "restart ${{ steps.drain.result }} of ${{ inputs.site }}", "drain")]
    group = Step(id="nodes", for_each="${{ steps.each.result }}", steps=inner)
    last = do("last", "${{ steps.nodes.result.map(one, one.results.restart).join('; ') }}")
    deeper = around(site(each, group, last, outputs={"all": "${{ steps.last.status }}"}))
    deeper.outputs = {"inner": "${{ steps.verify.result.all }}"}
    plan = ExecutionPlan(
        description="Outermost",
        options=ExecutionOptions(require_approval=False),
        steps=[Step(id="move", plan="move.yaml", inputs={"where": "x"}, pinned=deeper), do("end", "${{ steps.move.result.inner }}")],
    )
    ended = await run(plan, cluster, store)
    assert ended.status is PlanStatus.COMPLETED
    restarted = [f"restart drain each {item} done done of x" for item in ("a", "x")]
    drained = [f"drain each {item} done" for item in ("a", "x")]
    assert cluster.done == [
        "each a",
        "each x",
        drained[0],
        restarted[0],
        drained[1],
        restarted[1],
        "; ".join(f"{call} done" for call in restarted),
        "completed",
    ]
    stored = await store.run(ended.id)
    assert stored.step("move.verify.nodes").result == ended.step("move.verify.nodes").result
    assert [step.group for step in stored.steps if step.id.endswith("drain")] == ["move.verify.nodes"]


async def test_the_record_has_the_items_of_a_step_in_a_sub_plan(cluster: Cluster, store: PlanStore) -> None:
    cluster.broken = {"each x"}
    first = do("first", "${{ inputs.site }}")
    each = Step(
        id="each", tool_name="do", for_each="${{ [inputs.site, 'x', steps.first.result] }}", parameters={"what": "each ${{ item }}"}
    )
    plan = around(site(first, each))
    failed = await run(plan, cluster, store)
    assert recorded_items(plan, await store.run(failed.id), "verify.each") == ["北京", "x", "北京 done"]
    cluster.broken.clear()
    await aresolve_step(failed.id, "verify.each", "done", item=1, by="ana", store=store)
    ended = await aresume_run(failed.id, tools=cluster.tools, store=store, offline=True)
    assert (ended.status, cluster.done) == (PlanStatus.COMPLETED, ["北京", "each 北京", "each 北京 done"])


async def test_an_invalid_input_of_a_sub_plan_fails_its_step(cluster: Cluster, store: PlanStore) -> None:
    plan = around(site(inputs={"site": Input(enum=["上海"])}), do("after", "after", "verify"))
    ended = await run(plan, cluster, store)
    assert (ended.status, cluster.done) == (PlanStatus.FAILED, [])
    assert ended.step("verify").error == "`inputs.site`: the value `北京` is none of `上海`"
    assert [ended.step(name).status for name in ("verify.check", "verify.mark", "after")] == [StepStatus.SKIPPED] * 3


async def test_a_false_condition_skips_the_whole_sub_plan(cluster: Cluster, store: PlanStore) -> None:
    ended = await run(around(site(), do("after", "after", "verify"), when="${{ inputs.where == 'x' }}"), cluster, store)
    assert (ended.status, cluster.done) == (PlanStatus.COMPLETED, ["after"])
    assert {step.status for step in ended.steps[:3]} == {StepStatus.SKIPPED}
    assert ended.step("verify.mark").reason == "its condition is false: ${{ inputs.where == 'x' }}"


@pytest.mark.parametrize(("on_error", "done"), [("stop", ["first", "un北京"]), ("continue", ["first", "third", "other"])])
async def test_a_failure_follows_on_error_of_the_sub_plan_and_then_of_its_step(
    on_error: str, done: list[str], cluster: Cluster, store: PlanStore
) -> None:
    cluster.broken = {"bad"}
    options = ExecutionOptions(require_approval=False, continue_on_error=on_error == "continue")
    first = do("first", "first")
    if on_error == "stop":
        first.rollback = do("x", "${{ inputs.site }}", undo=True).rollback
    plan = around(site(first, do("second", "bad"), do("third", "third"), options=options), do("other", "other"), on_error=on_error)
    ended = await run(plan, cluster, store)
    assert (ended.status, ended.reason, cluster.done) == (PlanStatus.PARTIAL, RunReason.STEP_FAILED, done)
    assert ended.step("verify").error == "`verify.second` failed: ValueError: bad is broken"
    assert (ended.message or "").startswith("`verify` failed: `verify.second` failed: ValueError: bad is broken")
    if on_error == "stop":
        assert ended.step("verify.third").reason == "stopped because `verify.second` failed"


async def test_a_resume_keeps_the_completed_steps_of_a_sub_plan(cluster: Cluster, store: PlanStore) -> None:
    cluster.broken = {"mark check 北京 done"}
    plan = around(
        site(do("check", "check ${{ inputs.site }}"), do("mark", "mark ${{ steps.check.result }}")), do("after", "after", "verify")
    )
    failed = await run(plan, cluster, store)
    assert failed.status is PlanStatus.PARTIAL
    ended_at = failed.step("verify.check").completed_at
    cluster.broken.clear()
    ended = await aresume_run(failed.id, tools=cluster.tools, store=store, offline=True)
    assert ended.status is PlanStatus.COMPLETED
    assert cluster.done == ["check 北京", "mark check 北京 done", "after"]
    assert (ended.step("verify.check").carried, ended.step("verify").carried) == (True, False)
    assert ended.step("verify.check").completed_at == ended_at
    assert (await store.audit(ended.id)) != []


async def test_a_step_of_a_sub_plan_can_be_skipped(cluster: Cluster, store: PlanStore) -> None:
    cluster.broken = {"bad"}
    steps = (do("first", "first"), do("second", "bad", "first"), do("third", "third", "second"))
    failed = await run(around(site(*steps), do("after", "after", "verify")), cluster, store)
    asked = ResumeOptions(skipped={"verify.second": "done by hand"})
    ended = await execute_resume(failed.id, tools=cluster.tools, run_request=RunRequest(), store=store, offline=True, options=asked)
    assert (ended.status, cluster.done) == (PlanStatus.COMPLETED, ["first", "third", "after"])


async def test_a_rollback_undoes_the_steps_of_a_sub_plan_in_reverse_order(cluster: Cluster, store: PlanStore) -> None:
    cluster.broken = {"bad"}
    ended = await run(around(site(), do("last", "bad", "verify"), before=(do("before", "before", undo=True),)), cluster, store)
    assert ended.status is PlanStatus.PARTIAL
    assert cluster.done[3:] == ["unmark check 北京 done", "uncheck 北京", "unbefore"]
    assert "rolled back: verify.mark, verify.check, before" in (ended.message or "")
    assert ended.step("verify.check").rolled_back


async def test_an_ended_run_is_rolled_back_through_its_sub_plans(cluster: Cluster, store: PlanStore) -> None:
    cluster.broken = {"bad"}
    plan = around(site(), do("last", "bad", "verify", on_error="continue"), before=(do("before", "before"),))
    plan.steps[1].inputs = {"site": "${{ steps.before.result }}"}
    failed = await run(plan, cluster, store)
    assert cluster.done == ["before", "check before done", "mark check before done done"]
    await acancel_run(failed.id, reason="enough", rollback=True, tools=cluster.tools, store=store, offline=True)
    assert cluster.done[3:] == ["unmark check before done done", "uncheck before done"]


async def test_a_cancellation_ends_a_sub_plan(cluster: Cluster, store: PlanStore) -> None:
    cluster.hanging = asyncio.Event()
    hang = Step(id="hang", tool_name="hang", parameters={"what": "x"}, depends_on=["first"])
    running = asyncio.ensure_future(run(around(site(do("first", "first"), hang, do("third", "third", "hang"))), cluster, store))
    await cluster.hanging.wait()
    held = (await store.runs())[0]
    await acancel_run(held.id, reason="enough", store=store)
    ended = await running
    assert (ended.status, ended.step("verify").status, cluster.done) == (PlanStatus.CANCELLED, StepStatus.FAILED, ["first"])


async def test_an_unknown_outcome_in_a_sub_plan_is_resolved_by_its_step_id(cluster: Cluster, store: PlanStore) -> None:
    hang = Step(id="hang", tool_name="hang", parameters={"what": "x"}, timeout_ms=1)
    failed = await run(around(site(hang, do("after", "after", "hang"))), cluster, store)
    assert (failed.reason, failed.step("verify").outcome) == (RunReason.UNKNOWN, "unknown")
    assert "the outcome of `verify.hang` is unknown: no answer within " in (failed.step("verify").error or "")
    await aresolve_step(failed.id, "verify.hang", "done", by="ana", store=store)
    ended = await aresume_run(failed.id, tools=cluster.tools, store=store, offline=True)
    assert (ended.status, cluster.done) == (PlanStatus.COMPLETED, ["after"])


async def test_a_sub_plan_has_its_own_limit_of_parallel_steps(cluster: Cluster, store: PlanStore) -> None:
    looks = [Step(id=f"look_{number}", tool_name="look", parameters={"what": f"{number}"}) for number in range(4)]
    for limit in (1, 2):
        options = ExecutionOptions(require_approval=False, allow_parallel=True, max_parallel_steps=limit)
        plan = around(site(*looks, options=options))
        plan.options = ExecutionOptions(require_approval=False, allow_parallel=True, max_parallel_steps=4)
        cluster.most_busy = 0
        assert (await run(plan, cluster, store)).status is PlanStatus.COMPLETED
        assert cluster.most_busy == limit
    assert cluster.done[:4] == ["0", "1", "2", "3"]


async def test_a_changed_or_deleted_file_does_not_affect_a_run(cluster: Cluster, store: PlanStore) -> None:
    cluster.broken = {"mark check 北京 done"}
    plan = around(site())
    failed = await run(plan, cluster, store)
    plan.steps[0].pinned = site(do("other", "other"))
    stored = await store.get(failed.digest)
    assert [step.id for step in stored.all_steps] == ["verify", "verify.check", "verify.mark"]
    assert stored.sub_plans[0].outputs == {"marked": "${{ steps.mark.result }}"}


MOVE = """\
description: Move
steps:
  - id: verify
    plan: {}
    inputs: {{site: 北京}}
"""


async def test_a_stored_sub_plan_needs_a_version_or_a_digest(store: PlanStore) -> None:
    version = await store.save(site(description="检查站点"), author="ana")
    for source in ("store:verify-site@1", f"store:{version.digest}", f"store:{version.digest[:12]}"):
        plan = await aload_plan(MOVE.format(source), store=store)
        assert plan.sub_plans[0].description == "检查站点"
    kept = await store.save(plan, author="ana")
    assert (await store.get(kept.digest)).sub_plans == plan.sub_plans
    for source, message in {
        "store:verify-site": "`store:verify-site` names no version, so what it runs could change",
        "store:verify-site@7": "there is no version 7 of a plan `verify-site`",
        "store:0123456789abcdef": "no stored plan is called `0123456789abcdef`, and no digest begins with it",
    }.items():
        with pytest.raises(InvalidPlanError) as refused:
            await aload_plan(MOVE.format(source), store=store)
        (problem,) = refused.value.problems
        assert (problem.code, problem.at, problem.line) == ("bad-sub-plan", "steps[0].plan", 4)
        assert problem.message.startswith(message)


async def test_a_document_cannot_replace_a_named_sub_plan_with_its_own_copy(tmp_path: Path, store: PlanStore) -> None:
    await store.save(site(description="the approved one"), author="ana")
    (tmp_path / "verify-site.yaml").write_text(dump_plan(site(description="the approved one")), encoding="utf-8")
    forged = around(site(description="another one"))
    for name in ("store:verify-site@1", "verify-site.yaml"):
        forged.steps[0].plan = name
        (tmp_path / "move.yaml").write_text(dump_plan(forged), encoding="utf-8")
        plan = await aload_plan(tmp_path / "move.yaml", store=store)
        assert [sub_plan.description for sub_plan in plan.sub_plans] == ["the approved one"]
    forged.steps[0].plan = "store:of-another-machine@1"
    (tmp_path / "move.yaml").write_text(dump_plan(forged), encoding="utf-8")
    assert [sub_plan.description for sub_plan in (await aload_plan(tmp_path / "move.yaml", store=store)).sub_plans] == ["another one"]


PROGRAM = """
import asyncio, os, signal, sys
from pathlib import Path
from plan_adapter import PlanStore, ToolRegistry, tool
from plan_adapter.runs import arun_plan
from plan_adapter.store import load_plan

log = Path(sys.argv[1])

@tool(effect="idempotent_write")
def do(what: str) -> str:
    \"\"\"Do something.\"\"\"
    with log.open("a") as file:
        file.write(what + "\\n")
    if what.startswith("mark"):
        os.kill(os.getpid(), signal.SIGKILL)
    return what

asyncio.run(arun_plan(load_plan(Path(sys.argv[2])), tools=ToolRegistry([do]), store=PlanStore(sys.argv[3]), offline=True))
"""


def write_documents(folder: Path) -> None:
    """Write `site.yaml`, and `move.yaml`, which runs it."""
    plan = around(site(), do("after", "after ${{ steps.verify.result.marked }}"))
    plan.steps[0].pinned, plan.steps[0].plan = None, "site.yaml"
    (folder / "site.yaml").write_text(dump_plan(site()), encoding="utf-8")
    (folder / "move.yaml").write_text(dump_plan(plan), encoding="utf-8")


async def test_a_kill_in_the_middle_of_a_sub_plan_loses_and_repeats_nothing(tmp_path: Path) -> None:
    log, url = tmp_path / "log", f"sqlite:///{tmp_path / 'plans.db'}"
    write_documents(tmp_path)
    assert Program(PROGRAM, log, tmp_path / "move.yaml", url).wait() == -signal.SIGKILL
    (tmp_path / "site.yaml").unlink()  # the run has its own copy
    done: list[str] = []

    @tool(effect="idempotent_write")
    def do(what: str) -> str:
        """Do something."""
        done.append(what)
        return what

    async with PlanStore(url) as store:
        (killed,) = await store.runs()
        resumed = await aresume_run(killed.id, tools=ToolRegistry([do]), store=store, offline=True)
    assert (resumed.status, log.read_text(encoding="utf-8").splitlines()) == (PlanStatus.COMPLETED, ["check 北京", "mark check 北京"])
    assert done == ["mark check 北京", "after mark check 北京"]  # the killed call may be repeated: it is idempotent
    assert resumed.step("verify.check").carried


async def test_the_steps_of_a_sub_plan_are_task_runs_after_their_dependencies(
    cluster: Cluster, store: PlanStore, prefect_server: Server
) -> None:
    plan = around(site(), do("after", "${{ steps.verify.result.marked }}"), before=(do("before", "before"),))
    ended = await arun_plan(plan, tools=cluster.tools, store=store)
    assert ended.status is PlanStatus.COMPLETED
    by_name = await task_runs(UUID(ended.flow_run_id), ["before", "verify.check", "verify.mark", "verify", "after"])
    assert {task_run.state_name for task_run in by_name.values()} == {"Completed"}
    names = {task_run.id: name for name, task_run in by_name.items()}

    def upstream(name: str) -> set[str]:
        return {
            names[task_input.id] for task_input in by_name[name].task_inputs.get("wait_for", ()) if isinstance(task_input, TaskRunResult)
        }

    assert {name: upstream(name) for name in by_name} == {
        "before": set(),
        "verify.check": {"before"},
        "verify.mark": {"verify.check"},
        "verify": {"verify.mark"},
        "after": {"verify"},
    }


async def test_the_outputs_of_a_sub_plan_can_be_erased(cluster: Cluster, store: PlanStore) -> None:
    ended = await run(around(site()), cluster, store)
    fields = ["steps.verify.result.marked", "steps.verify.check.parameters.what"]
    await store.retention.erase(ended.id, fields, files={}, stage=lambda _files: None, by="bo")
    erased = await store.run(ended.id)
    assert erased.step("verify").result == {"marked": "[erased] [erased] [erased] [erased] [erased]"}
    assert "check 北京" not in [attempt.parameters["what"] for attempt in await store.attempts(ended.id)]
    assert (await store.verify(ended.id)).ok


@pytest.mark.parametrize("on", ["web-2,web-1", "${{ steps.choose.result }}"])
async def test_a_sub_plan_works_on_its_own_hosts(on: str, cluster: Cluster, store: PlanStore) -> None:
    each = Step(id="each", tool_name="do", for_each="${{ hosts('web') }}", parameters={"what": "${{ item.name }} of ${{ inputs.site }}"})
    inner = site(each, hosts={"web": HostGroup(hosts={f"web-{number}": {} for number in (1, 2, 3)})})
    outer = around(inner, before=(do("choose", "web-2,web-1"),))
    outer.steps[1].inputs["on"] = on
    if "steps" in on:  # the result of `do` ends in ` done`
        outer.steps[1].inputs["on"] = "${{ steps.choose.result.replace(' done', '') }}"
    ended = await run(outer, cluster, store)
    assert (ended.status, sorted(cluster.done)) == (PlanStatus.COMPLETED, ["web-1 of 北京", "web-2 of 北京", "web-2,web-1"])
    assert recorded_items(outer, await store.run(ended.id), "verify.each") == ["web-1", "web-2"]


async def test_a_sub_plan_without_one_of_its_hosts_fails_before_it_calls_anything(cluster: Cluster, store: PlanStore) -> None:
    each = Step(id="each", tool_name="do", for_each="${{ hosts('web') }}", parameters={"what": "${{ item.name }}"})
    outer = around(site(each, hosts={"web": HostGroup(hosts={"web-1": {}})}), before=(do("choose", "web-9"),))
    outer.steps[1].inputs["on"] = "${{ steps.choose.result }}"
    ended = await run(outer, cluster, store)
    assert (ended.status, cluster.done) == (PlanStatus.PARTIAL, ["web-9"])
    assert "no host or group is called `web-9 done`" in (ended.step("verify").error or "")


async def test_a_dry_run_does_not_know_on_which_hosts_a_result_lets_it_work(cluster: Cluster) -> None:
    each = Step(id="each", tool_name="do", for_each="${{ hosts('web') }}", parameters={"what": "${{ item.name }}"})
    outer = around(site(each, hosts={"web": HostGroup(hosts={"web-1": {}})}), before=(do("choose", "web-1"),))
    outer.steps[1].inputs["on"] = "${{ steps.choose.result }}"
    found = await adry_run_plan(outer, tools=cluster.tools)
    assert (found.problems, [call.step_id for call in found.calls]) == ((), ["choose", "verify.each"])
