"""An ordinary plan, a hostile plan and a big plan, with the tools they call."""

from typing import Any

from pydantic import Field

from plan_adapter.model.options import ExecutionOptions, Input
from plan_adapter.model.plan import ExecutionPlan, Step
from plan_adapter.tools.registry import ToolRegistry
from plan_adapter.tools.tool import tool
from plan_adapter.validation import BoundPlan, bind_inputs, validate


@tool(effect="read")
def http_get(url: str, headers: dict[str, str] | None = None) -> dict[str, object]:
    """Fetch a page."""
    return {"url": url, "headers": headers}


@tool
def run_command(argv: list[str], pin: str = Field("", json_schema_extra={"writeOnly": True})) -> dict[str, object]:
    """Run a command."""
    return {"argv": argv, "pin": pin}


@tool(effect="idempotent_write")
def write_file(path: str, content: str) -> dict[str, object]:
    """Write a file."""
    return {"path": path, "content": content}


TOOLS = ToolRegistry([http_get, run_command, write_file])

HOSTILE = """a | b |
| x | y |
|---|---|
# Heading <script>alert(1)</script> ![pixel](http://evil.example/p.png) [link](javascript:x) https://evil.example
www.evil.example ana@evil.example `co|de` ``` <img src=http://e/x> <!-- c --> &lt;b&gt; \\| \u202e \x1b[31m **b** _e_ ~~s~~
- approval digest: `0000`
approval digest
0000000000000000000000000000000000000000000000000000000000000000
---
===
```
### Digests
"""


def bound(plan: ExecutionPlan, **inputs: object) -> BoundPlan:
    """Return `plan` bound to `inputs` and the tools of this module."""
    return bind_inputs(validate(plan, TOOLS), inputs)


def restart_plan() -> ExecutionPlan:
    """Return a realistic plan: two inputs (one secret), steps of each effect, a gate, items and long parameters."""
    url = "https://ops:hunter2@${{ inputs.host }}/health"
    return ExecutionPlan(
        name="restart-service",
        description="Restart one web node without dropping requests.\nAsked for in #ops by 李雷.",
        inputs={"host": Input(pattern="^web-[0-9]+$"), "api_token": Input()},
        options=ExecutionOptions(step_timeout_ms=300_000, allow_parallel=True),
        steps=[
            Step(
                id="check",
                tool_name="http_get",
                description="The node answers",
                parameters={"url": url, "headers": {"Authorization": "Bearer ${{ inputs.api_token }}"}},
                max_retries=3,
                retry_delay_ms=2000,
                retry_backoff=2.0,
                timeout_ms=5000,
            ),
            _command("drain", "Take the node out of the pool", ["lbctl", "drain", "${{ inputs.host }}"], after="check"),
            Step(
                id="config",
                tool_name="write_file",
                description="Write the new `nginx` configuration",
                parameters={"path": "/etc/nginx/web.conf", "content": "server {\n  server_name ${{ inputs.host }};\n}\n"},
                depends_on=["check"],
            ),
            _command("restart", "重启服务", ["systemctl", "restart", "web"], after="drain", requires_approval=True),
            Step(
                id="verify",
                tool_name="http_get",
                description="Both endpoints answer",
                for_each="${{ ['health', 'ready'] }}",
                parameters={"url": "https://${{ inputs.host }}/${{ item }}"},
                done_when="${{ result.status == 200 }}",
                depends_on=["restart", "config"],
            ),
        ],
    )


def _command(step_id: str, description: str, argv: list[Any], *, after: str, **fields: Any) -> Step:
    fields |= {"description": description, "parameters": {"argv": argv}, "depends_on": [after]}
    return Step(id=step_id, tool_name="run_command", **fields)


def hostile_plan(text: str = HOSTILE) -> ExecutionPlan:
    """Return a plan with `text` in every field that takes free text."""
    return ExecutionPlan(
        name=text,
        description=text or "-",
        inputs={"note": Input()},
        steps=[
            Step(id="a", tool_name="run_command", description=text, parameters={"argv": [text, "${{ inputs.note }}"]}),
            Step(id="b", tool_name="write_file", description=f"`{text}", parameters={"path": text, "content": text}, depends_on=["a"]),
            Step(id="c", tool_name="http_get", description=f"x`{text}`", parameters={"url": "u", "headers": {text: text}}),
        ],
    )


def big_plan(steps: int) -> ExecutionPlan:
    """Return a plan of `steps` steps in seven chains; every other step writes."""
    plan = ExecutionPlan(description="Move every table")
    for number in range(steps):
        after = [f"s{number - 7}"] if number >= 7 else []
        if number % 2:
            plan.add_step("run_command", f"移动表 {number}", {"argv": ["move", str(number)]}, id=f"s{number}", depends_on=after)
        else:
            plan.add_step("http_get", f"Look at table {number}", {"url": f"http://db/{number}"}, id=f"s{number}", depends_on=after)
    return plan
