"""The process of the local Prefect server: `python -m plan_adapter.engine.server_process FOLDER PORT LISTENING_SOCKET`.

It inherits the listening socket, so no other program can take the port between choosing and binding it, and a client's first
request waits in the socket's queue until the server answers; and the lock that says that it lives.
"""

import gc
import importlib.metadata
import os
import socket
import sys
import time
from pathlib import Path

from plan_adapter.engine.server_state import ServerFolder, ServerState, process_start


def main() -> None:
    """Serve Prefect's API and UI until SIGTERM."""
    # Imports and migrations make objects that stay: collecting them again and again costs a tenth of the start.
    gc.disable()
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
            gc.enable()

    # A browser's open event stream must not hold up the end.
    config = uvicorn.Config(create_app(final=True), log_level="warning", access_log=False, timeout_graceful_shutdown=3)
    Server(config).run(sockets=[listening])


if __name__ == "__main__":
    main()
