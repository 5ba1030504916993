"""`DryRun`: what a dry run found out: the calls that a run would make, its gates, and what stays unknown until then."""

from dataclasses import dataclass
from typing import Literal, TypeAlias

from pydantic import JsonValue

from plan_adapter.model.options import CallKind, Effect
from plan_adapter.model.record import PlanRun

How: TypeAlias = Literal["called", "simulated", "recorded", "unknown", "failed"]
"""What a dry run did about a call. `called`: it reads, and was made. `recorded`: a replay, and the run that it replays made the same call.
`unknown`: nothing was called, so its result is not known."""


@dataclass(frozen=True, slots=True)
class DryRunCall:
    """A call that a run would make. What is unknown in `parameters` and `result` is the expression that gives it."""

    name: str  # the step, with its item
    step_id: str  # the step's id
    kind: CallKind  # `rollback`: the call rolls back the step
    item: int | None  # the item of the step's `for_each`, from 0
    tool_name: str  # the tool
    effect: Effect  # what the tool may do
    how: How  # whether it was called, simulated, failed, or its result is unknown
    parameters: dict[str, JsonValue]  # what it is called with; secrets as expressions
    result: JsonValue = None  # what it returned or would return
    shows: str = ""  # what its simulation shows
    why: str = ""  # why its result is unknown, or its error
    condition: str = ""  # it is made only if this is true, which is not known


@dataclass(frozen=True, slots=True)
class DryRunGate:
    """A gate that a run would open."""

    name: str  # the step, with its item; `plan` for the plan's own gate
    kind: Literal["approval", "question"]  # what it asks
    answer: JsonValue = None  # the answer that was given to a question
    step_id: str | None = None  # None: the whole plan
    item: int | None = None  # the item of the step's `for_each`, from 0


@dataclass(frozen=True, slots=True)
class DryRun:
    """A dry run: `run` is how a run would go, as far as that is known."""

    run: PlanRun  # the run that was rehearsed, with its steps and outputs
    calls: tuple[DryRunCall, ...]  # in the order in which they were reached
    gates: tuple[DryRunGate, ...]  # the gates and questions that it would stop at
    worst_case_ms: float | None  # None means no limit
    effects: int  # how many attempts of writes its record holds: always 0
    problems: tuple[str, ...] = ()  # what simulations say is wrong

    @property
    def is_complete(self) -> bool:
        """Whether nothing failed, so that the dry run went through the whole plan."""
        return self.run.succeeded and not self.problems
