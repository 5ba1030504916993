"""Build a plan with references: to an input, to a field of a result, and inside a longer text."""

from typing import TypedDict

from plan_adapter import ExecutionPlan, tool
from plan_adapter.errors import InvalidPlanError
from plan_adapter.plans import Input, find_problems, format_plan, validate


class Host(TypedDict):
    address: str
    port: int


@tool(effect="read")
def look_up(host: str) -> Host:
    """Look up a host."""
    return {"address": "192.0.2.1", "port": 443}


@tool(effect="read")
def report(text: str, port: int = 0) -> str:
    """Report a text."""
    return text


plan = ExecutionPlan(description="Report an address", inputs={"host": Input()})
first = plan.add_step(look_up, host=plan.input("host"))
plan.add_step(report, text=f"It is at {first.result['address']}", port=first.result["port"])
print(validate(plan, [look_up, report]).dependencies["step_2"], "Report an address" in format_plan(plan))

plan.add_step(report, text=first.result["adress"])
print([problem.message for problem in find_problems(plan, [look_up, report])])
try:
    validate(plan, [look_up, report])
except InvalidPlanError as error:
    print(error.problems[0].at, error.problems[0].hint)
