"""Types the commands of a page of documentation, in order, and checks what they print.

A block ```yaml file=NAME (or any other language) writes a file. In a block ```console, lines with `$` are commands, and the lines below
them are what they must print, among other things. `RUN` stands for the newest run, `DIGEST` for what is to be approved.
"""

import asyncio
import os
import re
import signal
import socket
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

from plan_adapter import PlanStore
from plan_adapter.model.approvals import Gate
from tests import installed
from tests.postgres import free_port

BLOCK = re.compile(r"^```(?P<language>\w+)(?: file=(?P<file>\S+))?\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL)
WAIT_SECONDS = 120.0
POLL_SECONDS = 0.2
ANSWERS = re.compile(r"plan (approve|reject|answer)\b")


def commands(text: str) -> list[tuple[str, list[str]]]:
    """Return the commands of a console block, each with its expected output lines."""
    found: list[tuple[str, list[str]]] = []
    for line in text.splitlines():
        if line.startswith("$ "):
            found.append((line[2:], []))
        else:
            found[-1][1].append(line)
    return found


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
        self.ports = {"4200": str(self.port)}
        """The ports that a page names, and those that are typed in their place."""

    def type_page(self, text: str) -> list[str]:
        """Write the files of a page, and type its commands. Return the commands."""
        typed = list[str]()
        for block in BLOCK.finditer(text):
            if block["file"]:
                path = self.folder / block["file"]
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(block["text"], encoding="utf-8")
            elif block["language"] == "console":
                for command, expected in commands(block["text"]):
                    self.type(command, expected)
                    typed.append(command)
        return typed

    def type(self, written: str, expected: list[str]) -> None:
        """Run a command, and check that it prints the expected lines. A list of gates or runs is repeated until it does."""
        command = self._here(written).replace("prefect server start", f"prefect server start --port {self.port}")
        expected = [" ".join(self._here(line).split()) for line in expected]
        if command.startswith("export "):
            name, _, value = command.removeprefix("export ").partition("=")
            self.environment[name] = value
        elif re.search(r"\b(plan serve|server start|worker start) ?", command):
            self._start(command, expected)
        else:
            self._run(command, expected)

    def _here(self, text: str) -> str:
        return re.sub("|".join(self.ports), lambda found: self.ports[found[0]], text)

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
            run_id, digest = self._newest_run()
            if ANSWERS.search(command):
                gate = self.waiting_gate()
                run_id, digest = gate.run_id, gate.approval_digest
            command = re.sub(r"\bDIGEST\b", digest, re.sub(r"\bRUN\b", run_id, command))
        is_list = command in ("plan gates", "plan runs") or command.startswith("cat ")

        def run() -> str:
            typed = ["bash", "-c", command]
            done = subprocess.run(
                typed, cwd=self.folder, env=self.environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
            )
            assert is_list or done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
            return done.stdout + done.stderr

        self._until(run, expected, command, tries=None if is_list else 1)

    def _until(self, read: Callable[[], str], expected: list[str], command: str, tries: int | None = None) -> None:
        deadline = time.monotonic() + WAIT_SECONDS
        while True:
            printed = " ".join(read().split())
            if all(word in printed for line in expected for word in ([line] if tries else line.split())):
                return
            tries = None if tries is None else tries - 1
            assert tries != 0 and time.monotonic() < deadline, f"{command}\nlacks {expected}:\n{printed}"
            time.sleep(POLL_SECONDS)

    def waiting_gate(self) -> Gate:
        """Return the newest gate, as soon as there is one."""

        async def read() -> Gate:
            async with PlanStore(self.store) as store:
                async with asyncio.timeout(WAIT_SECONDS):
                    while not (gates := await store.gates.find()):
                        await asyncio.sleep(POLL_SECONDS)
                return gates[-1]

        return asyncio.run(read())

    def _newest_run(self) -> tuple[str, str]:
        async def read() -> tuple[str, str]:
            async with PlanStore(self.store) as store:
                run = (await store.runs(limit=1))[0]
                return run.id, run.approval_digest

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
