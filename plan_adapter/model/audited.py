"""`ChangeRecord`: what an auditor asks about a run as a change. Who asked for it, who approved it, what ran, and what deviated.

It holds recorded facts and what follows from them. What the store does not record is None or empty, never a guess.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property
from typing import Literal, NamedTuple, TypeAlias

from plan_adapter.model.approvals import Approval
from plan_adapter.model.plan import ASK, GOAL
from plan_adapter.model.record import Attempt, PlanRun, PlanVersion, Receipt
from plan_adapter.model.status import Outcome, RunReason, StepStatus

ApprovedBy: TypeAlias = Literal["another_person", "requester_or_author", "author_not_recorded", "not_required", "nobody"]
"""Who approved what ran. `another_person`: neither the requester nor an author of the plan. `author_not_recorded`: not the requester, but
the store does not say who wrote the plan. `not_required`: the plan required no approval of its own. `nobody`: no approval was used."""

Separate: TypeAlias = Literal["yes", "no", "not recorded"]
"""Whether the approvers differ from the requester and the authors."""

_SEPARATE: Mapping[ApprovedBy, Separate] = {
    "another_person": "yes",
    "requester_or_author": "no",
    "author_not_recorded": "not recorded",
    "not_required": "no",
    "nobody": "no",
}

NOT_REQUIRED = "not_required"
"""The `known_by` of the approval of a plan that requires none."""


class Period(NamedTuple):
    """From when to when. Both ends belong to it."""

    since: datetime
    until: datetime


class PopulationRun(NamedTuple):
    """A run of the period, as the list that shows completeness has it."""

    id: str
    name: str  # of the plan
    digest: str  # of the plan
    versions: tuple[PlanVersion, ...]  # the saved versions of this content, oldest first
    status: str
    requested_at: datetime
    started_at: datetime | None


class PrunedRun(NamedTuple):
    """A run that ended in the period and whose record was deleted. Its tombstone does not say when it was requested."""

    id: str
    name: str
    digest: str
    status: str
    ended_at: datetime
    pruned_by: str
    pruned_at: datetime


class PlanChange(NamedTuple):
    """A replacement of the plan, or only of its tools or folder, after the run was requested."""

    by: str
    note: str
    at: datetime
    changes_plan: bool  # False: only the tools or the folder


class ChangeEvent(NamedTuple):
    """An entry of the audit log that can be a deviation."""

    kind: str
    step_id: str | None
    by: str | None
    known_by: str | None
    message: str | None


@dataclass(frozen=True, slots=True)
class RecordCheck:
    """What `plan verify RUN` says about the record of a run."""

    verdict: Literal["intact", "altered", "not_verifiable"]
    problem: str | None  # the first alteration
    digest: str | None  # of the newest entry of the audit log


@dataclass(frozen=True)
class ChangeRecord:
    """A run, and what is recorded about it as a change. Its attempts have no parameters and its receipts no results."""

    run: PlanRun
    versions: tuple[PlanVersion, ...] = ()  # saved before the run took this content, oldest first
    approvals: Sequence[Approval] = ()  # every answer at a gate of the run, oldest first
    plan_changes: Sequence[PlanChange] = ()  # oldest first
    attempts: Sequence[Attempt] = ()
    receipts: Mapping[str, Receipt] = field(default_factory=dict[str, Receipt])  # by attempt
    events: Sequence[ChangeEvent] = ()
    earlier_completed: int = 0  # how many runs of the same content had completed when this one was requested
    check: RecordCheck | None = None  # None: not checked

    @cached_property
    def authors(self) -> tuple[str, ...]:
        """Who saved a version of this content, or replaced the plan of the run. Empty if nobody is recorded."""
        replaced = [change.by for change in self.plan_changes if change.changes_plan]
        return tuple(dict.fromkeys([*(version.author for version in self.versions), *replaced]))

    @cached_property
    def writes(self) -> list[Attempt]:
        """The calls that write, without those of a rollback."""
        return [attempt for attempt in self.attempts if attempt.effect != "read" and attempt.kind != "rollback"]

    @cached_property
    def used_approvals(self) -> list[Approval]:
        """The approvals by people that something ran with, of the plan and of single calls. An answer to a question approves nothing."""
        given = [answer for answer in self.approvals if answer.decision == "approve" and answer.result is None]
        return [approval for approval in given if approval.used_at is not None and approval.known_by != NOT_REQUIRED]

    @property
    def deciding_approvals(self) -> list[Approval]:
        """The approvals that let the run write: those of the plan, or else those of its steps if each call that wrote had one."""
        used = self.used_approvals
        if of_plan := [given for given in used if given.step_id is None]:
            return of_plan
        of_calls = {attempt.approval_id for attempt in self.writes}
        by_id = {given.id: given for given in used}
        return [by_id[call] for call in by_id if call in of_calls] if of_calls and of_calls <= by_id.keys() else []

    @cached_property
    def approved_by(self) -> ApprovedBy:
        """Who approved what ran."""
        deciding = self.deciding_approvals
        if not deciding:
            is_not_required = any(given.known_by == NOT_REQUIRED for given in self.approvals)
            return "not_required" if is_not_required else "nobody"
        separate = {self.is_separate(given) for given in deciding}
        if False in separate:
            return "requester_or_author"
        return "author_not_recorded" if None in separate else "another_person"

    @property
    def separate_approver(self) -> Separate:
        """Whether every deciding approval is by a person who neither requested the run nor wrote its plan."""
        return _SEPARATE[self.approved_by]

    def is_separate(self, approval: Approval) -> bool | None:
        """Return whether no approver is the requester or an author. None if one of those is not recorded."""
        if not {self.run.requested_by, *self.authors}.isdisjoint(approval.people):
            return False
        return None if self.run.requested_by is None or not self.authors else True

    @property
    def unknown(self) -> list[Attempt]:
        """The writes whose outcome is unknown: without a receipt, and without a later success of the same call."""
        if not (self.run.has_ended or self.run.reason in (RunReason.INTERRUPTED, RunReason.UNKNOWN)):
            return []
        ended = [(attempt, self.receipts[attempt.id]) for attempt in self.attempts if attempt.id in self.receipts]
        done = {(_call_of(attempt), attempt.number) for attempt, receipt in ended if receipt.outcome is Outcome.SUCCEEDED}
        return [
            attempt
            for attempt in self.attempts
            if attempt.effect == "write"
            and attempt.id not in self.receipts
            and not any(call == _call_of(attempt) and number > attempt.number for call, number in done)
        ]

    @property
    def resolved(self) -> list[tuple[Attempt, Receipt]]:
        """The calls whose outcome a person or a probe recorded."""
        by_others = [(attempt, self.receipts[attempt.id]) for attempt in self.attempts if attempt.id in self.receipts]
        return [(attempt, end) for attempt, end in by_others if end.resolution is not None and attempt.tool_name not in (ASK, GOAL)]

    @property
    def failed_steps(self) -> list[str]:
        """The ids of the steps that failed."""
        return [step.id for step in self.run.steps if step.status is StepStatus.FAILED]

    @property
    def is_rolled_back(self) -> bool:
        """Whether calls were made to undo something, or the run was rolled back."""
        return self.run.rollback is not None or any(attempt.kind == "rollback" for attempt in self.attempts)

    @property
    def tools_with_other_code(self) -> list[str]:
        """The tools whose code differs between calls of this run."""
        codes = dict[str, set[str]]()
        for attempt in self.attempts:
            if attempt.code_digest is not None:
                codes.setdefault(attempt.tool_name, set()).add(attempt.code_digest)
        return sorted(name for name, digests in codes.items() if len(digests) > 1)


def _call_of(attempt: Attempt) -> tuple[str, str, int | None]:
    return attempt.step_id, attempt.kind, attempt.item


@dataclass(frozen=True, slots=True)
class AuditedRuns:
    """The runs of a period: all of them in short, and those of the sample with what is recorded about them."""

    period: Period
    population: Sequence[PopulationRun]  # by id
    pruned: Sequence[PrunedRun]  # by id
    sample: Sequence[ChangeRecord]  # by id
