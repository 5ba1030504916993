"""Tests of the checks that tools make for every item of a group before its first item begins."""

from collections.abc import Iterator
from typing import Any

import pytest

from plan_adapter import PlanStore, ToolRegistry, tool
from plan_adapter.model.errors import ToolDefinitionError, ToolError
from plan_adapter.model.plan import ExecutionPlan, Rollback, Step
from plan_adapter.model.record import PlanRun
from plan_adapter.model.status import PlanStatus, StepStatus
from plan_adapter.plans import format_plan
from plan_adapter.rehearsal import dry_run_plan
from plan_adapter.runs import aresume_run, arun_plan

away: set[str] = set()
asked: list[str] = []
done: list[str] = []


@pytest.fixture(autouse=True)
def nothing_happened() -> Iterator[None]:
    for kept in (away, asked, done):
        kept.clear()
    yield


def reach(host: str) -> None:
    """Fail for a host that is away."""
    asked.append(host)
    if host in away:
        raise ToolError(f"no connection to {host}")


@tool(effect="write", preflight=reach)
def act(host: str, what: str) -> str:
    """Do something on a host."""
    if host in away:
        raise ToolError(f"{host} is gone")
    done.append(f"{what} {host}")
    return what


@tool(effect="read")
def list_hosts() -> list[str]:
    """List the hosts."""
    return ["a", "b", "c"]


TOOLS = ToolRegistry.with_builtins([act, list_hosts])


def step(name: str, *after: str, **fields: Any) -> Step:
    parameters = {"host": "${{ item }}", "what": name}
    return Step(id=name, tool_name="act", depends_on=[*after], parameters=parameters, **fields)


def plan_of(*steps: Step, items: str = "['a', 'b', 'c']", before: tuple[Step, ...] = (), **fields: Any) -> ExecutionPlan:
    inner = [*steps] or [step("drain", rollback=Rollback(tool_name="act", parameters={"host": "${{ item }}", "what": "undrain"}))]
    plan = ExecutionPlan(description="Act", steps=[*before, Step(id="each", for_each=f"${{{{ {items} }}}}", steps=inner, **fields)])
    plan.options.require_approval = False
    return plan


async def run(plan: ExecutionPlan, store: PlanStore) -> PlanRun:
    return await arun_plan(plan, tools=TOOLS, store=store, offline=True)


def ends(run: PlanRun) -> dict[str, str]:
    return {item.label: item.status.value for item in run.step("each").items}


async def test_nothing_begins_if_too_many_items_fail_their_check(store: PlanStore) -> None:
    away.add("c")
    ended = await run(plan_of(), store)
    assert (ended.status, done, sorted(asked)) == (PlanStatus.FAILED, [], ["a", "b", "c"])
    assert ends(ended) == {"a": "skipped", "b": "skipped", "c": "failed"}
    each = ended.step("each")
    assert each.status is StepStatus.FAILED
    assert each.error == "c: no connection to c; 2 of 3 items were not started: 1 item of `each` failed"
    assert "no connection to c" in format_plan(await store.run(ended.id))


async def test_the_other_items_run_if_that_many_may_fail(store: PlanStore) -> None:
    away.add("b")
    ended = await run(plan_of(max_failures=1, on_error="continue", rollback_failed=True), store)
    assert (ended.status, done) == (PlanStatus.PARTIAL, ["drain a", "drain c"])
    assert ends(ended) == {"a": "completed", "b": "failed", "c": "completed"}


async def test_a_failed_check_counts_with_the_failures_of_calls(store: PlanStore) -> None:
    away.add("c")
    failing = Step(id="fail", tool_name="run_command", parameters={"argv": ["test", "${{ item }}", "!=", "a"]}, depends_on=["drain"])
    ended = await run(plan_of(step("drain"), failing, max_failures=1, on_error="continue"), store)
    assert (ends(ended), done) == ({"a": "failed", "b": "skipped", "c": "failed"}, ["drain a"])


async def test_a_resume_checks_again_and_only_what_has_not_begun(store: PlanStore) -> None:
    away.add("c")
    ended = await run(plan_of(max_failures=1, on_error="continue"), store)
    assert done == ["drain a", "drain b"]
    away.clear()
    asked.clear()
    resumed = await aresume_run(ended.id, tools=TOOLS, store=store, offline=True)
    assert (resumed.status, asked, done) == (PlanStatus.COMPLETED, ["c"], ["drain a", "drain b", "drain c"])


async def test_what_only_the_run_decides_is_not_checked(store: PlanStore) -> None:
    conditional = step("maybe", when="${{ item != 'a' }}")
    other = Step(id="other", tool_name="act", parameters={"host": "${{ steps.maybe.result }}", "what": "x"}, depends_on=["maybe"])
    ended = await run(plan_of(conditional, other, items="['b']"), store)
    assert (ended.status, asked) == (PlanStatus.COMPLETED, [])


async def test_a_list_of_an_earlier_step_is_checked_once_for_each_host(store: PlanStore) -> None:
    before = (Step(id="list", tool_name="list_hosts"),)
    ended = await run(plan_of(step("one"), step("two", "one"), items="steps.list.result", before=before), store)
    assert (ended.status, sorted(asked)) == (PlanStatus.COMPLETED, ["a", "b", "c"])


def test_a_dry_run_checks_nothing() -> None:
    away.add("a")
    assert dry_run_plan(plan_of(), tools=TOOLS).effects == 0
    assert asked == []


def test_a_check_has_to_fit_its_tool() -> None:
    def wants(port: int) -> None:
        """Want a port."""

    with pytest.raises(ToolDefinitionError, match="`wants` cannot be the preflight of `act`"):
        tool(effect="write", preflight=wants)(act.fn)
