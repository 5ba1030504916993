"""The Prefect server that a run uses: the one that Prefect's settings name, or a local one that is started once and reused.

The local server is a separate process in its own session, on loopback, with its own home and database under `settings.home / "server"`. It
outlives the command that started it; `stop_server` ends it.
"""

import base64
import contextlib
import http.client
import importlib.metadata
import json
import logging
import os
import re
import signal
import socket
import time
from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Literal, NoReturn

from plan_adapter.engine.connection import Server, check_server, configured_api_url, in_flow_run_process, quiet_import, use_server
from plan_adapter.engine.server_state import ServerFolder, ServerState, launch, login_hint, password_reason, server_url
from plan_adapter.local.private_files import UnsafePathError
from plan_adapter.local.settings import Settings
from plan_adapter.model.errors import NoServerError

ALTERNATIVES = "Set PREFECT_API_URL to a server of yours, or run without one: `--offline` (`offline=True` in Python)."
START_SECONDS = 120.0  # a first start takes 8 s on a quiet machine, and many times that on a busy one
ANSWER_SECONDS = 20.0
STOP_SECONDS = 10.0
GONE_SECONDS = 5.0
"""How long the PID of an ended process may stay in use, until its parent notices, and how long its threads may keep its lock."""

Notify = Callable[[str], None]
AuthMode = Literal["auto", "on", "off"]
"""The values of `Settings.local_server_auth`."""


@dataclass(frozen=True, slots=True)
class PendingServer:
    """A server that may still be starting."""

    _wait: Callable[[], Server]

    def wait(self) -> Server:
        """Return the server once it answers. Raises NoServerError, also for problems from the start of the launch."""
        return self._wait()


@dataclass(frozen=True, slots=True)
class LocalServerStatus:
    """What `server_status` found. Without a process, everything but `state` and `log_path` is None."""

    state: Literal["none", "healthy", "unhealthy"]
    log_path: Path
    api_url: str | None = None
    ui_url: str | None = None
    pid: int | None = None
    prefect_version: str | None = None
    started_at: float | None = None
    password_file: Path | None = None  # also None if the server requires no password
    password: str | None = field(default=None, repr=False)

    def server(self) -> Server | None:
        """Return the server that was found, healthy or not."""
        if self.api_url is None:
            return None
        return Server(
            api_url=self.api_url,
            ui_url=self.ui_url,
            log_path=self.log_path,
            pid=self.pid,
            password=self.password,
            password_file=self.password_file,
        )


def ensure_server(settings: Settings, *, notify: Notify) -> Server:
    """Return a server that answers. If one had to be started, call `notify` with a line about it."""
    return begin_server(settings, notify=notify).wait()


def begin_server(settings: Settings, *, notify: Notify) -> PendingServer:
    """Return at once, starting a server in the background if one is needed. Errors are raised by `wait`, never here."""
    try:
        if configured_api_url() is not None:
            return PendingServer(partial(configured_server, settings))
        if settings.local_server == "never" or in_flow_run_process():
            return PendingServer(partial(_raise, NoServerError(_why_not_allowed(settings))))
        return PendingServer(_find_or_launch(_folder(settings), settings.local_server_auth, notify))
    except NoServerError as error:
        return PendingServer(partial(_raise, error))


def configured_server(settings: Settings) -> Server:
    """Return the server that Prefect's settings name, once it has answered. Raises NoServerError.

    If that is the local server, Prefect's settings need not contain its password.
    """
    local = _configured_local_server(settings)
    if local is None:
        return check_server()
    with use_server(local):
        check_server()
    return local


def server_for(settings: Settings) -> Server:
    """Return a server that answers, as `ensure_server` does. If one had to be started, log a line on this package's logger."""
    return ensure_server(settings, notify=logging.getLogger("plan_adapter").warning)


def stop_server(settings: Settings) -> bool:
    """Stop the local server and wait until it has ended. Return whether one was running."""
    folder = _folder(settings)
    if not folder.is_alive:
        return False
    with _translate_os_errors(folder), folder.lock_start():
        state = _find_live_state(folder)
        if state is None:
            return False
        _stop(folder, state)
    return True


def server_status(settings: Settings) -> LocalServerStatus:
    """Return the status of the local server of `settings.home`. Nothing is started or changed."""
    folder = _folder(settings)
    state = folder.read_state() if folder.is_alive else None
    if state is None:
        return LocalServerStatus("none", folder.log)
    healthy = state.is_reachable and _check_health(state.port, seconds=3.0) == "healthy"
    return LocalServerStatus(
        state="healthy" if healthy else "unhealthy",
        log_path=folder.log,
        api_url=server_url(state.port) + "/api",
        ui_url=server_url(state.port),
        pid=state.pid,
        prefect_version=state.prefect_version,
        started_at=state.started_at,
        password_file=folder.password_file if state.has_password else None,
        password=_password(folder, state),
    )


def _configured_local_server(settings: Settings) -> Server | None:
    """Return the local server if Prefect's settings name it without credentials and it requires a password."""
    with quiet_import():
        from prefect.settings import get_current_settings
    api = get_current_settings().api
    if api.auth_string is not None or api.key is not None or "127.0.0.1" not in (api.url or ""):
        return None
    try:
        local = server_status(settings).server()
    except NoServerError:  # an unsafe home says nothing about a server that the settings name
        return None
    return local if local is not None and local.password is not None and local.api_url == (api.url or "").rstrip("/") else None


def _folder(settings: Settings) -> ServerFolder:
    folder = ServerFolder(settings.home.expanduser().absolute() / "server")
    with _translate_os_errors(folder):
        folder.check()
    return folder


def _password(folder: ServerFolder, state: ServerState) -> str | None:
    return folder.read_password() if state.has_password else None


def _raise(error: NoServerError) -> NoReturn:
    raise error


def _why_not_allowed(settings: Settings) -> str:
    why = "PLAN_ADAPTER_LOCAL_SERVER=never" if settings.local_server == "never" else "this process belongs to a Prefect worker"
    return f"Prefect's settings name no API URL, and no local server may be started ({why}). {ALTERNATIVES}"


@contextlib.contextmanager
def _translate_os_errors(folder: ServerFolder) -> Generator[None]:
    """Turn an OS error (full disk, read-only folder, no sockets) into a NoServerError."""
    try:
        yield
    except UnsafePathError as error:
        raise NoServerError(f"the local Prefect server is not used: {error.strerror}. {ALTERNATIVES}") from error
    except OSError as error:
        why = error.strerror or str(error)
        where = error.filename or folder.path
        raise NoServerError(f"the local Prefect server cannot be kept in {folder.path}: {where}: {why}. {ALTERNATIVES}") from error


def _find_or_launch(folder: ServerFolder, mode: AuthMode, notify: Notify) -> Callable[[], Server]:
    """Find the live server of `folder` or launch one. Return a function that waits for it."""
    with _translate_os_errors(folder), folder.lock_start():
        state = _find_live_state(folder)
        if state is not None and _is_older(state.prefect_version, installed := importlib.metadata.version("prefect")):
            notify(f"Prefect was upgraded from {state.prefect_version} to {installed}: restarting the local server")
            _stop(folder, state)
            state = None
        why = password_reason(mode) if state is None or not state.has_password else None
        if state is not None and _has_wrong_password_mode(state, mode, why) and _decide_restart(folder, state, mode, why, notify):
            _stop(folder, state)
            state = None
        if state is not None:
            return partial(_reuse, folder, state, mode, notify)
        first = not (folder.prefect_home / "prefect.db").exists()
        port = launch(folder, folder.make_password() if why is not None else None)
        login = f"; {login_hint(folder.password_file)}" if why is not None else ""
        first_start_note = "; its first start takes about ten seconds" if first else ""
        notify(f"started a local Prefect server: {server_url(port)} (`plan down` stops it; log: {folder.log}){login}{first_start_note}")
        return partial(_wait_until_healthy, folder, port, time.monotonic() + START_SECONDS, started=True)


def _has_wrong_password_mode(state: ServerState, mode: AuthMode, why: str | None) -> bool:
    """Whether the running server lacks a required password, or has one although PLAN_ADAPTER_LOCAL_SERVER_AUTH=off.

    `auto` leaves a server with a password as it is.
    """
    return mode == "off" if state.has_password else why is not None


def _decide_restart(folder: ServerFolder, state: ServerState, mode: AuthMode, why: str | None, notify: Notify) -> bool:
    """Return whether to restart the server in the other mode now. Raises NoServerError if the restart is required but must wait.

    A restart must wait for active runs: they would lose their connection to the server.
    """
    new_mode = "with a password" if why is not None else "without a password"
    if _count_active_runs(folder, state) == 0:
        notify(f"restarting the local Prefect server {new_mode} ({why or 'PLAN_ADAPTER_LOCAL_SERVER_AUTH=off'})")
        return True
    current_mode = "runs without a password" if why is not None else "demands a password"
    message = (
        f"the local Prefect server {server_url(state.port)} {current_mode} and has unfinished runs: type `plan down` when they have "
        f"ended, and the next run starts it {new_mode}"
    )
    if mode != "auto":
        raise NoServerError(f"PLAN_ADAPTER_LOCAL_SERVER_AUTH={mode}, but {message}. {ALTERNATIVES}")
    notify(f"{message} ({why})")
    return False


def _count_active_runs(folder: ServerFolder, state: ServerState) -> int | None:
    """Return how many flow runs have begun and not ended, or None if the server does not say."""
    wanted = {"flow_runs": {"state": {"type": {"any_": ["PENDING", "RUNNING", "PAUSED", "CANCELLING"]}}}}
    headers = {"Content-Type": "application/json"}
    if (password := _password(folder, state)) is not None:
        headers["Authorization"] = f"Basic {base64.b64encode(password.encode()).decode()}"
    connection = http.client.HTTPConnection("127.0.0.1", state.port, timeout=ANSWER_SECONDS)
    try:
        connection.request("POST", "/api/flow_runs/count", json.dumps(wanted), headers)
        answer = connection.getresponse()
        return int(answer.read()) if answer.status == 200 else None
    except (OSError, ValueError, http.client.HTTPException):
        return None
    finally:
        connection.close()


def _reuse(folder: ServerFolder, state: ServerState, mode: AuthMode, notify: Notify) -> Server:
    """Wait for a server that was running. If it ended meanwhile, replace it once."""
    remaining = max(state.started_at + START_SECONDS - time.time(), ANSWER_SECONDS)
    try:
        return _wait_until_healthy(folder, state.port, time.monotonic() + remaining, started=False)
    except NoServerError:
        if folder.is_alive:
            raise
    waiting = _find_or_launch(folder, mode, notify)
    return waiting()


def _wait_until_healthy(folder: ServerFolder, port: int, deadline: float, *, started: bool) -> Server:
    """Return the server at `port` once it answers. Raises NoServerError if its process ended or `deadline` passed."""
    with quiet_import():
        import prefect  # noqa: F401  # uses the second that the server needs anyway  # pyright: ignore[reportUnusedImport]
    while True:
        alive = folder.is_alive
        answer = _check_health(port, seconds=max(1.0, deadline - time.monotonic())) if alive else "refused"
        if answer == "healthy":
            break
        if not alive:
            raise NoServerError(
                _with_log_tail(folder, "the local Prefect server did not start" if started else "the local Prefect server ended")
            )
        if time.monotonic() >= deadline:
            raise NoServerError(
                _with_log_tail(folder, f"the local Prefect server at {server_url(port)} does not answer; `plan down` stops it")
            )
        time.sleep(0.1)
    state = folder.read_state()
    return Server(
        api_url=server_url(port) + "/api",
        ui_url=server_url(port),
        started=started,
        log_path=folder.log,
        pid=state.pid if state is not None else None,
        password=_password(folder, state) if state is not None else None,
        password_file=folder.password_file if state is not None and state.has_password else None,
    )


def _with_log_tail(folder: ServerFolder, what: str) -> str:
    return f"{what}. `plan doctor` looks for the cause. {ALTERNATIVES} The end of {folder.log}:{folder.log_tail() or ' (empty)'}"


def _check_health(port: int, *, seconds: float) -> Literal["healthy", "refused", "silent"]:
    """Ask the server at `port` directly, ignoring any proxy of the environment."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=seconds)
    try:
        connection.request("GET", "/api/health")
        return "healthy" if connection.getresponse().status == 200 else "refused"
    except TimeoutError:
        return "silent"
    except (OSError, http.client.HTTPException):
        return "refused"
    finally:
        connection.close()


def _find_live_state(folder: ServerFolder) -> ServerState | None:
    """Return the record of the live server, or None if no server is alive. Raises NoServerError if it is out of reach."""
    if not folder.is_alive:
        return None
    deadline = time.monotonic() + ANSWER_SECONDS
    while (state := folder.read_state()) is None:  # a server records it first of all
        if time.monotonic() >= deadline:
            raise NoServerError(_with_log_tail(folder, f"a process holds {folder.alive_lock} and has not recorded its state"))
        time.sleep(0.05)
    if state.is_reachable or (state.host == socket.gethostname() and _ends_within(folder, GONE_SECONDS)):
        return state if folder.is_alive else None
    raise NoServerError(
        f"the local server of {folder.path} runs on host {state.host} as process {state.pid}, out of reach from here. "
        f"Give this machine or container a PLAN_ADAPTER_HOME of its own. {ALTERNATIVES}"
    )


def _ends_within(folder: ServerFolder, seconds: float) -> bool:
    """Wait until the server's process has ended and released its lock. Return whether it did so in time."""
    deadline = time.monotonic() + seconds
    while folder.is_alive and time.monotonic() < deadline:
        time.sleep(0.01)
    return not folder.is_alive


def _is_older(version: str, installed: str) -> bool:
    """Whether `version` is older. A newer server works with older clients, so it is left alone."""
    installed_version, running_version = (tuple(int(part) for part in re.findall(r"\d+", text)[:3]) for text in (installed, version))
    return running_version < installed_version


def _stop(folder: ServerFolder, state: ServerState) -> None:
    """End the process of `state`: SIGTERM to its group, then SIGKILL. Return once its lock is free and the process is gone."""
    for signal_number, seconds in ((signal.SIGTERM, STOP_SECONDS), (signal.SIGKILL, STOP_SECONDS)):
        if state.is_reachable:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(state.pid, signal_number)
        if _ends_within(folder, seconds):
            exit_deadline = time.monotonic() + GONE_SECONDS
            while state.is_reachable and time.monotonic() < exit_deadline:
                time.sleep(0.01)
            return
    raise NoServerError(f"the local Prefect server, process {state.pid}, could not be stopped; its log is {folder.log}")
