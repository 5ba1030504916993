"""`VirtualLoop`: an event loop whose time passes only when nothing is left to do, and the simulated processes that run in it."""

import asyncio
import contextlib
import heapq
from asyncio import Handle, TimerHandle
from collections.abc import Callable, Coroutine
from concurrent.futures import Executor
from contextvars import Context, ContextVar, copy_context
from dataclasses import dataclass, field
from typing import Any, TypeVar

T = TypeVar("T")


class KilledError(BaseException):
    """The simulated process was killed. Nothing that its code does afterwards has an effect."""


class DeadlockError(Exception):
    """Every task waits, and nothing will ever wake one."""


@dataclass(eq=False)
class Process:
    """A simulated process of a simulated host."""

    host: str
    pid: int
    is_over: bool = False  # it has ended or was killed
    is_frozen: bool = False
    over: asyncio.Future[None] = field(default_factory=lambda: asyncio.get_running_loop().create_future())
    backlog: list[Handle] = field(default_factory=list[Handle])  # what it does once it is thawed

    @property
    def started(self) -> str:
        """Its start, which tells it apart from an earlier process with its id."""
        return f"life {self.pid}"

    def __str__(self) -> str:
        """Return its host and id."""
        return f"{self.host}/{self.pid}"


current: ContextVar[Process | None] = ContextVar("simulated_process", default=None)
"""The process whose code runs; None for people and the harness."""


class VirtualLoop(asyncio.BaseEventLoop):
    """Runs callbacks in order, and then jumps to the next timer. There are no files, sockets or threads."""

    def __init__(self) -> None:
        """Start at time 0."""
        super().__init__()
        self._now = 0.0
        self._selector = self  # the base class waits in `select`
        self._tasks = list[asyncio.Task[Any]]()  # kept, so that no destructor of a killed one runs its `finally` blocks
        self.set_task_factory(_keep_task)
        self.set_exception_handler(lambda _loop, _context: None)  # tasks of killed processes

    def time(self) -> float:
        """Return the virtual time in seconds."""
        return self._now

    def select(self, timeout: float | None) -> list[Any]:
        """Jump to the next timer."""
        if timeout is None:
            raise DeadlockError(f"nothing is left to wait for at {self._now:.3f} s")
        self._now += timeout
        return []

    def _process_events(self, _events: list[Any]) -> None:
        return

    def _write_to_self(self) -> None:
        return

    def call_soon(self, callback: Callable[..., Any], *args: Any, context: Context | None = None) -> Handle:
        """Schedule a callback, unless its process is dead or frozen."""
        handle = super().call_soon(callback, *args, context=context)
        process = _process_of(handle)
        if process is not None:
            if process.is_over:
                handle.cancel()
            elif process.is_frozen:
                process.backlog.append(self._ready.pop())
        return handle

    call_soon_threadsafe = call_soon

    def call_at(self, when: float, callback: Callable[..., Any], *args: Any, context: Context | None = None) -> TimerHandle:
        """Schedule a callback for later, unless its process is dead."""
        handle = super().call_at(when, callback, *args, context=context)
        process = _process_of(handle)
        if process is not None and process.is_over:
            handle.cancel()
        return handle

    def run_in_executor(self, executor: Executor | None, func: Callable[..., T], *args: Any) -> asyncio.Future[T]:
        """Call `func` in this thread, in the loop's next turn."""
        future: asyncio.Future[T] = self.create_future()

        def call() -> None:
            try:
                result = func(*args)
            except Exception as error:
                if not future.done():
                    future.set_exception(error)
            else:
                if not future.done():
                    future.set_result(result)

        self.call_soon(call)
        return future

    def kill(self, process: Process) -> None:
        """Drop everything that `process` was about to do, as SIGKILL does."""
        process.is_over = True
        if not process.over.done():
            process.over.set_result(None)
        for handle in self._handles_of(process):
            handle.cancel()
        process.backlog.clear()

    def freeze(self, process: Process) -> None:
        """Stop `process`, as SIGSTOP does, from its next turn on. Its timers run on, and fire once it is thawed."""
        process.is_frozen = True
        process.backlog += self._handles_of(process)
        mine = set(map(id, process.backlog))
        for at, handle in enumerate(self._ready):  # the loop has counted them, so each keeps its place
            if id(handle) in mine:
                self._ready[at] = _nothing(self)
        self._scheduled = [handle for handle in self._scheduled if id(handle) not in mine]
        heapq.heapify(self._scheduled)

    def thaw(self, process: Process) -> None:
        """Let `process` continue."""
        process.is_frozen, backlog = False, process.backlog
        process.backlog = []
        for handle in backlog:
            if handle.cancelled():
                continue
            if isinstance(handle, TimerHandle) and handle.when() > self._now:
                heapq.heappush(self._scheduled, handle)
            else:
                self._ready.append(handle)

    def _handles_of(self, process: Process) -> list[Handle]:
        waiting = sorted(self._scheduled)
        return [handle for handle in (*self._ready, *waiting) if not handle.cancelled() and _process_of(handle) is process]

    def forget_tasks(self) -> None:
        """Close what killed processes left behind, after the end, so that nothing of it reaches a later simulation."""
        for task in self._tasks:
            if not task.done():
                with contextlib.suppress(BaseException):  # their `finally` blocks find neither a loop nor a store
                    task.get_coro().close()  # pyright: ignore[reportOptionalMemberAccess]
        self._tasks.clear()

    def start(self, process: Process, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Return the task of `work` in `process`."""
        context = copy_context()
        context.run(current.set, process)
        return context.run(self.create_task, work)


def refuse_if_over() -> None:
    """Raise KilledError in the code of a process that is over."""
    process = current.get()
    if process is not None and process.is_over:
        raise KilledError


def _nothing(loop: asyncio.AbstractEventLoop) -> Handle:
    handle = Handle(lambda: None, (), loop)
    handle.cancel()
    return handle


def _process_of(handle: Handle) -> Process | None:
    return handle._context.get(current)


def _keep_task(loop: asyncio.AbstractEventLoop, work: Any, **named: Any) -> asyncio.Task[Any]:
    task: asyncio.Task[Any] = asyncio.Task(work, loop=loop, **named)
    assert isinstance(loop, VirtualLoop)
    loop._tasks.append(task)
    return task
