"""`Template`: a JSON value whose texts contain compiled expressions. `Prediction`: its value before the run, as far as it is known."""

import json
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace

from pydantic import JsonValue

from plan_adapter.expressions.declarations import INPUT_NAME, Declarations, Expected, RefusedError, check_kind
from plan_adapter.expressions.expression import Expression, Variables, compile_expression
from plan_adapter.expressions.references import (
    Code,
    MissingValueError,
    Path,
    UnclosedError,
    count_names,
    describe_kind,
    format_path,
    has_expression,
    longest_paths,
    near_expressions,
    references,
    shorten,
    split_expressions,
)
from plan_adapter.model.errors import ExpressionError
from plan_adapter.model.inventory import ON
from plan_adapter.model.problems import Problem
from plan_adapter.model.readable import cut, one_line
from plan_adapter.model.values import MAX_DEPTH, TOO_DEEP, Unknown, join, normalize

NEAR_EXPRESSION = "near-expression"
"""The code of a text that looks like an expression and is none."""

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
        everything else as JSON. Results are not evaluated again. In a dry run, what depends on an unknown value is `Unknown`.
        """
        value = map_texts(self.source, lambda text: self._resolve_text(text, variables))
        if isinstance(value, Unknown):
            return value
        if (self.expect == "bool" and not isinstance(value, bool)) or (self.expect == "list" and not isinstance(value, list)):
            wanted = "true or false" if self.expect == "bool" else "a list"
            # The keys reveal a large result that was moved to a file.
            keys = f" with {', '.join(f'`{key}`' for key in [*value][:5])}" if isinstance(value, dict) and value else ""
            raise ExpressionError(f"`{shorten(str(self.source))}` is {describe_kind(value)}{keys}, not {wanted}")
        return value

    def describe_used_result(self, variables: Variables) -> str:
        """Return the parts of `result` that the expressions use, with their values, such as `result.status is 503`. Long ones are cut."""
        values = dict[str, str]()
        for code in (part.source for parts in self.texts.values() for part in parts if isinstance(part, Expression)):
            for path in (path for path in longest_paths(code) if path[0] == "result"):
                with suppress(MissingValueError):
                    value = one_line(json.dumps(variables.follow(path), ensure_ascii=False))
                    values[format_path(path)] = value if len(value) <= SHOWN_CHARACTERS else f"{cut(value, SHOWN_CHARACTERS)}…"
        return ", ".join(f"{name} is {value}" for name, value in values.items())

    def resolve_except_secrets(self, variables: Variables) -> JsonValue:
        """Return the value as `resolve` does, but leave expressions that use a secret as written. For any use but the tool call.

        In such an expression, all references except secrets are replaced by their values, so that only the secrets remain open.
        """
        return (
            map_texts(self.source, lambda text: self._resolve_text_except_secrets(text, variables))
            if self.secrets
            else self.resolve(variables)
        )

    def with_named_secrets(self, names: Mapping[str, str]) -> "Template":
        """Return the template as if it had been written with the secrets that `names` gives, by input, in place of these inputs."""
        if self.inputs.isdisjoint(names):
            return self
        texts, rewritten = dict[str, tuple[str | Expression, ...]](), dict[str, str]()
        for text, parts in self.texts.items():
            if not any(isinstance(part, Expression) and part.names_secrets(names) for part in parts):
                texts[text] = parts
                continue
            named = tuple(part if isinstance(part, str) else part.with_named_secrets(names) for part in parts)
            rewritten[text] = "".join(part if isinstance(part, str) else f"${{{{ {part.source} }}}}" for part in named)
            texts[rewritten[text]] = named
        expressions = (part for parts in texts.values() for part in parts if isinstance(part, Expression))
        return replace(
            self,
            source=map_texts(self.source, lambda text: rewritten.get(text, text)),
            texts=texts,
            secrets=frozenset(name for expression in expressions for name in expression.secrets),
        )

    def _resolve_text(self, text: str, variables: Variables) -> JsonValue:
        parts = self.texts.get(text)
        return text if parts is None else self.fill_parts(parts, variables)

    def _resolve_text_except_secrets(self, text: str, variables: Variables) -> JsonValue:
        parts = self.texts.get(text)
        if parts is None:
            return text
        shown_parts = (part.with_values(variables) if isinstance(part, Expression) and part.secrets else part for part in parts)
        return self.fill_parts(tuple(shown_parts), variables)

    def fill_parts(self, parts: tuple[str | Expression, ...], variables: Variables) -> JsonValue:
        """Return the value of one of the `texts`. Numbers in a tool's parameters are normalized, as an approval's digest requires.

        Items of a list keep their types, because expressions calculate with them: 7.0 / 2 must not become 3.
        """
        value = _join_parts(parts, variables)
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
    inputs |= {ON for path in (*paths, *compiler.refused) if path[0] == "hosts"}
    secrets = frozenset(str(path[1]) for path in paths if path[0] == "secrets")
    return Template(value, expect, compiler.texts, steps, inputs, secrets), compiler.problems


def _is_plain(value: JsonValue) -> bool:
    """Return whether `value` is a flat mapping without expressions, as most parameters are."""
    if not isinstance(value, dict):
        return False
    return not any(
        isinstance(member, (dict, list)) or has_expression(f"{key} {member}") or (isinstance(member, str) and near_expressions(member))
        for key, member in value.items()
    )


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
            self._add_problem(at, RefusedError(*TOO_DEEP))
        elif isinstance(value, str):
            if self._expect is not None or has_expression(value):
                self._compile_text(value, at)
            else:
                self._warn_of_near(value, at)
        elif isinstance(value, list):
            for index, member in enumerate(value):
                self.walk(member, join(at, index), depth=depth + 1)
        elif isinstance(value, dict):
            for key, member in value.items():
                if has_expression(key):
                    problem = RefusedError("expression-syntax", "a key cannot contain an expression", "put it into the value")
                    self._add_problem(join(at, key), problem)
                self.walk(member, join(at, key), depth=depth + 1)

    def _compile_text(self, text: str, at: str) -> None:
        try:
            pieces = split_expressions(text)
        except UnclosedError as error:
            hint = "close it with `}}`, after closing the brackets and quotes inside it"
            self._add_problem(at, RefusedError("expression-syntax", f"`{shorten(str(error))}` is not closed", hint))
            return
        if self._expect is not None and not (len(pieces) == 1 and isinstance(pieces[0], Code)):
            message = f"`{shorten(text)}` is not a single expression"
            self._add_problem(at, RefusedError("expression-needed", message, "write it all in one `${{ … }}`"))
            return
        for piece in pieces:
            if isinstance(piece, str):
                self._warn_of_near(piece, at)
        parts = [part if isinstance(part, str) else self._compile_expression(part.text, at) for part in pieces]
        compiled = tuple(part for part in parts if part is not None)
        if len(compiled) == len(parts):
            self.texts[text] = compiled

    def _warn_of_near(self, text: str, at: str) -> None:
        """Warn of a plain text that looks like a reference which exists at its place."""
        declared = self._declarations
        exists = {"run": declared.run, "item": declared.item, "result": declared.result, "event": declared.event}
        for written, meant in near_expressions(text):
            if exists.get(re.split(r"\W", meant, maxsplit=1)[0], True):
                message, hint = f"`{shorten(written)}` is plain text here, not a value", f"write `${{{{ {shorten(meant)} }}}}`"
                self.problems.append(Problem(NEAR_EXPRESSION, "warning", at, message=message, hint=hint))

    def _compile_expression(self, source: str, at: str) -> Expression | None:
        try:
            expression = compile_expression(source, self._declarations)
            check_kind(str(expression), expression.kind, self._expect)
        except RefusedError as refusal:
            if not (misnamed := self._misnamed_inputs(source)):
                self._add_problem(at, refusal)
            self.refused += [("inputs", name) for name in misnamed]
            self.refused += [reference.path for reference in references(source)]
            return None
        return expression

    def _misnamed_inputs(self, source: str) -> list[str]:
        """Return the inputs in `source` whose names no expression can contain. Their definitions have that problem, not each use."""
        names = (name for name in self._declarations.inputs if not re.fullmatch(INPUT_NAME, name))
        return [name for name in names if re.search(rf"\binputs\s*\.\s*{re.escape(name)}", source)]

    def _add_problem(self, at: str, refusal: RefusedError) -> None:
        self.problems.append(Problem(refusal.code, at=at, message=refusal.message, hint=refusal.hint))


def map_texts(value: JsonValue, replace: Callable[[str], JsonValue]) -> JsonValue:
    """Return a copy of `value` with each text replaced by the result of `replace`. Keys stay."""
    if isinstance(value, str):
        return replace(value)
    if isinstance(value, dict):
        return {key: map_texts(member, replace) for key, member in value.items()}
    return [map_texts(member, replace) for member in value] if isinstance(value, list) else value


def _join_parts(parts: tuple[str | Expression, ...], variables: Variables) -> JsonValue:
    """Return the value of a text's parts: that of a single expression, or else all parts joined as text. Raises ExpressionError."""
    if len(parts) == 1 and isinstance(parts[0], Expression):
        return parts[0].evaluate(variables)
    values = [part if isinstance(part, str) else part.evaluate(variables) for part in parts]
    text = "".join(map(_format_text, values))
    return Unknown(text) if variables.may_be_unknown and any(isinstance(value, Unknown) for value in values) else text


def _format_text(value: JsonValue) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


MAX_TOTAL_CHARACTERS = 10_000_000
"""The total size of all predicted values of one plan."""

MULTIPLYING_CALLS = frozenset({"join", "map", "replace"})
"""Calls whose result may be as large as the product of their arguments. Any other result is at most their sum."""


class Prediction:
    """Evaluates what the inputs alone determine. `inputs` is None while they are unknown.

    The plan is not approved yet, and a short expression could fill the memory. So anything that may exceed `characters` is not evaluated.
    """

    def __init__(
        self,
        inputs: Mapping[str, JsonValue] | None,
        *,
        hosts: Mapping[str, JsonValue] | None = None,
        item: JsonValue = None,
        characters: int = MAX_TOTAL_CHARACTERS,
    ) -> None:
        """Start with the full budget of `characters`. An `item` that is known is evaluated as well, and so are `hosts`."""
        self._variables = Variables(steps={}, inputs=inputs or {}, item=item, hosts=hosts or {})
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
        for path in used_paths:
            if path[0] == "hosts" and path not in self._sizes and path[1] in self._variables.hosts:
                self._sizes[path] = _count_characters(self._variables.hosts[str(path[1])])
        if any(path not in self._sizes for path in used_paths):
            return float("inf")
        size = len(part.source) + sum(self._sizes[path] for path in used_paths)
        growth = count_names(part.code or "", MULTIPLYING_CALLS)
        # A mapped member may be used for both factors of the next product, so each growing call may square the size.
        return float(size) ** 2**growth if growth <= 3 and not count_names(part.code or "", {"format"}) else float("inf")


def _count_characters(value: JsonValue) -> int:
    return len(json.dumps(value, ensure_ascii=False))
