"""Tests of the README: its tour runs as written, with its files, commands and expected output."""

import shlex
from pathlib import Path

import pytest
from hatchling.metadata.core import ProjectMetadata
from hatchling.plugin.manager import PluginManager

from tests.guide.typist import Typist

README = Path(__file__).parent.parent / "README.md"
TOUR = README.read_text(encoding="utf-8").split("## Eight lines")[1].split("## The promise")[0]


def test_the_tour_works_as_written(typist: Typist) -> None:
    assert len(typist.type_page(TOUR)) >= 9


@pytest.mark.parametrize(
    ("repository", "picture", "page"),
    [
        (None, "](plan_adapter/guide/gate.png)", "](plan_adapter/guide/plans.md)"),
        (
            "acme/plans",
            "](https://github.com/acme/plans/raw/main/plan_adapter/guide/gate.png)",
            "](https://github.com/acme/plans/blob/main/plan_adapter/guide/plans.md)",
        ),
    ],
)
def test_a_build_that_knows_its_repository_has_absolute_links(
    repository: str | None, picture: str, page: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("GITHUB_SERVER_URL", raising=False)
    monkeypatch.delenv("GITHUB_REPOSITORY", raising=False)
    if repository is not None:
        monkeypatch.setenv("GITHUB_REPOSITORY", repository)
    built = ProjectMetadata(str(README.parent), PluginManager()).core
    assert picture in built.readme and page in built.readme
    assert built.readme_content_type == "text/markdown"
    assert bool(built.urls) == (repository is not None)


def test_the_first_two_commands_are_makefile_targets() -> None:
    makefile = (README.parent / "Makefile").read_text(encoding="utf-8")
    console = README.read_text(encoding="utf-8").split("```console\n")[1].split("```")[0]
    targets = [shlex.split(line, comments=True)[1] for line in console.splitlines()]
    assert targets == ["demo", "test"]
    assert all(f"\n{target}:" in makefile for target in targets)
