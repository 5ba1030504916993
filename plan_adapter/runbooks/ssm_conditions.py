"""Translates the choices of `aws:branch` to CEL."""

import re
from collections.abc import Mapping
from typing import Any

from plan_adapter.runbooks.conversion import NotConvertibleError, conjunction, literal, mapping, members, negation
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
        found.append(_convert_comparison(choice, names, at))
    if not any(found):
        raise NotConvertibleError("it compares nothing")
    return conjunction(*found)


def _convert_comparison(choice: Mapping[str, Any], names: Names, at: str) -> str:
    value = names.single_reference(choice.get("Variable"), at)
    if value is None:
        raise NotConvertibleError(f"its variable is {choice.get('Variable')!r}, which is not one reference")
    for operator, wanted in choice.items():
        if operator in _TEXTS:
            text = value.code if value.kind == "string" else f"string({value.code})"
            return _TEXTS[operator].format(text=text, wanted=names.code(_as_text(wanted), at))
        if operator in _NUMBERS:
            return f"{_as_double(value)} {_NUMBERS[operator]} {_wanted_double(wanted, names, at)}"
        if operator == "BooleanEquals":
            is_true = str(wanted).lower() == "true"
            text = value.code if value.kind == "boolean" else f"{value.code}.lowerAscii() == 'true'"
            return text if is_true else negation(text)
    raise NotConvertibleError(f"`{', '.join(choice)}` is not a known comparison")


def _as_text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _as_double(value: Value) -> str:
    return f"double({value.code})"


def _wanted_double(wanted: Any, names: Names, at: str) -> str:
    if (whole := names.single_reference(wanted, at)) is not None:
        return _as_double(whole)
    if not re.fullmatch(r"-?\d+(\.\d+)?", str(wanted)):
        raise NotConvertibleError(f"`{wanted}` is not a number")
    return literal(float(wanted))
