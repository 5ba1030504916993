"""Reads a plan, or another document with a model, and its located problems from a text or file."""

import json
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import ClassVar, Generic, TypeAlias

from pydantic import Field, JsonValue

from plan_adapter.documents.host_groups import expand_groups, ini_groups
from plan_adapter.documents.json_text import read_json
from plan_adapter.documents.nodes import Node, UnreadableError, shorten_path
from plan_adapter.documents.shorthand import expand, expand_triggers
from plan_adapter.documents.typed import Fields, M, Typed, locate, read
from plan_adapter.documents.yaml_text import read_yaml
from plan_adapter.model.errors import InvalidPlanError
from plan_adapter.model.inventory import HostGroup
from plan_adapter.model.options import DocumentModel, Trigger
from plan_adapter.model.plan import ExecutionPlan
from plan_adapter.model.problems import Problem

MAX_BYTES = 16 * 1024 * 1024
"""The size limit of a document. 10,000 steps with long texts take about 3 MB."""

_SURROGATE = re.compile("[\ud800-\udfff]")

_JSON = re.compile(r'\s*\{\s*["}]')

_Reader: TypeAlias = Callable[[str], tuple[Node | None, list[Problem]]]


def read_text(text: str, file: str | None) -> tuple[ExecutionPlan | None, list[Problem]]:
    """Return the plan in `text` and every problem, in text order. See `read_document`."""
    text = text.removeprefix("\ufeff")
    try:
        root, problems = _read_tree(text, file)
    except UnreadableError as error:
        return None, [replace(error.problem, file=file)]
    if not isinstance(root.value, dict):
        return None, [_not_a_mapping(root, "a plan is a mapping with `description` and `steps`", file)]
    problems += expand(root)
    typed = read(root, ExecutionPlan, refused={problem.at for problem in problems})
    problems += typed.problems
    if "steps" not in root.value:
        problems.append(locate(root, Problem("no-steps", at="steps", message="the plan has no steps", hint="write at least one")))
    problems = _in_text_order(problems, file)
    _attach_origin(typed, problems, _Marks(text, file, root if problems else None), file)
    return typed.value, problems


def _attach_origin(typed: Typed[ExecutionPlan], problems: list[Problem], marks: "_Marks", file: str | None) -> None:
    plan, history = typed.value, dict(typed.history.get("", {}))
    found = ((step.id, typed.history.get(f"steps[{index}]")) for index, step in enumerate(plan.steps))
    if steps := {step_id: entries for step_id, entries in found if entries}:
        history["steps"] = dict[str, JsonValue](steps)
    plan._history = history  # pyright: ignore[reportPrivateUsage]  # only the reader sets what came with the document
    plan._problems = tuple(problems)  # pyright: ignore[reportPrivateUsage]
    plan._marks = marks  # pyright: ignore[reportPrivateUsage]
    plan._file = file  # pyright: ignore[reportPrivateUsage]


@dataclass(frozen=True, slots=True)
class TypedFile(Generic[M]):
    """A file that was read as a model."""

    value: M  # without what has problems
    text: str
    problems: list[Problem]
    _root: Node
    _file: str

    def locate(self, problem: Problem) -> Problem:
        """Return `problem` with its file, line and column."""
        return replace(locate(self._root, problem), file=self._file)

    def all_problems(self, found: Iterable[Problem]) -> list[Problem]:
        """Return the problems of the file and those that are `found` in its value at other places, in the order of the text."""
        known = {problem.at for problem in self.problems}
        others = [self.locate(problem) for problem in dict.fromkeys(found) if problem.at not in known]
        return _in_text_order([*self.problems, *others], self._file)


def read_typed(
    path: Path,
    model: type[M],
    *,
    context: object = None,
    max_bytes: int | None = None,
    expands: Callable[[Node], list[Problem]] | None = None,
) -> TypedFile[M]:
    """Return the file at `path`, read as `model`, after `expands` has rewritten its short forms.

    Raises InvalidPlanError if it is not a mapping.
    """
    try:
        text = read_content(path, max_bytes or MAX_BYTES)
        root, problems = _read_tree(text.removeprefix("\ufeff"), str(path), model=model)
    except UnreadableError as error:
        raise InvalidPlanError([replace(error.problem, file=str(path))]) from None
    if not isinstance(root.value, dict):
        raise InvalidPlanError([_not_a_mapping(root, "the file must contain a mapping of names to values", str(path))])
    problems += [] if expands is None else expands(root)
    typed = read(root, model, refused={problem.at for problem in problems}, context=context)
    return TypedFile(typed.value, text, [*problems, *typed.problems], root, str(path))


def _read_tree(
    text: str, file: str | None, *, aliases: bool = False, model: type[DocumentModel] = ExecutionPlan
) -> tuple[Node, list[Problem]]:
    if len(text) > MAX_BYTES:
        raise _too_large(MAX_BYTES)
    if surrogate := _SURROGATE.search(text):
        before = text[: surrogate.start()]
        mark = before.count("\n") + 1, len(before) - before.rfind("\n")
        message = "the text contains an unpaired surrogate, which UTF-8 cannot express"
        raise UnreadableError(Problem("bad-text", line=mark[0], column=mark[1], message=message, hint="remove the character"))
    if not text.strip():
        raise UnreadableError(Problem("syntax", line=1, column=1, message="the document is empty", hint=model.start_hint))
    root, problems = _choose_reader(text, file, partial(read_yaml, aliases=aliases))(text)
    if root is None:
        raise UnreadableError(Problem("syntax", line=1, column=1, message="the document contains only comments", hint=model.start_hint))
    return root, problems


def _choose_reader(text: str, file: str | None, yaml_reader: _Reader) -> _Reader:
    """Return the reader for the file's name, or else for the look of the text. A YAML file may contain JSON, or only look like it."""
    ending = (file or "").lower()
    if ending.endswith(".json"):
        return read_json
    if not _JSON.match(text):
        return yaml_reader
    return partial(_read_either, yaml_reader) if ending.endswith((".yaml", ".yml")) else read_json


def _read_either(yaml_reader: _Reader, text: str) -> tuple[Node | None, list[Problem]]:
    try:
        return read_json(text)
    except UnreadableError as error:
        if error.problem.code != "syntax":
            raise
    return yaml_reader(text)


def _in_text_order(problems: list[Problem], file: str | None) -> list[Problem]:
    """Return the problems in text order, with the file."""
    ordered = sorted(problems, key=lambda problem: (problem.line or 0, problem.column or 0))
    return [replace(problem, at=shorten_path(problem.at), file=file) for problem in ordered]


class _Marks:
    """Locates paths by reading the text again on first use: a plan without problems needs no positions."""

    def __init__(self, text: str, file: str | None, root: Node | None) -> None:
        self._text, self._file, self._root = text, file, root

    def __deepcopy__(self, memo: object) -> "_Marks":
        return self

    def find(self, at: str) -> tuple[int, int]:
        if self._root is None:
            self._root, _ = _read_tree(self._text, self._file)
            expand(self._root)
            Fields().rename(self._root, ExecutionPlan)
        node = self._root.find(at)
        return node.line, node.column


def read_path(path: Path) -> tuple[ExecutionPlan | None, list[Problem]]:
    """Return the plan in the file at `path` and every problem. See `read_document`."""
    try:
        return read_text(read_content(path), str(path))
    except UnreadableError as error:
        return None, [replace(error.problem, file=str(path))]


class TriggersFile(DocumentModel):
    """Triggers that `plan deploy` adds to those of a plan."""

    noun: ClassVar[str] = "a file of triggers"
    start_hint: ClassVar[str] = "write `triggers:` with a list, as in a plan"

    triggers: list[Trigger] = Field(default_factory=list)


def read_triggers(path: Path) -> TypedFile[TriggersFile]:
    """Return the file of triggers at `path`. Raises InvalidPlanError if it is not a mapping."""
    return read_typed(path, TriggersFile, expands=expand_triggers)


class _InventoryFile(DocumentModel):
    """The hosts of an inventory."""

    noun: ClassVar[str] = "an inventory"
    start_hint: ClassVar[str] = "name groups with their hosts, as in `web: {hosts: {web-1: {}}}`"

    hosts: dict[str, HostGroup] = Field(default_factory=dict)


def read_inventory(path: Path) -> tuple[dict[str, HostGroup], list[Problem]]:
    """Return the groups in the inventory at `path` and every problem. `.yaml`, `.yml` and `.json` are YAML, and anything else is INI."""
    try:
        text = read_content(path).removeprefix("\ufeff")
        if path.suffix.lower() in (".yaml", ".yml", ".json"):
            groups, problems = _read_tree(text, str(path), aliases=True, model=_InventoryFile)
        else:
            groups, problems = ini_groups(text), []
    except UnreadableError as error:
        return {}, [replace(error.problem, at="hosts", file=str(path))]
    root = Node(1, 1, {"hosts": groups})
    twice = expand_groups(groups)
    problems += [Problem("bad-hosts", at=at, line=node.line, column=node.column, message=message) for node, at, message in twice]
    typed = read(root, _InventoryFile, refused={problem.at for problem in problems})
    return typed.value.hosts, _in_text_order([*problems, *typed.problems], str(path))


def read_values(path: Path) -> tuple[dict[str, JsonValue] | None, list[Problem]]:
    """Return the mapping in the file at `path` and every problem. See `read_mapping`."""
    try:
        return read_values_text(read_content(path), str(path))
    except UnreadableError as error:
        return None, [replace(error.problem, file=str(path))]


def read_values_text(text: str, file: str | None, *, aliases: bool = False) -> tuple[dict[str, JsonValue] | None, list[Problem]]:
    """Return the result of `read_values` for a text that was read from `file`. With `aliases`, YAML aliases are read."""
    try:
        root, problems = _read_tree(text.removeprefix("\ufeff"), file, aliases=aliases)
    except UnreadableError as error:
        return None, [replace(error.problem, file=file)]
    values = _merged(root.plain()) if aliases else root.plain()
    if isinstance(values, dict):
        return values, _in_text_order(problems, file)
    return None, [_not_a_mapping(root, "the file must contain a mapping of names to values", file)]


def _merged(value: JsonValue) -> JsonValue:
    """Return a value with the mappings of each YAML merge key (`<<: *base`) in its place, under the keys that stand next to it."""
    if isinstance(value, list):
        return [_merged(member) for member in value]
    if not isinstance(value, dict):
        return value
    own = {key: _merged(member) for key, member in value.items()}
    given = own.get("<<")
    bases = given if isinstance(given, list) else [given]
    if "<<" not in own or not all(isinstance(base, dict) for base in bases):
        return own
    found: dict[str, JsonValue] = {}
    for base in [*reversed(bases), own]:
        found |= base if isinstance(base, dict) else {}
    del found["<<"]
    return found


def _not_a_mapping(root: Node, wanted: str, file: str | None) -> Problem:
    given = "a list" if isinstance(root.value, list) else "a single value"
    return Problem("wrong-type", line=root.line, column=root.column, message=f"{wanted}, not {given}", file=file)


def read_content(path: Path, max_bytes: int = MAX_BYTES) -> str:
    """Return the text of a file. Raises UnreadableError if it cannot be read."""
    try:
        with path.open("rb") as stream:
            content = stream.read(max_bytes + 1)
    except IsADirectoryError:
        raise UnreadableError(Problem("unreadable", message="this is a directory", hint="give the path of a file")) from None
    except FileNotFoundError:
        raise UnreadableError(Problem("unreadable", message="the file does not exist", hint="check the path")) from None
    except (OSError, ValueError) as error:  # ValueError: a NUL in the path
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        message = f"the file cannot be read: {reason}"
        raise UnreadableError(Problem("unreadable", message=message, hint="check the path and its permissions")) from None
    if len(content) > max_bytes:
        raise _too_large(max_bytes)
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        raise UnreadableError(_encoding_problem(content, error.start)) from None


def _too_large(limit: int) -> UnreadableError:
    size = f"{limit // 2**20} MB" if limit >= 2**20 else f"{limit // 2**10} KB"
    hint = "split the plan" if limit == MAX_BYTES else "write less"
    return UnreadableError(Problem("too-large", message=f"the document is larger than {size}", hint=hint))


def _encoding_problem(content: bytes, start: int) -> Problem:
    before = content[:start]
    line, column = before.count(b"\n") + 1, len(before[before.rfind(b"\n") + 1 :].decode()) + 1
    wide = content.startswith((b"\xff\xfe", b"\xfe\xff"))
    hint = "it looks like UTF-16: save it as UTF-8" if wide else "save it as UTF-8"
    return Problem("not-utf8", line=line, column=column, message=f"byte 0x{content[start]:02x} is not UTF-8 text", hint=hint)


_SEPARATORS = re.compile(r"[\s,]*")
_OBJECT = re.compile(r"\s*\{\s*[\"}]")
_ARRAY = re.compile(r"\s*\[\s*[{\]]")


def read_several(text: str, file: str | None) -> list[tuple[ExecutionPlan | None, list[Problem]]]:
    """Return the result of `read_text` for each plan in `text`. A text that is not a series of JSON objects is one plan."""
    text = text.removeprefix("\ufeff")
    array = _ARRAY.match(text)
    if array is None and _OBJECT.match(text) is None:
        return [read_text(text, file)]
    return [read_text(_at_original_position(text, start, end), file) for start, end in _spans(text, is_array=array is not None)]


def _spans(text: str, *, is_array: bool) -> Iterator[tuple[int, int]]:
    """Yield the start and end of each plan. An unreadable part counts as a plan, and reading it reports the problem."""
    decoder, position = json.JSONDecoder(), text.index("[") + 1 if is_array else 0
    while (start := _skip_separators(text, position)) < len(text):
        if is_array and text[start] == "]":
            position, is_array = start + 1, False
            continue
        try:
            _, position = decoder.raw_decode(text, start)
        except json.JSONDecodeError as error:
            newline = text.find("\n", start)
            is_json_lines = not is_array and error.pos <= newline
            position = newline if is_json_lines else len(text)
        except (ValueError, RecursionError):  # an integer with thousands of digits, or too much depth
            position = len(text)
        yield start, position


def _skip_separators(text: str, position: int) -> int:
    match = _SEPARATORS.match(text, position)
    return match.end() if match else position


def _at_original_position(text: str, start: int, end: int) -> str:
    """Return the part from `start` to `end` at its original line and column, with only white space before it."""
    line, column = text.count("\n", 0, start), start - text.rfind("\n", 0, start) - 1
    return "\n" * line + " " * column + text[start:end]
