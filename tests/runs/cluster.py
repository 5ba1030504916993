"""A cluster of nodes, and plans with a step group that works on them."""

import asyncio
from typing import Any

from pydantic import JsonValue

from plan_adapter import ExecutionPlan, PlanRun, PlanStore, ToolRegistry, tool
from plan_adapter.model.plan import Rollback, Step
from plan_adapter.runs import arun_plan
from plan_adapter.tools import ToolContext


class Cluster:
    """Nodes that record each call in order. Calls named in `broken` fail."""

    def __init__(self) -> None:
        self.done: list[str] = []
        self.broken: set[str] = set()
        self.busy = self.most_busy = 0
        self.hanging: asyncio.Event | None = None

        @tool(effect="write")
        def do(what: str, context: ToolContext) -> str:
            """Do something to a node."""
            if what in self.broken:
                raise ValueError(f"{what} is broken")
            self.done.append(what)
            return f"{what} done"

        @tool(effect="read")
        async def look(what: str) -> str:
            """Look at a node, in parallel with others."""
            self.busy += 1
            self.most_busy = max(self.busy, self.most_busy)
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            self.busy -= 1
            self.done.append(what)
            return f"{what} seen"

        @tool(effect="write")
        async def hang(what: str) -> None:
            """Start a write and never return."""
            if self.hanging is not None:
                self.hanging.set()
            await asyncio.Event().wait()

        self.tools = ToolRegistry([do, look, hang])


async def run(plan: ExecutionPlan, cluster: Cluster, store: PlanStore) -> PlanRun:
    """Run `plan` offline on the nodes of `cluster`."""
    return await arun_plan(plan, tools=cluster.tools, store=store, offline=True)


def act(name: str, *after: str, tool_name: str = "do", undo: bool = False, **fields: Any) -> Step:
    """Return the group step `name`, which does `name` to the item after the steps in `after`."""
    rollback = Rollback(tool_name="do", parameters={"what": f"un{name} ${{{{ item }}}}"}) if undo else None
    parameters: dict[str, JsonValue] = {"what": f"{name} ${{{{ item }}}}"}
    return Step(id=name, tool_name=tool_name, depends_on=[*after], parameters=parameters, rollback=rollback, **fields)


def rolling(
    *steps: Step, items: str = "['a', 'b', 'c']", before: tuple[Step, ...] = (), after: tuple[Step, ...] = (), **fields: Any
) -> ExecutionPlan:
    """Return a plan that runs `steps` in the group `nodes`."""
    inner = list(steps) or [act("drain", undo=True), act("restart", "drain"), act("check", "restart", tool_name="look")]
    group = Step(id="nodes", for_each=f"${{{{ {items} }}}}", steps=inner, **fields)
    plan = ExecutionPlan(description="Restart the nodes", steps=[*before, group, *after])
    plan.options.require_approval = False
    return plan
