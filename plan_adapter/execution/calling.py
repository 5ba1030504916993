"""One call of a tool: on the loop, in a thread or in a process of its own; ended by its timeout or by the run's stop."""

import asyncio
import contextlib
import contextvars
import logging
import threading
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any

import anyio
import anyio.to_process

from plan_adapter.errors import ToolError, UnknownOutcomeError
from plan_adapter.execution.cancellation import Stop
from plan_adapter.plan import Isolation
from plan_adapter.tools.tool import Tool, as_json

log = logging.getLogger(__name__)

GRACE_SECONDS = 5.0
"""How long a cancelled tool may take to clean up before it is ended in the middle of it."""


CANCELLED_ITSELF = "the tool cancelled itself"


class CallTimedOutError(Exception):
    """The call did not end within its timeout."""


class CallStoppedError(Exception):
    """The run's stop ended the call."""


async def call_tool(tool: Tool[..., Any], arguments: dict[str, Any], *, isolation: Isolation, timeout: float | None, stop: Stop) -> Any:
    """Return what the tool returns, or raise what it raises.

    Raises CallTimedOutError or CallStoppedError where one of these ended it. The work is ended before either is raised: a coroutine is
    cancelled (a command is killed with its group), a process is killed; a thread cannot be, it is left behind with a warning.
    """
    work = asyncio.ensure_future(_guarded(_work(tool, arguments, isolation)))
    try:
        await asyncio.wait((work, stop.future), timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
    except asyncio.CancelledError:
        await _end(work, tool)
        raise
    if work.done():
        return _value_of(work)
    await _end(work, tool)
    if stop.is_set:
        raise CallStoppedError(stop.message)
    raise CallTimedOutError


def _work(tool: Tool[..., Any], arguments: dict[str, Any], isolation: Isolation) -> Coroutine[Any, Any, Any]:
    if isolation == "process":
        return _in_process(tool, arguments)
    if tool.is_async:
        return tool.fn(**arguments)
    return _in_thread(partial(tool.fn, **arguments), tool.name)


async def _guarded(work: Coroutine[Any, Any, Any]) -> Any:
    # SystemExit and KeyboardInterrupt would leave the event loop and end the whole run with it.
    try:
        return await work
    except (SystemExit, KeyboardInterrupt) as error:
        raise ToolError(f"the tool raised {type(error).__name__}({error})") from error


def _value_of(work: asyncio.Future[Any]) -> Any:
    if work.cancelled():
        raise ToolError(CANCELLED_ITSELF)
    return work.result()


async def _end(work: asyncio.Task[Any], tool: Tool[..., Any]) -> None:
    work.cancel()
    await asyncio.wait((work,), timeout=GRACE_SECONDS)
    if not work.done():
        await _close(work)
    if not work.done():
        log.warning("tool `%s` did not end when it was cancelled and is left behind", tool.name)
        work.add_done_callback(_look_away)
    elif not work.cancelled():
        _look_away(work)


async def _close(work: asyncio.Task[Any]) -> None:
    """End a coroutine that goes on when it is cancelled: left alone it would also hold up the end of the event loop, for ever."""
    with contextlib.suppress(RuntimeError):  # it goes on even so
        work.get_coro().close()
    work.cancel()
    await asyncio.wait((work,), timeout=GRACE_SECONDS)


def _look_away(work: asyncio.Future[Any]) -> None:
    if not work.cancelled():
        work.exception()  # retrieved, so that asyncio does not report what nobody waits for


async def _in_thread(function: Callable[[], Any], name: str) -> Any:
    """Call `function` in a daemon thread of its own: one that never ends then delays neither other calls nor the exit."""
    loop = asyncio.get_running_loop()
    answer: asyncio.Future[Any] = loop.create_future()

    def settle(value: Any, error: BaseException | None) -> None:
        if not answer.done():
            answer.set_result(value) if error is None else answer.set_exception(error)

    def run() -> None:
        value, error = None, None
        try:
            value = context.run(function)
        except StopIteration as raised:  # a future cannot hold it
            error = ToolError(f"the tool raised StopIteration({raised})")
        except asyncio.CancelledError:  # nobody else has cancelled the call
            error = ToolError(CANCELLED_ITSELF)
        except BaseException as raised:  # whatever a tool raises fails its step, SystemExit included
            error = raised
        try:
            loop.call_soon_threadsafe(settle, value, error)
        except RuntimeError:
            log.warning("tool `%s` ended after its run had ended; nobody took its result", name)

    context = contextvars.copy_context()
    threading.Thread(target=run, name=f"tool {name}", daemon=True).start()
    try:
        return await answer
    except asyncio.CancelledError:
        log.warning("tool `%s` runs in a thread, which cannot be ended; it is left behind (isolation: process can be killed)", name)
        raise


async def _in_process(tool: Tool[..., Any], arguments: dict[str, Any]) -> Any:
    if tool.import_string is None:
        raise ToolError(f"tool `{tool.name}` cannot run in a process of its own: it is not importable from a module")
    try:
        return await anyio.to_process.run_sync(
            partial(_imported_call, tool.import_string, arguments), cancellable=True, limiter=anyio.CapacityLimiter(1)
        )
    except anyio.BrokenWorkerProcess as error:
        raise UnknownOutcomeError(f"the process of tool `{tool.name}` died: {error.__cause__ or error}") from error


def _imported_call(import_string: str, arguments: dict[str, Any]) -> Any:
    """Import a tool and call it; runs in the worker process. Coroutines get a loop of their own there."""
    from plan_adapter.tools.registry import import_tool

    tool = import_tool(import_string)
    value = asyncio.run(tool.fn(**arguments)) if tool.is_async else tool.fn(**arguments)
    return as_json(value)
