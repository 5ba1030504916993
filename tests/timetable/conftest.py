"""Provides the timetable of a week with two events, and five tasks of three subjects that are not placed yet."""

from pathlib import Path

import pytest

from deployments.timetable import week
from tests.agent.conftest import configured, forget_model_servers, store

__all__ = ["configured", "forget_model_servers", "store"]


@pytest.fixture
def timetable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "week.db"
    week.create(path, events=week.EVENTS, tasks=week.TASKS)
    monkeypatch.setenv("TIMETABLE", str(path))
    return path


@pytest.fixture
def full(timetable: Path) -> Path:
    """Return the same timetable, with every task placed on the first two days."""
    for number, place in enumerate([(1, 2), (1, 3), (1, 4), (1, 5), (2, 1)]):
        week.place(number + 3, *place)
    return timetable
