"""`Expression`, a compiled `${{ }}`, and `Variables`, the values to evaluate it with.

An expression that is only a reference never reaches CEL. In any other expression, each use of a step or an input becomes a separate
variable (`steps["my-step"].result` -> `_r0`). So ids may contain hyphens, and expressions of the same shape share one compiled program.
"""

import json
import math
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from pydantic import JsonValue

from plan_adapter.expressions import cel
from plan_adapter.expressions.declarations import NAME_HINTS, Declarations, RefusedError, check_members, shape_of
from plan_adapter.expressions.references import (
    MissingValueError,
    Path,
    Reference,
    asks_for_null,
    count_names,
    follow,
    format_path,
    hyphenated_word,
    is_compared_with_null,
    longest_paths,
    member_paths,
    read_path,
    references,
    replace_references,
    shorten,
    whole_path,
)
from plan_adapter.expressions.shape import Shape, shape_of_kind
from plan_adapter.model.errors import ExpressionError
from plan_adapter.model.values import Unknown, has_unknown


@dataclass(frozen=True, slots=True)
class Variables:
    """The values of a run: each finished step's result, status and error, the inputs, the secrets, and the current item and result.

    `run` holds the status and the failed steps of the run, for `finally` steps.
    """

    steps: Mapping[str, Mapping[str, JsonValue]]
    inputs: Mapping[str, JsonValue]
    item: JsonValue = None
    result: JsonValue = None
    secrets: Mapping[str, str] = field(default_factory=dict[str, str], repr=False)
    run: Mapping[str, JsonValue] = field(default_factory=dict[str, JsonValue])
    hosts: Mapping[str, JsonValue] = field(default_factory=dict[str, JsonValue])  # by pattern
    event: Mapping[str, JsonValue] | None = None  # the one that started a run, for `triggers`
    may_be_unknown: bool = False  # whether values may be `Unknown`: in a dry run

    def follow(self, path: Path) -> Any:
        """Return the value at `path`. Raises MissingValueError."""
        roots = {"steps": self.steps, "inputs": self.inputs, "secrets": self.secrets, "run": self.run, "hosts": self.hosts}
        more = {} if self.event is None else {"event": self.event}
        return follow(path, {**roots, **more, "item": self.item, "result": self.result})


@dataclass(frozen=True, slots=True)
class Variable:
    """A variable of an expression: its name in the code, its type, and the reference that gives its value."""

    name: str
    kind: str
    path: Path


@dataclass(frozen=True, slots=True)
class Expression:
    """A compiled `${{ }}`. `code` is the CEL code, or None for a plain reference, whose path is that of the only variable."""

    source: str
    shape: Shape  # what is known of its value
    code: str | None
    variables: tuple[Variable, ...]

    def evaluate(self, variables: Variables) -> JsonValue:
        """Return the value as plain JSON that nothing else references. Raises ExpressionError, which names the expression."""
        try:
            values = {variable.name: variables.follow(variable.path) for variable in self.variables}
            if variables.may_be_unknown and self._is_unknown(values.values()):
                return Unknown(f"${{{{ {self.source} }}}}")
            if self.code is None:
                return to_plain_json(values[""])
            return to_plain_json(cel.calculate(self.code, _signature(self.variables), values), in_order=True)
        except MissingValueError as error:
            raise ExpressionError(f"{self}: {error}") from None
        except cel.CelValueError as error:
            # CEL reports which key is missing but not where. The references in the source show where.
            raise ExpressionError(f"{self}: {self._explain_missing(str(error), variables) or error}") from None
        except RecursionError:
            raise ExpressionError(f"{self}: a value is nested too deep") from None
        except TypeError as error:
            raise ExpressionError(f"{self} gives {error}, which is not JSON") from None

    def _is_unknown(self, values: Collection[object]) -> bool:
        """Return whether the value depends on an unknown one. A reference to a list or a mapping keeps what is known of it."""
        return any(isinstance(value, Unknown) or (self.code is not None and has_unknown(value)) for value in values)

    @property
    def kind(self) -> str:
        """The type of the value as CEL names it: `bool`, `int`, `list(string)`, `dyn`."""
        return self.shape.kind

    @property
    def secrets(self) -> frozenset[str]:
        """The names of the secrets that the expression uses."""
        return frozenset(str(variable.path[1]) for variable in self.variables if variable.path[0] == "secrets")

    def names_secrets(self, inputs: Collection[str]) -> bool:
        """Return whether the expression uses one of `inputs`, which are of type `secret`."""
        return any(variable.path[0] == "inputs" and variable.path[1] in inputs for variable in self.variables)

    def with_named_secrets(self, names: Mapping[str, str]) -> "Expression":
        """Return the expression with the secret itself in place of each input in `names`, whose value is the name of that secret."""

        def named(path: Path) -> Path | None:
            return ("secrets", names[str(path[1])], *path[2:]) if path[0] == "inputs" and path[1] in names else None

        def written(path: Path) -> str | None:
            return None if (secret := named(path)) is None else format_path(secret)

        variables = tuple(replace(variable, path=named(variable.path) or variable.path) for variable in self.variables)
        return replace(self, source=replace_references(self.source, written), variables=variables)

    def with_values(self, variables: Variables) -> str:
        """Return the expression as written, with braces, and with values in place of all references except secrets."""

        def literal(path: Path) -> str | None:
            try:
                return json.dumps(to_plain_json(variables.follow(path)), ensure_ascii=False)
            except (MissingValueError, TypeError, RecursionError):
                return None

        return f"${{{{ {self.source if self.code is None else replace_references(self.source, literal)} }}}}"

    def _explain_missing(self, message: str, variables: Variables) -> str:
        missing_values = list[MissingValueError]()
        for path in longest_paths(self.source):
            try:
                variables.follow(path)
            except MissingValueError as error:
                missing_values.append(error)
        return str(min(missing_values, key=lambda missing: f'"{missing.key}"' not in message, default=""))

    def __str__(self) -> str:
        """Return the source on one line, as error messages show it."""
        return f"`{shorten(self.source)}`"


def compile_expression(source: str, declarations: Declarations) -> Expression:
    """Compile `source`, the text between `${{` and `}}`. Raises RefusedError."""
    if not source:
        raise RefusedError("expression-syntax", "the expression is empty", "write one, or remove the braces")
    path = whole_path(source)
    if path is not None:
        return Expression(source, shape_of(path, declarations), None, (Variable("", "dyn", path),))
    values, known = _Program(), _Program()
    has_null, mentions_null = asks_for_null(source), count_names(source, {"null"}) > 0
    for reference in references(source):
        if reference.path[0] == "run" and not declarations.run:
            continue  # perhaps a variable of a macro
        if len(reference.path) == 2 and (word := hyphenated_word(source, reference.start)):
            root = reference.path[0]
            raise RefusedError("hyphenated-id", f"`{root}.{word[:80]}` is read as a subtraction", f'write {root}["{word[:80]}"]')
        kind = shape_of(reference.path, declarations).kind
        is_result = reference.path[0] == "steps" and reference.path[2:] == ("result",)
        values.add(source, reference, "dyn" if is_result else kind)
        known.add(source, *(_known_part(source, reference, declarations, has_null=has_null) if is_result else (reference, kind)))
    for program in (values, known):
        program.code += source[program.position :]
    context_names = [
        name for name, exists in (("item", declarations.item), ("result", declarations.result), ("event", declarations.event)) if exists
    ]
    roots = {path[0] for path in longest_paths(values.code)}  # not the members of other references: `steps.build.result`
    for name in (name for name in context_names if name in roots):
        values.variables.append(Variable(name, "dyn", (name,)))
        kind = "dyn" if mentions_null else _known_kind((name,), declarations)
        # Plans in stores compare a whole object in `done_when` with a text, which is false.
        known.variables.append(Variable(name, "dyn" if kind == "map" else kind, (name,)))
    try:
        kind = cel.type_of(values.code, _signature(values.variables))
    except cel.CelSyntaxError as error:
        raise _explain_refusal(source, error, values.variables, declarations) from None
    check_members(member_paths(source), declarations)
    if known != values:
        try:
            kind = cel.type_of(known.code, _signature(known.variables))
        except cel.CelSyntaxError as error:
            if not error.evaluates:
                raise _explain_refusal(source, error, known.variables, declarations) from None
    return Expression(source, shape_of_kind(kind), values.code, tuple(values.variables))


@dataclass(slots=True)
class _Program:
    """CEL code with a variable in place of each reference, up to `position` in the source."""

    code: str = ""
    variables: list[Variable] = field(default_factory=list["Variable"])
    position: int = 0

    def add(self, source: str, reference: Reference, kind: str) -> None:
        """Add the source up to `reference`, and the reference as a variable."""
        variable = Variable(f"_r{len(self.variables)}", kind, reference.path)
        self.variables.append(variable)
        # Padded to the reference's length, so that CEL's columns match the source.
        self.code += source[self.position : reference.start] + variable.name.ljust(reference.end - reference.start)
        self.position = reference.end


def _known_part(source: str, reference: Reference, declarations: Declarations, *, has_null: bool) -> tuple[Reference, str]:
    """Return the longest form of `reference` whose type is known, with that type.

    Only types are checked with it: in a run, a step that was skipped has the result null, which an expression may ask for first.
    """
    whole = read_path(source, reference.start)
    is_asked_for = source[: reference.start].rstrip().endswith("has(") or is_compared_with_null(source, whole)
    if is_asked_for or (has_null and len(whole.path) <= 3):
        return reference, "dyn"
    kind = _known_kind(whole.path, declarations)
    return (reference, kind) if kind == "dyn" else (whole, kind)


def _known_kind(path: Path, declarations: Declarations) -> str:
    """Return the type of the value at `path`, or `dyn` if it is not known or may be null."""
    try:
        kind = shape_of(path, declarations).kind
    except RefusedError:  # reported after all other mistakes
        return "dyn"
    # A list of numbers may contain 1 for 1.0: JSON does not tell them apart.
    return {"null_type": "dyn", "list(double)": "list"}.get(kind, kind)


def _signature(variables: list[Variable] | tuple[Variable, ...]) -> cel.Signature:
    return tuple((variable.name, variable.kind) for variable in variables)


def _explain_refusal(source: str, error: cel.CelSyntaxError, variables: list[Variable], declarations: Declarations) -> RefusedError:
    """Return CEL's error about `source` in terms of the source, with a hint."""
    place = f"`{shorten(source)}`" + (f", column {error.column}" if error.column else "")
    message = re.sub(r"\b_r(\d+)\b", lambda name: format_path(variables[int(name[1])].path), str(error))
    unknown = re.match(r"undeclared reference to '([^']*)'", message)
    if unknown:
        return RefusedError("unknown-reference", f"{place}: there is no `{unknown[1]}`", _name_hint(source, unknown[1], declarations))
    if error.hint:
        return RefusedError("expression-type", f"{place}: {message}", error.hint)
    hint = "let a tool do that" if error.is_too_deep else _syntax_hint(source)
    return RefusedError("expression-syntax", f"{place}: {_in_words(message)}", hint)


def _name_hint(source: str, name: str, declarations: Declarations) -> str:
    first = name.partition(".")[0]
    if first in NAME_HINTS:
        return NAME_HINTS[first]
    if first in declarations.steps:
        return f"write {format_path(('steps', first, 'result'))}"
    if first in declarations.inputs:
        return f"write inputs.{first}"
    if re.search(rf"\b{re.escape(first)}\s*\(", source):
        return _FUNCTIONS.get(first, _KNOWN_FUNCTIONS)
    if re.search(rf"\w-{re.escape(first)}\b", source):
        return 'a key with a hyphen is written ["my-key"]'
    return "write text in quotes; the variables are steps, inputs, secrets, item and result"


_HABITS: Mapping[str, str] = {
    r"`": "CEL has no templates: write the text around `${{ }}`, or join texts with +",
    r"===|!==": "CEL compares with == and !=",
    r"\?\?|\?\.": "CEL asks has(item.name) ? item.name : 'other'",
    r"=>|\blambda\b": "CEL writes list.map(x, x.name) and list.filter(x, x.size > 1)",
    r"\bis\s+(not\s+)?(defined|none|null)\b": "CEL asks has(item.name) for a field, and compares a value with null",
    r"\bif\b.*\belse\b": "CEL writes condition ? one : other",
    r"\b(and|or|not)\b": "CEL writes && || and !",
    r"(?<!\|)\|(?!\|)": "CEL has no filters: it calls functions of the value, as in inputs.name.lowerAscii()",
    r"~": "CEL joins texts with +",
    r"[^=!<>]=[^=]": "CEL compares with ==",
}
"""What people write by habit from other languages, as a regular expression, and what CEL has instead."""

_FUNCTIONS: Mapping[str, str] = {
    **dict.fromkeys(("len", "length", "count"), "write size(value)"),
    **dict.fromkeys(("str", "String", "toString", "tostring"), "write string(value)"),
    **dict.fromkeys(("float", "Number", "parseFloat", "number"), "write double(value)"),
    **dict.fromkeys(("parseInt", "integer"), "write int(value)"),
    **dict.fromkeys(("upper", "toUpperCase", "toupper"), "write text.upperAscii()"),
    **dict.fromkeys(("lower", "toLowerCase", "tolower"), "write text.lowerAscii()"),
    **dict.fromkeys(("strip", "trimmed"), "write text.trim()"),
    **dict.fromkeys(("includes", "contain", "has_key"), "write text.contains('part'), or 'member' in list"),
    **dict.fromkeys(("startswith", "hasPrefix"), "write text.startsWith('part')"),
    **dict.fromkeys(("endswith", "hasSuffix"), "write text.endsWith('part')"),
    **dict.fromkeys(("match", "test", "regex"), "write text.matches('pattern')"),
    **dict.fromkeys(("any", "some"), "write list.exists(x, x > 1)"),
    **dict.fromkeys(("every", "all_of"), "write list.all(x, x > 1)"),
    **dict.fromkeys(("append", "push", "concat"), "write list + [member]"),
    **dict.fromkeys(("default", "coalesce", "defined"), "write has(item.name) ? item.name : 'other'"),
    **dict.fromkeys(("fromJSON", "from_json", "fromJson", "json"), "a result that is JSON is parsed already: use its fields"),
    **dict.fromkeys(("toJSON", "to_json", "tojson"), "pass the value itself: a tool gets it typed"),
    **dict.fromkeys(("now", "today", "date"), "an expression has no clock: pass the time as an input, or let a tool return it"),
}
"""Functions of other languages, and what to write instead."""

_KNOWN_FUNCTIONS = (
    "CEL has size(), string(), int() and double(), and of a text contains(), startsWith(), endsWith(), matches(), split(), replace(), "
    "substring(), trim(), lowerAscii() and upperAscii()"
)


def _syntax_hint(source: str) -> str:
    without_texts = re.sub(r"'[^']*'|\"[^\"]*\"", "''", source)
    return next((hint for habit, hint in _HABITS.items() if re.search(habit, without_texts)), "")


def _in_words(message: str) -> str:
    """Return an error of CEL's parser in words."""
    if found := re.match(r"token recognition error at: '(.*?)\s*'$", message):
        return f"CEL does not know `{shorten(found[1][:20])}`"
    if found := re.match(r"(?:mismatched|extraneous) input '(.*?)'$", message):
        return f"`{shorten(found[1])}` was not expected here"
    if found := re.match(r"missing '(.*?)' at '?(.*?)'?$", message):
        return f"`{found[1]}` is missing before {found[2] if found[2] == 'the end' else f'`{shorten(found[2])}`'}"
    if found := re.match(r"no viable alternative at input '(.*?)'$", message):
        return f"it cannot be read up to `{shorten(found[1][-20:])}`"
    return message


def to_plain_json(value: Any, *, in_order: bool = False) -> JsonValue:
    """Return a copy of `value` as plain JSON. Raises TypeError, which describes the part that is not JSON.

    `in_order` sorts keys: CEL's mappings are unordered, and a run must be deterministic.
    """
    if isinstance(value, str):
        return value if isinstance(value, Unknown) else str(value)  # a status is an enum
    if isinstance(value, bool | int) or value is None:
        return value
    if isinstance(value, float):
        if not math.isfinite(value):
            raise TypeError(value)
        return value
    if isinstance(value, list):
        return [to_plain_json(member, in_order=in_order) for member in value]  # pyright: ignore[reportUnknownVariableType]  # from CEL or a run
    if isinstance(value, Mapping):
        if any(not isinstance(key, str) for key in value):  # pyright: ignore[reportUnknownVariableType]
            raise TypeError("a key that is not text")
        keys: Any = sorted(value) if in_order else value  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType]
        return {key: to_plain_json(value[key], in_order=in_order) for key in keys}
    raise TypeError(f"a {type(value).__name__}")
