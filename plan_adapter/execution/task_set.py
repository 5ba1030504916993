"""`TaskSet`: the asyncio tasks in which a run, or its rollback, goes on until nothing of it is left."""

import asyncio
import contextvars
from collections.abc import Callable, Coroutine
from typing import Any

from plan_adapter.execution.scope import RunScope


class TaskSet:
    """Ends once no task is left and `is_over` says that nothing more is to come. Belongs to one event loop.

    What a task raises stops the run, of which `what` goes on here, and is raised at the end. `after_each` is called when a task has ended.
    """

    def __init__(self, scope: RunScope, what: str, *, is_over: Callable[[], bool], after_each: Callable[[], None] | None = None) -> None:
        """Make an empty one."""
        self._scope = scope
        self._what = what
        self._is_over = is_over
        self._after_each = after_each
        self._context: contextvars.Context | None = None
        self._tasks = set[asyncio.Task[None]]()
        self._error: BaseException | None = None
        self._ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def __len__(self) -> int:
        return len(self._tasks)

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Begin `work` in a task of its own, with the context of the run: not that of the step which has just given its slot back."""
        if self._context is None:  # of the first task, not of the caller of `__init__`: secrets may have been hidden since
            self._context = contextvars.copy_context()
        task = asyncio.get_running_loop().create_task(work, context=self._context.copy())
        self._tasks.add(task)
        task.add_done_callback(self._task_done)

    def end_if_done(self) -> None:
        """End if nothing is left; to be called once after the first tasks were begun: there may be none."""
        if self._ended.done() or self._tasks:
            return
        if self._error is not None:
            self._ended.set_exception(self._error)
        elif self._is_over():
            self._ended.set_result(None)

    async def ended(self) -> None:
        """Return once this has ended. Being cancelled stops the run; it is raised again when the end is there and durable."""
        try:
            await asyncio.shield(self._ended)
        except asyncio.CancelledError:
            self._scope.stop.set("cancelled", "interrupted")
            await self._ended
            await self._scope.recorder.flush()
            raise

    def _task_done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        error = asyncio.CancelledError() if task.cancelled() else task.exception()
        if error is not None:
            self._error = self._error or error
            self._scope.stop.set("cancelled", f"{self._what} cannot go on: {error}")
        if self._after_each is not None:
            self._after_each()
        self.end_if_done()
