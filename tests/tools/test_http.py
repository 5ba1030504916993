import asyncio
import json
import logging
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import urlsplit

import pytest

from plan_adapter.model.errors import ToolError, UnknownOutcomeError
from plan_adapter.tools.http import BODY_LIMIT, http_get, http_send
from plan_adapter.tools.tool import ToolContext


@dataclass
class Answer:
    status: int = 200
    body: bytes = b"hello"
    headers: dict[str, str] = field(default_factory=lambda: {"content-type": "text/plain; charset=utf-8"})


@dataclass
class FakeServer:
    """A server's responses by path, and the requests that it received."""

    url: str = ""
    answers: dict[str, Answer] = field(default_factory=dict)
    seen: list[dict[str, Any]] = field(default_factory=list)
    hold: threading.Event = field(default_factory=threading.Event)
    arrived: threading.Event = field(default_factory=threading.Event)


def handler_of(fake: FakeServer) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def answer(self) -> None:
            path = urlsplit(self.path).path
            body = self.rfile.read(int(self.headers.get("content-length", 0)))
            headers = {name.lower(): value for name, value in self.headers.items()}
            fake.seen.append({"method": self.command, "path": self.path, "headers": headers, "body": body})
            if path == "/hang":
                fake.arrived.set()
                fake.hold.wait(30)
                return
            answer = fake.answers.get(path, Answer())
            self.send_response(answer.status)
            for name, value in answer.headers.items():
                self.send_header(name, value)
            self.send_header("content-length", str(len(answer.body)))
            self.end_headers()
            try:
                self.wfile.write(answer.body)
            except (BrokenPipeError, ConnectionResetError):
                return

        do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = answer

        def log_message(self, format: str, *args: object) -> None:
            return

    return Handler


@pytest.fixture
def fake() -> Iterator[FakeServer]:
    fake = FakeServer()
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler_of(fake))
    fake.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield fake
    fake.hold.set()
    server.shutdown()
    server.server_close()
    thread.join()


JSON = {"content-type": "application/json"}


async def test_a_text_response_is_returned_as_text(fake: FakeServer, context: ToolContext) -> None:
    fake.answers["/"] = Answer(body="你好".encode())
    result = await http_get(f"{fake.url}/", context)
    assert (result["status"], result["body"]) == (200, "你好")
    assert isinstance(result["headers"], dict) and result["headers"]["content-type"] == "text/plain; charset=utf-8"


@pytest.mark.parametrize(
    ("content_type", "body", "expected"),
    [
        ("application/json", b'{"a": [1, null]}', {"a": [1, None]}),
        ("application/problem+json; charset=utf-8", '"中"'.encode(), "中"),
        ("application/json", b"", ""),
        ("application/json", b"{oops", "{oops"),
        ("application/json", b"[NaN]", "[NaN]"),
        ("text/html", b"{}", "{}"),
        ("text/plain; charset=latin-1", b"\xe9", "é"),
        ("text/plain; charset=no-such", b"a\0b", "a\ufffdb"),
        ("application/octet-stream", b"\xff\xfe", "\ufffd\ufffd"),
    ],
)
async def test_json_is_parsed_if_the_content_type_says_so(
    fake: FakeServer, context: ToolContext, content_type: str, body: bytes, expected: object
) -> None:
    fake.answers["/"] = Answer(body=body, headers={"content-type": content_type})
    assert (await http_get(f"{fake.url}/", context))["body"] == expected


async def test_headers_are_sent_as_text(fake: FakeServer, context: ToolContext) -> None:
    await http_get(f"{fake.url}/?a=1", context, headers={"X-Number": 3, "X-Flag": True})
    seen = fake.seen[0]
    assert (seen["method"], seen["path"]) == ("GET", "/?a=1")
    assert (seen["headers"]["x-number"], seen["headers"]["x-flag"]) == ("3", "true")


@pytest.mark.parametrize("status", [304, 404, 500])
async def test_any_status_other_than_2xx_fails(fake: FakeServer, context: ToolContext, status: int) -> None:
    fake.answers["/a"] = Answer(status, body=b"" if status == 304 else b"no\nluck")
    with pytest.raises(ToolError) as error:
        await http_get(f"{fake.url}/a?token=secret", context)
    assert str(error.value).startswith(f"GET {fake.url}/a answered {status} ")
    assert "secret" not in str(error.value)
    assert status == 304 or str(error.value).endswith(": no luck")


async def test_an_expected_status_succeeds_and_any_other_fails(fake: FakeServer, context: ToolContext) -> None:
    fake.answers["/"] = Answer(404)
    assert (await http_get(f"{fake.url}/", context, expect_status=404))["status"] == 404
    assert (await http_get(f"{fake.url}/", context, expect_status=[200, 404]))["status"] == 404
    with pytest.raises(ToolError, match="answered 404"):
        await http_get(f"{fake.url}/", context, expect_status=200)


async def test_http_get_follows_redirects_but_not_to_another_scheme(fake: FakeServer, context: ToolContext) -> None:
    fake.answers |= {
        "/one": Answer(302, headers={"location": "/two"}),
        "/two": Answer(307, headers={"location": f"{fake.url}/three"}),
        "/file": Answer(302, headers={"location": "file:///etc/passwd"}),
        "/loop": Answer(302, headers={"location": "/loop"}),
    }
    assert (await http_get(f"{fake.url}/one", context))["body"] == "hello"
    with pytest.raises(ToolError, match="redirects to file, which is not followed"):
        await http_get(f"{fake.url}/file", context)
    with pytest.raises(ToolError, match="redirects more than 10 times"):
        await http_get(f"{fake.url}/loop", context)


async def test_headers_are_kept_on_a_redirect_within_an_origin(fake: FakeServer, context: ToolContext) -> None:
    fake.answers["/old"] = Answer(301, headers={"location": "/new"})
    await http_get(fake.url.replace("//", "//ana:pw@") + "/old", context, headers={"x-token": "t"})
    sent = fake.seen[-1]["headers"]
    assert (fake.seen[-1]["path"], sent["x-token"], sent["authorization"]) == ("/new", "t", "Basic YW5hOnB3")


async def test_an_error_after_a_redirect_to_another_origin_says_that_headers_were_not_sent(fake: FakeServer, context: ToolContext) -> None:
    other = fake.url.replace("127.0.0.1", "localhost")
    fake.answers |= {"/": Answer(302, headers={"location": f"{other}/closed?key=s3cret"}), "/closed": Answer(401, b"who?")}
    with pytest.raises(ToolError) as error:
        await http_get(f"{fake.url}/", context, headers={"x-token": "t"})
    assert f"401 Unauthorized: who? (after a redirect to {other}/closed: headers and credentials of the step are not" in str(error.value)
    assert "s3cret" not in str(error.value)


async def test_http_send_does_not_follow_redirects(fake: FakeServer, context: ToolContext) -> None:
    fake.answers["/old"] = Answer(308, headers={"location": "/new"})
    with pytest.raises(ToolError, match=r"answered 308 .*: a redirect, and this tool does not follow redirects"):
        await http_send(f"{fake.url}/old", context, body={})
    assert (await http_send(f"{fake.url}/old", context, expect_status=308))["status"] == 308
    assert [seen["path"] for seen in fake.seen] == ["/old", "/old"]


async def test_http_send_sends_json_or_text_and_the_idempotency_key(fake: FakeServer, context: ToolContext) -> None:
    fake.answers["/"] = Answer(201, b'{"id": 1}', JSON)
    result = await http_send(f"{fake.url}/", context, body={"name": "张三", "n": [1, None]})
    assert (result["status"], result["body"]) == (201, {"id": 1})
    await http_send(f"{fake.url}/", context, method="PUT", body="文", headers={"Content-Type": "text/markdown", "Idempotency-Key": "mine"})
    await http_send(f"{fake.url}/", context, method="DELETE")
    first, second, third = fake.seen
    assert json.loads(first["body"]) == {"name": "张三", "n": [1, None]}
    assert (first["headers"]["content-type"], first["headers"]["idempotency-key"]) == ("application/json", "key-of-the-step")
    assert (second["method"], second["body"].decode()) == ("PUT", "文")
    assert (second["headers"]["content-type"], second["headers"]["idempotency-key"]) == ("text/markdown", "mine")
    assert (third["method"], third["body"], "content-type" in third["headers"]) == ("DELETE", b"", False)


async def test_credentials_in_the_url_are_sent_as_a_header_and_never_shown(
    fake: FakeServer, context: ToolContext, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    fake.answers["/"] = Answer(403, b"")
    with pytest.raises(ToolError) as error:
        await http_get(fake.url.replace("//", "//ana:s3cret@") + "/", context)
    assert fake.seen[0]["headers"]["authorization"] == "Basic YW5hOnMzY3JldA=="
    assert "s3cret" not in str(error.value) + caplog.text


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("ftp://host/x", "must start with http:// or https://"),
        ("host/x", "must start with http:// or https://"),
        ("http://", "name a host"),
        ("http://host:port/", "this is not a URL: Invalid port"),
        ("http://127.0.0.1:1/x?token=secret", "GET http://127.0.0.1:1/x: "),
    ],
)
async def test_an_invalid_or_unreachable_url_gives_a_clear_error(context: ToolContext, url: str, message: str) -> None:
    with pytest.raises(ToolError) as error:
        await http_get(url, context)
    assert message in str(error.value)
    assert "secret" not in str(error.value)


async def test_an_invalid_header_gives_a_clear_error(fake: FakeServer, context: ToolContext) -> None:
    with pytest.raises(ToolError, match="`x`, `密` cannot be sent as a header: a name has letters"):
        await http_get(f"{fake.url}/", context, headers={"x": "a\r\nb: c", "good": "yes", "密": "钥"})


async def test_a_long_text_is_truncated_between_characters(fake: FakeServer, context: ToolContext) -> None:
    fake.answers["/"] = Answer(body=("长" * (BODY_LIMIT // 3 + 10)).encode())
    body = (await http_get(f"{fake.url}/", context))["body"]
    assert isinstance(body, str)
    kept, _, note = body.partition("\n")
    assert kept == "长" * (BODY_LIMIT // 3)
    assert note == f"… cut after {BODY_LIMIT} bytes"


async def test_json_that_is_too_long_fails(fake: FakeServer, context: ToolContext) -> None:
    fake.answers["/"] = Answer(body=b"[" + b"1," * (BODY_LIMIT // 2 + 1) + b"1]", headers=JSON)
    with pytest.raises(ToolError, match=f"JSON of more than {BODY_LIMIT} bytes"):
        await http_get(f"{fake.url}/", context)


async def test_http_send_returns_json_that_is_too_long_as_text(fake: FakeServer, context: ToolContext) -> None:
    fake.answers["/"] = Answer(body=b"[" + b"1," * (BODY_LIMIT // 2 + 1) + b"1]", headers=JSON)
    body = (await http_send(f"{fake.url}/", context))["body"]
    assert isinstance(body, str)
    assert body.endswith(f"… cut after {BODY_LIMIT} bytes")


async def test_a_read_without_a_deadline_times_out(fake: FakeServer, context: ToolContext, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("plan_adapter.tools.http.READ_SECONDS", 0.05)
    with pytest.raises(ToolError, match="no answer in time"):
        await http_get(f"{fake.url}/hang", context)


async def test_a_request_with_a_deadline_waits_until_it_is_cancelled(
    fake: FakeServer, context: ToolContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("plan_adapter.tools.http.READ_SECONDS", 0.01)
    request = asyncio.ensure_future(http_get(f"{fake.url}/hang", replace(context, deadline=1e12)))
    await asyncio.to_thread(fake.arrived.wait, 30)
    request.cancel()
    with pytest.raises(asyncio.CancelledError):
        await request


async def test_a_connection_lost_after_the_request_leaves_an_unknown_outcome(context: ToolContext) -> None:
    async def read_and_disconnect(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.close()

    async with await asyncio.start_server(read_and_disconnect, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        with pytest.raises(UnknownOutcomeError, match="after the request was sent"):
            await http_send.fn(f"http://127.0.0.1:{port}/orders?key=secret", context=context, body={"n": 1})


async def test_a_refused_connection_is_a_known_failure(context: ToolContext) -> None:
    with pytest.raises(ToolError) as refused:
        await http_send.fn("http://127.0.0.1:9/orders", context=context, body={"n": 1})
    assert not isinstance(refused.value, UnknownOutcomeError)
