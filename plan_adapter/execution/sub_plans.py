"""Sub-plans in progress: the inputs of the plan that a step runs, its progress, and its end."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import cast

from pydantic import JsonValue

from plan_adapter.execution.ports import WORST_FIRST, AttemptEnd, AttemptOutcome
from plan_adapter.execution.run_status import NOT_APPROVED
from plan_adapter.execution.scope import RunScope
from plan_adapter.expressions import Template
from plan_adapter.model.errors import ExpressionError
from plan_adapter.model.plan import Step
from plan_adapter.model.readable import failure_of
from plan_adapter.model.record import StepRun
from plan_adapter.model.status import Outcome, StepStatus
from plan_adapter.validation.sub_plans import fill_inputs


@dataclass(slots=True)
class SubPlanRun:
    """A sub-plan in progress."""

    step: Step  # the step that runs it
    open: int  # how many of its own steps have not ended
    halted: str = ""  # why no further step of it starts
    refused: str = ""  # why one of its steps was not approved
    continues: bool = False  # whether the run continues without that step


def sub_plan_inputs(scope: RunScope, step: Step) -> dict[str, JsonValue]:
    """Return the inputs of the plan that `step` runs, typed and with defaults. Raises ExpressionError with all that do not fit."""
    given = scope.approved.bound.validated.parameters[step.id].resolve(scope.of(step).variables())
    definitions = step.pinned.inputs if step.pinned is not None else {}
    values, wrong = fill_inputs(definitions, cast("Mapping[str, JsonValue]", given))
    if wrong:
        raise ExpressionError(wrong)
    return values


def end_of_sub_plan(runs: Collection[StepRun], without_call: Collection[str]) -> AttemptEnd | None:
    """Return how a sub-plan ended, without its result, given how its own steps ended. None if it called nothing and was skipped.

    A step in `without_call` was skipped by its condition or by a person. The plan can still complete.
    """
    failed = [run for run in runs if run.status is StepStatus.FAILED]
    missing = [run for run in runs if run.status is StepStatus.SKIPPED and run.id not in without_call]
    if failed:
        texts = [f"{failure_of(run.id, is_unknown=run.outcome is Outcome.UNKNOWN)}: {run.error}" for run in failed]
        shown = "; ".join(texts[:3]) + (f"; and {len(texts) - 3} more" if len(texts) > 3 else "")
        return AttemptEnd(min(map(_outcome, failed), key=WORST_FIRST.index), 0, error=shown)
    if not missing:
        return AttemptEnd("succeeded", 0)
    if not any(run.status is StepStatus.COMPLETED for run in runs):
        return None
    return AttemptEnd("failed", 0, error=f"`{missing[0].id}` was skipped: {missing[0].reason}")


def _outcome(run: StepRun) -> AttemptOutcome:
    if run.outcome is Outcome.UNKNOWN:
        return "unknown"
    return "cancelled" if run.reason == "cancelled" else "timed_out" if run.reason == "timed_out" else "failed"


def was_refused(state: SubPlanRun, runs: Collection[StepRun]) -> bool:
    """Return whether a sub-plan did not complete only because of a refusal at a gate."""
    return bool(state.refused) and all(run.status is not StepStatus.FAILED or run.reason == NOT_APPROVED for run in runs)


def outputs_of(scope: RunScope, step: Step, outputs: Mapping[str, Template]) -> dict[str, JsonValue]:
    """Return the outputs of the plan that `step` ran, which has completed. Raises ExpressionError."""
    variables = scope.inside[step.id].variables()
    return {name: template.resolve(variables) for name, template in outputs.items()}
