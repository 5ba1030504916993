"""The literals of a plan's calls that may become inputs, each with its place and the schema of its tool for it."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias, cast

from pydantic import JsonValue

from plan_adapter.expressions.references import Path
from plan_adapter.plan import ExecutionPlan
from plan_adapter.promotion.looks import last_word
from plan_adapter.readable import MASK, is_secret_name, masked
from plan_adapter.tools.registry import ToolRegistry
from plan_adapter.values import join

Schema: TypeAlias = Mapping[str, Any]

_ARGV = ("argv", "args", "arguments")
_ASSIGNED = re.compile(r"([\w-]+)[\"']?\s*[=:]\s*\S")
_TOKENS = re.compile(r"\b(?:Bearer|Basic)\s+\S|(?<![A-Za-z0-9])(?:gh[opsu]_|github_pat_|glpat-|sk-|xox[abp]-|AKIA|eyJ)[A-Za-z0-9_-]{8}")
_BEFORE_CODE = ("-c", "-lc", "-ec", "-e", "-m", "--eval", "--command", "-Command", "/c")
_CODE_KEYS = frozenset(("cmd", "code", "command", "script", "sql", "statement"))
_SCRIPT = re.compile(r"[\s;|&$`<>()]")
_REFERENCES = 8  # that are followed from one schema to the next for the same value


@dataclass(frozen=True, slots=True)
class Literal:
    """A scalar of a call's parameters. `path` leads to it from the plan's document; `at` is the same for people: `check.parameters.url`."""

    path: Path
    at: str
    key: str  # the name that it stands under: of a parameter, or of the option before it in a list of arguments
    value: str | int | float | bool
    schemas: tuple[Schema, ...]  # what the tool says of it, as far as it says anything

    @property
    def is_flag(self) -> bool:
        """Whether it is an option of a command, as `-f` or `--force`."""
        return isinstance(self.value, str) and self.value.startswith("-") and "=" not in self.value and " " not in self.value

    @property
    def choices(self) -> list[JsonValue]:
        """The only values that the tool takes here; empty where it takes others."""
        return next((list(schema["enum"]) for schema in self.schemas if "enum" in schema), list[JsonValue]())


def literals_of(plan: ExecutionPlan, tools: ToolRegistry) -> list[Literal]:
    """Return the literals of the plan's calls in their order; none that is secret, code, or the program that a command calls."""
    calls = list(_calls(plan, tools))
    hidden = {text for call in calls for text in _hidden(call.parameters, masked(call.parameters, schema=call.schema))}
    found: list[Literal] = []
    for call in calls:
        shown = cast("dict[str, JsonValue]", masked(call.parameters, schema=call.schema, hidden=hidden))
        walk = _Walk(call.schema, call.path, call.at)
        for name, value in call.parameters.items():
            if name not in call.code:
                found += walk.of(value, shown[name], (name,), name, walk.below(call.schema, name))
    return found


@dataclass(frozen=True, slots=True)
class _Call:
    path: Path
    at: str
    parameters: dict[str, JsonValue]
    schema: Schema
    code: frozenset[str]  # parameters in which no expression may stand


def _calls(plan: ExecutionPlan, tools: ToolRegistry) -> Iterator[_Call]:
    for index, step in enumerate(plan.steps):
        given: list[tuple[tuple[str, ...], str | None, dict[str, JsonValue]]] = [(("parameters",), step.tool_name, step.parameters)]
        if step.rollback is not None:
            given.append((("rollback", "parameters"), step.rollback.tool_name, step.rollback.parameters))
        for field, tool_name, parameters in given:
            tool = tools.get(tool_name or "")
            schema: Schema = {} if tool is None else tool.parameters_schema
            code = frozenset[str]() if tool is None else tool.literal_parameters
            yield _Call(("steps", index, *field), ".".join((step.id, *field)), parameters, schema, code)


def _hidden(value: JsonValue, shown: JsonValue) -> Iterator[str]:
    """Yield the texts of `value` of which `shown` shows nothing: as secrets they are no input anywhere."""
    if isinstance(value, dict) and isinstance(shown, dict):
        for name, member in value.items():
            yield from _hidden(member, shown[name])
    elif isinstance(value, list) and isinstance(shown, list):
        for member, seen in zip(value, shown, strict=True):
            yield from _hidden(member, seen)
    elif isinstance(value, str) and shown == MASK:
        yield value


def _tells_secret(text: str) -> bool:
    """Return whether a secret stands in a text by its name, as in `--password=…`, or by its own looks."""
    return bool(_TOKENS.search(text)) or any(is_secret_name(name) for name in _ASSIGNED.findall(text))


@dataclass(frozen=True, slots=True)
class _Walk:
    root: Schema
    base: Path
    place: str

    def of(self, value: JsonValue, shown: JsonValue, path: Path, key: str, schemas: tuple[Schema, ...]) -> Iterator[Literal]:
        """Yield the literals in `value`; `shown` is what people may see of it, which differs where something is secret."""
        if isinstance(value, dict) and isinstance(shown, dict):
            for name, member in value.items():
                members = tuple(part for schema in schemas for part in self.below(schema, name))
                yield from self.of(member, shown[name], (*path, name), name, members)
        elif isinstance(value, list) and isinstance(shown, list):
            members = tuple(part for schema in schemas for part in self.resolved(schema.get("items")))
            for index, member in enumerate(value):
                if path[-1] not in _ARGV or (index and not _is_code(member, value[index - 1])):
                    name = _option(value[index - 1]) if index else None
                    yield from self.of(member, shown[index], (*path, index), name or key, members)
        elif isinstance(value, str | int | float) and value == shown and value != "" and not self._is_secret(key, value):
            if last_word(key) in _CODE_KEYS and isinstance(value, str) and _SCRIPT.search(value):
                return  # of a tool that does not say that it is code
            at = self.place
            for part in path:
                at = join(at, part)
            yield Literal((*self.base, *path), at, key, value, schemas)

    def _is_secret(self, key: str, value: str | float) -> bool:
        return isinstance(value, str) and (is_secret_name(key) or _tells_secret(value))

    def below(self, schema: Schema, name: str) -> tuple[Schema, ...]:
        """Return what `schema` says of its property `name`."""
        return self.resolved(schema.get("properties", {}).get(name, schema.get("additionalProperties")))

    def resolved(self, schema: Any, depth: int = 0) -> tuple[Schema, ...]:
        """Return a schema with all that it refers to or chooses among."""
        if not isinstance(schema, Mapping) or depth > _REFERENCES:
            return ()
        own = cast("Schema", schema)
        others = [part for word in ("anyOf", "oneOf", "allOf") for part in own.get(word, ())]
        if "$ref" in own:
            others.append(self.root.get("$defs", {}).get(str(own["$ref"]).removeprefix("#/$defs/")))
        return (own, *(part for other in others for part in self.resolved(other, depth + 1)))


def _is_code(argument: JsonValue, before: JsonValue) -> bool:
    """Return whether an argument of a command may be a script, into which no input is put, or names a program: `sh -c …`, `ssh host …`."""
    return before in _BEFORE_CODE or (isinstance(argument, str) and _SCRIPT.search(argument) is not None)


def _option(before: JsonValue) -> str | None:
    """Return the name of the option that takes the next argument: `--name-space` gives `name-space`."""
    is_option = isinstance(before, str) and before.startswith("--") and "=" not in before
    return before.removeprefix("--") or None if is_option and isinstance(before, str) else None
