"""Builders of plans that run sub-plans."""

from typing import Any

from plan_adapter import ExecutionPlan
from plan_adapter.model.options import ExecutionOptions, Input
from plan_adapter.model.plan import Rollback, Step

NO_APPROVAL = ExecutionOptions(require_approval=False)


def do(name: str, what: str, *after: str, undo: bool = False, **fields: Any) -> Step:
    """Return a step that does `what`; with `undo`, its rollback undoes it."""
    rollback = Rollback(tool_name="do", parameters={"what": f"un{what}"}) if undo else None
    return Step(id=name, tool_name="do", parameters={"what": what}, depends_on=[*after], rollback=rollback, **fields)


def site(*steps: Step, **fields: Any) -> ExecutionPlan:
    """Return a plan with the input `site` that checks and marks it."""
    own = steps or (do("check", "check ${{ inputs.site }}", undo=True), do("mark", "mark ${{ steps.check.result }}", undo=True))
    outputs = {} if steps else {"marked": "${{ steps.mark.result }}"}
    given: dict[str, Any] = {
        "name": "verify-site",
        "description": "Verify a site",
        "inputs": {"site": Input(description="Which")},
        "options": NO_APPROVAL.model_copy(),
        "outputs": outputs,
        **fields,
    }
    return ExecutionPlan(steps=[*own], **given)


def around(plan: ExecutionPlan, *after: Step, before: tuple[Step, ...] = (), **fields: Any) -> ExecutionPlan:
    """Return a plan whose step `verify` runs `plan` for the site in its own input `where`."""
    verify = Step(id="verify", plan="store:verify-site@3", pinned=plan, inputs={"site": "${{ inputs.where }}"}, **fields)
    verify.depends_on = [step.id for step in before]
    return ExecutionPlan(
        name="move",
        description="Move to another site",
        inputs={"where": Input(default="北京")},
        steps=[*before, verify, *after],
        options=NO_APPROVAL.model_copy(),
    )
