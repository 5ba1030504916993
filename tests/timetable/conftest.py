"""A timetable of a week: two events, and five tasks of three subjects that have no place yet."""

from pathlib import Path

import pytest

from tests.timetable import week


@pytest.fixture
def timetable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "week.db"
    week.create(
        path,
        events=[("体育课", 1, 1), ("班会", 3, 2)],
        tasks=[("高数作业", "数学"), ("英语阅读", "英语"), ("高数复习", "数学"), ("物理实验", "物理"), ("英语听力", "英语")],
    )
    monkeypatch.setenv("TIMETABLE", str(path))
    return path


@pytest.fixture
def full(timetable: Path) -> Path:
    """The same, with every task in a place of the first day or two."""
    for number, place in enumerate([(1, 2), (1, 3), (1, 4), (1, 5), (2, 1)]):
        week.place(number + 3, *place)
    return timetable
