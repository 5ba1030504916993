"""Tests of goals with a store: what is recorded, and how a goal resumes."""

import asyncio
import os
import re
from collections.abc import Callable, Iterator
from itertools import pairwise
from uuid import UUID

import pytest
from prefect import get_client
from prefect.client.schemas.filters import ArtifactFilter, ArtifactFilterKey
from prefect.client.schemas.objects import TaskRunResult

from plan_adapter import PlanStore, ToolRegistry
from plan_adapter.engine.connection import Server
from plan_adapter.errors import InvalidPlanError
from plan_adapter.execution.history import RunHistory
from plan_adapter.gates import CallbackApprover
from plan_adapter.gates.approval import answer_to
from plan_adapter.gates.gate import request_of
from plan_adapter.local import crash_points
from plan_adapter.model.approvals import ApprovalRequest, Decision, StandingApproval
from plan_adapter.model.canonical import runbook_digest
from plan_adapter.model.errors import PlanAdapterError
from plan_adapter.model.goals import Goal, RoundAnswer, Verdict
from plan_adapter.model.host_process import HostProcess
from plan_adapter.model.options import ApprovalPolicy
from plan_adapter.model.plan import ExecutionPlan, Step, new_id
from plan_adapter.model.record import PlanRun, RunContext
from plan_adapter.runs import aresolve_step
from plan_adapter.runs.resume import execute_resume
from plan_adapter.runs.run_session import Backend, RunRequest, RunSession
from plan_adapter.runs.start import create_run, execute_plan, execute_run
from plan_adapter.store import PlanStatus
from plan_adapter.tools.tool import tool
from plan_adapter.validation import bind_inputs, validate
from tests.engine.calls import flow_run, logs_of, task_runs
from tests.execution.pursuing import BROKEN, Board, ScriptedModel, ends, gives_up, goal_plan, reads, says, writes
from tests.gates.world import Silent
from tests.runs.lives import EndedError, Life


class RoundModel(ScriptedModel):
    """A model that answers by the number of past rounds, so that a second process continues where the first one stopped."""

    async def decide(self, goal: Goal) -> RoundAnswer:
        self.seen.append(goal)
        return self.answers[min(len(goal.rounds), len(self.answers) - 1)]


def unapproved(plan: ExecutionPlan) -> ExecutionPlan:
    plan.options.require_approval = False
    return plan


def approving(asked: list[str], answer: Callable[[ApprovalRequest], bool | tuple[Decision, str]] = lambda _: True) -> CallbackApprover:
    async def ask(request: ApprovalRequest) -> bool | tuple[Decision, str]:
        asked.append(request.text)
        return answer(request)

    return CallbackApprover(ask)


async def started(plan: ExecutionPlan, board: Board, request: RunRequest, store: PlanStore) -> PlanRun:
    bound = bind_inputs(validate(plan, ToolRegistry(board.tools)))
    return await execute_plan(bound, run_request=request, store=store, offline=True, record_pending=True)


async def resumed(run: PlanRun, board: Board, request: RunRequest, store: PlanStore) -> PlanRun:
    return await execute_resume(run.id, tools=ToolRegistry(board.tools), run_request=request, store=store, offline=True)


async def test_the_record_has_every_decision_call_and_check(store: PlanStore) -> None:
    board, model, asked = Board(), RoundModel([reads(), writes(note="hello"), ends("E2")]), list[str]()
    run = await started(unapproved(goal_plan()), board, RunRequest(goal_model=model, approver=approving(asked)), store)
    assert (run.status, board.notes, len(asked)) == (PlanStatus.COMPLETED, ["hello"], 1)
    stored = await store.run(run.id)
    assert stored.step("report").result["summary"] == "好"
    assert stored.step("report").result == run.step("report").result
    calls = [(attempt.kind, attempt.item, attempt.tool_name, attempt.label) for attempt in await store.attempts(run.id)]
    assert calls == [
        ("decision", 0, "decide", None),
        ("step", 0, "look", "round 1: look()"),
        ("decision", 1, "decide", None),
        ("step", 1, "post", "round 2: post(note=hello)"),
        ("decision", 2, "decide", None),
        ("check", 2, "check", None),
        ("step", None, "goal", None),
    ]
    assert (await store.verify(run.id)).ok


async def test_a_goal_without_a_configured_model_is_refused_before_any_gate_opens(store: PlanStore) -> None:
    asked = list[str]()
    with pytest.raises(InvalidPlanError, match="PLAN_ADAPTER_MODEL") as error:
        await started(goal_plan(), Board(), RunRequest(approver=approving(asked)), store)
    assert [(problem.code, problem.at) for problem in error.value.problems] == [("no-model", "steps[0].goal")]
    assert asked == []


async def test_a_goal_stopped_at_a_gate_resumes_after_the_answer(store: PlanStore) -> None:
    board, model = Board(), RoundModel([writes(note="hello"), ends()])
    request = RunRequest(goal_model=model, waits=False)
    run = await started(unapproved(goal_plan()), board, request, store)
    assert (run.status, board.notes) == (PlanStatus.PENDING_APPROVAL, [])
    (gate,) = await store.gates.find(run_id=run.id)
    assert (gate.step_id, gate.item, gate.label, gate.kind) == ("report", 0, "round 1: post(note=hello)", "approval")
    assert "`note`: `hello`" in gate.text.replace("\\", "")
    await store.gates.answer(gate.id, answer_to(request_of(gate), decision="approve", by="ana", known_by="os_user"))
    ended = await resumed(run, board, request, store)
    assert (ended.status, board.notes) == (PlanStatus.COMPLETED, ["hello"])
    assert [len(goal.rounds) for goal in model.seen] == [0, 1]


async def test_the_gate_of_a_round_shows_the_rounds_before_it(store: PlanStore) -> None:
    for earlier in (0, 1):
        model = RoundModel([reads()] * earlier + [writes(note="hello"), ends()])
        request = RunRequest(goal_model=model, waits=False)
        run = await started(unapproved(goal_plan()), Board(), request, store)
        for note in ("", "first"):
            (gate,) = await store.gates.find(run_id=run.id)
            text = (await store.gates.get(gate.id)).text
            assert re.findall("(?m)^- round ([0-9]+)", text) == ["1"] * earlier
            assert text[text.index("## ") :].startswith("## The model asks to call post\n\n> ")
            assert ("The model has seen: `look` succeeded: `-`." in text) is bool(earlier)
            assert ("ana asks for changes: first" in text) is bool(note)
            await store.gates.answer(
                gate.id, answer_to(request_of(gate), decision="request_changes", by="ana", known_by="os_user", note="first")
            )
            await execute_resume(
                run.id, tools=ToolRegistry(Board().tools), run_request=request, store=store, offline=True, record_pending=True
            )


@pytest.mark.parametrize("how", ["cancelled", "cancelled in Prefect", "closed"])
async def test_a_goal_whose_gate_is_closed_says_why(how: str, store: PlanStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("plan_adapter.runs.ending.PREFECT_POLL_SECONDS", 0.05)
    cancelled = list[str]()

    async def in_prefect() -> str | None:
        return cancelled[0] if cancelled else None

    request = RunRequest(goal_model=RoundModel([writes(note="hello")]), approver=Silent())
    bound = bind_inputs(validate(unapproved(goal_plan()), ToolRegistry(Board().tools)))
    run, backend = await create_run(bound, store, request), Backend(cancellation=in_prefect)
    task = asyncio.ensure_future(execute_run(RunSession(bound, run, store, request, RunHistory(), backend)))
    while not (gates := await store.gates.find()) and not task.done():
        await store.changed(0.05)
    if how == "cancelled":
        await store.cancel(run.id, "够了")
    elif how == "closed":
        await store.gates.close(gates[0].id, "cancelled")
    else:
        cancelled.append("够了")
    ended = await task
    assert ended.step("report").error == ("the gate of `report` was closed" if how == "closed" else "够了")


async def test_a_standing_approval_does_not_confirm_calls_of_a_goal(store: PlanStore) -> None:
    asked = list[str]()
    board, model = Board(), RoundModel([writes(note="hello"), gives_up()])
    bound = bind_inputs(validate(goal_plan(), ToolRegistry(board.tools)))
    digest = runbook_digest(bound.validated.digest, bound.validated.definitions)
    name, at = bound.validated.plan.name, await store.now()
    standing = StandingApproval(new_id(), digest, name, "ana", "os_user", at, {}, ("a/nightly",), steps=("report",), max_runs=2)
    await store.standing.add(standing, context=RunContext())
    request = RunRequest(goal_model=model, approver=approving(asked, lambda _: ("reject", "no")), schedule="a/nightly")
    run = await execute_plan(bound, run_request=request, store=store, offline=True)
    assert (run.approved_by, run.step("report").reason, board.notes) == ("ana", "aborted", [])
    assert len(asked) == 1, "the plan is approved by the standing approval, and its goal asks"


async def test_an_always_executed_call_is_in_the_audit_log(store: PlanStore) -> None:
    board, model = Board(), RoundModel([reads(), writes(note="hello"), ends("E2")])
    plan = goal_plan()
    plan.approval = ApprovalPolicy(always_execute=["post"])
    bound = bind_inputs(validate(plan, ToolRegistry(board.tools)))
    run = await execute_plan(bound, run_request=RunRequest(goal_model=model, approver=approving([])), store=store, offline=True)
    assert (run.status, board.notes) == (PlanStatus.COMPLETED, ["hello"])
    (entry,) = [entry for entry in await store.audit(run.id) if entry.kind == "always_executed"]
    evidence = run.step("report").result["evidence"][1]
    assert (entry.step_id, entry.item, entry.call_kind, entry.by) == ("report", 1, "step", run.approved_by)
    assert entry.message == f"post (write), arguments {evidence['arguments_digest'][:12]}…"
    assert (await store.verify(run.id)).ok


async def test_an_open_question_can_be_answered_later(store: PlanStore) -> None:
    model = RoundModel([says("ask_user", speak="什么时候？"), ends()])
    request = RunRequest(goal_model=model, waits=False)
    run = await started(unapproved(goal_plan()), Board(), request, store)
    (gate,) = await store.gates.find(run_id=run.id)
    assert (gate.kind, [*(gate.fields or {})]) == ("question", ["answer"])
    assert "什么时候" in gate.text
    answer = answer_to(request_of(gate), decision="approve", by="ana", known_by="os_user", result={"answer": "三点"})
    await store.gates.answer(gate.id, answer)
    ended = await resumed(run, Board(), request, store)
    assert ended.status is PlanStatus.COMPLETED
    assert model.seen[-1].evidence[0].summary == '{"answer":"三点"}'


async def test_a_rejection_is_kept_when_the_run_is_resumed(store: PlanStore) -> None:
    board, asked = Board(), list[str]()
    model = RoundModel([writes(note="hello"), BROKEN, BROKEN, BROKEN])
    request = RunRequest(goal_model=model, approver=approving(asked, lambda _: ("reject", "say it politely")))
    run = await started(unapproved(goal_plan()), board, request, store)
    assert run.status is PlanStatus.FAILED
    model.answers = [writes(note="hello"), BROKEN, BROKEN, BROKEN, writes(note="hello"), reads(), ends()]
    ended = await resumed(run, board, request, store)
    assert (ended.status, board.notes, len(asked)) == (PlanStatus.COMPLETED, [], 1)
    assert "a person refused this call before" in model.seen[-2].rounds[4].refusal


@pytest.mark.parametrize("answer", [gives_up(), BROKEN])
async def test_a_failed_goal_gets_new_rounds_on_resume_and_keeps_its_evidence(store: PlanStore, answer: RoundAnswer) -> None:
    model = RoundModel([reads(), answer])
    request = RunRequest(goal_model=model)
    failed = await started(unapproved(goal_plan(max_rounds=4)), Board(), request, store)
    assert failed.status is PlanStatus.FAILED
    begun = len(model.seen)
    model.answers = [reads()] * begun + [reads(), ends("E2")]
    ended = await resumed(failed, Board(), request, store)
    assert ended.status is PlanStatus.COMPLETED
    assert [len(goal.rounds) for goal in model.seen[begun:]] == [begun, begun + 1]
    assert [evidence.id for evidence in model.seen[-1].evidence] == ["E1", "E2"]


async def test_a_completed_goal_is_carried_when_another_step_is_resumed(store: PlanStore) -> None:
    works = [False]

    @tool(effect="read")
    def after() -> None:
        """Fail at first."""
        if not works[0]:
            raise ValueError("not yet")

    board, model = Board(), RoundModel([reads(), ends(action="next_plan")])
    board.tools.append(after)
    plan = unapproved(goal_plan())
    plan.steps.append(Step(id="after", tool_name="after", depends_on=["report"]))
    request = RunRequest(goal_model=model)
    run = await started(plan, board, request, store)
    assert run.status is PlanStatus.PARTIAL
    works[0] = True
    ended = await resumed(run, board, RunRequest(), store)
    assert (ended.status, ended.step("report").carried, len(model.seen)) == (PlanStatus.COMPLETED, True, 2)


async def test_each_decision_call_and_check_is_a_task_run(store: PlanStore, prefect_server: Server) -> None:
    board, asked = Board(), list[str]()

    def show() -> str:
        """Show the notes."""
        return "\n".join(f"- {note}" for note in board.notes)

    board.tools[1] = tool(effect="write", preview=show)(board.tools[1].fn)
    model = RoundModel([reads(), writes(note="hello"), ends("E2", action="next_plan")])
    plan = unapproved(goal_plan())
    plan.steps.append(Step(id="after", tool_name="look", depends_on=["report"]))
    bound = bind_inputs(validate(plan, ToolRegistry(board.tools)))
    run = await execute_plan(bound, run_request=RunRequest(goal_model=model, approver=approving(asked)), store=store)
    assert (run.status, board.notes) == (PlanStatus.COMPLETED, ["hello"])
    names = ["decision report[1]", "report[round 1: look()]", "decision report[2]", "report[round 2: post(note=hello)]"]
    names += ["decision report[3]", "check report[3]", "report", "after"]
    by_name = await task_runs(UUID(run.flow_run_id), names)
    assert {task_run.state_name for task_run in by_name.values()} == {"Completed"}
    known = {task_run.id: name for name, task_run in by_name.items()}
    for before, name in pairwise(names):
        assert before in {
            known[task_input.id] for task_input in by_name[name].task_inputs["wait_for"] if isinstance(task_input, TaskRunResult)
        }
    async with get_client() as client:
        (artifact,) = await client.read_artifacts(artifact_filter=ArtifactFilter(key=ArtifactFilterKey(any_=["evidence-report"])))
        (preview,) = await client.read_artifacts(artifact_filter=ArtifactFilter(key=ArtifactFilterKey(any_=["preview-report"])))
    assert (artifact.flow_run_id, artifact.task_run_id) == (UUID(run.flow_run_id), by_name["report"].id)
    assert "| E2 | 2 | `post` | yes | 1 |" in str(artifact.data)
    assert (preview.flow_run_id, preview.data) == (UUID(run.flow_run_id), "- hello")
    assert [text for _, text in await logs_of(by_name["decision report[1]"], 2)] == ["continue look(): because", "好"]
    assert [text for _, text in await logs_of(by_name["decision report[2]"], 1)] == ["confirm post(note=hello): because"]


async def test_an_exhausted_goal_ends_its_flow_run_as_failed(store: PlanStore, prefect_server: Server) -> None:
    bound = bind_inputs(validate(unapproved(goal_plan(max_rounds=2)), ToolRegistry(Board().tools)))
    run = await execute_plan(bound, run_request=RunRequest(goal_model=RoundModel([reads()])), store=store)
    state = (await flow_run(UUID(run.flow_run_id))).state
    assert state is not None
    assert (state.type.value, state.name) == ("FAILED", "Failed")


@pytest.fixture
def process_number(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """Yield the number of the current simulated process. Each process is another owner of runs."""
    count, place = [0], HostProcess.this().place
    monkeypatch.setattr(HostProcess, "this", classmethod(lambda _: HostProcess(place, os.getpid(), f"life {count[0]}")))
    yield count
    crash_points.listener = None


POINTS = ["before-intent", "in-transaction", "after-intent", "mid-effect", "after-effect", "after-receipt", "gate-opened", "gate-answered"]


@pytest.mark.thorough
@pytest.mark.parametrize("point", POINTS)
def test_a_goal_resumes_after_its_process_died_without_repeating_decisions_or_writes(point: str, process_number: list[int]) -> None:
    """Kill the run at the first, second, … time that it reaches `point`, until it no longer dies."""
    for count in range(1, 40):
        life = Life(point, count)
        if not _dies_once(life, process_number):
            assert count > 1, f"the run never reached {point}"
            return
    raise AssertionError("it dies for ever")


def _dies_once(life: Life, process_number: list[int]) -> bool:
    board, asked = Board(), list[str]()

    @tool(effect="write")
    def post(note: str) -> int:
        """Post a note."""
        crash_points.reached("mid-effect")
        board.notes.append(note)
        crash_points.reached("mid-effect")
        return len(board.notes)

    board.tools[1] = post
    verdicts = [Verdict(verdict="met")] * 3
    model = RoundModel([reads(), BROKEN, writes(note="hello"), ends("E2")], verdicts)
    request = RunRequest(goal_model=model, approver=approving(asked))
    plan = unapproved(goal_plan(done_when="A note says hello"))

    async def first() -> None:
        async with PlanStore() as store:
            await started(plan, board, request, store)

    async def second() -> PlanRun:
        async with PlanStore() as store:
            runs = await store.runs()
            if not runs or runs[0].plan_id != plan.id:
                return await started(plan, board, request, store)
            (run,) = [run for run in runs if run.plan_id == plan.id]
            if run.status is PlanStatus.COMPLETED:
                return await store.run(run.id)
            for lost in await store.outcomes.unknown(run.id):
                resolution = "done" if board.notes else "again"
                await aresolve_step(run.id, lost.step_id, resolution, item=lost.item, by="ana", result=1, store=store)
            return await resumed(run, board, request, store)

    process_number[0] += 1
    crash_points.listener = life.reach
    try:
        with life.guard():
            asyncio.run(first())
    except (EndedError, PlanAdapterError):
        assert life.has_ended
    finally:
        crash_points.listener = None
    process_number[0] += 1
    run = asyncio.run(second())
    assert (run.status, board.notes) == (PlanStatus.COMPLETED, ["hello"])
    assert run.step("report").result["rounds"] == 4
    decided = [len(goal.rounds) for goal in model.seen]
    assert sorted(set(decided)) == [0, 1, 2, 3]
    assert len(decided) <= 5, "only the decision in which the process died may be made again"
    assert len(model.judged) <= 2
    return life.has_ended
