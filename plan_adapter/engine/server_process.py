"""The process of the local Prefect server: `python -m plan_adapter.engine.server_process FOLDER PORT LISTENING_SOCKET`.

It inherits the listening socket, so no other program can take the port between choosing and binding it, and a client's first
request waits in the socket's queue until the server answers; and the lock that says that it lives.
"""

import gc
import importlib.metadata
import os
import socket
import sys
import threading
import time
from pathlib import Path
from typing import Any

from plan_adapter.engine.server_state import ServerFolder, ServerState, process_start

COLLECT_SECONDS = 1.0
FULL_TURNS = 30
"""At every which turn the old objects are looked through, too."""


def main() -> None:
    """Serve Prefect's API and UI until SIGTERM."""
    # Imports and migrations make objects that stay: collecting them again and again costs a tenth of the start.
    gc.disable()
    os.umask(0o077)  # what Prefect writes below the folder is for this account alone
    folder, port, listening = Path(sys.argv[1]), int(sys.argv[2]), socket.socket(fileno=int(sys.argv[3]))
    pid = os.getpid()
    ServerFolder(folder).write_state(
        ServerState(
            pid=pid,
            process_start=process_start(pid) or "",
            host=socket.gethostname(),
            port=port,
            prefect_version=importlib.metadata.version("prefect"),
            started_at=time.time(),
            has_password="PREFECT_SERVER_API_AUTH_STRING" in os.environ,
        )
    )
    _serve(listening)


def _serve(listening: socket.socket) -> None:
    import uvicorn
    from prefect.server.api.server import create_app

    class Server(uvicorn.Server):
        async def startup(self, sockets: list[socket.socket] | None = None) -> None:
            await super().startup(sockets)
            gc.freeze()
            collect_apart()

    record_singly_what_fails_together()
    # A browser's open event stream must not hold up the end.
    config = uvicorn.Config(create_app(final=True), log_level="warning", access_log=False, timeout_graceful_shutdown=3)
    Server(config).run(sockets=[listening])


def record_singly_what_fails_together() -> None:
    """Let states of task runs that the database refuses, those of a flow run that was deleted for one, take no others with them.

    Prefect writes states together and drops all of a batch of which one is refused again and again.
    """
    from prefect.server.services import task_run_recorder

    together = task_run_recorder.record_bulk_task_run_events

    async def record(events: list[Any]) -> None:
        try:
            await together(events)
        except task_run_recorder.IntegrityError:  # pyright: ignore[reportPrivateImportUsage]  # SQLAlchemy has its own door
            if len(events) == 1:
                raise
            for event in events:
                await task_run_recorder.record_task_run_event(event)  # logs and leaves out what is refused

    task_run_recorder.record_bulk_task_run_events = record


def collect_apart() -> None:
    """Collect garbage on a thread of its own from now on, and nowhere else.

    A cursor of SQLite in a cycle, as an error leaves one behind, waits where it is collected for its connection, and that may wait for a
    lock whose owner waits for the event loop. On the loop's thread that is a deadlock: until SQLite gives up, a minute later, the server
    answers nobody. Python waits for the connection without its own lock, so another thread that waits holds up nothing.
    """
    gc.disable()
    threading.Thread(target=_collect, name="collector", daemon=True).start()


def _collect() -> None:
    turn = 0
    while True:
        time.sleep(COLLECT_SECONDS)
        turn += 1
        gc.collect(2 if turn % FULL_TURNS == 0 else 1)


if __name__ == "__main__":
    main()
