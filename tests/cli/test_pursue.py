"""`plan pursue`: a goal is drafted, approved, run and summed up."""

import json
from collections.abc import Callable
from typing import Any

import pytest

from plan_adapter.cli.asking import YesApprover
from tests.agent.conftest import no_memory_of_servers
from tests.agent.server import Reply, Said, ScriptedServer, says, scripted
from tests.cli import conftest
from tests.cli.conftest import Plan
from tests.cli.drafting import GOOD, KEY, QUESTION, TASK, WRONG, configure
from tests.cli.test_run import TOOLS
from tests.cli.test_terminal import Terminal, terminals

__all__ = ["no_memory_of_servers", "terminals"]

SUMMARY = says({"summary": "问候了两次。\n全部完成。"})


@pytest.fixture
def pursue(plan: Plan, monkeypatch: pytest.MonkeyPatch) -> Callable[..., conftest.Said]:
    """Runs `plan pursue` offline, with the tests' tools and the model of a server that is up."""

    def call(server: ScriptedServer, *arguments: str) -> conftest.Said:
        configure(monkeypatch, server.url)
        said = plan("pursue", TASK, "--offline", *TOOLS, *arguments)
        assert KEY not in said.out + said.err
        return said

    return call


@pytest.fixture
def approved(monkeypatch: pytest.MonkeyPatch) -> None:
    """Somebody at the terminal approves every gate."""
    monkeypatch.setattr("plan_adapter.cli.foreground.approver_for", lambda **_: YesApprover())


Pursue = Any


def test_a_goal_is_drafted_approved_and_summed_up_at_a_terminal(terminals: list[Terminal], monkeypatch: pytest.MonkeyPatch) -> None:
    with scripted(says(WRONG), says(GOOD), SUMMARY) as server:
        configure(monkeypatch, server.url)
        terminal = Terminal("pursue", TASK, "--offline", *TOOLS)
        terminals.append(terminal)
        terminal.wait_for("[y]es")
        assert len(server.requests) == 2
        assert TASK in terminal.shown
        terminal.type("y\n")
        assert terminal.end() == 0
    assert "2 completed" in terminal.shown
    assert terminal.shown.index("2 completed") < terminal.shown.index("问候了两次。\n全部完成。")


@pytest.mark.usefixtures("approved")
def test_the_summary_is_written_from_the_record_of_the_run(pursue: Pursue) -> None:
    with scripted(says(GOOD), SUMMARY) as server:
        said = pursue(server)
    assert said.code == 0
    assert said.out.endswith("2 completed\n问候了两次。\n全部完成。\n")
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
def test_a_summary_that_the_model_cannot_write_is_mechanical(pursue: Pursue, answer: Said) -> None:
    with scripted(says(GOOD), answer) as server:
        said = pursue(server)
    assert said.code == 0
    assert said.out.endswith("The run is completed. It completed 2 of 2 steps.\n")
    assert "the summary is mechanical: " in said.err


@pytest.mark.usefixtures("approved")
def test_json_is_the_draft_the_events_the_run_and_the_summary(pursue: Pursue) -> None:
    with scripted(says(GOOD), SUMMARY) as server:
        said = pursue(server, "--json")
    assert said.lines[0]["plan"]["steps"][0]["id"] == "first"
    assert said.lines[-2]["status"] == "completed"
    assert said.lines[-1] == {"summary": "问候了两次。\n全部完成。"}


def test_nothing_runs_and_nothing_is_summed_up_while_nobody_has_approved(pursue: Pursue, plan: Plan) -> None:
    with scripted(says(GOOD), SUMMARY) as server:
        said = pursue(server, "--detach")
        assert len(server.requests) == 1
    assert said.code == 6
    (run,) = plan("runs", "--json").lines
    assert run["status"] == "pending_approval"


def test_without_a_plan_nothing_runs(pursue: Pursue, plan: Plan) -> None:
    with scripted(says(WRONG)) as server:
        assert pursue(server).code == 1
    with scripted(says(QUESTION)) as server:
        said = pursue(server)
    assert said.code == 2
    assert "answer it at a terminal, or say it with --context" in said.err
    assert plan("runs", "--json").lines == []


def test_a_bad_request_costs_nothing(pursue: Pursue) -> None:
    with scripted(says(GOOD)) as server:
        said = pursue(server, "--max-steps", "0", "--constraint", " ", "--context", "{")
        assert server.requests == []
    assert said.code == 2
    assert all(word in said.err for word in ("--max-steps is less than 1", "a --constraint is empty", "--context starts like JSON"))
