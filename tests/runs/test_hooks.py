"""Tests of hooks over the starts of a run: each end is reported once, and a run that never started reports its end."""

import inspect
import re
from pathlib import Path
from typing import Any, get_args, get_type_hints

import pytest

import plan_adapter
from plan_adapter import ExecutionPlan, PlanRun, PlanStore
from plan_adapter.engine.connection import Server
from plan_adapter.gates import CallbackApprover
from plan_adapter.model.plan import Step
from plan_adapter.runs import Hooks, acancel_run, aresume_run, arun_plan
from tests.runs.cluster import Cluster, act, rolling


def recording(events: list[str]) -> Hooks:
    return Hooks(
        on_step_start=lambda _, step: events.append(f"start {step.id}"),
        on_step_complete=lambda _, step: events.append(f"complete {step.id}"),
        on_step_failed=lambda _, step, error: events.append(f"failed {step.id}: {error}"),
        on_plan_complete=lambda run: events.append(f"end {run.status} {run.reason}"),
    )


def three_steps(**options: Any) -> ExecutionPlan:
    plan = ExecutionPlan(description="Three steps")
    for name, before in (("one", []), ("two", ["one"]), ("three", ["two"])):
        plan.add_step("do", name, {"what": name}, id=name, depends_on=before)
    plan.options.require_approval = False
    for name, value in options.items():
        setattr(plan.options, name, value)
    return plan


async def test_a_resume_reports_only_what_it_ran(cluster: Cluster, store: PlanStore) -> None:
    cluster.broken.add("two")
    events = list[str]()
    failed = await arun_plan(three_steps(), tools=cluster.tools, store=store, offline=True, hooks=recording(events))
    first = ["start one", "complete one", "start two", "failed two: ValueError: two is broken", "end partial step_failed"]
    assert events == first
    cluster.broken.clear()
    events.clear()
    await aresume_run(failed.id, tools=cluster.tools, store=store, offline=True, hooks=recording(events))
    assert events == ["start two", "complete two", "start three", "complete three", "end completed None"]


async def test_carried_groups_and_sub_plans_are_not_reported_again(cluster: Cluster, store: PlanStore) -> None:
    cluster.broken.add("after")
    inner = three_steps()
    plan = rolling(act("drain"), items="['a', 'b']")
    plan.steps.append(Step(id="inner", plan="store:inner@1", pinned=inner))
    plan.steps.append(Step(id="after", tool_name="do", parameters={"what": "after"}, depends_on=["nodes", "inner"]))
    failed = await arun_plan(plan, tools=cluster.tools, store=store, offline=True)
    cluster.broken.clear()
    events = list[str]()
    await aresume_run(failed.id, tools=cluster.tools, store=store, offline=True, hooks=recording(events))
    assert events == ["start after", "complete after", "end completed None"]


async def test_steps_and_groups_without_items_are_carried_and_not_reported_again(cluster: Cluster, store: PlanStore) -> None:
    plan = rolling(act("drain"), act("check", "drain"), items="[].filter(x, x > 5)")
    plan.steps.append(Step(id="each", tool_name="do", for_each="${{ [] }}", parameters={"what": "each"}))
    plan.steps.append(Step(id="between", tool_name="do", for_each="${{ steps.last.result == null ? [] : [] }}", parameters={"what": "no"}))
    plan.steps.append(Step(id="last", tool_name="do", parameters={"what": "last"}))
    plan.steps.append(Step(id="after", tool_name="do", parameters={"what": "after"}, depends_on=["nodes", "each", "between"]))
    cluster.broken.add("after")
    failed = await arun_plan(plan, tools=cluster.tools, store=store, offline=True)
    cluster.broken.clear()
    events = list[str]()
    resumed = await aresume_run(failed.id, tools=cluster.tools, store=store, offline=True, hooks=recording(events))
    assert events == ["start after", "complete after", "end completed None"]
    assert [step.id for step in resumed.steps if step.carried] == ["nodes", "drain", "check", "each", "between", "last"]
    assert resumed.step("each").duration_ms == failed.step("each").duration_ms


async def test_a_group_that_continues_is_reported_when_it_completes(cluster: Cluster, store: PlanStore) -> None:
    cluster.broken.add("drain b")
    failed = await arun_plan(rolling(act("drain"), items="['a', 'b']"), tools=cluster.tools, store=store, offline=True)
    cluster.broken.clear()
    events = list[str]()
    await aresume_run(failed.id, tools=cluster.tools, store=store, offline=True, hooks=recording(events))
    assert events == ["start drain", "complete drain", "complete nodes", "end completed None"]


@pytest.mark.parametrize("offline", [True, False])
async def test_a_rejected_run_reports_its_end(cluster: Cluster, store: PlanStore, prefect_server: Server, *, offline: bool) -> None:
    events = list[str]()
    approver, plan = CallbackApprover(lambda _: False, by="ana"), three_steps(require_approval=True)
    run = await arun_plan(plan, tools=cluster.tools, store=store, offline=offline, approver=approver, hooks=recording(events))
    assert (events, run.status.value) == (["end cancelled rejected"], "cancelled")


async def test_a_run_that_is_rejected_at_the_gate_of_a_step_reports_its_end_once(cluster: Cluster, store: PlanStore) -> None:
    events = list[str]()
    plan = three_steps()
    plan.step("two").requires_approval = True
    approver = CallbackApprover(lambda _: False, by="ana")
    await arun_plan(plan, tools=cluster.tools, store=store, offline=True, approver=approver, hooks=recording(events))
    assert events == ["start one", "complete one", "end cancelled rejected"]


async def test_a_run_that_is_cancelled_at_its_gate_reports_its_end(cluster: Cluster, store: PlanStore) -> None:
    events = list[str]()

    async def cancel(_: object) -> bool:
        await acancel_run((await store.runs())[0].id, reason="not today", store=store)
        return True

    plan = three_steps(require_approval=True)
    run: PlanRun = await arun_plan(
        plan, tools=cluster.tools, store=store, offline=True, approver=CallbackApprover(cancel, by="ana"), hooks=recording(events)
    )
    assert (run.status.value, [event for event in events if event.startswith("end")]) == ("cancelled", ["end cancelled cancelled"])


def test_the_guide_lists_every_hook_with_its_signature() -> None:
    text = (Path(plan_adapter.__file__).parent / "guide/embedding.md").read_text(encoding="utf-8")
    rows = dict(re.findall(r"^\| `(on_\w+)` \| `\((.*?)\)` \|", text, re.MULTILINE))
    hints = get_type_hints(Hooks)
    assert list(rows) == list(inspect.signature(Hooks).parameters)
    for name, arguments in rows.items():
        declared = get_args(get_args(hints[name])[0])[0]
        types = [argument.partition(": ")[2].replace("\\|", "|") for argument in arguments.split(", ")]
        assert types == [getattr(kind, "__name__", None) or str(kind).replace("plan_adapter.model.record.", "") for kind in declared]
