"""An approver of one's own: a change system decides, and its number is the note of the approval."""

from plan_adapter import Approver, ExecutionPlan, run_plan, tool
from plan_adapter.gates import Approval, ApprovalRequest, answer_to


@tool
def drain(host: str) -> str:
    """Drain a host."""
    return f"{host} drained"


class ChangeSystem:
    """Approves what is on the calendar."""

    def __init__(self, calendar: dict[str, str]) -> None:
        self.calendar = calendar

    async def ask(self, request: ApprovalRequest) -> Approval:
        number = self.calendar.get(request.name)
        return answer_to(
            request,
            decision="reject" if number is None else "approve",
            by="change-system",
            known_by="unverified",
            note=number or "no change is planned",
        )


def drain_plan(name: str) -> ExecutionPlan:
    plan = ExecutionPlan(name=name, description="Drain a host")
    plan.add_step(drain, host="web-1")
    return plan


approver: Approver = ChangeSystem({"drain": "CHG-1"})
for name in ("drain", "drain-all"):
    run = run_plan(drain_plan(name), tools=[drain], approver=approver, offline=True)
    print(run.outcome, run.approved_by, run.rejection_note)
