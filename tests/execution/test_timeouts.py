"""Tests of what ends a step or a run early: timeouts of attempts, the total timeout, and cancellation."""

import asyncio
import contextlib
import os
import threading
import time
from pathlib import Path

import pytest

from plan_adapter.model.status import Outcome, PlanStatus, RunReason, StepStatus
from plan_adapter.tools.tool import ToolContext, tool
from tests.execution import tools_of_a_module
from tests.execution.support import Execution, flaky, plan_of


async def test_a_timeout_cancels_an_async_tool_and_the_next_attempt_may_succeed():
    ended: list[str] = []

    @tool(effect="read")
    async def work(name: str, context: ToolContext) -> str:
        """Hang at the first attempt."""
        if context.attempt == 1:
            try:
                await asyncio.Event().wait()
            finally:
                ended.append("cancelled")
        return "ok"

    plan = plan_of({"a": []}, step_timeout_ms=30)
    plan.step("a").max_retries = 1
    execution = Execution(plan, [work])
    run = await execution.go()
    assert run.step("a").result == "ok"
    assert ended == ["cancelled"]
    assert execution.recorder.receipts[0].error == "no answer within 0.03 s"


async def test_an_async_tool_that_ignores_its_cancellation_is_still_ended(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("plan_adapter.execution.calling.GRACE_SECONDS", 0.02)
    ended: list[str] = []

    @tool(effect="read")
    async def work(name: str) -> None:
        """Hang, whatever happens."""
        try:
            while True:
                with contextlib.suppress(asyncio.CancelledError):
                    await asyncio.Event().wait()
        finally:
            ended.append(name)

    run = await Execution(plan_of({"a": []}, step_timeout_ms=10), [work]).go()
    assert run.step("a").error == "no answer within 0.01 s"
    assert ended == ["a"]
    assert asyncio.all_tasks() == {asyncio.current_task()}


async def test_a_sync_tool_past_its_timeout_is_left_behind_with_a_warning(caplog: pytest.LogCaptureFixture):
    release = threading.Event()

    @tool(effect="read")
    def work(name: str) -> None:
        """Hang."""
        release.wait()

    try:
        run = await Execution(plan_of({"a": []}, step_timeout_ms=30), [work]).go()
    finally:
        release.set()
    assert run.step("a").error == "no answer within 0.03 s"
    assert "cannot be ended" in caplog.text


@pytest.mark.thorough
async def test_a_timeout_kills_the_process_of_an_isolated_tool(tmp_path: Path):
    plan = plan_of({}, step_timeout_ms=4000)
    plan.add_step("stubborn", "stubborn", {"folder": str(tmp_path)}, id="a", isolation="process", effect="read")
    run = await Execution(plan, [tools_of_a_module.stubborn]).go()
    assert run.step("a").error == "no answer within 4 s"
    pid = int((tmp_path / "pid").read_text())
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


async def test_the_total_timeout_ends_running_steps_and_skips_the_rest():
    @tool(effect="read")
    async def work(name: str) -> None:
        """Hang."""
        await asyncio.Event().wait()

    run = await Execution(plan_of({"a": [], "b": ["a"]}, total_timeout_ms=40), [work]).go()
    assert (run.status, run.reason) == (PlanStatus.FAILED, RunReason.TIMED_OUT)
    assert run.step("a").error == "the total timeout of 0.04 s was exceeded"
    assert run.step("b").reason == "the total timeout of 0.04 s was exceeded"


async def test_the_total_timeout_ends_a_retry_wait():
    plan = plan_of({"a": []}, total_timeout_ms=60)
    plan.step("a").max_retries, plan.step("a").retry_delay_ms = 3, 3_600_000
    run = await Execution(plan, [flaky(9)]).go()
    assert run.reason is RunReason.TIMED_OUT


async def test_cancelling_ends_the_running_step_skips_the_rest_and_keeps_the_reason():
    begun = asyncio.Event()

    @tool(effect="read")
    async def work(name: str) -> None:
        """Hang."""
        begun.set()
        await asyncio.Event().wait()

    execution = Execution(plan_of({"a": [], "b": []}), [work])
    running = asyncio.create_task(execution.go())
    await begun.wait()
    execution.scope.stop.set("cancelled", "用户取消")
    run = await running
    assert (run.status, run.reason, run.message) == (PlanStatus.CANCELLED, RunReason.CANCELLED, "用户取消")
    assert (run.step("a").status, run.step("a").outcome) == (StepStatus.FAILED, Outcome.FAILED)
    assert (run.step("b").status, run.step("b").reason) == (StepStatus.SKIPPED, "用户取消")


async def test_cancelling_the_caller_ends_the_step_and_is_reraised():
    begun, ended = asyncio.Event(), asyncio.Event()

    @tool(effect="read")
    async def work(name: str) -> None:
        """Hang."""
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    execution = Execution(plan_of({"a": [], "b": []}), [work])
    running = asyncio.create_task(execution.go())
    await begun.wait()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert ended.is_set()
    assert execution.run.step("b").status is StepStatus.SKIPPED


async def test_a_tool_gets_the_earliest_deadline():
    deadlines: list[float | None] = []

    @tool(effect="read")
    def work(name: str, context: ToolContext) -> None:
        """Note the deadline."""
        deadlines.append(context.deadline)

    plan = plan_of({"a": [], "b": [], "c": []}, total_timeout_ms=60_000)
    plan.step("b").timeout_ms, plan.step("c").timeout_ms = 1000, 3_600_000
    now = time.monotonic()
    await Execution(plan, [work]).go()
    assert [round((deadline or 0) - now) for deadline in deadlines] == [60, 1, 60]
