"""Tests of the README: its tour runs as written, with its files, commands and expected output."""

import asyncio
import os
import re
import shlex
import subprocess
from pathlib import Path

import pytest
from hatchling.metadata.core import ProjectMetadata
from hatchling.plugin.manager import PluginManager

from plan_adapter import PlanStore
from plan_adapter.model.record import PlanRun
from tests import installed
from tests.conftest import PrepareServer

README = Path(__file__).parent.parent / "README.md"
TOUR = README.read_text(encoding="utf-8").split("## Eight lines")[1].split("## The promise")[0]
BLOCK = re.compile(r"^```(?P<language>\w+)(?: file=(?P<file>\S+))?\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL)


def commands(text: str) -> list[tuple[str, list[str]]]:
    """Return the commands of a console block, each with its expected output lines."""
    found: list[tuple[str, list[str]]] = []
    for line in text.splitlines():
        if line.startswith("$ "):
            found.append((line[2:], []))
        else:
            found[-1][1].append(line)
    return found


def with_newest_run(command: str, home: Path) -> str:
    """Return `command` with the newest run for `RUN`, and its approval digest for `DIGEST`."""

    async def read() -> PlanRun:
        async with PlanStore(f"sqlite:///{home / 'plans.db'}") as store:
            return (await store.runs(limit=1))[0]

    if not re.search(r"\bRUN\b", command):
        return command
    run = asyncio.run(read())
    return re.sub(r"\bDIGEST\b", run.approval_digest, re.sub(r"\bRUN\b", run.id, command))


def test_the_tour_works_as_written(tmp_path: Path, prepare_server: PrepareServer) -> None:
    prepare_server(tmp_path / "home")
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith(("PREFECT_", "PLAN_ADAPTER_"))},
        "PATH": f"{installed.folder}{os.pathsep}{os.environ['PATH']}",
        "PLAN_ADAPTER_HOME": str(tmp_path / "home"),
    }
    ran = 0
    for block in BLOCK.finditer(TOUR):
        if block["file"]:
            (tmp_path / block["file"]).write_text(block["text"], encoding="utf-8")
            continue
        for written, expected in commands(block["text"]):
            command = with_newest_run(written, tmp_path / "home")
            done = subprocess.run(["bash", "-c", command], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
            printed = done.stdout + done.stderr
            assert done.returncode == 0, f"{command}\n{printed}"
            for line in expected:
                words = " ".join(line.split())
                assert words in " ".join(printed.split()), f"{command}\nlacks {words!r}:\n{printed}"
            ran += 1
    assert ran >= 9


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


@pytest.mark.parametrize("target", re.findall(r"\]\((?!https?:)([^)#]+)\)", README.read_text(encoding="utf-8")))
def test_every_link_has_a_target(target: str) -> None:
    assert (README.parent / target).exists()


def test_the_first_two_commands_are_makefile_targets() -> None:
    makefile = (README.parent / "Makefile").read_text(encoding="utf-8")
    console = README.read_text(encoding="utf-8").split("```console\n")[1].split("```")[0]
    targets = [shlex.split(line, comments=True)[1] for line in console.splitlines()]
    assert targets == ["demo", "test"]
    assert all(f"\n{target}:" in makefile for target in targets)
