"""`Webhooks`: what Alertmanager, Grafana, PagerDuty and GitHub send to the desk becomes events in Prefect, once its signature is verified.

A sender gets a success only once Prefect has the events. Anything else is an error that says why, and nothing is kept here.
"""

import hmac
import json
import logging
import re
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from math import ceil
from typing import TYPE_CHECKING, Protocol, TypeAlias

from fastapi import Request
from fastapi.responses import PlainTextResponse, Response

from plan_adapter.cli.desk.protection import HOOKS, FailedProofs
from plan_adapter.cli.exit_codes import UsageError
from plan_adapter.model.errors import NoServerError, PlanAdapterError
from plan_adapter.model.readable import one_line
from plan_adapter.model.triggers import ExternalEvent
from plan_adapter.validation.inputs import NotJSONError, parse_json

if TYPE_CHECKING:
    from pydantic import JsonValue, SecretStr
    from starlette.datastructures import Headers

    from plan_adapter.local.settings import Settings

log = logging.getLogger(__name__)

MIN_SECRET_CHARACTERS = 16
MAX_NESTING = 50
MAX_LABELS = 100
"""How many labels of an alert its resource has. Prefect takes 500."""

MAX_NAME_CHARACTERS = 200
MAX_SIGNATURES = 10
RETRY_SECONDS = 5
TIMESTAMP_HEADER = "X-Grafana-Alerting-Timestamp"
TIMESTAMP_SECONDS = 300.0
"""How far from now the time may be at which Grafana signed."""

_ID = re.compile(r"[0-9A-Za-z_.-]{1,128}")
_EVENT_TYPE = re.compile(r"[0-9a-z_]+(\.[0-9a-z_]+)*")
_TIME = re.compile(r"[0-9A-Za-z:.+-]{1,64}")
_WORD = re.compile(r"[0-9a-z_]{1,60}")
_REPOSITORY = re.compile(r"[0-9A-Za-z_.-]{1,100}/[0-9A-Za-z_.-]{1,100}")
_GROUP_FIELDS = ("receiver", "groupKey", "groupLabels", "externalURL")
"""What the payload of an alert has from its group."""

_Object: TypeAlias = "dict[str, JsonValue]"


class PayloadError(PlanAdapterError):
    """A payload that its sender does not document."""


class Events(Protocol):
    """Where events go: `EventSender`."""

    async def send(self, events: Sequence[ExternalEvent], *, within: float) -> None:
        """Return once Prefect has these events. Raises NoServerError if the sender of the webhook has to try again."""
        ...


@dataclass(frozen=True, slots=True)
class Hook:
    """A webhook of one sender: how its requests are proved, which events they are, and how long it waits for an answer."""

    name: str
    within: float  # seconds
    secret: bytes = field(repr=False)
    is_signed: "Callable[[bytes, Headers, bytes], bool]"
    read: "Callable[[Headers, _Object], Iterator[ExternalEvent]]"

    @property
    def path(self) -> str:
        """The path of its address."""
        return HOOKS + self.name


class Webhooks:
    """Receives the requests of all hooks that have a secret."""

    def __init__(self, hooks: Sequence[Hook], events: Events | None) -> None:
        """Send what comes to `events`. None: there is no Prefect server, so every sender is told to try again."""
        self._hooks = {hook.path: hook for hook in hooks}
        self._events = events
        self._failed = FailedProofs()

    @property
    def paths(self) -> frozenset[str]:
        """The paths at which it receives requests."""
        return frozenset(self._hooks)

    async def receive(self, request: Request) -> Response:
        """Answer one request of a sender."""
        hook, body = self._hooks[request.scope["path"]], await request.body()
        if not hook.is_signed(hook.secret, request.headers, body):
            return self._refuse(hook, "" if request.client is None else request.client.host)
        try:
            events = [*hook.read(request.headers, _read_object(body))]
        except PayloadError as error:
            return await self._report(hook, body, str(error))
        return await self._send(hook, events) or Response(status_code=204)

    def _refuse(self, hook: Hook, address: str) -> Response:
        """Answer a request without a valid signature. Valid ones are never limited, because an alert storm is no attack."""
        wait = self._failed.count(f"{hook.name} {address}")
        log.warning("%s: refused a request from %s without a valid signature", hook.path, address)
        if wait:
            return PlainTextResponse("try again later", 429, {"retry-after": str(ceil(wait))})
        return PlainTextResponse("not authorized", 401)

    async def _report(self, hook: Hook, body: bytes, reason: str) -> Response:
        """Answer a request that is signed and cannot be read, and send the reason to Prefect's events: the sender does not try again."""
        log.warning("%s: refused: %s", hook.path, reason)
        refused = ExternalEvent(
            "plan.webhook.refused",
            {"prefect.resource.id": f"plan.webhook.{hook.name}", "prefect.resource.name": hook.name},
            {"sender": hook.name, "reason": reason},
            sha256(body).hexdigest(),
        )
        return await self._send(hook, [refused]) or PlainTextResponse(f"refused: {reason}", 422)

    async def _send(self, hook: Hook, events: Sequence[ExternalEvent]) -> Response | None:
        """Send events to Prefect. Return None, or the answer that asks the sender to try again."""
        problem = "there is no Prefect server: set PREFECT_API_URL for the desk"
        if self._events is not None:
            try:
                await self._events.send(events, within=hook.within)
            except NoServerError as error:
                problem = str(error)
            else:
                return None
        log.warning("%s: %s", hook.path, problem)
        return PlainTextResponse("Prefect cannot take events now: try again", 503, {"retry-after": str(RETRY_SECONDS)})


def hooks_of(settings: "Settings") -> tuple[Hook, ...]:
    """Return the webhooks that have a secret in the settings. Raises UsageError for a secret that is easy to guess."""
    return tuple(hook for hook in _hooks_of(settings) if hook is not None)


def _hooks_of(settings: "Settings") -> "Iterator[Hook | None]":
    # `within` is shorter than what the sender waits: 5 s PagerDuty, 10 s GitHub, 30 s Grafana, Alertmanager until its group is due again.
    yield _hook("alertmanager", 20.0, settings.desk_alertmanager_token, "TOKEN", _has_token, _alerts_of("alertmanager"))
    yield _hook("grafana", 20.0, settings.desk_grafana_secret, "SECRET", _is_signed_by_grafana, _alerts_of("grafana"))
    yield _hook("pagerduty", 4.0, settings.desk_pagerduty_secret, "SECRET", _is_signed_by_pagerduty, _read_incident)
    yield _hook("github", 8.0, settings.desk_github_secret, "SECRET", _is_signed_by_github, _read_github)


def _hook(
    name: str,
    within: float,
    secret: "SecretStr | None",
    kind: str,
    is_signed: "Callable[[bytes, Headers, bytes], bool]",
    read: "Callable[[Headers, _Object], Iterator[ExternalEvent]]",
) -> Hook | None:
    if secret is None:
        return None
    value = secret.get_secret_value()
    if len(value) < MIN_SECRET_CHARACTERS or not (value.isascii() and value.isprintable()) or value != value.strip():
        setting = f"PLAN_ADAPTER_DESK_{name.upper()}_{kind}"
        raise UsageError(f"{setting} needs {MIN_SECRET_CHARACTERS} or more printable ASCII characters: `openssl rand -hex 32` makes it")
    return Hook(name, within, value.encode(), is_signed, read)


# What proves a request. Each compares in constant time, over the body as it came.


def _has_token(secret: bytes, headers: "Headers", _body: bytes) -> bool:
    """Return whether a request has the bearer token. Alertmanager signs nothing."""
    scheme, _, token = _only(headers, "authorization").partition(" ")
    return scheme.casefold() == "bearer" and hmac.compare_digest(token.encode("latin-1"), secret)


def _is_signed_by_grafana(secret: bytes, headers: "Headers", body: bytes) -> bool:
    """Return whether Grafana signed the body, and, with a timestamp header, did so now."""
    signed_at = _only(headers, TIMESTAMP_HEADER)
    if TIMESTAMP_HEADER in headers:
        if not (signed_at.isascii() and signed_at.isdigit()) or abs(int(signed_at[:20]) - time.time()) > TIMESTAMP_SECONDS:
            return False
        body = signed_at.encode() + b":" + body
    return _matches(secret, body, _only(headers, "x-grafana-alerting-signature"))


def _is_signed_by_pagerduty(secret: bytes, headers: "Headers", body: bytes) -> bool:
    """Return whether PagerDuty signed the body. While a secret is replaced, it sends one signature for each."""
    signatures = [each.strip() for each in _only(headers, "x-pagerduty-signature").split(",")][:MAX_SIGNATURES]
    return True in [_matches(secret, body, each.removeprefix("v1=")) for each in signatures if each.startswith("v1=")]


def _is_signed_by_github(secret: bytes, headers: "Headers", body: bytes) -> bool:
    """Return whether GitHub signed the body."""
    signature = _only(headers, "x-hub-signature-256")
    return signature.startswith("sha256=") and _matches(secret, body, signature.removeprefix("sha256="))


def _matches(secret: bytes, signed: bytes, signature: str) -> bool:
    return hmac.compare_digest(hmac.new(secret, signed, sha256).hexdigest().encode(), signature.encode("latin-1"))


def _only(headers: "Headers", name: str) -> str:
    """Return the value of a header that a request has once, or an empty text."""
    values = headers.getlist(name)
    return values[0] if len(values) == 1 else ""


# What a request means.


def _alerts_of(source: str) -> "Callable[[Headers, _Object], Iterator[ExternalEvent]]":
    """Return the reader of Alertmanager's payload, which Grafana sends as well: an event for each alert."""

    def read(_headers: "Headers", document: _Object) -> Iterator[ExternalEvent]:
        alerts = document.get("alerts")
        if not isinstance(alerts, list) or not alerts:
            raise PayloadError("`alerts` is not a list of alerts")
        group = {name: document[name] for name in _GROUP_FIELDS if name in document}
        for number, member in enumerate(alerts):
            yield _alert_event(source, _object(member, f"alerts[{number}]"), group, f"alerts[{number}]")
        omitted = document.get("truncatedAlerts")
        if isinstance(omitted, int) and omitted > 0:
            group_key = sha256(json.dumps(group, sort_keys=True).encode()).hexdigest()[:32]
            digest = sha256(json.dumps(document, sort_keys=True).encode()).hexdigest()
            resource = {"prefect.resource.id": f"alert-group.{group_key}"}
            yield ExternalEvent(f"{source}.alerts.truncated", resource, {**group, "truncatedAlerts": omitted}, digest)

    return read


def _alert_event(source: str, alert: _Object, group: _Object, at: str) -> ExternalEvent:
    status, labels = alert.get("status"), _object(alert.get("labels"), f"{at}.labels")
    if status not in ("firing", "resolved"):
        raise PayloadError(f"`{at}.status` is neither firing nor resolved")
    fingerprint = _matching(_ID, alert.get("fingerprint"), f"{at}.fingerprint")
    starts_at = _matching(_TIME, alert.get("startsAt"), f"{at}.startsAt")
    shown = {f"label.{name}": value for name, value in labels.items() if isinstance(value, str)}
    resource = {
        "prefect.resource.id": f"alert.{fingerprint}",
        "prefect.resource.name": _name(labels.get("alertname"), fingerprint),
        **dict([*shown.items()][:MAX_LABELS]),
    }
    return ExternalEvent(f"{source}.alert.{status}", resource, {**group, **alert}, f"{fingerprint}\n{starts_at}")


def _read_incident(_headers: "Headers", document: _Object) -> Iterator[ExternalEvent]:
    """Yield the event of a webhook of PagerDuty (version 3), but none for its test message."""
    event = _object(document.get("event"), "event")
    kind = _matching(_EVENT_TYPE, event.get("event_type"), "event.event_type")
    if kind == "pagey.ping":
        return
    data = _object(event.get("data"), "event.data")
    incident = data.get("incident")  # of a note, a responder or an update
    kind_of_resource, about = ("incident", incident) if isinstance(incident, dict) else (event.get("resource_type"), data)
    place = "event.data.incident.id" if isinstance(incident, dict) else "event.data.id"
    resource = {
        "prefect.resource.id": f"{_matching(_WORD, kind_of_resource, 'event.resource_type')}.{_matching(_ID, about.get('id'), place)}",
        "prefect.resource.name": _name(about.get("title"), about.get("summary"), about.get("id")),
    }
    yield ExternalEvent(f"pagerduty.{kind}", resource, event, _matching(_ID, event.get("id"), "event.id"))


def _read_github(headers: "Headers", document: _Object) -> Iterator[ExternalEvent]:
    """Yield the event of a webhook of GitHub, but none for its first message."""
    kind = _matching(_WORD, _only(headers, "x-github-event"), "X-GitHub-Event")
    if kind == "ping":
        return
    delivery = _matching(_ID, _only(headers, "x-github-delivery"), "X-GitHub-Delivery")
    name = f"github.{kind}"
    if document.get("action") is not None:
        name = f"{name}.{_matching(_WORD, document['action'], 'action')}"
    repository, organization = document.get("repository"), document.get("organization")
    if isinstance(repository, dict):
        found = _matching(_REPOSITORY, repository.get("full_name"), "repository.full_name")
        resource = {"prefect.resource.id": f"repository.{found}", "prefect.resource.name": found}
    else:
        account = organization if isinstance(organization, dict) else _object(document.get("sender"), "sender")
        found = _matching(_ID, account.get("login"), "organization.login" if account is organization else "sender.login")
        resource = {"prefect.resource.id": f"account.{found}", "prefect.resource.name": found}
    yield ExternalEvent(name, resource, document, delivery)


def _read_object(body: bytes) -> _Object:
    """Return the JSON object in a body. Raises PayloadError."""
    try:
        document = parse_json(body.decode("utf-8"))
        if isinstance(document, dict) and not _is_deep(document):
            json.dumps(document, allow_nan=False)  # refuses 1e999, which no database takes
            return document
    except (NotJSONError, UnicodeDecodeError, ValueError) as error:
        raise PayloadError(f"the body is not JSON in UTF-8{str(error) if isinstance(error, NotJSONError) else ''}") from None
    raise PayloadError("the body is not a JSON object" if not isinstance(document, dict) else "the body is nested too deeply")


def _is_deep(root: "JsonValue") -> bool:
    """Return whether a value has lists or objects in each other more than MAX_NESTING times."""
    level = [root]
    for _ in range(MAX_NESTING):
        level = [
            each for value in level if isinstance(value, dict | list) for each in (value.values() if isinstance(value, dict) else value)
        ]
        if not level:
            return False
    return True


def _object(value: "JsonValue", at: str) -> _Object:
    if not isinstance(value, dict):
        raise PayloadError(f"`{at}` is not an object")
    return value


def _matching(pattern: re.Pattern[str], value: "JsonValue", at: str) -> str:
    if not isinstance(value, str) or not value:
        raise PayloadError(f"`{at}` is not a text")
    if not pattern.fullmatch(value):
        raise PayloadError(f"`{at}` is not one that this sender documents")
    return value


def _name(*candidates: "JsonValue") -> str:
    """Return the first text as the name of a resource."""
    return one_line(next(each for each in candidates if isinstance(each, str) and each))[:MAX_NAME_CHARACTERS]
