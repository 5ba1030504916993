"""Slack's API, the webhook of a workflow in Teams and a mail server, on loopback. Each checks what it gets, and keeps it."""

import asyncio
import base64
import json
import re
import ssl
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from email import message_from_bytes
from email.message import EmailMessage
from email.policy import default
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any
from urllib.parse import urlencode

import httpx

from plan_adapter.cli.desk.slack import ACTIONS_PATH, Slack, sign
from plan_adapter.cli.desk.teams import Teams

TOKEN, SIGNING_SECRET = "xoxb-1234-only-this-app-knows-it", "8f742231b10e8888abcd99yyyzzz85a5"
CONVERSATION = "C024BE91L"
ANA, BO, EVE = "U024ANA01", "U024BO002", "U024EVE03"
USERS = {ANA: "ana@example.org", BO: "bo@example.org"}

_CONTROL = re.compile(r"[<>]|&(?!amp;|lt;|gt;)")
_UNFURLING = {"unfurl_links", "unfurl_media"}
_LIMITS = {"header": 150, "section": 3000, "context": 3000}


@dataclass
class HttpService:
    """A service that answers each request with what `answer` returns for its path, headers and body. Requests can be awaited."""

    arrived: "asyncio.Queue[Any]" = field(default_factory=lambda: asyncio.Queue[Any]())
    problems: list[str] = field(default_factory=list[str])
    status: int = 200  # of every response; not 200: the service is away
    retry_after: str | None = None
    url: str = ""

    def answer(self, path: str, headers: Any, body: bytes) -> tuple[int, dict[str, Any], Any]:
        """Return the status and the body of a response, and what to put into `arrived`; None: nothing."""
        raise NotImplementedError

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[None]:
        """Serve while the block runs. Fails if anything was sent that the real service would not take."""
        loop, service = asyncio.get_running_loop(), self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                is_away = service.status != 200
                status, answer, arrived = (service.status, {}, None) if is_away else service.answer(self.path, self.headers, body)
                text = json.dumps(answer).encode()
                self.send_response(status)
                if service.retry_after is not None:
                    self.send_header("Retry-After", service.retry_after)
                self.send_header("Content-Length", str(len(text)))
                self.end_headers()
                self.wfile.write(text)
                if arrived is not None:
                    loop.call_soon_threadsafe(service.arrived.put_nowait, arrived)

            def log_message(self, *_: object) -> None:
                """Print nothing."""

        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        Thread(target=server.serve_forever, daemon=True).start()
        self.url = f"http://127.0.0.1:{server.server_address[1]}"
        try:
            yield
        finally:
            await asyncio.to_thread(server.shutdown)
            server.server_close()
        assert self.problems == []


@dataclass
class SlackCall:
    """A call of Slack's API."""

    method: str
    arguments: dict[str, Any]

    @property
    def blocks(self) -> list[dict[str, Any]]:
        return self.arguments["blocks"]

    @property
    def texts(self) -> str:
        """Everything that the message says, without Slack's escapes."""
        found = [block["text"]["text"] for block in self.blocks if "text" in block]
        found += [element["text"] for block in self.blocks if block["type"] == "context" for element in block["elements"]]
        return "\n".join(found).replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&")

    @property
    def buttons(self) -> dict[str, dict[str, Any]]:
        """The buttons by their action."""
        return {button["action_id"]: button for block in self.blocks if block["type"] == "actions" for button in block["elements"]}


@dataclass
class SlackService(HttpService):
    """Slack's API, as its documentation describes it: three methods, for one app in one conversation."""

    posted: dict[str, SlackCall] = field(default_factory=dict[str, SlackCall])  # what each message says now, by its time
    error: str | None = None  # what every call gets

    @property
    def channel(self) -> Slack:
        """The conversation, as the desk uses it."""
        return Slack(TOKEN, CONVERSATION, f"{self.url}/api/", SIGNING_SECRET, USERS)

    async def next(self, method: str) -> SlackCall:
        """Wait for the next call that succeeds, which must be of this method."""
        call: SlackCall = await self.arrived.get()
        assert call.method == method, call
        return call

    def answer(self, path: str, headers: Any, body: bytes) -> tuple[int, dict[str, Any], Any]:
        if headers["Authorization"] != f"Bearer {TOKEN}":
            return 200, {"ok": False, "error": "invalid_auth"}, None
        if self.error is not None:
            return 200, {"ok": False, "error": self.error}, None
        if headers["Content-Type"] != "application/json; charset=utf-8":
            self.problems.append(f"content type {headers['Content-Type']}")
        call = SlackCall(path.removeprefix("/api/"), json.loads(body))
        match call.method:
            case "chat.postMessage":
                if call.arguments["channel"] != CONVERSATION:
                    return 200, {"ok": False, "error": "channel_not_found"}, None
                self.check_message(call)
                at = f"{time.time_ns() // 1000 / 1e6:.6f}"
                self.posted[at] = call
                return 200, {"ok": True, "channel": CONVERSATION, "ts": at, "message": {"type": "message", "ts": at}}, call
            case "chat.update":
                if call.arguments["channel"] != CONVERSATION or call.arguments["ts"] not in self.posted:
                    return 200, {"ok": False, "error": "message_not_found"}, None
                self.check_message(call)
                self.posted[call.arguments["ts"]] = call
                return 200, {"ok": True, "channel": CONVERSATION, "ts": call.arguments["ts"], "text": call.arguments["text"]}, call
            case "chat.postEphemeral":
                self.check(bool(call.arguments["text"]) and not _CONTROL.search(call.arguments["text"]), call)
                self.check(call.arguments["channel"] == CONVERSATION, call)
                return 200, {"ok": True, "message_ts": "1502210682.580145"}, call
            case _:
                self.problems.append(f"unknown method {path}")
                return 200, {"ok": False, "error": "unknown_method"}, None

    def check_message(self, call: SlackCall) -> None:
        """Note what Slack would refuse, or would read as more than text."""
        self.check(len(call.blocks) <= 50 and 0 < len(call.arguments["text"]) < 4000 and not _CONTROL.search(call.arguments["text"]), call)
        self.check(call.arguments["parse"] == "none" and call.arguments["link_names"] is False, call)
        known = {"channel", "text", "blocks", "parse", "link_names"} | ({"ts"} if call.method == "chat.update" else _UNFURLING)
        self.check(call.arguments.keys() == known and not any(call.arguments.get(name) for name in _UNFURLING), call)
        for block in call.blocks:
            elements = block.get("elements", [])
            texts = [element["text"] if block["type"] == "actions" else element for element in elements]
            texts += [block["text"]] if "text" in block else []
            texts += [value for element in elements for value in element.get("confirm", {}).values() if isinstance(value, dict)]
            for text in texts:
                most = 75 if block["type"] == "actions" else _LIMITS[block["type"]]
                self.check(text["type"] == "plain_text" and text["emoji"] is False and 0 < len(text["text"]) <= most, call)
                self.check(not _CONTROL.search(text["text"]) and "://" not in text["text"], call)
            if block["type"] == "actions":
                self.check(len(elements) <= 25 and len({element["action_id"] for element in elements}) == len(elements), call)
                self.check(all(len(element.get("value", "")) <= 2000 and len(element.get("url", "")) <= 3000 for element in elements), call)

    def check(self, is_right: bool, call: SlackCall) -> None:
        if not is_right:
            self.problems.append(f"Slack would not take or show this as text: {call}")


@dataclass
class TeamsService(HttpService):
    """The webhook of a workflow, whose address has the only secret."""

    secret: str = "sig-only-whoever-has-the-address-knows"

    @property
    def channel(self) -> Teams:
        """The channel, as the desk uses it."""
        return Teams(f"{self.url}/workflows/1/triggers/manual/paths/invoke?sig={self.secret}")

    def answer(self, path: str, headers: Any, body: bytes) -> tuple[int, dict[str, Any], Any]:
        if not path.endswith(f"sig={self.secret}"):
            return 401, {"error": {"code": "DirectApiAuthorizationRequired"}}, None
        message = json.loads(body)
        attachment = message["attachments"][0]
        card = attachment["content"]
        is_right = (
            message["type"] == "message"
            and attachment["contentType"] == "application/vnd.microsoft.card.adaptive"
            and (card["type"], card["version"]) == ("AdaptiveCard", "1.4")
            and all(action["type"] == "Action.OpenUrl" for action in card["actions"])
            and len(body) <= 28 * 1024
            and '"TextBlock"' not in body.decode()
            and all(text and "://" not in text for text in card_texts(card))
        )
        if not is_right:
            self.problems.append(f"Teams would not take this, or would read Markdown in it: {message}")
        return 202, {}, card


def card_texts(card: dict[str, Any]) -> list[str]:
    """Return the lines of a card."""
    return [run["text"] for part in card["body"] for block in part["items"] for run in block["inlines"]]


def payload(call: SlackCall, action: str, user_id: str, /, **changes: Any) -> dict[str, Any]:
    """Return what Slack sends when a person presses a button of a message: a payload of `block_actions`, as documented."""
    button = call.buttons[action]
    pressed = {
        "action_id": action,
        "block_id": "gsrQx",
        "text": button["text"],
        "type": "button",
        "action_ts": "1602110187.140352",
        **{name: button[name] for name in ("value", "style", "url") if name in button},
    }
    team = {"id": "T9TK3CUKW", "domain": "example"}
    return {
        "type": "block_actions",
        "user": {"id": user_id, "username": "somebody", "name": "somebody", "team_id": team["id"]},
        "api_app_id": "A02",
        "token": "Shh_its_a_seekrit",
        "container": {"type": "message", "message_ts": "1401383885.000061", "channel_id": CONVERSATION, "is_ephemeral": False},
        "trigger_id": "12466734323.1395872398",
        "team": team,
        "enterprise": None,
        "is_enterprise_install": False,
        "channel": {"id": CONVERSATION, "name": "on-call"},
        "message": {"bot_id": "B1", "type": "message", "text": call.arguments["text"], "ts": "1401383885.000061", "blocks": call.blocks},
        "state": {"values": {}},
        "response_url": "https://hooks.slack.com/actions/T9TK3CUKW/1/x",
        "actions": [pressed],
        **changes,
    }


def signed(body: bytes, *, secret: str = SIGNING_SECRET, at: float | None = None) -> dict[str, str]:
    """Return the headers with which Slack sends a body."""
    timestamp = str(int(time.time() if at is None else at))
    return {
        "Content-Type": "application/x-www-form-urlencoded",
        "User-Agent": "Slackbot 1.0 (+https://api.slack.com/robots)",
        "X-Slack-Request-Timestamp": timestamp,
        "X-Slack-Signature": sign(secret, timestamp, body),
    }


def body_of(sent: dict[str, Any]) -> bytes:
    """Return the body of a request with this payload."""
    return urlencode({"payload": json.dumps(sent)}).encode()


async def press(address: str, call: SlackCall, action: str, user_id: str, /, **changes: Any) -> httpx.Response:
    """Send the request of Slack for a button that a person presses."""
    return await send(address, body_of(payload(call, action, user_id, **changes)))


async def send(address: str, body: bytes, headers: dict[str, str] | None = None) -> httpx.Response:
    """Send a request to the desk as Slack does, signed unless `headers` are given."""
    async with httpx.AsyncClient(trust_env=False, timeout=None) as client:
        return await client.post(address + ACTIONS_PATH, content=body, headers=signed(body) if headers is None else headers)


@dataclass
class MailService:
    """A mail server that takes every message. Without a password, nobody has to sign in."""

    tls: ssl.SSLContext | None = None
    begins_with_tls: bool = False
    password: str | None = None
    refuses: int | None = None  # the code with which it refuses every message
    unknown: tuple[str, ...] = ()  # the recipients that it refuses
    arrived: "asyncio.Queue[EmailMessage]" = field(default_factory=lambda: asyncio.Queue[EmailMessage]())
    envelopes: list[tuple[str, list[str], bool]] = field(default_factory=list[tuple[str, list[str], bool]])  # with: was it encrypted
    port: int = 0

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[None]:
        """Serve while the block runs."""
        ssl_context = self.tls if self.begins_with_tls else None
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0, ssl=ssl_context)
        self.port = server.sockets[0].getsockname()[1]
        async with server:
            yield

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        is_encrypted, is_known, sender, recipients = self.begins_with_tls, self.password is None, "", list[str]()

        def say(*lines: str) -> None:
            writer.write("".join(f"{line}\r\n" for line in lines).encode())

        say("220 mail.example.org ESMTP")
        try:
            while line := (await reader.readline()).decode().strip():
                command = line.partition(" ")[0].upper()
                if command == "EHLO":
                    offers = [*(["STARTTLS"] if self.tls is not None and not is_encrypted else []), "AUTH PLAIN", "8BITMIME"]
                    say("250-mail.example.org", *(f"250-{offer}" for offer in offers[:-1]), f"250 {offers[-1]}")
                elif command == "STARTTLS" and self.tls is not None:
                    say("220 go ahead")
                    await writer.start_tls(self.tls)
                    is_encrypted = True
                elif command == "AUTH":
                    is_known = self.password is None or base64.b64decode(line.split()[-1]) == f"\0plans\0{self.password}".encode()
                    say("235 welcome" if is_known else "535 who are you?")
                elif command == "MAIL":
                    sender = _address_in(line)
                    say("250 ok" if is_known else "530 sign in first")
                elif command == "RCPT":
                    is_mailbox = _address_in(line) not in self.unknown
                    recipients += [_address_in(line)] if is_mailbox else []
                    say("250 ok" if is_mailbox else "550 there is no such mailbox")
                elif command == "DATA":
                    say("354 go on")
                    body = (await reader.readuntil(b"\r\n.\r\n"))[:-3].replace(b"\r\n..", b"\r\n.")
                    if self.refuses is not None:
                        say(f"{self.refuses} no")
                        continue
                    self.envelopes.append((sender, recipients, is_encrypted))
                    self.arrived.put_nowait(message_from_bytes(body, policy=default))  # type: ignore[arg-type]
                    recipients = []
                    say("250 queued")
                elif command == "QUIT":
                    say("221 bye")
                    break
                else:
                    say("250 ok")
        except (ConnectionError, ssl.SSLError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()


def _address_in(line: str) -> str:
    return line.partition("<")[2].partition(">")[0]


def text_of(message: EmailMessage, kind: str = "plain") -> str:
    """Return the part of a message in this form."""
    part = message.get_body((kind,))
    assert part is not None
    return part.get_content()
