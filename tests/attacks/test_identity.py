"""Nobody answers in the name of somebody else."""

import os
import pwd
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.attacks.commands import plan, written

ME = pwd.getpwuid(os.getuid()).pw_name
NAMES = ("LOGNAME", "USER", "LNAME", "USERNAME")
LIES = dict.fromkeys(NAMES, "ana") | {"SUDO_USER": "ana", "HOME_USER": "ana"}

STEP: dict[str, Any] = {"id": "show", "tool_name": "bash", "description": "Greet", "parameters": {"command": "echo hello"}}
PLAN: dict[str, Any] = {"name": "release", "description": "Release the site", "steps": [STEP]}
ANAS: dict[str, Any] = {**PLAN, "approval": {"approvers": ["ana"], "operators": [ME]}}


@pytest.mark.parametrize("names", [*((name,) for name in NAMES), NAMES], ids=[*NAMES, "all"])
def test_the_account_is_that_of_the_real_user_id_whatever_the_environment_says(names: tuple[str, ...]) -> None:
    code = "from plan_adapter.approval import os_user; print(os_user())"
    environment = {**os.environ, **dict.fromkeys(names, "mallory")}
    said = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert said.stdout.strip() == ME


def test_an_answer_or_request_in_the_name_of_another_account_is_refused(tmp_path: Path) -> None:
    begun = plan("run", written(tmp_path, ANAS), "--offline", "--json", cwd=tmp_path)
    assert begun.code == 6, begun.err
    run_id = begun.last["id"]
    for command in (("approve", run_id), ("approve", run_id, "--by", "ana"), ("reject", run_id), ("reject", run_id, "--by", "ana")):
        refused = plan(*command, "--json", cwd=tmp_path, **LIES)
        assert refused.code == (2 if "--by" in command else 6), refused.out + refused.err
    assert plan("show", run_id, "--json", cwd=tmp_path).last["status"] == "pending_approval"
    exported = plan("export", run_id, "--json", cwd=tmp_path)
    assert [row for row in exported.last["audit"] if row["by"] == "ana" and row["known_by"] == "os_user"] == []


def test_an_operator_is_the_real_account(tmp_path: Path) -> None:
    document = {**ANAS, "options": {"require_approval": False}, "approval": {"operators": ["ana"]}}
    refused = plan("run", written(tmp_path, document), "--offline", "--json", cwd=tmp_path, **LIES)
    assert refused.code == 6
    assert f"{ME} may not run" in refused.err


def test_who_started_a_run_is_the_real_account(tmp_path: Path) -> None:
    path = written(tmp_path, {**PLAN, "options": {"require_approval": False}})
    assert plan("run", path, "--offline", "--json", cwd=tmp_path, **LIES).last["requested_by"] == ME


def test_a_standing_approval_is_of_the_real_account(tmp_path: Path) -> None:
    path = written(tmp_path, PLAN)
    limits = ("--schedule", "release/nightly", "--runs", "1")
    given = plan("approve", "--standing", path, *limits, "--json", cwd=tmp_path, **LIES)
    assert (given.last["by"], given.last["known_by"]) == (ME, "os_user")
