"""Tests of attacks on the store's files during a run: it stops, calls no further tool, and never completes without its record."""

import os
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from plan_adapter import ExecutionPlan, PlanRun, PlanStore, ToolRegistry, tool
from plan_adapter.engine.connection import Server
from plan_adapter.gates.approvers import CallbackApprover
from plan_adapter.model.errors import StoreError
from plan_adapter.runs import arun_plan
from tests.attacks.commands import plan


def sidecar(path: Path, end: str) -> Path:
    """Return the path of a file that SQLite keeps next to the database."""
    return path.with_name(path.name + end)


def replace_with_copy(path: Path) -> None:
    """Replace the database and its log with copies."""
    for end in ("", "-wal", "-shm"):
        shutil.copy(sidecar(path, end), sidecar(path, f"{end}.copy"))
        sidecar(path, f"{end}.copy").replace(sidecar(path, end))


def replace_with_another(path: Path) -> None:
    """Replace the database with another one."""
    with closing(sqlite3.connect(path.with_name("other"))) as other:
        other.execute("CREATE TABLE runs (id)")
    path.with_name("other").replace(path)


def replace_with_empty_file(path: Path) -> None:
    """Replace the database with an empty file."""
    path.with_name("empty").touch()
    path.with_name("empty").replace(path)


def replace_folder(path: Path) -> None:
    """Replace the folder with a copy."""
    aside = path.parent.with_name("aside")
    path.parent.rename(aside)
    shutil.copytree(aside, path.parent)


def empty_folder(path: Path) -> None:
    """Replace the folder with an empty one."""
    path.parent.rename(path.parent.with_name("aside"))
    path.parent.mkdir()


def replace_with_link(path: Path) -> None:
    """Replace the database with a link to a copy."""
    shutil.copy(path, path.with_name("copy"))
    path.unlink()
    path.symlink_to("copy")


HARMS: dict[str, Callable[[Path], object]] = {
    "deleted": Path.unlink,
    "deleted with its log": lambda path: [sidecar(path, end).unlink() for end in ("", "-wal", "-shm")],
    "its log deleted": lambda path: sidecar(path, "-wal").unlink(),
    "its shared memory deleted": lambda path: sidecar(path, "-shm").unlink(),
    "moved": lambda path: path.rename(path.with_name("moved")),
    "replaced by a copy": replace_with_copy,
    "replaced by another database": replace_with_another,
    "replaced by an empty file": replace_with_empty_file,
    "replaced by a link": replace_with_link,
    "truncated": lambda path: os.truncate(path, 0),
    "its log truncated": lambda path: os.truncate(sidecar(path, "-wal"), 0),
    "its folder deleted": lambda path: shutil.rmtree(path.parent),
    "its folder moved": lambda path: path.parent.rename(path.parent.with_name("aside")),
    "its folder replaced by a copy": replace_folder,
    "its folder replaced by an empty one": empty_folder,
}

HARMLESS: dict[str, Callable[[Path], object]] = {
    "may not be read": lambda path: path.chmod(0),
    "its folder may not be entered": lambda path: path.parent.chmod(0),
    "moved away and back": lambda path: path.rename(path.with_name("aside")).rename(path),
    "its folder moved, and a link left": lambda path: path.parent.symlink_to(path.parent.rename(path.parent.with_name("aside"))),
    "compacted": lambda path: subprocess.run([sys.executable, "-c", COMPACT, str(path)], check=True),
}

COMPACT = """
import sqlite3, sys
database = sqlite3.connect(sys.argv[1])
database.execute("VACUUM")
assert database.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()[0] == 0
"""


@dataclass
class Target:
    """A store in a file, the calls of its tools, and the damage that the tool `strike` does to the file."""

    store: PlanStore
    path: Path
    called: list[str] = field(default_factory=list[str])
    harm: Callable[[Path], object] = lambda path: path

    def tools(self) -> ToolRegistry:
        """Return a tool that only records its call, and one that also damages the file."""

        @tool(effect="write")
        def call(name: str) -> str:
            """Record the call."""
            self.called.append(name)
            return name

        @tool(effect="write")
        def strike(name: str) -> str:
            """Damage the file."""
            self.called.append(name)
            self.harm(self.path)
            return name

        return ToolRegistry([call, strike])

    async def run(self, *tools: str, approve: Callable[[Any], bool] | None = None, offline: bool = True) -> PlanRun:
        """Run steps that call these tools in order. Tools joined by `+` run in parallel."""
        plan = ExecutionPlan(description="损坏存储")
        plan.options.require_approval = approve is not None
        before: list[str] = []
        for place, both in enumerate(tools):
            now = [f"{name}-{place}-{number}" for number, name in enumerate(both.split("+"))]
            for step_id in now:
                plan.add_step(step_id.split("-")[0], "A step", {"name": step_id}, id=step_id, depends_on=before)
            before = now
        approver = None if approve is None else CallbackApprover(approve, by="ana")
        return await arun_plan(plan, tools=self.tools(), approver=approver, store=self.store, offline=offline)


@pytest.fixture
async def target(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Target]:
    """A store in its own folder."""
    monkeypatch.setenv("PLAN_ADAPTER_STORE_PATIENCE_SECONDS", "0")
    path = tmp_path / "仓库" / "plans.db"
    async with PlanStore(f"sqlite:///{path}") as store:
        yield Target(store, path)


@pytest.mark.parametrize("harm", HARMS)
@pytest.mark.parametrize(
    ("tools", "never_called"),
    [(("strike", "call"), "call-1"), (("call", "strike+call", "call+call"), "call-2"), (("call", "strike"), "call-1")],
    ids=["between steps", "in parallel", "in the last step"],
)
async def test_a_run_that_loses_its_store_calls_no_further_tool_and_does_not_complete(
    target: Target, harm: str, tools: tuple[str, ...], never_called: str
) -> None:
    target.harm = HARMS[harm]
    with pytest.raises(StoreError, match=r"was .* while it was in use, so nothing more is recorded, and no further step is called"):
        await target.run(*tools)
    assert any(name.startswith("strike") for name in target.called)
    assert [name for name in target.called if name.startswith(never_called)] == []


@pytest.mark.parametrize("harm", HARMS)
async def test_a_run_that_loses_its_store_before_its_first_step_calls_no_tool(target: Target, harm: str) -> None:
    def approve(_request: Any) -> bool:
        HARMS[harm](target.path)
        return True

    with pytest.raises(StoreError, match="while it was in use"):
        await target.run("call", "call", approve=approve)
    assert target.called == []


@pytest.mark.parametrize("change", HARMLESS)
async def test_harmless_changes_to_the_store_do_not_stop_a_run(target: Target, change: str) -> None:
    target.harm = HARMLESS[change]
    run = await target.run("call", "strike", "call")
    assert (run.status, len(target.called)) == ("completed", 3)
    target.path.parent.chmod(0o700)
    target.path.chmod(0o600)
    async with PlanStore(f"sqlite:///{target.path}") as again:
        assert (await again.verify(run.id)).ok
        assert len(await again.receipts(run.id)) == 3


async def test_a_restored_store_is_used_again(target: Target) -> None:
    aside = target.path.with_name("aside")
    target.harm = lambda path: path.rename(aside)
    with pytest.raises(StoreError, match=r"was deleted or moved while it was in use.*Put the file back, .* then `plan resume RUN`"):
        await target.run("strike", "call")
    aside.rename(target.path)
    (run,) = await target.store.runs()
    assert run.status != "completed"
    assert [attempt.step_id for attempt in await target.store.attempts(run.id)] == ["strike-0-0"]


async def test_a_run_in_prefect_stops_when_its_store_is_deleted(target: Target, prefect_server: Server) -> None:
    target.harm = HARMS["deleted"]
    with pytest.raises(StoreError, match="while it was in use"):
        await target.run("strike", "call", offline=False)
    assert target.called == ["strike-0-0"]


COMMANDS = {
    "deleted": "rm plans.db",
    "deleted with its log": "rm plans.db*",
    "its log deleted": "rm plans.db-wal",
    "moved": "mv plans.db aside.db",
    "replaced by a copy": "cp plans.db copy && mv copy plans.db",
    "replaced by an empty file": "touch empty && mv empty plans.db",
    "truncated": ": > plans.db",
    "its folder deleted": 'cd .. && rm -r "$OLDPWD"',
    "its folder replaced by a copy": "cd .. && cp -r home copy && rm -r home && mv copy home",
}

DOCUMENT = """\
description: Lose the store
options: {{require_approval: false}}
steps:
  - {{id: lose, tool_name: bash, parameters: {{command: {command}, cwd: {home}}}}}
  - {{id: after, tool_name: bash, parameters: {{command: touch called}}, depends_on: [lose]}}
"""


BRIEF = ("deleted", "moved", "replaced by a copy")


@pytest.mark.parametrize("how", [how if how in BRIEF else pytest.param(how, marks=pytest.mark.thorough) for how in COMMANDS])
def test_plan_run_ends_with_an_error_when_a_step_destroys_the_store(home: Path, tmp_path: Path, how: str) -> None:
    text = DOCUMENT.format(command=_quoted(COMMANDS[how]), home=_quoted(str(home)))
    (tmp_path / "plan.yaml").write_text(text, encoding="utf-8")
    ran = plan("run", "plan.yaml", "--offline", cwd=tmp_path)
    assert ran.code == 1, ran.out + ran.err
    assert "while it was in use, so nothing more is recorded, and no further step is called" in ran.err
    assert "resumes it" not in ran.err
    assert "Traceback" not in ran.err
    assert "completed" not in ran.out
    assert not (tmp_path / "called").exists()


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"
