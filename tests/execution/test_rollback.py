"""How a run is undone: in which order, with what, what holds what up, and what is said about where it stands."""

import asyncio
import random
from collections import defaultdict
from typing import Any

import pytest

from plan_adapter.errors import UnknownOutcomeError
from plan_adapter.execution.direct import DirectStepRunner
from plan_adapter.execution.history import RunHistory
from plan_adapter.execution.rollback import Rollback
from plan_adapter.execution.status import rolls_back
from plan_adapter.hooks import Hooks
from plan_adapter.plan import ExecutionPlan, StepStatus
from plan_adapter.plan import Rollback as RollbackCall
from plan_adapter.record import Outcome, RunReason
from plan_adapter.tools.tool import ToolContext, tool
from tests.execution.support import Execution, ancestors, plan_of


class World:
    """What was done and is not undone, and every undoing in its order; what is named `failing` or `unknown` cannot be undone."""

    def __init__(self, *, failing: tuple[str, ...] = (), unknown: tuple[str, ...] = (), held: str = "") -> None:
        self.done: list[str] = []
        self.undone: list[Any] = []
        self.keys: dict[str, str] = {}
        self.held = asyncio.Event()

        @tool(effect="write")
        async def work(name: str) -> dict[str, str]:
            """Do what is broken or not."""
            if name.startswith("broken"):
                raise ValueError(f"{name} is broken")
            if name == "slow":
                await asyncio.sleep(60)
            self.done.append(name)
            return {"name": name, "id": f"{name}-1"}

        @tool(effect="write")
        async def undo(name: Any, context: ToolContext) -> str:
            """Undo what has this name."""
            self.undone.append(name)
            self.keys[f"{context.kind} {context.step_id}"] = context.idempotency_key
            self.held.set()
            if name in failing:
                raise ValueError(f"{name} is stuck: 卡住了")
            if name in unknown:
                raise UnknownOutcomeError("the connection was lost")
            if name == held:
                await asyncio.sleep(60)
            return f"{name} is gone"

        self.tools = [work, undo]


def undoable(edges: dict[str, list[str]], *, without: tuple[str, ...] = (), **options: Any) -> ExecutionPlan:
    """Return a plan of `edges`, each of whose steps but those `without` is undone by its own name."""
    plan = plan_of(edges, **options)
    for step in plan.steps:
        if step.id not in without:
            step.rollback = RollbackCall(tool_name="undo", parameters={"name": "${{ result.name }}"})
    return plan


def rollback_of(execution: Execution) -> Rollback:
    """Return what undoes the execution as it is recorded now."""
    return Rollback(execution.scope, RunHistory.of(execution.recorder.attempts, execution.recorder.receipts), DirectStepRunner())


async def run_and_undo(plan: ExecutionPlan, world: World, **fields: Any) -> tuple[Execution, Rollback]:
    execution = Execution(plan, world.tools, **fields)
    await execution.go()
    rollback = rollback_of(execution)
    await rollback.undo()
    return execution, rollback


DIAMOND = {"a": [], "b": ["a"], "c": ["a"], "d": ["b", "c"], "broken": ["d"]}


@pytest.mark.parametrize("allow_parallel", [False, True])
async def test_what_was_done_is_undone_in_the_reverse_order_of_dependencies(allow_parallel: bool) -> None:
    world = World()
    execution, rollback = await run_and_undo(undoable(DIAMOND, allow_parallel=allow_parallel), world)
    assert (world.done, world.undone) == (["a", "b", "c", "d"], ["d", "c", "b", "a"])
    assert {step.id: step.rolled_back for step in execution.run.steps} == {"a": True, "b": True, "c": True, "d": True, "broken": False}
    assert rollback.report().words == "rolled back: d, c, b, a; not rolled back: broken (failed, check by hand)"


async def test_each_rollback_has_an_intent_a_receipt_a_key_and_events_of_its_own() -> None:
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


async def test_of_a_loop_each_item_that_succeeded_is_undone_with_its_own_result_and_item() -> None:
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
    assert not execution.run.step("all").rolled_back  # one of its items failed, and nobody knows what of it was done
    assert rollback.report().words == "rolled back: 一, 二, 三; not rolled back: broken (failed, check by hand)"


async def test_of_a_loop_the_items_that_could_not_be_undone_are_named() -> None:
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


class Crowd:
    """Undoings that wait until they are let go; counts how many are under way, and keeps the order in which they began and ended."""

    def __init__(self, *, failing: tuple[str, ...] = ()) -> None:
        self.begun: list[str] = []
        self.ended: list[str] = []
        self.most = 0
        self._now = 0
        self.gates = defaultdict[str, asyncio.Event](asyncio.Event)

        @tool(effect="write")
        def work(name: str) -> dict[str, str]:
            """Do what is broken or not."""
            if name.startswith("broken"):
                raise ValueError(f"{name} is broken")
            return {"name": name}

        @tool(effect="write")
        async def undo(name: str) -> None:
            """Undo what has this name, once it is let go."""
            self.begun.append(name)
            self._now += 1
            self.most = max(self.most, self._now)
            await self.gates[name].wait()
            self._now -= 1
            self.ended.append(name)
            if name in failing:
                raise ValueError(f"{name} is stuck")

        self.tools = [work, undo]

    async def until_begun(self, *names: str) -> None:
        while set(self.begun) != set(names):
            await asyncio.sleep(0)


WIDE = {"base": [], "a": ["base"], "b": ["base"], "c": ["base"], "top": ["a"], "broken": ["top", "b", "c"]}


async def test_independent_rollbacks_run_in_parallel_within_the_plans_limit() -> None:
    crowd = Crowd()
    execution = Execution(undoable(WIDE, allow_parallel=True, max_parallel_steps=2), crowd.tools)
    await execution.go()
    rollback = rollback_of(execution)
    going = asyncio.create_task(rollback.undo())
    await crowd.until_begun("top", "c")
    crowd.gates["top"].set()
    await crowd.until_begun("top", "c", "b")  # the later one of the plan first
    crowd.gates["c"].set()
    await crowd.until_begun("top", "c", "b", "a")
    crowd.gates["b"].set()
    await asyncio.sleep(0.01)
    assert "base" not in crowd.begun  # `a` stands on it
    crowd.gates["a"].set()
    crowd.gates["base"].set()
    await going
    assert (crowd.most, crowd.begun[-1], len(crowd.ended)) == (2, "base", 5)
    assert all(execution.run.step(name).rolled_back for name in ("base", "a", "b", "c", "top"))
    assert rollback.report().words == "rolled back: top, c, b, a, base; not rolled back: broken (failed, check by hand)"


async def test_after_a_failed_rollback_running_ones_finish_and_no_other_starts() -> None:
    crowd = Crowd(failing=("c",))
    execution = Execution(undoable(WIDE, allow_parallel=True, max_parallel_steps=2), crowd.tools)
    await execution.go()
    rollback = rollback_of(execution)
    going = asyncio.create_task(rollback.undo())
    await crowd.until_begun("top", "c")
    crowd.gates["c"].set()
    while crowd.ended != ["c"]:
        await asyncio.sleep(0)
    crowd.gates["top"].set()
    await going
    assert (crowd.begun, crowd.ended) == (["top", "c"], ["c", "top"])
    assert rollback.report().words == (
        "rolled back: top; not rolled back: c (its rollback failed: ValueError: c is stuck), b (skipped, because the rollback of `c` "
        "failed), a (skipped, because the rollback of `c` failed), base (`a` must be rolled back first), broken (failed, check by hand)"
    )
    assert {name: execution.kinds(f"rollback {name}")[-1] for name in ("top", "a", "b", "c", "base")} == {
        "top": "step_completed", "a": "step_skipped", "b": "step_skipped", "c": "step_failed", "base": "step_skipped",
    }  # fmt: skip


async def test_whoever_halts_it_lets_what_is_under_way_end_and_nothing_begin() -> None:
    crowd = Crowd()
    execution = Execution(undoable({"a": [], "b": ["a"], "c": ["b"], "broken": ["c"]}), crowd.tools)
    await execution.go()
    rollback = rollback_of(execution)
    going = asyncio.create_task(rollback.undo())
    await crowd.until_begun("c")
    rollback.halt.set("cancelled", "enough (by ana)")
    crowd.gates["c"].set()
    await going
    assert crowd.ended == ["c"]
    assert (
        rollback.report().words
        == "rolled back: c; not rolled back: b (enough (by ana)), a (`b` must be rolled back first), broken (failed, check by hand)"
    )


@pytest.mark.parametrize("limit", [1, 3])
@pytest.mark.parametrize("seed", range(8))
async def test_of_any_plan_each_step_is_undone_after_all_that_stand_on_it(seed: int, limit: int) -> None:
    chance = random.Random(seed)
    edges = {f"s{n}": [f"s{m}" for m in range(n) if chance.random() < 0.3] for n in range(14)}
    without = tuple(name for name in edges if chance.random() < 0.3)
    edges["broken"] = list(edges)
    world = World()
    plan = undoable(edges, without=without, allow_parallel=limit > 1, max_parallel_steps=limit)
    _, rollback = await run_and_undo(plan, world)
    assert sorted(world.undone) == sorted(set(edges) - set(without) - {"broken"})
    places = {name: place for place, name in enumerate(world.undone)}
    late = [(name, below) for name in places for below in ancestors(edges, name) & set(places) if places[below] < places[name]]
    assert not late
    assert limit > 1 or world.undone == [name for name in reversed(world.done) if name in places]
    assert "not undone" not in rollback.report().words


async def test_hooks_can_distinguish_a_rollback_from_a_step() -> None:
    told: list[tuple[str, str, str | None]] = []
    hooks = Hooks(
        on_step_start=lambda _, step: told.append(("start", step.id, step.undoes)),
        on_step_complete=lambda _, step: told.append(("complete", step.id, step.undoes)),
        on_step_failed=lambda _, step, error: told.append(("failed", step.id, step.undoes)),
    )
    execution, _ = await run_and_undo(undoable({"a": [], "b": ["a"], "broken": ["b"]}), World(failing=("a",)), hooks=hooks)
    assert [entry for entry in told if entry[2] is None] == [
        ("start", "a", None), ("complete", "a", None), ("start", "b", None), ("complete", "b", None),
        ("start", "broken", None), ("failed", "broken", None),
    ]  # fmt: skip
    assert [entry for entry in told if entry[2] is not None] == [
        ("start", "rollback b", "b"), ("complete", "rollback b", "b"), ("start", "rollback a", "a"), ("failed", "rollback a", "a"),
    ]  # fmt: skip
    assert all(step.undoes is None for step in execution.run.steps)


async def test_a_failed_rollback_blocks_the_rollbacks_of_its_dependencies() -> None:
    edges = {"base": [], "left": ["base"], "leaf": ["left"], "right": ["base"], "other": [], "broken": ["leaf", "right", "other"]}
    world = World(failing=("left",))
    execution, rollback = await run_and_undo(undoable(edges, without=("leaf",)), world)
    assert world.undone == ["other", "right", "left"]
    assert rollback.report().words == (
        "rolled back: other, right; not rolled back: left (its rollback failed: ValueError: left is stuck: 卡住了), "
        "base (`left` must be rolled back first), broken (failed, check by hand); "
        "cannot be rolled back: leaf (writes, declares no rollback)"
    )
    assert execution.kinds("rollback left") == ["step_started", "step_failed"]
    assert execution.kinds("rollback base") == ["step_skipped"]


async def test_indirect_dependents_are_rolled_back_first() -> None:
    world = World(failing=("c",))
    _, rollback = await run_and_undo(undoable({"a": [], "b": ["a"], "c": ["b"], "broken": ["c"]}, without=("b",)), world)
    assert world.undone == ["c"]
    assert "a (`c` must be rolled back first)" in rollback.report().words


async def test_a_rollback_is_tried_once_whatever_its_step_says() -> None:
    world = World(failing=("a",))
    plan = undoable({"a": [], "broken": ["a"]})
    plan.step("a").max_retries = 3
    await run_and_undo(plan, world)
    assert world.undone == ["a"]


async def test_a_rollback_without_an_answer_in_time_is_unknown_and_waits_for_a_person() -> None:
    world = World(held="b")
    plan = undoable({"a": [], "b": ["a"], "broken": ["b"]})
    plan.step("b").timeout_ms = 30
    execution, rollback = await run_and_undo(plan, world)
    run_id = execution.run.id
    told = f"`plan resolve {run_id} b done|again|abort --rollback`, then `plan cancel {run_id} --rollback`"
    assert rollback.report().words == (
        f"rolled back: nothing; not rolled back: b (whether its rollback was done is unknown: {told}), "
        "a (`b` must be rolled back first), broken (failed, check by hand)"
    )
    again = rollback_of(execution)
    await again.undo()
    assert world.undone == ["b"]  # it is not called again
    assert again.report().words == rollback.report().words


async def test_what_was_undone_before_is_not_undone_again_and_what_failed_is_tried_again() -> None:
    world = World(failing=("b",))
    execution, _ = await run_and_undo(undoable({"a": [], "b": ["a"], "c": ["b"], "broken": ["c"]}), world)
    assert world.undone == ["c", "b"]
    world.undone.clear()
    mended = World()
    execution.scope.approved = (await _fresh(execution, mended)).scope.approved
    rollback = rollback_of(execution)
    assert rollback.left == [("a", None), ("b", None)]
    await rollback.undo()
    assert (world.undone, mended.undone) == ([], ["b", "a"])
    assert [attempt.number for attempt in execution.recorder.attempts if (attempt.kind, attempt.step_id) == ("rollback", "b")] == [1, 2]
    assert rollback.report().words == "rolled back: c, b, a; not rolled back: broken (failed, check by hand)"
    assert all(execution.run.step(name).rolled_back for name in "abc")


async def _fresh(execution: Execution, world: World) -> Execution:
    fresh = Execution(execution.plan, world.tools)
    await fresh.go()
    return fresh


async def test_while_the_outcome_of_a_step_is_unknown_nothing_is_undone() -> None:
    world = World()
    plan = undoable({"a": [], "slow": ["a"]})
    plan.step("slow").timeout_ms = 20
    execution, rollback = await run_and_undo(plan, world)
    assert (execution.run.reason, world.undone) == (RunReason.UNKNOWN, [])
    assert rollback.report().words == (
        f"rolled back: nothing, because whether `slow` was done is unknown: `plan resolve {execution.run.id} slow done|again|abort`, "
        f"then `plan cancel {execution.run.id} --rollback`"
    )


async def test_what_was_carried_is_undone_too_with_the_result_it_had() -> None:
    world = World()
    plan = undoable({"a": [], "broken": ["a"]})
    first = Execution(plan, world.tools)
    await first.go()
    history = RunHistory.of(first.recorder.attempts, first.recorder.receipts)
    execution, rollback = await run_and_undo(plan, world, history=history, recorder=first.recorder)
    assert execution.run.step("a").carried
    assert (world.undone, rollback.report().words) == (["a"], "rolled back: a; not rolled back: broken (failed, check by hand)")


async def test_a_rollback_continues_after_its_run_stopped_and_can_be_stopped_itself() -> None:
    world = World(held="b")
    plan = undoable({"a": [], "b": ["a"], "c": ["b"], "broken": ["c"]})
    execution = Execution(plan, world.tools)
    await execution.go()
    execution.scope.stop.set("timed_out", "the total timeout of 1 s was exceeded")
    rollback = rollback_of(execution)
    going = asyncio.create_task(rollback.undo())
    while world.undone != ["c", "b"]:
        await asyncio.sleep(0)
    rollback.scope.stop.set("cancelled", "enough (by ana)")
    await going
    assert world.undone == ["c", "b"]
    assert rollback.report().words.startswith("rolled back: c; not rolled back: b (whether its rollback was done is unknown: ")


@pytest.mark.parametrize(
    ("policy", "of_step", "expected"),
    [("stop", None, True), ("continue", None, False), ("continue", "stop", True), ("stop", "continue", False)],
)
async def test_only_a_failure_that_ends_the_run_undoes_it_by_itself(policy: str, of_step: Any, expected: bool) -> None:
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
