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

    task: str
    context: str | Mapping[str, JsonValue] = field(default_factory=dict[str, JsonValue])
    constraints: tuple[str, ...] = ()
    max_steps: int | None = None
    available_tools: tuple[str, ...] | None = None
    available_secrets: tuple[str, ...] = ()
    options: ExecutionOptions | None = None
    permissions: tuple[str, ...] = ()
    metadata: Mapping[str, JsonValue] = field(default_factory=dict[str, JsonValue])

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

    request: PlanRequest
    model: str
    id: str = field(default_factory=new_id)
    plan: ExecutionPlan | None = None
    complexity: str | None = None
    speak: str = ""
    calls: list[ModelCall] = field(default_factory=list[ModelCall])
    constraints: list[ConstraintCheck] = field(default_factory=list[ConstraintCheck])
    notes: list[str] = field(default_factory=list[str])
    problems: list[Problem] = field(default_factory=list[Problem])  # of the last answer, if there is no plan
    failure: str | None = None
    created_at: datetime | None = None  # by the store's clock, once it is stored

    @property
    def usage(self) -> Usage:
        """The tokens of all calls."""
        return sum((call.usage for call in self.calls), Usage())

    @property
    def repairs(self) -> int:
        """How many answers had to be corrected."""
        return sum(1 for call in self.calls if call.problems)
