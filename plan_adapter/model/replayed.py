"""`Replay`: what would have gone differently if recorded runs had run another version of their plan."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from pydantic import JsonValue

from plan_adapter.model.record import PlanRun

DifferenceKind: TypeAlias = Literal[
    "new_call", "gone_call", "other_values", "other_order", "new_gate", "gone_gate", "other_output", "other_end", "no_start", "no_answer"
]
"""In what a run would differ: a call that it did not make, one that it would no longer make, a call with other parameters, a step that
would no longer wait for another, a gate, an output, how it ends, or that its inputs or an answer do not fit any more."""

FailOn: TypeAlias = Literal["any", "write"]
"""Which differences count as failures: `write`, those about calls that write and lost gates, and what does not fit any more."""


@dataclass(frozen=True, slots=True)
class Difference:
    """One way in which a run would have gone differently."""

    kind: DifferenceKind
    step_id: str | None  # None: the whole plan
    subject: str  # what differs in the step: the name of a parameter, of another step, of the tool or of an output
    writes: bool  # whether it is about a call that writes or a lost gate, or leaves that open: what does not fit any more
    before: JsonValue = None  # what the run did
    after: JsonValue = None  # what it would do; what is not known is the expression that gives it
    repeats: str | None = None  # of a new call: the step that makes the same one
    beside: str | None = None  # of a step that the plan no longer has: the one before it

    def counts(self, fail_on: FailOn) -> bool:
        """Whether it is a failure."""
        return fail_on == "any" or self.writes


@dataclass(frozen=True, slots=True)
class ReplayedRun:
    """A recorded run, and what would have gone differently."""

    run: PlanRun  # as it was recorded
    differences: tuple[Difference, ...]
    effects: int  # how many attempts of writes the record of the replay holds: always 0
    has_order: bool = True  # whether the order of its steps was compared: not if its plan is no longer valid, because a tool is gone


@dataclass(frozen=True, slots=True)
class ReplayFinding:
    """One difference in all runs that have it, at the place in the plan's document that causes it."""

    first: Difference  # that of the newest run that has it
    runs: tuple[str, ...]  # their ids, newest first
    at: str  # the path in the document: `steps[2].parameters.host`
    line: int | None  # from 1; None: the plan comes from no document
    column: int | None
    file: str | None


@dataclass(frozen=True, slots=True)
class Replay:
    """Recorded runs against another version of their plan."""

    name: str  # the plan's name
    runs: tuple[ReplayedRun, ...]  # newest first
    left_out: Mapping[str, int]  # how many runs cannot be replayed, by why they ended
    findings: tuple[ReplayFinding, ...]  # first those about writes, each in the order of the document

    @property
    def same(self) -> int:
        """How many runs would go as they went."""
        return sum(not run.differences for run in self.runs)

    @property
    def effects(self) -> int:
        """How many attempts of writes the records of the replays hold: always 0."""
        return sum(run.effects for run in self.runs)

    def failing(self, fail_on: FailOn) -> Sequence[ReplayFinding]:
        """Return the findings that count as a failure: all, or those about writes, lost gates and what does not fit any more."""
        return [finding for finding in self.findings if finding.first.counts(fail_on)]
