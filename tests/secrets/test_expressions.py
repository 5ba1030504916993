"""Tests of `secrets.name` in expressions: where it is allowed, and what is shown instead of the value."""

from typing import Any

import pytest

from plan_adapter.expressions import Declarations, Template, Variables, compile_template
from plan_adapter.model.options import Input
from plan_adapter.model.plan import ExecutionPlan, Rollback, Step
from plan_adapter.tools.deployment import run_deployment
from plan_adapter.tools.registry import ToolRegistry
from plan_adapter.tools.tool import tool
from plan_adapter.validation import find_problems, validate

DECLARED = Declarations(frozenset({"check"}), {"user": Input(type="string")}, item=True, secrets=True)
VARIABLES = Variables(
    steps={"check": {"result": {"id": 7}, "status": "completed"}},
    inputs={"user": 'a"b'},
    item={"n": [1]},
    secrets={"token": "T0ken", "a/b": "block", "my-key": "dashed"},
)


@tool
def push(value: Any = None) -> None:
    """Push a value."""


def compiled(value: Any) -> Template:
    template, problems = compile_template(value, DECLARED, at="here")
    assert problems == []
    return template


@pytest.mark.parametrize(
    ("written", "value", "shown"),
    [
        ("${{ secrets.token }}", "T0ken", "${{ secrets.token }}"),
        ("Bearer ${{secrets.token}} of ${{ inputs.user }}", 'Bearer T0ken of a"b', 'Bearer ${{ secrets.token }} of a"b'),
        ('${{ secrets["my-key"] }}', "dashed", '${{ secrets["my-key"] }}'),
        ('${{ secrets["a/b"] + "!" }}', "block!", '${{ secrets["a/b"] + "!" }}'),
        ("${{ 'Bearer ' + secrets.token }}", "Bearer T0ken", "${{ 'Bearer ' + secrets.token }}"),
        ("${{ inputs.user + ':' + secrets.token }}", 'a"b:T0ken', '${{ "a\\"b" + \':\' + secrets.token }}'),
        ("${{ [secrets.token, item.n[0], steps.check.result.id] }}", ["T0ken", 1, 7], "${{ [secrets.token, 1, 7] }}"),
        ("${{ size(secrets.token) }}", 5, "${{ size(secrets.token) }}"),
        ("${{ secrets.token == 'T0ken' ? 'x' : 'y' }}", "x", "${{ secrets.token == 'T0ken' ? 'x' : 'y' }}"),
        ("${{ 'secrets.token' + inputs.user }}", 'secrets.tokena"b', 'secrets.tokena"b'),
    ],
)
def test_only_the_tool_gets_the_value_and_everything_else_the_expression(written: str, value: Any, shown: Any) -> None:
    template = compiled({"deep": [written]})
    assert template.resolve(VARIABLES) == {"deep": [value]}
    assert template.resolve_except_secrets(VARIABLES) == {"deep": [shown]}


def test_a_template_lists_the_secrets_it_uses() -> None:
    assert compiled(["${{ secrets.token }}", {"a": "x${{ secrets['a/b'] + secrets.token }}"}]).secrets == {"token", "a/b"}
    assert compiled("${{ 'secrets.token' }}").secrets == frozenset()


def test_rendering_the_expression_needs_no_value() -> None:
    nothing = Variables(steps={}, inputs={})
    assert (
        compiled("${{ secrets.token + steps.check.result.id }}").resolve_except_secrets(nothing)
        == "${{ secrets.token + steps.check.result.id }}"
    )


@pytest.mark.parametrize(
    ("written", "code", "message"),
    [
        ("${{ secrets }}", "unknown-reference", "names no secret"),
        ("${{ secrets[inputs.user] }}", "unknown-reference", "names no secret"),
        ("${{ secrets[0] }}", "unknown-reference", "names no secret"),
        ("${{ secrets.my-key }}", "hyphenated-id", "secrets.my-key"),
        ("${{ secrets.token.part }}", "expression-type", "a text has no `part`"),
        ("${{ secrets.token + 1 }}", "expression-type", "string()"),
        ('${{ secrets["../x"] }}', "bad-secret-name", "../x"),
        ('${{ secrets["a b"] }}', "bad-secret-name", "a b"),
        ('${{ secrets["a/b/c"] }}', "bad-secret-name", "a/b/c"),
        ('${{ secrets["密码"] }}', "bad-secret-name", "密码"),
        ('${{ secrets["x."] }}', "bad-secret-name", "x."),
        (f'${{{{ secrets["{"x" * 65}"] }}}}', "bad-secret-name", "xxx"),
    ],
)
def test_an_invalid_secret_reference_is_refused(written: str, code: str, message: str) -> None:
    (problem,) = compile_template(written, DECLARED, at="here")[1]
    assert problem.code == code
    assert message in problem.message + problem.hint


@pytest.mark.parametrize(
    ("fields", "at"),
    [
        ({"when": "${{ secrets.token == 'a' }}"}, "when"),
        ({"for_each": "${{ [secrets.token] }}"}, "for_each"),
        ({"done_when": "${{ result == secrets.token }}"}, "done_when"),
        ({"parameters": {"value": {"${{ secrets.token }}": 1}}}, "parameters.value.${{ secrets.token }}"),
    ],
)
def test_only_tool_parameters_may_use_a_secret(fields: dict[str, Any], at: str) -> None:
    plan = ExecutionPlan(description="Push", steps=[Step(**({"id": "a", "tool_name": "push", "description": "Push"} | fields))])
    (problem, *_) = find_problems(plan, ToolRegistry([push]))
    assert (problem.code, problem.at) in (("misplaced-secret", f"steps[0].{at}"), ("expression-syntax", f"steps[0].{at}"))


def test_outputs_may_not_use_a_secret_and_rollbacks_may() -> None:
    undo = Rollback(tool_name="push", parameters={"value": "${{ secrets.undo }}"})
    step = Step(id="a", tool_name="push", description="Push", parameters={"value": "${{ secrets.token }}"}, rollback=undo)
    assert validate(ExecutionPlan(description="Push", steps=[step]), ToolRegistry([push])).secrets == {"token", "undo"}
    plan = ExecutionPlan(description="Push", steps=[step], outputs={"out": "${{ secrets.token }}"})
    assert [(problem.code, problem.at) for problem in find_problems(plan, ToolRegistry([push]))] == [("misplaced-secret", "outputs.out")]


def test_deployments_get_no_secret_because_prefect_would_store_it() -> None:
    parameters: dict[str, Any] = {"name": "flow/deployment", "parameters": {"token": "${{ secrets.token }}"}}
    step = Step(id="a", tool_name="run_deployment", description="Run it", parameters=parameters)
    (problem,) = find_problems(ExecutionPlan(description="Run it", steps=[step]), ToolRegistry([run_deployment]))
    assert (problem.code, problem.at) == ("misplaced-secret", "steps[0].parameters.parameters.token")


INNER = ExecutionPlan(
    description="Inner",
    inputs={"value": Input(type="string"), "others": Input(type="array", default=[]), "more": Input(type="object", default={})},
    steps=[Step(id="go", tool_name="push", parameters={"value": ["${{ inputs.value }}", "${{ inputs.others }}", "${{ inputs.more }}"]})],
)


@pytest.mark.parametrize(
    ("inputs", "at"),
    [
        ({"value": "${{ secrets.token }}"}, "value"),
        ({"value": "Bearer ${{ secrets.token }}"}, "value"),
        ({"value": "a", "others": ["b", "${{ secrets['my-key'] }}"]}, "others[1]"),
        ({"value": "a", "more": {"auth": {"密码": "${{ secrets.token + 'x' }}"}}}, "more.auth.密码"),
    ],
)
def test_a_sub_plan_gets_no_secret_as_an_input(inputs: dict[str, Any], at: str) -> None:
    part = Step(id="part", plan="inner.yaml", pinned=INNER.model_copy(deep=True), inputs=inputs)
    outer = ExecutionPlan(description="Outer", steps=[part])
    (problem,) = find_problems(outer, ToolRegistry([push]))
    assert (problem.code, problem.at) == ("misplaced-secret", f"steps[0].inputs.{at}")
    around = ExecutionPlan(description="Around", steps=[Step(id="outer", plan="outer.yaml", pinned=outer)])
    (problem,) = find_problems(around, ToolRegistry([push]))
    assert (problem.code, problem.at) == ("misplaced-secret", f"steps[0].pinned.steps[0].inputs.{at}")


def test_a_step_of_a_sub_plan_may_use_a_secret_itself() -> None:
    inner = ExecutionPlan(description="Inner", steps=[Step(id="go", tool_name="push", parameters={"value": "${{ secrets.token }}"})])
    plan = ExecutionPlan(description="Outer", steps=[Step(id="part", plan="inner.yaml", pinned=inner)])
    assert validate(plan, ToolRegistry([push])).secrets == {"token"}
