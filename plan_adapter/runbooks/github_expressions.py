"""Translates expressions of GitHub Actions to CEL."""

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from plan_adapter.runbooks.conversion import NotConvertibleError, as_expression, literal, negation

Kind: TypeAlias = Literal["string", "bool", "number", "list", "dyn"]
Path: TypeAlias = tuple[str, ...]

_PIECE = re.compile(r"\$\{\{((?:'[^']*'|[^'])*?)\}\}")
_TOKEN = re.compile(
    r"\s*(?:(?P<number>-?(?:0x[0-9a-fA-F]+|\d+(?:\.\d+)?(?:[eE][+-]?\d+)?))|'(?P<text>(?:[^']|'')*)'"
    r"|(?P<name>[A-Za-z_][A-Za-z0-9_-]*)|(?P<sign>&&|\|\||==|!=|<=|>=|[!<>()\[\],.*]))"
)
_COMPARISONS = frozenset({"==", "!=", "<", "<=", ">", ">="})
_STATES = {"success": True, "always": True, "failure": False, "cancelled": False}
_WORD = re.compile(r"\S+")


@dataclass(frozen=True, slots=True)
class Value:
    """A translated expression: its CEL code and type. `constant` is its value if that is known, in a tuple."""

    code: str
    kind: Kind
    constant: tuple[str | bool | int | float | None] | None = None
    choice: "tuple[Value, Value] | None" = None  # of `a && b` whose `b` is no boolean: the condition and the value

    @classmethod
    def of(cls, value: str | float | bool | None) -> "Value":
        """Return a constant."""
        kind: Kind = "bool" if isinstance(value, bool) else "number" if isinstance(value, int | float) else "string"
        code = literal(float(value)) if kind == "number" and value is not None else literal(value or "" if value is None else value)
        return cls(code, kind, (value,))

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


def translate_condition(source: str, resolve: Resolve) -> Condition:
    """Return the condition of an `if`, whose braces are optional. Raises NotConvertibleError."""
    parts = list(pieces(source.strip()))
    if len(parts) > 1:
        raise NotConvertibleError(f"`{source}` joins several expressions")
    parser = _Parser(parts[0][0] if parts else "", resolve)
    return Condition(_as_condition(parser.parse()), frozenset(parser.states))


def concatenate(values: Sequence[Value]) -> Value:
    """Return the text that `values` make together."""
    if len(values) == 1:
        return values[0]
    texts = [value.text for value in values]
    if all(text is not None for text in texts):
        return Value.of("".join(text or "" for text in texts))
    return Value(" + ".join(_as_text(value) for value in values), "string")


def parameter_text(value: Value) -> str:
    """Return a value as the text of a parameter."""
    return value.text if value.text is not None else as_expression(value.code)


def _as_text(value: Value) -> str:
    if value.text is not None:
        return literal(value.text)
    return value.code if value.kind == "string" else f"string({value.code})"


def _resolve_choice(value: Value) -> Value:
    """Return `value`. An `a && b` that no `||` follows becomes `b` or an empty text."""
    if value.choice is None:
        return value
    condition, chosen = value.choice
    return Value(f"(({_as_condition(condition).code}) ? {_as_text(chosen)} : '')", "string")


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
    if left.kind != right.kind and "dyn" not in (left.kind, right.kind):
        raise NotConvertibleError(f"`{left.code} {sign} {right.code}` compares different types")
    if left.constant is not None and right.constant is not None and sign in ("==", "!="):
        return Value.of((left.text == right.text) == (sign == "=="))
    return Value(f"{left.code} {sign} {right.code}", "bool")


def _convert_constant(value: Value, other: Value) -> Value:
    """Return a constant in the type of the value that it is compared with, as GitHub converts both."""
    if value.constant is None or value.kind == other.kind:
        return value
    text = value.text or ""
    if other.kind == "bool" and text in ("true", "false"):
        return Value.of(text == "true")
    if other.kind == "number" and re.fullmatch(r"-?\d+(\.\d+)?", text):
        return Value.of(float(text))
    if other.kind == "string" and value.constant == (None,):
        return Value.of("")
    return value


@dataclass(slots=True)
class _Parser:
    source: str
    resolve: Resolve
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
        if yes.kind == no.kind:
            return Value(f"(({condition.code}) ? {yes.code} : {no.code})", yes.kind)
        return Value(f"(({condition.code}) ? {_as_text(yes)} : {_as_text(no)})", "string")

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
            token = self._peek()
            part = None if token is None else token["name"] if sign == "." else token["text"] or token["number"]
            if token is None or part is None:
                raise self._error()
            self._position = token.end()
            if sign == "[" and not self._take("]"):
                raise self._error()
            path.append(part)
        return self.resolve(tuple(path))

    def _parse_call(self, name: str) -> Value:
        arguments = list[Value]()
        start = self._position
        while not self._take(")"):
            if arguments and not self._take(","):
                raise self._error()
            arguments.append(_resolve_choice(self._parse_or()))
        if name in _STATES and not arguments:
            self.states.add(name)
            return Value.of(_STATES[name])
        match name, arguments:
            case "contains", [where, what] if where.kind == "string":
                return Value(f"{where.code}.contains({_as_text(what)})", "bool")
            case "contains", [where, what] if where.kind == "list":
                return Value(f"{what.code} in {where.code}", "bool")
            case "startswith" | "endswith", [text, part] if text.kind == "string":
                method = "startsWith" if name == "startswith" else "endsWith"
                return Value(f"{text.code}.{method}({_as_text(part)})", "bool")
            case "format", [template, *values] if template.text is not None:
                return _format(template.text, values)
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
            return Value(literal(re.findall(r'"([^"\\]*)"', words[1])), "list")
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
