"""Finds the literals of a plan that look as if they vary from run to run (hosts, paths, versions, dates), and replaces them by inputs."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeAlias, cast

from pydantic import JsonValue

from plan_adapter.expressions.references import Code, Path, UnclosedError, replace_strings, split_expressions
from plan_adapter.model.plan import ExecutionPlan, Step
from plan_adapter.model.readable import MASK, has_token, is_secret_name, redacted
from plan_adapter.model.status import StepStatus
from plan_adapter.model.values import join
from plan_adapter.tools.registry import ToolRegistry

VARYING_KEYS = frozenset(
    re.findall(
        r"\w+",
        "branch bucket cluster container database date day email env environment host hostname image instance machine namespace node "
        "queue region release server service site tag target tenant topic version zone",
    )
)
"""Last words of names whose values vary from run to run, even if they are a single word."""

CHINESE = {
    **{"主机": "host", "主机名": "host", "服务器": "server", "节点": "node", "域名": "host", "环境": "environment", "版本": "version"},
    **{"版本号": "version", "分支": "branch", "标签": "tag", "镜像": "image", "日期": "date", "邮箱": "email", "区域": "region"},
    **{
        "集群": "cluster",
        "服务": "service",
        "命名空间": "namespace",
        "数据库": "database",
        "文件": "file",
        "路径": "path",
        "目录": "folder",
    },
}
"""The same words in Chinese, because an input's name cannot contain Chinese characters."""

_DOMAINS = "com|net|org|io|dev|app|cloud|cn|de|eu|uk|jp|internal|intranet|local|lan|corp|example|test|invalid|svc|arpa"
_LABEL = r"[A-Za-z0-9](?:[A-Za-z0-9-]*[A-Za-z0-9])?"
_NO_HOSTS = re.compile(r"localhost|127\.0\.0\.1|0\.0\.0\.0|(?:utf|iso|sha|md|rfc|base|gb|x86|http)[-_].*", re.IGNORECASE)
_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://(?:[^/\s?#@]*@)?(?P<host>[^/\s?#:@\"'<>\\[\]]*)[^\s\"'<>]*")
_IN_TEXT = (
    ("email", re.compile(r"(?<![\w.%+-])[A-Za-z0-9._%+-]+@(?:[A-Za-z0-9-]+\.)+[A-Za-z]{2,}(?![\w-])", re.ASCII)),
    ("date", re.compile(r"(?<!\d)\d{4}-[01]\d-[0-3]\d(?:[T ]\d\d:\d\d(?::\d\d(?:\.\d+)?)?(?:Z|[+-]\d\d:?\d\d)?)?(?!\d)", re.ASCII)),
    ("host", re.compile(r"(?<![\w.-])\d{1,3}(?:\.\d{1,3}){3}(?![\w-]|\.\w)", re.ASCII)),
    ("version", re.compile(r"(?<![\w.-])(?:v\d+(?:\.\d+)+|\d+\.\d+\.\d+)(?:[-+][0-9A-Za-z.+-]*[0-9A-Za-z])?(?![\w-]|\.\w)", re.ASCII)),
    ("host", re.compile(rf"(?<![\w.@/-])(?:{_LABEL}\.)+(?:{_DOMAINS})(?![\w/-]|\.\w)", re.ASCII)),
)
_PATH = re.compile(r"(?<![\w./~-])~?/[\w.@%+-]*\w(?:/[\w.@%+-]+)+|(?<![\w./~-])~/[\w.@%+-]+")
_SYSTEM_PATH = re.compile(r"/(?:dev|proc|sys|bin|sbin|usr/(?:local/)?s?bin)(?:/|$)")
_WHOLE_PATH = re.compile(r"/[\w.@%+-]+/?|[A-Za-z]:\\[^\s\"*?<>|]+|[\w@+-][\w.@+-]*(?:/[\w.@+-]+)*\.[A-Za-z][A-Za-z0-9]{1,4}")
_MACHINE = re.compile(r"[A-Za-z][A-Za-z0-9]*(?:-[A-Za-z0-9]+)*-\d+")
_IMAGE = re.compile(r"(?:[A-Za-z0-9.-]+(?::\d+)?/)*[A-Za-z0-9._-]+:(?P<tag>[A-Za-z0-9_][\w.-]*)", re.ASCII)
_LONGEST = 200


def find_varying(pieces: list[str | Code], key: str) -> Iterator[tuple[str, str]]:
    """Yield (kind, text) for everything in a text that looks as if it varies. The text, in pieces, is the value of `key`."""
    if len(pieces) == 1 and isinstance(pieces[0], str) and (whole := _match_whole(pieces[0], key)):
        yield whole
        return
    for number, piece in enumerate(pieces):
        if isinstance(piece, str):
            ends = (number == 0, number == len(pieces) - 1)  # whether the piece starts and ends the text, with no expression beside it
            yield from ((kind, piece[start:end]) for kind, start, end in _match_parts(piece) if _stands_alone(piece, start, end, ends))


def last_word(key: str) -> str:
    """Return the last word of a name: `sourceHost`, `source-host`, `SOURCE_HOST` and `源主机` give `host`."""
    chinese = [word for word in CHINESE if key.endswith(word)]
    if chinese:
        return CHINESE[max(chinese, key=len)]
    split = re.split(r"[\W_]+", re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", key))
    return next((word.casefold() for word in reversed(split) if word), "")


def _match_whole(text: str, key: str) -> tuple[str, str] | None:
    word = last_word(key)
    if "://" in text or not text.strip() or len(text) > _LONGEST:
        return None
    if (image := _IMAGE.fullmatch(text)) and (word in ("image", "container") or ("/" in text and not image["tag"].isdecimal())):
        return "image_tag", image["tag"]
    if _MACHINE.fullmatch(text) and not _NO_HOSTS.fullmatch(text):
        return "host", text
    if any(pattern.fullmatch(text) for _, pattern in _IN_TEXT):
        return None  # its pattern finds it later
    if _WHOLE_PATH.fullmatch(text) and not _SYSTEM_PATH.match(text):
        return "path", text
    if word in VARYING_KEYS and not re.search(r"[\s,;=]", text) and not _NO_HOSTS.fullmatch(text) and not text.startswith("-"):
        return word, text
    return None


def _match_parts(text: str) -> Iterator[tuple[str, int, int]]:
    """Yield (kind, start, end) of every match. Of overlapping matches, the first pattern's wins."""
    taken: list[tuple[int, int]] = []
    urls = [match.span() for match in _URL.finditer(text)]
    for match in _URL.finditer(text):
        if match["host"] and not _NO_HOSTS.fullmatch(match["host"]):
            taken.append(match.span("host"))
            yield "host", *match.span("host")
    for kind, pattern in (*_IN_TEXT, ("path", _PATH)):
        for match in pattern.finditer(text):
            start, end = match.span()
            within = urls if kind in ("path", "host", "email") else []
            if any(start < last and first < end for first, last in (*taken, *within)):
                continue
            if (kind == "path" and _SYSTEM_PATH.match(match[0])) or (kind == "host" and _NO_HOSTS.fullmatch(match[0])):
                continue
            taken.append((start, end))
            yield kind, start, end


def _stands_alone(piece: str, start: int, end: int, ends: tuple[bool, bool]) -> bool:
    """Return whether no expression is adjacent to the match. Otherwise the match would be half of a name."""
    return (start > 0 or ends[0]) and (end < len(piece) or ends[1])


Schema: TypeAlias = Mapping[str, Any]

_ARGV = ("argv", "args", "arguments")
_ASSIGNED = re.compile(r"([\w-]+)[\"']?\s*[=:]\s*\S")
_BEFORE_CODE = ("-c", "-lc", "-ec", "-e", "-m", "--eval", "--command", "-Command", "/c")
_CODE_KEYS = frozenset(("cmd", "code", "command", "script", "sql", "statement"))
_SCRIPT = re.compile(r"[\s;|&$`<>()]")
_REFERENCES = 8  # how many schema references to follow for one value


@dataclass(frozen=True, slots=True)
class Literal:
    """A scalar in a call's parameters. `path` locates it in the plan's document; `at` is the readable form: `check.parameters.url`."""

    path: Path
    at: str
    key: str  # its name: that of a parameter, or of the preceding option in a list of arguments
    value: str | int | float | bool
    schemas: tuple[Schema, ...]  # the tool's schemas for it, if any

    @property
    def is_flag(self) -> bool:
        """Whether it is a command option, such as `-f` or `--force`."""
        return isinstance(self.value, str) and self.value.startswith("-") and "=" not in self.value and " " not in self.value

    @property
    def choices(self) -> list[JsonValue]:
        """The only values that the tool accepts here, or empty if it accepts others."""
        return next((list(schema["enum"]) for schema in self.schemas if "enum" in schema), list[JsonValue]())


def literals_of(plan: ExecutionPlan, tools: ToolRegistry) -> list[Literal]:
    """Return the literals of the plan's calls in order, except secrets, code, and the program that a command runs."""
    calls = list(_find_calls(plan, tools))
    hidden = {text for call in calls for text in _find_hidden_texts(call.parameters, redacted(call.parameters, schema=call.schema))}
    found: list[Literal] = []
    for call in calls:
        shown = cast("dict[str, JsonValue]", redacted(call.parameters, schema=call.schema, hidden=hidden))
        finder = _LiteralFinder(call.schema, call.path, call.at)
        for name, value in call.parameters.items():
            if name not in call.code:
                found += finder.find(value, shown[name], (name,), name, finder.property_schemas(call.schema, name))
    return found


@dataclass(frozen=True, slots=True)
class _Call:
    path: Path
    at: str
    parameters: dict[str, JsonValue]
    schema: Schema
    code: frozenset[str]  # parameters that must not contain expressions


def _find_calls(plan: ExecutionPlan, tools: ToolRegistry) -> Iterator[_Call]:
    places: list[tuple[Path, Step]] = [(("steps", index), step) for index, step in enumerate(plan.steps)]
    places += [(("steps", index, "steps", place), one) for index, step in enumerate(plan.steps) for place, one in enumerate(step.steps)]
    places += [(("finally", index), step) for index, step in enumerate(plan.finally_)]
    for place, step in places:
        given: list[tuple[tuple[str, ...], str | None, dict[str, JsonValue]]] = [(("parameters",), step.tool_name, step.parameters)]
        if step.rollback is not None:
            given.append((("rollback", "parameters"), step.rollback.tool_name, step.rollback.parameters))
        for field, tool_name, parameters in given:
            tool = tools.get(tool_name or "")
            schema: Schema = {} if tool is None else tool.parameters_schema
            code = frozenset[str]() if tool is None else tool.literal_parameters
            yield _Call((*place, *field), ".".join((step.id, *field)), parameters, schema, code)


def _find_hidden_texts(value: JsonValue, shown: JsonValue) -> Iterator[str]:
    """Yield the texts of `value` that `shown` hides completely: as secrets, they cannot become an input anywhere."""
    if isinstance(value, dict) and isinstance(shown, dict):
        for name, member in value.items():
            yield from _find_hidden_texts(member, shown[name])
    elif isinstance(value, list) and isinstance(shown, list):
        for member, seen in zip(value, shown, strict=True):
            yield from _find_hidden_texts(member, seen)
    elif isinstance(value, str) and shown == MASK:
        yield value


def _contains_secret(text: str) -> bool:
    """Return whether a text contains a secret, by its name, as in `--password=…`, or by its form."""
    return has_token(text) or any(is_secret_name(name) for name in _ASSIGNED.findall(text))


@dataclass(frozen=True, slots=True)
class _LiteralFinder:
    root: Schema
    base: Path
    place: str

    def find(self, value: JsonValue, shown: JsonValue, path: Path, key: str, schemas: tuple[Schema, ...]) -> Iterator[Literal]:
        """Yield the literals in `value`. `shown` is the redacted value, which differs where something is secret."""
        if isinstance(value, dict) and isinstance(shown, dict):
            for name, member in value.items():
                members = tuple(part for schema in schemas for part in self.property_schemas(schema, name))
                yield from self.find(member, shown[name], (*path, name), name, members)
        elif isinstance(value, list) and isinstance(shown, list):
            members = tuple(part for schema in schemas for part in self.resolve(schema.get("items")))
            for index, member in enumerate(value):
                if path[-1] not in _ARGV or (index and not _is_code(member, value[index - 1])):
                    name = _option_name(value[index - 1]) if index else None
                    yield from self.find(member, shown[index], (*path, index), name or key, members)
        elif isinstance(value, str | int | float) and value == shown and value != "" and not self._is_secret(key, value):
            if last_word(key) in _CODE_KEYS and isinstance(value, str) and _SCRIPT.search(value):
                return  # code, although the tool does not declare it as such
            at = self.place
            for part in path:
                at = join(at, part)
            yield Literal((*self.base, *path), at, key, value, schemas)

    def _is_secret(self, key: str, value: str | float) -> bool:
        return isinstance(value, str) and (is_secret_name(key) or _contains_secret(value))

    def property_schemas(self, schema: Schema, name: str) -> tuple[Schema, ...]:
        """Return the schemas that `schema` has for its property `name`."""
        return self.resolve(schema.get("properties", {}).get(name, schema.get("additionalProperties")))

    def resolve(self, schema: Any, depth: int = 0) -> tuple[Schema, ...]:
        """Return a schema together with all schemas that it refers to or chooses from."""
        if not isinstance(schema, Mapping) or depth > _REFERENCES:
            return ()
        own = cast("Schema", schema)
        others = [part for word in ("anyOf", "oneOf", "allOf") for part in own.get(word, ())]
        if "$ref" in own:
            others.append(self.root.get("$defs", {}).get(str(own["$ref"]).removeprefix("#/$defs/")))
        return (own, *(part for other in others for part in self.resolve(other, depth + 1)))


def _is_code(argument: JsonValue, before: JsonValue) -> bool:
    """Return whether a command's argument may be a script, which takes no inputs, or names a program: `sh -c …`, `ssh host …`."""
    return before in _BEFORE_CODE or (isinstance(argument, str) and _SCRIPT.search(argument) is not None)


def _option_name(before: JsonValue) -> str | None:
    """Return the name of the option that takes the next argument: `--name-space` gives `name-space`."""
    is_option = isinstance(before, str) and before.startswith("--") and "=" not in before
    return before.removeprefix("--") or None if is_option and isinstance(before, str) else None


_SHORTEST_PART = 4  # characters of a text that is also searched inside other texts, if only its repetition suggests an input


@dataclass(frozen=True)
class InputReplacement:
    """Replaces `value` by the input `name`, both as a whole value and as a separate word in a text."""

    value: str | int | float | bool
    name: str
    is_certain: bool  # known to vary, or looks so; otherwise a short word may mean something else in a longer text

    @property
    def reference(self) -> str:
        """The expression that replaces the value."""
        return f"${{{{ inputs.{self.name} }}}}"

    @property
    def matches_inside_text(self) -> bool:
        """Whether it is also searched inside longer texts."""
        return isinstance(self.value, str) and (self.is_certain or len(self.value) >= _SHORTEST_PART)

    @cached_property
    def _pattern(self) -> re.Pattern[str]:
        value = str(self.value)
        # In scripts that are written without spaces, a letter next to the value does not extend the word.
        before = ("/" if value[0] in "/~" else "") + (r"A-Za-z0-9_.\-" if value[0].isascii() else "")
        after = r"(?![A-Za-z0-9_\-]|\.[A-Za-z0-9_])" if value[-1].isascii() else ""
        return re.compile((f"(?<![{before}])" if before else "") + re.escape(value) + after)

    def replace_in(self, text: str) -> str:
        """Return `text` with every occurrence of the value replaced by the input."""
        if text == self.value:
            return self.reference
        if not self.matches_inside_text or str(self.value) not in text:
            return text
        try:
            cut = split_expressions(text)
        except UnclosedError:
            return text
        last = len(cut) - 1
        parts = [
            self._replace_in_code(part) if isinstance(part, Code) else self._replace_words(part, (at == 0, at == last))
            for at, part in enumerate(cut)
        ]
        same = all(new == (f"${{{{ {old.text} }}}}" if isinstance(old, Code) else old) for new, old in zip(parts, cut, strict=True))
        return text if same else "".join(parts)  # as written, with its white space

    def replace_in_expression(self, text: str) -> str:
        """Return a single-expression text with the constant replaced by the input."""
        return self.replace_in(text) if self.value != text else text

    def find_remaining(self, value: JsonValue, at: str) -> Iterator[str]:
        """Yield the paths in a document where the value is still written out."""
        if isinstance(value, dict):
            for key, member in value.items():
                if self._occurs_in(key):
                    yield join(at, key)
                yield from self.find_remaining(member, join(at, key))
        elif isinstance(value, list):
            for index, member in enumerate(value):
                yield from self.find_remaining(member, join(at, index))
        elif isinstance(value, str) and self._occurs_in(value):
            yield at

    def _occurs_in(self, text: str) -> bool:
        if not self.matches_inside_text or str(self.value) not in text:
            return False
        try:
            return any(isinstance(part, str) and self._pattern.search(part) for part in split_expressions(text))
        except UnclosedError:
            return False

    def _replace_words(self, piece: str, ends: tuple[bool, bool]) -> str:
        def put(found: re.Match[str]) -> str:
            # Next to an expression it is half of a name.
            alone = (found.start() > 0 or ends[0]) and (found.end() < len(piece) or ends[1])
            return self.reference if alone else found[0]

        return self._pattern.sub(put, piece)

    def _replace_in_code(self, part: Code) -> str:
        if not self.is_certain or self.value in tuple(StepStatus):  # `status == 'completed'` is about something else
            return f"${{{{ {part.text} }}}}"
        return f"${{{{ {replace_strings(part.text, str(self.value), f'inputs.{self.name}')} }}}}"


def value_at(document: Any, path: tuple[str | int, ...]) -> Any:
    """Return the value at `path` in a document."""
    for key in path:
        document = document[key]
    return document


def put_at(document: Any, path: tuple[str | int, ...], value: JsonValue) -> None:
    """Set the value at `path` in a document."""
    value_at(document, path[:-1])[path[-1]] = value
