"""Tests that a file of the current folder never replaces a library."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

PLAN = Path(sys.executable).with_name("plan")

SHADOWED = (
    *("anyio", "cyclopts", "griffe", "httpx", "plan_adapter", "pydantic", "rich", "sqlalchemy", "yaml"),
    *("asyncio", "concurrent", "inspect", "json", "pickle", "random", "socket", "sqlite3", "subprocess", "typing", "uuid"),
)
"""Modules that a run imports, from installed packages and the standard library."""

OWN_TOOLS = """\
from plan_adapter import tool

@tool(effect="read", isolation="process")
def fetch(url: str) -> int:
    import httpx
    return len(httpx.__version__)
"""

OWN_PLAN = """\
description: Fetch in a process of its own
options: {require_approval: false}
steps:
  - {id: own, tool_name: fetch, parameters: {url: "http://127.0.0.1:9"}, isolation: process}
  - {id: http, tool_name: http_get, parameters: {url: "http://127.0.0.1:9"}, on_error: continue, depends_on: [own]}
"""


def command(folder: Path, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run `plan` as a child process in `folder`."""
    environment = {**os.environ, "PLAN_ADAPTER_HOME": str(folder / "home"), **variables}
    return subprocess.run([PLAN, *arguments], cwd=folder, env=environment, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("tools_from", ["option", pytest.param("setting", marks=pytest.mark.thorough)])
def test_a_file_of_the_current_folder_never_replaces_a_library(tmp_path: Path, tools_from: str) -> None:
    for name in SHADOWED:
        mark = f"from pathlib import Path\nPath({str(tmp_path / 'hijacked')!r}).open('a').write({name!r} + ' ')\n"
        (tmp_path / f"{name}.py").write_text(mark, encoding="utf-8")
    (tmp_path / "own_tools.py").write_text(OWN_TOOLS, encoding="utf-8")
    (tmp_path / "plan.yaml").write_text(OWN_PLAN, encoding="utf-8")
    option = ("--tools", "own_tools:fetch") if tools_from == "option" else ()
    variables = {} if tools_from == "option" else {"PLAN_ADAPTER_TOOLS": "own_tools:fetch"}
    ran = command(tmp_path, "run", "plan.yaml", "--offline", *option, **variables)
    assert not (tmp_path / "hijacked").exists(), (tmp_path / "hijacked").read_text(encoding="utf-8")
    assert "own: completed" in ran.stderr, ran.stderr
