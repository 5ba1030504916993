"""Tests of tools that raise, exit or return something invalid: only their step fails, also in a process of its own."""

import asyncio
import math
import sys

import pytest

from plan_adapter.model.errors import StoreError
from plan_adapter.model.status import Outcome, StepStatus
from plan_adapter.tools.tool import ToolContext, tool
from tests.execution import flow_of_a_module, tools_of_a_module
from tests.execution.support import Execution, plan_of


async def test_a_tool_that_kills_its_process_fails_only_its_step():
    plan = plan_of({})
    plan.add_step("die", "die", id="a", isolation="process", on_error="continue", effect="read")
    plan.add_step("echo", "echo", {"value": {"甲": [1]}}, id="b", isolation="process")
    run = await Execution(plan, [tools_of_a_module.die, tools_of_a_module.echo]).go()
    assert (run.step("a").outcome, run.step("b").result) == (Outcome.FAILED, {"甲": [1]})
    assert "the process of tool `die` died" in (run.step("a").error or "")


async def test_a_tool_in_a_process_fails_with_its_own_message_and_the_next_call_works():
    plan = plan_of({}, continue_on_error=True)
    for how in ("exit", "local", "unknown"):
        plan.add_step("fail", how, {"how": how}, id=how, isolation="process")
    plan.add_step("tell", "tell", id="logged", isolation="process")
    execution = Execution(plan, [tools_of_a_module.fail, tools_of_a_module.tell])
    run = await execution.go()
    assert [step.error for step in run.steps] == ["SystemExit: 3", "Local: it failed, because 坏了", "it broke", None]
    assert run.step("logged").result == 1
    assert [event.message for event in execution.events if event.kind == "log"] == ["第 1 次"]


async def test_process_isolation_of_a_plan_keeps_async_tools_on_the_event_loop():
    @tool(effect="read")
    async def work(name: str, context: ToolContext) -> str:
        """Work."""
        return context.step_id

    plan = plan_of({"a": []})
    plan.isolation = "process"
    assert (await Execution(plan, [work]).go()).step("a").result == "a"


@pytest.mark.parametrize("isolation", ["thread", "process"])
@pytest.mark.thorough
async def test_the_function_of_a_flow_is_called_without_prefect(isolation: str):
    plan = plan_of({})
    plan.add_step("double", "double", {"number": 2}, id="a", isolation=isolation)
    assert (await Execution(plan, [flow_of_a_module.double]).go()).step("a").result == 4


def _raise(error: BaseException) -> None:
    raise error


class Unprintable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no words")


@pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])
@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (ValueError("坏了"), "ValueError: 坏了"),
        (SystemExit(3), "the tool raised SystemExit(3)"),
        (KeyboardInterrupt(), "the tool raised KeyboardInterrupt()"),
        (asyncio.CancelledError(), "the tool cancelled itself"),
        (StopIteration(1), "StopIteration"),
        (GeneratorExit(), "GeneratorExit"),
        (MemoryError(), "MemoryError"),
        (RecursionError("deep"), "RecursionError: deep"),
        (Unprintable(), "Unprintable: (its message cannot be shown)"),
        (BaseExceptionGroup("several", [KeyboardInterrupt(), ValueError("x")]), "BaseExceptionGroup: several"),
        (StoreError("the tool's own store is away"), "the tool's own store is away"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, BaseException) else "",
)
async def test_any_exception_of_a_tool_fails_its_step_and_never_the_run(error: BaseException, expected: str, is_async: bool):
    if is_async:

        @tool(effect="read", name="work")
        async def work(name: str) -> None:
            """Raise."""
            _raise(error)
    else:

        @tool(effect="read", name="work")
        def work(name: str) -> None:
            """Raise."""
            _raise(error)

    @tool(effect="read")
    def fine(name: str) -> str:
        """Work."""
        return name

    plan = plan_of({"a": []}, continue_on_error=True)
    plan.add_step("fine", "fine", {"name": "b"}, id="b")
    run = await Execution(plan, [work, fine]).go()
    assert expected in (run.step("a").error or "")
    assert run.step("b").status is StepStatus.COMPLETED


@pytest.mark.parametrize(
    "value", [math.nan, {"deep": [math.inf]}, object(), b"\xff\xfe", lambda: None], ids=["nan", "infinity", "object", "bytes", "function"]
)
async def test_a_result_that_is_not_json_fails_the_step(value: object):
    @tool(effect="read")
    def work(name: str):
        """Return something that is not JSON."""
        return value

    run = await Execution(plan_of({"a": []}), [work]).go()
    assert run.step("a").status is StepStatus.FAILED
    assert "JSON" in (run.step("a").error or "")


async def test_a_tool_that_exits_its_thread_fails_its_step():
    @tool(effect="read")
    def work(name: str) -> None:
        """End the thread."""
        sys.exit()

    run = await Execution(plan_of({"a": []}), [work]).go()
    assert run.step("a").status is StepStatus.FAILED
