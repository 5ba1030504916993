"""Tests that a tool in a thread that outlives its run leaks no secret."""

import asyncio
import logging
import threading
from pathlib import Path

import pytest

from plan_adapter import ExecutionPlan, PlanStore, ToolRegistry, tool
from plan_adapter.execution import calling
from plan_adapter.runs import acancel_run, arun_plan
from plan_adapter.store import PlanStatus
from tests.secrets.encodings import found_in

CANARY = "canary-Left/7+behind"


async def test_output_of_a_thread_after_its_run_is_redacted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("PLAN_ADAPTER_SECRET_CANARY", CANARY)
    monkeypatch.setattr(calling, "GRACE_SECONDS", 0.01)
    begun, may_continue, done = threading.Event(), threading.Event(), threading.Event()

    @tool(effect="read")
    def linger(token: str) -> None:
        """Wait, and then print."""
        begun.set()
        may_continue.wait(30)
        print(f"printed {token}")
        logging.getLogger("elsewhere").warning("logged %s", token)
        done.set()

    plan = ExecutionPlan(description="Linger")
    plan.options.require_approval = False
    plan.add_step("linger", "Linger", {"token": "${{ secrets.canary }}"}, id="one")
    async with PlanStore(f"sqlite:///{tmp_path / 'plans.db'}") as store:
        running = asyncio.ensure_future(arun_plan(plan, tools=ToolRegistry([linger]), store=store, offline=True))
        assert await asyncio.to_thread(begun.wait, 30)
        await acancel_run((await store.runs())[0].id, reason="enough", store=store)
        run = await running
    assert run.status is PlanStatus.CANCELLED
    may_continue.set()
    assert done.wait(30)

    out, err = capsys.readouterr()
    assert "printed ***" in out
    assert "logged ***" in caplog.text
    assert found_in(out + err + caplog.text, CANARY) == []
