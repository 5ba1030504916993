"""Tests of the real server on stdin and stdout: it writes only the protocol to stdout, and its runs outlive it."""

import asyncio
import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TextIO, cast

import pytest

from plan_adapter.model.status import PlanStatus
from tests.mcp.harness import DEPLOY, IMPORTS, Harness

pytestmark = pytest.mark.skipif(
    find_spec("mcp") is None, reason="the extra `mcp` is not installed: pip install 'prefect-plan-adapter[mcp]'"
)

ROOT = Path(__file__).parents[2]
MAIN = "import sys; from plan_adapter.cli.app import main; sys.exit(main())"
PLAN = [sys.executable, "-c", MAIN, "mcp", "--offline", "--tools", *IMPORTS]

PATIENT = """
description: 等一个文件
name: patient
options: {require_approval: false}
inputs: {path: {type: string}}
steps:
  - {id: wait, tool_name: until_there, description: Wait, parameters: {path: "${{ inputs.path }}"}}
  - {id: deploy, tool_name: deploy, description: Deploy, parameters: {version: "1"}, depends_on: [wait]}
"""


def environment() -> dict[str, str]:
    """Return this process's environment, in which the server can import the tests' tools."""
    return {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}


async def test_the_sdks_client_can_call_the_server(harness: Harness) -> None:
    from mcp import Client
    from mcp.client.stdio import StdioServerParameters, stdio_client

    server = StdioServerParameters(command=PLAN[0], args=[*PLAN[1:], "--offer", "validate_plan"], env=environment())
    # Its default is the `sys.stderr` of its import, which may be pytest's and no file.
    async with Client(stdio_client(server, errlog=cast(TextIO, sys.__stderr__))) as client:
        assert [tool.name for tool in (await client.list_tools()).tools] == ["validate_plan"]
        assert (await client.call_tool("validate_plan", {"document": DEPLOY})).structured_content == {"valid": True, "problems": []}


@pytest.mark.thorough
async def test_a_client_that_disconnects_ends_the_server_but_not_its_runs(harness: Harness) -> None:
    await harness.save(PATIENT)
    server = await asyncio.create_subprocess_exec(
        *PLAN, "--plan", "patient", stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment()
    )
    wire = Wire(server)
    await wire.ask("initialize", protocolVersion="2025-06-18", capabilities={}, clientInfo={"name": "test", "version": "1"})
    wire.send(method="notifications/initialized")
    waiting = wire.send(id="patient", method="tools/call", params={"name": "patient", "arguments": {"path": str(harness.folder / "go")}})
    listed: list[dict[str, Any]] = []
    while not listed or listed[0]["status"] != "executing":  # while the call above still waits for the end
        listed = (await wire.ask("tools/call", name="list_runs", arguments={}))["structuredContent"]["runs"]
    wire.send(method="notifications/cancelled", params={"requestId": waiting})
    await wire.ask("ping")
    _, stderr = await server.communicate(b"")  # closes its stdin
    assert (server.returncode, wire.noise) == (0, [])
    assert b"and once more, past Python" in stderr  # what its tools print goes to stderr
    assert harness.deployed == []
    (harness.folder / "go").touch()
    while (run := await harness.run(listed[0]["run"])).completed_at is None:
        await asyncio.sleep(0.02)
    assert (run.status, harness.deployed) == (PlanStatus.COMPLETED, ["1"])


class Wire:
    """A minimal JSON-RPC client."""

    def __init__(self, server: asyncio.subprocess.Process) -> None:
        """Use the pipes of `server`."""
        self.server = server
        self.noise: list[bytes] = []
        self._number = 0

    def send(self, **message: Any) -> Any:
        """Send a message, and return its id."""
        assert self.server.stdin is not None
        self.server.stdin.write(json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n")
        return message.get("id")

    async def ask(self, method: str, **params: Any) -> dict[str, Any]:
        """Return the answer to a request. Lines that are not messages are kept as noise."""
        assert self.server.stdout is not None
        self._number += 1
        self.send(id=self._number, method=method, params=params)
        while line := await self.server.stdout.readline():
            try:
                message = json.loads(line)
            except ValueError:
                self.noise.append(line)
                continue
            if message.get("id") == self._number:
                return message["result"]
        raise AssertionError(await self.server.stderr.read() if self.server.stderr else "it ended")
