"""The exit codes of `plan`, and UsageError."""

from enum import IntEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from plan_adapter.model.errors import PlanAdapterError
    from plan_adapter.model.record import PlanRun
    from plan_adapter.store.store import PlanStore


class ExitCode(IntEnum):
    """What the result of a command means to a script."""

    DONE = 0
    """Done."""

    FAILED = 1
    """A step failed: the run is failed or partial. Or the store was lost while the run used it.

    Of `plan verify`, and of `plan export --attest`: a row or an attestation was altered, or there is nothing to verify. Of `plan doctor`:
    something is wrong.
    """

    USAGE = 2
    """Wrong usage, an invalid plan, or no such plan or run. Nothing was done."""

    REJECTED = 3
    """Rejected, or the approval expired."""

    CANCELLED = 4
    """Cancelled."""

    TIMED_OUT = 5
    """Timed out."""

    WAITING = 6
    """Waiting for an approval."""

    UNKNOWN = 7
    """The outcome of a write is unknown and waits for a person."""

    WRONG_STATE = 8
    """The run, gate or record is not in the state that this needs, such as a run that has completed, or another process owns it."""

    UNAVAILABLE = 9
    """The store, the Prefect server or the model cannot be used. The same command may work later."""

    NOT_ALLOWED = 10
    """Not allowed: to this person, by the policy, or because the content differs from what was approved."""

    INTERRUPTED = 130
    """Interrupted, as by Ctrl-C."""


class UsageError(Exception):
    """The command cannot run as given. The message says why, and `hint` what to do, unless the message says both."""

    def __init__(self, message: str, *, hint: str = "", code: str = "usage") -> None:
        """Store `hint`, and show it behind the message. `code` is that of the JSON object."""
        self.hint = hint
        self.code = code
        super().__init__(f"{message}; {hint}" if hint else message)


def without_hint(error: "UsageError | PlanAdapterError") -> str:
    """Return the message of an error without its hint."""
    return str(error).removesuffix(f"; {error.hint}") if error.hint else str(error)


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
        case errors.StoreLostError() | errors.NotVerifiedError():
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
