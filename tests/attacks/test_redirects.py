"""Tests of redirects to another origin, which must receive neither headers nor bodies."""

import threading
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from plan_adapter.model.errors import ToolError
from plan_adapter.tools.http import http_get, http_send
from plan_adapter.tools.tool import ToolContext
from tests.tools.conftest import context

__all__ = ["context"]

SENT = {
    "authorization": "Bearer s3cret",
    "cookie": "session=s3cret",
    "proxy-authorization": "Basic s3cret",
    "x-api-key": "s3cret",
    "host": "internal.s3cret",
    "user-agent": "s3cret",
    "accept": "application/s3cret",
}


@dataclass
class Origin:
    """A server on its own port, with its redirects by path and the requests that it received."""

    port: int = 0
    redirects: dict[str, tuple[int, str]] = field(default_factory=dict[str, tuple[int, str]])
    seen: list[str] = field(default_factory=list[str])

    def url(self, path: str, *, host: str = "127.0.0.1") -> str:
        """Return the URL of `path`."""
        return f"http://{host}:{self.port}{path}"

    @property
    def leaked(self) -> list[str]:
        """The requests that carried a secret of the step, or a cookie set by another origin."""
        return [
            request
            for request in self.seen
            if "s3cret" in request or "YW5hOnMzY3JldA" in request or (f"given=by-{self.port}" not in request and "given=" in request)
        ]


def handler_of(origin: Origin) -> type[BaseHTTPRequestHandler]:
    """Return the request handler of `origin`."""

    class Handler(BaseHTTPRequestHandler):
        def answer(self) -> None:
            body = self.rfile.read(int(self.headers.get("content-length", 0))).decode()
            origin.seen.append(f"{self.command} {self.path}\n{self.headers}\n{body}")
            status, location = origin.redirects.get(self.path, (200, ""))
            self.send_response(status)
            if location:
                self.send_header("location", location)
                self.send_header("set-cookie", f"given=by-{origin.port}; path=/")
            self.send_header("content-length", "2")
            self.end_headers()
            self.wfile.write(b"ok")

        do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = answer

        def log_message(self, format: str, *args: object) -> None:
            return

    return Handler


@contextmanager
def serving() -> Generator[Origin]:
    """Serve an origin for as long as the block lasts."""
    origin = Origin()
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler_of(origin))
    origin.port = server.server_port
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield origin
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@pytest.fixture
def requested() -> Iterator[Origin]:
    """The origin that a step names."""
    with serving() as origin:
        yield origin


@pytest.fixture
def other() -> Iterator[Origin]:
    """An origin that only a redirect names."""
    with serving() as origin:
        yield origin


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
@pytest.mark.parametrize("header", [*SENT, "userinfo"])
async def test_a_header_is_dropped_on_a_redirect_to_another_origin(
    requested: Origin, other: Origin, context: ToolContext, header: str, status: int
) -> None:
    requested.redirects["/"] = (status, other.url("/taken"))
    url = requested.url("/").replace("//", "//ana:s3cret@") if header == "userinfo" else requested.url("/")
    headers: dict[str, Any] = {name: value for name, value in SENT.items() if name == header}
    assert (await http_get(url, context, headers=headers))["status"] == 200
    assert requested.leaked, "the header reaches the origin that the step names"
    assert [request.partition("\n")[0] for request in other.seen] == ["GET /taken"]
    assert other.leaked == []


@pytest.mark.parametrize("route", ["another port", "another host", "another user", "by an extra hop", "there and back"])
async def test_headers_stay_dropped_along_the_whole_redirect_chain(
    requested: Origin, other: Origin, context: ToolContext, route: str
) -> None:
    first, last = requested.url("/first"), other
    match route:
        case "another port":
            requested.redirects["/first"] = (302, other.url("/last"))
        case "another host":  # the same address and port by another name
            requested.redirects["/first"], last = (302, requested.url("/last", host="localhost")), requested
        case "another user":
            requested.redirects["/first"] = (302, other.url("/last").replace("//", "//zoe:other@"))
        case "by an extra hop":
            requested.redirects |= {"/first": (302, "/second"), "/second": (307, other.url("/third"))}
            other.redirects["/third"] = (308, "/last")
        case _:
            requested.redirects["/first"], last = (302, other.url("/second")), requested
            other.redirects["/second"] = (302, requested.url("/last"))
    await http_get(first, context, headers=dict(SENT))
    assert last.seen[-1].startswith("GET /last\n")
    assert [request for request in [*requested.leaked, *other.leaked] if request.startswith(("GET /last", "GET /third"))] == []
    assert "zoe" not in last.seen[-1] and "authorization" not in last.seen[-1].lower()


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH", "DELETE"])
async def test_a_body_is_not_sent_again_to_another_origin(
    requested: Origin, other: Origin, context: ToolContext, method: Any, status: int
) -> None:
    requested.redirects["/"] = (status, other.url("/taken"))
    with pytest.raises(ToolError, match=rf"answered {status} .*: a redirect, and this tool does not follow redirects"):
        await http_send(requested.url("/"), context, method=method, body={"card": "s3cret"}, headers=dict(SENT))
    assert len(requested.leaked) == 1
    assert other.seen == []
