"""What is left of a run planned anew by a model, from the record: on a person's words, or by the plan's own `on_failure`."""

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from prefect import get_client
from prefect.client.schemas.filters import FlowRunFilter, FlowRunFilterId
from sqlalchemy import update

from plan_adapter import (
    CallbackApprover,
    Draft,
    DraftError,
    ExecutionPlan,
    NotApprovedError,
    OpenAIModel,
    PlanRun,
    PlanSession,
    PlanStatus,
    PlanStore,
    RunConflictError,
    RunReason,
    StepStatus,
    ToolRegistry,
    UnknownOutcomeError,
    acancel_run,
    approve,
    aresolve_step,
    aresume_run,
    arevise_run,
    arun_plan,
    compile_plan,
    load_plan,
    tool,
)
from plan_adapter.canonical import canonical_document
from plan_adapter.engine.connection import Server, use_server
from plan_adapter.engine.internals import rerun
from plan_adapter.execution.history import ResumeOptions, RunHistory
from plan_adapter.gates.approval import answer_to
from plan_adapter.gates.gate import request_of
from plan_adapter.listing import REPLAN_FACT
from plan_adapter.plan import Rollback
from plan_adapter.record import Gate
from plan_adapter.runner import draft_revision
from plan_adapter.runs.replan import AUTOMATIC_REPLAN, MOST_REPLANS, Replanner
from plan_adapter.runs.resume import execute_resume
from plan_adapter.runs.session import RunRequest
from plan_adapter.store.tables import runs
from plan_adapter.validation import lint, validate
from tests.agent.server import Reply, Request, ScriptedServer, says, scripted
from tests.engine.gates import flow_run

ANA = CallbackApprover(lambda _: True, by="ana")


class World:
    """What the tools do."""

    def __init__(self) -> None:
        self.did: list[str] = []

        @tool(effect="read")
        def look(host: str) -> dict[str, str]:
            """Look at a host."""
            self.did.append(f"look {host}")
            return {"host": host, "版本": "1.9", "note": "x" * 10_000}

        @tool(effect="write")
        def deploy(version: str) -> str:
            """Deploy a version."""
            self.did.append(f"deploy {version}")
            if version.startswith("bad"):
                raise ValueError(f"没有 {version} 这个版本")
            if version == "lost":
                raise UnknownOutcomeError("nobody knows")
            return version

        @tool(effect="write")
        def undo(version: str) -> str:
            """Take a version back."""
            self.did.append(f"undo {version}")
            return version

        self.tools = ToolRegistry([look, deploy, undo])


PLAN = """
name: release
description: 发布新版本
inputs: {host: {type: string}}
options: {require_approval: false, allow_parallel: true}
steps:
  - {id: check, tool_name: look, description: Look, parameters: {host: "${{ inputs.host }}"}}
  - {id: first, tool_name: deploy, description: First, parameters: {version: "1"}, depends_on: [check]}
  - {id: second, tool_name: deploy, description: Second, parameters: {version: bad-2}, depends_on: [first]}
  - {id: third, tool_name: look, description: Third, parameters: {host: three}, depends_on: [second], requires_approval: true}
outputs: {版本: "${{ steps.first.result }}"}
metadata: {owner: 平台}
"""


UNDO = Rollback(tool_name="undo", parameters={"version": "${{ result }}"})


def a_plan(**fields: Any) -> ExecutionPlan:
    plan = load_plan(PLAN)
    for name, value in fields.items():
        setattr(plan, name, value)
    return plan


def undoable(**fields: Any) -> ExecutionPlan:
    plan = a_plan(**fields)
    plan.step("first").rollback = UNDO
    return plan


def step(tool_name: str, parameters: dict[str, Any], **fields: Any) -> dict[str, Any]:
    return {"tool_name": tool_name, "description": "", "parameters": parameters, **fields}


def remaining(*steps: dict[str, Any], **fields: Any) -> Reply:
    return says({"action": "plan_done", "speak": "好的", "reason": "", "description": "另一个", "steps": [*steps], **fields})


MENDED = step("deploy", {"version": "2 on ${{ steps.check.result.host }}"}, id="mended", depends_on=["first"])
GOOD = remaining(MENDED, step("look", {"host": "three"}, id="third", depends_on=[0]))


@pytest.fixture
def world() -> World:
    return World()


@pytest.fixture
async def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[PlanStore]:
    monkeypatch.setenv("PLAN_ADAPTER_HOME", str(tmp_path / "home"))
    async with PlanStore(f"sqlite:///{tmp_path / 'plans.db'}") as opened:
        yield opened


@pytest.fixture
def configured(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Makes a server that is up the model of the settings."""

    def configure(server: ScriptedServer) -> ScriptedServer:
        monkeypatch.setenv("PLAN_ADAPTER_MODEL", "模型-1")
        monkeypatch.setenv("PLAN_ADAPTER_MODEL_URL", server.url)
        return server

    return configure


async def failed(world: World, store: PlanStore, plan: ExecutionPlan | None = None, **inputs: str) -> PlanRun:
    given = inputs or {"host": "web-1"}
    return await arun_plan(plan or a_plan(), tools=world.tools, inputs=given, store=store, offline=True)


async def drafted(run: PlanRun, words: str, server: ScriptedServer, world: World, store: PlanStore, **means: Any) -> Draft:
    model = OpenAIModel("m", base_url=server.url)
    try:
        return await draft_revision(run.id, words, replanner=Replanner(model, **means), tools=world.tools, by="bo", store=store)
    finally:
        await model.aclose()


def asked(request: Request) -> str:
    return str(request["messages"][1]["content"])


def context_of(request: Request) -> dict[str, Any]:
    return json.loads(asked(request).split("context (JSON):\n")[1].split("\n\n")[0])


async def test_what_is_done_stays_and_what_is_left_is_planned_from_the_record(world: World, store: PlanStore) -> None:
    run = await failed(world, store)
    assert (run.status, run.step("second").status) == (PlanStatus.PARTIAL, StepStatus.FAILED)
    with scripted(GOOD) as server:
        draft = await drafted(run, "换成二号版本", server, world, store)
        told = context_of(server.requests[0])
        assert "换成二号版本" in asked(server.requests[0])
    assert [(one["id"], "result" in one) for one in told["stays"]] == [("check", True), ("first", True)]
    assert told["stays"][0]["result"].endswith("characters more)")  # cut
    assert [(one["id"], one["status"]) for one in told["not_done"]] == [("second", "failed"), ("third", "skipped")]
    assert "没有 bad-2 这个版本" in told["not_done"][0]["error"]
    assert told["ids_taken"] == ["check", "first", "second"]
    plan = draft.plan
    assert plan is not None
    old, new = canonical_document(a_plan()), canonical_document(plan)
    assert [one["id"] for one in new["steps"]] == ["check", "first", "mended", "third"]
    assert new["steps"][:2] == old["steps"][:2]
    assert [new[name] for name in ("inputs", "outputs", "metadata", "name", "description")] == [
        old[name] for name in ("inputs", "outputs", "metadata", "name", "description")
    ]
    assert plan.options.require_approval
    assert plan.options.allow_parallel
    assert plan.step("third").requires_approval  # as the step was that it takes the place of, whose tool asks
    revised = await arevise_run(run.id, plan, tools=world.tools, by="bo", store=store)
    with pytest.raises(NotApprovedError):
        await aresume_run(run.id, tools=world.tools, store=store, offline=True)
    gate = next(iter(await store.gates(run_id=revised.id)))
    assert "mended" in gate.text
    done = await aresume_run(run.id, tools=world.tools, approver=ANA, store=store, offline=True)
    assert (done.status, done.outputs) == (PlanStatus.COMPLETED, {"版本": "1"})
    assert world.did == ["look web-1", "deploy 1", "deploy bad-2", "deploy 2 on web-1", "look three"]
    assert (await store.verify(run.id)).problem is None
    assert {row["step_id"] for row in (await store.export(run.id))["attempts"]} == {"check", "first", "second", "mended", "third"}  # type: ignore[union-attr, index, call-overload]
    assert (await store.drafts.get(draft.id)).plan == plan


async def test_an_id_on_which_attempts_hang_goes_back_to_the_model_and_made_ones_avoid_them(world: World, store: PlanStore) -> None:
    plan = a_plan()
    plan.steps[2].id, plan.steps[3].depends_on = "step_1", ["step_1"]
    run = await failed(world, store, plan)
    again = remaining(step("deploy", {"version": "2"}, id="step_1"), step("look", {"host": "a"}, id="check"))
    with scripted(again, remaining(step("deploy", {"version": "2"}))) as server:
        draft = await drafted(run, "again", server, world, store)
    assert [problem.partition("] ")[0] for problem in draft.calls[0].problems if "taken-id" in problem] == [
        "steps[0].id: [taken-id",
        "steps[1].id: [taken-id",
    ]
    assert draft.plan is not None
    assert [one.id for one in draft.plan.steps] == ["check", "first", "step_1_"]


async def test_a_step_to_which_an_output_refers_must_be_there_and_may_have_its_old_id(world: World, store: PlanStore) -> None:
    run = await failed(world, store, a_plan(outputs={"二": "${{ steps.second.result }}"}))
    with scripted(remaining(MENDED), remaining({**MENDED, "id": "second"})) as server:
        draft = await drafted(run, "版本二", server, world, store)
        assert context_of(server.requests[0])["ids_needed"] == ["second"]
    assert any("second" in problem and "unknown-reference" in problem for problem in draft.calls[0].problems)
    assert draft.plan is not None
    await arevise_run(run.id, draft.plan, tools=world.tools, by="bo", store=store)
    done = await aresume_run(run.id, tools=world.tools, approver=ANA, store=store, offline=True)
    assert (done.status, done.outputs, done.step("second").attempts) == (PlanStatus.COMPLETED, {"二": "2 on web-1"}, 2)
    assert [(one.step_id, one.number) for one in await store.receipts(run.id)][-2:] == [("second", 1), ("second", 2)]
    keys = {one.idempotency_key for one in await store.attempts(run.id) if one.step_id == "second"}
    assert len(keys) == 2  # the new content is another call
    assert (await store.verify(run.id)).problem is None


async def test_a_partly_done_step_with_items_stays_and_continues(world: World, store: PlanStore) -> None:
    plan = load_plan("""
description: 逐个发布
options: {require_approval: false, continue_on_error: true}
steps:
  - {id: all, tool_name: deploy, for_each: "${{ ['1', 'bad-2'] }}", parameters: {version: "${{ item }}"}}
  - {id: after, tool_name: look, parameters: {host: a}, depends_on: [all]}
""")
    run = await arun_plan(plan, tools=world.tools, store=store, offline=True)
    with scripted(remaining(step("look", {"host": "b"}, id="other"))) as server:
        draft = await drafted(run, "look elsewhere", server, world, store)
        (stays,) = context_of(server.requests[0])["stays"]
    assert (stays["id"], stays["results"]) == ("all", {"0": "1"})
    assert draft.plan is not None
    assert [one.id for one in draft.plan.steps] == ["all", "other"]
    await arevise_run(run.id, draft.plan, tools=world.tools, by="bo", store=store)
    again = await aresume_run(run.id, tools=world.tools, approver=ANA, store=store, offline=True)
    assert again.step("other").status is StepStatus.COMPLETED
    assert sorted(world.did) == ["deploy 1", "deploy bad-2", "deploy bad-2", "look b"]


async def test_a_run_that_takes_no_new_version_asks_no_model(world: World, store: PlanStore) -> None:
    lost = a_plan()
    lost.steps[2].parameters = {"version": "lost"}
    found = {
        "whether `second` was done is unknown.*plan resolve": (await failed(world, store, lost)).id,
        "was rolled back": (await failed(world, store, undoable())).id,
        "has completed": (await failed(world, store, a_plan(steps=a_plan().steps[:2]))).id,
        "records the outcome": (await failed(world, store, lost, host="web-2")).id,
    }
    await aresolve_step([*found.values()][3], "second", "abort", by="ana", store=store)
    with scripted(GOOD) as server:
        for words, run_id in found.items():
            with pytest.raises(RunConflictError, match=words):
                await drafted(await store.run(run_id), "go on", server, world, store)
        assert server.requests == []


async def test_a_failed_step_may_be_fixed_by_hand_or_skipped_but_a_possibly_done_one_may_not(world: World, store: PlanStore) -> None:
    run = await failed(world, store)
    repaired = a_plan()
    repaired.step("second").parameters = {"version": "2"}
    done_otherwise = a_plan()
    done_otherwise.step("first").parameters = {"version": "9"}
    with pytest.raises(RunConflictError, match="what has succeeded: first; start a new run"):
        await arevise_run(run.id, done_otherwise, tools=world.tools, by="bo", store=store)
    await arevise_run(run.id, repaired, tools=world.tools, by="bo", store=store)
    done = await aresume_run(run.id, tools=world.tools, approver=ANA, store=store, offline=True)
    assert (done.status, done.step("second").attempts, done.step("second").result) == (PlanStatus.COMPLETED, 2, "2")
    lost = a_plan()
    lost.step("second").parameters = {"version": "lost"}
    other = await failed(world, store, lost)
    for version in (repaired, a_plan(steps=a_plan().steps[:2])):
        with pytest.raises(RunConflictError, match="may have been done, as far as anybody knows: second"):
            await arevise_run(other.id, version, tools=world.tools, by="bo", store=store)


async def test_attempts_of_a_dropped_step_are_shown_and_verified_and_the_rest_is_undone(world: World, store: PlanStore) -> None:
    first = undoable()
    first.step("second").on_error = "continue"
    run = await failed(world, store, first)
    shorter = undoable()
    shorter.steps = [*shorter.steps[:2], shorter.steps[2].model_copy(update={"id": "other", "parameters": {"version": "bad-3"}})]
    await arevise_run(run.id, shorter, tools=world.tools, by="bo", store=store)
    again = await aresume_run(run.id, tools=world.tools, store=store, offline=True)
    assert (again.status, [one.id for one in again.steps]) == (PlanStatus.PARTIAL, ["check", "first", "other"])
    assert world.did[-1] == "undo 1"
    assert {(one.kind, one.step_id) for one in await store.attempts(run.id)} == {
        ("step", "check"),
        ("step", "first"),
        ("step", "second"),
        ("step", "other"),
        ("rollback", "first"),
    }
    assert (await store.verify(run.id)).problem is None


async def test_an_agent_has_the_rest_of_its_run_planned_and_a_person_approves_it(world: World, store: PlanStore) -> None:
    with scripted(remaining(step("unheard_of", {})), GOOD) as server:
        model = OpenAIModel("m", base_url=server.url)
        session = PlanSession(model, world.tools, store=store, offline=True)
        with pytest.raises(RunConflictError, match="nothing has run yet"):
            await session.revise("换", by="bo")
        session.use(a_plan())
        await session.execute(inputs={"host": "web-1"})
        await session.revise("换成二号版本", by="bo")
        with pytest.raises(NotApprovedError):
            await session.resume()
        session.approve(by="ana", inputs={"host": "web-1"})
        session.approver = ANA  # of the step that has a gate of its own
        assert (await session.resume()).status is PlanStatus.COMPLETED
        await model.aclose()
    (revision,) = await store.revisions(session.run.id if session.run else "")
    assert (revision.by, revision.note.partition(" (")[0]) == ("bo", "换成二号版本")


async def test_without_a_plan_the_run_of_an_agent_stays_as_it_is(world: World, store: PlanStore) -> None:
    with scripted(says({"action": "ask_user", "speak": "哪个版本？", "reason": ""})) as server:
        model = OpenAIModel("m", base_url=server.url)
        session = PlanSession(model, world.tools, store=store, offline=True)
        session.use(a_plan())
        before = await session.execute(inputs={"host": "web-1"})
        with pytest.raises(DraftError, match="哪个版本"):
            await session.revise("换", by="bo")
        await model.aclose()
    assert await store.revisions(before.id) == []


# By the plan's own word


def by_itself(**fields: Any) -> ExecutionPlan:
    return undoable(on_failure="replan", **fields)


async def test_a_failure_has_the_rest_drafted_and_asked_about_before_anything_is_undone(
    world: World, store: PlanStore, configured: Any
) -> None:
    texts: list[str] = []
    answers = CallbackApprover(lambda request: texts.append(request.text) is None, by="ana")
    with scripted(GOOD) as server:
        configured(server)
        run = await arun_plan(by_itself(), tools=world.tools, inputs={"host": "web-1"}, approver=answers, store=store, offline=True)
    assert (run.status, run.outputs) == (PlanStatus.COMPLETED, {"版本": "1"})
    assert world.did == ["look web-1", "deploy 1", "deploy bad-2", "deploy 2 on web-1", "look three"]
    assert "mended" in texts[0]
    assert REPLAN_FACT in texts[0]
    (revision,) = await store.revisions(run.id)
    assert (revision.by, "没有 bad-2" in revision.note) == (AUTOMATIC_REPLAN, True)
    assert (await store.get(run.digest)).on_failure == "replan"
    assert (await store.verify(run.id)).problem is None


async def test_it_is_done_twice_at_most_and_then_the_run_is_undone(
    world: World, store: PlanStore, configured: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PLAN_ADAPTER_DRAFT_ANSWER_TOKENS", "777")

    def worse(request: Request) -> Reply:
        return remaining(step("deploy", {"version": f"bad-{len(context_of(request)['ids_taken'])}"}, id=f"try_{len(world.did)}"))

    with scripted(worse) as server:
        configured(server)
        run = await arun_plan(by_itself(), tools=world.tools, inputs={"host": "web-1"}, approver=ANA, store=store, offline=True)
        assert len(server.requests) == MOST_REPLANS == 2
        assert {request["max_completion_tokens"] for request in server.requests} == {777}
    assert (run.status, run.reason) == (PlanStatus.PARTIAL, RunReason.STEP_FAILED)
    assert world.did == ["look web-1", "deploy 1", "deploy bad-2", "deploy bad-3", "deploy bad-4", "undo 1"]


@pytest.mark.parametrize("yes", [False, True])
async def test_what_nobody_has_read_is_never_approved(world: World, store: PlanStore, configured: Any, yes: bool) -> None:
    from plan_adapter.cli.asking import YesApprover

    plan = by_itself()
    approval = None if yes else approve(plan, tools=world.tools, by="ana", inputs={"host": "web-1"})
    with scripted(GOOD) as server:
        configured(server)
        run = await arun_plan(
            plan,
            tools=world.tools,
            inputs={"host": "web-1"},
            approval=approval,
            approver=YesApprover() if yes else None,
            store=store,
            offline=True,
        )
    assert (run.status, (await store.run(run.id)).status) == (PlanStatus.PENDING_APPROVAL, PlanStatus.PENDING_APPROVAL)
    assert world.did == ["look web-1", "deploy 1", "deploy bad-2"]
    (gate,) = await store.gates(run_id=run.id)
    assert gate.attended is False
    done = await aresume_run(run.id, tools=world.tools, approver=ANA, store=store, offline=True)
    assert done.status is PlanStatus.COMPLETED


async def test_a_rejected_version_ends_the_run_and_nothing_of_it_runs(world: World, store: PlanStore, configured: Any) -> None:
    with scripted(GOOD) as server:
        configured(server)
        no = CallbackApprover(lambda _: "不行", by="ana")
        run = await arun_plan(by_itself(), tools=world.tools, inputs={"host": "web-1"}, approver=no, store=store, offline=True)
    assert (run.status, run.reason, run.rejection_note) == (PlanStatus.CANCELLED, RunReason.REJECTED, "不行")
    assert world.did == ["look web-1", "deploy 1", "deploy bad-2"]


async def test_without_a_draft_the_run_ends_as_it_has_failed_and_says_why(
    world: World, store: PlanStore, configured: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PLAN_ADAPTER_MODEL", raising=False)
    run = await failed(world, store, by_itself())
    assert (run.status, run.reason) == (PlanStatus.PARTIAL, RunReason.STEP_FAILED)
    assert "could not be replanned: no model is configured" in (run.message or "")
    assert world.did[-1] == "undo 1"
    with scripted(says({"action": "ask_user", "speak": "哪个版本？", "reason": ""})) as server:
        configured(server)
        other = await failed(world, store, by_itself())
    assert "the model asked, and nobody answered: 哪个版本？" in (other.message or "")
    assert (await store.run(other.id)).message == other.message


@pytest.fixture
def held() -> Iterator[threading.Event]:
    event = threading.Event()
    yield event
    event.set()


async def test_a_run_is_cancelled_while_the_model_drafts(world: World, store: PlanStore, configured: Any, held: threading.Event) -> None:
    with scripted(Reply(hold=held)) as server:
        configured(server)
        work = asyncio.ensure_future(failed(world, store, by_itself()))
        while not server.requests:
            await asyncio.sleep(0.01)
        (run,) = await store.runs()
        await acancel_run(run.id, reason="够了", store=store)
        ended = await work
        held.set()
    assert (ended.status, ended.reason, ended.message) == (PlanStatus.CANCELLED, RunReason.CANCELLED, "够了")
    assert await store.revisions(run.id) == []


async def test_only_failed_steps_are_a_reason(world: World, store: PlanStore, configured: Any) -> None:
    lost = by_itself()
    lost.steps[2].parameters = {"version": "lost"}
    with scripted(GOOD) as server:
        configured(server)
        run = await failed(world, store, lost)
        assert (run.reason, server.requests) == (RunReason.UNKNOWN, [])


async def test_skipped_steps_stay_skipped_and_an_unknown_outcome_stops_replanning(world: World, store: PlanStore, configured: Any) -> None:
    left_out = ResumeOptions(skipped={"first": "nobody needs it"})
    plan = load_plan(PLAN.replace('"1"', "bad-1"))
    plan.on_failure, plan.step("second").parameters = "replan", {"version": "2"}
    third = plan.step("third")
    third.tool_name, third.parameters, third.requires_approval = "deploy", {"version": "bad-3"}, False
    with scripted(remaining(step("look", {"host": "three"}, id="third_again", depends_on=["second"]))) as server:
        run = await failed(world, store, plan)  # no model yet
        configured(server)
        asks = RunRequest(approver=ANA)
        done = await execute_resume(run.id, tools=world.tools, run_request=asks, store=store, offline=True, asked=left_out)
        assert [(one.id, one.status.value) for one in done.steps] == [
            *(("check", "completed"), ("first", "skipped"), ("second", "completed"), ("third_again", "completed"))
        ]
        lost = load_plan(PLAN.replace('"1"', "lost"))
        lost.on_failure = "replan"
        other = await failed(world, store, lost)
        await aresolve_step(other.id, "first", "abort", by="ana", store=store)
        count = len(server.requests)
        doubted = await execute_resume(other.id, tools=world.tools, run_request=asks, store=store, offline=True, asked=left_out)
        assert "could not be replanned: whether `first` was done is unknown" in (doubted.message or "")
        assert len(server.requests) == count


def test_the_field_is_part_of_the_digest_and_warns_where_no_model_is(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PLAN_ADAPTER_MODEL", raising=False)
    assert [(one.code, one.at, one.severity) for one in lint(by_itself(), world.tools)] == [("no-model", "on_failure", "warning")]
    assert canonical_document(by_itself())["on_failure"] == "replan"
    monkeypatch.setenv("PLAN_ADAPTER_MODEL", "m")
    assert lint(by_itself(), world.tools) == []


def test_a_run_without_attempts_is_planned_anew_as_a_whole(world: World) -> None:
    from plan_adapter.agent.replan import RemainingPlan

    found = RemainingPlan.of(validate(a_plan(), world.tools), RunHistory())
    assert (found.kept, found.taken, found.needed) == (frozenset(), frozenset(), {"first"})


async def shown(store: PlanStore, work: "asyncio.Future[Any]", *, after: Gate | None = None) -> Gate:
    """Return the open gate once its form is there, a later one than that of `after`."""
    while True:
        gates = [gate for gate in await store.gates() if gate.keyset is not None and (after is None or gate.keyset != after.keyset)]
        if gates:
            return await store.gate(gates[0].id)
        assert not work.done(), work.result()
        await asyncio.sleep(0.05)


@pytest.mark.thorough
async def test_a_new_version_is_asked_about_in_a_form_of_the_same_flow_run(
    world: World, store: PlanStore, configured: Any, prefect_server: Server
) -> None:
    plan = by_itself()
    plan.step("third").requires_approval = False
    with scripted(GOOD) as server, use_server(prefect_server):
        configured(server)
        flow = compile_plan(validate(plan, world.tools), tools=world.tools, store=store)
        work = asyncio.ensure_future(flow(host="web-1", return_state=True))
        gate = await shown(store, work)
        run = await store.run(gate.run_id)
        assert (run.status, gate.flow_run_id is not None) == (PlanStatus.PENDING_APPROVAL, True)
        answer = answer_to(request_of(gate), decision="approve", by="ana", known_by="form")
        await store.answer_gate(gate.id, answer)
        state: Any = await work
        assert state.is_completed(), state.message
        done = await store.run(run.id)
        assert (done.status, done.flow_run_id) == (PlanStatus.COMPLETED, run.flow_run_id)
        async with get_client() as client:
            in_run = FlowRunFilter(id=FlowRunFilterId(any_=[UUID(run.flow_run_id)]))
            while len(names := {row.name for row in await client.read_task_runs(flow_run_filter=in_run)}) < 5:
                await asyncio.sleep(0.05)
    assert {"check", "first", "second", "mended", "third"} <= names
    assert world.did == ["look web-1", "deploy 1", "deploy bad-2", "deploy 2 on web-1", "look three"]


@pytest.mark.thorough
async def test_a_flow_run_whose_waiting_process_ended_resumes_with_the_drafted_version(
    world: World, store: PlanStore, configured: Any, prefect_server: Server
) -> None:
    plan = by_itself()
    plan.step("third").requires_approval = False
    with scripted(GOOD) as server, use_server(prefect_server):
        configured(server)
        flow = compile_plan(validate(plan, world.tools), store=store)
        work = asyncio.ensure_future(flow(host="web-1", return_state=True))
        gate = await shown(store, work)
        work.cancel()
        await asyncio.gather(work, return_exceptions=True)
        waits = update(runs).values(status="pending_approval", reason=None, completed_at=None)  # as if it had ended by itself
        await store._database.write(lambda connection: connection.execute(waits) and None)
        again = asyncio.ensure_future(rerun(flow, await flow_run(UUID(gate.flow_run_id)), {"host": "web-1"}))
        gate = await shown(store, again, after=gate)
        await store.answer_gate(gate.id, answer_to(request_of(gate), decision="approve", by="ana", known_by="form"))
        state = await again
        assert state.is_completed(), state.message
        assert len(server.requests) == 1
    assert world.did == ["look web-1", "deploy 1", "deploy bad-2", "deploy 2 on web-1", "look three"]
