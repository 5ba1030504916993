"""Tests of questions to a person: who may answer, which answers are valid, and what happens without one."""

import asyncio
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from plan_adapter.cli.asking import YesApprover
from plan_adapter.errors import NotApprovedError
from plan_adapter.gates.approvers import CallbackApprover
from plan_adapter.gates.gate import request_of
from plan_adapter.model.approvals import Answer
from plan_adapter.model.options import ApprovalPolicy, Question
from plan_adapter.model.plan import Step
from plan_adapter.model.status import RunReason
from plan_adapter.plans import Input
from plan_adapter.runs import arevise_run
from plan_adapter.runs.start import execute_plan
from plan_adapter.store import PlanStatus, StepStatus
from plan_adapter.store.proof.verification import verify
from tests.gates.questions import FIELDS, plan_with_question
from tests.gates.world import FixedApprover, FormAnswers, World
from tests.processes import Program
from tests.store.conftest import on_both_databases

ANSWER = {"choice": "switch", "nodes": 3}


@on_both_databases
async def test_the_answer_becomes_the_result_of_the_step_and_names_who_answered(world: World) -> None:
    task = world.start(plan_with_question())
    gate = await world.store.gates.get((await world.gate(step="decide")).id)
    assert (gate.kind, gate.fields) == ("question", FIELDS)
    assert "## Switch to 东站?" in gate.text
    assert "- `choice`: `switch` or `wait` or `降级`, required" in gate.text
    assert "- `nodes`: integer, at least 1, by default `2`" in gate.text
    await world.answer(gate, result=ANSWER, note="as agreed")
    run = await task
    assert (run.status, run.step("decide").result, world.struck) == (PlanStatus.COMPLETED, ANSWER, ["switch on 3"])
    assert run.step("decide").reason == "answered by ana (os_user)"
    (receipt, _) = await world.store.receipts(run.id)
    assert (receipt.step_id, receipt.result, receipt.by, receipt.known_by, receipt.note) == (
        "decide",
        ANSWER,
        "ana",
        "os_user",
        "as agreed",
    )
    (_, answer) = await world.store.approvals(run.id)
    assert (answer.result, answer.used_at is not None) == (ANSWER, True)
    assert verify(await world.store.export(run.id)).ok


async def test_the_heading_is_the_first_line_of_the_question_and_the_full_text_follows(world: World) -> None:
    plan = plan_with_question()
    plan.steps[0].ask = Question(question="Switch?\nThe last errors:\npool exhausted", fields=FIELDS)
    task = world.start(plan)
    gate = await world.store.gates.get((await world.gate(step="decide")).id)
    assert gate.text.startswith("## Switch? …\n")
    assert "> Switch?\n>\n> The last errors:\n>\n> pool exhausted\n" in gate.text
    await world.answer(gate, result=ANSWER)
    await task


async def test_a_password_in_a_question_is_redacted(world: World) -> None:
    bound = world.bound(plan_with_question(), inputs={"site": "postgres://bo:${{x}}@host and postgres://bo:y@host"})
    run_request = replace(world.run_request(), waits=False)
    await execute_plan(bound, run_request=run_request, store=world.store, offline=True, record_pending=True)
    gate = await world.gate(step="decide")
    assert gate.description == "Switch to postgres://bo:***@host and postgres://bo:***@host?"


async def test_an_altered_answer_is_detected_in_the_record(world: World) -> None:
    task = world.start(plan_with_question())
    await world.answer(await world.gate(step="decide"), result=ANSWER)
    run = await task
    await world.sql("UPDATE approvals SET result = :result WHERE gate_id IS NOT NULL", result='{"choice":"wait","nodes":3}')
    problem = verify(await world.store.export(run.id)).problem
    assert problem is not None and problem.table == "approvals"


async def test_a_callback_approver_answers_with_the_fields(world: World) -> None:
    asked: list[Any] = []
    approver = CallbackApprover(lambda request: asked.append(request.fields) or {"choice": "降级"}, by="bot")
    run = await world.start(plan_with_question(), approver=approver)
    assert (run.status, asked, world.struck) == (PlanStatus.COMPLETED, [FIELDS], ["降级 on 2"])


async def test_an_invalid_answer_is_refused_with_every_problem_and_the_gate_stays_open(world: World) -> None:
    answers = (
        Answer("approve", "ana", channel="form", result={"choice": "run", "nodes": 0, "until": "noon"}),
        Answer("approve", "ana", channel="form"),
        Answer("approve", "ana", channel="form", result={"choice": "wait"}),
    )
    form = FormAnswers(answers)
    run = await world.start_with_form(plan_with_question(), form)
    assert form.replies == [
        "`choice`: the value is none of `switch`, `wait`, `降级`; `nodes`: the value `0` is smaller than 1; "
        "`until`: the question has no field `until`",
        "this gate asks a question: answer with its fields `choice`, `nodes`",
        None,
    ]
    assert (run.status, run.step("decide").result) == (PlanStatus.COMPLETED, {"choice": "wait", "nodes": 2})
    assert (run.step("strike").status, world.struck) == (StepStatus.SKIPPED, [])


@on_both_databases
async def test_an_approval_does_not_answer_a_question_and_an_answer_does_not_approve_a_call(world: World) -> None:
    asking, gated = world.start(plan_with_question()), world.start(world.plan(gated=True))
    question, approval = await world.gate(step="decide"), await world.gate(step="strike")
    with pytest.raises(NotApprovedError, match=r"asks a question.*`plan answer .* decide --digest .* FIELD=VALUE…`"):
        await world.answer(question)
    with pytest.raises(NotApprovedError, match="asks for an approval"):
        await world.answer(approval, result=ANSWER)
    with pytest.raises(NotApprovedError, match="other content"):
        await world.answer(question, result=ANSWER, approval_digest="0" * 64)
    assert len(await world.store.gates.find()) == 2
    assert (await world.end(asking)).reason is RunReason.REJECTED
    assert (await world.end(gated)).reason is RunReason.REJECTED


async def test_only_named_people_may_answer_and_any_of_them_may_reject(world: World) -> None:
    plan = plan_with_question(approvers=["duty"])
    plan.approval = ApprovalPolicy(approvers=["ana"])
    world.settings = world.settings.model_copy(update={"groups": {"duty": ["bo", "李雷"]}})
    form = FormAnswers((Answer("approve", "ana", result=ANSWER), Answer("reject", "李雷", note="今天不行")))
    run = await world.start_with_form(plan, form)
    assert form.replies == ["ana may not answer here; only bo, 李雷 may", None]
    assert (run.status, run.reason, world.struck) == (PlanStatus.CANCELLED, RunReason.REJECTED, [])
    assert "李雷 rejected it at the gate of `decide`: 今天不行" in (run.message or "")


ALL_DEFAULTS = {name: field.model_copy(update={"default": field.default or "switch"}) for name, field in FIELDS.items()}


@pytest.mark.parametrize(
    ("expires", "policy", "status", "struck"),
    [
        (None, None, PlanStatus.CANCELLED, []),
        ("reject", "skip", PlanStatus.CANCELLED, []),
        (None, "skip", PlanStatus.COMPLETED, []),
        ("skip", None, PlanStatus.COMPLETED, []),
        ("default", "skip", PlanStatus.COMPLETED, ["switch on 2"]),
    ],
)
async def test_an_expired_question_follows_the_expiry_policy_of_the_plan(
    expires: Any, policy: Any, status: PlanStatus, struck: list[str], world: World
) -> None:
    plan = plan_with_question(timeout_ms=1, fields=ALL_DEFAULTS, expires=expires)
    plan.approval = None if policy is None else ApprovalPolicy(expires=policy)
    run = await world.start(plan)
    assert (run.status, world.struck) == (status, struck), run.message
    if not struck:
        assert run.step("decide").status is StepStatus.SKIPPED
        return
    (_, answer) = await world.store.approvals(run.id)
    assert (answer.by, answer.known_by, answer.result) == ("author", "not_required", {"choice": "switch", "nodes": 2})
    assert (answer.run_id, answer.step_id, answer.item) == (run.id, "decide", None)
    assert answer.note == "nobody answered within 1 ms: the defaults are the answer"
    assert run.step("decide").reason == "answered by author (not_required)"
    assert verify(await world.store.export(run.id)).ok


async def test_the_defaults_are_recorded_as_the_answer_about_their_item(world: World) -> None:
    plan = plan_with_question(timeout_ms=1, fields=ALL_DEFAULTS, expires="default")
    question = plan.steps[0].model_copy(update={"ask": Question(question="Switch ${{ item }}?", fields=ALL_DEFAULTS)})
    plan.steps = [Step(id="sites", for_each="${{ ['东', '西'] }}", steps=[question])]
    run = await world.start(plan)
    answers = [row for row in await world.store.approvals(run.id) if row.step_id is not None]
    assert (run.status, [(row.step_id, row.item) for row in answers]) == (PlanStatus.COMPLETED, [("decide", 0), ("decide", 1)])


async def test_a_run_without_an_approver_stops_at_its_question_and_uses_the_answer_on_resume(world: World) -> None:
    run_request = replace(world.run_request(), waits=False)
    run = await execute_plan(
        world.bound(plan_with_question()), run_request=run_request, store=world.store, offline=True, record_pending=True
    )
    assert run.status is PlanStatus.PENDING_APPROVAL
    await world.answer(await world.gate(step="decide"), result=ANSWER)
    done = await world.resume(run.id, waits=False)
    assert (done.status, world.struck) == (PlanStatus.COMPLETED, ["switch on 3"])


async def test_a_question_that_expired_without_a_process_uses_its_defaults_on_resume(world: World) -> None:
    plan = plan_with_question(timeout_ms=3_600_000, fields=ALL_DEFAULTS, expires="default")
    run_request = replace(world.run_request(), waits=False)
    run = await execute_plan(world.bound(plan), run_request=run_request, store=world.store, offline=True, record_pending=True)
    await world.sql("UPDATE gates SET expires_at = opened_at")
    done = await world.resume(run.id, waits=False)
    assert (done.status, world.struck) == (PlanStatus.COMPLETED, ["switch on 2"])


async def test_an_approval_given_in_advance_does_not_answer_a_question(world: World) -> None:
    run_request = replace(world.run_request(YesApprover()), waits=False)
    run = await execute_plan(
        world.bound(plan_with_question()), run_request=run_request, store=world.store, offline=True, record_pending=True
    )
    assert (run.status, (await world.gate(step="decide")).end) == (PlanStatus.PENDING_APPROVAL, None)


@pytest.mark.parametrize(
    ("approver", "problems"),
    [
        (FixedApprover(), ["answer with its fields `choice`, `nodes`"]),
        (CallbackApprover(lambda _: {"choice": "zz", "nodes": 0}), ["`choice`: ", "`nodes`: "]),
        (CallbackApprover(lambda _: {}), ["`choice`"]),
    ],
)
async def test_an_answer_of_a_program_that_does_not_fit_raises_and_leaves_the_question_open(
    approver: Any, problems: list[str], world: World
) -> None:
    with pytest.raises(TypeError, match="does not fit the question of step `decide`") as raised:
        await world.start(plan_with_question(), approver=approver)
    assert all(problem in str(raised.value) for problem in problems)
    gate = await world.gate(step="decide")
    assert (await world.store.run(gate.run_id)).completed_at is None
    ended = await world.resume(gate.run_id, approver=CallbackApprover(lambda _: {"choice": "wait"}))
    assert (ended.status, world.struck) == (PlanStatus.COMPLETED, [])


async def test_an_answer_is_valid_only_for_the_question_that_was_asked(world: World) -> None:
    run_request = replace(world.run_request(), waits=False)
    run = await execute_plan(
        world.bound(plan_with_question()), run_request=run_request, store=world.store, offline=True, record_pending=True
    )
    first = await world.gate(step="decide")
    await world.answer(first, result=ANSWER)
    changed = plan_with_question(fields={**FIELDS, "until": Input(default="")})
    await arevise_run(run.id, changed, tools=world.tools(), by="ana", store=world.store)
    again = await world.resume(run.id, waits=False)
    assert (again.status, world.struck) == (PlanStatus.PENDING_APPROVAL, [])
    second = await world.gate(step="decide")
    assert (second.approval_digest != first.approval_digest, [*second.fields]) == (True, ["choice", "nodes", "until"])


@pytest.mark.parametrize("given", ["", "s3cr3t-value"])
async def test_an_answer_that_contains_a_secret_of_the_run_is_refused(given: str, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PLAN_ADAPTER_SECRET_TOKEN", "s3cr3t-value")
    plan = plan_with_question(fields={"choice": Input(), "nodes": Input(type="integer", default=1)})
    plan.steps.insert(0, plan.steps[1].model_copy(update={"id": "first", "when": None, "parameters": {"target": "${{ secrets.token }}"}}))
    plan.steps[1].depends_on = ["first"]
    form = FormAnswers(tuple(Answer("approve", "ana", result={"choice": f"x{prefix}"}) for prefix in dict.fromkeys((given, ""))))
    run = await world.start_with_form(plan, form)
    assert run.status is PlanStatus.COMPLETED
    refused = "the answer contains the value of a secret, and answers are recorded and shown: leave it out"
    assert form.replies == ([refused] if given else []) + [None]


SCRIPT = """\
import os, signal, sys
from plan_adapter import run_plan
from plan_adapter.local import crash_points
from plan_adapter.gates.approvers import CallbackApprover
from tests.gates.questions import plan_with_question
from tests.gates.world import Silent, World

def die(point, detail):
    if point == sys.argv[1] and (point == "gate-opened" or detail == "read"):
        os.kill(os.getpid(), signal.SIGKILL)

crash_points.listener = die
answers = CallbackApprover(lambda request: {"choice": "switch", "nodes": 3}, by="ana")
run_plan(plan_with_question(), tools=World(None, "", None).tools(), offline=True, approver=answers)
"""


@pytest.mark.parametrize("point", ["gate-opened", "before-intent", "after-intent"])
async def test_a_run_killed_at_its_question_resumes_there_and_asks_at_most_once(
    point: str, world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not world.url.startswith("sqlite"):
        pytest.skip("the killed process is the same on both databases")
    monkeypatch.setenv("PLAN_ADAPTER_DATABASE_URL", world.url)
    process = Program(SCRIPT, point, cwd=Path(__file__).parents[2])
    code = await asyncio.to_thread(process.wait)
    assert code == -signal.SIGKILL, process
    (run,) = await world.store.runs()
    gates = await world.store.gates.find(run_id=run.id, open_only=False)
    assert [gate.end for gate in gates] == [None if point == "gate-opened" else "answered"]
    if point == "gate-opened":
        answered = world.approval(gates[0])
        await world.store.gates.answer(gates[0].id, replace(answered, result=ANSWER))
    done = await world.resume(run.id, waits=False)
    assert (done.status, world.struck) == (PlanStatus.COMPLETED, ["switch on 3"])
    assert len(await world.store.gates.find(run_id=run.id, open_only=False)) == 1
    assert request_of(gates[0]).fields == FIELDS
