"""Watches a run while it executes, and ends it: concluded, left waiting, or released for another start."""

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace

from pydantic import JsonValue

from plan_adapter.execution.cancellation import Stop, watch
from plan_adapter.execution.printing import redacted_prints
from plan_adapter.execution.redactor import redacted_logs
from plan_adapter.execution.rollback import Rollback
from plan_adapter.execution.run_status import Ending, ending_of, with_finally_steps
from plan_adapter.execution.scope import RunScope
from plan_adapter.local.crash_points import reached
from plan_adapter.model.errors import ExpressionError, LeaseLostError, StoreError
from plan_adapter.model.record import PlanRun, StepRun
from plan_adapter.model.status import PlanStatus, RunReason
from plan_adapter.store.store import PlanStore

log = logging.getLogger(__name__)

STORE_POLL_SECONDS = 0.5
PREFECT_POLL_SECONDS = 2.0


@asynccontextmanager
async def watch_run(
    scope: RunScope,
    store: PlanStore,
    cancel_request: Callable[[], Awaitable[str | None]],
    in_prefect: Callable[[], Awaitable[str | None]] | None,
    *,
    stop: Stop | None = None,
) -> AsyncGenerator[None]:
    """Keep the run's lease and watch for cancellation inside the block.

    Sets `stop` (by default `scope.stop`, which stops all work) once `cancel_request` or `in_prefect` returns a reason.
    """
    stop = stop or scope.stop
    watchers = [_keep_lease(scope, store), watch(stop, cancel_request, every_seconds=STORE_POLL_SECONDS)]
    if in_prefect is not None:
        watchers.append(watch(stop, in_prefect, every_seconds=PREFECT_POLL_SECONDS, is_from_prefect=True))
    tasks = [asyncio.ensure_future(watcher) for watcher in watchers]
    try:
        async with _redact_output(scope):
            yield
    finally:
        for task in tasks:
            task.cancel()


@asynccontextmanager
async def _redact_output(scope: RunScope) -> AsyncGenerator[None]:
    """Redact the plan's secrets and this process's credentials in everything logged or printed inside the block."""
    await scope.secrets.look_up_early(scope.approved.bound.validated.secrets)
    if scope.secrets.redactor:
        with redacted_logs(scope.secrets.redactor), redacted_prints(scope.secrets.redactor.text):
            yield
    else:
        yield


async def _keep_lease(scope: RunScope, store: PlanStore) -> None:
    """Renew the run's lease periodically, and stop the run if another process has taken it over."""
    while True:
        await asyncio.sleep(store.ledger.lease_seconds / 4)
        try:
            await store.ledger.renew(scope.run.id)
        except LeaseLostError as error:
            scope.stop.set("cancelled", str(error))
            return
        except StoreError as error:
            log.info("the lease of run %s cannot be renewed now: %s", scope.run.id, error)


async def check_prefect_cancellation(in_prefect: Callable[[], Awaitable[str | None]]) -> str | None:
    """Return why the run was cancelled in Prefect, or None if it was not or Prefect does not answer in time."""
    try:
        async with asyncio.timeout(PREFECT_POLL_SECONDS):
            return await in_prefect()
    except Exception as error:
        log.info("cannot check whether the run was cancelled in Prefect: %s", error)
        return None


async def conclude_run(scope: RunScope, store: PlanStore, rollback: Rollback | None, replan_failure: str | None) -> None:
    """Record and report the end of a run whose steps have all ended. `replan_failure` says why replanning failed, if it did."""
    status, reason, message = with_finally_steps(ending_without_finally_steps(scope), finally_steps_of(scope), scope.why_finally_stopped)
    scope.run.transition(status, reason=reason, message=message)
    scope.run.outputs, problem = _compute_outputs(scope)
    scope.run.message = scope.run.message or problem
    if replan_failure is not None:
        scope.run.message = f"{scope.run.message}; the remaining steps could not be replanned: {replan_failure}"
    await end_run(scope, store, rollback)


def ending_without_finally_steps(scope: RunScope) -> Ending:
    """Return how the run ends if no `finally` step fails. All other steps have ended."""
    finally_ids = scope.approved.bound.validated.finally_order
    return ending_of([step for step in scope.run.steps if step.id not in finally_ids], scope.stop, scope.refusal, left=scope.history.left)


def finally_steps_of(scope: RunScope) -> list[StepRun]:
    """Return the run's `finally` steps."""
    return [step for step in scope.run.steps if step.id in scope.approved.bound.validated.finally_order]


async def end_run(scope: RunScope, store: PlanStore, rollback: Rollback | None) -> None:
    """Record and report the end of the run, with the status, reason and message set by the caller.

    The message also reports the state of the rollback. Secrets in the message and outputs are redacted.
    """
    run, now, redactor = scope.run, scope.recorder.now(), scope.secrets.redactor
    if rollback is not None:
        run.message, run.rollback = rollback.report().update_status(run.message, run.rollback)
    if redactor:
        run.message = None if run.message is None else redactor.text(run.message)
        if run.rollback is not None and run.rollback.cause is not None:
            run.rollback = replace(run.rollback, cause=redactor.text(run.rollback.cause))
        run.outputs = {name: redactor.value(value) for name, value in run.outputs.items()}
    run.completed_at = run.updated_at = now
    run.total_duration_ms = round((now - (run.started_at or now)).total_seconds() * 1000)
    reached("before-end")
    await store.ledger.update(run)
    reached("after-end")
    scope.notify("run_ended", message=run.message)
    if scope.report is not None:
        await scope.report(run)
    await scope.call_hook(scope.hooks.on_plan_complete, run)


def _compute_outputs(scope: RunScope) -> tuple[dict[str, JsonValue], str | None]:
    """Return the plan's outputs and, if any could not be computed, their errors as one message. Such outputs are null."""
    outputs, problems = dict[str, JsonValue](), list[str]()
    for name, template in scope.approved.bound.validated.outputs.items():
        try:
            outputs[name] = template.resolve(scope.variables())
        except ExpressionError as error:
            outputs[name] = None
            problems.append(f"output `{name}`: {error}")
    return outputs, "; ".join(problems) or None


async def leave_waiting(run: PlanRun, store: PlanStore) -> None:
    """Record that `run`, with only step gates open, waits for answers without a process."""
    run.transition(PlanStatus.PENDING_APPROVAL, reason=run.reason, message=run.message)
    await store.ledger.update(run)
    if (reason := await store.ledger.cancel_request(run.id)) is not None:  # the request came after the last step checked for one
        await store.cancel(run.id, reason)
        ended = (await store.run(run.id, with_steps=False)).completed_at
        run.transition(PlanStatus.CANCELLED, reason=RunReason.CANCELLED, message=reason, completed_at=ended)


async def release_run(run: PlanRun, store: PlanStore) -> None:
    """Release a run that could not be ended here, so that another process can resume it."""
    try:
        await store.ledger.release(run.id)
    except StoreError as error:
        log.info("run %s could not be released: %s", run.id, error)  # the caller gets the original store error
