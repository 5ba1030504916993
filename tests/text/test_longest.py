"""Tests of the longest times: no run takes longer, whatever its calls really take, and ordinary plans are told the exact time.

Plans are executed on virtual time, with calls of any length up to their limit that succeed, fail, or hang.
"""

import asyncio
import math
from random import Random
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from plan_adapter.model.plan import ExecutionPlan, Input, Question, Rollback, Step
from plan_adapter.text.longest import LongestTimes
from plan_adapter.text.preview import Preview, preview_plan
from plan_adapter.tools.registry import ToolRegistry
from plan_adapter.tools.tool import CHECK_SECONDS, Tool, ToolContext, tool
from plan_adapter.validation import bind_inputs, validate
from tests.execution.support import Execution
from tests.simulation.loop import VirtualLoop

MINUTE = 60_000


def no_check(name: str) -> None:
    """Take no time."""


@tool(effect="idempotent_write")
async def work(name: str) -> None:
    """Stand for a call of the tests that only look at previews."""


@tool(effect="write", preflight=no_check)
async def reach(name: str) -> None:
    """Stand for a call whose host is checked first."""


@tool(effect="read")
async def names(name: str) -> list[str]:
    """Return the names of hosts."""
    return [name]


TOOLS = ToolRegistry([work, reach, names])


def step(step_id: str, *depends_on: str, **fields: Any) -> Step:
    written: dict[str, Any] = {"tool_name": "work", "parameters": {"name": step_id}, "description": step_id}
    return Step(id=step_id, depends_on=[*depends_on], **(written | fields))


def group(step_id: str, *steps: Step, items: int, **fields: Any) -> Step:
    numbers = [*range(items)]
    return Step(id=step_id, description=step_id, for_each=f"${{{{ {numbers} }}}}", steps=[*steps], **fields)


def plan_of(*steps: Step, parallel: int = 4, timeout_ms: int = MINUTE, **options: Any) -> ExecutionPlan:
    plan = ExecutionPlan(description="A plan of a test", steps=[*steps])
    plan.options.step_timeout_ms, plan.options.allow_parallel, plan.options.max_parallel_steps = timeout_ms, parallel > 1, parallel
    for name, value in options.items():
        setattr(plan.options, name, value)
    return plan


def preview_of(plan: ExecutionPlan, **inputs: Any) -> Preview:
    bound = bind_inputs(validate(plan, TOOLS), inputs)
    return preview_plan(bound.validated, inputs=bound.inputs, approval_digest="", requires_approval=False)


EACH = {"for_each": f"${{{{ {[*range(20)]} }}}}"}
QUESTION = Question(question="Continue?", fields={"yes": Input(type="boolean")})
RETRIED = {"max_retries": 2, "retry_delay_ms": 10_000, "retry_backoff": 2.0}


@pytest.mark.parametrize(
    ("plan", "longest_ms"),
    [
        (plan_of(step("a")), MINUTE),
        (plan_of(step("a"), step("b")), MINUTE),
        (plan_of(step("a"), step("b", "a")), 2 * MINUTE),
        (plan_of(step("a", **EACH)), 5 * MINUTE),
        (plan_of(step("a", **EACH), parallel=1), 20 * MINUTE),
        (plan_of(step("a", **EACH, **RETRIED)), 15 * MINUTE + 30_000),
        (plan_of(step("first"), step("a", "first", **EACH), step("last", "a")), 7 * MINUTE),
        (plan_of(group("g", step("a"), step("b", "a"), items=20)), 10 * MINUTE),
        (plan_of(group("g", step("a"), step("b", "a"), items=20, batch=2)), 20 * MINUTE),
        (plan_of(group("g", step("a", **RETRIED), items=20)), 5 * (3 * MINUTE + 30_000)),
        (plan_of(group("g", step("a", tool_name="reach"), items=21)), 6 * MINUTE + 2 * CHECK_SECONDS * 1000),
        (plan_of(Step(id="p", plan="x", pinned=plan_of(step("a", **EACH), step("b", "a"), parallel=2))), 11 * MINUTE),
        (plan_of(Step(id="p", plan="x", pinned=plan_of(step("a", **EACH))), parallel=2), 10 * MINUTE),
        (plan_of(step("a", for_each="${{ [] }}", **RETRIED)), 0),
        (plan_of(step("a"), timeout_ms=0), None),
        (plan_of(step("a"), timeout_ms=0, total_timeout_ms=5 * MINUTE), 5 * MINUTE),
        (plan_of(Step(id="a", ask=QUESTION, description="ask"), timeout_ms=0), 0),
    ],
)
def test_ordinary_plans_are_told_the_exact_time(plan: ExecutionPlan, longest_ms: int | None) -> None:
    assert preview_of(plan).worst_case_ms == longest_ms


def test_items_that_are_not_known_yet_have_no_limit_unless_the_run_has_one() -> None:
    plan = plan_of(step("first", tool_name="names"), step("a", for_each="${{ steps.first.result }}"))
    assert preview_of(plan).worst_case_ms is None
    plan.options.total_timeout_ms = MINUTE
    assert preview_of(plan).worst_case_ms == MINUTE


def test_the_limit_of_the_tool_counts_if_it_is_shorter() -> None:
    plan = plan_of(step("a"))
    quick = Tool(work.fn, effect="read", name="work", description="Work.")
    quick.timeout_seconds = 2.5
    validated = validate(plan, ToolRegistry([quick]))
    shown = preview_plan(validated, inputs={}, approval_digest="", requires_approval=False)
    assert (shown.steps[0].timeout_ms, shown.worst_case_ms) == (2500, 2500)


def test_a_step_inside_a_group_and_its_group_have_their_own_times() -> None:
    shown = preview_of(plan_of(group("g", step("a"), step("b", "a", timeout_ms=1000), items=9)))
    assert [(each.step.id, each.worst_case_ms) for each in shown.steps] == [("g", 3 * 61_000), ("a", 3 * MINUTE), ("b", 3000)]


# Any plan.

TIMES = st.sampled_from([0, 500, 1000, 3000, 10_000])


@st.composite
def calls(draw: st.DrawFn, step_id: str, before: list[str]) -> Step:
    """Return a call with any limit, retries and rollback."""
    undo = Rollback(tool_name="work", parameters={"name": step_id}) if draw(st.booleans()) else None
    return step(
        step_id,
        *draw(st.lists(st.sampled_from(before), unique=True) if before else st.just([])),
        timeout_ms=draw(st.sampled_from([1000, 2000, 7000])),
        max_retries=draw(st.sampled_from([0, 0, 1, 3])),
        retry_delay_ms=draw(TIMES),
        retry_backoff=draw(st.sampled_from([1.0, 2.0])),
        retry_jitter=draw(st.sampled_from([0.0, 0.5])),
        rollback=undo,
        on_error=draw(st.sampled_from([None, "stop", "continue"])),
    )


@st.composite
def parts(draw: st.DrawFn, prefix: str, *, depth: int) -> list[Step]:
    """Return the steps of a plan: calls, calls for each item, groups, and steps that run a plan."""
    steps, ids = list[Step](), list[str]()
    for number in range(draw(st.integers(1, 4))):
        step_id = f"{prefix}{number}"
        made = draw(calls(step_id, ids))
        kind = draw(st.sampled_from(["call", "each", "group", "plan" if depth else "call"]))
        items = draw(st.integers(0, 7))
        if kind == "each":
            made.for_each = f"${{{{ {[*range(items)]} }}}}"
        elif kind == "group":
            inner = [f"{step_id}{letter}" for letter in "abc"[: draw(st.integers(1, 3))]]
            made = group(
                step_id,
                *(draw(calls(inner_id, inner[:place])) for place, inner_id in enumerate(inner)),
                items=items,
                depends_on=made.depends_on,
                batch=draw(st.sampled_from([None, 1, 2])),
                on_error="continue",
                rollback_failed=draw(st.booleans()),
                max_failures=draw(st.sampled_from([0, 2, "100%"])),
            )
        elif kind == "plan":
            pinned = plan_of(*draw(parts(f"{step_id}_", depth=depth - 1)), parallel=draw(st.integers(1, 3)), continue_on_error=True)
            made = Step(id=step_id, plan="x", pinned=pinned, description=step_id, depends_on=made.depends_on)
        steps.append(made)
        ids.append(step_id)
    return steps


@st.composite
def some_plans(draw: st.DrawFn) -> ExecutionPlan:
    """Return a plan that goes on after failures."""
    return plan_of(*draw(parts("s", depth=1)), parallel=draw(st.integers(1, 4)), continue_on_error=True)


def seconds_taken(plan: ExecutionPlan, chance: Random) -> float:
    """Execute `plan` on virtual time, with calls that take any time, and return how long it took."""
    slow, failing = chance.choice((0.3, 1.0)), chance.choice((0.0, 0.3, 0.9))

    @tool(effect="idempotent_write", name="work")
    async def simulated(name: str, context: ToolContext) -> None:
        """Take some time, then fail or not."""
        left = context.deadline
        assert left is not None
        await asyncio.sleep(1e6 if chance.random() < slow / 2 else chance.uniform(0, 7))
        if chance.random() < failing:
            raise ValueError(name)

    loop = VirtualLoop()
    asyncio.set_event_loop(loop)
    try:
        loop.run_until_complete(Execution(plan, [simulated]).go())
        return loop.time()
    finally:
        asyncio.set_event_loop(None)
        loop.close()


@given(some_plans(), st.integers(0, 2**32))
@settings(max_examples=150, deadline=None)
@example(plan_of(step("a", **EACH), parallel=3, continue_on_error=True), 7)
def test_no_run_takes_longer(plan: ExecutionPlan, seed: int) -> None:
    longest_ms = preview_of(plan.model_copy(deep=True)).worst_case_ms
    assert longest_ms is not None
    assert seconds_taken(plan, Random(seed)) * 1000 <= longest_ms * (1 + 1e-9)


def test_a_run_whose_calls_all_hang_takes_the_whole_time() -> None:
    assert seconds_taken(plan_of(step("a", **EACH, on_error="continue")), Hanging()) == 5 * 60


class Hanging(Random):
    """Lets every call hang."""

    def random(self) -> float:
        return 0.0


def test_large_plans_are_quick() -> None:
    many = [step(f"s{number}", *([f"s{number - 1}"] if number % 3 else [])) for number in range(6000)]
    validated = validate(plan_of(*many), TOOLS)
    assert LongestTimes(validated, lambda _: 1).of_run() is not None
    assert not math.isnan(LongestTimes(validated, lambda _: None).of_run() or 0)
