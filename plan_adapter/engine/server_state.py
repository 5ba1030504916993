"""The local server's files, its password, and its start."""

import contextlib
import errno
import fcntl
import json
import os
import pwd
import secrets
import shlex
import socket
import subprocess
import sys
import threading
from collections.abc import Generator
from dataclasses import asdict, dataclass
from pathlib import Path

from plan_adapter.private_files import check_folder, make_folder, open_file

NO_SHELLS = ("false", "nologin", "sync", "shutdown", "halt", "git-shell")
FIRST_UID = 500 if sys.platform == "darwin" else 1000
NOBODY = 65534


def why_password(mode: str) -> str | None:
    """Return why a local server demands a password, None if it needs none."""
    if mode == "off":
        return None
    if mode == "on":
        return "PLAN_ADAPTER_LOCAL_SERVER_AUTH=on"
    if os.environ.get("SSH_CONNECTION"):
        return "this machine is reached over SSH"
    others = other_people()
    return f"other people can log in to this machine ({', '.join(others[:3])}{', …' if len(others) > 3 else ''})" if others else None


def other_people() -> list[str]:
    """Return the accounts of people, other than this process's, that can log in: a number from 1000 on and a real shell.

    Root is not among them: it reads what it wants anyway. Neither are accounts of services, nor those that a directory such as LDAP does
    not list.
    """
    return [
        one.pw_name
        for one in pwd.getpwall()
        if one.pw_uid >= FIRST_UID and one.pw_uid not in (os.geteuid(), NOBODY) and Path(one.pw_shell or "sh").name not in NO_SHELLS
    ]


def login_hint(password_file: Path) -> str:
    """Return how a person logs in to the UI; the password itself is never shown."""
    return f"its pages ask for a password: `cat {shlex.quote(str(password_file))}` prints it"


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
    has_password: bool = False

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

    @property
    def password_file(self) -> Path:
        """Where the password of the server stands, if it demands one."""
        return self.path / "password"

    def check(self) -> None:
        """Raise UnsafePathError where other users could have a hand in the folder, or in the home that it is in."""
        check_folder(self.path.parent)
        check_folder(self.path)

    @contextlib.contextmanager
    def starting(self) -> Generator[None]:
        """Make the folder if it is missing, and hold the right to start or stop its server. Raises UnsafePathError."""
        for folder in (self.path.parent, self.path, self.prefect_home):
            make_folder(folder)
        with os.fdopen(open_file(self.path / "start.lock", os.O_WRONLY), "w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield

    def read_password(self) -> str | None:
        """Return the password of the server, as Prefect's API takes it; None if there is none."""
        try:
            return self.password_file.read_text(encoding="ascii").strip() or None
        except (FileNotFoundError, UnicodeDecodeError):
            return None

    def make_password(self) -> str:
        """Return the password of the server, a new one if none was kept or others could read it."""
        try:
            was_private = not self.password_file.lstat().st_mode & 0o077
        except FileNotFoundError:
            was_private = False
        if was_private and (kept := self.read_password()) is not None:
            return kept
        password = f"plan:{secrets.token_urlsafe(24)}"
        self.password_file.unlink(missing_ok=True)
        with os.fdopen(open_file(self.password_file, os.O_WRONLY | os.O_EXCL), "w", encoding="ascii") as file:
            file.write(f"{password}\n")
        return password

    def hold_alive(self) -> int | None:
        """Return a descriptor that holds `alive_lock`, to be handed to a server's process, or None if a living one holds it."""
        descriptor = open_file(self.alive_lock, os.O_RDWR)
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
        with os.fdopen(open_file(draft, os.O_WRONLY | os.O_TRUNC), "w", encoding="utf-8") as file:
            file.write(json.dumps(asdict(state)))
        draft.replace(self.state_file)

    def open_log(self) -> int:
        """Return a descriptor that appends to the log; one that has grown large is set aside first."""
        with contextlib.suppress(FileNotFoundError):
            if self.log.stat().st_size > LOG_BYTES:
                self.log.replace(self.log.with_suffix(".log.1"))
        return open_file(self.log, os.O_WRONLY | os.O_APPEND)

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


def server_url(port: int) -> str:
    """Return the address of the local server, which is that of its UI."""
    return f"http://127.0.0.1:{port}"


def launch(folder: ServerFolder, password: str | None) -> int:
    """Return the port of a server's process that now starts, and demands `password` if there is one; the caller holds `folder.starting`."""
    previous = folder.read_state()
    listening = _listen(previous.port if previous is not None else 0)
    with contextlib.ExitStack() as stack:
        stack.enter_context(listening)
        alive = folder.hold_alive()
        if alive is None:
            raise BlockingIOError(errno.EWOULDBLOCK, "another process holds it", str(folder.alive_lock))
        stack.callback(os.close, alive)
        folder.state_file.unlink(missing_ok=True)
        log = folder.open_log()
        stack.callback(os.close, log)
        port: int = listening.getsockname()[1]
        module = "plan_adapter.engine.server_process"
        process = subprocess.Popen(  # noqa: S603
            [sys.executable, "-P", "-m", module, str(folder.path), str(port), str(listening.fileno())],
            cwd=folder.prefect_home,  # no .env, prefect.toml or pyproject.toml of the user's is there
            env=server_environment(folder, port, password),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,  # Ctrl-C and the terminal's end do not reach it
            pass_fds=(listening.fileno(), alive),
        )
    threading.Thread(target=process.wait, name="plan-local-server", daemon=True).start()  # leaves no zombie
    return port


def _listen(preferred: int) -> socket.socket:
    """Return a loopback socket that listens, at the port of the last server if that is free, so that its links stay good."""
    for port in (preferred, 0):
        listening = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listening.bind(("127.0.0.1", port))
            listening.listen(128)
        except OSError:
            listening.close()
            if port == 0:
                raise
        else:
            return listening
    raise AssertionError("port 0 either binds or raises")


def server_environment(folder: ServerFolder, port: int, password: str | None) -> dict[str, str]:
    """Return the environment of the server's process: the caller's without what would redirect it, and its own settings.

    The password stands there, and not in the arguments, because other users see those.
    """
    foreign = ("PREFECT_", "UVICORN_", "PLAN_ADAPTER_")
    inherited = {name: value for name, value in os.environ.items() if not name.upper().startswith(foreign)}
    demanded = {} if password is None else {"PREFECT_SERVER_API_AUTH_STRING": password}
    return (
        inherited
        | demanded
        | {
            "PREFECT_HOME": str(folder.prefect_home),
            "PREFECT_SERVER_API_HOST": "127.0.0.1",
            "PREFECT_SERVER_API_PORT": str(port),
            "PREFECT_SERVER_UI_ENABLED": "true",
            "PREFECT_SERVER_UI_API_URL": server_url(port) + "/api",
            "PREFECT_SERVER_UI_STATIC_DIRECTORY": str(folder.path / "ui"),  # the default is inside the installed package
            # Other web pages in the user's browser have no business with this server.
            "PREFECT_SERVER_CORS_ALLOWED_ORIGINS": f"{server_url(port)},http://localhost:{port}",
            "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
            "DO_NOT_TRACK": "1",
            "PREFECT_LOGGING_LEVEL": "WARNING",
            "PREFECT_SERVER_LOGGING_LEVEL": "WARNING",
            # Rows of task runs are written together; the default of one a time is most of the server's work for a run.
            "PREFECT_SERVER_SERVICES_TASK_RUN_RECORDER_READ_BATCH_SIZE": "200",
            "PREFECT_SERVER_SERVICES_TASK_RUN_RECORDER_BATCH_SIZE": "200",
            # Seconds until what is no full batch is written. The recorder cuts it to an integer: below 1 it would spin.
            "PREFECT_SERVER_SERVICES_TASK_RUN_RECORDER_FLUSH_INTERVAL": "1",
        }
    )
