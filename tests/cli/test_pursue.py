"""Tests of `plan pursue`: a goal is drafted, approved, run and summarized."""

import asyncio
import json
from collections.abc import Callable
from typing import Any
from uuid import UUID

import pytest
from prefect import get_client
from prefect.client.schemas.filters import ArtifactFilter, ArtifactFilterFlowRunId

from plan_adapter.cli.asking import YesApprover
from tests.agent.conftest import forget_model_servers
from tests.agent.goal_players import Answer, Seen, decides, playing
from tests.agent.server import Reply, ScriptedReply, ScriptedServer, says, scripted
from tests.cli import conftest
from tests.cli.conftest import Plan
from tests.cli.drafting import FIRST, GOOD, KEY, QUESTION, TASK, WRONG, configure, done
from tests.cli.test_run import TOOLS
from tests.cli.test_terminal import Terminal, terminals

__all__ = ["forget_model_servers", "terminals"]

FACTS = "The run is completed. 2 of 2 steps done."
SUMMARY = says({"summary": "问候了两次。\n全部完成。"})


@pytest.fixture
def pursue(plan: Plan, monkeypatch: pytest.MonkeyPatch) -> Callable[..., conftest.CommandResult]:
    """Return a function that runs `plan pursue` offline, with the tests' tools and the model of a scripted server."""

    def call(server: ScriptedServer, *arguments: str) -> conftest.CommandResult:
        configure(monkeypatch, server.url)
        result = plan("pursue", TASK, "--offline", *TOOLS, *arguments)
        assert KEY not in result.out + result.err
        return result

    return call


@pytest.fixture
def approved(monkeypatch: pytest.MonkeyPatch) -> None:
    """Approve every gate, as a person at the terminal would."""
    monkeypatch.setattr("plan_adapter.cli.foreground.approver_for", lambda **_: YesApprover())


Pursue = Any


def test_a_goal_is_drafted_approved_and_summarized_at_a_terminal(terminals: list[Terminal], monkeypatch: pytest.MonkeyPatch) -> None:
    with scripted(says(WRONG), says(GOOD), SUMMARY) as server:
        configure(monkeypatch, server.url)
        terminal = Terminal("pursue", TASK, "--offline", *TOOLS)
        terminals.append(terminal)
        terminal.wait_for("[y]es")
        assert len(server.requests) == 2
        assert TASK in terminal.shown
        terminal.type("y\n")
        assert terminal.end() == 0
    assert "2 of 2 steps done" in terminal.shown
    assert terminal.shown.index("2 of 2 steps done") < terminal.shown.index("Summary by the model:\n问候了两次。\n全部完成。")


@pytest.mark.usefixtures("approved")
def test_the_model_writes_the_summary_from_the_record_of_the_run(pursue: Pursue) -> None:
    with scripted(says(GOOD), SUMMARY) as server:
        result = pursue(server)
    assert result.code == 0
    assert result.out.endswith(f"2 of 2 steps done\n{FACTS}\n\nSummary by the model:\n问候了两次。\n全部完成。\n")
    record = json.loads(server.requests[1]["messages"][1]["content"].split("record (JSON):\n")[1])
    assert record["status"] == "completed"
    assert [(step["id"], step["status"], step["result"]) for step in record["steps"]] == [
        ("first", "completed", {"text": "你好, 世界"}),
        ("second", "completed", {"text": "你好, 大家"}),
    ]


@pytest.mark.usefixtures("approved")
@pytest.mark.parametrize(
    "answer", [Reply(status=500, error="out of order"), says({"no": "summary"}), Reply("…")], ids=["500", "other", "prose"]
)
def test_the_summary_falls_back_to_the_record_if_the_model_fails(pursue: Pursue, answer: ScriptedReply) -> None:
    with scripted(says(GOOD), answer) as server:
        result = pursue(server)
    assert result.code == 0
    assert result.out.endswith(f"2 of 2 steps done\n{FACTS}\n")
    assert "the model wrote no summary: " in result.err


@pytest.mark.usefixtures("approved")
def test_json_prints_the_draft_the_events_the_run_and_the_summary(pursue: Pursue) -> None:
    with scripted(says(GOOD), SUMMARY) as server:
        result = pursue(server, "--json", "--allow", "大声")
    assert result.lines[0]["plan"]["steps"][0]["id"] == "first"
    assert result.lines[0]["plan"]["permissions"] == ["大声"]
    assert result.lines[-2]["status"] == "completed"
    assert result.lines[-1] == {"type": "summary", "facts": FACTS, "summary": "问候了两次。\n全部完成。"}


def test_nothing_runs_and_nothing_is_summarized_before_the_approval(pursue: Pursue, plan: Plan) -> None:
    with scripted(says(GOOD), SUMMARY) as server:
        result = pursue(server, "--detach")
        assert len(server.requests) == 1
    assert result.code == 6
    (run,) = plan("runs", "--json").lines
    assert run["status"] == "pending_approval"


def test_nothing_runs_without_a_valid_plan(pursue: Pursue, plan: Plan) -> None:
    with scripted(says(WRONG)) as server:
        assert pursue(server).code == 1
    with scripted(says(QUESTION)) as server:
        result = pursue(server)
    assert result.code == 2
    assert "answer it at a terminal, or say it with --context" in result.err
    assert plan("runs", "--json").lines == []


def test_an_invalid_request_does_not_call_the_model(pursue: Pursue) -> None:
    with scripted(says(GOOD)) as server:
        result = pursue(server, "--max-steps", "0", "--constraint", " ", "--allow", "", "--context", "{")
        assert server.requests == []
    assert result.code == 2
    assert all(
        word in result.err
        for word in ("--max-steps is less than 1", "a --constraint is empty", "an --allow is empty", "--context starts like JSON")
    )


@pytest.mark.usefixtures("approved")
def test_a_plan_can_mix_calls_and_goals(pursue: Pursue) -> None:
    goal = {"id": "all", "content": "问候所有人", "done_when": "每个人都收到了问候", "tools": ["greet"], "depends_on": [0]}

    def greets(seen: Seen) -> Answer:
        assert "你好, 世界" in seen.text  # the result of the first step
        whom = [name for name in ("甲", "乙") if name not in str(seen.evidence)]
        return decides("continue", tool_call={"name": "greet", "arguments": {"who": whom[0]}}) if whom else seen.end(seen.proof("greet"))

    with scripted(playing(greets, plan=done(FIRST, goal))) as server:
        result = pursue(server, "--json")
    assert result.code == 0, result.err
    assert result.lines[-1] == {"type": "summary", "facts": FACTS, "summary": "完成了。"}
    reached = next(step for step in result.lines[-2]["steps"] if step["id"] == "all")["result"]
    assert [evidence["summary"] for evidence in reached["evidence"]] == ['{"text":"你好, 甲"}', '{"text":"你好, 乙"}']


async def artifacts_of(flow_run_id: str) -> dict[str | None, Any]:
    async with get_client() as client:
        of_run = ArtifactFilterFlowRunId(any_=[UUID(flow_run_id)])
        return {artifact.key: artifact.data for artifact in await client.read_artifacts(artifact_filter=ArtifactFilter(flow_run_id=of_run))}


@pytest.mark.thorough
@pytest.mark.usefixtures("approved", "prefect_server")
def test_the_summary_is_an_artifact_of_the_flow_run(plan: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("plan_adapter.cli.foreground.asks_in_form", lambda **_: False)
    with scripted(says(GOOD), SUMMARY) as server:
        configure(monkeypatch, server.url)
        result = plan("pursue", TASK, *TOOLS, "--json")
    assert result.code == 0, result.err
    assert result.lines[-1] == {"type": "summary", "facts": FACTS, "summary": "问候了两次。\n全部完成。"}
    shown = f"{FACTS}\n\nSummary by the model:\n\n问候了两次。\n\n全部完成。"
    assert asyncio.run(artifacts_of(result.lines[-2]["flow_run_id"]))["summary"] == shown
