"""TCP proxies on loopback: one cuts connections to PostgreSQL at a COMMIT, and one makes a Prefect server look busy."""

import asyncio
import threading
from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Literal

COMMIT = b"COMMIT;\0"
READS = b"BEGIN ISOLATION LEVEL REPEATABLE READ"

Cut = Literal["before", "after", "at once"]
"""Before the COMMIT is sent, after the server has answered it, or right after sending it, without waiting for the answer."""


@dataclass
class Proxy:
    """Forwards connections from `own_port` to `port`."""

    port: int
    own_port: int = 0
    cuts: list[Cut] = field(default_factory=list[Cut])  # the cuts of the next commits
    made: list[Cut] = field(default_factory=list[Cut])  # the cuts made so far

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Forward one connection until one side closes it or a COMMIT is cut."""
        answers, server = await asyncio.open_connection("127.0.0.1", self.port)
        answering = asyncio.ensure_future(_pipe(answers, writer))
        reads = False
        try:
            while data := await reader.read(65536):
                if b"BEGIN" in data:
                    reads = READS in data
                if self.cuts and not reads and data.endswith(COMMIT):
                    await self._cut(server, answering, answers, data)
                    break
                server.write(data)
                await server.drain()
        except ConnectionError:
            return
        finally:
            answering.cancel()
            writer.transport.abort()
            server.close()

    async def _cut(
        self, server: asyncio.StreamWriter, answering: "asyncio.Future[None]", answers: asyncio.StreamReader, data: bytes
    ) -> None:
        cut = self.cuts.pop(0)
        answering.cancel()
        with suppress(asyncio.CancelledError):
            await answering
        if cut != "before":
            server.write(data)
            await server.drain()
        if cut == "after":
            assert b"COMMIT" in await answers.read(65536)
        self.made.append(cut)


async def _pipe(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, look: Callable[[bytes], None] | None = None) -> None:
    with suppress(ConnectionError):
        while data := await reader.read(65536):
            if look is not None:
                look(data)
            writer.write(data)
            await writer.drain()
        writer.close()


@dataclass
class BusyServer:
    """Forwards to the server at `port`, but answers requests that contain a key of `refusals` with 503, as often as its value says.

    Requests that contain one of `forgets` are accepted and not forwarded.
    """

    port: int
    forgets: tuple[bytes, ...] = ()
    refusals: dict[bytes, int] = field(default_factory=dict[bytes, int])
    own_port: int = 0
    requests: list[bytes] = field(default_factory=list[bytes])  # the first line of each, refused or not
    refused_by_server: list[bytes] = field(default_factory=list[bytes])  # the first lines of those that the server itself answered with 503

    @property
    def url(self) -> str:
        """The API URL of the proxy."""
        return f"http://127.0.0.1:{self.own_port}/api"

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Forward one connection. Each of its requests waits for the answer to the previous one."""
        answers, server = await asyncio.open_connection("127.0.0.1", self.port)
        forwarded = list[bytes]()
        answering = asyncio.ensure_future(_pipe(answers, writer, partial(self._note_refusal, forwarded)))
        try:
            while data := await reader.read(65536):
                if data.split(b" ", 1)[0] in (b"GET", b"POST", b"PATCH", b"PUT", b"DELETE"):
                    data = await self._read_request(data, reader)
                    self.requests.append(data.partition(b"\r\n")[0])
                    if (key := next((key for key, left in self.refusals.items() if left and key in data), None)) is not None:
                        self.refusals[key] -= 1
                        writer.write(b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 2\r\n\r\n{}")
                        continue
                    if any(key in data for key in self.forgets):
                        writer.write(b"HTTP/1.1 201 Created\r\nContent-Length: 2\r\n\r\n{}")
                        continue
                    forwarded.append(self.requests[-1])
                server.write(data)
                await server.drain()
        except ConnectionError:
            return
        finally:
            answering.cancel()
            writer.transport.abort()
            server.close()

    def _note_refusal(self, forwarded: list[bytes], answer: bytes) -> None:
        if answer.startswith(b"HTTP/1.1 503 "):
            self.refused_by_server.append(forwarded[-1])

    async def _read_request(self, data: bytes, reader: asyncio.StreamReader) -> bytes:
        head, _, body = data.partition(b"\r\n\r\n")
        length = next((int(line.split(b":")[1]) for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")), 0)
        return data + (await reader.readexactly(length - len(body)) if length > len(body) else b"")


@contextmanager
def running_busy_server(port: int) -> Generator[BusyServer]:
    """Yield a proxy for the Prefect server at `port`. It has its own event loop, because Prefect blocks the caller's for some requests."""
    proxy, loop = BusyServer(port), asyncio.new_event_loop()
    server = loop.run_until_complete(asyncio.start_server(proxy.serve, "127.0.0.1", 0))
    proxy.own_port = server.sockets[0].getsockname()[1]
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    try:
        yield proxy
    finally:
        loop.call_soon_threadsafe(server.close)
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        for task in asyncio.all_tasks(loop):
            task.cancel()
        loop.run_until_complete(asyncio.sleep(0))
        loop.close()


@asynccontextmanager
async def running_proxy(port: int) -> AsyncGenerator[Proxy]:
    """Yield a proxy for `port`."""
    proxy = Proxy(port)
    server = await asyncio.start_server(proxy.serve, "127.0.0.1", 0)
    proxy.own_port = server.sockets[0].getsockname()[1]
    try:
        yield proxy
    finally:
        server.close()
