"""`HostProcess`: a process of a host, recognized even if its id was used again, and the commands of attempts that still run here."""

import contextlib
import json
import os
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path

MARKER = "PLAN_ADAPTER_ATTEMPT"
"""The environment variable of a command that names the attempt that started it."""

TERM_SECONDS = 2.0
"""How long a command may take to end after SIGTERM before it receives SIGKILL."""

_PROC = Path("/proc")
_STATE, _SESSION, _STARTED = 0, 3, 19
"""Places in `/proc/PID/stat` after the name of the command."""


@dataclass(frozen=True, slots=True)
class HostProcess:
    """A process. `place` identifies host, boot and container; `started` tells processes with the same id apart."""

    place: str
    pid: int
    started: str

    @classmethod
    def this(cls) -> "HostProcess":
        """Return the calling process."""
        return cls.of(os.getpid())

    @classmethod
    def of(cls, pid: int) -> "HostProcess":
        """Return process `pid` of this host. One that has ended already counts as dead."""
        return cls(_place(), pid, start_of(pid) or "")

    @classmethod
    def parse(cls, text: str) -> "HostProcess":
        """Return the process that `str(process)` wrote."""
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
        return self.is_here and start_of(self.pid) == self.started

    @property
    def has_died(self) -> bool:
        """Whether the process was here and has ended."""
        return self.is_here and not self.is_alive

    @property
    def session(self) -> list[int]:
        """The ids of the processes in the session that this process leads. Empty if all have ended, or the process is not here.

        While one of them runs, the system gives the id of their leader to no other process.
        """
        if not self.is_here or start_of(self.pid) not in (None, self.started):  # another process has its id
            return []
        return [pid for pid in _pids() if _is_in_session(pid, self.pid)] or ([self.pid] if self.is_alive else [])

    @property
    def age_seconds(self) -> int | None:
        """How many seconds ago the process started, or None if that is not known."""
        try:
            up = float((_PROC / "uptime").read_text().split()[0])
            return max(0, int(up - int(self.started) / os.sysconf("SC_CLK_TCK")))
        except (OSError, ValueError):
            return None

    def end_session(self, marker: str) -> list[int]:
        """End the processes of the session that this process leads: SIGTERM, then SIGKILL. Return those that still run.

        If this very process has ended, only those with `marker` as their MARKER are signalled: its id could belong to another session now.
        """
        is_ours = self.is_alive  # then the session is its own until it is empty
        for number in (signal.SIGTERM, signal.SIGKILL):
            for pid in self.session:
                if is_ours or marker_of(pid) == marker:
                    with contextlib.suppress(ProcessLookupError, PermissionError):  # what remains is reported
                        os.kill(pid, number)
            until = time.monotonic() + TERM_SECONDS
            while self.session and time.monotonic() < until:
                time.sleep(0.02)
            if not self.session:
                return []
        return self.session


def marked_leaders() -> dict[str, HostProcess]:
    """Return the processes of this host that lead a session and have a MARKER, by its value. Other users' processes are not seen."""
    return {marker: HostProcess.of(pid) for pid in _pids() if _is_in_session(pid, pid) and (marker := marker_of(pid))}


def marker_of(pid: int) -> str:
    """Return the MARKER with which process `pid` was started, or an empty text if it has none or cannot be read."""
    try:
        variables = (_PROC / str(pid) / "environ").read_bytes().split(b"\0")
    except OSError:
        return ""
    prefix = f"{MARKER}=".encode()
    return next((text.removeprefix(prefix).decode(errors="replace") for text in variables if text.startswith(prefix)), "")


def start_of(pid: int) -> str | None:
    """Return the start of process `pid`, in clock ticks since boot or as `ps` shows it, or None if there is no such process."""
    if not (_PROC / "self" / "stat").exists():
        return _start_from_ps(pid)
    fields = _stat(pid)
    return fields[_STARTED] if fields and fields[_STATE] != "Z" else None


def boot_id() -> str:
    """Return the id of this boot of the host, or an empty text if the system has none."""
    return _read("/proc/sys/kernel/random/boot_id")


@cache
def _place() -> str:
    return "/".join((socket.gethostname(), boot_id(), _namespace()))


def _namespace() -> str:
    try:
        return str(Path("/proc/self/ns/pid").readlink())
    except OSError:  # no /proc on this system
        return ""


def _read(path: str) -> str:
    try:
        return Path(path).read_text(errors="replace").strip()
    except OSError:
        return ""


def _pids() -> Iterator[int]:
    """Yield the ids of this host's processes. None on a system without /proc."""
    if _PROC.is_dir():
        yield from (int(path.name) for path in _PROC.iterdir() if path.name.isdecimal())


def _stat(pid: int) -> list[str]:
    """Return the fields of `/proc/PID/stat` after the name of the command, which may contain spaces and parentheses."""
    return _read(f"/proc/{pid}/stat").rpartition(")")[2].split()


def _is_in_session(pid: int, leader: int) -> bool:
    fields = _stat(pid)
    return bool(fields) and fields[_STATE] != "Z" and fields[_SESSION] == str(leader)


def _start_from_ps(pid: int) -> str | None:
    """Return the start time of `pid` on a system without /proc."""
    answer = subprocess.run(["/bin/ps", "-o", "lstart=", "-p", str(pid)], capture_output=True, text=True, check=False)  # noqa: S603
    return answer.stdout.strip() or None
