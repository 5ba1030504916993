"""A TCP proxy on loopback in front of PostgreSQL that cuts a connection exactly at the COMMIT of what it has written."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Literal

COMMIT = b"COMMIT;\0"
READS = b"BEGIN ISOLATION LEVEL REPEATABLE READ"

Cut = Literal["before", "after", "at once"]
"""Before the server is sent the COMMIT; after it has answered; or without waiting for its answer, while it may still be at it."""


@dataclass
class Proxy:
    """Forwards to `port` what comes in at `own_port`."""

    port: int
    own_port: int = 0
    cuts: list[Cut] = field(default_factory=list[Cut])  # what becomes of the next commits
    made: list[Cut] = field(default_factory=list[Cut])

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Forward one connection, until one side ends it or a COMMIT is cut."""
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


async def _pipe(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(ConnectionError):
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
        writer.close()


@asynccontextmanager
async def a_proxy(port: int) -> AsyncGenerator[Proxy]:
    """Yield a proxy in front of `port`."""
    proxy = Proxy(port)
    server = await asyncio.start_server(proxy.serve, "127.0.0.1", 0)
    proxy.own_port = server.sockets[0].getsockname()[1]
    try:
        yield proxy
    finally:
        server.close()
