"""`execute`: starts each step once its dependencies have ended and a slot is free, the longest path first."""

import contextlib
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import replace
from datetime import timedelta
from functools import partial

from pydantic import JsonValue

from plan_adapter.execution.asked import OpenGates, is_unanswered
from plan_adapter.execution.course import Course, CourseEnd
from plan_adapter.execution.goal_calls import GoalCalls, GoalEndedError
from plan_adapter.execution.goals import Pursuit
from plan_adapter.execution.groups import Group, group_result
from plan_adapter.execution.history import RunHistory
from plan_adapter.execution.items import Items, item_labels, not_started_items
from plan_adapter.execution.limits import RunClock
from plan_adapter.execution.ports import BEGUN_EARLIER, AttemptEnd, GateRefusal, StepGates, StepRunner
from plan_adapter.execution.rollback import Rollback
from plan_adapter.execution.rollback_status import OUTCOME_UNKNOWN
from plan_adapter.execution.run_status import NOT_APPROVED
from plan_adapter.execution.scope import RunScope
from plan_adapter.execution.step import Call
from plan_adapter.execution.sub_plans import SubPlanRun, end_of_sub_plan, outputs_of, sub_plan_inputs, was_refused
from plan_adapter.execution.task_set import TaskSet
from plan_adapter.model import graph
from plan_adapter.model.errors import ExpressionError
from plan_adapter.model.plan import Step, flattened
from plan_adapter.model.readable import counted
from plan_adapter.model.record import Attempt, StepRun
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
        with scope.leave.handled_by(scheduler.open_gates.leave):
            await scheduler.tasks.ended()
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
    """The steps of one run, or its `finally` steps, started as they become ready. Belongs to one event loop."""

    def __init__(self, scope: RunScope, run_step: StepRunner, clock: RunClock, *, is_finally: bool) -> None:
        """Prepare the run of `scope`. `clock` is paused while only gates are open, except with `is_finally`."""
        self._scope = scope
        # A run that was cancelled must end even if nobody answers, so its `finally` steps do not stop the clock.
        self.open_gates = OpenGates(scope, clock, pauses=not is_finally, count_tasks=lambda: len(self.tasks))
        self._run_step = run_step
        self._validated = scope.approved.bound.validated
        self._steps = self._validated.steps
        self._is_finally = is_finally
        order = self._validated.finally_order if is_finally else self._validated.order
        self._order = [step_id for step_id in order if self._steps[step_id].group is None and self._steps[step_id].within is None]
        self._course = Course(
            scope,
            run_step,
            self.open_gates,
            why_halted=lambda call: self._why_not_made(self._states[call.step.id]),
            begun_earlier=BEGUN_EARLIER,
            after_abort=OUTCOME_UNKNOWN,
            on_start=self._call_started,
        )
        self._states = dict[str, Items]()  # the calls of the steps that have begun, by step
        self._groups = dict[str, Group]()  # the groups that have begun, by step
        self._sub_plans = dict[str, SubPlanRun]()  # the sub-plans that have begun, by step
        self._runs = {step.id: step for step in scope.run.steps}
        self._dependents = dict[str, list[str]]()  # by step, without carried ones: the steps that depend on it
        self._waits_for = dict[str, int]()  # likewise: how many steps it still waits for
        self._urgency = dict[str, float]()  # likewise: the step with the greatest urgency is called first
        self._unended = len(order)
        self._halt_reason = ""
        self._without_call = set[str]()  # skipped by a person or by their own `when`; their dependents still run
        self.tasks = TaskSet(scope, "the run", is_over=lambda: not self._unended or scope.is_left, after_each=self.open_gates.leave_if_idle)

    async def carry(self) -> None:
        """Mark as completed what succeeded in an earlier start and depends only on such steps. Returns when it is shown and reported."""
        waits, carried = self._validated.outer, dict[str, StepRun]()
        for step_id in self._order:
            if all(after in carried for after in waits[step_id]) and self._carry(self._steps[step_id]):
                carried[step_id] = self._runs[step_id]
        remaining = {
            step_id: tuple(after for after in waits[step_id] if after not in carried) for step_id in self._order if step_id not in carried
        }
        self._unended -= len(carried)
        inner = {step_id: before for sub_plan in self._validated.sub_plans.values() for step_id, before in sub_plan.steps.items()}
        self._dependents = graph.successors(remaining) | graph.successors(inner)
        self._waits_for = {step_id: len(afters) for step_id, afters in {**remaining, **inner}.items()}
        self._urgency = self._urgencies(remaining)
        if carried:
            await self._run_step.show_carried([*carried], carried, waits, tags_of=lambda step_id: self._steps[step_id].tags)
        for run in carried.values():
            await self._scope.notify_end(run)

    def _carry(self, step: Step) -> bool:
        """Mark `step` as completed if all of it succeeded before. Return whether it did. Without items, its recorded end says so."""
        history, run = self._scope.history, self._runs[step.id]
        first = (step.id, None if step.for_each is None else 0)
        if step.inner or (first not in history.succeeded and (step.for_each is None or step.id not in history.ends)):
            return False
        try:
            units = [(step.id, item) for item, _ in self._items_of(step)]
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
            run.completed_at = self._scope.recorder.now()
            self._scope.recorder.step_ended(run)
        self._scope.keep_value(run)
        return True

    def begin(self) -> None:
        """Start every step whose dependencies, if any, were all carried."""
        self._name_items(self._order)
        self._scope.stop.future.add_done_callback(lambda _: self._halt(self._scope.stop.message))
        for step_id in [step_id for step_id in self._order if not self._waits_for.get(step_id, 1)]:
            self._step_ready(self._steps[step_id])
        self.tasks.end_if_done()

    def _urgencies(self, left: graph.Graph) -> dict[str, float]:
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

    def _halt(self, cause: str) -> None:
        """Start no further step. Steps that have not started are skipped for `cause`."""
        self._halt_reason = self._halt_reason or cause
        self.open_gates.withdraw()

    def _halt_around(self, step: Step, cause: str) -> None:
        """Start no further step of the plan of `step`, nor of the outer plan if it stops when this plan fails."""
        if step.within is None:
            return self._halt(cause)
        state = self._sub_plans[step.within.id]
        state.halted = state.halted or cause
        for inner in flattened(step.within.inner):
            self.open_gates.withdraw(inner.id)
        return self._halt_around(step.within, cause) if self._stops_on_error(step.within) else None

    def _why_halted(self, step: Step) -> str:
        """Return why no further step starts in the plan of `step` or in an outer plan. Empty if steps may start."""
        within = step.within
        while within is not None and not self._halt_reason:
            if within.id in self._sub_plans and (cause := self._sub_plans[within.id].halted):
                return cause
            within = within.within
        return self._halt_reason

    def _halt_items(self, state: Items) -> None:
        """Start no further call of the step."""
        state.halted = True
        self.open_gates.withdraw(state.step.id)

    # The life of a step: it becomes ready, its calls get slots and run, and the step is closed.

    def _step_ready(self, step: Step) -> None:
        choice = self._scope.history.choices.get(step.id)
        halted = self._why_halted(step)
        if choice is not None and choice.kind == "skipped" and not halted:
            self._without_call.add(step.id)
            return self._skip(step, choice.reason)
        cause = self._blocking_dependency(step) or (choice.reason if choice is not None and choice.kind == "left" else "")
        if halted and (step.id, None) not in self._scope.history.succeeded:  # a step that succeeded has already ended
            cause = halted
        if cause:
            return self._skip(step, cause)
        if step.within is not None and self._carry(step):
            return self.tasks.spawn(self._close(step, show=True))
        try:
            if not self._condition_is_true(step, self._scope.of(step)):
                self._without_call.add(step.id)
                return self._skip(step, f"its condition is false: {step.when}")
            if step.pinned is not None:
                return self._begin_sub_plan(step)
            items = self._items_of(step)
        except ExpressionError as error:
            self._finish(step, AttemptEnd("failed", 0, error=str(error)))
            for inner in step.inner:
                self._skip(inner, f"`{step.id}` failed")
            return self.tasks.spawn(self._close(step, show=True))
        if step.goal is not None:
            return self.tasks.spawn(self._pursue(step))
        scope = self._scope.of(step)
        labels = item_labels(scope, step, [value for _, value in items]) if step.for_each is not None else [None]
        if step.is_group:
            return self._begin_group(Group(scope, step, [value for _, value in items], labels))
        self._states[step.id] = state = Items(step, labels, is_list=step.for_each is not None)
        for item, value in items:
            self._queue(state, item, value)
        return None if state.open else self.tasks.spawn(self._close_items(state))

    def _queue(self, state: Items, item: int | None, value: JsonValue) -> None:
        unit = (state.step.id, item)
        if (receipt := self._scope.history.succeeded.get(unit)) is not None:
            state.carried += 1
            self._record_end(state, item, AttemptEnd("succeeded", receipt.number, result=receipt.result))
            return None
        make_call = partial(self._new_call, state.step, item, value, state.labels[item or 0])
        begun = self._scope.history.unknown.get(unit)
        if begun is not None or self._gates_of(state.step) is not None:
            return self.tasks.spawn(self._take(state, make_call(), begun))
        return self._request(state, item, make_call)  # the call is built when its turn comes, because thousands may be ready at once

    def _new_call(self, step: Step, item: int | None, value: JsonValue, label: str | None) -> Call:
        scope, upstream = self._scope.of(step), None
        if step.group is not None and item is not None:
            group = self._groups[step.group]
            scope, upstream = group.scope_of(item), group.upstream_of(item, step.id)
        run, urgency = self._runs[step.id], self._urgency[step.id]
        return Call(scope, step, run, urgency=urgency, item=item, value=value, label=label, upstream=upstream)

    # Sub-plans: their steps become ready like those of the run, with a scope of their own.

    def _begin_sub_plan(self, step: Step) -> None:
        """Start the plan that `step` runs, once it is approved. Raises ExpressionError if its inputs do not fit."""
        inputs = sub_plan_inputs(self._scope, step)
        run, gates = self._runs[step.id], self._gates_of(step)
        run.status, run.started_at = StepStatus.RUNNING, self._scope.recorder.now()
        is_done = all((inner.id, None) in self._scope.history.succeeded for inner in flattened(step.inner) if not inner.inner)
        if gates is None or is_done:
            self._start_sub_plan(step, inputs)
        else:
            self.tasks.spawn(self._ask_for_sub_plan_approval(gates, step, inputs))

    async def _ask_for_sub_plan_approval(self, gates: StepGates, step: Step, inputs: dict[str, JsonValue]) -> None:
        gated = self._scope.gated_call(step, flattened(step.inner), "plan", {"inputs": dict(inputs)}, item=None, label=None)
        answer = await self.open_gates.ask_for_approval(gates, gated)
        if is_unanswered(gated, answer):
            return self._reset(step)
        if answer is None or isinstance(answer, GateRefusal):
            state = Items(step, [None], is_list=False)
            self._record_refusal(state, answer, withdrawn=gated.withdrawn.done())
            return self._skip(step, state.refused or self._why_halted(step))
        return self._start_sub_plan(step, inputs)

    def _reset(self, step: Step) -> None:
        """Set a step that nobody has approved yet back to pending."""
        run = self._runs[step.id]
        run.status, run.started_at = StepStatus.PENDING, None

    def _start_sub_plan(self, step: Step, inputs: dict[str, JsonValue]) -> None:
        self._scope.begin_plan(step, inputs)
        steps = self._validated.sub_plans[step.id].steps
        self._sub_plans[step.id] = SubPlanRun(step, len(steps))
        self._name_items(steps)
        for step_id in [step_id for step_id, before in steps.items() if not before]:
            self._step_ready(self._steps[step_id])

    async def _close_sub_plan(self, state: SubPlanRun) -> None:
        step, run = state.step, self._runs[state.step.id]
        sub_plan = self._validated.sub_plans[step.id]
        runs = [self._runs[step_id] for step_id in sub_plan.steps]
        end = end_of_sub_plan(runs, self._without_call)
        if end is None:
            why = state.refused or next(inner.reason or "" for inner in runs if inner.id not in self._without_call)
            run.status, run.reason, run.completed_at = StepStatus.SKIPPED, why, self._scope.recorder.now()
            return await self._close(step, show=True)
        if end.outcome == "succeeded":
            try:
                end = replace(end, result=outputs_of(self._scope, step, sub_plan.outputs))
            except ExpressionError as error:
                end = AttemptEnd("failed", 0, error=str(error))
        self._finish(step, end, was_refused=was_refused(state, runs), continues=state.continues)
        run.carried = all(inner.carried for inner in runs)
        return await self._close(step, show=True)

    async def _pursue(self, step: Step) -> None:
        """Pursue the goal of a step, and close the step unless it is left waiting for a person."""
        run, urgency, was_refused, is_shown = self._runs[step.id], self._urgency[step.id], False, False
        if (receipt := self._scope.history.succeeded.get((step.id, None))) is not None:
            end, run.carried = AttemptEnd("succeeded", receipt.number, result=receipt.result), True
        else:
            run.status = StepStatus.RUNNING
            halted = partial(self._why_halted, step)
            calls = GoalCalls(
                self._scope, step, run, open_gates=self.open_gates, run_step=self._run_step, urgency=urgency, why_halted=halted
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
        self._finish(step, end, was_refused=was_refused)
        await self._close(step, show=not is_shown)

    # Groups: each item's steps are queued as they become ready.

    def _name_items(self, step_ids: Iterable[str], status: StepStatus = StepStatus.PENDING) -> None:
        """Record the items of groups that have not begun, as far as they are known, so that the run counts by item from the start."""
        for step in [self._steps[step_id] for step_id in step_ids if self._steps[step_id].is_group]:
            if step.within is not None and step.within.id not in self._scope.inside:
                continue
            with contextlib.suppress(ExpressionError):
                values = [value for _, value in self._items_of(step)]
                labels = item_labels(self._scope.of(step), step, values)
                self._runs[step.id].items = not_started_items(labels, status)

    def _begin_group(self, group: Group) -> None:
        self._groups[group.step.id] = group
        self._states |= group.calls
        run = self._runs[group.step.id]
        run.status, run.started_at, run.items = StepStatus.RUNNING, self._scope.recorder.now(), group.items
        self._advance(group)

    def _advance(self, group: Group) -> None:
        """Queue the calls of `group` that are ready. Close its steps that have ended, and the group itself."""
        if group.is_advancing:  # a call ended at once, and the loop below continues
            return
        group.is_advancing = True
        while (ready := group.next_call(self._why_halted(group.step))) is not None:
            self._queue_in_group(group, *ready)
        group.is_advancing = False
        for state in group.pop_ended():
            self.tasks.spawn(self._close_items(state))
        for item in group.pop_failed():
            self._scope.slots.reserve()  # at once, before another call gets the slot that the failed one gave back
            self.tasks.spawn(self._roll_back_item(group, item))
        if group.is_over:
            self.tasks.spawn(self._close_group(group))

    def _queue_in_group(self, group: Group, item: int, step_id: str) -> None:
        state, choice = group.calls[step_id], self._scope.history.choices.get(step_id)
        if (step_id, item) in self._scope.history.succeeded:
            return self._queue(state, item, group.value_of(item))
        if group.was_rolled_back(item):
            return self._keep_end(group, item, step_id)
        if choice is not None and choice.kind == "skipped":
            return group.skip(item, step_id, by_person=self._would_be_called(group, item, step_id))
        cause = (
            self._why_halted(group.step)
            or group.cause(item, step_id)
            or (choice.reason if choice is not None and choice.kind == "left" else "")
        )
        if cause:
            group.leave_out(item, step_id, cause)
            return group.record_end(item, step_id, None)
        try:
            gates = self._gates_of(group.step)
            if gates is not None and group.hold_until_approved(item, step_id):
                return self.tasks.spawn(self._ask_for_group_approval(gates, group, item)) if group.is_first_held(item) else None
            is_true = self._condition_is_true(state.step, group.scope_of(item), group.value_of(item))
        except ExpressionError as error:
            return group.record_end(item, step_id, AttemptEnd("failed", 0, error=str(error)))
        return self._queue(state, item, group.value_of(item)) if is_true else group.skip(item, step_id, by_person=False)

    def _keep_end(self, group: Group, item: int, step_id: str) -> None:
        """End a call of an item whose rollback began in an earlier start as it ended there."""
        receipt = self._scope.history.receipts.get((step_id, item))
        if receipt is not None:
            return group.record_end(item, step_id, AttemptEnd("failed", receipt.number, error=receipt.error, can_retry=False))
        group.leave_out(item, step_id, group.cause(item, step_id) or "its item was rolled back")
        return group.record_end(item, step_id, None)

    async def _roll_back_item(self, group: Group, item: int) -> None:
        """Roll back an item that failed, from the record, in the slot that is reserved for it.

        If the run stops, calls in progress finish and no further one starts.
        """
        try:
            stop, attempts = self._scope.stop, await self._scope.recorder.calls_of_item([*group.calls], item)
            rollback = Rollback(self._scope, RunHistory.of(*attempts), self._run_step, open_gates=self.open_gates)
            halt = partial(rollback.halt.set, "cancelled")
            if stop.is_set:
                halt(stop.message)
            stop.future.add_done_callback(lambda _: halt(stop.message))
            await rollback.undo()
        finally:
            self._scope.slots.unreserve()
        self._scope.item_rollbacks.append(report := rollback.report())
        group.record_rollback(item, report)
        self._advance(group)

    def _would_be_called(self, group: Group, item: int, step_id: str) -> bool:
        """Return whether a step that a person skipped would be called for an item: its condition is not false."""
        try:
            return self._condition_is_true(self._steps[step_id], group.scope_of(item), group.value_of(item))
        except ExpressionError:
            return True

    async def _ask_for_group_approval(self, gates: StepGates, group: Group, item: int) -> None:
        """Ask for the approval of an item, or of the whole group, and start it once approved."""
        gated = group.gated_call(item)
        answer = await self.open_gates.ask_for_approval(gates, gated)
        if is_unanswered(gated, answer):
            return
        if answer is None or isinstance(answer, GateRefusal):
            state = next(iter(group.calls.values()))
            self._record_refusal(state, answer, withdrawn=gated.withdrawn.done())
            group.refuse(item, state.refused or self._why_halted(group.step))
        else:
            group.approve(item)
        self._advance(group)

    def _record_end(self, state: Items, item: int | None, end: AttemptEnd | None) -> bool:
        """Record the end of a call. Return whether it was the last call of a step outside of groups, so that the caller closes the step."""
        group = self._groups.get(state.step.group or "")
        if group is None or item is None:
            state.end(item, end)
            return not state.open
        if end is None:
            group.leave_out(item, state.step.id, state.refused or self._why_halted(group.step))
        group.record_end(item, state.step.id, end)
        self._advance(group)
        return False

    async def _close_group(self, group: Group) -> None:
        step, run = group.step, self._runs[group.step.id]
        calls = group.calls.values()
        if group.is_skipped:
            why = next((state.refused or state.cause for state in calls if state.refused or state.cause), self._why_halted(step))
            run.status, run.reason, run.completed_at = StepStatus.SKIPPED, why, self._scope.recorder.now()
        else:
            refused = [state for state in calls if state.refused]
            end = group.summary()
            was_refused = bool(refused) and all(state.is_refused for state in refused) and end.outcome == "failed"
            self._finish(step, end, was_refused=was_refused, continues=all(state.continues for state in refused))
        run.result = group_result(run.items, group.results())
        run.carried = all(self._is_carried(state) for state in calls)
        await self._close(step, show=True)

    def _is_carried(self, state: Items) -> bool:
        """Return whether every call of a step is carried. Without items there is nothing to carry, except how the step ended before."""
        return state.carried == state.count and (state.count > 0 or state.step.id in self._scope.history.ends)

    def _gates_of(self, step: Step) -> StepGates | None:
        """Return the gates that ask for approvals of the calls of `step`, or None if it needs none."""
        gates = self._scope.gates
        return gates if gates is not None and gates.is_gated(step) else None

    def _record_refusal(self, state: Items, refusal: GateRefusal | None, *, withdrawn: bool) -> None:
        if refusal is None or (withdrawn and not refusal.ends_run):  # nobody refused it, and the step records why it was not called
            return
        state.refused = state.refused or refusal.message
        state.continues = not refusal.ends_run
        if (within := state.step.within) is not None:
            around = self._sub_plans[within.id]
            around.refused, around.continues = around.refused or refusal.message, state.continues
        if refusal.ends_run:
            self._scope.refusal = self._scope.refusal or refusal
            if self._stops_on_error(self._steps[state.step.group or state.step.id]):
                self._halt_items(state)
                self._halt_around(state.step, f"stopped because `{state.step.id}` was not approved")

    def _request(self, state: Items, item: int | None, make_call: Callable[[], Call]) -> None:
        def on_turn(cause: str) -> None:
            if not cause:
                self.tasks.spawn(self._make(state, make_call))
            elif self._record_end(state, item, None):
                self.tasks.spawn(self._close_items(state))

        slots, urgency = self._scope.of(state.step).slots, self._urgency[state.step.id]
        self._course.request(slots, urgency, lambda: self._why_not_made(state), on_turn)

    async def _make(self, state: Items, make_call: Callable[[], Call]) -> None:
        call = make_call()
        await self._record_course(state, call, self._course.make(call))

    async def _take(self, state: Items, call: Call, begun: Attempt | None) -> None:
        await self._record_course(state, call, self._course.take(call, begun=begun))

    async def _record_course(self, state: Items, call: Call, course: Awaitable[CourseEnd]) -> None:
        """Record how a call ended. The slot that its failure has reserved goes to the rollback of its item, which takes one of its own."""
        try:
            await self._call_over(state, call, await course)
        finally:
            call.end_reservation()

    def _why_not_made(self, state: Items) -> str:
        """Return why no further call of a step is made. Empty if calls may be made."""
        return self._why_halted(state.step) or ("one of its items failed" if state.halted else "")

    def _call_started(self, call: Call) -> None:
        self._states[call.step.id].started = True
        call.step_run.status = StepStatus.RUNNING

    async def _call_over(self, state: Items, call: Call, ended: CourseEnd) -> None:
        """Record how a call ended, or that it was not made, and close its step if that was the last one."""
        if ended.is_left:
            return
        state.settled = state.settled or ended.source == "person"
        if ended.end is None:
            self._record_refusal(state, ended.refusal, withdrawn=ended.was_withdrawn)
        else:
            if call.is_of_group:
                self._scope.notify("call_ended", call.step_run, ended.end.in_words, name=call.name)
            if ended.end.outcome != "succeeded" and self._stops_on_error(state.step):
                self._halt_items(state)
        if self._record_end(state, call.item, ended.end):
            await self._close_items(state)

    async def _close_items(self, state: Items) -> None:
        choice = self._scope.history.choices.get(state.step.id)
        if choice is not None and choice.kind == "skipped" and state.without_call:
            done = f"completed for {state.carried} of {counted(state.count, 'item')}; " if state.carried else ""
            return self._skip(state.step, done + choice.reason)
        cause = state.refused or state.cause or self._why_halted(state.step)
        if state.missing + state.without_call == state.count > 0:
            return self._skip(state.step, cause or f"its condition is false for every item: {state.step.when}")
        if state.step.group is not None and state.is_cut_short:
            run = self._runs[state.step.id]
            called = f"done for {state.count - state.missing - state.without_call} of {counted(state.count, 'item')}"
            run.status, run.reason = StepStatus.SKIPPED, f"{called}, not called for {state.missing}: {cause}"
            run.started_at = run.started_at or self._scope.recorder.now()  # all calls are carried
            self._end_now(run)
            return await self._close(state.step, show=False)
        self._finish(state.step, state.summary(cause), was_refused=state.is_refused, continues=state.continues)
        self._runs[state.step.id].carried = self._is_carried(state)
        return await self._close(state.step, show=state.settled or not state.started)

    async def _close(self, step: Step, *, show: bool) -> None:
        """Record, show and report the end of `step`, and start the steps that waited for it."""
        run = self._runs[step.id]
        self._scope.keep_value(run)
        self._scope.recorder.step_ended(run)
        if show:
            await self._run_step.show(run, self._validated.reduced[step.id], tags=step.tags)
        await self._scope.notify_end(run)
        self._unended -= 1
        around = None if step.within is None or step.group is not None else self._sub_plans.get(step.within.id)
        if step.within is not None and around is None:  # a step of a group, or of a sub-plan that is skipped as a whole
            return
        for successor in self._dependents.get(step.id, ()):  # the steps that depend on a step of a group are started by the group
            self._waits_for[successor] -= 1
            if not self._waits_for[successor]:
                self._step_ready(self._steps[successor])
        if around is not None:
            around.open -= 1
            if not around.open:
                self.tasks.spawn(self._close_sub_plan(around))

    # The end of a step.

    def _blocking_dependency(self, step: Step) -> str:
        for dependency in self._validated.outer[step.id]:
            run = self._runs[dependency]
            if run.outcome is Outcome.UNKNOWN:
                return f"the outcome of `{dependency}` is unknown"
            if run.status is StepStatus.FAILED:
                return f"`{dependency}` failed"
            if run.status is StepStatus.SKIPPED and dependency not in self._without_call:
                return f"`{dependency}` was skipped: {run.reason}" if run.reason else f"`{dependency}` was skipped"
        return ""

    def _condition_is_true(self, step: Step, scope: RunScope, item: JsonValue = None) -> bool:
        template = self._validated.when.get(step.id)
        value = True if template is None else template.resolve(scope.variables(item=item))
        if not isinstance(value, bool):
            raise ExpressionError(f"`when` gave {type(value).__name__}, not true or false: {step.when}")
        return value

    def _items_of(self, step: Step) -> list[tuple[int | None, JsonValue]]:
        template = self._validated.for_each.get(step.id)
        if template is None:
            return [(None, None)]
        items = template.resolve(self._scope.of(step).variables())
        if not isinstance(items, list):
            raise ExpressionError(f"`for_each` gave {type(items).__name__}, not a list: {step.for_each}")
        return list(enumerate(items))

    def _skip(self, step: Step, reason: str) -> None:
        self._name_items([step.id], StepStatus.SKIPPED)
        for inner in step.inner:
            self._skip(inner, reason)
        run = self._runs[step.id]
        run.status, run.reason, run.completed_at = StepStatus.SKIPPED, reason, self._scope.recorder.now()
        self.tasks.spawn(self._close(step, show=True))

    def _finish(self, step: Step, end: AttemptEnd, *, was_refused: bool = False, continues: bool = False) -> None:
        run = self._runs[step.id]
        self._end_now(run)
        if end.outcome == "succeeded":
            run.status, run.outcome, run.result, run.reason = StepStatus.COMPLETED, Outcome.SUCCEEDED, end.result, end.reason
            return
        run.status, run.error, run.reason = StepStatus.FAILED, end.error, NOT_APPROVED if was_refused else end.reason or end.outcome
        run.outcome = Outcome.UNKNOWN if end.outcome == "unknown" or self._was_interrupted(step, end) else Outcome.FAILED
        if end.outcome == "failed" and self._stops_on_error(step) and not (was_refused and continues):
            self._halt_around(step, f"stopped because `{step.id}` failed")

    def _end_now(self, run: StepRun) -> None:
        run.completed_at = self._scope.recorder.now()
        if run.started_at is not None:
            run.duration_ms = round((run.completed_at - run.started_at).total_seconds() * 1000)

    def _was_interrupted(self, step: Step, end: AttemptEnd) -> bool:
        """Return whether the run's stop interrupted a write."""
        return end.outcome in ("cancelled", "timed_out") and self._validated.effect_of(step.id) == "write" and end.was_interrupted

    def _stops_on_error(self, step: Step) -> bool:
        if self._is_finally or step.group is not None:  # a group decides what the failure of one of its steps means
            return False
        return self._validated.plan.on_error_of(step) == "stop"
