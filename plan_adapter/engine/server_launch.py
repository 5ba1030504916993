"""Launching the process of the local Prefect server."""

import contextlib
import errno
import os
import socket
import subprocess
import sys
import threading

from plan_adapter.engine.server_state import ServerFolder


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
