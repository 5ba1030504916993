"""Fixtures that run the command line in this process, with a separate home and without a server."""

import functools
import json
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import pytest
from jsonschema import Draft202012Validator

from plan_adapter.cli.app import main
from plan_adapter.cli.verbs.schema import output_schema
from plan_adapter.local.private_files import make_folder


@dataclass(frozen=True)
class CommandResult:
    """The exit code and output of one command."""

    code: int
    out: str
    err: str

    @property
    def lines(self) -> list[dict[str, Any]]:
        """Return the JSON objects on stdout, one per line."""
        return [json.loads(line) for line in self.out.splitlines()]

    @property
    def run(self) -> dict[str, Any]:
        """Return the JSON object on the last line of stdout: the run."""
        return self.lines[-1]

    @property
    def next(self) -> str:
        """Return the line in which `plan show` suggests the next command, or "" if it suggests none."""
        lines = self.out.splitlines(keepends=True)
        return next((line.removeprefix("  next: ") for line in lines if line.startswith("  next: ")), "")


Plan = Callable[..., CommandResult]

NO_LINES = ("schema", "export")
"""The verbs whose `--json` prints a schema or the record of a run."""


@functools.cache
def _validators() -> dict[str, Draft202012Validator]:
    """Return a validator for each type of line in `plan schema --json-output`."""
    types = cast("list[dict[str, Any]]", output_schema()["oneOf"])
    return {line_type["title"]: Draft202012Validator(line_type) for line_type in types}


def check_lines(text: str) -> None:
    """Assert that each line is an object of a type in `plan schema --json-output`, with the keys of that type and no others."""
    for line in text.splitlines():
        value = json.loads(line)
        errors = [error.message for error in _validators()[value["type"]].iter_errors(value)]
        assert not errors, (errors, value)


def digest_of(plan: Plan, run_id: str) -> str:
    """Return the approval digest of the current plan of a run."""
    return plan("show", run_id, "--json").run["approval_digest"]


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, migrated_file: Path) -> Iterator[Path]:
    """Use a temporary home with an empty store and a temporary working folder; starting a local server is forbidden."""
    for name in ("PLAN_ADAPTER_DATABASE_URL", "PLAN_ADAPTER_TOOLS", "NO_COLOR", "TERM"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PLAN_ADAPTER_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("PLAN_ADAPTER_LOCAL_SERVER", "never")
    make_folder(tmp_path / "home")
    shutil.copy(migrated_file, tmp_path / "home/plans.db")
    work = tmp_path / "work"
    work.mkdir()
    monkeypatch.chdir(work)
    yield tmp_path / "home"


@pytest.fixture
def plan(capsys: pytest.CaptureFixture[str]) -> Plan:
    """Return a function that runs `plan …` in this process."""

    def call(*arguments: str | Path) -> CommandResult:
        capsys.readouterr()
        code = main([str(argument) for argument in arguments])
        captured = capsys.readouterr()
        if "--json" in arguments and arguments[0] not in NO_LINES:
            check_lines(captured.out)
        return CommandResult(code, captured.out, captured.err)

    return call
