"""A desk that listens on loopback, and people who use it over HTTP as browsers do."""

import asyncio
import re
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from html import unescape

import httpx

from plan_adapter.cli.desk.sign_in import PROXY_SECRET_HEADER, ProxySignIn, SignIn
from plan_adapter.cli.desk.slack import Slack
from plan_adapter.cli.desk.web_app import desk_app, desk_server
from plan_adapter.cli.desk.webhooks import Webhooks
from plan_adapter.local.settings import Settings
from plan_adapter.model.approvals import Gate
from plan_adapter.store.store import PlanStore

SECRET = "a-secret-that-only-the-proxy-knows-0123"
HEADER = "X-Forwarded-Email"
BY_PROXY = ProxySignIn(HEADER, SECRET)
_HIDDEN = re.compile(r'name="(token|digest)" value="([^"]*)"')


@dataclass
class Person:
    """A browser. Cookies are kept, and forms are sent as the page has them."""

    address: str
    headers: dict[str, str] = field(default_factory=dict[str, str])
    client: httpx.AsyncClient = field(init=False)

    def __post_init__(self) -> None:
        self.client = httpx.AsyncClient(base_url=self.address, headers=self.headers, timeout=None, trust_env=False)

    async def get(self, path: str, **options: object) -> httpx.Response:
        return await self.client.get(path, **options)  # type: ignore[arg-type]

    async def hidden(self, path: str) -> dict[str, str]:
        """Return the hidden fields of the form on a page."""
        return dict(_HIDDEN.findall((await self.get(path)).text))

    async def post(self, path: str, origin: str | None = None, **fields: str) -> httpx.Response:
        """Send a form as this page's browser would, or, with `origin`, as that of another one."""
        headers = {"Origin": self.address if origin is None else origin, "Sec-Fetch-Site": "same-origin"}
        return await self.client.post(path, data=fields, headers={name: value for name, value in headers.items() if value})

    async def answer(self, gate: Gate, decision: str, **fields: str) -> httpx.Response:
        """Open the page of a gate and send its form."""
        path = f"/gates/{gate.id}"
        return await self.post(path, **{**await self.hidden(path), "decision": decision, **fields})


def said(response: httpx.Response) -> str:
    """Return the text of a page without its tags."""
    return " ".join(unescape(re.sub(r"<[^>]+>", "", response.text)).split())


@dataclass
class Desk:
    """A desk that listens."""

    address: str
    people: list[Person] = field(default_factory=list[Person])

    def person(self, name: str | None = None, **headers: str) -> Person:
        """Return a new browser, of a person whom the proxy signed in if they have a name."""
        given = {HEADER: name, PROXY_SECRET_HEADER: SECRET} if name is not None else {}
        self.people.append(Person(self.address, {**given, **headers}))
        return self.people[-1]


@asynccontextmanager
async def running_desk(
    store: PlanStore,
    settings: Settings,
    sign_in: SignIn | None = BY_PROXY,
    *,
    slack: Slack | None = None,
    webhooks: Webhooks | None = None,
) -> AsyncIterator[Desk]:
    """Yield a desk of `store` on a free port. Requests that come before it is ready wait in the queue of its socket."""
    with socket.create_server(("127.0.0.1", 0), backlog=512) as listening:
        host = f"127.0.0.1:{listening.getsockname()[1]}"
        app = desk_app(store, settings, sign_in, address=f"http://{host}", hosts=frozenset({host}), slack=slack, webhooks=webhooks)
        server = desk_server(app)
        serving = asyncio.create_task(server.serve(sockets=[listening]))
        desk = Desk(f"http://{host}")
        try:
            yield desk
        finally:
            for person in desk.people:
                await person.client.aclose()
            server.should_exit = True
            await serving
