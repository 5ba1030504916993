"""Tests of expressions that fail at run time, and of their error messages."""

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from plan_adapter.expressions import Variables, compile_template, matches
from plan_adapter.model.errors import ExpressionError
from tests.expressions.builders import DECLARED, VALUES, resolve


def with_result(result: Any) -> Variables:
    """The variables of a run in which `check` gave `result`."""
    return Variables(steps={"check": {"result": result, "status": "completed"}}, inputs={})


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "${{ steps.check.result.gone }}",
            "`steps.check.result.gone`: `steps.check.result` has no key `gone`; it has `rows`, `size`, `share`, `a-b`, `text`",
        ),
        (
            "${{ steps.check.result.gone + 1 }}",
            "`steps.check.result.gone + 1`: `steps.check.result` has no key `gone`; it has `rows`, `size`, `share`, `a-b`, `text`",
        ),
        ("${{ steps.check.result.rows[2] }}", "`steps.check.result.rows[2]`: `steps.check.result.rows` has no index 2; it has 2 items"),
        ("${{ size(steps.check.result.rows[2]) }}", "has no index 2; it has 2 items"),
        ("${{ steps.check.result.size.x }}", "`steps.check.result.size` is a number and has no `x`"),
        ("${{ steps.check.result[0] }}", "has no key `0`"),
        ("${{ steps.for.result.x + 1 }}", "`steps.for.result` is null and has no `x`"),
        ("${{ steps.skipped.result }}", "`steps.skipped` has no key `result`; it has `status`"),
        ("${{ inputs.any[0] }}", "`inputs.any` has no index 0; it has 0 items"),
        ("${{ has(steps.check.result.maybe) || steps.check.result.gone > 1 }}", "has no key `gone`"),
        (
            "${{ steps.check.result.share * 2 }}",
            "`*` cannot multiply a decimal number and a whole number; CEL does no mixed arithmetic: wrap the",
        ),
        ("${{ steps.check.result.text + 1 }}", "wrap the other side in string()"),
        ("${{ 1 / 0 }}", "divide by zero"),
        ("${{ 1.0 / 0.0 }}", "gives inf, which is not JSON"),
        ("${{ [0.0 / 0.0] }}", "gives nan, which is not JSON"),
        ("${{ [b'x'] }}", "gives a bytearray, which is not JSON"),
        ("${{ {1: 2} }}", "gives a key that is not text, which is not JSON"),
        ("${{ int('x') }}", "`int('x')`: cannot convert string to int"),
        ("${{ 9223372036854775807 + inputs.count }}", "integer overflow"),
    ],
)
def test_an_error_names_the_expression_the_missing_name_and_the_available_ones(text: str, message: str) -> None:
    with pytest.raises(ExpressionError) as error:
        resolve(text)
    assert message in str(error.value)


@pytest.mark.parametrize(
    ("expect", "value", "message"),
    [
        ("bool", 1, "is a number, not true or false"),
        ("bool", None, "is null, not true or false"),
        ("list", {"path": "a.json", "size": 1}, "is an object with `path`, `size`, not a list"),
        ("list", "abc", "is a text, not a list"),
    ],
)
def test_a_value_of_unknown_type_is_checked_at_run_time(expect: Any, value: Any, message: str) -> None:
    template, problems = compile_template("${{ steps.check.result }}", DECLARED, at="", expect=expect)
    assert not problems
    with pytest.raises(ExpressionError, match=message):
        template.resolve(with_result(value))


@pytest.mark.parametrize("text", ["${{ steps.check.result }}", "${{ size(steps.check.result) }}"])
def test_an_endlessly_nested_result_fails_the_expression_not_the_process(text: str) -> None:
    deep: Any = 1
    for _ in range(100_000):
        deep = [deep]
    template, _ = compile_template(text, DECLARED, at="")
    with pytest.raises(ExpressionError, match="nested too deep"):
        template.resolve(with_result(deep))


@pytest.mark.parametrize(
    "value", [2**70, "\ud800", "a\0b", [{"a\0": 1}], {"a": object()}], ids=["integer", "surrogate", "NUL", "NUL in a key", "object"]
)
def test_a_result_that_cel_cannot_hold_fails_the_expression(value: Any) -> None:
    template, _ = compile_template("${{ steps.check.result == 1 }}", DECLARED, at="")
    with pytest.raises(ExpressionError):
        template.resolve(with_result(value))


def test_an_expression_over_too_many_items_is_refused() -> None:
    template, _ = compile_template("${{ steps.check.result.map(x, steps.check.result.map(y, 1)) }}", DECLARED, at="")
    with pytest.raises(ExpressionError, match="more than 10,000 items"):
        template.resolve(with_result(list(range(200))))


def test_an_error_shows_keys_but_no_values() -> None:
    template, _ = compile_template("${{ steps.check.result.gone }}", DECLARED, at="")
    with pytest.raises(ExpressionError) as error:
        template.resolve(with_result({"password": "hunter2"}))
    assert "password" in str(error.value)
    assert "hunter2" not in str(error.value)


def test_equal_expressions_in_many_threads_use_their_own_values() -> None:
    templates = [compile_template(f"${{{{ {number} + steps['my-step'].result }}}}", DECLARED, at="")[0] for number in range(50)]
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda template: template.resolve(VALUES), templates * 4))
    assert found == [number + 5 for number in range(50)] * 4


def test_patterns_match_in_linear_time_and_a_dollar_matches_only_the_end_of_text() -> None:
    assert matches("^web-[0-9]+$", "web-12")
    assert not matches("^web-[0-9]+$", "web-12\n")
    assert not matches("(x+x+)+y", "x" * 50_000)
    assert matches(r"^\p{Han}+$", "中文")


@pytest.mark.parametrize("pattern", ["(", "(?=x)", r"(a)\1", "a{2000}"])
def test_an_invalid_pattern_is_reported_with_the_reason(pattern: str) -> None:
    with pytest.raises(ExpressionError, match="is not an RE2 regular expression: "):
        matches(pattern, "x")
