"""Declarations, values and helpers for tests of expressions."""

from typing import Any

from plan_adapter.expressions import Declarations, Variables, compile_template
from plan_adapter.model.options import Input
from plan_adapter.model.problems import Problem

INPUTS = {
    "host": Input(type="string"),
    "count": Input(type="integer"),
    "share": Input(type="number"),
    "force": Input(type="boolean"),
    "names": Input(type="array", items="string"),
    "shares": Input(type="array", items="number"),
    "any": Input(type="array"),
    "labels": Input(type="object"),
}
DECLARED = Declarations(frozenset({"check", "my-step", "for", "skipped"}), INPUTS, item=True, result=True)
NOTHING = Declarations(frozenset(), {})
VALUES = Variables(
    steps={
        "check": {"result": {"rows": [1, {"name": "}}"}], "size": 3, "share": 1.5, "a-b": 7, "text": " x\n"}, "status": "completed"},
        "my-step": {"result": 5, "status": "failed", "error": "boom"},
        "for": {"result": None, "status": "completed"},
        "skipped": {"status": "skipped"},
    },
    inputs={
        "host": "web-1",
        "count": 3,
        "share": 2,
        "force": False,
        "names": ["p", "q"],
        "shares": [1, 2.5],
        "any": [],
        "labels": {"team": None},
    },
    item={"id": 1},
    result=[1, 2],
)


def resolve(value: Any, **options: Any) -> Any:
    """Return `value` resolved with VALUES; it must compile."""
    template, problems = compile_template(value, DECLARED, at="here", **options)
    assert problems == []
    return template.resolve(VALUES)


def refuse(value: Any, declarations: Declarations = DECLARED, **options: Any) -> Problem:
    """Return the only problem of `value`."""
    _, problems = compile_template(value, declarations, at="here", **options)
    assert len(problems) == 1, problems
    return problems[0]
