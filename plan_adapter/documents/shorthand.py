"""`expand`: rewrites the short forms of a plan document, in place, into the fields of the model.

A short form says nothing that a field cannot say: a plan has the same digest, gate and problems in either form. Nodes keep their places in
the text, so problems point at what was written.

| short form | where | stands for |
|---|---|---|
| the name of a tool | step, rollback | `tool_name`, and its value for `parameters`, or for the first one of a built-in tool |
| `needs` | step | `depends_on`, with one name or a list |
| `if` | step | `when`, also without `${{ }}` |
| a field without `_ms`, such as `timeout: 30s` | everywhere | the same field in milliseconds |
| `retry: {times, delay, backoff, jitter}` | step | `max_retries`, `retry_delay_ms`, `retry_backoff`, `retry_jitter` |
| `order: sequence` | plan, group | each step depends on the one before it |
| `defaults` | plan | fields of every step that may have them and does not |
| `env` | plan, group, step | variables of its commands |
| `max_parallel` | plan, group | `options.allow_parallel` and `options.max_parallel_steps`; `batch` |
| `on_error` | plan | `options.stop_on_error` or `options.continue_on_error` |
| `approval: {required, timeout}` | plan | `options.require_approval` and `options.approval_timeout_ms` |
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from functools import cache
from typing import Any

from plan_adapter.documents.host_groups import expand_groups
from plan_adapter.documents.nodes import Node
from plan_adapter.documents.typed import spellings
from plan_adapter.documents.wording import FOREIGN_WORDS
from plan_adapter.model.options import ApprovalPolicy, DocumentModel, Escalation, ExecutionOptions, RunWindow, Trigger
from plan_adapter.model.plan import ExecutionPlan, Rollback, Step, free_id, step_fields
from plan_adapter.model.problems import Problem
from plan_adapter.model.readable import one_line
from plan_adapter.model.values import DURATION, join, milliseconds

FIRST_PARAMETERS: Mapping[str, str] = {
    "bash": "command",
    "copy_from": "host",
    "copy_to": "host",
    "http_get": "url",
    "http_send": "url",
    "python": "function",
    "read_file": "path",
    "run_command": "argv",
    "run_deployment": "name",
    "sql_execute": "url",
    "sql_query": "url",
    "ssh": "host",
    "write_file": "path",
}
"""The parameter of each built-in tool that a value which is no mapping stands for."""

NEAR_TOOL = 0.8
"""From which likeness on the name of a tool may be a misspelt built-in one."""

COMMANDS = ("bash", "run_command", "ssh")
"""The tools that get the variables of `env`."""

RETRY: Mapping[str, str] = {"times": "max_retries", "delay": "retry_delay_ms", "backoff": "retry_backoff", "jitter": "retry_jitter"}

SHORT_FIELDS: Mapping[type[DocumentModel], tuple[str, ...]] = {
    ExecutionPlan: ("order", "defaults", "env", "max_parallel", "on_error", "timeout"),
    Step: ("needs", "if", "retry", "order", "env", "max_parallel"),
}
"""The short forms of a plan and of a step, besides durations and names of tools."""

_KINDS = ("tool_name", "ask", "goal", "steps", "plan", "pinned")
"""The fields that say what a step is. A step with one of them names no tool as a key."""

_TOOL = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]*")


def expand(root: Node) -> list[Problem]:
    """Rewrite the short forms in the plan at `root`. Return the problems of those that cannot be; they are taken out."""
    expansion = _Expansion(root)
    if isinstance(root.value, dict):
        expansion.plan()
    return expansion.problems


def expand_triggers(root: Node) -> list[Problem]:
    """Rewrite the short forms in the `triggers` at `root`, which is no plan. Return the problems, as `expand` does."""
    expansion = _Expansion(root)
    if isinstance(root.value, dict):
        expansion.triggers(_entries(root))
    return expansion.problems


@dataclass(slots=True)
class _Around:
    """What is written around a step and applies to it."""

    env: dict[str, Node] = field(default_factory=dict[str, Node])
    defaults: dict[str, Node] = field(default_factory=dict[str, Node])


@dataclass(slots=True)
class _Expansion:
    root: Node
    problems: list[Problem] = field(default_factory=list[Problem])
    _taken: set[str] | None = None  # the ids that steps have, once one is generated

    def plan(self) -> None:
        entries, around = _entries(self.root), _Around()
        if (env := self._pop(entries, "env")) is not None:
            around.env = self._env(env, "env")
        if (defaults := self._pop(entries, "defaults")) is not None:
            around.defaults = self._defaults(defaults)
        if (hosts := _named(entries, "hosts", ExecutionPlan)) is not None:
            for node, at, message in expand_groups(hosts):
                self._report("bad-hosts", node, at, message)
        self._options(entries)
        if (order := self._pop(entries, "order")) is not None:
            self._order(order, "order", _named(entries, "steps", ExecutionPlan))
        self.triggers(entries)
        for name in ("steps", "finally"):
            for index, step in enumerate(_members(_named(entries, name, ExecutionPlan))):
                self.step(step, f"{name}[{index}]", around)

    def triggers(self, entries: dict[str, Node]) -> None:
        """Rewrite the durations of triggers."""
        for index, trigger in enumerate(_members(_named(entries, "triggers", ExecutionPlan))):
            self._durations(trigger, Trigger, f"triggers[{index}]")

    def _options(self, entries: dict[str, Node]) -> None:
        """Move what a plan says about its options into them."""
        limit, on_error, timeout = (self._pop(entries, name) for name in ("max_parallel", "on_error", "timeout"))
        approval = _named(entries, "approval", ExecutionPlan)
        found = dict[str, tuple[str, Node]]()  # by option: the path of what was written, and the node
        if limit is not None:
            found["max_parallel_steps"] = "max_parallel", limit
            found["allow_parallel"] = "max_parallel", Node(limit.line, limit.column, value=True)
        if timeout is not None and (duration := self._duration(timeout, "timeout")) is not None:
            found["total_timeout_ms"] = "timeout", duration
        if on_error is not None:
            name = {"stop": "stop_on_error", "continue": "continue_on_error"}.get(str(on_error.value))
            if name is None:
                self._report("bad-value", on_error, "on_error", "`on_error` must be one of `stop`, `continue`")
            else:
                found[name] = "on_error", Node(on_error.line, on_error.column, value=True)
        if approval is not None and isinstance(approval.value, dict) and approval.value:
            if (required := approval.value.pop("required", None)) is not None:
                found["require_approval"] = "approval.required", required
            timeout = approval.value.pop("timeout", None)
            if timeout is not None and (duration := self._duration(timeout, "approval.timeout")) is not None:
                found["approval_timeout_ms"] = "approval.timeout", duration
            self._durations(approval, ApprovalPolicy, "approval")
            if (escalation := _named(approval.value, "escalate", ApprovalPolicy)) is not None:
                self._durations(escalation, Escalation, "approval.escalate")
            if not approval.value:  # it said nothing else
                del entries[next(key for key, node in entries.items() if node is approval)]
        options = _named(entries, "options", ExecutionPlan)
        if options is not None:
            self._durations(options, ExecutionOptions, "options")
            if isinstance(options.value, dict) and (window := _named(options.value, "run_window", ExecutionOptions)) is not None:
                self._durations(window, RunWindow, "options.run_window")
        if not found:
            return
        if options is None or options.value is None:
            options = entries["options"] = Node(self.root.line, self.root.column, {})
        for name, (at, node) in found.items():
            self._put(options, name, node, ExecutionOptions, at)

    def _defaults(self, defaults: Node) -> dict[str, Node]:
        """Return the fields that steps without them get, by name."""
        if not isinstance(defaults.value, dict):
            self._report("wrong-type", defaults, "defaults", "`defaults` must be a mapping of fields of a step")
            return {}
        self._fields(defaults, "defaults")
        known = spellings(Step)
        found = {known[key]: node for key, node in defaults.value.items() if key in known}
        for key, node in defaults.value.items():
            if known.get(key) not in step_fields() or known[key] in (*_KINDS, "id", "depends_on"):
                self._report("unknown-field", node, join("defaults", key), f"`defaults` cannot have `{one_line(key)[:60]}`")
                found.pop(known.get(key, ""), None)
        return found

    def step(self, node: Node, at: str, around: _Around) -> None:
        """Rewrite a step, and the steps in it if it is a group."""
        if not isinstance(node.value, dict):
            return
        entries = node.value
        env = {**around.env, **(self._env(given, join(at, "env")) if (given := self._pop(entries, "env")) is not None else {})}
        self._fields(node, at)
        self._tool(node, Step, at, env)
        rollback = _named(entries, "rollback", Step)
        if rollback is not None and isinstance(rollback.value, dict):
            self._tool(rollback, Rollback, join(at, "rollback"), env)
        for name, default in around.defaults.items():
            if _kind(entries) in step_fields()[name].kinds and _named(entries, name, Step) is None:
                entries[name] = _copy(default)
        steps = _named(entries, "steps", Step)
        if (order := self._pop(entries, "order")) is not None:
            self._order(order, join(at, "order"), steps)
        for index, inner in enumerate(_members(steps)):
            self.step(inner, f"{join(at, 'steps')}[{index}]", _Around(env, around.defaults))

    def _fields(self, node: Node, at: str) -> None:
        """Rewrite the short fields of a step."""
        entries = _entries(node)
        if (needs := self._pop(entries, "needs")) is not None:
            if isinstance(needs.value, str):
                needs = Node(needs.line, needs.column, [Node(needs.line, needs.column, needs.value)])
            self._put(node, "depends_on", needs, Step, join(at, "needs"))
        if (condition := self._pop(entries, "if")) is not None:
            if isinstance(condition.value, str) and "${{" not in condition.value:
                condition = Node(condition.line, condition.column, f"${{{{ {condition.value.strip()} }}}}")
            self._put(node, "when", condition, Step, join(at, "if"))
        if (limit := self._pop(entries, "max_parallel")) is not None:
            self._put(node, "batch", limit, Step, join(at, "max_parallel"))
        if (retry := self._pop(entries, "retry")) is not None:
            self._retry(node, retry, join(at, "retry"))
        self._durations(node, Step, at)

    def _retry(self, node: Node, retry: Node, at: str) -> None:
        parts = retry.value if isinstance(retry.value, dict) else {"times": retry}
        for name, part in parts.items():
            if name not in RETRY:
                hint = f"it has {', '.join(f'`{known}`' for known in RETRY)}"
                self._report("unknown-field", part, join(at, name), f"`retry` has no field `{one_line(name)[:60]}`", hint)
                continue
            path = at if part is retry else join(at, name)
            value = self._duration(part, path) if name == "delay" else part
            if value is not None:
                self._put(node, RETRY[name], value, Step, path)

    def _tool(self, node: Node, model: type[DocumentModel], at: str, env: Mapping[str, Node]) -> None:
        """Rewrite a key that names a tool, and give a command its variables."""
        entries = _entries(node)
        name = self._named_tool(entries, model, at)
        if name is not None:
            value = entries.pop(name)
            entries["tool_name"] = Node(value.line, value.column, name)
            self._parameters(node, name, value, model, at)
        tool_name = _named(entries, "tool_name", model)
        if env and tool_name is not None and tool_name.value in COMMANDS:
            parameters = _named(entries, "parameters", model)
            if parameters is None or parameters.value is None:
                parameters = entries["parameters"] = Node(node.line, node.column, {})
            if isinstance(parameters.value, dict):
                own = parameters.value.get("env")
                if own is None or isinstance(own.value, dict):
                    merged = {**env, **({} if own is None else _entries(own))}
                    first = next(iter(merged.values()))
                    parameters.value["env"] = Node(first.line, first.column, merged)

    def _named_tool(self, entries: dict[str, Node], model: type[DocumentModel], at: str) -> str | None:
        """Return the key of a step or a rollback that names its tool, or None if it has none."""
        known = spellings(model)
        if any(known.get(key) in _KINDS for key in entries):
            return None
        unknown = [key for key in entries if key not in known and key not in SHORT_FIELDS.get(model, ())]
        names = [key for key in unknown if key in FIRST_PARAMETERS]
        if not names:
            foreign = FOREIGN_WORDS[Step]
            names = [key for key in unknown if _TOOL.fullmatch(key) and key not in foreign and not _is_misspelt(key, model)]
        if len(names) > 1:
            first, second = (f"`{one_line(name)[:60]}`" for name in names[:2])
            message = f"a step calls one tool, and this one names {first} and {second}"
            self._report("duplicate-key", entries[names[1]], join(at, names[1]), message, "make two steps of it, or remove one")
            for name in names[1:]:
                del entries[name]
        return names[0] if names else None

    def _parameters(self, node: Node, tool: str, value: Node, model: type[DocumentModel], at: str) -> None:
        """Fill the parameters of `tool` with what stands after its name."""
        entries, given = _entries(node), dict[str, Node]()
        if isinstance(value.value, dict):
            given = value.value
        elif value.value is not None and (first := _first_parameter(tool)) is not None:
            given = {first: value}
        elif value.value is not None:
            name = one_line(tool)[:60]
            hint = f"write `{name}: {{name: value}}`; only built-in tools take a value without a name"
            self._report("wrong-type", value, join(at, tool), f"the parameters of `{name}` must be a mapping", hint)
        parameters = _named(entries, "parameters", model)
        if parameters is None:
            entries["parameters"] = Node(value.line, value.column, given)
        elif isinstance(parameters.value, dict):
            for name, part in given.items():
                if name in parameters.value:
                    message = f"`{one_line(tool)[:60]}` and `parameters` both give `{one_line(name)[:60]}`"
                    self._report("duplicate-key", part, join(at, tool), message, "remove one of them")
                else:
                    parameters.value[name] = part

    def _env(self, env: Node, at: str) -> dict[str, Node]:
        """Return the variables of commands, as texts. A number or a truth value is written as in YAML."""
        if not isinstance(env.value, dict):
            self._report("wrong-type", env, at, "`env` must be a mapping of names to texts")
            return {}
        for node in env.value.values():
            if isinstance(node.value, bool):
                node.value = "true" if node.value else "false"
            elif isinstance(node.value, int):
                node.value = str(node.value)
        return env.value

    def _order(self, order: Node, at: str, steps: Node | None) -> None:
        """Let each step depend on the one before it, unless it says what it depends on."""
        if order.value != "sequence":
            self._report("bad-value", order, at, "`order` must be `sequence`", "or leave it out")
            return
        before: str | None = None
        for index, step in enumerate(_members(steps), start=1):
            if not isinstance(step.value, dict):
                continue
            found = _named(step.value, "id", Step)
            if found is None or found.value in (None, ""):
                found = step.value["id"] = Node(step.line, step.column, self._new_id(f"step_{index}"))
            says = _named(step.value, "depends_on", Step) is not None or "needs" in step.value
            if before is not None and not says:
                step.value["depends_on"] = Node(step.line, step.column, [Node(step.line, step.column, before)])
            before = str(found.value)

    def _new_id(self, wanted: str) -> str:
        if self._taken is None:
            self._taken = {*_ids(self.root)}
        new = free_id(wanted, self._taken)
        self._taken.add(new)
        return new

    def _durations(self, node: Node, model: type[DocumentModel], at: str) -> None:
        """Rewrite every field without its `_ms` as a number of milliseconds."""
        if not isinstance(node.value, dict):
            return
        for short, name in _short_durations(model).items():
            value = node.value.pop(short, None)
            if value is not None and (duration := self._duration(value, join(at, short))) is not None:
                self._put(node, name, duration, model, join(at, short))

    def _duration(self, value: Node, at: str) -> Node | None:
        """Return a duration as milliseconds, or report it and return None."""
        given = value.value
        count = milliseconds(given) if isinstance(given, str) else 0 if given == 0 and given is not False else None
        if count is not None:
            return Node(value.line, value.column, count)
        shown = f", not {given!r}" if isinstance(given, str | int | float) else ""
        word = at.rpartition(".")[2]
        self._report("wrong-type", value, at, f"`{word}` must be a duration with a unit{shown[:80]}", "write `30s`, `5m` or `1h30m`")
        return None

    def _put(self, node: Node, name: str, value: Node, model: type[DocumentModel], at: str) -> None:
        """Set a field of `node`, which must not have it yet. `at` is the path of what was written."""
        entries = _entries(node)
        if _named(entries, name, model) is None:
            entries[name] = value
        else:
            word = at.rpartition(".")[2]
            self._report("duplicate-key", value, at, f"`{word}` and `{name}` are the same field", "remove one of them")

    def _pop(self, entries: dict[str, Node], name: str) -> Node | None:
        """Take a short field out. Null counts as absent."""
        node = entries.pop(name, None)
        return None if node is None or node.value is None else node

    def _report(self, code: str, node: Node, at: str, message: str, hint: str = "") -> None:
        self.problems.append(Problem(code, at=at, line=node.line, column=node.column, message=message, hint=hint))


def _entries(node: Node) -> dict[str, Node]:
    assert isinstance(node.value, dict)
    return node.value


def _members(node: Node | None) -> list[Node]:
    return node.value if node is not None and isinstance(node.value, list) else []


def _named(entries: Mapping[str, Node], name: str, model: type[DocumentModel]) -> Node | None:
    """Return the entry of the field `name`, in whichever spelling it is written."""
    if (node := entries.get(name)) is not None:
        return node
    known = spellings(model)
    return next((node for key, node in entries.items() if known.get(key) == name), None)


def _ids(node: Node) -> Iterator[str]:
    """Yield the ids of all steps in a plan or a group."""
    if not isinstance(node.value, dict):
        return
    for name in ("steps", "finally"):
        for step in _members(_named(node.value, name, ExecutionPlan)):
            if isinstance(step.value, dict) and (found := _named(step.value, "id", Step)) is not None and isinstance(found.value, str):
                yield found.value
            yield from _ids(step)


def _kind(entries: Mapping[str, Node]) -> str:
    """Return the kind of step that `entries` are, as `Step.kind` does."""
    written = {spellings(Step).get(key) for key in entries}
    if written & {"plan", "pinned"}:
        return "plan"
    return next((kind for name, kind in (("steps", "group"), ("ask", "question"), ("goal", "goal")) if name in written), "call")


def _copy(node: Node) -> Node:
    """Return a copy at the same place."""
    value = node.value
    if isinstance(value, dict):
        return Node(node.line, node.column, {key: _copy(part) for key, part in value.items()})
    return Node(node.line, node.column, [_copy(part) for part in value] if isinstance(value, list) else value)


def _first_parameter(tool: str) -> str | None:
    """Return the parameter that a value without a name stands for, or None. A misspelt name is read as the tool that it is near to.

    Validation then reports the name alone, or the parameter if there is a tool of that name.
    """
    near = tool if tool in FIRST_PARAMETERS else next(iter(get_close_matches(tool, FIRST_PARAMETERS, n=1, cutoff=NEAR_TOOL)), None)
    return None if near is None else FIRST_PARAMETERS[near]


def _is_misspelt(key: str, model: type[DocumentModel]) -> bool:
    """Return whether `key` looks like a field of `model`, and so is not taken for a tool."""
    return bool(get_close_matches(key.casefold(), [*spellings(model), *SHORT_FIELDS.get(model, ())], n=1, cutoff=0.8))


@cache
def _short_durations(model: type[DocumentModel]) -> dict[str, str]:
    """Return the fields in milliseconds of `model` by their names without `_ms`."""
    names = [info.alias or name for name, info in model.model_fields.items()]
    return {name.removesuffix("_ms"): name for name in names if name.endswith("_ms")}


_DURATION_SCHEMA: Mapping[str, Any] = {"type": "string", "pattern": f"^{DURATION}$"}
_ENV: Mapping[str, Any] = {
    "type": "object",
    "additionalProperties": {"type": ["string", "integer", "boolean"]},
    "description": "Environment variables of `bash`, `run_command` and `ssh`. The nearest value counts.",
}
_ORDER = {"const": "sequence", "description": "Each step depends on the one before it, unless it says what it depends on."}
_AT_ONCE = {"type": "integer", "minimum": 1}


def add_to_schema(schema: dict[str, Any]) -> None:
    """Add the short forms to the JSON Schema of a plan document."""
    definitions, plan = schema["$defs"], schema["properties"]
    for model in (ExecutionOptions, ApprovalPolicy, Escalation, RunWindow, Trigger, Step):
        fields = definitions[model.__name__]["properties"]
        fields |= {short: _duration_field(fields[long]) for short, long in _short_durations(model).items()}
    for model, length in (("RunWindow", "duration"), ("Escalation", "after")):  # one of the two spellings
        definitions[model]["required"].remove(f"{length}_ms")
        definitions[model]["oneOf"] = [{"required": [length]}, {"required": [f"{length}_ms"]}]
    options, step = definitions["ExecutionOptions"]["properties"], definitions["Step"]
    definitions["ApprovalPolicy"]["properties"] |= {
        "required": {"type": "boolean", "description": "In a plan: `options.require_approval`."},
        "timeout": {**_DURATION_SCHEMA, "description": "In a plan: `options.approval_timeout_ms` as a duration."},
    }
    plan |= {
        "order": _ORDER,
        "defaults": {"type": "object", "description": "Fields that each step gets which may have them and does not."},
        "env": _ENV,
        "max_parallel": {**_AT_ONCE, "description": "How many steps run at once."},
        "on_error": {"enum": ["stop", "continue"], "description": "What a failed step does to the rest of the plan."},
        "timeout": {**_DURATION_SCHEMA, "description": options["total_timeout_ms"]["description"]},
    }
    names = {"type": "array", "items": {"type": "string"}}
    retry = {
        "times": {"type": "integer", "minimum": 0},
        "delay": _DURATION_SCHEMA,
        "backoff": {"type": "number"},
        "jitter": {"type": "number"},
    }
    step["properties"] |= {
        "needs": {"anyOf": [{"type": "string"}, names], "description": "`depends_on`, with one name or a list."},
        "if": {"type": "string", "description": "`when`, also without `${{ }}`."},
        "retry": {
            "anyOf": [{"type": "integer", "minimum": 0}, {"type": "object", "properties": retry, "additionalProperties": False}],
            "description": "How often the step is retried after a known failure, after how long, and how that grows.",
        },
        "order": {**_ORDER, "description": f"In a group: {str(_ORDER['description']).lower()}"},
        "env": _ENV,
        "max_parallel": {**_AT_ONCE, "description": "In a group: `batch`."},
    }
    for definition in (step, definitions["Rollback"]):
        _add_tools(definition)
    _add_hosts(plan, definitions["HostGroup"], names)


def _add_hosts(plan: dict[str, Any], group: dict[str, Any], names: dict[str, Any]) -> None:
    """Let lists of names stand for hosts without variables, and groups stand in the group that they belong to."""
    named = {"anyOf": [{"$ref": "#/$defs/HostGroup"}, names, {"type": "null"}]}
    fields = group["properties"]
    variables = {"anyOf": [fields["hosts"]["additionalProperties"], {"type": "null"}]}
    for name, members in (("hosts", variables), ("children", named)):
        description = fields[name].pop("description")
        fields[name] = {"anyOf": [{"type": "object", "additionalProperties": members}, names], "description": description}
    plan["hosts"]["anyOf"] = [{"type": "object", "additionalProperties": named}, names, {"type": "string", "minLength": 1}]


def _duration_field(field: Mapping[str, Any]) -> dict[str, Any]:
    return {**_DURATION_SCHEMA, "description": f"{field['description']} As a duration, such as `30s` or `1h30m`."}


def _add_tools(definition: dict[str, Any]) -> None:
    """Let a step or rollback name its tool as a key. With a field that says what it is, it has no other keys than its fields."""
    fields = [*definition["properties"]]
    kinds = [name for name in _KINDS if name in fields]
    definition["properties"] |= {
        tool: {"description": f"Call `{tool}`: its parameters as a mapping, or only `{first}`."} for tool, first in FIRST_PARAMETERS.items()
    }
    definition["additionalProperties"] = {"type": ["object", "null"], "description": "Call this tool: its parameters as a mapping."}
    one_of = definition.pop("oneOf", [{"required": definition.pop("required", [])}])
    definition["if"] = {"anyOf": [{"required": [name]} for name in kinds]}
    definition["then"] = {"oneOf": one_of, "propertyNames": {"enum": fields}}
    definition["else"] = {"not": {"propertyNames": {"enum": fields}}}
