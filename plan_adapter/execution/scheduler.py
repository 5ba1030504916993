"""`execute`: starts each step once its dependencies have ended and a slot is free, the longest path first."""

from datetime import timedelta
from functools import partial

from pydantic import JsonValue

from plan_adapter.execution.goal_calls import GoalCalls, GoalEndedError
from plan_adapter.execution.group_runs import GroupRuns
from plan_adapter.execution.items import Items, item_labels
from plan_adapter.execution.limits import RunClock
from plan_adapter.execution.ports import AttemptEnd, StepRunner
from plan_adapter.execution.progress import Progress
from plan_adapter.execution.pursuit import Pursuit
from plan_adapter.execution.scope import RunScope
from plan_adapter.execution.step_calls import StepCalls
from plan_adapter.execution.sub_plans import SubPlanRuns
from plan_adapter.model import graph
from plan_adapter.model.errors import ExpressionError
from plan_adapter.model.plan import Step
from plan_adapter.model.record import StepRun
from plan_adapter.model.status import Outcome, StepStatus


async def execute(scope: RunScope, run_step: StepRunner, *, is_finally: bool = False) -> None:
    """Execute the steps of the approved plan of `scope`, or its `finally` steps with `is_finally`. Returns once everything is committed.

    How each step ended is recorded in the run of `scope`.

    If the run does not wait for people, steps with open gates and their dependents stay pending, and `scope.is_left` is set. Raises
    StoreError if the record cannot be kept; nothing further is started then. A cancellation stops the run like any other, and is raised
    again after the running steps have ended.
    """
    scope.clock = clock = _start_clock(scope, is_finally=is_finally)
    try:
        scheduler = Scheduler(scope, run_step, clock, is_finally=is_finally)
        await scheduler.carry()
        scheduler.begin()
        with scope.leave.handled_by(scheduler.progress.open_gates.leave):
            await scheduler.progress.tasks.ended()
    finally:
        clock.end()
    await scope.recorder.flush()


def _start_clock(scope: RunScope, *, is_finally: bool) -> RunClock:
    """Start the clock of the total timeout, or of the `finally` steps, which stops them. Tools also receive its deadline."""
    options = scope.approved.bound.validated.plan.options
    milliseconds = options.finally_timeout_ms if is_finally else options.total_timeout_ms
    if not milliseconds:
        return RunClock(None, lambda: None)
    seconds = milliseconds / 1000
    which = "timeout of the `finally` steps" if is_finally else "total timeout"
    return RunClock(seconds, partial(scope.stop.set, "timed_out", f"the {which} of {seconds:g} s was exceeded"))


class Scheduler:
    """Starts the steps of one run, or its `finally` steps, as they become ready. Belongs to one event loop."""

    def __init__(self, scope: RunScope, run_step: StepRunner, clock: RunClock, *, is_finally: bool) -> None:
        """Prepare the run of `scope`. `clock` is paused while only gates are open, except with `is_finally`."""
        self.progress = Progress(scope, run_step, clock, is_finally=is_finally, on_ended=self._step_ended)
        self._scope = scope
        self._calls = StepCalls(self.progress, on_group_call_end=self._group_call_ended)
        self._groups = GroupRuns(self.progress, self._calls)
        self._sub_plans = SubPlanRuns(self.progress, on_ready=self._step_ready)
        self._validated = scope.approved.bound.validated
        self._steps = self._validated.steps
        order = self._validated.finally_order if is_finally else self._validated.order
        self._order = [step_id for step_id in order if self._steps[step_id].group is None and self._steps[step_id].within is None]
        self.progress.unended = len(order)
        self._dependents = dict[str, list[str]]()  # by step, without carried ones: the steps that depend on it
        self._waits_for = dict[str, int]()  # likewise: how many steps it still waits for

    async def carry(self) -> None:
        """Mark as completed what succeeded in an earlier start and depends only on such steps. Returns when it is shown and reported."""
        waits, carried, progress = self._validated.outer, dict[str, StepRun](), self.progress
        for step_id in self._order:
            if all(after in carried for after in waits[step_id]) and progress.carry(self._steps[step_id]):
                carried[step_id] = progress.runs[step_id]
        remaining = {
            step_id: tuple(after for after in waits[step_id] if after not in carried) for step_id in self._order if step_id not in carried
        }
        progress.unended -= len(carried)
        inner = {step_id: before for sub_plan in self._validated.sub_plans.values() for step_id, before in sub_plan.steps.items()}
        self._dependents = graph.successors(remaining) | graph.successors(inner)
        self._waits_for = {step_id: len(afters) for step_id, afters in {**remaining, **inner}.items()}
        progress.urgency = self._urgencies(remaining)
        if carried:
            await progress.run_step.show_carried([*carried], carried, waits, tags_of=lambda step_id: self._steps[step_id].tags)
        for run in carried.values():
            await self._scope.notify_end(run)

    def begin(self) -> None:
        """Start every step whose dependencies, if any, were all carried."""
        self.progress.name_items(self._order)
        self._scope.stop.future.add_done_callback(lambda _: self.progress.halt_for_stop())
        for step_id in [step_id for step_id in self._order if not self._waits_for.get(step_id, 1)]:
            self._step_ready(self._steps[step_id])
        self.progress.tasks.end_if_done()

    def _urgencies(self, left: graph.Graph) -> dict[str, float]:
        """Return the urgency of each step: how long the longest path from it is, or else its place in the order, reversed."""
        if self._validated.plan.options.parallel_limit > 1:
            found = graph.path_lengths(left, left)
        else:
            found = {step_id: -float(position) for position, step_id in enumerate(left)}
        for outer in [self._steps[step_id] for step_id in left]:
            self._share_urgency(outer, found, 1.0)
        return found

    def _share_urgency(self, outer: Step, found: dict[str, float], share: float) -> None:
        """Give the steps inside `outer` its urgency. In a sub-plan, each step gets a little less than the one before it."""
        part = 0.0 if outer.is_group else share / (len(outer.inner) + 1)
        for place, step in enumerate(outer.inner):
            found[step.id] = found[outer.id] - place * part
            self._share_urgency(step, found, part)

    def _step_ready(self, step: Step) -> None:
        """Start a step whose dependencies have ended, or end it without a call."""
        progress, choice = self.progress, self._scope.history.choices.get(step.id)
        halted = progress.why_halted(step)
        if choice is not None and choice.kind == "skipped" and not halted:
            return self._skip_without_call(step, choice.reason)
        cause = self._blocking_dependency(step) or (choice.reason if choice is not None and choice.kind == "left" else "")
        if halted and (step.id, None) not in self._scope.history.succeeded:  # a step that succeeded has already ended
            cause = halted
        if cause:
            return progress.skip(step, cause)
        if step.within is not None and progress.carry(step):
            return progress.tasks.spawn(progress.close(step, show=True))
        try:
            if not progress.condition_is_true(step, self._scope.of(step)):
                return self._skip_without_call(step, f"its condition is false: {step.when}")
            if step.pinned is not None:
                return self._sub_plans.begin(step)
            items = progress.items_of(step)
        except ExpressionError as error:
            return self._fail_before_calls(step, str(error))
        return self._start(step, items)

    def _skip_without_call(self, step: Step, reason: str) -> None:
        """Skip a step that a person or its own condition leaves out. Its dependents still run."""
        self.progress.without_call.add(step.id)
        self.progress.skip(step, reason)

    def _fail_before_calls(self, step: Step, error: str) -> None:
        """End a step whose expressions failed before anything of it was called."""
        self.progress.finish(step, AttemptEnd("failed", 0, error=error))
        for inner in step.inner:
            self.progress.skip(inner, f"`{step.id}` failed")
        self.progress.tasks.spawn(self.progress.close(step, show=True))

    def _start(self, step: Step, items: list[tuple[int | None, JsonValue]]) -> None:
        """Start a goal, a group, or the calls of a step, one for each of `items`."""
        if step.goal is not None:
            return self.progress.tasks.spawn(self._pursue(step))
        values, is_list = [value for _, value in items], step.for_each is not None
        labels = item_labels(self._scope.of(step), step, values) if is_list else [None]
        if step.is_group:
            return self._groups.begin(step, values, labels)
        self._calls.begin(state := Items(step, labels, is_list=is_list))
        for item, value in items:
            self._calls.queue(state, item, value)
        return None if state.open else self.progress.tasks.spawn(self._calls.close(state))

    async def _pursue(self, step: Step) -> None:
        """Pursue the goal of a step, and close the step unless it is left waiting for a person."""
        progress, run, was_refused, is_shown = self.progress, self.progress.runs[step.id], False, False
        if (receipt := self._scope.history.succeeded.get((step.id, None))) is not None:
            end, run.carried = AttemptEnd("succeeded", receipt.number, result=receipt.result), True
        else:
            run.status = StepStatus.RUNNING
            calls = GoalCalls(
                self._scope,
                step,
                run,
                open_gates=progress.open_gates,
                run_step=progress.run_step,
                urgency=progress.urgency[step.id],
                why_halted=partial(progress.why_halted, step),
            )
            try:
                end, is_shown = await Pursuit(self._scope.of(step), step, calls).pursue(), True
            except GoalEndedError as error:
                end, was_refused = error.end, error.was_refused
        if end is None:
            return
        first = self._scope.history.decisions.succeeded.get((step.id, 0))
        if first is not None:  # the goal began in an earlier start of the run
            run.started_at = first.ended_at - timedelta(milliseconds=first.duration_ms)
        progress.finish(step, end, was_refused=was_refused)
        await progress.close(step, show=not is_shown)

    def _group_call_ended(self, state: Items, item: int, end: AttemptEnd | None) -> None:
        self._groups.call_ended(state, item, end)

    def _step_ended(self, step: Step) -> None:
        """Start the steps that waited for `step`. Those of a group are started by the group."""
        within = None if step.group is not None else step.within
        is_skipped_inside = step.within is not None and (within is None or within.id not in self.progress.sub_plans)
        if is_skipped_inside:  # a step of a group, or of a sub-plan that is skipped as a whole
            return
        for successor in self._dependents.get(step.id, ()):
            self._waits_for[successor] -= 1
            if not self._waits_for[successor]:
                self._step_ready(self._steps[successor])
        if within is not None:
            self._sub_plans.step_ended(within)

    def _blocking_dependency(self, step: Step) -> str:
        """Return why a step cannot run because of how a dependency ended, or an empty text."""
        for dependency in self._validated.outer[step.id]:
            run = self.progress.runs[dependency]
            if run.outcome is Outcome.UNKNOWN:
                return f"the outcome of `{dependency}` is unknown"
            if run.status is StepStatus.FAILED:
                return f"`{dependency}` failed"
            if run.status is StepStatus.SKIPPED and dependency not in self.progress.without_call:
                return f"`{dependency}` was skipped: {run.reason}" if run.reason else f"`{dependency}` was skipped"
        return ""
