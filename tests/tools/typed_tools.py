"""Checked by basedpyright in test_typing.py: tools keep the signature of their function for users' type checkers."""

# pyright: strict, reportUnnecessaryTypeIgnoreComment=error

from collections.abc import Callable, Coroutine
from typing import Any, assert_type

from plan_adapter.tools.shell import CommandResult, command_tool
from plan_adapter.tools.tool import Tool, ToolContext, as_tool, tool


@tool
def bare(url: str, attempts: int = 1) -> list[str]:
    return [url] * attempts


@tool(effect="read", permissions=["net"])
def declared(url: str) -> bytes:
    return url.encode()


@tool(effect="idempotent_write")
async def later(key: str, context: ToolContext) -> dict[str, int]:
    return {key: context.attempt}


async def use(context: ToolContext) -> None:
    assert_type(bare("a"), list[str])
    assert_type(bare("a", attempts=2), list[str])
    assert_type(declared("a"), bytes)
    assert_type(await later("a", context), dict[str, int])
    function: Callable[[str], bytes] = declared
    assert_type(function("a"), bytes)
    assert_type(as_tool(bare), Tool[..., Any])
    assert_type(await command_tool("s", ["git", "status"])(context), CommandResult)
    coroutine: Coroutine[Any, Any, dict[str, int]] = later(key="a", context=context)
    await coroutine


def misuse() -> None:
    bare(1)  # pyright: ignore[reportArgumentType]
    bare()  # pyright: ignore[reportCallIssue]
    bare("a", often=2)  # pyright: ignore[reportCallIssue]
    later("a")  # pyright: ignore[reportCallIssue]
    assert_type(declared("a"), str)  # pyright: ignore[reportAssertTypeFailure]


@tool(effect="safe")  # pyright: ignore[reportArgumentType]
def wrong() -> None: ...
