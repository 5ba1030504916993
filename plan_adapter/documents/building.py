"""Turns pydantic's errors into problems that name the field, what it accepts and what was given."""

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from plan_adapter.documents.nodes import shorten_path
from plan_adapter.model.plan import ExecutionPlan
from plan_adapter.model.problems import Problem, did_you_mean
from plan_adapter.model.values import join

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails

_EXPECTED: Mapping[str, str] = {
    "int_type": "an integer",
    "int_from_float": "an integer",
    "float_type": "a number",
    "bool_type": "true or false",
    "string_type": "text",
    "list_type": "a list",
    "dict_type": "a mapping",
    "model_type": "a mapping",
    "model_attributes_type": "a mapping",
}
_SEVERAL_TYPES: Mapping[str, str] = {
    "max_failures": 'a whole number, or a share such as "20%"',
    "permissions": "a list of names, or one expression that gives it",
    "requires_approval": "true, false or `each`",
}
"""Fields with more than one type, and what they accept."""

_TYPE_NAME = re.compile(r"(?:int|bool|str|list|literal)(?:\[.*\])?")
"""How pydantic names one of several types of a field, after the field's name. No field of a plan has such a name."""

_LIMITS: Mapping[str, tuple[str, str]] = {"greater_than_equal": ("at least", "ge"), "less_than_equal": ("at most", "le")}
_LITERAL_CODES: Mapping[str, str] = {"effect": "bad-effect", "version": "unsupported-version"}


def build_plan(document: dict[str, Any]) -> tuple[ExecutionPlan, list[Problem]]:
    """Return the plan and the problems of its fields. Fields with problems are removed from `document` and missing from the plan."""
    problems: list[Problem] = []
    while True:
        try:
            return ExecutionPlan.model_validate(document, strict=True), problems
        except ValidationError as error:
            found = _field_errors(error)
            problems = problems or [_to_problem(finding) for finding in found]
            if not sum([_remove_field(document, finding) for finding in found]):
                raise


def _field_errors(error: ValidationError) -> list["ErrorDetails"]:
    """Return the findings of `error`, one for each field. If a field has several types, pydantic reports each type separately."""
    found: dict[tuple[int | str, ...], ErrorDetails] = {}
    for finding in error.errors(include_url=False):
        loc = finding["loc"]
        several = (index for index, part in enumerate(loc[1:], 1) if loc[index - 1] in _SEVERAL_TYPES and _TYPE_NAME.fullmatch(str(part)))
        end = next(several, len(loc))
        found.setdefault(loc[:end], finding if end == len(loc) else {**finding, "loc": loc[:end], "type": str(loc[end - 1])})
    return [*found.values()]


def _remove_field(document: dict[str, Any], finding: "ErrorDetails") -> bool:
    """Remove the field concerned, and return whether anything was removed.

    For an invalid list member, the whole list is removed; an invalid step becomes empty; a model with a missing field is removed.
    """
    loc = finding["loc"]
    if loc == ("description",):
        document["description"] = ""
        return True
    trail: list[tuple[Any, int | str]] = []
    holder: Any = document
    for part in loc[:-1] if finding["type"] == "missing" else loc:
        try:
            inner = holder[part]
        except (KeyError, TypeError):
            return False  # already removed for another error
        trail.append((holder, part))
        holder = inner
    for depth, (container, key) in reversed(list(enumerate(trail))):
        if isinstance(container, dict):
            del container[key]
            return True
        if trail[depth - 1][1] in ("steps", "finally") and depth:
            container[key] = {}
            return True
    return False


def _to_problem(finding: "ErrorDetails") -> Problem:
    at = ""
    for part in finding["loc"]:
        at = join(at, part)
    name = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in _field_path(finding["loc"])).lstrip(".")
    code, message, hint = _describe(finding, shorten_path(name))
    return Problem(code, at=at, message=message, hint=hint)


def _field_path(loc: tuple[int | str, ...]) -> tuple[int | str, ...]:
    """Return the end of `loc`, starting with a field's name."""
    start = max((index for index, part in enumerate(loc) if isinstance(part, str)), default=0)
    return loc[start:]


def _describe(finding: "ErrorDetails", name: str) -> tuple[str, str, str]:
    kind, given, context = finding["type"], finding["input"], finding.get("ctx", {})
    if kind == "missing":
        if finding["loc"] == ("description",):
            return "no-description", "the plan has no description", "write in one sentence what the plan does"
        return "missing-field", f"`{name}` is missing", f"write `{name}`"
    if kind == "literal_error":
        choices = re.findall(r"'([^']*)'|(\d+)", str(context.get("expected", "")))
        known = [text or number for text, number in choices]
        listed = ", ".join(f"`{choice}`" for choice in known)
        wanted = f"must be {listed}" if len(known) == 1 else f"must be one of {listed}"
        hint = did_you_mean(given[:60], known) if isinstance(given, str) and len(known) > 1 else ""
        return (
            _LITERAL_CODES.get(name, "bad-value"),
            f"`{name}` {wanted}, not {_describe_value(given)}",
            hint if hint.startswith("did") else "",
        )
    if kind in _LIMITS:
        words, limit = _LIMITS[kind]
        return "bad-value", f"`{name}` must be {words} {context[limit]}, not {_describe_value(given)}", ""
    if kind in _SEVERAL_TYPES:
        return "wrong-type", f"`{name}` must be {_SEVERAL_TYPES[kind]}, not {_describe_value(given)}", ""
    if kind in _EXPECTED:
        return "wrong-type", f"`{name}` must be {_EXPECTED[kind]}, not {_describe_value(given)}", _hint(_EXPECTED[kind], given)
    return "bad-value", f"`{name}`: {finding['msg']}", ""


def _describe_value(value: object) -> str:
    """Return a phrase for `value` that shows only a few of its characters."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return f"the number {value}"
    if isinstance(value, str):
        return f"the text {value!r}" if len(value) <= 40 else f"the text {value[:40]!r}…"
    return "a list" if isinstance(value, list) else "a mapping"


def _hint(wanted: str, given: object) -> str:
    if given is None:
        return "write a value, or remove the line"
    if wanted == "text" and isinstance(given, bool | int | float):
        return "put it in quotes"
    if wanted == "a list":
        return "" if isinstance(given, dict) else "write a list: [ … ]"
    if not isinstance(given, str):
        return ""
    if "${{" in given:
        return "this field accepts no expression"
    if wanted == "true or false":
        return "`yes`, `no`, `on` and `off` are text; write true or false without quotes"
    bare = given.strip().removeprefix("-").replace(".", "", 1)
    return "write the number without quotes" if wanted in ("an integer", "a number") and bare.isdecimal() else ""
