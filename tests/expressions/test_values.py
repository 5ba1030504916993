"""Tests of the values that expressions resolve to."""

import math
import pickle
from typing import Any

import pytest

from plan_adapter.expressions import Declarations, Variables, compile_template, has_expression
from plan_adapter.expressions.references import replace_strings
from plan_adapter.model.status import StepStatus
from tests.expressions.builders import DECLARED, VALUES, resolve


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("${{ steps.check.result }}", VALUES.steps["check"]["result"]),
        ("${{ steps.check.result.rows[1].name }}", "}}"),
        ("${{ steps.check.result['rows'][0] }}", 1),
        ("${{steps.check.status}}", "completed"),
        ("${{ steps.check.error }}", None),
        ('${{ steps["my-step"].error }}', "boom"),
        ("${{ steps['my-step'].result + 1 }}", 6),
        ("${{ steps.for.result }}", None),
        ("${{ inputs.count }}", 3),
        ("${{ inputs.count * 2 }}", 6),
        ("${{ inputs.share * 2.0 }}", 4),
        ("${{ double(-0) }}", 0),
        ("${{ inputs.shares.map(s, s * 2.0) }}", [2.0, 5.0]),
        ("${{ inputs.force || true }}", True),
        ("${{ inputs.names.map(n, n + '!') }}", ["p!", "q!"]),
        ("${{ inputs.labels.team }}", None),
        ("${{ item.id + result[1] }}", 3),
        ("${{ {'a': {'b': 1}}}}", {"a": {"b": 1}}),
        ("${{ [1, 2.5, 'x', null, true] }}", [1, 2.5, "x", None, True]),
        ("${{ has(steps.check.result.nothing) }}", False),
        ("${{ steps.check.result.text.trim() }}", "x"),
        ("${{ steps.check.result['a-b'] - 1 }}", 6),
        ("${{ '中文' + inputs.host }}", "中文web-1"),
        ("${{ steps.check.status == 'completed' && steps['my-step'].status == 'failed' }}", True),
        ("${{ [3].map(item, item + 1) }}", [4]),
    ],
)
def test_a_single_expression_keeps_the_type_of_its_value(text: str, value: Any) -> None:
    found = resolve(text)
    assert (found, type(found)) == (value, type(value))


def test_expressions_within_text_are_joined_with_non_strings_as_json() -> None:
    text = "${{ inputs.host }}: ${{ null }}, ${{ inputs.force }}, ${{ 1 }}, ${{ 1.0 }}, ${{ ['中', 1] }}"
    assert resolve(text) == 'web-1: null, false, 1, 1.0, ["中", 1]'


def test_white_space_around_an_expression_makes_it_text_unless_a_type_is_expected() -> None:
    assert resolve(" ${{ inputs.count }}") == " 3"
    assert resolve("${{ inputs.count > 1 }}\n", expect="bool") is True


def test_every_string_of_a_tree_is_resolved_and_other_values_are_unchanged() -> None:
    tree = {"a": ["${{ inputs.count }}", 1, None, {"b": "x-${{ inputs.host }}"}], "c": 1.5, "d": True}
    assert resolve(tree) == {"a": [3, 1, None, {"b": "x-web-1"}], "c": 1.5, "d": True}


def test_the_result_of_an_expression_is_not_evaluated_again() -> None:
    template, problems = compile_template(["${{ inputs.host }}", "x ${{ inputs.host }}"], DECLARED, at="")
    assert not problems
    hostile = Variables(steps={}, inputs={"host": "${{ inputs.count }}"})
    assert template.resolve(hostile) == ["${{ inputs.count }}", "x ${{ inputs.count }}"]


def test_braces_in_strings_and_maps_do_not_end_an_expression() -> None:
    assert resolve("${{ '}}' + \"}}\" }}") == "}}}}"
    assert resolve("${{ '''a'}}''' }}") == "a'}}"
    assert resolve(r"${{ 'it\'s }}' }}") == "it's }}"
    assert resolve(r"${{ r'\d}}' }}") == r"\d}}"
    assert resolve("${{ {'a': {}} }}}}") == '{"a": {}}}}'
    assert resolve("}} ${{ '${{' }} {{ }}") == "}} ${{ {{ }}"


def test_references_in_strings_and_comments_are_text() -> None:
    template, problems = compile_template("${{ 'steps.gone.result' + \"inputs.gone\" // steps.gone\n }}", DECLARED, at="")
    assert not problems
    assert template.resolve(VALUES) == "steps.gone.resultinputs.gone"
    assert not template.steps


def test_a_template_lists_the_steps_and_inputs_it_uses() -> None:
    template, _ = compile_template(["${{ steps.check.result }}", "${{ steps['my-step'].result + inputs.count }}"], DECLARED, at="")
    assert (template.steps, template.inputs) == (frozenset({"check", "my-step"}), frozenset({"count"}))


def test_a_constant_is_copied_each_time() -> None:
    written: Any = {"list": [1]}
    template, _ = compile_template(written, DECLARED, at="")
    first: Any = template.resolve(VALUES)
    first["list"].append(2)
    assert template.resolve(VALUES) == {"list": [1]}


def test_changing_the_result_of_an_expression_does_not_change_the_run() -> None:
    variables = Variables(steps={"check": {"result": {"rows": [1]}}}, inputs={})
    template, _ = compile_template("${{ steps.check.result }}", DECLARED, at="")
    found: Any = template.resolve(variables)
    found["rows"].append(2)
    assert variables.steps["check"]["result"] == {"rows": [1]}


def test_the_status_of_a_step_is_plain_text() -> None:
    variables = Variables(steps={"check": {"status": StepStatus.COMPLETED, "result": 1}}, inputs={})
    template, _ = compile_template(["${{ steps.check.status }}", "${{ steps.check.status == 'completed' }}"], DECLARED, at="")
    found: Any = template.resolve(variables)
    assert found == ["completed", True]
    assert type(found[0]) is str


def test_a_template_can_be_pickled() -> None:
    template, _ = compile_template({"n": "${{ inputs.count + 1 }}"}, DECLARED, at="")
    assert pickle.loads(pickle.dumps(template)).resolve(VALUES) == {"n": 4}


def test_a_large_integer_keeps_its_value() -> None:
    variables = Variables(steps={}, inputs={"count": 2**53 - 1})
    template, _ = compile_template("${{ inputs.count + 1 }}", DECLARED, at="")
    assert template.resolve(variables) == 2**53


def test_an_integer_given_for_a_number_works_in_arithmetic() -> None:
    assert math.isclose(resolve("${{ inputs.share / 4.0 }}"), 0.5)


def test_has_expression_looks_for_the_opening() -> None:
    assert has_expression("a ${{ b")
    assert not has_expression("$ {{ a }} ${b}")


def test_only_given_names_are_declared() -> None:
    _, problems = compile_template("${{ item }} ${{ result }}", Declarations((), {}), at="x")
    assert [problem.code for problem in problems] == ["unknown-reference"] * 2


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("result == 'web-1' || \"web-1\" in inputs.names", "result == x || x in inputs.names"),
        ("steps.a.result['web-1'] + steps[\"web-1\"].status", "steps.a.result['web-1'] + steps[\"web-1\"].status"),
        ("secrets['web-1']", "secrets['web-1']"),
        ("r'web-1' + b'web-1' + 'web-10' // 'web-1'", "r'web-1' + b'web-1' + 'web-10' // 'web-1'"),
        ("['web-1', item['web-1'], {'web-1': 1}]", "[x, item['web-1'], {x: 1}]"),
        ("'''web-1''' + 'it\\'s' + 'web-1'", "'''web-1''' + 'it\\'s' + x"),
    ],
)
def test_a_constant_is_replaced_where_it_names_nothing(code: str, expected: str) -> None:
    assert replace_strings(code, "web-1", "x") == expected
