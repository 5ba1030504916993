"""A test of `make demo` without its pauses."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from plan_adapter.engine.connection import Server
from plan_adapter.gates.approval import os_user

ROOT = Path(__file__).parents[2]


@pytest.mark.usefixtures("prefect_server")
def test_the_demo_answers_its_own_gate_and_completes(prefect_server: Server, tmp_path: Path) -> None:
    environment = {
        **os.environ,
        "PAUSE": "0",
        "TMPDIR": str(tmp_path),
        "PREFECT_API_URL": prefect_server.api_url,
        "PREFECT_UI_URL": prefect_server.ui_url or "",
    }

    ended = subprocess.run([sys.executable, "deployments/demo.py"], cwd=ROOT, env=environment, capture_output=True, text=True, check=False)

    assert ended.returncode == 0, ended.stderr
    assert ": Completed in " in ended.stdout
    assert f"{prefect_server.ui_url}" in ended.stderr
    assert "the demo answers by itself:\n$ plan approve " in ended.stderr
    assert f"the plan: approved by {os_user()} (os_user): the demo answers by itself" in ended.stderr
    assert len(list(tmp_path.glob("plan-demo-*/workspace/released/app-*.pyz"))) == 1
