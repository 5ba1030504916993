"""Tests of the real command in a new process: at a pseudo-terminal, in a pipe, and without UTF-8."""

import json
import os
import pty
import re
import select
import signal
import subprocess
import sys
from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.cli.test_run import GREET, TOOLS, document, step
from tests.processes import PLAN, Ended, Program, run_plan

ROOT = Path(__file__).parent.parent.parent
BOUND_SECONDS = 60.0
REAL_PLAN = (sys.executable, "-c", PLAN)


def environment(**extra: str) -> dict[str, str]:
    """Return the environment for a child process that imports the tests' tools."""
    return {**os.environ, "PYTHONPATH": str(ROOT), "TERM": "xterm-256color", **extra}


class Terminal:
    """A command at a pseudo-terminal of 100 columns, which also receives its stdout."""

    def __init__(self, *arguments: str | Path, controls: bool = False, **extra: str) -> None:
        """Start the command; with `controls` it gets SIGHUP when the terminal is closed."""
        self._main, side = pty.openpty()
        env = environment(COLUMNS="100", **extra)
        self.process = Program(PLAN, *arguments, stdin=side, stdout=side, stderr=side, env=env, controls=controls)
        os.close(side)
        self.raw = ""

    @property
    def shown(self) -> str:
        """Return the output so far, without escape sequences."""
        return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]|\r", "", self.raw)

    def wait_for(self, text: str) -> None:
        """Return once `text` was shown."""
        while text not in self.shown:
            assert self._read(), f"ended without {text!r}:\n{self.shown}"

    def wait_for_next(self, text: str, *, times: int = 2) -> None:
        """Return once `text` was shown for the second time, or as often as `times` says."""
        while self.shown.count(text) < times:
            assert self._read(), f"ended without {text!r} {times} times:\n{self.shown}"

    def type(self, keys: str) -> None:
        """Type `keys`."""
        os.write(self._main, keys.encode())

    def end(self) -> int:
        """Return the exit code."""
        while self._read():
            pass
        return self.process.wait(BOUND_SECONDS)

    def hang_up(self) -> None:
        """Close the terminal while the command runs, like a broken connection."""
        os.close(self._main)

    def close(self) -> None:
        """Kill the command if it still runs, and close the terminal."""
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        os.close(self._main)

    def _read(self) -> bool:
        ready, _, _ = select.select([self._main], [], [], BOUND_SECONDS)
        assert ready, f"nothing was shown for {BOUND_SECONDS} s:\n{self.shown}"
        try:
            found = os.read(self._main, 65536)
        except OSError:  # Linux raises this once the other side is closed
            return False
        self.raw += found.decode(errors="replace")
        return bool(found)


@pytest.fixture
def terminals() -> Iterator[list[Terminal]]:
    """Return a list of terminals that are closed after the test."""
    opened: list[Terminal] = []
    yield opened
    for terminal in opened:
        terminal.close()


def piped(*arguments: str | Path, env: Mapping[str, str] | None = None) -> Ended:
    """Run a command without a terminal and return its exit code and output."""
    return run_plan(*arguments, env=env or environment(), timeout=BOUND_SECONDS)


def without_utf_8(*arguments: str | Path) -> "subprocess.CompletedProcess[bytes]":
    """Run a command whose Python writes ASCII, and return its exit code and output."""
    env = environment(PYTHONIOENCODING="ascii", PYTHONUTF8="0")
    return subprocess.run([*REAL_PLAN, *map(str, arguments)], stdin=subprocess.DEVNULL, capture_output=True, env=env, timeout=BOUND_SECONDS)


def run_at(terminals: list[Terminal], path: Path, *arguments: str, **extra: str) -> Terminal:
    """Start `plan run` at a new terminal, with `extra` in its environment."""
    terminal = Terminal("run", path, "--offline", *TOOLS, *arguments, **extra)
    terminals.append(terminal)
    return terminal


def test_finished_steps_stay_and_running_steps_are_redrawn(terminals: list[Terminal]) -> None:
    path = document(
        GREET,
        step("b", "fail", parameters={"text": "坏了"}, depends_on=["greet"]),
        step("c", "wait", depends_on=["greet"]),
        options={"require_approval": False, "allow_parallel": True, "continue_on_error": True},
    )
    terminal = run_at(terminals, path)
    terminal.wait_for("1 of 3 steps done, 1 failed")
    os.kill(terminal.process.pid, signal.SIGINT)
    assert terminal.end() == 130
    shown = terminal.shown
    assert "✓ greet  " in shown
    assert "✗ b      " in shown
    assert "坏了" in shown
    assert "cancelling the run; press Ctrl-C again to stop at once" in shown
    assert "\x1b[32m✓" in terminal.raw  # green
    assert terminal.raw.rindex("\x1b[?25h") > terminal.raw.rindex("\x1b[?25l")  # the cursor is visible again


def test_the_error_of_a_failed_step_is_shown_once(terminals: list[Terminal]) -> None:
    command = [sys.executable, "-c", "import sys; sys.exit('refused by web-2')"]
    terminal = run_at(terminals, document(GREET, step("b", "run_command", parameters={"argv": command}, depends_on=["greet"])))
    assert terminal.end() == 1
    kept = terminal.shown[terminal.shown.rindex("✗ b ") :]  # while the step ran, its line showed what it wrote
    assert kept.count("refused by web-2") == 1, kept
    assert "试运行: Partial in " in kept and "plan show" in kept


def test_no_color_is_honoured(terminals: list[Terminal], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    terminal = run_at(terminals, document(GREET))
    assert terminal.end() == 0
    assert not re.search(r"\x1b\[[0-9;]*3[0-7]m", terminal.raw)


def test_a_terminal_without_utf_8_gets_escapes_instead_of_a_crash() -> None:
    done = without_utf_8("run", document(GREET), "--offline", *TOOLS)
    assert done.returncode == 0
    assert rb"\u8bd5\u8fd0\u884c: Completed in" in done.stdout


@pytest.mark.thorough
def test_json_output_without_utf_8_is_still_valid_json() -> None:
    done = without_utf_8("run", document(GREET), "--offline", "--json", *TOOLS)
    assert json.loads(done.stdout.splitlines()[-1])["steps"][0]["result"] == {"text": "你好, 世界"}


@pytest.mark.parametrize("verb", [("explain",), ("tools", "--json"), ("schema",)], ids=" ".join)
def test_a_closed_pipe_is_not_an_error(verb: tuple[str, ...]) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    done = subprocess.run([*REAL_PLAN, *verb], stdout=writing, stderr=subprocess.PIPE, env=environment(), timeout=BOUND_SECONDS)
    os.close(writing)
    assert (done.returncode, done.stderr) == (0, b"")


def test_piped_output_has_no_escape_sequences() -> None:
    done = piped("run", document(GREET, step("b", "fail", depends_on=["greet"])), "--offline", *TOOLS)
    assert done.returncode == 1
    assert b"\x1b" not in done.stdout + done.stderr


@contextmanager
def started_run(path: Path) -> Generator[tuple[Program, Iterator[dict[str, Any]]]]:
    """Start `plan run`, wait for a step to start, and yield the process and its later events; it is killed at the end."""
    process = Program(PLAN, "run", path, "--offline", "--json", *TOOLS, stdout=subprocess.PIPE, env=environment())
    try:
        assert process.stdout is not None
        events = map(json.loads, process.stdout)
        assert any(event.get("event") == "step_started" for event in events)
        yield process, events
    finally:
        process.kill()
        process.communicate()


@pytest.mark.thorough
def test_a_run_cancelled_by_another_command_exits_with_4() -> None:
    path = document(step("a", "wait"), step("b", "greet", parameters={"who": "x"}, depends_on=["a"]))
    with started_run(path) as (process, events):
        (line,) = piped("runs", "--json").stdout.splitlines()
        asked = piped("cancel", json.loads(line)["id"], "--note", "磁盘要换")
        assert asked.returncode == 0, asked.stderr.decode()
        *_, run = events
        assert process.wait(BOUND_SECONDS) == 4
    assert (run["status"], run["reason"]) == ("cancelled", "cancelled")
    assert run["message"].startswith("磁盘要换")


def test_sigterm_cancels_the_run() -> None:
    with started_run(document(step("a", "wait"))) as (process, events):
        process.terminate()
        *_, run = events
        assert process.wait(BOUND_SECONDS) == 130
    assert run["status"] == "cancelled"
