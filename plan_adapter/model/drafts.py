"""The values of a draft: the request, the model's calls, and the result. The planner creates them, the store keeps them."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Literal, TypeAlias

from pydantic import JsonValue

from plan_adapter.model.options import ExecutionOptions
from plan_adapter.model.plan import ExecutionPlan, new_id
from plan_adapter.model.problems import Problem

Rung: TypeAlias = Literal["strict_schema", "schema", "json_object", "tool_call", "text"]
"""A way to make a model answer with one JSON object, from the strictest to the loosest; see `agent.openai_model`."""


@dataclass(frozen=True, slots=True)
class PlanRequest:
    """What to plan.

    `context` is a text, or a mapping of facts by name.

    `available_tools` restricts the planner to these tools, by name; None: all of its tools. `available_secrets` are the names that the plan
    may use in `${{ secrets.name }}`; a model never sees a value. `options`, `permissions` and `metadata` become the plan's. None of these
    can waive the approval that a drafted plan needs.
    """

    task: str  # what the plan should do, in words
    context: str | Mapping[str, JsonValue] = field(default_factory=dict[str, JsonValue])  # what the model should know
    constraints: tuple[str, ...] = ()  # what the plan must keep to, in words
    max_steps: int | None = None  # how many steps it may have
    available_tools: tuple[str, ...] | None = None  # the tools it may use; None: all
    available_secrets: tuple[str, ...] = ()  # the secrets it may use, by name
    options: ExecutionOptions | None = None  # the options that it must have
    permissions: tuple[str, ...] = ()  # the permissions that its tools get
    metadata: Mapping[str, JsonValue] = field(default_factory=dict[str, JsonValue])  # free notes

    def __post_init__(self) -> None:
        """Raise TypeError for a text in place of a list of texts, because each of its characters would become an item."""
        for name in ("constraints", "available_tools", "available_secrets", "permissions"):
            if isinstance(text := getattr(self, name), str):
                raise TypeError(f"PlanRequest.{name} is a list of texts, not one text: write {name}=[{text[:60]!r}]")


@dataclass(frozen=True, slots=True)
class Usage:
    """Token counts as the server reports them, 0 if it does not. A draft and a goal estimate what is not reported."""

    prompt: int = 0
    completion: int = 0

    @property
    def total(self) -> int:
        """The sum of both."""
        return self.prompt + self.completion

    def __add__(self, other: "Usage") -> "Usage":
        return Usage(self.prompt + other.prompt, self.completion + other.completion)


@dataclass(frozen=True, slots=True)
class ModelCall:
    """One question to the model, with its answer. Passwords in URLs are redacted."""

    number: int
    model: str
    rung: Rung
    prompt_digest: str
    prompt: str  # the messages added since the previous call
    answer: str
    usage: Usage
    seconds: float
    phase: str  # quick | deep
    problems: tuple[str, ...] = ()
    is_whole: bool = True  # whether nothing was redacted from the answer


@dataclass(frozen=True, slots=True)
class ConstraintCheck:
    """A constraint and how the plan keeps it. If `checked`, its dependencies keep it. Otherwise `how` says why it was not checked."""

    number: int
    text: str
    checked: bool
    how: str


@dataclass(slots=True)
class Draft:
    """One drafting attempt, from the request to a plan, or to the reason why there is none."""

    request: PlanRequest  # what was asked for
    model: str  # the model that wrote it
    id: str = field(default_factory=new_id)  # its own id
    plan: ExecutionPlan | None = None  # the valid plan; None: there is none
    complexity: str | None = None  # what the model calls the task's complexity
    speak: str = ""  # what the model says to the person
    calls: list[ModelCall] = field(default_factory=list[ModelCall])  # each call of the model, with tokens and cost
    constraints: list[ConstraintCheck] = field(default_factory=list[ConstraintCheck])  # how the plan keeps each constraint
    notes: list[str] = field(default_factory=list[str])  # what the model notes about its plan
    problems: list[Problem] = field(default_factory=list[Problem])  # of the last answer, if there is no plan
    failure: str | None = None  # why there is no plan
    created_at: datetime | None = None  # by the store's clock, once it is stored

    @property
    def usage(self) -> Usage:
        """The tokens of all calls."""
        return sum((call.usage for call in self.calls), Usage())

    @property
    def repairs(self) -> int:
        """How many answers had to be corrected."""
        return sum(1 for call in self.calls if call.problems)
