"""Tests of rollbacks: what they record, what a second one repeats, and what their report says."""

from typing import Any

import pytest

from plan_adapter.execution.history import RunHistory
from plan_adapter.execution.run_status import rolls_back
from plan_adapter.model.hooks import Hooks
from plan_adapter.model.plan import Rollback as RollbackCall
from plan_adapter.model.status import Outcome, RunReason, StepStatus
from tests.execution.support import Execution, plan_of
from tests.execution.undoing import World, rollback_of, run_and_undo, undoable


async def test_each_rollback_has_its_own_intent_receipt_key_and_events() -> None:
    world = World()
    execution, _ = await run_and_undo(undoable({"a": [], "broken": ["a"]}), world)
    attempt = execution.recorder.attempts[-1]
    assert (attempt.kind, attempt.step_id, attempt.item, attempt.number, attempt.tool_name, attempt.effect) == (
        "rollback",
        "a",
        None,
        1,
        "undo",
        "write",
    )
    assert attempt.parameters == {"name": "a"}
    receipt = execution.recorder.receipts[-1]
    assert (receipt.attempt_id, receipt.outcome, receipt.result) == (attempt.id, Outcome.SUCCEEDED, "a is gone")
    assert world.keys["rollback a"] == attempt.idempotency_key != execution.recorder.attempts[0].idempotency_key
    assert execution.kinds("rollback a") == ["step_started", "step_completed"]
    assert (execution.run.step("a").attempts, execution.run.step("a").status) == (1, StepStatus.COMPLETED)


async def test_each_succeeded_item_of_a_loop_is_rolled_back_with_its_own_result() -> None:
    world = World()
    plan = plan_of({})
    plan.add_step(
        "work", "Do all", {"name": "${{ item }}"}, id="all", for_each="${{ ['一', '二', 'broken', '三'] }}", on_error="continue",
        rollback=RollbackCall(tool_name="undo", parameters={"name": "${{ result.id + '/' + item }}"}),
    )  # fmt: skip
    execution, rollback = await run_and_undo(plan, world)
    assert world.undone == ["三-1/三", "二-1/二", "一-1/一"]
    assert [(attempt.kind, attempt.step_id, attempt.item) for attempt in execution.recorder.attempts[4:]] == [
        ("rollback", "all", 3), ("rollback", "all", 1), ("rollback", "all", 0),
    ]  # fmt: skip
    assert not execution.run.step("all").rolled_back  # one of its items failed, possibly halfway
    assert rollback.report().words == "rolled back: 一, 二, 三; not rolled back: broken (failed, check by hand)"


async def test_items_of_a_loop_that_could_not_be_rolled_back_are_named() -> None:
    world = World(failing=("二",))
    plan = undoable({})
    plan.add_step(
        "work", "Do all", {"name": "${{ item }}"}, id="all", for_each="${{ ['一', '二', '三'] }}",
        rollback=RollbackCall(tool_name="undo", parameters={"name": "${{ item }}"}),
    )  # fmt: skip
    execution, rollback = await run_and_undo(plan, world)
    assert world.undone == ["三", "二"]
    assert not execution.run.step("all").rolled_back
    assert rollback.report().words == (
        "rolled back: 三; not rolled back: 一 (skipped, because the rollback of `all` failed), 二 (its rollback failed: "
        "ValueError: 二 is stuck: 卡住了)"
    )
    assert execution.kinds("rollback all") == ["step_started", "step_failed"]


async def test_hooks_can_distinguish_a_rollback_from_a_step() -> None:
    events: list[tuple[str, str, str | None]] = []
    hooks = Hooks(
        on_step_start=lambda _, step: events.append(("start", step.id, step.undoes)),
        on_step_complete=lambda _, step: events.append(("complete", step.id, step.undoes)),
        on_step_failed=lambda _, step, error: events.append(("failed", step.id, step.undoes)),
    )
    execution, _ = await run_and_undo(undoable({"a": [], "b": ["a"], "broken": ["b"]}), World(failing=("a",)), hooks=hooks)
    assert [entry for entry in events if entry[2] is None] == [
        ("start", "a", None), ("complete", "a", None), ("start", "b", None), ("complete", "b", None),
        ("start", "broken", None), ("failed", "broken", None),
    ]  # fmt: skip
    assert [entry for entry in events if entry[2] is not None] == [
        ("start", "rollback b", "b"), ("complete", "rollback b", "b"), ("start", "rollback a", "a"), ("failed", "rollback a", "a"),
    ]  # fmt: skip
    assert all(step.undoes is None for step in execution.run.steps)


async def test_a_rollback_is_tried_once_even_if_its_step_has_retries() -> None:
    world = World(failing=("a",))
    plan = undoable({"a": [], "broken": ["a"]})
    plan.step("a").max_retries = 3
    await run_and_undo(plan, world)
    assert world.undone == ["a"]


async def test_a_rollback_that_times_out_has_an_unknown_outcome_and_waits_for_a_person() -> None:
    world = World(held="b")
    plan = undoable({"a": [], "b": ["a"], "broken": ["b"]})
    plan.step("b").timeout_ms = 30
    execution, rollback = await run_and_undo(plan, world)
    run_id = execution.run.id
    commands = f"`plan resolve {run_id} b done|again|abort --rollback`, then `plan rollback {run_id}`"
    assert rollback.report().words == (
        f"rolled back: nothing; not rolled back: b (the outcome of its rollback is unknown: {commands}), "
        "a (`b` must be rolled back first), broken (failed, check by hand)"
    )
    again = rollback_of(execution)
    await again.undo()
    assert world.undone == ["b"]  # it is not called again
    assert again.report().words == rollback.report().words


async def test_a_second_rollback_skips_what_was_rolled_back_and_retries_what_failed() -> None:
    world = World(failing=("b",))
    execution, _ = await run_and_undo(undoable({"a": [], "b": ["a"], "c": ["b"], "broken": ["c"]}), world)
    assert world.undone == ["c", "b"]
    world.undone.clear()
    repaired = World()
    execution.scope.approved = (await _fresh(execution, repaired)).scope.approved
    rollback = rollback_of(execution)
    assert rollback.left == [("a", None), ("b", None)]
    await rollback.undo()
    assert (world.undone, repaired.undone) == ([], ["b", "a"])
    assert [attempt.number for attempt in execution.recorder.attempts if (attempt.kind, attempt.step_id) == ("rollback", "b")] == [1, 2]
    assert rollback.report().words == "rolled back: c, b, a; not rolled back: broken (failed, check by hand)"
    assert all(execution.run.step(name).rolled_back for name in "abc")


async def _fresh(execution: Execution, world: World) -> Execution:
    fresh = Execution(execution.plan, world.tools)
    await fresh.go()
    return fresh


async def test_nothing_is_rolled_back_while_the_outcome_of_a_step_is_unknown() -> None:
    world = World()
    plan = undoable({"a": [], "slow": ["a"]})
    plan.step("slow").timeout_ms = 20
    execution, rollback = await run_and_undo(plan, world)
    assert (execution.run.reason, world.undone) == (RunReason.UNKNOWN, [])
    assert rollback.report().words == (
        f"rolled back: nothing, because the outcome of `slow` is unknown: `plan resolve {execution.run.id} slow done|again|abort`, "
        f"then `plan rollback {execution.run.id}`"
    )


async def test_carried_steps_are_rolled_back_with_their_earlier_result() -> None:
    world = World()
    plan = undoable({"a": [], "broken": ["a"]})
    first = Execution(plan, world.tools)
    await first.go()
    history = RunHistory.of(first.recorder.attempts, first.recorder.receipts)
    execution, rollback = await run_and_undo(plan, world, history=history, recorder=first.recorder)
    assert execution.run.step("a").carried
    assert (world.undone, rollback.report().words) == (["a"], "rolled back: a; not rolled back: broken (failed, check by hand)")


@pytest.mark.parametrize(
    ("policy", "of_step", "expected"),
    [("stop", None, True), ("continue", None, False), ("continue", "stop", True), ("stop", "continue", False)],
)
async def test_only_a_failure_that_ends_the_run_starts_a_rollback(policy: str, of_step: Any, expected: bool) -> None:
    plan = undoable({"a": [], "broken": ["a"]}, stop_on_error=policy == "stop")
    plan.step("broken").on_error = of_step
    run = await Execution(plan, World().tools).go()
    assert (run.reason, rolls_back(run, plan)) == (RunReason.STEP_FAILED, expected)


async def test_a_rollback_with_uncomputable_parameters_fails_without_a_call() -> None:
    world = World()
    plan = undoable({"a": [], "broken": ["a"]})
    plan.step("a").rollback = RollbackCall(tool_name="undo", parameters={"name": "${{ result.gone }}"})
    execution, rollback = await run_and_undo(plan, world)
    assert world.undone == []
    assert rollback.report().words.startswith("rolled back: nothing; not rolled back: a (its rollback failed: `result.gone`: ")
    assert execution.kinds("rollback a") == ["step_failed"]
