"""Tests of the order guard: which items moved, and how their order is restored."""

from dataclasses import dataclass

import pytest

from plan_adapter.tools import OrderGuard
from tests.tools.examples import example


@pytest.mark.parametrize(
    ("before", "after", "moved"),
    [
        ("abcd", "abcd", ""),
        ("abcd", "bcda", "a"),
        ("abcd", "dabc", "d"),
        ("abcd", "acbd", "c"),
        ("abcd", "xaybd", ""),
        ("abcd", "dcba", "dcb"),
        ("abc", "", ""),
        ("", "abc", ""),
        ("abcdef", "badcfe", "bdf"),
    ],
)
def test_the_order_guard_reports_as_few_moved_items_as_possible(before: str, after: str, moved: str) -> None:
    found = OrderGuard(before).check(after)
    assert len(found) == len(moved)
    rest = [name for name in after if name in before and name not in found]
    assert rest == sorted(rest)


@pytest.mark.parametrize(
    ("before", "now", "restored"),
    [("abc", "cab", "abc"), ("abc", "cxab", "axbc"), ("abcd", "dyb", "byd"), ("", "ab", "ab"), ("ab", "", ""), ("aba", "baa", "aba")],
)
def test_common_items_are_restored_and_all_others_stay(before: str, now: str, restored: str) -> None:
    guard = OrderGuard(before)
    assert "".join(guard.restored(now)) == restored
    assert guard.check(guard.restored(now)) == []


def test_items_are_recognized_by_their_key() -> None:
    @dataclass
    class Task:
        name: str
        day: int

    guard = OrderGuard([Task("数学", 1), Task("英语", 2)], key=lambda task: task.name)
    now = [Task("英语", 1), Task("体育", 2), Task("数学", 3)]
    assert guard.check(now) in ([now[0]], [now[2]])
    assert guard.restored(now) == [now[2], now[1], now[0]]


def test_the_example_in_the_guide_is_correct() -> None:
    exec(example("order"), {})
