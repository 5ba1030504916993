"""`Prediction`: what expressions will be, as far as the inputs of a run decide it; for whoever is asked before anything runs."""

import json
from collections.abc import Mapping

from pydantic import JsonValue

from plan_adapter.errors import ExpressionError
from plan_adapter.expressions.expression import Expression, Variables
from plan_adapter.expressions.references import count_names
from plan_adapter.expressions.template import Template, each_text

CHARACTERS = 10_000_000
"""How much all that is foreseen for one plan may be together."""

GROWING = frozenset({"join", "map", "replace"})
"""Calls whose value may be as large as the product of what they are given; of any other it is at most the sum."""


class Prediction:
    """Fills in what inputs alone decide; `inputs` None are not known yet.

    Nobody has approved the plan yet, and few characters of an expression could fill the memory: what may become too large for
    `characters` is not evaluated.
    """

    def __init__(self, inputs: Mapping[str, JsonValue] | None, *, characters: int = CHARACTERS) -> None:
        """Begin with the whole of `characters`."""
        self._variables = Variables(steps={}, inputs=inputs or {})
        self._sizes = {name: _size(value) for name, value in self._variables.inputs.items()}
        self._left = characters

    def of(self, template: Template) -> JsonValue:
        """Return the value of `template`; a text that uses anything but inputs, or cannot be evaluated, stands as it is written."""
        return each_text(template.source, lambda text: self._text(text, template))

    def _text(self, text: str, template: Template) -> JsonValue:
        parts = template.texts.get(text)
        if parts is None or sum(map(self._longest, parts)) > self._left:
            return text
        try:
            value = template.filled(parts, self._variables)
        except ExpressionError:
            return text
        self._left -= _size(value)
        return value

    def _longest(self, part: str | Expression) -> float:
        """Return a bound on the characters of a part of a text; infinity where inputs alone do not decide it."""
        if isinstance(part, str):
            return len(part)
        roots = {variable.path[0] for variable in part.variables}
        names = [str(variable.path[1]) for variable in part.variables if variable.path[0] == "inputs"]
        if roots - {"inputs"} or any(name not in self._sizes for name in names):
            return float("inf")
        size = len(part.source) + sum(self._sizes[name] for name in names)
        growth = count_names(part.code or "", GROWING)
        # A member that is mapped may be used for both factors of the next product: each growing call may square the size.
        return float(size) ** 2**growth if growth <= 3 and not count_names(part.code or "", {"format"}) else float("inf")


def _size(value: JsonValue) -> int:
    return len(json.dumps(value, ensure_ascii=False))
