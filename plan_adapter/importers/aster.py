"""`as_aster`: a plan as the JSON that Aster's executor reads."""

from typing import Any

from pydantic import JsonValue
from pydantic.alias_generators import to_pascal

from plan_adapter.expressions import has_expression
from plan_adapter.model.options import ExecutionOptions
from plan_adapter.model.plan import ExecutionPlan, Step, fields_of
from plan_adapter.model.readable import listed
from plan_adapter.validation import ValidatedPlan

_PLAN_FIELDS = ("name", "description", "metadata")
_STEP_FIELDS = ("tool_name", "description", "input", "parameters", "max_retries", "retry_delay_ms")
_OPTION_FIELDS = (
    "require_approval",
    "auto_approve",
    "approval_timeout_ms",
    "allow_parallel",
    "max_parallel_steps",
    "stop_on_error",
    "continue_on_error",
    "step_timeout_ms",
    "total_timeout_ms",
)
_SHOWN = 6


def as_aster(validated: ValidatedPlan) -> tuple[dict[str, JsonValue], list[str]]:
    """Return the plan in Aster's fields and PascalCase, and a note for everything that is left out or means something else there.

    Dependencies that only references imply are written out. A plan that needs no approval says so once, because `auto_approve` beside
    `require_approval` would contradict it. `plan import` reads the document back.
    """
    plan = validated.plan
    steps = list[dict[str, Any]]()
    document: dict[str, Any] = {
        "ID": plan.id,
        **_pascal_fields(plan, _PLAN_FIELDS),
        "Options": {**_pascal_fields(plan.options, _OPTION_FIELDS), "RequireApproval": plan.options.asks},
        "Steps": steps,
    }
    for step in plan.steps:
        after = [before for before in validated.dependencies[step.id] if validated.steps[before].outer is None]
        steps.append({"ID": step.id, "Index": step.index, **_pascal_fields(step, _STEP_FIELDS), "DependsOn": after})
    return document, [*_left_out_notes(plan), *_expression_notes(validated)]


def _pascal_fields(model: ExecutionPlan | Step | ExecutionOptions, names: tuple[str, ...]) -> dict[str, Any]:
    return {to_pascal(name): getattr(model, name) for name in names}


def _left_out_notes(plan: ExecutionPlan) -> list[str]:
    found = dict[str, list[str]]()
    for step in plan.steps:
        for name in _non_default_fields(step, (*_STEP_FIELDS, "id", "depends_on")):
            found.setdefault(name, []).append(f"`{step.id}`")
    notes = [f"left out: `{name}` of {listed(steps, _SHOWN)}" for name, steps in found.items()]
    notes += [f"left out: `{name}` of the plan" for name in _non_default_fields(plan, (*_PLAN_FIELDS, "id", "version", "steps", "options"))]
    return [*notes, *(f"left out: the option `{name}`" for name in _non_default_fields(plan.options, _OPTION_FIELDS))]


def _non_default_fields(model: ExecutionPlan | Step | ExecutionOptions, known: tuple[str, ...]) -> list[str]:
    """Return the document names of the fields that differ from their default and that Aster does not have."""
    fields = fields_of(type(model)).items()
    return [alias for name, (alias, default) in fields if name not in known and getattr(model, name) != default]


def _expression_notes(validated: ValidatedPlan) -> list[str]:
    steps = [f"`{step.id}`" for step in validated.plan.steps if has_expression(str(step.parameters) + step.input)]
    return [f"Aster does not evaluate `${{{{ }}}}`: write values in {listed(steps, _SHOWN)}"] if steps else []
