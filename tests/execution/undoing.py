"""Plans whose steps can be rolled back, and a world that records what was done and undone."""

import asyncio
from typing import Any

from plan_adapter.execution.direct import DirectStepRunner
from plan_adapter.execution.history import RunHistory
from plan_adapter.execution.rollback import Rollback
from plan_adapter.model.errors import UnknownOutcomeError
from plan_adapter.model.plan import ExecutionPlan
from plan_adapter.model.plan import Rollback as RollbackCall
from plan_adapter.tools.tool import ToolContext, tool
from tests.execution.support import Execution, plan_of


class World:
    """Records in order what was done and what was undone. Undoing fails for names in `failing` and is unknown for names in `unknown`."""

    def __init__(self, *, failing: tuple[str, ...] = (), unknown: tuple[str, ...] = (), held: str = "") -> None:
        self.done: list[str] = []
        self.undone: list[Any] = []
        self.keys: dict[str, str] = {}
        self.held = asyncio.Event()

        @tool(effect="write")
        async def work(name: str) -> dict[str, str]:
            """Do the work, unless its name starts with `broken`."""
            if name.startswith("broken"):
                raise ValueError(f"{name} is broken")
            if name == "slow":
                await asyncio.sleep(60)
            self.done.append(name)
            return {"name": name, "id": f"{name}-1"}

        @tool(effect="write")
        async def undo(name: Any, context: ToolContext) -> str:
            """Undo the work of this name."""
            self.undone.append(name)
            self.keys[f"{context.kind} {context.step_id}"] = context.idempotency_key
            self.held.set()
            if name in failing:
                raise ValueError(f"{name} is stuck: 卡住了")
            if name in unknown:
                raise UnknownOutcomeError("the connection was lost")
            if name == held:
                await asyncio.sleep(60)
            return f"{name} is gone"

        self.tools = [work, undo]


def undoable(edges: dict[str, list[str]], *, without: tuple[str, ...] = (), **options: Any) -> ExecutionPlan:
    """Return a plan of `edges` whose steps, except those in `without`, are undone by name."""
    plan = plan_of(edges, **options)
    for step in plan.steps:
        if step.id not in without:
            step.rollback = RollbackCall(tool_name="undo", parameters={"name": "${{ result.name }}"})
    return plan


def rollback_of(execution: Execution) -> Rollback:
    """Return a rollback of `execution` from its current record."""
    return Rollback(execution.scope, RunHistory.of(execution.recorder.attempts, execution.recorder.receipts), DirectStepRunner())


async def run_and_undo(plan: ExecutionPlan, world: World, **fields: Any) -> tuple[Execution, Rollback]:
    execution = Execution(plan, world.tools, **fields)
    await execution.go()
    rollback = rollback_of(execution)
    await rollback.undo()
    return execution, rollback
