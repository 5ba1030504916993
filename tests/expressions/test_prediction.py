"""Tests of predicted values: expressions of inputs are resolved ahead of the run, within a memory limit."""

import pytest
from pydantic import JsonValue

from plan_adapter.expressions import Prediction, compile_template
from tests.expressions.builders import DECLARED, VALUES


def predicted(value: JsonValue, **options: int) -> JsonValue:
    template, problems = compile_template(value, DECLARED, at="here")
    assert problems == []
    return Prediction(VALUES.inputs, **options).of(template)


def test_expressions_of_inputs_are_resolved_and_others_are_unchanged() -> None:
    value = {
        "whole": ["${{ inputs.count }}", "${{ inputs.count + 1 }}", "${{ 1 + 1 }}"],
        "joined": "n: ${{ inputs.count }} of ${{ inputs.names }}",
        "mapped": "${{ inputs.names.map(name, name + '!') }}",
        "later": ["${{ steps.check.result }}", "${{ item }}", "${{ inputs.host + steps.check.status }}"],
        "impossible": "${{ 1 / (inputs.count - 3) }}",
    }
    assert predicted(value) == {
        "whole": [3, 4, 2],
        "joined": 'n: 3 of ["p", "q"]',
        "mapped": ["p!", "q!"],
        "later": ["${{ steps.check.result }}", "${{ item }}", "${{ inputs.host + steps.check.status }}"],
        "impossible": "${{ 1 / (inputs.count - 3) }}",
    }


def test_without_inputs_only_expressions_that_use_none_are_resolved() -> None:
    template, _ = compile_template(["${{ 1 + 1 }}", "${{ inputs.host }}"], DECLARED, at="here")
    assert Prediction(None).of(template) == [2, "${{ inputs.host }}"]


@pytest.mark.parametrize(
    "code",
    [
        "['aaaaaaaaaa']" + ".map(s, s + s)" * 26,
        "'aaaaaaaaaa'" + ".replace('a', 'aaaaaaaaaa')" * 8,
        "'%.999999f'.format([1.0])",
        "['aaaaaaaaaa'].map(s, s.replace('a', s)).map(s, s.replace('a', s)).map(s, s.replace('a', s))",
    ],
)
def test_an_expression_that_may_grow_without_bound_is_not_evaluated(code: str) -> None:
    assert predicted(f"${{{{ {code} }}}}") == f"${{{{ {code} }}}}"


def test_the_total_size_of_predicted_values_is_limited() -> None:
    text = "${{ inputs.host }} " * 10
    assert predicted([text, text, "x"], characters=250) == ["web-1 " * 10, text, "x"]
