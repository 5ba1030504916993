"""Tests of every kind of gate, answered through Prefect's API and in both of its UIs. `make matrix` runs them for each pair of versions.

A pause without a form must also never be passed with the button Resume.
"""

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast
from uuid import UUID

import pytest
from prefect import get_client
from prefect.states import Scheduled

from plan_adapter.engine.connection import Server
from plan_adapter.model.approvals import GateKind
from plan_adapter.model.status import PlanStatus
from tests.agent.goal_players import playing, writes
from tests.agent.server import ScriptedServer
from tests.browser.answering import ApiRespondent, NewerUi, OlderUi, Page, Respondent
from tests.browser.pages import BrowserUser
from tests.browser.running import RunningPlan, Workspace
from tests.deployments.test_release import is_final, is_suspended, worksite
from tests.engine.gates import wait_for_state

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.thorough]

Start = Callable[..., RunningPlan]

EVERY_GATE = """\
name: every-gate
description: Wait at a gate of every kind
options: {step_timeout_ms: 60000}
steps:
  - id: build
    tool_name: bash
    description: Build
    parameters: {command: echo built >> log.txt}
    requires_approval: true
  - id: restart
    tool_name: bash
    description: Restart a node
    for_each: "${{ ['web-1', '节点二'] }}"
    label: ${{ item }}
    parameters: {command: 'echo "restarted $NODE" >> log.txt', env: {NODE: "${{ item }}"}}
    requires_approval: true
    depends_on: [build]
  - id: decide
    ask:
      question: Switch to the standby site?
      fields: {choice: {type: string, enum: [switch, wait], title: What now}}
    depends_on: [restart]
  - id: send
    tool_name: bash
    description: Send it
    parameters: {command: 'echo "sent $CHOICE" >> log.txt; sleep 60', env: {CHOICE: "${{ steps.decide.result.choice }}"}}
    timeout_ms: 1500
  - id: report
    goal: Write the report
    done_when: report.txt was written
    tools: [write_file]
    depends_on: [send]
"""
GATES = ["plan", "build", "decide", "report", "restart", "restart", "send"]
ONE_GATE = """\
name: one-gate
description: Wait once
options: {require_approval: %s}
steps:
  - {id: build, tool_name: bash, description: Build, parameters: {command: echo built >> log.txt}, requires_approval: %s}
"""
AT_PLAN, AT_STEP = ONE_GATE % ("true", "false"), ONE_GATE % ("false", "true")


@pytest.fixture(scope="module")
def model() -> Iterator[ScriptedServer]:
    """A model that asks to write a report, and then ends the goal."""

    def play(seen: Any) -> Any:
        done = seen.proof("write_file")
        return seen.end(done) if done else writes("write_file", path="report.txt", content="done")

    with ScriptedServer([playing(play)]) as server:
        yield server


@pytest.fixture
def respondent(request: pytest.FixtureRequest, user: BrowserUser) -> Respondent:
    """The way to answer that the test names."""
    return {"api": ApiRespondent({"What now": "choice"}), "v1": OlderUi(user), "v2": NewerUi(user)}[request.param]


everywhere = pytest.mark.parametrize("respondent", ["api", "v1", "v2"], indirect=True)


def page_of(event: dict[str, Any], run_url: str, server: Server) -> Page:
    """Return the page that shows the form of the gate of `event`."""
    gate, kind = event["gate"], cast("GateKind", event["gate"]["asks"])
    return Page(run_url if gate["step"] is None else str(server.run_url(gate["flow_run_id"])), kind)


@everywhere
async def test_every_kind_of_gate_is_answered(
    respondent: Respondent, start: Start, workspace: Workspace, prefect_server: Server, model: ScriptedServer
) -> None:
    plan = start(EVERY_GATE, PLAN_ADAPTER_MODEL="scripted", PLAN_ADAPTER_MODEL_URL=model.url)
    url, answered = await plan.link(), dict[str, str]()
    async for event in plan.shown_gates():
        gate, page = event["gate"], page_of(event, url, prefect_server)
        answered[gate["id"]] = gate["step"] or "plan"
        fields = {"What now": "switch"} if page.kind == "question" else {}
        await respondent.answer(page, {"approval": "approve", "question": "answer", "outcome": "done"}[page.kind], **fields)
    code, run = await plan.end()

    assert (code, run["status"]) == (0, "completed"), plan.output
    assert sorted(answered.values(), key=lambda name: (name != "plan", name)) == GATES
    assert sorted((workspace.folder / "log.txt").read_text().splitlines()) == [
        "built",
        "restarted web-1",
        "restarted 节点二",
        "sent switch",
    ]
    assert (workspace.folder / "report.txt").read_text() == "done"


@everywhere
async def test_a_detached_run_takes_its_answer_after_its_process_has_ended(
    respondent: Respondent, workspace: Workspace, prefect_server: Server
) -> None:
    left = await workspace.plan("run", str(workspace.write("plan.yaml", AT_PLAN)), "--detach", "--json")
    assert left.code == 6, left.err
    run = left.lines[-1]
    (gate,) = (await workspace.plan("gates", "--json")).lines
    assert (gate["has_form"], gate["attended"]) == (True, False)
    await respondent.answer(Page(str(prefect_server.run_url(run["flow_run_id"])), state="Waiting"), "approve")
    resumed = await workspace.plan("resume", run["id"], "--json")
    assert (resumed.code, resumed.lines[-1]["approved_by"]) == (0, "ana"), resumed.err
    assert (workspace.folder / "log.txt").read_text() == "built\n"


@everywhere
async def test_a_run_that_released_its_worker_resumes_after_its_answer(
    respondent: Respondent, tmp_path: Path, prefect_server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PLAN_ADAPTER_DATABASE_URL", f"sqlite:///{tmp_path / 'plans.db'}")
    monkeypatch.setenv("PLAN_ADAPTER_ALLOW_LOCAL_STORE", "true")
    async with worksite(tmp_path) as site:
        flow_run_id = await site.begin("published")
        await site.until(is_suspended, flow_run_id)
        await respondent.answer(Page(str(prefect_server.run_url(flow_run_id)), state="Suspended"), "approve")
        await site.until(is_final, flow_run_id)
        run = await site.run(flow_run_id)
        assert (run.status, run.approved_by, site.published("published")) == (PlanStatus.COMPLETED, "ana", "once\n")


@everywhere
async def test_resume_does_not_pass_a_pause_without_a_form(respondent: Respondent, workspace: Workspace, prefect_server: Server) -> None:
    left = await workspace.plan("run", str(workspace.write("plan.yaml", AT_STEP)), "--detach", "--json")
    assert left.code == 6, left.err
    run = left.lines[-1]
    await respondent.press_resume(Page(str(prefect_server.run_url(run["flow_run_id"])), state="Waiting"))
    assert await wait_for_state(UUID(run["flow_run_id"]), "Waiting", "Running") == "Waiting"
    resumed = await workspace.plan("resume", run["id"], "--detach", "--json")
    assert (resumed.code, workspace.has_file("log.txt")) == (6, False), resumed.err
    assert (await workspace.plan("approve", run["id"], "--step", "build", "--yes")).code == 0
    assert (await workspace.plan("resume", run["id"])).code == 0
    assert (workspace.folder / "log.txt").read_text() == "built\n"


@pytest.mark.parametrize("document", [AT_PLAN, AT_STEP], ids=["plan", "step"])
@everywhere
async def test_a_run_killed_while_paused_and_scheduled_again_asks_again(
    respondent: Respondent, document: str, start: Start, workspace: Workspace, prefect_server: Server
) -> None:
    first = start(document)
    url = await first.link()
    event = await anext(first.shown_gates())
    page = page_of(event, url, prefect_server)
    await wait_for_state(page.flow_run_id, "Paused")
    os.kill(first.process.pid, signal.SIGKILL)
    first.process.wait()
    async with get_client() as client:
        await client.set_flow_run_state(page.flow_run_id, Scheduled(name="AwaitingRetry"))

    again = workspace.resume(event["run_id"])
    try:
        asked = await anext(again.shown_gates())
        assert not workspace.has_file("log.txt")
        await respondent.answer(page_of(asked, url, prefect_server), "approve")
        code, run = await again.end()
        assert (code, run["status"]) == (0, "completed"), again.output
    finally:
        await again.stop()
    assert (workspace.folder / "log.txt").read_text() == "built\n"
