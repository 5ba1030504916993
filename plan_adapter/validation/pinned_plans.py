"""Checks the steps that run another plan: their fields, the inputs that they give it, and what that plan cannot have inside another."""

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from plan_adapter.expressions import Template
from plan_adapter.expressions.cel import words_of_kind
from plan_adapter.expressions.expression import Expression
from plan_adapter.model.inventory import ON
from plan_adapter.model.options import TEXT_TYPES
from plan_adapter.model.plan import ExecutionPlan, Step
from plan_adapter.model.problems import Problem
from plan_adapter.model.values import join
from plan_adapter.validation.findings import Findings
from plan_adapter.validation.hosts import find_bad_limit
from plan_adapter.validation.inputs import read_values

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping

    from pydantic import JsonValue

    from plan_adapter.model.options import Input

CODE = "bad-sub-plan"

_TYPES: "Mapping[str, tuple[str, ...]]" = {
    "string": ("string", *TEXT_TYPES),
    "int": ("integer", "number"),
    "double": ("integer", "number"),
    "bool": ("boolean",),
    "list": ("array",),
    "map": ("object",),
}
"""The types of inputs that take a value of each type of expression."""


@dataclass(frozen=True, slots=True)
class SubPlan:
    """The plan that a step runs, compiled. Its steps have the ids of the whole plan; its expressions use the ids of its document."""

    steps: "Mapping[str, tuple[str, ...]]"  # each with the siblings that it waits for; without the steps of groups
    outputs: "Mapping[str, Template]"  # by name


def check_sub_plan(step: Step, at: str, findings: Findings) -> None:
    """Add the problems of the fields of a step that runs a plan."""
    if step.for_each is not None:
        hint = "write a step with `plan` for each item"
        findings.add("not-yet", f"{at}.for_each", "a plan cannot be run once per item yet", hint)
    if step.requires_approval == "each":
        findings.add(CODE, f"{at}.requires_approval", "`each` is for groups", "write true")
    if step.plan is None:
        findings.add("missing-field", f"{at}.plan", "the step has a plan but not its name", "write `plan`")
    elif step.pinned is None:
        message = f"the plan `{step.plan[:80]}` was not loaded"
        findings.add(
            CODE, f"{at}.plan", message, "load this plan with `load_plan` or the command line, which also load the plans that it runs"
        )


def check_runs_no_plan(step: Step, at: str, where: str, findings: Findings) -> None:
    """Add a problem if a step runs a plan although a step of its kind cannot. `where` names the kind."""
    if step.plan is not None or step.pinned is not None:
        findings.add("not-yet", f"{at}.plan", f"{where} cannot run a plan yet", "write its steps here")


def check_inputs(step: Step, at: str, given: Template, findings: Findings, *, checked: "Collection[str]") -> None:
    """Add the problems of the inputs that a step gives its plan, except those that are `checked` already.

    Values with expressions are checked when the step begins.
    """
    if step.pinned is None:
        return
    inputs = {name: value for name, value in step.inputs.items() if name not in checked}
    open_values = {name: kind for name, value in inputs.items() if (kind := _expression_type(value, given)) is not None}
    unread = {*open_values, *checked}
    definitions = {name: definition for name, definition in step.pinned.inputs.items() if name not in unread}
    literals = {name: value for name, value in inputs.items() if name not in open_values or name not in step.pinned.inputs}
    values, problems = read_values(definitions, literals, from_text=False)
    if ON in definitions and not problems:
        problems = find_bad_limit(step.pinned, (), values)
    findings.extend(move_to_step(problem, at) for problem in problems)
    for name, definition in definitions.items():
        if definition.variable is not None and definition.default is not None and name not in step.inputs:
            message = f"no value for `{name}`: Prefect variables are read only when a run starts, not for a plan that a step runs"
            findings.add(
                "missing-input", f"{at}.inputs", message, "write it under `inputs` of the step, from an input with this `variable`"
            )
    for name, kind in open_values.items():
        definition = step.pinned.inputs.get(name)
        if definition is not None and kind != "dyn" and definition.type not in _TYPES[kind]:
            message = f"the value is {words_of_kind(kind)}, and the input `{name}` is of type {definition.type}"
            findings.add("expression-type", join(f"{at}.inputs", name), message, "convert it")


def move_to_step(problem: Problem, at: str) -> Problem:
    """Return `problem`, of an input, moved to the step that gives the input."""
    if problem.code == "missing-input":
        return replace(problem, at=f"{at}.inputs", hint="write it under `inputs` of the step")
    return replace(problem, at=f"{at}.{problem.at}")


def _expression_type(value: "JsonValue", given: Template) -> str | None:
    """Return the type of a value with expressions: that of a single expression, or `string` for a longer text. None without expressions."""
    if isinstance(value, str):
        parts = given.texts.get(value)
        if parts is None:
            return None
        return parts[0].kind.partition("(")[0] if len(parts) == 1 and isinstance(parts[0], Expression) else "string"
    if not any(text in given.texts for text in _texts_in(value)):
        return None
    return "map" if isinstance(value, dict) else "list"


def _texts_in(value: "JsonValue") -> "Iterator[str]":
    if isinstance(value, str):
        yield value
    members = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    for member in members:
        yield from _texts_in(member)


def check_as_sub_plan(plan: ExecutionPlan, findings: Findings) -> None:
    """Add a problem for each field of `plan` that it cannot have when another plan runs it."""
    options = plan.options
    for at, has, what in (
        ("finally", bool(plan.finally_), "`finally` steps"),
        ("concurrency", plan.concurrency is not None, "a concurrency key"),
        ("on_failure", plan.on_failure is not None, "`on_failure`"),
        ("options.run_window", options.run_window is not None, "a run window"),
        ("options.total_timeout_ms", bool(options.total_timeout_ms), "a total timeout"),
    ):
        if has:
            message = f"a plan that another plan runs cannot have {what} yet"
            findings.add("not-yet", at, message, "remove it here and write it in the plan around this one, or run this plan by itself")
    for at, has in (
        ("run_name", plan.run_name is not None),
        ("language", plan.language is not None),
        ("tags", bool(plan.tags)),
        ("approval.release", plan.approval is not None and plan.approval.release),
    ):
        if has:
            message = f"`{at}` is about a whole run, so it has no effect in a plan that another plan runs"
            findings.warn(CODE, at, message, "write it in the plan around this one, if it is meant for its runs")


def fill_inputs(definitions: "Mapping[str, Input]", given: "Mapping[str, JsonValue]") -> "tuple[dict[str, JsonValue], str]":
    """Return the inputs of a sub-plan, typed and with defaults, and what is wrong with them; empty if nothing is."""
    values, problems = read_values(definitions, given, from_text=False)
    return values, "; ".join(f"`{problem.at}`: {problem.message}" for problem in problems)
