"""Tests of link races: a folder or file is swapped for a symbolic link while a built-in tool reads or writes it."""

import subprocess
import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path

import pytest

from plan_adapter.execution.results import ResultLimit
from plan_adapter.model.errors import StoreError, ToolError
from plan_adapter.tools.files import read_file, write_file

TRIES = 150
"""How many calls each test makes at least."""

EXCHANGE = """
import ctypes, os, sys
exchange = ctypes.CDLL(None).renameat2
one, other = (os.fsencode(path) for path in sys.argv[1:])
print(exchange(-100, one, -100, other, 2), flush=True)
while True:
    exchange(-100, one, -100, other, 2)
"""
"""Swaps two names in a loop, each time in one system call, so that neither name is ever missing."""


@contextmanager
def exchanging(one: Path, other: Path) -> Generator[None]:
    """Swap two names in another process for as long as the block lasts."""
    process = subprocess.Popen([sys.executable, "-c", EXCHANGE, str(one), str(other)], stdout=subprocess.PIPE)
    assert process.stdout is not None
    try:
        assert process.stdout.readline() == b"0\n"
        yield
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def outcomes(call: Callable[[int], str]) -> set[str]:
    """Return the findings of the calls, `refused` among them.

    On a busy machine the other process may do nothing during many calls, so the calls go on until the race went both ways.
    """
    found = set[str]()
    for number in range(100 * TRIES):
        if number >= TRIES and len(found) > 1:
            break
        try:
            found.add(call(number))
        except ToolError:
            found.add("refused")
    return found


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The files root. A folder next to it has the same names and other contents."""
    for folder, text in ((tmp_path / "root" / "in", "inside"), (tmp_path / "outside", "s3cret")):
        (folder / "deep").mkdir(parents=True)
        for path in (folder / "a.txt", folder / "deep" / "a.txt"):
            path.write_text(text)
    monkeypatch.setenv("PLAN_ADAPTER_FILES_ROOT", str(tmp_path / "root"))
    return tmp_path / "root"


@pytest.mark.parametrize(
    ("path", "exchanged"),
    [
        ("in/a.txt", "in"),
        pytest.param("in/deep/a.txt", "in", marks=pytest.mark.thorough),
        pytest.param("in/deep/a.txt", "in/deep", marks=pytest.mark.thorough),
        pytest.param("in/deep/../a.txt", "in", marks=pytest.mark.thorough),
        ("./in/deep/../deep/a.txt", "in/deep"),
        ("in/a.txt", "in/a.txt"),
    ],
)
def test_a_read_stays_inside_the_root_while_its_path_is_swapped_for_a_link(root: Path, tmp_path: Path, path: str, exchanged: str) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "outside" / exchanged.removeprefix("in").removeprefix("/"))
    with exchanging(root / exchanged, tmp_path / "link"):
        found = outcomes(lambda _: str(read_file(path)["text"]))
    assert found == {"inside", "refused"}, "the race is real, and nothing from outside was read"


@pytest.mark.parametrize(
    ("path", "exchanged"),
    [
        ("in/deep/new.txt", "in"),
        ("in/deep/new.txt", "in/deep"),
        pytest.param("in/new.txt", "in", marks=pytest.mark.thorough),
        pytest.param("in/made/by/new.txt", "in", marks=pytest.mark.thorough),
    ],
)
def test_a_write_stays_inside_the_root_while_its_folder_is_swapped_for_a_link(
    root: Path, tmp_path: Path, path: str, exchanged: str
) -> None:
    before = sorted((tmp_path / "outside").rglob("*"))
    (tmp_path / "link").symlink_to(tmp_path / "outside" / exchanged.removeprefix("in").removeprefix("/"))

    def write(number: int) -> str:
        write_file(path, str(number))
        return "written"

    with exchanging(root / exchanged, tmp_path / "link"):
        found = outcomes(write)
    assert found == {"written", "refused"}, "the race is real"
    assert sorted((tmp_path / "outside").rglob("*")) == before


def test_a_large_result_is_never_written_through_a_link(tmp_path: Path) -> None:
    (tmp_path / "outside").mkdir()
    (tmp_path / "results").mkdir()
    (tmp_path / "results" / "run").symlink_to(tmp_path / "outside")
    with pytest.raises(StoreError, match=r"cannot be written to .*/results/run is a symbolic link"):
        ResultLimit(10, tmp_path / "results").keep("x" * 100, run_id="run", name="step-1")
    assert list((tmp_path / "outside").iterdir()) == []


@pytest.mark.parametrize("name", ["step-1.json", "step-1.partial"])
def test_a_link_at_the_path_of_a_result_is_not_followed(tmp_path: Path, name: str) -> None:
    (tmp_path / "mine").write_text("mine")
    (tmp_path / "results" / "run").mkdir(parents=True)
    (tmp_path / "results" / "run" / name).symlink_to(tmp_path / "mine")
    ResultLimit(10, tmp_path / "results").keep("x" * 100, run_id="run", name="step-1")
    written = tmp_path / "results" / "run" / "step-1.json"
    assert (tmp_path / "mine").read_text() == "mine"
    assert not written.is_symlink() and written.stat().st_mode & 0o777 == 0o600
