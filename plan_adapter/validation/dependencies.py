"""Which step waits for which: declared dependencies, those that references imply, and the check for cycles."""

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from itertools import product
from typing import TypeAlias

from pydantic import JsonValue

from plan_adapter.expressions import Expression, Template, Variables
from plan_adapter.expressions.references import count_names
from plan_adapter.expressions.template import MULTIPLYING_CALLS
from plan_adapter.model.errors import ExpressionError
from plan_adapter.model.graph import find_cycle
from plan_adapter.model.plan import Step
from plan_adapter.model.problems import did_you_mean
from plan_adapter.validation.calls import Call
from plan_adapter.validation.findings import Findings


@dataclass(frozen=True, slots=True)
class Dependencies:
    """Which step waits for which. A step of a group waits for its siblings, and its group for everything outside."""

    outer: dict[str, tuple[str, ...]]  # dependencies of the steps that are not in a group
    inner: dict[str, dict[str, tuple[str, ...]]]  # by group: dependencies of its steps among themselves
    nested: dict[str, "Dependencies"]  # by step that runs a plan: dependencies of that plan's steps

    def for_all_steps(self, before: tuple[str, ...] = ()) -> dict[str, tuple[str, ...]]:
        """Return the dependencies of every step. Steps without dependencies wait for `before`.

        The first steps inside a step inherit its dependencies. The step itself also waits for the steps inside it.
        """
        found = dict[str, tuple[str, ...]]()
        for step_id, own in self.outer.items():
            after = own or before
            steps = self.inner.get(step_id, {})
            found |= {inner_id: siblings or after for inner_id, siblings in steps.items()}
            if step_id in self.nested:
                steps = self.nested[step_id].outer
                found |= self.nested[step_id].for_all_steps(after)
            found[step_id] = (*after, *steps)
        return found

    def of_whole_plan(self) -> dict[str, tuple[str, ...]]:
        """Return the dependencies of every step of a plan that is not inside another."""
        return self.for_all_steps() if self.inner or self.nested else self.outer

    def with_prefix(self, prefix: str, nested: dict[str, "Dependencies"]) -> "Dependencies":
        """Return these dependencies with `prefix` before each id, and with `nested` as the plans that steps run."""
        return Dependencies(
            _add_prefix(self.outer, prefix), {f"{prefix}{group_id}": _add_prefix(of, prefix) for group_id, of in self.inner.items()}, nested
        )

    @property
    def parts(self) -> "list[Dependencies]":
        """These dependencies, and those of all plans that steps run."""
        return [self, *(part for nested in self.nested.values() for part in nested.parts)]


def _add_prefix(dependencies: Mapping[str, tuple[str, ...]], prefix: str) -> dict[str, tuple[str, ...]]:
    return {f"{prefix}{step_id}": tuple(f"{prefix}{before}" for before in after) for step_id, after in dependencies.items()}


_ORDINARY_STEP = "bad-finally", "is not a `finally` step; `finally` steps run after all other steps anyway", "remove it"
_FINALLY_STEP = "bad-finally", "is a `finally` step, which runs after all other steps", "remove it, or move this step to `finally`"
_OWN_GROUP = "bad-group", "is the group of this step, and ends after it", "remove it"

Excluded: TypeAlias = Mapping[str, tuple[str, str, str]]
"""Steps that a step cannot wait for, with code, message and hint."""


def check_dependencies(calls: list[Call], flags: Collection[str], findings: Findings) -> Dependencies:
    """Return the steps that each step waits for, implied ones last, and add the problems of the dependencies.

    A `finally` step starts after all other steps, so it depends only on other `finally` steps. `flags` are the boolean inputs.
    """
    first = [call for call in calls if not call.is_finally_step and call.step.group is None]
    last = [call for call in calls if call.is_finally_step]
    excluded: dict[str, tuple[str, str, str]] = {call.step.id: _FINALLY_STEP for call in last}
    excluded |= {call.step.id: _inside_group(call.step.group) for call in calls if call.step.group is not None}
    inner, inherited = dict[str, dict[str, tuple[str, ...]]](), dict[str, list[str]]()
    for group in first:
        if group.step.is_group:
            steps = [call for call in calls if call.step.group == group.step.id]
            rest = [call for call in first if call is not group]
            inner[group.step.id], inherited[group.step.id] = _group_dependencies(
                steps, rest, excluded | {group.step.id: _OWN_GROUP}, findings
            )
    outer = _dependencies(first, excluded, findings, inherited=inherited)
    _check_chained_lists(first, outer, findings)
    _check_conditions([call for call in calls if not call.is_finally_step], flags, findings)
    of_finally = _dependencies(last, excluded | {call.step.id: _ORDINARY_STEP for call in first}, findings)
    return Dependencies(outer | {step_id: after for step_id, after in of_finally.items() if step_id not in outer}, inner, {})


def _check_chained_lists(calls: list[Call], dependencies: Mapping[str, tuple[str, ...]], findings: Findings) -> None:
    """Warn about writes for the same list that follow each other: the first one runs for all items before the second one starts."""
    writes = {call.step.id: call for call in calls if call.for_each is not None and call.effect not in (None, "read")}
    for step_id, call in writes.items():
        list_of = (call.step.for_each or "").replace(" ", "")
        for before in dependencies[step_id]:
            if before in writes and (writes[before].step.for_each or "").replace(" ", "") == list_of:
                message = f"`{before}` runs for all items before `{step_id}` starts for any"
                hint = "to finish one item before the next, put both into a group: a step with this `for_each`, and with `steps`"
                findings.warn("chained-for-each-writes", f"{call.at}.for_each", message, hint)


_MAX_STATUSES = 256
"""How many combinations of statuses a condition is tried with."""

_COMPLETED: Mapping[str, JsonValue] = {"status": "completed", "error": None, "result": {}}  # nothing is known of the result
_FAILED: Mapping[str, JsonValue] = {"status": "failed", "error": "", "result": None}
_SKIPPED: Mapping[str, JsonValue] = {"status": "skipped", "error": None, "result": None}


def _check_conditions(calls: list[Call], flags: Collection[str], findings: Findings) -> None:
    """Warn about conditions that would let a step run although a step that it names failed: naming a step makes it a dependency.

    A condition is tried with every status of the steps that it names, and with both values of `flags`, the boolean inputs, as far as these
    alone decide it.
    """
    named = {call.step.id: call.step for call in calls}
    for call in calls:
        if call.when is None or not (steps := [named[name] for name in sorted(call.when.steps) if name in named]):
            continue
        trials = _try_condition(call.when, steps, [name for name in sorted(call.when.inputs) if name in flags])
        if not trials:
            continue
        missed = {value: failed for trial in trials for value, failed in trial.missed if value is not False}
        if all(trial.reached == {False} for trial in trials) and missed:
            name = next(iter(missed.values()))[0]
            message = f"`{call.step.id}` is skipped if `{name}` fails, so this is never true"
            hint = f"undo `{name}` with a `rollback`, or move `{call.step.id}` to `finally`"
            findings.warn("never-true", f"{call.at}.when", message, hint)
        elif any(trial.is_true_in_vain for trial in trials):
            ids = [f"`{step.id}`" for step in steps]
            message = f"`{call.step.id}` is skipped if {' or '.join(ids)} fails, even if the condition is true then"
            hint = (
                f"a step depends on each step that its condition names: let {' and '.join(ids)} complete and say in the result what went "
                f"wrong, or move `{call.step.id}` to `finally`"
            )
            findings.warn("needs-every-step", f"{call.at}.when", message, hint)


@dataclass(frozen=True, slots=True)
class _Trial:
    """What a condition gives, None if that is not decided: `reached` if no step failed, `missed` if the steps named with the value did."""

    reached: set[bool | None]
    missed: list[tuple[bool | None, list[str]]]
    always_run: frozenset[str]  # the steps that cannot be skipped

    @property
    def is_true_in_vain(self) -> bool:
        """Whether the condition is true after a failure, and depends on which step failed or on that one did."""
        values = {value for value, _ in self.missed}
        is_met = any(value is True and self.always_run.issuperset(failed) for value, failed in self.missed)
        return is_met and (True not in self.reached or (self.reached == {True} and len(values) > 1))


def _try_condition(condition: Template, steps: list[Step], flags: list[str]) -> list[_Trial]:
    """Return what a condition gives for every status of `steps`, once per combination of `flags`, the boolean inputs that it uses."""
    possible = [(_COMPLETED, _SKIPPED) if _may_be_skipped(step) else (_COMPLETED,) for step in steps]
    if 2 ** len(flags) * math.prod(len(statuses) + 1 for statuses in possible) > _MAX_STATUSES or _may_grow(condition):
        return []
    ids = [step.id for step in steps]
    always_run = frozenset(step.id for step in steps if not _may_be_skipped(step))
    failing = [statuses for statuses in product(*((*statuses, _FAILED) for statuses in possible)) if _FAILED in statuses]
    trials = list[_Trial]()
    for values in product((True, False), repeat=len(flags)):
        inputs = dict(zip(flags, values, strict=True))
        missed = [
            (_is_true(condition, ids, statuses, inputs), [name for name, end in zip(ids, statuses, strict=True) if end is _FAILED])
            for statuses in failing
        ]
        trials.append(_Trial({_is_true(condition, ids, statuses, inputs) for statuses in product(*possible)}, missed, always_run))
    return trials


def _may_be_skipped(step: Step) -> bool:
    """Return whether the step may be skipped without its dependents being skipped: by its own condition, or by a person."""
    return step.when is not None or step.ask is not None or bool(step.requires_approval)


def _may_grow(condition: Template) -> bool:
    codes = (part.code or "" for parts in condition.texts.values() for part in parts if isinstance(part, Expression))
    return any(count_names(code, MULTIPLYING_CALLS) for code in codes)


def _is_true(
    condition: Template, ids: list[str], statuses: tuple[Mapping[str, JsonValue], ...], inputs: Mapping[str, JsonValue]
) -> bool | None:
    """Return whether a condition is true, or None if the statuses and `inputs` alone do not decide it."""
    try:
        return condition.resolve(Variables(steps=dict(zip(ids, statuses, strict=True)), inputs=inputs)) is True
    except ExpressionError:
        return None


def _inside_group(group: str) -> tuple[str, str, str]:
    return "bad-group", f"is a step of the group `{group}`", f"depend on `{group}`"


def _group_dependencies(
    steps: list[Call], outer: list[Call], excluded: Excluded, findings: Findings
) -> tuple[dict[str, tuple[str, ...]], list[str]]:
    """Return the dependencies of a group's `steps` among themselves, and the steps of `outer` that any of them waits for."""
    position = {call.step.id: index for index, call in reversed(list(enumerate([*outer, *steps])))}
    siblings = {call.step.id for call in steps}
    all_of = {call.step.id: _dependencies_of(call, position, excluded, findings) for call in steps}
    found = {step_id: tuple(name for name in after if name in siblings) for step_id, after in all_of.items()}
    order = {call.step.id: index for index, call in enumerate(steps)}
    _check_cycles(found, order, steps, findings)
    return found, [name for after in all_of.values() for name in after if name not in siblings]


def _dependencies(
    calls: list[Call], excluded: Excluded, findings: Findings, *, inherited: Mapping[str, list[str]] | None = None
) -> dict[str, tuple[str, ...]]:
    """Return the dependencies among `calls`. `inherited` are those that groups get from their steps."""
    position = {call.step.id: index for index, call in reversed(list(enumerate(calls)))}
    dependencies: dict[str, tuple[str, ...]] = {}
    for call in calls:
        own = _dependencies_of(call, position, excluded, findings)
        extra = () if inherited is None else inherited.get(call.step.id, ())
        dependencies.setdefault(call.step.id, tuple(dict.fromkeys([*own, *extra])) if extra else own)
    _check_cycles(dependencies, position, calls, findings)
    return dependencies


def _dependencies_of(call: Call, position: Mapping[str, int], excluded: Excluded, findings: Findings) -> tuple[str, ...]:
    found = _check_declared(call.step, call.at, position, excluded, findings)
    if referring := {field: template.steps for field, template in call.templates.items() if template.steps}:
        _check_self_references(call.step, call.at, referring, findings)
        implied = {name for names in referring.values() for name in names if name in position and name != call.step.id}
        found = list(dict.fromkeys([*found, *sorted(implied, key=position.__getitem__)]))
    return tuple(found)


def _check_self_references(step: Step, at: str, referring: Mapping[str, frozenset[str]], findings: Findings) -> None:
    for field, names in referring.items():
        if step.id in names:
            own = field in ("done_when", "rollback.parameters")
            hint = f"`result` in {field} is this step's own" if own else "use a step that ends before this one starts"
            findings.add("not-an-ancestor", f"{at}.{field}", f"`{step.id}` uses its own result", hint)


def _check_declared(step: Step, at: str, known: Mapping[str, int], excluded: Excluded, findings: Findings) -> list[str]:
    """Return the valid declared dependencies, each once."""
    valid = dict.fromkeys(step.depends_on)
    if len(valid) == len(step.depends_on) and step.id not in valid and valid.keys() <= known.keys():
        return step.depends_on
    valid.clear()
    for index, name in enumerate(step.depends_on):
        place = f"{at}.depends_on[{index}]"
        if name in valid:
            findings.warn("duplicate-dependency", place, f"`{name}` is written twice", "remove one of them")
        elif name == step.id:
            findings.add("self-dependency", place, f"`{name}` depends on itself", "remove it")
        elif name in excluded and name not in known:
            code, message, hint = excluded[name]
            findings.add(code, place, f"`{name}` {message}", hint)
        elif name not in known:
            findings.add("unknown-step", place, f"no step is called `{name[:80]}`", did_you_mean(name, known))
        else:
            valid[name] = None
    return list(valid)


def _check_cycles(dependencies: Mapping[str, tuple[str, ...]], position: Mapping[str, int], calls: list[Call], findings: Findings) -> None:
    """Add one problem per cycle. Each step is reported in at most one cycle."""
    rest = dict(dependencies)
    for _ in range(20):  # each round searches the whole graph; further cycles show up once these are fixed
        cycle = find_cycle(rest)
        if not cycle:
            return
        members = cycle[:-1]
        start = min(range(len(members)), key=lambda place: position[members[place]])
        members = members[start:] + members[:start]
        shown = members if len(members) <= 12 else [*members[:10], "…", members[-1]]
        implied = [
            f"`{a}` uses `{b}`"
            for a, b in zip(members, [*members[1:], members[0]], strict=True)
            if b not in calls[position[a]].step.depends_on
        ]
        hint = "remove one of these dependencies" + (f"; these come from references: {', '.join(implied[:5])}" if implied else "")
        path = " → ".join([*shown, members[0]])
        findings.add("cycle", f"{calls[position[members[0]]].at}.depends_on", f"these steps wait for each other: {path}", hint)
        for name in members:
            del rest[name]
