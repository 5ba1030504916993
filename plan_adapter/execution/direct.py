"""`DirectStepRunner`: drives calls without Prefect, with the same semantics."""

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence

from plan_adapter.execution.ports import AttemptEnd, StepCall
from plan_adapter.record import StepRun


class DirectStepRunner:
    """Makes attempts one after the other in this process. Implements `ports.CallStep`."""

    async def __call__(self, call: StepCall) -> AttemptEnd:
        """Make attempts of `call` until it succeeded, no retry is left, or the run stops."""
        while True:
            end = await call.attempt(without_prefect=True)
            delay = call.retry_delay(end)
            if delay is None:
                return end
            if (stopped := await wait_or_stop(call, delay)) is not None:
                return stopped

    async def show(self, step: StepRun, upstream: tuple[str, ...], *, tags: Collection[str] = ()) -> None:
        """Show nothing: events and the record tell it."""

    async def show_carried(
        self,
        step_ids: Sequence[str],
        steps: Mapping[str, StepRun],
        upstream: Mapping[str, tuple[str, ...]],
        *,
        tags_of: Callable[[str], Collection[str]] = lambda _: (),
    ) -> None:
        """Show nothing, too."""


async def wait_or_stop(call: StepCall, seconds: float) -> AttemptEnd | None:
    """Return None after `seconds`, or earlier the end that the run's stop makes."""
    stopped = asyncio.ensure_future(call.stopped())
    try:
        await asyncio.wait((stopped,), timeout=seconds)
        return stopped.result() if stopped.done() else None
    finally:
        stopped.cancel()
