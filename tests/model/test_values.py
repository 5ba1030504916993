"""Tests of JSON values: which are valid, and how invalid ones are reported."""

from typing import Any

import pytest

from plan_adapter.model.values import MAX_INTEGER, find_bad_values, join

CYCLE: list[Any] = []
CYCLE.append(CYCLE)


def nested(levels: int) -> list[Any]:
    tree: list[Any] = []
    for _ in range(levels - 1):
        tree = [tree]
    return tree


@pytest.mark.parametrize("value", [None, True, 0, MAX_INTEGER, -MAX_INTEGER, 1e21, 1e300, 0.5, "", "文\n\x1b", {"a": [{"b": ()}]}])
def test_valid_values_have_no_problems(value: object) -> None:
    assert find_bad_values(value) == []


def test_a_hundred_levels_are_valid() -> None:
    assert find_bad_values(nested(100)) == []


INVALID: dict[str, tuple[object, str, str]] = {
    "NaN": (float("nan"), "not-a-number", ""),
    "infinity in a list": ({"a": [0, float("-inf")]}, "not-a-number", "a[1]"),
    "a large integer": (MAX_INTEGER + 1, "too-large", ""),
    "a huge integer": (-(10**5000), "too-large", ""),
    "a float whose canonical form is a large integer": (2.0**53, "too-large", ""),
    "a surrogate": ("\udfff", "bad-text", ""),
    "NUL": ("a\0", "bad-text", ""),
    "NUL in Chinese": ("字\0", "bad-text", ""),
    "a surrogate in a key": ({"\ud800": 1}, "bad-text", "\ud800"),
    "a key of Prefect's": ({"a": {"__prefect_kind": "json"}}, "reserved-key", "a.__prefect_kind"),
    "a number as key": ({10**5000: 2}, "wrong-type", "<int>"),
    "a set": ({"a": {1, 2}}, "wrong-type", "a"),
    "bytes": (b"bytes", "wrong-type", ""),
    "an object": (object(), "wrong-type", ""),
    "101 levels": (nested(101), "too-deep", "[0]" * 100),
    "100,000 levels": (nested(100_000), "too-deep", "[0]" * 100),
    "a list that holds itself": (CYCLE, "too-deep", "[0]" * 100),
}


@pytest.mark.parametrize("name", INVALID)
def test_an_invalid_value_is_reported_with_its_path(name: str) -> None:
    value, code, at = INVALID[name]
    assert [(problem.code, problem.at) for problem in find_bad_values(value)] == [(code, at)]


def test_all_invalid_values_are_reported_with_keys_before_values() -> None:
    value = {"a": float("nan"), "__prefect": [2**60], "b": {"c": "\0"}}
    assert [problem.at for problem in find_bad_values(value, "steps[0]")] == [
        "steps[0].__prefect",
        "steps[0].a",
        "steps[0].__prefect[0]",
        "steps[0].b.c",
    ]


@pytest.mark.parametrize(("at", "key", "path"), [("", "a", "a"), ("a", "b", "a.b"), ("a", 0, "a[0]"), ("", 0, "[0]")])
def test_a_path_is_written_as_in_problems(at: str, key: str | int, path: str) -> None:
    assert join(at, key) == path
