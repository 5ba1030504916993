"""The one reader of typed documents: a pydantic model of a tree, and a located problem for everything in the tree that does not fit.

The model says which fields there are. What does not fit is left out, so that the rest can still be checked.
"""

import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from types import UnionType
from typing import Any, Generic, NamedTuple, TypeVar, Union, cast, get_args, get_origin, get_type_hints

from pydantic import JsonValue, ValidationError
from pydantic.alias_generators import to_camel, to_pascal, to_snake
from pydantic_core import ErrorDetails

from plan_adapter.documents.nodes import Node
from plan_adapter.documents.wording import FOREIGN_WORDS, to_problem
from plan_adapter.model.options import DocumentModel, PlanPart
from plan_adapter.model.problems import Problem, did_you_mean
from plan_adapter.model.readable import one_line
from plan_adapter.model.values import join

M = TypeVar("M", bound=DocumentModel)

_MAX_HINTS = 100
"""The most problems that get a hint: finding the nearest name takes time, and nobody reads thousands."""

_GO_ZERO_TIME = "0001-01-01T00:00:00Z"
"""How Go writes a time that was never set."""


@dataclass(frozen=True, slots=True)
class Typed(Generic[M]):
    """A tree that was read as a model."""

    value: M  # without what has problems
    problems: list[Problem]
    history: Mapping[str, dict[str, JsonValue]]  # fields that are only history, by the path of the part that holds them


def read(root: Node, model: type[M], *, refused: Collection[str] = (), context: object = None) -> Typed[M]:
    """Return the value of `model` in the mapping at `root`, whose fields get the model's spelling in place.

    Values at the paths in `refused` already have a problem and get no other one. `context` is for the validators of the model.
    """
    fields = Fields()
    fields.rename(root, model)
    value, found = build(cast("dict[str, Any]", root.plain()), model, context=context)
    problems = [*fields.problems, *(locate(root, problem) for problem in found)]
    return Typed(value, [problem for problem in problems if problem.at not in refused], fields.history)


def locate(root: Node, problem: Problem) -> Problem:
    """Return `problem` with its line and column in the tree."""
    node = root.find(problem.at)
    return replace(problem, line=node.line, column=node.column)


def build(document: dict[str, Any], model: type[M], *, context: object = None) -> tuple[M, list[Problem]]:
    """Return the value of `model` in `document`, without the fields that have problems, and the problems."""
    problems = list[Problem]()
    while True:
        try:
            return model.model_validate(document, strict=True, context=context), problems
        except ValidationError as error:
            found = dict[tuple[int | str, ...], ErrorDetails]()  # the first at each place
            for finding in error.errors(include_url=False):
                found.setdefault(_path_of(finding, document), finding)
            if not problems:
                problems = [to_problem(finding, path, names_field=model.names_fields) for path, finding in found.items()]
                document = _copy(document)
            holders = [path[:-1] if finding["type"] == "missing" and len(path) > 1 else path for path, finding in found.items()]
            removed = [_remove(document, path, model) for path in holders]
            if not any(removed):
                raise


def _copy(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _copy(member) for key, member in value.items()}  # pyright: ignore[reportUnknownVariableType]
    return [_copy(member) for member in value] if isinstance(value, list) else value  # pyright: ignore[reportUnknownVariableType]


def _path_of(finding: ErrorDetails, document: Any) -> tuple[int | str, ...]:
    """Return the path of the value concerned, or of the missing field. Pydantic's location also names members of unions and keys."""
    path, value = list[int | str](), document
    for part in finding["loc"]:
        try:
            value = value[part]
        except (LookupError, TypeError):
            continue
        path.append(part)
    return (*path, finding["loc"][-1]) if finding["type"] == "missing" else tuple(path)


def _remove(document: dict[str, Any], path: tuple[int | str, ...], model: type[DocumentModel]) -> bool:
    """Remove the value at `path`, and return whether anything was removed.

    A text that the whole document needs becomes empty. An invalid member of a list becomes an empty mapping; if that is invalid too, the
    whole list is removed.
    """
    if len(path) == 1 and (info := model.model_fields.get(str(path[0]))) is not None and info.is_required():
        is_new = document.get(str(path[0])) != ""
        document[str(path[0])] = ""
        return is_new
    holders: list[Any] = [document]
    try:
        for part in path:
            holders.append(holders[-1][part])
    except (LookupError, TypeError):
        return False  # already removed for another error
    for holder, key in reversed([*zip(holders, path, strict=False)]):
        if isinstance(holder, dict):
            del holder[key]
            return True
        if holder[key] != {}:
            holder[key] = {}
            return True
    return False


# Fields by name.


@dataclass(slots=True)
class Fields:
    """Renames the fields of a tree to the model's spelling, in place, and removes those that the model lacks."""

    problems: list[Problem] = field(default_factory=list[Problem])
    history: dict[str, dict[str, JsonValue]] = field(default_factory=dict[str, dict[str, JsonValue]])

    def rename(self, node: Node, model: type[DocumentModel], at: str = "") -> None:
        """Rename the fields of `node`, which is at the path `at`, and of everything in it that has a model of its own."""
        if not isinstance(node.value, dict):
            return
        history: dict[str, JsonValue] = {}
        renamed: dict[str, Node] = {}
        spelled: dict[str, str] = {}
        for key, entry in node.value.items():
            name = spellings(model).get(key)
            if name is None:
                self._report_unknown(key, entry, model, at)
            elif name in spelled:
                message = f"`{spelled[name]}` and `{key}` are the same field"
                self._report("duplicate-key", entry, join(at, key), message, "remove one of them")
            else:
                spelled[name] = key
                if name in model.history_fields:
                    history.update(_history_entry(name, entry))
                elif not _is_absent(model, name, entry):
                    renamed[name] = entry
        node.value = renamed
        if history:
            self.history[at] = history
        for name, kind in _nested(model).items():
            if name in renamed:
                self._rename_inside(renamed[name], kind, join(at, name))

    def _rename_inside(self, node: Node, kind: Any, at: str) -> None:
        """Rename the fields of the models in `node`, whose type is `kind`."""
        inside = _inside(kind)
        if isinstance(node.value, list) and inside.members is not None:
            for index, part in enumerate(node.value):
                self._rename_inside(part, inside.members, join(at, index))
        elif isinstance(node.value, dict) and inside.values is not None:
            for key, part in node.value.items():
                self._rename_inside(part, inside.values, join(at, key))
        elif inside.model is not None:
            self.rename(node, inside.model, at)

    def _report_unknown(self, key: str, entry: Node, model: type[DocumentModel], at: str) -> None:
        if key in model.ignored_fields:
            return
        known = {name for name in spellings(model).values() if name not in model.history_fields}
        message = f"{model.noun or f'`{at}`'} has no field `{one_line(key)[:60]}`"
        foreign = FOREIGN_WORDS.get(model, {}).get(key)
        hint = foreign or (did_you_mean(to_snake(key[:60]), known) if len(self.problems) < _MAX_HINTS else "")
        self._report("unknown-field", entry, join(at, key), message, hint)

    def _report(self, code: str, entry: Node, at: str, message: str, hint: str) -> None:
        self.problems.append(Problem(code, at=at, line=entry.line, column=entry.column, message=message, hint=hint))


def _history_entry(name: str, entry: Node) -> dict[str, JsonValue]:
    value = entry.plain()
    return {} if value in (None, "", _GO_ZERO_TIME) else {name: value}


def _is_absent(model: type[DocumentModel], name: str, entry: Node) -> bool:
    """Return whether the entry counts as absent: null for a list, mapping or model (Go's nil), or an empty id."""
    if entry.value is None:
        return model.null_is_absent and name in _container_fields(model)
    return name == "id" and entry.value == ""


@cache
def _container_fields(model: type[DocumentModel]) -> frozenset[str]:
    return frozenset(info.alias or name for name, info in model.model_fields.items() if isinstance(info.default_factory, type))


@cache
def spellings(model: type[DocumentModel]) -> dict[str, str]:
    """Map every accepted spelling of every field to its name. A plan accepts `tool_name`, `toolName`, `ToolName`; `ID` as in Go."""
    names = [*(info.alias or name for name, info in model.model_fields.items()), *model.history_fields]
    styled = issubclass(model, PlanPart)
    return {spelling: name for name in names for spelling in (_spellings_of_name(name) if styled else (name,))}


def _spellings_of_name(name: str) -> Iterator[str]:
    for spelling in (name, to_camel(name), to_pascal(name)):
        yield spelling
        yield re.sub("Id$", "ID", spelling)


@cache
def _nested(model: type[DocumentModel]) -> dict[str, Any]:
    """Return the types of the fields that contain models. The content of any other field is the author's."""
    kinds = get_type_hints(model)
    found = {info.alias or name: kinds[name] for name, info in model.model_fields.items()}
    return {name: kind for name, kind in found.items() if any(_inside(kind))}


class _Inside(NamedTuple):
    """Where a type contains models: it is one, or the members of a list or the values of a mapping contain some."""

    model: type[DocumentModel] | None = None
    members: Any = None
    values: Any = None


@cache
def _inside(kind: Any) -> _Inside:
    found = _Inside()
    for each in get_args(kind) if get_origin(kind) in (Union, UnionType) else (kind,):
        if isinstance(each, type) and issubclass(each, DocumentModel):
            found = found._replace(model=each)
        elif get_origin(each) in (list, dict) and any(_inside(get_args(each)[-1])):
            found = found._replace(**{"members" if get_origin(each) is list else "values": get_args(each)[-1]})
    return found
