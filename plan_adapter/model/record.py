"""The record of a run: `PlanRun`, `StepRun`, `Attempt`, `Receipt`, `PlanSummary`; and `Recorder`, which keeps it.

Times are aware datetimes in UTC, by the store's clock. Durations are milliseconds.
"""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal, NamedTuple, Protocol

from pydantic import JsonValue

from plan_adapter.model.approvals import Approval, Resolution
from plan_adapter.model.errors import RunFailedError
from plan_adapter.model.host_process import HostProcess
from plan_adapter.model.language import later, tr
from plan_adapter.model.options import CallKind, Effect
from plan_adapter.model.plan import ASK, GOAL
from plan_adapter.model.problems import did_you_mean
from plan_adapter.model.readable import call_name, duration
from plan_adapter.model.status import Outcome, PlanStatus, RunOutcome, RunReason, StepStatus

MIN_ID_CHARACTERS = 4
"""The fewest characters of the beginning of a run's id that a person may type. With fewer, a typo could select another run."""
MIN_END_CHARACTERS = 6
"""The fewest characters of its end. Ids of runs that started within a minute begin alike, and differ at the end."""
LAST = "last"
"""What a person types for the newest run."""


def names_run(name: str, run_id: str) -> bool:
    """Return whether `run_id` is `name`, or begins or ends with it. A store looks runs up in the same way."""
    wanted = name.lower()
    return run_id == wanted or run_id.startswith(wanted) or (len(name) >= MIN_END_CHARACTERS and run_id.endswith(wanted))


def short_ids(run_ids: Sequence[str]) -> dict[str, str]:
    """Return a short form of each id: its end, or all of it if another one ends alike. `names_run` accepts both."""
    ends = Counter(run_id[-MIN_END_CHARACTERS:] for run_id in dict.fromkeys(run_ids))
    return {run_id: end if ends[end := run_id[-MIN_END_CHARACTERS:]] == 1 else run_id for run_id in run_ids}


def why_too_short(name: str) -> str | None:
    """Return why `name` has too few characters for the id of a run, or None if it has enough."""
    if len(name) >= MIN_ID_CHARACTERS:
        return None
    return (
        f"`{name}` is too short for the id of a run: give at least {MIN_ID_CHARACTERS} of its characters, or the last {MIN_END_CHARACTERS}"
    )


AUTHOR = "author"
"""The approver of a run whose plan requires no approval."""


ABORTED = "the run is to end here"
"""The error of a receipt that records no outcome because a person ended the run instead."""


@dataclass(frozen=True, slots=True)
class RunContext:
    """Whom a run belongs to. Stored with every row of the run and never shown to a model."""

    agent_id: str | None = None  # the agent that starts the run
    org_id: str | None = None  # its organization
    tenant_id: str | None = None  # the tenant whose records the run belongs to
    task_id: str | None = None  # the task that the run is a part of


@dataclass(frozen=True, slots=True)
class Attempt:
    """One try of a step, or of one item of its `for_each`. This is the intent, written before the tool is called."""

    id: str
    run_id: str
    step_id: str
    item: int | None
    number: int  # from 1, per step and item, continued across resumes
    tool_name: str
    effect: Effect
    parameters: dict[str, JsonValue]
    idempotency_key: str
    started_at: datetime
    approval_id: str | None = None  # set if the step has a gate of its own
    approval_digest: str | None = None  # of the call as it is made now
    code_digest: str | None = None  # of the source of the called tool; no approval binds to it
    label: str | None = None  # the item's name; None: its number
    kind: CallKind = "step"
    allowed_by: Approval | None = None
    """The approval of the plan, if its `always_execute` let the model of a goal make this call without a confirmation.

    The audit log has an entry about it. It is not loaded with the attempt.
    """


@dataclass(frozen=True, slots=True)
class Receipt:
    """The end of an attempt."""

    attempt_id: str
    run_id: str
    step_id: str
    item: int | None
    number: int
    outcome: Literal[Outcome.SUCCEEDED, Outcome.FAILED]
    result: JsonValue
    error: str | None
    ended_at: datetime
    duration_ms: int
    by: str | None = None  # the person or probe that reported the outcome; None: the tool itself
    known_by: str | None = None  # a `KnownBy`, or `probe`
    note: str | None = None
    kind: CallKind = "step"

    @property
    def is_abort(self) -> bool:
        """Whether a person ended the run without saying whether the call was done."""
        return self.by is not None and self.error == ABORTED

    @property
    def resolution(self) -> Resolution | None:
        """How a person or the tool's probe resolved the attempt; None if the tool itself ended it."""
        if self.by is None:
            return None
        return "done" if self.outcome is Outcome.SUCCEEDED else "abort" if self.is_abort else "again"


@dataclass(frozen=True, slots=True)
class PlanVersion:
    """One version of a named plan: its content's digest, author and creation time."""

    name: str
    version: int
    digest: str
    author: str
    created_at: datetime


@dataclass(frozen=True, slots=True)
class StartedCommand:
    """A command that the tool of an attempt started, if the tool itself did not record the end of the attempt."""

    attempt: Attempt
    process: HostProcess

    @property
    def state(self) -> Literal["running", "ended", "elsewhere"]:
        """Whether it runs on this host. Of a command on another host, nothing can be seen from here."""
        if not self.process.is_here:
            return "elsewhere"
        return "running" if self.process.session else "ended"

    @property
    def call(self) -> str:
        """The name of the call."""
        return call_name(self.attempt.step_id, self.attempt.item, self.attempt.label, kind=self.attempt.kind)

    @property
    def in_words(self) -> str:
        """Whether it still runs, where, as which process and for how long. Without a subject: `still runs here, pid 41, 12 s`."""
        pid, age = self.process.pid, self.process.age_seconds
        match self.state:
            case "running" if self.process.is_alive:
                return tr("still runs here, pid {pid}", pid=pid) + ("" if age is None else f", {duration(max(age, 1) * 1000)}")
            case "running":
                return tr("still runs here, pid {pids}, started by pid {pid}", pids=", ".join(map(str, self.process.session)), pid=pid)
            case "ended":
                return tr("has ended, pid {pid}", pid=pid)
            case "elsewhere":
                return tr("cannot be seen from here, it ran on {host}, pid {pid}", host=self.process.host, pid=pid)


class GroupItem(NamedTuple):
    """An item of a group, and how it ended."""

    label: str
    status: StepStatus
    rolled_back: bool = False  # everything of it that could be rolled back was
    is_started: bool = True  # one of its steps was called

    @property
    def in_words(self) -> str:
        """How the item ended: `failed and rolled back`."""
        return f"{self.status} and rolled back" if self.rolled_back else self.status.value


@dataclass(slots=True)
class StepRun:
    """One execution of a step. `reason` says why the step was skipped or failed. Only the engine writes it."""

    id: str  # the step's id
    index: int  # its place in the plan, from 0
    tool_name: str  # the tool it calls
    description: str  # the step's description
    depends_on: tuple[str, ...] = ()  # the steps it waits for
    status: StepStatus = StepStatus.PENDING  # where it stands
    outcome: Outcome | None = None  # how its last call ended; None: not called
    result: JsonValue = None  # what the tool returned; of a group, a list by item
    error: str | None = None  # the message of a failed call
    reason: str | None = None  # why it was skipped or not called
    retry_count: int = 0  # how many retries it has used
    max_retries: int = 0  # how many retries it may use
    retry_delay_ms: int = 0  # the wait before the second attempt
    attempts: int = 0  # how many calls were made
    carried: bool = False  # the result comes from an earlier start of the same run
    rolled_back: bool = False  # its rollback undid everything it did
    undoes: str | None = None  # set only for the rollback of a step, as hooks and events see it: the id of that step
    started_at: datetime | None = None  # when its first call began
    completed_at: datetime | None = None  # when it ended
    duration_ms: int = 0  # how long it took
    metadata: dict[str, JsonValue] = field(default_factory=dict[str, JsonValue])  # free notes
    group: str | None = None  # the id of the step around this one: a group, or a step that runs a plan
    items: list[GroupItem] = field(default_factory=list[GroupItem])  # of a group
    plan: str = ""  # the plan that the step runs, as written
    has_rollback: bool = False  # the step declares one

    @property
    def is_partly_done(self) -> bool:
        """Whether it is a step of a group that was called for some items but not for all."""
        return self.status is StepStatus.SKIPPED and self.started_at is not None

    @classmethod
    def pending(cls, step: Mapping[str, Any], index: int, *, depends_on: Sequence[str], group: str | None, attempts: int = 0) -> "StepRun":
        """Return the step run of a step that has not started. `step` maps a `Step`'s fields, or those in a document, to values."""
        return cls(
            id=step["id"],
            index=index,
            tool_name=step.get("tool_name") or (ASK if step.get("ask") else GOAL if step.get("goal") else ""),
            description=step.get("description", ""),
            depends_on=tuple(depends_on),
            attempts=attempts,
            max_retries=step.get("max_retries", 0),
            retry_delay_ms=step.get("retry_delay_ms", 0),
            metadata=dict(step.get("metadata", {})),
            group=group,
            plan=step.get("plan") or "",
            has_rollback=step.get("rollback") is not None,
        )


class StepEnd(NamedTuple):
    """How a step completed in an earlier start of the run."""

    reason: str | None
    retry_count: int
    started_at: datetime | None
    completed_at: datetime | None
    duration_ms: int


@dataclass(frozen=True, slots=True)
class PlanSummary:
    """The progress of a run. A group counts as its items, or as one step if none are known; the steps in it do not count.

    `progress` is 0..100, the share of all that has completed. `text` says the same in words: "1 of 3 nodes done, 1 failed, 1 not started".
    """

    id: str  # the run's id
    description: str  # the plan's description
    status: PlanStatus  # where the run stands
    total_steps: int  # how many steps the plan has
    completed: int  # how many have completed
    failed: int  # how many have failed
    pending: int  # how many have not started
    running: int  # how many run now
    skipped: int  # how many were skipped
    progress: float  # the part that has ended, from 0 to 1
    text: str  # all this in one line


def _noun_of(group: StepRun) -> str:
    """Return what the items of `group` are called: by the group's id if that is a plural, as in `nodes`."""
    if len(group.items) == 1:
        return tr("item of {group}", group=group.id)
    return group.id if group.id.endswith("s") else tr("items of {group}", group=group.id)


def _count_in_words(ends: Sequence[GroupItem], noun: str, unknown: Collection[str] = ()) -> str:
    """Return how many of `ends` are done, and how the others ended: `1 of 3 nodes done, 1 failed and rolled back, 1 not started`.

    `unknown` are the steps whose outcome is unknown.
    """
    done = [end for end in ends if end.status is StepStatus.COMPLETED]
    undone = sum(end.rolled_back for end in done)
    ways = Counter(_UNKNOWN if end.label in unknown else _way_of(end) for end in ends if end.status is not StepStatus.COMPLETED)
    parts = [tr("{count} of {all} {noun} done", count=len(done), all=len(ends), noun=noun)]
    parts += [tr("{count} of them rolled back", count=undone)] if undone else []
    return ", ".join([*parts, *(f"{ways[way]} {tr(way)}" for way in _WAYS if ways[way])])


_UNKNOWN = later("with an unknown outcome")
_WAYS = (later("failed and rolled back"), later("failed"), _UNKNOWN, later("skipped"), later("running"), later("not started"))


def _way_of(end: GroupItem) -> str:
    if end.status is StepStatus.PENDING or (end.status is StepStatus.SKIPPED and not end.is_started):
        return "not started"
    return end.in_words if end.in_words in _WAYS else end.status.value


@dataclass(frozen=True, slots=True)
class RunFolder:
    """The folder of a run. Commands and relative paths of its steps start here."""

    path: str  # the working directory, with symbolic links resolved
    files_root: str  # the root of `read_file` and `write_file`
    inodes: str = ""  # device:inode of both, because another folder may appear at the same path
    is_moved: bool = False  # whether somebody moved the run here; if so, its approval digest covers the folder

    @property
    def content(self) -> dict[str, str]:
        """The part of the folder that an approval covers if the run was moved here."""
        return {"path": self.path, "files_root": self.files_root, "inodes": self.inodes}


@dataclass(frozen=True, slots=True)
class RollbackStatus:
    """How the last rollback of a run ended. The status message says the same in words."""

    cause: str | None  # the status message without the words about the rollback
    can_continue: bool  # whether another rollback would undo more


_OUTCOMES_BY_REASON: dict[RunReason | None, RunOutcome] = {
    RunReason.UNKNOWN: RunOutcome.UNKNOWN_OUTCOME,
    RunReason.REJECTED: RunOutcome.REJECTED,
    RunReason.EXPIRED: RunOutcome.EXPIRED,
    RunReason.TIMED_OUT: RunOutcome.TIMED_OUT,
    RunReason.CANCELLED: RunOutcome.CANCELLED,
}


@dataclass(slots=True)
class PlanRun:
    """One execution of a plan. Only the engine writes it. The object that a run returns is its record."""

    id: str  # the run's id
    plan_id: str  # the id of the plan's document
    name: str  # the plan's name
    description: str  # the plan's description
    digest: str  # the digest of the plan that it runs now
    approval_digest: str  # the digest that an approval of the plan with these inputs and tools covers
    inputs: dict[str, JsonValue]  # the inputs, by name, with defaults; secrets as expressions
    steps: list[StepRun]  # the steps, in the order of the plan
    created_at: datetime  # when the store recorded it
    updated_at: datetime  # when it last changed
    status: PlanStatus = PlanStatus.DRAFT  # where it stands
    reason: RunReason | None = None  # why it ended, if it did not complete
    message: str | None = None  # the reason in words, such as who cancelled and why, or what timed out
    outputs: dict[str, JsonValue] = field(default_factory=dict[str, JsonValue])  # the plan's outputs, by name, once it completed
    flow_run_id: str | None = None  # its flow run in Prefect; None: it ran offline or has not started
    requested_by: str | None = None  # who started it: the operating system user, the schedule or the deployment
    task_id: str | None = None  # from `RunContext`, like the next three
    agent_id: str | None = None
    org_id: str | None = None
    tenant_id: str | None = None
    started_at: datetime | None = None  # when it first started
    completed_at: datetime | None = None  # when it ended, however it ended
    total_duration_ms: int = 0  # how long it took from start to end
    approved_at: datetime | None = None  # when the plan was approved
    approved_by: str | None = None  # who approved the plan
    rejection_note: str | None = None  # the note of the person who rejected it
    metadata: dict[str, JsonValue] = field(default_factory=dict[str, JsonValue])  # free notes
    folder: RunFolder | None = None  # where it runs: host and folder
    rollback: RollbackStatus | None = None  # how its rollback went; None: there was none

    @property
    def is_approved(self) -> bool:
        """Whether an approval of this content is recorded, or none was required."""
        return self.approved_at is not None or self.status in (PlanStatus.APPROVED, PlanStatus.EXECUTING, PlanStatus.COMPLETED)

    @property
    def can_execute(self) -> bool:
        """Whether the run is approved and has neither started nor ended."""
        return self.status is PlanStatus.APPROVED

    @property
    def is_completed(self) -> bool:
        """Whether the run is completed, failed or cancelled. A partial run is not, as in the original implementations."""
        return self.status in (PlanStatus.COMPLETED, PlanStatus.FAILED, PlanStatus.CANCELLED)

    @property
    def has_ended(self) -> bool:
        """Whether the run has ended, however: also as partial."""
        return self.status.has_ended

    @property
    def succeeded(self) -> bool:
        """Whether the run has ended with every step completed or skipped."""
        return self.status is PlanStatus.COMPLETED

    @property
    def outcome(self) -> RunOutcome | None:
        """How the run ended, in one word. None if it has not ended, unless its process died."""
        if not self.status.has_ended:
            return RunOutcome.INTERRUPTED if self.reason is RunReason.INTERRUPTED else None
        if self.rollback is not None and self.reason is not RunReason.UNKNOWN:
            is_left = any(step.has_rollback and step.attempts and not step.rolled_back for step in self.steps)
            return RunOutcome.ROLLBACK_INCOMPLETE if is_left else RunOutcome.ROLLED_BACK
        return _OUTCOMES_BY_REASON.get(self.reason) or RunOutcome(self.status.capitalize())

    @property
    def outcome_text(self) -> str:
        """The outcome with the reason that it hides, such as `RolledBack (rejected)`; the status of a run that has not ended."""
        if self.outcome is None:
            return self.status.value
        return self.outcome.value if self.hidden_reason is None else f"{self.outcome} ({self.hidden_reason})"

    @property
    def hidden_reason(self) -> RunReason | None:
        """Why the run ended, if its outcome does not say so."""
        is_hidden = self.reason is RunReason.EXHAUSTED or (self.rollback is not None and self.reason in _OUTCOMES_BY_REASON)
        return self.reason if is_hidden and self.reason is not RunReason.UNKNOWN else None

    @property
    def needs_new_run(self) -> bool:
        """Whether a resume would call nothing, because only items of groups failed and each of them was rolled back by itself."""
        failed = [step for step in self.steps if step.status is StepStatus.FAILED and not step.plan]
        groups = {step.id: step for step in failed if any(item.rolled_back for item in step.items)}
        if self.reason is not RunReason.STEP_FAILED or self.rollback is not None or not groups:
            return False
        items = [item for group in groups.values() for item in group.items if item.status is StepStatus.FAILED]
        return all(step.id in groups or step.group in groups for step in failed) and all(item.rolled_back for item in items)

    @property
    def current_step(self) -> StepRun | None:
        """The first running step, else the first pending step, else None."""
        by_status = {
            status: next((s for s in self.steps if s.status is status), None) for status in (StepStatus.RUNNING, StepStatus.PENDING)
        }
        return by_status[StepStatus.RUNNING] or by_status[StepStatus.PENDING]

    def transition(
        self, to: PlanStatus, *, reason: RunReason | None = None, message: str | None = None, completed_at: datetime | None = None
    ) -> None:
        """Change the status together with its reason and message. A resumed run loses its end time.

        Raises ValueError for an impossible change, such as from completed to executing.
        """
        if not self.status.can_become(to):
            raise ValueError(f"run {self.id} is {self.status} and cannot become {to}")
        self.status, self.reason, self.message = to, reason, message
        self.completed_at = completed_at or (self.completed_at if to.has_ended else None)

    def take_status(self, newer: "PlanRun") -> None:
        """Copy the status that another process has recorded meanwhile."""
        self.status, self.reason, self.message, self.completed_at = newer.status, newer.reason, newer.message, newer.completed_at

    def step(self, step_id: str) -> StepRun:
        """Return the step run with the id `step_id`. Raises KeyError with the nearest id if there is none."""
        for step in self.steps:
            if step.id == step_id:
                return step
        raise KeyError(f"no step is called `{step_id}`; {did_you_mean(str(step_id), [step.id for step in self.steps])}")

    def summary(self) -> PlanSummary:
        """Return the number of steps by status, with a group counted by item, and the progress. An empty run has progress 0."""
        plans = {step.id for step in self.steps if step.plan}
        whole = [step for step in self.steps if step.group is None or step.group in plans]  # not the steps of groups
        groups = [step for step in whole if step.items]
        steps = [
            GroupItem(step.id, step.status, rolled_back=step.rolled_back and step.status is StepStatus.COMPLETED)
            for step in whole
            if not step.items
        ]
        counted = [*steps, *(item for group in groups for item in group.items)]
        counts = Counter(end.status for end in counted)
        parts = [(steps, tr("step") if len(steps) == 1 else tr("steps"))] if steps or not groups else []
        parts += [(group.items, _noun_of(group)) for group in groups]
        unknown = {step.id for step in whole if step.outcome is Outcome.UNKNOWN}
        return PlanSummary(
            id=self.id,
            description=self.description,
            status=self.status,
            total_steps=len(counted),
            completed=counts[StepStatus.COMPLETED],
            failed=counts[StepStatus.FAILED],
            pending=counts[StepStatus.PENDING],
            running=counts[StepStatus.RUNNING],
            skipped=counts[StepStatus.SKIPPED],
            progress=round(100 * counts[StepStatus.COMPLETED] / len(counted), 1) if counted else 0.0,
            text="; ".join(_count_in_words(ends, noun, unknown if ends is steps else ()) for ends, noun in parts),
        )

    def raise_for_status(self) -> None:
        """Raise RunFailedError unless the run is completed."""
        if self.status is not PlanStatus.COMPLETED:
            raise RunFailedError(self)


class Recorder(Protocol):
    """Keeps the intents and receipts of one run. When `intent` returns, the intent and everything handed over before it are durable."""

    def now(self) -> datetime:
        """Return the store's time. Never blocks."""
        ...

    async def intent(self, attempt: Attempt) -> None:
        """Write `attempt` together with everything handed over before. Returns when it is durable.

        Raises NotApprovedError and writes no intent if the run has no valid approval at that moment, or the call has none and its step has
        a gate of its own. Raises StoreError.
        """
        ...

    def receipt(self, receipt: Receipt) -> None:
        """Hand over `receipt`. It is durable when the next intent or `flush` returns. Never blocks."""
        ...

    def command_started(self, attempt: Attempt, process: HostProcess) -> None:
        """Hand over the process of a command that the tool of `attempt` has started. Never blocks."""
        ...

    def step_ended(self, step: StepRun) -> None:
        """Hand over the end of a step (completed, failed or skipped). Never blocks."""
        ...

    async def calls_of_item(self, step_ids: Collection[str], item: int) -> tuple[Sequence[Attempt], Sequence[Receipt]]:
        """Return the attempts and receipts of one item of these steps, from all starts of the run. Raises StoreError."""
        ...

    async def flush(self) -> None:
        """Return when everything handed over is durable. Raise StoreError if something could not be written."""
        ...
