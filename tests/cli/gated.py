"""A run that waits at its gate, and who answers there."""

import subprocess
from pathlib import Path
from typing import Any

import pytest

from plan_adapter.gates.approval import os_user
from tests.cli.conftest import Plan, Said
from tests.cli.test_run import GREET, NEEDS_APPROVAL, TOOLS, document

ME = os_user()


def waiting(plan: Plan, **fields: Any) -> str:
    """The id of a run that waits at its gate, with nobody there."""
    said = plan("run", document(GREET, **{**NEEDS_APPROVAL, **fields}), "--offline", "--json", *TOOLS)
    assert said.code == 6, said.err
    return said.run["id"]


def resumed(plan: Plan, run_id: str) -> Said:
    return plan("resume", run_id, "--offline", "--json", *TOOLS)


@pytest.fixture
def signer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Ana's key, which counts, as the one that is signed with."""
    key = tmp_path / "ana"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "", "-f", str(key)], check=True)
    allowed = tmp_path / "allowed"
    allowed.write_text(f"ana {key.with_suffix('.pub').read_text()}")
    monkeypatch.setenv("PLAN_ADAPTER_ALLOWED_SIGNERS", str(allowed))
    monkeypatch.setenv("PLAN_ADAPTER_SIGNING_KEY", str(key))
    return key
