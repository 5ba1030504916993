"""Tests of commands that outlive the killed process of their run: nothing repeats one while it runs, and everyone is told that it does."""

import asyncio
import os
import re
import signal
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from plan_adapter import PlanRun, PlanStore, ToolRegistry
from plan_adapter.errors import RunConflictError
from plan_adapter.execution.history import ResumeOptions
from plan_adapter.local.settings import Settings
from plan_adapter.model.approvals import Answer, Approval, ApprovalRequest
from plan_adapter.model.host_process import MARKER, HostProcess, marker_of
from plan_adapter.model.options import Effect
from plan_adapter.model.record import StartedCommand
from plan_adapter.model.status import RunReason
from plan_adapter.runs import aresolve_step, aresume_run
from plan_adapter.runs.reconcile import hint_of
from plan_adapter.runs.resume import execute_resume
from plan_adapter.runs.run_session import RunRequest
from plan_adapter.store import PlanStatus
from tests.processes import Program
from tests.sql import Sql

SCRIPT = """\
import sys
from plan_adapter import ExecutionPlan, ToolRegistry, run_plan
from plan_adapter.model.plan import Rollback, Step

kind, effect, command = sys.argv[1:]
build = Step(id="build", tool_name="bash", description="Build", parameters={"command": command}, effect=effect)
plan = ExecutionPlan(description="Build", steps=[build])
if kind == "item":
    build.for_each = "${{ ['only'] }}"
if kind == "finally":
    look = Step(id="look", tool_name="bash", description="Look", parameters={"command": "true"})
    plan = ExecutionPlan(description="Look, then build", steps=[look], finally_=[build])
if kind == "rollback":
    undo = Rollback(tool_name="bash", parameters={"command": command})
    done = Step(id="build", tool_name="bash", description="Build", parameters={"command": "true"}, rollback=undo)
    fail = Step(id="fail", tool_name="bash", description="Fail", parameters={"command": "false"}, depends_on=["build"])
    plan = ExecutionPlan(description="Build, fail, undo", steps=[done, fail])
plan.options.require_approval = False
run_plan(plan, tools=ToolRegistry.with_builtins(), offline=True)
"""

TOOLS = ToolRegistry.with_builtins()

WAITS = "echo $$ > {begun}; while [ ! -e {release} ]; do sleep 0.02; done"
"""A script that names its process, and ends once it is released."""

UNMARKED = f"exec env -u {MARKER} sh -c '{WAITS}'"
"""The same without the variable that names its attempt, so that it can only be found by its row."""


class Orphan:
    """A run whose process was killed while its command ran, and the command."""

    def __init__(self, folder: Path, kind: str, effect: Effect, script: str = WAITS) -> None:
        """Kill the process of the run once the record names the process of its command."""
        self.release, begun = folder / "release", folder / "begun"
        process = Program(SCRIPT, kind, effect, script.format(begun=begun, release=self.release))
        while not begun.exists() or not begun.read_text().strip():
            assert process.poll() is None, "the run ended before its command began"
            time.sleep(0.01)
        self.pid = int(begun.read_text())
        self.process = HostProcess.of(self.pid)
        with closing(sqlite3.connect(Settings().store_url.removeprefix("sqlite:///"))) as database:
            while not database.execute("SELECT 1 FROM commands").fetchall():
                time.sleep(0.01)
        os.kill(process.pid, signal.SIGKILL)
        process.wait()

    def end(self) -> None:
        """Let the command end, and wait until it has."""
        self.release.touch()
        while self.process.session:
            time.sleep(0.01)


@pytest.fixture
def orphans(tmp_path: Path) -> Iterator[list[Orphan]]:
    """Yield a list for the orphans of a test, whose commands are ended after it."""
    made = list[Orphan]()
    yield made
    for orphan in made:
        orphan.end()


async def _recorded(store: PlanStore) -> tuple[PlanRun, StartedCommand]:
    """Return the only run, and its command, once its process is recorded."""
    run = (await store.runs())[0]
    (command,) = await store.outcomes.commands(run.id)
    return run, command


@pytest.mark.parametrize("kind", ["step", "item", "finally"])
async def test_a_write_is_not_called_again_while_its_command_runs(
    kind: str, tmp_path: Path, store: PlanStore, orphans: list[Orphan]
) -> None:
    orphans.append(orphan := Orphan(tmp_path, kind, "write"))
    run, command = await _recorded(store)
    assert (command.state, command.process, command.attempt.number) == ("running", orphan.process, 1)
    with pytest.raises(
        RunConflictError, match=rf"still runs here, pid {orphan.pid}, .*`plan resolve {run.id} build again.* --end` ends it"
    ):
        await aresolve_step(run.id, "build", "again", by="ana", item=command.attempt.item, store=store)
    waiting = await aresume_run(run.id, tools=TOOLS, store=store, offline=True)  # asks, and calls nothing
    assert (waiting.reason, orphan.process.is_alive) == (RunReason.UNKNOWN, True)
    assert f"still runs here, pid {orphan.pid}" in (await hint_of(waiting, store) or "")
    orphan.end()
    await aresolve_step(run.id, "build", "again", by="ana", item=command.attempt.item, store=store)
    again = await aresume_run(run.id, tools=TOOLS, store=store, offline=True)
    assert (again.status, [attempt.number for attempt in await store.attempts(run.id) if attempt.step_id == "build"]) == (
        PlanStatus.COMPLETED,
        [1, 2],
    )


@pytest.mark.parametrize("effect", ["read", "idempotent_write"])
async def test_a_resume_repeats_no_command_that_still_runs(effect: Effect, tmp_path: Path, store: PlanStore, orphans: list[Orphan]) -> None:
    orphans.append(orphan := Orphan(tmp_path, "step", effect))
    run, _ = await _recorded(store)
    with pytest.raises(RunConflictError, match=rf"would call `build` a second time, but its command still runs here, pid {orphan.pid}"):
        await aresume_run(run.id, tools=TOOLS, store=store, offline=True)
    assert len(await store.attempts(run.id)) == 1
    hint = await hint_of(await store.run(run.id), store) or ""
    assert f"pid {orphan.pid}" in hint
    assert f"`plan resolve {run.id} build again --end` ends it" in hint
    skipping = ResumeOptions(skipped={"build": "it still runs"})
    skipped = await execute_resume(run.id, tools=TOOLS, run_request=RunRequest(), store=store, offline=True, options=skipping)
    assert (skipped.step("build").status, orphan.process.is_alive) == ("skipped", True)


async def test_an_interrupted_rollback_repeats_no_command_that_still_runs(tmp_path: Path, store: PlanStore, orphans: list[Orphan]) -> None:
    orphans.append(orphan := Orphan(tmp_path, "rollback", "write"))
    run, command = await _recorded(store)
    assert (command.call, command.attempt.kind) == ("rollback build", "rollback")
    with pytest.raises(RunConflictError, match=f"still runs here, pid {orphan.pid}"):
        await aresolve_step(run.id, "build", "again", by="ana", rollback=True, store=store)
    await aresolve_step(run.id, "build", "again", by="ana", rollback=True, end_command=True, store=store)
    assert not orphan.process.is_alive


@pytest.mark.parametrize(
    "effect", [*(pytest.param(effect, marks=pytest.mark.thorough) for effect in ("read", "idempotent_write")), "write"]
)
async def test_ending_a_command_ends_its_whole_session_and_is_recorded(
    effect: Effect, tmp_path: Path, store: PlanStore, orphans: list[Orphan]
) -> None:
    stubborn = "trap '' TERM; (trap '' TERM; " + WAITS + ") & wait"  # ignores SIGTERM, as does a process that it started
    orphans.append(orphan := Orphan(tmp_path, "step", effect, stubborn))
    run, command = await _recorded(store)
    assert len(command.process.session) >= 2
    resolved = await aresolve_step(run.id, "build", "again", by="ana", note="我看过了", end_command=True, store=store)
    assert command.process.session == []
    receipt = next(receipt for receipt in await store.receipts(run.id) if receipt.by == "ana")
    assert (receipt.note, receipt.resolution) == (f"我看过了; ended its command, pid {command.process.pid}", "again")
    orphan.release.touch()  # for the next call
    assert (await aresume_run(resolved.id, tools=TOOLS, store=store, offline=True)).status is PlanStatus.COMPLETED
    assert (await store.verify(run.id)).ok


async def test_a_process_with_a_reused_id_is_never_ended(tmp_path: Path, store: PlanStore, sql: Sql, orphans: list[Orphan]) -> None:
    orphans.append(orphan := Orphan(tmp_path, "step", "write", UNMARKED))
    run, command = await _recorded(store)
    await _change_process(sql, run, replace(command.process, started="1"))  # as if the id had belonged to another process before
    assert (await _recorded(store))[1].state == "ended"
    await aresolve_step(run.id, "build", "again", by="ana", end_command=True, store=store)
    assert orphan.process.is_alive
    assert [receipt.note for receipt in await store.receipts(run.id)] == [None]


async def test_of_a_command_on_another_host_only_its_host_is_known(
    tmp_path: Path, store: PlanStore, sql: Sql, orphans: list[Orphan]
) -> None:
    orphans.append(orphan := Orphan(tmp_path, "step", "write", UNMARKED))
    run, command = await _recorded(store)
    await _change_process(sql, run, replace(command.process, place="web-7/boot/ns"))
    _, seen = await _recorded(store)
    assert (seen.state, seen.in_words) == ("elsewhere", f"cannot be seen from here, it ran on web-7, pid {orphan.pid}")
    with pytest.raises(RunConflictError, match=r"cannot be seen from here, it ran on web-7, pid .*: end it there"):
        await aresolve_step(run.id, "build", "again", by="ana", end_command=True, store=store)
    assert orphan.process.is_alive
    await aresolve_step(run.id, "build", "again", by="ana", store=store)  # a person's word, who looked there


async def test_a_command_that_no_row_names_yet_is_found_by_its_environment(
    tmp_path: Path, store: PlanStore, sql: Sql, orphans: list[Orphan]
) -> None:
    orphans.append(orphan := Orphan(tmp_path, "step", "write"))
    _, command = await _recorded(store)
    await sql.change("DELETE FROM commands")
    assert marker_of(orphan.pid) == command.attempt.id
    assert (await _recorded(store))[1] == command


@pytest.mark.parametrize("altered", [{"place": "web-7/boot/ns"}, {"pid": 2**22 + 1}])
async def test_an_altered_command_is_noticed_and_hides_no_living_one(
    altered: dict[str, Any], tmp_path: Path, store: PlanStore, sql: Sql, orphans: list[Orphan]
) -> None:
    orphans.append(orphan := Orphan(tmp_path, "step", "write"))
    run, command = await _recorded(store)
    assert (await store.verify(run.id)).ok
    await _change_process(sql, run, replace(command.process, **altered))
    problem = str((await store.verify(run.id)).problem)
    assert re.fullmatch(r"commands, step `build`, attempt 1: the row is missing: entry \d+ of the audit log records it", problem)
    assert (await _recorded(store))[1] == command
    with pytest.raises(RunConflictError, match=rf"still runs here, pid {orphan.pid}"):
        await aresolve_step(run.id, "build", "again", by="ana", store=store)


async def test_a_child_that_outlives_its_command_counts_as_running(tmp_path: Path, store: PlanStore, orphans: list[Orphan]) -> None:
    orphans.append(orphan := Orphan(tmp_path, "step", "write", "(" + WAITS + ") & wait"))
    run, command = await _recorded(store)
    os.kill(command.process.pid, signal.SIGKILL)
    while command.process.is_alive:
        await asyncio.sleep(0.01)
    _, left = await _recorded(store)
    assert (left.state, f"started by pid {command.process.pid}" in left.in_words) == ("running", True)
    await aresolve_step(run.id, "build", "again", by="ana", end_command=True, store=store)
    assert command.process.session == []
    orphan.release.touch()


async def test_the_outcome_form_says_that_the_command_runs_and_refuses_again(
    tmp_path: Path, store: PlanStore, orphans: list[Orphan]
) -> None:
    orphans.append(orphan := Orphan(tmp_path, "step", "write"))
    run, _ = await _recorded(store)
    asked = list[ApprovalRequest]()

    class Person:
        async def ask_outcome(self, request: ApprovalRequest) -> Answer:
            asked.append(request)
            return Answer("again" if len(asked) == 1 else "done", by="ana")

        async def ask(self, request: ApprovalRequest) -> Approval:
            raise AssertionError(request)

    request = RunRequest(approver=Person())
    ended = await execute_resume(run.id, tools=TOOLS, run_request=request, store=store, offline=True)
    assert ended.status is PlanStatus.COMPLETED
    assert f"Its command **still runs here, pid {orphan.pid}" in asked[0].text
    assert f"plan resolve {run.id} build again --end" in asked[0].text
    assert f"still runs here, pid {orphan.pid}" in (asked[1].refused or "")


async def _change_process(sql: Sql, run: PlanRun, process: HostProcess) -> None:
    await sql.change("UPDATE commands SET process = :process WHERE run_id = :run", process=str(process), run=run.id)
