"""`read_file` and `write_file`: text files below one folder, which neither `..` nor a link can leave, and the folder access behind them."""

import difflib
import hashlib
import json
import os
import stat
import uuid
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from pydantic import JsonValue
from typing_extensions import TypedDict

from plan_adapter.local.settings import Settings
from plan_adapter.model.errors import ToolError
from plan_adapter.tools.probing import Simulation
from plan_adapter.tools.tool import tool

_FOLDER = getattr(os, "O_PATH", os.O_RDONLY) | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


@contextmanager
def open_below(root: Path, place: Path) -> Generator[IO[bytes]]:
    """Yield the open file at `place`, below `root`. Both must be free of links and of `..`: nothing here refuses `..`.

    Raises OSError, and ToolError for anything that is not a regular file.
    """
    with _open_folder(root, place, create_mode=None) as folder:
        # Non-blocking, because opening a named pipe would wait for its writer forever.
        file = os.open(place.name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
    try:
        status = os.fstat(file)
        if not stat.S_ISREG(status.st_mode):
            raise ToolError(f"{place} is {'a folder' if stat.S_ISDIR(status.st_mode) else 'not a regular file'}")
        with os.fdopen(file, "rb", closefd=False) as opened:
            yield opened
    finally:
        os.close(file)


@contextmanager
def cannot(what: str) -> Generator[None]:
    """Raise a ToolError that starts with `what` for an OSError."""
    try:
        yield
    except OSError as error:
        raise ToolError(f"{what}: {error.strerror}") from error


def read_below(root: Path, place: Path, *, limit: int) -> bytes:
    """Return the content of the file at `place`, as `open_below` finds it. Raises ToolError if it has more bytes than `limit`."""
    with open_below(root, place) as file:
        size = os.fstat(file.fileno()).st_size
        if size > limit:
            raise ToolError(f"{place} has {size} bytes; the limit is {limit}; pass on its path instead")
        return file.read(limit)


def write_below(root: Path, place: Path, content: bytes, *, mode: int | None = None, folder_mode: int = 0o777) -> None:
    """Write `content` to the file at `place`, as `replace_below` does."""
    with replace_below(root, place, mode=mode, folder_mode=folder_mode) as file:
        file.write(content)


@contextmanager
def replace_below(root: Path, place: Path, *, mode: int | None = None, folder_mode: int = 0o777) -> Generator[IO[bytes]]:
    """Yield a new file that takes the place of the one at `place`, below `root`, atomically and durably, unless an exception is raised.

    Both must be free of links and of `..`: nothing here refuses `..`.

    Missing folders are created with `folder_mode`. The file gets `mode`, or if that is None, the mode of the existing file or what the
    umask allows a new one. Raises OSError, and ToolError for a folder.
    """
    root.mkdir(parents=True, exist_ok=True, mode=folder_mode)
    with _open_folder(root, place, create_mode=folder_mode) as folder:
        found = _mode_of(folder, place)
        kept = found if mode is None else mode
        partial = f".{uuid.uuid4().hex}.partial"
        file = os.open(
            partial, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666 if mode is None else mode, dir_fd=folder
        )
        try:
            with os.fdopen(file, "w+b") as opened:
                if kept is not None:
                    os.fchmod(file, kept)
                yield opened
                opened.flush()
                os.fsync(file)
            os.replace(partial, place.name, src_dir_fd=folder, dst_dir_fd=folder)
        except BaseException:
            os.unlink(partial, dir_fd=folder)
            raise
        _sync_folder(folder)  # so that the name is on disk as well


@contextmanager
def _open_folder(root: Path, place: Path, *, create_mode: int | None) -> Generator[int]:
    """Yield a descriptor of the folder that contains `place`. Missing folders are created with the mode `create_mode`, unless it is None.

    Every folder is opened relative to its parent and never through a link. A link in a folder's place raises OSError.
    """
    folder = os.open(root, _FOLDER)
    try:
        for name in place.relative_to(root).parts[:-1]:
            if create_mode is not None:
                _make_folder(name, create_mode, folder)
            inner = os.open(name, _FOLDER, dir_fd=folder)
            os.close(folder)
            folder = inner
        yield folder
    finally:
        os.close(folder)


def _make_folder(name: str, mode: int, folder: int) -> None:
    try:
        os.mkdir(name, mode, dir_fd=folder)
    except FileExistsError:
        return


def _mode_of(folder: int, place: Path) -> int | None:
    """Return the mode of the regular file, or None if the name is free or a link, pipe or device. Raises ToolError for a folder."""
    try:
        status = os.stat(place.name, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        return None
    if stat.S_ISDIR(status.st_mode):
        raise ToolError(f"{place} is a folder")
    return stat.S_IMODE(status.st_mode) if stat.S_ISREG(status.st_mode) else None


def _sync_folder(folder: int) -> None:
    readable = os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=folder)
    try:
        os.fsync(readable)
    finally:
        os.close(readable)


READ_LIMIT = 16 * 1024 * 1024
"""The size limit, in bytes, of a file for `read_file`."""


class WrittenFile(TypedDict):
    """A file, and the digest of its content."""

    path: str
    size: int
    digest: str


class FileContent(WrittenFile):
    """A file with its content."""

    text: str


@tool(effect="read")
def read_file(path: str) -> FileContent:
    """Read a UTF-8 text file. The result is {path, size, digest, text}.

    Args:
        path: A path in the files folder (`PLAN_ADAPTER_FILES_ROOT`; default: the current folder).
    """
    root, place = resolve_path(path)
    with cannot(f"{path} cannot be read in {root}"):
        content = read_below(root, place, limit=READ_LIMIT)
    try:
        text = content.decode()
    except UnicodeDecodeError as error:
        raise ToolError(f"{path} is not UTF-8 text: byte {error.start} is 0x{error.object[error.start]:02x}") from error
    return {**_file_result(place, content), "text": text}


def simulate_write(path: str, content: JsonValue) -> Simulation:
    """Show how a file would change, and return what `write_file` would."""
    _, place = resolve_path(path)
    encoded = _encode(content)
    old = read_file(path)["text"] if place.exists() else ""
    changes = difflib.unified_diff(old.splitlines(), encoded.decode().splitlines(), f"{path} (now)", f"{path} (new)", lineterm="")
    return Simulation("\n".join(changes) or f"{path} would not change", _file_result(place, encoded))


@tool(effect="idempotent_write", simulate=simulate_write)
def write_file(path: str, content: JsonValue) -> WrittenFile:
    """Write a file atomically. The result is {path, size, digest}.

    Missing folders are created. Readers see the old file or the new one, never a part of it.

    Args:
        path: A path in the files folder (`PLAN_ADAPTER_FILES_ROOT`; default: the current folder).
        content: The new content. Text is written as it is, in UTF-8; any other value as indented JSON.
    """
    root, place = resolve_path(path)
    encoded = _encode(content)
    with cannot(f"{path} cannot be written in {root}"):
        write_below(root, place, encoded)
    return _file_result(place, encoded)


def _encode(content: JsonValue) -> bytes:
    return (content if isinstance(content, str) else json.dumps(content, ensure_ascii=False, indent=2) + "\n").encode()


def _file_result(place: Path, content: bytes) -> WrittenFile:
    return {"path": str(place), "size": len(content), "digest": "sha256:" + hashlib.sha256(content).hexdigest()}


def resolve_path(path: str) -> tuple[Path, Path]:
    """Return the root folder and the resolved `path`, both without links. Raises ToolError unless the path is below the root."""
    try:
        root = (Settings().files_root or Path.cwd()).expanduser().resolve()
        place = (root / path).resolve()
        is_link = place.is_symlink()  # Python 3.13 and later leave a loop of links unresolved
    except (OSError, RuntimeError, ValueError) as error:  # a loop of links, a NUL, a name that is too long, or a deleted current folder
        raise ToolError(f"{path!r} is not a valid path here: {error}") from error
    if place == root or not place.is_relative_to(root) or is_link:
        raise ToolError(f"{path!r} does not lead to a file in {root}, the folder for files (PLAN_ADAPTER_FILES_ROOT)")
    return root, place
