"""The plan and the tools of the rollback tests: two nodes are drained, and rollbacks put them back."""

import asyncio
from typing import Any

from plan_adapter import ExecutionPlan, PlanRun, ToolRegistry, tool
from plan_adapter.model.plan import Rollback


class World:
    """A pool of nodes. Nodes in `stuck` cannot be put back."""

    def __init__(self) -> None:
        self.drained: list[str] = []
        self.put_back: list[str] = []
        self.stuck: set[str] = set()
        self.waiting = asyncio.Event()

        @tool(effect="write")
        def drain(node: str) -> dict[str, str]:
            """Take a node out of the pool."""
            self.drained.append(node)
            return {"node": node}

        @tool(effect="write")
        def undrain(node: str) -> str:
            """Put a node back into the pool."""
            if node in self.stuck:
                raise ValueError(f"{node} 卡住了")
            self.put_back.append(node)
            return f"{node} serves"

        @tool(effect="read")
        def verify() -> None:
            """Fail because nothing works."""
            raise ValueError("nothing answers")

        @tool(effect="read")
        async def wait() -> None:
            """Wait until the call is cancelled."""
            self.waiting.set()
            await asyncio.Event().wait()

        self.may_finish = asyncio.Event()

        @tool(effect="idempotent_write")
        async def held(node: str) -> None:
            """Put a node back once the test allows it."""
            self.waiting.set()
            await self.may_finish.wait()
            self.put_back.append(node)

        @tool(effect="write")
        async def hang() -> None:
            """Start a write and never return."""
            self.waiting.set()
            await asyncio.Event().wait()

        self.tools = ToolRegistry([drain, undrain, verify, wait, held, hang])


def pool(last: str = "verify", **options: Any) -> ExecutionPlan:
    """Return a plan that drains two nodes one after the other and ends with the step `last`."""
    plan = ExecutionPlan(description="Drain both, then look", name="排空两个节点")
    plan.options.require_approval = False
    undrain = Rollback(tool_name="undrain", parameters={"node": "${{ result.node }}"})
    plan.add_step("drain", "The first", {"node": "web-1"}, id="one", rollback=undrain)
    plan.add_step("drain", "The second", {"node": "节点-2"}, id="two", depends_on=["one"], rollback=undrain)
    plan.add_step(last, "The last", id="last", depends_on=["two"])
    for name, value in options.items():
        setattr(plan.options, name, value)
    return plan


def undone(run: PlanRun) -> dict[str, bool]:
    return {step.id: step.rolled_back for step in run.steps}
