"""`GroupRuns`: runs the groups of an execution. Each item's steps are called as they become ready, and a failed item may be rolled back."""

from collections.abc import Sequence
from functools import partial

from pydantic import JsonValue

from plan_adapter.execution.groups import Group, group_result
from plan_adapter.execution.history import RunHistory
from plan_adapter.execution.item_checks import failed_checks, has_checks
from plan_adapter.execution.items import Items
from plan_adapter.execution.ports import AttemptEnd, StepGates
from plan_adapter.execution.progress import Progress
from plan_adapter.execution.rollback import Rollback
from plan_adapter.execution.step_calls import StepCalls
from plan_adapter.model.errors import ExpressionError
from plan_adapter.model.plan import Step
from plan_adapter.model.status import StepStatus


class GroupRuns:
    """The groups that have begun. Each decides which of its calls are ready. Belongs to one event loop."""

    def __init__(self, progress: Progress, calls: StepCalls) -> None:
        """Run groups of `progress`. `calls` makes their calls, and reports the end of each to `call_ended`."""
        self._progress = progress
        self._scope = progress.scope
        self._calls = calls
        self._groups = dict[str, Group]()

    def begin(self, step: Step, values: Sequence[JsonValue], labels: Sequence[str | None]) -> None:
        """Run the steps of a group once for each of `values`."""
        self._groups[step.id] = group = Group(self._scope.of(step), step, values, labels)
        for state in group.calls.values():
            self._calls.begin(state)
        run = self._progress.runs[step.id]
        run.status, run.started_at, run.items = StepStatus.RUNNING, self._scope.recorder.now(), group.items
        if has_checks(self._scope, step):
            return self._progress.tasks.spawn(self._check_items(group))
        return self._advance(group)

    async def _check_items(self, group: Group) -> None:
        """Start a group with the items for which its tools can be called. The others have failed."""
        scope = self._scope.of(group.step)
        for item, why in (await failed_checks(scope, group, self._progress.runs[group.step.id])).items():
            group.fail(item, why)
        self._advance(group)

    def call_ended(self, state: Items, item: int, end: AttemptEnd | None) -> None:
        """Record how a call of a group ended, and continue the group. Without an `end`, the call was not made."""
        group = self._groups[state.step.group or ""]
        if end is None:
            group.leave_out(item, state.step.id, state.refused or self._progress.why_halted(group.step))
        group.record_end(item, state.step.id, end)
        self._advance(group)

    def _advance(self, group: Group) -> None:
        """Queue the calls of `group` that are ready. Close its steps that have ended, and the group itself."""
        if group.is_advancing:  # a call ended at once, and the loop below continues
            return
        group.is_advancing = True
        while (ready := group.next_call(self._progress.why_halted(group.step))) is not None:
            self._queue(group, *ready)
        group.is_advancing = False
        for state in group.pop_ended():
            self._progress.tasks.spawn(self._calls.close(state))
        for item in group.pop_failed():
            self._scope.slots.reserve()  # at once, before another call gets the slot that the failed one gave back
            self._progress.tasks.spawn(self._roll_back_item(group, item))
        if group.is_over:
            self._progress.tasks.spawn(self._close(group))

    def _queue(self, group: Group, item: int, step_id: str) -> None:
        """Make a call that is ready, or end it without making it."""
        choice = self._scope.history.choices.get(step_id)
        if (step_id, item) in self._scope.history.succeeded:
            return self._queue_call(group, item, step_id)
        if group.was_rolled_back(item):
            return self._keep_end(group, item, step_id)
        if choice is not None and choice.kind == "skipped":
            return group.skip(item, step_id, by_person=self._would_be_called(group, item, step_id))
        cause = self._progress.why_halted(group.step) or group.cause(item, step_id)
        if not cause and choice is not None and choice.kind == "left":
            cause = choice.reason
        if cause:
            group.leave_out(item, step_id, cause)
            return group.record_end(item, step_id, None)
        return self._queue_if_wanted(group, item, step_id)

    def _queue_if_wanted(self, group: Group, item: int, step_id: str) -> None:
        """Make a call whose item is approved and whose condition is true, or hold it until its item is approved."""
        step = group.calls[step_id].step
        gates = self._progress.gates_of(group.step)
        if gates is not None and group.hold_until_approved(item, step_id):
            return self._progress.tasks.spawn(self._ask_for_approval(gates, group, item)) if group.is_first_held(item) else None
        try:
            is_true = self._progress.condition_is_true(step, group.scope_of(item), group.value_of(item))
        except ExpressionError as error:
            return group.record_end(item, step_id, AttemptEnd("failed", 0, error=str(error)))
        return self._queue_call(group, item, step_id) if is_true else group.skip(item, step_id, by_person=False)

    def _queue_call(self, group: Group, item: int, step_id: str) -> None:
        scope, upstream = group.scope_of(item), group.upstream_of(item, step_id)
        self._calls.queue(group.calls[step_id], item, group.value_of(item), scope=scope, upstream=upstream)

    def _keep_end(self, group: Group, item: int, step_id: str) -> None:
        """End a call of an item whose rollback began in an earlier start as it ended there."""
        receipt = self._scope.history.receipts.get((step_id, item))
        if receipt is not None:
            return group.record_end(item, step_id, AttemptEnd("failed", receipt.number, error=receipt.error, can_retry=False))
        group.leave_out(item, step_id, group.cause(item, step_id) or "its item was rolled back")
        return group.record_end(item, step_id, None)

    def _would_be_called(self, group: Group, item: int, step_id: str) -> bool:
        """Return whether a step that a person skipped would be called for an item: its condition is not false."""
        try:
            return self._progress.condition_is_true(self._progress.steps[step_id], group.scope_of(item), group.value_of(item))
        except ExpressionError:
            return True

    async def _ask_for_approval(self, gates: StepGates, group: Group, item: int) -> None:
        """Ask for the approval of an item, or of the whole group, and start it once approved."""
        state = next(iter(group.calls.values()))
        is_approved = await self._progress.ask_for_approval(gates, state, group.gated_call(item))
        if is_approved is None:
            return
        if is_approved:
            group.approve(item)
        else:
            group.refuse(item, state.refused or self._progress.why_halted(group.step))
        self._advance(group)

    async def _roll_back_item(self, group: Group, item: int) -> None:
        """Roll back an item that failed, from the record, in the slot that is reserved for it.

        If the run stops, calls in progress finish and no further one starts.
        """
        try:
            stop, attempts = self._scope.stop, await self._scope.recorder.calls_of_item([*group.calls], item)
            rollback = Rollback(self._scope, RunHistory.of(*attempts), self._progress.run_step, open_gates=self._progress.open_gates)
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

    async def _close(self, group: Group) -> None:
        """End a group that is over."""
        step, run, calls = group.step, self._progress.runs[group.step.id], group.calls.values()
        if group.is_skipped:
            why = next((state.refused or state.cause for state in calls if state.refused or state.cause), self._progress.why_halted(step))
            self._progress.mark_skipped(step, why)
        else:
            refused, end = [state for state in calls if state.refused], group.summary()
            was_refused = bool(refused) and all(state.is_refused for state in refused) and end.outcome == "failed"
            self._progress.finish(step, end, was_refused=was_refused, continues=all(state.continues for state in refused))
        run.result = group_result(run.items, group.results())
        run.carried = all(map(self._calls.is_carried, calls))
        await self._progress.close(step, show=True)
