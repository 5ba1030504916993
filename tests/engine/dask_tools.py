"""Tools that Dask workers can import."""

import asyncio
import os
import signal
import time
from pathlib import Path
from typing import Any

from distributed import get_worker

from plan_adapter.model.errors import ToolError, UnknownOutcomeError
from plan_adapter.tools.tool import ToolContext, tool


@tool(effect="read")
def look(text: str, context: ToolContext) -> dict[str, Any]:
    """Return `text`, the process id, whether the deadline is in the future, and the names of secret variables."""
    print("printed", text)
    context.logger.warning("logged %s", text)
    ahead = None if context.deadline is None else 0 < context.deadline - time.monotonic() <= 60
    return {"text": text, "pid": os.getpid(), "ahead": ahead, "credentials": [name for name in os.environ if "SECRET" in name]}


@tool(effect="read")
async def look_soon(text: str) -> str:
    """Return `text` from a coroutine."""
    await asyncio.sleep(0)
    return text


@tool(effect="write")
def name_worker(_text: str = "") -> str:
    """Return the address of the Dask worker that makes the call."""
    return str(get_worker().address)


@tool(effect="write")
def write(mark: str) -> int:
    """Append a line to the file `mark`."""
    with Path(mark).open("a", encoding="utf-8") as file:
        file.write("written\n")
    return os.getpid()


@tool(effect="write")
def write_and_die(mark: str) -> None:
    """Append a line to the file `mark`, and kill the worker."""
    write(mark)
    os.kill(os.getpid(), signal.SIGKILL)


@tool(effect="write")
def write_and_kill_all(mark: str) -> None:
    """Append a line to the file `mark`, and kill the worker and its scheduler."""
    write(mark)
    os.killpg(0, signal.SIGKILL)


@tool(effect="write")
def write_and_hang(mark: str, pipe: str) -> None:
    """Append a line to the file `mark`, and wait until `pipe` is opened."""
    write(mark)
    Path(pipe).read_text(encoding="utf-8")


@tool(effect="write")
def fail(how: str) -> None:
    """Raise the error that `how` names."""
    raise {"known": ToolError("坏了"), "own": ValueError("it broke"), "unknown": UnknownOutcomeError("who knows")}[how]
