"""The turn of an approved run: it starts outside change freezes, in its run window, once no other run has its concurrency key."""

import asyncio
from datetime import UTC, datetime

from plan_adapter.execution.scope import RunScope
from plan_adapter.expressions import Variables
from plan_adapter.gates.freezes import why_refused
from plan_adapter.gates.policy import EffectivePolicy
from plan_adapter.local.settings import Settings
from plan_adapter.model.errors import InvalidPlanError, RunConflictError
from plan_adapter.model.problems import Problem
from plan_adapter.model.readable import one_line
from plan_adapter.model.record import RunContext
from plan_adapter.model.run_window import next_opening
from plan_adapter.model.status import StepStatus
from plan_adapter.runs.ending import finally_steps_of
from plan_adapter.runs.frozen import frozen_now, still_frozen
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


async def refuse_turn(bound: BoundPlan, store: PlanStore, context: RunContext) -> None:
    """Raise RunConflictError if a run of `bound` would be refused now: outside its run window, or because another run has its key."""
    plan, key = bound.validated.plan, concurrency_key(bound)
    window, concurrency = plan.options.run_window, plan.concurrency
    if window is not None and window.outside == "refuse" and (opens := next_opening(window, datetime.now(UTC))) is not None:
        raise RunConflictError(_closed_message(opens))
    if key is None or concurrency is None or concurrency.when_busy != "refuse":
        return
    if before := await store.ledger.runs_before(key, context):
        raise RunConflictError(f"{_busy_message(before[0], key)}: wait for it to end, or `plan cancel {before[0].id}`")


async def wait_for_turn(scope: RunScope, store: PlanStore, policy: EffectivePolicy, settings: Settings) -> bool:
    """Return whether the run may start. Waits for the end of change freezes, its run window and its concurrency key, as they say.

    `policy` is the one of this start. While the run waits, it is read again.
    Otherwise `scope.stop` says why it does not start: it is refused, or was cancelled while it waited. Its `finally` steps are skipped
    then, because nothing was done that they could clean up.
    """
    while not scope.stop.is_set:
        message, is_refused = await _find_obstacle(scope, store, policy)
        if is_refused:
            scope.stop.set("cancelled", message)
            break
        await _show_waiting(scope, store, f"waits: {message}" if message else None)
        if not message:
            return True
        await asyncio.wait({scope.stop.future}, timeout=POLL_SECONDS)
        policy = await store.policy.effective(settings)
    for step in finally_steps_of(scope):
        step.status, step.reason, step.completed_at = StepStatus.SKIPPED, scope.stop.message, scope.recorder.now()
        scope.recorder.step_ended(step)
    return False


async def _find_obstacle(scope: RunScope, store: PlanStore, policy: EffectivePolicy) -> tuple[str, bool]:
    """Return why the run cannot start now, and whether it is refused. The text is empty if it can start; the run then has its key."""
    bound = scope.approved.bound
    frozen = await frozen_now(bound.validated.plan, store, policy)
    if left := await still_frozen(frozen.active, scope.approved.approval, store):
        refused = why_refused(left)
        return (left[0].text, False) if refused is None else (refused, True)
    window, concurrency = bound.validated.plan.options.run_window, bound.validated.plan.concurrency
    if window is not None and (opens := next_opening(window, datetime.now(UTC))) is not None:
        return _closed_message(opens), window.outside == "refuse"
    key = concurrency_key(bound)
    if key is None or concurrency is None:
        return "", False
    before = await store.ledger.acquire_key(scope.run, key)
    if before and concurrency.when_busy == "cancel_older":
        await _cancel_older([other for other in before if other.name == scope.run.name], scope, store)
    return _busy_message(before[0], key) if before else "", bool(before) and concurrency.when_busy == "refuse"


def _closed_message(opens: datetime) -> str:
    return f"the run window is closed, and opens at {opens:%Y-%m-%d %H:%M} {opens.tzinfo}"


def _busy_message(before: RunBefore, key: str) -> str:
    does = "has" if before.is_held else "waits for"
    return f"run {before.id} of `{one_line(before.name)}` {does} the concurrency key `{one_line(key)}`"


async def _show_waiting(scope: RunScope, store: PlanStore, message: str | None) -> None:
    """Show why the run waits, or that it no longer does."""
    if scope.run.message != message:
        scope.run.message = None if message is None else scope.secrets.redactor.text(message)
        await store.ledger.update(scope.run)
        if message is not None:
            scope.notify("waits", message=message)


async def _cancel_older(older: list[RunBefore], scope: RunScope, store: PlanStore) -> None:
    """Request the cancellation of `older` runs."""
    for run in older:
        try:
            if await store.ledger.cancel_request(run.id) is None:
                await store.cancel(run.id, f"run {scope.run.id} takes its place")
        except RunConflictError:  # it has just ended
            continue
