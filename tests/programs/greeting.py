"""Greet two people: one plan, one approval, one run."""

from plan_adapter import ExecutionPlan, approve, run_plan, tool


@tool(effect="read")
def greet(name: str) -> str:
    """Greet somebody."""
    return f"Hello, {name}!"


plan = ExecutionPlan(description="Greet two people")
first = plan.add_step(greet, "Greet Ana", name="Ana")
plan.add_step(greet, "Greet the greeting", name=first.result)

run = run_plan(plan, tools=[greet], approval=approve(plan, tools=[greet], by="ana"), offline=True)
print(run.status, run.steps[1].result)
