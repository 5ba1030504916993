"""The process that executes a run, and whether it is alive. It is identified by host, boot, process id and process start."""

import json
import os
import socket
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Owner:
    """A process. `place` identifies host, boot and container; `started` tells processes with the same id apart."""

    place: str
    pid: int
    started: str

    @classmethod
    def this(cls) -> "Owner":
        """Return the calling process."""
        return cls(_place(), os.getpid(), _start_of(os.getpid()) or "")

    @classmethod
    def parse(cls, text: str) -> "Owner":
        """Return the process that `str(owner)` wrote."""
        return cls(**json.loads(text))

    def __str__(self) -> str:
        """Return the process as JSON, for the store."""
        return json.dumps(asdict(self))

    @property
    def host(self) -> str:
        """The name of its host."""
        return self.place.partition("/")[0]

    @property
    def is_here(self) -> bool:
        """Whether the process belongs to this host, this boot and this container. Nothing is known about others."""
        return self.place == _place()

    @property
    def is_alive(self) -> bool:
        """Whether the process is here and alive."""
        return self.is_here and _start_of(self.pid) == self.started

    @property
    def has_died(self) -> bool:
        """Whether the process was here and has ended."""
        return self.is_here and not self.is_alive


@cache
def _place() -> str:
    return "/".join((socket.gethostname(), _read("/proc/sys/kernel/random/boot_id"), _namespace()))


def _namespace() -> str:
    try:
        return str(Path("/proc/self/ns/pid").readlink())
    except OSError:  # no /proc on this system
        return ""


def _read(path: str) -> str:
    try:
        return Path(path).read_text().strip()
    except OSError:
        return ""


def _start_of(pid: int) -> str | None:
    """Return the process's start in clock ticks since boot, an empty text if unknown, or None if there is no such process."""
    if not Path("/proc/self/stat").exists():
        return "" if _exists(pid) else None
    # The second field, the command, may contain spaces and parentheses.
    fields = _read(f"/proc/{pid}/stat").rpartition(")")[2].split()
    return fields[19] if fields and fields[0] != "Z" else None


def _exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
