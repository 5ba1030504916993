"""Tests that the compatibility page, the metadata, the lock, the workflows and the changelog name the same versions."""

import re
import tomllib
from pathlib import Path

import yaml

from plan_adapter.cli.exit_codes import ExitCode
from plan_adapter.engine.diagnosis import TESTED_PREFECT
from tests.matrix import PYTHONS

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "plan_adapter/guide/compatibility.md").read_text(encoding="utf-8")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
CHANGELOG = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")


def workflow(name: str) -> dict[str, object]:
    return yaml.safe_load((ROOT / ".github" / "workflows" / f"{name}.yaml").read_text(encoding="utf-8"))


def test_the_page_names_the_tested_versions() -> None:
    assert f"| Prefect | {', '.join(TESTED_PREFECT)}: each as client with each as server" in PAGE
    assert f"| Python | {', '.join(PYTHONS)} |" in PAGE


def test_the_oldest_and_the_newest_tested_prefect_are_the_floor_and_the_lock() -> None:
    assert f"prefect>={TESTED_PREFECT[0]},<4" in PROJECT["dependencies"]
    assert f"prefect=={TESTED_PREFECT[-1]}\n" in (ROOT / "requirements.lock").read_text(encoding="utf-8")


def test_every_tested_python_is_a_classifier_and_a_job() -> None:
    classified = [text.rpartition(" ")[2] for text in PROJECT["classifiers"] if re.fullmatch(r"Programming Language .* 3\.\d+", text)]
    assert tuple(classified) == PYTHONS
    tests = (ROOT / ".github/workflows/tests.yaml").read_text(encoding="utf-8")
    assert f"python: {list(PYTHONS)}".replace("'", '"') in tests
    assert "- run: .ci/run\n" in tests
    assert set(workflow("release")["jobs"]) == {"build", "publish"}  # type: ignore[call-overload]


def test_the_changelog_has_the_version_and_what_is_not_released() -> None:
    assert re.findall(r"^## \[(.+?)\]", CHANGELOG, re.MULTILINE)[:2] == ["Unreleased", PROJECT["version"]]


def test_the_page_has_every_exit_code() -> None:
    line = next(line for line in PAGE.splitlines() if line.startswith("Exit codes: "))
    assert [int(code) for code in re.findall(r"\b\d+\b", line)] == sorted(ExitCode)
