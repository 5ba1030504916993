"""The exit codes of `plan`, and UsageError."""

from enum import IntEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from plan_adapter.model.record import PlanRun
    from plan_adapter.store.store import PlanStore


class ExitCode(IntEnum):
    """What the result of a command means to a script."""

    DONE = 0
    FAILED = 1  # a step failed: the run is failed or partial; or its store was lost in the middle
    USAGE = 2  # wrong usage, an invalid plan, a store or server that cannot be used
    REJECTED = 3  # rejected, or its approval expired
    CANCELLED = 4
    TIMED_OUT = 5
    WAITING = 6  # for an approval, or the caller may not do this; nothing was done
    UNKNOWN = 7  # the outcome of a write is unknown and waits for a person
    INTERRUPTED = 130  # Ctrl-C


class UsageError(Exception):
    """The command cannot run as given; the message says why and what to do."""


def code_of_error(error: Exception) -> ExitCode:
    """Return the exit code for an error, the same for every verb."""
    from plan_adapter.model.errors import NotApprovedError, RunConflictError, StoreLostError  # only for a command that failed

    if isinstance(error, NotApprovedError):
        return ExitCode.WAITING
    if isinstance(error, StoreLostError):
        return ExitCode.FAILED
    is_unapproved = isinstance(error, RunConflictError) and error.ended in ("rejected", "expired")
    return ExitCode.REJECTED if is_unapproved else ExitCode.USAGE


async def code_with_rollbacks(run: "PlanRun", store: "PlanStore") -> ExitCode:
    """Return `code_of_run`, or UNKNOWN if the outcome of a rollback is unknown."""
    code = code_of_run(run)
    if code in (ExitCode.DONE, ExitCode.WAITING):
        return code
    return ExitCode.UNKNOWN if await has_unknown_rollback(run.id, store) else code


async def has_unknown_rollback(run_id: str, store: "PlanStore") -> bool:
    """Return whether the outcome of any rollback of the run is unknown."""
    return any(attempt.kind == "rollback" for attempt in await store.outcomes.unknown(run_id))


def code_of_run(run: "PlanRun") -> ExitCode:
    """Return the exit code for the status of `run`."""
    # Only for a command that runs a plan.
    from plan_adapter.model.status import PlanStatus, RunReason

    by_reason = {
        RunReason.REJECTED: ExitCode.REJECTED,
        RunReason.EXPIRED: ExitCode.REJECTED,
        RunReason.TIMED_OUT: ExitCode.TIMED_OUT,
        RunReason.UNKNOWN: ExitCode.UNKNOWN,
        RunReason.CANCELLED: ExitCode.CANCELLED,
    }
    by_status = {
        PlanStatus.COMPLETED: ExitCode.DONE,
        PlanStatus.CANCELLED: ExitCode.CANCELLED,
        PlanStatus.PENDING_APPROVAL: ExitCode.WAITING,
        PlanStatus.DRAFT: ExitCode.WAITING,
    }
    if run.reason is not None and run.reason in by_reason:
        return by_reason[run.reason]
    return by_status.get(run.status, ExitCode.FAILED)
