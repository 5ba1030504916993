"""Tests of steps whose tool is a Prefect task: its tags, hooks, assets, transactions and timeout work, as do receipts and redaction."""

import asyncio
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from prefect import get_client, get_run_logger, task
from prefect.assets import add_asset_metadata, materialize
from prefect.client.orchestration import PrefectClient
from prefect.client.schemas.objects import State, StateType, TaskRun
from prefect.concurrency.asyncio import concurrency
from prefect.events.filters import EventFilter, EventNameFilter, EventResourceFilter
from prefect.runtime import task_run as runtime_task_run
from prefect.transactions import Transaction, get_transaction, transaction

from plan_adapter import PlanRun, PlanStore, ToolRegistry, tool
from plan_adapter.errors import RunFailedError
from plan_adapter.model.status import Outcome
from plan_adapter.runner import acancel_run, compile_plan
from plan_adapter.runs import arun_plan
from plan_adapter.store import PlanStatus
from plan_adapter.tools import as_tool
from plan_adapter.validation import validate
from tests.engine.wrapped import a_plan, shown

pytestmark = pytest.mark.usefixtures("prefect_server")


@pytest.fixture
def store(tmp_path: Path) -> PlanStore:
    return PlanStore(f"sqlite:///{tmp_path / 'plans.db'}")


async def create_limit(tag: str) -> None:
    async with get_client() as client:
        await client.create_concurrency_limit(tag=tag, concurrency_limit=1)


async def active_slots_of(client: PrefectClient, tag: str) -> int:
    return (await client.read_global_concurrency_limit_by_name(f"tag:{tag}")).active_slots


@pytest.mark.thorough
async def test_a_limit_of_one_on_a_task_tag_runs_its_steps_one_at_a_time(store: PlanStore) -> None:
    together, most = 0, 0

    @task(tags=["wrapped-db"])
    async def query(number: int) -> int:
        nonlocal together, most
        together, most = together + 1, max(most, together + 1)
        await asyncio.sleep(0.05)
        together -= 1
        return number

    await create_limit("wrapped-db")
    plan = a_plan(allow_parallel=True, max_parallel_steps=3)
    for number in range(3):
        plan.add_step("query", "Ask", {"number": number}, id=f"q{number}", tags=["reporting"])
    run = await arun_plan(plan, tools=ToolRegistry([as_tool(query, effect="read")]), store=store)
    assert (run.status, most, [step.result for step in run.steps]) == (PlanStatus.COMPLETED, 1, [0, 1, 2])
    tags = {name: sorted(found.tags) for name, found in (await shown(run, "q0", "q1", "q2")).items()}
    assert tags == {name: ["reporting", "wrapped-db"] for name in ("q0", "q1", "q2")}


async def test_cancelling_a_run_that_waits_for_a_concurrency_limit_calls_nothing(store: PlanStore) -> None:
    called = list[str]()

    @task(tags=["wrapped-full"])
    def query() -> None:
        called.append("query")

    await create_limit("wrapped-full")
    plan = a_plan()
    plan.add_step("query", "Ask", id="q")
    async with concurrency("tag:wrapped-full", strict=True):
        running = asyncio.ensure_future(arun_plan(plan, tools=ToolRegistry([query]), store=store))
        while not (runs := await store.runs()) or runs[0].flow_run_id is None or not await _is_pending(runs[0], "q"):
            await asyncio.sleep(0.05)
        await acancel_run(runs[0].id, reason="not today", store=store)
        run = await running
    assert (run.status, called) == (PlanStatus.CANCELLED, [])
    assert (await shown(run, "q"))["q"].state_type is StateType.CANCELLED
    async with get_client() as client:
        while await active_slots_of(client, "wrapped-full"):
            await asyncio.sleep(0.05)


async def _is_pending(run: PlanRun, name: str) -> bool:
    from prefect.client.schemas.filters import FlowRunFilter, FlowRunFilterId

    async with get_client() as client:
        wanted = FlowRunFilter(id=FlowRunFilterId(any_=[UUID(run.flow_run_id or "")]))
        task_runs = await client.read_task_runs(flow_run_filter=wanted)
    return [(task_run.name, task_run.state_type) for task_run in task_runs] == [(name, StateType.PENDING)]


async def test_each_hook_of_a_task_is_called_once_with_the_steps_task_run(store: PlanStore) -> None:
    calls = list[tuple[str, str, Any]]()

    def hook(what: str) -> Callable[[Any, TaskRun, State], None]:
        def record(_task: Any, run: TaskRun, state: State) -> None:
            calls.append((what, run.name, state.data.result if what == "completion" else state.message))  # type: ignore[union-attr]

        return record

    @task(on_completion=[hook("completion")], on_failure=[hook("failure")], on_running=[hook("running")])
    def act(word: str) -> dict[str, str]:
        if word == "bad":
            raise ValueError("so bad")
        return {"word": word}

    plan = a_plan()
    plan.add_step("act", "Good", {"word": "good"}, id="good")
    plan.add_step("act", "Bad", {"word": "bad"}, id="bad")
    run = await arun_plan(plan, tools=ToolRegistry([act]), store=store)
    assert run.status is PlanStatus.PARTIAL
    assert [entry for entry in calls if entry[0] != "running"] == [
        ("completion", "good", {"word": "good"}),
        ("failure", "bad", "ValueError: so bad"),
    ]
    assert [entry[:2] for entry in calls if entry[0] == "running"] == [("running", "good"), ("running", "bad")]


async def test_retries_of_a_step_share_one_task_run_and_have_one_receipt_each(store: PlanStore) -> None:
    tries, calls = list[int](), list[str]()

    def record(_task: Any, _run: TaskRun, state: State) -> None:
        calls.append(state.name or "")

    @task(on_completion=[record], on_failure=[record])
    def flaky() -> int:
        tries.append(1)
        if len(tries) < 3:
            raise ConnectionError("refused")
        return len(tries)

    plan = a_plan()
    plan.add_step("flaky", "Try", id="try", max_retries=5)
    run = await arun_plan(plan, tools=ToolRegistry([as_tool(flaky, effect="idempotent_write")]), store=store)
    assert (run.status, run.step("try").result, len(tries), calls) == (PlanStatus.COMPLETED, 3, 3, ["Completed"])
    assert [receipt.outcome for receipt in await store.receipts(run.id)] == [Outcome.FAILED, Outcome.FAILED, Outcome.SUCCEEDED]
    found = (await shown(run, "try"))["try"]
    assert (found.run_count, found.state_name) == (3, "Completed")


@pytest.mark.thorough
async def test_an_asset_that_a_task_materializes_emits_an_event_with_its_metadata(store: PlanStore) -> None:
    key = f"s3://reports/{os.getpid()}"

    @materialize(key, tags=["assets"])
    def report(rows: int) -> int:
        add_asset_metadata(key, {"rows": rows})
        get_run_logger().info("written")
        return rows

    plan = a_plan()
    plan.add_step("report", "Write it", {"rows": 7}, id="report")
    run = await arun_plan(plan, tools=ToolRegistry([report]), store=store)
    assert (run.status, run.step("report").result) == (PlanStatus.COMPLETED, 7)
    wanted = EventFilter(event=EventNameFilter(name=["prefect.asset.materialization.succeeded"]), resource=EventResourceFilter(id=[key]))
    async with get_client() as client:
        while True:
            response = await client._client.post("/events/filter", json={"filter": wanted.model_dump(mode="json")})
            if events := response.json()["events"]:
                break
            await asyncio.sleep(0.1)
    assert [event["payload"] for event in events] == [{"rows": 7}]


async def test_the_transaction_of_a_task_commits_only_on_success(store: PlanStore) -> None:
    calls = list[tuple[str, Any]]()

    @task
    def write(name: str) -> str:
        current = get_transaction()
        assert current is not None
        current.set("name", name)
        if name == "bad":
            raise ValueError("no")
        return name

    @write.on_commit
    def commit(current: Transaction) -> None:
        calls.append(("commit", current.get("name")))
        if current.get("name") == "torn":
            raise RuntimeError("the commit failed")

    @write.on_rollback
    def roll_back(current: Transaction) -> None:
        calls.append(("rollback", current.get("name")))

    plan = a_plan()
    for name in ("good", "bad", "torn"):
        plan.add_step("write", name, {"name": name}, id=name, on_error="continue")
    run = await arun_plan(plan, tools=ToolRegistry([write]), store=store)
    assert [step.status.value for step in run.steps] == ["completed", "failed", "completed"]
    assert calls == [("commit", "good"), ("commit", "torn"), ("rollback", "torn")]


async def test_a_transaction_around_a_compiled_plan_rolls_its_tasks_back_when_the_run_fails(store: PlanStore) -> None:
    calls = list[str]()

    @task
    def write() -> str:
        return "written"

    @write.on_commit
    def commit(_: Transaction) -> None:
        calls.append("commit")

    @write.on_rollback
    def roll_back(_: Transaction) -> None:
        calls.append("rollback")

    @tool(effect="read")
    def fail() -> None:
        """Fail."""
        raise ValueError("no")

    plan = a_plan()
    plan.add_step("write", "Write", id="write")
    plan.add_step("fail", "Fail", id="fail", depends_on=["write"])
    registry = ToolRegistry([write, fail])
    compiled = compile_plan(validate(plan, registry), tools=registry, store=store)
    with pytest.raises(RunFailedError), transaction():
        await compiled()
    assert calls == ["rollback"]


async def test_a_tasks_own_shorter_timeout_ends_its_attempt(store: PlanStore) -> None:
    @task(timeout_seconds=0.2)
    async def slow() -> None:
        await asyncio.sleep(3600)

    plan = a_plan(step_timeout_ms=300_000)
    plan.add_step("slow", "Wait", id="slow")
    run = await arun_plan(plan, tools=ToolRegistry([as_tool(slow, effect="read")]), store=store)
    assert (run.step("slow").status.value, run.step("slow").error) == ("failed", "no answer within 0.2 s")


async def test_secrets_in_results_and_errors_of_a_task_never_reach_prefect(
    store: PlanStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    secret = "swordfish-4711-öß"
    seen = list[str]()
    monkeypatch.setenv("PLAN_ADAPTER_SECRET_TOKEN", secret)
    monkeypatch.setenv("PREFECT_RESULTS_PERSIST_BY_DEFAULT", "true")

    def remember(_task: Any, run: TaskRun, state: State) -> None:
        seen.append(f"{state!r} {getattr(state.data, 'result', None)!r} {runtime_task_run.parameters}")

    @task(on_completion=[remember], on_failure=[remember])
    def leak(token: str, fails: bool) -> dict[str, str]:
        if fails:
            raise ValueError(f"refused {token}")
        return {"token": token}

    plan = a_plan()
    for name in ("returned", "failed"):
        plan.add_step("leak", name, {"token": "${{ secrets.token }}", "fails": name == "failed"}, id=name)
    run = await arun_plan(plan, tools=ToolRegistry([leak]), store=store)
    assert [step.status.value for step in run.steps] == ["completed", "failed"]
    found = await shown(run, "returned", "failed")
    assert len(seen) == 2
    assert secret not in "".join(seen) + repr(found)
    home = Path(os.environ["PREFECT_HOME"])
    assert not [path for path in (home / "storage").rglob("*") if path.is_file() and b"swordfish" in path.read_bytes()]


async def test_an_offline_run_calls_only_the_function_of_a_task(store: PlanStore) -> None:
    calls = list[str]()

    @task(tags=["wrapped-offline"], on_completion=[lambda _task, _run, _state: calls.append("hook")])
    def act() -> str:
        calls.append("act")
        return "done"

    plan = a_plan()
    plan.add_step("act", "Act", id="act")
    run = await arun_plan(plan, tools=ToolRegistry([act]), store=store, offline=True)
    assert (run.status, calls) == (PlanStatus.COMPLETED, ["act"])
