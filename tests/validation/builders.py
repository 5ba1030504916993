"""Tools and plans for tests of validation."""

from typing import Any

from plan_adapter.model.plan import ExecutionPlan, Step
from plan_adapter.tools.registry import ToolRegistry
from plan_adapter.tools.tool import tool
from plan_adapter.validation import lint


@tool(effect="read")
def fetch_page(url: str, attempts: int = 1) -> dict[str, object]:
    """Fetch a page."""
    return {"url": url, "attempts": attempts}


@tool
def push(value: Any = None) -> Any:
    """Push a value."""
    return value


@tool(literal_parameters=["command"])
def shell(command: str, env: dict[str, str] | None = None) -> None:
    """Run a script."""


TOOLS = ToolRegistry([fetch_page, push, shell])


def step(step_id: str = "", **fields: Any) -> Step:
    """A valid step, except for `fields`."""
    return Step(**({"id": step_id, "tool_name": "push", "description": "Push it"} | fields))


def plan(*steps: Step, **fields: Any) -> ExecutionPlan:
    """A valid plan, except for its steps and `fields`."""
    return ExecutionPlan(**({"description": "Push things", "steps": list(steps) or [step("only")]} | fields))


def found(checked: ExecutionPlan) -> list[tuple[str, str]]:
    """Code and place of every problem of a plan."""
    return [(problem.code, problem.at) for problem in lint(checked, TOOLS)]
