"""The plan as a value: `ExecutionPlan`, `Step`, `ExecutionOptions`, `Input`, and the statuses of plans and steps.

Field names, defaults and statuses are those of the seeds' ExecutionPlan. A plan is mutable until it is validated.
"""

from collections.abc import Collection
from enum import StrEnum
from functools import cache
from typing import Any, Literal, Protocol, TypeAlias

from pydantic import BaseModel, ConfigDict, Field, JsonValue, PrivateAttr
from uuid_utils import uuid7

from plan_adapter.problems import Problem

Effect: TypeAlias = Literal["read", "idempotent_write", "write"]
Isolation: TypeAlias = Literal["thread", "process"]
CallKind: TypeAlias = Literal["step", "rollback"]
"""What a call is: a step or one item of it, or the rollback of either."""

InputType: TypeAlias = Literal["string", "integer", "number", "boolean", "array", "object"]
KnownBy: TypeAlias = Literal["ssh_signature", "totp", "os_user", "form", "unverified"]
"""How the person who answers is identified, from the best proof to none.

In order: an SSH signature, a one-time code, the operating system account that ran the command, a name typed into a form, and a name that a
program passed.
"""

EFFECTS: tuple[Effect, ...] = ("read", "idempotent_write", "write")
"""All effects, from the weakest to the strongest."""

STEP_ID = "[A-Za-z_][A-Za-z0-9_-]{0,63}"
"""A regular expression that a whole step id must match."""

RESERVED_IDS = ("false", "in", "null", "true")
"""Words of the expression language, which cannot be step ids."""

MAX_TAG_CHARACTERS = 64
TAGS_SCHEMA: dict[str, Any] = {"items": {"type": "string", "minLength": 1, "maxLength": MAX_TAG_CHARACTERS, "pattern": r"^\S(.*\S)?$"}}
"""The JSON schema of a list of tags. Validation explains in words what is wrong with a tag."""

LABEL_DESCRIPTION = (
    "What an item of the `for_each` is called in task runs, messages and gates: a text with `${{ item… }}`. Without one, the item itself "
    "where it is a short text or a number, else its `name` or `id`, else its number from 1. The second item of the same label gets ` (2)`."
)

WHOLE_EXPRESSION = r"^\s*\$\{\{[\s\S]*\}\}\s*$"


class PlanStatus(StrEnum):
    """The status of a plan's run."""

    DRAFT = "draft"  # written, not yet submitted for approval
    PENDING_APPROVAL = "pending_approval"  # waits for an answer
    APPROVED = "approved"  # may start
    EXECUTING = "executing"  # has started and not ended
    COMPLETED = "completed"  # every step completed or was skipped by its own `when`
    FAILED = "failed"  # a step failed and nothing completed
    CANCELLED = "cancelled"  # rejected, expired or cancelled
    PARTIAL = "partial"  # a step failed and something completed

    @property
    def has_ended(self) -> bool:
        """Whether a run with this status has ended. It can be resumed unless it is completed."""
        return self is PlanStatus.COMPLETED or self in _ENDED

    def can_become(self, status: "PlanStatus") -> bool:
        """Return whether a run with this status may change to `status`. A completed run never changes."""
        return status is self or status in _NEXT[self]


_RESUMED = frozenset({PlanStatus.PENDING_APPROVAL, PlanStatus.APPROVED, PlanStatus.EXECUTING})
_ENDED = frozenset({PlanStatus.FAILED, PlanStatus.PARTIAL, PlanStatus.CANCELLED})
_NEXT: dict[PlanStatus, frozenset[PlanStatus]] = {
    PlanStatus.DRAFT: frozenset({PlanStatus.PENDING_APPROVAL}),
    PlanStatus.PENDING_APPROVAL: frozenset({PlanStatus.APPROVED, PlanStatus.EXECUTING, PlanStatus.CANCELLED}),
    PlanStatus.APPROVED: frozenset({PlanStatus.EXECUTING, PlanStatus.PENDING_APPROVAL, PlanStatus.CANCELLED}),
    PlanStatus.EXECUTING: frozenset({*_ENDED, PlanStatus.COMPLETED, PlanStatus.PENDING_APPROVAL, PlanStatus.APPROVED}),
    **dict.fromkeys(_ENDED, _RESUMED | _ENDED),
    PlanStatus.COMPLETED: frozenset(),
}
"""The statuses that may follow each status. An ended run that is not completed can be resumed or rolled back."""


class StepStatus(StrEnum):
    """The status of a step."""

    PENDING = "pending"
    RUNNING = "running"
    COMPLETED = "completed"
    FAILED = "failed"
    SKIPPED = "skipped"  # never started; its `reason` says why

    @property
    def has_ended(self) -> bool:
        """Whether the step has ended in this start of its run."""
        return self not in (StepStatus.PENDING, StepStatus.RUNNING)


def new_id() -> str:
    """Return a new UUIDv7 as text: unique, and sortable by creation time."""
    return str(uuid7())


class Marks(Protocol):
    """Locates the entries of a document."""

    def find(self, at: str) -> tuple[int, int]:
        """Return the line and column, from 1, of the entry at `at`, or of the nearest entry around it."""
        ...


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=False, validate_assignment=False, populate_by_name=True)


class Input(_Model):
    """One typed input of a plan; one without a default must be given."""

    type: InputType = Field(default="string", description="What kind of value a run must be given.")
    description: str = Field(default="", description="What the input is for; shown beside it in forms.")
    default: JsonValue = Field(default=None, description="Taken where none is given. Without a default the input is required.")
    enum: list[JsonValue] | None = Field(default=None, description="The only values that are accepted.")
    pattern: str | None = Field(default=None, description="A regular expression found in the text: anchor it with ^ and $ yourself.")
    min_length: int | None = Field(default=None, ge=0, description="The least characters of a text, or members of an array.")
    max_length: int | None = Field(default=None, ge=0, description="The most characters of a text, or members of an array.")
    minimum: float | None = Field(default=None, description="The smallest number.")
    maximum: float | None = Field(default=None, description="The largest number.")
    items: InputType | None = Field(default=None, description="The type of an array's members.")

    @property
    def is_required(self) -> bool:
        """Whether the input has no default. `default: null` is no default."""
        return self.default is None


ROLLBACK_DESCRIPTION = (
    "The call that undoes the step once it has completed (each item that succeeded): made, in the reverse order of dependencies, when a "
    "failed step or the total timeout ends the run, and on request when it is cancelled or has ended. A run that was rolled back is over."
)


ROLLBACK_FAILED_DESCRIPTION = (
    "Whether the step, or the item, that failed is rolled back, too. Only with a `rollback`, which then may see null as `result`. "
    "One whose outcome is unknown is never rolled back by itself."
)


ON_FAILURE_DESCRIPTION = (
    "`replan`: when failed steps have ended a run, the model of the settings drafts what is left anew, at most twice in a run, and the new "
    "version waits for an approval, whatever the options say; nothing is rolled back before that."
)


class Rollback(_Model):
    """The call that undoes a completed step; it is approved with the plan, tried once, and has the step's timeout."""

    tool_name: str = Field(description="The tool that undoes the step.")
    parameters: dict[str, JsonValue] = Field(
        default_factory=dict, description="What the tool is handed; beside what the step may use, `result` is the step's own."
    )


class Concurrency(_Model):
    """Which runs of one plan exclude each other."""

    key: str = Field(description="Runs with the same key exclude each other; may hold `${{ inputs.name }}`.")
    when_busy: Literal["refuse", "queue", "cancel_older"] = Field(default="refuse", description="What happens to a run whose key is taken.")


class ApprovalPolicy(_Model):
    """Who may approve and operate, how approvers must be known, which steps wait at a gate, and what happens when nobody answers."""

    approvers: list[str] = Field(default_factory=list, description="Names and groups that may answer; empty: anyone.")
    operators: list[str] = Field(
        default_factory=list, description="Names, groups and deployments that may run, resume, revise, cancel and roll back; empty: anyone."
    )
    self_approval: bool = Field(default=True, description="Whether who started the run may approve it.")
    known_by: list[KnownBy] = Field(default_factory=list, description="How an approver may be known; empty: in any way.")
    effects: list[Effect] = Field(
        default_factory=list,
        description="Steps whose tools have these effects wait at a gate of their own, too, whatever `effect` they say; `write` includes "
        "`idempotent_write`.",
    )
    expires: Literal["reject", "skip"] = Field(
        default="reject", description="What happens when nobody answers in time; `skip`: a step is skipped, the plan is rejected."
    )
    remind_after_ms: int = Field(default=0, ge=0, description="How often an open gate reminds of itself; 0: never.")
    release: bool = Field(default=False, description="Whether a waiting run gives its worker back; only under a deployment.")


class ExecutionOptions(_Model):
    """How a plan is executed. Times are milliseconds; 0 means no limit."""

    require_approval: bool = Field(default=True, description="Whether a run waits for an approval before anything is done.")
    auto_approve: bool = Field(default=False, description="The author's word that no approval is needed.")
    approval_timeout_ms: int = Field(default=0, ge=0, description="How long an approval is waited for; 0: no limit.")
    allow_parallel: bool = Field(default=False, description="Whether steps without a dependency between them run at the same time.")
    max_parallel_steps: int = Field(default=3, ge=1, description="How many steps may run at once; counts only with allow_parallel.")
    stop_on_error: bool = Field(default=True, description="A failed step ends the run: running steps end, no other starts.")
    continue_on_error: bool = Field(default=False, description="A failed step only skips its dependents. The opposite of stop_on_error.")
    step_timeout_ms: int = Field(default=0, ge=0, description="The limit of one attempt of a step; 0: no limit.")
    total_timeout_ms: int = Field(default=0, ge=0, description="The limit of the whole run; 0: no limit.")

    def model_post_init(self, _context: Any, /) -> None:
        """Set the error policy that was not written to the opposite of the one that was."""
        written = self.model_fields_set & {"stop_on_error", "continue_on_error"}
        if len(written) == 1:
            self._mirror(written.pop())

    def __setattr__(self, name: str, value: Any) -> None:
        """Set a field. Setting one error policy flips the other, unless that one was set too."""
        super().__setattr__(name, value)
        if name in ("stop_on_error", "continue_on_error"):
            self._mirror(name)

    def _mirror(self, written: str) -> None:
        other = "continue_on_error" if written == "stop_on_error" else "stop_on_error"
        if other not in self.model_fields_set:
            object.__setattr__(self, other, not getattr(self, written))  # not set by the user, so kept out of model_fields_set

    @property
    def on_error(self) -> Literal["stop", "continue"]:
        """What a failed step without its own `on_error` does to the rest of the plan."""
        return "stop" if self.stop_on_error else "continue"

    @property
    def parallel_limit(self) -> int:
        """How many steps may run at once."""
        return self.max_parallel_steps if self.allow_parallel else 1


class Step(_Model):
    """One tool call, or one goal, of a plan."""

    id: str = Field(
        default="",
        description="What references and receipts call the step; made (`step_1`, …) where it is missing.",
        json_schema_extra={"pattern": f"^{STEP_ID}$", "not": {"enum": [*RESERVED_IDS]}},
    )
    tool_name: str | None = Field(default=None, description="The tool that the step calls.")
    goal: str | None = Field(default=None, description="What a model shall reach with `tools`, in words. Not executed yet.")
    description: str = Field(default="", description="What the step is for, in words; an approver reads it.")
    for_each: str | None = Field(
        default=None,
        description="An expression that gives a list: the tool is called once for each member, which is `item`.",
        json_schema_extra={"pattern": WHOLE_EXPRESSION},
    )
    label: str | None = Field(default=None, description=LABEL_DESCRIPTION, json_schema_extra={"minLength": 1})
    parameters: dict[str, JsonValue] = Field(
        default_factory=dict, description="What the tool is handed; `${{ }}` may stand in any text, and alone keeps its type."
    )
    input: str = Field(default="", description="A raw text for the tool; used only where `parameters` is empty.")
    when: str | None = Field(
        default=None,
        description="An expression; the step is skipped where it is false.",
        json_schema_extra={"pattern": WHOLE_EXPRESSION},
    )
    done_when: str | None = Field(default=None, description="An expression in `${{ }}` over `result` that must be true after the call.")
    tools: list[str] = Field(default_factory=list, description="The tools that a goal step may use. Not executed yet.")
    max_rounds: int | None = Field(default=None, ge=1, description="The most rounds of a goal step. Not executed yet.")
    max_retries: int = Field(default=0, ge=0, description="Further attempts after a known failure.")
    retry_delay_ms: int = Field(default=0, ge=0, description="Milliseconds before the second attempt.")
    retry_backoff: float = Field(default=1.0, ge=1.0, description="Each delay is the one before times this; 1.0: a fixed delay.")
    retry_jitter: float = Field(default=0.0, ge=0.0, le=1.0, description="Each delay varies by up to this share.")
    timeout_ms: int | None = Field(default=None, ge=0, description="The limit of one attempt; overrides the options; 0: no limit.")
    effect: Effect | None = Field(default=None, description="What this call does, where the tool's own effect says too much.")
    isolation: Isolation | None = Field(default=None, description="Where a sync tool runs; a process can be killed when time is up.")
    depends_on: list[str] = Field(default_factory=list, description="Steps that must complete before; a reference implies its dependency.")
    requires_approval: bool = Field(default=False, description="Whether the step waits at a gate of its own.")
    on_error: Literal["stop", "continue"] | None = Field(default=None, description="Overrides the options' error policy for this step.")
    rollback: Rollback | None = Field(default=None, description=ROLLBACK_DESCRIPTION)
    tags: list[str] = Field(
        default_factory=list, description="Tags of the step's task runs; Prefect's limits on tags hold.", json_schema_extra=TAGS_SCHEMA
    )
    rollback_failed: bool = Field(default=False, description=ROLLBACK_FAILED_DESCRIPTION)
    metadata: dict[str, JsonValue] = Field(default_factory=dict, description="Anything about the step; not read by the engine.")

    # Kept outside the fields, like a cached_property. A private attribute on each of thousands of steps would double their load time.
    @property
    def index(self) -> int:
        """The step's index in its plan, from 0."""
        return vars(self).get("_index", 0)

    def put_at(self, index: int) -> None:
        """Record the step's index in its plan. Called by the plan."""
        vars(self)["_index"] = index


class ExecutionPlan(_Model):
    """A description, typed inputs, steps and options: what is approved and run.

    `id` and the steps' ids are made where they are missing; `name` defaults to the first line of the description.
    """

    version: Literal[1] = Field(default=1, description="The version of the plan document.")
    id: str = Field(default_factory=new_id, description="The plan's own id; made where it is missing.")
    name: str = Field(default="", description="A short name; by default the first line of the description.")
    description: str = Field(description="What the plan does; what an approver reads first.")
    inputs: dict[str, Input] = Field(default_factory=dict, description="What a run is given, by name.")
    options: ExecutionOptions = Field(default_factory=ExecutionOptions)
    steps: list[Step] = Field(default_factory=list, description="The steps; one runs when its dependencies have completed.")
    finally_: list[Step] = Field(default_factory=list, alias="finally", description="Steps that always run at the end. Not executed yet.")
    concurrency: Concurrency | None = Field(default=None, description="Which runs exclude each other. Not executed yet.")
    approval: ApprovalPolicy | None = Field(default=None, description="Who may approve and operate, and how.")
    on_failure: Literal["replan"] | None = Field(default=None, description=ON_FAILURE_DESCRIPTION)
    isolation: Isolation | None = Field(default=None, description="Where sync tools run, for every step that does not say.")
    outputs: dict[str, JsonValue] = Field(default_factory=dict, description="What a run gives back, by name; may hold `${{ }}`.")
    tags: list[str] = Field(default_factory=list, description="Tags of the flow run.", json_schema_extra=TAGS_SCHEMA)
    metadata: dict[str, JsonValue] = Field(default_factory=dict, description="Anything about the plan; not read by the engine.")

    # Loaded with the document; excluded from digest and equality.
    _history: dict[str, JsonValue] = PrivateAttr(default_factory=dict)
    _problems: tuple[Problem, ...] = PrivateAttr(default=())  # why the document cannot run; the affected fields were dropped
    _marks: Marks | None = PrivateAttr(default=None)
    _file: str | None = PrivateAttr(default=None)

    # For `add_step`, which would otherwise scan all steps for each new one.
    _ids: set[str] = PrivateAttr(default_factory=set)
    _counted: int = PrivateAttr(default=0)

    def model_post_init(self, _context: Any, /) -> None:
        """Fill in the name and any missing ids."""
        self.number_steps()

    def __eq__(self, other: object) -> bool:
        """Compare what was written. Generated ids, marks and history do not count."""
        return isinstance(other, ExecutionPlan) and self.to_document() == other.to_document()

    __hash__ = None  # type: ignore[assignment]  # a plan is mutable

    def to_document(self) -> dict[str, JsonValue]:
        """Return the plan as a document, without defaults, a generated id and the default name."""
        document = _document(self)
        if "id" not in self.model_fields_set:
            document.pop("id", None)
        if self.name == self.default_name:
            document.pop("name", None)
        if self.options.stop_on_error == self.options.continue_on_error:  # neither is the default that follows from the other
            policies = {"stop_on_error": self.options.stop_on_error, "continue_on_error": self.options.continue_on_error}
            document["options"] = {**_document(self.options), **policies}
        return document

    @property
    def history(self) -> dict[str, JsonValue]:
        """What the document recorded about an earlier execution, per step under `steps`. Contains neither approval nor receipts."""
        return self._history

    @property
    def default_name(self) -> str:
        """The name of a plan without one: the first line of its description, at most 80 characters."""
        lines = self.description.strip().splitlines()
        return lines[0].strip()[:80].rstrip() if lines else ""

    def has_gate(
        self, step: Step, declared: Effect | None, *, rollback: Effect | None = None, gate_effects: Collection[Effect] = ()
    ) -> bool:
        """Return whether `step` waits at a gate of its own. `gate_effects` are added by the settings to the plan's own.

        `declared` is the effect of the step's tool, or None if unknown. The step's own `effect` cannot lower it here; it counts only if it
        is stronger. `write` includes `idempotent_write`. `rollback` is the effect of the rollback's tool. Nobody is asked before a
        rollback, so a step that reads has a gate if its rollback writes.
        """
        asked_of = {*gate_effects, *(self.approval.effects if self.approval is not None else ())}
        if "write" in asked_of:
            asked_of.add("idempotent_write")
        own = step.effect if declared is None or (step.effect and EFFECTS.index(step.effect) > EFFECTS.index(declared)) else None
        return step.requires_approval or not asked_of.isdisjoint({declared, own, rollback})

    def timeout_ms_of(self, step: Step) -> int:
        """Return the limit of one attempt of `step` in milliseconds: the step's own, else the plan's. 0 means no limit."""
        return self.options.step_timeout_ms if step.timeout_ms is None else step.timeout_ms

    def number_steps(self) -> None:
        """Renumber the steps, and fill in missing ids and the name. Called by validation after edits."""
        self.name = self.name or self.default_name
        taken = {step.id for step in (*self.steps, *self.finally_) if step.id}
        for prefix, steps in (("step", self.steps), ("finally", self.finally_)):
            for index, step in enumerate(steps):
                step.put_at(index)
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
        """Append a step with a generated id and return it. `fields` are the other fields of `Step`."""
        step = Step(tool_name=tool_name, description=description, parameters=parameters or {}, **fields)
        step.put_at(len(self.steps))
        taken = self._taken_ids()
        if not step.id:
            step.id = _free_id(f"step_{len(self.steps) + 1}", taken)
        self.steps.append(step)
        taken.add(step.id)
        self._counted += 1
        return step

    def _taken_ids(self) -> set[str]:
        """Return the ids in use. Collect them again if steps were added or removed other than by `add_step`."""
        count = len(self.steps) + len(self.finally_)
        if count != self._counted:
            self._ids, self._counted = {step.id for step in (*self.steps, *self.finally_)}, count
        return self._ids

    def get_step(self, index: int) -> Step | None:
        """Return the step at `index`, from 0, or None if there is none. A negative index returns None."""
        return self.steps[index] if 0 <= index < len(self.steps) else None

    def step(self, step_id: str) -> Step:
        """Return the step with the id `step_id`. Raise KeyError, which lists the existing steps, if there is none."""
        for step in self.steps:
            if step.id == step_id:
                return step
        known = ", ".join(step.id for step in self.steps[:20])
        raise KeyError(f"no step is called {step_id!r}; steps: {known}")


def _document(model: BaseModel) -> dict[str, JsonValue]:
    """Return what differs from the defaults, in field order. A part that holds only defaults is omitted."""
    document: dict[str, JsonValue] = {}
    for name, (alias, default) in fields_of(type(model)).items():
        value = getattr(model, name)
        if value == default:
            continue
        if isinstance(value, BaseModel):
            if part := _document(value):
                document[alias] = part
        elif name in ("steps", "finally_"):
            document[alias] = [_document(step) for step in value]
        elif name == "inputs":
            document[alias] = {key: _document(part) for key, part in value.items()}
        else:
            document[alias] = value
    return document


def step_document(step: Step) -> dict[str, JsonValue]:
    """Return the step as a document, without defaults."""
    return _document(step)


@cache
def fields_of(model: type[BaseModel]) -> dict[str, tuple[str, Any]]:
    """Return each field's name in documents and its default."""
    return {name: (field.alias or name, field.get_default(call_default_factory=True)) for name, field in model.model_fields.items()}


def _free_id(wanted: str, taken: Collection[str]) -> str:
    candidate, number = wanted, 2
    while candidate in taken:
        candidate, number = f"{wanted}_{number}", number + 1
    return candidate
