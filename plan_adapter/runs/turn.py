"""The turn of an approved run: it starts once no other run has its concurrency key."""

import asyncio

from plan_adapter.errors import InvalidPlanError, RunConflictError
from plan_adapter.execution.scope import RunScope
from plan_adapter.expressions import Variables
from plan_adapter.plan import StepStatus
from plan_adapter.problems import Problem
from plan_adapter.readable import one_line
from plan_adapter.record import RunContext
from plan_adapter.runs.ending import finals_of
from plan_adapter.store.concurrency import RunBefore
from plan_adapter.store.store import PlanStore
from plan_adapter.validation import BoundPlan

POLL_SECONDS = 0.5
MAX_KEY_CHARACTERS = 200


def concurrency_key(bound: BoundPlan) -> str | None:
    """Return the concurrency key of a run of `bound`, or None if its plan has none. Raises InvalidPlanError if the inputs give none."""
    template = bound.validated.concurrency_key
    if template is None:
        return None
    value = template.resolve(Variables({}, bound.inputs))
    text = str(value) if isinstance(value, str | int | float) and not isinstance(value, bool) else ""
    if 0 < len(text.strip()) <= MAX_KEY_CHARACTERS:
        return text
    message = f"the inputs give no key: it must be a text of 1 to {MAX_KEY_CHARACTERS} characters"
    raise InvalidPlanError([Problem("bad-concurrency", at="concurrency.key", message=message, hint="use an input with such a value")])


async def refuse_busy(bound: BoundPlan, store: PlanStore, context: RunContext) -> None:
    """Raise RunConflictError if another run has the key of `bound`, and the plan refuses to start beside it."""
    key, concurrency = concurrency_key(bound), bound.validated.plan.concurrency
    if key is None or concurrency is None or concurrency.when_busy != "refuse":
        return
    if before := await store.ledger.runs_before(key, context):
        raise RunConflictError(_busy(before[0], key))


async def wait_for_turn(scope: RunScope, store: PlanStore) -> bool:
    """Return whether the run may start. Waits for its concurrency key if the plan says so.

    Otherwise `scope.stop` says why it does not start: it is refused, or was cancelled while it waited. Its `finally` steps are skipped
    then, because nothing was done that they could clean up.
    """
    bound = scope.approved.bound
    key, concurrency, shown = concurrency_key(bound), bound.validated.plan.concurrency, ""
    if key is None or concurrency is None:
        return True
    while not scope.stop.is_set:
        before = await store.ledger.take_key(scope.run, key)
        if not before:
            return await _tell(scope, store, None)
        message = _busy(before[0], key)
        if concurrency.when_busy == "refuse":
            scope.stop.set("cancelled", message)
            break
        if message != shown:
            shown = message
            await _tell(scope, store, f"waits: {message}")
        if concurrency.when_busy == "cancel_older":
            await _cancel([one for one in before if one.name == scope.run.name], scope, store)
        await asyncio.wait({scope.stop.future}, timeout=POLL_SECONDS)
    for step in finals_of(scope):
        step.status, step.reason, step.completed_at = StepStatus.SKIPPED, scope.stop.message, scope.recorder.now()
        scope.recorder.step_ended(step)
    return False


def _busy(before: RunBefore, key: str) -> str:
    does = "has" if before.is_held else "waits for"
    return f"run {before.id} of `{one_line(before.name)}` {does} the concurrency key `{one_line(key)}`"


async def _tell(scope: RunScope, store: PlanStore, message: str | None) -> bool:
    """Show why the run waits, or that it no longer does."""
    if scope.run.message != message:
        scope.run.message = None if message is None else scope.secrets.redactor.text(message)
        await store.ledger.update(scope.run)
        if message is not None:
            scope.notify("waits", message=message)
    return True


async def _cancel(older: list[RunBefore], scope: RunScope, store: PlanStore) -> None:
    """Request the cancellation of `older` runs."""
    for run in older:
        try:
            if await store.ledger.cancel_request(run.id) is None:
                await store.cancel(run.id, f"run {scope.run.id} takes its place")
        except RunConflictError:  # it has just ended
            continue
