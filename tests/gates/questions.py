"""A plan that asks a person a question and acts on the answer."""

from typing import Any

from plan_adapter import ExecutionPlan, Step
from plan_adapter.model.options import Question
from plan_adapter.plans import Input

FIELDS = {
    "choice": Input(type="string", enum=["switch", "wait", "降级"]),
    "nodes": Input(type="integer", minimum=1, default=2),
}


def plan_with_question(*, timeout_ms: int = 0, fields: dict[str, Input] | None = None, **step: Any) -> ExecutionPlan:
    """Return a plan that asks a question and passes the answer to `strike`; the plan itself needs no approval."""
    plan = ExecutionPlan(description="Decide 决定, then strike", inputs={"site": Input(default="东站")})
    plan.options.require_approval = False
    plan.options.approval_timeout_ms = timeout_ms
    question = Question(question="Switch to ${{ inputs.site }}?", fields=fields or FIELDS)
    plan.steps.append(Step(id="decide", ask=question, description="Choose what happens", **step))
    target = {"target": "${{ steps.decide.result.choice }} on ${{ steps.decide.result.nodes }}"}
    plan.add_step("strike", "Do it", target, id="strike", when="${{ steps.decide.result.choice != 'wait' }}")
    return plan
