"""Tests of calls that an agent's library identifies: the same call never makes a second effect, in whatever process."""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from plan_adapter import PlanStore, ToolRegistry, tool
from plan_adapter.errors import NotApprovedError, ToolError, UnknownOutcomeError
from plan_adapter.gates import ApprovalRequest, CallbackApprover
from plan_adapter.runs import aresolve_step
from plan_adapter.store import RunContext
from plan_adapter.tool_calls import AgentTool, agent_tools
from plan_adapter.tools import Done

posted = list[str]()


@tool
def post(text: str) -> int:
    """Post a message."""
    posted.append(text)
    if text == "fails":
        raise ToolError("the channel is closed")
    if text == "lost":
        raise UnknownOutcomeError("the connection broke")
    return len(posted)


@pytest.fixture(autouse=True)
def _clear_posted() -> Iterator[None]:
    posted.clear()
    yield
    posted.clear()


def agree(_request: ApprovalRequest) -> bool:
    return True


def refuse(_request: ApprovalRequest) -> tuple[str, str]:
    return "reject", "not on a Friday"


def poster(store: PlanStore, answer: Any = agree, **options: Any) -> AgentTool:
    [made] = agent_tools(ToolRegistry([post]), store=store, offline=True, approver=CallbackApprover(answer, by="ana"), **options)
    return made


async def test_the_same_call_is_made_once_and_answered_again(store: PlanStore) -> None:
    assert await poster(store).call({"text": "hi"}, call_id=["c1"]) == 1
    assert await poster(store).call({"text": "hi"}, call_id=["c1"]) == 1
    assert posted == ["hi"]
    assert len(await store.runs()) == 1


@pytest.mark.parametrize(
    ("change", "given", "call_id"),
    [
        ({}, "hi", ["c2"]),
        ({}, "hello", ["c1"]),
        ({"agent": "porter"}, "hi", ["c1"]),
        ({"context": RunContext(task_id="another")}, "hi", ["c1"]),
        ({}, "hi", []),
    ],
    ids=["id", "arguments", "agent", "task", "no id"],
)
async def test_another_call_is_made(store: PlanStore, change: dict[str, Any], given: str, call_id: list[str]) -> None:
    await poster(store).call({"text": "hi"}, call_id=["c1"])
    assert await poster(store, **change).call({"text": given}, call_id=call_id) == 2
    assert len(await store.runs()) == 2


@pytest.mark.parametrize(
    ("text", "answer", "error", "message"),
    [
        ("fails", agree, ToolError, "the channel is closed"),
        ("lost", agree, UnknownOutcomeError, "the outcome of `post` is unknown"),
        ("hi", refuse, NotApprovedError, "not on a Friday"),
    ],
)
async def test_a_failure_is_answered_again_without_a_call(
    store: PlanStore, text: str, answer: Any, error: type[Exception], message: str
) -> None:
    asked = list[str]()

    def count(request: ApprovalRequest) -> Any:
        asked.append(request.text)
        return answer(request)

    for _ in range(2):
        with pytest.raises(error, match=message):
            await poster(store, count).call({"text": text}, call_id=["c1"])
    assert len(asked) == 1
    assert len(posted) == (answer is agree)
    assert len(await store.runs()) == 1


async def test_an_unknown_outcome_that_a_person_resolved_is_answered(store: PlanStore) -> None:
    with pytest.raises(UnknownOutcomeError):
        await poster(store).call({"text": "lost"}, call_id=["c1"])
    [run] = await store.runs()
    await aresolve_step(run.id, "call", "done", result=7, store=store)
    assert await poster(store).call({"text": "lost"}, call_id=["c1"]) == 7
    assert posted == ["lost"]


async def test_two_calls_at_the_same_time_make_one_effect(store: PlanStore) -> None:
    made = poster(store)
    assert await asyncio.gather(*(made.call({"text": "hi"}, call_id=["c1"]) for _ in range(3))) == [1, 1, 1]
    assert posted == ["hi"]


async def test_a_call_that_was_cancelled_at_its_gate_asks_again_under_the_same_run(store: PlanStore) -> None:
    is_asked = asyncio.Event()

    async def wait(_request: ApprovalRequest) -> bool:
        is_asked.set()
        await asyncio.Event().wait()
        return True

    waiting = asyncio.ensure_future(poster(store, wait).call({"text": "hi"}, call_id=["c1"]))
    async with asyncio.timeout(30):
        await is_asked.wait()
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert await poster(store).call({"text": "hi"}, call_id=["c1"]) == 1
    assert len(await store.runs()) == 1


def find_posted(text: str) -> Done | None:
    """Look in the file that the killed process wrote."""
    return Done(41) if Path(os.environ["POSTED"]).read_text() == text else None


@tool
def post_and_die(text: str) -> int:
    """Post a message, and lose the process."""
    with Path(os.environ["POSTED"]).open("a") as file:
        file.write(text)
    if "DIES" in os.environ:
        os.kill(os.getpid(), signal.SIGKILL)
    return 1


@tool(name="post_and_die", probe=find_posted)
def post_with_probe(text: str) -> int:
    """Post a message, and lose the process."""
    return post_and_die.fn(text)


MAKE_CALL = """
import asyncio, sys
from plan_adapter import ToolRegistry
from plan_adapter.gates import CallbackApprover
from plan_adapter.tool_calls import agent_tools
from tests.agent import test_tool_calls
tools = ToolRegistry([getattr(test_tool_calls, sys.argv[1])])
[made] = agent_tools(tools, offline=True, approver=CallbackApprover(lambda _: True, by="ana"))
asyncio.run(made.call({"text": "hi"}, call_id=["c1"]))
"""


@pytest.mark.parametrize(
    ("name", "is_elsewhere"),
    [("post_and_die", False), ("post_with_probe", False), pytest.param("post_and_die", True, marks=pytest.mark.thorough)],
    ids=["bare", "probe", "elsewhere"],
)
async def test_a_call_whose_process_was_killed_is_not_repeated(
    store: PlanStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, is_elsewhere: bool
) -> None:
    monkeypatch.setenv("POSTED", str(tmp_path / "posted"))
    monkeypatch.setenv("PLAN_ADAPTER_DATABASE_URL", f"sqlite:///{tmp_path / 'plans.db'}")
    monkeypatch.chdir(Path(__file__).parent.parent.parent)  # a run resumes in the folder in which it was created
    command = [sys.executable, "-c", MAKE_CALL, name]
    ended = subprocess.run(command, env={**os.environ, "DIES": "1"}, capture_output=True, check=False)
    assert ended.returncode == -signal.SIGKILL, ended.stderr.decode()
    if is_elsewhere:  # it could not be resumed, and must not look like a call that was not made
        monkeypatch.chdir(tmp_path)
    registry = ToolRegistry([globals()[name]])
    [made] = agent_tools(registry, store=store, offline=True, approver=CallbackApprover(agree, by="ana"))
    if name == "post_with_probe":
        assert await made.call({"text": "hi"}, call_id=["c1"]) == 41
    else:
        with pytest.raises(UnknownOutcomeError):
            await made.call({"text": "hi"}, call_id=["c1"])
    assert (tmp_path / "posted").read_text() == "hi"
    assert len(await store.runs()) == 1


async def test_processes_that_make_the_same_call_at_the_same_time_make_one_effect(
    store: PlanStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("POSTED", str(tmp_path / "posted"))
    monkeypatch.setenv("PLAN_ADAPTER_DATABASE_URL", f"sqlite:///{tmp_path / 'plans.db'}")
    monkeypatch.chdir(Path(__file__).parent.parent.parent)
    await store.upgrade()
    command = [sys.executable, "-c", MAKE_CALL, "post_and_die"]  # without DIES, it only posts
    processes = [subprocess.Popen(command, stderr=subprocess.PIPE) for _ in range(3)]
    for process in processes:
        _, errors = await asyncio.to_thread(process.communicate)
        assert process.returncode == 0, errors.decode()
    assert (tmp_path / "posted").read_text() == "hi"
    assert len(await store.runs()) == 1
