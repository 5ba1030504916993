"""Copies a plan that Python code may have edited, and reports every field with a wrong type."""

from collections.abc import Iterable, Iterator
from typing import Any, cast

from pydantic import BaseModel

from plan_adapter.documents.typed import build
from plan_adapter.model.options import ExecutionOptions
from plan_adapter.model.plan import ExecutionPlan, Step, fields_of
from plan_adapter.model.problems import Problem
from plan_adapter.model.values import MAX_DEPTH, TOO_DEEP, find_bad_values, normalize

MAX_SUB_PLANS = 3
"""How deeply plans may be nested in plans."""

MAX_VALUES = 1_000_000
"""The limit of values in one plan. A value that is used several times counts each time."""


def fresh_copy(plan: ExecutionPlan) -> tuple[ExecutionPlan | None, list[Problem]]:
    """Return a copy of `plan` without the fields that have a wrong type or value, and a problem for each of them.

    The copy is None if the plan contains values that are not JSON or nests too deeply to be checked.
    """
    if problems := _nested_too_deeply(plan):
        return None, problems
    document = _to_document(plan)
    if problems := find_oversize(_document_fields(document)):
        return None, problems
    problems = find_bad_values(document)
    if any(problem.code == "wrong-type" for problem in problems):
        return None, problems
    fresh, mismatches = build(normalize(document), ExecutionPlan)
    if not mismatches:
        _number_steps(plan)
    known = {problem.at for problem in problems}
    problems += [problem for problem in mismatches if problem.at not in known]
    _copy_metadata(plan, fresh)
    return fresh, problems


def _nested_too_deeply(plan: ExecutionPlan, depth: int = 0, at: str = "", names: tuple[str, ...] = ()) -> list[Problem]:
    """Return a problem for each step that runs a plan inside more plans than the limit."""
    found = list[Problem]()
    for index, (name, pinned) in _pinned_plans(plan).items():
        place, chain = f"{at}steps[{index}].", (*names, name or pinned.name)
        if depth == MAX_SUB_PLANS:
            found.append(too_deep_problem(f"{place}plan", chain))
        else:
            found += _nested_too_deeply(pinned, depth + 1, f"{place}pinned.", chain)
    return found


def _pinned_plans(plan: ExecutionPlan) -> dict[int, tuple[str | None, ExecutionPlan]]:
    """Return the plans that steps run, with their names, by the index of the step. Skips other objects that Python code has put in."""
    steps: Any = plan.steps
    real = [step if isinstance(step, Step) else None for step in (steps if isinstance(steps, list) else ())]  # pyright: ignore[reportUnknownVariableType]
    pinned = {index: (step.plan, step.pinned) for index, step in enumerate(real) if step is not None}
    return {index: (name, inner) for index, (name, inner) in pinned.items() if isinstance(inner, ExecutionPlan)}


def too_deep_problem(at: str, names: Iterable[str]) -> Problem:
    """Return the problem of a plan that is nested too deeply. `names` lists the plans from the outside to the inside."""
    message = f"plans are nested more than {MAX_SUB_PLANS} deep: {' → '.join(names)}"
    return Problem("bad-sub-plan", at=at, message=message, hint="move the innermost steps into the plan around them")


def _to_document(model: BaseModel, levels: int = 4 + 3 * MAX_SUB_PLANS) -> dict[str, Any]:
    """Return the non-default fields of `model` by their document names. Nested models are expanded; other values stay as they are.

    All options that were set are kept, because one of the two error policies follows from the other.
    """
    if isinstance(model, ExecutionOptions):
        return {name: _to_document_value(value, levels) for name, value in vars(model).items() if name in model.model_fields_set}
    values = vars(model)
    fields = {
        alias: _to_document_value(values[name], levels)
        for name, (alias, default) in fields_of(type(model)).items()
        if values[name] is not default and not _is_default(values[name], default)
    }
    if isinstance(model, ExecutionPlan) and "id" not in model.model_fields_set:
        fields.pop("id", None)
    if isinstance(model, Step) and "depends_on" in model.model_fields_set:  # also an empty one: it says that the step waits for nothing
        fields["depends_on"] = values["depends_on"]
    return fields


def _is_default(value: Any, default: Any) -> bool:
    return type(value) is type(default) and not isinstance(value, BaseModel) and value == default


def _document_fields(document: dict[str, Any]) -> Iterator[tuple[str, Any, int]]:
    """Yield path, value and enclosing depth for the fields of the plan and of its steps."""
    for name, value in document.items():
        if name == "steps" and isinstance(value, list):
            for index, step in enumerate(value):  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]
                entries = cast("Any", step) if isinstance(step, dict) else {"": cast("Any", step)}
                yield from ((f"steps[{index}].{key}".removesuffix("."), member, 3) for key, member in entries.items())
        else:
            yield name, value, 1


def _to_document_value(value: Any, levels: int) -> Any:
    if isinstance(value, BaseModel) and levels > 0:  # each plan's models nest four levels deep; deeper ones are not part of it
        return _to_document(value, levels - 1)
    if isinstance(value, list):
        return [_to_document_value(member, levels) if isinstance(member, BaseModel) else member for member in value]  # pyright: ignore[reportUnknownVariableType]
    if isinstance(value, dict):
        return {key: _to_document_value(member, levels) if isinstance(member, BaseModel) else member for key, member in value.items()}  # pyright: ignore[reportUnknownVariableType]
    return value


def find_oversize(parts: Iterable[tuple[str, Any, int]]) -> list[Problem]:
    """Return a problem for the first of `parts`, (path, value, enclosing depth), that nests too deeply, contains itself or expands too far.

    Nothing is expanded for the check.
    """
    total = 0
    for at, value, depth in parts:
        size = _expanded_size(value, MAX_DEPTH - depth)
        if size is None:
            code, message, hint = TOO_DEEP
            return [Problem(code, at=at, message=message, hint=hint)]
        total += size
        if total > MAX_VALUES:
            return [Problem("too-large", at=at, message=f"more than {MAX_VALUES:,} values", hint="split the plan")]
    return []


def _expanded_size(value: Any, levels: int) -> int | None:
    """Return how many values `value` expands to, or None beyond `levels` levels. Each container is visited once per level."""
    level: dict[int, tuple[Any, int]] = {id(value): (value, 1)} if _is_container(value) else {}
    total = 0
    for _ in range(levels + 1):
        if not level:
            return total
        below: dict[int, tuple[Any, int]] = {}
        for container, times in level.values():
            total += times * len(container)
            for member in _members(container):
                if _is_container(member):
                    below[id(member)] = (member, times + below.get(id(member), (None, 0))[1])
        level = below
    return None


def _members(container: Any) -> Iterable[Any]:
    return container.values() if isinstance(container, dict) else container  # pyright: ignore[reportUnknownVariableType, reportUnknownMemberType]  # any JSON


def _is_container(value: object) -> bool:
    return isinstance(value, dict | list | tuple)


def _copy_metadata(plan: ExecutionPlan, fresh: ExecutionPlan) -> None:
    """Copy to `fresh` what the plan holds besides its fields."""
    if "id" not in plan.model_fields_set:
        vars(fresh)["id"] = plan.id  # generated, so it stays unset
    for name in ("_history", "_problems", "_marks", "_file"):
        setattr(fresh, name, getattr(plan, name))
    copies = _pinned_plans(fresh)
    for index, (_, pinned) in _pinned_plans(plan).items():
        if index in copies:
            _copy_metadata(pinned, copies[index][1])


def _number_steps(plan: ExecutionPlan) -> None:
    """Fill in the ids and places that edits of `plan` left out."""
    if all(isinstance(step, Step) for step in [*plan.steps, *plan.finally_]):  # pyright: ignore[reportUnnecessaryIsInstance]  # Python code may put in a mapping
        plan.number_steps()
