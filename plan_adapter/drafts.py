"""Drafts of plans: what is asked for, what a model answered, and what came of it. Values; the planner makes them, the store keeps them."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Literal, TypeAlias

from pydantic import JsonValue

from plan_adapter.plan import ExecutionOptions, ExecutionPlan, new_id
from plan_adapter.problems import Problem

Rung: TypeAlias = Literal["strict_schema", "schema", "json_object", "tool_call", "text"]
"""A way to make a model answer with one JSON object, from the strictest to the loosest; see `agent.openai_model`."""


@dataclass(frozen=True, slots=True)
class PlanRequest:
    """What is to be planned.

    `context` is a text, or facts by name.

    `available_tools` narrows the planner's tools, by name; None: all that were named to the planner. `available_secrets` are the names that
    may stand in `${{ secrets.name }}`; a model never sees a value. `options` and `metadata` become the plan's; that it needs an approval is
    not up to either.
    """

    task: str
    context: str | Mapping[str, JsonValue] = field(default_factory=dict[str, JsonValue])
    constraints: tuple[str, ...] = ()
    max_steps: int | None = None
    available_tools: tuple[str, ...] | None = None
    available_secrets: tuple[str, ...] = ()
    options: ExecutionOptions | None = None
    metadata: Mapping[str, JsonValue] = field(default_factory=dict[str, JsonValue])

    def __post_init__(self) -> None:
        """Refuse a text where a list of texts is wanted: each of its characters would be one."""
        for name in ("constraints", "available_tools", "available_secrets"):
            if isinstance(text := getattr(self, name), str):
                raise TypeError(f"PlanRequest.{name} is a list of texts, not one text: write {name}=[{text[:60]!r}]")


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens, as the server counts them; 0 where it does not say."""

    prompt: int = 0
    completion: int = 0

    @property
    def total(self) -> int:
        """Both together."""
        return self.prompt + self.completion

    def __add__(self, other: "Usage") -> "Usage":
        return Usage(self.prompt + other.prompt, self.completion + other.completion)


@dataclass(frozen=True, slots=True)
class ModelCall:
    """One question to the model and its answer; texts as they were sent and came, passwords in URLs taken out."""

    number: int
    model: str
    rung: Rung
    prompt_digest: str
    prompt: str  # the messages that were added since the call before
    answer: str
    usage: Usage
    seconds: float
    phase: str  # quick | deep
    problems: tuple[str, ...] = ()
    is_whole: bool = True  # whether nothing was taken out of the answer


@dataclass(frozen=True, slots=True)
class KeptConstraint:
    """A constraint, and what is known of it: `checked` where the plan's own edges keep it, else in words why nobody can tell."""

    number: int
    text: str
    checked: bool
    how: str


@dataclass(slots=True)
class Draft:
    """The story of one task from the request to a plan, or to why there is none."""

    request: PlanRequest
    model: str
    id: str = field(default_factory=new_id)
    plan: ExecutionPlan | None = None
    complexity: str | None = None
    speak: str = ""
    calls: list[ModelCall] = field(default_factory=list[ModelCall])
    constraints: list[KeptConstraint] = field(default_factory=list[KeptConstraint])
    notes: list[str] = field(default_factory=list[str])
    problems: list[Problem] = field(default_factory=list[Problem])  # of the last answer, where no plan came of it
    failure: str | None = None
    created_at: datetime | None = None  # by the store's clock, once it is kept

    @property
    def usage(self) -> Usage:
        """The tokens of all calls."""
        return sum((call.usage for call in self.calls), Usage())

    @property
    def repairs(self) -> int:
        """How many answers had to be corrected."""
        return sum(1 for call in self.calls if call.problems)
