"""Tests of the runbook dependency-upgrade on a project that installs its dependencies from a folder."""

import sys
from pathlib import Path

import pytest

from plan_adapter.gates import ApprovalRequest
from plan_adapter.store import PlanStatus
from tests.deployments.conftest import RunRunbook, require_programs

REQUIREMENTS = "# 固定的版本\ngreeting-extra==1.0\ngreeting==1.0\n"
MAKEFILE = """
install:
	rm -rf lib && mkdir lib
	cp packages/`sed -n 's/^greeting==/greeting-/p' requirements.txt`.py lib/greeting.py
test:
	PYTHONPATH=lib $(PYTHON) -S -B -c 'import greeting; assert greeting.greet("Ana") == "Hello Ana", greeting.greet("Ana")'
"""
VERSIONS = {"1.0": "'Hello ' + name", "1.1": "f'Hello {name}'", "2.0": "'Goodbye ' + name"}


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a project in the current folder that has `greeting` 1.0 installed."""
    require_programs("make")
    monkeypatch.setenv("PYTHON", sys.executable)
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "project"
    (folder / "packages").mkdir(parents=True)
    (folder / "requirements.txt").write_text(REQUIREMENTS, encoding="utf-8")
    (folder / "Makefile").write_text(MAKEFILE)
    for version, expression in VERSIONS.items():
        (folder / "packages" / f"greeting-{version}.py").write_text(f"def greet(name):\n    return {expression}\n")
    (folder / "lib").mkdir()
    (folder / "lib" / "greeting.py").write_bytes((folder / "packages" / "greeting-1.0.py").read_bytes())
    return folder


def state(project: Path) -> tuple[str, str]:
    """Return what the project pins and what is installed."""
    return (project / "requirements.txt").read_text(encoding="utf-8"), (project / "lib" / "greeting.py").read_text()


async def test_a_version_that_passes_the_tests_is_kept(run_runbook: RunRunbook, project: Path, opened: list[ApprovalRequest]) -> None:
    run = await run_runbook("dependency-upgrade", project="project", package="greeting", version="1.1")

    assert run.status is PlanStatus.COMPLETED, [(step.id, step.error) for step in run.steps]
    pinned, installed = state(project)
    assert pinned == "# 固定的版本\ngreeting-extra==1.0\ngreeting==1.1\n"
    assert "f'Hello {name}'" in installed
    assert (opened[-1].step_id, "greeting==1.1" in opened[-1].text) == ("change", True)


async def test_the_old_version_is_restored_if_the_tests_fail(run_runbook: RunRunbook, project: Path) -> None:
    before = state(project)

    run = await run_runbook("dependency-upgrade", project="project", package="greeting", version="2.0")

    assert run.status is PlanStatus.PARTIAL
    assert "Goodbye Ana" in (run.step("test").error or "")
    assert state(project) == before


async def test_the_old_version_is_restored_if_the_new_one_cannot_be_installed(run_runbook: RunRunbook, project: Path) -> None:
    before = state(project)

    run = await run_runbook("dependency-upgrade", project="project", package="greeting", version="9.9")

    assert "greeting-9.9" in (run.step("install").error or "")
    assert state(project) == before


async def test_nothing_changes_if_the_tests_failed_before_or_the_package_is_not_pinned(run_runbook: RunRunbook, project: Path) -> None:
    before = state(project)
    run = await run_runbook("dependency-upgrade", project="project", package="farewell", version="1.1")
    assert run.step("before").error is not None
    (project / "packages" / "greeting-1.0.py").write_text("def greet(name):\n    return 'Goodbye'\n")
    (project / "lib" / "greeting.py").write_text("broken = True\n")
    run = await run_runbook("dependency-upgrade", project="project", package="greeting", version="1.1")
    assert "greet" in (run.step("baseline").error or "")
    assert state(project) == (before[0], "broken = True\n")
