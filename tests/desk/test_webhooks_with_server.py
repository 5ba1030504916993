"""Tests of webhooks with a real Prefect server: a signed request starts the runbook that waits for its event, once, with its inputs."""

import asyncio
import json
import os
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from uuid import UUID

import httpx
import pytest
from prefect import get_client
from prefect.client.schemas.filters import DeploymentFilter, DeploymentFilterId
from prefect.events.schemas.automations import AutomationCore

from plan_adapter.engine.connection import Server, override_settings, use_server
from plan_adapter.engine.local_server import ensure_server, stop_server
from plan_adapter.local.settings import Settings
from plan_adapter.model.triggers import EVENT_PARAMETER, ExternalEvent
from tests.cli.conftest import Plan, check_lines, home, plan
from tests.cli.test_terminal import REAL_PLAN
from tests.cli.test_triggers import PAGE, a_trigger, automations, deployed, name, payloads, refusals, run_started, runbook, runs_of
from tests.conftest import PrepareServer
from tests.desk.senders import ALERT, ALERTMANAGER_BODY, TOKEN, as_json, proof

__all__ = ["home", "name", "plan"]


@contextmanager
def running_desk(**variables: str) -> Iterator[str]:
    """Run `plan desk` with Alertmanager's webhook, and yield the address of that."""
    environment = {**os.environ, "PLAN_ADAPTER_DESK_ALERTMANAGER_TOKEN": TOKEN, **variables}
    with subprocess.Popen([*REAL_PLAN, "desk", "--port", "0", "--json"], stdout=subprocess.PIPE, text=True, env=environment) as process:
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            check_lines(line)
            (address,) = json.loads(line)["webhooks"]
            yield address
        finally:
            process.send_signal(signal.SIGTERM)


def alert(fingerprint: str, *, starts_at: str = "2026-11-29T10:00:00Z", **labels: str) -> dict[str, Any]:
    """Return an alert that fires."""
    return ALERT | {"fingerprint": fingerprint, "startsAt": starts_at, "labels": {"alertname": "DiskFull", **labels}}


def body_of(*alerts: dict[str, Any]) -> bytes:
    """Return what Alertmanager sends about these alerts."""
    return as_json(ALERTMANAGER_BODY | {"alerts": list(alerts)})


def send(address: str, *alerts: dict[str, Any]) -> httpx.Response:
    """Send alerts as Alertmanager does, which tries again until it gets no 5xx."""
    body = body_of(*alerts)
    while True:
        response = httpx.post(address, content=body, headers=proof("alertmanager", body), timeout=None, trust_env=False)
        if response.status_code < 500:
            return response


def trigger_of(name: str, resource: str, **labels: str) -> dict[str, Any]:
    """Return a trigger for alerts of Alertmanager about this resource, with these labels."""
    return a_trigger(
        name,
        event="alertmanager.alert.firing",
        resource={"prefect.resource.id": resource, **{f"label.{label}": value for label, value in labels.items()}},
        inputs={"who": "${{ event.payload.labels.instance }}"},
        fingerprint="${{ event.payload.fingerprint }}",
        cooldown="1h",
    )


def ids_of(deployment_id: str) -> Counter[str]:
    """Return how many flow runs of a deployment each event has, by its id."""

    async def read() -> Counter[str]:
        found, wanted = list[Any](), DeploymentFilter(id=DeploymentFilterId(any_=[UUID(deployment_id)]))
        async with get_client() as client:
            while page := await client.read_flow_runs(deployment_filter=wanted, limit=PAGE, offset=len(found)):
                found += page
        return Counter(json.loads(flow_run.parameters[EVENT_PARAMETER])["event"]["id"] for flow_run in found)

    return asyncio.run(read())


@pytest.mark.usefixtures("prefect_server")
def test_a_webhook_starts_the_runbook_that_waits_for_it_once(plan: Plan, name: str) -> None:
    made = deployed(plan, runbook(name, trigger_of(name, f"alert.{name}-*", severity="critical")))
    fires, other = alert(f"{name}-a", instance="网页 1", severity="critical"), alert(f"{name}-b", severity="warning")
    with running_desk() as address:
        assert send(address, fires, other).status_code == 204
        assert sum(ids_of(made["id"]).values()) == 1, "it answers once the flow run exists, and none for what does not match"
        assert send(address, fires).status_code == 204
        assert sum(ids_of(made["id"]).values()) == 1, "the same alert"
        assert send(address, fires | {"startsAt": "2026-11-29T11:00:00Z"}).status_code == 204
        assert sum(ids_of(made["id"]).values()) == 2, "it fires again"
    assert Counter(state.name for state in run_started(made["id"], 2)) == {"Completed": 1, "Duplicate": 1}
    (run,) = runs_of(plan, name)
    shown = plan("show", run["id"], "--json").run
    assert (shown["outputs"]["text"], shown["trigger"]["events"]) == ("你好, 网页 1", 2)
    assert payloads(made["id"])[0]["groupLabels"] == {"alertname": "ProbeFailure"}


@pytest.mark.usefixtures("prefect_server")
def test_a_payload_that_does_not_fit_the_inputs_is_refused_in_prefects_events(plan: Plan, name: str) -> None:
    made = deployed(plan, runbook(name, trigger_of(name, f"alert.{name}")))
    with running_desk() as address:
        assert send(address, alert(name, host="web-1")).status_code == 204
    (state,) = run_started(made["id"], 1)
    assert state.is_failed()
    (refused,) = refusals(name)
    assert refused["reason"] == state.message
    assert "`event.payload.labels.instance`" in refused["reason"]


@pytest.mark.usefixtures("prefect_server")
def test_two_runbooks_may_wait_for_one_alert_and_none_may_wait_at_all(plan: Plan, name: str) -> None:
    both = [deployed(plan, runbook(f"{name}-{number}", trigger_of(name, f"alert.{name}"))) for number in (1, 2)]
    with running_desk() as address:
        assert send(address, alert(name, instance="web-1")).status_code == 204
        assert [sum(ids_of(made["id"]).values()) for made in both] == [1, 1]
        assert send(address, alert(f"{name}-unused", instance="web-1")).status_code == 204
    wanted = {"filter": {"resource": {"id": [f"alert.{name}-unused"]}}}
    with get_client(sync_client=True) as client:
        while not client.request("POST", "/events/filter", json=wanted).json()["total"]:
            pass


@pytest.mark.usefixtures("prefect_server")
def test_a_flow_run_that_prefect_could_not_make_is_made(plan: Plan, name: str) -> None:
    made = deployed(plan, runbook(name, trigger_of(name, f"alert.{name}")))
    (automation,) = automations(made["id"])
    with get_client(sync_client=True) as client:
        changed = automation.model_dump(mode="json", include={"name", "description", "tags", "trigger", "actions"})
        changed["actions"][0]["parameters"] = {"who": 3}  # which Prefect refuses, as it refuses all while it is busy
        client.update_automation(automation.id, AutomationCore.model_validate(changed))
    fires = alert(name, instance="网页 1")
    with running_desk() as address:
        for _ in range(2):
            assert send(address, fires).status_code == 204
    assert ids_of(made["id"]) == {str(event_id_of(fires)): 1}
    (state,) = run_started(made["id"], 1)
    assert state.is_completed()
    (run,) = runs_of(plan, name)
    assert plan("show", run["id"], "--json").run["outputs"]["text"] == "你好, 网页 1"


def test_a_server_that_is_away_is_a_503(home: Path) -> None:
    with running_desk(PREFECT_API_URL="http://127.0.0.1:9/api", PLAN_ADAPTER_HOME=str(home)) as address:
        body = body_of(alert("a"))
        response = httpx.post(address, content=body, headers=proof("alertmanager", body), timeout=None, trust_env=False)
    assert (response.status_code, response.headers["retry-after"]) == (503, "5")


@pytest.mark.parametrize("count", [pytest.param(200, marks=pytest.mark.thorough), pytest.param(1000, marks=pytest.mark.benchmark)])
@pytest.mark.timeout(3600)
def test_of_an_alert_storm_with_a_killed_server_no_alert_is_lost(
    count: int,
    plan: Plan,
    name: str,
    tmp_path: Path,
    prepare_server: PrepareServer,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Each of `count` webhooks with 20 fingerprints has its flow run, and 20 runs come of them. The server is killed in the middle."""
    settings = Settings(home=tmp_path / "server", local_server="auto")
    prepare_server(settings.home)
    server = ensure_server(settings, notify=lambda _: None)
    monkeypatch.setenv("PREFECT_API_URL", server.api_url)
    try:
        with use_server(server, quiet=False):
            made = deployed(plan, runbook(name, trigger_of(name, f"alert.{name}-*")))
            starts = [f"2026-11-29T{number // 60:02}:{number % 60:02}:00Z" for number in range(count)]
            alerts = [alert(f"{name}-{at % 20}", starts_at=start, instance=f"web {at % 20}") for at, start in enumerate(starts)]
            began = time.monotonic()
            with running_desk() as address:
                answers = asyncio.run(storm(address, alerts, server, settings))
            found = ids_of(made["id"])
            lost = [each for each in alerts if str(event_id_of(each)) not in found]
            seconds = time.monotonic() - began
            with capsys.disabled():
                print(f"\n{count} webhooks in {seconds:.0f} s: {dict(answers)}, {sum(found.values())} flow runs of {len(found)} events")
            assert lost == []
            states = Counter(state.name for state in run_started(made["id"], sum(found.values())))
            assert states == {"Completed": 20, "Duplicate": sum(found.values()) - 20}
            assert len(runs_of(plan, name)) == 20
    finally:
        stop_server(settings)


def event_id_of(alert: dict[str, Any]) -> UUID:
    """Return the id of the event of an alert that fires."""
    return ExternalEvent("alertmanager.alert.firing", {}, {}, f"{alert['fingerprint']}\n{alert['startsAt']}").id


async def storm(address: str, alerts: Sequence[dict[str, Any]], server: Server, settings: Settings) -> Counter[int]:
    """Send each alert in a request of its own until it is taken, 50 at once. Kill the server after half of them, and start it again.

    Return how often each status was answered.
    """
    answers, at_once = Counter[int](), asyncio.Semaphore(50)

    async def send_one(client: httpx.AsyncClient, body: bytes) -> None:
        async with at_once:
            while True:
                response = await client.post(address, content=body, headers=proof("alertmanager", body))
                answers[response.status_code] += 1
                if response.status_code == 204:
                    break
                await asyncio.sleep(int(response.headers["retry-after"]) / 5)  # as a sender does
        if answers[204] == len(alerts) // 2:
            assert server.pid is not None
            os.kill(server.pid, signal.SIGKILL)
            await asyncio.to_thread(restart, settings)

    async with httpx.AsyncClient(timeout=None, trust_env=False) as client:
        await asyncio.gather(*(send_one(client, body_of(each)) for each in alerts))
    return answers


def restart(settings: Settings) -> None:
    """Start the server again, at its address, with what its database has."""
    with pytest.MonkeyPatch.context() as patch, override_settings({"api.url": None}):
        patch.delenv("PREFECT_API_URL")
        ensure_server(settings, notify=lambda _: None)
