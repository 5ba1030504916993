"""Tests of the working copy of a file, which is saved completely or not at all."""

from pathlib import Path
from threading import Barrier, Thread
from typing import Any

import pytest

from plan_adapter.errors import ToolError
from plan_adapter.tools import ToolContext, WorkingCopy, working_copy
from tests.tools.examples import example


@pytest.fixture
def original(tmp_path: Path) -> Path:
    path = tmp_path / "周 计划.txt"
    path.write_bytes("一\n".encode())
    path.chmod(0o640)
    return path


def test_edits_are_not_visible_until_they_are_saved(original: Path, tmp_path: Path) -> None:
    copy = WorkingCopy.open(original, at=tmp_path / "work" / "run")
    assert (copy.path.read_bytes(), copy.path.stat().st_mode & 0o777) == (original.read_bytes(), 0o600)
    copy.path.write_text("二")
    assert original.read_text() == "一\n"
    assert (copy.save(), original.read_text(), original.stat().st_mode & 0o777) == (True, "二", 0o640)
    assert copy.save() is False
    copy.path.write_text("三")
    assert (copy.save(), original.read_text()) == (True, "三")


def test_a_reopened_copy_keeps_its_edits(original: Path, tmp_path: Path) -> None:
    WorkingCopy.open(original, at=tmp_path / "work").path.write_text("二")
    again = WorkingCopy.open(original, at=tmp_path / "work")
    assert again.path.read_text() == "二"
    assert (again.save(), original.read_text()) == (True, "二")


def test_a_save_does_not_overwrite_a_change_by_somebody_else(original: Path, tmp_path: Path) -> None:
    copy = WorkingCopy.open(original, at=tmp_path / "work")
    copy.path.write_text("二")
    original.write_text("不同")
    with pytest.raises(ToolError, match="changed after the working copy was made: nothing was saved"):
        copy.save()
    assert (original.read_text(), copy.path.read_text()) == ("不同", "二")


def test_a_folder_can_hold_the_copy_of_only_one_file(original: Path, tmp_path: Path) -> None:
    WorkingCopy.open(original, at=tmp_path / "work")
    other = tmp_path / "other.txt"
    other.write_text("x")
    with pytest.raises(ToolError, match=r"is of .*周 计划\.txt, not of .*other\.txt"):
        WorkingCopy.open(other, at=tmp_path / "work")


@pytest.mark.parametrize("writes", range(1, 5))
def test_a_process_killed_at_any_write_can_edit_and_save_again(
    original: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, writes: int
) -> None:
    class Killed(BaseException):
        pass

    made = [0]
    write_below = working_copy.write_below

    def write_or_die(*arguments: object, **options: object) -> None:
        made[0] += 1
        if made[0] == writes:
            raise Killed
        write_below(*arguments, **options)  # type: ignore[arg-type]

    def edit_and_save() -> bool:
        copy = WorkingCopy.open(original, at=tmp_path / "work")
        copy.path.write_text("二")
        return copy.save()

    monkeypatch.setattr(working_copy, "write_below", write_or_die)
    with pytest.raises(Killed):
        edit_and_save()
    assert original.read_text() == ("二" if writes == 4 else "一\n")
    assert edit_and_save() is (writes != 4)
    assert original.read_text() == "二"
    assert WorkingCopy.open(original, at=tmp_path / "work").save() is False


def test_one_of_two_concurrent_saves_is_refused(original: Path, tmp_path: Path) -> None:
    copies = [WorkingCopy.open(original, at=tmp_path / name) for name in ("a", "b")]
    start, ends = Barrier(2), list[str]()

    def save(copy: WorkingCopy) -> None:
        start.wait()
        try:
            copy.save()
            ends.append("saved")
        except ToolError:
            ends.append("refused")

    for number, copy in enumerate(copies):
        copy.path.write_text(f"{number}")
    threads = [Thread(target=save, args=(copy,)) for copy in copies]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(ends) == ["refused", "saved"]
    assert original.read_text() in ("0", "1")


def test_the_example_in_the_guide_edits_and_saves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, context: ToolContext) -> None:
    monkeypatch.chdir(tmp_path)
    Path("week.txt").write_text("Monday: maths")
    library: dict[str, Any] = {}
    exec(example("copy"), library)
    library["edit_week"]("Monday: 体育", context)
    assert Path("week.txt").read_text() == "Monday: maths"
    assert library["save_week"](context) is True
    assert Path("week.txt").read_text() == "Monday: 体育"
