"""Tool drift: definitions that changed since an approval, and code that changed since the last call, with texts for both."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from pydantic import JsonValue

from plan_adapter.model.canonical import canonical_json
from plan_adapter.model.language import tr
from plan_adapter.model.options import EFFECTS, Effect
from plan_adapter.model.plan import ExecutionPlan
from plan_adapter.model.readable import call_name, code, difference, is_secret_name, secret_parameters
from plan_adapter.model.record import Attempt

Definition = Mapping[str, JsonValue]
"""What `Tool.definition` returns: name, parameters, effect and permissions."""


@dataclass(frozen=True, slots=True)
class ParameterChange:
    """A changed parameter of a tool, as its schema describes it. None: there is no such parameter.

    An empty `name` stands for the schema around the parameters.
    """

    name: str
    old: JsonValue
    new: JsonValue


@dataclass(frozen=True, slots=True)
class ToolChange:
    """A tool whose definition differs from the approved one."""

    name: str
    parameters: tuple[ParameterChange, ...] = ()
    effect: tuple[Effect, Effect] | None = None  # before and now
    permissions_added: tuple[str, ...] = ()
    permissions_removed: tuple[str, ...] = ()

    @property
    def is_raised(self) -> bool:
        """Whether the tool can do more than before, by its effect or a permission."""
        return bool(self.permissions_added) or (self.effect is not None and EFFECTS.index(self.effect[1]) > EFFECTS.index(self.effect[0]))

    @property
    def summary(self) -> str:
        """What changed, in a few words: `parameters, effect`."""
        aspects = {
            "parameters": self.parameters,
            "effect": self.effect,
            "permissions": (*self.permissions_added, *self.permissions_removed),
        }
        return ", ".join(aspect for aspect, changed in aspects.items() if changed)


def tool_changes(old: Iterable[Definition], new: Iterable[Definition]) -> list[ToolChange]:
    """Return the changes of tools that are in both `old` and `new`. Added and removed tools appear among the plan's own changes."""
    before = {str(definition["name"]): definition for definition in old}
    pairs = [(before[name], after) for after in new if (name := str(after["name"])) in before]
    return [_compare(was, now) for was, now in pairs if not _is_same(dict(was), dict(now))]


def _compare(old: Definition, new: Definition) -> ToolChange:
    before, after = (cast("list[str]", definition["permissions"]) for definition in (old, new))
    effects = cast("tuple[Effect, Effect]", (old["effect"], new["effect"]))
    return ToolChange(
        name=str(new["name"]),
        parameters=tuple(_parameter_changes(*(cast("dict[str, Any]", definition["parameters"]) for definition in (old, new)))),
        effect=effects if effects[0] != effects[1] else None,
        permissions_added=tuple(sorted(set(after) - set(before))),
        permissions_removed=tuple(sorted(set(before) - set(after))),
    )


def _parameter_changes(old: dict[str, Any], new: dict[str, Any]) -> Iterable[ParameterChange]:
    before, after = _parameter_schemas(old), _parameter_schemas(new)
    for name in dict.fromkeys([*before, *after]):
        if not _is_same(before.get(name), after.get(name)):
            yield ParameterChange(name, before.get(name), after.get(name))
    around = [{key: part for key, part in schema.items() if key not in ("properties", "required")} for schema in (old, new)]
    if not _is_same(*around):
        yield ParameterChange("", *around)


def _parameter_schemas(schema: dict[str, Any]) -> dict[str, JsonValue]:
    """Return the schema of each parameter, including whether it is required."""
    required = schema.get("required", [])
    return {name: {**part, "required": name in required} for name, part in schema.get("properties", {}).items()}


def _is_same(one: JsonValue, other: JsonValue) -> bool:
    return canonical_json(one) == canonical_json(other)


def tool_change_lines(
    changes: Sequence[ToolChange], plan: ExecutionPlan, definitions: Iterable[Definition], *, done: Collection[str] = ()
) -> list[str]:
    """Return a section for a gate's text: what changed in each tool, and which steps call it. Steps in `done` are carried.

    Empty if nothing changed. `definitions` are those of the tools as they are now.
    """
    if not changes:
        return []
    lines = [f"### {tr('Tools that changed')}", ""]
    for change in changes:
        mark = f"⚠️ {tr('**MAY DO MORE THAN BEFORE:**')} " if change.is_raised else ""
        lines.append(f"- {mark}{code(change.name)}, {_affected_steps(change.name, plan, done)}")
        lines += [f"  - {line}" for line in _change_lines(change)]
    changed = {change.name for change in changes}
    same = [code(name) for name in (str(definition["name"]) for definition in definitions) if name not in changed]
    return [*lines, *([f"- {tr('unchanged: {tools}', tools=', '.join(same))}"] if same else []), ""]


def _change_lines(change: ToolChange) -> Iterable[str]:
    if change.effect is not None:
        yield f"{tr('effect')}: {change.effect[0]} → **{change.effect[1]}**"
    if change.permissions_added:
        yield tr("**permissions added**: {names}", names=", ".join(map(code, change.permissions_added)))
    if change.permissions_removed:
        yield tr("permissions removed: {names}", names=", ".join(map(code, change.permissions_removed)))
    for parameter in change.parameters:
        old, new = map(code, difference(*(_shown_schema(parameter.name, schema) for schema in (parameter.old, parameter.new))))
        if not parameter.name:
            yield f"{tr('parameters, other parts of the schema')}: {old} → {new}"
        elif parameter.old is None:
            yield f"{tr('parameter added')}: {code(parameter.name)} {new}"
        elif parameter.new is None:
            yield f"{tr('parameter removed')}: {code(parameter.name)} {old}"
        else:
            yield f"{tr('parameter changed')}: {code(parameter.name)} {old} → {new}"


def _shown_schema(name: str, schema: JsonValue) -> JsonValue:
    # The default or the allowed values of a parameter may be secret.
    if isinstance(schema, dict) and (is_secret_name(name) or secret_parameters({"properties": {name: schema}})):
        return {key: part for key, part in schema.items() if key in ("type", "format", "required", "writeOnly")}
    return schema


def _affected_steps(tool: str, plan: ExecutionPlan, done: Collection[str]) -> str:
    called = [step.id for step in plan.all_steps if step.tool_name == tool]
    steps = {
        tr("called by"): [step_id for step_id in called if step_id not in done],
        tr("already called by"): [step_id for step_id in called if step_id in done],
        tr("rolls back"): [step.id for step in plan.all_steps if step.rollback is not None and step.rollback.tool_name == tool],
    }
    parts = [
        f"{how} {', '.join(code(step_id) for step_id in ids[:12])}{', …' if len(ids) > 12 else ''}" for how, ids in steps.items() if ids
    ]
    return "; ".join(parts)


@dataclass(frozen=True, slots=True)
class CodeChange:
    """A tool whose code differed between two attempts, the earlier one first."""

    tool_name: str
    before: Attempt
    after: Attempt

    def __str__(self) -> str:
        """Return the change as one line of Markdown."""
        if (self.before.step_id, self.before.item) == (self.after.step_id, self.after.item):
            where = f"attempts {self.before.number} and {self.after.number} of {_call_name(self.before)}"
        else:
            where = f"{_attempt_name(self.before)} and {_attempt_name(self.after)}"
        return f"the code of {code(self.tool_name)} changed between {where}"


def code_changes(attempts: Iterable[Attempt]) -> list[CodeChange]:
    """Return where a tool's code changed between consecutive attempts, in their order. Unknown code does not count as a change."""
    last, found = dict[str, Attempt](), list[CodeChange]()
    for attempt in attempts:
        if attempt.code_digest is None:
            continue
        before = last.get(attempt.tool_name)
        if before is not None and before.code_digest != attempt.code_digest:
            found.append(CodeChange(attempt.tool_name, before, attempt))
        last[attempt.tool_name] = attempt
    return found


def code_drift_notices(attempts: Iterable[Attempt], digests: Mapping[str, str | None]) -> list[str]:
    """Return a text for each tool whose code differs from its last attempt. `digests` maps tool names to their current code digests."""
    last = {attempt.tool_name: attempt for attempt in attempts if attempt.code_digest is not None}
    changed = {name: last[name] for name, now in digests.items() if now is not None and name in last and last[name].code_digest != now}
    return [f"the code of {code(name)} has changed since {_attempt_name(before)}" for name, before in changed.items()]


def _attempt_name(attempt: Attempt) -> str:
    return f"attempt {attempt.number} of {_call_name(attempt)}"


def _call_name(attempt: Attempt) -> str:
    return code(call_name(attempt.step_id, attempt.item, attempt.label, kind=attempt.kind))
