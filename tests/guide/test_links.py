"""Tests of the links between pages, and of the contents of the site."""

from pathlib import Path

import pytest

from tests.guide import GUIDE, ROOT
from tests.guide.links import dead_links, pages


@pytest.mark.parametrize("page", pages(), ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_has_a_target(page: Path) -> None:
    assert list(dead_links(page)) == []


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("[gone](nope.md)", "nope.md is no file"),
        ("[folder](..)", ".. is no file"),
        ("[gone](#nope)", "#nope is no heading"),
        ("# Page\n\n```text\n# Not a heading\n```\n\n[gone](#not-a-heading)", "#not-a-heading is no heading"),
        ("read `plan guide nope`", "`plan guide nope` is no page"),
    ],
)
def test_a_link_without_a_target_is_found(tmp_path: Path, text: str, problem: str) -> None:
    page = tmp_path / "page.md"
    page.write_text(text, encoding="utf-8")
    assert list(dead_links(page)) == [problem]


def test_a_link_to_a_heading_is_found_by_the_anchor_of_github(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("# Groups: `for_each`, and more\n\n[here](#groups-for_each-and-more) and `[code](nope.md)`", encoding="utf-8")
    assert list(dead_links(page)) == []


def test_the_contents_of_the_site_have_every_page_of_the_guide_once() -> None:
    names: dict[str, object] = {"__file__": str(ROOT / ".ci/site/conf.py")}
    exec((ROOT / ".ci/site/conf.py").read_text(encoding="utf-8"), names)
    listed = [name for group in names["PAGES"].values() for name in group]  # type: ignore[attr-defined]
    assert sorted(listed) == sorted(page.relative_to(GUIDE).as_posix().removesuffix(".md") for page in GUIDE.rglob("*.md"))
