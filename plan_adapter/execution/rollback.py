"""`Rollback`: rolls back what the steps of a run, or of one item of a group, did, dependents first, and reports what was undone."""

from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial

from pydantic import JsonValue

from plan_adapter.execution.asked import OpenGates
from plan_adapter.execution.call_arguments import NO_RETRY, CallTarget
from plan_adapter.execution.cancellation import Stop
from plan_adapter.execution.course import Course, CourseEnd
from plan_adapter.execution.history import RunHistory, Unit
from plan_adapter.execution.items import item_labels
from plan_adapter.execution.limits import ITEM_ROLLBACK_URGENCY
from plan_adapter.execution.ports import AttemptEnd, RecordedResolution, StepRunner, UnknownOutcome
from plan_adapter.execution.rollback_status import (
    CHECK_BY_HAND,
    ITEM_NOT_COMPLETED,
    ROLLBACK_OUTCOME_UNKNOWN,
    RollbackReport,
    possibly_done_note,
    report_of,
)
from plan_adapter.execution.rollback_units import FailedUnit, by_node, rollback_graph, units_left_alone, units_to_roll_back
from plan_adapter.execution.scope import RunScope, as_value
from plan_adapter.execution.step import Call, call_key
from plan_adapter.execution.sub_plans import sub_plan_inputs
from plan_adapter.execution.task_set import TaskSet
from plan_adapter.model import graph
from plan_adapter.model.errors import ExpressionError
from plan_adapter.model.options import CallKind
from plan_adapter.model.plan import Step
from plan_adapter.model.readable import call_name, listed
from plan_adapter.model.record import Attempt, Receipt, StepRun
from plan_adapter.model.status import Outcome, StepStatus
from plan_adapter.text.commands import MAX_NAMES, resolve_command, resume_command, rollback_command, unit_names

SHOWN_CHARACTERS = 300
"""How much of an error the status message shows. The receipt keeps all of it."""


@dataclass(slots=True)
class _StepRollback:
    """The calls that undo one step: one, or one per item. In a group, one item of a step."""

    node: Unit
    step: Step
    run: StepRun
    open: int
    ends: list[AttemptEnd] = field(default_factory=list[AttemptEnd])  # how the calls ended that were made or have an unknown outcome
    settled: bool = False  # a person or the probe resolved an unknown outcome


class Rollback:
    """Rolls back one run whose steps have ended, or one item of a group that failed. Belongs to one event loop.

    A step is rolled back as soon as every step that depends on it is. Calls run in parallel up to the plan's limit, later steps first. Each
    call has its own intents and receipts, of kind `rollback`. A call that succeeded in an earlier rollback is not repeated. If the outcome
    of one is unknown, the tool's probe is asked first, then a person if one is available; otherwise it waits for `plan resolve`. Nothing is
    undone while the outcome of a step itself is unknown.

    After a call has failed or `halt` is set, no further call starts and nobody is asked; running calls finish.
    """

    def __init__(self, scope: RunScope, history: RunHistory, run_step: StepRunner, *, open_gates: OpenGates | None = None) -> None:
        """Prepare to roll back the run of `scope`. `history` holds all its attempts.

        With `open_gates`, those of the run in progress, only an item of a group is rolled back, and `history` holds the attempts of that
        item; the caller has reserved a slot for it. A stop of the run itself does not stop the rollback.
        """
        self._open_gates = open_gates
        self.scope = replace(scope, history=history, stop=Stop(), clock=None, gates=None, refusal=None)
        self.scope.inside = _ended_sub_plans(self.scope)
        self._course = Course(
            self.scope,
            run_step,
            open_gates,
            why_halted=lambda _: self._halted,
            begun_earlier="an earlier start of its rollback began this write",
            after_abort=ROLLBACK_OUTCOME_UNKNOWN,
            abort_stops=False,
            ask_for_resolution=self._ask_for_resolution,
        )
        self.halt = Stop()  # setting it prevents further calls; a stop of the scope also ends running ones
        self._history = history
        self._run_step = run_step
        self._validated = scope.approved.bound.validated
        self._steps = self._validated.steps
        self._runs = {step.id: step for step in scope.run.steps}
        self._before = rollback_graph(self._validated, history)
        self._after = graph.successors(self._before)
        self._waits_for = {node: len(after) for node, after in self._after.items()}  # how many nodes must be rolled back before it
        first = 0 if open_gates is None else ITEM_ROLLBACK_URGENCY  # before any step that waits for a slot
        self._urgency = {node: first + position for position, node in enumerate(self._before)}
        self._failed_units = [unit for unit in history.failed if unit[0] in self._validated.rollbacks]
        also_failed = {
            unit: FailedUnit(*unit, history.attempts[unit]) for unit in self._failed_units if self._steps[unit[0]].rollback_failed
        }
        self._left_alone = units_left_alone(self._validated.plan, history)
        done = {unit: end for unit, end in {**history.succeeded, **also_failed}.items() if unit not in self._left_alone}
        self._done = by_node(self._before, done)
        self._labels = dict(history.labels)
        self._not_started = list[Unit]()
        self._undoable = [node for node in reversed(self._before) if self._is_undoable(node)]
        self._causes = dict[Unit, str]()  # why a unit was not undone
        self._undone = set(history.rollbacks.succeeded)
        self._blockers = dict[Unit, str]()  # by node: the step that had to be rolled back first and was not
        self._failure = ""
        self._open_questions = list[UnknownOutcome]()  # the open questions to people
        self._open = len(self._undoable)
        self._tasks = TaskSet(scope, "the rollback", is_over=lambda: not self._open)
        for step_id in {step_id for step_id, _ in history.attempts if step_id in self._validated.rollbacks}:
            if open_gates is None:
                self._record_items(self._steps[step_id])

    def _is_undoable(self, node: Unit) -> bool:
        return node[0] in self._validated.rollbacks and bool(self._done.get(node))

    def _record_items(self, step: Step) -> None:
        """Record the labels of a step's items, and the items that never started."""
        whole = step if step.group is None else self._steps[step.group]
        if (template := self._validated.for_each.get(whole.id)) is None:
            return
        try:
            values = template.resolve(self.scope.of(whole).variables())
        except ExpressionError:  # then only the record names the items
            return
        for item, label in enumerate(item_labels(self.scope.of(whole), whole, values) if isinstance(values, list) else ()):
            if label is not None:
                self._labels.setdefault((step.id, item), label)
            if (step.id, item) not in self._history.attempts:
                self._not_started.append((step.id, item))

    @property
    def unknown_outcome(self) -> str | None:
        """Why nothing can be rolled back now, as text for the status message. None if something can."""
        if not self._history.unknown_steps:
            return None
        units = list(self._history.unknown)
        command = resolve_command(self.scope.run.id, units[0], label=self._labels.get(units[0]))
        return (
            f"rolled back: nothing, because the outcome of {', '.join(unit_names(units, self._labels))} is unknown: `{command}`, "
            f"then `{rollback_command(self.scope.run)}`"
        )

    @property
    def left(self) -> list[Unit]:
        """The units that still need a rollback."""
        return units_to_roll_back(self._validated.plan, self._history)

    async def undo(self) -> None:
        """Roll the run back. Returns when everything is durable. Raises StoreError if the record cannot be kept.

        A cancellation ends the open calls and is raised again afterwards. No further call starts.
        """
        if self.unknown_outcome is not None:
            return
        for stop in (self.scope.stop, self.halt):
            stop.future.add_done_callback(lambda _: self._withdraw())
        self._start_ready([node for node in reversed(self._before) if self._waits_for[node] == 0])
        self._tasks.end_if_done()
        await self._tasks.ended()
        if self._open_gates is None:
            self._mark_items()
        await self.scope.recorder.flush()

    @property
    def _halted(self) -> str:
        """Why no further call starts; empty while calls may start."""
        return self.scope.stop.message or self.halt.message or self._failure

    # The life of a step: it becomes ready, its calls get slots and run, and the step is closed.

    def _start_ready(self, ready: list[Unit]) -> None:
        """Start the nodes in `ready`, and the nodes that become ready because a step has nothing to undo."""
        waiting = list(reversed(ready))
        while waiting:
            node = waiting.pop()
            blocker = next((self._blockers[after] for after in self._after[node] if after in self._blockers), None)
            if self._is_undoable(node):
                self._start_step(node, blocker)
                continue
            if blocker is not None:
                self._blockers[node] = blocker
            waiting += reversed(self._release_after(node))

    def _release_after(self, node: Unit) -> list[Unit]:
        """Return the nodes that waited only for `node`, the plan's later steps first."""
        for before in self._before[node]:
            self._waits_for[before] -= 1
        ready = [before for before in self._before[node] if not self._waits_for[before]]
        return sorted(ready, key=lambda before: -self._urgency[before])

    def _start_step(self, node: Unit, blocker: str | None) -> None:
        """Request the calls that undo `node`. If `blocker` had to be rolled back first and was not, record that instead."""
        left = [receipt for receipt in reversed(self._done[node]) if (receipt.step_id, receipt.item) not in self._undone]
        cause = f"`{blocker}` must be rolled back first" if blocker is not None else self._halted
        step_rollback = _StepRollback(node, self._steps[node[0]], self._new_step_run(node), len(left))
        for receipt in left:
            if cause:
                self._record_not_undone(step_rollback, receipt.item, cause)
            else:
                self._request(step_rollback, receipt)
        if not step_rollback.open:
            self._tasks.spawn(self._close(step_rollback))

    def _request(self, step_rollback: _StepRollback, receipt: Receipt | FailedUnit) -> None:
        unit = (step_rollback.step.id, receipt.item)
        if unit in self._history.rollbacks.aborted:  # it may have been done, so somebody must resolve it before it is called again
            command = resolve_command(self.scope.run.id, unit, "done|again", label=self._labels.get(unit), kind="rollback")
            error = f"{ROLLBACK_OUTCOME_UNKNOWN}: check, then `{command}` and `{self._next_command}`"
            return self._record_end(step_rollback, receipt.item, AttemptEnd("failed", 0, error=error, can_retry=False), cause=error)
        try:
            call = self._new_call(step_rollback, receipt)
        except ExpressionError as error:
            return self._record_end(step_rollback, receipt.item, AttemptEnd("failed", 0, error=str(error), can_retry=False), halts=True)
        if (begun := self._history.rollbacks.unknown.get(unit)) is not None:
            return self._tasks.spawn(self._take(step_rollback, call, begun))
        # Requested here and not in a task, so that a slot that becomes free now goes to the most urgent call.
        return self._course.request(self.scope.slots, call.urgency, lambda: self._halted, partial(self._on_turn, step_rollback, call))

    @property
    def _next_command(self) -> str:
        """The command that continues the rollback: for an item of a group, the run is resumed."""
        run = self.scope.run
        return rollback_command(run) if self._open_gates is None else resume_command(run)

    def _on_turn(self, step_rollback: _StepRollback, call: Call, cause: str) -> None:
        self._tasks.spawn(self._call_over(step_rollback, call, CourseEnd()) if cause else self._make(step_rollback, call))

    async def _make(self, step_rollback: _StepRollback, call: Call) -> None:
        await self._call_over(step_rollback, call, await self._course.make(call, is_gated=False))

    async def _take(self, step_rollback: _StepRollback, call: Call, begun: Attempt) -> None:
        await self._call_over(step_rollback, call, await self._course.take(call, begun=begun, is_gated=False))

    async def _call_over(self, step_rollback: _StepRollback, call: Call, ended: CourseEnd) -> None:
        """Record how a call ended, or that it was not made, and close its step's rollback if that was the last one."""
        step_rollback.settled = step_rollback.settled or ended.source in ("probe", "person")
        if ended.end is None or ended.resolution == "again":
            self._record_not_undone(step_rollback, call.item, self._halted)
        else:
            cause = ended.end.error if ended.resolution == "abort" else None
            halts = ended.end.outcome != "succeeded" and ended.source != "record"
            self._record_end(step_rollback, call.item, ended.end, halts=halts, cause=cause)
            unit = (call.step.id, call.item)
            if ended.end.outcome == "succeeded" and unit in self._history.succeeded:  # what failed is shown as failed
                await self._run_step.show_undone(call_key(*unit))
        if not step_rollback.open:
            await self._close(step_rollback)

    async def _ask_for_resolution(self, unknown_outcome: UnknownOutcome) -> RecordedResolution | None:
        if self.scope.outcomes is None or self._halted:
            return None
        self._open_questions.append(unknown_outcome)
        try:
            if self._open_gates is not None:
                return await self._ask_in_run(self._open_gates, unknown_outcome)
            return await self.scope.outcomes.ask(unknown_outcome)
        finally:
            self._open_questions.remove(unknown_outcome)

    async def _ask_in_run(self, open_gates: OpenGates, unknown_outcome: UnknownOutcome) -> RecordedResolution | None:
        """Ask people while the other steps of the run continue: the slot that is reserved for this item is free for them."""
        self.scope.slots.unreserve()
        try:
            return await open_gates.ask_for_resolution(unknown_outcome)
        finally:
            self.scope.slots.reserve()

    def _withdraw(self) -> None:
        """Withdraw all open questions, because nothing further is undone."""
        for unknown_outcome in self._open_questions:
            if not unknown_outcome.withdrawn.done():
                unknown_outcome.withdrawn.set_result(None)

    # How calls and steps end.

    def _record_not_undone(self, step_rollback: _StepRollback, item: int | None, cause: str) -> None:
        self._causes[step_rollback.step.id, item] = cause
        step_rollback.open -= 1

    def _record_end(
        self, step_rollback: _StepRollback, item: int | None, end: AttemptEnd, *, halts: bool = False, cause: str | None = None
    ) -> None:
        """Record the end of one call. If it did not succeed and `halts` is set, no further call starts.

        `cause` overrides the reported reason why it was not undone.
        """
        step = step_rollback.step
        step_rollback.ends.append(end)
        step_rollback.open -= 1
        if end.outcome == "succeeded":
            self._undone.add((step.id, item))
            return
        self._causes[step.id, item] = cause or self._why_not_undone(step, item, end)
        if halts and not self._failure:
            which = f"the rollback of `{step.id}`"
            self._failure = "skipped, because " + (
                f"the outcome of {which} is unknown" if self._is_unknown(step, end) else f"{which} failed"
            )
            self._withdraw()

    async def _close(self, step_rollback: _StepRollback) -> None:
        """Record, show and report the end of a step's rollback, and start the steps that waited for it."""
        step, run, ends = step_rollback.step, step_rollback.run, step_rollback.ends
        left = [receipt for receipt in self._done[step_rollback.node] if (step.id, receipt.item) not in self._undone]
        if ends or left:
            self._finish(step_rollback, left)
            if run.attempts == 0 or step_rollback.settled:
                await self._run_step.show(run, self._upstream(step_rollback.node), tags=step.tags)
            await self.scope.notify_end(run)
        if left:
            self._blockers[step_rollback.node] = self._name(step_rollback.node, kind="step")
        elif self._open_gates is None and not self._runs[step.id].rolled_back and not self._needs_rollback(step.id):
            self._runs[step.id].rolled_back = True
            self.scope.recorder.step_ended(self._runs[step.id])
        self._open -= 1
        self._start_ready(self._release_after(step_rollback.node))

    def _needs_rollback(self, step_id: str) -> bool:
        """Return whether part of a step was done, failed or may have been done, and is not rolled back."""
        history = self._history
        begun = (*history.succeeded, *self._failed_units, *history.unknown, *history.repeatable, *history.aborted)
        return any(unit[0] == step_id and unit not in self._undone for unit in begun)

    def _finish(self, step_rollback: _StepRollback, left: list[Receipt | FailedUnit]) -> None:
        """Set the result of a step's rollback. It is completed only if nothing remains to be undone."""
        step, run, ends = step_rollback.step, step_rollback.run, step_rollback.ends
        worst = next((end for end in ends if end.outcome != "succeeded"), None)
        run.completed_at = self.scope.recorder.now()
        if run.started_at is not None:
            run.duration_ms = round((run.completed_at - run.started_at).total_seconds() * 1000)
        if worst is not None:
            run.status, run.error, run.reason = StepStatus.FAILED, worst.error, worst.outcome
            run.outcome = Outcome.UNKNOWN if any(self._is_unknown(step, end) for end in ends) else Outcome.FAILED
        elif left:
            run.status, run.reason = StepStatus.SKIPPED, self._causes[step.id, left[0].item]
        else:
            run.status, run.outcome, run.result, run.reason = StepStatus.COMPLETED, Outcome.SUCCEEDED, ends[-1].result, ends[-1].reason

    def _mark_items(self) -> None:
        """Record which items of groups are rolled back: at least one call of them is undone, and none is left."""
        left = {(receipt.step_id, receipt.item) for node in self._undoable for receipt in self._done[node]} - self._undone
        for group in self._validated.groups:
            run, steps = self._runs[group], [step.id for step in self._steps[group].steps]
            if run.started_at is None:
                continue
            for item, ended in enumerate(run.items):
                units = {(step_id, item) for step_id in steps}
                run.items[item] = ended._replace(rolled_back=not units.isdisjoint(self._undone) and units.isdisjoint(left))
            if run.items:
                results = run.result if isinstance(run.result, list) else []
                marks = zip(results, run.items, strict=False)
                run.result = [{**one, "rolled_back": item.rolled_back} if isinstance(one, dict) else one for one, item in marks]
                self.scope.keep_value(run)
                self.scope.recorder.step_ended(run)

    # What is called, and how its end is reported.

    def _new_call(self, step_rollback: _StepRollback, receipt: Receipt | FailedUnit) -> Call:
        """Return the call that undoes a step or an item. Raise ExpressionError if `for_each` no longer returns the item."""
        step, rollback = step_rollback.step, self._validated.rollbacks[step_rollback.step.id]
        target = CallTarget(
            step_id=step.id,
            kind="rollback",
            tool=rollback.tool,
            parameters=rollback.parameters,
            effect=rollback.tool.effect,
            retry=NO_RETRY,
            upstream=self._upstream(step_rollback.node),
            result=receipt.result,
        )
        value, label = self._item_value(step, receipt.item), self._labels.get((step.id, receipt.item))
        scope = self.scope.of(step) if step.group is None else self._item_scope(step.group, receipt.item)
        urgency = self._urgency[step_rollback.node]
        return Call(scope, step, step_rollback.run, urgency=urgency, item=receipt.item, value=value, label=label, target=target)

    def _item_scope(self, group: str, item: int | None) -> RunScope:
        """Return the scope of an item of a group, in which expressions see the item's own results."""
        done = self._history.succeeded
        steps = [step_id for step_id in self._validated.groups[group] if (step_id, item) in done]
        names = {step_id: self._steps[step_id].local_id for step_id in steps}
        values = {names[step_id]: as_value(StepStatus.COMPLETED, done[step_id, item].result) for step_id in steps}
        return self.scope.of(self._steps[group]).of_item(values)

    def _item_value(self, step: Step, item: int | None) -> JsonValue:
        """Return the value of an item in the step's `for_each`."""
        whole = step if step.group is None else self._steps[step.group]
        template = self._validated.for_each.get(whole.id)
        if template is None or item is None:
            return None
        values = template.resolve(self.scope.of(whole).variables())
        if not isinstance(values, list) or item >= len(values):
            raise ExpressionError(f"`for_each` no longer returns item {item + 1}: {whole.for_each}")
        return values[item]

    def _why_not_undone(self, step: Step, item: int | None, end: AttemptEnd) -> str:
        if self._is_unknown(step, end):
            run = self.scope.run
            command = resolve_command(run.id, (step.id, item), label=self._labels.get((step.id, item)), kind="rollback")
            return f"{ROLLBACK_OUTCOME_UNKNOWN}: `{command}`, then `{self._next_command}`"
        error = end.error or "no reason was given"
        shown = error if len(error) <= SHOWN_CHARACTERS else error[:SHOWN_CHARACTERS] + "…"
        return f"its rollback failed: {shown}" if end.outcome == "failed" else f"its rollback was ended: {shown}"

    def _is_unknown(self, step: Step, end: AttemptEnd) -> bool:
        writes = self._validated.rollbacks[step.id].tool.effect == "write"
        return end.outcome == "unknown" or (end.outcome in ("cancelled", "timed_out") and writes and end.was_interrupted)

    def _new_step_run(self, node: Unit) -> StepRun:
        """Return the step run that represents the rollback of `node`. It is not a step of the run."""
        step = self._steps[node[0]]
        rollback = self._validated.rollbacks[step.id]
        return StepRun(
            id=self._name(node),
            index=step.index,
            tool_name=rollback.tool.name,
            description=f"Undo: {step.description}" if step.description else f"Undo `{step.id}`",
            depends_on=self._upstream(node),
            status=StepStatus.RUNNING,
            undoes=step.id,
        )

    def _name(self, node: Unit, *, kind: CallKind = "rollback") -> str:
        """Return the name of the rollback of `node`, or of `node` itself."""
        return call_name(*node, self._labels.get(node), kind=kind)

    def _upstream(self, node: Unit) -> tuple[str, ...]:
        return (node[0], *(self._name(after) for after in self._after[node] if after[0] in self._validated.rollbacks))

    # The report.

    def report(self) -> RollbackReport:
        """Return what is rolled back, what is not and why, and what cannot be."""
        if self.unknown_outcome is not None:
            units = [(attempt.step_id, attempt.item) for node in self._undoable for attempt in self._done[node]]
            left = [call_name(*unit, self._labels.get(unit)) for unit in units]
            return RollbackReport(self.unknown_outcome, can_continue=False, left=tuple(left))
        reasons = dict[Unit, str]()
        for node in self._undoable:
            for receipt in self._done[node]:
                unit = (receipt.step_id, receipt.item)
                reasons[unit] = "" if unit in self._undone else self._causes.get(unit, "not reached")
        reasons |= {
            unit: ITEM_NOT_COMPLETED
            for unit in self._history.succeeded
            if unit in self._left_alone and unit[0] in self._validated.rollbacks
        }
        failed = [unit for unit in self._failed_units if unit not in reasons]
        irreversible = self._irreversible_steps()
        notes = [f"cannot be rolled back: {listed(irreversible, MAX_NAMES)} (writes, declares no rollback)"] if irreversible else []
        notes += possibly_done_note(self._validated.plan, self._history)
        reasons |= dict.fromkeys(failed, CHECK_BY_HAND)
        is_item = self._open_gates is not None
        return report_of(reasons, self._labels, not_started=self._not_started, notes=notes, of_item=is_item)

    def _irreversible_steps(self) -> list[str]:
        """Return the steps that changed something and declare no rollback."""
        done, validated = {step_id for step_id, _ in self._done}, self._validated
        without = [step_id for step_id in validated.order if step_id not in validated.rollbacks]
        return [step_id for step_id in without if step_id in done and validated.effect_of(step_id) != "read"]


def _ended_sub_plans(scope: RunScope) -> dict[str, RunScope]:
    """Return the scopes of the sub-plans in a rollback, by step.

    One that began in an earlier start, and not in this one, knows the results of its steps from their receipts.
    """
    ended = dict[str, RunScope]()
    at_end = replace(scope, inside=ended)
    for step in scope.approved.bound.validated.plan.all_steps:
        if step.pinned is None:
            continue
        if (begun := scope.inside.get(step.id)) is not None:
            ended[step.id] = replace(at_end, values=begun.values, inputs=begun.inputs)
            continue
        receipts = {inner.local_id: scope.history.succeeded.get((inner.id, None)) for inner in step.inner}
        values = {name: as_value(StepStatus.COMPLETED, receipt.result) for name, receipt in receipts.items() if receipt is not None}
        ended[step.id] = replace(at_end, values=values, inputs={})
        with suppress(ExpressionError):  # what its inputs refer to did not succeed, so it did not begin either
            ended[step.id].inputs = sub_plan_inputs(at_end, step)
    return ended
