"""How a plan starts, runs and is approved.

`ExecutionOptions`, `ApprovalPolicy`, `Concurrency`, `RunWindow`, `Trigger`, and the typed `Input`.
"""

from collections.abc import Collection
from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypeAlias

from pydantic import BaseModel, ConfigDict, Field, JsonValue, ValidationError
from pydantic_core import InitErrorDetails, PydanticCustomError

from plan_adapter.model.problems import did_you_mean

Effect: TypeAlias = Literal["read", "idempotent_write", "write"]
Isolation: TypeAlias = Literal["thread", "process"]
Runner: TypeAlias = Literal["dask"]
CallKind: TypeAlias = Literal["step", "rollback", "decision", "check"]
"""What a call is.

`step`: a step, one item of it, or the tool call of a round of a goal. `rollback`: the rollback of a step or an item. `decision`: a model's
decision in a round. `check`: the checks of that decision.
"""

MemberType: TypeAlias = Literal["string", "integer", "number", "boolean", "array", "object", "date", "date-time", "duration"]
InputType: TypeAlias = Literal[MemberType, "secret"]
"""The type of an input. The value of a `secret` is the name of one."""

TEXT_TYPES: tuple[InputType, ...] = ("date", "date-time", "duration", "secret")
"""The types whose values are texts of a given form."""

KnownBy: TypeAlias = Literal["ssh_signature", "totp", "sign_in", "proxy", "slack", "os_user", "form", "unverified"]
"""How the person who answers is identified, from the best proof to none.

In order: an SSH signature, a one-time code, a sign-in with OpenID Connect, a sign-in at the proxy in front of `plan desk`, a
button pressed in Slack, the operating system account that ran the command, a name typed into a form, and a name that a program passed.
"""

EVENT_NAME = r"^[^\s*]+\*?$|^\*$"
"""What the `event` of a trigger must match."""

WHOLE_EXPRESSION = r"^\s*\$\{\{[\s\S]*\}\}\s*$"

EFFECTS: tuple[Effect, ...] = ("read", "idempotent_write", "write")
"""All effects, from the weakest to the strongest."""


def is_lower(effect: Effect, than: Effect) -> bool:
    """Return whether `effect` is weaker than another one."""
    return EFFECTS.index(effect) < EFFECTS.index(than)


def strongest(effects: Collection[Effect]) -> Effect:
    """Return the strongest of `effects`, which must not be empty."""
    return next(effect for effect in reversed(EFFECTS) if effect in effects)


ErrorPolicy: TypeAlias = Literal["stop", "continue"]
"""What a failed step does to the rest of its plan."""

Expiry: TypeAlias = Literal["reject", "skip", "default"]
"""What happens at a gate that nobody answers in time. `default` is for questions: the defaults of their fields are the answer."""


class DocumentModel(BaseModel):
    """A part of a document that people write. Unknown fields are refused."""

    model_config = ConfigDict(extra="forbid", strict=False, validate_assignment=False, populate_by_name=True)

    noun: ClassVar[str] = ""
    """What messages call the part, such as `a step`. Without one, they give its path."""

    start_hint: ClassVar[str] = "write `description` and `steps`; `plan init` writes an example"
    """How to write the document, for one that is empty."""

    names_fields: ClassVar[bool] = True
    """Whether messages about wrong types name the field and show the value. Otherwise they say `this` and the type of the value."""

    null_is_absent: ClassVar[bool] = True
    """Whether null stands for an empty list or mapping."""

    ignored_fields: ClassVar[tuple[str, ...]] = ()
    """Fields of documents that mean nothing here."""

    history_fields: ClassVar[tuple[str, ...]] = ()
    """Fields of documents that are history only, and never trusted."""

    if not TYPE_CHECKING:  # a type checker takes the parameters from the fields

        def __init__(self, **fields: Any) -> None:
            """Build the part from its fields. Raises ValidationError, which names the nearest field for one that does not exist."""
            try:
                super().__init__(**fields)
            except ValidationError as error:
                raise _with_nearest_fields(type(self), error) from None

        __init__.__pydantic_base_init__ = True  # else the validation of documents would call it, without its context


def _with_nearest_fields(model: type[BaseModel], error: ValidationError) -> ValidationError:
    """Return the error with words about each field that `model` does not have."""
    known, found, is_changed = [*model.model_fields], list[InitErrorDetails](), False
    for detail in error.errors(include_url=False):
        kind, message, place = detail["type"], detail["msg"], detail["loc"]
        if kind == "extra_forbidden" and len(place) == 1:
            kind, message, is_changed = "unknown_field", f"there is no field `{place[0]}`; {did_you_mean(str(place[0]), known)}", True
        # The message is no template.
        wording = PydanticCustomError(kind, "{message}", {"message": message})  # pyright: ignore[reportArgumentType]
        found.append(InitErrorDetails(type=wording, loc=place, input=detail["input"]))
    return ValidationError.from_exception_data(error.title, found) if is_changed else error


class PlanPart(DocumentModel):
    """A part of a plan document. Its fields may be spelled as in the original implementations: `toolName` and `ToolName`."""


class Input(PlanPart):
    """One typed input of a plan. An input without a default is required."""

    noun: ClassVar[str] = "an input"

    type: InputType = Field(
        default="string",
        description="The type of the value. The value of a `secret` is the name of a secret; `${{ inputs.NAME }}` stands for that secret.",
    )
    title: str = Field(default="", description="The name of the field in forms, in any language. The default is the name of the input.")
    description: str = Field(default="", description="What the input is for. Forms show it next to the field.")
    default: JsonValue = Field(default=None, description="The value if a run gives none. Without a default the input is required.")
    example: JsonValue = Field(default=None, description="A value that fits. Forms and prompts show it next to the rule.")
    enum: list[JsonValue] | None = Field(default=None, description="The only values that are accepted.")
    pattern: str | None = Field(
        default=None,
        description="A regular expression that must match somewhere in the text. Anchor it with ^ and $ to match the whole text.",
    )
    min_length: int | None = Field(default=None, ge=0, description="The minimum number of characters of a text, or of members of an array.")
    max_length: int | None = Field(default=None, ge=0, description="The maximum number of characters of a text, or of members of an array.")
    minimum: float | None = Field(default=None, description="The smallest accepted number.")
    maximum: float | None = Field(default=None, description="The largest accepted number.")
    items: MemberType | None = Field(default=None, description="The type of an array's members.")
    variable: str | None = Field(
        default=None,
        description="The Prefect variable that gives the value if a run gives none. It is read once, when a run starts. If it does not "
        "exist, the default counts.",
        json_schema_extra={"minLength": 1},
    )

    @property
    def is_required(self) -> bool:
        """Whether somebody has to give a value: there is neither a default nor a variable. `default: null` does not count as one."""
        return self.default is None and self.variable is None


class Question(PlanPart):
    """A question to a person: a form with typed fields. The result of the step holds the answer, by field."""

    noun: ClassVar[str] = "a question"

    question: str = Field(description="What is asked, in words. It may contain `${{ }}`.", json_schema_extra={"minLength": 1})
    fields: dict[str, Input] = Field(
        description="The fields of the answer, by name, typed like `inputs`. A field without a default is required.",
        json_schema_extra={"minProperties": 1},
    )


class Concurrency(PlanPart):
    """Which runs exclude each other, on all machines that share the store."""

    key: str = Field(description="Runs with the same key exclude each other, also those of other plans. It may contain `${{ inputs… }}`.")
    when_busy: Literal["refuse", "queue", "cancel_older"] = Field(
        default="refuse",
        description="What happens to an approved run while another one has the key: it ends as cancelled, it waits for its turn, or it "
        "cancels the older runs of the same plan and then starts.",
    )


class Escalation(PlanPart):
    """Who else may answer at a gate that has waited for a while."""

    noun: ClassVar[str] = "an escalation"

    after_ms: int = Field(ge=1000, description="How long a gate waits before it escalates, in milliseconds. At least a second.")
    to: list[str] = Field(
        description="The names and groups that may then answer as well. Nobody answers in their place.", json_schema_extra={"minItems": 1}
    )


class ApprovalPolicy(PlanPart):
    """Who may approve and operate, how approvers prove their identity, which steps wait at a gate, and what happens if nobody answers."""

    approvers: list[str] = Field(default_factory=list, description="The names and groups that may answer. Empty means anyone.")
    operators: list[str] = Field(
        default_factory=list,
        description="The names, groups and deployments that may run, resume, revise, cancel and roll back. Empty means anyone.",
    )
    quorum: int = Field(
        default=1,
        ge=1,
        description="How many different approvers must approve. One is enough to reject, and for questions and unknown outcomes.",
    )
    self_approval: bool = Field(default=True, description="Whether the person who started the run may approve it.")
    author_approval: bool = Field(
        default=True,
        description="Whether an author of the plan may approve it: whoever saved this content or revised the run; of a plan that nobody "
        "saved, whoever started the run.",
    )
    escalate: Escalation | None = Field(default=None, description="Who else may answer if a gate waits too long. By default nobody.")
    delegate: bool = Field(default=False, description="Whether an approver may let another person answer at a gate in their place.")
    known_by: list[KnownBy] = Field(default_factory=list, description="The accepted proofs of an approver's identity. Empty means any.")
    effects: list[Effect] = Field(
        default_factory=list,
        description="Steps whose tools have these effects wait at a gate of their own, whatever `effect` they declare. `write` includes "
        "`idempotent_write`.",
    )
    always_execute: list[str] = Field(
        default_factory=list, description="The tools that the models of goals may call without a confirmation, although they write."
    )
    expires: Literal["reject", "skip"] = Field(
        default="reject",
        description="What happens if nobody answers in time. With `skip`, a step is skipped with the steps that depend on it, and a plan "
        "is rejected.",
    )
    remind_after_ms: int = Field(
        default=0, ge=0, description="How often a reminder of an open gate is sent, in milliseconds. 0 means never."
    )
    release: bool = Field(default=False, description="Whether a run releases its worker while it waits. Applies only to deployments.")

    def is_met_by(self, other: "ApprovalPolicy") -> bool:
        """Return whether this policy accepts every answer that a gate with the policy `other` accepts."""
        who = not self.approvers or {*self.approvers} == {*other.approvers}
        proof = not self.known_by or bool(other.known_by and {*other.known_by} <= {*self.known_by})
        people = (self.self_approval or not other.self_approval) and (self.author_approval or not other.author_approval)
        adds = not self.approvers or (other.escalate in (None, self.escalate) and (self.delegate or not other.delegate))
        return who and proof and people and adds and self.quorum <= other.quorum


class RunWindow(PlanPart):
    """When a run may start. It is checked when the run is approved, and a run that has started is not stopped at the end of the window."""

    cron: str = Field(description="When the window opens: minute, hour, day of the month, month and day of the week.")
    duration_ms: int = Field(ge=60_000, description="How long it stays open, in milliseconds. At least a minute.")
    time_zone: str = Field(default="UTC", description="The time zone of `cron`, as in `Europe/Berlin`.")
    outside: Literal["wait", "refuse"] = Field(
        default="wait", description="What happens to an approved run outside the window: it waits, or it ends as cancelled."
    )


class Trigger(PlanPart):
    """An event that starts the deployed runbook. Its expressions may use `event`: `id`, `name`, `occurred`, `resource` and `payload`."""

    noun: ClassVar[str] = "a trigger"

    event: str = Field(
        description="The name of the event in Prefect. `*` at its end stands for any rest.", json_schema_extra={"pattern": EVENT_NAME}
    )
    resource: dict[str, str] = Field(
        default_factory=dict,
        description="The labels that the event's resource must have, as Prefect matches them: `*` stands for any text.",
    )
    when: str | None = Field(
        default=None,
        description="An expression in `${{ }}` that decides whether the event starts a run. By default each one does.",
        json_schema_extra={"pattern": WHOLE_EXPRESSION},
    )
    inputs: dict[str, JsonValue] = Field(
        default_factory=dict, description="The inputs of the run, by name. They may contain `${{ event… }}`."
    )
    fingerprint: str | None = Field(
        default=None,
        description="A text with `${{ event… }}` that tells alerts apart: while a run that an event started has not ended, events with the "
        "same text start no other. By default each event starts a run.",
        json_schema_extra={"minLength": 1},
    )
    cooldown_ms: int = Field(
        default=0,
        ge=0,
        description="How long after its start, in milliseconds, a run also keeps events with the same fingerprint from starting another.",
    )


class ExecutionOptions(PlanPart):
    """How a plan is executed. Times are milliseconds; 0 means no limit."""

    require_approval: bool = Field(default=True, description="Whether a run needs an approval before it starts.")
    auto_approve: bool = Field(default=False, description="Whether the author declares that no approval is needed.")
    approval_timeout_ms: int = Field(default=0, ge=0, description="How long a gate waits for an answer. 0 means no limit.")
    allow_parallel: bool = Field(default=False, description="Whether steps that do not depend on each other run at the same time.")
    max_parallel_steps: int = Field(default=3, ge=1, description="How many steps may run at once. Applies only with allow_parallel.")
    stop_on_error: bool = Field(default=True, description="A failed step ends the run: running steps finish, and no other step starts.")
    continue_on_error: bool = Field(
        default=False, description="A failed step skips only the steps that depend on it. The opposite of stop_on_error."
    )
    step_timeout_ms: int = Field(default=0, ge=0, description="The timeout of one attempt of a step. 0 means no limit.")
    total_timeout_ms: int = Field(default=0, ge=0, description="The timeout of the whole run. 0 means no limit.")
    finally_timeout_ms: int = Field(
        default=600_000, ge=0, description="The timeout of the `finally` steps, which the other timeouts do not stop. 0 means no limit."
    )
    run_window: RunWindow | None = Field(default=None, description="When runs may start. By default at any time.")

    def model_post_init(self, _context: Any, /) -> None:
        """Set the error policy that was not written to the opposite of the one that was."""
        written = self.model_fields_set & {"stop_on_error", "continue_on_error"}
        if len(written) == 1:
            self._mirror(written.pop())

    def __setattr__(self, name: str, value: Any) -> None:
        """Set a field. Setting one error policy sets the other to the opposite, unless that one was set too."""
        super().__setattr__(name, value)
        if name in ("stop_on_error", "continue_on_error"):
            self._mirror(name)

    def _mirror(self, written: str) -> None:
        other = "continue_on_error" if written == "stop_on_error" else "stop_on_error"
        if other not in self.model_fields_set:
            object.__setattr__(self, other, not getattr(self, written))  # not set by the user, so kept out of model_fields_set

    @property
    def on_error(self) -> ErrorPolicy:
        """What a failed step without its own `on_error` does to the rest of the plan."""
        return "stop" if self.stop_on_error else "continue"

    @property
    def asks(self) -> bool:
        """Whether a run needs an approval before it starts, as far as its plan says so."""
        return self.require_approval and not self.auto_approve

    @property
    def says_both_of_approval(self) -> bool:
        """Whether a document says both that a run needs an approval and that it needs none."""
        written = {"require_approval", "auto_approve"} <= self.model_fields_set
        return written and self.require_approval and self.auto_approve

    @property
    def parallel_limit(self) -> int:
        """How many steps may run at once."""
        return self.max_parallel_steps if self.allow_parallel else 1
