"""Property tests of expressions: every value and every text."""

import json
from typing import Any

from hypothesis import assume, given
from hypothesis import strategies as st

from plan_adapter.expressions import Declarations, Variables, compile_template, has_expression
from plan_adapter.model.errors import ExpressionError
from plan_adapter.model.options import Input
from plan_adapter.model.values import normalize
from tests.expressions.builders import DECLARED, VALUES

texts = st.text(st.characters(codec="utf-8"), max_size=20)
plain_texts = texts.filter(lambda text: not has_expression(text))
scalars = st.none() | st.booleans() | st.integers(-(2**53) + 1, 2**53 - 1) | st.floats(allow_nan=False, allow_infinity=False)


def without_nul(text: str) -> str:
    """`text` without NUL characters, which CEL cannot hold."""
    return text.replace("\0", "")


def trees(leaves: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """JSON trees with `leaves` as their texts."""
    return st.recursive(
        scalars | leaves,
        lambda inner: st.lists(inner, max_size=4) | st.dictionaries(plain_texts.map(without_nul), inner, max_size=4),
        max_leaves=20,
    )


@given(trees(plain_texts))
def test_a_tree_without_expressions_resolves_to_itself(tree: Any) -> None:
    template, problems = compile_template(tree, DECLARED, at="")
    assert not problems
    assert template.resolve(VALUES) == tree


@given(trees(texts))
def test_a_reference_resolves_to_exactly_its_value(value: Any) -> None:
    template, _ = compile_template("${{ steps.check.result }}", DECLARED, at="")
    found = template.resolve(Variables(steps={"check": {"result": value}}, inputs={}))
    assert json.dumps(found) == json.dumps(normalize(value))


@given(trees(texts.map(without_nul)))
def test_cel_returns_a_value_unchanged_except_for_key_order(value: Any) -> None:
    template, _ = compile_template("${{ [steps.check.result][0] }}", DECLARED, at="")
    found = template.resolve(Variables(steps={"check": {"result": value}}, inputs={}))
    assert json.dumps(found) == json.dumps(normalize(value), sort_keys=True)


@given(texts, texts, texts)
def test_a_text_given_as_input_arrives_unchanged_between_literal_texts(before: str, value: str, after: str) -> None:
    assume(not has_expression(before) and not has_expression(after))
    template, problems = compile_template(f"{before}${{{{ inputs.host }}}}{after}", Declarations((), {"host": Input()}), at="")
    assert not problems
    assert template.resolve(Variables(steps={}, inputs={"host": value})) == before + value + after


fragments = st.sampled_from(
    [*"{}'\"\\.[]0+() x-r\n中", "${{", "}}", "//", "steps", "inputs", "item", "check", "result", "host", "'my-step'"]
)


@given(st.lists(fragments, max_size=25).map("".join), st.sampled_from([None, "bool", "list"]))
def test_no_text_crashes_the_compiler_or_the_evaluation(text: str, expect: Any) -> None:
    template, problems = compile_template(text, DECLARED, at="x", expect=expect)
    if not problems:
        try:
            template.resolve(VALUES)
        except ExpressionError as error:
            assert str(error)
