"""Events of other systems on their way to Prefect: sent through its API, and followed until the runbooks that wait for them are started.

Prefect's server answers as soon as it has an event in memory. If it is killed then, the event is lost, and nobody notices. A server that
is busy loses some as well. So an event that a deployed runbook waits for has arrived only once its flow run exists. If Prefect does not
make it in time, it is made here, with the same parameter. If Prefect makes another one later, that ends as a duplicate, because it has
the same event.
"""

import asyncio
import json
import logging
import time
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, TypeAlias, cast
from uuid import UUID

import httpx
from prefect import get_client
from prefect.client.orchestration import PrefectClient
from prefect.exceptions import ObjectNotFound

from plan_adapter.engine.automations import PAGE, Starter, read_starters
from plan_adapter.engine.connection import Server, describe_server_error, override_settings, use_server
from plan_adapter.engine.outgoing import event_payload
from plan_adapter.model.errors import NoServerError
from plan_adapter.model.triggers import EVENT_PARAMETER, ExternalEvent

log = logging.getLogger(__name__)

MAX_DELIVERIES = 16
"""How many deliveries are under way at once. More would fill the queues of a busy server, which drops what does not fit."""

REQUEST_SECONDS = 5.0
QUICK_SECONDS, QUICK_TURNS, SLOW_SECONDS = 0.2, 5, 1.0
"""How often Prefect is asked which flow runs exist: at first, and then, so that a server with much to do is not asked too often."""

STARTERS_SECONDS = 5.0
"""How long the automations that were read are used. Prefect's server, too, takes a moment to load a new one."""

MORE_FLOW_RUNS, SOON = 20, timedelta(minutes=10)
"""How many more of the newest flow runs are read than starts are expected, and how far ahead: a schedule creates some for later, and the
clock of the server may be ahead. What is missed here is found in the events about actions."""

IDS_PER_REQUEST = 20
PATIENCE = 0.7
"""Which part of the time that a sender waits Prefect has for making a flow run by itself."""

MAX_REMEMBERED = 10_000
ACTED, FAILED = "prefect.automation.action.executed", "prefect.automation.action.failed"
"""What Prefect says of an automation whose action it carried out, or could not. It takes up to five seconds until it can be read."""

REFUSALS = (400, 404, 409, 413, 422)
"""How Prefect refuses a flow run for good."""

_EVENT = "prefect.event."
_AUTOMATION = "prefect.automation."
_Start: TypeAlias = tuple[str, str]
"""The id of an event, and the id of an automation that starts a runbook for it."""


@asynccontextmanager
async def event_sender(server: Server) -> AsyncGenerator["EventSender"]:
    """Yield a sender of events to this server, whether or not it answers now."""
    with use_server(server):
        async with get_client({"timeout": REQUEST_SECONDS}, sync_client=False) as client:
            sender = EventSender(client)
            try:
                yield sender
            finally:
                await sender.close()


@dataclass(slots=True)
class _Expected:
    """A start that has not been seen yet, with its event and those who wait for it."""

    starter: Starter
    event: Mapping[str, Any]
    until: float  # when Prefect should have made it
    waiting: list[asyncio.Future[None]] = field(default_factory=list[asyncio.Future[None]])


class EventSender:
    """Sends events of other systems to Prefect."""

    def __init__(self, client: PrefectClient) -> None:
        """Send through `client`."""
        self._client = client
        self._free = asyncio.Semaphore(MAX_DELIVERIES)
        self._starters = list[Starter]()
        self._starters_read_at = float("-inf")
        self._expected = dict[_Start, _Expected]()
        self._first_sent = dict[str, float]()  # by the id of the event
        self._following: asyncio.Task[None] | None = None

    async def send(self, events: Sequence[ExternalEvent], *, within: float) -> None:
        """Return once Prefect has these events, and a flow run for each deployed runbook that waits for one of them.

        Raises NoServerError if the server does not answer or that takes more than `within` seconds. Send them again then: Prefect handles
        an event that it has already seen only once.
        """
        if not events:
            return
        once = {str(event.id): event for event in events}
        try:
            async with asyncio.timeout(within), self._free:
                bodies = [_body_of(event) for event in once.values()]
                await self._request("/events", bodies)
                await self._until_started(bodies, patience=PATIENCE * within)
        except TimeoutError:
            raise NoServerError(f"Prefect's server did not act on the events within {within:g} s") from None
        except (httpx.HTTPError, OSError, ValueError) as error:
            raise NoServerError(f"Prefect's server cannot be used: {describe_server_error(error) or type(error).__name__}") from error

    async def close(self) -> None:
        """Stop following events."""
        if self._following is not None:
            self._following.cancel()
            with suppress(asyncio.CancelledError):
                await self._following

    async def _until_started(self, events: Sequence[Mapping[str, Any]], *, patience: float) -> None:
        """Wait until each runbook is started that waits for one of these events.

        Prefect has `patience` seconds for that, from the first delivery on.
        """
        if time.monotonic() - self._starters_read_at > STARTERS_SECONDS:
            with override_settings({"client.max_retries": 0}):
                self._starters = await read_starters(self._client)
            self._starters_read_at = time.monotonic()
        loop, waiting = asyncio.get_running_loop(), dict[_Start, asyncio.Future[None]]()
        for event in events:
            until = self._sent_first(event["id"]) + patience
            for starter in self._starters:
                if starter.covers(event["event"], event["resource"]):
                    start = event["id"], starter.automation_id
                    waiting[start] = loop.create_future()
                    self._expected.setdefault(start, _Expected(starter, event, until)).waiting.append(waiting[start])
        if not waiting:
            return
        if self._following is None:
            self._following = asyncio.create_task(self._follow())
        try:
            await asyncio.wait(waiting.values())
        finally:
            for start, future in waiting.items():
                self._forget(start, future)

    def _sent_first(self, event_id: str) -> float:
        """Return when the event was first sent, which is now if it is not known."""
        if len(self._first_sent) >= MAX_REMEMBERED:
            self._first_sent.pop(next(iter(self._first_sent)))
        return self._first_sent.setdefault(event_id, time.monotonic())

    def _forget(self, start: _Start, future: "asyncio.Future[None]") -> None:
        if (expected := self._expected.get(start)) is not None:
            expected.waiting.remove(future)
            if not expected.waiting:
                del self._expected[start]

    async def _follow(self) -> None:
        """Tell those who wait which starts Prefect has made, until nobody waits."""
        turn = 0
        try:
            while self._expected:
                is_slow = turn >= QUICK_TURNS
                with suppress(httpx.HTTPError, OSError, ValueError):  # the server is away or busy: those who wait give up by themselves
                    self._tell(await self._find_flow_runs())
                    if is_slow or turn == 0:  # at once for what is sent again
                        await self._read_actions()
                        await self._start_overdue()
                turn += 1
                await asyncio.sleep(SLOW_SECONDS if is_slow else QUICK_SECONDS)
        finally:
            self._following = None

    def _tell(self, starts: Sequence[_Start]) -> None:
        for start in starts:
            expected = self._expected.get(start)
            for future in [] if expected is None else expected.waiting:
                if not future.done():
                    future.set_result(None)

    async def _find_flow_runs(self) -> list[_Start]:
        """Return the starts of the newest flow runs. They can be read as soon as they exist."""
        starters, found = [each.starter for each in self._expected.values()], list[_Start]()
        automations = {(starter.deployment_id, starter.trigger): starter.automation_id for starter in starters}
        deployments = sorted({starter.deployment_id for starter in starters})
        soon = (datetime.now(UTC) + SOON).isoformat()
        wanted: dict[str, Any] = {"deployments": {"id": {"any_": deployments}}, "flow_runs": {"expected_start_time": {"before_": soon}}}
        wanted |= {"sort": "EXPECTED_START_TIME_DESC", "limit": min(PAGE, len(starters) + MORE_FLOW_RUNS)}
        for flow_run in await self._request("/flow_runs/filter", wanted):
            event_id, trigger = _event_of(flow_run["parameters"].get(EVENT_PARAMETER))
            if (automation_id := automations.get((flow_run["deployment_id"], trigger))) is not None:
                found.append((event_id, automation_id))
        return found

    async def _read_actions(self) -> None:
        """Read what Prefect's events say: of flow runs that are not among the newest, and of those that it could not make."""
        event_ids = sorted({event_id for event_id, _ in self._expected})
        for first in range(0, len(event_ids), IDS_PER_REQUEST):
            related = {"id": [_EVENT + each for each in event_ids[first : first + IDS_PER_REQUEST]], "role": ["triggering-event"]}
            answer = await self._request("/events/filter", {"filter": {"event": {"name": [ACTED, FAILED]}, "related": related}})
            self._tell([start for event in answer["events"] if event["event"] == ACTED for start in _starts_of(event)])
            for start in [start for event in answer["events"] if event["event"] == FAILED for start in _starts_of(event)]:
                if start in self._expected:
                    self._expected[start].until = 0.0

    async def _start_overdue(self) -> None:
        """Make the flow runs that Prefect has not made in time, or could not make, as its server on SQLite cannot while it is busy."""
        now = time.monotonic()
        for start, expected in [each for each in self._expected.items() if each[1].until <= now]:
            if await self._start_instead(start, expected):
                self._tell([start])

    async def _start_instead(self, start: _Start, expected: _Expected) -> bool:
        """Make a flow run with the parameter that the automation would give it. Return whether there is one, or can never be."""
        parameter = json.dumps({"trigger": expected.starter.trigger, "event": expected.event}, ensure_ascii=False)
        try:
            with override_settings({"client.max_retries": 0}):
                await self._client.create_flow_run_from_deployment(
                    UUID(expected.starter.deployment_id), parameters={EVENT_PARAMETER: parameter}, idempotency_key=" ".join(start)
                )
        except (httpx.HTTPError, ObjectNotFound) as error:
            if isinstance(error, httpx.HTTPError) and _status_of(error) not in REFUSALS:
                return False
            log.warning("Prefect refuses a flow run for the event %s: %s", start[0], describe_server_error(error))
        return True

    async def _request(self, path: str, body: object) -> Any:
        """Send a request, and return the answer of the server. A request is not sent again here: the sender of the webhook does that."""
        with override_settings({"client.max_retries": 0}):
            response = await self._client.request("POST", cast("Any", path), json=body)
        return response.json() if response.content else None


def _body_of(event: ExternalEvent) -> dict[str, Any]:
    """Return an event as Prefect takes it, with every text in it visible."""
    return {
        "id": str(event.id),
        "occurred": datetime.now(UTC).isoformat(),
        "event": event.name,
        "resource": event_payload(dict(event.resource)),
        "related": [],
        "payload": event_payload(dict(event.payload)),
    }


def _status_of(error: httpx.HTTPError) -> int | None:
    return error.response.status_code if isinstance(error, httpx.HTTPStatusError) else None


def _event_of(parameter: object) -> tuple[str, int]:
    """Return the id of the event in the parameter of a flow run, and the number of the trigger; an empty id if no event started it."""
    try:
        read: Any = json.loads(parameter) if isinstance(parameter, str) else {}
        return str(read["event"]["id"]), int(read["trigger"])
    except (ValueError, TypeError, KeyError):
        return "", 0


def _starts_of(action: Mapping[str, Any]) -> Iterator[_Start]:
    """Yield the starts that an event about an action reports."""
    automation_id = str(action["resource"]["prefect.resource.id"]).removeprefix(_AUTOMATION)
    for related in action["related"]:
        if related["prefect.resource.role"] == "triggering-event":
            yield str(related["prefect.resource.id"]).removeprefix(_EVENT), automation_id
