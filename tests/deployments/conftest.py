"""What the runbooks are run with."""

from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from plan_adapter import PlanRun, PlanStore, ToolRegistry, approve, arun_plan, load_plan

RUNBOOKS = Path(__file__).parents[2] / "deployments" / "runbooks"

RunRunbook = Callable[..., Awaitable[PlanRun]]


@pytest.fixture
def run_runbook(tmp_path: Path) -> RunRunbook:
    """Run the runbook of a name offline with its inputs, approved by a person where it asks for that."""

    async def run(name: str, **inputs: object) -> PlanRun:
        plan, tools = load_plan(RUNBOOKS / f"{name}.yaml"), ToolRegistry.with_builtins()
        approval = approve(plan, tools=tools, by="ana", inputs=inputs) if plan.options.require_approval else None
        async with PlanStore(f"sqlite:///{tmp_path / 'plans.db'}") as store:
            return await arun_plan(plan, tools=tools, inputs=inputs, approval=approval, store=store, offline=True)

    return run
