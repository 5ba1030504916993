"""Tests of reconciling: it finds what dead processes left, corrects it, and names a command if a person must decide."""

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from uuid import UUID

import pytest
import yaml
from prefect import get_client
from prefect.client.schemas.objects import State
from prefect.client.schemas.responses import SetStateStatus
from prefect.states import Cancelled, Crashed, Pending, Running, Scheduled

from plan_adapter import ExecutionPlan, PlanRun, PlanStore, ToolRegistry, flows, tool
from plan_adapter.cli.app import main
from plan_adapter.engine.connection import Server
from plan_adapter.engine.gate_forms import answer_form, lacks_form, open_forms
from plan_adapter.engine.states import unattended_state
from plan_adapter.gates import CallbackApprover
from plan_adapter.local.settings import Settings
from plan_adapter.model.approvals import Answer, ApprovalRequest, Decision
from plan_adapter.model.host_process import HostProcess
from plan_adapter.model.plan import new_id
from plan_adapter.model.record import Attempt
from plan_adapter.model.status import RunReason
from plan_adapter.runs import arun_plan
from plan_adapter.runs import reconcile as reconciling
from plan_adapter.runs.reconcile import reconcile
from plan_adapter.runs.resume import execute_resume
from plan_adapter.runs.run_session import RunRequest
from plan_adapter.runs.start import execute_plan
from plan_adapter.store import PlanStatus, leases
from plan_adapter.store.database import tables
from plan_adapter.validation import bind_inputs, validate
from tests.runs.left_behind import let_executor_die
from tests.sql import Sql
from tests.store.builders import an_answer, begun, created, dead_owner
from tests.store.conftest import store_at

LeaveBehind = Callable[..., Awaitable[PlanRun]]


@tool(effect="read")
def look() -> str:
    """Look."""
    return "seen"


def a_plan() -> ExecutionPlan:
    plan = ExecutionPlan(name="夜间检查", description="Look once")
    plan.options.require_approval = False
    plan.add_step("look", "Look", id="look")
    return plan


@pytest.fixture
def leave_behind(store: PlanStore, sql: Sql) -> LeaveBehind:
    """Return a function that makes a run whose process died, optionally in the middle of a write."""

    async def leave(*, offline: bool = True, in_write: bool = False) -> PlanRun:
        run = await arun_plan(a_plan(), tools=ToolRegistry([look]), store=store, offline=offline)
        await let_executor_die(run, sql)
        if in_write:
            recorder = await store.ledger.recorder(run)
            await recorder.intent(
                Attempt(new_id(), run.id, "restart", None, 1, "bash", "write", {}, "k" * 64, recorder.now()),
            )
        return await store.run(run.id)

    return leave


async def test_an_interrupted_run_is_reported_with_its_resume_command(store: PlanStore, leave_behind: LeaveBehind) -> None:
    run = await leave_behind()
    [finding] = await reconcile(store, with_prefect=False)
    assert (finding.kind, finding.run_id, finding.name, finding.is_corrected) == ("interrupted", run.id, "夜间检查", False)
    assert finding.command == f"plan resume {run.id} --offline"


async def test_an_interrupted_write_is_reported_with_its_resolve_command(store: PlanStore, leave_behind: LeaveBehind) -> None:
    run = await leave_behind(in_write=True)
    [finding] = await reconcile(store, with_prefect=False)
    assert "the outcome of `restart` is unknown" in finding.message
    assert finding.command == f"plan resolve {run.id} restart done|again|abort"


async def test_a_completed_run_gives_no_findings(store: PlanStore) -> None:
    await arun_plan(a_plan(), tools=ToolRegistry([look]), store=store, offline=True)
    assert await reconcile(store, with_prefect=False) == []


async def test_the_command_prints_each_finding(store: PlanStore, leave_behind: LeaveBehind, capsys: pytest.CaptureFixture[str]) -> None:
    run = await leave_behind()
    assert await asyncio.to_thread(main, ["reconcile", "--offline", "--json"]) == 0
    [finding] = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert (finding["run_id"], finding["kind"]) == (run.id, "interrupted")


async def state_of(run: PlanRun) -> State:
    async with get_client() as client:
        state = (await client.read_flow_run(UUID(run.flow_run_id or ""))).state
    assert state is not None
    return state


async def show(run: PlanRun, state: State) -> None:
    async with get_client() as client:
        await client.set_flow_run_state(UUID(run.flow_run_id or ""), state, force=True)


@pytest.fixture(params=["sqlite", "postgresql"])
def store_url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """Yield the URL of an empty store with the newest schema."""
    yield from store_at(request, tmp_path)


async def _set_lease(sql: Sql, run: PlanRun, owner: HostProcess, until: datetime) -> None:
    held = tables.leases.update().where(tables.leases.c.run_id == run.id).values(owner=str(owner), until=until)
    await sql.change(held)


@pytest.mark.parametrize("other", ["another boot of this host", "another host"])
async def test_a_run_is_shown_as_interrupted_within_a_minute_after_its_host_died(store_url: str, other: str) -> None:
    host, _, rest = HostProcess.this().place.partition("/")
    place = f"{host}/0000-another-boot/x" if other == "another boot of this host" else f"elsewhere/{rest}"
    async with PlanStore(store_url) as store:
        run = await begun(store)
        lease = await Sql(store_url).run(lambda connection: leases.of_run(connection, run.id))
        assert lease is not None
        left = (lease["until"] - await store.now()).total_seconds()  # by the database's clock, from the last sign of life
        assert 0 < left + leases.GRACE_SECONDS <= 60
        grace = timedelta(seconds=leases.GRACE_SECONDS)
        await _set_lease(Sql(store_url), run, HostProcess(place, 1, "0"), await store.now() - grace + timedelta(seconds=10))
        assert (await store.run(run.id)).reason is None
        assert await reconcile(store, with_prefect=False) == []
        await _set_lease(Sql(store_url), run, HostProcess(place, 1, "0"), await store.now() - grace)
        assert (await store.run(run.id)).reason is RunReason.INTERRUPTED
        assert [shown.reason for shown in await store.runs()] == [RunReason.INTERRUPTED]
        [finding] = await reconcile(store, with_prefect=False)
        assert (finding.kind, finding.run_id, finding.command) == ("interrupted", run.id, f"plan resume {run.id} --offline")


async def _answered(store: PlanStore, decision: Decision) -> PlanRun:
    """Return a run whose gate was answered while no process waited."""
    plan = a_plan()
    plan.options.require_approval = True
    bound = bind_inputs(validate(plan, ToolRegistry([look])))
    run = await execute_plan(bound, run_request=RunRequest(), store=store, offline=True, record_pending=True)
    [gate] = await store.gates.find(run_id=run.id)
    await store.gates.answer(gate.id, an_answer(gate, decision=decision, by="安娜"))
    return run


async def test_a_run_approved_while_no_process_waited_is_reported(store: PlanStore) -> None:
    run = await _answered(store, "approve")
    [finding] = await reconcile(store, with_prefect=False)
    assert (finding.kind, finding.message, finding.command) == (
        "answered", "安娜 approved it while no process waited", f"plan resume {run.id} --offline",
    )  # fmt: skip


async def test_a_run_rejected_while_no_process_waited_ends_as_rejected(store: PlanStore, monkeypatch: pytest.MonkeyPatch) -> None:
    run = await _answered(store, "reject")
    assert await reconcile(store, with_prefect=False) == []  # a waiting process may be about to end it
    monkeypatch.setattr(reconciling, "REACTION", timedelta(0))
    [finding] = await reconcile(store, with_prefect=False)
    assert (finding.kind, finding.is_corrected) == ("answered", True)
    ended = await store.run(run.id)
    assert (ended.status, ended.reason, ended.message) == (PlanStatus.CANCELLED, RunReason.REJECTED, "rejected by 安娜")
    assert (await store.verify(run.id)).ok
    assert await reconcile(store, with_prefect=False) == []


async def test_a_run_with_requested_changes_is_reported(store: PlanStore) -> None:
    run = await _answered(store, "request_changes")
    [finding] = await reconcile(store, with_prefect=False)
    assert (finding.kind, finding.is_corrected, finding.command) == ("answered", False, f"plan revise {run.id} FILE")


async def test_a_completed_flow_run_with_missing_receipts_becomes_interrupted(
    prefect_server: Server, store: PlanStore, leave_behind: LeaveBehind
) -> None:
    run = await leave_behind(offline=False, in_write=True)
    assert (await state_of(run)).is_completed()
    found = await reconcile(store, with_prefect=True)
    assert [(finding.kind, finding.is_corrected) for finding in found] == [("interrupted", False), ("shown", True)]
    assert (await state_of(run)).name == "Interrupted"
    assert "restart" in ((await state_of(run)).message or "")


@pytest.mark.parametrize("state", [Crashed(message="its heartbeat was missed"), unattended_state("r")], ids=lambda state: state.name)
async def test_a_run_with_a_living_owner_is_shown_as_running(state: State, prefect_server: Server, store: PlanStore) -> None:
    started, may_finish = asyncio.Event(), asyncio.Event()

    @tool(effect="read")
    async def wait() -> None:
        """Wait until the test allows it to finish."""
        started.set()
        await may_finish.wait()

    plan = a_plan()
    plan.steps[0].tool_name = "wait"
    running = asyncio.create_task(arun_plan(plan, tools=ToolRegistry([wait]), store=store))
    await started.wait()
    run = (await store.runs())[0]
    await show(run, state)
    [finding] = await reconcile(store, with_prefect=True)
    assert (finding.kind, finding.is_corrected) == ("shown", True)
    assert finding.message == f"Prefect showed {state.name}, but it is executed by a running process"
    assert (await state_of(run)).is_running()
    assert await reconcile(store, with_prefect=True) == []
    may_finish.set()
    assert (await running).status is PlanStatus.COMPLETED
    assert (await state_of(run)).is_completed()


async def test_prefect_gets_the_real_state_of_runs(prefect_server: Server, store: PlanStore, leave_behind: LeaveBehind) -> None:
    ended = await arun_plan(a_plan(), tools=ToolRegistry([look]), store=store)
    await show(ended, Cancelled(message="somebody set it"))
    interrupted = await leave_behind(offline=False)
    await show(interrupted, Running())

    found = await reconcile(store, with_prefect=True)

    assert [(finding.kind, finding.run_id, finding.is_corrected) for finding in found] == [
        ("interrupted", interrupted.id, False),
        ("shown", interrupted.id, True),
        ("shown", ended.id, True),
    ]
    assert (await state_of(ended)).is_completed()
    shown = await state_of(interrupted)
    assert (shown.is_crashed(), shown.name) == (True, "Interrupted")
    assert f"plan resume {interrupted.id}" in (shown.message or "")
    assert [finding.kind for finding in await reconcile(store, with_prefect=True)] == ["interrupted"]


@pytest.fixture
def settled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let reconciling act on a state in Prefect at once."""
    monkeypatch.setattr(reconciling, "REACTION", timedelta(0))


async def waiting(store: PlanStore, *, at_step: bool = False) -> PlanRun:
    """Return a run that waits at the gate of its plan, or of its step, while no process executes it."""
    plan = a_plan()
    plan.options.require_approval, plan.steps[0].requires_approval = not at_step, at_step
    bound = bind_inputs(validate(plan, ToolRegistry([look])))
    run = await execute_plan(bound, run_request=RunRequest(waits=False), store=store, record_pending=True)
    assert (run.status, (await state_of(run)).name) == (PlanStatus.PENDING_APPROVAL, "Waiting")
    return run


async def answer_in_form(run: PlanRun, decision: Decision = "approve") -> None:
    (form,) = [form for form in await open_forms() if form.flow_run_id == run.flow_run_id]
    await answer_form(form, Answer(decision, "安娜", digest=form.approval_digest[:12]))
    assert (await state_of(run)).is_running()  # and nothing runs


# Scheduled for tomorrow: the server renames a flow run that is 15 seconds overdue to Late.
TOMORROW = datetime.now(UTC) + timedelta(days=1)


@pytest.mark.parametrize("state", [Running(), Scheduled(scheduled_time=TOMORROW), Pending(), Crashed()], ids=lambda state: state.name)
async def test_a_waiting_run_is_paused_again_with_its_form(state: State, prefect_server: Server, store: PlanStore, settled: None) -> None:
    run = await waiting(store)
    assert await reconcile(store, with_prefect=True) == []
    await show(run, state)
    (gate,) = await store.gates.find(run_id=run.id)
    assert await lacks_form(gate)

    (finding,) = await reconcile(store, with_prefect=True)

    assert (finding.kind, finding.is_corrected) == ("shown", True)
    assert finding.message == f"Prefect showed {state.name}, but it waits for an answer and no process runs it: it is Paused again"
    assert (await state_of(run)).name == "Waiting"
    (shown,) = await store.gates.find(run_id=run.id)
    assert (shown.keyset != gate.keyset, await lacks_form(shown)) == (True, False)
    assert await reconcile(store, with_prefect=True) == []
    await answer_in_form(run)
    done = await execute_resume(run.id, tools=ToolRegistry([look]), run_request=RunRequest(asks_in_form=True), store=store)
    assert (done.status, (await state_of(run)).is_completed()) == (PlanStatus.COMPLETED, True)


async def test_a_run_that_waits_at_a_step_is_paused_again_with_a_notice(prefect_server: Server, store: PlanStore, settled: None) -> None:
    run = await waiting(store, at_step=True)
    await show(run, Running())
    (finding,) = await reconcile(store, with_prefect=True)
    assert (finding.kind, finding.is_corrected, (await state_of(run)).name) == ("shown", True, "Waiting")
    async with get_client() as client:
        refused = await client.resume_flow_run(UUID(run.flow_run_id or ""))
    assert (refused.status, (await state_of(run)).name) == (SetStateStatus.REJECT, "Waiting")


async def test_an_answer_in_the_form_of_a_waiting_run_is_reported_until_a_resume_reads_it(
    prefect_server: Server, store: PlanStore, settled: None
) -> None:
    run = await waiting(store)
    await answer_in_form(run)
    found = await reconcile(store, with_prefect=True)
    assert [(finding.kind, finding.is_corrected) for finding in found] == [("shown", True), ("answered", False)]
    assert found[1].message == "answered in Prefect while no process waited, and not read yet: approve of the plan by 安娜"
    assert found[1].command == f"plan resume {run.id}"
    assert (await state_of(run)).name == "Waiting"
    assert await reconcile(store, with_prefect=True) == found[1:]
    done = await execute_resume(run.id, tools=ToolRegistry([look]), run_request=RunRequest(asks_in_form=True), store=store)
    assert (done.status, done.approved_by) == (PlanStatus.COMPLETED, "安娜")
    assert await reconcile(store, with_prefect=True) == []


async def test_an_incomplete_answer_in_the_form_of_a_waiting_run_gives_the_form_back_with_the_reason(
    prefect_server: Server, store: PlanStore, settled: None
) -> None:
    run = await waiting(store)
    async with get_client() as client:
        await client.resume_flow_run(UUID(run.flow_run_id or ""), run_input={"decision": "request_changes", "approver": "安娜"})
    assert (await state_of(run)).is_running()
    (finding,) = await reconcile(store, with_prefect=True)
    assert (finding.kind, finding.is_corrected) == ("shown", True)
    (form,) = [form for form in await open_forms() if form.flow_run_id == run.flow_run_id]
    assert form.refused


async def test_a_state_that_is_new_or_cancelled_is_left_to_whoever_set_it(prefect_server: Server, store: PlanStore) -> None:
    run = await waiting(store)
    await show(run, Running())  # as a process does that is about to open the gate
    assert await reconcile(store, with_prefect=True) == []
    assert (await state_of(run)).is_running()
    await show(run, Cancelled(message="enough"))
    (finding,) = await reconcile(store, with_prefect=True)
    assert (finding.kind, (await state_of(run)).is_cancelled()) == ("cancelled", True)


async def test_a_waiting_run_whose_process_is_there_is_left_alone(prefect_server: Server, store: PlanStore, settled: None) -> None:
    plan, asked, answered = a_plan(), asyncio.Event(), asyncio.Event()
    plan.options.require_approval = True

    async def answer(_: ApprovalRequest) -> bool:
        asked.set()
        await answered.wait()
        return True

    running = asyncio.ensure_future(arun_plan(plan, tools=ToolRegistry([look]), store=store, approver=CallbackApprover(answer)))
    await asked.wait()
    (run,) = await store.runs()
    await show(run, Running())
    assert await reconcile(store, with_prefect=True) == []
    answered.set()
    assert (await running).status is PlanStatus.COMPLETED


async def test_the_deployment_finds_a_process_that_dies_while_it_watches(
    prefect_server: Server, store: PlanStore, sql: Sql, leave_behind: LeaveBehind, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, find, looks = await leave_behind(offline=False), reconciling.find_interrupted, list[int]()
    await show(run, Running())
    await _set_lease(sql, run, HostProcess.this(), await store.now() + timedelta(minutes=1))

    async def found(store: PlanStore, *, with_prefect: bool) -> list[reconciling.Finding]:
        """Return the findings, and let the process of the run die afterwards."""
        findings = await find(store, with_prefect=with_prefect)
        looks.append(len(findings))
        await _set_lease(sql, run, dead_owner(), await store.now())
        return findings

    monkeypatch.setattr(reconciling, "find_interrupted", found)
    monkeypatch.setattr(flows, "find_interrupted", found)
    monkeypatch.setattr(flows, "CHECK_INTERVAL_SECONDS", 0.4)
    state = await flows.reconcile(watch_seconds=1, return_state=True)
    assert (looks, state.message) == ([0, 2, 1], f"1 corrected, 1 left for a person: `plan resume {run.id}`")
    assert (await state_of(run)).name == "Interrupted"


def test_the_deployment_detects_a_dead_host_within_a_minute() -> None:
    project = yaml.safe_load((Path(__file__).parents[2] / "deployments" / "prefect.yaml").read_text(encoding="utf-8"))
    [deployment] = [deployment for deployment in project["deployments"] if deployment["name"] == "reconcile"]
    [schedule], watches = deployment["schedules"], deployment["parameters"]["watch_seconds"]
    between = max(
        flows.CHECK_INTERVAL_SECONDS, schedule["interval"] - watches // flows.CHECK_INTERVAL_SECONDS * flows.CHECK_INTERVAL_SECONDS
    )
    assert Settings().lease_seconds + leases.GRACE_SECONDS + between <= 50  # the rest is for the start of a flow run
    assert watches <= schedule["interval"] - 15  # a flow run that still watches would cancel the next one


async def test_a_run_whose_process_died_before_it_began_is_interrupted(
    prefect_server: Server, store: PlanStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with get_client() as client:
        flow_run = await client.create_flow_run(flows.reconcile, state=Running())
    run = await created(store, a_plan(), flow_run_id=str(flow_run.id))
    assert await reconcile(store, with_prefect=True) == [], "its process may be about to begin"
    monkeypatch.setattr(reconciling, "REACTION", timedelta(0))
    found = await reconcile(store, with_prefect=True)
    assert [(finding.kind, finding.run_id) for finding in found] == [("interrupted", run.id), ("shown", run.id)]
    assert found[0].command == f"plan resume {run.id}"
    shown = await state_of(run)
    assert (shown.is_crashed(), shown.name) == (True, "Interrupted")
    assert "died before it began" in str(shown.message)
    await store.cancel(run.id, "not needed")
    assert await reconcile(store, with_prefect=False) == []
