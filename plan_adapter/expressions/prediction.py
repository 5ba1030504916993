"""`Prediction`: the values of expressions as far as the inputs determine them, to show to an approver before anything runs."""

import json
from collections.abc import Mapping

from pydantic import JsonValue

from plan_adapter.errors import ExpressionError
from plan_adapter.expressions.expression import Expression, Variables
from plan_adapter.expressions.references import Path, count_names
from plan_adapter.expressions.template import Template, map_texts

MAX_TOTAL_CHARACTERS = 10_000_000
"""The total size of all predicted values of one plan."""

MULTIPLYING_CALLS = frozenset({"join", "map", "replace"})
"""Calls whose result may be as large as the product of their arguments. Any other result is at most their sum."""


class Prediction:
    """Evaluates what the inputs alone determine. `inputs` is None while they are unknown.

    The plan is not approved yet, and a short expression could fill the memory. So anything that may exceed `characters` is not evaluated.
    """

    def __init__(self, inputs: Mapping[str, JsonValue] | None, *, item: JsonValue = None, characters: int = MAX_TOTAL_CHARACTERS) -> None:
        """Start with the full budget of `characters`. An `item` that is known is evaluated as well."""
        self._variables = Variables(steps={}, inputs=inputs or {}, item=item)
        self._sizes: dict[Path, int] = {("inputs", name): _count_characters(value) for name, value in self._variables.inputs.items()}
        self._sizes |= {} if item is None else {("item",): _count_characters(item)}
        self._budget = characters

    def of(self, template: Template) -> JsonValue:
        """Return the value of `template`. A text that uses anything but inputs, or cannot be evaluated, stays as written."""
        return map_texts(template.source, lambda text: self._predict_text(text, template))

    def _predict_text(self, text: str, template: Template) -> JsonValue:
        parts = template.texts.get(text)
        if parts is None or sum(map(self._max_characters, parts)) > self._budget:
            return text
        try:
            value = template.fill_parts(parts, self._variables)
        except ExpressionError:
            return text
        self._budget -= _count_characters(value)
        return value

    def _max_characters(self, part: str | Expression) -> float:
        """Return an upper bound for the characters of a part of a text, or infinity if the inputs alone do not determine it."""
        if isinstance(part, str):
            return len(part)
        used_paths = [variable.path[:1] if variable.path[0] == "item" else variable.path[:2] for variable in part.variables]
        if any(path not in self._sizes for path in used_paths):
            return float("inf")
        size = len(part.source) + sum(self._sizes[path] for path in used_paths)
        growth = count_names(part.code or "", MULTIPLYING_CALLS)
        # A mapped member may be used for both factors of the next product, so each growing call may square the size.
        return float(size) ** 2**growth if growth <= 3 and not count_names(part.code or "", {"format"}) else float("inf")


def _count_characters(value: JsonValue) -> int:
    return len(json.dumps(value, ensure_ascii=False))
