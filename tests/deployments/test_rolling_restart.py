"""Tests of the runbook rolling-restart: nodes that are processes, behind a load balancer."""

import json
import os
import signal
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import suppress
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import pytest

from plan_adapter import PlanRun, PlanStore, ToolRegistry
from plan_adapter.gates import ApprovalRequest
from plan_adapter.runs import acancel_run
from plan_adapter.store import PlanStatus
from tests.deployments.conftest import RunRunbook, served
from tests.postgres import free_port

NODE = """
import os, socket, sys
folder, port = sys.argv[1:]
version = open(f"{folder}/version").read()
if version == "broken":
    sys.exit(1)
server = socket.create_server(("127.0.0.1", int(port)))
open(f"{folder}/pid", "w").write(str(os.getpid()))
print("ready", flush=True)
warm = version != "slow"
while True:
    connection = server.accept()[0]
    connection.recv(65536)
    head = "HTTP/1.1 200 OK" if warm else "HTTP/1.1 503 Warming up"
    connection.sendall(f"{head}\\r\\nContent-Length: {len(version)}\\r\\nConnection: close\\r\\n\\r\\n{version}".encode())
    connection.close()
    warm = True
"""
"""A web node that answers with its version. A broken version does not start; a slow one refuses its first request."""

CONTROL = """
import os, pathlib, shutil, signal, subprocess, sys
port = os.environ["NODE"].partition(":")[2]
folder = pathlib.Path(sys.argv[1]) / port
if (folder / "pid").exists():
    os.kill(int((folder / "pid").read_text()), signal.SIGKILL)
    (folder / "pid").unlink()
if sys.argv[2] == "restart":
    shutil.copy(folder / "version", folder / "previous")
    shutil.copy(folder / "wanted", folder / "version")
elif sys.argv[2] == "restore":
    shutil.copy(folder / "previous", folder / "version")
command = [sys.executable, "-S", "-E", sys.argv[3], str(folder), port]
node = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, start_new_session=True)
if node.stdout.readline() != b"ready\\n":
    sys.exit(f"{folder.joinpath('version').read_text()} does not start")
"""
"""Starts, restarts or restores the node in NODE, and returns once it accepts connections."""


class Balancer(BaseHTTPRequestHandler):
    """A load balancer. `changes` has every change of a node's state."""

    changes: list[tuple[str, str]]

    def do_PUT(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        self.changes.append((self.path.removeprefix("/nodes/"), body["state"]))
        self.answer({})

    def do_GET(self) -> None:
        self.answer({"connections": 0})

    def answer(self, body: dict[str, object]) -> None:
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.end_headers()
        self.wfile.write(json.dumps(body).encode())

    def log_message(self, *_arguments: object) -> None:
        """Say nothing."""


class Site:
    """Nodes that run version `one`, and the commands that restart them."""

    def __init__(self, folder: Path, balancer: str) -> None:
        self.folder, self.balancer = folder, balancer
        (folder / "node.py").write_text(NODE)
        (folder / "control.py").write_text(CONTROL)
        self.nodes: list[str] = []

    def add(self, *, wanted: str) -> str:
        """Start a node that a restart changes to the version `wanted`."""
        port = free_port()
        folder = self.folder / str(port)
        folder.mkdir()
        (folder / "version").write_text("one")
        (folder / "wanted").write_text(wanted)
        self.nodes.append(f"127.0.0.1:{port}")
        os.spawnve(os.P_WAIT, sys.executable, self.command("start"), {**os.environ, "NODE": self.nodes[-1]})
        return self.nodes[-1]

    def command(self, verb: str) -> list[str]:
        return [sys.executable, "-E", str(self.folder / "control.py"), str(self.folder), verb, str(self.folder / "node.py")]

    def inputs(self) -> dict[str, object]:
        return {"nodes": self.nodes, "balancer": self.balancer, "restart": self.command("restart"), "restore": self.command("restore")}

    def versions(self) -> list[str]:
        """Return the version that each node answers with."""
        answers = list[str]()
        for node in self.nodes:
            with urllib.request.urlopen(f"http://{node}/") as answer:
                answers.append(answer.read().decode())
        return answers

    def stop(self) -> None:
        for file in self.folder.glob("*/pid"):
            with suppress(ProcessLookupError):
                os.kill(int(file.read_text()), signal.SIGKILL)


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    Balancer.changes = []
    with served(Balancer) as url:
        site = Site(tmp_path, url)
        yield site
        site.stop()


async def test_each_node_is_drained_restarted_and_put_back_before_the_next(
    run_runbook: RunRunbook, site: Site, opened: list[ApprovalRequest]
) -> None:
    first, second = site.add(wanted="slow"), site.add(wanted="two")

    run = await run_runbook("rolling-restart", **site.inputs())

    assert run.status is PlanStatus.COMPLETED, failures(run)
    assert run.outputs == {"restarted": [first, second]}
    assert site.versions() == ["slow", "two"]
    assert Balancer.changes == [(first, "drained"), (first, "ready"), (second, "drained"), (second, "ready")]
    assert [(request.step_id, request.label) for request in opened] == [(None, None), ("nodes", first), ("nodes", second)]


async def test_a_node_that_does_not_restart_is_restored_alone(run_runbook: RunRunbook, site: Site) -> None:
    first, second, third = site.add(wanted="two"), site.add(wanted="broken"), site.add(wanted="two")

    run = await run_runbook("rolling-restart", **site.inputs())

    assert run.status is PlanStatus.PARTIAL
    assert "broken does not start" in (run.step("restart").error or "")
    assert site.versions() == ["two", "one", "one"]
    assert Balancer.changes == [(first, "drained"), (first, "ready"), (second, "drained"), (second, "ready")]
    assert third not in dict(Balancer.changes)
    assert run.outputs == {"restarted": [first]}
    assert f"(rolled back: restart[{second}], drain[{second}])" in (run.message or "")


async def test_all_nodes_serve_the_old_version_again_if_the_run_is_rolled_back(run_runbook: RunRunbook, site: Site, tmp_path: Path) -> None:
    first, second = site.add(wanted="two"), site.add(wanted="broken")
    run = await run_runbook("rolling-restart", **site.inputs())

    async with PlanStore(f"sqlite:///{tmp_path / 'plans.db'}") as store:
        await acancel_run(run.id, rollback=True, tools=ToolRegistry.with_builtins(), store=store)

    assert site.versions() == ["one", "one"]
    assert dict(Balancer.changes) == {first: "ready", second: "ready"}


def failures(run: PlanRun) -> list[tuple[str, str | None]]:
    return [(step.id, step.error) for step in run.steps]
