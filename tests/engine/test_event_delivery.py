"""Tests of which automations Prefect starts for an event. `tests/desk/test_webhooks_with_server.py` has the deliveries."""

import pytest

from plan_adapter.engine.automations import Starter

RESOURCE = {"prefect.resource.id": "alert.a1", "label.severity": "critical", "label.team": "蓝队"}


@pytest.mark.parametrize(
    ("expect", "match", "covers"),
    [
        ("alertmanager.alert.firing", {}, True),
        ("alertmanager.*", {}, True),
        ("*", {}, True),
        ("alertmanager.alert.resolved", {}, False),
        ("alertmanager", {}, False),
        ("*", {"prefect.resource.id": ("alert.*",)}, True),
        ("*", {"prefect.resource.id": ("alert.a2", "alert.?1")}, True),
        ("*", {"prefect.resource.id": ("incident.*",)}, False),
        ("*", {"prefect.resource.id": ("alert.*",), "label.severity": ("warning",)}, False),
        ("*", {"label.severity": ("!warning",)}, True),
        ("*", {"label.severity": ("!crit*",)}, False),
        ("*", {"label.team": ("蓝*",)}, True),
        ("*", {"label.missing": ("*",)}, False),
        ("*", {"label.missing": ("!a",)}, False),
    ],
)
def test_an_automation_covers_the_events_that_prefects_server_matches(expect: str, match: dict[str, tuple[str, ...]], covers: bool) -> None:
    starter = Starter("automation", "deployment", 1, (expect,), match)
    assert starter.covers("alertmanager.alert.firing", RESOURCE) is covers
