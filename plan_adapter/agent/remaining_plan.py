"""Replanning a run: `RemainingPlan` separates the steps that stay from those a model writes again."""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import TypeAlias, cast

from pydantic import JsonValue

from plan_adapter.execution.history import RunHistory
from plan_adapter.execution.redactor import Redactor
from plan_adapter.expressions.references import Code, UnclosedError, references, split_expressions
from plan_adapter.model.graph import ancestors_of
from plan_adapter.model.plan import ExecutionPlan, Step, flattened, step_document
from plan_adapter.model.problems import Problem
from plan_adapter.model.readable import call_name, is_secret_name, redacted
from plan_adapter.model.record import PlanRun, StepRun
from plan_adapter.validation import ValidatedPlan

SHOWN_CHARACTERS = 4_000
"""How many characters of one result, error or recorded text a model is shown."""
ALL_CHARACTERS = 120_000
"""The limit for all of them together, divided evenly among the steps."""

_Cut: TypeAlias = Callable[[JsonValue], JsonValue]


@dataclass(frozen=True, slots=True)
class RemainingPlan:
    """The part of the plan `old` that a model writes again. Started steps stay, and so does everything they depend on."""

    old: ExecutionPlan
    kept: frozenset[str]  # ids of the steps that stay, byte for byte
    taken: frozenset[str]  # ids that the model's steps must not use: those of kept, attempted and `finally` steps
    needed: frozenset[str] = frozenset()  # ids that outputs and `finally` steps refer to; the model's steps must use them
    gated: frozenset[str] = frozenset()  # tools whose calls wait at a gate, because a replaced step did
    secrets: Mapping[str, frozenset[str]] = field(default_factory=dict[str, frozenset[str]])  # secret name -> tools that receive it
    named: Mapping[str, str] = field(default_factory=dict[str, str])  # the secrets that the run's inputs name, by input

    @classmethod
    def of(cls, validated: ValidatedPlan, history: RunHistory) -> "RemainingPlan":
        """Return the part of `validated` that has not run according to `history`, which must have no unknown outcomes."""
        plan = validated.plan
        outer = {
            inner.id: step.id for step in plan.steps for inner in flattened([step])
        }  # a step is kept whole once any step inside it has started
        started = {outer[step_id] for step_id, _ in (*history.succeeded, *history.repeatable) if step_id in outer}
        ancestors = ancestors_of(validated.dependencies)
        kept = started.union(*(ancestors[step_id] for step_id in started))
        needed = _find_referred_ids(plan) - kept
        attempted = {step_id for step_id, _ in history.attempts}
        replaced = [step for step in plan.steps if step.id not in kept]
        return cls(
            old=plan,
            kept=frozenset(kept),
            taken=frozenset((kept | attempted | {step.id for step in plan.finally_}) - needed),
            needed=frozenset(needed),
            gated=frozenset(step.tool_name for step in replaced if step.requires_approval and step.tool_name is not None),
            secrets=_tools_by_secret(validated),
            named=validated.named_secrets.get("", {}),
        )

    def join(self, steps: Iterable[Step]) -> ExecutionPlan:
        """Return the whole plan with the model's steps first, so that their positions match the model's answer."""
        return self._with_steps([*steps, *self._kept_steps()])

    def finalize(self, joined: ExecutionPlan) -> ExecutionPlan:
        """Return the plan in the order in which it runs: kept steps first. The plan requires an approval."""
        plan = self._with_steps([*self._kept_steps(), *(step for step in joined.steps if step.id not in self.kept)])
        plan.options.require_approval, plan.options.auto_approve = True, False
        return plan

    def find_taken_ids(self, steps: Iterable[Step]) -> list[Problem]:
        """Return a problem for each of the model's steps whose id is taken."""
        hint = f"choose another id, not one of: {', '.join(sorted(self.taken))}"
        return [
            Problem("taken-id", at=f"steps[{place}].id", message=f"the id `{step.id}` belongs to a step that has started", hint=hint)
            for place, step in enumerate(steps)
            if step.id in self.taken
        ]

    @property
    def last_kept(self) -> str | None:
        """The id of the last step that stays, or None."""
        return next((step.id for step in reversed(self._kept_steps())), None)

    def _kept_steps(self) -> list[Step]:
        return [step for step in self.old.steps if step.id in self.kept]

    def _with_steps(self, steps: list[Step]) -> ExecutionPlan:
        plan = self.old.model_copy(deep=True)
        plan.steps = [step.model_copy(deep=True) for step in steps]
        plan.number_steps()
        return plan


def replan_context(run: PlanRun, remaining: RemainingPlan, history: RunHistory, redactor: Redactor) -> dict[str, JsonValue]:
    """Return the run's record as context for a model. Everything `redactor` knows is redacted, then long texts are cut."""
    secret, names = (value for name, value in run.inputs.items() if is_secret_name(name)), frozenset(remaining.named.values())
    hidden = [text for value in secret for text in _find_texts(value) if text not in names]

    def cut(value: JsonValue, most: int) -> JsonValue:
        return _cut(redacted(redactor.value(value), hidden=hidden, names=names), most)

    plan, runs = remaining.old, {step.id: step for step in run.steps}
    share = max(200, min(SHOWN_CHARACTERS, ALL_CHARACTERS // max(1, len(plan.steps))))
    stays = [_describe_kept(step, history, partial(cut, most=share)) for step in plan.steps if step.id in remaining.kept]
    not_done = [
        _describe_replaced(step, runs.get(step.id), partial(cut, most=share)) for step in plan.steps if step.id not in remaining.kept
    ]
    context: dict[str, JsonValue] = {
        "plan": {"description": plan.description, "inputs": {name: declaration.description for name, declaration in plan.inputs.items()}},
        "run": {"status": run.status.value, "reason": run.reason and run.reason.value, "message": cut(run.message, share)},
        "stays": cast("JsonValue", stays),
        "not_done": cast("JsonValue", not_done),
        "ids_taken": [*sorted(remaining.taken)],
        "ids_needed": [*sorted(remaining.needed)],
    }
    shown = cast("dict[str, JsonValue]", redacted(context, hidden=hidden, names=names))
    return {**shown, "inputs": cut(run.inputs, ALL_CHARACTERS)}


def _describe_kept(step: Step, history: RunHistory, cut: _Cut) -> dict[str, JsonValue]:
    """Return a kept step and its results. A step with items may be partly done, and continues with the remaining items."""
    results = {item: receipt.result for (step_id, item), receipt in history.succeeded.items() if step_id == step.id}
    if step.inner:
        inner = {inner_step.id for inner_step in flattened(step.inner)}
        results_by_call = {call_name(*unit): receipt.result for unit, receipt in history.succeeded.items() if unit[0] in inner}
        result_fields: dict[str, JsonValue] = {"results": cut(results_by_call)}
    elif step.for_each is None:
        result_fields = {"result": cut(results[None])} if None in results else {"result": None}
    else:
        result_fields = {"results": cut({str(item): result for item, result in results.items()})}
    return {**_cut_document(step, cut), **result_fields}


def _describe_replaced(step: Step, run: StepRun | None, cut: _Cut) -> dict[str, JsonValue]:
    fields: dict[str, JsonValue] = {}
    if run is not None:
        fields = {"status": run.status.value, "attempts": run.attempts, "error": cut(run.error), "reason": cut(run.reason)}
    return {**_cut_document(step, cut), **{name: value for name, value in fields.items() if value}}


def _cut_document(step: Step, cut: _Cut) -> dict[str, JsonValue]:
    return {name: cut(value) if name == "parameters" else value for name, value in step_document(step).items()}


def _cut(value: JsonValue, most: int) -> JsonValue:
    """Return `value`, or the start of its JSON as text if that is longer than `most` characters."""
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return value if len(text) <= most else f"{text[:most]}… ({len(text) - most} characters more)"


def _find_referred_ids(plan: ExecutionPlan) -> set[str]:
    """Return the ids of the steps that outputs and `finally` steps refer to. A model writes neither of them."""
    written: list[JsonValue] = [plan.outputs, *(cast("JsonValue", step_document(step)) for step in plan.finally_)]
    found = referred_steps(written) | {name for step in plan.finally_ for name in step.depends_on}
    return found - {step.id for step in plan.finally_}


def referred_steps(value: JsonValue) -> set[str]:
    """Return the ids of the steps that the expressions in `value` refer to."""
    return {str(path[1]) for text in _find_texts(value) for path in _reference_paths(text) if path[0] == "steps" and len(path) > 1}


def _reference_paths(text: str) -> Iterator[tuple[str | int, ...]]:
    try:
        codes = [part for part in split_expressions(text) if isinstance(part, Code)]
    except UnclosedError:  # validation reports it
        return
    for code in codes:
        yield from (reference.path for reference in references(code.text))


def _find_texts(value: JsonValue) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    for member in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from _find_texts(member)


def _tools_by_secret(validated: ValidatedPlan) -> dict[str, frozenset[str]]:
    calls = [(tool.name, validated.parameters[step_id]) for step_id, tool in validated.tools.items()]
    calls += [(call.tool.name, call.parameters) for call in validated.rollbacks.values()]
    names = {name for _, template in calls for name in template.secrets}
    return {name: frozenset(tool for tool, template in calls if name in template.secrets) for name in sorted(names)}
