"""Tests of how two values are shown so that a person sees what differs between them."""

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plan_adapter.model.readable import difference, visible
from tests.cases import for_each

LONG = "the quick brown fox jumps over the lazy dog " * 30

CHANGES = {
    "at the end": (LONG + "safe", LONG + "evil"),
    "at the beginning": ("safe " + LONG, "evil " + LONG),
    "in the middle of one word": ("A" * 5000 + "x" + "B" * 5000, "A" * 5000 + "y" + "B" * 5000),
    "twice, far apart": (f"{LONG} one {LONG} two {LONG}", f"{LONG} 1 {LONG} 2 {LONG}"),
    "in a list": (["a" * 300, "stop"], ["a" * 300, "rm -rf /"]),
    "in a mapping in a list": ([{"k": "v" * 400, "n": 1}], [{"k": "v" * 400, "n": 2}]),
    "only added": (LONG, LONG + "&& rm -rf /"),
    "only removed": (LONG + "# dry run", LONG),
    "in Chinese": ("部署" * 300 + "测试", "部署" * 300 + "生产"),
    "a kind": ("1" * 300, int("1" * 15)),
    "a hidden character": (LONG + "wipe", LONG + "wi\u200bpe"),
}


@for_each(change=CHANGES)
def test_two_long_values_are_shown_by_what_differs(change: str) -> None:
    old, new = difference(*CHANGES[change])
    assert old != new
    assert max(len(old), len(new)) < 700
    assert (visible(old), visible(new)) == (old, new)


def test_the_changed_part_stands_in_its_context_and_what_is_equal_is_left_out() -> None:
    old, new = difference(LONG + "say safe now", LONG + "say evil now")
    assert (old, new) == ("…k brown fox jumps over the lazy dog say safe now", "…k brown fox jumps over the lazy dog say evil now")
    old, new = difference(*CHANGES["twice, far apart"])
    assert (old.count("…"), new.count("…")) == (3, 3)
    assert " one " in old and " two " in old and " 1 " in new and " 2 " in new


def test_every_change_of_many_is_shown() -> None:
    words = [f"word{number}" for number in range(400)]
    old, new = difference(" ".join(words), " ".join("evil" if number % 100 == 50 else word for number, word in enumerate(words)))
    assert [f"word{number}" in old for number in (50, 150, 250, 350)] == [True] * 4
    assert new.count("evil") == 4


def test_a_long_change_is_cut_in_its_middle_and_says_how_much_is_left_out() -> None:
    old, _ = difference("head " + "x" * 9000 + " tail", "head " + "y" * 9000 + " tail")
    assert old.startswith("head xxx") and old.endswith("xxx tail") and "more …" in old


def test_short_values_are_shown_whole() -> None:
    assert difference("safe", "evil") == ("safe", "evil")
    assert difference("1", 1) == ('"1"', "1")
    assert difference(["a"], ["a", "b"]) == ('["a"]', '["a", "b"]')


@pytest.mark.parametrize("last", ["e\u0301", "👩\u200d💻", "क्\u200dष"])
def test_no_character_is_cut_in_two(last: str) -> None:
    old, new = difference(last * 300 + "a", last * 300 + "b")
    for shown in (old, new):
        assert not unicodedata.category(shown.lstrip("…")[0]).startswith("M") and not shown.lstrip("…").startswith("\u200d")


@given(st.text(max_size=600), st.text(max_size=600), st.text(max_size=300), st.text(max_size=300))
def test_two_texts_are_shown_alike_only_if_they_are_equal(begin: str, end: str, one: str, other: str) -> None:
    old, new = difference(begin + one + end, begin + other + end)
    assert (visible(old), visible(new)) == (old, new)
    if one != other and begin + one + end != begin + other + end:
        assert old != new
