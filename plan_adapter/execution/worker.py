"""Runs a call in another process: its own process, which can be killed, or a worker of a cluster."""

import asyncio
import logging
import os
import pickle
import socket
import time
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, cast

import anyio
import anyio.to_process
from anyio.abc import Process
from pydantic import JsonValue

from plan_adapter.execution.ports import Cluster
from plan_adapter.execution.printing import capture_all_prints, prints_of_call
from plan_adapter.local.credentials import environment_without_credentials
from plan_adapter.model.errors import ToolDefinitionError, ToolError, UnknownOutcomeError, error_message
from plan_adapter.tools.registry import import_tool
from plan_adapter.tools.tool import Tool, ToolContext, as_json

log = logging.getLogger(__name__)


async def call_in_process(tool: Tool[..., Any], arguments: dict[str, Any]) -> JsonValue:
    """Return what `tool` returns, as JSON, from its own process. A cancellation kills the process.

    Raises ToolError for anything the tool raises, and UnknownOutcomeError if the process died. The lines of the tool's log arrive when the
    call has ended.
    """
    if tool.import_string is None:
        raise ToolError(f"tool `{tool.name}` cannot run in a process of its own: it is not importable from a module")
    anyio.to_process.open_process = _open_worker  # pyright: ignore[reportPrivateImportUsage]  # anyio has no option for this
    call = partial(_import_and_call, tool.import_string, partial(_with_loggers, _with_loggers(arguments, log)))
    try:
        answer = await anyio.to_process.run_sync(call, cancellable=True, limiter=anyio.CapacityLimiter(1))
    except anyio.BrokenWorkerProcess as error:
        raise UnknownOutcomeError(f"the process of tool `{tool.name}` died: {error.__cause__ or error}") from error
    loggers = (value.logger for value in arguments.values() if isinstance(value, ToolContext))
    return _result_from(answer, next(loggers, None))


async def call_on_cluster(
    cluster: Cluster, tool: Tool[..., Any], arguments: dict[str, Any], *, timeout: float | None, logger: logging.Logger
) -> JsonValue:
    """Return what `tool` returns, as JSON, from a worker of `cluster`. A cancellation takes the call back if it has not started.

    A call that has started ends by itself, a coroutine after `timeout` seconds. What the tool logs and prints arrives at `logger` when the
    call has ended. Raises ToolError for anything the tool raises and for a call that did not start, and UnknownOutcomeError if the worker
    or the cluster was lost.
    """
    if tool.import_string is None:
        raise ToolError(f"tool `{tool.name}` cannot run on a cluster: it is not importable from a module")
    packed = PackedCall(tool.import_string, pickle.dumps(_with_loggers(arguments, log, clock=-time.monotonic())), timeout)
    return _result_from(await cluster.call(tool.name, packed), logger)


def _result_from(answer: "Answer", logger: logging.Logger | None) -> JsonValue:
    """Return the result of a call that was made elsewhere, and log its lines. Raises ToolError or UnknownOutcomeError if it failed."""
    for level, line in answer.log:
        if logger is not None:
            logger.log(level, "%s", line)
    if answer.error is not None:
        raise (UnknownOutcomeError if answer.is_unknown else ToolError)(answer.error)
    return answer.result


async def _open_worker(command: Sequence[str], **options: Any) -> Process:
    """Start a worker process without our credentials. `-P` keeps it from importing libraries from the current folder."""
    environment = environment_without_credentials(os.environ, keeps_settings=True)
    return await anyio.open_process([command[0], "-P", *command[1:]], **options, env=environment)


@dataclass(slots=True)
class Answer:
    """What a worker process returns. It holds no exception, which might not survive pickling."""

    result: JsonValue = None
    error: str | None = None
    is_unknown: bool = False
    log: list[tuple[int, str]] = field(default_factory=list[tuple[int, str]])


@dataclass(frozen=True, slots=True)
class PackedCall:
    """A call for another machine. Its repr, which may be logged there, shows no arguments."""

    import_string: str
    arguments: bytes = field(
        repr=False
    )  # unpacked by the call, so that a missing package becomes an answer; deadlines are seconds from now
    timeout: float | None

    def __call__(self) -> Answer:
        """Import the tool, call it, and return the answer. What it prints, which may be secret, goes to its log and not to the worker's."""
        capture_all_prints()
        try:
            import_tool(self.import_string)
        except ToolDefinitionError as error:
            return Answer(error=f"the worker on {socket.gethostname()} lacks the tool: {error}")
        return _import_and_call(self.import_string, self._unpacked, timeout=self.timeout)

    def _unpacked(self, logger: logging.Logger) -> dict[str, Any]:
        return _with_loggers(pickle.loads(self.arguments), logger, clock=time.monotonic())  # noqa: S301  # packed by the run


class _LineCollector(logging.Handler):
    """Keeps the lines of a tool's log until its call has ended."""

    def __init__(self, lines: list[tuple[int, str]]) -> None:
        super().__init__()
        self._lines = lines

    def emit(self, record: logging.LogRecord) -> None:
        self._lines.append((record.levelno, record.getMessage()))


def _import_and_call(import_string: str, arguments: Callable[[logging.Logger], dict[str, Any]], *, timeout: float | None = None) -> Answer:
    """Import a tool and call it, in the worker process. Coroutines get their own event loop there, and at most `timeout` seconds."""
    answer = Answer()
    logger = logging.Logger(import_string, logging.INFO)
    logger.addHandler(_LineCollector(answer.log))
    try:
        tool = import_tool(import_string)
        given = arguments(logger)
        with prints_of_call(logger):
            # A Prefect flow is called as its plain function: its flow run is unknown here, and Prefect would start its own server.
            value = tool.source(**given)
            answer.result = as_json(
                asyncio.run(_with_timeout(timeout, cast("Coroutine[Any, Any, Any]", value))) if tool.is_async else value
            )
    except BaseException as error:  # SystemExit would end the process, which also serves the next call
        # Not shortened here, where the secrets are unknown and could be cut in half.
        answer.error, answer.is_unknown = error_message(error), isinstance(error, UnknownOutcomeError)
    return answer


async def _with_timeout(timeout: float | None, work: Coroutine[Any, Any, Any]) -> Any:
    async with asyncio.timeout(timeout):
        return await work


def _with_loggers(arguments: dict[str, Any], logger: logging.Logger, *, clock: float = 0.0) -> dict[str, Any]:
    """Return `arguments` with `logger` in every context and without redaction, so that a run's secrets never reach another process.

    `clock` is added to every deadline.
    """

    def adapted(context: ToolContext) -> ToolContext:
        deadline = None if context.deadline is None else context.deadline + clock
        return replace(context, logger=logger, redaction=None, deadline=deadline, commands=None)

    return {name: adapted(value) if isinstance(value, ToolContext) else value for name, value in arguments.items()}
