"""How a start of a run ends: with the run's end kept and told, with the run left waiting, or let go for another start."""

import logging

from pydantic import JsonValue

from plan_adapter.crash_points import reached
from plan_adapter.errors import ExpressionError, StoreError
from plan_adapter.execution.rollback import Rollback
from plan_adapter.execution.scope import RunScope
from plan_adapter.execution.standing import with_rollback
from plan_adapter.execution.status import conclude
from plan_adapter.plan import PlanStatus
from plan_adapter.record import PlanRun, RunReason
from plan_adapter.store.store import PlanStore

log = logging.getLogger(__name__)


async def conclude_run(scope: RunScope, store: PlanStore, rollback: Rollback | None, undrafted: str | None) -> None:
    """Keep and tell how the run, whose steps have ended, has ended; `undrafted` is why what is left could not be drafted anew."""
    conclude(scope.run, scope.stop, scope.refusal, left=scope.past.left)
    scope.run.outputs, problem = _outputs(scope)
    scope.run.message = scope.run.message or problem
    if undrafted is not None:
        scope.run.message = f"{scope.run.message}; what is left could not be drafted anew: {undrafted}"
    await end_run(scope, store, rollback)


async def end_run(scope: RunScope, store: PlanStore, rollback: Rollback | None) -> None:
    """Keep and tell the end of the run, whose status, reason and message are set; the message also tells where its rollback stands."""
    run, now, scrubber = scope.run, scope.recorder.now(), scope.secrets.scrubber
    if rollback is not None:
        run.message = with_rollback(run.message, rollback.standing())
    if scrubber:
        run.message = None if run.message is None else scrubber.text(run.message)
        run.outputs = {name: scrubber.value(value) for name, value in run.outputs.items()}
    run.completed_at = run.updated_at = now
    run.total_duration_ms = round((now - (run.started_at or now)).total_seconds() * 1000)
    reached("before-end")
    await store.update_run(run)
    reached("after-end")
    scope.tell("run_ended", message=run.message)
    await scope.call_hook(scope.hooks.on_plan_complete, run)


def _outputs(scope: RunScope) -> tuple[dict[str, JsonValue], str | None]:
    """Return the plan's outputs; those that cannot be computed are null, and their errors are returned in words."""
    outputs, problems = dict[str, JsonValue](), list[str]()
    for name, template in scope.approved.bound.validated.outputs.items():
        try:
            outputs[name] = template.resolve(scope.variables())
        except ExpressionError as error:
            outputs[name] = None
            problems.append(f"output `{name}`: {error}")
    return outputs, "; ".join(problems) or None


async def leave_waiting(run: PlanRun, store: PlanStore) -> None:
    """Keep `run`, of which nothing but gates of steps is open, as one that waits for them without a process."""
    run.status = PlanStatus.PENDING_APPROVAL
    await store.update_run(run)
    if (reason := await store.cancel_request(run.id)) is not None:  # it came too late for the steps to see it
        await store.cancel(run.id, reason)
        run.status, run.reason, run.message = PlanStatus.CANCELLED, RunReason.CANCELLED, reason
        run.completed_at = (await store.run(run.id, with_steps=False)).completed_at


async def let_go(run: PlanRun, store: PlanStore) -> None:
    """Leave a run that could not be brought to an end to whoever resumes it."""
    try:
        await store.release(run.id)
    except StoreError as error:
        log.info("run %s could not be released: %s", run.id, error)  # the store's error comes to the caller anyway
