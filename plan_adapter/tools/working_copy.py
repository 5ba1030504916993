"""`WorkingCopy`: a file that tools edit in place of the original, until it is saved."""

import fcntl
import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from plan_adapter.model.errors import ToolError
from plan_adapter.tools.files import read_below, write_below

MAX_BYTES = 1 << 30
"""The largest file that has a working copy."""

_PAIR = "working_copy.json"


@dataclass(frozen=True, slots=True)
class WorkingCopy:
    """A private copy of a file, paired with its original by digest. Tools edit `path`; nobody else sees that before `save`.

    The pair is kept in a folder, so that a process that resumes the run finds both where they were. The file must be whole on disk when
    it is copied and saved: close a database first.
    """

    original: Path
    path: Path

    @classmethod
    def open(cls, original: Path, *, at: Path) -> Self:
        """Return the working copy of `original` in the folder `at`, which belongs to one run. The first call creates it.

        Raises ToolError if `at` has a copy of another file, and OSError if `original` cannot be read.
        """
        original, at = original.resolve(), at.resolve()
        copy = cls(original, at / f"copy{original.suffix}")
        if (pair := copy._read_pair()) is not None:
            if pair["original"] != str(original):
                raise ToolError(f"the working copy in {at} is of {pair['original']}, not of {original}: use another folder")
            return copy
        content = _read(original)
        write_below(at, copy.path, content, mode=0o600, folder_mode=0o700)
        copy._write_pair(content)  # last, so that an interrupted call copies again
        return copy

    def save(self) -> bool:
        """Replace the original by the copy, in one step. Return whether there was anything to save.

        A save that was interrupted can be repeated. Raises ToolError, and changes nothing, if the original changed since it was copied or
        last saved. Raises OSError if one of the files is gone.
        """
        with self.original.open("rb") as original:
            # If two copies are saved at once, the second waits here and then finds that the original has changed.
            fcntl.flock(original, fcntl.LOCK_EX)
            return self._save(_read(self.path), _read(self.original))

    def _save(self, content: bytes, now: bytes) -> bool:
        is_new = now != content  # otherwise nothing was edited, or an earlier save was interrupted after it replaced the original
        pair = self._read_pair()
        if is_new and (pair is None or _digest(now) != pair["digest"]):
            raise ToolError(f"{self.original} changed after the working copy was made: nothing was saved; start again from a new copy")
        if is_new:
            write_below(self.original.parent, self.original, content)
        self._write_pair(content)
        return is_new

    def _read_pair(self) -> dict[str, str] | None:
        try:
            return json.loads(_read(self.path.parent / _PAIR))
        except FileNotFoundError:
            return None

    def _write_pair(self, content: bytes) -> None:
        """Record which content of the original the copy belongs to."""
        pair = json.dumps({"original": str(self.original), "digest": _digest(content)}, ensure_ascii=False)
        write_below(self.path.parent, self.path.parent / _PAIR, pair.encode(), mode=0o600, folder_mode=0o700)


def _read(path: Path) -> bytes:
    return read_below(path.parent, path, limit=MAX_BYTES)


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
