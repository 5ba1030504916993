"""Tests of the runbook disk-full on real files."""

import os
import time
from pathlib import Path

import pytest

from plan_adapter.gates import ApprovalRequest
from plan_adapter.store import PlanStatus
from tests.deployments.conftest import RunRunbook

DAY = 86_400


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a folder with old and new files of several sizes."""
    folder = tmp_path / "logs"
    for name, size, days in (
        ("app/big 大.log", 3000, 40),
        ("app/middle'; rm -rf *.log", 2000, 40),
        ("small.log", 10, 40),
        ("new.log", 5000, 1),
    ):
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"x" * size)
        os.utime(path, (time.time() - days * DAY,) * 2)
    return folder


def inputs(folder: Path, **others: object) -> dict[str, object]:
    return {"folder": str(folder), "trash": str(folder.parent / "trash"), "count": 2, "wanted_mb": 1, **others}


def files(folder: Path) -> dict[str, tuple[int, float]]:
    """Return the size and the time of the last change of each file below a folder."""
    found = [path for path in folder.rglob("*") if path.is_file()]
    return {str(path.relative_to(folder)): (path.stat().st_size, path.stat().st_mtime) for path in found}


async def test_the_biggest_old_files_are_shown_and_moved(
    run_runbook: RunRunbook, folder: Path, tmp_path: Path, opened: list[ApprovalRequest]
) -> None:
    before = files(folder)

    run = await run_runbook("disk-full", **inputs(folder))

    assert run.status is PlanStatus.COMPLETED, [(step.id, step.error) for step in run.steps]
    moved = ["app/big 大.log", "app/middle'; rm -rf *.log"]
    assert run.outputs["files"] == moved
    assert files(tmp_path / "trash") == {name: before[name] for name in moved}
    assert sorted(files(folder)) == ["new.log", "small.log"]
    assert opened[-1].step_id == "move"
    assert all(name in opened[-1].text for name in ("3000", "big 大.log"))


async def test_every_file_is_moved_back_if_too_little_space_is_freed(run_runbook: RunRunbook, folder: Path, tmp_path: Path) -> None:
    before = files(folder)

    run = await run_runbook("disk-full", **inputs(folder, wanted_mb=10**12))

    assert run.status is PlanStatus.PARTIAL
    assert "done_when is not met" in (run.step("verify").error or "")
    assert (files(folder), files(tmp_path / "trash")) == (before, {})


async def test_the_other_files_are_moved_back_if_one_cannot_be_moved(run_runbook: RunRunbook, folder: Path, tmp_path: Path) -> None:
    before = files(folder)
    (tmp_path / "trash" / "app").mkdir(parents=True)
    (tmp_path / "trash" / "app" / "middle'; rm -rf *.log").write_text("from last week")

    run = await run_runbook("disk-full", **inputs(folder))

    assert run.status is PlanStatus.PARTIAL
    assert "empty the trash folder first" in (run.step("move").error or "")
    assert files(folder) == before
    assert (tmp_path / "trash" / "app" / "middle'; rm -rf *.log").read_text() == "from last week"


async def test_delete_removes_the_files_without_a_trash_folder(run_runbook: RunRunbook, folder: Path, tmp_path: Path) -> None:
    run = await run_runbook("disk-full", **inputs(folder, action="delete"))

    assert run.status is PlanStatus.COMPLETED, [(step.id, step.error) for step in run.steps]
    assert sorted(files(folder)) == ["new.log", "small.log"]
    assert not (tmp_path / "trash").exists()


async def test_a_file_list_that_is_too_long_for_the_gate_is_refused(run_runbook: RunRunbook, folder: Path) -> None:
    for number in range(40):
        path = folder / f"{'x' * 200}{number}"
        path.touch()
        os.utime(path, (0, 0))

    run = await run_runbook("disk-full", **inputs(folder, count=50))

    assert run.status is PlanStatus.FAILED
    assert "take fewer files" in (run.step("find").error or "")


async def test_a_trash_folder_inside_the_folder_is_refused(run_runbook: RunRunbook, folder: Path) -> None:
    run = await run_runbook("disk-full", **inputs(folder, trash=str(folder / "trash")))

    assert run.status is PlanStatus.FAILED
    assert "name a trash folder elsewhere" in (run.step("find").error or "")
