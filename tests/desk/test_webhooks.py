"""Tests of the webhooks of the desk: what a sender proves becomes events, and everything else is one clear error."""

import asyncio
import json
import logging
import time
from collections.abc import AsyncIterator
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest

from plan_adapter.cli.desk.protection import FAILED_PROOFS, MAX_HOOK_BYTES
from plan_adapter.cli.desk.webhooks import Webhooks
from plan_adapter.engine.outgoing import event_payload
from tests.cases import for_each
from tests.desk.people import Desk, running_desk
from tests.desk.senders import (
    ALERT,
    ALERTMANAGER_BODY,
    BODIES,
    GITHUB,
    GITHUB_BODY,
    GITHUB_HEADERS,
    GRAFANA,
    GRAFANA_BODY,
    PAGERDUTY,
    PAGERDUTY_BODY,
    PAGERDUTY_NOTE,
    SECRETS,
    TOKEN,
    Recorder,
    as_json,
    digest,
    hooks,
    proof,
)
from tests.gates.world import World

NAMES = tuple(BODIES)


@pytest.fixture
def prefect() -> Recorder:
    """Where the events go."""
    return Recorder()


@pytest.fixture
async def desk(world: World, prefect: Recorder) -> AsyncIterator[Desk]:
    """A desk with the webhooks of all senders."""
    async with running_desk(world.store, world.settings, webhooks=Webhooks(hooks(), prefect)) as desk:
        yield desk


async def post(desk: Desk, name: str, body: bytes, headers: dict[str, str] | list[tuple[str, str]]) -> httpx.Response:
    """Send a request as a sender does: without a cookie and an origin."""
    async with httpx.AsyncClient(base_url=desk.address, timeout=None, trust_env=False) as client:
        return await client.post(f"/hooks/{name}", content=body, headers=headers)


async def deliver(desk: Desk, name: str, document: object, **headers: str) -> httpx.Response:
    """Send a payload with its proof."""
    body = as_json(document)
    return await post(desk, name, body, {**proof(name, body), **headers})


async def test_alertmanager_and_grafana_send_an_event_for_each_alert(desk: Desk, prefect: Recorder) -> None:
    assert (await deliver(desk, "alertmanager", ALERTMANAGER_BODY)).status_code == 204
    (event,) = prefect.events
    assert event.name == "alertmanager.alert.firing"
    assert event.resource == {
        "prefect.resource.id": "alert.1a30ba71cca2921f",
        "prefect.resource.name": "ProbeFailure",
        **{f"label.{name}": value for name, value in ALERT["labels"].items()},
    }
    assert event.payload == ALERT | {name: ALERTMANAGER_BODY[name] for name in ("receiver", "groupKey", "groupLabels", "externalURL")}
    prefect.events.clear()
    assert (await deliver(desk, "grafana", GRAFANA_BODY)).status_code == 204
    assert [(event.name, event.resource["prefect.resource.id"]) for event in prefect.events] == [
        ("grafana.alert.firing", "alert.c6eadffa33fcdf37"),
        ("grafana.alert.resolved", "alert.bc97ff14869b13e3"),
    ]
    assert prefect.events[0].payload["values"] == {"B": 44.23943737541908, "C": 1}


async def test_alerts_that_alertmanager_left_out_are_an_event_of_their_own(desk: Desk, prefect: Recorder) -> None:
    await deliver(desk, "alertmanager", ALERTMANAGER_BODY | {"truncatedAlerts": 7})
    assert [event.name for event in prefect.events] == ["alertmanager.alert.firing", "alertmanager.alerts.truncated"]
    assert prefect.events[1].payload["truncatedAlerts"] == 7


async def test_pagerduty_sends_an_event_about_an_incident(desk: Desk, prefect: Recorder) -> None:
    for document in (PAGERDUTY_BODY, PAGERDUTY_NOTE):
        assert (await deliver(desk, "pagerduty", document)).status_code == 204
    triggered, annotated = prefect.events
    assert (triggered.name, annotated.name) == ("pagerduty.incident.triggered", "pagerduty.incident.annotated")
    about = {"prefect.resource.id": "incident.PGR0VU2", "prefect.resource.name": "A little bump in the road"}
    assert triggered.resource == annotated.resource == about
    assert triggered.payload == PAGERDUTY_BODY["event"]
    service = {**PAGERDUTY_BODY["event"], "event_type": "service.updated", "resource_type": "service", "data": {"id": "PF9KMXH"}}
    await deliver(desk, "pagerduty", {"event": service})
    assert prefect.events[-1].resource["prefect.resource.id"] == "service.PF9KMXH"


async def test_github_sends_an_event_about_a_repository(desk: Desk, prefect: Recorder) -> None:
    await deliver(desk, "github", GITHUB_BODY)
    push = {"ref": "refs/heads/main", "repository": GITHUB_BODY["repository"], "sender": GITHUB_BODY["sender"]}
    await deliver(desk, "github", push, **{"X-GitHub-Event": "push", "X-GitHub-Delivery": "d2"})
    member = {"action": "member_added", "organization": {"login": "acme"}, "sender": GITHUB_BODY["sender"]}
    await deliver(desk, "github", member, **{"X-GitHub-Event": "organization", "X-GitHub-Delivery": "d3"})
    assert [(event.name, event.resource["prefect.resource.id"]) for event in prefect.events] == [
        ("github.workflow_run.completed", "repository.octocat/Hello-World"),
        ("github.push", "repository.octocat/Hello-World"),
        ("github.organization.member_added", "account.acme"),
    ]
    assert prefect.events[0].payload == GITHUB_BODY


async def test_the_first_message_of_a_sender_is_no_event(desk: Desk, prefect: Recorder) -> None:
    ping = {"zen": "Design for failure.", "hook_id": 1, "hook": {"type": "Repository"}}
    assert (await deliver(desk, "github", ping, **{"X-GitHub-Event": "ping"})).status_code == 204
    data = {"message": "Hello from your friend Pagey!", "type": "ping"}
    event = {"id": "01", "event_type": "pagey.ping", "resource_type": "pagey", "agent": None, "client": None, "data": data}
    assert (await deliver(desk, "pagerduty", {"event": event})).status_code == 204
    assert prefect.events == []


async def test_a_delivery_that_is_repeated_is_the_same_event(desk: Desk, prefect: Recorder) -> None:
    for name in NAMES:
        for _ in range(2):
            await deliver(desk, name, BODIES[name])
    assert len(prefect.events) == 10
    assert len({event.id for event in prefect.events}) == 5
    resolved = ALERT | {"status": "resolved", "endsAt": "2023-02-06T13:10:45.828Z"}
    again = ALERT | {"startsAt": "2023-02-06T14:08:45.828Z"}
    for alert in (resolved, again, ALERT | {"annotations": {}}):
        await deliver(desk, "alertmanager", ALERTMANAGER_BODY | {"alerts": [alert]})
    assert len({event.id for event in prefect.events}) == 7, "another status or another start is another event"


@pytest.mark.parametrize("name", NAMES)
async def test_nothing_without_a_valid_proof_is_read(name: str, desk: Desk, prefect: Recorder, caplog: pytest.LogCaptureFixture) -> None:
    body = as_json(BODIES[name])
    valid = proof(name, body)
    (header, value), others = [*valid.items()][-1], dict([*valid.items()][:-1])
    wrong: list[dict[str, str] | list[tuple[str, str]]] = [
        others,
        {**others, header: ""},
        {**others, header: value[:-1]},
        {**others, header: value + "0"},
        {**others, header: value.upper()},
        {**others, header: value.rpartition("=")[2].rpartition(" ")[2] if name != "grafana" else f"sha256={value}"},
        proof(name, body, secret="another-secret-0123456789"),
        [*valid.items(), (header, value)],
        {**others, "Cookie": f"desk={value}"},
    ]
    if name != "alertmanager":
        wrong += [proof(name, body + b" "), proof(name, body[:-1]), proof(name, b"")]
    for headers in wrong:
        response = await post(desk, name, body, headers)
        assert (response.status_code, response.text) == (401, "not authorized"), headers
    if name != "alertmanager":
        assert (await post(desk, name, body[:-1], valid)).status_code == 401, "a truncated body"
    assert prefect.events == []
    assert (await post(desk, name, body, valid)).status_code == 204
    assert f"/hooks/{name}: refused a request from 127.0.0.1" in caplog.text


async def test_the_secrets_are_neither_logged_nor_shown(desk: Desk, prefect: Recorder, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    texts = [repr(hooks())]
    prefect.is_away = True
    for name in NAMES:
        body = as_json(BODIES[name])
        for sent, headers in ((body, proof(name, body)), (b"{}", proof(name, b"{}")), (body, proof(name, body, secret="x" * 20))):
            response = await post(desk, name, sent, headers)
            texts.append(f"{response.text} {response.headers}")
    for secret in SECRETS:
        assert secret not in caplog.text + "".join(texts)


async def test_the_example_of_githubs_documentation_is_valid(desk: Desk) -> None:
    signature = "sha256=757107ea0eb2509fc211221cce984b8a37570b6d7586c22c46f4379c8b043e17"
    response = await post(desk, "github", b"Hello, World!", {**GITHUB_HEADERS, "X-Hub-Signature-256": signature})
    assert (response.status_code, response.text) == (422, "refused: the body is not JSON in UTF-8")


async def test_pagerduty_may_sign_with_several_secrets_while_one_is_replaced(desk: Desk, prefect: Recorder) -> None:
    body = as_json(PAGERDUTY_BODY)
    both = f"v1={digest('the-old-secret-012345', body)},v1={digest(PAGERDUTY, body)}"
    assert (await post(desk, "pagerduty", body, {"X-PagerDuty-Signature": both})).status_code == 204
    other = f"v2={digest(PAGERDUTY, body)}"
    assert (await post(desk, "pagerduty", body, {"X-PagerDuty-Signature": other})).status_code == 401
    assert len(prefect.events) == 1


async def test_grafana_signs_the_time_if_it_sends_it(desk: Desk, prefect: Recorder) -> None:
    body, now = as_json(GRAFANA_BODY), int(time.time())

    def signed_at(moment: int | str, *, sent: int | str | None = None) -> dict[str, str]:
        signature = digest(GRAFANA, f"{moment}:".encode() + body)
        return {"X-Grafana-Alerting-Signature": signature, "X-Grafana-Alerting-Timestamp": str(moment if sent is None else sent)}

    assert (await post(desk, "grafana", body, signed_at(now))).status_code == 204
    wrong = [signed_at(now - 301), signed_at(now + 900), signed_at(now - 400, sent=now)]
    wrong += [signed_at(moment) for moment in ("", "now", "9" * 400)]
    without = {"X-Grafana-Alerting-Signature": signed_at(now)["X-Grafana-Alerting-Signature"]}
    for headers in (*wrong, without, {**without, **signed_at(now - 1, sent=now)}):
        assert (await post(desk, "grafana", body, headers)).status_code == 401
    assert len(prefect.events) == 2


@pytest.mark.parametrize(
    ("name", "document", "reason"),
    [
        ("alertmanager", [], "the body is not a JSON object"),
        ("alertmanager", {}, "`alerts` is not a list of alerts"),
        ("alertmanager", {"alerts": []}, "`alerts` is not a list of alerts"),
        ("alertmanager", {"alerts": ["a"]}, "`alerts[0]` is not an object"),
        ("alertmanager", {"alerts": [ALERT, ALERT | {"labels": None}]}, "`alerts[1].labels` is not an object"),
        ("alertmanager", {"alerts": [ALERT | {"status": "silent"}]}, "`alerts[0].status` is neither firing nor resolved"),
        ("alertmanager", {"alerts": [ALERT | {"fingerprint": None}]}, "`alerts[0].fingerprint` is not a text"),
        ("alertmanager", {"alerts": [ALERT | {"fingerprint": "a b"}]}, "`alerts[0].fingerprint` is not one that this sender documents"),
        ("grafana", {"alerts": [{"status": "firing", "labels": {}, "fingerprint": "a"}]}, "`alerts[0].startsAt` is not a text"),
        ("pagerduty", {"messages": []}, "`event` is not an object"),
        ("pagerduty", {"event": {"event_type": "In *"}}, "`event.event_type` is not one that this sender documents"),
        ("pagerduty", {"event": {"event_type": "incident.triggered"}}, "`event.data` is not an object"),
        ("pagerduty", {"event": PAGERDUTY_BODY["event"] | {"data": {}}}, "`event.data.id` is not a text"),
        ("pagerduty", {"event": PAGERDUTY_BODY["event"] | {"id": ""}}, "`event.id` is not a text"),
        ("github", GITHUB_BODY | {"action": 3}, "`action` is not a text"),
        ("github", GITHUB_BODY | {"repository": {"full_name": "octocat"}}, "`repository.full_name` is not one that this sender documents"),
        ("github", {"action": "added"}, "`sender` is not an object"),
    ],
)
async def test_another_shape_is_refused_with_what_is_wrong_also_in_prefects_events(
    name: str, document: object, reason: str, desk: Desk, prefect: Recorder
) -> None:
    response = await deliver(desk, name, document)
    assert (response.status_code, response.text) == (422, f"refused: {reason}")
    (event,) = prefect.events
    assert (event.name, event.resource["prefect.resource.id"]) == ("plan.webhook.refused", f"plan.webhook.{name}")
    assert event.payload == {"sender": name, "reason": reason}


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b"", "the body is not JSON in UTF-8"),
        (b"alerts=1", "the body is not JSON in UTF-8"),
        (as_json(ALERTMANAGER_BODY)[:-1], "the body is not JSON in UTF-8"),
        ('{"a": "é"}'.encode("latin-1"), "the body is not JSON in UTF-8"),
        (b'{"alerts": NaN}', "the body is not JSON in UTF-8: NaN is not a JSON number"),
        (b'{"alerts": 1e999}', "the body is not JSON in UTF-8"),
        (b'{"a": 1, "a": 2}', "the body is not JSON in UTF-8: it contains the key `a` twice"),
        (b'{"a": ' + b"[" * 60 + b"]" * 60 + b"}", "the body is nested too deeply"),
        (b"[" * 500_000, "the body is not JSON in UTF-8"),
    ],
)
async def test_what_is_no_json_is_refused(body: bytes, reason: str, desk: Desk, prefect: Recorder) -> None:
    response = await post(desk, "alertmanager", body, proof("alertmanager", body))
    assert (response.status_code, response.text) == (422, f"refused: {reason}")
    assert [event.name for event in prefect.events] == ["plan.webhook.refused"]


async def test_a_form_of_github_is_refused(desk: Desk) -> None:
    body = b"payload=%7B%7D"
    response = await post(desk, "github", body, {**proof("github", body), "Content-Type": "application/x-www-form-urlencoded"})
    assert response.status_code == 422


@pytest.mark.parametrize("text", ["磁盘已满 web-1", "a\u202eb", "a\x00b", "\ud800", "👩\u200d💻", "{{ 7 * 7 }}"])
async def test_texts_in_any_language_arrive_and_none_is_hidden(text: str, desk: Desk, prefect: Recorder) -> None:
    alert = ALERT | {"labels": {"alertname": text, "instance": text}, "annotations": {text: text}}
    body = json.dumps(ALERTMANAGER_BODY | {"alerts": [alert]}).encode()
    assert (await post(desk, "alertmanager", body, proof("alertmanager", body))).status_code == 204
    sent: Any = event_payload(dict(prefect.events[0].payload))
    shown = event_payload(text)
    assert (sent["labels"]["instance"], sent["annotations"]) == (shown, {shown: shown})
    json.dumps(sent, ensure_ascii=False).encode()
    assert "\x00" not in shown


async def answer_to(desk: Desk, head: str, *pieces: bytes) -> bytes:
    """Send the head of a request and some of its body, and return the first line of the answer."""
    parts = urlsplit(desk.address)
    reader, writer = await asyncio.open_connection(parts.hostname, parts.port)
    writer.write(f"POST /hooks/alertmanager HTTP/1.1\r\nHost: {parts.netloc}\r\nAuthorization: Bearer {TOKEN}\r\n{head}\r\n\r\n".encode())
    for piece in pieces:
        writer.write(piece)
    first = await reader.readline()
    writer.close()
    return first


async def test_a_body_of_10_mb_is_refused_before_it_is_read(desk: Desk, prefect: Recorder) -> None:
    for length in (10 * 1024 * 1024, MAX_HOOK_BYTES + 1):
        assert b" 413 " in await answer_to(desk, f"Content-Length: {length}")
    piece = b"10000\r\n" + b" " * 65_536 + b"\r\n"
    assert b" 413 " in await answer_to(desk, "Transfer-Encoding: chunked", *[piece] * (MAX_HOOK_BYTES // 65_536 + 1))
    assert prefect.events == []
    padded = as_json(ALERTMANAGER_BODY).ljust(MAX_HOOK_BYTES)
    assert (await post(desk, "alertmanager", padded, proof("alertmanager", padded))).status_code == 204


@pytest.mark.parametrize("method", ["GET", "HEAD", "PUT", "PATCH", "DELETE", "OPTIONS"])
async def test_only_a_post_sends_events(method: str, desk: Desk, prefect: Recorder) -> None:
    body = as_json(ALERTMANAGER_BODY)
    async with httpx.AsyncClient(base_url=desk.address, trust_env=False) as client:
        response = await client.request(method, "/hooks/alertmanager", content=body, headers=proof("alertmanager", body))
    assert response.status_code == 405
    assert prefect.events == []


async def test_a_sender_without_a_secret_has_no_webhook(world: World, prefect: Recorder) -> None:
    async with running_desk(world.store, world.settings, webhooks=Webhooks(hooks(github_secret=GITHUB), prefect)) as desk:
        assert (await deliver(desk, "github", GITHUB_BODY)).status_code == 204
        for name in ("alertmanager", "grafana", "pagerduty", "", "github/", "github/x", "../hooks/alertmanager", "GitHub"):
            assert (await deliver(desk, name, ALERTMANAGER_BODY)).status_code == 404, name
        async with httpx.AsyncClient(base_url=desk.address, trust_env=False) as client:
            assert (await client.post("/sign-out")).status_code == 403, "pages still need their origin"
    assert len(prefect.events) == 1
    async with running_desk(world.store, world.settings) as desk:
        assert (await deliver(desk, "github", GITHUB_BODY)).status_code == 404


async def test_another_host_is_refused(desk: Desk, prefect: Recorder) -> None:
    assert (await deliver(desk, "github", GITHUB_BODY, Host="evil.example")).status_code == 421
    assert prefect.events == []


async def test_a_server_that_is_away_makes_the_sender_try_again(world: World, desk: Desk, prefect: Recorder) -> None:
    prefect.is_away = True
    for document in (ALERTMANAGER_BODY, {}):
        response = await deliver(desk, "alertmanager", document)
        assert (response.status_code, response.headers["retry-after"]) == (503, "5")
    prefect.is_away = False
    assert (await deliver(desk, "alertmanager", ALERTMANAGER_BODY)).status_code == 204
    async with running_desk(world.store, world.settings, webhooks=Webhooks(hooks(), None)) as without_server:
        assert (await deliver(without_server, "alertmanager", ALERTMANAGER_BODY)).status_code == 503


async def test_only_requests_without_a_valid_signature_are_limited(desk: Desk, prefect: Recorder) -> None:
    body = as_json(GITHUB_BODY)
    wrong = [(await post(desk, "github", body, proof("github", body, secret="x" * 20))) for _ in range(FAILED_PROOFS + 1)]
    assert [response.status_code for response in wrong] == [401] * FAILED_PROOFS + [429]
    assert int(wrong[-1].headers["retry-after"]) > 0
    for _ in range(FAILED_PROOFS + 5):
        assert (await deliver(desk, "github", GITHUB_BODY)).status_code == 204
    assert len(prefect.events) == FAILED_PROOFS + 5


@for_each(name=NAMES)
def test_a_webhook_needs_its_own_secret_only(name: str) -> None:
    setting = "alertmanager_token" if name == "alertmanager" else f"{name}_secret"
    assert [hook.path for hook in hooks(**{setting: "0123456789abcdef"})] == [f"/hooks/{name}"]
