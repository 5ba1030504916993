"""Tests of inputs of type `secret`: their definitions and values, the secrets of a bound plan, and what sub-plans get."""

from collections.abc import Mapping
from typing import Any

import pytest

from plan_adapter import ExecutionPlan
from plan_adapter.errors import InvalidPlanError
from plan_adapter.model.canonical import plan_digest
from plan_adapter.model.options import Input, Trigger
from plan_adapter.model.plan import Rollback, Step
from plan_adapter.model.problems import Problem
from plan_adapter.text.changes import difference_lines
from plan_adapter.validation import BoundPlan, bind_inputs, lint, validate
from plan_adapter.validation.inputs import form_schema, inputs_schema
from tests.validation.builders import TOOLS, found, plan, step

PASSWORD = {"password": Input(type="secret", description="Of the database")}
USE = "${{ inputs.password }}"


def problems_of(plan: ExecutionPlan, inputs: Mapping[str, object], *, from_text: bool = True) -> list[Problem]:
    with pytest.raises(InvalidPlanError) as refused:
        bind_inputs(validate(plan, TOOLS), inputs, from_text=from_text)
    return refused.value.problems


def pushing(value: Any = USE, **fields: Any) -> ExecutionPlan:
    """Return a plan whose step pushes `value`."""
    return plan(step("push", parameters={"value": value}), inputs=fields.pop("inputs", PASSWORD), **fields)


def bound(plan: ExecutionPlan, **inputs: object) -> BoundPlan:
    return bind_inputs(validate(plan, TOOLS), inputs)


@pytest.mark.parametrize(
    "value",
    [
        "two words",
        "",
        "prod db",
        "x" * 65,
        "p@ssw0rd!",
        "kunde-密码",
        "sk-1234567890abcdef",
        "ghp_0123456789abcdefghij",
        "AKIA0123456789ABCDEF",
        "0123456789abcdef0123456789abcdef",
        "AWS/Secret",
        "${{ inputs.other }}",
    ],
)
@pytest.mark.parametrize("from_text", [True, False])
def test_what_is_no_name_is_refused_without_showing_it(value: str, from_text: bool) -> None:
    (problem,) = problems_of(pushing(), {"password": value}, from_text=from_text)
    assert (problem.code, problem.at) == ("bad-input", "inputs.password")
    assert "not the name of a secret" in problem.message and "never its value" in problem.hint
    assert not value or value not in str(problem)


@pytest.mark.parametrize("value", [7, True, None, ["prod-db"]])
def test_only_a_text_is_a_name(value: object) -> None:
    (problem,) = problems_of(pushing(), {"password": value}, from_text=False)
    assert (problem.code, problem.at) == ("bad-input", "inputs.password")


@pytest.mark.parametrize("name", ["prod-db", "PROD_DB", "_x", "db.prod", "aws-secret/prod", "desk-database", "a"])
def test_a_name_is_written_as_after_secrets(name: str) -> None:
    found = bound(pushing(f"{USE} x"), password=name)
    as_written = bound(pushing(f'${{{{ secrets["{name}"] }}}} x', inputs={}))
    assert found.validated.secrets == as_written.validated.secrets == {name}
    assert found.validated.parameters["push"].secrets == {name}


def test_a_missing_value_says_that_a_name_is_wanted() -> None:
    (problem,) = problems_of(pushing(), {})
    assert (problem.code, problem.hint) == ("missing-input", "give the name of a secret: --input password=…")


def test_definitions_are_checked() -> None:
    wrong = {
        "a": Input(type="secret", default="two words"),
        "b": Input(type="secret", enum=["prod-db", "sk-1234567890abcdef"]),
        "c": Input(type="secret", pattern="^prod-"),
        "d": Input(type="secret", min_length=3),
    }
    checked = pushing([f"${{{{ inputs.{name} }}}}" for name in wrong], inputs=wrong)
    assert sorted(found(checked)) == [
        ("bad-input-definition", "inputs.a.default"),
        ("bad-input-definition", "inputs.b.enum[1]"),
        ("bad-input-definition", "inputs.c.pattern"),
        ("bad-input-definition", "inputs.d.min_length"),
    ]
    assert "two words" not in str(lint(checked, TOOLS)) and "sk-12" not in str(lint(checked, TOOLS))
    with pytest.raises(ValueError, match="items"):
        Input(type="array", items="secret")  # pyright: ignore[reportArgumentType]


def test_the_choices_and_the_default_are_names() -> None:
    chosen = {"password": Input(type="secret", enum=["staging-db", "prod-db"], default="staging-db")}
    assert bound(pushing(inputs=chosen)).validated.secrets == {"staging-db"}
    assert bound(pushing(inputs=chosen), password="prod-db").validated.secrets == {"prod-db"}
    (problem,) = problems_of(pushing(inputs=chosen), {"password": "other-db"})
    assert (problem.code, "other-db" in str(problem)) == ("bad-input", False)
    assert validate(pushing(inputs=chosen), TOOLS).secrets == {"staging-db"}  # what is known before a run
    assert validate(pushing(), TOOLS).secrets == frozenset()


def test_forms_and_schemas_ask_for_a_name() -> None:
    form = form_schema({"password": Input(type="secret", description="Of the database", enum=["prod-db"])})["properties"]
    assert isinstance(form, dict)
    assert form["password"] == {
        "type": "string",
        "enum": ["prod-db"],
        "pattern": form["password"]["pattern"],  # pyright: ignore[reportArgumentType, reportCallIssue, reportOptionalSubscript, reportIndexIssue]
        "description": "Of the database. The name of a secret, never its value.",
        "title": "password",
        "position": 0,
    }
    assert "The name of a secret, never its value." in str(inputs_schema(PASSWORD))


def test_a_question_cannot_ask_for_one() -> None:
    asks = Step(id="ask", ask={"question": "Which?", "fields": {"account": {"type": "secret"}}})  # pyright: ignore[reportArgumentType]
    assert found(plan(asks)) == [("bad-input-definition", "steps[0].ask.fields.account.type")]


@pytest.mark.parametrize(
    ("fields", "place"),
    [
        ({"when": "${{ inputs.password == 'x' }}"}, "steps[0].when"),
        ({"for_each": "${{ [inputs.password] }}"}, "steps[0].for_each"),
        ({"for_each": "${{ ['a'] }}", "label": USE}, "steps[0].label"),
        ({"done_when": "${{ result == inputs.password }}"}, "steps[0].done_when"),
    ],
)
def test_a_field_of_a_step_cannot_use_it(fields: dict[str, Any], place: str) -> None:
    assert ("misplaced-secret", place) in found(plan(step("push", parameters={"value": USE}, **fields), inputs=PASSWORD))


@pytest.mark.parametrize("fields", [{"outputs": {"x": USE}}, {"run_name": f"run {USE}"}, {"permissions": "${{ [inputs.password] }}"}])
def test_a_field_of_a_plan_cannot_use_it(fields: dict[str, Any]) -> None:
    assert ("misplaced-secret", "outputs.x" if "outputs" in fields else next(iter(fields))) in found(pushing(**fields))


def test_the_digest_of_the_plan_has_no_name_and_the_approval_has_it() -> None:
    checked = pushing()
    one, other = bound(checked, password="prod-db"), bound(checked, password="staging-db")
    assert one.validated.digest == other.validated.digest == plan_digest(checked)
    assert one.approval_digest != other.approval_digest


def test_a_plan_can_be_bound_again() -> None:
    first = bound(pushing(), password="prod-db")
    assert bind_inputs(first.validated, {"password": "prod-db"}) == first


def test_a_rollback_uses_the_secret_too() -> None:
    undo = Rollback(tool_name="push", parameters={"value": f"{USE} ${{{{ result }}}}"})
    found = bound(plan(step("push", rollback=undo), inputs=PASSWORD), password="prod-db")
    assert found.validated.rollbacks["push"].parameters.secrets == {"prod-db"} == found.validated.secrets


def test_a_difference_shows_the_names_and_no_value_of_another_type() -> None:
    before, after = (pushing(inputs={"password": Input(type="secret", default=name)}) for name in ("staging-db", "prod-db"))
    (line,) = difference_lines(before, after)
    assert "staging-db" in line and "prod-db" in line
    plain = pushing(inputs={"password": Input(default="hunter2-hunter2")})
    assert "hunter2" not in str(difference_lines(plain, after))


def test_a_trigger_gives_a_name() -> None:
    checked = pushing(triggers=[Trigger(event="db.slow", inputs={"password": "prod-db"})])
    assert found(checked) == []
    wrong = pushing(triggers=[Trigger(event="db.slow", inputs={"password": "not a name"})])
    assert found(wrong) == [("bad-input", "triggers[0].inputs.password")]
    (trigger,) = validate(pushing(triggers=[Trigger(event="e", inputs={"password": "${{ event.payload.db }}"})]), TOOLS).triggers
    event: dict[str, Any] = {"id": "1", "name": "e", "payload": {"db": "prod-db"}}
    assert trigger.inputs_of(checked, event) == {"password": "prod-db"}
    with pytest.raises(InvalidPlanError, match="not the name of a secret"):
        trigger.inputs_of(checked, event | {"payload": {"db": "hunter two"}})


# Secrets that steps create


def created(*, after: bool) -> ExecutionPlan:
    use = step("use", parameters={"value": USE}, depends_on=["make"] if after else [])
    return plan(step("make", creates_secrets=["prod-db"]), use, inputs=PASSWORD)


def test_a_secret_that_a_step_creates_must_be_used_after_it() -> None:
    assert bound(created(after=True), password="prod-db").validated.secrets == {"prod-db"}
    assert bound(created(after=False), password="other-db").validated.secrets == {"other-db"}
    (problem,) = problems_of(created(after=False), {"password": "prod-db"})
    assert (problem.code, problem.at) == ("early-secret", "steps[1].parameters")
    assert found(created(after=True)) == []  # an input may name it, so it is not unused


# Sub-plans


def sub_plan(*, inner: dict[str, Input] | None = None, inputs: dict[str, Any] | None = None, **fields: Any) -> ExecutionPlan:
    """Return a plan with the input `account`, whose step `run` runs a plan with the input `password`."""
    pinned = pushing(name="inner", inputs=inner or PASSWORD)
    given = {"password": "${{ inputs.account }}"} if inputs is None else inputs
    run = Step(id="run", plan="store:inner@1", pinned=pinned, inputs=given)
    return ExecutionPlan(description="Outer", steps=[run], inputs={"account": Input(type="secret"), "other": Input(default="x")}, **fields)


def errors_of(checked: ExecutionPlan) -> list[tuple[str, str]]:
    return [(problem.code, problem.at) for problem in lint(checked, TOOLS) if problem.severity == "error"]


def test_a_sub_plan_gets_the_reference_and_not_the_value() -> None:
    found = bound(sub_plan(), account="prod-db").validated
    assert found.parameters["run"].source == {"password": "prod-db"}
    assert found.parameters["run.push"].source == {"value": '${{ secrets["prod-db"] }}'}
    assert found.secrets == {"prod-db"}


def test_a_sub_plan_gets_a_name() -> None:
    checked = sub_plan(inputs={"password": "prod-db"})
    assert errors_of(checked) == []
    assert bound(checked, account="unused").validated.secrets == {"prod-db"}
    default = sub_plan(inner={"password": Input(type="secret", default="prod-db")}, inputs={})
    assert bound(default, account="unused").validated.secrets == {"prod-db"}
    assert errors_of(sub_plan(inputs={"password": "no name"})) == [("bad-input", "steps[0].inputs.password")]


def test_a_sub_plan_in_a_sub_plan_gets_it_as_well() -> None:
    middle = Step(id="middle", plan="store:middle@1", pinned=sub_plan(name="middle"), inputs={"account": "${{ inputs.db }}"})
    checked = ExecutionPlan(description="Outermost", steps=[middle], inputs={"db": Input(type="secret")})
    found = bound(checked, db="prod-db").validated
    assert found.parameters["middle.run.push"].source == {"value": '${{ secrets["prod-db"] }}'}
    assert found.parameters["middle.run"].source == {"password": "prod-db"}


@pytest.mark.parametrize("value", ["${{ inputs.other }}", "${{ 'prod-' + inputs.other }}", "prod-${{ inputs.other }}"])
def test_no_other_expression_gives_a_sub_plan_the_name(value: str) -> None:
    checked = sub_plan(inputs={"password": value})
    assert errors_of(checked) == [("expression-type", "steps[0].inputs.password")]


def test_a_sub_plan_gets_no_secret_where_it_takes_a_text() -> None:
    checked = sub_plan(inner={"password": Input()})
    assert errors_of(checked) == [("misplaced-secret", "steps[0].inputs.password")]
    assert errors_of(sub_plan(inputs={"password": "${{ secrets.token }}"})) == [("misplaced-secret", "steps[0].inputs.password")]
