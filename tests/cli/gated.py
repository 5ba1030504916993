"""Helpers for runs that wait at their gate, and for signed answers."""

import subprocess
from pathlib import Path
from typing import Any

import pytest

from plan_adapter.gates.approval import os_user
from tests.cli.conftest import CommandResult, Plan
from tests.cli.test_run import GREET, NEEDS_APPROVAL, TOOLS, document

ME = os_user()


def waiting(plan: Plan, **fields: Any) -> str:
    """Return the id of a run that waits at its plan gate and that no process attends."""
    result = plan("run", document(GREET, **{**NEEDS_APPROVAL, **fields}), "--offline", "--json", *TOOLS)
    assert result.code == 6, result.err
    return result.run["id"]


def approve_what_was_shown(plan: Plan, *options: str) -> CommandResult:
    """Approve at the only open gate, with the command that `plan gates` prints for it."""
    (gate,) = plan("gates", "--json").lines
    return plan(*gate["command"].split()[1:], *options)


def resumed(plan: Plan, run_id: str) -> CommandResult:
    return plan("resume", run_id, "--offline", "--json", *TOOLS)


@pytest.fixture
def signer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make ana an allowed signer, sign with her key, and return the path of the key."""
    key = tmp_path / "ana"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "", "-f", str(key)], check=True)
    allowed = tmp_path / "allowed"
    allowed.write_text(f"ana {key.with_suffix('.pub').read_text()}")
    monkeypatch.setenv("PLAN_ADAPTER_ALLOWED_SIGNERS", str(allowed))
    monkeypatch.setenv("PLAN_ADAPTER_SIGNING_KEY", str(key))
    return key
