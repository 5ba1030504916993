"""Tests of the scheduler: when steps start, how many run at once, and what happens to the rest when one fails."""

import asyncio
import random

import pytest

from plan_adapter.model.status import Outcome, PlanStatus, RunReason, StepStatus
from plan_adapter.tools.tool import tool
from tests.execution.support import Execution, ancestors, plan_of


class World:
    """A tool that records when its calls begin and end; calls in `held` wait until the test releases them."""

    def __init__(self, *, held: tuple[str, ...] = (), failing: tuple[str, ...] = ()) -> None:
        self.begun: list[str] = []
        self.ended: list[str] = []
        self.running = 0
        self.peak = 0
        self.gates = {name: asyncio.Event() for name in held}
        self.failing = failing
        self.changed = asyncio.Condition()

        @tool(effect="read")
        async def work(name: str) -> str:
            """Do the work of a step."""
            self.begun.append(name)
            self.running += 1
            self.peak = max(self.peak, self.running)
            async with self.changed:
                self.changed.notify_all()
            try:
                await (self.gates[name].wait() if name in self.gates else asyncio.sleep(0))
                if name in self.failing:
                    raise ValueError(f"{name} is broken")
            finally:
                self.running -= 1
            self.ended.append(name)
            return name.upper()

        self.work = work

    async def until_begun(self, *names: str) -> None:
        async with self.changed:
            await self.changed.wait_for(lambda: set(names) <= set(self.begun))


async def test_a_step_starts_when_its_own_dependencies_ended_without_waiting_for_others():
    world = World(held=("slow",))
    execution = Execution(plan_of({"fast": [], "slow": [], "after_fast": ["fast"]}, allow_parallel=True), [world.work])
    run_task = asyncio.create_task(execution.go())
    await world.until_begun("after_fast")
    assert "slow" not in world.ended
    world.gates["slow"].set()
    assert (await run_task).status is PlanStatus.COMPLETED


@pytest.mark.parametrize("limit", [1, 2, 3, 7])
async def test_as_many_steps_run_at_once_as_the_plan_allows_and_never_more(limit: int):
    world = World()
    plan = plan_of({f"s{n}": [] for n in range(40)}, allow_parallel=True, max_parallel_steps=limit)
    await Execution(plan, [world.work]).go()
    assert world.peak == limit


async def test_steps_run_one_at_a_time_in_plan_order_without_allow_parallel():
    world = World()
    plan = plan_of({"d": ["b"], "a": [], "b": ["a"], "c": []})
    await Execution(plan, [world.work]).go()
    assert world.peak == 1
    assert world.begun == ["a", "b", "d", "c"]


async def test_the_longest_path_starts_first_when_slots_are_scarce():
    world = World()
    edges = {"lone1": [], "lone2": [], "head": [], "mid": ["head"], "tail": ["mid"]}
    await Execution(plan_of(edges, allow_parallel=True, max_parallel_steps=1 + 1), [world.work]).go()
    assert world.begun[0] == "head"
    assert world.begun.index("mid") < world.begun.index("lone2")


async def test_random_plans_run_every_step_once_and_never_before_its_dependencies():
    rng = random.Random(20)
    for _ in range(20):
        names = [f"s{n}" for n in range(rng.randint(1, 40))]
        edges = {name: rng.sample(names[:place], min(place, rng.randint(0, 3))) for place, name in enumerate(names)}
        world = World()
        run = await Execution(plan_of(edges, allow_parallel=True, max_parallel_steps=rng.randint(1, 8)), [world.work]).go()
        assert run.status is PlanStatus.COMPLETED
        assert sorted(world.begun) == sorted(names)
        for name, dependencies in edges.items():
            for dependency in ancestors(edges, name) | set(dependencies):
                assert world.ended.index(dependency) < world.ended.index(name)


async def test_stop_on_error_starts_no_further_step_and_lets_running_ones_end():
    world = World(held=("bad", "beside"), failing=("bad",))
    plan = plan_of({"bad": [], "beside": [], "queued": [], "after": ["bad"]}, allow_parallel=True, max_parallel_steps=2)
    execution = Execution(plan, [world.work])
    run_task = asyncio.create_task(execution.go())
    await world.until_begun("bad", "beside")
    world.gates["bad"].set()
    world.gates["beside"].set()
    run = await run_task
    assert (run.status, run.reason) == (PlanStatus.PARTIAL, RunReason.STEP_FAILED)
    assert run.step("beside").status is StepStatus.COMPLETED
    assert run.step("bad").error == "ValueError: bad is broken"
    assert run.step("queued").status is StepStatus.SKIPPED
    assert run.step("queued").reason == "stopped because `bad` failed"
    assert run.step("after").reason == "stopped because `bad` failed"
    assert "queued" not in world.begun


async def test_continue_on_error_skips_only_dependents_of_the_failed_step():
    world = World(failing=("bad",))
    plan = plan_of({"bad": [], "after": ["bad"], "later": ["after"], "other": [], "another": ["other"]}, continue_on_error=True)
    run = await Execution(plan, [world.work]).go()
    assert {step.id: step.status.value for step in run.steps} == {
        "bad": "failed",
        "after": "skipped",
        "later": "skipped",
        "other": "completed",
        "another": "completed",
    }
    assert run.step("after").reason == "`bad` failed"
    assert run.step("later").reason == "`after` was skipped: `bad` failed"
    assert run.status is PlanStatus.PARTIAL


async def test_on_error_of_a_step_overrides_the_plan():
    world = World(failing=("bad",))
    plan = plan_of({"bad": [], "other": []})
    plan.step("bad").on_error = "continue"
    run = await Execution(plan, [world.work]).go()
    assert run.step("other").status is StepStatus.COMPLETED


async def test_a_plan_without_a_completed_step_has_failed():
    run = await Execution(plan_of({"bad": [], "after": ["bad"]}), [World(failing=("bad",)).work]).go()
    assert (run.status, run.is_completed) == (PlanStatus.FAILED, True)
    assert run.summary().progress == 0.0


async def test_a_false_when_skips_the_step_and_its_dependents_run():
    world = World()
    plan = plan_of({"a": [], "maybe": ["a"], "after": ["maybe"]})
    plan.step("maybe").when = "${{ steps.a.result == 'no' }}"
    run = await Execution(plan, [world.work]).go()
    assert run.step("maybe").status is StepStatus.SKIPPED
    assert run.step("maybe").reason == "its condition is false: ${{ steps.a.result == 'no' }}"
    assert run.step("after").status is StepStatus.COMPLETED
    assert run.status is PlanStatus.COMPLETED


async def test_a_result_reaches_the_steps_that_refer_to_it_unchanged():
    seen: list[object] = []

    @tool(effect="read")
    def make() -> dict[str, object]:
        """Make a value."""
        return {"路径": ["甲", {"n": 3}], "flag": True}

    @tool(effect="read")
    def take(value: object, text: str) -> None:
        """Take a value."""
        seen.append((value, text))

    plan = plan_of({})
    first = plan.add_step("make", "make")
    plan.add_step(
        "take", "take", {"value": f"${{{{ steps.{first.id}.result['路径'][1] }}}}", "text": f"n=${{{{ steps.{first.id}.result.flag }}}}"}
    )
    run = await Execution(plan, [make, take]).go()
    assert run.status is PlanStatus.COMPLETED, run.message
    assert seen == [({"n": 3}, "n=true")]


async def test_for_each_calls_the_tool_once_per_item_and_keeps_the_order_of_results():
    world = World()
    plan = plan_of({"each": []}, allow_parallel=True, max_parallel_steps=3)
    plan.step("each").for_each = "${{ ['x', 'y', 'z', 'w'] }}"
    plan.step("each").parameters = {"name": "${{ item }}"}
    execution = Execution(plan, [world.work])
    run = await execution.go()
    assert run.step("each").result == ["X", "Y", "Z", "W"]
    assert world.peak == 3
    assert [(receipt.item, receipt.number) for receipt in sorted(execution.recorder.receipts, key=lambda r: r.item or 0)] == [
        (0, 1), (1, 1), (2, 1), (3, 1),
    ]  # fmt: skip


async def test_for_each_over_no_items_completes_with_an_empty_list():
    plan = plan_of({"each": [], "after": ["each"]})
    plan.step("each").for_each = "${{ [] }}"
    run = await Execution(plan, [World().work]).go()
    assert run.step("each").result == []
    assert run.status is PlanStatus.COMPLETED


async def test_a_failed_item_fails_its_step_and_starts_no_further_item():
    world = World(failing=("y",))
    plan = plan_of({"each": []})
    plan.step("each").for_each = "${{ ['x', 'y', 'z'] }}"
    plan.step("each").parameters = {"name": "${{ item }}"}
    run = await Execution(plan, [world.work]).go()
    assert run.step("each").error is not None
    assert run.step("each").error.startswith("item y: ValueError: y is broken; 1 of 3 items was not started")
    assert world.begun == ["x", "y"]


async def test_an_expression_that_fails_at_run_time_fails_its_step_and_calls_nothing():
    world = World()
    plan = plan_of({"a": [], "b": []}, continue_on_error=True)
    plan.step("b").parameters = {"name": "${{ string(int(steps.a.result)) }}"}
    execution = Execution(plan, [world.work])
    run = await execution.go()
    assert run.step("b").status is StepStatus.FAILED
    assert "int(steps.a.result)" in (run.step("b").error or "")
    assert [attempt.step_id for attempt in execution.recorder.attempts] == ["a"]


async def test_a_step_that_depends_on_a_thousand_parallel_steps_runs_last():
    world = World()
    edges = {f"s{n}": [] for n in range(1000)} | {"end": [f"s{n}" for n in range(1000)]}
    run = await Execution(plan_of(edges, allow_parallel=True, max_parallel_steps=50), [world.work]).go()
    assert run.status is PlanStatus.COMPLETED
    assert world.begun[-1] == "end"


@pytest.mark.thorough
async def test_a_chain_of_three_thousand_steps_does_not_exhaust_the_stack():
    world = World()
    edges = {f"s{n}": [f"s{n - 1}"] if n else [] for n in range(3000)}
    assert (await Execution(plan_of(edges), [world.work]).go()).status is PlanStatus.COMPLETED


async def test_an_unknown_outcome_holds_back_only_dependent_steps():
    world = World()

    @tool(effect="write")
    async def push() -> None:
        """Never answers."""
        await asyncio.Event().wait()

    plan = plan_of({"other": [], "later": ["other"]}, allow_parallel=True)
    pushed = plan.add_step("push", "push", id="pushed", timeout_ms=20, max_retries=3)
    plan.add_step("work", "after", {"name": "after"}, id="after", depends_on=[pushed.id])
    execution = Execution(plan, [world.work, push])
    run = await execution.go()
    assert (run.status, run.reason) == (PlanStatus.PARTIAL, RunReason.UNKNOWN)
    assert run.step("pushed").outcome is Outcome.UNKNOWN
    assert run.step("after").reason == "the outcome of `pushed` is unknown"
    assert run.step("later").status is StepStatus.COMPLETED
    assert [a.step_id for a in execution.recorder.attempts].count("pushed") == 1
    assert "pushed" not in [receipt.step_id for receipt in execution.recorder.receipts]
