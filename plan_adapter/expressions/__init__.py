"""`${{ }}` expressions: compiled once with types, evaluated with the values of a run. The only package that uses CEL."""

from plan_adapter.expressions.cel import matches
from plan_adapter.expressions.declarations import INPUT_NAME, SECRET_NAME, Declarations, Expected
from plan_adapter.expressions.expression import Expression, Variables
from plan_adapter.expressions.references import has_expression, inputs_in, passed_input, sources_of
from plan_adapter.expressions.template import Prediction, Template, compile_template

__all__ = [
    "INPUT_NAME",
    "SECRET_NAME",
    "Declarations",
    "Expected",
    "Expression",
    "Prediction",
    "Template",
    "Variables",
    "compile_template",
    "has_expression",
    "inputs_in",
    "matches",
    "passed_input",
    "sources_of",
]
