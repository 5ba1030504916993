"""Translates the choices of `aws:branch` to CEL."""

import re
from collections.abc import Mapping
from typing import Any

from plan_adapter.runbooks.conversion import NotConvertibleError, both, literal, mapping, members, negation
from plan_adapter.runbooks.ssm_values import Names, Value

_TEXTS = {
    "StringEquals": "{text} == {wanted}",
    "EqualsIgnoreCase": "{text}.lowerAscii() == {wanted}.lowerAscii()",
    "StartsWith": "{text}.startsWith({wanted})",
    "EndsWith": "{text}.endsWith({wanted})",
    "Contains": "{text}.contains({wanted})",
}
_NUMBERS = {
    "NumericEquals": "==",
    "NumericGreater": ">",
    "NumericLesser": "<",
    "NumericGreaterOrEquals": ">=",
    "NumericLesserOrEquals": "<=",
}


def condition_of(choice: Mapping[str, Any], names: Names, at: str) -> str:
    """Return a choice as a condition. Raises NotConvertibleError."""
    found = list[str]()
    for word, inner in choice.items():
        parts = [mapping(part) for part in (members(inner) or [inner])]
        if word in ("And", "Or"):
            found.append((" && " if word == "And" else " || ").join(f"({condition_of(part, names, at)})" for part in parts))
        elif word == "Not":
            found += [negation(condition_of(part, names, at)) for part in parts]
    if "Variable" in choice:
        found.append(_comparison(choice, names, at))
    if not any(found):
        raise NotConvertibleError("it compares nothing")
    return both(*found)


def _comparison(choice: Mapping[str, Any], names: Names, at: str) -> str:
    value = names.whole(choice.get("Variable"), at)
    if value is None:
        raise NotConvertibleError(f"its variable is {choice.get('Variable')!r}, which is not one reference")
    for operator, wanted in choice.items():
        if operator in _TEXTS:
            text = value.code if value.kind == "string" else f"string({value.code})"
            return _TEXTS[operator].format(text=text, wanted=names.code(_plain(wanted), at))
        if operator in _NUMBERS:
            return f"{_number(value)} {_NUMBERS[operator]} {_wanted_number(wanted, names, at)}"
        if operator == "BooleanEquals":
            is_true = str(wanted).lower() == "true"
            text = value.code if value.kind == "boolean" else f"{value.code}.lowerAscii() == 'true'"
            return text if is_true else negation(text)
    raise NotConvertibleError(f"`{', '.join(choice)}` is no comparison that is known here")


def _plain(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _number(value: Value) -> str:
    return f"double({value.code})"


def _wanted_number(wanted: Any, names: Names, at: str) -> str:
    if (whole := names.whole(wanted, at)) is not None:
        return _number(whole)
    if not re.fullmatch(r"-?\d+(\.\d+)?", str(wanted)):
        raise NotConvertibleError(f"`{wanted}` is no number")
    return literal(float(wanted))
