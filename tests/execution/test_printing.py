"""Tests of what tools print while the command line shows a run."""

import sys

import pytest

from plan_adapter.execution.printing import captured_prints
from plan_adapter.tools.tool import tool
from tests.execution.support import Execution, plan_of


@tool(effect="read")
def loud(name: str) -> None:
    """Print, without ending the last line."""
    print("第一行\n第二行")
    print(name, end="")


@tool(effect="read", name="loud")
async def loud_on_the_loop(name: str) -> None:
    """Print on the event loop."""
    print("第一行\n第二行")
    print(name, end="")


@pytest.mark.parametrize("work", [loud, loud_on_the_loop], ids=["thread", "loop"])
async def test_printed_lines_of_a_tool_become_log_lines_of_its_step(work: object, capsys: pytest.CaptureFixture[str]) -> None:
    execution = Execution(plan_of({"a": [], "b": ["a"]}, tool="loud"), [work])
    execution.listener = lambda event: print(f"event {event.kind}") if event.kind == "log" else None
    with captured_prints():
        await execution.go()
        sys.stdout.write("of the command itself\n")
    logged = [(event.step.id, event.message) for event in execution.events if event.kind == "log" and event.step]
    assert logged == [(step, line) for step in ("a", "b") for line in ("第一行", "第二行", step)]
    assert capsys.readouterr().out == "event log\n" * 6 + "of the command itself\n"


async def test_prints_outside_a_capture_go_to_stdout(capsys: pytest.CaptureFixture[str]) -> None:
    await Execution(plan_of({"a": []}, tool="loud"), [loud]).go()
    assert capsys.readouterr().out == "第一行\n第二行\na"
