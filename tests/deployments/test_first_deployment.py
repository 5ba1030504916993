"""`plan guide deploying`: a test types what the page says, with a server and a worker of its own."""

import asyncio
import os
import re
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from plan_adapter import PlanStore
from plan_adapter.model.approvals import Gate
from tests import installed
from tests.conftest import PrepareServer
from tests.test_readme import BLOCK, commands

PAGE = Path(__file__).parents[2] / "plan_adapter" / "guide" / "deploying.md"
WAIT_SECONDS = 120.0
POLL_SECONDS = 0.2

pytestmark = pytest.mark.thorough


class Typist:
    """Types commands in one folder, as in terminals of the same user. What does not end by itself goes on in the background."""

    def __init__(self, folder: Path) -> None:
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("PREFECT_", "PLAN_ADAPTER_"))}
        path = f"{installed.folder}{os.pathsep}{os.environ['PATH']}"
        homes = {"HOME": str(folder), "PLAN_ADAPTER_HOME": str(folder / "home"), "PREFECT_HOME": str(folder / "prefect")}
        self.environment = {**kept, "PATH": path, **homes, "DO_NOT_TRACK": "1", "PREFECT_WORKER_QUERY_SECONDS": "1"}
        self.folder = folder
        self.store = f"sqlite:///{folder / 'home' / 'plans.db'}"
        self.running: list[subprocess.Popen[bytes]] = []
        self.port = free_port()

    def type(self, written: str, expected: list[str]) -> None:
        """Run a command, and check that it prints the expected lines. A list of gates or runs is repeated until it does."""
        command = written.replace("4200", str(self.port)).replace("prefect server start", f"prefect server start --port {self.port}")
        expected = [" ".join(line.replace("4200", str(self.port)).split()) for line in expected]
        if command.startswith("export "):
            name, _, value = command.removeprefix("export ").partition("=")
            self.environment[name] = value
        elif "serve " in command or " start" in command:
            self._start(command, expected)
        else:
            self._run(command, expected)

    def _start(self, command: str, expected: list[str]) -> None:
        log = self.folder / f"{len(self.running)}.log"
        with log.open("wb") as output:
            typed = ["bash", "-c", f"exec env {command}"]
            process = subprocess.Popen(typed, cwd=self.folder, env=self.environment, stdout=output, stderr=output, start_new_session=True)
        self.running.append(process)
        self._until(lambda: log.read_text("utf-8"), expected, command)
        while "server start" in command and not self._is_listening():  # it says that it runs a moment before it does
            assert process.poll() is None, log.read_text("utf-8")
            time.sleep(POLL_SECONDS)

    def _is_listening(self) -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self.port)) == 0

    def _run(self, command: str, expected: list[str]) -> None:
        if re.search(r"\bRUN\b", command):
            gate = self._waiting_gate()
            command = re.sub(r"\bDIGEST\b", gate.approval_digest, re.sub(r"\bRUN\b", gate.run_id, command))
        is_list = command in ("plan gates", "plan runs") or command.startswith("cat ")

        def run() -> str:
            done = subprocess.run(
                ["bash", "-c", command], cwd=self.folder, env=self.environment, capture_output=True, text=True, check=False
            )
            assert is_list or done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
            return done.stdout + done.stderr

        self._until(run, expected, command, tries=None if is_list else 1)

    def _until(self, read: Callable[[], str], expected: list[str], command: str, tries: int | None = None) -> None:
        deadline = time.monotonic() + WAIT_SECONDS
        while True:
            printed = " ".join(read().split())
            if all(word in printed for line in expected for word in line.split()):
                return
            tries = None if tries is None else tries - 1
            assert tries != 0 and time.monotonic() < deadline, f"{command}\nlacks {expected}:\n{printed}"
            time.sleep(POLL_SECONDS)

    def _waiting_gate(self) -> Gate:
        async def read() -> Gate:
            async with PlanStore(self.store) as store:
                async with asyncio.timeout(WAIT_SECONDS):
                    while not (gates := await store.gates.find()):
                        await asyncio.sleep(POLL_SECONDS)
                return gates[-1]

        return asyncio.run(read())

    def end(self) -> None:
        """End what still runs, the newest first."""
        for process in reversed(self.running):
            os.killpg(process.pid, signal.SIGINT)
            try:
                process.wait(timeout=30)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        self.running.clear()
        subprocess.run(["plan", "down"], cwd=self.folder, env=self.environment, check=False, capture_output=True)


@pytest.fixture
def typist(tmp_path: Path, prepare_server: PrepareServer) -> Iterator[Typist]:
    """Someone with an empty home. Servers start faster, because their databases are there."""
    found = Typist(tmp_path)
    prepare_server(tmp_path / "home")
    (tmp_path / "prefect").mkdir()
    shutil.copy(tmp_path / "home/server/prefect/prefect.db", tmp_path / "prefect/prefect.db")
    yield found
    found.end()


def free_port() -> int:
    """Return a port on which nothing listens."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def test_the_page_works_as_written(typist: Typist) -> None:
    typed = list[str]()
    for section in PAGE.read_text(encoding="utf-8").split("\n## ")[1:]:
        for block in BLOCK.finditer(section):
            if block["file"]:
                (typist.folder / block["file"]).write_text(block["text"], encoding="utf-8")
                continue
            for command, expected in commands(block["text"]):
                typist.type(command, expected)
                typed.append(command)
    assert len(typed) >= 15
    assert (typist.folder / "restarts.log").read_text() == "restarted web-1\nrestarted web-2\n"
