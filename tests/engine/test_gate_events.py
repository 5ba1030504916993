"""Tests of what Prefect receives about gates besides their forms: events and artifacts."""

import asyncio
from dataclasses import replace
from datetime import UTC, datetime
from typing import cast
from uuid import UUID

import pytest
from prefect import Flow, get_client
from prefect.client.schemas.filters import ArtifactFilter
from prefect.client.schemas.objects import State
from prefect.context import FlowRunContext
from prefect.events.worker import EventsWorker
from prefect.states import Completed

from plan_adapter.engine import outgoing as gate_events
from plan_adapter.engine.flow_runs import run_flow
from plan_adapter.engine.outgoing import artifact_key, emit_gate_event, publish_text
from plan_adapter.gates.approval import answer_to
from plan_adapter.model.approvals import ApprovalRequest, Gate, GatePolicy
from plan_adapter.model.plan import new_id
from plan_adapter.model.record import PlanRun
from plan_adapter.model.status import PlanStatus

pytestmark = pytest.mark.usefixtures("prefect_server")

NOW = datetime(2026, 11, 21, tzinfo=UTC)


def run_and_gate(*, step_id: str | None = "部署") -> tuple[PlanRun, Gate]:
    run = PlanRun(new_id(), "p", "deploy", "", "d", "a", {}, [], NOW, NOW, PlanStatus.PENDING_APPROVAL, flow_run_id=str(UUID(int=7)))
    gate = Gate(
        new_id(), run.id, step_id, None, "a" * 64, "deploy", "Deploys.", "# text", GatePolicy(), NOW, closed_at=NOW.replace(minute=1)
    )
    return run, gate


async def events_of(gate: Gate) -> list[dict[str, object]]:
    """Return the server's events of `gate` as soon as there is one."""
    resources = {"filter": {"any_resource": {"id": [f"plan.gate.{gate.id}"]}}}
    async with get_client() as client, asyncio.timeout(20):
        while True:
            found = (await client.request("POST", "/events/filter", json=resources)).json()["events"]
            if found:
                return found
            await asyncio.sleep(0.1)


async def test_an_answer_becomes_an_event_that_automations_can_use() -> None:
    run, gate = run_and_gate()
    answer = answer_to(
        ApprovalRequest(gate.approval_digest, gate.name, gate.description, gate.text),
        decision="approve",
        by="ana\u202e",
        known_by="totp",
        note="ok\n" * 1000,
    )
    emit_gate_event("answered", gate, run, link="http://ui/run", message="answered", approval=answer)
    await asyncio.to_thread(EventsWorker.instance().wait_until_empty)
    (event,) = await events_of(gate)
    assert event["event"] == "plan.gate.answered"
    assert event["resource"] == {"prefect.resource.id": f"plan.gate.{gate.id}", "prefect.resource.name": "deploy: 部署"}
    assert {"prefect.resource.id": f"prefect.flow-run.{UUID(int=7)}", "prefect.resource.role": "flow-run"} in event["related"]  # type: ignore[operator]
    assert event["payload"] == {
        "link": "http://ui/run",
        "plan": "deploy",
        "asks": "approval",
        "requested_by": None,
        "first_screen": [],
        "step": "部署",
        "item": None,
        "label": None,
        "call_kind": "step",
        "run_id": run.id,
        "age_seconds": 60,
        "digest": "a" * 64,
        "command": None,
        "expires_at": None,
        "message": "answered",
        "decision": "approve",
        "by": "ana\\u202e",
        "known_by": "totp",
        "note": ("ok " * 1000)[:500],
    }


async def test_an_event_counts_items_from_1() -> None:
    run, gate = run_and_gate()
    gate = replace(gate, item=0, label="web-1")
    emit_gate_event("opened", gate, run, link=None)
    await asyncio.to_thread(EventsWorker.instance().wait_until_empty)
    (event,) = await events_of(gate)
    payload = cast("dict[str, object]", event["payload"])
    assert (payload["item"], payload["label"]) == (1, "web-1")


async def test_an_event_that_cannot_be_sent_is_logged_and_changes_nothing(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError("no room")

    monkeypatch.setattr(gate_events, "emit_event", refuse)
    run, gate = run_and_gate()
    emit_gate_event("opened", gate, run, link=None)
    assert "plan.gate.opened" in caplog.text


async def test_the_text_of_a_gate_is_an_artifact_of_the_flow_run() -> None:
    ids = list[UUID]()

    async def ask() -> State:
        flow = FlowRunContext.get()
        assert flow is not None and flow.flow_run is not None
        ids.append(flow.flow_run.id)
        await publish_text("# 部署\n", key="部署 上线", description="What would run")
        return Completed()

    await run_flow(Flow(ask, name="artifact", persist_result=False), {})
    async with get_client() as client:
        (artifact,) = await client.read_artifacts(artifact_filter=ArtifactFilter.model_validate({"flow_run_id": {"any_": ids}}))
    assert (artifact.data, artifact.key, artifact.description) == ("# 部署\n", artifact_key("部署 上线"), "What would run")


@pytest.mark.parametrize(
    ("name", "beginning"), [("deploy-42", "deploy-42"), ("Deploy It", "deploy-it-"), ("部署", ""), ("a" * 500, "a" * 187 + "-")]
)
def test_every_name_has_its_own_artifact_key(name: str, beginning: str) -> None:
    key = artifact_key(name)
    assert key.startswith(beginning) and len(key) <= 200 and key.isascii() and key == key.lower()
    assert key != artifact_key(name + "!")
