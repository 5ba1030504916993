"""`Rollback`: undoes what the steps of a run did, those first that others do not stand on, and says where things stand."""

import asyncio
from collections.abc import Iterable, Mapping
from dataclasses import replace

from pydantic import JsonValue

from plan_adapter import graph
from plan_adapter.errors import ExpressionError
from plan_adapter.execution.attempts import RetryPolicy
from plan_adapter.execution.cancellation import Stop
from plan_adapter.execution.carry import Past, Unit, rollback_id
from plan_adapter.execution.ports import AttemptEnd, CallStep
from plan_adapter.execution.scope import RunScope
from plan_adapter.execution.step import Call, Called
from plan_adapter.plan import ExecutionPlan, Step, StepStatus
from plan_adapter.record import Outcome, Receipt, StepRun

SHOWN_CHARACTERS = 300
"""How much of an error the message of a run tells; the receipt keeps all of it."""

NAMED = 20
"""How many steps are named in one list."""

_ONCE = RetryPolicy(retries=0, delay=0.0, backoff=1.0, jitter=0.0)


def units_to_undo(plan: ExecutionPlan, past: Past) -> list[Unit]:
    """Return the steps, or items, that were done, declare a rollback, and were not undone yet."""
    undoable = {step.id for step in plan.steps if step.rollback is not None}
    return [unit for unit in past.succeeded if unit[0] in undoable and (rollback_id(unit[0]), unit[1]) not in past.succeeded]


class Rollback:
    """Undoes one run whose steps have ended; belongs to one event loop.

    Each call has intents and receipts of its own under `rollback <step id>`. What was undone before is not undone again, and one whose
    outcome is unknown waits for a person. While the outcome of a step itself is unknown nothing is undone.
    """

    def __init__(self, scope: RunScope, past: Past, call_step: CallStep) -> None:
        """Prepare to undo the run of `scope`, of which `past` is all that was attempted; a stop of the run itself ends nothing here."""
        self.scope = replace(scope, past=past, stop=Stop(), clock=None, gates=None, refusal=None)
        self._past = past
        self._call_step = call_step
        self._validated = scope.approved.bound.validated
        self._steps = {step.id: step for step in self._validated.plan.steps}
        self._runs = {step.id: step for step in scope.run.steps}
        self._after = graph.successors(self._validated.reduced)
        self._done = _by_step(past.succeeded)
        self._causes = dict[Unit, str]()  # of what was not undone, why
        self._undone = {unit for unit in past.succeeded if (rollback_id(unit[0]), unit[1]) in past.succeeded}

    @property
    def doubt(self) -> str | None:
        """Why nothing may be undone now, None where it may."""
        if not (unknown := self._past.unknown_steps):
            return None
        run_id = self.scope.run.id
        return (
            f"nothing was undone, because whether {_names(unknown)} was done is unknown: `plan resolve {run_id} {unknown[0]} "
            f"done|again|abort`, then `plan cancel {run_id} --rollback`"
        )

    @property
    def left(self) -> list[Unit]:
        """What is still to be undone."""
        return units_to_undo(self._validated.plan, self._past)

    async def undo(self) -> None:
        """Undo one step after the other; returns when all of it is durable, raises StoreError where the record cannot be kept.

        Being cancelled ends the call that is open and starts no further one; it is raised again then.
        """
        if self.doubt is not None:
            return
        work = asyncio.ensure_future(self._undo())
        try:
            await asyncio.shield(work)
        except asyncio.CancelledError:
            self.scope.stop.set("cancelled", "interrupted")
            await work
            await self.scope.recorder.flush()
            raise
        await self.scope.recorder.flush()

    async def _undo(self) -> None:
        behind = dict[str, str]()  # by step: the one that had to be undone first and was not
        for step_id in reversed(self._validated.order):
            first = next((behind[after] for after in self._after[step_id] if after in behind), None)
            if step_id in self._validated.rollbacks and self._done.get(step_id):
                if not await self._undo_step(self._steps[step_id], first):
                    behind[step_id] = step_id
            elif first is not None:
                behind[step_id] = first

    async def _undo_step(self, step: Step, first: str | None) -> bool:
        """Undo what was done of `step`, unless `first` had to be undone before; return whether all of it is undone."""
        left = [receipt for receipt in self._done[step.id] if (step.id, receipt.item) not in self._undone]
        cause = f"`{first}` must be undone first" if first is not None else self.scope.stop.message
        if left and cause:
            for receipt in left:
                self._causes[step.id, receipt.item] = cause
            await self._leave(step, cause)
        elif left:
            await self._call_all(step, left)
        if any((step.id, receipt.item) not in self._undone for receipt in left):
            return False
        self._runs[step.id].rolled_back = True
        self.scope.recorder.step_ended(self._runs[step.id])
        return True

    async def _leave(self, step: Step, cause: str) -> None:
        run = self._run_of(step)
        run.status, run.reason = StepStatus.SKIPPED, cause
        await self._call_step.show(run, self._upstream(step))
        await self.scope.tell_end(run)

    async def _call_all(self, step: Step, left: list[Receipt]) -> None:
        """Undo the items of `step`, the last first; none stands on another one, so all are tried."""
        run = self._run_of(step)
        ends = [await self._call(step, run, receipt) for receipt in reversed(left)]
        run.completed_at = self.scope.recorder.now()
        if run.started_at is not None:
            run.duration_ms = round((run.completed_at - run.started_at).total_seconds() * 1000)
        worst = next((end for end in ends if end.outcome != "succeeded"), None)
        if worst is None:
            run.status, run.outcome, run.result = StepStatus.COMPLETED, Outcome.SUCCEEDED, ends[-1].result
        else:
            run.status, run.error, run.reason = StepStatus.FAILED, worst.error, worst.outcome
            run.outcome = Outcome.UNKNOWN if self._is_unknown(step, worst) else Outcome.FAILED
        if run.attempts == 0:
            await self._call_step.show(run, self._upstream(step))
        await self.scope.tell_end(run)

    async def _call(self, step: Step, run: StepRun, receipt: Receipt) -> AttemptEnd:
        """Make the one call that undoes a step or an item, unless how an earlier one ended is unknown; note why it did not."""
        unit, rollback = (rollback_id(step.id), receipt.item), self._validated.rollbacks[step.id]
        if unit in self._past.unknown:
            end = AttemptEnd("unknown", self._past.attempts[unit], error="an earlier start of its rollback began this write")
        elif self.scope.stop.is_set:
            end = AttemptEnd("cancelled", 0, error=self.scope.stop.message)
        else:
            try:
                value = self._value(step, receipt.item)
            except ExpressionError as error:
                end = AttemptEnd("failed", 0, error=str(error), can_retry=False)
            else:
                called = Called(
                    id=unit[0],
                    tool=rollback.tool,
                    parameters=rollback.parameters,
                    effect=rollback.tool.effect,
                    retry=_ONCE,
                    upstream=self._upstream(step),
                    result=receipt.result,
                )
                call = Call(self.scope, step, run, urgency=0.0, item=receipt.item, value=value, called=called)
                await self.scope.slots.acquire(0.0)
                end = await self._call_step(call)
        if end.outcome == "succeeded":
            self._undone.add((step.id, receipt.item))
        else:
            self._causes[step.id, receipt.item] = self._cause(step, receipt.item, end)
        return end

    def _value(self, step: Step, item: int | None) -> JsonValue:
        """Return the member of the step's `for_each` that the item was made of."""
        template = self._validated.for_each.get(step.id)
        if template is None or item is None:
            return None
        values = template.resolve(self.scope.variables())
        if not isinstance(values, list) or item >= len(values):
            raise ExpressionError(f"`for_each` gives no item {item} any more: {step.for_each}")
        return values[item]

    def _cause(self, step: Step, item: int | None, end: AttemptEnd) -> str:
        if self._is_unknown(step, end):
            which = "" if item is None else f" --item {item}"
            return (
                f'whether its rollback was done is unknown: `plan resolve {self.scope.run.id} "{rollback_id(step.id)}" '
                f"done|again|abort{which}`, then `plan cancel {self.scope.run.id} --rollback`"
            )
        error = end.error or "no reason was given"
        shown = error if len(error) <= SHOWN_CHARACTERS else error[:SHOWN_CHARACTERS] + "…"
        return f"its rollback failed: {shown}" if end.outcome == "failed" else f"its rollback was ended: {shown}"

    def _is_unknown(self, step: Step, end: AttemptEnd) -> bool:
        writes = self._validated.rollbacks[step.id].tool.effect == "write"
        return end.outcome == "unknown" or (end.outcome in ("cancelled", "timed_out") and writes and end.in_middle)

    def _run_of(self, step: Step) -> StepRun:
        """Return what shows the rollback of `step`; it is no step of the run."""
        rollback = self._validated.rollbacks[step.id]
        return StepRun(
            id=rollback_id(step.id),
            index=step.index,
            tool_name=rollback.tool.name,
            description=f"Undo: {step.description}" if step.description else f"Undo `{step.id}`",
            depends_on=self._upstream(step),
            status=StepStatus.RUNNING,
        )

    def _upstream(self, step: Step) -> tuple[str, ...]:
        return (step.id, *(rollback_id(after) for after in self._after[step.id] if after in self._validated.rollbacks))

    # Where things stand.

    def standing(self) -> str:
        """Return in words what is undone, what is not and why, and what cannot be."""
        if self.doubt is not None:
            return self.doubt
        undone, causes = list[str](), list[str]()
        for step_id in reversed(self._validated.order):
            if step_id in self._validated.rollbacks and self._done.get(step_id):
                self._tell_step(step_id, undone, causes)
        parts = ["undone: " + (_listed(undone) or "nothing")]
        parts += ["not undone: " + _listed(causes)] if causes else []
        parts += [f"cannot be undone: {_names(self._final())} (writes, declares no rollback)"] if self._final() else []
        open_ids = list(dict.fromkeys(step_id for step_id, _ in self._past.repeatable if step_id in self._steps))
        parts += [f"begun, and perhaps done: {_names(open_ids)}"] if open_ids else []
        return "; ".join(parts)

    def _tell_step(self, step_id: str, undone: list[str], causes: list[str]) -> None:
        items = [receipt.item for receipt in self._done[step_id]]
        whys = {item: "" if (step_id, item) in self._undone else self._causes.get((step_id, item), "not reached") for item in items}
        told = {f"`{step_id}`": whys[items[0]]} if len(set(whys.values())) == 1 else {f"`{step_id}[{i}]`": why for i, why in whys.items()}
        undone += [name for name, why in told.items() if not why]
        causes += [f"{name} ({why})" for name, why in told.items() if why]

    def _final(self) -> list[str]:
        """Return the steps that changed something for good."""
        effects = {step_id: self._steps[step_id].effect or tool.effect for step_id, tool in self._validated.tools.items()}
        without = [step_id for step_id in self._validated.order if step_id not in self._validated.rollbacks]
        return [step_id for step_id in without if self._done.get(step_id) and effects[step_id] != "read"]


def _by_step(succeeded: Mapping[Unit, Receipt]) -> dict[str, list[Receipt]]:
    done = dict[str, list[Receipt]]()
    for _, receipt in sorted(succeeded.items(), key=lambda entry: -1 if entry[0][1] is None else entry[0][1]):
        done.setdefault(receipt.step_id, []).append(receipt)
    return done


def _names(step_ids: Iterable[str]) -> str:
    return _listed([f"`{step_id}`" for step_id in step_ids])


def _listed(texts: list[str]) -> str:
    return ", ".join(texts[:NAMED]) + (f" and {len(texts) - NAMED} more" if len(texts) > NAMED else "")
