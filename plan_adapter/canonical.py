"""The canonical form of a plan, the digests taken of it, and what differs between two plans."""

from bisect import bisect_left
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from hashlib import sha256
from typing import Any, TypeAlias, cast

import rfc8785
from pydantic import JsonValue

from plan_adapter.errors import InvalidPlanError
from plan_adapter.plan import EFFECTS, ExecutionPlan, Step, step_document
from plan_adapter.values import find_bad_values, join

_Document: TypeAlias = dict[str, JsonValue]


def canonical_document(plan: ExecutionPlan) -> dict[str, JsonValue]:
    """Return the plan as its digest sees it: a document without defaults, in which the order of dependencies says nothing.

    Raises InvalidPlanError for a plan that came with problems from its document: what is left of it is not what was written.
    """
    if plan._problems:  # pyright: ignore[reportPrivateUsage]  # set by the reader of the document
        raise InvalidPlanError(plan._problems)  # pyright: ignore[reportPrivateUsage]
    document = plan.to_document()
    for steps in ("steps", "finally"):
        if steps in document:
            document[steps] = [_canonical_step(step) for step in cast("list[dict[str, JsonValue]]", document[steps])]
    return document


def _canonical_step(step: dict[str, JsonValue]) -> dict[str, JsonValue]:
    if "depends_on" not in step:
        return step
    return {**step, "depends_on": cast("list[JsonValue]", sorted(set(cast("list[str]", step["depends_on"]))))}


def canonical_json(value: JsonValue | Mapping[str, JsonValue]) -> bytes:
    """Return `value` as RFC 8785 writes it; raises InvalidPlanError for what has no such form (NaN, integers over 2^53, surrogates)."""
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
) -> str:
    """Return the SHA-256, in hex, of what an approval binds to: the plan, the inputs of the run and the tools' definitions.

    With `folder` also of the folder that the run was moved to.
    """
    tools = {str(definition["name"]): dict(definition) for definition in definitions}
    content: dict[str, JsonValue] = {"plan": plan_digest, "inputs": dict(inputs), "tools": cast("dict[str, JsonValue]", tools)}
    if folder is not None:
        content["folder"] = dict(folder)
    return sha256(canonical_json(content)).hexdigest()


def call_digest(
    step: Step,
    item: int | None,
    parameters: Mapping[str, JsonValue],
    definition: Mapping[str, JsonValue],
    folder: Mapping[str, str] | None = None,
) -> str:
    """Return the SHA-256, in hex, of what the approval of a step binds to: the step, the resolved parameters, the tool's definition.

    It holds nothing of the rest of the plan: a new version leaves the approvals of steps that it does not touch as they are. With
    `folder` it also binds to the folder that the run was moved to.
    """
    written = _canonical_step(step_document(step))
    call = {"step": written, "item": item, "parameters": dict(parameters), "tool": dict(definition)}
    return sha256(canonical_json(cast("_Document", call if folder is None else {**call, "folder": dict(folder)}))).hexdigest()


def runbook_digest(plan_digest: str, definitions: Iterable[Mapping[str, JsonValue]]) -> str:
    """Return the SHA-256, in hex, of what a standing approval binds to: an approval digest's content without the inputs."""
    tools = {str(definition["name"]): dict(definition) for definition in definitions}
    return sha256(canonical_json({"runbook": plan_digest, "tools": cast("dict[str, JsonValue]", tools)})).hexdigest()


@dataclass(frozen=True, slots=True)
class Change:
    """A place whose value differs; None stands for what one of the two does not write."""

    at: str  # below a step: `check.parameters.url`; elsewhere as in a document: `options.allow_parallel`
    old: JsonValue
    new: JsonValue


@dataclass(frozen=True, slots=True)
class PlanDiff:
    """What differs between two plans; steps are known by their ids. False where nothing does."""

    added: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    changed: tuple[Change, ...] = ()
    reordered: tuple[str, ...] = ()  # steps that stand elsewhere among those that both plans have
    raised: tuple[str, ...] = ()  # steps that may do more than before

    def __bool__(self) -> bool:
        """Return whether anything differs."""
        return bool(self.added or self.removed or self.changed or self.reordered)


def diff_plans(old: ExecutionPlan, new: ExecutionPlan) -> PlanDiff:
    """Return what `new` does otherwise than `old`; nothing differs exactly where the digests are equal."""
    frame_before, before = _parts(old)
    frame_after, after = _parts(new)
    kept = [name for name in after if name in before]
    changed = _changes(frame_before, frame_after, "")
    for name in kept:
        changed += _changes(before[name], after[name], name)
    return PlanDiff(
        added=tuple(name for name in after if name not in before),
        removed=tuple(name for name in before if name not in after),
        changed=tuple(changed),
        reordered=_moved([name for name in before if name in after], kept),
        raised=tuple(name for name in kept if _is_raised(before[name].get("effect"), after[name].get("effect"))),
    )


def _parts(plan: ExecutionPlan) -> tuple[_Document, dict[str, _Document]]:
    """Return the canonical document without its steps, and the steps by id; one that always runs is called `finally.<id>`."""
    document: dict[str, Any] = canonical_document(plan)
    steps = {step["id"]: step for step in document.pop("steps", [])}
    return document, steps | {f"finally.{step['id']}": step for step in document.pop("finally", [])}


def _changes(old: _Document, new: _Document, at: str) -> list[Change]:
    changes: list[Change] = []
    for key in dict.fromkeys([*old, *new]):
        before, after, place = old.get(key), new.get(key), join(at, key)
        if isinstance(before, dict) and isinstance(after, dict):
            changes += _changes(before, after, place)
        elif (key in old) != (key in new) or canonical_json(before) != canonical_json(after):
            changes.append(Change(place, before, after))
    return changes


def _moved(before: list[str], after: list[str]) -> tuple[str, ...]:
    """Return the fewest names that must be moved to turn the order `before` into `after`: all but a longest run in order."""
    position = {name: index for index, name in enumerate(before)}
    ends: list[int] = []  # the smallest position in which a run of this length may end
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
    """Return whether a step's own word allows more than before; without a word it is what its tool may do."""
    rank = {effect: index for index, effect in enumerate(EFFECTS)}
    return old is not None and rank.get(cast("Any", new), len(rank)) > rank[cast("Any", old)]
