"""The interface to CEL: compiled programs, their results as Python values, and readable versions of CEL's messages."""

import re
from collections.abc import Iterable, Mapping
from functools import lru_cache
from itertools import chain
from typing import TYPE_CHECKING, Any, TypeAlias, cast

from plan_adapter.expressions import bounded
from plan_adapter.expressions.references import shorten
from plan_adapter.model.errors import ExpressionError

if TYPE_CHECKING:
    from cel_expr_python import cel  # pyright: ignore[reportMissingTypeStubs]  # its stubs are beside it, without py.typed

Signature: TypeAlias = tuple[tuple[str, str], ...]
"""The variables of a program: name and type."""

MAX_VALUE_DEPTH = 200
"""The most levels of a value passed to CEL. Its own conversion overflows the stack at 50,000 levels."""


NODE_BYTES = 8
"""The size of a value in bytes, without its characters. Each character counts as one byte."""


_KIND_WORDS: Mapping[str, str] = {
    "string": "a text",
    "int": "a whole number",
    "double": "a decimal number",
    "bool": "a boolean",
    "list": "a list",
    "map": "an object",
    "null_type": "null",
    "dyn": "a value",
}
_COMPARISON = re.compile(r"'_(?:<|>|<=|>=|==|!=)_' applied to '\((?:int, double|double, int)\)'")
_CHOICE = re.compile(r"'_\?_:_' applied to '\((?:bool|dyn),")


class CelSyntaxError(ValueError):
    """CEL refuses to compile an expression. `column` counts from 1 in its first line, or is None if CEL gives none.

    `hint` says how to fix a mismatch of types, and is empty for any other error. `evaluates` tells whether only the types differ of numbers
    that are compared, or of the two values of a choice: CEL evaluates both.
    """

    def __init__(self, error: str) -> None:
        """Parse CEL's message."""
        found = list(re.finditer(r"ERROR: <input>:\d+:(\d+): (?:Syntax error: )?(.*)", error))
        serious = [each for each in found if not (_COMPARISON.search(each[2]) or _CHOICE.search(each[2]))]
        self.evaluates = bool(found) and not serious
        first = (serious or found or [None])[0]
        self.column = int(first[1]) if first else None
        message = (first[2] if first else _strip_status_codes(error)).replace(" (in container '')", "").replace("'<EOF>'", "the end")
        self.is_too_deep = "recursion" in message
        mismatch, self.hint = explain_mismatch(message) or (None, "")
        super().__init__("it nests deeper than 32 levels" if self.is_too_deep else mismatch or message.partition(" expecting ")[0])


class CelValueError(ValueError):
    """An expression cannot be evaluated with these values."""

    def __init__(self, error: str) -> None:
        """Make CEL's message readable."""
        super().__init__(_explain_value_error(_strip_status_codes(error)))


def type_of(code: str, variables: Signature) -> str:
    """Return the type of the expression `code`: `bool`, `list(string)`, `map`, `dyn`, … Raises CelSyntaxError."""
    try:
        name = _compile(code, variables).return_type().name().lower()
    except RuntimeError as error:
        raise CelSyntaxError(str(error)) from None
    kind, _, of = name.partition("<")
    return f"list({of.removesuffix('>')})" if kind == "list" else kind


def calculate(code: str, variables: Signature, values: Mapping[str, Any]) -> Any:
    """Return the value of `code` as a Python value. Code whose values may become large runs in a process with a memory limit.

    Raises CelValueError, RecursionError for values nested too deeply, and TypeError for a result that is not JSON.
    """
    data, size = dict[str, Any](), 0
    for name, kind in variables:
        data[name], value_size = _convert(values[name], kind)
        size += value_size
    if size > bounded.MAX_VALUE_BYTES:
        raise CelValueError(bounded.TOO_LARGE)
    if not bounded.may_grow(code, size):
        return evaluate(code, variables, data)
    kind, value = bounded.evaluator().evaluate(code, variables, data)
    match kind:
        case "value":
            return value
        case "cel":
            raise CelValueError(value)
        case "type":
            raise TypeError(value)
        case "depth":
            raise RecursionError


def evaluate(code: str, variables: Signature, data: Mapping[str, Any]) -> Any:
    """Return the value of `code` as a Python value, evaluated in this process whatever its size. Raises CelValueError."""
    try:
        result = _compile(code, variables).eval(data=data)
    except RuntimeError as error:
        raise CelValueError(str(error)) from None
    value = result.plain_value()
    # CEL returns an evaluation error as a value.
    if result.type().name() == "ERROR":
        raise CelValueError(str(value))
    return value


def matches(pattern: str, text: str) -> bool:
    """Return whether the regular expression `pattern` matches anywhere in `text`.

    It takes linear time (RE2: no look-around, no back references). Raises ExpressionError with the reason if `pattern` is invalid.
    """
    try:
        return calculate("text.matches(pattern)", (("text", "string"), ("pattern", "string")), {"text": text, "pattern": pattern})
    except CelValueError as error:
        reason = str(error).rpartition("regular expression: ")[2]
        raise ExpressionError(f"`{shorten(pattern)}` is not an RE2 regular expression: {reason}") from None


def words_of_kind(kind: str) -> str:
    """Return a type that is written as in CEL in words: `a whole number` for `int`, `a list` for `list(int)`."""
    outer = re.split(r"[(<]", kind, maxsplit=1)[0].rpartition(".")[2]
    return _KIND_WORDS.get(outer.replace("int64", "int"), f"a {outer.lower()}")


def explain_mismatch(message: str) -> tuple[str, str] | None:
    """Return CEL's error about types that do not match in words, with how to fix it, or None if `message` is another error."""
    if found := re.match(r"expression of type '(.*)' cannot be the (operand of a select|range of a comprehension)", message):
        what = "fields" if found[2].startswith("operand") else "members to go through"
        return f"{words_of_kind(found[1])} has no {what}", _CONVERT
    # While it evaluates, CEL names only some operators with their types, and a function of a value as `(int).startsWith(string)`.
    found = re.match(r"(?:No matching overloads found : |found no matching overload for )'?(?:\((.+?)\)\.)?([^('\s]+)(.*)", message)
    if found is None:
        return None
    operator = _OPERATORS.get(found[2], found[2].replace("_", "").removeprefix("@"))
    listed = found[3].removeprefix("' applied to '(")
    kinds = [found[1]] * bool(found[1]) + re.findall(r"[\w.]+(?:\((?:[^()]|\([^()]*\))*\))?", listed)
    return _describe_mismatch(operator, [words_of_kind(kind) for kind in kinds])


_CONVERT = "CEL converts nothing by itself: use double(), int() or string()"
_OPERATORS: Mapping[str, str] = {"_?_:_": "? :", "<jump_condition>": "? :", "_[_]": "[ ]", "<iter_range>": "map"}
_VERBS: Mapping[str, str] = {
    **{"+": "add", "-": "subtract", "*": "multiply", "/": "divide"},
    **dict.fromkeys(("<", ">", "<=", ">=", "==", "!="), "compare"),
}


def _describe_mismatch(operator: str, kinds: list[str]) -> tuple[str, str]:
    """Return why an operator or function does not accept values of `kinds`, in words, and a fix."""
    if operator == "? :" and kinds[:1] == ["a boolean"]:
        return f"`? :` needs two values of one type, not {' and '.join(kinds[1:])}", _CONVERT
    if operator == "? :":
        return f"`? :` needs true or false before the `?`{f', not {kinds[0]}' if kinds else ''}", "compare the value with something"
    verb = _VERBS.get(operator, "take") if len(kinds) == 2 else "take"
    message = f"`{operator}` cannot {verb} {' and '.join(kinds) or 'values of these types'}"
    if set(kinds) == {"a decimal number", "a whole number"}:
        return message, "CEL does no mixed arithmetic: wrap the integer in double(), or write 2.0 for 2"
    if operator == "+" and "a text" in kinds:
        return message, "CEL does no mixed arithmetic: wrap the other side in string(), or join them as text outside of `${{ }}`"
    return message, f"`{operator}` is for true and false: compare the value with something" if operator in ("&&", "||", "!") else _CONVERT


def _explain_value_error(message: str) -> str:
    if (mismatch := explain_mismatch(message)) is not None:
        return "; ".join(mismatch)
    return message.replace("Iteration budget exceeded", "it goes through more than 10,000 items; let a tool do that")


def _strip_status_codes(error: str) -> str:
    """Return the first line of CEL's `error` without its status codes."""
    text = re.sub(r"^[A-Z_]+: (?:ERROR: <input>:-?\d+:-?\d+: )?", "", error.strip().partition("\n")[0])
    return re.sub(r" \[[A-Z_]+\]$", "", text)


def _convert(value: Any, kind: str) -> tuple[Any, int]:
    """Return `value` in the form that CEL takes, and its size. Raises if it would overflow CEL's stack or lose content."""
    if isinstance(value, str):
        return value, NODE_BYTES + _checked_length(value)
    if not isinstance(value, dict | list):
        return float(value) if kind == "double" else value, NODE_BYTES
    level, size = cast("list[Any]", [value]), 0
    for _ in range(MAX_VALUE_DEPTH):
        size += NODE_BYTES * len(level) + sum([_checked_length(node) for node in level if isinstance(node, str)])
        if not (level := [member for node in level for member in _members(node)]):
            break
    else:
        raise RecursionError
    doubles = isinstance(value, list) and kind == "list(double)"
    return [float(member) for member in cast("list[Any]", value)] if doubles else cast("Any", value), size


def _checked_length(text: str) -> int:
    if "\0" in text:
        raise CelValueError("a text contains a NUL character, and CEL would cut it off there")
    return len(text)


def _members(node: Any) -> Iterable[Any]:
    if isinstance(node, dict):
        return chain(node.keys(), node.values())  # pyright: ignore[reportUnknownVariableType, reportUnknownMemberType, reportUnknownArgumentType]  # any JSON
    return node if isinstance(node, list) else ()  # pyright: ignore[reportUnknownVariableType]


@lru_cache(maxsize=2048)
def _compile(code: str, variables: Signature) -> "cel.Expression":
    return _build_environment(variables).compile(code)


@lru_cache(maxsize=64)
def _build_environment(variables: Signature) -> "cel.Env":
    # Only for a plan with expressions.
    from cel_expr_python import cel  # pyright: ignore[reportMissingTypeStubs]
    from cel_expr_python.ext import ext_strings  # pyright: ignore[reportMissingTypeStubs]

    types = {
        "string": cel.Type.STRING,
        "int": cel.Type.INT,
        "double": cel.Type.DOUBLE,
        "bool": cel.Type.BOOL,
        "dyn": cel.Type.DYN,
        "list": cel.Type.List(cel.Type.DYN),
        "map": cel.Type.Map(cel.Type.STRING, cel.Type.DYN),
    }
    types |= {f"list({kind})": cel.Type.List(item) for kind, item in types.items()}
    return cel.NewEnv(variables={name: types[kind] for name, kind in variables}, extensions=[ext_strings.ExtStrings()])
