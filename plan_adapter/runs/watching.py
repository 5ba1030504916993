"""What goes on beside the work of a run: its lease is renewed, its cancellation looked for, and its secrets kept out of what is logged."""

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager

from plan_adapter.errors import LeaseLostError, StoreError
from plan_adapter.execution.cancellation import Stop, watch
from plan_adapter.execution.printing import cleaned_prints
from plan_adapter.execution.scope import RunScope
from plan_adapter.execution.secrets import hidden_in_logs
from plan_adapter.store.store import PlanStore

log = logging.getLogger(__name__)

STORE_POLL_SECONDS = 0.5
PREFECT_POLL_SECONDS = 2.0


@asynccontextmanager
async def watched(
    scope: RunScope,
    store: PlanStore,
    asked: Callable[[], Awaitable[str | None]],
    in_prefect: Callable[[], Awaitable[str | None]] | None,
    *,
    ends: Stop | None = None,
) -> AsyncGenerator[None]:
    """Keep the lease of the run, and set `ends`, if not given the stop of all work, once one of the two gives a reason."""
    ends = ends or scope.stop
    works = [_keep_lease(scope, store), watch(ends, asked, every_seconds=STORE_POLL_SECONDS)]
    if in_prefect is not None:
        works.append(watch(ends, in_prefect, every_seconds=PREFECT_POLL_SECONDS))
    tasks = [asyncio.ensure_future(work) for work in works]
    try:
        async with _hidden_secrets(scope):
            yield
    finally:
        for task in tasks:
            task.cancel()


@asynccontextmanager
async def _hidden_secrets(scope: RunScope) -> AsyncGenerator[None]:
    """Keep secrets out of all that is logged and printed within: those of the plan, and the credentials of this process."""
    await scope.secrets.expect(scope.approved.bound.validated.secrets)
    if scope.secrets.scrubber:
        with hidden_in_logs(scope.secrets.scrubber), cleaned_prints(scope.secrets.scrubber.text):
            yield
    else:
        yield


async def _keep_lease(scope: RunScope, store: PlanStore) -> None:
    """Renew the lease of the run while it is executed, and stop it once another process has taken it over."""
    while True:
        await asyncio.sleep(store.lease_seconds / 4)
        try:
            await store.renew(scope.run.id)
        except LeaseLostError as error:
            scope.stop.set("cancelled", str(error))
            return
        except StoreError as error:
            log.info("the lease of run %s cannot be renewed now: %s", scope.run.id, error)


async def answer_soon(in_prefect: Callable[[], Awaitable[str | None]]) -> str | None:
    """Return the reason for which the run is cancelled in Prefect; None also where that cannot be told at once."""
    try:
        async with asyncio.timeout(PREFECT_POLL_SECONDS):
            return await in_prefect()
    except Exception as error:
        log.info("whether the run was cancelled in Prefect cannot be told now: %s", error)
        return None
