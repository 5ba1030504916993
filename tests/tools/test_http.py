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

from plan_adapter.errors import ToolError, UnknownOutcomeError
from plan_adapter.tools.http import BODY_LIMIT, http_get, http_send
from plan_adapter.tools.tool import ToolContext


@dataclass
class Answer:
    status: int = 200
    body: bytes = b"hello"
    headers: dict[str, str] = field(default_factory=lambda: {"content-type": "text/plain; charset=utf-8"})


@dataclass
class World:
    """A server's answers by path, and the requests that it saw."""

    url: str = ""
    answers: dict[str, Answer] = field(default_factory=dict)
    seen: list[dict[str, Any]] = field(default_factory=list)
    hold: threading.Event = field(default_factory=threading.Event)
    arrived: threading.Event = field(default_factory=threading.Event)


def handler_of(world: World) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def answer(self) -> None:
            path = urlsplit(self.path).path
            body = self.rfile.read(int(self.headers.get("content-length", 0)))
            headers = {name.lower(): value for name, value in self.headers.items()}
            world.seen.append({"method": self.command, "path": self.path, "headers": headers, "body": body})
            if path == "/hang":
                world.arrived.set()
                world.hold.wait(30)
                return
            answer = world.answers.get(path, Answer())
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
def world() -> Iterator[World]:
    world = World()
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler_of(world))
    world.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield world
    world.hold.set()
    server.shutdown()
    server.server_close()
    thread.join()


JSON = {"content-type": "application/json"}


async def test_a_text_answer_is_text(world: World, context: ToolContext) -> None:
    world.answers["/"] = Answer(body="你好".encode())
    result = await http_get(f"{world.url}/", context)
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
async def test_json_is_parsed_where_the_answer_says_so(
    world: World, context: ToolContext, content_type: str, body: bytes, expected: object
) -> None:
    world.answers["/"] = Answer(body=body, headers={"content-type": content_type})
    assert (await http_get(f"{world.url}/", context))["body"] == expected


async def test_headers_are_sent_as_text(world: World, context: ToolContext) -> None:
    await http_get(f"{world.url}/?a=1", context, headers={"X-Number": 3, "X-Flag": True})
    seen = world.seen[0]
    assert (seen["method"], seen["path"]) == ("GET", "/?a=1")
    assert (seen["headers"]["x-number"], seen["headers"]["x-flag"]) == ("3", "true")


@pytest.mark.parametrize("status", [304, 404, 500])
async def test_any_status_but_2xx_fails(world: World, context: ToolContext, status: int) -> None:
    world.answers["/a"] = Answer(status, body=b"" if status == 304 else b"no\nluck")
    with pytest.raises(ToolError) as error:
        await http_get(f"{world.url}/a?token=secret", context)
    assert str(error.value).startswith(f"GET {world.url}/a answered {status} ")
    assert "secret" not in str(error.value)
    assert status == 304 or str(error.value).endswith(": no luck")


async def test_an_expected_status_is_a_result_and_any_other_fails(world: World, context: ToolContext) -> None:
    world.answers["/"] = Answer(404)
    assert (await http_get(f"{world.url}/", context, expect_status=404))["status"] == 404
    assert (await http_get(f"{world.url}/", context, expect_status=[200, 404]))["status"] == 404
    with pytest.raises(ToolError, match="answered 404"):
        await http_get(f"{world.url}/", context, expect_status=200)


async def test_http_get_follows_redirects_but_to_no_other_scheme(world: World, context: ToolContext) -> None:
    world.answers |= {
        "/one": Answer(302, headers={"location": "/two"}),
        "/two": Answer(307, headers={"location": f"{world.url}/three"}),
        "/file": Answer(302, headers={"location": "file:///etc/passwd"}),
        "/loop": Answer(302, headers={"location": "/loop"}),
    }
    assert (await http_get(f"{world.url}/one", context))["body"] == "hello"
    with pytest.raises(ToolError, match="redirects to file, which is not followed"):
        await http_get(f"{world.url}/file", context)
    with pytest.raises(ToolError, match="redirects more than 10 times"):
        await http_get(f"{world.url}/loop", context)


async def test_headers_are_kept_on_a_redirect_within_an_origin(world: World, context: ToolContext) -> None:
    world.answers["/old"] = Answer(301, headers={"location": "/new"})
    await http_get(world.url.replace("//", "//ana:pw@") + "/old", context, headers={"x-token": "t"})
    sent = world.seen[-1]["headers"]
    assert (world.seen[-1]["path"], sent["x-token"], sent["authorization"]) == ("/new", "t", "Basic YW5hOnB3")


async def test_a_refusal_after_a_redirect_to_another_origin_says_that_no_header_was_sent(world: World, context: ToolContext) -> None:
    other = world.url.replace("127.0.0.1", "localhost")
    world.answers |= {"/": Answer(302, headers={"location": f"{other}/closed?key=s3cret"}), "/closed": Answer(401, b"who?")}
    with pytest.raises(ToolError) as error:
        await http_get(f"{world.url}/", context, headers={"x-token": "t"})
    assert f"401 Unauthorized: who? (after a redirect to {other}/closed: headers and credentials of the step are not" in str(error.value)
    assert "s3cret" not in str(error.value)


async def test_http_send_follows_no_redirect(world: World, context: ToolContext) -> None:
    world.answers["/old"] = Answer(308, headers={"location": "/new"})
    with pytest.raises(ToolError, match=r"answered 308 .*: a redirect, and this tool does not follow redirects"):
        await http_send(f"{world.url}/old", context, body={})
    assert (await http_send(f"{world.url}/old", context, expect_status=308))["status"] == 308
    assert [seen["path"] for seen in world.seen] == ["/old", "/old"]


async def test_http_send_sends_json_or_text_and_the_idempotency_key(world: World, context: ToolContext) -> None:
    world.answers["/"] = Answer(201, b'{"id": 1}', JSON)
    result = await http_send(f"{world.url}/", context, body={"name": "张三", "n": [1, None]})
    assert (result["status"], result["body"]) == (201, {"id": 1})
    await http_send(f"{world.url}/", context, method="PUT", body="文", headers={"Content-Type": "text/markdown", "Idempotency-Key": "mine"})
    await http_send(f"{world.url}/", context, method="DELETE")
    first, second, third = world.seen
    assert json.loads(first["body"]) == {"name": "张三", "n": [1, None]}
    assert (first["headers"]["content-type"], first["headers"]["idempotency-key"]) == ("application/json", "key-of-the-step")
    assert (second["method"], second["body"].decode()) == ("PUT", "文")
    assert (second["headers"]["content-type"], second["headers"]["idempotency-key"]) == ("text/markdown", "mine")
    assert (third["method"], third["body"], "content-type" in third["headers"]) == ("DELETE", b"", False)


async def test_a_user_in_the_url_is_sent_as_a_header_and_shown_nowhere(
    world: World, context: ToolContext, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    world.answers["/"] = Answer(403, b"")
    with pytest.raises(ToolError) as error:
        await http_get(world.url.replace("//", "//ana:s3cret@") + "/", context)
    assert world.seen[0]["headers"]["authorization"] == "Basic YW5hOnMzY3JldA=="
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
async def test_an_address_that_leads_nowhere_is_one_clear_error(context: ToolContext, url: str, message: str) -> None:
    with pytest.raises(ToolError) as error:
        await http_get(url, context)
    assert message in str(error.value)
    assert "secret" not in str(error.value)


async def test_a_header_that_cannot_be_sent_is_one_clear_error(world: World, context: ToolContext) -> None:
    with pytest.raises(ToolError, match="`x`, `密` cannot be sent as a header: a name has letters"):
        await http_get(f"{world.url}/", context, headers={"x": "a\r\nb: c", "good": "yes", "密": "钥"})


async def test_a_long_text_is_cut_between_characters(world: World, context: ToolContext) -> None:
    world.answers["/"] = Answer(body=("长" * (BODY_LIMIT // 3 + 10)).encode())
    body = (await http_get(f"{world.url}/", context))["body"]
    assert isinstance(body, str)
    kept, _, note = body.partition("\n")
    assert kept == "长" * (BODY_LIMIT // 3)
    assert note == f"… cut after {BODY_LIMIT} bytes"


async def test_json_that_is_too_long_fails(world: World, context: ToolContext) -> None:
    world.answers["/"] = Answer(body=b"[" + b"1," * (BODY_LIMIT // 2 + 1) + b"1]", headers=JSON)
    with pytest.raises(ToolError, match=f"JSON of more than {BODY_LIMIT} bytes"):
        await http_get(f"{world.url}/", context)


async def test_json_that_is_too_long_is_text_where_the_request_has_changed_something(world: World, context: ToolContext) -> None:
    world.answers["/"] = Answer(body=b"[" + b"1," * (BODY_LIMIT // 2 + 1) + b"1]", headers=JSON)
    body = (await http_send(f"{world.url}/", context))["body"]
    assert isinstance(body, str)
    assert body.endswith(f"… cut after {BODY_LIMIT} bytes")


async def test_a_read_without_a_deadline_gives_up_by_itself(world: World, context: ToolContext, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("plan_adapter.tools.http.READ_SECONDS", 0.05)
    with pytest.raises(ToolError, match="no answer in time"):
        await http_get(f"{world.url}/hang", context)


async def test_with_a_deadline_a_request_waits_until_it_is_cancelled(
    world: World, context: ToolContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("plan_adapter.tools.http.READ_SECONDS", 0.01)
    request = asyncio.ensure_future(http_get(f"{world.url}/hang", replace(context, deadline=1e12)))
    await asyncio.to_thread(world.arrived.wait, 30)
    request.cancel()
    with pytest.raises(asyncio.CancelledError):
        await request


async def test_a_connection_that_breaks_after_the_request_was_sent_leaves_the_outcome_unknown(context: ToolContext) -> None:
    async def take_and_hang_up(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.close()

    async with await asyncio.start_server(take_and_hang_up, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        with pytest.raises(UnknownOutcomeError, match="after the request was sent"):
            await http_send.fn(f"http://127.0.0.1:{port}/orders?key=secret", context=context, body={"n": 1})


async def test_a_connection_that_is_refused_sent_nothing_and_is_a_known_failure(context: ToolContext) -> None:
    with pytest.raises(ToolError) as refused:
        await http_send.fn("http://127.0.0.1:9/orders", context=context, body={"n": 1})
    assert not isinstance(refused.value, UnknownOutcomeError)
