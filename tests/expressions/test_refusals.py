"""Tests of expressions refused before the run, and of their problems."""

from typing import Any

import pytest

from plan_adapter.expressions import Declarations
from tests.expressions.builders import DECLARED, INPUTS, NOTHING, refuse


@pytest.mark.parametrize(
    ("text", "code", "message", "hint"),
    [
        ("${{ steps.gone.result }}", "unknown-reference", "no step is called `gone`", "known: `check`"),
        ("${{ steps.chek.result + 1 }}", "unknown-reference", "`chek`", "did you mean `check`?"),
        ("${{ steps.check }}", "unknown-reference", "`steps.check` alone", "steps.check.result"),
        ("${{ steps.check.output }}", "unknown-reference", "a step has no `output`", ".result, .status or .error"),
        ('${{ steps["my-step"].out + 1 }}', "unknown-reference", "a step has no `out`", 'steps["my-step"].result'),
        ("${{ steps }}", "unknown-reference", "no step", "steps.<id>.result"),
        ("${{ steps[inputs.host].result }}", "unknown-reference", "no step", "steps.<id>.result"),
        ("${{ inputs.hots }}", "unknown-reference", "no input is called `hots`", "did you mean `host`?"),
        ("${{ inputs.hots + 'x' }}", "unknown-reference", "no input is called `hots`", "did you mean `host`?"),
        ("${{ inputs }}", "unknown-reference", "no input", "inputs.<name>"),
        ("${{ check.result }}", "unknown-reference", "`check.result`", "write steps.check.result"),
        ("${{ host }}", "unknown-reference", "`host`", "write inputs.host"),
        ("${{ web }}", "unknown-reference", "column 1", "write text in quotes"),
        ("${{ True }}", "unknown-reference", "`True`", "CEL writes `true`"),
        ("${{ steps.check.result.a-b }}", "unknown-reference", "there is no `b`", '["my-key"]'),
        ("${{ steps.check.result() }}", "unknown-reference", "`steps.check.result`", ""),
        ("${{ .steps.check.result }}", "unknown-reference", "steps.check.result", ""),
        ("${{ steps.my-step.result }}", "hyphenated-id", "`steps.my-step`", 'steps["my-step"]'),
        ("${{ secrets.token }}", "misplaced-secret", "secrets.token", "parameters"),
        ("${{ 'Bearer ' + secrets.token }}", "misplaced-secret", "secrets.token", "parameters"),
        ("${{ inputs.share * 2 }}", "expression-type", "`*` cannot multiply a decimal number and a whole number", "double()"),
        ("${{ inputs.count + 'x' }}", "expression-type", "column 14", "string()"),
        ("${{ inputs.host.size }}", "expression-type", "a text has no `size`", ""),
        ("${{ inputs.names.first }}", "expression-type", "a list has no `first`", ""),
        ("${{ inputs.labels[0] }}", "expression-type", "an object has no `0`", ""),
        ("${{ inputs.names['a'] + 'b' }}", "expression-type", "`[ ]` cannot take a list and a text", ""),
        ("${{ steps.check.status + 1 }}", "expression-type", "`+` cannot add a text and a whole number", "string()"),
        ("${{ b'x' }}", "expression-type", "bytes", "string()"),
        ("${{ duration('1s') }}", "expression-type", "duration", "string()"),
        ("${{ inputs.count and true }}", "expression-syntax", "column 14: `and` was not expected here", "&&"),
        ("${{ inputs.host | upper }}", "expression-syntax", "CEL does not know `|`", "no filters"),
        ("${{ inputs.host is defined }}", "expression-syntax", "`is` was not expected here", "has("),
        ("${{ inputs.host === 'x' }}", "expression-syntax", "column 15", "== and !="),
        ("${{ inputs.host ~ 'x' }}", "expression-syntax", "CEL does not know `~`", "joins texts with +"),
        ("${{ 1 if true else 2 }}", "expression-syntax", "`if` was not expected here", "condition ? one : other"),
        ("${{ (1 + 2 }}", "expression-syntax", "", ""),
        ("${{ len(inputs.host) }}", "unknown-reference", "there is no `len`", "write size(value)"),
        ("${{ inputs.host.toUpperCase() }}", "unknown-reference", "there is no `toUpperCase`", "write text.upperAscii()"),
        ("${{ inputs.host.frobnicate() }}", "unknown-reference", "there is no `frobnicate`", "CEL has size()"),
        ("${{ inputs.count = 1 }}", "expression-syntax", "column 14", "=="),
        ("${{ 1 + }}", "expression-syntax", "the end", ""),
        ("${{ }}", "expression-syntax", "empty", ""),
        ("${{ 'open }}", "expression-syntax", "", ""),
        ("a ${{ inputs.host", "expression-syntax", "`${{ inputs.host` is not closed", "}}"),
        ("${{ {'a': 1 }}", "expression-syntax", "is not closed", "brackets"),
        ("${{ has(steps.check.result) }}", "expression-syntax", "has()", ""),
        ("${{ " + "+".join(["1"] * 50) + " }}", "expression-syntax", "32 levels", "tool"),
        ("${{ " + "(" * 100_000 + " }}", "expression-syntax", "", ""),
    ],
)
def test_an_invalid_expression_is_refused_with_a_reason_and_a_hint(text: str, code: str, message: str, hint: str) -> None:
    problem = refuse(text)
    assert problem.code == code
    assert message in problem.message
    assert hint in problem.hint
    assert len(str(problem)) < 500


@pytest.mark.parametrize(("name", "hint"), [("item", "for_each"), ("result", "done_when")])
def test_item_and_result_exist_only_where_they_are_declared(name: str, hint: str) -> None:
    assert hint in refuse(f"${{{{ {name} }}}}", NOTHING).hint
    assert hint in refuse(f"${{{{ {name}.x + 1 }}}}", NOTHING).hint


@pytest.mark.parametrize(
    ("text", "expect", "code"),
    [
        ("yes", "bool", "expression-needed"),
        ("true", "bool", "expression-needed"),
        ("${{ true }} or not", "bool", "expression-needed"),
        ("${{ true }}${{ true }}", "bool", "expression-needed"),
        ("${{ inputs.host }}", "bool", "expression-type"),
        ("${{ steps.check.status }}", "bool", "expression-type"),
        ("${{ inputs.count + 1 }}", "bool", "expression-type"),
        ("${{ null }}", "bool", "expression-type"),
        ("[1, 2]", "list", "expression-needed"),
        ("${{ inputs.labels }}", "list", "expression-type"),
        ("${{ {'a': 1} }}", "list", "expression-type"),
    ],
)
def test_a_condition_must_be_a_boolean_and_for_each_a_list(text: str, expect: Any, code: str) -> None:
    assert refuse(text, expect=expect).code == code


def test_every_problem_of_a_tree_is_found_with_its_path() -> None:
    from plan_adapter.expressions import compile_template

    tree: Any = {"a": ["ok", {"b": "${{ x }} and ${{ steps.y.result }}"}], "${{ key }}": 1}
    _, problems = compile_template(tree, DECLARED, at="steps[0].parameters")
    assert [(problem.code, problem.at) for problem in problems] == [
        ("unknown-reference", "steps[0].parameters.a[1].b"),
        ("unknown-reference", "steps[0].parameters.a[1].b"),
        ("expression-syntax", "steps[0].parameters.${{ key }}"),
    ]


def test_a_tree_of_a_hundred_thousand_levels_is_refused() -> None:
    deep: Any = "${{ x }}"
    for _ in range(100_000):
        deep = [deep]
    assert refuse(deep).code == "too-deep"


def test_the_nearest_step_is_suggested_among_thousands() -> None:
    many = Declarations(frozenset(f"step_{number}" for number in range(5000)), INPUTS)
    assert refuse("${{ steps.stpe_4321.result }}", many).hint == "did you mean `step_4321`?"
    assert refuse("${{ steps.check.result }}", many).hint.startswith("known: `step_0`, `step_1`, ")
