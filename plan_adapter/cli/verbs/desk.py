"""`plan desk`."""

import importlib.util
import socket
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from plan_adapter.cli import output
from plan_adapter.cli.daemon_thread import in_daemon_thread
from plan_adapter.cli.exit_codes import ExitCode, UsageError
from plan_adapter.cli.servers import available_server
from plan_adapter.cli.sources import open_store
from plan_adapter.local.settings import Settings
from plan_adapter.model.errors import NoServerError
from plan_adapter.model.readable import listed

if TYPE_CHECKING:
    from plan_adapter.cli.desk.sign_in import SignIn
    from plan_adapter.cli.desk.webhooks import Hook, Webhooks

NOT_INSTALLED = "the web application is not installed: `pip install 'prefect-plan-adapter[desk]'`"

LIBRARIES = ("authlib", "jinja2", "joserfc", "markdown_it")


def why_not_installed() -> str | None:
    """Return the command that installs what `plan desk` lacks, or None if it lacks nothing."""
    return NOT_INSTALLED if any(importlib.util.find_spec(name) is None for name in LIBRARIES) else None


async def desk(*, host: str = "127.0.0.1", port: int = 4270, json: bool = False) -> int:
    """Serve a small web application in which approvers read what waits and answer it, until Ctrl-C. It changes nothing else.

    People sign in with OpenID Connect or at a proxy, as the settings `PLAN_ADAPTER_DESK_…` say. Without either, it listens on this machine
    only, and each answer needs a one-time code or an SSH signature. It also sends what waits to Slack, Teams and e-mail, if the settings
    name them, and takes the answers of people who press a button in Slack.

    It also takes the webhooks of Alertmanager, Grafana, PagerDuty and GitHub that have a secret in the settings, and sends them to Prefect
    as events: `plan guide alerts`.

    Args:
        host: The address to listen on; default: 127.0.0.1, this machine only. Any other needs a sign-in and PLAN_ADAPTER_DESK_URL.
        port: The port to listen on; default: 4270. 0 takes a free one.
        json: Print the address, how people sign in, and the channels of messages as one JSON object; default: as text.
    """
    if not_installed := why_not_installed():
        raise UsageError(not_installed)
    # These import FastAPI.
    from plan_adapter.cli.desk.messages import channels_of, sending_messages
    from plan_adapter.cli.desk.sign_in import is_loopback, sign_in_of
    from plan_adapter.cli.desk.slack import Slack
    from plan_adapter.cli.desk.web_app import desk_app, desk_server
    from plan_adapter.cli.desk.webhooks import hooks_of

    settings = Settings()
    channels, hooks = channels_of(settings), hooks_of(settings)
    slack = next((channel for channel in channels if isinstance(channel, Slack) and channel.signing_secret is not None), None)
    listening = _listen(host, port)
    with listening:
        port = listening.getsockname()[1]
        local = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        address = _public_address(settings) or f"http://{local}"
        sign_in = sign_in_of(settings, address=address)
        if not is_loopback(host):
            _refuse_open_desk(host, settings, sign_in)
        names = {urlsplit(address).netloc.casefold(), local.casefold()}
        hosts = frozenset(names | ({f"localhost:{port}"} if is_loopback(host) else set[str]()))
        async with open_store(settings) as store, _webhooks(hooks, settings) as webhooks:
            app = desk_app(store, settings, sign_in, address=address, hosts=hosts, slack=slack, webhooks=webhooks)
            addresses = [f"{address}{hook.path}" for hook in hooks]
            if json:
                known_by, names = None if sign_in is None else sign_in.known_by, [channel.name for channel in channels]
                line = {"address": f"{address}/", "sign_in": known_by, "channels": names, "webhooks": addresses}
                output.json_line("desk", line)
                output.flush()
            else:
                output.note(f"the desk is at {address}/; Ctrl-C stops it" + _how_people_prove(sign_in))
                if channels:
                    output.note(f"what waits is also sent to {listed([channel.label for channel in channels], len(channels))}")
                for hook in addresses:
                    output.note(f"it takes webhooks at {hook}")
            async with sending_messages(channels, store, settings, address=address):
                await desk_server(app).serve(sockets=[listening])
    return ExitCode.DONE


@asynccontextmanager
async def _webhooks(hooks: "Sequence[Hook]", settings: Settings) -> "AsyncGenerator[Webhooks]":
    """Yield what receives webhooks. If there is no Prefect server, say that they are refused until there is one."""
    from plan_adapter.cli.desk.webhooks import Webhooks

    if not hooks:
        yield Webhooks((), None)
        return
    try:
        server = await in_daemon_thread(lambda: available_server(settings))
        problem = "there is no Prefect server: set PREFECT_API_URL" if server is None else None
    except NoServerError as error:
        from plan_adapter.engine.connection import current_server

        server, problem = current_server(), str(error)
    if problem is not None:
        output.note(f"plan: each webhook is answered with 503, and its sender has to try again: {problem}")
    if server is None:
        yield Webhooks(hooks, None)
        return
    from plan_adapter.engine.event_delivery import event_sender  # imports Prefect

    async with event_sender(server) as events:
        yield Webhooks(hooks, events)


def _how_people_prove(sign_in: "SignIn | None") -> str:
    return "" if sign_in is not None else "; nobody signs in, so each answer needs a one-time code or an SSH signature"


def _listen(host: str, port: int) -> socket.socket:
    """Return a socket that listens. Raises UsageError."""
    if not 0 <= port <= 65535:
        raise UsageError("--port is a number from 0 to 65535")
    try:
        return socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET, backlog=512)
    except OSError as error:
        raise UsageError(f"cannot listen on {host}, port {port}: {error.strerror or error}; `--port` takes another one") from error


def _public_address(settings: Settings) -> str | None:
    """Return the address of the settings without a slash at its end. Raises UsageError for one that is no origin."""
    from plan_adapter.cli.desk.sign_in import is_safe_address

    if settings.desk_url is None:
        return None
    address = settings.desk_url.rstrip("/")
    try:
        parts = urlsplit(address)
        is_origin = bool(parts.hostname) and address == f"{parts.scheme}://{parts.netloc}" and "@" not in parts.netloc
    except ValueError:
        is_origin = False
    if not is_origin or not is_safe_address(address):
        raise UsageError("PLAN_ADAPTER_DESK_URL must be an https:// address without a path, as in `https://desk.example.org`")
    return address


def _refuse_open_desk(host: str, settings: Settings, sign_in: "SignIn | None") -> None:
    """Raise UsageError if people on other machines would reach a desk without a sign-in, or one that does not know its address."""
    if sign_in is None:
        raise UsageError(
            f"on {host}, other machines reach the desk, and nobody signs in: set PLAN_ADAPTER_DESK_OIDC_ISSUER and "
            "PLAN_ADAPTER_DESK_OIDC_CLIENT_ID, or PLAN_ADAPTER_DESK_PROXY_HEADER and PLAN_ADAPTER_DESK_PROXY_SECRET"
        )
    if settings.desk_url is None:
        raise UsageError(f"on {host}, other machines reach the desk: set PLAN_ADAPTER_DESK_URL to the address that people use")
