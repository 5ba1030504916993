import hashlib
import os
import resource
from pathlib import Path

import pytest

from plan_adapter.model.errors import ToolError
from plan_adapter.tools.files import READ_LIMIT, read_file, write_file


@pytest.fixture(autouse=True)
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    root = tmp_path / "root"
    root.mkdir()
    monkeypatch.setenv("PLAN_ADAPTER_FILES_ROOT", str(root))
    (tmp_path / "outside.txt").write_text("secret")
    return root


def test_a_written_file_can_be_read_back(root: Path) -> None:
    written = write_file("报告/a.txt", "第一行\n")
    digest = "sha256:" + hashlib.sha256("第一行\n".encode()).hexdigest()
    assert written == {"path": str(root / "报告/a.txt"), "size": 10, "digest": digest}
    assert read_file("报告/a.txt") == {**written, "text": "第一行\n"}
    assert read_file(str(root / "报告/a.txt"))["text"] == "第一行\n"


def test_values_other_than_text_are_written_as_json(root: Path) -> None:
    write_file("rows.json", [{"名": 1}])
    assert (root / "rows.json").read_text(encoding="utf-8") == '[\n  {\n    "名": 1\n  }\n]\n'


def test_the_root_defaults_to_the_current_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PLAN_ADAPTER_FILES_ROOT")
    monkeypatch.chdir(tmp_path)
    assert read_file("outside.txt")["text"] == "secret"


@pytest.mark.parametrize(
    "path", ["../outside.txt", "a/../../outside.txt", "/etc/passwd", "link.txt", "folder/outside.txt", "loop", ".", "", "a\0b", "x" * 300]
)
def test_paths_outside_the_root_are_refused(root: Path, tmp_path: Path, path: str) -> None:
    (root / "link.txt").symlink_to(tmp_path / "outside.txt")
    (root / "folder").symlink_to(tmp_path)
    (root / "loop").symlink_to(root / "loop")
    with pytest.raises(ToolError, match=r"does not lead to a file in|is not a valid path here"):
        read_file(path)
    with pytest.raises(ToolError, match=r"does not lead to a file in|is not a valid path here"):
        write_file(path, "x")
    assert (tmp_path / "outside.txt").read_text() == "secret"


def test_a_link_inside_the_root_is_followed(root: Path) -> None:
    (root / "real.txt").write_text("old")
    (root / "link.txt").symlink_to("real.txt")
    write_file("link.txt", "new")
    assert (root / "link.txt").is_symlink()
    assert (root / "real.txt").read_text() == "new"


def test_a_link_to_a_folder_inside_the_root_is_followed(root: Path) -> None:
    (root / "real" / "deep").mkdir(parents=True)
    (root / "alias").symlink_to("real/deep")
    (root / "root").symlink_to(root)
    assert write_file("alias/a.txt", "x")["path"] == str(root / "real/deep/a.txt")
    assert read_file("root/alias/../deep/a.txt")["text"] == "x"


def test_the_root_can_be_a_link(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "linked").symlink_to(root)
    monkeypatch.setenv("PLAN_ADAPTER_FILES_ROOT", str(tmp_path / "linked"))
    write_file("new/a.txt", "x")
    assert read_file(str(tmp_path / "linked/new/a.txt"))["path"] == str(root / "new/a.txt")


def test_a_write_creates_a_missing_root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PLAN_ADAPTER_FILES_ROOT", str(tmp_path / "not/yet"))
    assert write_file("a.txt", "x")["path"] == str(tmp_path / "not/yet/a.txt")


def test_an_existing_file_keeps_its_mode_and_a_new_one_follows_the_umask(root: Path) -> None:
    (root / "run.sh").write_text("")
    (root / "run.sh").chmod(0o750)
    write_file("run.sh", "#!/bin/sh\n")
    write_file("plain.txt", "")
    before = os.umask(0)
    os.umask(before)
    assert (root / "run.sh").stat().st_mode & 0o777 == 0o750
    assert (root / "plain.txt").stat().st_mode & 0o777 == 0o666 & ~before


def test_a_file_that_cannot_be_read_gives_a_clear_error(root: Path) -> None:
    (root / "binary").write_bytes(b"ab\xff")
    (root / "folder").mkdir()
    os.mkfifo(root / "pipe")
    with (root / "big").open("wb") as file:
        file.truncate(READ_LIMIT + 1)
    for path, message in {
        "binary": "binary is not UTF-8 text: byte 2 is 0xff",
        "folder": "is a folder",
        "pipe": "is not a regular file",
        "big": f"has {READ_LIMIT + 1} bytes; the limit is {READ_LIMIT}",
        "missing": "missing cannot be read in /\\S+: No such file or directory",
        "binary/x": "cannot be read in /\\S+: Not a directory",
    }.items():
        with pytest.raises(ToolError, match=message):
            read_file(path)


def test_a_folder_is_not_overwritten(root: Path) -> None:
    (root / "folder").mkdir()
    with pytest.raises(ToolError, match="is a folder"):
        write_file("folder", "x")


def test_a_failed_write_keeps_the_old_file_and_leaves_no_other_file(root: Path) -> None:
    write_file("a.txt", "old")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10, limits[1]))
    try:
        with pytest.raises(ToolError, match=r"a\.txt cannot be written in /\S+: File too large"):
            write_file("a.txt", "x" * 100)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert [path.name for path in root.iterdir()] == ["a.txt"]
    assert (root / "a.txt").read_text() == "old"
