"""Tests of the runbook incident-response: a service behind a gateway, and a person who decides."""

import json
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import pytest

from plan_adapter.gates import ApprovalRequest
from plan_adapter.store import PlanStatus
from tests.deployments.conftest import RunRunbook, served

LOG = "启动\n2026-11-23 错误：数据库连接池已满\nok\nERROR pool exhausted\n"


class Gateway(BaseHTTPRequestHandler):
    """A gateway that routes requests to the site `target`. Only sites in `healthy` work. It records notices at /notices."""

    target: str
    healthy: set[str]
    notices: list[str]
    routes: list[str]

    def do_GET(self) -> None:
        self.answer(200 if self.target in self.healthy else 503)

    def do_PUT(self) -> None:
        Gateway.target = json.loads(self.rfile.read(int(self.headers["content-length"])))["target"]
        self.routes.append(self.target)
        self.answer(204)

    def do_POST(self) -> None:
        self.notices.append(json.loads(self.rfile.read(int(self.headers["content-length"])))["text"])
        self.answer(204)

    def answer(self, status: int) -> None:
        self.send_response(status)
        self.end_headers()

    def log_message(self, *_arguments: object) -> None:
        """Say nothing."""


@pytest.fixture
def inputs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, object]]:
    """Yield the inputs for a service whose primary site has failed."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "shop.log").write_text(LOG, encoding="utf-8")
    Gateway.target, Gateway.healthy, Gateway.notices, Gateway.routes = "primary", {"standby"}, [], []
    with served(Gateway) as url:
        yield {"service": "shop", "gateway": url, "log": "shop.log", "webhook": f"{url}/notices"}


def written(name: str) -> dict[str, object]:
    return json.loads(Path("incidents", "shop", name).read_text(encoding="utf-8"))


async def test_the_traffic_goes_where_the_person_on_duty_decides(
    run_runbook: RunRunbook, inputs: dict[str, object], opened: list[ApprovalRequest]
) -> None:
    decision = {"action": "切换备用", "reason": "连接池已满"}

    run = await run_runbook("incident-response", answers={"decide": decision}, **inputs)

    assert run.status is PlanStatus.COMPLETED, [(step.id, step.error) for step in run.steps]
    assert (Gateway.target, Gateway.notices) == ("standby", ["事故 shop：切换备用，已完成"])
    [asked] = opened
    assert "返回 503" in asked.text
    assert "数据库连接池已满" in asked.text
    assert written("现场.json") == {"status": 503, "errors": "2026-11-23 错误：数据库连接池已满\nERROR pool exhausted\n"}
    assert written("报告.json") == {"status": "completed", "decision": decision, "failed": []}


async def test_the_traffic_goes_back_if_the_standby_site_fails_too(run_runbook: RunRunbook, inputs: dict[str, object]) -> None:
    Gateway.healthy = set()

    run = await run_runbook("incident-response", answers={"decide": {"action": "切换备用"}}, **inputs)

    assert run.status is PlanStatus.PARTIAL
    assert Gateway.routes == ["standby", "primary"]
    assert Gateway.notices == ["事故 shop：切换备用，失败的步骤：recovered"]


async def test_a_restart_runs_the_command_and_does_not_move_the_traffic(run_runbook: RunRunbook, inputs: dict[str, object]) -> None:
    Gateway.healthy = {"primary"}
    restart = ["sh", "-c", 'printf %s "$SERVICE" >restarted']

    run = await run_runbook("incident-response", answers={"decide": {"action": "重启"}}, **inputs, restart=restart)

    assert (run.status, run.outputs) == (PlanStatus.COMPLETED, {"action": "重启"})
    assert (Path("restarted").read_text(), Gateway.routes) == ("shop", [])


async def test_observing_changes_nothing(run_runbook: RunRunbook, inputs: dict[str, object]) -> None:
    run = await run_runbook("incident-response", answers={"decide": {"action": "只观察"}}, **inputs)

    assert (run.status, Gateway.routes) == (PlanStatus.COMPLETED, [])
    assert Gateway.notices == ["事故 shop：只观察，已完成"]
