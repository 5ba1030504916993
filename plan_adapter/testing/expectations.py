"""`Expectation`: what a case expects of its run. It is read from the field `expect` of a test file."""

from collections.abc import Collection
from typing import Annotated, ClassVar, TypeAlias

from pydantic import AfterValidator, BeforeValidator, ConfigDict, Discriminator, Field, JsonValue, Tag, ValidationInfo, field_validator
from pydantic_core import PydanticCustomError

from plan_adapter.model.options import EFFECTS, DocumentModel, Effect
from plan_adapter.model.problems import did_you_mean, type_error, value_error
from plan_adapter.model.readable import one_line
from plan_adapter.model.status import PlanStatus, RunReason

PLAN = "plan"
"""The name of the plan's own gate."""


def _known(*also: str, with_items: bool = False) -> AfterValidator:
    """Return a validator of step ids and the names in `also`. The context of the validation is the ids, or None if they are unknown.

    With `with_items`, the item of a step may follow its id, as in `restart[web-1]`.
    """

    def check(name: str, info: ValidationInfo[Collection[str] | None]) -> str:
        step_id, steps = name.partition("[")[0] if with_items else name, info.context
        if steps is not None and step_id not in steps and step_id not in also:
            hint = did_you_mean(step_id[:60], frozenset([*steps, *also]))
            raise value_error("unknown-step", f"no step is called `{one_line(step_id)[:60]}`", hint)
        return name

    return AfterValidator(check)


def _list_of(what: str) -> BeforeValidator:
    """Return a validator that refuses what is not a list."""

    def check(value: object) -> object:
        if isinstance(value, list):
            return value  # pyright: ignore[reportUnknownVariableType]  # the members have validators of their own
        raise type_error(f"a list of {what}", "write [ … ]")

    return BeforeValidator(check)


def not_one_of(choices: Collection[str], value: object) -> PydanticCustomError:
    """Return the error of a value that is none of `choices`."""
    hint = did_you_mean(value[:60], choices) if isinstance(value, str) else ""
    listed = ", ".join(f"`{choice}`" for choice in choices)
    return value_error("bad-value", f"this must be one of {listed}", hint if hint.startswith("did") else "")


def one_of(choices: Collection[str]) -> BeforeValidator:
    """Return a validator that turns a value into the one of `choices` that it equals."""

    def choose(value: object) -> str:
        for choice in choices:
            if value == choice:
                return choice
        raise not_one_of(choices, value)

    return BeforeValidator(choose)


def _check_effect(name: str) -> str:
    if name not in EFFECTS:
        raise value_error("unknown-field", f"`effects` has no field `{one_line(name)[:60]}`", did_you_mean(name[:60], EFFECTS))
    return name


def _check_count(value: object) -> object:
    if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
        return value
    raise value_error("wrong-type", "this must be a whole number of at least 0")


def empty_if_null(value: object) -> object:
    """Return an empty mapping for null, which YAML reads where nothing is written."""
    return {} if value is None else value


LIST, OTHER = "a list", "no list"

BY_KIND = Discriminator(lambda value: LIST if isinstance(value, list) else OTHER)
"""Tells the two types of a field apart that may be a list or something else."""

StepId: TypeAlias = Annotated[str, _known()]
StepOrPlan: TypeAlias = Annotated[str, _known(PLAN)]
Steps: TypeAlias = Annotated[list[StepId], _list_of("steps")]

Order: TypeAlias = Annotated[
    list[Annotated[Annotated[StepId, Tag(OTHER)] | Annotated[list[StepId], Tag(LIST)], BY_KIND]], _list_of("steps")
]
"""The ids of steps in the order in which they start. Steps in an inner list start in any order."""

Parameters: TypeAlias = Annotated[dict[str, JsonValue], BeforeValidator(empty_if_null)]

CalledWith: TypeAlias = Annotated[Annotated[Parameters, Tag(OTHER)] | Annotated[list[Parameters], Tag(LIST)], BY_KIND]
"""The parameters of every call, or of each one in turn."""

Ended: TypeAlias = Annotated[
    Annotated[dict[StepId, str], Tag("a mapping")] | Annotated[Steps, Tag(LIST)],
    Discriminator(lambda value: "a mapping" if isinstance(value, dict) else LIST),
]
"""The steps that ended in some way; in a mapping, each with a part of the reason."""


class Expectation(DocumentModel):
    """What is expected of a run. Fields that are None or empty mappings are not checked."""

    model_config = ConfigDict(frozen=True)

    noun: ClassVar[str] = "`expect`"

    status: Annotated[PlanStatus, one_of([status for status in PlanStatus if status.has_ended])] = PlanStatus.COMPLETED
    reason: Annotated[RunReason, one_of([*RunReason])] | None = None
    message: str | None = None  # a part of it
    order: Order | None = None
    gates: Annotated[list[Annotated[str, _known(PLAN, with_items=True)]], _list_of("names")] | None = None
    skipped: Ended | None = None
    failed: Ended | None = None
    rolled_back: Annotated[list[Annotated[str, _known(with_items=True)]], _list_of("names")] | None = None
    effects: dict[Annotated[Effect, BeforeValidator(_check_effect)], Steps] = Field(default_factory=dict)  # called with that effect
    attempts: dict[StepId, Annotated[int, BeforeValidator(_check_count)]] = Field(default_factory=dict)
    called_with: dict[StepId, CalledWith] = Field(default_factory=dict)
    results: dict[StepId, JsonValue] = Field(default_factory=dict)
    outputs: dict[str, JsonValue] = Field(default_factory=dict)

    @field_validator("*", mode="before")
    @classmethod
    def _refuse_null(cls, value: object) -> object:
        """Refuse a null, so that nobody believes that the field is checked."""
        if value is None:
            raise value_error("wrong-type", "this must not be null", "write a value, or remove the line")
        return value
