"""Whether Prefect shows a run as the store knows it, and how it is told otherwise."""

from collections.abc import Awaitable, Callable
from uuid import UUID

import httpx
from prefect import get_client
from prefect.client.schemas.objects import State
from prefect.exceptions import ObjectNotFound
from prefect.states import Crashed, Running

from plan_adapter.engine.states import INTERRUPTED, state_of_run
from plan_adapter.errors import NoServerError
from plan_adapter.plan import PlanStatus
from plan_adapter.record import PlanRun, RunReason

MAX_REASON_CHARACTERS = 1000
"""As much of a run's reason as its flow run's message, which is cut, has in any case."""


async def mend_flow_run(run: PlanRun, *, hint: str, is_so: Callable[[], Awaitable[bool]]) -> str | None:
    """Have Prefect show `run` as it is and return what it showed; None where that fits, or where Prefect does not know it.

    A run that has ended is shown with its end, and a cancelled one with the reason; one whose process is gone as Crashed, named
    Interrupted, with `hint`; one that is executed, and that Prefect shows as ended other than by a cancellation, as Running. `is_so` is
    asked after Prefect was, because a run may end in between: nothing is changed unless the run still stands so. Raises NoServerError.
    """
    if run.flow_run_id is None:
        return None
    try:
        async with get_client() as client:
            shown = (await client.read_flow_run(UUID(run.flow_run_id))).state
            wanted = _state_of(run, hint)
            if shown is None or wanted is None or (_fits(shown, wanted) and _says_why(shown, run)) or not await is_so():
                return None
            await client.set_flow_run_state(UUID(run.flow_run_id), wanted, force=True)
            return shown.name
    except ObjectNotFound:
        return None
    except httpx.HTTPError as error:
        raise NoServerError(f"Prefect cannot be asked how run {run.id} stands: {type(error).__name__}: {error}") from error


def _state_of(run: PlanRun, hint: str) -> State | None:
    if run.completed_at is not None:
        state = state_of_run(run)
        state.data = None  # what it holds never leaves this process
        return state
    if run.status is PlanStatus.EXECUTING and run.reason is RunReason.INTERRUPTED:
        return Crashed(name=INTERRUPTED, message=hint)
    return Running() if run.status is PlanStatus.EXECUTING else None


def _fits(shown: State, wanted: State) -> bool:
    if wanted.name == INTERRUPTED:  # one that is scheduled to go on is left alone
        return shown.name == INTERRUPTED or shown.is_scheduled() or shown.is_pending()
    if wanted.is_running():  # a cancellation is for the process that executes it
        return not shown.is_final() or shown.is_cancelled()
    return shown.type == wanted.type


def _says_why(shown: State, run: PlanRun) -> bool:
    """Return whether the reason is there for which `run` was cancelled: a worker puts words of its own over what the run's process said."""
    is_over = run.completed_at is not None and run.reason is RunReason.CANCELLED
    return not is_over or (run.message or "")[:MAX_REASON_CHARACTERS] in (shown.message or "")
