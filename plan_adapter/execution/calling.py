"""Calls a tool or its probe until it returns, the run stops or the time is up."""

import asyncio
import contextlib
import contextvars
import logging
import threading
from collections.abc import Callable, Coroutine, Mapping
from functools import partial
from typing import Any, TypeAlias, cast

from pydantic import JsonValue

from plan_adapter.execution.cancellation import Stop
from plan_adapter.execution.printing import keep_prints_redacted, prints_of_call
from plan_adapter.execution.redactor import keep_logs_redacted
from plan_adapter.execution.worker import call_in_process
from plan_adapter.model.errors import ToolError
from plan_adapter.model.options import Isolation
from plan_adapter.tools.probing import Done, Failed, NotDone, ProbeAnswer
from plan_adapter.tools.tool import Tool, ToolContext

log = logging.getLogger(__name__)

GRACE_SECONDS = 5.0
"""How many seconds a cancelled tool has to clean up before it is closed by force."""

CANCELLED_ITSELF = "the tool cancelled itself"

ToolCoroutine: TypeAlias = Coroutine[Any, Any, Any]
"""A call of a tool, not yet started."""


class CallTimedOutError(Exception):
    """The call did not end within its timeout."""


class CallStoppedError(Exception):
    """The run stopped while the call was in progress."""


def prepare_call(tool: Tool[..., Any], arguments: dict[str, Any], *, isolation: Isolation, without_prefect: bool = False) -> ToolCoroutine:
    """Return a coroutine that calls `tool`. With `without_prefect`, a Prefect flow is called as its plain function."""
    if isolation == "process":
        return call_in_process(tool, arguments)
    function = tool.source if without_prefect else tool.fn
    if tool.is_async:
        return cast("ToolCoroutine", function(**arguments))
    return _in_thread(partial(function, **arguments), tool.name)


async def complete(work: ToolCoroutine, name: str, *, timeout: float | None, stop: Stop) -> Any:
    """Return what the call of the tool `name` returns, or raise what it raises.

    Raises CallTimedOutError after `timeout` seconds, or CallStoppedError when `stop` is set. The call is ended first: a coroutine is
    cancelled (a command is killed with its process group) and a process is killed. A thread cannot be killed; it is left behind with a
    warning.
    """
    task = asyncio.ensure_future(_convert_exit_errors(work))
    try:
        await asyncio.wait((task, stop.future), timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
    except asyncio.CancelledError:
        await _end_task(task, name)
        raise
    if task.done():
        return _result_of_task(task)
    await _end_task(task, name)
    if stop.is_set:
        raise CallStoppedError(stop.message)
    raise CallTimedOutError


async def _convert_exit_errors(work: ToolCoroutine) -> Any:
    # SystemExit and KeyboardInterrupt would escape the event loop and end the whole run.
    try:
        return await work
    except (SystemExit, KeyboardInterrupt) as error:
        raise ToolError(f"the tool raised {type(error).__name__}({error})") from error


def _result_of_task(work: asyncio.Future[Any]) -> Any:
    if work.cancelled():
        raise ToolError(CANCELLED_ITSELF)
    return work.result()


async def _end_task(work: asyncio.Task[Any], name: str) -> None:
    work.cancel()
    await asyncio.wait((work,), timeout=GRACE_SECONDS)
    if not work.done():
        await _force_close(work)
    if not work.done():
        log.warning("tool `%s` did not end when it was cancelled and is left behind", name)
        work.add_done_callback(_discard_exception)
    elif not work.cancelled():
        _discard_exception(work)


async def _force_close(work: asyncio.Task[Any]) -> None:
    """Close a coroutine that ignores its cancellation. Otherwise it would block the shutdown of the event loop forever."""
    with contextlib.suppress(RuntimeError):  # it ignored the close, too
        work.get_coro().close()
    work.cancel()
    await asyncio.wait((work,), timeout=GRACE_SECONDS)


def _discard_exception(work: asyncio.Future[Any]) -> None:
    if not work.cancelled():
        work.exception()  # retrieved, so that asyncio does not report an exception that nobody awaits


def _call_redacted(function: Callable[[], Any]) -> Any:
    """Call `function` with its output and logs redacted, even if it is left behind and outlives its run."""
    with keep_logs_redacted(), keep_prints_redacted():
        return function()


async def _in_thread(function: Callable[[], Any], name: str) -> Any:
    """Call `function` in its own daemon thread, so that a call that never ends delays neither other calls nor the exit."""
    loop = asyncio.get_running_loop()
    answer: asyncio.Future[Any] = loop.create_future()

    def settle(value: Any, error: BaseException | None) -> None:
        if not answer.done():
            answer.set_result(value) if error is None else answer.set_exception(error)

    def run() -> None:
        value, error = None, None
        try:
            value = context.run(_call_redacted, function)
        except StopIteration as raised:  # a future cannot hold StopIteration
            error = ToolError(f"the tool raised StopIteration({raised})")
        except asyncio.CancelledError:  # only the tool itself can have raised it
            error = ToolError(CANCELLED_ITSELF)
        except BaseException as raised:  # anything that a tool raises fails its step, even SystemExit
            error = raised
        try:
            loop.call_soon_threadsafe(settle, value, error)
        except RuntimeError:
            log.warning("tool `%s` ended after its run had ended; its result is discarded", name)

    context = contextvars.copy_context()
    threading.Thread(target=run, name=f"tool {name}", daemon=True).start()
    try:
        return await answer
    except asyncio.CancelledError:
        log.warning("tool `%s` runs in a thread, which cannot be ended; it is left behind (isolation: process can be killed)", name)
        raise


async def ask_probe(
    probe: Tool[..., Any],
    parameters: Mapping[str, JsonValue],
    context: ToolContext,
    *,
    timeout: float | None,
    stop: Stop,
    describe: Callable[[BaseException], str],
) -> ProbeAnswer | None:
    """Return what `probe` reports about the attempt with these `parameters` and this `context`.

    Returns None if the probe cannot tell, raises, takes longer than `timeout` seconds or returns anything else. The step's log says why;
    `describe` turns an exception into text.
    """
    try:
        arguments = probe.bind({name: value for name, value in parameters.items() if name in probe.parameter_names}, context)
        with prints_of_call(context.logger):
            answer = await complete(prepare_call(probe, arguments, isolation="thread"), probe.name, timeout=timeout, stop=stop)
    except CallTimedOutError:
        failure = f"gave no answer within {timeout:g} s"
    except CallStoppedError:
        failure = f"was ended: {stop.message}"
    except BaseException as error:
        if isinstance(error, asyncio.CancelledError):
            raise
        failure = f"failed: {describe(error)}"
    else:
        if isinstance(answer, Done | Failed | NotDone):
            return answer
        failure = "cannot tell" if answer is None else f"returned {type(answer).__name__} instead of Done, Failed, NotDone or None"
    context.logger.warning("the outcome of attempt %d is unknown: the probe `%s` %s", context.attempt, probe.name, failure)
    return None
