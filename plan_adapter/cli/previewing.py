"""Previews of validated plans with the inputs at hand."""

from typing import TYPE_CHECKING

from plan_adapter.approval import requires_approval
from plan_adapter.errors import InvalidPlanError
from plan_adapter.preview import Preview, preview_plan
from plan_adapter.settings import Settings
from plan_adapter.validation import BoundPlan, ValidatedPlan, bind_inputs

if TYPE_CHECKING:
    from collections.abc import Mapping


def preview_with(validated: ValidatedPlan, texts: "Mapping[str, str]") -> Preview:
    """Return the preview with these inputs; required ones may be missing. Raises InvalidPlanError for those that do not fit."""
    try:
        return preview_of(bind_inputs(validated, texts, from_text=True))
    except InvalidPlanError as error:
        if any(problem.code != "missing-input" for problem in error.problems):
            raise
    missing = tuple(name for name, spec in validated.plan.inputs.items() if spec.is_required and name not in texts)
    return preview_plan(validated, inputs=None, approval_digest=None, requires_approval=_is_asked(validated), missing=missing)


def preview_of(bound: BoundPlan) -> Preview:
    """Return the preview of a plan with all its inputs."""
    validated = bound.validated
    return preview_plan(validated, inputs=bound.inputs, approval_digest=bound.approval_digest, requires_approval=_is_asked(validated))


def _is_asked(validated: ValidatedPlan) -> bool:
    return requires_approval(validated.plan, allow_unapproved=Settings().allow_unapproved)
