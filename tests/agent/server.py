"""A server that speaks the OpenAI protocol over real HTTP and answers from a script.

An entry of the script is a `Reply`, or a function of the request's JSON that returns one. Requests are recorded with their headers.
The server streams an answer if the request asks for it, unless `streams` says otherwise.
"""

import json
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Literal, TypeAlias

Request: TypeAlias = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Reply:
    """The server's reply: the text of the message (or the arguments of a call), an error, or a cut connection."""

    text: str = ""
    status: int = 200
    error: str = ""
    finish: str = "stop"
    refusal: str | None = None
    calls: tuple[str, ...] = ()  # arguments of function calls
    raw: bytes | None = None  # the whole body
    cut: bool = False
    hold: threading.Event | None = None  # answer only once it is set
    tokens: tuple[int, int] | None = (10, 5)
    headers: tuple[tuple[str, str], ...] = ()
    hold_within: threading.Event | None = None  # in a stream: send the pieces only once it is set
    pieces: int | None = None  # in a stream: end the connection after this many pieces


ScriptedReply: TypeAlias = Reply | Callable[[Request], Reply]


def says(value: object) -> Reply:
    """Return the reply whose text is `value` as JSON."""
    return Reply(json.dumps(value, ensure_ascii=False))


@dataclass
class ScriptedServer:
    """Answers with the entries of `script` in turn, then repeats the last one forever."""

    script: list[ScriptedReply]
    knows: frozenset[str] = frozenset({"json_schema_strict", "json_schema", "json_object", "tools"})
    refuses_fields: frozenset[str] = frozenset()
    efforts: frozenset[str] = frozenset({"none", "minimal", "low", "medium", "high"})
    streams: Literal["asked", "always", "only", "never"] = "asked"
    requests: list[Request] = field(default_factory=list[Request])
    headers: list[dict[str, str]] = field(default_factory=list[dict[str, str]])
    _server: ThreadingHTTPServer | None = None
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _next: int = 0

    def __enter__(self) -> "ScriptedServer":
        script = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                length = int(self.headers.get("Content-Length", "0"))
                script.answer(self, json.loads(self.rfile.read(length)))

            def log_message(self, format: str, *args: object) -> None:
                del format, args

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.shutdown()
        self._server.server_close()

    @property
    def url(self) -> str:
        assert self._server is not None
        return f"http://127.0.0.1:{self._server.server_address[1]}/v1"

    def answer(self, handler: BaseHTTPRequestHandler, request: Request) -> None:
        with self._lock:
            self.requests.append(request)
            self.headers.append(dict(handler.headers.items()))
            refusal = self._refusal(request)
            if refusal is None:
                entry = self.script[min(self._next, len(self.script) - 1)]
                self._next += 1
            else:
                entry = refusal
        reply = entry if isinstance(entry, Reply) else entry(request)
        if reply.hold is not None:
            reply.hold.wait(60)
        if reply.cut:
            handler.wfile.write(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 9999\r\n\r\n{")
            handler.close_connection = True
            return
        if reply.raw is None and reply.status == 200 and (self.streams == "always" or (self.streams != "never" and request["stream"])):
            _stream(handler, reply, request)
            return
        body = reply.raw if reply.raw is not None else json.dumps(_body(reply, request)).encode()
        handler.send_response(reply.status)
        handler.send_header("Content-Type", "application/json")
        handler.send_header("Content-Length", str(len(body)))
        for name, value in reply.headers:
            handler.send_header(name, value)
        handler.end_headers()
        handler.wfile.write(body)

    def _refusal(self, request: Request) -> Reply | None:
        for name in sorted(self.refuses_fields & request.keys()):
            return Reply(status=400, error=f"Unsupported parameter: '{name}'")
        if request.get("reasoning_effort", "high") not in self.efforts:
            effort, known = request["reasoning_effort"], ", ".join(f"'{level}'" for level in sorted(self.efforts))
            return Reply(
                status=400,
                error=f"Unsupported value: 'reasoning_effort' does not support '{effort}' with this model. Supported values are: {known}.",
            )
        if self.streams == "only" and not request["stream"]:
            return Reply(status=400, error="This model only supports stream mode, please enable the stream parameter.")
        form = request.get("response_format") or {}
        kind = form.get("type", "")
        if kind == "json_schema" and form["json_schema"].get("strict"):
            kind = "json_schema_strict"
        if "tools" in request:
            kind = "tools"
        if kind and kind not in self.knows:
            return Reply(status=400 if kind != "json_schema" else 422, error=f"{kind} is not supported here")
        return None


def _body(reply: Reply, request: Request) -> dict[str, Any]:
    if reply.status != 200:
        return {"error": {"message": reply.error, "type": "invalid_request_error"}}
    message: dict[str, Any] = {"role": "assistant", "content": reply.text}
    if reply.refusal is not None:
        message |= {"content": None, "refusal": reply.refusal}
    calls = reply.calls or ((reply.text,) if "tools" in request else ())
    if calls:
        name = request["tools"][0]["function"]["name"] if "tools" in request else "other"
        message["tool_calls"] = [
            {"id": f"call_{number}", "type": "function", "function": {"name": name, "arguments": text}} for number, text in enumerate(calls)
        ]
        message["content"] = None
    answer: dict[str, Any] = {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 1,
        "model": request["model"],
        "choices": [{"index": 0, "message": message, "finish_reason": reply.finish, "logprobs": None}],
    }
    if reply.tokens is not None:
        prompt, completion = reply.tokens
        answer["usage"] = {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}
    return answer


def _stream(handler: BaseHTTPRequestHandler, reply: Reply, request: Request) -> None:
    """Send a reply in pieces of a few characters, as servers do: a comment, the text, its end, the usage and the end mark."""
    handler.send_response(200)
    handler.send_header("Content-Type", "text/event-stream")
    handler.send_header("Connection", "close")  # so the end of the connection ends the body
    handler.end_headers()
    handler.wfile.write(b": thinking\n\n")
    handler.wfile.flush()
    if reply.hold_within is not None:
        reply.hold_within.wait(60)
    for piece in _pieces(reply, request)[: reply.pieces]:
        handler.wfile.write(f"data: {json.dumps(piece, ensure_ascii=False)}\n\n".encode())
        handler.wfile.flush()
    if reply.pieces is None:
        handler.wfile.write(b"data: [DONE]\n\n")
    handler.close_connection = True


def _pieces(reply: Reply, request: Request) -> list[dict[str, Any]]:
    body = _body(reply, request)
    message, usage = body["choices"][0]["message"], body.pop("usage", None)
    deltas: list[dict[str, Any]] = [{"role": "assistant", "content": ""}]
    for name in ("content", "refusal"):
        deltas += [{name: part} for part in _split(message.get(name) or "")]
    for number, call in enumerate(message.get("tool_calls") or ()):
        deltas.append({"tool_calls": [{**call, "index": number, "function": {"name": call["function"]["name"], "arguments": ""}}]})
        deltas += [{"tool_calls": [{"index": number, "function": {"arguments": part}}]} for part in _split(call["function"]["arguments"])]
    ends = [*([None] * len(deltas)), reply.finish]
    pieces = [{"choices": [{"index": 0, "delta": delta, "finish_reason": end}]} for delta, end in zip([*deltas, {}], ends, strict=True)]
    if usage is not None and (request.get("stream_options") or {}).get("include_usage"):
        pieces.append({"choices": [], "usage": usage})
    return [{**body, "object": "chat.completion.chunk", **piece} for piece in pieces]


def _split(text: str) -> list[str]:
    return [text[start : start + 7] for start in range(0, len(text), 7)]


def scripted(
    *script: ScriptedReply,
    knows: Iterable[str] | None = None,
    refuses: Iterable[str] = (),
    efforts: Iterable[str] = ("none", "minimal", "low", "medium", "high"),
    streams: Literal["asked", "always", "only", "never"] = "asked",
) -> ScriptedServer:
    """Return a server to start. `knows`: the response formats that it supports, None for all; `streams`: when it streams answers."""
    server = ScriptedServer(list(script), refuses_fields=frozenset(refuses), efforts=frozenset(efforts), streams=streams)
    if knows is not None:
        server.knows = frozenset(knows)
    return server
