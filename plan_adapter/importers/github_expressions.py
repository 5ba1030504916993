"""Translates expressions of GitHub Actions to CEL."""

import operator
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from plan_adapter.importers.conversion import NotConvertibleError, as_expression, literal, negation

Kind: TypeAlias = Literal["string", "bool", "number", "list", "dyn"]
Path: TypeAlias = tuple[str, ...]

_PIECE = re.compile(r"\$\{\{((?:'[^']*'|[^'])*?)\}\}")
_TOKEN = re.compile(
    r"\s*(?:(?P<number>-?(?:0x[0-9a-fA-F]+|\d+(?:\.\d+)?(?:[eE][+-]?\d+)?))|'(?P<text>(?:[^']|'')*)'"
    r"|(?P<name>[A-Za-z_][A-Za-z0-9_-]*)|(?P<sign>&&|\|\||==|!=|<=|>=|[!<>()\[\],.*]))"
)
_COMPARISONS = frozenset({"==", "!=", "<", "<=", ">", ">="})
_STATES = {"success": True, "always": True, "failure": False, "cancelled": False}
_ORDERS: Mapping[str, Callable[[str, str], bool]] = {"<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge}
_WORD = re.compile(r"\S+")


@dataclass(frozen=True, slots=True)
class Value:
    """A translated expression: its CEL code and type. `constant` is its value if that is known, in a tuple."""

    code: str
    kind: Kind
    constant: tuple[str | bool | int | float | None] | None = None
    choice: "tuple[Value, Value] | None" = None  # of `a && b` whose `b` is no boolean: the condition and the value
    options: tuple[str, ...] = ()  # the only texts that it can be, if they are known
    condition: str = ""  # of a value with two options: when it is the first
    is_written: bool = False  # made only of texts that the workflow itself contains, such as the values of a matrix
    members: "tuple[Value, ...] | None" = None  # of a list
    missing: str = ""  # why there is no such value in the plan: what uses it becomes a placeholder

    @classmethod
    def of(cls, value: str | float | bool | None) -> "Value":
        """Return a constant."""
        kind: Kind = "bool" if isinstance(value, bool) else "number" if isinstance(value, int | float) else "string"
        code = literal(float(value)) if kind == "number" and value is not None else literal(value or "" if value is None else value)
        return cls(code, kind, (value,))

    @property
    def may_be_code(self) -> bool:
        """Whether its text comes from outside the workflow, so that a program must not read it as code."""
        return self.constant is None and self.kind not in ("bool", "number") and not self.options and not self.is_written

    @property
    def text(self) -> str | None:
        """The text of a constant as GitHub inserts it into a text, or None."""
        if self.constant is None:
            return None
        (value,) = self.constant
        if value is None:
            return ""
        if isinstance(value, float) and value.is_integer():
            return str(int(value))
        return str(value).lower() if isinstance(value, bool) else str(value)


Resolve: TypeAlias = Callable[[Path], Value]
"""Returns the value of a context such as `("inputs", "target")`. Raises NotConvertibleError."""


@dataclass(frozen=True, slots=True)
class Condition:
    """A translated `if`. `states` are the status functions that it calls."""

    value: Value
    states: frozenset[str]


def pieces(text: str) -> Iterator[tuple[str, bool]]:
    """Yield the parts of a text, each with whether it is the inside of an expression."""
    position = 0
    for found in _PIECE.finditer(text):
        if found.start() > position:
            yield text[position : found.start()], False
        yield found[1].strip(), True
        position = found.end()
    if position < len(text):
        yield text[position:], False


def translate(source: str, resolve: Resolve) -> Value:
    """Return the value of an expression, without its braces. Raises NotConvertibleError."""
    return _resolve_choice(_Parser(source, resolve).parse())


def translate_condition(source: str, resolve: Resolve, *, success: str = "") -> Condition:
    """Return the condition of an `if`, whose braces are optional. `success` is what `success()` means. Raises NotConvertibleError."""
    parts = list(pieces(source.strip()))
    if len(parts) > 1:
        raise NotConvertibleError(f"`{source}` joins several expressions")
    parser = _Parser(
        parts[0][0] if parts else "", resolve, Value(success, "bool") if success not in ("", "false") else Value.of(not success)
    )
    return Condition(_as_condition(parser.parse()), frozenset(parser.states))


def list_of(values: Sequence[Value]) -> Value:
    """Return a list of values."""
    return Value(f"[{', '.join(map(_as_text, values))}]", "list", members=tuple(values))


def concatenate(values: Sequence[Value]) -> Value:
    """Return the text that `values` make together."""
    if len(values) == 1:
        return values[0]
    if missing := next((value.missing for value in values if value.missing), ""):
        return Value("", "string", missing=missing)
    texts = [value.text for value in values]
    if all(text is not None for text in texts):
        return Value.of("".join(text or "" for text in texts))
    is_written = not any(value.may_be_code for value in values)
    return Value(" + ".join(_as_text(value) for value in values), "string", is_written=is_written)


def parameter_text(value: Value) -> str:
    """Return a value as the text of a parameter. Raises NotConvertibleError if the plan has no such value."""
    if value.missing:
        raise NotConvertibleError(value.missing)
    return value.text if value.text is not None else as_expression(value.code)


def as_text(value: Value) -> Value:
    """Return a value as the text that a variable or an output has."""
    if value.missing or value.kind in ("string", "list"):
        return value
    if value.text is not None:
        return Value.of(value.text)
    if value.kind == "bool":
        return Value(f"({value.code} ? 'true' : 'false')", "string", options=("true", "false"), condition=value.code)
    return Value(_as_text(value), "string", is_written=not value.may_be_code)


def _as_text(value: Value) -> str:
    if value.text is not None:
        return literal(value.text)
    return value.code if value.kind == "string" else f"string({value.code})"


def _resolve_choice(value: Value) -> Value:
    """Return `value`. An `a && b` that no `||` follows becomes `b` or an empty text."""
    if value.choice is None:
        return value
    condition, chosen = value.choice
    return Value(f"(({_as_condition(condition).code}) ? {_as_text(chosen)} : '')", "string", is_written=not chosen.may_be_code)


def _as_condition(value: Value) -> Value:
    """Return a value as a condition, by GitHub's rules for what counts as true."""
    if value.choice is not None:
        return _and(_as_condition(value.choice[0]), _as_condition(value.choice[1]))
    if value.constant is not None:
        return Value.of(bool(value.constant[0]))
    match value.kind:
        case "bool":
            return value
        case "string":
            return Value(f"{value.code} != ''", "bool")
        case "number":
            return Value(f"{value.code} != 0.0", "bool")
        case _:
            raise NotConvertibleError(f"`{value.code}` is not a condition")


def _is_constant(value: Value, wanted: bool) -> bool:
    return value.kind == "bool" and value.constant == (wanted,)


def _and(left: Value, right: Value) -> Value:
    if _is_constant(left, False) or _is_constant(right, False):
        return Value.of(False)
    if _is_constant(left, True):
        return right
    return left if _is_constant(right, True) else Value(f"({left.code}) && ({right.code})", "bool")


def _or(left: Value, right: Value) -> Value:
    if _is_constant(left, True) or _is_constant(right, True):
        return Value.of(True)
    if _is_constant(left, False):
        return right
    return left if _is_constant(right, False) else Value(f"({left.code}) || ({right.code})", "bool")


def _compare(left: Value, sign: str, right: Value) -> Value:
    left, right = (
        _convert_constant(_resolve_choice(left), _resolve_choice(right)),
        _convert_constant(_resolve_choice(right), _resolve_choice(left)),
    )
    if {left.kind, right.kind} == {"bool", "string"} and (left.constant is not None or right.constant is not None):
        return _compare_as_numbers(left, sign, right)
    if left.kind != right.kind and "dyn" not in (left.kind, right.kind):
        raise NotConvertibleError(f"`{left.code} {sign} {right.code}` compares different types")
    if sign not in ("==", "!="):
        if left.kind == right.kind == "string" and left.text is not None and right.text is not None:
            return Value.of(_ORDERS[sign](_folded(left.text), _folded(right.text)))
        left_code, right_code = _same_case(left, right) if left.kind == "string" else (left.code, right.code)
        return Value(f"{left_code} {sign} {right_code}", "bool")
    if left.constant is not None and right.constant is not None:
        return Value.of((_folded(left.text) == _folded(right.text)) == (sign == "=="))
    if right.options and left.text is not None:
        left, right = right, left
    if left.options and right.text is not None:
        return _compare_option(left, sign, right.text)
    left_code, right_code = _same_case(left, right)
    return Value(f"{left_code} {sign} {right_code}", "bool")


def _compare_as_numbers(left: Value, sign: str, right: Value) -> Value:
    """Compare a boolean with a text. GitHub converts both to numbers, so they differ unless the text is a number."""
    value, text = (left, right) if left.kind == "bool" else (right, left)
    if text.text is not None and sign in ("==", "!="):
        return Value.of(sign == "!=")
    raise NotConvertibleError(f"`{value.code} {sign} {text.code}` compares a boolean with a text, as numbers")


def _compare_option(value: Value, sign: str, text: str) -> Value:
    """Return the comparison of a value that can only be one of its options."""
    matching = [option for option in value.options if _folded(option) == _folded(text)]
    if not matching:
        return Value.of(sign == "!=")
    if value.condition:
        is_first = (matching[0] == value.options[0]) == (sign == "==")
        return Value(value.condition if is_first else negation(value.condition), "bool")
    if len(matching) == 1:
        return Value(f"{value.code} {sign} {literal(matching[0])}", "bool")
    return Value(f"{value.code}.lowerAscii() {sign} {literal(_folded(text))}", "bool")


def _folded(text: str | None) -> str:
    return (text or "").lower()


def _same_case(left: Value, right: Value) -> tuple[str, str]:
    """Return the codes of two texts in lower case, because GitHub ignores case, or as they are if one has no letters."""
    if (
        left.kind != "string"
        or right.kind != "string"
        or any(value.text is not None and not _has_case(value.text) for value in (left, right))
    ):
        return left.code, right.code
    return _in_lower_case(left), _in_lower_case(right)


def _in_lower_case(value: Value) -> str:
    return literal(_folded(value.text)) if value.text is not None else f"{value.code}.lowerAscii()"


def _has_case(text: str) -> bool:
    return text.lower() != text.upper()


def _contains(where: Value, what: Value) -> Value:
    """Return whether a list has a text, or a text contains another, without regard to case."""
    if where.members is None:
        left, right = _same_case(where, _text_value(what))
        return Value(f"{left}.contains({right})", "bool")
    if what.text is not None:
        members = [member for member in where.members if member.options or member.constant is not None]
        found = Value.of(False)
        for member in members:
            found = _or(found, _compare(_text_value(member), "==", Value.of(what.text)))
        if len(members) == len(where.members):
            return found
    if all(member.text is not None for member in where.members):
        texts = {_folded(member.text) for member in where.members}
        if what.options and len({_folded(option) for option in what.options}) == len(what.options):
            return Value(f"{what.code} in {literal([option for option in what.options if _folded(option) in texts])}", "bool")
        needs_case = any(_has_case(text) for text in texts)
        code = f"{_as_text(what)}.lowerAscii()" if needs_case else _as_text(what)
        return Value(f"{code} in {literal([_folded(member.text) for member in where.members])}", "bool")
    raise NotConvertibleError(f"`{where.code}` is a list whose values are not known")


def _text_value(value: Value) -> Value:
    return value if value.kind == "string" else Value.of(value.text) if value.text is not None else Value(_as_text(value), "string")


def _convert_constant(value: Value, other: Value) -> Value:
    """Return a constant in the type of the value that it is compared with, as GitHub converts both."""
    if value.constant is None or value.kind == other.kind:
        return value
    text = value.text or ""
    if other.kind == "bool" and text in ("0", "1", ""):
        return Value.of(text == "1")
    if other.kind == "number" and re.fullmatch(r"-?\d+(\.\d+)?", text):
        return Value.of(float(text))
    if other.kind == "string" and value.constant == (None,):
        return Value.of("")
    return value


@dataclass(slots=True)
class _Parser:
    source: str
    resolve: Resolve
    success: Value = field(default_factory=lambda: Value.of(True))
    states: set[str] = field(default_factory=set[str])
    _position: int = 0

    def parse(self) -> Value:
        value = self._parse_or()
        if self.source[self._position :].strip():
            raise self._error()
        return value

    def _peek(self) -> re.Match[str] | None:
        return _TOKEN.match(self.source, self._position)

    def _take(self, *signs: str) -> str | None:
        """Consume and return the next token if it is one of `signs`; otherwise return None."""
        token = self._peek()
        if token is None or token["sign"] not in signs:
            return None
        self._position = token.end()
        return token["sign"]

    def _error(self) -> NotConvertibleError:
        return NotConvertibleError(f"`{self.source}` cannot be translated")

    def _parse_or(self) -> Value:
        value = self._parse_and()
        while self._take("||"):
            other = self._parse_and()
            if value.choice is not None and value.choice[1].text:
                condition, chosen = value.choice
                value = self._conditional(_as_condition(condition), chosen, _resolve_choice(other))
            elif value.kind == other.kind == "bool":
                value = _or(value, other)
            else:
                value = self._conditional(_as_condition(value), _resolve_choice(value), _resolve_choice(other))
        return value

    def _conditional(self, condition: Value, yes: Value, no: Value) -> Value:
        if condition.constant is not None:
            return yes if condition.constant[0] else no
        is_written = not yes.may_be_code and not no.may_be_code
        if yes.kind == no.kind:
            return Value(f"(({condition.code}) ? {yes.code} : {no.code})", yes.kind, is_written=is_written)
        return Value(f"(({condition.code}) ? {_as_text(yes)} : {_as_text(no)})", "string", is_written=is_written)

    def _parse_and(self) -> Value:
        value = self._parse_comparison()
        while self._take("&&"):
            other = self._parse_comparison()
            value = _and(_as_condition(value), other) if other.kind == "bool" else Value("", other.kind, choice=(value, other))
        return value

    def _parse_comparison(self) -> Value:
        value = self._parse_unary()
        while sign := self._take(*_COMPARISONS):
            value = _compare(value, sign, self._parse_unary())
        return value

    def _parse_unary(self) -> Value:
        if not self._take("!"):
            return self._parse_primary()
        value = _as_condition(self._parse_unary())
        return Value.of(not value.constant[0]) if value.constant is not None else Value(negation(value.code), "bool")

    def _parse_primary(self) -> Value:
        if self._take("("):
            value = self._parse_or()
            if not self._take(")"):
                raise self._error()
            return value
        token = self._peek()
        if token is None or token["sign"]:
            raise self._error()
        self._position = token.end()
        if token["number"]:
            return Value.of(float(int(token["number"], 0)) if "x" in token["number"] else float(token["number"]))
        if token["text"] is not None:
            return Value.of(token["text"].replace("''", "'"))
        return self._parse_name(token["name"])

    def _parse_name(self, name: str) -> Value:
        if name in ("true", "false"):
            return Value.of(name == "true")
        if name == "null":
            return Value.of(None)
        if self._take("("):
            return self._parse_call(name.lower())
        path = [name]
        while sign := self._take(".", "["):
            part = self._parse_index() if sign == "[" and self._take("*") is None else self._parse_member(sign)
            if sign == "[" and not self._take("]"):
                raise self._error()
            path.append(part)
        return self.resolve(tuple(path))

    def _parse_member(self, sign: str) -> str:
        """Return the name behind a dot, or `*`, which an index has consumed already."""
        if sign == "[" or self._take("*"):
            return "*"
        token = self._peek()
        if token is None or token["name"] is None:
            raise self._error()
        self._position = token.end()
        return token["name"]

    def _parse_index(self) -> str:
        """Return the name or number in brackets, which may be an expression with a known value."""
        index = _resolve_choice(self._parse_or()).text
        if index is None:
            raise self._error()
        return index

    def _parse_call(self, name: str) -> Value:
        arguments = list[Value]()
        start = self._position
        while not self._take(")"):
            if arguments and not self._take(","):
                raise self._error()
            arguments.append(_resolve_choice(self._parse_or()))
        if name in _STATES and not arguments:
            self.states.add(name)
            return self.success if name == "success" else Value.of(_STATES[name])
        match name, arguments:
            case "contains", [where, what] if where.kind == "string" or where.members is not None:
                return _contains(where, what)
            case "startswith" | "endswith", [text, part] if text.kind == "string":
                method = "startsWith" if name == "startswith" else "endsWith"
                whole, end = _same_case(text, _text_value(part))
                return Value(f"{whole}.{method}({end})", "bool")
            case "format", [template, *values] if template.text is not None:
                return _format(template.text, values)
            case "join", [where, *separator] if where.members is not None and all(value.text is not None for value in separator):
                between = separator[0] if separator else Value.of(",")
                return concatenate([part for member in where.members for part in (between, member)][1:] or [Value.of("")])
            case "fromjson", [text] if text.text is not None:
                return self._from_json(text.text)
            case "tojson", [value] if value.kind in ("bool", "number"):
                return value
            case _:
                shown = _WORD.search(f"{name}({self.source[start : self._position]}")
                raise NotConvertibleError(f"`{shown[0] if shown else name}` has no equivalent")

    def _from_json(self, text: str) -> Value:
        words = re.fullmatch(r"\s*\[((?:\s*\"[^\"\\]*\"\s*,?)*)\]\s*", text)
        if words is not None:
            return list_of([Value.of(word) for word in re.findall(r'"([^"\\]*)"', words[1])])
        if text in ("true", "false"):
            return Value.of(text == "true")
        raise NotConvertibleError(f"`fromJSON('{text}')` has no equivalent")


def _format(template: str, values: Sequence[Value]) -> Value:
    parts = list[Value]()
    for index, part in enumerate(re.split(r"\{(\d+)\}", template)):
        if index % 2 == 0:
            parts += [Value.of(part.replace("{{", "{").replace("}}", "}"))] if part else []
        elif int(part) < len(values):
            parts.append(values[int(part)])
    return concatenate(parts or [Value.of("")])
