"""Checks the definitions of a plan's inputs and the values given for them, and describes them as a JSON Schema and as a form."""

import json
import re
from collections.abc import Iterator, Mapping
from datetime import datetime
from decimal import Decimal
from keyword import iskeyword
from typing import Any, Literal

from pydantic import JsonValue

from plan_adapter.expressions import INPUT_NAME, SECRET_NAME, has_expression, matches
from plan_adapter.model.errors import ExpressionError
from plan_adapter.model.language import later, tr
from plan_adapter.model.options import TEXT_TYPES, Input
from plan_adapter.model.problems import Problem, did_you_mean
from plan_adapter.model.readable import as_text, code, counted, cut, has_token, is_secret_name, is_visible, one_line, plain, prose
from plan_adapter.model.values import DURATION, MAX_INTEGER, find_bad_values, join, normalize
from plan_adapter.validation.findings import Findings
from plan_adapter.validation.fresh import find_oversize


class NotJSONError(ValueError):
    """A text is not JSON. If it nearly is, `code` names the problem, and the message completes a sentence about the text."""

    def __init__(self, code: str = "", message: str = "") -> None:
        """Store `code`."""
        super().__init__(message)
        self.code = code


def parse_json(text: str) -> JsonValue:
    """Return the value of the JSON `text`. Raises NotJSONError."""
    try:
        return normalize(json.loads(text, object_pairs_hook=_build_object, parse_constant=_refuse_constant))
    except NotJSONError:
        raise
    except (ValueError, RecursionError):
        raise NotJSONError from None


def _build_object(pairs: list[tuple[str, JsonValue]]) -> dict[str, JsonValue]:
    found: dict[str, JsonValue] = {}
    for key, value in pairs:
        if key in found:
            raise NotJSONError("duplicate-key", f": it contains the key `{key[:60]}` twice")
        found[key] = value
    return found


def _refuse_constant(name: str) -> JsonValue:
    raise NotJSONError("not-a-number", f": {name} is not a JSON number")


_TYPE_NAMES: Mapping[str, str] = {
    "string": "text",
    "integer": "an integer",
    "number": "a number",
    "boolean": "true or false",
    "array": "a list",
    "object": "a mapping",
    "date": "a date",
    "date-time": "a time",
    "duration": "a duration",
    "secret": "the name of a secret",
}
_EXAMPLES: Mapping[str, str] = {"array": '["a", "b"]', "object": '{"a": 1}'}
_FORMS: Mapping[str, str] = {
    "date": "write it as 2026-11-29",
    "date-time": "write it with its zone, as 2026-11-29T14:30:00+08:00 or 2026-11-29T06:30:00Z",
    "duration": "write it with its units h, m, s or ms, as 30s or 1h30m",
    "secret": "write its name as after `secrets.`, or a Prefect block's type/name; never its value",
}
"""How the types that are texts are written."""
_DAY = r"\d{4}-\d{2}-\d{2}"
_PATTERNS: Mapping[str, str] = {
    "date": _DAY,
    "date-time": rf"{_DAY}T\d{{2}}:\d{{2}}:\d{{2}}(?:\.\d{{1,6}})?(?:Z|[+-]\d{{2}}:\d{{2}})",
    "duration": DURATION.replace("|d", ""),  # the function `duration` of expressions knows no days
    "secret": f"(?:{SECRET_NAME})",
}
_HEX_KEY = re.compile("[0-9A-Fa-f]{32,}")
"""A text that is a key rather than the name of one."""
VARIABLE_NAME = "[a-z0-9_]{1,255}"
"""The names that Prefect's variables can have."""
_ONLY_FOR: Mapping[str, tuple[str, ...]] = {
    "pattern": ("string",),
    "min_length": ("string", "array"),
    "max_length": ("string", "array"),
    "minimum": ("integer", "number"),
    "maximum": ("integer", "number"),
    "items": ("array",),
}
_NUMBER = re.compile(r"-?[0-9]+(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?")
_SHOWN_CHARACTERS = 80
_MAX_DIGITS = 20
"""The most digits of a whole number in a text."""
# An input is a parameter of a Prefect flow, and so no Python keyword, and a name in expressions.
_NAME_IN_WORDS = "a letter, then letters from a to z, digits or underscores"
_TAKEN_NAMES = frozenset({"self", "cls", "return_state", "wait_for", "true", "false", "null"})


def check_definitions(inputs: Mapping[str, Input], findings: Findings, *, place: str = "inputs", what: str = "an input") -> None:
    """Add the contradictions in the definitions at `place`: no value could ever fit, or the default does not fit."""
    for name, definition in inputs.items():
        at = join(place, name)
        if not re.fullmatch(INPUT_NAME, name):
            findings.add("bad-name", at, f"{name[:60]!r} cannot be the name of {what}: a name is {_NAME_IN_WORDS}", _name_hint(name))
        elif iskeyword(name) or name in _TAKEN_NAMES:
            findings.add("bad-name", at, f"`{name}` cannot be the name of {what}: expressions or Prefect use it", f"use `{name}_`")
        for field, message, hint in _contradictions(definition):
            findings.add("bad-input-definition", join(at, field), message, hint)
        if definition.variable is not None and what != "an input":
            message = f"`variable` is for an input, and a person answers {what}"
            findings.add("bad-input-definition", join(at, "variable"), message, "remove it; `default` may use an input that has a variable")
        if definition.type == "secret" and what != "an input":
            message = f"{what} cannot be of type `secret`: only an input of a plan stands for a secret"
            findings.add("bad-input-definition", join(at, "type"), message, "declare an input of this type")


def _name_hint(name: str) -> str:
    """Return a hint for a name that no input can have."""
    similar = re.sub(r"\W+", "_", name, flags=re.ASCII).strip("_")
    if re.fullmatch(INPUT_NAME, similar):
        return f"use `{similar}`"
    return "use a name such as `env`; its `description`, which forms show, can be in any language"


def read_values(
    inputs: Mapping[str, Input], given: Mapping[str, object], *, from_text: bool, what: Literal["input", "field"] = "input"
) -> tuple[dict[str, JsonValue], list[Problem]]:
    """Return copies of the values of `inputs`, given or default, and every problem.

    `what`: inputs of a plan or fields of a question. Messages show the wrong value of an input, but of the answers of a person only
    numbers: a person may have answered with a secret.
    """
    owner = "plan" if what == "input" else "question"
    values, problems = dict[str, JsonValue](), list[Problem]()
    for name, definition in inputs.items():
        at = join(f"{what}s", name)
        if name in given and not (given[name] is None and definition.variable is not None):  # a form gives null for an empty field
            # A text that cannot be the name of a secret may be its value.
            is_shown = definition.type != "secret" and not is_secret_name(name)
            is_shown = is_shown and (what == "input" or _NUMBER.fullmatch(str(given[name])) is not None)
            value, found = _read_value(given[name], definition, at, from_text=from_text, is_shown=is_shown)
            problems += found
            values[name] = value
        elif definition.is_required:
            about = f" ({definition.description})" if definition.description else ""
            hint = f"give {_TYPE_NAMES[definition.type]}: {'--input ' if what == 'input' else ''}{name}=…"
            problems.append(Problem("missing-input", at=at, message=f"no value for `{name}`{about}", hint=hint))
        elif definition.default is None:
            message = f"no value for `{name}`: the Prefect variable `{definition.variable}` gives none here"
            hint = f"set it: `prefect variable set {definition.variable} VALUE`, or give a value: --input {name}=…"
            problems.append(Problem("missing-input", at=at, message=message, hint=hint))
        else:
            values[name] = _copy(definition.default)
    for name in given:
        if name not in inputs:
            hint = did_you_mean(str(name), frozenset(inputs)) or f"the {owner} declares no {what}s"
            problems.append(
                Problem("unknown-input", at=join(f"{what}s", str(name)), message=f"the {owner} has no {what} `{name}`", hint=hint)
            )
    return values, problems


def _read_value(value: Any, definition: Input, at: str, *, from_text: bool, is_shown: bool) -> tuple[JsonValue, list[Problem]]:
    shown = ""
    if is_shown and isinstance(value, str | int | float):
        shown = code(cut(one_line(value) if from_text and isinstance(value, str) else as_text(value), _SHOWN_CHARACTERS))
    if from_text and isinstance(value, str):
        try:
            value = _parse_text(value, definition.type)
        except ValueError as error:
            message = f"{shown or 'this'} is not {_TYPE_NAMES[definition.type]}{error}"
            return None, [Problem("bad-input", at=at, message=message, hint=_text_hint(definition))]
    if problems := find_oversize([(at, value, 1)]) or find_bad_values(value, at):
        return None, problems
    value = normalize(value)
    faults = [
        Problem(
            "bad-input",
            at=at,
            message=f"the value {shown + ' ' if shown else ''}{fault}",
            hint=_FORMS.get(definition.type, definition.description),
        )
        for fault in _faults(value, definition)
    ]
    return _copy(value), faults


def _contradictions(definition: Input) -> Iterator[tuple[str, str, str]]:
    """Yield (field, message, hint) for each contradiction in a definition."""
    for field, kinds in _ONLY_FOR.items():
        if getattr(definition, field) is not None and definition.type not in kinds:
            yield field, f"`{field}` does not apply to {_TYPE_NAMES[definition.type]}", f"remove it, or write type: {kinds[0]}"
    if definition.pattern is not None and (fault := _pattern_fault(definition.pattern)):
        yield "pattern", fault, "patterns use RE2 syntax: no look-around and no back references"
        return
    for least, most in (("minimum", "maximum"), ("min_length", "max_length")):
        low, high = getattr(definition, least), getattr(definition, most)
        if low is not None and high is not None and low > high:
            yield least, f"`{least}` is larger than `{most}`, so no value fits", "swap them"
    if definition.variable is not None and not re.fullmatch(VARIABLE_NAME, definition.variable):
        yield "variable", f"`{definition.variable[:60]}` cannot be the name of a Prefect variable", "use letters from a to z, digits and _"
    if definition.enum is not None and not definition.enum:
        yield "enum", "`enum` is empty, so no value fits", "write the values, or remove it"
    without_enum = definition.model_copy(update={"enum": None})
    for index, member in enumerate(definition.enum or ()):
        if not is_visible(member):
            shown = code(cut(as_text(member), _SHOWN_CHARACTERS))
            yield f"enum[{index}]", f"a form would not show all characters of the choice {shown}", "remove the invisible ones"
        yield from _misfits(f"enum[{index}]", member, without_enum)
    for field in ("default", "example"):
        if (value := getattr(definition, field)) is not None:
            yield from _misfits(field, value, definition)


def _misfits(place: str, value: JsonValue, definition: Input) -> Iterator[tuple[str, str, str]]:
    """Yield the place, what is wrong with a value that the definition itself writes there, and a hint."""
    if isinstance(value, str) and has_expression(value):
        yield place, "an expression is not evaluated here", "write the value"
    for fault in () if find_bad_values(value) else _faults(value, definition):
        yield place, f"the value {fault}", "change it so that it matches the other fields of this input"


def _faults(value: JsonValue, definition: Input) -> Iterator[str]:
    """Yield what is wrong with a value without showing it, because it may be a secret."""
    if not _is_of_type(value, definition.type):
        yield f"is {_type_of(value)}, not {_TYPE_NAMES[definition.type]}"
        return
    if definition.enum is not None and not any(_is_same(value, member) for member in definition.enum):
        yield "is none of " + ", ".join(f"`{member}`" for member in definition.enum[:20])
    if isinstance(value, str) and definition.pattern is not None and not matches(definition.pattern, value):
        yield f"does not match the pattern `{definition.pattern}`"
    if isinstance(value, str | list):
        yield from _length_faults(len(value), "characters" if isinstance(value, str) else "members", definition)
    if isinstance(value, int | float):
        if definition.minimum is not None and value < definition.minimum:
            yield f"is smaller than {definition.minimum:g}"
        if definition.maximum is not None and value > definition.maximum:
            yield f"is larger than {definition.maximum:g}"
    if isinstance(value, list) and definition.items is not None:
        wrong = [index for index, member in enumerate(value) if not _is_of_type(member, definition.items)]
        if wrong:
            yield f"has {_type_of(value[wrong[0]])} at [{wrong[0]}], not {_TYPE_NAMES[definition.items]}"


def _length_faults(length: int, what: str, definition: Input) -> Iterator[str]:
    if definition.min_length is not None and length < definition.min_length:
        yield f"has {length} {what}, but needs at least {definition.min_length}"
    if definition.max_length is not None and length > definition.max_length:
        yield f"has {length} {what}; the limit is {definition.max_length}"


def _is_of_type(value: JsonValue, kind: str) -> bool:
    match kind:
        case "string":
            return isinstance(value, str)
        case "date" | "date-time" | "duration" | "secret":
            return isinstance(value, str) and _is_written_as(kind, value)
        case "integer":
            return isinstance(value, int) and not isinstance(value, bool)
        case "number":
            return isinstance(value, int | float) and not isinstance(value, bool)
        case "boolean":
            return isinstance(value, bool)
        case "array":
            return isinstance(value, list)
        case _:
            return isinstance(value, dict)


def _is_written_as(kind: str, text: str) -> bool:
    """Return whether `text` is a date, a time with its zone, or a duration, as expressions read them, or the name of a secret."""
    if not re.fullmatch(_PATTERNS[kind], text, re.ASCII):
        return False
    if kind == "secret":
        return not (has_token(text) or _HEX_KEY.fullmatch(text))
    try:
        if kind != "duration":
            datetime.fromisoformat(text)
    except ValueError:  # there is no such day or hour
        return False
    return True


def _type_of(value: JsonValue) -> str:
    if value is None:
        return "null"
    kinds = ("boolean", "integer", "number", "string", "array", "object")
    return next((_TYPE_NAMES[kind] for kind in kinds if _is_of_type(value, kind)), f"a {type(value).__name__}")


def _is_same(value: JsonValue, other: JsonValue) -> bool:
    """Return whether two values are the same JSON. Python's `True == 1` does not count."""
    if isinstance(value, bool) or isinstance(other, bool):
        return value is other
    if isinstance(value, list) and isinstance(other, list):
        return len(value) == len(other) and all(map(_is_same, value, other))
    if isinstance(value, dict) and isinstance(other, dict):
        return value.keys() == other.keys() and all(_is_same(value[key], other[key]) for key in value)
    return value == other


def _pattern_fault(pattern: str) -> str | None:
    try:
        matches(pattern, "")
    except ExpressionError as error:
        return str(error)
    return None


def value_of_text(text: str, definition: Input) -> JsonValue:
    """Return the value that `text` writes, or `text` itself if it is no value of the input's type."""
    try:
        return _parse_text(text, definition.type)
    except ValueError:
        return text


def _parse_text(text: str, kind: str) -> JsonValue:
    """Return the value of a text from the command line. Raises ValueError, sometimes with a message."""
    match kind:
        case "string" | "date" | "date-time" | "duration" | "secret" if _is_of_type(text, kind):
            return text
        case "integer" | "number" if (whole := _parse_whole(text)) is not None:
            return whole
        case "integer" if _NUMBER.fullmatch(text) and Decimal(text) == Decimal(text).to_integral_value():
            raise ValueError(f" from -{MAX_INTEGER} to {MAX_INTEGER}")
        case "number" if _NUMBER.fullmatch(text):
            return float(text)
        case "boolean" if text in ("true", "false"):
            return text == "true"
        case "array" | "object":
            return parse_json(text)
        case _:
            raise ValueError


def _parse_whole(text: str) -> int | None:
    """Return the whole number that `text` writes, such as 1 for `1`, `1.0` and `1e0`, or None if it writes no such number."""
    if not _NUMBER.fullmatch(text):
        return None
    number = Decimal(text)
    return int(number) if number.adjusted() < _MAX_DIGITS and number == number.to_integral_value() else None


def type_in_words(definition: Input) -> str:
    """Return the type of an input, and how a text of it is written: `an integer`, `a list, in JSON: ["a", "b"]`."""
    example = _EXAMPLES.get(definition.type)
    form = f", in JSON: {example}" if example else f": {_FORMS[definition.type]}" if definition.type in _FORMS else ""
    return _TYPE_NAMES[definition.type] + form


def limits_in_words(definition: Input) -> Iterator[str]:
    """Yield what a value must keep to, except the choices: `at least 2`, `pattern ^web-[0-9]+$`. Its example comes last."""
    if definition.pattern is not None:
        yield tr("pattern {pattern}", pattern=code(definition.pattern))
    yield from bounds_in_words(definition)
    if definition.example is not None:
        yield tr("for example {value}", value=code(as_text(definition.example)))


def bounds_in_words(definition: Input) -> Iterator[str]:
    """Yield the limits of a number, or of the length of a value: `at least 2`, `at most 3 characters`."""
    unit = "member" if definition.type == "array" else "character"
    least, most = later("at least {limit}"), later("at most {limit}")
    numbers = ((least, definition.minimum), (most, definition.maximum))
    lengths = ((least, definition.min_length), (most, definition.max_length))
    yield from (tr(text, limit=f"{limit:g}") for text, limit in numbers if limit is not None)
    yield from (tr(text, limit=counted(limit, unit)) for text, limit in lengths if limit is not None)


def _text_hint(definition: Input) -> str:
    if definition.type == "boolean":
        return "write true or false"
    example = _EXAMPLES.get(definition.type)
    return f"write JSON: {example}" if example else _FORMS.get(definition.type, definition.description)


def _copy(value: JsonValue) -> JsonValue:
    if isinstance(value, dict):
        return {key: _copy(member) for key, member in value.items()}
    return [_copy(member) for member in value] if isinstance(value, list) else value


def value_schema(declared: Input) -> dict[str, JsonValue]:
    """Return the JSON Schema for a value of one input."""
    is_list = declared.type == "array"
    schema: dict[str, JsonValue] = {
        "type": "string" if declared.type in TEXT_TYPES else declared.type,
        "format": declared.type if declared.type in ("date", "date-time") else None,
        "enum": declared.enum,
        "pattern": f"^{_PATTERNS[declared.type]}$" if declared.type in ("duration", "secret") else declared.pattern,
        "minItems" if is_list else "minLength": declared.min_length,
        "maxItems" if is_list else "maxLength": declared.max_length,
        "minimum": declared.minimum,
        "maximum": declared.maximum,
        "items": value_schema(Input(type=declared.items)) if declared.items else None,
    }
    return {name: value for name, value in schema.items() if value is not None}


def inputs_schema(inputs: Mapping[str, Input]) -> dict[str, JsonValue]:
    """Return the JSON Schema for all inputs of a plan: one object, with descriptions and defaults."""
    return {
        "type": "object",
        "properties": {name: _described_schema(declared) for name, declared in inputs.items()},
        "required": [name for name, declared in inputs.items() if declared.is_required],
        "additionalProperties": False,
    }


_NAME_ONLY = later("The name of a secret, never its value.")


def _described_schema(declared: Input) -> dict[str, JsonValue]:
    schema = value_schema(declared)
    if about := [text for text in (declared.description, _NAME_ONLY if declared.type == "secret" else "") if text]:
        schema["description"] = _in_sentences(about)
    if declared.default is not None:
        schema["default"] = declared.default
    return schema


def shown_value_schema(declared: Input) -> dict[str, JsonValue]:
    """Return the JSON Schema for a value of one input, without a pattern that has invisible characters: forms show it in errors.

    The value is checked again when it arrives. Choices have no such characters, or the plan is not valid.
    """
    schema = value_schema(declared)
    if declared.pattern is not None and not is_visible(declared.pattern):
        del schema["pattern"]
    return schema


def _field_schema(declared: Input) -> dict[str, JsonValue]:
    schema, about = shown_value_schema(declared), [prose(declared.description)] if declared.description else []
    if declared.type == "secret":
        about.append(tr(_NAME_ONLY))
    if limits := ", ".join(limits_in_words(declared)):
        about.append(f"{limits[0].upper()}{limits[1:]}.")
    if declared.variable is not None:
        about.append(tr("Empty: the Prefect variable {name}", name=code(declared.variable)))
    elif declared.default is not None and is_visible(declared.default):
        schema["default"] = declared.default
    elif declared.default is not None:  # the field would hide part of it; an empty field takes it as well
        about.append(tr("Empty: {value}", value=code(as_text(declared.default))))
    return schema | ({"description": _in_sentences(about)} if about else {})


def _in_sentences(texts: list[str]) -> str:
    """Return `texts` as one, each but the last one with a full stop."""
    return " ".join([text if text.endswith((".", "?", "!", "。", "?", "!")) else f"{text}." for text in texts[:-1]] + texts[-1:])


def input_from_schema(schema: Mapping[str, Any]) -> Input:
    """Return the input that a property of a form describes, as plain text."""
    names = {"minLength": "min_length", "minItems": "min_length", "maxLength": "max_length", "maxItems": "max_length"}
    known = {names.get(key, key): value for key, value in schema.items()}
    known["type"] = schema.get("format") or schema.get("type")
    if (items := known.get("items")) is not None:
        known["items"] = items.get("format") or items["type"]
    known |= {name: plain(known[name]) for name in ("title", "description") if isinstance(known.get(name), str)}
    return Input(**{name: value for name, value in known.items() if name in Input.model_fields})


def form_schema(inputs: Mapping[str, Input]) -> dict[str, JsonValue]:
    """Return the schema of a form as Prefect's UI reads it: required fields first, otherwise in the order of the plan, with titles.

    Titles and descriptions can neither hide text nor make links or HTML: one of Prefect's UIs renders them as Markdown.
    """
    properties: dict[str, JsonValue] = {
        name: {**_field_schema(declared), "title": prose(declared.title or name), "position": position}
        for position, (name, declared) in enumerate(sorted(inputs.items(), key=lambda item: not item[1].is_required))
    }
    required: list[JsonValue] = [name for name, declared in inputs.items() if declared.is_required]
    return {"title": "Parameters", "type": "object", "properties": properties, "required": required, "definitions": {}}
