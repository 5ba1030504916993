"""The protocols and values between the execution of a plan and its surroundings: gates, outcome questions and step runners."""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol, TypeAlias, TypeVar

from pydantic import JsonValue

from plan_adapter.model.approvals import Approval, Resolution
from plan_adapter.model.options import Effect
from plan_adapter.model.plan import Step
from plan_adapter.model.record import Attempt, GroupItem, PlanRun, StepRun
from plan_adapter.model.status import RunReason
from plan_adapter.tools.tool import ToolContext

T = TypeVar("T")

AttemptOutcome: TypeAlias = Literal["succeeded", "failed", "unknown", "cancelled", "timed_out"]


@dataclass(frozen=True, slots=True)
class AttemptEnd:
    """How one attempt of a call ended.

    `cancelled` and `timed_out` mean that the run ended the attempt (by cancellation or the total timeout). A step's own timeout is `failed`
    for a read or an idempotent write, and `unknown` for a write. An outcome is certain only if the attempt is not `was_interrupted`.
    """

    outcome: AttemptOutcome
    number: int
    result: JsonValue = None
    error: str | None = None
    can_retry: bool = True  # false if another attempt would fail the same way
    was_interrupted: bool = False  # the call had started, and nobody waited for its end or its result was lost
    not_done: bool = False  # the tool's probe reported that nothing was done; the next attempt costs no retry
    reason: str | None = None  # who reported the success, if not the tool itself; why a goal failed

    @property
    def in_words(self) -> str:
        """How the attempt ended, with the error."""
        if self.outcome == "succeeded":
            return "completed"
        return f"{_IN_WORDS.get(self.outcome, self.outcome)}: {self.error or 'no reason was given'}"


_IN_WORDS: dict[AttemptOutcome, str] = {"unknown": "its outcome is unknown", "timed_out": "timed out"}

WORST_FIRST: tuple[AttemptOutcome, ...] = ("unknown", "cancelled", "timed_out", "failed", "succeeded")
"""The outcomes of an attempt, the one that matters most first."""


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
    label: str | None = None  # the item's name; None: its number
    before: Mapping[str, Mapping[str, JsonValue]] = field(default_factory=dict[str, Mapping[str, JsonValue]])
    """In a group: the steps of the same item that ended before, by id, as expressions see them: result, status and error."""
    ended_items: tuple[GroupItem, ...] = ()  # for a gate of one item of a group: the items that have ended
    withdrawn: asyncio.Future[None] = field(default_factory=lambda: asyncio.get_running_loop().create_future())
    """Done once the call will not be made, whatever the answer is. Nobody needs to be asked after that."""
    waiting: asyncio.Future[None] = field(default_factory=lambda: asyncio.get_running_loop().create_future())
    """Set by the gate once it is open and nobody has answered yet."""
    left: asyncio.Future[None] = field(default_factory=lambda: asyncio.get_running_loop().create_future())
    """Done once this start of the run stops waiting for the answer. The gate stays open, and a later start makes the call."""


@dataclass(frozen=True, slots=True)
class GateRefusal:
    """Why a call was not approved. Without `ends_run`, only the step is skipped."""

    reason: RunReason
    message: str
    ends_run: bool = True


@dataclass(frozen=True, slots=True)
class UnknownOutcome:
    """An attempt whose outcome is unknown."""

    step: Step
    step_run: StepRun
    attempt: Attempt
    why: str  # why the outcome is unknown
    withdrawn: asyncio.Future[None] = field(default_factory=lambda: asyncio.get_running_loop().create_future())
    """Done once the run ends and nobody needs to be asked."""


BEGUN_EARLIER = "an earlier start of this run began this write, and its outcome is unknown"
"""Why the outcome of an attempt of an earlier start is unknown."""


@dataclass(frozen=True, slots=True)
class RecordedResolution:
    """A person's resolution of an unknown outcome. It is already recorded."""

    resolution: Resolution
    words: str  # the reason in words, which names the person
    result: JsonValue = None  # with `done`


class Outcomes(Protocol):
    """Asks people about attempts with an unknown outcome. Several questions may be open at once."""

    async def ask(self, unknown_outcome: UnknownOutcome) -> RecordedResolution | None:
        """Wait for a person and return their resolution.

        Returns None if nobody can be asked, or nobody answered before the question was withdrawn.
        """
        ...


class StepGates(Protocol):
    """Asks for approvals of single calls. Several may be open at once. A withdrawn one is closed."""

    @property
    def waits(self) -> bool:
        """Whether to wait for people as long as it takes, or only while other work of the run is in progress."""
        ...

    def is_gated(self, step: Step) -> bool:
        """Return whether `step` needs an approval of its own."""
        ...

    async def ask(self, call: GatedCall) -> Approval | GateRefusal | None:
        """Wait for a person and return the approval of exactly this call, or why it was refused. Return None if the call was left."""
        ...


class Cluster(Protocol):
    """Makes calls on the workers of a cluster."""

    async def call(self, name: str, work: Callable[[], T]) -> T:
        """Return what `work` returns on a worker. It starts at most once, whatever becomes of its worker. `name` is shown in the cluster.

        A cancellation takes `work` back unless it has started; then it goes on, and its result is discarded. Raises ToolError if it did not
        start, and UnknownOutcomeError if it may have started and its result is lost.
        """
        ...


class StepCall(Protocol):
    """One unit of work: a step, or one item of its `for_each`."""

    @property
    def run(self) -> PlanRun:
        """The run that the call belongs to."""
        ...

    @property
    def step(self) -> Step:
        """The step as the plan defines it."""
        ...

    @property
    def step_run(self) -> StepRun:
        """The step's record. The items of one step share it."""
        ...

    @property
    def name(self) -> str:
        """The name shown to people: the step's id, with `for_each` followed by the item's label: `verify[web-2]`."""
        ...

    @property
    def key(self) -> str:
        """The unique key of the call within its run, the same in every start: the step's id, and the item's index from 0."""
        ...

    @property
    def item(self) -> int | None:
        """The index of the item, from 0, or None for a step without `for_each`."""
        ...

    @property
    def upstream(self) -> tuple[str, ...]:
        """The ids of the steps, or the keys of the calls, that this call waited for, transitively reduced."""
        ...

    @property
    def timeout_seconds(self) -> float | None:
        """The limit of one attempt, or None for no limit. Execution enforces it; a step runner only shows it."""
        ...

    @property
    def effect(self) -> Effect:
        """The effect of the call."""
        ...

    @property
    def tool_name(self) -> str:
        """The name of the tool."""
        ...

    @property
    def task(self) -> object | None:
        """The Prefect task behind the tool, or None for any other tool."""
        ...

    @property
    def retry_delays(self) -> list[float]:
        """The planned seconds between attempts, one per retry. `retry_delay` decides the real delay, which has jitter."""
        ...

    def attempt(self, *, without_prefect: bool = False) -> Awaitable[AttemptEnd]:
        """Make the next attempt: wait for a slot, resolve the parameters, write the intent, call the tool, write the receipt.

        With `without_prefect`, a Prefect flow is called as its plain function, which needs no server. Never raises for what a tool does.
        Raises StoreError if the intent cannot be written; the tool was not called then.
        """
        ...

    def parameters(self) -> dict[str, JsonValue]:
        """Return the parameters as the tool gets them; secrets are expressions. Raises ExpressionError."""
        ...

    def rehearse(self, answer: Callable[[dict[str, JsonValue], ToolContext], Awaitable[JsonValue]]) -> Awaitable[AttemptEnd]:
        """End the call with what `answer` returns for its parameters and context, in place of its tool. Nothing is recorded as attempted.

        Secrets stay expressions. If the parameters cannot be resolved or do not fit the tool, or `answer` raises, the call has failed.
        """
        ...

    def retry_delay(self, end: AttemptEnd) -> float | None:
        """Return the seconds to wait before another attempt, or None if `end` is final."""
        ...

    def stopped(self) -> Awaitable[AttemptEnd]:
        """Return when the run stops (by cancellation or the total timeout), with the end of the attempt that is no longer made.

        A runner that waits between attempts races its wait against this.
        """
        ...


class StepRunner(Protocol):
    """Runs calls: makes attempts until none is left, and shows the steps that were not called."""

    async def __call__(self, call: StepCall) -> AttemptEnd:
        """Make attempts of `call` until one succeeds or `retry_delay` returns None. Return the last end."""
        ...

    async def show(self, step: StepRun, upstream: tuple[str, ...], *, tags: Collection[str] = ()) -> None:
        """Show a step that ended without a call: skipped (with its `reason`), carried, or without items."""
        ...

    async def show_undone(self, key: str) -> None:
        """Show that what the call with `key` did, in this start or an earlier one, is rolled back."""
        ...

    async def show_carried(
        self,
        step_ids: Sequence[str],
        steps: Mapping[str, StepRun],
        upstream: Mapping[str, tuple[str, ...]],
        *,
        tags_of: Callable[[str], Collection[str]] = lambda _: (),
    ) -> None:
        """Show those of `steps` that succeeded in earlier starts of the run. They come first, each after the steps it waited for."""
        ...
