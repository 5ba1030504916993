"""Tests of the runbook own-pipeline on this repository, including its uncommitted changes."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from plan_adapter.store import PlanStatus, StepStatus
from tests.deployments.conftest import RunRunbook

ROOT = Path(__file__).parents[2]


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """Return a new repository with every file of this one that git does not ignore."""
    listed = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(listed, cwd=ROOT, check=True, capture_output=True, text=True).stdout.split("\0")
    path = tmp_path / "repository"
    for name in names:
        if name and (ROOT / name).is_file():
            (path / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(ROOT / name, path / name)
    author = ["-c", "user.name=Ana", "-c", "user.email=ana@example.invalid", "-c", "commit.gpgsign=false"]
    for arguments in (
        ["init", "--quiet", "--initial-branch", "main"],
        ["add", "."],
        [*author, "commit", "--quiet", "--message", "All of it"],
    ):
        subprocess.run(["git", *arguments], cwd=path, check=True)
    return path


@pytest.mark.thorough
async def test_this_repository_passes_its_own_pipeline(run_runbook: RunRunbook, repository: Path, tmp_path: Path) -> None:
    run = await run_runbook(
        "own-pipeline",
        repository=str(repository),
        workspace=str(tmp_path / "workspace"),
        python=sys.executable,
        tests=["tests/model", "tests/test_layering.py"],
    )

    assert run.status is PlanStatus.COMPLETED, [(step.id, step.error) for step in run.steps]


@pytest.mark.thorough
async def test_a_broken_module_fails_the_pipeline_and_the_other_checks_still_run(
    run_runbook: RunRunbook, repository: Path, tmp_path: Path
) -> None:
    (repository / "plan_adapter" / "model" / "plan.py").write_text("def broken(:\n", encoding="utf-8")
    subprocess.run(["git", "-c", "user.name=Ana", "-c", "user.email=a@b.invalid", "commit", "-qam", "Break it"], cwd=repository, check=True)

    run = await run_runbook(
        "own-pipeline", repository=str(repository), workspace=str(tmp_path / "workspace"), python=sys.executable, tests=["tests/model"]
    )

    assert run.status is PlanStatus.PARTIAL
    ends = {step.id: step.status for step in run.steps}
    assert (ends["compile"], ends["test"]) == (StepStatus.FAILED, StepStatus.SKIPPED)
    assert {ends["lint"], ends["format"]} <= {StepStatus.FAILED, StepStatus.COMPLETED}
