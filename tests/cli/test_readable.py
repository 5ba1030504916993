"""Values as people read them, and texts that cannot hide or break out."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plan_adapter.readable import as_text, code, duration, fenced, one_line, prose, visible


@pytest.mark.parametrize(
    ("ms", "text"),
    [
        (0, "0 ms"),
        (350, "350 ms"),
        (2500, "2.5 s"),
        (59_940, "59.9 s"),
        (60_000, "1 min"),
        (125_000, "2 min 5 s"),
        (3_780_000, "1 h 3 min"),
        (90_000_000, "1 d 1 h"),
    ],
)
def test_a_duration_is_told_in_its_two_largest_units(ms: float, text: str) -> None:
    assert duration(ms) == text


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("部署到生产环境", "部署到生产环境"),
        ("red \x1b[31m", r"red \x1b[31m"),
        ("a\u202eb", r"a\u202eb"),
        ("two\nlines\tand a tab", "two\nlines\tand a tab"),
        ("over\rwritten", r"over\x0dwritten"),
        ("👩‍💻", "👩‍💻"),
    ],
)
def test_characters_that_could_hide_text_are_shown(text: str, shown: str) -> None:
    assert visible(text) == shown


@given(st.text())
def test_one_line_is_one_line(text: str) -> None:
    assert len(one_line(text).splitlines()) <= 1


@given(st.text())
def test_inline_code_is_closed_by_nothing_inside_it(text: str) -> None:
    shown = code(text)
    ticks = len(shown) - len(shown.lstrip("`"))
    assert "`" * ticks not in shown[ticks:-ticks]


@given(st.text())
def test_a_fence_is_closed_by_nothing_inside_it(text: str) -> None:
    first, *inside, last = fenced(text).split("\n")
    assert first == last
    assert not any(line.strip() == last for line in inside)


def test_prose_is_not_interpreted_as_markdown_or_html() -> None:
    assert prose("# no heading <script> ![x](y)\n\n- item") == r"\# no heading \<script> !\[x\](y) - item"
    assert prose("``` open") == r"\``` open"
    assert prose("`b` failed & *that* is my_text") == r"`b` failed & *that* is my_text"


@pytest.mark.parametrize(
    ("value", "text"),
    [("web-1", "web-1"), ("5", '"5"'), (5, "5"), ("true", '"true"'), (True, "true"), ("", '""'), ("两个 词", "两个 词"), ([1], "[1]")],
)
def test_text_stands_without_quotes_where_nothing_else_reads_so(value: object, text: str) -> None:
    assert as_text(value) == text
