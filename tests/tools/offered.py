"""Tools, functions and registries that tests refer to by import string."""

from __future__ import annotations

from os import system  # noqa: F401  # imported into an allowed module, but not defined in it
from typing import TYPE_CHECKING, Any

from plan_adapter.tools.registry import ToolRegistry
from plan_adapter.tools.tool import tool

if TYPE_CHECKING:
    from plan_adapter.tools.tool import ToolContext


@tool(effect="read")
def shout(text: str, context: ToolContext, times: int = 1) -> str:
    """Say it loudly.

    Args:
        text: What to say.
        times: How often
            to say it.
    """
    return context.run_id + ": " + text.upper() * times


@tool(effect="read")
async def whisper(text: str, context: ToolContext | None = None) -> str:
    return text.lower()


def plain(number: int, *, factor: int = 2) -> int:
    return number * factor


async def later() -> None: ...


def untyped(a, b=1) -> Any:  # type: ignore[no-untyped-def]
    return [a, b]


registry = ToolRegistry([shout])
several = [registry, (whisper, plain)]
number = 3
