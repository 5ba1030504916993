"""Tests of `plan resume RUN --wait`: it waits until the owner of the run has ended or released it."""

import json
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import pytest

from tests.cli.conftest import Plan
from tests.processes import PLAN, Program

DOCUMENT = """
description: Wait for somebody
options: {require_approval: false}
steps:
  - id: wait
    tool_name: run_command
    effect: read
    parameters: {argv: [sh, -c, "touch begun; while [ ! -e go ]; do sleep 0.02; done"]}
"""


class Processes:
    """Starts `plan …` in new processes, which are killed after the test."""

    def __init__(self) -> None:
        self.all: list[Program] = []

    def start(self, *arguments: str) -> Program:
        process = Program(PLAN, *arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        self.all.append(process)
        return process


@pytest.fixture
def processes() -> Iterator[Processes]:
    found = Processes()
    yield found
    Path("go").touch()
    for process in found.all:
        process.kill()
        process.communicate()


def line_with(stream: IO[str] | None, text: str) -> str:
    """Return the first line that contains `text`."""
    assert stream is not None
    return next(line for line in stream if text in line)


@pytest.fixture
def owner(processes: Processes) -> Program:
    """Start a process and return it in the middle of its run."""
    Path("plan.yaml").write_text(DOCUMENT, encoding="utf-8")
    process = processes.start("run", "plan.yaml", "--offline")
    line_with(process.stderr, "wait: started")
    return process


@pytest.fixture
def run_id(owner: Program, plan: Plan) -> str:
    return plan("runs", "--json").lines[0]["id"]


def test_the_refusal_without_wait_suggests_the_option(owner: Program, run_id: str, plan: Plan):
    result = plan("resume", run_id, "--offline")
    assert (result.code, f"is executed by process {owner.pid} on this host" in result.err) == (8, True)
    assert f"`plan resume {run_id} --wait` waits until it has ended" in result.err


@pytest.mark.parametrize("end", ["completed", "killed"])
def test_wait_names_the_owner_and_resumes_once_it_has_ended(end: str, owner: Program, run_id: str, processes: Processes):
    waiting = processes.start("resume", run_id, "--wait", "--offline", "--json")
    line = line_with(waiting.stderr, "waiting for that process to end")
    assert f"run {run_id} is owned by process {owner.pid} on this host" in line
    if end == "killed":
        owner.kill()
        owner.wait()
    Path("go").touch()
    out, err = waiting.communicate()
    assert waiting.returncode == 0, err
    run = json.loads(out.splitlines()[-1])
    assert (run["id"], run["status"], run["steps"][0]["attempts"]) == (run_id, "completed", 1 if end == "completed" else 2)


def test_ctrl_c_ends_the_wait_but_not_the_run(owner: Program, run_id: str, processes: Processes, plan: Plan):
    waiting = processes.start("resume", run_id, "--wait", "--offline")
    line_with(waiting.stderr, "Ctrl-C stops waiting")
    waiting.send_signal(signal.SIGINT)
    assert waiting.wait() == 130
    assert owner.poll() is None
    Path("go").touch()
    assert owner.wait() == 0
    assert plan("show", run_id, "--json").run["status"] == "completed"
