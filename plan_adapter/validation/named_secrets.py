"""The secrets that inputs of type `secret` name.

Once the inputs of a run are known, an expression that uses such an input is rewritten to use the secret itself: every rule about secrets
holds for it, from gates to the call.
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import TYPE_CHECKING

from pydantic import JsonValue

from plan_adapter.expressions import Template, has_expression, passed_input
from plan_adapter.expressions.declarations import TypedInput
from plan_adapter.model.options import Input
from plan_adapter.model.plan import ExecutionPlan, Step
from plan_adapter.model.values import join
from plan_adapter.validation.findings import Findings

if TYPE_CHECKING:
    from plan_adapter.validation.validated import ValidatedPlan


def secret_inputs(inputs: Mapping[str, TypedInput]) -> list[str]:
    """Return the names of the inputs of type `secret`."""
    return [name for name, definition in inputs.items() if definition.type == "secret"]


def passed_secrets(step: Step, around: Mapping[str, TypedInput]) -> dict[str, str]:
    """Return the inputs of type `secret` that a step passes from the plan around it to its own, by their name in its plan."""
    passed = {name: passed_input(step.inputs.get(name)) for name in secret_inputs({} if step.pinned is None else step.pinned.inputs)}
    known = secret_inputs(around)
    return {name: outer for name, outer in passed.items() if outer in known}


def check_passed_secrets(step: Step, at: str, passed: Mapping[str, str], compiled: Template, findings: Findings) -> list[str]:
    """Return the inputs of type `secret` that `step` gives its plan as expressions, and add a problem for those that are not `passed`.

    `compiled` has the others. If one does not compile, that is its problem.
    """
    named = secret_inputs({} if step.pinned is None else step.pinned.inputs)
    given = {name: value for name in named if isinstance(value := step.inputs.get(name), str) and has_expression(value)}
    for name in [name for name, value in given.items() if name not in passed and value in compiled.texts]:
        message = f"an expression cannot give the name of a secret to `{name}`: it is shown and checked before anything runs"
        hint = "write the name, or pass an input of type `secret` of this plan: `${{ inputs.NAME }}`"
        findings.add("expression-type", join(f"{at}.inputs", name), message, hint)
    return [*given]


def find_named_secrets(plan: ExecutionPlan, inputs: Mapping[str, object]) -> dict[str, dict[str, str]]:
    """Return the secrets that `inputs` of a run name, by input, for each plan by the step that runs it. The whole plan has the id "".

    An input that `inputs` lacks has its default. A plan without such inputs is left out.
    """
    found = {"": _names_given(plan.inputs, inputs, {})}
    for step in plan.all_steps:
        if isinstance(step.pinned, ExecutionPlan):  # Python code may set a mapping, which validation converts
            around = found.get("" if step.within is None else step.within.id, {})
            found[step.id] = _names_given(step.pinned.inputs, step.inputs, around)
    return {runner: names for runner, names in found.items() if names}


def _names_given(definitions: Mapping[str, Input], given: Mapping[str, object], around: Mapping[str, str]) -> dict[str, str]:
    found = dict[str, str]()
    for name in secret_inputs(definitions):
        value = given.get(name, definitions[name].default)
        outer = passed_input(value)
        if outer is not None:
            value = around.get(outer)
        if isinstance(value, str):
            found[name] = value
    return found


def name_secrets(validated: "ValidatedPlan", inputs: Mapping[str, object]) -> "ValidatedPlan":
    """Return `validated` as if it had been written with the secrets that `inputs` name."""
    named = find_named_secrets(validated.plan, inputs)
    if not named:
        return validated
    parameters = {step_id: _named_at(validated.steps[step_id], template, named) for step_id, template in validated.parameters.items()}
    rollbacks = {
        step_id: replace(call, parameters=_named_at(validated.steps[step_id], call.parameters, named))
        for step_id, call in validated.rollbacks.items()
    }
    return replace(
        validated,
        parameters=MappingProxyType(parameters),
        rollbacks=MappingProxyType(rollbacks),
        secrets=secrets_in([*parameters.values(), *(call.parameters for call in rollbacks.values())]),
        named_secrets=MappingProxyType(named),
    )


def secrets_in(templates: Iterable[Template]) -> frozenset[str]:
    """Return the names of the secrets that `templates` use."""
    return frozenset(name for template in templates for name in template.secrets)


def _named_at(step: Step, template: Template, named: Mapping[str, Mapping[str, str]]) -> Template:
    """Return a template of `step` with the secrets that the inputs of its plan name. A step that runs a plan gives it these names."""
    if (names := named.get("" if step.within is None else step.within.id)) is not None:
        template = template.with_named_secrets(names)
    source: JsonValue = template.source
    if step.pinned is not None and isinstance(source, dict) and (given := named.get(step.id)) is not None:
        template = replace(template, source={**source, **{name: given[name] for name in given if name in source}})
    return template
