"""Runs a call in its own process, which can be killed."""

import asyncio
import logging
import os
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, cast

import anyio
import anyio.to_process
from anyio.abc import Process
from pydantic import JsonValue

from plan_adapter.credentials import without_credentials
from plan_adapter.errors import ToolError, UnknownOutcomeError, error_message
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
    call = partial(_imported_call, tool.import_string, _with_loggers(arguments, log))
    try:
        answer = await anyio.to_process.run_sync(call, cancellable=True, limiter=anyio.CapacityLimiter(1))
    except anyio.BrokenWorkerProcess as error:
        raise UnknownOutcomeError(f"the process of tool `{tool.name}` died: {error.__cause__ or error}") from error
    for context in [value for value in arguments.values() if isinstance(value, ToolContext)][:1]:
        for level, line in answer.log:
            context.logger.log(level, "%s", line)
    if answer.error is not None:
        raise (UnknownOutcomeError if answer.is_unknown else ToolError)(answer.error)
    return answer.result


async def _open_worker(command: Sequence[str], **options: Any) -> Process:
    """Start a worker process without our credentials. `-P` keeps it from importing libraries from the current folder."""
    environment = without_credentials(os.environ, keeps_settings=True)
    return await anyio.open_process([command[0], "-P", *command[1:]], **options, env=environment)


@dataclass(slots=True)
class _Answer:
    """What a worker process returns. It holds no exception, which might not survive pickling."""

    result: JsonValue = None
    error: str | None = None
    is_unknown: bool = False
    log: list[tuple[int, str]] = field(default_factory=list[tuple[int, str]])


class _Lines(logging.Handler):
    """Keeps the lines of a tool's log until its call has ended."""

    def __init__(self, lines: list[tuple[int, str]]) -> None:
        super().__init__()
        self._lines = lines

    def emit(self, record: logging.LogRecord) -> None:
        self._lines.append((record.levelno, record.getMessage()))


def _imported_call(import_string: str, arguments: dict[str, Any]) -> _Answer:
    """Import a tool and call it, in the worker process. Coroutines get their own event loop there."""
    answer = _Answer()
    logger = logging.Logger(import_string, logging.INFO)
    logger.addHandler(_Lines(answer.log))
    try:
        tool = import_tool(import_string)
        # A Prefect flow is called as its plain function: its flow run is unknown here, and Prefect would start its own server.
        value = tool.source(**_with_loggers(arguments, logger))
        answer.result = as_json(asyncio.run(cast("Coroutine[Any, Any, Any]", value)) if tool.is_async else value)
    except BaseException as error:  # SystemExit would end the process, which also serves the next call
        # Not shortened here, where the secrets are unknown and could be cut in half.
        answer.error, answer.is_unknown = error_message(error), isinstance(error, UnknownOutcomeError)
    return answer


def _with_loggers(arguments: dict[str, Any], logger: logging.Logger) -> dict[str, Any]:
    """Return `arguments` with `logger` in every context and without redaction, so that a run's secrets never reach another process."""
    return {
        name: replace(value, logger=logger, redaction=None) if isinstance(value, ToolContext) else value
        for name, value in arguments.items()
    }
