"""What execution is handed, and what it hands out: the protocols between a plan's execution and the worlds around it."""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

from pydantic import JsonValue

from plan_adapter.plan import Effect, Step
from plan_adapter.record import Approval, Attempt, PlanRun, Resolution, RunReason, StepRun


@dataclass(frozen=True, slots=True)
class AttemptEnd:
    """How one attempt of a call came out.

    `cancelled` and `timed_out` mean that the run ended the attempt (cancellation, total timeout); a step's own timeout is
    `failed` for a read or an idempotent write and `unknown` for a write. Only what is not `in_middle` is known to be as it says.
    """

    outcome: Literal["succeeded", "failed", "unknown", "cancelled", "timed_out"]
    number: int
    result: JsonValue = None
    error: str | None = None
    can_retry: bool = True  # false where another attempt could only fail the same way
    in_middle: bool = False  # the call had begun, and nobody waited for its end, or it was lost
    not_done: bool = False  # the tool's probe says that nothing was done: the next attempt costs no retry
    said: str | None = None  # by whom, where not the tool has told that it succeeded


@dataclass(frozen=True, slots=True)
class GatedCall:
    """A call that waits for an approval of its own, as it would be made now."""

    step: Step
    step_run: StepRun
    name: str
    item: int | None
    effect: Effect
    parameters: dict[str, JsonValue]
    approval_digest: str  # of exactly this call
    label: str | None = None  # what the item is called, where not by its number
    withdrawn: asyncio.Future[None] = field(default_factory=lambda: asyncio.get_running_loop().create_future())
    """Done once the call will not be made whatever is answered: then nobody is to be asked any more."""
    waiting: asyncio.Future[None] = field(default_factory=lambda: asyncio.get_running_loop().create_future())
    """Done by whoever asks, once the gate is open and nobody has answered yet."""
    left: asyncio.Future[None] = field(default_factory=lambda: asyncio.get_running_loop().create_future())
    """Done once this start of the run waits for the answer no more: the gate stays open, and a later start makes the call."""


@dataclass(frozen=True, slots=True)
class GateRefusal:
    """Why a call was not approved; without `ends_run` only the step is skipped."""

    reason: RunReason
    message: str
    ends_run: bool = True


@dataclass(frozen=True, slots=True)
class UnknownOutcome:
    """An attempt of which nobody knows how it ended."""

    step: Step
    step_run: StepRun
    lost: Attempt
    why: str  # nobody knows it
    withdrawn: asyncio.Future[None] = field(default_factory=lambda: asyncio.get_running_loop().create_future())
    """Done once nobody is to be asked any more, because the run ends."""


@dataclass(frozen=True, slots=True)
class Said:
    """What a person said about a doubt; the record has it already."""

    resolution: Resolution
    words: str  # who said it
    result: JsonValue = None  # with `done`


class Outcomes(Protocol):
    """Asks people how attempts ended of which nobody knows it. Several may be asked about at once."""

    async def ask(self, unknown_outcome: UnknownOutcome) -> Said | None:
        """Return what was said, None where nobody can be asked, or was, before the doubt was withdrawn; waits for a person."""
        ...


class StepGates(Protocol):
    """Asks for approvals of single calls. Several may be open at once; one that is withdrawn is closed."""

    @property
    def waits(self) -> bool:
        """Whether people are waited for however long they take; else only as long as something else of the run goes on."""
        ...

    def is_gated(self, step: Step) -> bool:
        """Return whether `step` needs an approval of its own."""
        ...

    async def ask(self, call: GatedCall) -> Approval | GateRefusal | None:
        """Return the approval of exactly this call, or why there is none; waits for a person. None of a call that was left."""
        ...


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
        """What people are shown: the step's id; with `for_each` followed by the item's label: `verify[web-2]`."""
        ...

    @property
    def key(self) -> str:
        """What tells the call from the others of its run, the same in every start: the step's id, and its item's place from 0."""
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
    def task(self) -> object | None:
        """The Prefect task that the tool is, None for any other tool."""
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


class StepRunner(Protocol):
    """Drives calls: makes attempts until none is left, and shows what was not called."""

    async def __call__(self, call: StepCall) -> AttemptEnd:
        """Make attempts of `call` until it succeeded or `retry_delay` gives None; return the last end."""
        ...

    async def show(self, step: StepRun, upstream: tuple[str, ...], *, tags: Collection[str] = ()) -> None:
        """Show a step that ended without a call: skipped (with its `reason`), carried, or without items."""
        ...

    async def show_carried(
        self,
        step_ids: Sequence[str],
        steps: Mapping[str, StepRun],
        upstream: Mapping[str, tuple[str, ...]],
        *,
        tags_of: Callable[[str], Collection[str]] = lambda _: (),
    ) -> None:
        """Show those of `steps` that succeeded in earlier starts of the run, before any other, each after those that it waited for."""
        ...
