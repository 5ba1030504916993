"""The command line in this process, in a home of its own, without a server."""

import json
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from plan_adapter.cli.app import main
from plan_adapter.private_files import make_folder


@dataclass(frozen=True)
class Said:
    """What one command did."""

    code: int
    out: str
    err: str

    @property
    def lines(self) -> list[dict[str, Any]]:
        """The JSON objects of stdout."""
        return [json.loads(line) for line in self.out.splitlines()]

    @property
    def run(self) -> dict[str, Any]:
        """The last line of stdout: the run."""
        return self.lines[-1]


Plan = Callable[..., Said]


def digest_of(plan: Plan, run_id: str) -> str:
    """The approval digest of the plan that a run has now."""
    return plan("show", run_id, "--json").run["approval_digest"]


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, migrated_file: Path) -> Iterator[Path]:
    """A home, with an empty store, and a working folder of their own; no local server may be started."""
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
    """Runs `plan …` in this process."""

    def call(*arguments: str | Path) -> Said:
        capsys.readouterr()
        code = main([str(argument) for argument in arguments])
        said = capsys.readouterr()
        return Said(code, said.out, said.err)

    return call
