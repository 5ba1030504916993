"""Runs programs in their own processes, which are forked from a process that has imported most of the package.

Each process has its own signals, terminal, files and exit code, but saves the second that importing the package takes. Tests that depend on
the start of Python (its encoding or its imports) need `subprocess`.
"""

import contextlib
import fcntl
import multiprocessing
import os
import signal
import subprocess
import sys
import tempfile
import termios
from collections.abc import Mapping
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from types import ModuleType
from typing import IO

PLAN = "import sys; from plan_adapter.cli.app import main; sys.exit(main())"

MODULES = ("asking", "foreground", "live", *(f"verbs.{verb}" for verb in ("approve", "cancel", "reject", "resolve", "resume", "run")))
FORKS = multiprocessing.get_context("forkserver")
FORKS.set_forkserver_preload(
    [
        *(f"plan_adapter.cli.{module}" for module in MODULES),
        "plan_adapter.store.database.sqlite",
        "cyclopts",
        "rich.console",
        "tests.faults.fleet_child",
    ]
)


@dataclass(frozen=True)
class Ended:
    """The exit code and output of a program."""

    returncode: int
    stdout: bytes
    stderr: bytes


class Program:
    """A running program, with a part of the interface of `subprocess.Popen`."""

    def __init__(
        self,
        source: str,
        *arguments: str | Path,
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
        stdin: int | None = None,
        stdout: int | None = None,
        stderr: int | None = None,
        controls: bool = False,
    ) -> None:
        """Run Python code with these arguments and files (None: /dev/null). `controls`: stdin is the controlling terminal."""
        texts, environment = [str(argument) for argument in arguments], dict(os.environ if env is None else env)
        self.stdin, given = _opened(stdin, writes=True)
        self.stdout, out = _opened(stdout)
        self.stderr, err = _opened(stderr)
        self._process = FORKS.Process(target=_execute, args=(source, texts, environment, cwd or Path.cwd(), controls, given, out, err))
        self._process.start()
        for file in (given, out, err):
            file.close()
        self.pid = self._process.pid or 0

    @property
    def returncode(self) -> int | None:
        return self._process.exitcode

    def poll(self) -> int | None:
        return self._process.exitcode

    def wait(self, timeout: float | None = None) -> int:
        self._process.join(timeout)
        if self._process.exitcode is None:
            raise subprocess.TimeoutExpired("a program", timeout or 0)
        return self._process.exitcode

    def communicate(self) -> tuple[str, str]:
        """Wait until it ends and return the rest of its output."""
        if self.stdin is not None:
            self.stdin.close()
        out, err = (pipe.read() if pipe is not None else "" for pipe in (self.stdout, self.stderr))
        self.wait()
        return out, err

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


def run_plan(
    *arguments: str | Path, env: Mapping[str, str] | None = None, cwd: Path | None = None, text: str = "", timeout: float | None = None
) -> Ended:
    """Run `plan` with these arguments, without a terminal and with `text` as its input."""
    with tempfile.TemporaryFile() as given, tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        given.write(text.encode())
        given.seek(0)
        program = Program(PLAN, *arguments, env=env, cwd=cwd, stdin=given.fileno(), stdout=out.fileno(), stderr=err.fileno())
        try:
            code = program.wait(timeout)
        finally:
            program.kill()
        out.seek(0)
        err.seek(0)
        return Ended(code, out.read(), err.read())


def kill_descendants(pid: int, name: str) -> int:
    """Kill the processes below process `pid` whose program has `name` in its name. Return how many it killed."""
    killed = 0
    for descendant in _descendants(pid):
        with contextlib.suppress(OSError):
            if name in Path(f"/proc/{descendant}/comm").read_text():
                os.kill(descendant, signal.SIGKILL)
                killed += 1
    return killed


def _descendants(pid: int) -> list[int]:
    try:
        children = [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:  # it has ended
        return []
    return [*children, *(inner for child in children for inner in _descendants(child))]


def _opened(file: int | None, *, writes: bool = False) -> tuple[IO[str] | None, Connection]:
    """Return this process's end of a pipe, or None, and the file for the program."""
    if file == subprocess.PIPE:
        ends = os.pipe()
        ours, theirs = ends[::-1] if writes else ends
        return os.fdopen(ours, "w" if writes else "r", encoding="utf-8"), Connection(theirs)
    return None, Connection(os.open(os.devnull, os.O_RDWR) if file is None else os.dup(file))


def _execute(source: str, arguments: list[str], environment: dict[str, str], folder: Path, controls: bool, *files: Connection) -> None:
    """Run the program in the forked process."""
    os.setsid()
    signal.signal(signal.SIGINT, signal.default_int_handler)  # the fork server ignores it
    for number, file in enumerate(files):
        os.dup2(file.fileno(), number)
        file.close()
    if controls:
        fcntl.ioctl(0, termios.TIOCSCTTY, 0)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    sys.argv = ["plan", *arguments]
    sys.stdin, sys.stdout = os.fdopen(0, encoding="utf-8"), os.fdopen(1, "w", encoding="utf-8")
    sys.stderr = os.fdopen(2, "w", encoding="utf-8", errors="backslashreplace", buffering=1)
    sys.modules["__main__"] = main = ModuleType("__main__")
    exec(source, vars(main))
