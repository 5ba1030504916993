"""Fixtures and helpers that run the runbooks."""

import shutil
import threading
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from plan_adapter import PlanRun, PlanStore, ToolRegistry
from plan_adapter.gates import ApprovalRequest, CallbackApprover
from plan_adapter.gates.approvers import CallbackAnswer
from plan_adapter.runs import arun_plan
from plan_adapter.store import load_plan

RUNBOOKS = Path(__file__).parents[2] / "deployments" / "runbooks"

RunRunbook = Callable[..., Awaitable[PlanRun]]


@pytest.fixture
def opened() -> list[ApprovalRequest]:
    """Return the gates of the runbook in the order in which they opened."""
    return []


@pytest.fixture
def run_runbook(tmp_path: Path, opened: list[ApprovalRequest]) -> RunRunbook:
    """Return a function that runs a runbook offline. Ana approves each gate and gives `answers` to questions, by step."""

    async def run(name: str, *, answers: Mapping[str, CallbackAnswer] | None = None, **inputs: object) -> PlanRun:
        def answer(request: ApprovalRequest) -> CallbackAnswer:
            opened.append(request)
            return (answers or {}).get(request.step_id or "", True)

        plan, tools = load_plan(RUNBOOKS / f"{name}.yaml"), ToolRegistry.with_builtins()
        for step in plan.all_steps:
            step.retry_delay_ms = 0  # a test does not wait
        async with PlanStore(f"sqlite:///{tmp_path / 'plans.db'}") as store:
            approver = CallbackApprover(answer, by="ana")
            return await arun_plan(plan, tools=tools, inputs=inputs, approver=approver, store=store, offline=True)

    return run


@contextmanager
def served(handler: type[BaseHTTPRequestHandler]) -> Iterator[str]:
    """Serve `handler` on this machine and yield its URL."""
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def require_programs(*names: str) -> None:
    """Skip the test, and say why, if one of these programs is missing."""
    if missing := [name for name in names if shutil.which(name) is None]:
        pytest.skip(f"not installed here: {', '.join(missing)}")
