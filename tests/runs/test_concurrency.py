"""Tests of when an approved run may start: in its run window, and once no other run has its concurrency key."""

import asyncio
import re
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from plan_adapter import ExecutionPlan, PlanStore, ToolRegistry, tool
from plan_adapter.cli.approval_state import states_of
from plan_adapter.errors import InvalidPlanError, RunConflictError
from plan_adapter.gates import CallbackApprover
from plan_adapter.local.settings import Settings
from plan_adapter.model.approvals import ApprovalRequest
from plan_adapter.model.options import Concurrency, Input, RunWindow
from plan_adapter.model.plan import Step
from plan_adapter.model.record import PlanRun
from plan_adapter.model.run_window import next_opening
from plan_adapter.model.status import RunReason
from plan_adapter.plans import find_problems
from plan_adapter.runs import acancel_run, aresume_run, arun_plan
from plan_adapter.runs.run_session import RunRequest
from plan_adapter.runs.start import create_run, execute_plan
from plan_adapter.store import PlanStatus, StepStatus
from plan_adapter.validation import bind_inputs, validate
from tests.store.conftest import on_both_databases


class Node:
    """A node that only one run at a time may work on."""

    def __init__(self) -> None:
        self.log: list[str] = []
        self.began = asyncio.Event()
        self.may_finish = asyncio.Event()

        @tool(effect="write")
        async def work(name: str) -> None:
            """Work until the test allows it to finish."""
            self.log.append(f"{name} began")
            self.began.set()
            await self.may_finish.wait()
            self.log.append(f"{name} ended")

        @tool(effect="write")
        def tidy() -> None:
            """Clean up."""
            self.log.append("tidied")

        self.tools = ToolRegistry([work, tidy])


@pytest.fixture
def node() -> Node:
    return Node()


def plan(name: str, when_busy: Any = "refuse", **fields: Any) -> ExecutionPlan:
    """Return a plan that works on a host and cleans up."""
    made = ExecutionPlan(
        name=name,
        description="Work on a host",
        inputs={"host": Input(default="web-1")},
        concurrency=Concurrency(key="${{ inputs.host }}", when_busy=when_busy),
        steps=[Step(id="work", tool_name="work", parameters={"name": name}, **fields)],
    )
    made.finally_ = [Step(id="tidy", tool_name="tidy")]
    made.options.require_approval = False
    return made


def begin(what: ExecutionPlan, node: Node, store: PlanStore, **inputs: Any) -> asyncio.Task[PlanRun]:
    return asyncio.create_task(arun_plan(what, tools=node.tools, inputs=inputs, store=store, offline=True))


async def waiting(store: PlanStore, count: int) -> list[PlanRun]:
    """Return the runs that wait for a key, oldest first, as soon as there are `count`."""
    while True:
        runs = [run for run in await store.runs() if (run.message or "").startswith("waits: ")]
        if len(runs) == count:
            return runs[::-1]
        await asyncio.sleep(0.01)


async def test_a_second_run_is_refused_and_names_the_first(node: Node, store: PlanStore) -> None:
    first = begin(plan("一"), node, store)
    await node.began.wait()
    (first_run,) = await store.runs()
    with pytest.raises(RunConflictError, match=rf"run {first_run.id} of `一` has the concurrency key `web-1`"):
        await begin(plan("二"), node, store)
    assert len(await store.runs()) == 1
    node.may_finish.set()
    assert (await first).status is PlanStatus.COMPLETED
    elsewhere = await begin(plan("二"), node, store, host="web-2")
    again = await begin(plan("二"), node, store)
    assert (elsewhere.status, again.status) == (PlanStatus.COMPLETED, PlanStatus.COMPLETED)


async def test_a_run_approved_after_its_key_was_taken_is_cancelled_without_cleanup(node: Node, store: PlanStore) -> None:
    first: list[asyncio.Task[PlanRun]] = []

    async def answer(_: ApprovalRequest) -> bool:
        first.append(begin(plan("first"), node, store))
        await node.began.wait()
        return True

    late = plan("late")
    late.options.require_approval = True
    run = await arun_plan(late, tools=node.tools, store=store, offline=True, approver=CallbackApprover(answer))
    assert (run.status, run.reason) == (PlanStatus.CANCELLED, RunReason.CANCELLED)
    assert "has the concurrency key `web-1`" in (run.message or "")
    assert [step.status for step in run.steps] == [StepStatus.SKIPPED, StepStatus.SKIPPED]
    assert node.log == ["first began"]
    node.may_finish.set()
    assert (await first[0]).status is PlanStatus.COMPLETED


@on_both_databases
async def test_queued_runs_start_in_order_and_can_be_cancelled(node: Node, any_store: PlanStore) -> None:
    runs = [begin(plan("a", "queue"), node, any_store)]
    await node.began.wait()
    for number, name in enumerate("bcd", start=1):
        runs.append(begin(plan(name, "queue"), node, any_store))
        await waiting(any_store, number)
    _, third, _ = await waiting(any_store, 3)
    shown = await states_of(await any_store.runs(), any_store, Settings())
    assert re.fullmatch(r"Running \(waits: run \S+ of `a` has the concurrency key `web-1`\)", shown[third.id].text)
    await acancel_run(third.id, reason="不需要了", store=any_store)
    assert ((await runs[2]).status, (await runs[2]).message) == (PlanStatus.CANCELLED, "不需要了")
    node.may_finish.set()
    ended = [await run for run in (runs[0], runs[1], runs[3])]
    assert {run.status for run in ended} == {PlanStatus.COMPLETED}
    assert {run.message for run in ended} == {None}
    assert [line for line in node.log if line != "tidied"] == [f"{name} {how}" for name in "abd" for how in ("began", "ended")]


async def test_cancel_older_cancels_older_runs_of_the_same_plan(node: Node, store: PlanStore) -> None:
    older = begin(plan("deploy", "cancel_older"), node, store)
    await node.began.wait()
    newer = begin(plan("deploy", "cancel_older"), node, store)
    ended = await older
    assert ended.status is PlanStatus.CANCELLED
    assert "takes its place" in (ended.message or "")
    node.may_finish.set()
    assert (await newer).status is PlanStatus.COMPLETED


async def test_cancel_older_waits_for_runs_of_other_plans(node: Node, store: PlanStore) -> None:
    older = begin(plan("restart"), node, store)
    await node.began.wait()
    newer = begin(plan("deploy", "cancel_older"), node, store)
    await waiting(store, 1)
    node.may_finish.set()
    assert ((await older).status, (await newer).status) == (PlanStatus.COMPLETED, PlanStatus.COMPLETED)


async def test_a_run_waiting_at_a_gate_without_a_process_keeps_its_key(node: Node, store: PlanStore) -> None:
    node.may_finish.set()
    gated = plan("gated")
    gated.steps.append(Step(id="more", tool_name="work", parameters={"name": "more"}, requires_approval=True, depends_on=["work"]))
    bound = bind_inputs(validate(gated, node.tools))
    left = await execute_plan(bound, run_request=RunRequest(waits=False), store=store, offline=True, record_pending=True)
    assert left.status is PlanStatus.PENDING_APPROVAL
    with pytest.raises(RunConflictError, match=left.id):
        await begin(plan("other"), node, store)
    await acancel_run(left.id, reason="enough", store=store)
    assert (await begin(plan("other"), node, store)).status is PlanStatus.COMPLETED


async def test_a_failed_run_needs_its_key_again_when_it_is_resumed(node: Node, store: PlanStore) -> None:
    bad = plan("bad")
    bad.steps[0].done_when = "${{ result != null }}"
    node.may_finish.set()
    failed = await begin(bad, node, store)
    assert failed.status is PlanStatus.FAILED
    node.may_finish.clear()
    node.began.clear()
    other = begin(plan("other"), node, store)
    await node.began.wait()
    resumed = await aresume_run(failed.id, tools=node.tools, store=store, offline=True)
    assert (resumed.status, "has the concurrency key" in (resumed.message or "")) == (PlanStatus.CANCELLED, True)
    node.may_finish.set()
    assert (await other).status is PlanStatus.COMPLETED


async def test_a_queued_run_whose_process_died_does_not_block_others(node: Node, store: PlanStore) -> None:
    bound = bind_inputs(validate(plan("dead", "queue"), node.tools))
    dead, alive = [await create_run(bound, store, RunRequest()) for _ in range(2)]
    first = begin(plan("first"), node, store)
    await node.began.wait()
    await store.ledger.claim(dead)
    assert [run_before.name for run_before in await store.ledger.acquire_key(dead, "web-1")] == ["first"]
    await store.ledger.release(dead.id)
    await store.ledger.claim(alive)
    assert [run_before.name for run_before in await store.ledger.acquire_key(alive, "web-1")] == ["first"]
    node.may_finish.set()
    await first
    assert await store.ledger.acquire_key(alive, "web-1") == []


async def test_inputs_that_give_an_empty_key_are_refused(node: Node, store: PlanStore) -> None:
    with pytest.raises(InvalidPlanError, match="the inputs give no key"):
        await begin(plan("x"), node, store, host=" ")
    assert await store.runs() == []


@on_both_databases
async def test_runs_started_at_once_hold_the_key_one_at_a_time(node: Node, any_store: PlanStore) -> None:
    node.may_finish.set()
    await asyncio.gather(*(begin(plan(str(number), "queue"), node, any_store) for number in range(6)))
    began = [line.split()[0] for line in node.log if line != "tidied"]
    assert began[::2] == began[1::2]  # each run ended before the next one began


def closed_now(**fields: Any) -> RunWindow:
    """Return a run window of one minute that opens in twelve hours."""
    later = datetime.now(UTC) + timedelta(hours=12)
    return RunWindow(cron=f"{later.minute} {later.hour} * * *", duration_ms=60_000, **fields)


async def test_a_run_outside_its_run_window_is_refused(node: Node, store: PlanStore) -> None:
    node.may_finish.set()
    late = plan("late")
    late.options.run_window = closed_now(outside="refuse")
    with pytest.raises(RunConflictError, match="the run window is closed, and opens at "):
        await begin(late, node, store)
    late.options.run_window = RunWindow(cron="* * * * *", duration_ms=120_000, outside="refuse")
    assert (await begin(late, node, store)).status is PlanStatus.COMPLETED


async def test_a_run_outside_its_run_window_waits_and_can_be_cancelled(node: Node, store: PlanStore) -> None:
    late = plan("late")
    late.options.run_window = closed_now()
    run = begin(late, node, store)
    (waits,) = await waiting(store, 1)
    assert "opens at" in (waits.message or "")
    await acancel_run(waits.id, reason="morgen", store=store)
    assert ((await run).status, (await run).message, node.log) == (PlanStatus.CANCELLED, "morgen", [])


@pytest.mark.parametrize(
    ("at", "opens"),
    [
        ("2026-06-05T20:30+00:00", None),  # Friday, 22:30 in Berlin
        ("2026-06-05T23:59+00:00", None),
        ("2026-06-06T00:00+00:00", "2026-06-08T22:00+02:00"),  # the window is over, and the next one opens on Monday
        ("2026-06-05T19:59+00:00", "2026-06-05T22:00+02:00"),
        ("2026-06-05T20:00+00:00", None),
    ],
)
def test_a_run_window_opens_in_its_time_zone(at: str, opens: str | None) -> None:
    window = RunWindow(cron="0 22 * * 1-5", duration_ms=4 * 3_600_000, time_zone="Europe/Berlin")
    assert next_opening(window, datetime.fromisoformat(at)) == (None if opens is None else datetime.fromisoformat(opens))


@pytest.mark.parametrize(
    ("fields", "at"),
    [({"cron": "often"}, "cron"), ({"cron": "0 0 31 2 *"}, "cron"), ({"cron": "* * * * *", "time_zone": "Mars/Olympus"}, "time_zone")],
)
def test_an_invalid_run_window_is_reported_at_its_field(node: Node, fields: dict[str, str], at: str) -> None:
    wrong = plan("wrong")
    wrong.options.run_window = RunWindow(duration_ms=60_000, **fields)
    (problem,) = find_problems(wrong, node.tools)
    assert (problem.code, problem.at) == ("bad-run-window", f"options.run_window.{at}")
