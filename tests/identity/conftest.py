"""Fixtures of the identity tests: real keys made by ssh-keygen, and approval requests to sign."""

import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

from plan_adapter.gates.approval import approval_text_to_sign
from plan_adapter.gates.signatures import sign
from plan_adapter.local.settings import Settings
from plan_adapter.model.approvals import ApprovalRequest, Decision, GatePolicy


@dataclass(frozen=True)
class Key:
    """The key pair of one person."""

    path: Path

    @property
    def public(self) -> str:
        return self.path.with_suffix(".pub").read_text(encoding="utf-8").rsplit(maxsplit=1)[0]

    def signs(self, text: str) -> str:
        return sign(text, key=self.path)


def make_key(path: Path, *, passphrase: str = "", kind: str = "ed25519") -> Key:
    subprocess.run(["ssh-keygen", "-q", "-t", kind, "-N", passphrase, "-C", "a comment", "-f", str(path)], check=True, timeout=30)
    return Key(path)


@pytest.fixture(scope="session")
def ana(tmp_path_factory: pytest.TempPathFactory) -> Key:
    """The key of ana."""
    return make_key(tmp_path_factory.mktemp("keys") / "ana")


@pytest.fixture(scope="session")
def bo(tmp_path_factory: pytest.TempPathFactory) -> Key:
    """The key of bo."""
    return make_key(tmp_path_factory.mktemp("keys") / "bo")


@pytest.fixture
def allowed(tmp_path: Path, ana: Key, bo: Key) -> Path:
    """The file of allowed signers: ana and bo."""
    path = tmp_path / "allowed_signers"
    path.write_text(f"# who may sign\nana {ana.public}\nbo {bo.public}\n", encoding="utf-8")
    return path


@pytest.fixture
def settings(allowed: Path) -> Settings:
    """Settings with the file of allowed signers."""
    return Settings(allowed_signers=allowed)


def request_at(
    *, gate_id: str = "gate-1", run_id: str = "run-1", digest: str = "d" * 64, gate_policy: GatePolicy | None = None
) -> ApprovalRequest:
    return ApprovalRequest(
        digest, "restart", "Restart a node", "text", run_id=run_id, gate_id=gate_id, gate_policy=gate_policy or GatePolicy()
    )


def text_of(request: ApprovalRequest, decision: Decision = "approve") -> str:
    assert request.run_id is not None
    assert request.gate_id is not None
    return approval_text_to_sign(approval_digest=request.approval_digest, decision=decision, run_id=request.run_id, gate_id=request.gate_id)
