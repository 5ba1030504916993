"""Tools that the plans of the tests load by import string."""

import asyncio
import os
import signal
from pathlib import Path

from plan_adapter import ToolRegistry, tool
from plan_adapter.errors import UnknownOutcomeError
from plan_adapter.tools import ToolContext


@tool(effect="read")
def greet(who: str) -> dict[str, str]:
    """Greet somebody."""
    return {"text": f"你好, {who}"}


@tool(effect="read")
def fail(text: str = "it broke") -> None:
    """Fail."""
    raise RuntimeError(text)


@tool(effect="read")
async def wait() -> None:
    """Wait until cancelled."""
    await asyncio.Event().wait()


@tool(effect="read")
async def interrupt_and_wait(times: int = 1) -> None:
    """Send SIGINT to this process, as Ctrl-C does, and wait."""
    for _ in range(times):
        os.kill(os.getpid(), signal.SIGINT)
        await asyncio.sleep(0)
    await asyncio.Event().wait()


@tool(effect="read")
async def signal_and_wait(number: int) -> None:
    """Send a signal to this process, as `kill` does, and wait."""
    os.kill(os.getpid(), number)
    await asyncio.Event().wait()


@tool(effect="write")
async def write_and_wait() -> None:
    """Start a write and never return."""
    await asyncio.Event().wait()


@tool(effect="write")
def get_lost() -> None:
    """Start a write and report an unknown outcome."""
    raise UnknownOutcomeError("the line went dead")


@tool(effect="read")
def once(path: str) -> str:
    """Fail on the first call with this path."""
    if Path(path).exists():
        return "second"
    Path(path).touch()
    raise RuntimeError("the first time")


@tool(effect="read")
async def wait_once(path: str) -> str:
    """Hang on the first call with this path, and return on later ones."""
    if not Path(path).exists():
        Path(path).touch()
        await asyncio.Event().wait()
    return "second"


@tool(effect="read")
def say(text: str, context: ToolContext) -> None:
    """Write into the step's log."""
    context.logger.info(text)


registry = ToolRegistry([greet, fail, wait, interrupt_and_wait, signal_and_wait, write_and_wait, get_lost, once, wait_once, say])
