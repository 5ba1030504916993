"""What happened: `PlanRun`, `StepRun`, `Attempt`, `Receipt`, `Approval`, `PlanSummary`; and `Recorder`, which keeps it.

Times are aware datetimes in UTC by the store's clock; durations are milliseconds.
"""

from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Literal, NamedTuple, Protocol, TypeAlias

from pydantic import JsonValue

from plan_adapter.errors import RunFailedError
from plan_adapter.plan import CallKind, Effect, PlanStatus, StepStatus

LEAST_ID_CHARACTERS = 4
"""How much of a run's id names the run: at least so much, so that no slip of a finger does."""

AUTHOR = "author"
"""By whom a run is approved whose plan says that it needs no approval."""


ABORTED = "the run is to end here"
"""The error of a receipt that says nothing of how the call ended, because a person had the run end instead."""


class RunReason(StrEnum):
    """Why a run ended as it did, where its status alone does not say."""

    STEP_FAILED = "step_failed"
    TIMED_OUT = "timed_out"  # the total timeout
    REJECTED = "rejected"
    EXPIRED = "expired"
    CANCELLED = "cancelled"
    UNKNOWN = "unknown"  # a write began and nobody knows whether it happened
    INTERRUPTED = "interrupted"  # its process died


class Outcome(StrEnum):
    """How an attempt, and with it its step, came out."""

    SUCCEEDED = "succeeded"
    FAILED = "failed"
    UNKNOWN = "unknown"  # an intent without a receipt


@dataclass(frozen=True, slots=True)
class RunContext:
    """Whose run it is; goes to every row and is never shown to a model."""

    agent_id: str | None = None
    org_id: str | None = None
    tenant_id: str | None = None
    task_id: str | None = None


@dataclass(frozen=True, slots=True)
class Attempt:
    """The intent: one try of a step (or of one item of its `for_each`), written before the tool is called."""

    id: str
    run_id: str
    step_id: str
    item: int | None
    number: int  # from 1, per step and item, going on over resumes
    tool_name: str
    effect: Effect
    parameters: dict[str, JsonValue]
    idempotency_key: str
    started_at: datetime
    approval_id: str | None = None  # of a step that waited at a gate of its own
    approval_digest: str | None = None  # of that call, as it is made now
    code_digest: str | None = None  # of the source of the tool that was called; no approval binds to it
    label: str | None = None  # what the item is called, where not by its number
    kind: CallKind = "step"


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
    by: str | None = None  # whose word it is, where not the tool has told the outcome: a person's, or the tool's probe's
    known_by: str | None = None  # a `KnownBy`, or `probe`
    note: str | None = None
    kind: CallKind = "step"

    @property
    def is_abort(self) -> bool:
        """Whether a person ended the run by it, and did not say whether the call was done."""
        return self.by is not None and self.error == ABORTED

    @property
    def resolution(self) -> "Resolution | None":
        """What a person, or the tool's probe, said about the attempt; None where its tool ended it."""
        if self.by is None:
            return None
        return "done" if self.outcome is Outcome.SUCCEEDED else "abort" if self.is_abort else "again"


@dataclass(slots=True)
class StepRun:
    """One execution of a step. `reason` says why it was skipped or failed; written by the engine only."""

    id: str
    index: int
    tool_name: str
    description: str
    depends_on: tuple[str, ...] = ()
    status: StepStatus = StepStatus.PENDING
    outcome: Outcome | None = None
    result: JsonValue = None
    error: str | None = None
    reason: str | None = None
    retry_count: int = 0
    max_retries: int = 0
    retry_delay_ms: int = 0
    attempts: int = 0
    carried: bool = False  # its result comes from an earlier start of the same run
    rolled_back: bool = False  # all that it did was undone by its rollback
    undoes: str | None = None  # of what is no step of the run, but the rollback of one, as hooks and events are given it: that step's id
    started_at: datetime | None = None
    completed_at: datetime | None = None
    duration_ms: int = 0
    metadata: dict[str, JsonValue] = field(default_factory=dict[str, JsonValue])


class StepEnd(NamedTuple):
    """How a step was completed in an earlier start of the run."""

    reason: str | None
    retry_count: int
    started_at: datetime | None
    completed_at: datetime | None
    duration_ms: int


@dataclass(frozen=True, slots=True)
class PlanSummary:
    """How far a run is; `progress` is 0..100: the share of steps that have ended."""

    id: str
    description: str
    status: PlanStatus
    total_steps: int
    completed: int
    failed: int
    pending: int
    running: int
    skipped: int
    progress: float


@dataclass(frozen=True, slots=True)
class RunFolder:
    """Where a run works: commands and relative paths of its steps start here."""

    path: str  # the working directory, links followed
    files_root: str  # the folder of `read_file` and `write_file`
    inodes: str = ""  # device:inode of both: another folder may be put at the same path
    is_moved: bool = False  # whether somebody moved the run here: its approval digest covers the folder then

    @property
    def content(self) -> dict[str, str]:
        """What an approval of a run that was moved here covers of the folder."""
        return {"path": self.path, "files_root": self.files_root, "inodes": self.inodes}


@dataclass(frozen=True, slots=True)
class RollbackStatus:
    """How the last rollback of a run ended; the run's message says it in words, too."""

    cause: str | None  # the run's message without those words
    can_continue: bool  # whether another rollback would undo more


@dataclass(slots=True)
class PlanRun:
    """One execution of a plan. Written by the engine only; what it returns is the record."""

    id: str
    plan_id: str
    name: str
    description: str
    digest: str
    approval_digest: str
    inputs: dict[str, JsonValue]
    steps: list[StepRun]
    created_at: datetime
    updated_at: datetime
    status: PlanStatus = PlanStatus.DRAFT
    reason: RunReason | None = None
    message: str | None = None  # the reason in words: who cancelled and why, what timed out
    outputs: dict[str, JsonValue] = field(default_factory=dict[str, JsonValue])
    flow_run_id: str | None = None
    requested_by: str | None = None  # who started it: the operating system's user, or the schedule or deployment
    task_id: str | None = None
    agent_id: str | None = None
    org_id: str | None = None
    tenant_id: str | None = None
    started_at: datetime | None = None
    completed_at: datetime | None = None
    total_duration_ms: int = 0
    approved_at: datetime | None = None
    approved_by: str | None = None
    rejection_note: str | None = None
    metadata: dict[str, JsonValue] = field(default_factory=dict[str, JsonValue])
    folder: RunFolder | None = None
    rollback: RollbackStatus | None = None

    @property
    def is_approved(self) -> bool:
        """True if an approval of this content is recorded, or none was required."""
        return self.approved_at is not None or self.status in (PlanStatus.APPROVED, PlanStatus.EXECUTING, PlanStatus.COMPLETED)

    @property
    def can_execute(self) -> bool:
        """True if the run is approved and has neither started nor ended."""
        return self.status is PlanStatus.APPROVED

    @property
    def is_completed(self) -> bool:
        """True if the run is completed, failed or cancelled; false for partial, as in the seeds."""
        return self.status in (PlanStatus.COMPLETED, PlanStatus.FAILED, PlanStatus.CANCELLED)

    @property
    def current_step(self) -> StepRun | None:
        """The first step that runs, else the first that is pending, else None."""
        by_status = {
            status: next((s for s in self.steps if s.status is status), None) for status in (StepStatus.RUNNING, StepStatus.PENDING)
        }
        return by_status[StepStatus.RUNNING] or by_status[StepStatus.PENDING]

    def transition(
        self, to: PlanStatus, *, reason: RunReason | None = None, message: str | None = None, completed_at: datetime | None = None
    ) -> None:
        """Change the status, with its reason and message; a run that goes on has no end any more.

        Raises ValueError for a change that no run makes, such as from completed to executing.
        """
        if not self.status.can_become(to):
            raise ValueError(f"run {self.id} is {self.status} and cannot become {to}")
        self.status, self.reason, self.message = to, reason, message
        self.completed_at = completed_at or (self.completed_at if to.has_ended else None)

    def take_status(self, newer: "PlanRun") -> None:
        """Take over the status that another process has recorded meanwhile."""
        self.status, self.reason, self.message, self.completed_at = newer.status, newer.reason, newer.message, newer.completed_at

    def step(self, step_id: str) -> StepRun:
        """Return the step run called `step_id`; raises KeyError, which names the steps that exist."""
        for step in self.steps:
            if step.id == step_id:
                return step
        known = ", ".join(step.id for step in self.steps[:20])
        raise KeyError(f"no step is called {step_id!r}; steps: {known}")

    def summary(self) -> PlanSummary:
        """Return the counts of steps by status and the progress; an empty run has progress 0."""
        counts = dict.fromkeys(StepStatus, 0)
        for step in self.steps:
            counts[step.status] += 1
        total = len(self.steps)
        ended = counts[StepStatus.COMPLETED] + counts[StepStatus.FAILED] + counts[StepStatus.SKIPPED]
        return PlanSummary(
            id=self.id,
            description=self.description,
            status=self.status,
            total_steps=total,
            completed=counts[StepStatus.COMPLETED],
            failed=counts[StepStatus.FAILED],
            pending=counts[StepStatus.PENDING],
            running=counts[StepStatus.RUNNING],
            skipped=counts[StepStatus.SKIPPED],
            progress=round(100 * ended / total, 1) if total else 0.0,
        )

    def raise_for_status(self) -> None:
        """Raise RunFailedError unless the run is completed."""
        if self.status is not PlanStatus.COMPLETED:
            raise RunFailedError(self)


Resolution: TypeAlias = Literal["done", "again", "abort"]
"""What a person says about an unknown outcome: it was done; it was not, run it again; end the run here."""

OperatorRequestKind: TypeAlias = Literal["leave_out", "take_back", "undo"]
"""What a person asks for of a run beside its gates: to leave steps out, to take that back, to undo what was done."""

Decision: TypeAlias = Literal["approve", "reject", "request_changes"]
GateKind: TypeAlias = Literal["approval", "outcome"]
"""What a gate asks: whether the plan, or a call, may run; or how a call ended of which nobody knows it, whose answer approves nothing."""

GateEnd: TypeAlias = Literal["answered", "expired", "cancelled", "superseded"] | Resolution
"""`superseded`: what the gate asked about is not asked any more, because a new version of the plan took its place. A gate that asks how
a call ended is closed with what was said."""


@dataclass(frozen=True, slots=True)
class Approval:
    """One recorded answer: to which content, by whom, how they were known, until when."""

    id: str
    approval_digest: str  # of a step: the digest of its resolved call
    decision: Decision
    by: str
    known_by: str  # a `KnownBy`, or `not_required` for a plan that asks for none
    at: datetime
    note: str = ""
    expires_at: datetime | None = None
    run_id: str | None = None  # the run that it was given for, or that used it
    step_id: str | None = None  # None: of the whole plan
    item: int | None = None
    gate_id: str | None = None  # the gate that it answers
    standing_id: str | None = None  # the standing approval that gave it
    signature: str | None = None  # an armored SSH signature of `signed_text`
    used_at: datetime | None = None  # when the run, or the call, began with it


@dataclass(frozen=True, slots=True)
class Answer:
    """What somebody says at a gate, before it is looked at; all of it is untrusted text."""

    decision: Decision | Resolution  # by the kind of the gate
    by: str
    note: str = ""
    channel: Literal["os_user", "form", "unverified"] = "unverified"  # how `by` is known without `code` and `signature`
    code: str | None = None  # a one-time code
    signature: str | None = None  # an armored SSH signature of `text_to_sign`
    result: JsonValue = None  # with `done`: what the call gave back
    digest: str | None = None  # the beginning of the digest that was shown with the question; None: nothing was said of it


@dataclass(frozen=True, slots=True)
class GateRules:
    """What an answer must fit, as it stood when the gate was opened: the plan's policy and the settings together."""

    approvers: tuple[str, ...] | None = None  # names, groups resolved; None: anyone
    known_by: tuple[str, ...] | None = None  # None: in any way
    self_approval: bool = True
    requested_by: str = ""  # who started the run
    revised_by: str = ""  # who put what is asked about in the place of an earlier version
    expires: Literal["reject", "skip"] = "reject"
    remind_after_ms: int = 0
    release: bool = False
    excluded_by: str = ""  # the environment variable that leaves nobody, or no proof, to answer with


@dataclass(frozen=True, slots=True)
class Gate:
    """The pause before a plan (`step_id` None) or a step; or, of the kind `outcome`, after a call of which nobody knows how it ended."""

    id: str
    run_id: str
    step_id: str | None
    item: int | None
    approval_digest: str  # what an answer binds to
    name: str  # of the plan
    description: str  # of the plan, or of the step
    text: str  # Markdown: what would run, exactly
    rules: GateRules
    opened_at: datetime
    expires_at: datetime | None = None
    closed_at: datetime | None = None
    end: GateEnd | None = None  # None while it is open
    flow_run_id: str | None = None  # the flow run whose page shows the form
    keyset: str | None = None  # under which Prefect keeps the form's answer
    openings: int = 1  # how often it was shown: after a kill, a forced state, a refused answer
    attended: bool | None = None  # whether a process waits at it; None: one on another host, of which nothing is known
    kind: GateKind = "approval"
    label: str | None = None  # what the item is called, where not by its number
    call_kind: CallKind = "step"

    @property
    def is_released(self) -> bool:
        """Whether its run gave its worker back, and starts again by itself once it is answered."""
        return self.rules.release and self.attended is False and (self.keyset or "").startswith("suspended-")

    def is_over(self, now: datetime) -> bool:
        """Return whether, of an open gate, the time to answer is over at `now` and no process is there to end it."""
        return self.attended is False and self.expires_at is not None and self.expires_at <= now


@dataclass(frozen=True, slots=True)
class ApprovalRequest:
    """What an approver is asked: the content as text, and the digest that an answer binds to."""

    approval_digest: str
    name: str
    description: str
    text: str  # Markdown: what would run, exactly
    run_id: str | None = None
    step_id: str | None = None  # None: the whole plan
    item: int | None = None
    gate_id: str | None = None
    opened_at: datetime | None = None
    expires_at: datetime | None = None
    rules: GateRules = field(default_factory=GateRules)
    refused: str | None = None  # why the answer before was not taken
    kind: GateKind = "approval"
    operator_request: OperatorRequestKind | None = None  # what somebody asks for by themselves, at no gate; their answer approves it
    label: str | None = None  # what the item is called, where not by its number
    call_kind: CallKind = "step"


@dataclass(frozen=True, slots=True)
class StandingApproval:
    """One approval for many runs: a runbook digest, an input pattern, named schedules, until a date or a number of runs."""

    id: str
    runbook_digest: str  # of plan digest and tool definitions
    name: str  # of the plan
    by: str
    known_by: str
    at: datetime
    inputs: dict[str, JsonValue]  # by input: a text is a regular expression that the whole value fits, anything else the value itself
    schedules: tuple[str, ...]  # `flow/deployment` whose scheduled runs it covers
    steps: tuple[str, ...] = ()  # steps whose gates it answers, too
    until: datetime | None = None
    max_runs: int | None = None
    runs: int = 0  # that have used it
    note: str = ""
    signature: str | None = None
    source: str | None = None  # the file that it stands in
    revoked_at: datetime | None = None
    revoked_by: str | None = None


class Recorder(Protocol):
    """Keeps intents and receipts of one run. An intent is durable when the call returns; what was handed over before it, too."""

    def now(self) -> datetime:
        """Return the store's time; never blocks."""
        ...

    async def intent(self, attempt: Attempt) -> None:
        """Write `attempt`, together with everything handed over before; returns when it is durable.

        Raises NotApprovedError, and writes nothing of it, where no valid approval of the run (and of the call, where the step has a
        gate of its own) is there at that moment. Raises StoreError.
        """
        ...

    def receipt(self, receipt: Receipt) -> None:
        """Hand over `receipt`; it is durable when the next intent or `flush` returns. Never blocks."""
        ...

    def step_ended(self, step: StepRun) -> None:
        """Hand over the end of a step (completed, failed or skipped). Never blocks."""
        ...

    async def flush(self) -> None:
        """Return when everything handed over is durable; raises StoreError if something could not be written."""
        ...
