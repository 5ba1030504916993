"""Tests of the record of a resumed run: what it shows for carried steps."""

from plan_adapter import ExecutionPlan, PlanRun, PlanStore, ToolRegistry
from plan_adapter.model.hooks import Event
from plan_adapter.runner import aresume_run, arun_plan
from plan_adapter.runs import Hooks
from plan_adapter.runs.resume import execute_resume
from plan_adapter.runs.run_session import RunRequest
from plan_adapter.store import PlanStatus, StepRun
from plan_adapter.tools.tool import tool


class Once:
    """A tool whose first call fails for each value of `fails`."""

    def __init__(self) -> None:
        self.failed = set[str]()

    @property
    def tools(self) -> ToolRegistry:
        @tool(effect="read")
        async def once(value: object = None, fails: str = "") -> dict[str, object]:
            """Return `value`; with `fails`, only from the second call on."""
            if fails and fails not in self.failed:
                self.failed.add(fails)
                raise ValueError("not yet")
            return {"value": value}

        return ToolRegistry([once])


def a_plan() -> ExecutionPlan:
    plan = ExecutionPlan(
        name="abends", description="Carry", outputs={"all": "${{ steps.each.result }}", "first": "${{ steps.first.result.value }}"}
    )
    plan.options.require_approval = False
    plan.add_step("once", "First", {"value": "一"}, id="first")
    plan.add_step("once", "Each", {"value": "${{ item }}"}, id="each", for_each="${{ [1, 2] }}", depends_on=["first"])
    plan.add_step("once", "Aside", {"value": "aside"}, id="aside")
    plan.add_step("once", "Then", {"value": "${{ steps.first.result.value }}", "fails": "then"}, id="then", depends_on=["each"])
    plan.add_step("once", "Last", {"value": "${{ steps.then.result.value }}"}, id="last")
    return plan


async def half_done(store: PlanStore) -> tuple[PlanRun, Once]:
    once = Once()
    run = await arun_plan(a_plan(), tools=once.tools, store=store, offline=True)
    assert (run.status, run.step("then").error) == (PlanStatus.PARTIAL, "ValueError: not yet")
    return run, once


async def test_the_returned_run_equals_the_stored_run(store: PlanStore) -> None:
    run, once = await half_done(store)
    again = await aresume_run(run.id, tools=once.tools, store=store, offline=True)
    assert again.status is PlanStatus.COMPLETED
    assert [step.id for step in again.steps if step.carried] == ["first", "each", "aside"]
    assert again.steps == (await store.run(run.id)).steps
    for before, after in zip(run.steps[:3], again.steps[:3], strict=True):
        assert (before.result, before.started_at, before.completed_at, before.duration_ms) == (
            after.result, after.started_at, after.completed_at, after.duration_ms,
        )  # fmt: skip
    assert again.outputs == {"all": [{"value": 1}, {"value": 2}], "first": "一"}
    assert again.step("last").result == {"value": "一"}


async def test_listeners_get_carried_steps_with_their_complete_record(store: PlanStore) -> None:
    run, once = await half_done(store)
    completed = dict[str, tuple[object, bool, bool]]()

    def listen(event: Event) -> None:
        if event.kind == "step_completed" and event.step is not None:
            completed[event.step.id] = (event.step.result, event.step.started_at is not None, event.step.completed_at is not None)

    await execute_resume(run.id, tools=once.tools, run_request=RunRequest(listener=listen), store=store, offline=True)
    assert list(completed) == ["first", "each", "aside", "then", "last"]
    assert completed["each"] == ([{"value": 1}, {"value": 2}], True, True)
    assert completed["first"] == ({"value": "一"}, True, True)


async def test_hooks_see_the_current_status_of_every_step(store: PlanStore) -> None:
    run, once = await half_done(store)
    seen = list[tuple[str, list[tuple[str, str, bool]]]]()

    def on_step_start(run: PlanRun, step: StepRun) -> None:
        assert run.step(step.id) == step
        seen.append((step.id, [(step.id, step.status.value, step.carried) for step in run.steps]))

    await aresume_run(run.id, tools=once.tools, store=store, offline=True, hooks=Hooks(on_step_start=on_step_start))
    carried = [("first", "completed", True), ("each", "completed", True), ("aside", "completed", True)]
    assert seen == [
        ("then", [*carried, ("then", "running", False), ("last", "pending", False)]),
        ("last", [*carried, ("then", "completed", False), ("last", "running", False)]),
    ]
