"""Tests of the recipe for a rolling change in `plan guide groups`: it runs as it stands there, with programs of its names."""

import re
from collections.abc import Iterator
from contextlib import ExitStack
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import pytest

import plan_adapter
from plan_adapter import ExecutionPlan, PlanRun, PlanStore, ToolRegistry
from plan_adapter.documents import read_document
from plan_adapter.gates import CallbackApprover
from plan_adapter.runs import arun_plan
from plan_adapter.store import PlanStatus
from tests.deployments.conftest import served

GUIDE = Path(plan_adapter.__file__).parent / "guide"

PROGRAM = """#!/bin/sh
echo "$(basename "$0") $*" >> "$LOG"
"""


class Healthy(BaseHTTPRequestHandler):
    """A node that answers."""

    status = 200

    def do_GET(self) -> None:
        self.send_response(self.status)
        self.end_headers()

    def log_message(self, *_arguments: object) -> None:
        """Say nothing."""


class Broken(Healthy):
    """A node that answers with an error."""

    status = 503


@pytest.fixture
def log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the file to which the programs of the recipe write how they were called."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for name in ("lbctl", "ssh", "notify"):
        (folder / name).write_text(PROGRAM)
        (folder / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(folder), prepend=":")
    monkeypatch.setenv("LOG", str(tmp_path / "log"))
    return tmp_path / "log"


@pytest.fixture
def nodes() -> Iterator[list[str]]:
    """Yield three nodes, of which the second does not answer after its restart."""
    with ExitStack() as stack:
        yield [stack.enter_context(served(kind)).removeprefix("http://") for kind in (Healthy, Broken, Healthy)]


def recipe() -> ExecutionPlan:
    """Return the plan in the guide. Its retries do not wait."""
    texts = re.findall(r"```yaml\n(.*?)```", (GUIDE / "groups.md").read_text(), re.DOTALL)
    plan, problems = read_document(next(text for text in texts if text.startswith("name: rolling-change")))
    assert not problems
    plan.step("healthy").retry_delay_ms = 0
    return plan


async def run_recipe(tmp_path: Path, nodes: list[str]) -> PlanRun:
    async with PlanStore(f"sqlite:///{tmp_path / 'plans.db'}") as store:
        approver = CallbackApprover(lambda _: True, by="ana")
        tools = ToolRegistry.with_builtins()
        return await arun_plan(recipe(), tools=tools, inputs={"nodes": [*nodes]}, approver=approver, store=store, offline=True)


async def test_a_node_that_fails_is_put_back_alone_and_no_further_one_is_touched(log: Path, nodes: list[str], tmp_path: Path) -> None:
    first, second, _ = nodes
    run = await run_recipe(tmp_path, nodes)
    assert run.status is PlanStatus.PARTIAL
    assert log.read_text().splitlines() == [
        *(f"lbctl drain {first}", f"ssh {first} systemctl restart web", f"lbctl undrain {first}"),
        *(f"lbctl drain {second}", f"ssh {second} systemctl restart web", f"lbctl undrain {second}"),
    ]


async def test_the_report_names_every_node_once_all_completed(log: Path, nodes: list[str], tmp_path: Path) -> None:
    first, _, third = nodes
    run = await run_recipe(tmp_path, [first, third])
    assert run.status is PlanStatus.COMPLETED, run.message
    assert log.read_text().splitlines()[-1] == f"notify {first} completed, {third} completed"
