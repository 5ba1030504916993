"""A process that starts the flow runs of deployments without a work pool, each in a process of its own."""

import asyncio
import signal
from collections.abc import Callable, Mapping
from typing import Any
from uuid import UUID

from prefect.deployments.runner import RunnerDeployment
from prefect.runner import Runner


class _ExistingDeployment(RunnerDeployment):
    """A deployment for a runner, which already exists in Prefect."""

    id: UUID

    async def aapply(self, *_arguments: Any, **_options: Any) -> UUID:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Return the id. Prefect is not changed."""
        return self.id


async def serve_deployments(deployments: Mapping[str, str], *, limit: int | None, on_started: Callable[[], None]) -> None:
    """Start the flow runs of these deployments (ids by name), at most `limit` at once, until cancelled or SIGTERM.

    Calls `on_started` once it serves them. On exit, it ends the runs in progress. The deployments' schedules stay active: runs that are due
    meanwhile start late, when the deployments are served again.
    """
    runner = Runner(name="plan serve", limit=limit, pause_on_shutdown=False)
    for name, deployment_id in deployments.items():
        await runner.aadd_deployment(
            _ExistingDeployment(name=name.partition("/")[2], flow_name=name.partition("/")[0], id=UUID(deployment_id))
        )
    serving = asyncio.ensure_future(runner.start(webserver=False))
    await asyncio.sleep(0)  # lets the runner install its SIGTERM handler, which does not stop a runner inside an event loop
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, serving.cancel)
    on_started()
    try:
        await serving
    except asyncio.CancelledError:
        task = asyncio.current_task()
        if task is not None and task.cancelling():  # by the caller; otherwise SIGTERM ended it
            raise
