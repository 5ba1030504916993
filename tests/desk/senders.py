"""What Alertmanager, Grafana, PagerDuty and GitHub send, with the payloads and the signatures that their documentation shows."""

import hmac
import json
from collections.abc import Mapping, Sequence
from hashlib import sha256
from typing import Any

from plan_adapter.cli.desk.webhooks import Hook, hooks_of
from plan_adapter.local.settings import Settings
from plan_adapter.model.errors import NoServerError
from plan_adapter.model.triggers import ExternalEvent

TOKEN = "alertmanager-token-0123456789"
GRAFANA = "grafana-secret-0123456789"
PAGERDUTY = "pagerduty-secret-0123456789"
GITHUB = "It's a Secret to Everybody"
SECRETS = (TOKEN, GRAFANA, PAGERDUTY, GITHUB)

ALERT: dict[str, Any] = {
    "status": "firing",
    "labels": {
        "alertname": "ProbeFailure",
        "instance": "https://server.example.org",
        "job": "http_checks",
        "severity": "critical",
    },
    "annotations": {"summary": "BlackBox Probe Failure: https://server.example.org", "description": "Down for over 5m\nJob: http_checks"},
    "startsAt": "2023-02-06T13:08:45.828Z",
    "endsAt": "0001-01-01T00:00:00Z",
    "generatorURL": "http://prometheus.example.org:9090/graph?g0.expr=probe_success+%3D%3D+0&g0.tab=1",
    "fingerprint": "1a30ba71cca2921f",
}

ALERTMANAGER_BODY: dict[str, Any] = {
    "receiver": "plans",
    "status": "firing",
    "alerts": [ALERT],
    "groupLabels": {"alertname": "ProbeFailure"},
    "commonLabels": ALERT["labels"],
    "commonAnnotations": ALERT["annotations"],
    "externalURL": "http://prometheus.example.org:9093",
    "version": "4",
    "groupKey": '{}/{severity="critical"}:{alertname="ProbeFailure"}',
    "truncatedAlerts": 0,
}

GRAFANA_BODY: dict[str, Any] = {
    "receiver": "My Super Webhook",
    "status": "firing",
    "orgId": 1,
    "alerts": [
        {
            "status": "firing",
            "labels": {"alertname": "High memory usage", "team": "blue", "zone": "us-1"},
            "annotations": {"description": "The system has high memory usage", "runbook_url": "https://myrunbook.com/runbook/1234"},
            "startsAt": "2021-10-12T09:51:03.157076+02:00",
            "endsAt": "0001-01-01T00:00:00Z",
            "generatorURL": "https://play.grafana.org/alerting/1afz29v7z/edit",
            "fingerprint": "c6eadffa33fcdf37",
            "silenceURL": "https://play.grafana.org/alerting/silence/new?alertmanager=grafana",
            "dashboardURL": "",
            "panelURL": "",
            "values": {"B": 44.23943737541908, "C": 1},
        },
        {
            "status": "resolved",
            "labels": {"alertname": "High CPU usage", "team": "blue", "zone": "eu-1"},
            "annotations": {"description": "The system has high CPU usage"},
            "startsAt": "2021-10-12T09:56:03.157076+02:00",
            "endsAt": "2021-10-12T10:01:03.157076+02:00",
            "generatorURL": "https://play.grafana.org/alerting/d1rdpdv7k/edit",
            "fingerprint": "bc97ff14869b13e3",
            "values": {"B": 44.23943737541908, "C": 1},
        },
    ],
    "groupLabels": {},
    "commonLabels": {"team": "blue"},
    "commonAnnotations": {},
    "externalURL": "https://play.grafana.org/",
    "version": "1",
    "groupKey": "{}:{}",
    "truncatedAlerts": 0,
    "title": "[FIRING:1, RESOLVED:1] (blue)",
    "state": "alerting",
    "message": "**Firing**",
}

PAGERDUTY_BODY: dict[str, Any] = {
    "event": {
        "id": "5ac64822-4adc-4fda-ade0-410becf0de4f",
        "event_type": "incident.triggered",
        "resource_type": "incident",
        "occurred_at": "2020-10-02T18:45:22.169Z",
        "agent": {"id": "PLH1HKV", "summary": "Tenex Engineer", "type": "user_reference"},
        "client": {"name": "PagerDuty"},
        "data": {
            "id": "PGR0VU2",
            "type": "incident",
            "html_url": "https://acme.pagerduty.com/incidents/PGR0VU2",
            "number": 2,
            "status": "triggered",
            "title": "A little bump in the road",
            "service": {"id": "PF9KMXH", "summary": "API Service", "type": "service_reference"},
            "priority": {"id": "PSO75BM", "summary": "P1", "type": "priority_reference"},
            "urgency": "high",
            "resolve_reason": None,
        },
    }
}

PAGERDUTY_NOTE: dict[str, Any] = {
    "event": {
        "id": "01BRB6ZP4M6T8ZG4X6BP63ZB9O",
        "event_type": "incident.annotated",
        "resource_type": "incident",
        "occurred_at": "2021-03-02T13:35:11.682Z",
        "agent": None,
        "client": None,
        "data": {
            "incident": {"id": "PGR0VU2", "summary": "A little bump in the road", "type": "incident_reference"},
            "id": "P2LA89X",
            "content": "I sure am glad we are using PagerDuty!",
            "trimmed": False,
            "type": "incident_note",
        },
    }
}

GITHUB_BODY: dict[str, Any] = {
    "action": "completed",
    "workflow_run": {"id": 30433642, "name": "Build", "head_branch": "main", "conclusion": "failure", "run_number": 562},
    "repository": {"id": 1296269, "name": "Hello-World", "full_name": "octocat/Hello-World", "owner": {"login": "octocat"}},
    "sender": {"login": "octocat", "id": 1, "type": "User"},
}

GITHUB_HEADERS = {"X-GitHub-Event": "workflow_run", "X-GitHub-Delivery": "72d3162e-cc78-11e3-81ab-4c9367dc0958"}


def hooks(**settings: str) -> tuple[Hook, ...]:
    """Return the webhooks of all senders, or those of these settings."""
    secrets = {"alertmanager_token": TOKEN, "grafana_secret": GRAFANA, "pagerduty_secret": PAGERDUTY, "github_secret": GITHUB}
    return hooks_of(Settings(**{f"desk_{name}": value for name, value in (settings or secrets).items()}))  # type: ignore[arg-type]


def as_json(body: object) -> bytes:
    """Return a payload as it is sent."""
    return json.dumps(body, ensure_ascii=False).encode()


def digest(secret: str, signed: bytes) -> str:
    """Return an HMAC with SHA-256 in hexadecimal."""
    return hmac.new(secret.encode(), signed, sha256).hexdigest()


def proof(name: str, body: bytes, *, secret: str | None = None) -> dict[str, str]:
    """Return the headers with which a sender proves that a body is from it."""
    match name:
        case "alertmanager":
            return {"Authorization": f"Bearer {secret or TOKEN}"}
        case "grafana":
            return {"X-Grafana-Alerting-Signature": digest(secret or GRAFANA, body)}
        case "pagerduty":
            return {"X-PagerDuty-Signature": f"v1={digest(secret or PAGERDUTY, body)}"}
        case _:
            return {**GITHUB_HEADERS, "X-Hub-Signature-256": f"sha256={digest(secret or GITHUB, body)}"}


BODIES: Mapping[str, dict[str, Any]] = {
    "alertmanager": ALERTMANAGER_BODY,
    "grafana": GRAFANA_BODY,
    "pagerduty": PAGERDUTY_BODY,
    "github": GITHUB_BODY,
}


class Recorder:
    """Keeps the events that a desk would send to Prefect, or is a server that is away."""

    def __init__(self) -> None:
        self.events = list[ExternalEvent]()
        self.is_away = False

    async def send(self, events: Sequence[ExternalEvent], *, within: float) -> None:
        if self.is_away:
            raise NoServerError(f"away for {within:g} s")
        self.events += events
