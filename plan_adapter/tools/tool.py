"""`Tool`, the decorator `@tool`, and `ToolContext`, which a tool requests by annotation. Also what identifies a tool's code."""

import copy
import functools
import inspect
import json
import logging
import sys
from collections.abc import Callable, Collection, Coroutine, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from hashlib import sha256
from importlib import metadata
from types import CodeType
from typing import Any, Generic, Literal, ParamSpec, Protocol, TypeAlias, TypeVar, cast, overload

from pydantic import JsonValue, ValidationError

from plan_adapter.model.errors import ToolDefinitionError, ToolError
from plan_adapter.model.options import EFFECTS, CallKind, Effect, Isolation
from plan_adapter.model.problems import did_you_mean
from plan_adapter.model.values import refuse_constant
from plan_adapter.tools.probing import mismatches
from plan_adapter.tools.signature import (
    Mismatch,
    json_adapter,
    parameter_descriptions,
    read_result_schema,
    read_result_type,
    read_signature,
    without_documentation,
)

P = ParamSpec("P")
R = TypeVar("R")

NAME_LENGTH = 128

CHECK_SECONDS = 30.0
"""How long one call of a `preflight` may take."""

CHECKS_AT_ONCE = 20
"""How many of them a group makes at a time."""

PartRole: TypeAlias = Literal["probe", "preview", "guard", "simulation", "preflight"]

_OPTIONS = (
    "effect",
    "name",
    "description",
    "isolation",
    "permissions",
    "literal_parameters",
    "exactly_one",
    "public_parameters",
    "probe",
    "preview",
    "guard",
    "simulate",
    "preflight",
)
"""The options of `@tool`."""


class Redaction(Protocol):
    """Redacts the secrets of a run in text."""

    @property
    def longest(self) -> int:
        """The most characters that one secret takes in a text, in any encoding; 0 while there are no secrets."""
        ...

    def text(self, text: str) -> str:
        """Return `text` with `***` in place of every secret."""
        ...


class CommandLog(Protocol):
    """Records the commands that a call starts, so that one that outlives its run is found."""

    @property
    def command_marker(self) -> str:
        """The text by which a command of this attempt is recognized: its variable `host_process.MARKER`."""
        ...

    def command_started(self, pid: int) -> None:
        """Record that process `pid` is a command of this attempt. It leads a session. Never blocks."""
        ...


@dataclass(frozen=True, slots=True)
class ToolContext:
    """What a tool can know about the call."""

    run_id: str  # the run
    step_id: str  # the step
    attempt: int  # which attempt this is, from 1
    idempotency_key: str  # the same text for every attempt of one call
    agent_id: str | None  # from `RunContext`, like the next two
    org_id: str | None
    tenant_id: str | None
    logger: logging.Logger  # logs to the flow run's page and to `plan logs`
    deadline: float | None  # seconds on time.monotonic()'s clock; None: no limit
    redaction: Redaction | None = field(default=None, repr=False, compare=False)  # replaces secrets in texts
    kind: CallKind = "step"  # `rollback`: the call rolls back the step
    answer: JsonValue = None  # to the question of the step, by field
    permissions: frozenset[str] = frozenset()  # those that the plan gives to its tools
    commands: CommandLog | None = field(default=None, repr=False, compare=False)  # None in another process

    def redact(self, text: str) -> str:
        """Return `text` with `***` in place of every secret of the run. Call it before cutting text: half a secret cannot be found."""
        return text if self.redaction is None else self.redaction.text(text)


class Tool(Generic[P, R]):
    """A typed function that a step can call. Calling the tool calls the function, with its own signature.

    `fn` is the function that runs. `source` is the same function, or the function inside if `fn` is a Prefect flow. `task` is the Prefect
    task that the tool was made from, or None, and `timeout_seconds` is that task's limit. `probe` is the tool that checks whether a write
    with an unknown outcome was done, or None. `preview` is the tool that shows what a write changed, `guard` the one that checks it
    before a goal ends, `simulate` the one that says in a dry run what it would do, and `preflight` the one that checks whether it can be
    called, or None.

    Raises ToolDefinitionError for a function that cannot be a tool, and for a part of it whose parameters do not match.
    """

    def __init__(
        self,
        fn: Callable[P, R],
        *,
        effect: Effect = "write",
        name: str | None = None,
        description: str | None = None,
        isolation: Isolation = "thread",
        permissions: Iterable[str] = (),
        literal_parameters: Iterable[str] = (),
        exactly_one: Iterable[str] = (),
        public_parameters: Iterable[str] = (),
        probe: Callable[..., object] | None = None,
        preview: Callable[..., object] | None = None,
        guard: Callable[..., object] | None = None,
        simulate: Callable[..., object] | None = None,
        preflight: Callable[..., object] | None = None,
        source: Callable[..., object] | None = None,
        task: object | None = None,
    ) -> None:
        self.fn = fn
        self.task = task
        self.timeout_seconds: float | None = getattr(task, "timeout_seconds", None)
        self.source: Callable[..., object] = source or fn
        self._returning = self.source
        _require_function(self.source)
        self.name = _valid_name(name or self.source.__name__, self.source)
        self.is_async = inspect.iscoroutinefunction(self.source)
        self.effect: Effect = _valid_choice(effect, EFFECTS, f"the effect of `{self.name}`")
        self.isolation: Isolation = _valid_choice(isolation, ("thread", "process"), f"the isolation of `{self.name}`")
        self.permissions = frozenset(permissions)
        self.literal_parameters = frozenset(literal_parameters)
        self.exactly_one = tuple(exactly_one)
        self.public_parameters = frozenset(public_parameters)
        self._description = description
        self._signature = read_signature(self.source, context_type=ToolContext)
        for option in ("literal_parameters", "exactly_one", "public_parameters"):
            if unknown := set(getattr(self, option)) - self._signature.fields.keys():
                raise ToolDefinitionError(f"`{self.name}` has no parameter called {', '.join(sorted(unknown))} ({option})")
        self._is_stand_in = False
        self.probe: Tool[..., Any] | None = None if probe is None else _build_part(self, probe, "probe")
        self.preview: Tool[..., Any] | None = None if preview is None else _build_part(self, preview, "preview")
        self.guard: Tool[..., Any] | None = None if guard is None else _build_part(self, guard, "guard")
        self.simulate: Tool[..., Any] | None = None if simulate is None else _build_part(self, simulate, "simulation")
        self.preflight: Tool[..., Any] | None = None if preflight is None else _build_part(self, preflight, "preflight")
        functools.update_wrapper(cast("Any", self), self.source, updated=())

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Call the function."""
        return self.fn(*args, **kwargs)

    def __repr__(self) -> str:
        return f"<Tool {self.name} ({self.effect}) {self.origin}>"

    def with_function(self, fn: Callable[..., Coroutine[Any, Any, object]]) -> "Tool[..., Any]":
        """Return a tool with the same definition that calls the coroutine function `fn`, without its parts."""
        copied = cast("Tool[..., Any]", copy.copy(self))
        copied.fn = copied.source = fn
        copied.is_async, copied.isolation, copied._is_stand_in = True, "thread", True
        copied.task = copied.probe = copied.preview = copied.guard = copied.simulate = copied.preflight = None
        return copied

    @property
    def parameter_names(self) -> frozenset[str]:
        """The parameters that a step can set."""
        return frozenset(self._signature.fields)

    @property
    def origin(self) -> str:
        """Where the function is defined, for messages: `package.module:name`."""
        return f"{self.source.__module__}:{getattr(self.source, '__qualname__', self.name)}"

    @cached_property
    def _documentation(self) -> tuple[str, dict[str, str]]:
        return parameter_descriptions(inspect.getdoc(self.source) or "")

    @property
    def description(self) -> str:
        """What the tool does: the text of its docstring before `Args:`."""
        return self._description if self._description is not None else self._documentation[0]

    @cached_property
    def parameters_schema(self) -> dict[str, JsonValue]:
        """The JSON Schema of the parameters. Where an annotation has no description, the docstring's is used."""
        schema = copy.deepcopy(self._signature.schema)
        properties = cast("dict[str, dict[str, JsonValue]]", schema.get("properties", {}))
        for name, described in properties.items():
            if text := self._documentation[1].get(name):
                described.setdefault("description", text)
        return schema

    @cached_property
    def result_schema(self) -> dict[str, JsonValue]:
        """The JSON Schema of the result, from the annotation of what the function returns. Empty if the result can be anything."""
        return read_result_schema(self._returning, context_type=ToolContext)

    @property
    def import_string(self) -> str | None:
        """Return `package.module:name` if the function can be imported from there.

        None for a function in a script or inside another function, and for one that stands in for another.
        """
        module, path = self.source.__module__, str(getattr(self.source, "__qualname__", "<"))
        if module == "__main__" or "<" in path or self._is_stand_in:
            return None
        try:
            found = functools.reduce(getattr, path.split("."), cast("object", sys.modules[module]))
        except (KeyError, AttributeError):
            return None
        is_this = found is self or found is self.source or getattr(found, "source", getattr(found, "fn", None)) is self.source
        return f"{module}:{path}" if is_this else None

    def why_not_permitted(self, given: Collection[str], *, giver: str = "the plan") -> str | None:
        """Return a message with the permissions that the tool needs and `giver` does not give. None if it may be called."""
        missing = sorted(self.permissions.difference(given))
        if not missing:
            return None
        names = ", ".join(f"`{name}`" for name in missing)
        return f"`{self.name}` needs the permission{'s' if len(missing) > 1 else ''} {names}, which {giver} does not give"

    def definition(self) -> dict[str, JsonValue]:
        """Return the content that an approval covers: name, parameters, effect and permissions, without documentation.

        A probe, a preview and a guard only look. Like the tool's code they are behavior, and not part of what was approved.
        """
        return {
            "name": self.name,
            "parameters": without_documentation(self._signature.schema),
            "effect": self.effect,
            "permissions": [*sorted(self.permissions)],
        }

    def check(self, parameters: Mapping[str, JsonValue], is_open: Callable[[JsonValue], bool]) -> list[Mismatch]:
        """Return (path below the parameters, message, hint) for everything that does not fit.

        A value for which `is_open` returns True (it contains an expression) is not judged, nor is anything that depends on it.
        """
        return [*self._signature.mismatches(dict(parameters), is_open), *self._find_not_one(parameters, is_open)]

    def _find_not_one(self, parameters: Mapping[str, JsonValue], is_open: Callable[[JsonValue], bool]) -> list[Mismatch]:
        """Return a mismatch unless just one of the parameters in `exactly_one` is given. An open value may turn out to be null."""
        given = [name for name in self.exactly_one if parameters.get(name) is not None]
        certain = [name for name in given if not is_open(parameters[name])]
        choices = " or ".join(f"`{name}`" for name in self.exactly_one)
        if self.exactly_one and not given:
            return [("", f"{choices} is missing", "")]
        if len(certain) > 1:
            return [(certain[-1], f"`{'` and `'.join(certain)}` exclude each other", f"give either {choices}")]
        return []

    def check_types(
        self, parameters: Mapping[str, JsonValue], is_open: Callable[[JsonValue], bool], examples: Mapping[tuple[str | int, ...], str]
    ) -> list[Mismatch]:
        """Return what `check` returns, for values whose type is known but not their content. `examples`: what they are, by place."""
        return self._signature.type_mismatches(dict(parameters), is_open, examples)

    def normalized(self, parameters: Mapping[str, JsonValue], *, with_defaults: bool = False) -> dict[str, JsonValue]:
        """Return `parameters` as the function gets them: two calls are the same exactly if these are equal.

        `with_defaults` adds the defaults of parameters that are not given. Parameters that do not fit are returned as they are.
        """
        try:
            return self._signature.normalized(parameters, with_defaults=with_defaults)
        except (ValueError, TypeError):
            return dict(parameters)

    def result_of(self, value: object) -> JsonValue:
        """Return `value` as JSON, if it is of the type that the function returns. Raises ToolError."""
        adapter = read_result_type(self._returning, context_type=ToolContext)
        try:
            return as_json(value if adapter is None else adapter.validate_python(value))
        except ValidationError as error:
            wrong = "; ".join(f"{'.'.join(map(str, detail['loc'])) or 'it'}: {detail['msg']}" for detail in error.errors(include_url=False))
            raise ToolError(f"the result is not what `{self.name}` returns: {wrong}") from error

    def bind(self, parameters: Mapping[str, JsonValue], context: ToolContext) -> dict[str, Any]:
        """Return the keyword arguments of the call, coerced to the annotated types. Raises ToolError with everything that does not fit."""
        try:
            _require_json(parameters)
            arguments = self._signature.validate(parameters)
            if wrong := self._find_not_one(parameters, lambda _: False):
                raise ToolError(f"the parameters do not match `{self.name}`: {wrong[0][1]}")
        except ValidationError as error:
            messages = [message for _, message, _ in self._signature.mismatches(dict(parameters), lambda _: False, context.redact)]
            raise ToolError(f"the parameters do not match `{self.name}`: " + "; ".join(messages)) from error
        except (ValueError, TypeError) as error:  # from an expression: a document cannot contain such values
            raise ToolError(f"the parameters of `{self.name}` are not JSON: {error}") from error
        return arguments | dict.fromkeys(self._signature.context_names, context)


@overload
def tool(fn: Callable[P, R], /) -> Tool[P, R]: ...
@overload
def tool(
    *,
    effect: Effect = "write",
    name: str | None = None,
    description: str | None = None,
    isolation: Isolation = "thread",
    permissions: Iterable[str] = (),
    literal_parameters: Iterable[str] = (),
    exactly_one: Iterable[str] = (),
    public_parameters: Iterable[str] = (),
    probe: Callable[..., object] | None = None,
    preview: Callable[..., object] | None = None,
    guard: Callable[..., object] | None = None,
    simulate: Callable[..., object] | None = None,
    preflight: Callable[..., object] | None = None,
) -> Callable[[Callable[P, R]], Tool[P, R]]: ...
def tool(fn: Callable[..., Any] | None = None, /, **options: Any) -> Any:
    """Make a typed function, sync or async, a tool. Use it as `@tool` or `@tool(effect="read")`.

    The parameter schema comes from annotations and a Google-style docstring. A parameter annotated with `ToolContext` is filled in when a
    step calls the tool, and is not part of the schema.

    Args:
        fn: The function.
        options: All optional.

            - `effect`: `read`, `idempotent_write` or `write` (the default).
            - `name` and `description`: by default the function's name and its docstring.
            - `isolation`: `process` for work that a timeout must be able to kill; by default `thread`.
            - `permissions`: the permissions that the tool needs; a plan that calls it must give them.
            - `literal_parameters`: parameters in which a plan may not use expressions, because their text is code.
            - `exactly_one`: parameters of which a step gives one and no other; all of them are optional.
            - `public_parameters`: parameters that others can see during a call, as in a list of processes; a plan may put no secret there.
            - `probe`: a function, sync or async, that checks whether an interrupted write was done. It returns `Done(result)`,
              `NotDone()`, `Failed(error)` if the call was made and failed, or None if it cannot tell.
            - `preview`: a function, or a tool that reads, that is called after each successful write. It returns Markdown, which is
              published as an artifact. If it fails, the failure is only logged.
            - `guard`: a function, or a tool that reads, that is called before a goal whose model called this tool may end. It returns
              why the goal may not end, or None. If it fails, the goal may not end.
            - `simulate`: a function, or a tool that reads, that is called in a dry run in place of a write. It returns what the tool would
              return, or `Simulation(shows=…, result=…)`, which also shows what would change, or whose result stays unknown. It gets no
              values of secrets: the expressions are in their place.
            - `preflight`: a function, or a tool that reads, that is called for each item of a group before its first item begins. If it
              fails, no step of the item is called, and the item counts towards `max_failures`.

            `probe`, `preview`, `simulate` and `preflight` receive those of the tool's parameters that they name. All of them receive the
            `ToolContext` of the call if they have a parameter with this annotation.

    Raises ToolDefinitionError for any other option, with the nearest known one.
    """
    if unknown := options.keys() - _OPTIONS:
        hints = "; ".join(f"`{name}`: {did_you_mean(name, _OPTIONS)}" for name in sorted(unknown))
        raise ToolDefinitionError(f"`@tool` has no such option: {hints}")
    if fn is not None:
        return Tool(fn, **options)

    def decorate(function: Callable[..., Any]) -> Tool[..., Any]:
        return Tool(function, **options)

    return decorate


def as_tool(
    obj: object, *, effect: Effect | None = None, name: str | None = None, probe: Callable[..., object] | None = None
) -> Tool[..., Any]:
    """Return `obj` as a tool: a tool, a typed function, or a Prefect task or flow (recognized by their shape).

    A task runs in Prefect's task engine, as the task run of the step: its tags with their concurrency limits, hooks, assets and transaction
    apply, and its timeout if it is shorter than the step's. The step keeps its results, in receipts. Offline, only its function is called.
    A task with retries, a cache or persisted results is refused: retries belong in the approved plan, and receipts keep results without
    secrets.

    A flow is called itself and appears as a subflow. Without a name of its own it is called as its function: `restart_web`.
    `probe` works as for `tool`. Raises ToolDefinitionError for anything else.
    """
    if isinstance(obj, Tool):
        known = cast("Tool[..., Any]", obj)
        if effect in (None, known.effect) and name in (None, known.name) and probe is None:
            return known
        copied = copy.copy(known)
        copied.name = _valid_name(name or known.name, known.source)
        copied.effect = _valid_choice(effect or known.effect, EFFECTS, f"the effect of `{copied.name}`")
        copied.probe = known.probe if probe is None else _build_part(copied, probe, "probe")
        return copied
    inner, prefect_name = getattr(obj, "fn", None), getattr(obj, "name", None)
    if callable(obj) and callable(inner) and isinstance(prefect_name, str):
        if hasattr(obj, "flow_run_name"):
            # Prefect's own name of a flow has hyphens in place of the underscores of its function.
            own_name = getattr(inner, "__name__", "")
            given_name = own_name if prefect_name == own_name.replace("_", "-") else prefect_name
            return Tool(obj, effect=effect or "write", name=name or given_name, probe=probe, source=inner)
        _refuse_replaced_options(obj, prefect_name)
        return Tool(inner, effect=effect or "write", name=name or prefect_name, probe=probe, task=obj)
    if callable(obj):
        return Tool(obj, effect=effect or "write", name=name, probe=probe)
    raise ToolDefinitionError(f"{obj!r} cannot be a tool: give a typed function, a tool, or a Prefect task or flow")


def _refuse_replaced_options(task: object, name: str) -> None:
    """Raise ToolDefinitionError with every option of a Prefect task that steps replace, and what to write instead."""
    found, options = list[str](), list[str]()
    if retries := getattr(task, "retries", 0):
        found.append(f"it has retries={retries}, but retries belong in the approved plan: write `max_retries: {retries}` on its steps")
        options.append("retries=0")
    if getattr(task, "persist_result", None):
        found.append(
            "it persists results (persist_result, a cache policy or key, or a result storage, key or serializer), but the receipts of "
            "the store keep them, without secrets"
        )
        options.append("persist_result=False")
    if found:
        raise ToolDefinitionError(
            f"the task `{name}` cannot be a tool as it is: {'; '.join(found)}. Pass it with `with_options({', '.join(options)})`"
        )


def _build_part(tool: Tool[..., Any], function: Callable[..., object], role: PartRole) -> Tool[..., Any]:
    """Return `function` as this part of `tool`. Raises ToolDefinitionError with everything that does not fit."""
    if isinstance(function, Tool):
        part = cast("Tool[..., Any]", function)
    else:
        part = Tool(function, effect="read", name=getattr(function, "__name__", None) or tool.name)
    why = mismatches(tool.definition()["parameters"], part.definition()["parameters"], role)
    if part.effect != "read":
        why.insert(0, f"its effect is {part.effect}, and a {role} only reads")
    if role != "probe" and tool.effect == "read":
        why.insert(0, f"the tool only reads, and a {role} is for writes")
    if role == "guard" and part.parameter_names:
        why.insert(0, "a guard takes no parameters except the `ToolContext`")
    if why:
        raise ToolDefinitionError(f"`{part.name}` cannot be the {role} of `{tool.name}`: " + "; ".join(why))
    return part


def as_json(value: object) -> JsonValue:
    """Return a tool's result as JSON. Models, dataclasses, dates, paths, tuples and similar types are converted.

    Raises ToolError for values that are not JSON: NaN and infinity, bytes or text that a UTF-8 document cannot hold, other objects, and
    mappings in which two keys would become one.
    """
    try:
        return json.loads(json_adapter().dump_json(value), object_pairs_hook=_object_without_duplicates, parse_constant=refuse_constant)
    except (ValueError, TypeError, RecursionError) as error:
        raise ToolError(f"the result is not JSON: {error}") from error


def _object_without_duplicates(pairs: list[tuple[str, JsonValue]]) -> dict[str, JsonValue]:
    members = dict(pairs)
    if len(members) < len(pairs):
        keys = [key for key, _ in pairs]
        duplicate = next(key for key in keys if keys.count(key) > 1)
        raise ValueError(
            f"two keys of one mapping both become the JSON key {json.dumps(duplicate, ensure_ascii=False)}; rename one of them"
        )
    return members


def _require_json(value: object) -> None:
    json.dumps(value, allow_nan=False, ensure_ascii=False).encode()


def _valid_name(name: str, source: object) -> str:
    if name == "<lambda>" or not name:
        raise ToolDefinitionError(f"{source!r} has no name of its own: pass one (`name=`)")
    if not name.isprintable() or name != name.strip() or len(name) > NAME_LENGTH:
        rule = f"a name is one line without spaces around it, at most {NAME_LENGTH} characters"
        raise ToolDefinitionError(f"{name[:NAME_LENGTH]!r} cannot be the name of a tool: {rule}")
    return name


def _require_function(source: Callable[..., object]) -> None:
    if inspect.isclass(source):
        raise ToolDefinitionError(f"{source!r} cannot be a tool: it is a class; pass a function that creates an instance")
    if not hasattr(source, "__module__") or not hasattr(source, "__name__"):
        raise ToolDefinitionError(f"{source!r} cannot be a tool: it is not a function; wrap it in one with `def`")
    if inspect.isgeneratorfunction(source) or inspect.isasyncgenfunction(source):
        raise ToolDefinitionError(f"`{source.__name__}` cannot be a tool: it is a generator, but a tool returns one result; return a list")


Choice = TypeVar("Choice", bound=str)


def _valid_choice(value: str, choices: tuple[Choice, ...], what: str) -> Choice:
    if value not in choices:
        raise ToolDefinitionError(f"{what} is {value!r}, not one of {', '.join(choices)}")
    return cast("Choice", value)


@lru_cache(maxsize=4096)
def code_digest(tool: Tool[..., Any]) -> str | None:
    """Return the SHA-256, in hex, of the source of the tool's function, or None if nothing is known about it.

    Without a source (a compiled module), it covers the import string and the version of the distribution. Functions that it calls are not
    covered.
    """
    try:
        known = _version_of(tool) if _is_from_string(tool.source) else inspect.getsource(tool.source)
    except (OSError, TypeError, SyntaxError):
        known = _version_of(tool)
    return None if known is None else sha256(known.encode(errors="surrogatepass")).hexdigest()


def _is_from_string(function: Callable[..., Any]) -> bool:
    """Return whether `exec` made `function`. In a program that `python -c` runs, Python 3.13 takes that program for its source."""
    code = getattr(inspect.unwrap(function), "__code__", None)
    return isinstance(code, CodeType) and code.co_filename == "<string>"


def _version_of(tool: Tool[..., Any]) -> str | None:
    if tool.import_string is None:
        return None
    package = tool.source.__module__.partition(".")[0]
    distributions = metadata.packages_distributions().get(package, [])
    return "\n".join([tool.import_string, *(f"{name}=={metadata.version(name)}" for name in sorted(set(distributions)))])
