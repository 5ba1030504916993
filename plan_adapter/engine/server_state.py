"""What is known of the local Prefect server: its folder, whether its process lives, and what that process wrote about itself.

Imports nothing heavy: it is the first thing that both the command line and the server's process load.
"""

import contextlib
import fcntl
import json
import os
import subprocess
from collections.abc import Generator
from dataclasses import asdict, dataclass
from pathlib import Path

LOG_BYTES = 1_000_000
"""A larger log is set aside when a server starts; one older log is kept."""


@dataclass(frozen=True, slots=True)
class ServerState:
    """What a server's process says of itself when it begins."""

    pid: int
    process_start: str
    host: str
    port: int
    prefect_version: str
    started_at: float

    @property
    def is_reachable(self) -> bool:
        """Whether `pid` is that process here: in this host and process namespace."""
        return process_start(self.pid) == self.process_start


@dataclass(frozen=True, slots=True)
class ServerFolder:
    """The files of one local server, all under `path`."""

    path: Path

    @property
    def state_file(self) -> Path:
        """What the server's process wrote about itself."""
        return self.path / "server.json"

    @property
    def log(self) -> Path:
        """Where the server's process writes what it has to say."""
        return self.path / "server.log"

    @property
    def prefect_home(self) -> Path:
        """The `PREFECT_HOME` of the server; its database is there."""
        return self.path / "prefect"

    @property
    def alive_lock(self) -> Path:
        """The file that the server's process holds locked as long as it lives."""
        return self.path / "alive.lock"

    @contextlib.contextmanager
    def starting(self) -> Generator[None]:
        """Make the folder if it is missing, and hold the right to start or stop its server."""
        self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.prefect_home.mkdir(mode=0o700, exist_ok=True)
        with (self.path / "start.lock").open("w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield

    def hold_alive(self) -> int | None:
        """Return a descriptor that holds `alive_lock`, to be handed to a server's process, or None if a living one holds it."""
        descriptor = os.open(self.alive_lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            return None
        return descriptor

    @property
    def is_alive(self) -> bool:
        """Whether a server's process lives; the kernel drops its lock however it ends."""
        if not self.alive_lock.exists():
            return False
        descriptor = self.hold_alive()
        if descriptor is None:
            return True
        os.close(descriptor)
        return False

    def read_state(self) -> ServerState | None:
        """Return what the last server wrote about itself, None if there is nothing that can be read."""
        try:
            return ServerState(**json.loads(self.state_file.read_text(encoding="utf-8")))
        except (FileNotFoundError, ValueError, TypeError):
            return None

    def write_state(self, state: ServerState) -> None:
        """Replace the state as a whole."""
        draft = self.state_file.with_suffix(f".{state.pid}")
        draft.write_text(json.dumps(asdict(state)), encoding="utf-8")
        draft.replace(self.state_file)

    def open_log(self) -> int:
        """Return a descriptor that appends to the log; one that has grown large is set aside first."""
        with contextlib.suppress(FileNotFoundError):
            if self.log.stat().st_size > LOG_BYTES:
                self.log.replace(self.log.with_suffix(".log.1"))
        return os.open(self.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)

    def log_tail(self, lines: int = 6) -> str:
        """Return the last lines of the log for an error message, without the frames of tracebacks."""
        try:
            with self.log.open("rb") as file:
                file.seek(max(0, self.log.stat().st_size - 8192))
                text = file.read().decode("utf-8", errors="replace")
        except OSError:
            return ""
        told = [line for line in text.splitlines() if line and not line.startswith(" ")]
        return "".join(f"\n  {line}" for line in told[-lines:])


def process_start(pid: int) -> str | None:
    """Return what tells `pid` from every other process that had or will have its number, None if there is no such process."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return None if Path("/proc/self/stat").exists() else _start_by_ps(pid)
    return f"{boot}:{stat.rpartition(')')[2].split()[19]}"


def _start_by_ps(pid: int) -> str | None:
    """Return the start of `pid` where there is no /proc."""
    answer = subprocess.run(["/bin/ps", "-o", "lstart=", "-p", str(pid)], capture_output=True, text=True, check=False)  # noqa: S603
    return answer.stdout.strip() or None
