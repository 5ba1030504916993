"""`DryRun`: what a dry run found out: the calls that a run would make, its gates, and what stays unknown until then."""

from dataclasses import dataclass
from typing import Literal, TypeAlias

from pydantic import JsonValue

from plan_adapter.model.options import CallKind, Effect
from plan_adapter.model.record import PlanRun

How: TypeAlias = Literal["called", "simulated", "unknown", "failed"]
"""What a dry run did about a call. `called`: it reads, and was made. `unknown`: nothing was called, so its result is not known."""


@dataclass(frozen=True, slots=True)
class DryRunCall:
    """A call that a run would make. What is unknown in `parameters` and `result` is the expression that gives it."""

    name: str
    step_id: str
    kind: CallKind
    item: int | None
    tool_name: str
    effect: Effect
    how: How
    parameters: dict[str, JsonValue]  # secrets as expressions
    result: JsonValue = None
    shows: str = ""  # what its simulation shows
    why: str = ""  # why its result is unknown, or its error
    condition: str = ""  # it is made only if this is true, which is not known


@dataclass(frozen=True, slots=True)
class DryRunGate:
    """A gate that a run would open."""

    name: str  # of the step, with its item; `plan` for the plan's own gate
    kind: Literal["approval", "question"]
    answer: JsonValue = None  # that was given for the question


@dataclass(frozen=True, slots=True)
class DryRun:
    """A dry run: `run` is how a run would go, as far as that is known."""

    run: PlanRun
    calls: tuple[DryRunCall, ...]  # in the order in which they were reached
    gates: tuple[DryRunGate, ...]
    worst_case_ms: float | None  # None means no limit
    effects: int  # how many attempts of writes its record holds: always 0
    problems: tuple[str, ...] = ()  # of simulations

    @property
    def is_complete(self) -> bool:
        """Whether nothing failed, so that the dry run went through the whole plan."""
        return self.run.succeeded and not self.problems
