"""`Progress`: how far the steps of one execution are, how they end, and why no further one starts."""

import contextlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from pydantic import JsonValue

from plan_adapter.execution.asked import OpenGates, is_unanswered
from plan_adapter.execution.items import Items, item_labels, not_started_items
from plan_adapter.execution.limits import RunClock
from plan_adapter.execution.ports import AttemptEnd, GatedCall, GateRefusal, StepGates, StepRunner
from plan_adapter.execution.run_status import NOT_APPROVED
from plan_adapter.execution.scope import RunScope
from plan_adapter.execution.task_set import TaskSet
from plan_adapter.model.errors import ExpressionError
from plan_adapter.model.plan import Step, flattened
from plan_adapter.model.record import StepRun
from plan_adapter.model.status import Outcome, StepStatus
from plan_adapter.model.values import Unknown


@dataclass(slots=True)
class SubPlanRun:
    """A sub-plan in progress."""

    step: Step  # the step that runs it
    open: int  # how many of its own steps have not ended
    halted: str = ""  # why no further step of it starts
    refused: str = ""  # why one of its steps was not approved
    continues: bool = False  # whether the run continues without that step


class Progress:
    """The steps of one execution, shared by everything that starts steps and makes calls. Belongs to one event loop."""

    def __init__(
        self, scope: RunScope, run_step: StepRunner, clock: RunClock, *, is_finally: bool, on_ended: Callable[[Step], None]
    ) -> None:
        """Prepare the run of `scope`, or its `finally` steps. `on_ended` is called with each step whose end is recorded and shown.

        `clock` is paused while only gates are open, except with `is_finally`.
        """
        self.scope = scope
        self.run_step = run_step
        self.validated = scope.approved.bound.validated
        self.steps = self.validated.steps
        self.runs = {step.id: step for step in scope.run.steps}
        # A run that was cancelled must end even if nobody answers, so its `finally` steps do not stop the clock.
        self.open_gates = OpenGates(scope, clock, pauses=not is_finally, count_tasks=lambda: len(self.tasks))
        self.tasks = TaskSet(scope, "the run", is_over=lambda: not self.unended or scope.is_left, after_each=self.open_gates.leave_if_idle)
        self.unended = 0
        self.urgency = dict[str, float]()  # by step: the one with the greatest urgency is called first
        self.sub_plans = dict[str, SubPlanRun]()  # the sub-plans that have begun, by step
        self.without_call = set[str]()  # skipped by a person or by their own `when`; their dependents still run
        self._is_finally = is_finally
        self._on_ended = on_ended
        self._halt_reason = ""
        self._is_halted_by_stop = False

    # Why no further step starts.

    def halt(self, cause: str) -> None:
        """Start no further step. Steps that have not started are skipped for `cause`."""
        self._halt_reason = self._halt_reason or cause
        self.open_gates.withdraw()

    def halt_for_stop(self) -> None:
        """Start no further step because the run was stopped. A failure that halted the run earlier stays the reason."""
        self._is_halted_by_stop = not self._halt_reason
        self.halt(self.scope.stop.message)

    def halt_plan_of(self, step: Step, cause: str) -> None:
        """Start no further step of the plan of `step`, nor of the outer plan if it stops when this plan fails."""
        if step.within is None:
            return self.halt(cause)
        state = self.sub_plans[step.within.id]
        state.halted = state.halted or cause
        for inner in flattened(step.within.inner):
            self.open_gates.withdraw(inner.id)
        return self.halt_plan_of(step.within, cause) if self.stops_on_error(step.within) else None

    def halt_items(self, state: Items) -> None:
        """Start no further call of a step."""
        state.halted = True
        self.open_gates.withdraw(state.step.id)

    def why_halted(self, step: Step) -> str:
        """Return why no further step starts in the plan of `step` or in an outer plan. Empty if steps may start."""
        within = step.within
        while within is not None and not self._halt_reason:
            if within.id in self.sub_plans and (cause := self.sub_plans[within.id].halted):
                return cause
            within = within.within
        return self._halt_reason

    def stops_on_error(self, step: Step) -> bool:
        """Return whether the failure of a step stops its plan. A group decides what the failure of one of its steps means."""
        return not self._is_finally and step.group is None and self.validated.plan.on_error_of(step) == "stop"

    # What the expressions of a step give.

    def condition_is_true(self, step: Step, scope: RunScope, item: JsonValue = None) -> bool:
        """Return whether the `when` of a step is true. In a dry run, an unknown one is taken to be. Raises ExpressionError."""
        template = self.validated.when.get(step.id)
        value = True if template is None else template.resolve(scope.variables(item=item))
        if isinstance(value, Unknown) and scope.assume is not None:
            scope.assume(step, value)
            return True
        if not isinstance(value, bool):
            raise ExpressionError(f"`when` gave {type(value).__name__}, not true or false: {step.when}")
        return value

    def items_of(self, step: Step) -> list[tuple[int | None, JsonValue]]:
        """Return the calls of a step as pairs of item and value: one without an item, or one for each item. Raises ExpressionError.

        In a dry run, one item stands for those of an unknown list.
        """
        template = self.validated.for_each.get(step.id)
        if template is None:
            return [(None, None)]
        items = template.resolve(self.scope.of(step).variables())
        if isinstance(items, Unknown):
            return [(0, items)]
        if not isinstance(items, list):
            raise ExpressionError(f"`for_each` gave {type(items).__name__}, not a list: {step.for_each}")
        return list(enumerate(items))

    def name_items(self, step_ids: Iterable[str], status: StepStatus = StepStatus.PENDING) -> None:
        """Record the items of groups that have not begun, as far as they are known, so that the run counts by item from the start."""
        for step in [self.steps[step_id] for step_id in step_ids if self.steps[step_id].is_group]:
            if step.within is not None and step.within.id not in self.scope.inside:
                continue
            with contextlib.suppress(ExpressionError):
                values = [value for _, value in self.items_of(step)]
                labels = item_labels(self.scope.of(step), step, values)
                self.runs[step.id].items = not_started_items(labels, status)

    # Approvals.

    def gates_of(self, step: Step) -> StepGates | None:
        """Return the gates that ask for approvals of the calls of `step`, or None if it needs none."""
        gates = self.scope.gates
        return gates if gates is not None and gates.is_gated(step) else None

    async def ask_for_approval(self, gates: StepGates, state: Items, gated: GatedCall) -> bool | None:
        """Ask for the approval of several calls at once. Return whether it was given, or None if nobody has answered yet.

        A refusal is recorded in `state`.
        """
        answer = await self.open_gates.ask_for_approval(gates, gated)
        if is_unanswered(gated, answer):
            return None
        if answer is None or isinstance(answer, GateRefusal):
            self.record_refusal(state, answer, withdrawn=gated.withdrawn.done())
            return False
        return True

    def record_refusal(self, state: Items, refusal: GateRefusal | None, *, withdrawn: bool) -> None:
        """Record why calls of a step were not approved, and stop what a refusal stops."""
        if refusal is None or (withdrawn and not refusal.ends_run):  # nobody refused it, and the step records why it was not called
            return
        state.refused = state.refused or refusal.message
        state.continues = not refusal.ends_run
        if (within := state.step.within) is not None:
            around = self.sub_plans[within.id]
            around.refused, around.continues = around.refused or refusal.message, state.continues
        if refusal.ends_run:
            self.scope.refusal = self.scope.refusal or refusal
            if self.stops_on_error(self.steps[state.step.group or state.step.id]):
                self.halt_items(state)
                self.halt_plan_of(state.step, f"stopped because `{state.step.id}` was not approved")

    # How steps end.

    def carry(self, step: Step) -> bool:
        """Mark `step` as completed if all of it succeeded before. Return whether it did. Without items, its recorded end says so."""
        history, run = self.scope.history, self.runs[step.id]
        first = (step.id, None if step.for_each is None else 0)
        if step.inner or (first not in history.succeeded and (step.for_each is None or step.id not in history.ends)):
            return False
        try:
            units = [(step.id, item) for item, _ in self.items_of(step)]
        except ExpressionError:  # reported when the step's turn comes
            return False
        if not (units or step.id in history.ends) or not all(unit in history.succeeded for unit in units):
            return False
        results = [history.succeeded[unit].result for unit in units]
        run.result = results[0] if step.for_each is None else results
        run.status, run.outcome, run.carried = StepStatus.COMPLETED, Outcome.SUCCEEDED, True
        if (end := history.ends.get(step.id)) is not None:
            run.reason, run.retry_count, run.started_at, run.completed_at, run.duration_ms = end
        else:  # the process died before it recorded the end
            run.completed_at = self.scope.recorder.now()
            self.scope.recorder.step_ended(run)
        self.scope.keep_value(run)
        return True

    def skip(self, step: Step, reason: str) -> None:
        """Skip a step, with everything inside it."""
        self.name_items([step.id], StepStatus.SKIPPED)
        for inner in step.inner:
            self.skip(inner, reason)
        self.mark_skipped(step, reason)
        self.tasks.spawn(self.close(step, show=True))

    def mark_skipped(self, step: Step, reason: str) -> None:
        """Set a step to skipped. The caller closes it."""
        run = self.runs[step.id]
        run.status, run.reason, run.completed_at = StepStatus.SKIPPED, reason, self.scope.recorder.now()
        if self._is_halted_by_stop:
            self.scope.stop.kept_from_starting = True

    def finish(self, step: Step, end: AttemptEnd, *, was_refused: bool = False, continues: bool = False) -> None:
        """Set a step to how it ended, and stop what its failure stops. The caller closes it.

        `was_refused`: it failed only because of a refusal at a gate, and with `continues`, the run goes on without it.
        """
        run = self.runs[step.id]
        self.end_now(run)
        if end.outcome == "succeeded":
            run.status, run.outcome, run.result, run.reason = StepStatus.COMPLETED, Outcome.SUCCEEDED, end.result, end.reason
            return
        run.status, run.error, run.reason = StepStatus.FAILED, end.error, NOT_APPROVED if was_refused else end.reason or end.outcome
        run.outcome = Outcome.UNKNOWN if end.outcome == "unknown" or self._was_interrupted(step, end) else Outcome.FAILED
        if end.outcome == "failed" and self.stops_on_error(step) and not (was_refused and continues):
            self.halt_plan_of(step, f"stopped because `{step.id}` failed")

    def end_now(self, run: StepRun) -> None:
        """Set when a step ended, and how long it took."""
        run.completed_at = self.scope.recorder.now()
        if run.started_at is not None:
            run.duration_ms = round((run.completed_at - run.started_at).total_seconds() * 1000)

    def _was_interrupted(self, step: Step, end: AttemptEnd) -> bool:
        """Return whether the run's stop interrupted a write."""
        return end.outcome in ("cancelled", "timed_out") and self.validated.effect_of(step.id) == "write" and end.was_interrupted

    async def close(self, step: Step, *, show: bool) -> None:
        """Record, show and report the end of `step`."""
        run = self.runs[step.id]
        self.scope.keep_value(run)
        self.scope.recorder.step_ended(run)
        if show:
            await self.run_step.show(run, self.validated.reduced[step.id], tags=step.tags)
        await self.scope.notify_end(run)
        self.unended -= 1
        self._on_ended(step)
