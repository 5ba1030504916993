"""Tests of `finally` steps: they always run, know how the run ended, and survive a kill without loss or repetition."""

import asyncio
import os
import signal
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from prefect import get_client
from prefect.states import Cancelling

from plan_adapter import ExecutionPlan, PlanStore, ToolRegistry, tool
from plan_adapter.engine.connection import Server
from plan_adapter.errors import RunConflictError
from plan_adapter.execution.history import ResumeOptions
from plan_adapter.gates import CallbackApprover
from plan_adapter.model.approvals import ApprovalRequest, Resolution
from plan_adapter.model.plan import Rollback, Step
from plan_adapter.model.status import Outcome, RunReason
from plan_adapter.plans import format_plan
from plan_adapter.runs import acancel_run, aresolve_step, aresume_run, arun_plan
from plan_adapter.runs.operator_requests import choices_of
from plan_adapter.runs.resume import execute_resume
from plan_adapter.runs.run_session import RunRequest
from plan_adapter.store import PlanStatus, StepStatus
from plan_adapter.store.database import sqlite
from plan_adapter.store.database.columns import sqlite_text
from plan_adapter.text.plan_text import plan_gate_text
from plan_adapter.text.preview import preview_plan, preview_text
from plan_adapter.tools import ToolContext
from plan_adapter.validation import bind_inputs, validate
from tests.engine.calls import task_runs
from tests.processes import Program


class World:
    """The calls of a plan's tools, in order. Calls named in `broken` fail."""

    def __init__(self) -> None:
        self.done: list[str] = []
        self.keys: list[str] = []
        self.broken: set[str] = set()
        self.waiting = asyncio.Event()

        @tool(effect="read")
        def do(name: str) -> str:
            """Do something."""
            if name in self.broken:
                raise ValueError(f"{name} is broken")
            self.done.append(name)
            return f"{name} done"

        @tool(effect="write")
        def write(name: str, context: ToolContext) -> str:
            """Write something."""
            self.keys.append(context.idempotency_key)
            self.done.append(name)
            return f"{name} done"

        @tool(effect="read")
        async def wait() -> None:
            """Wait until the call is cancelled."""
            self.waiting.set()
            await asyncio.Event().wait()

        @tool(effect="write")
        async def hang() -> None:
            """Start a write and never return."""
            await asyncio.Event().wait()

        self.tools = ToolRegistry([do, write, wait, hang])


@pytest.fixture
def world() -> World:
    return World()


def plan_with(*steps: Step, finals: list[Step] | None = None) -> ExecutionPlan:
    """Return a plan with these steps, whose `finally` steps tidy up and report how the run ended."""
    tell = Step(id="tell", tool_name="do", description="Tell", depends_on=["tidy"], parameters={"name": REPORT})
    finals = [step("tidy"), tell] if finals is None else finals
    plan = ExecutionPlan(description="Work, then tidy up", steps=list(steps))
    plan.finally_ = finals
    plan.options.require_approval = False
    return plan


def step(name: str, tool_name: str = "do", **fields: Any) -> Step:
    parameters: dict[str, Any] = {"name": name} if tool_name in ("do", "write") else {}
    return Step(id=name, tool_name=tool_name, description=f"Do {name}", parameters=parameters, **fields)


REPORT = "${{ run.status + ': ' + run.failed_steps.join(', ') + run.rolled_back.map(name, ' undone ' + name).join('') }}"


async def test_finally_steps_run_last_in_order_and_know_how_the_run_ended(world: World, store: PlanStore) -> None:
    run = await arun_plan(plan_with(step("a"), step("b")), tools=world.tools, store=store, offline=True)
    assert (run.status, world.done) == (PlanStatus.COMPLETED, ["a", "b", "tidy", "completed: "])
    stored = await store.run(run.id)
    assert [(step.id, step.index, step.status) for step in stored.steps] == [
        (name, index, StepStatus.COMPLETED) for index, name in enumerate(["a", "b", "tidy", "tell"])
    ]
    assert (stored.step("tidy").result, stored.summary().total_steps) == ("tidy done", 4)


async def test_finally_steps_run_after_a_failure_and_can_use_step_results(world: World, store: PlanStore) -> None:
    world.broken.add("b")
    used = "${{ steps.a.result + ', b ' + steps.b.status }}"
    finals = [step("tidy"), Step(id="use", tool_name="do", description="Use", parameters={"name": used})]
    run = await arun_plan(plan_with(step("a"), step("b"), step("c"), finals=finals), tools=world.tools, store=store, offline=True)
    assert (run.status, run.reason) == (PlanStatus.PARTIAL, RunReason.STEP_FAILED)
    assert world.done == ["a", "tidy", "a done, b failed"]
    world.broken.add("a")
    failed = await arun_plan(plan_with(step("a")), tools=world.tools, store=store, offline=True)
    # Completed `finally` steps do not make the run partial.
    assert (failed.status, world.done[-2:]) == (PlanStatus.FAILED, ["tidy", "failed: a"])


async def test_finally_steps_run_after_a_cancellation(world: World, store: PlanStore) -> None:
    running = asyncio.ensure_future(arun_plan(plan_with(step("w", "wait")), tools=world.tools, store=store, offline=True))
    await world.waiting.wait()
    await acancel_run((await store.runs())[0].id, reason="不再需要", store=store)
    run = await running
    assert (run.status, run.message, world.done) == (PlanStatus.CANCELLED, "不再需要", ["tidy", "cancelled: w"])


async def test_finally_steps_run_when_the_process_is_interrupted(world: World, store: PlanStore) -> None:
    running = asyncio.ensure_future(arun_plan(plan_with(step("w", "wait")), tools=world.tools, store=store, offline=True))
    await world.waiting.wait()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert ((await store.runs())[0].status, world.done) == (PlanStatus.CANCELLED, ["tidy", "cancelled: w"])


async def test_finally_steps_run_after_the_total_timeout_with_their_own_timeout(world: World, store: PlanStore) -> None:
    plan = plan_with(step("w", "wait"))
    plan.options.total_timeout_ms = 1
    run = await arun_plan(plan, tools=world.tools, store=store, offline=True)
    assert (run.reason, world.done) == (RunReason.TIMED_OUT, ["tidy", "failed: w"])
    plan = plan_with(step("a"), finals=[step("hang", "hang"), step("next", depends_on=["hang"])])
    plan.options.finally_timeout_ms = 500
    run = await arun_plan(plan, tools=world.tools, store=store, offline=True)
    assert (run.status, run.reason, world.done[-1]) == (PlanStatus.PARTIAL, RunReason.UNKNOWN, "a")
    assert run.step("hang").error == "the timeout of the `finally` steps of 0.5 s was exceeded"
    assert (run.step("hang").outcome, run.step("next").status) == (Outcome.UNKNOWN, StepStatus.SKIPPED)
    await aresolve_step(run.id, "hang", "done", by="ana", store=store)
    again = await aresume_run(run.id, tools=world.tools, store=store, offline=True)
    assert (again.status, world.done[-1]) == (PlanStatus.COMPLETED, "next")


async def test_finally_steps_do_not_run_if_the_plan_is_rejected(world: World, store: PlanStore) -> None:
    plan = plan_with(step("a"))
    plan.options.require_approval = True
    run = await arun_plan(plan, tools=world.tools, store=store, offline=True, approver=CallbackApprover(lambda _: False))
    assert (run.reason, world.done) == (RunReason.REJECTED, [])


async def test_a_failed_finally_step_skips_only_its_dependents_and_is_reported(world: World, store: PlanStore) -> None:
    world.broken.add("tidy")
    finals = [step("tidy"), step("after", depends_on=["tidy"]), step("other")]
    run = await arun_plan(plan_with(step("a"), finals=finals), tools=world.tools, store=store, offline=True)
    assert (run.status, run.reason, world.done) == (PlanStatus.PARTIAL, RunReason.STEP_FAILED, ["a", "other"])
    assert "`tidy` failed: " in (run.message or "")
    world.broken |= {"a"}
    both = await arun_plan(plan_with(step("a"), finals=finals), tools=world.tools, store=store, offline=True)
    assert both.status is PlanStatus.FAILED
    assert "`a` failed: " in (both.message or "")
    assert "`tidy` failed: " in (both.message or "")
    world.broken.clear()
    again = await aresume_run(run.id, tools=world.tools, store=store, offline=True)  # only the steps that did not succeed
    assert (again.status, world.done[-2:]) == (PlanStatus.COMPLETED, ["tidy", "after"])


async def test_finally_steps_run_again_after_a_resume_that_ran_steps(world: World, store: PlanStore) -> None:
    world.broken.add("b")
    finals = [step("tidy", "write")]
    run = await arun_plan(plan_with(step("a"), step("b"), finals=finals), tools=world.tools, store=store, offline=True)
    world.broken.clear()
    again = await aresume_run(run.id, tools=world.tools, store=store, offline=True)
    assert (again.status, world.done) == (PlanStatus.COMPLETED, ["a", "tidy", "b", "tidy"])
    assert len(set(world.keys)) == 2  # a new call, not a repeat of the first one
    assert (await store.run(run.id)).step("tidy").carried is False


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[timedelta]:
    """How far the clock of SQLite stores is set back: the sum of this list."""
    steps = list[timedelta]()

    def set_back() -> str:
        return sqlite_text(datetime.now(UTC) - sum(steps, timedelta()))

    monkeypatch.setattr(sqlite, "sqlite_now", set_back)
    return steps


async def test_finally_steps_run_again_if_steps_ran_although_the_clock_was_set_back(
    world: World, clock: list[timedelta], tmp_path: Path
) -> None:
    world.broken.add("b")
    async with PlanStore(f"sqlite:///{tmp_path}/plans.db") as store:
        run = await arun_plan(plan_with(step("a"), step("b"), finals=[step("tidy", "write")]), tools=world.tools, store=store, offline=True)
        clock.append(timedelta(hours=1))
        world.broken.clear()
        again = await aresume_run(run.id, tools=world.tools, store=store, offline=True)
    assert (again.status, world.done) == (PlanStatus.COMPLETED, ["a", "tidy", "b", "tidy"])


async def test_a_finally_write_is_not_repeated_because_the_clock_was_set_back(world: World, clock: list[timedelta], tmp_path: Path) -> None:
    world.broken |= {"first", "last"}
    finals = [step("first"), step("tidy", "write", depends_on=["first"]), step("last")]
    async with PlanStore(f"sqlite:///{tmp_path}/plans.db") as store:
        run = await arun_plan(plan_with(step("a"), finals=finals), tools=world.tools, store=store, offline=True)
        clock.append(timedelta(hours=1))
        world.broken.remove("first")
        run = await aresume_run(run.id, tools=world.tools, store=store, offline=True)
        world.broken.clear()
        again = await aresume_run(run.id, tools=world.tools, store=store, offline=True)
    assert (run.status, again.status) == (PlanStatus.PARTIAL, PlanStatus.COMPLETED)
    assert world.done == ["a", "first", "tidy", "last"]


async def test_a_partial_resume_runs_finally_steps_and_can_skip_one(world: World, store: PlanStore) -> None:
    world.broken.add("b")
    run = await arun_plan(plan_with(step("a"), step("b"), step("c")), tools=world.tools, store=store, offline=True)
    world.broken.clear()
    recorded = await store.ledger.snapshot(run.id)
    choices = choices_of(run, validate(recorded.plan, world.tools), recorded.history, ResumeOptions(from_step="b"))
    kinds = [(name, choice.kind) for name, choice in choices.items()]
    assert kinds == [("a", "carried"), ("b", "run"), ("c", "left"), ("tidy", "run"), ("tell", "run")]
    asked = ResumeOptions(from_step="b", skipped={"tidy": "not today"})
    again = await execute_resume(run.id, tools=world.tools, run_request=RunRequest(), store=store, offline=True, options=asked)
    assert world.done[-2:] == ["b", "partial: "]
    assert (again.step("tidy").status, "not today" in (again.step("tidy").reason or "")) == (StepStatus.SKIPPED, True)


@pytest.mark.parametrize(("is_undone", "report"), [(True, "undone: c, a; left: "), (False, "undone: c; left: a")])
async def test_finally_steps_run_after_the_rollback_and_know_what_it_undid(
    world: World, store: PlanStore, is_undone: bool, report: str
) -> None:
    world.broken |= {"b"} if is_undone else {"b", "a undone"}
    undo = {name: Rollback(tool_name="do", parameters={"name": f"{name} undone"}) for name in "ac"}
    steps = [step("a", "write", rollback=undo["a"]), step("c", "write", rollback=undo["c"], depends_on=["a"])]
    how = "${{ 'undone: ' + run.rolled_back.join(', ') + '; left: ' + run.not_rolled_back.join(', ') }}"
    finals = [Step(id="tell", tool_name="do", description="Tell", parameters={"name": how})]
    plan = plan_with(*steps, step("b", depends_on=["c"]), finals=finals)
    run = await arun_plan(plan, tools=world.tools, store=store, offline=True)
    undone = ["c undone", "a undone"] if is_undone else ["c undone"]
    assert (run.status, world.done) == (PlanStatus.PARTIAL, ["a", "c", *undone, report])


async def test_finally_steps_run_after_a_requested_rollback(world: World, store: PlanStore) -> None:
    undo = Rollback(tool_name="do", parameters={"name": "a undone"})
    plan = plan_with(step("a", "write", rollback=undo), step("b", "wait"))
    running = asyncio.ensure_future(arun_plan(plan, tools=world.tools, store=store, offline=True))
    await world.waiting.wait()
    await acancel_run((await store.runs())[0].id, reason="stop", store=store)
    run = await running
    assert world.done == ["a", "tidy", "cancelled: b"]
    undone = await acancel_run(run.id, reason="undo", rollback=True, tools=world.tools, store=store, offline=True)
    assert (undone.status, world.done[3:]) == (PlanStatus.CANCELLED, ["a undone", "tidy", "cancelled: b undone a"])


async def test_a_finally_step_waits_at_its_gate(world: World, store: PlanStore) -> None:
    asked = list[str]()

    def answer(request: ApprovalRequest) -> bool:
        asked.append(request.step_id or "the plan")
        return True

    plan = plan_with(step("a"), finals=[step("tidy", "write", requires_approval=True)])
    run = await arun_plan(plan, tools=world.tools, store=store, offline=True, approver=CallbackApprover(answer))
    assert (run.status, asked, world.done) == (PlanStatus.COMPLETED, ["tidy"], ["a", "tidy"])


async def test_an_unanswered_gate_of_a_finally_step_does_not_block_the_end_of_the_run(world: World, store: PlanStore) -> None:
    async def answer(_: ApprovalRequest) -> bool:
        await asyncio.Event().wait()
        return True

    for main in ("wait", "do"):
        world.waiting.clear()
        plan = plan_with(step("w", main), finals=[step("tidy", "write", requires_approval=True)])
        plan.options.finally_timeout_ms = 500
        running = asyncio.ensure_future(arun_plan(plan, tools=world.tools, store=store, offline=True, approver=CallbackApprover(answer)))
        if main == "wait":
            await world.waiting.wait()
            await acancel_run((await store.runs())[0].id, reason="stop", store=store)
        run = await running
        assert (run.step("tidy").status, "timeout of the `finally` steps" in (run.message or "")) == (StepStatus.SKIPPED, True)
        ended = (PlanStatus.CANCELLED, RunReason.CANCELLED) if main == "wait" else (PlanStatus.PARTIAL, RunReason.TIMED_OUT)
        assert (run.status, run.reason) == ended


async def test_for_each_and_conditions_work_in_finally_steps(world: World, store: PlanStore) -> None:
    many = step("many", for_each="${{ ['x', 'y'] }}")
    many.parameters = {"name": "${{ item }}"}
    finals = [many, step("never", when="${{ run.status == 'failed' }}")]
    run = await arun_plan(plan_with(step("a"), finals=finals), tools=world.tools, store=store, offline=True)
    assert (run.status, world.done) == (PlanStatus.COMPLETED, ["a", "x", "y"])
    assert (run.step("many").result, run.step("never").status) == (["x done", "y done"], StepStatus.SKIPPED)


def test_finally_steps_are_shown_in_the_preview_the_gate_and_the_plan() -> None:
    plan = plan_with(step("a"), step("b"))
    bound = bind_inputs(validate(plan, World().tools))
    preview = preview_plan(bound.validated, inputs={}, approval_digest=bound.approval_digest, requires_approval=True)
    assert preview.waves == (("a", "b"), ("tidy",), ("tell",))
    assert preview_text(preview).count("always runs, after all other steps have ended") == 2
    gate = plan_gate_text(bound, gated=(), approval_digest=bound.approval_digest, expires_ms=0)
    assert "- **3. tidy** (always at the end): `do`" in gate
    assert "s1 --> s3" in gate
    assert "s2 --> s3" in gate
    assert format_plan(plan).count("always runs, after all other steps have ended") == 2


KILLED = """\
import os, sys, time
from pathlib import Path
from plan_adapter import ExecutionPlan, ToolRegistry, run_plan, tool
from plan_adapter.model.plan import Step

world = Path(sys.argv[1])

@tool(effect="write")
def note(name: str) -> str:
    "Note a name."
    with (world / "noted").open("a") as file:
        file.write(name + chr(10))
    return name

@tool(effect="idempotent_write")
def hold() -> str:
    "Never come back."
    (world / "begun").write_text("yes")
    time.sleep(600)
    return ""

plan = ExecutionPlan(
    description="Note, then tidy up",
    steps=[Step(id="a", tool_name="note", description="Note", parameters={"name": "a"})],
    finally_=[
        Step(id="tidy", tool_name="note", description="Tidy", parameters={"name": "tidy"}),
        Step(id="hold", tool_name="hold", description="Hold", depends_on=["tidy"]),
        Step(id="tell", tool_name="note", description="Tell", depends_on=["hold"], parameters={"name": "tell"}),
    ],
)
plan.options.require_approval = False
run_plan(plan, tools=ToolRegistry([note, hold]), offline=True)
"""


async def test_a_kill_between_finally_steps_loses_and_repeats_nothing(tmp_path: Path, store: PlanStore) -> None:
    process = Program(KILLED, tmp_path)
    while not (tmp_path / "begun").exists():
        assert process.poll() is None, "the run ended before it held"
        time.sleep(0.01)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()

    @tool(effect="write")
    def note(name: str) -> str:
        """Note a name."""
        with (tmp_path / "noted").open("a") as file:
            file.write(f"{name}\n")
        return name

    @tool(effect="idempotent_write")
    def hold() -> str:
        """Come back."""
        return ""

    (left,) = await store.runs()
    assert (left.status, left.reason) == (PlanStatus.EXECUTING, RunReason.INTERRUPTED)
    run = await aresume_run(left.id, tools=ToolRegistry([note, hold]), store=store, offline=True)
    assert (run.status, (tmp_path / "noted").read_text().split()) == (PlanStatus.COMPLETED, ["a", "tidy", "tell"])
    assert (run.step("tidy").carried, run.step("tell").carried) == (True, False)


async def test_finally_steps_are_task_runs_of_the_flow_run(world: World, store: PlanStore, prefect_server: Server) -> None:
    world.broken.add("b")
    run = await arun_plan(plan_with(step("a"), step("b")), tools=world.tools, store=store)
    by_name = await task_runs(UUID(run.flow_run_id), ["a", "b", "tidy", "tell"])
    states = {name: task_run.state_name for name, task_run in by_name.items()}
    assert states == {"a": "Completed", "b": "Failed", "tidy": "Completed", "tell": "Completed"}
    assert world.done == ["a", "tidy", "partial: b"]


async def test_a_cancellation_in_prefect_does_not_stop_finally_steps(world: World, store: PlanStore, prefect_server: Server) -> None:
    running = asyncio.create_task(arun_plan(plan_with(step("w", "wait")), tools=world.tools, store=store))
    await world.waiting.wait()
    flow_run_id = UUID((await store.runs())[0].flow_run_id)
    async with get_client() as client:
        await client.set_flow_run_state(flow_run_id, Cancelling(message="停下"), force=True)
        run = await running
        assert (run.status, run.message, world.done) == (PlanStatus.CANCELLED, "停下", ["tidy", "cancelled: w"])
        found = await task_runs(flow_run_id, ["w", "tidy", "tell"])
        assert found["tell"].state_name == "Completed"
        assert (await client.read_flow_run(flow_run_id)).state_name == "Cancelled"


KILLED_THE_SECOND_TIME = """\
import sys, time
from pathlib import Path
from plan_adapter import ExecutionPlan, ToolRegistry, resume_run, run_plan, tool
from plan_adapter.model.plan import Step

world, run_id = Path(sys.argv[1]), sys.argv[2]

@tool(effect="read")
def look() -> str:
    "Look, which fails the first time."
    if not run_id:
        raise ValueError("nothing to see")
    return ""

@tool(effect="write")
def note(name: str) -> str:
    "Note a name, and the second time never come back from the last one."
    with (world / "noted").open("a") as file:
        file.write(name + chr(10))
    if run_id and name == "last":
        (world / "begun").write_text("yes")
        time.sleep(600)
    return name

plan = ExecutionPlan(
    description="Look, then tidy up",
    steps=[Step(id="look", tool_name="look", description="Look")],
    finally_=[
        Step(id="each", tool_name="note", description="Tidy", for_each="${{ ['first', 'last'] }}", parameters={"name": "${{ item }}"})
        if sys.argv[3] == "item" else
        Step(id="each", tool_name="note", description="Tidy", parameters={"name": "last"}),
    ],
)
plan.options.require_approval, plan.options.allow_parallel = False, False
tools = ToolRegistry([look, note])
resume_run(run_id, tools=tools, offline=True) if run_id else run_plan(plan, tools=tools, offline=True)
"""


@pytest.mark.parametrize("resolution", ["done", "again", "abort"])
@pytest.mark.parametrize("kind", ["step", "item"])
async def test_a_finally_write_killed_the_second_time_is_unknown(
    kind: str, resolution: Resolution, tmp_path: Path, store: PlanStore
) -> None:
    assert Program(KILLED_THE_SECOND_TIME, tmp_path, "", kind).wait() == 0
    run_id = (await store.runs())[0].id
    process = Program(KILLED_THE_SECOND_TIME, tmp_path, run_id, kind)
    while not (tmp_path / "begun").exists():
        assert process.poll() is None, "the run ended before it held"
        time.sleep(0.01)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()

    noted, item = (["first", "last"] * 2, 1) if kind == "item" else (["last"] * 2, None)
    left = await store.run(run_id)
    assert (left.reason, left.step("each").status, left.step("each").outcome) == (
        RunReason.INTERRUPTED,
        StepStatus.RUNNING,
        Outcome.UNKNOWN,
    )
    assert [(attempt.step_id, attempt.item) for attempt in await store.outcomes.unknown(run_id)] == [("each", item)]

    tools = _noting_tools(tmp_path)
    waiting = await aresume_run(run_id, tools=tools, store=store, offline=True)
    assert (waiting.reason, waiting.step("each").outcome) == (RunReason.UNKNOWN, Outcome.UNKNOWN)
    assert (tmp_path / "noted").read_text().split() == noted  # nothing was repeated
    await aresolve_step(run_id, "each", resolution, by="ana", item=item, store=store)
    if resolution == "abort":
        with pytest.raises(RunConflictError, match="ended with `abort`, and the outcome of `each"):
            await aresume_run(run_id, tools=tools, store=store, offline=True)
        await aresolve_step(run_id, "each", "again", by="ana", item=item, store=store)
    run = await aresume_run(run_id, tools=tools, store=store, offline=True)
    assert run.status is PlanStatus.COMPLETED
    repeated = ["last"] if resolution != "done" else []
    assert (tmp_path / "noted").read_text().split() == [*noted, *repeated]
    numbers = [attempt.number for attempt in await store.attempts(run_id) if attempt.step_id == "each" and attempt.item == item]
    assert numbers == {"done": [1, 2], "again": [1, 2, 3], "abort": [1, 2, 3, 4]}[resolution]  # `again` after `abort` is an attempt by hand


def _noting_tools(world: Path) -> ToolRegistry:
    @tool(effect="read")
    def look() -> str:
        """Look."""
        return ""

    @tool(effect="write")
    def note(name: str) -> str:
        """Note a name."""
        with (world / "noted").open("a") as file:
            file.write(f"{name}\n")
        return name

    return ToolRegistry([look, note])


async def test_a_finally_step_that_failed_the_second_time_is_not_shown_as_completed(world: World, store: PlanStore) -> None:
    world.broken.add("b")
    plan = plan_with(step("a"), step("b"), finals=[step("tidy")])
    run = await arun_plan(plan, tools=world.tools, store=store, offline=True)
    assert run.step("tidy").status is StepStatus.COMPLETED
    world.broken = {"tidy"}
    again = await aresume_run(run.id, tools=world.tools, store=store, offline=True)
    assert (again.status, (await store.run(run.id)).step("tidy").status) == (PlanStatus.PARTIAL, StepStatus.FAILED)
    done = await aresolve_step(run.id, "tidy", "done", by="ana", note="by hand", store=store)
    assert done.step("tidy").status is StepStatus.COMPLETED
    assert (await aresume_run(run.id, tools=world.tools, store=store, offline=True)).status is PlanStatus.COMPLETED
    assert world.done == ["a", "tidy", "b"]
