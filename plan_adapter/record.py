"""The record of a run: `PlanRun`, `StepRun`, `Attempt`, `Receipt`, `Approval`, `PlanSummary`; and `Recorder`, which keeps it.

Times are aware datetimes in UTC, by the store's clock. Durations are milliseconds.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any, Literal, NamedTuple, Protocol, TypeAlias

from pydantic import JsonValue

from plan_adapter.errors import RunFailedError
from plan_adapter.plan import ASK, GOAL, CallKind, Effect, Expiry, Input, PlanStatus, StepStatus

LEAST_ID_CHARACTERS = 4
"""The fewest characters of a run's id that identify the run. Fewer would let a typo pick a run."""

AUTHOR = "author"
"""The approver of a run whose plan requires no approval."""


ABORTED = "the run is to end here"
"""The error of a receipt that records no outcome, because a person ended the run instead."""


class RunReason(StrEnum):
    """Why a run ended, where its status alone does not say."""

    STEP_FAILED = "step_failed"
    TIMED_OUT = "timed_out"  # the total timeout
    REJECTED = "rejected"
    EXPIRED = "expired"
    CANCELLED = "cancelled"
    UNKNOWN = "unknown"  # a write began, and whether it happened is unknown
    INTERRUPTED = "interrupted"  # its process died
    EXHAUSTED = "exhausted"  # a goal was not met within its budget


class Outcome(StrEnum):
    """The outcome of an attempt, and of its step."""

    SUCCEEDED = "succeeded"
    FAILED = "failed"
    UNKNOWN = "unknown"  # an intent without a receipt


@dataclass(frozen=True, slots=True)
class RunContext:
    """The owner of a run. It is stored with every row and never shown to a model."""

    agent_id: str | None = None
    org_id: str | None = None
    tenant_id: str | None = None
    task_id: str | None = None


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
        """Whether a person ended the run here without saying if the call was done."""
        return self.by is not None and self.error == ABORTED

    @property
    def resolution(self) -> "Resolution | None":
        """How a person or the tool's probe resolved the attempt; None if the tool itself ended it."""
        if self.by is None:
            return None
        return "done" if self.outcome is Outcome.SUCCEEDED else "abort" if self.is_abort else "again"


class GroupItem(NamedTuple):
    """An item of a group, and how it ended."""

    label: str
    status: StepStatus


@dataclass(slots=True)
class StepRun:
    """One execution of a step. `reason` says why the step was skipped or failed. Only the engine writes it."""

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
    carried: bool = False  # the result comes from an earlier start of the same run
    rolled_back: bool = False  # its rollback undid everything it did
    undoes: str | None = None  # set only for the rollback of a step, as hooks and events see it: the id of that step
    started_at: datetime | None = None
    completed_at: datetime | None = None
    duration_ms: int = 0
    metadata: dict[str, JsonValue] = field(default_factory=dict[str, JsonValue])
    group: str | None = None  # the id of the step that this one is inside of: a group, or one that runs a plan
    items: list[GroupItem] = field(default_factory=list[GroupItem])  # of a group
    plan: str = ""  # the plan that the step runs, as written

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
    """The progress of a run. `progress` is 0..100, the share of steps that have ended."""

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


@dataclass(slots=True)
class PlanRun:
    """One execution of a plan. Only the engine writes it. The object that a run returns is its record."""

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
    message: str | None = None  # the reason in words, such as who cancelled and why, or what timed out
    outputs: dict[str, JsonValue] = field(default_factory=dict[str, JsonValue])
    flow_run_id: str | None = None
    requested_by: str | None = None  # who started it: the operating system user, the schedule or the deployment
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
        """Whether an approval of this content is recorded, or none was required."""
        return self.approved_at is not None or self.status in (PlanStatus.APPROVED, PlanStatus.EXECUTING, PlanStatus.COMPLETED)

    @property
    def can_execute(self) -> bool:
        """Whether the run is approved and has neither started nor ended."""
        return self.status is PlanStatus.APPROVED

    @property
    def is_completed(self) -> bool:
        """Whether the run is completed, failed or cancelled. A partial run is not, as in the seeds."""
        return self.status in (PlanStatus.COMPLETED, PlanStatus.FAILED, PlanStatus.CANCELLED)

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
        """Return the step run with the id `step_id`. Raise KeyError, which lists the existing steps, if there is none."""
        for step in self.steps:
            if step.id == step_id:
                return step
        known = ", ".join(step.id for step in self.steps[:20])
        raise KeyError(f"no step is called {step_id!r}; steps: {known}")

    def summary(self) -> PlanSummary:
        """Return the number of steps by status, and the progress. An empty run has progress 0."""
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
"""A person's answer about an unknown outcome: it was done; it was not, run it again; end the run here."""

OperatorRequestKind: TypeAlias = Literal["skip", "run_from", "rollback"]
"""What an operator can request outside a gate: skip steps, run from a skipped step after all, or roll the run back."""

Decision: TypeAlias = Literal["approve", "reject", "request_changes"]
GateKind: TypeAlias = Literal["approval", "question", "outcome"]
"""What a gate asks: whether the plan or a call may run, a question of the plan, or how a call with an unknown outcome ended.

`approve` answers a question, with the values of its fields. An outcome gate approves nothing.
"""

GateEnd: TypeAlias = Literal["answered", "expired", "cancelled", "superseded"] | Resolution
"""How a gate was closed. `superseded`: a new version of the plan replaced the question. An outcome gate closes with the resolution."""


@dataclass(frozen=True, slots=True)
class Approval:
    """One recorded answer: the content it covers, who gave it, how they were identified, and until when it is valid."""

    id: str
    approval_digest: str  # for a step, the digest of its resolved call
    decision: Decision
    by: str
    known_by: str  # a `KnownBy`, or `not_required` if the plan requires no approval
    at: datetime
    note: str = ""
    expires_at: datetime | None = None
    run_id: str | None = None  # the run it was given for, or that used it
    step_id: str | None = None  # None: it covers the whole plan
    item: int | None = None
    gate_id: str | None = None  # the gate it answers
    standing_id: str | None = None  # the standing approval it came from
    signature: str | None = None  # an armored SSH signature of `signed_text`
    used_at: datetime | None = None  # when the run or the call started with it
    result: JsonValue = None  # the answer to a question, by field


@dataclass(frozen=True, slots=True)
class Answer:
    """An unchecked answer at a gate. All of it is untrusted text."""

    decision: Decision | Resolution  # depends on the kind of gate
    by: str
    note: str = ""
    channel: Literal["os_user", "form", "unverified"] = "unverified"  # how `by` is known without `code` and `signature`
    code: str | None = None  # a one-time code
    signature: str | None = None  # an armored SSH signature of `text_to_sign`
    result: JsonValue = None  # with `done`: what the call returned; at a question: the answer, by field
    digest: str | None = None  # a prefix of the digest shown with the question; None: not given


@dataclass(frozen=True, slots=True)
class GatePolicy:
    """What an answer must satisfy. It combines the plan's policy and the settings as they were when the gate opened."""

    approvers: tuple[str, ...] | None = None  # names, with groups resolved; None: anyone
    known_by: tuple[str, ...] | None = None  # None: any proof
    self_approval: bool = True
    requested_by: str = ""  # who started the run
    revised_by: str = ""  # who replaced an earlier version with the content in question
    expires: Expiry = "reject"
    remind_after_ms: int = 0
    release: bool = False
    excluded_by: str = ""  # the environment variable that leaves nobody, or no proof, to answer with


@dataclass(frozen=True, slots=True)
class Gate:
    """A pause before a plan (`step_id` is None) or a step, or, with kind `outcome`, after a call whose outcome is unknown."""

    id: str
    run_id: str
    step_id: str | None
    item: int | None
    approval_digest: str  # the digest that an answer binds to
    name: str  # of the plan
    description: str  # of the plan, or of the step
    text: str  # Markdown: exactly what would run
    rules: GatePolicy
    opened_at: datetime
    expires_at: datetime | None = None
    closed_at: datetime | None = None
    end: GateEnd | None = None  # None while it is open
    flow_run_id: str | None = None  # the flow run whose page shows the form
    keyset: str | None = None  # the key under which Prefect keeps the form's answer
    openings: int = 1  # how often it was shown: again after a kill, a forced state or a refused answer
    attended: bool | None = None  # whether a process waits at it; None: on another host, so unknown
    kind: GateKind = "approval"
    label: str | None = None  # the item's name; None: its number
    call_kind: CallKind = "step"
    fields: Mapping[str, Input] = field(default_factory=dict[str, Input])  # of the answer to a question

    @property
    def is_released(self) -> bool:
        """Whether the run has released its worker and starts again by itself once the gate is answered."""
        return self.rules.release and self.attended is False and (self.keyset or "").startswith("suspended-")

    def is_over(self, now: datetime) -> bool:
        """Return whether an open gate has expired at `now` and no process is there to close it."""
        return self.attended is False and self.expires_at is not None and self.expires_at <= now


@dataclass(frozen=True, slots=True)
class ApprovalRequest:
    """What an approver is asked: the content as text, and the digest that an answer binds to."""

    approval_digest: str
    name: str
    description: str
    text: str  # Markdown: exactly what would run
    run_id: str | None = None
    step_id: str | None = None  # None: the whole plan
    item: int | None = None
    gate_id: str | None = None
    opened_at: datetime | None = None
    expires_at: datetime | None = None
    rules: GatePolicy = field(default_factory=GatePolicy)
    refused: str | None = None  # why the previous answer was refused
    kind: GateKind = "approval"
    operator_request: OperatorRequestKind | None = None  # a request made outside any gate; the answer approves it
    label: str | None = None  # the item's name; None: its number
    call_kind: CallKind = "step"
    fields: Mapping[str, Input] = field(default_factory=dict[str, Input])  # of the answer to a question


@dataclass(frozen=True, slots=True)
class StandingApproval:
    """One approval for many runs. It covers a runbook digest, input patterns and named schedules, until a date or a number of runs."""

    id: str
    runbook_digest: str  # of the plan digest and the tool definitions
    name: str  # of the plan
    by: str
    known_by: str
    at: datetime
    inputs: dict[str, JsonValue]  # by input: a text is a regular expression for the whole value, anything else is the value itself
    schedules: tuple[str, ...]  # the `flow/deployment` names whose scheduled runs it covers
    steps: tuple[str, ...] = ()  # steps whose gates it answers as well
    until: datetime | None = None
    max_runs: int | None = None
    runs: int = 0  # how many runs have used it
    note: str = ""
    signature: str | None = None
    source: str | None = None  # the file that contains it
    revoked_at: datetime | None = None
    revoked_by: str | None = None


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

    def step_ended(self, step: StepRun) -> None:
        """Hand over the end of a step (completed, failed or skipped). Never blocks."""
        ...

    async def flush(self) -> None:
        """Return when everything handed over is durable. Raise StoreError if something could not be written."""
        ...
