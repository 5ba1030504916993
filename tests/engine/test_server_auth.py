"""Tests of whether a server demands authentication: the server itself is asked, without credentials."""

import http.server
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from prefect.settings import temporary_settings

from plan_adapter.engine.connection import Server, demands_authentication
from tests.engine.gateway import Gateway, self_signed


@contextmanager
def answering(status: int) -> Iterator[tuple[str, list[dict[str, str]]]]:
    """Yield the API URL of a server that answers every request with `status`, and the headers of the requests it got."""
    seen: list[dict[str, str]] = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            seen.append(dict(self.headers))
            self.send_response(status)
            if 300 <= status < 400:
                self.send_header("Location", "/login")
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/api", seen
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.mark.parametrize(
    ("status", "demands"),
    [(200, False), (404, False), (401, True), (403, True), (302, True), (307, True), (500, None), (503, None), (429, None)],
)
def test_the_status_of_a_request_without_credentials_decides(status: int, demands: bool | None) -> None:
    with answering(status) as (url, _):
        assert demands_authentication(url) is demands


def test_an_unreachable_server_gives_no_clear_answer() -> None:
    assert demands_authentication("http://127.0.0.1:1/api") is None


def test_no_credentials_are_sent() -> None:
    with answering(200) as (url, seen):
        host = url.removeprefix("http://")
        with temporary_settings({"api.auth_string": "ana:pw", "api.key": "key", "client.custom_headers": {"X-Gate": "open"}}):  # pyright: ignore[reportArgumentType]
            assert demands_authentication(f"http://ana:pw@{host}") is False
    assert not {"authorization", "x-gate"} & {name.lower() for name in seen[0]}


def test_clear_answers_are_cached_and_unclear_ones_are_not() -> None:
    with answering(401) as (url, seen):
        assert [demands_authentication(url) for _ in range(3)] == [True, True, True]
    assert len(seen) == 1
    with answering(503) as (url, seen):
        assert [demands_authentication(url) for _ in range(3)] == [None, None, None]
    assert len(seen) == 3


def test_only_the_server_behind_a_gateway_demands_authentication(prefect_server: Server) -> None:
    assert demands_authentication(prefect_server.api_url) is False
    with Gateway(prefect_server.api_url) as gateway:
        assert demands_authentication(gateway.url) is True


def test_an_unverified_certificate_gives_no_clear_answer(prefect_server: Server, tmp_path: Path) -> None:
    with Gateway(prefect_server.api_url, certificate=self_signed(tmp_path / "cert.pem")) as gateway:
        assert demands_authentication(gateway.url) is None
        with temporary_settings({"api.tls_insecure_skip_verify": True}):  # pyright: ignore[reportArgumentType]
            assert demands_authentication(gateway.url) is True
