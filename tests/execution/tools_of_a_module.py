"""Tools that another process can import."""

import os
import signal
import time
from pathlib import Path

from pydantic import JsonValue

from plan_adapter.model.errors import UnknownOutcomeError
from plan_adapter.tools.tool import ToolContext, tool


@tool(effect="write")
def stubborn(folder: str) -> None:
    """Never end, and ignore SIGTERM."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    (Path(folder) / "pid").write_text(str(os.getpid()))
    while True:
        time.sleep(60)


@tool(effect="write")
def die() -> None:
    """End the process at once."""
    os._exit(9)


class Local(Exception):
    """An error that cannot be unpickled: it takes two arguments and keeps one."""

    def __init__(self, what: str, why: str) -> None:
        super().__init__(f"{what}, because {why}")


@tool(effect="read")
def fail(how: str) -> None:
    """Raise the error that `how` names."""
    raise {"exit": SystemExit(3), "local": Local("it failed", "坏了"), "unknown": UnknownOutcomeError("it broke")}[how]


@tool(effect="read")
def tell(context: ToolContext) -> int:
    """Log a line."""
    context.logger.info("第 %d 次", context.attempt)
    return context.attempt


@tool(effect="read")
def echo(value: JsonValue) -> JsonValue:
    """Return `value`."""
    return value
