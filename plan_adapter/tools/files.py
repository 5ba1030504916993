"""`read_file` and `write_file`: text files below one folder, which neither `..` nor a link can leave."""

import hashlib
import json
from pathlib import Path

from pydantic import JsonValue
from typing_extensions import TypedDict

from plan_adapter.errors import ToolError
from plan_adapter.settings import Settings
from plan_adapter.tools.folders import read_below, write_below
from plan_adapter.tools.tool import tool

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
    root, place = _resolve_path(path)
    try:
        content = read_below(root, place, limit=READ_LIMIT)
        text = content.decode()
    except UnicodeDecodeError as error:
        raise ToolError(f"{path} is not UTF-8 text: byte {error.start} is 0x{error.object[error.start]:02x}") from error
    except OSError as error:
        raise ToolError(f"{path} cannot be read in {root}: {error.strerror}") from error
    return {**_file_result(place, content), "text": text}


@tool(effect="idempotent_write")
def write_file(path: str, content: JsonValue) -> WrittenFile:
    """Write a file atomically. The result is {path, size, digest}.

    Missing folders are created. Readers see the old file or the new one, never a part of it.

    Args:
        path: A path in the files folder (`PLAN_ADAPTER_FILES_ROOT`; default: the current folder).
        content: The new content. Text is written as it is, in UTF-8; any other value as indented JSON.
    """
    root, place = _resolve_path(path)
    text = content if isinstance(content, str) else json.dumps(content, ensure_ascii=False, indent=2) + "\n"
    encoded = text.encode()
    try:
        write_below(root, place, encoded)
    except OSError as error:
        raise ToolError(f"{path} cannot be written in {root}: {error.strerror}") from error
    return _file_result(place, encoded)


def _file_result(place: Path, content: bytes) -> WrittenFile:
    return {"path": str(place), "size": len(content), "digest": "sha256:" + hashlib.sha256(content).hexdigest()}


def _resolve_path(path: str) -> tuple[Path, Path]:
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
