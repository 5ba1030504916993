"""The statuses of a plan's run and of its steps, why a run ended, and the outcomes of attempts."""

from enum import StrEnum


class PlanStatus(StrEnum):
    """The status of a plan's run."""

    DRAFT = "draft"  # written, not yet submitted for approval
    PENDING_APPROVAL = "pending_approval"  # new, or waits for an answer: at its plan gate, at step gates, or to a new version
    APPROVED = "approved"  # may start
    EXECUTING = "executing"  # has started and not ended
    COMPLETED = "completed"  # every step completed or was skipped by its own `when`
    FAILED = "failed"  # a step failed and nothing completed
    CANCELLED = "cancelled"  # rejected, expired or cancelled
    PARTIAL = "partial"  # a step failed and something completed

    @property
    def has_ended(self) -> bool:
        """Whether a run with this status has ended. It can be resumed unless it is completed."""
        return self is PlanStatus.COMPLETED or self in _RESUMABLE

    def can_become(self, status: "PlanStatus") -> bool:
        """Return whether a run with this status may change to `status`. A completed run never changes."""
        return status is self or status in _TRANSITIONS[self]


_AFTER_RESUME = frozenset({PlanStatus.PENDING_APPROVAL, PlanStatus.APPROVED, PlanStatus.EXECUTING})
_RESUMABLE = frozenset({PlanStatus.FAILED, PlanStatus.PARTIAL, PlanStatus.CANCELLED})
_TRANSITIONS: dict[PlanStatus, frozenset[PlanStatus]] = {
    PlanStatus.DRAFT: frozenset({PlanStatus.PENDING_APPROVAL}),
    PlanStatus.PENDING_APPROVAL: frozenset({PlanStatus.APPROVED, PlanStatus.EXECUTING, PlanStatus.CANCELLED}),
    PlanStatus.APPROVED: frozenset({PlanStatus.EXECUTING, PlanStatus.PENDING_APPROVAL, PlanStatus.CANCELLED}),
    PlanStatus.EXECUTING: frozenset({*_RESUMABLE, PlanStatus.COMPLETED, PlanStatus.PENDING_APPROVAL, PlanStatus.APPROVED}),
    **dict.fromkeys(_RESUMABLE, _AFTER_RESUME | _RESUMABLE),
    PlanStatus.COMPLETED: frozenset(),
}
"""The statuses that may follow each status. An ended run that is not completed can be resumed or rolled back."""


class StepStatus(StrEnum):
    """The status of a step."""

    PENDING = "pending"  # not started
    RUNNING = "running"  # its call is being made, or waits at a gate
    COMPLETED = "completed"  # its call succeeded
    FAILED = "failed"  # its call failed, or its outcome is unknown
    SKIPPED = "skipped"  # not called, or in a group not called for every item; its `reason` says why

    @property
    def has_ended(self) -> bool:
        """Whether the step has ended in this start of its run."""
        return self not in (StepStatus.PENDING, StepStatus.RUNNING)


class RunReason(StrEnum):
    """Why a run ended, where its status alone does not say."""

    STEP_FAILED = "step_failed"  # a step failed
    TIMED_OUT = "timed_out"  # the total timeout
    REJECTED = "rejected"  # a person rejected it
    EXPIRED = "expired"  # nobody answered a gate in time
    CANCELLED = "cancelled"  # somebody cancelled it
    UNKNOWN = "unknown"  # a write began, and its outcome is unknown
    INTERRUPTED = "interrupted"  # its process died
    EXHAUSTED = "exhausted"  # a goal was not met within its budget


class RunOutcome(StrEnum):
    """How a run ended, in one word: the name of its state in Prefect, and the word in lists. What was undone counts before why."""

    COMPLETED = "Completed"  # every step completed or was skipped
    FAILED = "Failed"  # a step failed, and nothing completed
    PARTIAL = "Partial"  # something completed, and stands
    ROLLED_BACK = "RolledBack"  # every step with a rollback that did something is undone
    ROLLBACK_INCOMPLETE = "RollbackIncomplete"  # a rollback failed or its outcome is unknown
    CANCELLED = "Cancelled"  # somebody cancelled it
    REJECTED = "Rejected"  # a person rejected it
    EXPIRED = "Expired"  # nobody answered a gate in time
    TIMED_OUT = "TimedOut"  # it took longer than its total timeout
    INTERRUPTED = "Interrupted"  # its process died: it has not ended and can be resumed
    UNKNOWN_OUTCOME = "UnknownOutcome"  # a write began, and a person must say whether it was done


class Outcome(StrEnum):
    """The outcome of an attempt, and of its step."""

    SUCCEEDED = "succeeded"
    FAILED = "failed"
    UNKNOWN = "unknown"  # an intent without a receipt
