"""`SubPlanRuns`: runs the plans that steps run: their inputs, their approval, their steps and their end."""

from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from typing import cast

from pydantic import JsonValue

from plan_adapter.execution.items import Items
from plan_adapter.execution.ports import WORST_FIRST, AttemptEnd, AttemptOutcome, StepGates
from plan_adapter.execution.progress import Progress, SubPlanRun
from plan_adapter.execution.run_status import NOT_APPROVED
from plan_adapter.execution.scope import RunScope
from plan_adapter.expressions import Template
from plan_adapter.model.errors import ExpressionError
from plan_adapter.model.inventory import ON
from plan_adapter.model.plan import Step, flattened
from plan_adapter.model.readable import failure_of
from plan_adapter.model.record import StepRun
from plan_adapter.model.status import Outcome, StepStatus
from plan_adapter.model.values import has_unknown
from plan_adapter.validation.hosts import find_bad_limit
from plan_adapter.validation.pinned_plans import fill_inputs


class SubPlanRuns:
    """The plans that steps of an execution run. Their steps become ready like those of the run, with a scope of their own."""

    def __init__(self, progress: Progress, *, on_ready: Callable[[Step], None]) -> None:
        """Run plans of `progress`. `on_ready` is called with each step that waits for nothing in its plan."""
        self._progress = progress
        self._scope = progress.scope
        self._on_ready = on_ready

    def begin(self, step: Step) -> None:
        """Start the plan that `step` runs, once it is approved. Raises ExpressionError if its inputs do not fit."""
        inputs = sub_plan_inputs(self._scope, step)
        run, gates = self._progress.runs[step.id], self._progress.gates_of(step)
        run.status, run.started_at = StepStatus.RUNNING, self._scope.recorder.now()
        is_done = all((inner.id, None) in self._scope.history.succeeded for inner in flattened(step.inner) if not inner.inner)
        if gates is None or is_done:
            self._start(step, inputs)
        else:
            self._progress.tasks.spawn(self._start_if_approved(gates, step, inputs))

    async def _start_if_approved(self, gates: StepGates, step: Step, inputs: dict[str, JsonValue]) -> None:
        gated = self._scope.gated_call(step, flattened(step.inner), "plan", {"inputs": dict(inputs)}, item=None, label=None)
        state = Items(step, [None], is_list=False)
        is_approved = await self._progress.ask_for_approval(gates, state, gated)
        if is_approved:
            self._start(step, inputs)
        elif is_approved is None:  # the step waits for a later start of the run
            run = self._progress.runs[step.id]
            run.status, run.started_at = StepStatus.PENDING, None
        else:
            self._progress.skip(step, state.refused or self._progress.why_halted(step))

    def _start(self, step: Step, inputs: dict[str, JsonValue]) -> None:
        self._scope.begin_plan(step, inputs)
        steps = self._progress.validated.sub_plans[step.id].steps
        self._progress.sub_plans[step.id] = SubPlanRun(step, len(steps))
        self._progress.name_items(steps)
        for step_id in [step_id for step_id, before in steps.items() if not before]:
            self._on_ready(self._progress.steps[step_id])

    def step_ended(self, step: Step) -> None:
        """Count a step of a plan that has ended. The plan ends with the last one."""
        state = self._progress.sub_plans[step.id]
        state.open -= 1
        if not state.open:
            self._progress.tasks.spawn(self._close(state))

    async def _close(self, state: SubPlanRun) -> None:
        step, progress = state.step, self._progress
        sub_plan = progress.validated.sub_plans[step.id]
        runs = [progress.runs[step_id] for step_id in sub_plan.steps]
        end = end_of_sub_plan(runs, progress.without_call)
        if end is None:
            why = state.refused or next(inner.reason or "" for inner in runs if inner.id not in progress.without_call)
            progress.mark_skipped(step, why)
            return await progress.close(step, show=True)
        if end.outcome == "succeeded":
            try:
                end = replace(end, result=outputs_of(self._scope, step, sub_plan.outputs))
            except ExpressionError as error:
                end = AttemptEnd("failed", 0, error=str(error))
        progress.finish(step, end, was_refused=was_refused(state, runs), continues=state.continues)
        progress.runs[step.id].carried = all(inner.carried for inner in runs)
        return await progress.close(step, show=True)


def sub_plan_inputs(scope: RunScope, step: Step) -> dict[str, JsonValue]:
    """Return the inputs of the plan that `step` runs, typed and with defaults. In a dry run, unknown ones are as they are.

    Raises ExpressionError with all that do not fit.
    """
    given = cast("Mapping[str, JsonValue]", scope.approved.bound.validated.parameters[step.id].resolve(scope.of(step).variables()))
    definitions = step.pinned.inputs if step.pinned is not None else {}
    unknown = {name: value for name, value in given.items() if scope.assume is not None and has_unknown(value)}
    declared = {name: definition for name, definition in definitions.items() if name not in unknown}
    values, wrong = fill_inputs(declared, {name: value for name, value in given.items() if name not in unknown})
    if wrong:
        raise ExpressionError(wrong)
    if step.pinned is not None and ON in values:
        wrong = find_bad_limit(step.pinned, scope.approved.bound.validated.lists_of(step), values)
        if wrong:
            raise ExpressionError("; ".join(f"`{problem.at}`: {problem.message}" for problem in wrong))
    return values | unknown


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
