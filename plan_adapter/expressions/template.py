"""`Template`: a JSON value whose texts contain compiled expressions."""

import json
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field

from pydantic import JsonValue

from plan_adapter.errors import ExpressionError
from plan_adapter.expressions.declarations import INPUT_NAME, Declarations, Expected, RefusedError, check_kind
from plan_adapter.expressions.expression import Expression, Variables, compile_expression
from plan_adapter.expressions.references import (
    Code,
    NothingThereError,
    Path,
    UnclosedError,
    described,
    has_expression,
    longest_paths,
    pieces,
    references,
    shortened,
    written,
)
from plan_adapter.problems import Problem
from plan_adapter.readable import cut, one_line
from plan_adapter.values import MAX_DEPTH, TOO_DEEP, join, normalize

SHOWN_CHARACTERS = 300
"""How much of a value a message shows."""


@dataclass(frozen=True, slots=True)
class Template:
    """A JSON value with its expressions compiled. `source` is the value as written."""

    source: JsonValue
    expect: Expected | None = None
    texts: Mapping[str, tuple[str | Expression, ...]] = field(default_factory=dict[str, tuple[str | Expression, ...]])
    steps: frozenset[str] = frozenset()
    inputs: frozenset[str] = frozenset()
    secrets: frozenset[str] = frozenset()

    def resolve(self, variables: Variables) -> JsonValue:
        """Return a copy of the value with each expression replaced by its value. Raises ExpressionError.

        A text that is a single expression takes that expression's type. In other texts, values are joined as text: strings as they are,
        everything else as JSON. Results are not evaluated again.
        """
        value = each_text(self.source, lambda text: self._text(text, variables))
        if (self.expect == "bool" and not isinstance(value, bool)) or (self.expect == "list" and not isinstance(value, list)):
            wanted = "true or false" if self.expect == "bool" else "a list"
            # The keys reveal a large result that was moved to a file.
            keys = f" with {', '.join(f'`{key}`' for key in [*value][:5])}" if isinstance(value, dict) and value else ""
            raise ExpressionError(f"`{shortened(str(self.source))}` is {described(value)}{keys}, not {wanted}")
        return value

    def used_of_result(self, variables: Variables) -> str:
        """Return the parts of `result` that the expressions use, with their values, such as `result.status is 503`. Long ones are cut."""
        values = dict[str, str]()
        for code in (part.source for parts in self.texts.values() for part in parts if isinstance(part, Expression)):
            for path in (path for path in longest_paths(code) if path[0] == "result"):
                with suppress(NothingThereError):
                    value = one_line(json.dumps(variables.follow(path), ensure_ascii=False))
                    values[written(path)] = value if len(value) <= SHOWN_CHARACTERS else f"{cut(value, SHOWN_CHARACTERS)}…"
        return ", ".join(f"{name} is {value}" for name, value in values.items())

    def resolve_openly(self, variables: Variables) -> JsonValue:
        """Return the value as `resolve` does, but leave expressions that use a secret as written. For any use but the tool call.

        In such an expression, all references except secrets are replaced by their values, so that only the secrets remain open.
        """
        return each_text(self.source, lambda text: self._open_text(text, variables)) if self.secrets else self.resolve(variables)

    def _text(self, text: str, variables: Variables) -> JsonValue:
        parts = self.texts.get(text)
        return text if parts is None else self.filled(parts, variables)

    def _open_text(self, text: str, variables: Variables) -> JsonValue:
        parts = self.texts.get(text)
        if parts is None:
            return text
        secretive = (part.written(variables) if isinstance(part, Expression) and part.secrets else part for part in parts)
        return self.filled(tuple(secretive), variables)

    def filled(self, parts: tuple[str | Expression, ...], variables: Variables) -> JsonValue:
        """Return the value of one of the `texts`. Numbers in a tool's parameters are normalized, as an approval's digest requires.

        Items of a list keep their types, because expressions calculate with them: 7.0 / 2 must not become 3.
        """
        value = _joined(parts, variables)
        return normalize(value) if self.expect is None else value


def compile_template(
    value: JsonValue, declarations: Declarations, *, at: str, expect: Expected | None = None
) -> tuple[Template, list[Problem]]:
    """Return `value` with its expressions compiled and type-checked, and every problem. `at` is its path in the document.

    With `expect`, the value must be a single expression of that type. If its type is not known in advance, it is checked on evaluation.
    """
    if expect is None and _is_plain(value):
        return Template(value), []
    if isinstance(value, str) and expect is not None:
        value = value.strip()  # a block scalar ends in a newline
    compiler = _Compiler(declarations, expect)
    compiler.walk(value, at, depth=0)
    expressions = (part for parts in compiler.texts.values() for part in parts if isinstance(part, Expression))
    paths = {variable.path for expression in expressions for variable in expression.variables}
    steps = frozenset(str(path[1]) for path in paths if path[0] == "steps")
    inputs = frozenset(str(path[1]) for path in (*paths, *compiler.refused) if path[0] == "inputs" and len(path) > 1)
    secrets = frozenset(str(path[1]) for path in paths if path[0] == "secrets")
    return Template(value, expect, compiler.texts, steps, inputs, secrets), compiler.problems


def _is_plain(value: JsonValue) -> bool:
    """Return whether `value` is a flat mapping without expressions, as most parameters are."""
    if not isinstance(value, dict):
        return False
    return not any(isinstance(member, (dict, list)) or has_expression(f"{key} {member}") for key, member in value.items())


class _Compiler:
    """Compiles the texts of one JSON value and collects their problems."""

    def __init__(self, declarations: Declarations, expect: Expected | None) -> None:
        self._declarations = declarations
        self._expect: Expected | None = expect
        self.texts: dict[str, tuple[str | Expression, ...]] = {}
        self.problems: list[Problem] = []
        self.refused: list[Path] = []  # the references in expressions that do not compile

    def walk(self, value: JsonValue, at: str, *, depth: int) -> None:
        if depth > MAX_DEPTH:
            self._refuse(at, RefusedError(*TOO_DEEP))
        elif isinstance(value, str):
            if self._expect is not None or has_expression(value):
                self._text(value, at)
        elif isinstance(value, list):
            for index, member in enumerate(value):
                self.walk(member, join(at, index), depth=depth + 1)
        elif isinstance(value, dict):
            for key, member in value.items():
                if has_expression(key):
                    no_key = RefusedError("expression-syntax", "a key cannot contain an expression", "put it into the value")
                    self._refuse(join(at, key), no_key)
                self.walk(member, join(at, key), depth=depth + 1)

    def _text(self, text: str, at: str) -> None:
        try:
            cut = pieces(text)
        except UnclosedError as error:
            hint = "close it with `}}`, and brackets and quotes inside before"
            self._refuse(at, RefusedError("expression-syntax", f"`{shortened(str(error))}` is not closed", hint))
            return
        if self._expect is not None and not (len(cut) == 1 and isinstance(cut[0], Code)):
            not_one = f"`{shortened(text)}` is not a single expression"
            self._refuse(at, RefusedError("expression-needed", not_one, "write it all in one `${{ … }}`"))
            return
        parts = [part if isinstance(part, str) else self._expression(part.text, at) for part in cut]
        compiled = tuple(part for part in parts if part is not None)
        if len(compiled) == len(parts):
            self.texts[text] = compiled

    def _expression(self, source: str, at: str) -> Expression | None:
        try:
            expression = compile_expression(source, self._declarations)
            check_kind(str(expression), expression.kind, self._expect)
        except RefusedError as refusal:
            if not (misnamed := self._misnamed(source)):
                self._refuse(at, refusal)
            self.refused += [("inputs", name) for name in misnamed]
            self.refused += [reference.path for reference in references(source)]
            return None
        return expression

    def _misnamed(self, source: str) -> list[str]:
        """Return the inputs in `source` whose names no expression can contain. Their definitions have that problem, not each use."""
        names = (name for name in self._declarations.inputs if not re.fullmatch(INPUT_NAME, name))
        return [name for name in names if re.search(rf"\binputs\s*\.\s*{re.escape(name)}", source)]

    def _refuse(self, at: str, refusal: RefusedError) -> None:
        self.problems.append(Problem(refusal.code, at=at, message=refusal.message, hint=refusal.hint))


def each_text(value: JsonValue, fill: Callable[[str], JsonValue]) -> JsonValue:
    """Return a copy of `value` with each text replaced by the result of `fill`. Keys stay."""
    if isinstance(value, str):
        return fill(value)
    if isinstance(value, dict):
        return {key: each_text(member, fill) for key, member in value.items()}
    return [each_text(member, fill) for member in value] if isinstance(value, list) else value


def _joined(parts: tuple[str | Expression, ...], variables: Variables) -> JsonValue:
    """Return the value of a text in pieces: that of its single expression, else all joined as text. Raises ExpressionError."""
    if len(parts) == 1 and isinstance(parts[0], Expression):
        return parts[0].evaluate(variables)
    return "".join(part if isinstance(part, str) else _as_text(part.evaluate(variables)) for part in parts)


def _as_text(value: JsonValue) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
