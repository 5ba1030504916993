"""The process of the local Prefect server: `python -m plan_adapter.engine.server_process FOLDER PORT LISTENING_SOCKET`.

It inherits the listening socket, so no other program can take the port between choosing and binding it, and a client's first request waits
in the socket's queue until the server answers. It also inherits the lock that shows that it is alive.
"""

import gc
import importlib.metadata
import os
import socket
import sys
import threading
import time
from pathlib import Path

from plan_adapter.engine.internals import record_failed_batches_singly, shorten_lock_wait
from plan_adapter.engine.server_state import ServerFolder, ServerState, process_start

COLLECT_SECONDS = 1.0
FULL_COLLECTION_INTERVAL = 30
"""After this many collections, old objects are collected as well."""


def main() -> None:
    """Serve Prefect's API and UI until SIGTERM."""
    # Imports and migrations create long-lived objects. Collecting them repeatedly takes a tenth of the startup time.
    gc.disable()
    os.umask(0o077)  # files that Prefect writes below the folder are readable by this account only
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
            collect_garbage_in_thread()

    record_failed_batches_singly()
    shorten_lock_wait()
    # A browser's open event stream must not delay shutdown.
    config = uvicorn.Config(create_app(final=True), log_level="warning", access_log=False, timeout_graceful_shutdown=3)
    Server(config).run(sockets=[listening])


def collect_garbage_in_thread() -> None:
    """Collect garbage only on a separate thread from now on.

    After an error, a SQLite cursor may be part of a reference cycle. Collecting it waits for its connection, which may wait for a lock
    whose owner waits for the event loop. On the loop's thread that is a deadlock: the server answers nobody until SQLite gives up a minute
    later. Python releases its own lock during that wait, so a waiting separate thread blocks nothing.
    """
    gc.disable()
    threading.Thread(target=_collect_garbage, name="collector", daemon=True).start()


def _collect_garbage() -> None:
    iteration = 0
    while True:
        time.sleep(COLLECT_SECONDS)
        iteration += 1
        gc.collect(2 if iteration % FULL_COLLECTION_INTERVAL == 0 else 1)


if __name__ == "__main__":
    main()
