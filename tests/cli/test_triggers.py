"""Tests of `triggers`: an event in Prefect starts a deployed runbook, and equal events start it once."""

import asyncio
import json
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import pytest
import yaml
from prefect import Flow, get_client
from prefect.client.orchestration import PrefectClient
from prefect.client.schemas.filters import DeploymentFilter, DeploymentFilterId
from prefect.client.schemas.objects import FlowRun, State
from prefect.events import emit_event
from prefect.events.schemas.automations import Automation, AutomationCore
from prefect.exceptions import PrefectHTTPStatusError
from prefect.flow_engine import run_flow
from prefect.flows import load_flow_from_entrypoint
from prefect.states import Crashed

from plan_adapter.engine.connection import Server
from plan_adapter.model.status import PlanStatus
from plan_adapter.model.triggers import EVENT_PARAMETER
from plan_adapter.store.store import PlanStore
from tests.cli.conftest import CommandResult, Plan
from tests.workers import worker

PAGE = 200
TOOLS = "tests.cli.some_tools:greet"
NASTY = "a\"b'c\\ {{ 7 * 7 }} {% raw %} ${{ event.id }} $(id)\n\t</b>&amp; 重启 😀"

pytestmark = pytest.mark.usefixtures("prefect_server")


@pytest.fixture
def name(monkeypatch: pytest.MonkeyPatch) -> str:
    """Return a unique name, because all tests share the server."""
    monkeypatch.setenv("PLAN_ADAPTER_TOOLS", TOOLS)
    return f"greet-{uuid4().hex[:8]}"


def a_trigger(name: str, **fields: Any) -> dict[str, Any]:
    """Return a trigger for the event `<name>.firing`."""
    inputs = {"who": "${{ event.payload.who }}"}
    return {"event": f"{name}.firing", "inputs": inputs, "fingerprint": "${{ event.payload.alert }}", **fields}


def runbook(name: str, *triggers: dict[str, Any], **fields: Any) -> Path:
    """Write a runbook that greets somebody, and return its path."""
    document = {
        "name": name,
        "description": "Greet somebody",
        "inputs": {"who": {"type": "string", "max_length": 200}, "times": {"type": "integer", "default": 1}},
        "options": {"require_approval": False},
        "steps": [{"id": "greet", "tool_name": "greet", "parameters": {"who": "${{ inputs.who }}"}}],
        "outputs": {"text": "${{ steps.greet.result.text }}", "times": "${{ inputs.times }}"},
        **fields,
    }
    if triggers:
        document["triggers"] = list(triggers)
    path = Path(f"{name}.yaml")
    path.write_text(yaml.safe_dump(document, allow_unicode=True, sort_keys=False), encoding="utf-8")
    return path


def deployed(plan: Plan, path: Path, *arguments: str) -> dict[str, Any]:
    """Deploy, and return the JSON object that `plan deploy` prints."""
    result = plan("deploy", path, "--yes", "--json", *arguments)
    assert result.code == 0, result.err
    if result.lines[0]["triggers"] and result.lines[0]["action"] != "unchanged":
        wait_for_automations()
    return result.lines[0]


def wait_for_automations() -> None:
    """Return once the server watches for the events of every automation that it has: it loads them one by one after it has stored them."""
    name = f"probe-{uuid4().hex}"
    trigger = {"type": "event", "posture": "Reactive", "expect": [name], "threshold": 1, "within": 0}
    probe = AutomationCore.model_validate({"name": name, "trigger": trigger, "actions": [{"type": "do-nothing"}]})
    with get_client(sync_client=True) as client:
        probe_id = client.create_automation(probe)
        fired = {"event": {"name": ["prefect.automation.triggered"]}, "resource": {"id": [f"prefect.automation.{probe_id}"]}}
        while not client.request("POST", "/events/filter", json={"filter": fired}).json()["total"]:
            now = datetime.now(UTC).isoformat()
            event = {"id": str(uuid4()), "occurred": now, "event": name, "resource": {"prefect.resource.id": name}}
            client.request("POST", "/events", json=[event])  # not `emit_event`, which keeps the first server of the process
        client.delete_automation(probe_id)


def automations(deployment_id: str) -> list[Automation]:
    """Return the automations of a deployment, by name."""
    with get_client(sync_client=True) as client:
        found = client.read_resource_related_automations(f"prefect.deployment.{deployment_id}")
    return sorted(found, key=lambda automation: automation.name)


def emit(name: str, *, event_id: UUID | None = None, **payload: Any) -> UUID:
    """Emit the event of the runbook, and return its id."""
    resource = {"prefect.resource.id": f"alert.{name}", "prefect.resource.name": NASTY}
    event = emit_event(f"{name}.firing", resource=resource, payload=payload, id=event_id or uuid4())
    assert event is not None
    return event.id


async def started(client: PrefectClient, deployment_id: str, count: int) -> list[FlowRun]:
    """Return the flow runs of a deployment once there are `count`, oldest first."""
    of_deployment = DeploymentFilter(id=DeploymentFilterId(any_=[UUID(deployment_id)]))
    wanted = {"deployments": of_deployment.model_dump(mode="json")}
    while (await client.request("POST", "/flow_runs/count", json=wanted)).json() < count:
        pass
    found = list[FlowRun]()
    while len(found) < count:
        found += await client.read_flow_runs(deployment_filter=of_deployment, limit=PAGE, offset=len(found))
    return sorted(found, key=lambda flow_run: flow_run.id)


async def run_as_worker(loaded: Flow[..., Any], flow_run: FlowRun) -> State:
    """Run a flow run as the process that a worker starts does, and return its final state."""
    return await run_flow(loaded, flow_run=flow_run, return_type="state")  # type: ignore[misc,return-value]


def run_started(deployment_id: str, count: int, *, at_once: int = 4) -> list[State]:
    """Run the flow runs that events have started, once there are `count`, in this process. Return their final states."""

    async def run_all() -> list[State]:
        slots = asyncio.Semaphore(at_once)
        async with get_client() as client:
            deployment = await client.read_deployment(UUID(deployment_id))
            loaded = load_flow_from_entrypoint(deployment.entrypoint or "")
            flow_runs = await started(client, deployment_id, count)

            async def run(flow_run: FlowRun) -> State:
                async with slots:
                    return await run_as_worker(loaded, flow_run)

            waiting = [flow_run for flow_run in flow_runs if flow_run.state is not None and flow_run.state.is_scheduled()]
            return await asyncio.gather(*(run(flow_run) for flow_run in waiting))

    return asyncio.run(run_all())


def payloads(deployment_id: str) -> list[Any]:
    """Return the payloads of the events that started flow runs of a deployment, as Prefect passed them."""

    async def read() -> list[Any]:
        async with get_client() as client:
            return [json.loads(found.parameters[EVENT_PARAMETER])["event"]["payload"] for found in await started(client, deployment_id, 1)]

    return asyncio.run(read())


def refusals(name: str) -> list[dict[str, Any]]:
    """Return the payloads of the events about refused triggers of a runbook, once there is one."""
    wanted = {"event": {"name": ["plan.trigger.refused"]}, "resource": {"id": [f"plan.trigger.{name}"]}}
    with get_client(sync_client=True) as client:
        found = list[Any]()
        while not found:
            found = client.request("POST", "/events/filter", json={"filter": wanted}).json()["events"]
    return [event["payload"] for event in found]


def runs_of(plan: Plan, name: str) -> list[dict[str, Any]]:
    """Return the runs of the runbook in the store."""
    return [run for run in plan("runs", "--json").lines if run["name"] == name]


def test_each_trigger_has_an_automation_that_follows_the_plan(plan: Plan, name: str) -> None:
    both = a_trigger(name), a_trigger(name, event=f"{name}.*", resource={"prefect.resource.id": "alert.*"})
    names = [f"{name}/{name} trigger 1: {name}.firing", f"{name}/{name} trigger 2: {name}.*"]
    first = deployed(plan, runbook(name, *both))
    assert first["triggers"] == names
    made = automations(first["id"])
    assert [(found.name, found.enabled, found.tags) for found in made] == [(one, True, ["plan-adapter"]) for one in names]
    with get_client(sync_client=True) as client:
        client.pause_automation(made[0].id)
        client.create_automation(AutomationCore.model_validate({**made[1].model_dump(exclude={"id"}), "name": "of a person"}))
    assert deployed(plan, runbook(name, *both))["action"] == "unchanged"
    with get_client(sync_client=True) as client:
        client.delete_automation(made[1].id)
    again = deployed(plan, runbook(name, *both))
    assert (again["action"], again["changes"]) == ("updated", ["triggers"])
    changed = deployed(plan, runbook(name, both[0] | {"resource": {"prefect.resource.id": "alert.*"}}))
    assert changed["changes"] == ["version", "description", "triggers"]
    kept = [found for found in automations(first["id"]) if found.name != "of a person"]
    assert [(found.id, found.enabled) for found in kept] == [(made[0].id, False)]
    assert kept[0].trigger.match.root == {"prefect.resource.id": "alert.*"}  # type: ignore[union-attr]
    assert f"automation: {names[0]}" in plan("deploy", runbook(name, both[0]), "--dry-run").out
    assert plan("deploy", "--delete", name).code == 0
    assert [found.name for found in automations(first["id"])] == ["of a person"]


def test_a_trigger_of_an_option_lasts_until_the_next_deployment_without_it(plan: Plan, name: str) -> None:
    path, event = runbook(name), f"{name}.firing"
    made = deployed(plan, path, "--trigger", f"{event}@alert.*")
    assert made["triggers"] == [f"{name}/{name} trigger 1: {event}"]
    emit(name, who=NASTY)
    (state,) = run_started(made["id"], 1)
    assert state.is_completed()
    assert show_last(plan, name).run["outputs"] == {"text": f"你好, {NASTY}", "times": 1}
    trigger = {"event": event, "resource": {"prefect.resource.id": "alert.*"}, "inputs": {"who": "${{ event.payload.who }}"}}
    assert [version["triggers"] for version in plan("show", "--versions", name, "--json").lines] == [[trigger]]
    assert f"{event}@alert.*" in plan("show", "--versions", name).out
    again = plan("deploy", path)
    assert f"automation deleted: {made['triggers'][0]}" in again.out
    assert automations(made["id"]) == []
    deployed(plan, path, "--trigger", event)
    assert [found.name for found in automations(made["id"])] == made["triggers"]
    assert plan("deploy", "--delete", name).code == 0
    assert automations(made["id"]) == []


def test_equal_events_start_one_run_that_counts_them(plan: Plan, name: str) -> None:
    made = deployed(plan, runbook(name, a_trigger(name, cooldown="5m", inputs={"who": "${{ event.payload.who }}", "times": "3"})))
    more = {
        "__prefect_kind": "jinja",
        "template": "{{ 7 * 7 }}",
        "line\u2028": [1, 2.5, None, True, {"__prefect_kind": "json", "value": "3"}],
    }
    for _ in range(5):
        emit(name, who=NASTY, alert="disk-full", more=more)
    states = run_started(made["id"], 5)
    assert payloads(made["id"]) == [{"who": NASTY, "alert": "disk-full", "more": more}] * 5
    (run,) = runs_of(plan, name)
    assert Counter(state.name for state in states) == {"Completed": 1, "Duplicate": 4}
    assert {str(state.message).partition(",")[0] for state in states if state.name == "Duplicate"} == {f"duplicate of run {run['id']}"}
    shown = plan("show", run["id"], "--json").run
    assert shown["outputs"] == {"text": f"你好, {NASTY}", "times": 3}
    assert shown["requested_by"] == f"automation {name}/{name} trigger 1: {name}.firing"
    assert (shown["trigger"]["event"], shown["trigger"]["events"]) == (f"{name}.firing", 5)
    assert "5 events" in plan("show", run["id"]).out
    assert "5 events" in plan("show", run["id"], "--all").out
    plan("report", run["id"], "-o", "report.html")
    assert "5 events" in Path("report.html").read_text(encoding="utf-8")


def test_a_false_condition_starts_nothing(plan: Plan, name: str) -> None:
    made = deployed(plan, runbook(name, a_trigger(name, when="${{ event.payload.severity == 'critical' }}")))
    emit(name, who="ana", alert="a", severity="warning")
    (state,) = run_started(made["id"], 1)
    assert (state.name, state.is_completed(), state.message) == ("Ignored", True, "ignored: the condition of trigger 1 is false")
    assert runs_of(plan, name) == []


def test_a_payload_that_does_not_fit_is_refused_with_every_problem(plan: Plan, name: str) -> None:
    trigger = a_trigger(name, inputs={"who": "${{ event.payload.labels.who }}", "times": "${{ event.payload.times }}"})
    made = deployed(plan, runbook(name, trigger))
    event_id = emit(name, alert="a", times="often", labels={"severity": "critical"})
    (state,) = run_started(made["id"], 1)
    assert state.is_failed()
    assert "triggers[0].inputs.who: the event does not fit: `event.payload.labels.who`" in str(state.message)
    assert "inputs.times: `often` is not an integer" in str(state.message)
    assert runs_of(plan, name) == []
    (refused,) = refusals(name)
    assert (refused["event_id"], refused["trigger"], refused["plan"]) == (str(event_id), 1, name)
    assert refused["reason"] == state.message


def test_people_start_it_with_the_form_and_see_nothing_of_the_event(plan: Plan, name: str) -> None:
    made = deployed(plan, runbook(name, a_trigger(name)))

    async def start(**inputs: Any) -> FlowRun:
        async with get_client() as client:
            deployment = await client.read_deployment(UUID(made["id"]))
            fields = deployment.parameter_openapi_schema["properties"]  # type: ignore[index]
            assert EVENT_PARAMETER not in json.dumps(fields)
            assert (fields["who"]["description"], fields["times"].get("description")) == ("Required. At most 200 characters.", None)
            return await client.create_flow_run_from_deployment(UUID(made["id"]), parameters=inputs)

    for wrong in ({}, {"who": None}, {"who": 3}):
        with pytest.raises(PrefectHTTPStatusError, match="409"):
            asyncio.run(start(**wrong))
    asyncio.run(start(who="ana"))
    (state,) = run_started(made["id"], 1)
    assert state.is_completed()
    (run,) = runs_of(plan, name)
    assert plan("show", run["id"], "--json").run["trigger"] is None


@pytest.mark.thorough
def test_an_event_that_is_delivered_twice_starts_one_run(plan: Plan, name: str) -> None:
    trigger = a_trigger(name)
    del trigger["fingerprint"]
    made = deployed(plan, runbook(name, trigger))
    event_id = emit(name, who="ana")
    emit(name, who="bo")

    async def deliver_again() -> None:
        async with get_client() as client:
            flow_runs = await started(client, made["id"], 2)
            again = next(found for found in flow_runs if str(event_id) in found.parameters[EVENT_PARAMETER])
            await client.create_flow_run_from_deployment(UUID(made["id"]), parameters=again.parameters)

    asyncio.run(deliver_again())
    assert Counter(state.name for state in run_started(made["id"], 3)) == {"Completed": 2, "Duplicate": 1}
    assert len(runs_of(plan, name)) == 2


def test_a_run_whose_process_died_before_it_started_does_not_keep_the_alert(plan: Plan, name: str, home: Path) -> None:
    """The first flow run records its run and dies before the gate opens. The next event takes its place."""
    made = deployed(plan, runbook(name, a_trigger(name)))
    emit(name, who="ana", alert="a")
    before, after = asyncio.run(_die_after_creation(made["id"], home)), None
    emit(name, who="ana", alert="a")
    states = run_started(made["id"], 2)
    assert [state.name for state in states] == ["Completed"]
    found = {run["id"]: run["status"] for run in runs_of(plan, name)}
    after = next(run_id for run_id in found if run_id != before)
    assert found == {before: "cancelled", after: "completed"}
    assert plan("show", after, "--json").run["trigger"]["events"] == 2


async def _die_after_creation(deployment_id: str, home: Path) -> str:
    """Create the run of the only flow run as its process would, and record the process's death in Prefect. Return the run's id."""
    from plan_adapter.runs.run_session import RunRequest
    from plan_adapter.runs.start import new_run
    from plan_adapter.runs.triggered import TriggeredStart, read_start
    from plan_adapter.tools.registry import ToolRegistry
    from plan_adapter.validation import bind_inputs, validate

    async with get_client() as client, PlanStore(f"sqlite:///{home / 'plans.db'}") as store:
        (flow_run,) = await started(client, deployment_id, 1)
        deployment = await client.read_deployment(UUID(deployment_id))
        validated = validate(await store.get(str(deployment.entrypoint).rpartition("_")[2]), ToolRegistry.from_settings([TOOLS]))
        start = read_start(validated, flow_run.parameters[EVENT_PARAMETER])
        assert isinstance(start, TriggeredStart)
        run = await new_run(bind_inputs(validated, start.inputs), store, RunRequest(), flow_run_id=str(flow_run.id))
        assert await store.ledger.create(run, validated, event=start.claim) is None
        assert (await store.run(run.id)).status is PlanStatus.PENDING_APPROVAL
        await client.set_flow_run_state(flow_run.id, Crashed(), force=True)
        return run.id


@pytest.mark.thorough
def test_a_triggered_run_that_waits_is_resumed_by_its_flow_run(plan: Plan, name: str) -> None:
    """A second start of the same flow run finds its run, whatever the event would start now."""
    made = deployed(plan, runbook(name, a_trigger(name)))
    emit(name, who="ana", alert="a")
    (state,) = run_started(made["id"], 1)
    assert state.is_completed()

    async def run_again() -> State:
        async with get_client() as client:
            (flow_run,) = await started(client, made["id"], 1)
            deployment = await client.read_deployment(UUID(made["id"]))
            return await run_as_worker(load_flow_from_entrypoint(deployment.entrypoint or ""), flow_run)

    assert "has completed; there is nothing to resume" in str(asyncio.run(run_again()).message)
    assert len(runs_of(plan, name)) == 1


def show_last(plan: Plan, name: str) -> CommandResult:
    """Show the newest run of the runbook."""
    return plan("show", runs_of(plan, name)[0]["id"], "--json")


@pytest.mark.thorough
@pytest.mark.timeout(300)
def test_a_worker_runs_what_an_event_starts(plan: Plan, name: str, prefect_server: Server, home: Path, tmp_path: Path) -> None:
    environment = {"PLAN_ADAPTER_HOME": str(home), "PLAN_ADAPTER_TOOLS": TOOLS}
    with worker(prefect_server, pool=name, log=tmp_path / "worker.log", environment=environment):
        made = deployed(plan, runbook(name, a_trigger(name, cooldown="5m")), "--pool", name, "--tools", TOOLS)
        for _ in range(3):
            emit(name, who=NASTY, alert="disk-full")

        async def ended() -> list[FlowRun]:
            async with get_client() as client:
                found = await started(client, made["id"], 3)
                while not all(flow_run.state is not None and flow_run.state.is_final() for flow_run in found):
                    found = await started(client, made["id"], 3)
            return found

        states = Counter(flow_run.state_name for flow_run in asyncio.run(ended()))
    assert states == {"Completed": 1, "Duplicate": 2}, (tmp_path / "worker.log").read_text()
    shown = show_last(plan, name).run
    assert (shown["outputs"]["text"], shown["trigger"]["events"]) == (f"你好, {NASTY}", 3)


@pytest.mark.thorough
@pytest.mark.timeout(3600)
def test_of_1000_events_of_20_alerts_each_alert_starts_one_run(plan: Plan, name: str) -> None:
    """A server on SQLite that is busy refuses some flow runs, which it reports. The others count."""
    made = deployed(plan, runbook(name, a_trigger(name, cooldown="1h")))
    for number in range(1000):
        emit(name, who=f"ana {number % 20}", alert=f"alert {number % 20}")
    arrived = wait_for_events(made["id"], 1000)
    states = run_started(made["id"], arrived)
    assert Counter(state.name for state in states) == {"Completed": 20, "Duplicate": arrived - 20}
    found = runs_of(plan, name)
    assert len(found) == 20
    assert sum(plan("show", run["id"], "--json").run["trigger"]["events"] for run in found) == arrived


def wait_for_events(deployment_id: str, count: int) -> int:
    """Return how many flow runs `count` events have started, once all others are reported as failed."""
    resources = [f"prefect.automation.{automation.id}" for automation in automations(deployment_id)]
    failed = {"event": {"name": ["prefect.automation.action.failed"]}, "resource": {"id": resources}}
    with get_client(sync_client=True) as client:
        while True:
            lost = client.request("POST", "/events/filter", json={"filter": failed, "limit": 1}).json()["total"]
            wanted = {"deployments": {"id": {"any_": [deployment_id]}}}
            arrived = client.request("POST", "/flow_runs/count", json=wanted).json()
            if arrived + lost >= count:
                return arrived
