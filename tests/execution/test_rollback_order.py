"""Tests of the order of rollbacks, how many run at once, and what ends them early."""

import asyncio
import random
from collections import defaultdict

import pytest

from plan_adapter.tools.tool import tool
from tests.execution.support import Execution, ancestors
from tests.execution.undoing import World, rollback_of, run_and_undo, undoable

DIAMOND = {"a": [], "b": ["a"], "c": ["a"], "d": ["b", "c"], "broken": ["d"]}


@pytest.mark.parametrize("allow_parallel", [False, True])
async def test_steps_are_rolled_back_in_reverse_dependency_order(allow_parallel: bool) -> None:
    world = World()
    execution, rollback = await run_and_undo(undoable(DIAMOND, allow_parallel=allow_parallel), world)
    assert (world.done, world.undone) == (["a", "b", "c", "d"], ["d", "c", "b", "a"])
    assert {step.id: step.rolled_back for step in execution.run.steps} == {"a": True, "b": True, "c": True, "d": True, "broken": False}
    assert rollback.report().words == "rolled back: d, c, b, a; not rolled back: broken (failed, check by hand)"


class HeldWorld:
    """Rollbacks that wait until the test releases them. Records the order in which they begin and end, and how many run at once."""

    def __init__(self, *, failing: tuple[str, ...] = ()) -> None:
        self.begun: list[str] = []
        self.ended: list[str] = []
        self.most = 0
        self._now = 0
        self.gates = defaultdict[str, asyncio.Event](asyncio.Event)

        @tool(effect="write")
        def work(name: str) -> dict[str, str]:
            """Do the work, unless its name starts with `broken`."""
            if name.startswith("broken"):
                raise ValueError(f"{name} is broken")
            return {"name": name}

        @tool(effect="write")
        async def undo(name: str) -> None:
            """Undo the work of this name when the test releases it."""
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
    world = HeldWorld()
    execution = Execution(undoable(WIDE, allow_parallel=True, max_parallel_steps=2), world.tools)
    await execution.go()
    rollback = rollback_of(execution)
    running = asyncio.create_task(rollback.undo())
    await world.until_begun("top", "c")
    world.gates["top"].set()
    await world.until_begun("top", "c", "b")  # the later step of the plan first
    world.gates["c"].set()
    await world.until_begun("top", "c", "b", "a")
    world.gates["b"].set()
    await asyncio.sleep(0.01)
    assert "base" not in world.begun  # `a` depends on it
    world.gates["a"].set()
    world.gates["base"].set()
    await running
    assert (world.most, world.begun[-1], len(world.ended)) == (2, "base", 5)
    assert all(execution.run.step(name).rolled_back for name in ("base", "a", "b", "c", "top"))
    assert rollback.report().words == "rolled back: top, c, b, a, base; not rolled back: broken (failed, check by hand)"


async def test_after_a_failed_rollback_running_ones_finish_and_no_other_starts() -> None:
    world = HeldWorld(failing=("c",))
    execution = Execution(undoable(WIDE, allow_parallel=True, max_parallel_steps=2), world.tools)
    await execution.go()
    rollback = rollback_of(execution)
    running = asyncio.create_task(rollback.undo())
    await world.until_begun("top", "c")
    world.gates["c"].set()
    while world.ended != ["c"]:
        await asyncio.sleep(0)
    world.gates["top"].set()
    await running
    assert (world.begun, world.ended) == (["top", "c"], ["c", "top"])
    assert rollback.report().words == (
        "rolled back: top; not rolled back: c (its rollback failed: ValueError: c is stuck), b (skipped, because the rollback of `c` "
        "failed), a (skipped, because the rollback of `c` failed), base (`a` must be rolled back first), broken (failed, check by hand)"
    )
    assert {name: execution.kinds(f"rollback {name}")[-1] for name in ("top", "a", "b", "c", "base")} == {
        "top": "step_completed", "a": "step_skipped", "b": "step_skipped", "c": "step_failed", "base": "step_skipped",
    }  # fmt: skip


async def test_halting_a_rollback_lets_running_ones_finish_and_starts_no_other() -> None:
    world = HeldWorld()
    execution = Execution(undoable({"a": [], "b": ["a"], "c": ["b"], "broken": ["c"]}), world.tools)
    await execution.go()
    rollback = rollback_of(execution)
    running = asyncio.create_task(rollback.undo())
    await world.until_begun("c")
    rollback.halt.set("cancelled", "enough (by ana)")
    world.gates["c"].set()
    await running
    assert world.ended == ["c"]
    assert (
        rollback.report().words
        == "rolled back: c; not rolled back: b (enough (by ana)), a (`b` must be rolled back first), broken (failed, check by hand)"
    )


@pytest.mark.parametrize("limit", [1, 3])
@pytest.mark.parametrize("seed", range(8))
async def test_random_plans_roll_back_each_step_after_all_its_dependents(seed: int, limit: int) -> None:
    rng = random.Random(seed)
    edges = {f"s{n}": [f"s{m}" for m in range(n) if rng.random() < 0.3] for n in range(14)}
    without = tuple(name for name in edges if rng.random() < 0.3)
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


async def test_a_rollback_continues_after_its_run_stopped_and_can_be_stopped_itself() -> None:
    world = World(held="b")
    plan = undoable({"a": [], "b": ["a"], "c": ["b"], "broken": ["c"]})
    execution = Execution(plan, world.tools)
    await execution.go()
    execution.scope.stop.set("timed_out", "the total timeout of 1 s was exceeded")
    rollback = rollback_of(execution)
    running = asyncio.create_task(rollback.undo())
    while world.undone != ["c", "b"]:
        await asyncio.sleep(0)
    rollback.scope.stop.set("cancelled", "enough (by ana)")
    await running
    assert world.undone == ["c", "b"]
    assert rollback.report().words.startswith("rolled back: c; not rolled back: b (the outcome of its rollback is unknown: ")
