"""A group runs its steps for one item after the other. An item that fails stops the group; a resumed run continues with that item."""

from typing import Any

from plan_adapter import ExecutionPlan, ToolRegistry, tool
from plan_adapter.errors import ToolError
from plan_adapter.runs import aresume_run, arun_plan
from plan_adapter.store import StepStatus, load_plan

DOCUMENT = """\
description: Restart every node, one after the other
options: {require_approval: false}
inputs: {nodes: {type: array}}
steps:
  - id: nodes
    for_each: ${{ inputs.nodes }}
    steps:
      - id: drain
        tool_name: act
        parameters: {what: "drain ${{ item }}"}
      - id: restart
        tool_name: act
        parameters: {what: "restart ${{ item }} after ${{ steps.drain.result }}"}
        depends_on: [drain]
"""

done: list[str] = []
broken: set[str] = set()


@tool(effect="write")
def act(what: str) -> str:
    """Do something to a node."""
    if what in broken:
        raise ToolError("the node does not answer")
    done.append(what)
    return what.split(maxsplit=1)[0]


tools = ToolRegistry([act])
INPUTS = {"nodes": ["web-1", "web-2"]}


def rolling_restart() -> ExecutionPlan:
    done.clear()
    broken.clear()
    return load_plan(DOCUMENT)


async def test_an_item_ends_before_the_next_begins_and_sees_its_own_results() -> None:
    run = await arun_plan(rolling_restart(), tools=tools, inputs=INPUTS, offline=True)
    assert done == ["drain web-1", "restart web-1 after drain", "drain web-2", "restart web-2 after drain"]
    assert run.step("drain").result == ["drain", "drain"]
    items: Any = run.step("nodes").result
    assert [(item["label"], item["status"]) for item in items] == [("web-1", "completed"), ("web-2", "completed")]


async def test_a_failed_item_stops_the_group_and_a_resumed_run_continues_there() -> None:
    plan = rolling_restart()
    broken.add("drain web-2")
    run = await arun_plan(plan, tools=tools, inputs=INPUTS, offline=True)
    assert (run.step("nodes").status, run.step("drain").status) == (StepStatus.FAILED, StepStatus.FAILED)
    assert "web-2" in (run.step("nodes").error or "")

    broken.clear()
    done.clear()
    run = await aresume_run(run.id, tools=tools, offline=True)
    assert (run.status, done) == ("completed", ["drain web-2", "restart web-2 after drain"])
