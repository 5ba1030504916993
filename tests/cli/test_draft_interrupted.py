"""Tests of `plan draft` at a terminal: questions, interruptions, and resuming without repeated model calls."""

import os
import signal
import threading
from pathlib import Path

import pytest

from plan_adapter.documents import load_plan
from tests.agent.conftest import forget_model_servers
from tests.agent.server import Reply, Request, says, scripted
from tests.cli.conftest import Plan
from tests.cli.drafting import GOOD, KEY, QUESTION, TASK, WRONG, Drafting, configure, done, draft, resume_arguments, step, tools_in_prompt
from tests.cli.test_run import TOOLS
from tests.cli.test_terminal import BOUND_SECONDS, Terminal, terminals

__all__ = ["draft", "forget_model_servers", "terminals"]


def test_a_question_is_answered_at_the_terminal(terminals: list[Terminal]) -> None:
    def answer(request: Request) -> Reply:
        return says(GOOD if "answer (JSON)" in request["messages"][-1]["content"] else QUESTION)

    with scripted(answer) as server:
        model = {"PLAN_ADAPTER_MODEL": "模型-1", "PLAN_ADAPTER_MODEL_URL": server.url, "PLAN_ADAPTER_MODEL_KEY": KEY}
        terminal = Terminal("draft", TASK, "-o", "计划.yaml", *TOOLS, **model)
        terminals.append(terminal)
        terminal.wait_for("your answer: ")
        terminal.type("\n")
        terminal.wait_for_next("your answer: ")
        terminal.type("世界上的人\n")
        assert terminal.end() == 0
        assert '"answer":"世界上的人","question":"问候谁？"' in server.requests[-1]["messages"][-1]["content"]
    assert "the model asks: 问候谁？" in terminal.shown
    assert KEY not in terminal.raw
    assert load_plan(Path("计划.yaml")).description == "两次问候"


READ = says(done(step("read_file", {"path": "note.txt"})))


def test_without_tools_the_built_in_ones_that_a_person_names_at_the_terminal_are_used(terminals: list[Terminal]) -> None:
    with scripted(READ) as server:
        terminal = Terminal("draft", TASK, "-o", "计划.yaml", PLAN_ADAPTER_MODEL="m", PLAN_ADAPTER_MODEL_URL=server.url)
        terminals.append(terminal)
        terminal.wait_for("Enter for none: ")
        assert server.requests == []
        terminal.type("read_fil\n")
        terminal.wait_for_next("Enter for none: ")
        terminal.type("read_file, http_get\n")
        assert terminal.end() == 0
        assert tools_in_prompt(server.requests[0]) == {"http_get", "read_file"}
    assert "  read_file (read): " in terminal.shown
    assert "no such tool: `read_fil` (did you mean `read_file`?)" in terminal.shown
    assert load_plan(Path("计划.yaml")).steps[0].tool_name == "read_file"


@pytest.mark.parametrize("verb", ["draft", "pursue"])
def test_a_person_who_names_no_tool_at_the_terminal_is_told_how(terminals: list[Terminal], verb: str) -> None:
    with scripted(READ) as server:
        terminal = Terminal(verb, TASK, PLAN_ADAPTER_MODEL="m", PLAN_ADAPTER_MODEL_URL=server.url)
        terminals.append(terminal)
        terminal.wait_for("Enter for none: ")
        terminal.type("\n")
        assert terminal.end() == 2
    assert server.requests == []
    assert "there are no tools to plan with" in terminal.shown


def test_a_mistake_is_reported_before_the_tools_are_asked_for(terminals: list[Terminal]) -> None:
    terminal = Terminal("draft", TASK, "-o", "none/plan.yaml", PLAN_ADAPTER_MODEL="m", PLAN_ADAPTER_MODEL_URL="http://127.0.0.1:9/v1")
    terminals.append(terminal)
    assert terminal.end() == 2
    assert "there is no folder none" in terminal.shown
    assert "Enter for none" not in terminal.shown


def test_ctrl_c_during_a_model_call_ends_at_once(terminals: list[Terminal]) -> None:
    asked, never = threading.Event(), threading.Event()

    def answer(_: Request) -> Reply:
        asked.set()
        return Reply(hold=never)

    with scripted(answer) as server:
        terminal = Terminal("draft", TASK, *TOOLS, PLAN_ADAPTER_MODEL="m", PLAN_ADAPTER_MODEL_URL=server.url)
        terminals.append(terminal)
        assert asked.wait(BOUND_SECONDS)
        os.kill(terminal.process.pid, signal.SIGINT)
        assert terminal.end() == 130
        never.set()
    assert "interrupted" in terminal.shown


def test_ctrl_c_shows_the_resume_command_and_no_model_call_is_repeated(terminals: list[Terminal], draft: Drafting) -> None:
    asked, never = threading.Event(), threading.Event()

    def held(_: Request) -> Reply:
        asked.set()
        return Reply(hold=never)

    with scripted(says(WRONG), held, says(GOOD)) as server:
        arguments = [
            "--constraint",
            "先第一次",
            "--context",
            '{"时间": "早上", "口令": "hunter2"}',
            "--max-steps",
            "3",
            "-o",
            "计划.yaml",
            *TOOLS,
        ]
        terminal = Terminal(
            "draft", TASK, *arguments, PLAN_ADAPTER_MODEL="模型-1", PLAN_ADAPTER_MODEL_URL=server.url, PLAN_ADAPTER_MODEL_KEY=KEY
        )
        terminals.append(terminal)
        assert asked.wait(BOUND_SECONDS)
        os.kill(terminal.process.pid, signal.SIGINT)
        assert terminal.end() == 130
        never.set()
        verb, *rest = resume_arguments(terminal.shown)
        result = draft(server, *rest)
        assert (verb, result.code, len(server.requests)) == ("draft", 0, 3)
        assert "hunter2" not in str(server.requests)
    assert load_plan(Path("计划.yaml")).description == "两次问候"
    assert "round 1: quick, strict_schema, 15 tokens" in result.err
    assert [line.endswith("; kept from before") for line in result.err.splitlines() if line.startswith("round")] == [True, False]


def test_a_draft_resumes_once_the_model_is_available(draft: Drafting, plan: Plan) -> None:
    with scripted(Reply(status=401, error="expired"), says(QUESTION), says(GOOD)) as server:
        first = draft(server, TASK, "--allow-tool", "greet")
        assert first.code == 9
        arguments = resume_arguments(first.err)
        assert plan(*arguments).code == 2  # the model asks a question, and nobody can answer it
        again = plan(*arguments)
    assert (again.code, len(server.requests)) == (2, 2)
    assert "answer it at a terminal; the answers so far are kept" in again.err
    assert tools_in_prompt(server.requests[1]) == {"greet"}


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("--resume", "nothing", *TOOLS), "no draft begins with `nothing`; `plan show --draft` lists them"),
        ((TASK, "--resume", "nothing"), "--resume continues a draft as it was started"),
        (("--resume", "x", "--constraint", "y"), "--resume continues a draft as it was started"),
        ((), "say in words what is to be done"),
    ],
)
def test_a_draft_that_cannot_be_resumed_is_refused_with_the_reason(draft: Drafting, arguments: tuple[str, ...], expected: str) -> None:
    with scripted(says(GOOD)) as server:
        result = draft(server, *(word for word in arguments if word not in TOOLS))
        assert (result.code, server.requests) == (2, [])
    assert expected in result.err


def test_resuming_a_draft_without_its_tools_says_what_to_pass(plan: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    with scripted(Reply(status=401, error="expired")) as server:
        configure(monkeypatch, server.url)
        arguments = resume_arguments(plan("draft", TASK, *TOOLS).err)
        result = plan(*arguments[:3])
    assert (result.code, "give the --tools it was started with" in result.err) == (2, True)
