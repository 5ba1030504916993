"""`Case`: a plan, its inputs, the answers to its calls and gates, and what is expected of the run."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, TypeAlias

from pydantic import JsonValue

from plan_adapter.expressions import Expression, Template
from plan_adapter.model.options import CallKind
from plan_adapter.testing.expectations import Expectation
from plan_adapter.validation import BoundPlan, ValidatedPlan

GateAnswer: TypeAlias = Literal["approve", "reject", "expire"]
"""An answer at a gate. `expire`: nobody answers in time."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What one attempt of a call gets: a result, a failure, or a timeout."""

    result: JsonValue = None
    failure: str | None = None
    is_timeout: bool = False


@dataclass(frozen=True, slots=True)
class Answers:
    """The answers to the calls of a step: by item if `by_item`, and for each item by attempt."""

    calls: tuple[tuple[Answer, ...], ...]
    by_item: bool = False

    def find(self, item: int | None, number: int) -> Answer | None:
        """Return the answer to attempt `number`, from 0, of `item`. The last one counts for all later attempts."""
        index = item if self.by_item and item is not None else 0
        attempts = self.calls[index] if index < len(self.calls) else ()
        return attempts[min(number, len(attempts) - 1)] if attempts else None


@dataclass(frozen=True, slots=True)
class Case:
    """One named case of a test file. Its plan is valid, has all its inputs, and its tools call nothing."""

    name: str
    file: Path
    line: int
    plan: BoundPlan
    calls: Mapping[tuple[CallKind, str], Answers]  # by kind of call and step
    gates: Mapping[str, tuple[GateAnswer, ...]]  # by step, or PLAN; several answers are one per item
    answers: Mapping[str, JsonValue]  # to questions, by step: the values of their fields
    expect: Expectation = field(default_factory=Expectation)

    def __str__(self) -> str:
        """Return the file, line and name."""
        return f"{self.file}:{self.line}: {self.name}"


def find_result_uses(validated: ValidatedPlan) -> dict[str, str]:
    """Return the steps whose results the plan uses, each with the first expression that uses it."""
    uses = dict[str, str]()
    rollbacks = {step_id: rollback.parameters for step_id, rollback in validated.rollbacks.items()}
    for templates in (validated.done_when, rollbacks, validated.parameters, validated.when, validated.for_each, validated.labels):
        for step_id, template in templates.items():
            within = validated.steps[step_id].within
            _add_uses(uses, template, own=step_id, prefix="" if within is None else f"{within.id}.")
    for template in validated.outputs.values():
        _add_uses(uses, template)
    for step_id, sub_plan in validated.sub_plans.items():
        for template in sub_plan.outputs.values():
            _add_uses(uses, template, prefix=f"{step_id}.")
    return uses


def _add_uses(uses: dict[str, str], template: Template, *, own: str = "", prefix: str = "") -> None:
    """Add the results that `template` uses. `own` is the step whose result is `result` there; `prefix` goes before step ids."""
    for expression in (part for parts in template.texts.values() for part in parts if isinstance(part, Expression)):
        for path in (variable.path for variable in expression.variables):
            if path[0] == "result":
                uses.setdefault(own, str(expression))
            elif path[0] == "steps" and path[2:3] == ("result",):
                uses.setdefault(f"{prefix}{path[1]}", str(expression))
