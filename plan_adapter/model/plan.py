"""The plan as a value: `ExecutionPlan`, `Step` and `Rollback`.

Field names, defaults and statuses are those of Aster's ExecutionPlan (see `plan guide aster`). A plan is mutable until it is validated.
"""

import inspect
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, Protocol, TypeAlias, cast, get_args

from pydantic import BaseModel, Field, JsonValue, PrivateAttr, ValidationError, ValidatorFunctionWrapHandler, WithJsonSchema, WrapValidator
from uuid_utils import uuid7

from plan_adapter.model.inventory import EVERY, ON, ON_INPUT, HostGroup, HostLists, Inventory
from plan_adapter.model.language import Language
from plan_adapter.model.options import (
    EFFECTS,
    WHOLE_EXPRESSION,
    ApprovalPolicy,
    Concurrency,
    Effect,
    ErrorPolicy,
    Escalation,
    ExecutionOptions,
    Expiry,
    Input,
    Isolation,
    PlanPart,
    Question,
    Runner,
    Trigger,
)
from plan_adapter.model.problems import Problem, did_you_mean, type_error
from plan_adapter.model.reference import Reference
from plan_adapter.model.values import normalize

ASK = "ask"
"""What a question is called where other steps have the name of their tool."""

GOAL = "goal"
"""What a goal is called where other steps have the name of their tool."""

MAX_ROUNDS = 60
"""How many rounds a goal has if it does not say."""

STEP_ID = "[A-Za-z_][A-Za-z0-9_-]{0,63}"
"""A regular expression that a whole step id must match."""

RESERVED_IDS = ("false", "in", "null", "true")
"""Words of the expression language, which cannot be step ids."""

MAX_TAG_CHARACTERS = 64
TAGS_SCHEMA: dict[str, Any] = {"items": {"type": "string", "minLength": 1, "maxLength": MAX_TAG_CHARACTERS, "pattern": r"^\S(.*\S)?$"}}
"""The JSON schema of a list of tags. Validation explains in words what is wrong with a tag."""

LABEL_DESCRIPTION = (
    "The name of each item of the `for_each` in task runs, messages and gates: a text with `${{ item… }}`. The default is the item itself "
    "if it is a short text or a number, else its `name` or `id`, else its number from 1. The second item with the same label gets ` (2)`."
)

FINALLY_DESCRIPTION = (
    "Steps that always run at the end, in the order of their dependencies: after the run completed, failed, was cancelled or timed out. "
    "They may use `run.status`, `run.progress`, `run.failed_steps`, `run.rolled_back` and `run.not_rolled_back`."
)

STEPS_DESCRIPTION = (
    "The steps of a group, which run once per item of its `for_each`, in the order of their dependencies. In them `item` is the item, and "
    "`steps.<id>.result` is that of the same item. Other steps see `steps.<group>.result`: a list of {label, status, results}."
)

PLAN_DESCRIPTION = (
    "Another plan that the step runs: `store:NAME@VERSION`, `store:DIGEST`, or a file, relative to this document. Its gates stay its own. "
    "The result of the step is that plan's `outputs`, by name."
)

PINNED_DESCRIPTION = (
    "The plan that `plan` named when this document was loaded. Stored plans and runs keep it, so later changes do not affect them. Do not "
    "write it yourself."
)

MAX_FAILURES = r"^(\d+|\d{1,2}%|100%)$"
"""What `max_failures` may be as a text."""

PERMISSIONS_SCHEMA: dict[str, Any] = {"items": {"type": "string", "minLength": 1, "pattern": r"^\S(.*\S)?$"}, "pattern": WHOLE_EXPRESSION}
"""The JSON schema of a list of permissions, or of an expression that gives it."""


_TIMES = ("started_at", "completed_at")


def new_id() -> str:
    """Return a new UUIDv7 as text: unique, and sortable by creation time."""
    return str(uuid7())


class Marks(Protocol):
    """Finds the line and column of a document's entries."""

    def find(self, at: str) -> tuple[int, int]:
        """Return the line and column, from 1, of the entry at `at`, or of the nearest entry around it."""
        ...


ROLLBACK_DESCRIPTION = (
    "The call that undoes the completed step, or each of its items that succeeded. It runs in reverse order of dependencies: when a failed "
    "step or the total timeout ends the run, and on request when it is cancelled or has ended. A run that was rolled back cannot be "
    "resumed."
)


ROLLBACK_FAILED_DESCRIPTION = (
    "Whether the step or item that failed is rolled back as well. Needs a `rollback`, whose `result` may then be null. A group with "
    "`on_error: continue` rolls back an item as soon as it has failed, and only that item. A step with an unknown outcome is never rolled "
    "back automatically."
)


HOSTS_DESCRIPTION = (
    "The hosts that `hosts('web')` names in expressions: groups with `hosts`, `children` and `vars` as in Ansible, or the path of an "
    "inventory, relative to this document."
)
PERMISSIONS_DESCRIPTION = (
    "The permissions that the tools of the plan get, by the names that tools declare: a list, or one expression over `inputs` that gives "
    "it. A step whose tool needs another one is refused."
)


ON_FAILURE_DESCRIPTION = (
    "`replan`: when failed steps end a run, the configured model redrafts the remaining steps, at most twice per run. Each new version "
    "needs an approval, whatever the options say. Nothing is rolled back before that."
)


RUNNER_DESCRIPTION = (
    "`dask`: the tool and the rollback run on a worker of the Dask cluster in the settings. For a group, those of all its steps. "
    "The default is the process of the run."
)

LANGUAGE_DESCRIPTION = (
    "The language of the gates and forms of a run: `en` or `zh`. The default is that of the process that runs it. "
    "Names, descriptions and values stay as they are written."
)
RUN_NAME_DESCRIPTION = (
    "The name of the flow run in Prefect: a text with `${{ inputs… }}`, cut to 200 characters. By default it is the name of the plan and "
    "the beginning of the run's id."
)


EXPIRES_DESCRIPTION = (
    "What happens if nobody answers the question in time: the run is rejected, the step is skipped, or the defaults of the fields are the "
    "answer. The default is the plan's."
)


GOAL_DESCRIPTION = (
    "What a model has to achieve with `tools`, in words, round by round. It may contain `${{ }}`. Each call that writes waits for a "
    "confirmation. The result is {summary, rounds, evidence, results}."
)


DONE_WHEN_DESCRIPTION = (
    "An expression in `${{ }}` over `result` that must be true after the call. For a goal it may also be a text, which a model judges by "
    "the evidence."
)


GOAL_FOR_MODELS = "What is wanted, in words: a model works out the calls during the run. Only if they cannot be named in advance."
DONE_WHEN_FOR_MODELS = "An expression in ${{ }} over `result` that must be true afterwards."
MAX_RETRIES_FOR_MODELS = "How often the step is retried after a known failure. 0 for calls that must not be repeated."
TIMEOUT_FOR_MODELS = "The timeout of one attempt in milliseconds. 0 means no limit."
DEPENDS_ON_FOR_MODELS = "The steps that must complete first: positions in `steps` from 0, or ids."


TIMEOUT_DESCRIPTION = (
    "The timeout of one attempt in milliseconds. Overrides the options. 0 means no limit. For a goal, the time that all its calls may take "
    "together."
)


CREATES_SECRETS_DESCRIPTION = (
    "The names of secrets that exist only after this step. The run may start without them. Steps that use one must come after this step."
)


StepKind: TypeAlias = Literal["plan", "group", "question", "goal", "call"]
"""What a step is: a plan that it runs, a group of steps, a question to a person, a goal in words, or a call of a tool."""


@dataclass(frozen=True, slots=True)
class StepField:
    """What else is known of a field of a step. Validation, previews, listings, gate texts and the form for models derive from it."""

    kinds: tuple[StepKind, ...]  # the kinds of step that may have it
    label: str | None  # what people read before its value; None if it is shown in another way
    for_models: str | None  # how it is described to a planning model; None if only people and programs may write it


def _of(*kinds: StepKind, label: str | None = None, for_models: str | None = None) -> StepField:
    """Return what is known of a field that only steps of `kinds` may have; without any, every step."""
    return StepField(kinds or get_args(StepKind), label, for_models)


def _either(wanted: str) -> WrapValidator:
    """Return a validator of a field with several types, which says what it accepts instead of an error for each type."""

    def validate(value: Any, handler: ValidatorFunctionWrapHandler) -> Any:
        try:
            return handler(value)
        except ValidationError as error:
            given = error.errors()[0]["input"]  # the value, or the member of it that does not fit
            raise type_error(wanted, given=given) from None

    return WrapValidator(validate)


class Rollback(PlanPart):
    """The call that undoes a completed step. It is approved with the plan, tried once, and has the step's timeout."""

    tool_name: str = Field(description="The tool that undoes the step.")
    parameters: dict[str, JsonValue] = Field(
        default_factory=dict,
        description="The arguments of the tool. They may use everything that the step may use, and the step's `result`.",
    )


class Permissions(NamedTuple):
    """The permissions of the tools at a step, or at the plan gate."""

    names: Sequence[str]  # those that every plan there gives; empty while `is_decided` is False
    expressions: Sequence[str]  # as written, of the plans there whose inputs decide
    is_decided: bool  # False if the inputs that decide are not known yet


# guide/contributing/step-field.md says what a new field needs besides its line here.
class Step(PlanPart):
    """One step of a plan: a tool call, a question to a person, or a goal in words."""

    noun: ClassVar[str] = "a step"
    history_fields: ClassVar[tuple[str, ...]] = ("index", "status", "result", "error", "duration_ms", "retry_count", *_TIMES)

    id: Annotated[str, _of(for_models="A short unique name for references and dependencies.")] = Field(
        default="",
        description="The step's name in references and receipts. Generated (`step_1`, …) if missing.",
        json_schema_extra={"pattern": f"^{STEP_ID}$", "not": {"enum": [*RESERVED_IDS]}},
    )
    tool_name: Annotated[str | None, _of("call", for_models="The tool.")] = Field(default=None, description="The tool that the step calls.")
    ask: Annotated[Question | None, _of("question")] = Field(
        default=None, description="A question to a person, in place of a tool. The result of the step is the answer, by field."
    )
    approvers: Annotated[list[str], _of("question")] = Field(
        default_factory=list, description="The names and groups that may answer the question. The default is those of the plan."
    )
    expires: Annotated[Expiry | None, _of("question", label="if nobody answers in time")] = Field(
        default=None, description=EXPIRES_DESCRIPTION
    )
    goal: Annotated[str | None, _of("goal", for_models=GOAL_FOR_MODELS)] = Field(default=None, description=GOAL_DESCRIPTION)
    description: Annotated[str, _of(for_models="What the step is for, in one sentence.")] = Field(
        default="", description="What the step is for. Approvers read it."
    )
    # A step that runs a plan cannot have it yet, for which `check_sub_plan` has words of its own.
    for_each: Annotated[str | None, _of("call", "group", "plan", label="for each")] = Field(
        default=None,
        description="An expression for a list. The tool is called, or the group's steps run, once per item, which expressions call `item`.",
        json_schema_extra={"pattern": WHOLE_EXPRESSION},
    )
    label: Annotated[str | None, _of("call", "group", label="label")] = Field(
        default=None, description=LABEL_DESCRIPTION, json_schema_extra={"minLength": 1}
    )
    steps: Annotated[list["Step"], _of("group")] = Field(default_factory=list, description=STEPS_DESCRIPTION)
    batch: Annotated[int | None, _of("group")] = Field(
        default=None, ge=1, description="How many items of a group run at once, within the plan's limit. The default is that limit."
    )
    max_failures: Annotated[int | str, _of("group"), _either('a whole number, or a share such as "20%"')] = Field(
        default=0,
        description="A group starts no further item after more failed items than this: a number, or a share of the items such as `20%`.",
        json_schema_extra={"minimum": 0, "pattern": MAX_FAILURES},
    )
    plan: Annotated[str | None, _of("plan")] = Field(default=None, description=PLAN_DESCRIPTION, json_schema_extra={"minLength": 1})
    inputs: Annotated[dict[str, JsonValue], _of("plan")] = Field(
        default_factory=dict, description="The inputs of the plan that the step runs, by name. They may contain `${{ }}`."
    )
    pinned: "Annotated[ExecutionPlan | None, _of('plan'), WithJsonSchema({'type': 'object'})]" = Field(
        default=None, description=PINNED_DESCRIPTION
    )
    parameters: Annotated[dict[str, JsonValue], _of("call", for_models="The arguments of the tool.")] = Field(
        default_factory=dict,
        description="The arguments of the tool. Any text may contain `${{ }}`. A text of only one `${{ }}` keeps the type of its value.",
    )
    input: Annotated[str, _of("call", for_models="The arguments of the tool as JSON text.")] = Field(
        default="", description="A raw text for the tool. Used only if `parameters` is empty."
    )
    when: Annotated[str | None, _of(label="when")] = Field(
        default=None,
        description="An expression. If it is false, the step is skipped.",
        json_schema_extra={"pattern": WHOLE_EXPRESSION},
    )
    done_when: Annotated[str | None, _of("call", "goal", label="done when", for_models=DONE_WHEN_FOR_MODELS)] = Field(
        default=None, description=DONE_WHEN_DESCRIPTION
    )
    tools: Annotated[list[str], _of("goal", for_models="What may be called. A person confirms each write.")] = Field(
        default_factory=list, description="The tools that the model may use for the goal."
    )
    max_rounds: Annotated[int | None, _of("goal")] = Field(
        default=None, ge=1, description="The maximum number of rounds of a goal. The default is 60."
    )
    max_retries: Annotated[int, _of("call", "goal", for_models=MAX_RETRIES_FOR_MODELS)] = Field(
        default=0, ge=0, description="How often the step is retried after a known failure."
    )
    retry_delay_ms: Annotated[int, _of("call", "goal", for_models="Milliseconds before the second attempt.")] = Field(
        default=0, ge=0, description="Milliseconds before the second attempt."
    )
    retry_backoff: Annotated[float, _of("call", "goal")] = Field(
        default=1.0, ge=1.0, description="Each delay is the previous one times this number. 1.0 means a fixed delay."
    )
    retry_jitter: Annotated[float, _of("call", "goal")] = Field(
        default=0.0, ge=0.0, le=1.0, description="Each delay varies randomly by up to this share of it."
    )
    timeout_ms: Annotated[int | None, _of("call", "goal", for_models=TIMEOUT_FOR_MODELS)] = Field(
        default=None, ge=0, description=TIMEOUT_DESCRIPTION
    )
    effect: Annotated[Effect | None, _of("call", for_models="Only if this call does more than its tool declares.")] = Field(
        default=None, description="The effect of this call, if it differs from the tool's own effect."
    )
    isolation: Annotated[Isolation | None, _of("call", "goal", label="runs in")] = Field(
        default=None, description="Where a sync tool runs. A process can be killed at a timeout."
    )
    runner: Annotated[Runner | None, _of("call", "group", label="runs on")] = Field(default=None, description=RUNNER_DESCRIPTION)
    depends_on: Annotated[list[str], _of(for_models=DEPENDS_ON_FOR_MODELS)] = Field(
        default_factory=list, description="The steps that must complete first. A reference to a step's result adds that step by itself."
    )
    creates_secrets: Annotated[list[str], _of("call", "goal", label="creates secrets")] = Field(
        default_factory=list,
        description=CREATES_SECRETS_DESCRIPTION,
        json_schema_extra={"items": {"type": "string", "minLength": 1}},
    )
    requires_approval: Annotated[
        bool | Literal["each"],
        _of("call", "goal", "group", "plan", for_models="Whether a person must approve this step right before it runs."),
        _either("true, false or `each`"),
    ] = Field(
        default=False,
        description="Whether the step waits at a gate of its own. For a group, `true` asks once before its first item, and `each` before "
        "each item.",
    )
    on_error: Annotated[ErrorPolicy | None, _of(label="on error")] = Field(
        default=None, description="Overrides the options' error policy for this step."
    )
    rollback: Annotated[Rollback | None, _of("call", for_models="The call that undoes this one.")] = Field(
        default=None, description=ROLLBACK_DESCRIPTION
    )
    tags: Annotated[list[str], _of("call", "goal", "question", label="tags")] = Field(
        default_factory=list,
        description="Tags of the step's task runs. Prefect's concurrency limits on tags apply.",
        json_schema_extra=TAGS_SCHEMA,
    )
    rollback_failed: Annotated[bool, _of("call", "group")] = Field(default=False, description=ROLLBACK_FAILED_DESCRIPTION)
    metadata: dict[str, JsonValue] = Field(default_factory=dict, description="Free-form notes about the step. The engine ignores them.")

    @property
    def kind(self) -> StepKind:
        """What the step is. A step that says several things is the first of: a plan, a group, a question, a goal."""
        if self.plan is not None or self.pinned is not None:
            return "plan"
        return "group" if self.steps else "question" if self.ask is not None else "goal" if self.goal is not None else "call"

    @property
    def labelled_fields(self) -> dict[str, str]:
        """The fields that are shown with a label, as texts by name, in document order. Those with their defaults are left out."""
        defaults, found = fields_of(Step), dict[str, str]()
        for name, field in step_fields().items():
            value: object = getattr(self, name)
            if field.label is not None and value != defaults[name][1]:
                found[name] = ", ".join(cast("list[str]", value)) if isinstance(value, list) else str(value)
        return found

    @property
    def result(self) -> Reference:
        """The reference to the result of the step, for the parameters of later ones. `step.result["path"]` is a part of it."""
        if not self.id:
            raise ValueError("a step has an id once it is in a plan: use `plan.add_step`, or give it one")
        return Reference.to("steps", self.id, "result")

    @property
    def called(self) -> str:
        """What the step calls: the name of its tool or of the plan that it runs, `ask` for a question, `goal`, or `group`."""
        return self.tool_name or self.plan or (ASK if self.ask is not None else GOAL if self.goal is not None else "group")

    # Where the step is. `number_steps` sets these in `vars(step)`, because private attributes of pydantic would double the load time of
    # thousands of steps. They are not fields, so documents and equality leave them out.
    index: ClassVar[int] = 0
    """The step's index in its plan, from 0. The steps inside it follow it."""

    group: ClassVar[str | None] = None
    """The id of the group that the step belongs to, or None."""

    within: ClassVar["Step | None"] = None
    """The step that runs the plan to which this step belongs, or None for a step of the whole plan."""

    _copied_steps: ClassVar[Sequence["Step"]] = ()  # of the plan that this step runs
    _local_id: ClassVar[str | None] = None  # only in a sub-plan

    @property
    def is_group(self) -> bool:
        """Whether the step is a group: it has steps of its own and calls no tool."""
        return bool(self.steps)

    @property
    def inner(self) -> Sequence["Step"]:
        """The steps of this group, or of the plan that this step runs. The latter's ids begin with this step's id: `verify.check`."""
        return self.steps or self._copied_steps

    @property
    def outer(self) -> str | None:
        """The id of the step around this one: its group, or the step that runs its plan. None if there is none."""
        return self.group or (None if self.within is None else self.within.id)

    @property
    def local_id(self) -> str:
        """The step's id in the document of its own plan. Expressions there use it."""
        return self._local_id or self.id

    @property
    def depth(self) -> int:
        """How many sub-plans the step is inside of."""
        return 0 if self.within is None else 1 + self.within.depth

    def __eq__(self, other: object) -> bool:
        """Compare what was written. Where the steps are does not count."""
        return isinstance(other, Step) and step_document(self) == step_document(other)

    __hash__ = None  # type: ignore[assignment]  # a step is mutable

    def number_inner(self) -> None:
        """Copy the steps of the plan that this step runs into `inner`, with their ids in the whole plan."""
        copies = list[Step]()
        if isinstance(self.pinned, ExecutionPlan) and not self.steps:  # Python code may set a mapping, which validation converts
            self.pinned.number_steps()
            copies = [_copy_inside(self, step) for step in self.pinned.steps]
        vars(self)["_copied_steps"] = copies

    def put_at(self, index: int, *, group: str | None) -> None:
        """Record the step's index in its plan and its group. Called by the plan."""
        vars(self).update(index=index, group=group)


def _copy_inside(outer: Step, step: Step) -> Step:
    """Return a copy of `step`, from the plan that `outer` runs. Its id and dependencies begin with the id of `outer`."""
    copy = step.model_copy(
        update={
            "id": f"{outer.id}.{step.id}",
            "depends_on": [f"{outer.id}.{after}" for after in step.depends_on],
            "steps": [_copy_inside(outer, inner) for inner in step.steps],
        }
    )
    vars(copy).update(within=outer, _local_id=step.id)
    return copy


class ExecutionPlan(PlanPart):
    """A plan: a description, typed inputs, steps and options. It is approved and run as a whole.

    Missing ids of the plan and its steps are generated. `name` defaults to the first line of the description.
    """

    noun: ClassVar[str] = "a plan"
    ignored_fields: ClassVar[tuple[str, ...]] = ("$schema",)  # for editors
    history_fields: ClassVar[tuple[str, ...]] = (
        *("task_id", "agent_id", "org_id", "tenant_id", "status", "current_step", "total_duration_ms", "created_at", "updated_at", *_TIMES),
        *("user_approved", "approved_at", "approved_by", "rejection_note"),
    )

    version: Literal[1] = Field(default=1, description="The version of the plan document.")
    id: str = Field(default_factory=new_id, description="The plan's id. Generated if missing.")
    name: str = Field(default="", description="A short name. Defaults to the first line of the description.")
    description: str = Field(description="What the plan does. Approvers read it first.")
    inputs: dict[str, Input] = Field(default_factory=dict, description="The inputs of a run, by name.")
    hosts: Annotated[dict[str, HostGroup] | str, _either("a mapping of groups, or the path of an inventory")] = Field(
        default_factory=dict, description=HOSTS_DESCRIPTION
    )
    options: ExecutionOptions = Field(default_factory=ExecutionOptions)
    steps: list[Step] = Field(default_factory=list, description="The steps. Each runs once its dependencies have completed.")
    finally_: list[Step] = Field(default_factory=list, alias="finally", description=FINALLY_DESCRIPTION)
    concurrency: Concurrency | None = Field(default=None, description="Which runs exclude each other.")
    approval: ApprovalPolicy | None = Field(default=None, description="Who may approve and operate, and how they prove it.")
    triggers: list[Trigger] = Field(default_factory=list, description="The events that start the runbook once it is deployed.")
    permissions: Annotated[list[str] | str, _either("a list of names, or one expression that gives it")] = Field(
        default_factory=list, description=PERMISSIONS_DESCRIPTION, json_schema_extra=PERMISSIONS_SCHEMA
    )
    on_failure: Literal["replan"] | None = Field(default=None, description=ON_FAILURE_DESCRIPTION)
    isolation: Isolation | None = Field(default=None, description="Where sync tools run, unless their step says otherwise.")
    outputs: dict[str, JsonValue] = Field(default_factory=dict, description="The results of a run, by name. They may contain `${{ }}`.")
    run_name: str | None = Field(default=None, description=RUN_NAME_DESCRIPTION, json_schema_extra={"minLength": 1})
    language: Language | None = Field(default=None, description=LANGUAGE_DESCRIPTION)
    tags: list[str] = Field(default_factory=list, description="Tags of the flow run.", json_schema_extra=TAGS_SCHEMA)
    metadata: dict[str, JsonValue] = Field(default_factory=dict, description="Free-form notes about the plan. The engine ignores them.")

    # Loaded with the document; excluded from digest and equality.
    _history: dict[str, JsonValue] = PrivateAttr(default_factory=dict)
    _problems: tuple[Problem, ...] = PrivateAttr(default=())  # why the document cannot run; the affected fields were dropped
    _marks: Marks | None = PrivateAttr(default=None)
    _file: str | None = PrivateAttr(default=None)

    # A cache for `add_step`, which would otherwise scan all steps for each new one.
    _ids: set[str] = PrivateAttr(default_factory=set)
    _counted_steps: int = PrivateAttr(default=0)

    def model_post_init(self, _context: Any, /) -> None:
        """Fill in the name and any missing ids. A plan with hosts has an input that says on which of them a run works."""
        self.number_steps()
        if self.hosts:
            self.inputs = {**self.inputs, ON: self.inputs.get(ON, ON_INPUT)}

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
        if self.hosts and self.inputs.get(ON) == ON_INPUT:
            document["inputs"] = {name: given for name, given in cast("dict[str, JsonValue]", document["inputs"]).items() if name != ON}
            if not document["inputs"]:
                del document["inputs"]
        if self.options.stop_on_error == self.options.continue_on_error:  # neither is the default that follows from the other
            policies = {"stop_on_error": self.options.stop_on_error, "continue_on_error": self.options.continue_on_error}
            document["options"] = {**_document(self.options), **policies}
        if self.options.says_both_of_approval:  # a default that is written to contradict
            document["options"] = {**cast("dict[str, JsonValue]", document.get("options", {})), "require_approval": True}
        return document

    @property
    def inventory(self) -> Inventory | None:
        """The hosts of the plan, or None if it has none or its inventory was not read."""
        return Inventory(self.hosts) if self.hosts and not isinstance(self.hosts, str) else None

    def unread_variables(self, inputs: Mapping[str, object]) -> dict[str, str]:
        """Return the Prefect variables that give values which `inputs` lacks, by input. A form gives null for an empty field."""
        named = ((name, definition.variable) for name, definition in self.inputs.items() if inputs.get(name) is None)
        return {name: variable for name, variable in named if variable is not None}

    def host_lists(self, inputs: Mapping[str, JsonValue]) -> Mapping[str, JsonValue]:
        """Return the hosts of a run with `inputs`, by the pattern of `hosts('web')`."""
        if (inventory := self.inventory) is None:
            return {}
        on = inputs.get(ON, EVERY)
        return HostLists(inventory, on if isinstance(on, str) else str(on))  # an unknown one stays unknown

    @property
    def history(self) -> dict[str, JsonValue]:
        """What the document recorded about an earlier execution, per step under `steps`. Contains neither approval nor receipts."""
        return self._history

    @property
    def document_problems(self) -> list[Problem]:
        """The problems that the readers of this plan's document, and of those of the plans that it runs, have found."""
        return [problem for plan in self.plans.values() for problem in plan._problems]

    @property
    def default_name(self) -> str:
        """The name of a plan without one: the first line of its description, at most 80 characters."""
        lines = self.description.strip().splitlines()
        return lines[0].strip()[:80].rstrip() if lines else ""

    def has_gate(
        self, step: Step, declared: Effect | None, *, rollback: Effect | None = None, gate_effects: Collection[Effect] = ()
    ) -> bool:
        """Return whether `step` waits at a gate of its own. The settings' `gate_effects` add to those of the plan.

        `declared` is the effect of the step's tool, or None if unknown. The step's own `effect` counts only if it is stronger. `write`
        includes `idempotent_write`. `rollback` is the effect of the rollback's tool. Nobody is asked before a rollback, so a step that
        reads has a gate if its rollback writes.
        """
        gated_effects = {*gate_effects, *(effect for policy in self.policies_at(step) for effect in policy.effects)}
        if "write" in gated_effects:
            gated_effects.add("idempotent_write")
        own = step.effect if declared is None or (step.effect and EFFECTS.index(step.effect) > EFFECTS.index(declared)) else None
        always_has_gate = step.ask is not None or bool(step.requires_approval) or self.asks_before(step)
        return always_has_gate or not gated_effects.isdisjoint({declared, own, rollback})

    def asks_before(self, step: Step) -> bool:
        """Return whether `step` runs a plan that requires an approval, and no gate around it meets that plan's whole policy."""
        if step.pinned is None or not step.pinned.options.asks:
            return False
        demanded = step.pinned.approval or ApprovalPolicy()
        around = self.plans_around(step)
        return not any(plan.options.asks and demanded.is_met_by(plan.approval or ApprovalPolicy()) for plan in around)

    @property
    def plans(self) -> dict[str, "ExecutionPlan"]:
        """The plan and every plan inside it, at any depth, by what comes before their fields in this document: `steps[0].pinned.`."""
        own = ((at, step.pinned) for at, step in self.places.items() if step.within is None)
        inside = (
            (f"{at}.pinned.{inner}", plan)
            for at, pinned in own
            if isinstance(pinned, ExecutionPlan)  # Python code may set a mapping, which validation converts
            for inner, plan in pinned.plans.items()
        )
        return {"": self, **dict(inside)}

    @property
    def sub_plans(self) -> list["ExecutionPlan"]:
        """The plans that steps of this plan run, and the plans inside them."""
        return [*self.plans.values()][1:]

    def plans_around(self, step: Step) -> list["ExecutionPlan"]:
        """Return the plans that `step` belongs to, from the innermost to this one."""
        found, within = list[ExecutionPlan](), step.within
        while within is not None:
            found += [within.pinned] if within.pinned is not None else []
            within = within.within
        return [*found, self]

    def plans_at(self, step: Step | None) -> list["ExecutionPlan"]:
        """Return the plans whose rules hold at `step`, innermost first, with the one that it runs; with None, those at the plan gate."""
        if step is None:
            return [self]
        around = self.plans_around(step)
        return around if step.pinned is None else [step.pinned, *around]

    def policies_at(self, step: Step | None) -> list[ApprovalPolicy]:
        """Return the policies of the plan gate or of the gate of `step`, innermost first. The plan that `step` itself runs is innermost."""
        return [plan.approval for plan in self.plans_at(step) if plan.approval is not None]

    def permissions_at(self, step: Step | None, decided: Mapping[str, Sequence[str]] | None = None) -> Permissions:
        """Return the permissions of the tools at `step`: those that every plan there gives; with None, those that this plan gives.

        `decided` are the permissions of the plans whose inputs decide, by the id of the step that runs the plan. This plan has the id "".
        """
        runner = step if step is None or step.pinned is not None else step.within
        plans: list[tuple[str, ExecutionPlan]] = []
        while runner is not None:
            plans += [] if runner.pinned is None else [(runner.id, runner.pinned)]
            runner = runner.within
        plans.append(("", self))
        known, given = decided or {}, list[Sequence[str] | None]()
        for runner_id, plan in plans:
            given.append(known.get(runner_id) if isinstance(plan.permissions, str) else plan.permissions)
        names = [] if any(each is None for each in given) else _in_all(each for each in given if each is not None)
        expressions = [plan.permissions for _, plan in plans if isinstance(plan.permissions, str)]
        return Permissions(names, expressions, is_decided=None not in given)

    def always_executed_at(self, step: Step) -> list[str]:
        """Return the tools that models may call at `step` without a confirmation: those in `always_execute` of every plan there."""
        return _in_all(plan.always_executed for plan in self.plans_at(step))

    @property
    def always_executed(self) -> list[str]:
        """The tools in the `always_execute` of this plan's own policy."""
        return [] if self.approval is None else self.approval.always_execute

    def approvers_at(self, step_id: str | None, *, is_escalated: bool = False) -> list[list[str]]:
        """Return the approvers at the plan gate or at a step's gate, as written: an answer needs a name that all the lists accept.

        The innermost plan that names approvers decides, except that `effects` of a plan around it ask that plan's approvers as well.
        A question may name its own. Without a list, anyone is accepted. `is_escalated`: each list with those that its plan escalates to.
        """
        step = self.find_step(step_id)
        deciding = self._deciding_policies(step)
        if step is not None and step.approvers:
            added = [name for policy in deciding if is_escalated and policy.escalate is not None for name in policy.escalate.to]
            return [[*step.approvers, *added]]
        lists = (
            [*policy.approvers, *(policy.escalate.to if is_escalated and policy.escalate is not None else ())]
            for policy in deciding
            if policy.approvers
        )
        return [*{tuple(names): names for names in lists}.values()]

    def escalation_at(self, step_id: str | None) -> Escalation | None:
        """Return when the plan gate or a step's gate escalates, and to whom: the latest time of the plans whose approvers answer there."""
        deciding = self._deciding_policies(self.find_step(step_id))
        found = [policy.escalate for policy in deciding if policy.escalate is not None]
        if len(found) <= 1:
            return found[0] if found else None
        return Escalation(after_ms=max(each.after_ms for each in found), to=[name for each in found for name in each.to])

    def _deciding_policies(self, step: Step | None) -> list[ApprovalPolicy]:
        """Return the policies whose approvers answer at the plan gate or at the gate of `step`; where none names any, the innermost one."""
        policies = self.policies_at(step)
        is_call = step is not None and step.ask is None and not step.inner
        asking = [index for index, policy in enumerate(policies) if index == 0 or (is_call and policy.effects)]
        named = (next((policy for policy in policies[index:] if policy.approvers), policies[index]) for index in asking)
        return [*{id(policy): policy for policy in named}.values()]

    def excludes_authors(self, step_id: str | None) -> bool:
        """Return whether the plan gate or a step's gate takes no approval by an author."""
        return any(not policy.author_approval for policy in self.policies_at(self.find_step(step_id)))

    def lets_delegate(self, step_id: str | None) -> bool:
        """Return whether an approver at the plan gate or at a step's gate may let another person answer: all plans there say so."""
        policies = [policy for policy in self.policies_at(self.find_step(step_id)) if policy.approvers or policy.delegate]
        return bool(policies) and all(policy.delegate for policy in policies)

    def why_nobody_answers(self, step: Step) -> str | None:
        """Return why nobody may answer at a gate of `step`, as far as the plans there alone decide, or None.

        A group is compared by its name, because plans do not know its members.
        """
        lists = self.approvers_at(step.id)
        if len(lists) > 1 and not _in_all(lists):
            return f"its lists of approvers share no name ({' and '.join(', '.join(f'`{name}`' for name in names) for names in lists)})"
        proofs = [policy.known_by for policy in self.policies_at(step) if policy.known_by]
        if len(proofs) > 1 and not _in_all(proofs):
            return f"its lists of proofs (`known_by`) share none ({' and '.join(', '.join(map(str, names)) for names in proofs)})"
        return None

    @property
    def all_approvers(self) -> list[str]:
        """The names and groups under `approvers` of this plan, of the plans inside it and of their questions, as written."""
        own = [name for plan in self.plans.values() if plan.approval is not None for name in plan.approval.approvers]
        return [*own, *self.approvers_of_questions]

    @property
    def approvers_of_questions(self) -> list[str]:
        """The names and groups that questions name, as written."""
        return [name for step in self.all_steps for name in step.approvers]

    def expires_at(self, step_id: str | None) -> Expiry:
        """Return what happens if nobody answers in time at the plan gate, or at the gate of a step."""
        step = self.find_step(step_id)
        if step is not None and step.expires is not None:
            return step.expires
        policies = self.policies_at(step)
        return policies[0].expires if policies else "reject"

    def gate_timeout_ms(self, step: Step) -> int:
        """Return how long the gate of `step` waits for an answer in milliseconds. 0 means no limit."""
        return next((plan.options.approval_timeout_ms for plan in self.plans_at(step) if plan.options.approval_timeout_ms), 0)

    def find_step(self, step_id: str | None) -> Step | None:
        """Return the step with this id, at any depth, or None."""
        return None if step_id is None else next((step for step in self.all_steps if step.id == step_id), None)

    def timeout_ms_of(self, step: Step) -> int:
        """Return the limit of one attempt of `step` in milliseconds: the step's own, else its plan's. 0 means no limit."""
        if step.timeout_ms is not None:
            return step.timeout_ms
        return next((plan.options.step_timeout_ms for plan in self.plans_around(step) if plan.options.step_timeout_ms), 0)

    def on_error_of(self, step: Step) -> ErrorPolicy:
        """Return the error policy of `step`: its own, or else that of the plan that contains it."""
        return step.on_error or self.plans_around(step)[0].options.on_error

    def rolls_back_failed_items(self, group: Step) -> bool:
        """Return whether `group` rolls back each item as soon as it has failed, and only that item."""
        return group.rollback_failed and self.on_error_of(group) == "continue" and any(step.rollback is not None for step in group.steps)

    def isolation_of(self, step: Step) -> Isolation | None:
        """Return where a sync tool of `step` runs, unless the tool itself decides."""
        return step.isolation or next((plan.isolation for plan in self.plans_around(step) if plan.isolation), None)

    def items_at_once(self, group: Step) -> int:
        """Return how many items of a group are in progress at once."""
        limit = min(plan.options.parallel_limit for plan in self.plans_around(group))
        return min(group.batch or limit, limit)

    def number_steps(self) -> None:
        """Renumber the steps, and fill in missing ids and the name. Called by validation after edits."""
        self.name = self.name or self.default_name
        taken = {step.id for step in self.all_steps if step.id}
        index = 0
        for prefix, steps in (("step", self.steps), ("finally", self.finally_)):
            index = _assign_indexes(steps, prefix, index, taken)

    def add_step(
        self,
        tool_name: str | Callable[..., object],
        description: str = "",
        parameters: dict[str, JsonValue] | None = None,
        **fields: Any,
    ) -> Step:
        """Append a step with a generated id and return it. `tool_name` is the name of a tool, a tool, or its function.

        `fields` are the other fields of `Step`. With a tool or a function, the rest are its parameters: `plan.add_step(greet, who="Ana")`.
        A parameter that has the name of a field of `Step` goes into `parameters`. Values may be references: `first.result["path"]`,
        `plan.input("host")`. Raises ValidationError, and TypeError for what is neither a field nor a parameter.
        """
        name, given = (tool_name, {}) if isinstance(tool_name, str) else _call_of(tool_name, fields)
        values = normalize({**(parameters or {}), **given})  # references become ordinary texts
        others = normalize({key: value for key, value in fields.items() if key not in given})
        step = Step(tool_name=name, description=description, parameters=values, **others)
        taken = self._taken_ids()
        if not step.id:
            step.id = free_id(f"step_{len(self.steps) + 1}", taken)
        _assign_indexes([step], "", len(taken) - len(self.finally_), taken)
        self.steps.append(step)
        self._counted_steps += 1
        return step

    def input(self, name: str) -> Reference:
        """Return the reference to an input, for the parameters of a step. Raises KeyError with the nearest name if there is none."""
        if name not in self.inputs:
            raise KeyError(f"the plan has no input `{name}`; {did_you_mean(name, list(self.inputs)) if self.inputs else 'it has none'}")
        return Reference.to("inputs", name)

    def _taken_ids(self) -> set[str]:
        """Return the ids in use. Collect them again if steps were added or removed other than by `add_step`."""
        count = len(self.steps) + len(self.finally_)
        if count != self._counted_steps:
            self._ids, self._counted_steps = {step.id for step in self.all_steps}, count
        return self._ids

    @property
    def all_steps(self) -> list[Step]:
        """The steps, each followed by the steps inside it, and the `finally` steps after them."""
        return [*flattened(self.steps), *self.finally_]

    @property
    def places(self) -> dict[str, Step]:
        """All steps by their path in the document: `steps[0]`, `steps[1].steps[0]`, `steps[2].pinned.steps[0]`, `finally[0]`."""
        return {**_places("steps", self.steps), **_places("finally", self.finally_)}

    def get_step(self, index: int) -> Step | None:
        """Return the step at `index`, from 0, or None if there is none. A negative index returns None."""
        steps = flattened(self.steps)
        return steps[index] if 0 <= index < len(steps) else None

    def step(self, step_id: str) -> Step:
        """Return the step with the id `step_id`. Raises KeyError with the nearest id if there is none."""
        for step in self.all_steps:
            if step.id == step_id:
                return step
        raise KeyError(f"no step is called `{step_id}`; {did_you_mean(str(step_id), [step.id for step in self.all_steps])}")


def _in_all(lists: Iterable[Sequence[str]]) -> list[str]:
    """Return the entries of the first list that are in all of them."""
    first, *others = lists
    return [entry for entry in first if all(entry in other for other in others)]


def flattened(steps: Collection[Step]) -> list[Step]:
    """Return `steps`, each followed by the steps inside it."""
    found = list[Step]()
    for step in steps:
        found.append(step)
        if inner := step.inner:
            found += flattened(inner)
    return found


def _places(at: str, steps: Collection[Step]) -> dict[str, Step]:
    found = dict[str, Step]()
    for index, step in enumerate(steps):
        found[f"{at}[{index}]"] = step
        if step.inner:
            found |= _places(f"{at}[{index}].{'steps' if step.is_group else 'pinned.steps'}", step.inner)
    return found


def _assign_indexes(steps: Collection[Step], prefix: str, index: int, taken: set[str], *, group: str | None = None) -> int:
    """Set the indexes of `steps`, from `index`, and their missing ids. Return the index after the last one."""
    for number, step in enumerate(steps, start=1):
        if not step.id:
            step.id = free_id(f"{prefix}_{number}", taken)
        taken.add(step.id)
        step.put_at(index, group=group)
        index += 1
        if step.plan is not None:
            step.number_inner()
        if step.inner:
            index = _assign_indexes(step.inner, step.id[:58], index, taken, group=step.id if step.is_group else None)
    return index


def _document(model: BaseModel) -> dict[str, JsonValue]:
    """Return the fields that differ from their defaults, in field order. A part with only defaults is omitted."""
    document: dict[str, JsonValue] = {}
    values = vars(model)
    for name, (alias, default) in fields_of(type(model)).items():
        value = values[name]
        if value is default or value == default:
            continue
        if isinstance(value, ExecutionPlan):
            document[alias] = value.to_document()
        elif isinstance(value, BaseModel):
            if part := _document(value):
                document[alias] = part
        elif name in ("steps", "finally_", "triggers"):
            document[alias] = [_document(step) for step in value]
        elif isinstance(value, dict) and any(isinstance(part, BaseModel) for part in cast("dict[str, Any]", value).values()):
            document[alias] = {key: _document(part) for key, part in cast("dict[str, BaseModel]", value).items()}
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


@cache
def step_fields() -> dict[str, StepField]:
    """Return what is known of each field of a step, by name, in document order."""
    Step.model_rebuild()
    fields = {name: [fact for fact in info.metadata if isinstance(fact, StepField)] for name, info in Step.model_fields.items()}
    return {name: (facts or [_of()])[0] for name, facts in fields.items()}


def _call_of(tool: Callable[..., object], fields: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """Return the name of a tool, or of the function that is one, and those of `fields` that are its parameters, not fields of a step."""
    name = getattr(tool, "name", None) or getattr(tool, "__name__", None)
    if not isinstance(name, str) or not callable(tool):
        raise TypeError(f"a step calls a tool: give its name, the tool or its function, not {tool!r:.100}")
    given, known = {key: value for key, value in fields.items() if key not in Step.model_fields}, inspect.signature(tool).parameters
    if unknown := given.keys() - known.keys():
        which = "; ".join(f"`{key}`: {did_you_mean(key, [*known, *Step.model_fields])}" for key in sorted(unknown))
        raise TypeError(f"`{name}` has no such parameter, and a step no such field: {which}")
    return name, given


class _LazySignature:
    """The parameters of `Step`, which pydantic knows only once `ExecutionPlan` exists."""

    def __get__(self, _instance: object, owner: type[BaseModel]) -> inspect.Signature:
        del owner.__signature__
        owner.model_rebuild(force=True)
        return owner.__signature__


Step.__signature__ = _LazySignature()  # pyright: ignore[reportAttributeAccessIssue]


def free_id(wanted: str, taken: Collection[str]) -> str:
    """Return `wanted`, with a number after it if it is `taken`."""
    candidate, number = wanted, 2
    while candidate in taken:
        candidate, number = f"{wanted}_{number}", number + 1
    return candidate
