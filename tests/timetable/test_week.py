"""Tests of the timetable's tools without a plan."""

from pathlib import Path

import pytest

from deployments.timetable import week
from deployments.timetable.week import Move
from plan_adapter.errors import ToolError

pytestmark = pytest.mark.usefixtures("timetable")


def places() -> dict[str, tuple[int | None, int | None]]:
    return {row["name"]: (row["day"], row["slot"]) for row in week.items() if not row["fixed"]}


def test_a_task_can_be_placed_moved_and_unplaced() -> None:
    assert week.get_overview() == {"free": {"1": 5, "2": 6, "3": 5, "4": 6, "5": 6, "6": 6, "7": 6}, "placed": 0, "pending": 5}
    assert week.place(3, 1, 2)["name"] == "高数作业"
    assert week.query_range(1) == [week.get_task_info(1), week.get_task_info(3)]
    assert {"day": 1, "slot": 2} not in week.find_free(1)
    week.move(3, 2, 6)
    assert [row["name"] for row in week.list_tasks("placed")] == ["高数作业"]
    week.unplace(3)
    assert week.get_overview()["pending"] == 5


@pytest.mark.parametrize(
    ("call", "why"),
    [
        (lambda: week.place(3, 1, 1), "taken by 体育课"),
        (lambda: week.place(3, 8, 1), "day 8, slot 1 does not exist"),
        (lambda: week.place(9, 1, 2), "there is no task 9"),
        (lambda: week.place(1, 1, 2), "体育课 is an event"),
        (lambda: week.move(3, 1, 2), "has no place yet: use `place`"),
        (lambda: week.unplace(4), "has no place yet"),
        (lambda: week.swap(3, 1), "has no place yet"),
    ],
)
def test_an_impossible_change_is_refused_with_the_reason_and_changes_nothing(call: object, why: str) -> None:
    before = week.items()
    with pytest.raises(ToolError, match=why):
        call()  # pyright: ignore[reportCallIssue]
    assert week.items() == before


def test_tasks_can_be_swapped_and_a_batch_moves_completely_or_not_at_all(full: Path) -> None:
    week.swap(3, 7)
    assert (places()["高数作业"], places()["英语听力"]) == ((2, 1), (1, 2))
    week.batch_move([Move(task=4, day=1, slot=4), Move(task=5, day=1, slot=3)])
    assert (places()["英语阅读"], places()["高数复习"]) == ((1, 4), (1, 3))
    before = places()
    with pytest.raises(ToolError, match="taken by 班会"):
        week.batch_move([Move(task=4, day=6, slot=1), Move(task=5, day=3, slot=2)])
    assert places() == before


def test_tasks_are_grouped_by_subject_within_the_same_slots(full: Path) -> None:
    before, switched = set(places().values()), week.switches()
    week.min_context_switch()
    assert set(places().values()) == before
    assert week.switches() < switched
    assert week.get_order() == ["高数作业", "高数复习", "英语阅读", "英语听力", "物理实验"]


def test_tasks_are_spread_over_the_days_and_events_stay(full: Path) -> None:
    events = [row for row in week.items() if row["fixed"]]
    order = week.get_order()
    week.spread_even()
    assert sorted(day for day, _ in places().values() if day) == [1, 2, 3, 4, 5]
    assert [row for row in week.items() if row["fixed"]] == events
    assert week.check_order(order) == {"kept": True, "moved": []}


def test_logic_ids_stay_the_same_when_tasks_move(full: Path) -> None:
    logic = [row["logic_id"] for row in week.items()]
    assert logic == ["event:101", "event:102", *(f"task_item:{number}" for number in range(103, 108))]
    week.min_context_switch()
    assert [row["logic_id"] for row in week.items()] == logic


def test_restoring_the_order_does_not_move_tasks_placed_since(full: Path) -> None:
    week.unplace(4)
    before = week.get_order()
    week.swap(3, 6)
    week.place(4, 7, 6)
    slots = sorted(places().values())
    assert week.check_order(before)["kept"] is False
    assert week.restore_order(before) == {"kept": True, "moved": []}
    assert places()["英语阅读"] == (7, 6)
    assert sorted(places().values()) == slots


def test_only_tools_that_reorder_need_the_permission() -> None:
    assert [tool.name for tool in week.TOOLS if week.ALLOW_REORDER in tool.permissions] == ["min_context_switch", "spread_even"]
