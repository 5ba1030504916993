"""Imports a plan that another program wrote: ids are kept, and its claims about an execution become history."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, cast

from pydantic import JsonValue

from plan_adapter.plan import ExecutionPlan
from plan_adapter.readable import counted, masked, one_line
from plan_adapter.values import join

HISTORY = "history"
"""The metadata key that holds the history."""

MEANING = "what that file said of an execution elsewhere; here it is neither an approval nor a receipt"

_OF_RESULTS = ("result", "error")
_NOTHING_HAPPENED: tuple[JsonValue, ...] = (False, 0, [], {}, "draft", "pending")


@dataclass(frozen=True, slots=True)
class Imported:
    """The plan, and notes about what was changed and what a person should check."""

    plan: ExecutionPlan
    notes: tuple[str, ...]


def imported(plan: ExecutionPlan, *, source: str, name: str | None = None, results: bool = False) -> Imported:
    """Return `plan`, read from a document called `source`, with its history in its metadata, where it has no effect.

    Results and errors of steps are left out unless `results` is set, because they may contain secrets. Known secrets, by name or as the
    password of a URL, are always redacted. Fields with problems are left out, as by `read_document`.
    """
    document = plan.to_document()
    said, left_out = _said(plan.history, results=results)
    if said:
        metadata = cast("dict[str, JsonValue]", document.get("metadata", {}))
        history: dict[str, JsonValue] = {"of": source, "meaning": MEANING, "said": masked(said, expressions=False)}
        document["metadata"] = {**metadata, _free(HISTORY, metadata): history}
    if name is not None:
        document["name"] = name
    fresh = ExecutionPlan.model_validate(document)
    if "id" not in document:
        fresh.id = plan.id
        fresh.model_fields_set.discard("id")
    return Imported(fresh, tuple(_notes(plan, said, left_out)))


def _said(history: Mapping[str, JsonValue], *, results: bool) -> tuple[dict[str, JsonValue], list[str]]:
    """Return the parts of `history` that say that something happened, and the steps whose results are left out."""
    said = {key: value for key, value in history.items() if key != "steps" and value not in _NOTHING_HAPPENED}
    steps, left_out = dict[str, JsonValue](), list[str]()
    for step_id, fields in cast("dict[str, dict[str, JsonValue]]", history.get("steps", {})).items():
        told = {key: value for key, value in fields.items() if key != "index" and value not in _NOTHING_HAPPENED}
        if not results and any(told.pop(key, None) is not None for key in _OF_RESULTS if key in told):
            left_out.append(step_id)
        if told:
            steps[step_id] = told
    return {**said, **({"steps": steps} if steps else {})}, left_out


def _notes(plan: ExecutionPlan, said: Mapping[str, Any], left_out: list[str]) -> Iterator[str]:
    if said.get("user_approved") or said.get("approved_by"):
        by = f" by {one_line(str(said['approved_by']))}" if said.get("approved_by") else ""
        yield f"it says that it was approved{by}: that is history, and approves nothing here"
    if left_out:
        what = f"what {counted(len(left_out), 'step')} gave back ({', '.join(left_out[:5])}{', …' if len(left_out) > 5 else ''})"
        yield f"{what} is left out, because secrets may stand in it; `--results` writes it into the history"
    options = plan.options
    if options.auto_approve or not options.require_approval:
        word = "auto_approve: true" if options.auto_approve else "require_approval: false"
        yield f"its options say `{word}`: it runs without an approval, unless your settings demand one; take it out if that is not meant"
    yield from written_secrets(plan)


def written_secrets(plan: ExecutionPlan) -> Iterator[str]:
    """Yield a note for each place in the plan's calls that seems to contain a secret, without its value."""
    for step in plan.steps:
        given = {f"{step.id}.parameters": step.parameters}
        if step.rollback is not None:
            given[f"{step.id}.rollback.parameters"] = step.rollback.parameters
        for place, parameters in given.items():
            for at in _secret_places(parameters, masked(parameters), place):
                yield f"{one_line(at)} looks like a secret that is written out: keep it elsewhere, and write `${{{{ secrets.name }}}}`"


def _secret_places(value: JsonValue, shown: JsonValue, at: str) -> Iterator[str]:
    if isinstance(value, dict) and isinstance(shown, dict):
        for key, member in value.items():
            yield from _secret_places(member, shown[key], join(at, key))
    elif isinstance(value, list) and isinstance(shown, list):
        for index, (member, seen) in enumerate(zip(value, shown, strict=True)):
            yield from _secret_places(member, seen, join(at, index))
    elif value != shown:
        yield at


def _free(wanted: str, taken: Mapping[str, JsonValue]) -> str:
    name, number = wanted, 2
    while name in taken:
        name, number = f"{wanted}_{number}", number + 1
    return name
