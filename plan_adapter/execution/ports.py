"""What execution is handed, and what it hands out: the protocols between a plan's execution and the worlds around it."""

from collections.abc import Awaitable
from dataclasses import dataclass
from typing import Literal, Protocol

from pydantic import JsonValue

from plan_adapter.plan import Step
from plan_adapter.record import PlanRun, StepRun


@dataclass(frozen=True, slots=True)
class AttemptEnd:
    """How one attempt of a call came out.

    `cancelled` and `timed_out` mean that the run ended the attempt (cancellation, total timeout); a step's own timeout is
    `failed` for a read or an idempotent write and `unknown` for a write.
    """

    outcome: Literal["succeeded", "failed", "unknown", "cancelled", "timed_out"]
    number: int
    result: JsonValue = None
    error: str | None = None
    can_retry: bool = True  # false where another attempt could only fail the same way
    in_middle: bool = False  # the run's stop ended a call that had begun


class StepCall(Protocol):
    """One unit of work: a step, or one item of its `for_each`."""

    @property
    def run(self) -> PlanRun:
        """The run that the call belongs to."""
        ...

    @property
    def step(self) -> Step:
        """The step as the plan writes it."""
        ...

    @property
    def step_run(self) -> StepRun:
        """The step's record; the items of one step share it."""
        ...

    @property
    def name(self) -> str:
        """The step's id; with `for_each` followed by the item's place: `verify[0]`."""
        ...

    @property
    def upstream(self) -> tuple[str, ...]:
        """Ids of the steps whose ends this call waited for, transitively reduced."""
        ...

    @property
    def timeout_seconds(self) -> float | None:
        """The limit of one attempt, None for no limit; execution enforces it, others only show it."""
        ...

    @property
    def retry_delays(self) -> list[float]:
        """Seconds between attempts as planned, one per retry; what really is waited has jitter and is decided by `retry_delay`."""
        ...

    def attempt(self, *, without_prefect: bool = False) -> Awaitable[AttemptEnd]:
        """Make the next attempt: wait for a slot, resolve the parameters, write the intent, call the tool, write the receipt.

        `without_prefect`: of a tool that is a Prefect flow the function inside is called, which needs no server.
        Never raises for what a tool does. Raises StoreError when an intent cannot be written, and then nothing was called.
        """
        ...

    def retry_delay(self, end: AttemptEnd) -> float | None:
        """Return the seconds to wait before another attempt, or None if `end` was the last."""
        ...

    def stopped(self) -> Awaitable[AttemptEnd]:
        """Return when the run ends all work (cancelled, total timeout), with the end of an attempt that does not come any more.

        A driver that waits between attempts races its wait against this.
        """
        ...


class CallStep(Protocol):
    """Drives calls: makes attempts until none is left, and shows what was not called."""

    async def __call__(self, call: StepCall) -> AttemptEnd:
        """Make attempts of `call` until it succeeded or `retry_delay` gives None; return the last end."""
        ...

    async def show(self, step: StepRun, upstream: tuple[str, ...]) -> None:
        """Show a step that ended without a call: skipped (with its `reason`), carried, or without items."""
        ...
