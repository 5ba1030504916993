"""`compile_plan` returns an async Prefect flow. Its parameters are the plan's inputs; call, serve, deploy or nest it."""

from typing import Any

from prefect import flow

from plan_adapter import ToolRegistry, compile_plan, tool
from plan_adapter.plans import validate
from plan_adapter.store import load_plan

DOCUMENT = """\
name: restart-node
description: Restart one node
inputs:
  host: {type: string, pattern: "^web-[0-9]+$", description: Node to restart}
options: {require_approval: false}
steps:
  - id: drain
    tool_name: say
    parameters: {text: "drain ${{ inputs.host }}"}
  - id: restart
    tool_name: say
    parameters: {text: "restart ${{ inputs.host }}"}
    depends_on: [drain]
outputs: {last: "${{ steps.restart.result }}"}
"""


@tool(effect="read")
def say(text: str) -> str:
    """Say something."""
    return text


tools = ToolRegistry([say])


async def test_the_flow_takes_the_plans_inputs_and_can_be_nested(prefect_server: Any) -> None:
    restart = compile_plan(validate(load_plan(DOCUMENT), tools))

    @flow
    async def restart_two() -> list[str]:
        return [(await restart(host=host)).outputs["last"] for host in ("web-1", "web-2")]

    assert restart.name == "restart-node"
    assert await restart_two() == ["restart web-1", "restart web-2"]
