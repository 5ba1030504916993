"""Tests of `plan resolve` under a policy that requires a signature or a one-time code."""

import subprocess
from pathlib import Path
from typing import Any

import pytest

from plan_adapter.gates.approval import os_user
from tests.cli.conftest import Plan
from tests.cli.gated import signer
from tests.cli.test_run import TOOLS, document, step
from tests.exports import document_of

__all__ = ["signer"]

LOST = step("lost", "get_lost")
SIGNED: dict[str, Any] = {"approvers": ["ana"], "known_by": ["ssh_signature"]}

pytestmark = pytest.mark.usefixtures("signer")


def lost(plan: Plan, **options: Any) -> str:
    """Return the id of a run that ended with an unknown outcome."""
    result = plan("run", document(LOST, **{"approval": SIGNED, **options}), *TOOLS, "--offline", "--json")
    assert result.code == 7, result.err
    return result.run["id"]


def audit(plan: Plan, run_id: str) -> list[dict[str, Any]]:
    return document_of(plan("export", run_id).out)["audit"]


def test_a_signed_resolution_is_accepted_and_its_signature_is_kept(plan: Plan) -> None:
    run_id = lost(plan)
    refused = plan("resolve", run_id, "lost", "done")
    hint = f"use `plan resolve {run_id} lost done` with --sign and --by NAME"
    assert (refused.code, f"{os_user()} may not answer here; only ana may; {hint}" in refused.err) == (10, True)
    assert "--by alone proves nothing" in plan("resolve", run_id, "lost", "done", "--by", "ana").err
    result = plan("resolve", run_id, "lost", "done", "--sign", "--by", "ana", "--result", '{"版本": 3}', "--note", "看过了")
    assert (result.code, f"`plan resume {run_id} --offline` resumes the run" in result.err) == (0, True), result.err
    entries = audit(plan, run_id)
    assert [entry["kind"] for entry in entries].count("refused") == 1
    [signature] = [entry for entry in entries if entry["kind"] == "signed"]
    assert (signature["step_id"], signature["by"], signature["known_by"]) == ("lost", "ana", "ssh_signature")
    assert signature["message"].startswith("-----BEGIN SSH SIGNATURE-----")
    assert plan("verify", run_id).code == 0
    resumed = plan("resume", run_id, *TOOLS, "--offline", "--json")
    assert (resumed.code, resumed.run["steps"][0]["result"]) == (0, {"版本": 3})


def test_a_resolution_of_a_step_done_by_hand_is_signed_too(plan: Plan, tmp_path: Path) -> None:
    failing = document(step("fail", "fail"), approval=SIGNED)
    run_id = plan("run", failing, *TOOLS, "--offline", "--json").run["id"]
    refused = plan("resolve", run_id, "fail", "done")
    assert (refused.code, f"use `plan resolve {run_id} fail done` with --sign and --by NAME" in refused.err) == (10, True)
    stranger = tmp_path / "stranger"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(stranger)], check=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PLAN_ADAPTER_SIGNING_KEY", str(stranger))
        assert plan("resolve", run_id, "fail", "done", "--sign", "--by", "ana").code == 10
    assert plan("resolve", run_id, "fail", "done", "--sign", "--by", "ana").code == 0
    again = plan("resolve", run_id, "fail", "done", "--sign", "--by", "ana")
    assert (again.code, "has succeeded: there is nothing to resolve" in again.err) == (8, True)
    assert plan("resume", run_id, *TOOLS, "--offline").code == 0


def test_a_one_time_code_needs_an_enrolled_account(plan: Plan) -> None:
    result = plan("resolve", lost(plan, approval={"known_by": ["totp"]}), "lost", "again", "--code", "123456")
    assert (result.code, f"{os_user()} has no one-time codes" in result.err) == (10, True)
