"""Tests of the runbook ci-pipeline on a real git repository."""

import subprocess
import sys
from pathlib import Path

import pytest

from deployments.demo import make_repository
from plan_adapter import PlanRun
from plan_adapter.store import PlanStatus, StepStatus
from tests.deployments.conftest import RunRunbook


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PYTHON", sys.executable)
    return make_repository(tmp_path / "repository")


def git(repository: Path, *arguments: str) -> str:
    author = ["-c", "user.name=Ana", "-c", "user.email=ana@example.invalid"]
    return subprocess.run(["git", *author, *arguments], cwd=repository, check=True, capture_output=True, text=True).stdout.strip()


def statuses(run: PlanRun) -> dict[str, str]:
    return {step.id: step.status.value for step in run.steps}


async def test_it_builds_tests_and_releases_the_newest_commit(run_runbook: RunRunbook, repository: Path, tmp_path: Path) -> None:
    workspace = tmp_path / "workspace"

    run = await run_runbook("ci-pipeline", repository=str(repository), workspace=str(workspace))

    commit = git(repository, "rev-parse", "HEAD")
    assert run.status is PlanStatus.COMPLETED, run.steps
    assert run.outputs == {"commit": commit}
    assert (workspace / "released" / f"app-{commit}.pyz").is_file()
    assert [step.description for step in run.steps] == ["检出代码", "安装依赖", "构建项目", "代码检查", "运行测试", "部署到生产"]


async def test_it_deploys_only_after_build_lint_and_test(run_runbook: RunRunbook, repository: Path, tmp_path: Path) -> None:
    run = await run_runbook("ci-pipeline", repository=str(repository), workspace=str(tmp_path / "workspace"))

    assert set(run.step("deploy").depends_on) == {"checkout", "build", "lint", "test"}
    ended = {step.id: step.completed_at for step in run.steps}
    started = run.step("deploy").started_at
    assert started is not None
    assert all(at is not None and at <= started for step, at in ended.items() if step != "deploy")


async def test_a_second_run_reuses_the_same_workspace(run_runbook: RunRunbook, repository: Path, tmp_path: Path) -> None:
    inputs = {"repository": str(repository), "workspace": str(tmp_path / "workspace")}
    first = await run_runbook("ci-pipeline", **inputs)
    (repository / "app" / "greeting.py").write_text("def greet(name):\n    return 'Hello, ' + name + '!'\n", encoding="utf-8")
    git(repository, "commit", "--quiet", "--all", "--message", "Say it with a plus")

    second = await run_runbook("ci-pipeline", **inputs)

    assert second.status is PlanStatus.COMPLETED
    assert second.outputs["commit"] == git(repository, "rev-parse", "HEAD") != first.outputs["commit"]


async def test_a_broken_test_stops_the_deployment(run_runbook: RunRunbook, repository: Path, tmp_path: Path) -> None:
    (repository / "app" / "greeting.py").write_text("def greet(name):\n    return 'Goodbye'\n", encoding="utf-8")
    git(repository, "commit", "--quiet", "--all", "--message", "Say goodbye")
    workspace = tmp_path / "workspace"

    run = await run_runbook("ci-pipeline", repository=str(repository), workspace=str(workspace))

    assert run.status is PlanStatus.PARTIAL
    assert (run.step("test").status, run.step("deploy").status) == (StepStatus.FAILED, StepStatus.SKIPPED)
    assert "Goodbye" in (run.step("test").error or "")
    assert not (workspace / "released").exists()


@pytest.mark.thorough
async def test_an_unknown_branch_fails_the_checkout_and_starts_nothing_else(
    run_runbook: RunRunbook, repository: Path, tmp_path: Path
) -> None:
    run = await run_runbook("ci-pipeline", repository=str(repository), workspace=str(tmp_path / "workspace"), branch="no-such-branch")

    assert run.status is PlanStatus.FAILED
    assert "no-such-branch" in (run.step("checkout").error or "")
    assert {status for step, status in statuses(run).items() if step != "checkout"} == {"skipped"}


@pytest.mark.thorough
async def test_a_workspace_with_other_files_is_not_changed(run_runbook: RunRunbook, repository: Path, tmp_path: Path) -> None:
    letters = tmp_path / "letters"
    letters.mkdir()
    (letters / "Makefile").write_text("mine", encoding="utf-8")

    run = await run_runbook("ci-pipeline", repository=str(repository), workspace=str(letters))

    assert run.status is PlanStatus.FAILED
    assert "holds other files" in (run.step("checkout").error or "")
    assert [path.name for path in letters.iterdir()] == ["Makefile"]


async def test_input_text_is_never_run_as_a_command(run_runbook: RunRunbook, repository: Path, tmp_path: Path) -> None:
    for branch in ("main; touch pwned; $(touch pwned)", "--upload-pack=touch pwned"):
        run = await run_runbook("ci-pipeline", repository=str(repository), workspace=str(tmp_path / "workspace"), branch=branch)
        assert run.status is PlanStatus.FAILED
    assert not list(tmp_path.rglob("pwned"))
    assert not Path("pwned").exists()
