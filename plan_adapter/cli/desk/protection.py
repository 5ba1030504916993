"""What protects the desk: sessions, the limit of failed proofs, and the checks and headers of every request."""

import secrets
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from fastapi.responses import PlainTextResponse

from plan_adapter.gates.identity import Identity

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

SESSION_SECONDS = 8 * 3600.0
MAX_SESSIONS = 10_000
"""More people than use one desk. Beyond it, the oldest session without a sign-in ends."""

MAX_SIGN_INS = 5
"""How many sign-ins of one session may be under way, such as in several tabs."""

MAX_BODY_BYTES = 64 * 1024
MAX_HOOK_BYTES = 1024 * 1024
HOOKS = "/hooks/"
"""How the paths begin to which other systems send. No page of the desk does."""

FAILED_PROOFS, PROOF_SECONDS = 20, 300.0
"""How many proofs of one person, or from one address, may fail in this time."""

CONTENT_POLICY = "default-src 'none'; style-src 'self'; form-action 'self'; frame-ancestors 'none'; base-uri 'none'"

HEADERS = {
    "content-security-policy": CONTENT_POLICY,
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "same-origin",  # with `no-referrer`, browsers send `Origin: null` with our own forms
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
}
"""The headers of every response that does not set them itself."""


@dataclass(frozen=True, slots=True)
class PendingSignIn:
    """A sign-in that was sent to the issuer: what its ID token and its code must match, and the page to return to."""

    nonce: str
    verifier: str
    page: str


@dataclass(slots=True)
class Session:
    """What the desk knows about one browser. The cookie holds only its id."""

    id: str
    token: str  # every form of this session carries it
    ends_at: float
    identity: Identity | None = None
    sign_ins: dict[str, PendingSignIn] = field(default_factory=dict[str, PendingSignIn])  # by `state`
    notice: str = ""  # shown once, on the next page

    def add_sign_in(self, state: str, pending: PendingSignIn) -> None:
        """Remember a sign-in that was sent to the issuer. The oldest is forgotten if there are too many."""
        if len(self.sign_ins) >= MAX_SIGN_INS:
            self.sign_ins.pop(next(iter(self.sign_ins)))
        self.sign_ins[state] = pending


class Sessions:
    """The sessions of this process. They end with it."""

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        """Start without sessions."""
        self._clock = clock
        self._sessions = dict[str, Session]()

    def find(self, session_id: str | None) -> Session | None:
        """Return the session with this id, unless it has ended."""
        session = self._sessions.get(session_id or "")
        if session is not None and session.ends_at <= self._clock():
            self.end(session)
            return None
        return session

    def begin(self, identity: Identity | None = None) -> Session:
        """Return a new session, with a new id and a new token."""
        now = self._clock()
        for ended in [each for each in self._sessions.values() if each.ends_at <= now] if len(self._sessions) >= MAX_SESSIONS else ():
            self.end(ended)
        if len(self._sessions) >= MAX_SESSIONS:
            self.end(next((each for each in self._sessions.values() if each.identity is None), next(iter(self._sessions.values()))))
        session = Session(secrets.token_urlsafe(32), secrets.token_urlsafe(32), now + SESSION_SECONDS, identity)
        self._sessions[session.id] = session
        return session

    def end(self, session: Session) -> None:
        """End a session."""
        self._sessions.pop(session.id, None)


class FailedProofs:
    """Counts the proofs that failed, by person or address, and says how long to wait after too many."""

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        """Start without failures."""
        self._clock = clock
        self._failures = dict[str, deque[float]]()

    def count(self, who: str) -> float:
        """Count a try as failed and return 0.0, or return the seconds until the next try and count nothing.

        Counted before the proof is checked, so that parallel tries cannot exceed the limit. `forgive` takes back a try that succeeded.
        """
        now = self._clock()
        if len(self._failures) >= MAX_SESSIONS:
            self._failures = {key: times for key, times in self._failures.items() if times[-1] > now - PROOF_SECONDS}
        times = self._failures.setdefault(who, deque(maxlen=FAILED_PROOFS))
        while times and times[0] <= now - PROOF_SECONDS:
            times.popleft()
        if len(times) == FAILED_PROOFS:
            return times[0] + PROOF_SECONDS - now
        times.append(now)
        return 0.0

    def forgive(self, who: str) -> None:
        """Take back the last try of `who`."""
        if times := self._failures.get(who):
            times.pop()
        if not times:
            self._failures.pop(who, None)


def origin_of(url: str) -> str:
    """Return the origin of an address: `https://desk.example.org`."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc}".casefold()


class Protection:
    """Checks the host, the origin and the size of every request before the application sees it, and adds the headers of every response."""

    def __init__(self, app: "ASGIApp", *, origin: str, hosts: frozenset[str], signed: Mapping[str, int] | None = None) -> None:
        """Protect `app`, whose pages have this origin. `hosts` are what requests may name as their host.

        `signed` are the paths whose requests come from other programs, which prove themselves, and how many bytes each may send. Their
        origin is not checked.
        """
        self._app = app
        self._origin = origin
        self._hosts = hosts
        self._signed = signed or {}
        self._headers = dict(HEADERS)
        if origin.startswith("https:"):
            self._headers["strict-transport-security"] = "max-age=31536000"

    async def __call__(self, scope: "Scope", receive: "Receive", send: "Send") -> None:
        """Answer one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def send_with_headers(message: "Message") -> None:
            if message["type"] == "http.response.start":
                given = {name.lower() for name, _ in message["headers"]}
                more = [(name.encode(), value.encode()) for name, value in self._headers.items() if name.encode() not in given]
                message = {**message, "headers": [*message["headers"], *more]}
            await send(message)

        refused = self._refuse(scope)
        if refused is None and scope["method"] == "POST":
            most = self._signed.get(scope["path"], MAX_BODY_BYTES)
            body = await _read_body(scope, receive, most)
            if body is None:
                refused = PlainTextResponse(f"the request is larger than {most // 1024} KB", status_code=413)
            receive = _replay(body or b"", receive)
        if refused is not None:
            await refused(scope, receive, send_with_headers)
        else:
            await self._app(scope, receive, send_with_headers)

    def _refuse(self, scope: "Scope") -> PlainTextResponse | None:
        headers = dict[bytes, list[str]]()
        for name, value in scope["headers"]:
            headers.setdefault(name.lower(), []).append(value.decode("latin-1").casefold())
        if headers.get(b"host", []) not in [[host] for host in self._hosts]:
            return PlainTextResponse("this desk has another address: set PLAN_ADAPTER_DESK_URL to the one people use", status_code=421)
        if scope["method"] in ("GET", "HEAD"):
            return None
        if scope["method"] != "POST":
            return PlainTextResponse("only GET and POST are answered here", status_code=405)
        if scope["path"] in self._signed:
            return None
        if scope["path"].startswith(HOOKS):
            return PlainTextResponse("there is no such webhook", status_code=404)
        same_site = headers.get(b"sec-fetch-site", ["same-origin"]) == ["same-origin"]
        if headers.get(b"origin") != [self._origin] or not same_site:
            return PlainTextResponse("the request does not come from a page of this desk", status_code=403)
        return None


async def _read_body(scope: "Scope", receive: "Receive", most: int) -> bytes | None:
    """Return the body of a request, or None if it has more than `most` bytes. No more than those are read."""
    announced = next((value for name, value in scope["headers"] if name.lower() == b"content-length"), b"0")
    if not announced.isdigit() or int(announced) > most:
        return None
    body, is_complete = bytearray(), False
    while not is_complete:
        message = await receive()
        if message["type"] == "http.disconnect":
            return b""
        body += message.get("body", b"")
        is_complete = not message.get("more_body", False)
        if len(body) > most:
            return None
    return bytes(body)


def _replay(body: bytes, receive: "Receive") -> "Receive":
    """Return a `receive` that gives `body` as the whole request, and then continues with the original one."""
    pending = [{"type": "http.request", "body": body, "more_body": False}]

    async def read() -> "Message":
        return pending.pop() if pending else await receive()

    return read
