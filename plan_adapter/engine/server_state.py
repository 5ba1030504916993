"""The local server's files, password and launch."""

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

from plan_adapter.local.private_files import check_folder, make_folder, open_file
from plan_adapter.model.host_process import boot_id, start_of

NOLOGIN_SHELLS = ("false", "nologin", "sync", "shutdown", "halt", "git-shell")
FIRST_UID = 500 if sys.platform == "darwin" else 1000
NOBODY = 65534


def password_reason(mode: str) -> str | None:
    """Return why a local server requires a password, or None if it needs none."""
    if mode == "off":
        return None
    if mode == "on":
        return "PLAN_ADAPTER_LOCAL_SERVER_AUTH=on"
    if os.environ.get("SSH_CONNECTION"):
        return "this machine is reached over SSH"
    others = other_people()
    return f"other people can log in to this machine ({', '.join(others[:3])}{', …' if len(others) > 3 else ''})" if others else None


def other_people() -> list[str]:
    """Return the accounts of other people that can log in: those with a UID from 1000 (macOS: 500) and a real shell.

    Root is left out because it can read everything anyway. Service accounts, and accounts that a directory such as LDAP does not list, are
    left out as well.
    """
    return [
        account.pw_name
        for account in pwd.getpwall()
        if account.pw_uid >= FIRST_UID
        and account.pw_uid not in (os.geteuid(), NOBODY)
        and Path(account.pw_shell or "sh").name not in NOLOGIN_SHELLS
    ]


def login_hint(password_file: Path) -> str:
    """Return how to log in to the UI. The password itself is never shown."""
    return f"its pages ask for a password: `cat {shlex.quote(str(password_file))}` prints it"


LOG_BYTES = 1_000_000
"""A larger log is rotated when a server starts. One older log is kept."""


@dataclass(frozen=True, slots=True)
class ServerState:
    """What a server's process records about itself at startup."""

    pid: int
    process_start: str
    host: str
    port: int
    prefect_version: str
    started_at: float
    has_password: bool = False

    @property
    def is_reachable(self) -> bool:
        """Whether `pid` is that process here, in this host and process namespace."""
        return process_start(self.pid) == self.process_start


@dataclass(frozen=True, slots=True)
class ServerFolder:
    """The files of one local server, all under `path`."""

    path: Path

    @property
    def state_file(self) -> Path:
        """The file in which the server's process records its state."""
        return self.path / "server.json"

    @property
    def log(self) -> Path:
        """The log of the server's process."""
        return self.path / "server.log"

    @property
    def prefect_home(self) -> Path:
        """The `PREFECT_HOME` of the server, which contains its database."""
        return self.path / "prefect"

    @property
    def alive_lock(self) -> Path:
        """The file that the server's process keeps locked while it is alive."""
        return self.path / "alive.lock"

    @property
    def password_file(self) -> Path:
        """The file with the server's password, if it requires one."""
        return self.path / "password"

    def check(self) -> None:
        """Raise UnsafePathError if other users could change the folder or the home that contains it."""
        check_folder(self.path.parent)
        check_folder(self.path)

    @contextlib.contextmanager
    def lock_start(self) -> Generator[None]:
        """Create the folder if it is missing, and hold the lock for starting or stopping its server. Raises UnsafePathError."""
        for folder in (self.path.parent, self.path, self.prefect_home):
            make_folder(folder)
        with os.fdopen(open_file(self.path / "start.lock", os.O_WRONLY), "w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield

    def read_password(self) -> str | None:
        """Return the password of the server, in the form that Prefect's API takes, or None if there is none."""
        try:
            return self.password_file.read_text(encoding="ascii").strip() or None
        except (FileNotFoundError, UnicodeDecodeError):
            return None

    def make_password(self) -> str:
        """Return the password of the server. Creates a new one if none was kept or others could read it."""
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

    def acquire_alive_lock(self) -> int | None:
        """Return a descriptor that holds `alive_lock`, to be inherited by a server's process, or None if a live process holds it."""
        descriptor = open_file(self.alive_lock, os.O_RDWR)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            return None
        return descriptor

    @property
    def is_alive(self) -> bool:
        """Whether a server's process is alive. The kernel releases its lock however it ends."""
        if not self.alive_lock.exists():
            return False
        descriptor = self.acquire_alive_lock()
        if descriptor is None:
            return True
        os.close(descriptor)
        return False

    def read_state(self) -> ServerState | None:
        """Return what the last server recorded about itself, or None if nothing readable is there."""
        try:
            return ServerState(**json.loads(self.state_file.read_text(encoding="utf-8")))
        except (FileNotFoundError, ValueError, TypeError):
            return None

    def write_state(self, state: ServerState) -> None:
        """Replace the state atomically."""
        draft = self.state_file.with_suffix(f".{state.pid}")
        with os.fdopen(open_file(draft, os.O_WRONLY | os.O_TRUNC), "w", encoding="utf-8") as file:
            file.write(json.dumps(asdict(state)))
        draft.replace(self.state_file)

    def open_log(self) -> int:
        """Return a descriptor that appends to the log. A large log is rotated first."""
        with contextlib.suppress(FileNotFoundError):
            if self.log.stat().st_size > LOG_BYTES:
                self.log.replace(self.log.with_suffix(".log.1"))
        return open_file(self.log, os.O_WRONLY | os.O_APPEND)

    def log_tail(self, lines: int = 6) -> str:
        """Return the last lines of the log for an error message, without traceback frames."""
        try:
            with self.log.open("rb") as file:
                file.seek(max(0, self.log.stat().st_size - 8192))
                text = file.read().decode("utf-8", errors="replace")
        except OSError:
            return ""
        lines_shown = [line for line in text.splitlines() if line and not line.startswith(" ")]
        return "".join(f"\n  {line}" for line in lines_shown[-lines:])


def process_start(pid: int) -> str | None:
    """Return a text that distinguishes process `pid` from others that had or will have this PID, or None if there is no such process."""
    started = start_of(pid)
    return None if started is None else f"{boot_id()}:{started}"


def server_url(port: int) -> str:
    """Return the address of the local server and its UI."""
    return f"http://127.0.0.1:{port}"


def launch(folder: ServerFolder, password: str | None) -> int:
    """Launch a server process and return its port. The server requires `password` if given. The caller must hold `folder.lock_start`."""
    previous = folder.read_state()
    listening = _open_listening_socket(previous.port if previous is not None else 0)
    with contextlib.ExitStack() as stack:
        stack.enter_context(listening)
        alive = folder.acquire_alive_lock()
        if alive is None:
            raise BlockingIOError(errno.EWOULDBLOCK, "another process has locked it", str(folder.alive_lock))
        stack.callback(os.close, alive)
        folder.state_file.unlink(missing_ok=True)
        log = folder.open_log()
        stack.callback(os.close, log)
        port: int = listening.getsockname()[1]
        module = "plan_adapter.engine.server_process"
        process = subprocess.Popen(  # noqa: S603
            [sys.executable, "-P", "-m", module, str(folder.path), str(port), str(listening.fileno())],
            cwd=folder.prefect_home,  # so that it finds no .env, prefect.toml or pyproject.toml of the user
            env=server_environment(folder, port, password),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,  # Ctrl-C and closing the terminal do not reach it
            pass_fds=(listening.fileno(), alive),
        )
    threading.Thread(target=process.wait, name="plan-local-server", daemon=True).start()  # leaves no zombie
    return port


def _open_listening_socket(preferred: int) -> socket.socket:
    """Return a listening loopback socket, on the port of the last server if it is free, so that old links keep working."""
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
    """Return the environment of the server's process: its own settings and the caller's environment, minus what could misdirect it.

    The password is passed here and not as an argument, because other users can see arguments.
    """
    stripped_prefixes = ("PREFECT_", "UVICORN_", "PLAN_ADAPTER_")
    inherited = {name: value for name, value in os.environ.items() if not name.upper().startswith(stripped_prefixes)}
    auth_settings = {} if password is None else {"PREFECT_SERVER_API_AUTH_STRING": password}
    return (
        inherited
        | auth_settings
        | {
            "PREFECT_HOME": str(folder.prefect_home),
            "PREFECT_SERVER_API_HOST": "127.0.0.1",
            "PREFECT_SERVER_API_PORT": str(port),
            "PREFECT_SERVER_UI_ENABLED": "true",
            "PREFECT_SERVER_UI_API_URL": server_url(port) + "/api",
            "PREFECT_SERVER_UI_STATIC_DIRECTORY": str(folder.path / "ui"),  # the default is inside the installed package
            # Other web pages in the user's browser must not access this server.
            "PREFECT_SERVER_CORS_ALLOWED_ORIGINS": f"{server_url(port)},http://localhost:{port}",
            "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
            "DO_NOT_TRACK": "1",
            "PREFECT_LOGGING_LEVEL": "WARNING",
            "PREFECT_SERVER_LOGGING_LEVEL": "WARNING",
            # Task run rows are written in batches. The default of one at a time is most of the server's work for a run.
            "PREFECT_SERVER_SERVICES_TASK_RUN_RECORDER_READ_BATCH_SIZE": "200",
            "PREFECT_SERVER_SERVICES_TASK_RUN_RECORDER_BATCH_SIZE": "200",
            # Seconds until an incomplete batch is written. The recorder truncates this to an integer, and below 1 it would spin.
            "PREFECT_SERVER_SERVICES_TASK_RUN_RECORDER_FLUSH_INTERVAL": "1",
        }
    )
