"""Imports a plan that another program wrote. Its ids are kept, and what it records about an execution becomes history."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, cast

from pydantic import JsonValue

from plan_adapter.model.plan import ExecutionPlan
from plan_adapter.model.readable import counted, one_line, redacted
from plan_adapter.model.values import join

HISTORY = "history"
"""The metadata key that holds the history."""

MEANING = "what that file recorded about an execution elsewhere; here it is neither an approval nor a receipt"

_RESULT_FIELDS = ("result", "error")
_EMPTY_VALUES: tuple[JsonValue, ...] = (False, 0, [], {}, "draft", "pending")


@dataclass(frozen=True, slots=True)
class ImportedPlan:
    """The plan, and notes about what was changed and what a person should check."""

    plan: ExecutionPlan
    notes: tuple[str, ...]


def import_plan(plan: ExecutionPlan, *, source: str, name: str | None = None, results: bool = False) -> ImportedPlan:
    """Return `plan`, read from a document called `source`, with its history in its metadata, where it has no effect.

    Results and errors of steps are left out unless `results` is set, because they may contain secrets. Known secrets, by name or as the
    password of a URL, are always redacted. Fields with problems are left out, as by `read_document`.
    """
    document = plan.to_document()
    record, without_results = _record_of(plan.history, results=results)
    if record:
        document["metadata"] = _with_history(plan.metadata, record, source)
    if name is not None:
        document["name"] = name
    fresh = ExecutionPlan.model_validate(document)
    if "id" not in document:
        fresh.id = plan.id
        fresh.model_fields_set.discard("id")
    return ImportedPlan(fresh, tuple(_notes(plan, record, without_results)))


def keep_history(plan: ExecutionPlan, *, source: str) -> None:
    """Put what the document of `plan` recorded about an execution into its metadata, without results and errors, as an import does."""
    record, _ = _record_of(plan.history, results=False)
    if record:
        plan.metadata = _with_history(plan.metadata, record, source)


def _with_history(metadata: Mapping[str, JsonValue], record: dict[str, JsonValue], source: str) -> dict[str, JsonValue]:
    history: dict[str, JsonValue] = {"source": source, "meaning": MEANING, "record": redacted(record, expressions=False)}
    return {**metadata, _free_key(HISTORY, metadata): history}


def _record_of(history: Mapping[str, JsonValue], *, results: bool) -> tuple[dict[str, JsonValue], list[str]]:
    """Return the parts of `history` that record an event, and the steps whose results are left out."""
    record = {key: value for key, value in history.items() if key != "steps" and value not in _EMPTY_VALUES}
    steps, without_results = dict[str, JsonValue](), list[str]()
    for step_id, fields in cast("dict[str, dict[str, JsonValue]]", history.get("steps", {})).items():
        kept = {key: value for key, value in fields.items() if key != "index" and value not in _EMPTY_VALUES}
        if not results and any(kept.pop(key, None) is not None for key in _RESULT_FIELDS if key in kept):
            without_results.append(step_id)
        if kept:
            steps[step_id] = kept
    return {**record, **({"steps": steps} if steps else {})}, without_results


def _notes(plan: ExecutionPlan, record: Mapping[str, Any], without_results: list[str]) -> Iterator[str]:
    if record.get("user_approved") or record.get("approved_by"):
        by = f" by {one_line(str(record['approved_by']))}" if record.get("approved_by") else ""
        yield f"the file says that it was approved{by}; this is kept as history and approves nothing here"
    if without_results:
        names = f"{', '.join(without_results[:5])}{', …' if len(without_results) > 5 else ''}"
        steps = f"{counted(len(without_results), 'step')} ({names})"
        yield f"the results of {steps} are left out, because they may contain secrets; `--results` keeps them"
    options = plan.options
    if options.says_both_of_approval:
        yield "`require_approval: true` and `auto_approve: true` contradict each other; both are kept: remove one before the plan can run"
    elif options.auto_approve or not options.require_approval:
        option = "auto_approve: true" if options.auto_approve else "require_approval: false"
        yield f"with `{option}` the plan runs without an approval, unless your settings demand one; remove it if you do not want that"
    yield from written_secrets(plan)


def written_secrets(plan: ExecutionPlan) -> Iterator[str]:
    """Yield a note for each parameter that seems to contain a secret, without the value."""
    for step in plan.all_steps:
        given = {f"{step.id}.parameters": step.parameters}
        if step.rollback is not None:
            given[f"{step.id}.rollback.parameters"] = step.rollback.parameters
        for place, parameters in given.items():
            for at in _secret_places(parameters, redacted(parameters), place):
                yield f"{one_line(at)} looks like a secret: keep it elsewhere, and write `${{{{ secrets.name }}}}`"


def _secret_places(value: JsonValue, shown: JsonValue, at: str) -> Iterator[str]:
    if isinstance(value, dict) and isinstance(shown, dict):
        for key, member in value.items():
            yield from _secret_places(member, shown[key], join(at, key))
    elif isinstance(value, list) and isinstance(shown, list):
        for index, (member, seen) in enumerate(zip(value, shown, strict=True)):
            yield from _secret_places(member, seen, join(at, index))
    elif value != shown:
        yield at


def _free_key(wanted: str, taken: Mapping[str, JsonValue]) -> str:
    name, number = wanted, 2
    while name in taken:
        name, number = f"{wanted}_{number}", number + 1
    return name
