"""Tools that the tests' plans use, by import string."""

import asyncio
import os
import signal
from pathlib import Path

from plan_adapter import ToolContext, ToolRegistry, UnknownOutcomeError, tool


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
    """Wait until somebody ends it."""
    await asyncio.Event().wait()


@tool(effect="read")
async def interrupt_and_wait(times: int = 1) -> None:
    """Do what Ctrl-C does, and wait."""
    for _ in range(times):
        os.kill(os.getpid(), signal.SIGINT)
        await asyncio.sleep(0)
    await asyncio.Event().wait()


@tool(effect="read")
async def signal_and_wait(number: int) -> None:
    """Do what `kill` does, and wait."""
    os.kill(os.getpid(), number)
    await asyncio.Event().wait()


@tool(effect="write")
async def write_and_wait() -> None:
    """Begin something and never come back."""
    await asyncio.Event().wait()


@tool(effect="write")
def get_lost() -> None:
    """Begin something and cannot tell whether it was done."""
    raise UnknownOutcomeError("the line went dead")


@tool(effect="read")
def once(path: str) -> str:
    """Fail the first time that it is called with this path."""
    if Path(path).exists():
        return "second"
    Path(path).touch()
    raise RuntimeError("the first time")


@tool(effect="read")
async def wait_once(path: str) -> str:
    """Come back only if it was called with this path before."""
    if not Path(path).exists():
        Path(path).touch()
        await asyncio.Event().wait()
    return "second"


@tool(effect="read")
def say(text: str, context: ToolContext) -> None:
    """Write into the step's log."""
    context.logger.info(text)


registry = ToolRegistry([greet, fail, wait, interrupt_and_wait, signal_and_wait, write_and_wait, get_lost, once, wait_once, say])
