"""Tests of `for_each` items: how they are named, and what a run reports of each."""

from typing import Any

import pytest

from plan_adapter.model.options import Input
from plan_adapter.model.plan import ExecutionPlan, Rollback
from plan_adapter.model.status import StepStatus
from plan_adapter.tools.tool import ToolContext, tool
from tests.execution.support import Execution
from tests.execution.undoing import World, rollback_of
from tests.validation.builders import found, plan, step


def loop(values: list[Any], **fields: Any) -> ExecutionPlan:
    """Return a plan that calls `work` for each of `values`."""
    looped = ExecutionPlan(description="Do all", inputs={"nodes": Input(type="array", default=values)})
    looped.options.require_approval = False
    looped.add_step("work", "Do it", {"value": "${{ item }}"}, id="each", for_each="${{ inputs.nodes }}", **fields)
    return looped


@tool(effect="read")
def work(value: Any) -> None:
    """Fail, so that every item is named."""
    raise ValueError("broken")


async def labels(values: list[Any], **fields: Any) -> list[str | None]:
    execution = Execution(loop(values, on_error="continue", **fields), [work])
    await execution.go()
    return [attempt.label for attempt in execution.recorder.attempts]


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        (["web-1", "节点 2"], ["web-1", "节点 2"]),
        ([8080, 2.5], ["8080", "2.5"]),
        ([{"name": "web-1", "id": "x"}, {"id": 7}, {"name": ["no"], "id": "y"}], ["web-1", "7", "y"]),
        ([{"host": "web-1"}, ["a"], None, True], [None, None, None, None]),
        (["", "  ", "a\nb", "x" * 41], [None, None, None, None]),
        (["x" * 40], ["x" * 40]),
        (["a", "a", "a (2)", "a"], ["a", "a (2)", "a (2) (2)", "a (3)"]),
        ([2, {"no": "name"}], ["2", "2 (2)"]),
        ([1, 2], [None, None]),
    ],
    ids=str,
)
async def test_an_item_is_named_by_its_value_name_or_id_or_else_by_its_number(values: list[Any], expected: list[str | None]) -> None:
    assert await labels(values) == expected


async def test_a_label_of_the_plan_names_the_items() -> None:
    nodes = [{"host": "web-1", "zone": "eu"}, {"host": "web-2", "zone": 3}]
    assert await labels(nodes, label="${{ item.zone }}/${{ item.host }}") == ["eu/web-1", "3/web-2"]
    assert await labels(nodes, label="${{ item.host }}") == ["web-1", "web-2"]


async def test_an_item_whose_label_is_not_text_is_named_by_its_number_and_still_called() -> None:
    assert await labels([{"host": "web-1"}, {}, {"host": ["x"]}, {"host": ""}], label="${{ item.host }}") == ["web-1", None, None, None]


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"label": "${{ item }}"}, ("bad-label", "steps[0].label")),
        ({"label": " ", "for_each": "${{ [1] }}"}, ("bad-label", "steps[0].label")),
        ({"label": "${{ secrets.token }}", "for_each": "${{ [1] }}"}, ("misplaced-secret", "steps[0].label")),
        ({"label": "${{ [item] }}", "for_each": "${{ [1] }}"}, ("expression-type", "steps[0].label")),
        ({"label": "${{ item == 1 }}", "for_each": "${{ [1] }}"}, ("expression-type", "steps[0].label")),
        ({"label": "${{ item", "for_each": "${{ [1] }}"}, ("expression-syntax", "steps[0].label")),
        ({"label": "${{ result }}", "for_each": "${{ [1] }}"}, ("unknown-reference", "steps[0].label")),
        ({"label": "${{ steps.gone.result }}", "for_each": "${{ [1] }}"}, ("unknown-reference", "steps[0].label")),
        ({"rollback_failed": True}, ("bad-rollback", "steps[0].rollback_failed")),
    ],
    ids=str,
)
def test_an_invalid_label_or_rollback_failed_is_refused(fields: dict[str, Any], problem: tuple[str, str]) -> None:
    assert found(plan(step("a", **fields))) == [problem]


def test_a_label_may_use_an_earlier_step_which_becomes_a_dependency() -> None:
    sound = plan(step("a"), step("b", for_each="${{ [1, 2] }}", label="${{ steps.a.result }}-${{ item }}"))
    assert found(sound) == []


async def test_messages_events_and_logs_name_the_item() -> None:
    @tool(effect="read")
    def work(value: Any, context: ToolContext) -> None:
        """Log a line, and fail."""
        context.logger.info("looking at %s", value)
        raise ValueError("broken")

    execution = Execution(loop(["web-1", "web-2"], max_retries=1, on_error="continue"), [work])
    run = await execution.go()
    assert run.step("each").error == "item web-1: ValueError: broken; item web-2: ValueError: broken"
    emitted = {(event.kind, event.name) for event in execution.events if event.kind in ("log", "attempt_failed")}
    assert emitted == {(kind, f"each[{name}]") for kind in ("log", "attempt_failed") for name in ("web-1", "web-2")}


def nodes_plan(*names: str, rollback_failed: bool = False, **options: Any) -> ExecutionPlan:
    """Return a plan that restarts each node; nodes called `broken…` fail."""
    nodes = ExecutionPlan(description="Restart all")
    nodes.options.require_approval = False
    for name, value in options.items():
        setattr(nodes.options, name, value)
    values = "[" + ", ".join(f"'{name}'" for name in names) + "]"
    nodes.add_step(
        "work", "Restart", {"name": "${{ item }}"}, id="restart", for_each=f"${{{{ {values} }}}}",
        rollback=Rollback(tool_name="undo", parameters={"name": "${{ {'item': item, 'result': result} }}"}),
        rollback_failed=rollback_failed,
    )  # fmt: skip
    return nodes


async def test_rolled_back_items_are_named_by_their_labels() -> None:
    world = World()
    execution = Execution(nodes_plan("web-1", "broken-2", "web-3"), world.tools)
    run = await execution.go()
    rollback = rollback_of(execution)
    await rollback.undo()
    assert rollback.report().words == "rolled back: web-1; not rolled back: broken-2 (failed, check by hand); not started: web-3"
    assert [undone["item"] for undone in world.undone] == ["web-1"]
    assert (run.step("restart").status, run.step("restart").rolled_back) == (StepStatus.FAILED, False)
    assert [attempt.label for attempt in execution.recorder.attempts] == ["web-1", "broken-2", "web-1"]


async def test_rollback_failed_also_rolls_back_the_failed_item_with_a_null_result() -> None:
    world = World()
    execution = Execution(nodes_plan("web-1", "broken-2", "web-3", rollback_failed=True), world.tools)
    run = await execution.go()
    rollback = rollback_of(execution)
    await rollback.undo()
    assert rollback.report().words == "rolled back: web-1, broken-2; not started: web-3"
    assert world.undone == [
        {"item": "broken-2", "result": None},
        {"item": "web-1", "result": {"name": "web-1", "id": "web-1-1"}},
    ]
    assert run.step("restart").rolled_back


async def test_rollback_failed_also_rolls_back_the_failed_step() -> None:
    world = World()
    plan = ExecutionPlan(description="Restart")
    plan.options.require_approval = False
    undo = Rollback(tool_name="undo", parameters={"name": "drain"})
    plan.add_step("work", "Drain", {"name": "web-1"}, id="drain", rollback=undo)
    undo = Rollback(tool_name="undo", parameters={"name": "restart"})
    plan.add_step("work", "Restart", {"name": "broken"}, id="restart", depends_on=["drain"], rollback=undo, rollback_failed=True)
    execution = Execution(plan, world.tools)
    run = await execution.go()
    rollback = rollback_of(execution)
    await rollback.undo()
    assert (world.undone, rollback.report().words) == (["restart", "drain"], "rolled back: restart, drain")
    assert [step.rolled_back for step in run.steps] == [True, True]


async def test_items_are_named_with_their_step_if_several_steps_are_rolled_back() -> None:
    world = World()
    plan = nodes_plan("web-1", "broken-2", "web-3")
    drain = Rollback(tool_name="undo", parameters={"name": "${{ result.name }}"})
    plan.add_step("work", "Drain", {"name": "pool"}, id="drain", rollback=drain)
    plan.steps.reverse()
    plan.step("restart").depends_on = ["drain"]
    execution = Execution(plan, world.tools)
    await execution.go()
    rollback = rollback_of(execution)
    await rollback.undo()
    assert rollback.report().words == (
        "rolled back: restart[web-1], drain; not rolled back: restart[broken-2] (failed, check by hand); not started: restart[web-3]"
    )


async def test_an_unknown_outcome_is_never_rolled_back_automatically() -> None:
    world = World()
    plan = nodes_plan("web-1", "slow", "web-3", rollback_failed=True)
    plan.step("restart").timeout_ms = 100
    execution = Execution(plan, world.tools)
    await execution.go()
    rollback = rollback_of(execution)
    await rollback.undo()
    assert world.undone == []
    run_id = execution.run.id
    assert rollback.report().words == (
        f"rolled back: nothing, because the outcome of `restart[slow]` is unknown: `plan resolve {run_id} restart done|again|abort "
        f"--item slow`, then `plan rollback {run_id}`"
    )


async def test_only_the_first_of_many_items_are_named() -> None:
    world = World()
    names = [f"n{number}" for number in range(30)]
    execution = Execution(nodes_plan(*names, "broken", "last"), world.tools)
    await execution.go()
    rollback = rollback_of(execution)
    await rollback.undo()
    shown = ", ".join(names[:20])
    assert rollback.report().words == (
        f"rolled back: {shown} and 10 more; not rolled back: broken (failed, check by hand); not started: last"
    )
