"""The plan as a value: `ExecutionPlan`, `Step`, `ExecutionOptions`, `Input`, and the statuses of plans and steps.

Field names, defaults and statuses are those of the seeds' ExecutionPlan. A plan is mutable until it is validated.
"""

from enum import StrEnum
from typing import Any, Literal, TypeAlias

from pydantic import BaseModel, ConfigDict, Field, JsonValue, PrivateAttr
from uuid_utils import uuid7

Effect: TypeAlias = Literal["read", "idempotent_write", "write"]
Isolation: TypeAlias = Literal["thread", "process"]
InputType: TypeAlias = Literal["string", "integer", "number", "boolean", "array", "object"]

EFFECTS: tuple[Effect, ...] = ("read", "idempotent_write", "write")
"""From the least to the most."""


class PlanStatus(StrEnum):
    """Where a plan's run stands."""

    DRAFT = "draft"  # written, not yet asked about
    PENDING_APPROVAL = "pending_approval"  # waits for an answer
    APPROVED = "approved"  # may start
    EXECUTING = "executing"  # has started and not ended
    COMPLETED = "completed"  # every step completed or was skipped by its own `when`
    FAILED = "failed"  # a step failed and nothing completed
    CANCELLED = "cancelled"  # rejected, expired or cancelled
    PARTIAL = "partial"  # a step failed and something completed


class StepStatus(StrEnum):
    """Where a step stands."""

    PENDING = "pending"
    RUNNING = "running"
    COMPLETED = "completed"
    FAILED = "failed"
    SKIPPED = "skipped"  # never started; its `reason` says why


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=False, validate_assignment=False, populate_by_name=True)


class Input(_Model):
    """One typed input of a plan; one without a default must be given."""

    type: InputType = "string"
    description: str = ""
    default: JsonValue = None
    enum: list[JsonValue] | None = None
    pattern: str | None = None  # of the whole value, as JSON Schema's `pattern` does it: anchor it yourself
    min_length: int | None = Field(default=None, ge=0)
    max_length: int | None = Field(default=None, ge=0)
    minimum: float | None = None
    maximum: float | None = None
    items: InputType | None = None  # type of an array's members

    @property
    def is_required(self) -> bool:
        """True where no default is written; `default: null` is no default."""
        return self.default is None


class Rollback(_Model):
    """The call that undoes a completed step."""

    tool_name: str
    parameters: dict[str, JsonValue] = Field(default_factory=dict)


class Concurrency(_Model):
    """Which runs of one plan exclude each other."""

    key: str
    when_busy: Literal["refuse", "queue", "cancel_older"] = "refuse"


class ApprovalPolicy(_Model):
    """Who may approve, and what happens when nobody does."""

    approvers: list[str] = Field(default_factory=list)
    expires: Literal["reject"] = "reject"
    release: bool = False


class ExecutionOptions(_Model):
    """How a plan is executed. Times are milliseconds; 0 means no limit."""

    require_approval: bool = True
    auto_approve: bool = False
    approval_timeout_ms: int = Field(default=0, ge=0)
    allow_parallel: bool = False
    max_parallel_steps: int = Field(default=3, ge=1)
    stop_on_error: bool = True
    continue_on_error: bool = False
    step_timeout_ms: int = Field(default=0, ge=0)
    total_timeout_ms: int = Field(default=0, ge=0)

    def model_post_init(self, _context: Any, /) -> None:
        """Let the error policy that was not written be the opposite of the one that was."""
        written = self.model_fields_set & {"stop_on_error", "continue_on_error"}
        if len(written) == 1:
            self._mirror(written.pop())

    def __setattr__(self, name: str, value: Any) -> None:
        """Set a field; setting one error policy turns the other unless that one was set, too."""
        super().__setattr__(name, value)
        if name in ("stop_on_error", "continue_on_error"):
            self._mirror(name)

    def _mirror(self, written: str) -> None:
        other = "continue_on_error" if written == "stop_on_error" else "stop_on_error"
        if other not in self.model_fields_set:
            object.__setattr__(self, other, not getattr(self, written))  # written by nobody, so not in model_fields_set

    @property
    def on_error(self) -> Literal["stop", "continue"]:
        """What a failed step without an `on_error` of its own does to the rest of the plan."""
        return "stop" if self.stop_on_error else "continue"

    @property
    def parallel_limit(self) -> int:
        """How many steps may run at once."""
        return self.max_parallel_steps if self.allow_parallel else 1


class Step(_Model):
    """One tool call, or one goal, of a plan."""

    id: str = ""  # made (`step_1`, …) where it is empty
    tool_name: str | None = None
    goal: str | None = None
    description: str = ""
    parameters: dict[str, JsonValue] = Field(default_factory=dict)
    input: str = ""  # the seeds' raw string; used only where `parameters` is empty
    depends_on: list[str] = Field(default_factory=list)
    when: str | None = None
    for_each: str | None = None
    done_when: str | None = None
    max_retries: int = Field(default=0, ge=0)
    retry_delay_ms: int = Field(default=0, ge=0)
    retry_backoff: float = Field(default=1.0, ge=1.0)  # each delay is the one before times this
    retry_jitter: float = Field(default=0.0, ge=0.0, le=1.0)  # each delay varies by up to this share
    timeout_ms: int | None = Field(default=None, ge=0)  # per attempt; None: options.step_timeout_ms
    effect: Effect | None = None  # what this call does, where the tool's own effect says too much
    isolation: Isolation | None = None
    on_error: Literal["stop", "continue"] | None = None
    requires_approval: bool = False
    rollback: Rollback | None = None
    tools: list[str] = Field(default_factory=list)  # of a goal step
    max_rounds: int | None = Field(default=None, ge=1)  # of a goal step
    metadata: dict[str, JsonValue] = Field(default_factory=dict)

    _index: int = PrivateAttr(default=0)

    @property
    def index(self) -> int:
        """The step's place in its plan, from 0."""
        return self._index


class ExecutionPlan(_Model):
    """A description, typed inputs, steps and options: what is approved and run.

    `id` and the steps' ids are made where they are missing; `name` defaults to the first line of the description.
    """

    version: Literal[1] = 1
    id: str = Field(default_factory=lambda: new_id())
    name: str = ""
    description: str
    inputs: dict[str, Input] = Field(default_factory=dict)
    options: ExecutionOptions = Field(default_factory=ExecutionOptions)
    steps: list[Step] = Field(default_factory=list)
    finally_: list[Step] = Field(default_factory=list, alias="finally")
    concurrency: Concurrency | None = None
    approval: ApprovalPolicy | None = None
    isolation: Isolation | None = None
    outputs: dict[str, JsonValue] = Field(default_factory=dict)
    metadata: dict[str, JsonValue] = Field(default_factory=dict)

    # What a document of the seeds says about an earlier execution (Status, Result, UserApproved, …): shown, never trusted.
    _history: dict[str, JsonValue] = PrivateAttr(default_factory=dict)
    # Where each path of the document stands: (line, column) from 1, and the file. Outside digest and equality.
    _marks: dict[str, tuple[int, int]] = PrivateAttr(default_factory=dict)
    _file: str | None = PrivateAttr(default=None)

    def model_post_init(self, _context: Any, /) -> None:
        """Make the name and the ids that are missing."""
        self.number_steps()

    def __eq__(self, other: object) -> bool:
        """Compare by what is written; ids that were made, marks and history do not count."""
        return isinstance(other, ExecutionPlan) and self._written() == other._written()

    __hash__ = None  # type: ignore[assignment]  # a plan is mutable

    def _written(self) -> dict[str, Any]:
        left_out = set[str]() if "id" in self.model_fields_set else {"id"}
        return self.model_dump(exclude=left_out)

    @property
    def history(self) -> dict[str, JsonValue]:
        """What the document said about an earlier execution; neither approval nor receipts."""
        return self._history

    @property
    def default_name(self) -> str:
        """The name of a plan that writes none: the first line of its description, at most 80 characters."""
        lines = self.description.strip().splitlines()
        return lines[0].strip()[:80].rstrip() if lines else ""

    def number_steps(self) -> None:
        """Renumber the steps and make the ids and the name that are missing; called by validation after edits."""
        self.name = self.name or self.default_name
        taken = {step.id for step in (*self.steps, *self.finally_) if step.id}
        for prefix, steps in (("step", self.steps), ("finally", self.finally_)):
            for index, step in enumerate(steps):
                step._index = index  # pyright: ignore[reportPrivateUsage]  # the plan owns its steps' places
                if not step.id:
                    step.id = _free_id(f"{prefix}_{index + 1}", taken)
                    taken.add(step.id)

    def add_step(
        self,
        tool_name: str,
        description: str,
        parameters: dict[str, JsonValue] | None = None,
        **fields: Any,
    ) -> Step:
        """Append a step and return it, with its id made; `fields` are the other fields of `Step`."""
        step = Step(tool_name=tool_name, description=description, parameters=parameters or {}, **fields)
        self.steps.append(step)
        self.number_steps()
        return step

    def get_step(self, index: int) -> Step | None:
        """Return the step at `index`, from 0, or None where there is none; negative indices have none."""
        return self.steps[index] if 0 <= index < len(self.steps) else None

    def step(self, step_id: str) -> Step:
        """Return the step called `step_id`; raises KeyError, which names the steps that exist."""
        for step in self.steps:
            if step.id == step_id:
                return step
        known = ", ".join(step.id for step in self.steps[:20])
        raise KeyError(f"no step is called {step_id!r}; steps: {known}")


def _free_id(wanted: str, taken: set[str]) -> str:
    candidate, number = wanted, 2
    while candidate in taken:
        candidate, number = f"{wanted}_{number}", number + 1
    return candidate


def new_id() -> str:
    """Return a new UUIDv7 as text: unique, and sorted by the time of its making."""
    return str(uuid7())
