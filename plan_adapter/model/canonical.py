"""The canonical form of a plan, the digests computed from it, and the differences between two plans."""

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Any, TypeAlias, cast

import rfc8785
from pydantic import JsonValue

from plan_adapter.model.errors import InvalidPlanError
from plan_adapter.model.options import EFFECTS
from plan_adapter.model.plan import ExecutionPlan, Step, step_document
from plan_adapter.model.readable import as_text, difference, redacted, shortened
from plan_adapter.model.values import find_bad_values, join

_Document: TypeAlias = dict[str, JsonValue]


def canonical_document(plan: ExecutionPlan) -> dict[str, JsonValue]:
    """Return the plan in the form that its digest covers: without defaults, and with dependencies in a fixed order.

    Raises InvalidPlanError for a plan whose document had problems, because it is not what the author wrote.
    """
    if problems := plan.document_problems:
        raise InvalidPlanError(problems)
    return _canonical(plan.to_document())


def _canonical(document: dict[str, JsonValue]) -> dict[str, JsonValue]:
    for steps in ("steps", "finally"):
        if steps in document:
            document[steps] = [_canonical_step(step) for step in cast("list[dict[str, JsonValue]]", document[steps])]
    return document


def _canonical_step(step: dict[str, JsonValue]) -> dict[str, JsonValue]:
    if "pinned" in step:
        step = {**step, "pinned": _canonical(cast("dict[str, JsonValue]", step["pinned"]))}
    if "depends_on" not in step:
        return step
    return {**step, "depends_on": cast("list[JsonValue]", sorted(set(cast("list[str]", step["depends_on"]))))}


def canonical_json(value: JsonValue | Mapping[str, JsonValue]) -> bytes:
    """Return `value` in RFC 8785 form. Raises InvalidPlanError if it has none (NaN, integers over 2^53, surrogates)."""
    try:
        return rfc8785.dumps(cast("Any", value))
    except (ValueError, RecursionError):
        raise InvalidPlanError(find_bad_values(value)) from None


def plan_digest(plan: ExecutionPlan) -> str:
    """Return the SHA-256, in hex, of the canonical plan document."""
    return sha256(canonical_json(canonical_document(plan))).hexdigest()


def approval_digest(
    plan_digest: str,
    inputs: Mapping[str, JsonValue],
    definitions: Iterable[Mapping[str, JsonValue]],
    folder: Mapping[str, str] | None = None,
    *,
    permissions: Mapping[str, Sequence[str]] | None = None,
) -> str:
    """Return the SHA-256, in hex, of what an approval covers: the plan, the inputs of the run and the tools' definitions.

    With `folder`, it also covers the folder that the run was moved to. `permissions` are those that the inputs decide, by the step that
    runs the plan.
    """
    tools = {str(definition["name"]): dict(definition) for definition in definitions}
    content: dict[str, JsonValue] = {"plan": plan_digest, "inputs": dict(inputs), "tools": cast("dict[str, JsonValue]", tools)}
    if folder is not None:
        content["folder"] = dict(folder)
    if permissions:
        content["permissions"] = {runner: [*names] for runner, names in permissions.items()}
    return sha256(canonical_json(content)).hexdigest()


def call_digest(
    step: Step,
    item: int | None,
    parameters: Mapping[str, JsonValue],
    definition: Mapping[str, JsonValue],
    folder: Mapping[str, str] | None = None,
) -> str:
    """Return the SHA-256, in hex, of what a step's approval covers: the step, the resolved parameters and the tool's definition.

    It does not cover the rest of the plan, so a new version keeps the approvals of steps that it does not change. With `folder`, it also
    covers the folder that the run was moved to.
    """
    written = _canonical_step(step_document(step))
    call = {"step": written, "item": item, "parameters": dict(parameters), "tool": dict(definition)}
    return sha256(canonical_json(cast("_Document", call if folder is None else {**call, "folder": dict(folder)}))).hexdigest()


def arguments_digest(name: str, arguments: JsonValue) -> str:
    """Return the SHA-256, in hex, of a tool's name and the arguments of one call."""
    return sha256(canonical_json({"name": name, "arguments": arguments})).hexdigest()


def runbook_digest(plan_digest: str, definitions: Iterable[Mapping[str, JsonValue]]) -> str:
    """Return the SHA-256, in hex, of what a standing approval covers: the content of an approval digest without the inputs."""
    tools = {str(definition["name"]): dict(definition) for definition in definitions}
    return sha256(canonical_json({"runbook": plan_digest, "tools": cast("dict[str, JsonValue]", tools)})).hexdigest()


@dataclass(frozen=True, slots=True)
class Change:
    """A path whose value differs. None means that the plan does not set it."""

    at: str  # for a step: `check.parameters.url`; otherwise as in a document: `options.allow_parallel`
    old: JsonValue
    new: JsonValue

    def shown(self, *, is_secret: bool) -> tuple[str | None, str | None]:
        """Return both values as texts that differ where the values do, with secrets redacted. None stays None."""
        key = "secret" if is_secret else "value"  # a value under a secret's name is redacted
        old, new = (cast("_Document", redacted({key: value}))[key] for value in (self.old, self.new))
        if old is None or new is None:
            return None if old is None else shortened(as_text(old)), None if new is None else shortened(as_text(new))
        return difference(old, new)


@dataclass(frozen=True, slots=True)
class PlanDiff:
    """The differences between two plans, with steps matched by id, inside groups and sub-plans as well. False if there are none."""

    added: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    changed: tuple[Change, ...] = ()
    reordered: tuple[str, ...] = ()  # steps of both plans whose relative order changed
    raised: tuple[str, ...] = ()  # steps that may have a stronger effect than before

    def __bool__(self) -> bool:
        """Return whether anything differs."""
        return bool(self.added or self.removed or self.changed or self.reordered)


def diff_plans(old: ExecutionPlan, new: ExecutionPlan) -> PlanDiff:
    """Return the changes from `old` to `new`: none exactly if their digests are equal."""
    frame_before, before = _split_steps(old)
    frame_after, after = _split_steps(new)
    if ("name" in frame_before) != ("name" in frame_after):  # a document leaves out a name that is its description's first line
        frame_before["name"], frame_after["name"] = (plan.name or plan.default_name for plan in (old, new))
    kept = [name for name in after if name in before]
    changed = _changes(frame_before, frame_after, "")
    for name in kept:
        changed += _changes(before[name], after[name], name)
    return PlanDiff(
        added=tuple(name for name in after if name not in before),
        removed=tuple(name for name in before if name not in after),
        changed=tuple(changed),
        reordered=_moved_names([name for name in before if name in after], kept),
        raised=tuple(name for name in kept if _is_raised(before[name].get("effect"), after[name].get("effect"))),
    )


def _split_steps(plan: ExecutionPlan) -> tuple[_Document, dict[str, _Document]]:
    """Return the canonical document without its steps, and the steps by id. Steps of `finally` are called `finally.<id>`."""
    document: dict[str, Any] = canonical_document(plan)
    steps = _steps_by_name(document.pop("steps", []))
    return document, steps | _steps_by_name(document.pop("finally", []), "finally.")


def _steps_by_name(steps: list[dict[str, Any]], prefix: str = "", *, group: str | None = None) -> dict[str, _Document]:
    """Return the steps by their ids in the whole plan, each without the steps inside it, which follow it."""
    found = dict[str, _Document]()
    for step in steps:
        name, own = f"{prefix}{step['id']}", {key: value for key, value in step.items() if key != "steps"}
        if "pinned" in step:
            own["pinned"] = {key: value for key, value in step["pinned"].items() if key != "steps"}
        found[name] = own if group is None else {**own, _GROUP: group}
        found |= _steps_by_name(step.get("steps", []), prefix, group=name)
        found |= _steps_by_name(step.get("pinned", {}).get("steps", []), f"{name}.")
    return found


_GROUP = "group"
"""How a difference names the group around a step, which no field of the step does."""


def _changes(old: _Document, new: _Document, at: str) -> list[Change]:
    changes: list[Change] = []
    for key in dict.fromkeys([*old, *new]):
        before, after, place = old.get(key), new.get(key), join(at, key)
        if isinstance(before, dict) and isinstance(after, dict):
            changes += _changes(before, after, place)
        elif (key in old) != (key in new) or canonical_json(before) != canonical_json(after):
            changes.append(Change(place, before, after))
    return changes


def _moved_names(before: list[str], after: list[str]) -> tuple[str, ...]:
    """Return the fewest names that must move to turn the order `before` into `after`: all outside a longest increasing subsequence."""
    position = {name: index for index, name in enumerate(before)}
    ends: list[int] = []  # per length, the smallest position at which an increasing subsequence can end
    length: dict[str, int] = {}
    for name in after:
        length[name] = bisect_left(ends, position[name])
        ends[length[name] : length[name] + 1] = [position[name]]
    wanted, moved = len(ends) - 1, list[str]()
    limit = len(before)
    for name in reversed(after):
        if length[name] == wanted and position[name] < limit:
            wanted, limit = wanted - 1, position[name]
        else:
            moved.append(name)
    return tuple(reversed(moved))


def _is_raised(old: JsonValue, new: JsonValue) -> bool:
    """Return whether a step may now have a stronger effect than it declared. Without a declaration, it may do whatever its tool does."""
    rank = {effect: index for index, effect in enumerate(EFFECTS)}
    return old is not None and rank.get(cast("Any", new), len(rank)) > rank[cast("Any", old)]
