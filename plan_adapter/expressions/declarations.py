"""`Declarations`: what an expression may use, and the type of each reference. Types are written as in CEL."""

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal, Protocol, TypeAlias

from plan_adapter.expressions.cel import words_of_kind
from plan_adapter.expressions.references import EACH, Path, format_path
from plan_adapter.expressions.shape import ANYTHING, NoMemberError, Shape, list_of, shape_of_type
from plan_adapter.model.inventory import Inventory, PatternError
from plan_adapter.model.problems import did_you_mean

Expected: TypeAlias = Literal["bool", "list"]

NAME_HINTS: Mapping[str, str] = {
    "item": "`item` exists in the parameters, the label and the done_when of a step with for_each",
    "run": "`run` exists in `finally` steps",
    "event": "`event` exists in `triggers`",
    "result": "`result` alone exists in done_when; elsewhere write steps.<id>.result",
    "error": "write steps.<id>.error",
    "status": "write steps.<id>.status",
    "steps": "name a step and its member: steps.<id>.result",
    "inputs": "name an input: inputs.<name>",
    "secrets": "name a secret: secrets.<name>",
    "vars": "declare an input with `variable: <name>`, and write inputs.<name>",
    "hosts": "name hosts or groups in quotes: hosts('web:!web-3')",
    "True": "CEL writes `true`",
    "False": "CEL writes `false`",
    "None": "CEL writes `null`",
}
"""What to write instead, by the name that is not available."""

INPUT_NAME = "[A-Za-z][A-Za-z0-9_]*"
"""The pattern of input names. CEL allows no other letters."""

SECRET_NAME = r"[A-Za-z_](?:[A-Za-z0-9_.-]{0,62}[A-Za-z0-9_-])?|[a-z0-9-]{1,64}/[a-z0-9-]{1,100}"  # noqa: S105  # a pattern of names
"""A secret's name, or a Prefect block's type and name."""

_TEXT = Shape("string")
_STEP_MEMBERS = {"result": ANYTHING, "status": _TEXT, "error": ANYTHING}
_RUN_MEMBERS = {
    "status": _TEXT,
    "progress": _TEXT,
    "failed_steps": list_of(_TEXT),
    "rolled_back": list_of(_TEXT),
    "not_rolled_back": list_of(_TEXT),
}
_HOST = Shape(
    "map",
    fields={
        "name": _TEXT,
        "host": _TEXT,
        "user": Shape("string", is_optional=True),
        "port": Shape("int", is_optional=True),
        "jump": Shape("string", is_optional=True),
        "groups": list_of(_TEXT),
        "vars": Shape("map"),
    },
)
"""A host of `hosts('web')`."""
_EVENT = Shape(
    "map",
    fields={"id": _TEXT, "name": _TEXT, "occurred": _TEXT, "resource": Shape("map", rest=_TEXT), "payload": ANYTHING},
)
_NON_JSON_TYPES = ("bytes", "duration", "timestamp", "type")


class TypedInput(Protocol):
    """What type checks need from an input: its type, and the type of an array's members."""

    @property
    def type(self) -> str:
        """A type of JSON, or `date`, `date-time`, `duration` or `secret`, which are texts."""
        ...

    @property
    def items(self) -> str | None:
        """The type of an array's members."""
        ...


@dataclass(frozen=True, slots=True)
class Declarations:
    """What an expression may use. `item`, `result`, `secrets`, `run` and `event` say whether these exist at its place.

    Pass `steps` as a frozenset if possible: it is searched for every reference.
    """

    steps: Collection[str]
    inputs: Mapping[str, TypedInput]
    group_of_step: Mapping[str, str] = field(default_factory=dict[str, str])  # steps of groups that only their group sees: id -> group
    results: Mapping[str, Shape] = field(default_factory=dict[str, Shape])  # what is known of the results of steps
    hosts: Inventory | None = None  # None: the plan has none
    own_result: Shape = ANYTHING  # what is known of `result`
    own_item: Shape = ANYTHING  # what is known of `item`
    item: bool = False
    result: bool = False
    secrets: bool = False
    run: bool = False
    event: bool = False


class RefusedError(Exception):
    """An expression cannot be used. `code`, `message` and `hint` are those of the resulting problem."""

    def __init__(self, code: str, message: str, hint: str = "") -> None:
        """Store code, message and hint."""
        super().__init__(message)
        self.code, self.message, self.hint = code, message, hint


def shape_of(path: Path, declared: Declarations) -> Shape:
    """Return what is known of the value of the reference `path`. Raises RefusedError if there is no such value."""
    match path[0]:
        case "steps":
            shape, at = _shape_of_step(path, declared), 3
        case "inputs":
            shape, at = _shape_of_input(path, declared), 2
        case "secrets":
            shape, at = _shape_of_secret(path, declared), 2
        case "hosts":
            shape, at = _shape_of_hosts(path, declared.hosts), 2
        case "run" if declared.run:
            shape, at = _shape_of_run(path), 2
        case "item" if declared.item:
            shape, at = declared.own_item, 1
        case "result" if declared.result:
            shape, at = declared.own_result, 1
        case "event" if declared.event:
            shape, at = _EVENT, 1
        case name:
            raise RefusedError("unknown-reference", f"there is no `{name}` here", NAME_HINTS[str(name)])
    for length in range(at, len(path)):
        try:
            shape = shape.member(path[length])
        except NoMemberError as error:
            raise _no_member(path[: length + 1], shape, error.fields) from None
    return shape


def check_members(paths: Iterable[Path], declared: Declarations) -> None:
    """Raise RefusedError if one of `paths` names something that its value is known not to have."""
    for path in paths:
        exists = {"item": declared.item, "result": declared.result, "event": declared.event}
        if path[0] in ("steps", "inputs", "hosts") or exists.get(str(path[0]), False):
            shape_of(path, declared)


def _no_member(path: Path, shape: Shape, fields: Collection[str] | None) -> RefusedError:
    """Return the error for the last key of `path`, whose value before it has `shape`."""
    value, key = format_path(path[:-1]), path[-1]
    if shape.type == "null_type":
        return RefusedError("expression-type", f"`{value}` is always null: the tool returns nothing", "remove the reference")
    if fields is None:
        hint = f"write {format_path((*path[:-1], 0))} for its first member" if shape.type == "list" else ""
        if key == EACH:  # a macro goes through the members
            return RefusedError("expression-type", f"`{value}`: {words_of_kind(shape.type)} has no members to go through")
        return RefusedError("expression-type", f"`{format_path(path)}`: {words_of_kind(shape.type)} has no `{key}`", hint)
    hint = did_you_mean(str(key), fields) if fields else "declare it under `outputs` of the plan that the step runs"
    return RefusedError("unknown-reference", f"`{value}` has no field `{key}`", hint)


def check_kind(source: str, kind: str, expect: Expected | None) -> None:
    """Raise RefusedError if a value of type `kind` is not JSON or not the expected type. `dyn` is checked at run time."""
    if kind in _NON_JSON_TYPES:
        raise RefusedError("expression-type", f"{source} is a {kind}, which JSON does not have", "convert it with string()")
    if expect is not None and kind.partition("(")[0] not in ("dyn", expect):
        wanted = "`true` or `false`" if expect == "bool" else "a list"
        raise RefusedError("expression-type", f"{source} is {words_of_kind(kind)}", f"this must be an expression for {wanted}")


def _shape_of_step(path: Path, declared: Declarations) -> Shape:
    if len(path) < 2 or not isinstance(path[1], str):
        raise RefusedError("unknown-reference", "`steps` names no step", NAME_HINTS["steps"])
    step, steps = path[1], declared.steps
    if (group := declared.group_of_step.get(step)) is not None:
        message = f"`{step}` is a step of the group `{group}`, and only the steps of that group see it"
        raise RefusedError("unknown-reference", message, f"use steps.{group}.result, a list of {{label, status, results}}")
    if step not in steps:
        raise RefusedError("unknown-reference", f"no step is called `{step}`", did_you_mean(step, steps))
    if len(path) < 3 or path[2] not in _STEP_MEMBERS:
        message = f"`{format_path(path)}` alone is not a value" if len(path) < 3 else f"a step has no `{path[2]}`"
        raise RefusedError("unknown-reference", message, f"write {format_path(path[:2])}.result, .status or .error")
    return declared.results.get(step, ANYTHING) if path[2] == "result" else _STEP_MEMBERS[str(path[2])]


def _shape_of_input(path: Path, declared: Declarations) -> Shape:
    inputs = declared.inputs
    if len(path) < 2 or not isinstance(path[1], str):
        raise RefusedError("unknown-reference", "`inputs` names no input", NAME_HINTS["inputs"])
    if path[1] not in inputs:
        hint = did_you_mean(path[1], frozenset(inputs)) or "declare it under `inputs`"
        raise RefusedError("unknown-reference", f"no input is called `{path[1]}`", hint)
    definition = inputs[path[1]]
    if definition.type == "secret":
        _check_secret_place(path, declared)
    return shape_of_type(definition.type, definition.items)


def _shape_of_hosts(path: Path, inventory: Inventory | None) -> Shape:
    if inventory is None:
        hint = "write them under `hosts` of the plan, and use them in its steps"
        raise RefusedError("unknown-hosts", f"`{format_path(path[:2])}`: there are no hosts here", hint)
    try:
        selected = inventory.select(str(path[1]))
    except PatternError as error:
        raise RefusedError("unknown-hosts", f"`{format_path(path[:2])}`: {error}", error.hint) from None
    if not selected:
        raise RefusedError("unknown-hosts", f"`{format_path(path[:2])}` gives no host", "name a group that has hosts")
    return list_of(_HOST)


def _shape_of_run(path: Path) -> Shape:
    if len(path) < 2 or path[1] not in _RUN_MEMBERS:
        message = "`run` alone is not a value" if len(path) < 2 else f"a run has no `{path[1]}` here"
        raise RefusedError("unknown-reference", message, "write " + ", ".join(f"run.{name}" for name in _RUN_MEMBERS))
    return _RUN_MEMBERS[str(path[1])]


def _check_secret_place(path: Path, declared: Declarations) -> None:
    """Raise RefusedError unless the reference `path`, which stands for a secret, is where secrets may be."""
    if not declared.secrets:
        hint = "pass it to a tool other than run_deployment, in the parameters of the step itself: elsewhere it would be shown or stored"
        raise RefusedError("misplaced-secret", f"`{format_path(path)}`: a secret is not allowed here", hint)


def _shape_of_secret(path: Path, declared: Declarations) -> Shape:
    _check_secret_place(path, declared)
    if len(path) < 2 or not isinstance(path[1], str):
        raise RefusedError("unknown-reference", "`secrets` names no secret", NAME_HINTS["secrets"])
    if not re.fullmatch(SECRET_NAME, path[1]):
        hint = 'a letter or _, then at most 63 letters, digits, _, - or .; or a Prefect block: secrets["type/name"]'
        raise RefusedError("bad-secret-name", f"{path[1][:80]!r} cannot be the name of a secret", hint)
    return _TEXT
