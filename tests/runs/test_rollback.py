"""A run that is undone: by itself when it failed, on request when it was cancelled or has ended, and once, whatever is killed."""

import asyncio
import json
import os
import signal
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from prefect import get_client
from prefect.states import Cancelling

from plan_adapter import (
    CallbackApprover,
    ExecutionPlan,
    Input,
    NotApprovedError,
    PlanRun,
    PlanStatus,
    PlanStore,
    RunConflictError,
    ToolRegistry,
    acancel_run,
    aresolve_step,
    aresume_run,
    arevise_run,
    arun_plan,
    format_plan,
    tool,
)
from plan_adapter.cli.app import main
from plan_adapter.engine.connection import Server
from plan_adapter.execution.rollback import Rollback as Undo
from plan_adapter.gates.call_text import step_gate_text
from plan_adapter.gates.plan_text import plan_gate_text
from plan_adapter.plan import ApprovalPolicy, Rollback
from plan_adapter.preview import preview_plan, preview_text
from plan_adapter.record import Outcome, RollbackStatus, RunReason
from plan_adapter.runs import start
from plan_adapter.runs.resume import resume_action
from plan_adapter.runs.rollback import roll_back
from plan_adapter.validation import bind_inputs, validate
from tests.engine.calls import task_runs
from tests.processes import Program
from tests.store.conftest import ON_SQLITE_OR_THOROUGH, on_both_databases, store_at


class World:
    """A pool of nodes; what is `stuck` cannot be put back."""

    def __init__(self) -> None:
        self.drained: list[str] = []
        self.put_back: list[str] = []
        self.stuck: set[str] = set()
        self.waits = asyncio.Event()

        @tool(effect="write")
        def drain(node: str) -> dict[str, str]:
            """Take a node out of the pool."""
            self.drained.append(node)
            return {"node": node}

        @tool(effect="write")
        def undrain(node: str) -> str:
            """Put a node back into the pool."""
            if node in self.stuck:
                raise ValueError(f"{node} 卡住了")
            self.put_back.append(node)
            return f"{node} serves"

        @tool(effect="read")
        def verify() -> None:
            """Find that nothing works."""
            raise ValueError("nothing answers")

        @tool(effect="read")
        async def wait() -> None:
            """Wait until somebody ends it."""
            self.waits.set()
            await asyncio.Event().wait()

        self.goes_on = asyncio.Event()

        @tool(effect="idempotent_write")
        async def held(node: str) -> None:
            """Put a node back once it is let go."""
            self.waits.set()
            await self.goes_on.wait()
            self.put_back.append(node)

        @tool(effect="write")
        async def hang() -> None:
            """Begin something and never come back."""
            self.waits.set()
            await asyncio.Event().wait()

        self.tools = ToolRegistry([drain, undrain, verify, wait, held, hang])


@pytest.fixture
def world() -> World:
    return World()


@pytest.fixture(params=ON_SQLITE_OR_THOROUGH)
def store_url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """The URL of an empty store with the newest schema."""
    yield from store_at(request, tmp_path)


@pytest.fixture
async def either(store_url: str) -> AsyncIterator[PlanStore]:
    """An empty store on each database."""
    async with PlanStore(store_url) as opened:
        yield opened


def pool(last: str = "verify", **options: Any) -> ExecutionPlan:
    """Two nodes drained one after the other, and a last step."""
    plan = ExecutionPlan(description="Drain both, then look", name="排空两个节点")
    plan.options.require_approval = False
    undrain = Rollback(tool_name="undrain", parameters={"node": "${{ result.node }}"})
    plan.add_step("drain", "The first", {"node": "web-1"}, id="one", rollback=undrain)
    plan.add_step("drain", "The second", {"node": "节点-2"}, id="two", depends_on=["one"], rollback=undrain)
    plan.add_step(last, "The last", id="last", depends_on=["two"])
    for name, value in options.items():
        setattr(plan.options, name, value)
    return plan


def undone(run: PlanRun) -> dict[str, bool]:
    return {step.id: step.rolled_back for step in run.steps}


@on_both_databases
async def test_a_run_that_a_step_fails_is_rolled_back_and_cannot_be_resumed(either: PlanStore, world: World) -> None:
    run = await arun_plan(pool(), tools=world.tools, store=either, offline=True)
    assert (run.status, run.reason) == (PlanStatus.PARTIAL, RunReason.STEP_FAILED)
    assert run.message == "`last` failed: ValueError: nothing answers; rolled back: two, one"
    assert world.put_back == ["节点-2", "web-1"]
    kept = await either.run(run.id)
    assert (kept.message, undone(kept)) == (run.message, {"one": True, "two": True, "last": False})
    assert kept.rollback == run.rollback == RollbackStatus("`last` failed: ValueError: nothing answers", can_continue=False)
    assert format_plan(kept).count("   - rolled back\n") == 2
    assert [(row.kind, row.step_id, row.parameters) for row in (await either.attempts(run.id))[-2:]] == [
        ("rollback", "two", {"node": "节点-2"}),
        ("rollback", "one", {"node": "web-1"}),
    ]
    assert await either.ledger.owner(run.id) is None
    with pytest.raises(RunConflictError, match="was rolled back and cannot be resumed: start a new run"):
        await aresume_run(run.id, tools=world.tools, store=either, offline=True)
    with pytest.raises(RunConflictError, match="was rolled back"):
        await arevise_run(run.id, pool("wait"), tools=world.tools, by="ana", store=either)
    again = await acancel_run(run.id, rollback=True, tools=world.tools, store=either)
    assert (again.message, len(world.put_back)) == (run.message, 2)


async def test_a_run_whose_time_is_up_undoes_itself(store: PlanStore, world: World) -> None:
    run = await arun_plan(pool("wait", total_timeout_ms=1000), tools=world.tools, store=store, offline=True)
    assert (run.status, run.reason, world.put_back) == (PlanStatus.PARTIAL, RunReason.TIMED_OUT, ["节点-2", "web-1"])
    assert run.message == "the total timeout of 1 s was exceeded; rolled back: two, one"


async def test_a_run_that_continues_on_error_is_rolled_back_only_on_request(store: PlanStore, world: World) -> None:
    run = await arun_plan(pool(stop_on_error=False), tools=world.tools, store=store, offline=True)
    assert (run.status, world.put_back, run.message) == (PlanStatus.PARTIAL, [], "`last` failed: ValueError: nothing answers")
    with pytest.raises(RunConflictError, match="pass `tools` to roll it back"):
        await acancel_run(run.id, rollback=True, store=store)
    later = await acancel_run(run.id, rollback=True, tools=world.tools, store=store)
    assert (later.status, later.reason, later.completed_at is not None) == (PlanStatus.PARTIAL, RunReason.STEP_FAILED, True)
    assert later.message == "`last` failed: ValueError: nothing answers; rolled back: two, one"
    assert (await store.run(run.id)).step("last").error == "ValueError: nothing answers"  # the ends of the steps are kept


async def test_a_failed_rollback_says_where_things_stand_and_is_tried_again_on_request(store: PlanStore, world: World) -> None:
    world.stuck.add("节点-2")
    run = await arun_plan(pool(), tools=world.tools, store=store, offline=True)
    assert run.message == (
        "`last` failed: ValueError: nothing answers; rolled back: nothing; not rolled back: two (its rollback failed: "
        "ValueError: 节点-2 卡住了), one (`two` must be rolled back first)"
    )
    assert run.rollback == RollbackStatus("`last` failed: ValueError: nothing answers", can_continue=True)
    with pytest.raises(RunConflictError, match=r"`plan cancel .* --rollback` rolls back the rest"):
        await aresume_run(run.id, tools=world.tools, store=store, offline=True)
    world.stuck.clear()
    later = await acancel_run(run.id, rollback=True, tools=world.tools, store=store)
    assert (world.put_back, undone(later)) == (["节点-2", "web-1"], {"one": True, "two": True, "last": False})
    assert later.message == "`last` failed: ValueError: nothing answers; rolled back: two, one"


@pytest.mark.parametrize("rollback", [False, True])
async def test_a_run_that_is_cancelled_is_undone_if_that_was_asked_for(rollback: bool, store: PlanStore, world: World) -> None:
    running = asyncio.create_task(arun_plan(pool("wait"), tools=world.tools, store=store, offline=True))
    await world.waits.wait()
    held = (await store.runs())[0]
    asked = await acancel_run(held.id, reason="enough (by ana)", rollback=rollback, tools=world.tools, store=store)
    assert asked.status is PlanStatus.EXECUTING  # who executes it undoes it
    run = await running
    assert (run.status, run.reason) == (PlanStatus.CANCELLED, RunReason.CANCELLED)
    assert run.message == "enough (by ana)" + ("; rolled back: two, one" if rollback else "")
    assert world.put_back == (["节点-2", "web-1"] if rollback else [])
    if not rollback:
        later = await acancel_run(run.id, rollback=True, tools=world.tools, store=store)
        assert (later.status, later.message) == (PlanStatus.CANCELLED, "enough (by ana); rolled back: two, one")


def held_pool(world: World) -> ExecutionPlan:
    """The pool, whose second node is put back only once `world.goes_on` is set."""
    plan = pool()
    plan.step("two").rollback = Rollback(tool_name="held", parameters={"node": "${{ result.node }}"})
    return plan


@pytest.fixture
def undoing(monkeypatch: pytest.MonkeyPatch) -> list[Undo]:
    """The rollbacks that are made in this process."""
    made = list[Undo]()

    class Seen(Undo):
        def __init__(self, *args: Any) -> None:
            super().__init__(*args)
            made.append(self)

    monkeypatch.setattr(start, "Rollback", Seen)
    return made


async def halted(undoing: list[Undo]) -> None:
    """Return once the rollback knows that nothing further is to be undone."""
    while not undoing[-1].halt.is_set:
        await asyncio.sleep(0.01)


async def test_cancelling_a_rollback_lets_the_running_call_end_and_names_what_is_left(
    either: PlanStore, world: World, undoing: list[Undo]
) -> None:
    running = asyncio.create_task(arun_plan(held_pool(world), tools=world.tools, store=either, offline=True))
    await world.waits.wait()
    shown = (await either.runs())[0]
    assert (shown.status, shown.reason) == (PlanStatus.EXECUTING, RunReason.STEP_FAILED)
    await acancel_run(shown.id, reason="enough (by ana)", store=either)
    await halted(undoing)
    world.goes_on.set()
    run = await running
    assert (run.status, run.reason, world.put_back) == (PlanStatus.PARTIAL, RunReason.STEP_FAILED, ["节点-2"])
    assert run.message == ("`last` failed: ValueError: nothing answers; rolled back: two; not rolled back: one (enough (by ana))")


async def test_a_plain_cancel_calls_off_the_rollback_that_was_asked_for_while_it_is_under_way(
    store: PlanStore, world: World, undoing: list[Undo]
) -> None:
    plan = held_pool(world)
    plan.step("last").tool_name = "wait"
    running = asyncio.create_task(arun_plan(plan, tools=world.tools, store=store, offline=True))
    await world.waits.wait()
    world.waits.clear()
    held = (await store.runs())[0]
    await acancel_run(held.id, reason="undo it (by ana)", rollback=True, store=store)
    await world.waits.wait()  # the rollback of `two` has begun
    await acancel_run(held.id, reason="leave it (by bo)", store=store)
    await halted(undoing)
    world.goes_on.set()
    run = await running
    assert (run.status, run.reason, world.put_back) == (PlanStatus.CANCELLED, RunReason.CANCELLED, ["节点-2"])
    assert run.message == "undo it (by ana); rolled back: two; not rolled back: one (leave it (by bo))"
    assert [entry.message for entry in await store.audit(run.id) if entry.kind == "cancel_requested"] == [
        "undo it (by ana)", "leave it (by bo)",
    ]  # fmt: skip
    assert (await store.verify(run.id)).ok


async def test_a_plain_cancel_calls_off_the_rollback_that_was_asked_for_before_it_begins(either: PlanStore, world: World) -> None:
    plan = pool("held")
    plan.step("last").parameters = {"node": "last"}
    running = asyncio.create_task(arun_plan(plan, tools=world.tools, store=either, offline=True))
    await world.waits.wait()
    run_id = (await either.runs())[0].id
    await either.ledger.request_cancel(run_id, "undo it (by ana)", rollback=True)
    assert await either.ledger.asks_rollback(run_id) is True
    await either.ledger.request_cancel(run_id, "leave it (by bo)")
    assert await either.ledger.asks_rollback(run_id) is False
    run = await running
    assert (run.status, world.put_back, undone(run)) == (PlanStatus.CANCELLED, [], {"one": False, "two": False, "last": False})
    assert "; rolled back: nothing; not rolled back: two (leave it (by bo)), one (`two` must be rolled back first)" in (run.message or "")
    later = await acancel_run(run.id, rollback=True, tools=world.tools, store=either)
    assert (world.put_back, undone(later)["one"]) == (["节点-2", "web-1"], True)


async def test_a_run_that_had_nothing_to_undo_says_nothing_of_it(store: PlanStore, world: World) -> None:
    plan = pool()
    for step in plan.steps:
        step.rollback = None
    run = await arun_plan(plan, tools=world.tools, store=store, offline=True)
    assert run.message == "`last` failed: ValueError: nothing answers"
    assert (await acancel_run(run.id, rollback=True, store=store)).message == run.message


async def test_nothing_is_rolled_back_around_a_step_with_an_unknown_outcome(store: PlanStore, world: World) -> None:
    plan = pool("hang")
    plan.step("last").timeout_ms = 30
    run = await arun_plan(plan, tools=world.tools, store=store, offline=True)
    assert (run.reason, world.put_back) == (RunReason.UNKNOWN, [])
    assert (run.message or "").endswith(
        f"; rolled back: nothing, because whether `last` was done is unknown: `plan resolve {run.id} last done|again|abort`, "
        f"then `plan cancel {run.id} --rollback`"
    )
    with pytest.raises(RunConflictError, match="while it is unknown whether `last` was done"):
        await acancel_run(run.id, rollback=True, tools=world.tools, store=store)
    await aresolve_step(run.id, "last", "done", by="ana", store=store)
    later = await acancel_run(run.id, rollback=True, tools=world.tools, store=store)
    assert world.put_back == ["节点-2", "web-1"]
    assert "rolled back: two, one; cannot be rolled back: last (writes, declares no rollback)" in (later.message or "")


@pytest.mark.parametrize("said_here", [False, True])
async def test_an_aborted_write_is_named_and_rolled_back_once_it_is_recorded_as_done(
    said_here: bool, either: PlanStore, world: World
) -> None:
    plan = pool("hang")
    plan.step("last").timeout_ms = 30
    plan.step("last").rollback = Rollback(tool_name="undrain", parameters={"node": "last"})
    run = await arun_plan(plan, tools=world.tools, store=either, offline=True)
    ended = await aresolve_step(run.id, "last", "abort", by="ana", store=either)
    assert ended.step("last").error == "ana recorded `abort` for `last`; whether it was done is unknown"
    if said_here:
        await aresolve_step(run.id, "last", "done", by="ana", note="我看过了", store=either)
    later = await acancel_run(run.id, rollback=True, tools=world.tools, store=either)
    stands = "rolled back: last, two, one" if said_here else "rolled back: two, one; started, and possibly done: `last`"
    assert (later.message or "").endswith(stands)
    assert world.put_back == [*(["last"] if said_here else []), "节点-2", "web-1"]
    assert (await either.verify(run.id)).ok


@pytest.mark.parametrize("gated", ["effects", "step", "settings", "nothing"])
async def test_where_calls_wait_at_gates_only_who_may_approve_asks_for_a_rollback(
    gated: str, either: PlanStore, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = pool(stop_on_error=False)
    plan.approval = ApprovalPolicy(approvers=["ana"], effects=["write"] if gated == "effects" else [])
    plan.step("one").requires_approval = gated == "step"
    if gated == "settings":
        monkeypatch.setenv("PLAN_ADAPTER_GATE_EFFECTS", "write")
    approver = CallbackApprover(lambda request: True, by="ana")
    run = await arun_plan(plan, tools=world.tools, approver=approver, store=either, offline=True, by="bo")
    assert (run.status, world.drained) == (PlanStatus.PARTIAL, ["web-1", "节点-2"])
    if gated == "nothing":
        await acancel_run(run.id, rollback=True, tools=world.tools, store=either, by="bo")
    else:
        with pytest.raises(NotApprovedError, match="is not rolled back: bo may not answer here; only ana may"):
            await acancel_run(run.id, rollback=True, tools=world.tools, store=either, by="bo")
        assert world.put_back == []
        assert (await either.audit(run.id))[-1].by == "bo"
        await acancel_run(run.id, rollback=True, tools=world.tools, store=either, by="ana")
    assert world.put_back == ["节点-2", "web-1"]


async def test_what_follows_a_failure_is_covered_by_the_approval_of_the_plan(store: PlanStore, world: World) -> None:
    plan = pool()
    plan.approval = ApprovalPolicy(approvers=["ana"], effects=["write"])
    approver = CallbackApprover(lambda request: True, by="ana")
    run = await arun_plan(plan, tools=world.tools, approver=approver, store=store, offline=True, by="bo")
    assert (world.put_back, undone(run)["one"]) == (["节点-2", "web-1"], True)


async def test_what_has_completed_or_has_other_tools_now_is_not_undone(store: PlanStore, world: World) -> None:
    plan = pool()
    plan.steps.pop()
    done = await arun_plan(plan, tools=world.tools, store=store, offline=True)
    with pytest.raises(RunConflictError, match="has completed: only a run that failed or was cancelled is rolled back"):
        await acancel_run(done.id, rollback=True, tools=world.tools, store=store)

    failed = await arun_plan(pool(stop_on_error=False), tools=world.tools, store=store, offline=True)

    def undrain(node: str, force: bool = True) -> None:
        """Put it back otherwise."""

    changed = ToolRegistry([*(world.tools.get(name) for name in world.tools.names() if name != "undrain"), tool(undrain)])
    with pytest.raises(NotApprovedError, match="have changed since it was approved"):
        await acancel_run(failed.id, rollback=True, tools=changed, store=store)
    assert world.put_back == []


SCRIPT = """\
import os, sys, time
from pathlib import Path
from plan_adapter import ExecutionPlan, ToolRegistry, run_plan, tool
from plan_adapter.plan import ApprovalPolicy, Rollback

world = Path(sys.argv[1])

def note(name, line):
    with (world / name).open("a") as file:
        file.write(line + chr(10))

@tool(effect="write")
def drain(node: str) -> dict:
    "Take it out."
    note("done", node)
    return {"node": node}

@tool(effect=sys.argv[2])
def undrain(node: str) -> str:
    "Put it back, or never come back."
    if node == "two":
        (world / "begun").write_text(str(os.getpid()))
        time.sleep(600)
    note("undone", node)
    return node

@tool(effect="read")
def verify() -> None:
    "Fail."
    raise ValueError("nothing answers")

plan = ExecutionPlan(description="Drain three, then look")
plan.options.require_approval = False
before = []
for name in ("one", "two", "three"):
    undo = Rollback(tool_name="undrain", parameters={"node": "${{ result.node }}"})
    plan.add_step("drain", name, {"node": name}, id=name, depends_on=before, rollback=undo)
    before = [name]
plan.add_step("verify", "Look", id="last", depends_on=before)
run_plan(plan, tools=ToolRegistry([drain, undrain, verify]), offline=True)
"""


def kill_in_the_middle(folder: Path, effect: str) -> None:
    process = Program(SCRIPT, folder, effect)
    while not (folder / "begun").exists():
        assert process.poll() is None, "the run ended before it was undone"
        time.sleep(0.01)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()


@pytest.mark.parametrize("word", ["abort", "cancel"])
@on_both_databases
async def test_of_a_rollback_that_was_killed_only_the_rollback_ends_and_the_run_keeps_its_reason(
    word: str, store_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PLAN_ADAPTER_DATABASE_URL", store_url)
    kill_in_the_middle(tmp_path, "write")
    async with PlanStore(store_url) as store:
        run = (await store.runs())[0]
        assert (run.status, run.reason) == (PlanStatus.EXECUTING, RunReason.INTERRUPTED)
        if word == "abort":
            ended = await aresolve_step(run.id, "two", "abort", by="ana", note="我去看", rollback=True, store=store)
            said, two = "ana recorded `abort` for `rollback two` (我去看)", "whether its rollback was done is unknown"
        else:
            ended = await acancel_run(run.id, reason="leave it (by ana)", store=store)
            said, two = "leave it (by ana)", "whether its rollback was done is unknown"
        assert (ended.status, ended.reason, ended.completed_at is not None) == (PlanStatus.PARTIAL, RunReason.STEP_FAILED, True)
        assert ended.message == (
            f"`last` failed: ValueError: nothing answers; rolled back: three; not rolled back: two ({two}), one (not reached); {said}"
        )
        assert ended.rollback == RollbackStatus("`last` failed: ValueError: nothing answers", can_continue=True)
        found = await store.verify(run.id)
        assert found.ok, str(found.problem)
        assert await store.ledger.owner(run.id) is None


async def test_abort_about_the_rollback_of_a_run_that_has_ended_changes_nothing_else_of_it(store: PlanStore, world: World) -> None:
    plan = pool()
    plan.step("two").rollback = Rollback(tool_name="hang")
    plan.step("two").timeout_ms = 50
    run = await arun_plan(plan, tools=world.tools, store=store, offline=True)
    assert "whether its rollback was done is unknown" in (run.message or "")
    ended = await aresolve_step(run.id, "two", "abort", by="ana", rollback=True, store=store)
    assert (ended.status, ended.reason, ended.completed_at) == (run.status, run.reason, run.completed_at)
    assert ended.message == (
        "`last` failed: ValueError: nothing answers; rolled back: nothing; "
        "not rolled back: two (whether its rollback was done is unknown), one (not reached); ana recorded `abort` for `rollback two`"
    )
    assert (await store.verify(run.id)).ok


@pytest.mark.parametrize("effect", ["idempotent_write", "write"])
async def test_a_killed_rollback_resumes_and_undoes_nothing_twice(
    effect: Any, store_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, world: World
) -> None:
    monkeypatch.setenv("PLAN_ADAPTER_DATABASE_URL", store_url)
    kill_in_the_middle(tmp_path, effect)
    undoing: list[str] = []

    def undrain(node: str) -> str:
        """Put it back, or never come back."""
        undoing.append(node)
        return node

    tools = ToolRegistry([*(world.tools.get(name) for name in ("drain", "verify")), tool(effect=effect)(undrain)])
    async with PlanStore(store_url) as store:
        run = (await store.runs())[0]
        assert (run.status, run.reason) == (PlanStatus.EXECUTING, RunReason.INTERRUPTED)
        recorded = await store.ledger.recorded(run.id)
        work = resume_action(run, recorded.plan, recorded.history, recorded.kept)
        assert (work, recorded.history.has_rollbacks) == (roll_back, True)  # as `plan preview --resume` tells
        gone_on = await aresume_run(run.id, tools=tools, store=store, offline=True)  # goes on undoing
        assert (gone_on.status, gone_on.reason) == (PlanStatus.PARTIAL, RunReason.STEP_FAILED)
        if effect == "write":
            assert undoing == []
            assert f"`plan resolve {run.id} two done|again|abort --rollback`" in (gone_on.message or "")
            assert undone(gone_on) == {"one": False, "two": False, "three": True, "last": False}
            await aresolve_step(run.id, "two", "done", by="ana", note="我看过了", rollback=True, store=store)
            gone_on = await acancel_run(run.id, rollback=True, tools=tools, store=store)
        assert undoing == (["one"] if effect == "write" else ["two", "one"])
        assert (tmp_path / "undone").read_text() == "three\n"
        assert undone(gone_on) == {"one": True, "two": True, "three": True, "last": False}
        assert (gone_on.message or "").endswith("rolled back: three, two, one")
        keys = {row.idempotency_key for row in await store.attempts(run.id) if (row.kind, row.step_id) == ("rollback", "two")}
        assert len(keys) == 1
        assert all(row.outcome is Outcome.SUCCEEDED for row in await store.receipts(run.id) if row.kind == "rollback")


def test_the_command_line_undoes_a_run_that_nobody_executes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    document = {
        "description": "Leave a file, then fail",
        "options": {"require_approval": False, "stop_on_error": False},
        "steps": [
            {
                "id": "leave", "tool_name": "run_command", "parameters": {"argv": ["touch", str(tmp_path / "文件")]},
                "rollback": {"tool_name": "run_command", "parameters": {"argv": ["rm", str(tmp_path / "文件")]}},
            },
            {"id": "fail", "tool_name": "run_command", "parameters": {"argv": ["false"]}, "depends_on": ["leave"]},
        ],
    }  # fmt: skip
    path = tmp_path / "plan.json"
    path.write_text(json.dumps(document))
    assert main(["run", str(path), "--offline", "--json"]) == 1
    run = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert (tmp_path / "文件").exists()
    assert main(["cancel", run["id"], "--rollback"]) == 0
    said = capsys.readouterr()
    assert "rolled back: leave" in said.out
    assert "rollback leave: completed in" in said.err
    assert "a run that was rolled back cannot be resumed: start a new one" in said.err
    assert not (tmp_path / "文件").exists()
    assert main(["show", run["id"], "--json"]) == 0
    assert [step["rolled_back"] for step in json.loads(capsys.readouterr().out)["steps"]] == [True, False]
    assert main(["preview", str(path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["steps"][0]["rollback"] == {
        "tool_name": "run_command",
        "effect": "write",
        "parameters": {"argv": ["rm", str(tmp_path / "文件")]},
    }


async def test_rollbacks_are_task_runs_of_the_flow_run_then_and_later(prefect_server: Server, store: PlanStore, world: World) -> None:
    world.stuck.add("web-1")
    run = await arun_plan(pool(), tools=world.tools, store=store)
    assert run.flow_run_id is not None
    flow_run_id: Any = run.flow_run_id
    names = ["one", "two", "last", "rollback two", "rollback one"]
    runs = await task_runs(flow_run_id, names)
    states = {name: runs[name].state_name for name in names}
    assert states == {"one": "Completed", "two": "Completed", "last": "Failed", "rollback two": "Completed", "rollback one": "Failed"}
    upstream = {found.id for found in runs["rollback one"].task_inputs["wait_for"]}
    assert upstream == {runs["one"].id, runs["rollback two"].id}
    world.stuck.clear()
    later = await acancel_run(run.id, rollback=True, tools=world.tools, store=store)
    assert (later.flow_run_id, undone(later)["one"], later.status) == (run.flow_run_id, True, PlanStatus.PARTIAL)
    while (await task_runs(flow_run_id, names))["rollback one"].state_name != "Completed":
        await asyncio.sleep(0.1)


@pytest.mark.parametrize("asked", [False, True])
async def test_a_cancellation_in_prefect_lets_the_rollback_that_is_under_way_end_and_no_further_one_begin(
    asked: bool, prefect_server: Server, store: PlanStore, world: World, undoing: list[Undo]
) -> None:
    plan = held_pool(world)
    plan.step("last").tool_name = "wait" if asked else "verify"
    running = asyncio.create_task(arun_plan(plan, tools=world.tools, store=store))
    await world.waits.wait()
    run_id = (await store.runs())[0].id
    if asked:
        world.waits.clear()
        await acancel_run(run_id, reason="undo it (by ana)", rollback=True, store=store)
        await world.waits.wait()
    flow_run_id = UUID((await store.run(run_id)).flow_run_id or "")
    async with get_client() as client:
        await client.set_flow_run_state(flow_run_id, Cancelling(message="leave it"), force=True)
    await halted(undoing)
    world.goes_on.set()
    run = await running
    assert (world.put_back, run.status) == (["节点-2"], PlanStatus.CANCELLED if asked else PlanStatus.PARTIAL)
    assert (run.message or "").endswith("; rolled back: two; not rolled back: one (leave it)")


async def test_how_each_step_is_undone_is_read_before_anything_is_approved(world: World) -> None:
    plan = pool("hang", stop_on_error=True)
    plan.inputs = {"api_token": Input()}
    undo: dict[str, Any] = {"node": "${{ result.node + inputs.api_token }}\n| <b>第二</b> " + "长" * 90}
    plan.step("two").rollback = Rollback(tool_name="undrain", parameters=undo)
    bound = bind_inputs(validate(plan, world.tools), {"api_token": "s3cr3t-值"})
    text = plan_gate_text(bound, gated=[], approval_digest=bound.approval_digest, expires_ms=0)
    assert "**Cannot be undone: `last`.**" in text
    assert "- undone if the run fails: `one`, `two`\n" in text
    assert "**undone by** `undrain` (**write**) · undone with `node` `${{ result.node }}`" in text
    assert "- `two` undone with `node` (2 lines" in text
    assert "s3cr3t" not in text
    asked = step_gate_text(
        bound, plan.step("one"), effect="write", parameters={"node": "web-1"}, item=None, approval_digest="a" * 64, expires_ms=0
    )
    assert "It **writes**. It is undone if the run fails after it, as described below." in asked
    by = "By `undrain` (**write**), without another approval, if the run fails or an approver requests it:"
    assert f"### How it is undone\n\n{by}\n\n- `node`: `${{{{ result.node }}}}`\n" in asked
    assert "- undone if the run fails, or if an approver requests it: `one`, `two`\n" in plan_gate_text(
        bound, gated=["one"], approval_digest=bound.approval_digest, expires_ms=0
    )
    shown = preview_text(preview_plan(bound.validated, inputs=bound.inputs, approval_digest=None, requires_approval=True))
    assert "   - undone by `undrain` (write)\n   - undone with `node`: `${{ result.node }}`\n" in shown
    assert format_plan(plan).count("   - undone by `undrain`\n") == 2


async def test_a_secret_of_a_rollback_is_handed_to_its_tool_and_kept_nowhere(
    store: PlanStore, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PLAN_ADAPTER_SECRET_POOL", "geheim-密码-42")
    plan = pool()
    plan.step("two").rollback = Rollback(tool_name="undrain", parameters={"node": "${{ secrets.POOL }}"})
    run = await arun_plan(plan, tools=world.tools, store=store, offline=True)
    assert world.put_back == ["geheim-密码-42", "web-1"]
    kept = [await store.run(run.id), *await store.attempts(run.id), *await store.receipts(run.id)]
    assert "geheim" not in "\n".join(map(repr, kept))
