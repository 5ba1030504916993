"""What a run that goes on will do: one pure function of the plan, the record, and what a person asks for.

A step that has succeeded is carried, whatever is asked: it is never run again in its run.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Literal

from plan_adapter import graph
from plan_adapter.errors import RunConflictError


@dataclass(frozen=True, slots=True)
class Redrive:
    """What a person asks for when a run goes on; empty: everything that has not succeeded is run."""

    from_step: str | None = None  # only this step and what depends on it
    only_failed: bool = False  # only the steps that failed, and what waited for them
    skipped: Mapping[str, str] = field(default_factory=dict[str, str])  # steps not to be run any more, and why

    def left_out(self, before: Mapping[str, str]) -> dict[str, str]:
        """Return the steps that are left out, and why: those of `before`, but for the one to begin with, and those of now."""
        return {step_id: why for step_id, why in before.items() if step_id != self.from_step} | dict(self.skipped)


def left_out_by(by: str, because: str) -> str:
    """Return in words why a step is left out."""
    return f"left out by {by}: {because}"


@dataclass(frozen=True, slots=True)
class Fate:
    """What becomes of a step.

    `carried`: it has succeeded; `run`: it is called, if its condition and its dependencies let it; `skipped`: a person leaves it out, and
    what depends on it goes on; `left`: it is not asked for now, and is skipped with what depends on it.
    """

    kind: Literal["carried", "run", "skipped", "left"]
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Record:
    """How the steps of a run stand: those that have succeeded, that failed or were cut short, and that were skipped."""

    succeeded: Collection[str] = ()
    failed: Collection[str] = ()
    skipped: Collection[str] = ()  # perhaps by their own conditions, which are looked at again


def fates(dependencies: graph.Graph, record: Record, asked: Redrive) -> dict[str, Fate]:
    """Return by step what becomes of it; raises RunConflictError, which names everything that cannot be done as it is asked."""
    _refuse(dependencies, record, asked)
    wanted = _wanted(dependencies, record, asked)
    found = dict[str, Fate]()
    for step_id in dependencies:
        if step_id in record.succeeded:
            found[step_id] = Fate("carried")
        elif step_id in asked.skipped:
            found[step_id] = Fate("skipped", asked.skipped[step_id])
        elif wanted is None or step_id in wanted:
            found[step_id] = Fate("run")
        else:
            found[step_id] = Fate("left", _why_left(asked))
    return found


def _wanted(dependencies: graph.Graph, record: Record, asked: Redrive) -> set[str] | None:
    """Return the steps that are asked for, None for all."""
    after, chosen = graph.successors(dependencies), list[set[str]]()
    if asked.from_step is not None:
        chosen.append(graph.reachable(after, [asked.from_step]))
    if asked.only_failed:
        chosen.append(graph.reachable(after, record.failed))
    if not chosen:
        return None
    wanted = chosen[0].intersection(*chosen[1:])
    return wanted | (graph.reachable(dependencies, wanted) & set(record.skipped))


def _refuse(dependencies: graph.Graph, record: Record, asked: Redrive) -> None:
    named = [*([asked.from_step] if asked.from_step is not None else []), *asked.skipped]
    problems = [f"no step is called `{step_id}`" for step_id in dict.fromkeys(named) if step_id not in dependencies]
    problems += [f"`{step_id}` has succeeded: it cannot be left out" for step_id in asked.skipped if step_id in record.succeeded]
    problems += [f"why `{step_id}` is left out is not said" for step_id, why in asked.skipped.items() if not why.strip()]
    first = asked.from_step
    if first is not None and first in dependencies:
        if first in record.succeeded:
            problems.append(f"`{first}` has succeeded, and is never run again in this run: start a new run")
        if first in asked.skipped:
            problems.append(f"`{first}` cannot be both left out and begun with")
        passed = {*record.succeeded, *record.skipped, *asked.skipped}
        missing = [dependency for dependency in dependencies[first] if dependency not in passed]
        if missing:
            names = ", ".join(f"`{step_id}`" for step_id in missing)
            problems.append(f"`{first}` depends on {names}, which has not succeeded: begin there, or leave it out with a reason")
    if asked.only_failed and not record.failed:
        problems.append("no step has failed")
    if problems:
        raise RunConflictError("; ".join(problems))


def _why_left(asked: Redrive) -> str:
    if asked.from_step is not None:
        return f"the run was resumed from `{asked.from_step}` only"
    return "the run was resumed with its failed steps only"
