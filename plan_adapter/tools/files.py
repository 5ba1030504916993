"""`read_file` and `write_file`: text files below one folder, which neither `..` nor a link leaves."""

import hashlib
import json
import os
import stat
import uuid
from pathlib import Path

from pydantic import JsonValue

from plan_adapter.errors import ToolError
from plan_adapter.settings import Settings
from plan_adapter.tools.tool import tool

READ_LIMIT = 16 * 1024 * 1024
"""Bytes of the largest file that `read_file` takes."""


@tool(effect="read")
def read_file(path: str) -> dict[str, JsonValue]:
    """Read a UTF-8 text file; the result is {path, size, digest, text}.

    Args:
        path: Below the folder of files (`PLAN_ADAPTER_FILES_ROOT`, by default the current one).
    """
    place = _rooted(path)
    try:
        content = _content(place)
        text = content.decode()
    except UnicodeDecodeError as error:
        raise ToolError(f"{path} is no UTF-8 text: byte {error.start} is 0x{error.object[error.start]:02x}") from error
    except OSError as error:
        raise ToolError(f"{path} cannot be read: {error.strerror}") from error
    return {**_receipt(place, content), "text": text}


@tool(effect="idempotent_write")
def write_file(path: str, content: JsonValue) -> dict[str, JsonValue]:
    """Write a file in one piece, or leave what was there; the result is {path, size, digest}.

    Folders that are missing are made. A reader sees the old file or the new one, never a part.

    Args:
        path: Below the folder of files (`PLAN_ADAPTER_FILES_ROOT`, by default the current one).
        content: Text is written as it is, in UTF-8; anything else as indented JSON.
    """
    place = _rooted(path)
    text = content if isinstance(content, str) else json.dumps(content, ensure_ascii=False, indent=2) + "\n"
    encoded = text.encode()
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        _replace(place, encoded)
    except OSError as error:
        raise ToolError(f"{path} cannot be written: {error.strerror}") from error
    return _receipt(place, encoded)


def _receipt(place: Path, content: bytes) -> dict[str, JsonValue]:
    return {"path": str(place), "size": len(content), "digest": "sha256:" + hashlib.sha256(content).hexdigest()}


def _rooted(path: str) -> Path:
    """Return where `path` leads, links followed; raises ToolError unless that is below the folder of files."""
    try:
        root = (Settings().files_root or Path.cwd()).expanduser().resolve()
        place = (root / path).resolve()
    except (OSError, RuntimeError, ValueError) as error:  # a loop of links, a NUL, a current folder that is gone
        raise ToolError(f"{path!r} is no path here: {error}") from error
    # From Python 3.13 on a loop of links is left as a link.
    if place == root or not place.is_relative_to(root) or place.is_symlink():
        raise ToolError(f"{path!r} does not lead to a file below {root}, where files are kept (PLAN_ADAPTER_FILES_ROOT)")
    return place


def _content(place: Path) -> bytes:
    # Non-blocking, because opening a named pipe would wait for its writer for ever.
    descriptor = os.open(place, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise ToolError(f"{place} is {'a folder' if stat.S_ISDIR(status.st_mode) else 'no regular file'}")
        if status.st_size > READ_LIMIT:
            raise ToolError(f"{place} has {status.st_size} bytes, and at most {READ_LIMIT} are read; hand its path on instead")
        with os.fdopen(descriptor, "rb", closefd=False) as file:
            return file.read(READ_LIMIT)
    finally:
        os.close(descriptor)


def _replace(place: Path, content: bytes) -> None:
    """Make `content` the file at `place`, durably; a file that was there keeps its mode."""
    if place.is_dir():
        raise ToolError(f"{place} is a folder")
    partial = place.with_name(f".{uuid.uuid4().hex}.partial")
    try:
        with partial.open("xb") as file:
            if place.exists():
                os.fchmod(file.fileno(), stat.S_IMODE(place.stat().st_mode))
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(place)
    finally:
        partial.unlink(missing_ok=True)
    folder = os.open(place.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(folder)  # the name, too, is on the disk
    finally:
        os.close(folder)
