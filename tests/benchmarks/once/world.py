"""The outside world of the trials: a server that counts the charges of each trial, and kills a process in the middle of its call."""

import os
import signal
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class World(ThreadingHTTPServer):
    """Counts the charges by the path that they were sent to."""

    daemon_threads = True
    request_queue_size = 64

    def __init__(self) -> None:
        """Listen on a free port of this host."""
        super().__init__(("127.0.0.1", 0), _Handler)
        self.charges = Counter[str]()
        self.lock = threading.Lock()

    def url(self, path: str) -> str:
        """Return the URL of a trial."""
        return f"http://127.0.0.1:{self.server_address[1]}{path}"


class _Handler(BaseHTTPRequestHandler):
    server: World  # pyright: ignore[reportIncompatibleVariableOverride]

    def do_POST(self) -> None:  # its name there
        """Charge, and reply unless the client is to die first."""
        self.rfile.read(int(self.headers["Content-Length"]))
        with self.server.lock:
            self.server.charges[self.path] += 1
        if pid := self.headers["X-Kill"]:
            os.kill(int(pid), signal.SIGKILL)
        else:
            self._reply("charged")

    def do_GET(self) -> None:  # its name there
        """Reply how often this trial has charged."""
        self._reply(str(self.server.charges[self.path]))

    def _reply(self, text: str) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(text.encode())

    def log_message(self, *_: object) -> None:
        """Print nothing."""


@contextmanager
def running_world() -> Iterator[World]:
    """Yield a world that serves in a thread."""
    with World() as world:
        thread = threading.Thread(target=world.serve_forever)
        thread.start()
        try:
            yield world
        finally:
            world.shutdown()
            thread.join()
