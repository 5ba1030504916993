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
    USAGE = 2  # wrong usage or an invalid plan; nothing was done
    REJECTED = 3  # rejected, or its approval expired
    CANCELLED = 4
    TIMED_OUT = 5
    WAITING = 6  # for an approval
    UNKNOWN = 7  # the outcome of a write is unknown and waits for a person
    WRONG_STATE = 8  # the run, gate or record is not in the state that this needs, or another process owns it
    UNAVAILABLE = 9  # the store, the Prefect server or the model cannot be used
    NOT_ALLOWED = 10  # to this person, by the policy, or for content that differs from what was approved
    INTERRUPTED = 130  # Ctrl-C


class UsageError(Exception):
    """The command cannot run as given; the message says why and what to do."""


def code_of_error(error: Exception) -> ExitCode:
    """Return the exit code for an error, the same for every verb."""
    from plan_adapter.model import errors  # only for a command that failed

    match error:
        case errors.ApprovalRequiredError():
            return ExitCode.WAITING
        case errors.NotApprovedError():
            return ExitCode.NOT_ALLOWED
        case errors.RunNotFoundError() | errors.NotStoredError():
            return ExitCode.USAGE
        case errors.RunConflictError():
            return ExitCode.REJECTED if error.ended in ("rejected", "expired") else ExitCode.WRONG_STATE
        case errors.LeaseLostError():
            return ExitCode.WRONG_STATE
        case errors.StoreLostError():
            return ExitCode.FAILED
        case errors.StoreError() | errors.NoServerError() | errors.ModelError():
            return ExitCode.UNAVAILABLE
        case _:
            return ExitCode.USAGE


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
