"""Roll back a run that did not complete: the host that was drained takes traffic again."""

from plan_adapter import ExecutionPlan, approve, run_plan, tool
from plan_adapter.errors import RunFailedError, ToolError
from plan_adapter.plans import Rollback
from plan_adapter.runs import rollback_run

drained = set[str]()


@tool
def drain(host: str) -> str:
    """Drain a host."""
    drained.add(host)
    return host


@tool
def fill(host: str) -> str:
    """Send traffic to a host again."""
    drained.remove(host)
    return host


@tool
def restart(host: str) -> str:
    """Restart a host."""
    raise ToolError(f"{host} does not answer")


tools = [drain, fill, restart]
plan = ExecutionPlan(description="Restart a host")
first = plan.add_step(drain, id="drain", host="web-1", rollback=Rollback(tool_name="fill", parameters={"host": "web-1"}))
plan.add_step(restart, id="restart", host=first.result, on_error="continue")

run = run_plan(plan, tools=tools, approval=approve(plan, tools=tools), offline=True)
try:
    run.raise_for_status()
except RunFailedError as error:
    print(error.run.outcome, error.run.step("restart").error)
print(rollback_run(run.id, tools=tools, reason="the host is needed", offline=True).outcome, drained)
