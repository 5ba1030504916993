"""Tests of the pytest plugin, which collects the cases of test files."""

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from plan_adapter import pytest_plugin
from tests.testing.conftest import RESTART, SHARED

ROOT = Path(__file__).parents[2]
pytest_plugins = ["pytester"]


def write(folder: Path, cases: str) -> None:
    folder.mkdir()
    (folder / "restart.yaml").write_text(RESTART, encoding="utf-8")
    (folder / "restart.test.yaml").write_text(SHARED + cases, encoding="utf-8")


def test_pytest_runs_each_case_and_shows_failures_and_problems(pytester: pytest.Pytester) -> None:
    write(pytester.path / "sound", "cases:\n  重启一个节点: {}\n  it fails: {expect: {order: [drain]}}\n")
    write(pytester.path / "invalid", "cases: {a: {expect: {ordr: [], gats: []}}}")
    (pytester.path / "prompts.test.yaml").write_text("- no plan is beside this file", encoding="utf-8")
    ended = pytester.runpytest_subprocess(
        "-v", "--continue-on-collection-errors", "--disable-plugin-autoload", "-p", pytest_plugin.__name__
    )
    out = ended.stdout.str()
    ended.assert_outcomes(passed=1, failed=1, errors=1)
    assert "sound/restart.test.yaml::重启一个节点 PASSED" in out
    assert 'expected: ["drain"]' in out
    assert "    restart  completed" in out
    assert "did you mean `order`?" in out
    assert "did you mean `gates`?" in out
    assert "Traceback" not in out


def test_a_session_without_test_files_imports_only_the_plugin() -> None:
    script = "import sys\nimport plan_adapter.pytest_plugin\nprint(*(name for name in sys.modules if name.startswith('plan_adapter')))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert set(done.stdout.split()) == {"plan_adapter", "plan_adapter.public_names", "plan_adapter.pytest_plugin"}


def test_the_entry_point_names_the_plugin() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert project["entry-points"]["pytest11"] == {"plan_adapter": pytest_plugin.__name__}
