"""Runs `plan` commands in their own processes, without a terminal."""

import asyncio
import json
import os
import subprocess
from collections.abc import AsyncGenerator, Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from plan_adapter.engine.connection import Server
from tests import installed

TIMEOUT_SECONDS = 90.0
POLL_SECONDS = 0.1


async def wait_until(condition: Callable[[], bool], message: Callable[[], str]) -> None:
    """Return once `condition` is true. Fail with `message` after a timeout."""
    deadline = asyncio.get_running_loop().time() + TIMEOUT_SECONDS
    while not condition():
        assert asyncio.get_running_loop().time() < deadline, message()
        await asyncio.sleep(POLL_SECONDS)


@dataclass(frozen=True)
class Workspace:
    """A folder in which plans run, with its own store and the session's server."""

    folder: Path
    server: Server

    def environment(self, **settings: str) -> dict[str, str]:
        """The environment of a user who already has a local server, or whose Prefect settings name one."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("PREFECT_API_", "PLAN_ADAPTER_"))}
        store = f"sqlite:///{self.folder / 'plans.db'}"
        ours = {"PLAN_ADAPTER_DATABASE_URL": store, "PLAN_ADAPTER_LOCAL_SERVER_AUTH": "off"}
        if self.server.log_path is None:
            where = {"PREFECT_API_URL": self.server.api_url, "PLAN_ADAPTER_HOME": str(self.folder / "home")}
        else:
            where = {"PLAN_ADAPTER_HOME": str(self.server.log_path.parent.parent)}
        # With `auto`, the shared server would be restarted with a password if other people have accounts.
        return {**kept, **ours, **where, **settings}

    def run(self, document: str, **settings: str) -> "RunningPlan":
        """Start `plan run` of `document`."""
        return self._begin("run", str(self.write("plan.yaml", document)), **settings)

    def resume(self, run_id: str, **settings: str) -> "RunningPlan":
        """Start `plan resume` of a run."""
        return self._begin("resume", run_id, **settings)

    def _begin(self, verb: str, what: str, **settings: str) -> "RunningPlan":
        out, err = self.folder / f"{verb}.stdout", self.folder / f"{verb}.stderr"
        with out.open("wb") as stdout, err.open("wb") as stderr:
            command = [str(installed.folder / "plan"), verb, what, "--json"]
            process = subprocess.Popen(
                command, cwd=self.folder, env=self.environment(**settings), stdin=subprocess.DEVNULL, stdout=stdout, stderr=stderr
            )
        return RunningPlan(process, out, err)

    def write(self, name: str, text: str) -> Path:
        """Write a file."""
        path = self.folder / name
        path.write_text(text, encoding="utf-8")
        return path

    async def plan(self, *arguments: str, **settings: str) -> "CommandResult":
        """Run another command of `plan` to its end."""
        process = await asyncio.create_subprocess_exec(
            str(installed.folder / "plan"),
            *arguments,
            cwd=self.folder,
            env=self.environment(**settings),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        async with asyncio.timeout(TIMEOUT_SECONDS):
            out, err = await process.communicate()
        assert process.returncode is not None
        return CommandResult(process.returncode, out.decode(), err.decode())

    def has_file(self, name: str) -> bool:
        """Whether the file `name` exists."""
        return (self.folder / name).exists()

    async def wait_for_file(self, name: str, running: "RunningPlan") -> None:
        """Return once the file `name` exists."""
        await wait_until(lambda: self.has_file(name), lambda: f"no {name}; {running.output}")


@dataclass(frozen=True)
class CommandResult:
    """The exit code and output of a command."""

    code: int
    out: str
    err: str

    @property
    def lines(self) -> list[Any]:
        """The JSON Lines of stdout."""
        return [json.loads(line) for line in self.out.splitlines()]


@dataclass(frozen=True)
class RunningPlan:
    """A running `plan run --json`."""

    process: "subprocess.Popen[bytes]"
    stdout: Path
    stderr: Path

    @property
    def output(self) -> str:
        """The exit code and all output so far."""
        return f"exit code {self.process.poll()}\n{self.stderr.read_text('utf-8')}\n{self.stdout.read_text('utf-8')[-4000:]}"

    @property
    def events(self) -> list[dict[str, Any]]:
        """The events in the complete lines of stdout so far."""
        text = self.stdout.read_text("utf-8")
        return [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]

    async def link(self) -> str:
        """The link to the run's page in Prefect's UI."""

        def found() -> list[str]:
            return [word for word in self.stderr.read_text("utf-8").split() if "/runs/flow-run/" in word]

        await wait_until(lambda: bool(found()) or self.process.poll() is not None, lambda: self.output)
        assert found(), self.output
        return found()[0]

    async def gate(self, *, step: str | None = None) -> dict[str, Any]:
        """The event of the plan's gate, or of the gate of `step`, once it is open."""

        def opened() -> list[dict[str, Any]]:
            return [event for event in self.events if event.get("event") == "gate_opened" and event["gate"]["step"] == step]

        await wait_until(lambda: bool(opened()) or self.process.poll() is not None, lambda: self.output)
        assert opened(), self.output
        return opened()[-1]["gate"]

    async def shown_gates(self) -> AsyncGenerator[dict[str, Any]]:
        """Yield an event for each gate once it is shown, until the process ends. Only the plan's gate is on the run's own page."""
        seen = set[str]()
        while True:
            await wait_until(lambda: bool(self._new_gates(seen)) or self.process.poll() is not None, lambda: self.output)
            if not (found := self._new_gates(seen)):
                return
            for event in found:
                seen.add(event["gate"]["id"])
                yield event

    def _new_gates(self, seen: set[str]) -> list[dict[str, Any]]:
        shown = [
            event
            for event in self.events
            if event.get("event") == "gate_shown" or (event.get("event") == "gate_opened" and event["gate"]["step"] is None)
        ]
        return [event for event in shown if event["gate"]["id"] not in seen]

    async def end(self) -> tuple[int, dict[str, Any]]:
        """The exit code and the final run."""
        await wait_until(lambda: self.process.poll() is not None, lambda: self.output)
        assert self.process.returncode is not None
        assert self.events, self.output
        return self.process.returncode, self.events[-1]

    async def stop(self) -> None:
        """Stop the process if it still runs."""
        if self.process.poll() is None:
            self.process.terminate()
            with suppress(AssertionError):
                await wait_until(lambda: self.process.poll() is not None, lambda: "")
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
