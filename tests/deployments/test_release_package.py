"""Tests of the runbook release-package with a hatchling wheel, and an index behind a real web server."""

import functools
import hashlib
import sys
import urllib.request
import zipfile
from collections.abc import Iterator
from http.server import SimpleHTTPRequestHandler
from pathlib import Path

import pytest

from plan_adapter.store import PlanStatus
from tests.deployments.conftest import RunRunbook, served

PYPROJECT = """
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"
[project]
name = "Shop.Greeting"
version = "1.2.0"
requires-python = ">=3.11"
[tool.hatch.build.targets.wheel]
only-include = ["greeting"]
"""
WHEEL = "shop_greeting-1.2.0-py3-none-any.whl"


class Quiet(SimpleHTTPRequestHandler):
    """Serves a folder."""

    def log_message(self, *_arguments: object) -> None:
        """Say nothing."""


@pytest.fixture
def index(tmp_path: Path) -> Path:
    """Return an index that has one other package."""
    (tmp_path / "index" / "other").mkdir(parents=True)
    (tmp_path / "index" / "other" / "other-1.0-py3-none-any.whl").write_bytes(b"other")
    return tmp_path / "index"


@pytest.fixture
def url(index: Path) -> Iterator[str]:
    with served(functools.partial(Quiet, directory=str(index))) as url:  # type: ignore[arg-type]
        yield url


@pytest.fixture
def project(tmp_path: Path) -> Path:
    folder = tmp_path / "project"
    (folder / "greeting").mkdir(parents=True)
    (folder / "pyproject.toml").write_text(PYPROJECT)
    (folder / "greeting" / "__init__.py").write_text("def greet(name):\n    return f'你好, {name}'\n", encoding="utf-8")
    return folder


def contents(index: Path) -> dict[str, str]:
    """Return the digest of each file of the index."""
    return {str(path.relative_to(index)): hashlib.sha256(path.read_bytes()).hexdigest() for path in index.rglob("*") if path.is_file()}


def inputs(project: Path, index: Path, url: str) -> dict[str, object]:
    return {"project": str(project), "index": str(index), "url": url, "python": sys.executable}


async def test_a_wheel_is_built_and_served_by_the_index(run_runbook: RunRunbook, project: Path, index: Path, url: str) -> None:
    run = await run_runbook("release-package", **inputs(project, index, url))

    assert run.status is PlanStatus.COMPLETED, [(step.id, step.error) for step in run.steps]
    assert run.outputs == {"package": "shop-greeting", "version": "1.2.0"}
    with urllib.request.urlopen(f"{url}/shop-greeting/{WHEEL}") as answer:
        (project / "copy.whl").write_bytes(answer.read())
    assert "greeting/__init__.py" in zipfile.ZipFile(project / "copy.whl").namelist()
    assert sorted(path.name for path in index.iterdir()) == ["other", "shop-greeting"]


async def test_the_wheel_is_withdrawn_if_the_index_does_not_serve_it(run_runbook: RunRunbook, project: Path, index: Path, url: str) -> None:
    before = contents(index)

    run = await run_runbook("release-package", **inputs(project, index, f"{url}/other"))

    assert run.status is PlanStatus.PARTIAL
    assert "404" in (run.step("listed").error or "")
    assert (contents(index), [path.name for path in index.iterdir()]) == (before, ["other"])


async def test_a_package_that_cannot_be_imported_is_not_published(run_runbook: RunRunbook, project: Path, index: Path, url: str) -> None:
    (project / "greeting" / "__init__.py").write_text("import no_such_module\n")
    before = contents(index)

    run = await run_runbook("release-package", **inputs(project, index, url))

    assert "No module named 'no_such_module'" in (run.step("inspect").error or "")
    assert (contents(index), [path.name for path in index.iterdir()]) == (before, ["other"])


@pytest.mark.thorough
async def test_a_published_version_is_never_replaced(run_runbook: RunRunbook, project: Path, index: Path, url: str) -> None:
    (index / "shop-greeting").mkdir()
    (index / "shop-greeting" / WHEEL).write_bytes(b"published before")
    before = contents(index)

    run = await run_runbook("release-package", **inputs(project, index, url))

    assert "File exists" in (run.step("publish").error or "")
    assert contents(index) == before
