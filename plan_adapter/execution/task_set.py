"""`TaskSet`: the asyncio tasks of a run or of its rollback."""

import asyncio
import contextvars
from collections.abc import Callable, Coroutine
from typing import Any

from plan_adapter.execution.scope import RunScope


class TaskSet:
    """A set of tasks. It ends once no task is left and `is_over` returns True. Belongs to one event loop.

    If a task raises, the run stops and the error is raised at the end; `what` names the work in the message. `after_each` is called after
    each task.
    """

    def __init__(self, scope: RunScope, what: str, *, is_over: Callable[[], bool], after_each: Callable[[], None] | None = None) -> None:
        """Create an empty set."""
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
        """Start `work` in its own task, in the context of the run rather than that of the step that just released its slot."""
        if self._context is None:  # copied here and not in `__init__`, because redaction may have been set up since
            self._context = contextvars.copy_context()
        task = asyncio.get_running_loop().create_task(work, context=self._context.copy())
        self._tasks.add(task)
        task.add_done_callback(self._task_done)

    def end_if_done(self) -> None:
        """End if nothing is left. Call once after the first tasks were started, because there may be none."""
        if self._ended.done() or self._tasks:
            return
        if self._error is not None:
            self._ended.set_exception(self._error)
        elif self._is_over():
            self._ended.set_result(None)

    async def ended(self) -> None:
        """Return once the set has ended. A cancellation stops the run and is raised again once the end is durable."""
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
            self._scope.stop.set("cancelled", f"{self._what} cannot continue: {error}")
        if self._after_each is not None:
            self._after_each()
        self.end_if_done()
