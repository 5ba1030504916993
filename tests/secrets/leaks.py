"""Tools that leak their secret in every way a tool can; importable, so that they also run in other processes."""

import json
import logging
import os
from base64 import b64encode
from typing import Any
from urllib.parse import quote

from plan_adapter import ToolRegistry, tool
from plan_adapter.tools import ToolContext
from plan_adapter.tools.shell import run_command

seen = list[str]()
"""The secret values that the tools received."""


def print_and_log(token: str, logger: logging.Logger) -> None:
    """Print and log `token`."""
    print("printed", token, b64encode(f"user:{token}".encode()).decode())
    print("in pieces ", end="")
    print(token)
    logger.info("logged %s", token)
    for name in ("leaks", "prefect.leaks"):
        logging.getLogger(name).warning("logged elsewhere: %s", {"token": token})
    try:
        raise ValueError(f"raised with {token}")
    except ValueError:
        logger.exception("and caught: %r", token)
        logging.getLogger("leaks").exception("and caught elsewhere")


@tool(effect="read")
def leak(token: str, context: ToolContext) -> dict[str, Any]:
    """Tell the token and return it, in pieces of JSON and encoded."""
    seen.append(token)
    print_and_log(token, context.logger)
    return {
        "whole": token,
        "header": f"Bearer {token}",
        token: ["key", {"nested": [token, {"deep": json.dumps({"token": token})}]}],
        "basic": b64encode(f"user:{token}".encode()).decode(),
        "url": f"https://user:{quote(token, safe='')}@host/?q={quote(token)}",
        "hex": token.encode().hex(),
    }


@tool(effect="read")
def leak_variable(name: str, context: ToolContext) -> str:
    """Find the token where it was not handed it."""
    print_and_log(os.environ[name], context.logger)
    return os.environ[name]


@tool(effect="read", isolation="process")
def leak_in_process(token: str, context: ToolContext) -> list[str]:
    """Tell the token in another process, and return it."""
    context.logger.info("logged %s", token)
    return [token]


@tool(effect="read")
def fail(token: str) -> None:
    """Raise the token."""
    seen.append(token)
    try:
        raise KeyError(token)
    except KeyError as error:
        raise RuntimeError("x" * 3980 + f" with {token} at the end {token}") from error


@tool(effect="read")
def grow(token: str) -> list[str]:
    """Return more than a receipt holds."""
    return [f"{number} {token}" for number in range(9000)]


@tool(effect="write")
def guarded(token: str, at: int = 0) -> str:
    """Return the token, behind a gate."""
    seen.append(token)
    return token


@tool(effect="read")
async def echo(value: Any) -> Any:
    """Return a value of an earlier step."""
    return value


def tools() -> ToolRegistry:
    """Return a registry of all tools."""
    return ToolRegistry([leak, leak_variable, leak_in_process, fail, grow, guarded, echo, run_command])


PLAN = """
name: canary
description: Give a secret away
options: {allow_parallel: true, require_approval: false, continue_on_error: true}
steps:
  - {id: early, tool_name: leak_variable, description: Is handed nothing, parameters: {name: PLAN_ADAPTER_SECRET_CANARY}}
  - {id: leak, tool_name: leak, description: Leak it, parameters: {token: "${{ secrets.canary }}"}}
  - {id: process, tool_name: leak_in_process, description: Leak it, parameters: {token: "${{ secrets.canary }}"}}
  - {id: fail, tool_name: fail, description: Raise it, on_error: continue, max_retries: 1, parameters: {token: "${{ secrets.canary }}"}}
  - {id: grow, tool_name: grow, description: Much of it, parameters: {token: "${{ secrets.canary }}"}}
  - id: guard
    tool_name: guarded
    description: Ask before
    requires_approval: true
    parameters: {token: "${{ 'token=' + secrets.canary }}"}
  - {id: misfit, tool_name: guarded, description: Does not fit, on_error: continue, parameters: {token: a, at: "${{ secrets.canary }}"}}
  - id: command
    tool_name: run_command
    description: Print it
    effect: read
    on_error: continue
    parameters:
      argv: [bash, -c, 'echo "$TOKEN"; printf "%s" "$TOKEN" | base64; echo "$TOKEN" >&2; false']
      env: {TOKEN: "${{ secrets.canary }}"}
  - {id: later, tool_name: echo, description: Hand it on, parameters: {value: "${{ steps.leak.result.whole }} ${{ steps.guard.result }}"}}
outputs: {whole: "${{ steps.leak.result }}"}
"""
