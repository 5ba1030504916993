"""A program that sets its tools, its store and its user once, with `Plans`."""

from plan_adapter import ExecutionPlan, tool
from plan_adapter.plans import Input
from plan_adapter.runs import Plans


@tool
def restart(host: str) -> dict[str, str]:
    """Restart a host."""
    return {"host": host, "state": "up"}


def restart_plan(description: str) -> ExecutionPlan:
    plan = ExecutionPlan(name="restart", description=description, inputs={"host": Input(default="web-1")})
    plan.add_step(restart, host=plan.input("host"))
    return plan


plans = Plans(tools=[restart], by="bo", offline=True)
plan = restart_plan("Restart one host")
print(plans.validate(plan).order)

run = plans.run(plan, inputs={"host": "web-2"}, approval=plans.approve(plan, by="ana", inputs={"host": "web-2"}))
print(run.requested_by, run.approved_by, run.steps[0].result)

waiting = plans.start(plan)
waiting = plans.revise(waiting.id, restart_plan("Restart one host, kindly"), note="kindly")
(gate,) = plans.gates(waiting.id)
plans.answer(gate, "approve", by="ana")
print(plans.continue_(waiting.id).succeeded, plans.get(waiting.id).description)

unwanted = plans.start(plan, by="eve")
print(plans.cancel(unwanted.id, reason="not today").outcome, [one.requested_by for one in plans.list(name="restart")])
