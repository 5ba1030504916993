"""`DirectStepRunner`: runs calls without Prefect, with the same semantics."""

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence

from plan_adapter.execution.ports import AttemptEnd, StepCall
from plan_adapter.model.record import StepRun


class DirectStepRunner:
    """Makes attempts one after the other in this process. Implements `ports.StepRunner`."""

    async def __call__(self, call: StepCall) -> AttemptEnd:
        """Make attempts of `call` until one succeeds, no retry is left, or the run stops."""
        while True:
            end = await call.attempt(without_prefect=True)
            delay = call.retry_delay(end)
            if delay is None:
                return end
            if (stopped := await wait_or_stop(call, delay)) is not None:
                return stopped

    async def show(self, step: StepRun, upstream: tuple[str, ...], *, tags: Collection[str] = ()) -> None:
        """Do nothing: events and the record show the step."""

    async def show_undone(self, key: str) -> None:
        """Do nothing: the record shows what is rolled back."""

    async def show_carried(
        self,
        step_ids: Sequence[str],
        steps: Mapping[str, StepRun],
        upstream: Mapping[str, tuple[str, ...]],
        *,
        tags_of: Callable[[str], Collection[str]] = lambda _: (),
    ) -> None:
        """Do nothing: events and the record show these steps."""


async def wait_or_stop(call: StepCall, seconds: float) -> AttemptEnd | None:
    """Wait for `seconds` and return None. If the run stops earlier, return the end of the attempt that is not made."""
    stopped = asyncio.ensure_future(call.stopped())
    try:
        await asyncio.wait((stopped,), timeout=seconds)
        return stopped.result() if stopped.done() else None
    finally:
        stopped.cancel()
