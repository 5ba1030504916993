"""Tests of runs that a program starts and whose gates it answers, as a web backend does."""

import re
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from plan_adapter import ExecutionPlan, PlanStore, Step, ToolRegistry, tool
from plan_adapter.errors import ContentChangedError, InvalidAnswerError, NotApprovedError, RunConflictError
from plan_adapter.gates import ApprovalPolicy
from plan_adapter.model.options import Question
from plan_adapter.plans import Input, Rollback
from plan_adapter.runs import (
    aanswer_gate,
    acontinue_run,
    aget_run,
    alist_runs,
    aopen_gates,
    arollback_run,
    astart_run,
    get_run,
    open_gates,
    start_run,
)
from plan_adapter.store import PlanStatus, RunOutcome, RunReason

DONE = list[str]()


@tool
def deploy(version: str) -> str:
    """Deploy."""
    DONE.append(version)
    return version


@tool
def undeploy(version: str) -> str:
    """Undo it."""
    DONE.append(f"undo {version}")
    return version


TOOLS = ToolRegistry([deploy, undeploy])


@pytest.fixture(autouse=True)
def nothing_done() -> None:
    DONE.clear()


def release(*, asks_at_step: bool = False, **fields: Any) -> ExecutionPlan:
    """Return a plan that deploys twice; the second time it asks, or the whole plan does."""
    steps = [
        Step(id="first", tool_name="deploy", parameters={"version": "1"}),
        Step(id="second", tool_name="deploy", parameters={"version": "2"}, depends_on=["first"], requires_approval=asks_at_step),
    ]
    plan = ExecutionPlan(name="发布", description="Deploy twice", steps=steps, **fields)
    plan.options.require_approval = not asks_at_step
    return plan


async def test_a_plan_waits_and_runs_after_the_answer(store: PlanStore) -> None:
    run = await astart_run(release(), tools=TOOLS, store=store, offline=True, by="ana")
    assert (run.status, run.requested_by, DONE) == (PlanStatus.PENDING_APPROVAL, "ana", [])
    (gate,) = await aopen_gates(run.id, store=store)
    assert "Approve 发布" in gate.text
    answered = await aanswer_gate(gate, "approve", by="bo", note="went through", store=store)
    assert answered.status is PlanStatus.PENDING_APPROVAL
    done = await acontinue_run(run.id, tools=TOOLS, store=store, offline=True)
    assert (done.status, DONE) == (PlanStatus.COMPLETED, ["1", "2"])
    (approval,) = await store.approvals(run.id)
    assert (approval.by, approval.note) == ("bo", "went through")


async def test_a_run_waits_again_at_the_gate_of_a_step(store: PlanStore) -> None:
    run = await astart_run(release(asks_at_step=True), tools=TOOLS, store=store, offline=True)
    assert (run.status, DONE) == (PlanStatus.PENDING_APPROVAL, ["1"])
    (gate,) = await aopen_gates(store=store)
    assert gate.step_id == "second"
    await aanswer_gate(gate.id, "approve", by="bo", digest=gate.approval_digest[:12], store=store)
    assert (await acontinue_run(run.id, tools=TOOLS, store=store, offline=True)).status is PlanStatus.COMPLETED
    assert DONE == ["1", "2"]


async def test_an_answer_about_other_content_is_refused_and_recorded(store: PlanStore) -> None:
    run = await astart_run(release(), tools=TOOLS, store=store, offline=True)
    (gate,) = await aopen_gates(run.id, store=store)
    with pytest.raises(ContentChangedError):
        await aanswer_gate(gate.id, "approve", by="bo", digest="0" * 12, store=store)
    with pytest.raises(TypeError, match="digest"):
        await aanswer_gate(gate.id, "approve", by="bo", store=store)
    with pytest.raises(InvalidAnswerError, match="takes `approve`, `reject`, `request_changes`, not `done`"):
        await aanswer_gate(gate, "done", by="bo", store=store)
    with pytest.raises(InvalidAnswerError, match="say in it what to change"):
        await aanswer_gate(gate, "request_changes", by="bo", store=store)
    assert any("refused" in (entry.message or "") for entry in await store.audit(run.id))
    await aanswer_gate(gate, "approve", by="bo", store=store)
    with pytest.raises(RunConflictError):
        await aanswer_gate(gate, "reject", by="ana", store=store)


async def test_only_approvers_answer_and_a_rejection_ends_the_run(store: PlanStore) -> None:
    run = await astart_run(release(approval=ApprovalPolicy(approvers=["ana"])), tools=TOOLS, store=store, offline=True)
    (gate,) = await aopen_gates(run.id, store=store)
    with pytest.raises(NotApprovedError, match="bo") as refused:
        await aanswer_gate(gate, "approve", by="bo", store=store)
    assert type(refused.value) is NotApprovedError  # neither about other content, nor a wrong answer
    ended = await aanswer_gate(gate, "reject", by="ana", note="not on Friday", store=store)
    assert (ended.status, ended.reason, ended.rejection_note) == (PlanStatus.CANCELLED, RunReason.REJECTED, "not on Friday")
    assert await aopen_gates(run.id, store=store) == []


async def test_a_question_is_answered_with_its_values(store: PlanStore) -> None:
    question = Question(question="Which version?", fields={"version": Input(enum=["7", "8"])})
    steps = [
        Step(id="decide", ask=question),
        Step(id="go", tool_name="deploy", parameters={"version": "${{ steps.decide.result.version }}"}),
    ]
    plan = ExecutionPlan(description="Ask", steps=steps)
    plan.options.require_approval = False
    run = await astart_run(plan, tools=TOOLS, store=store, offline=True)
    (gate,) = await aopen_gates(run.id, store=store)
    assert (gate.kind, [*gate.fields]) == ("question", ["version"])
    assert "Runs after it without asking again, and cannot be undone: `go`." in gate.text
    with pytest.raises(InvalidAnswerError, match="version"):
        await aanswer_gate(gate, "answer", by="bo", values={"version": "9"}, store=store)
    await aanswer_gate(gate, "answer", by="bo", values={"version": "8"}, store=store)
    assert (await acontinue_run(run.id, tools=TOOLS, store=store, offline=True)).status is PlanStatus.COMPLETED
    assert DONE == ["8"]


async def test_runs_are_listed_and_rolled_back(store: PlanStore) -> None:
    fails = Step(id="fails", tool_name="deploy", parameters={"version": "${{ steps.first.result + string(1 / int('0')) }}"})
    undo = Rollback(tool_name="undeploy", parameters={"version": "1"})
    first = Step(id="first", tool_name="deploy", parameters={"version": "1"}, rollback=undo)
    plan = ExecutionPlan(name="undo", description="d", steps=[first, fails])
    plan.options.require_approval, plan.options.stop_on_error = False, False
    run = await astart_run(plan, tools=TOOLS, store=store, offline=True)
    assert [one.id for one in await alist_runs(name="undo", store=store)] == [run.id]
    assert await alist_runs(status=PlanStatus.COMPLETED, store=store) == []
    rolled_back = await arollback_run(run.id, tools=TOOLS, store=store, offline=True)
    assert (rolled_back.outcome, DONE) == (RunOutcome.ROLLED_BACK, ["1", "undo 1"])
    assert (await aget_run(run.id[-6:], store=store)).outcome is RunOutcome.ROLLED_BACK


def test_the_twins_need_no_event_loop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PLAN_ADAPTER_HOME", str(tmp_path))
    run = start_run(release(), tools=TOOLS, offline=True)
    assert [gate.run_id for gate in open_gates(run.id)] == [run.id]
    assert get_run(run.id).status is PlanStatus.PENDING_APPROVAL


@pytest.fixture
def backend(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[TestClient]:
    """The backend of the guide, with a store of its own."""
    monkeypatch.setenv("PLAN_ADAPTER_HOME", str(tmp_path))
    page = files("plan_adapter").joinpath("guide", "embedding.md").read_text(encoding="utf-8")
    (code,) = [block for block in re.findall(r"^```python\n(.*?)^```", page, re.MULTILINE | re.DOTALL) if "FastAPI" in block]
    names = dict[str, Any]()
    exec(compile(code, "embedding.md", "exec"), names)  # the guide's own example
    with TestClient(names["app"]) as client:
        yield client


def test_the_backend_of_the_guide_starts_a_run_and_answers_its_gate(backend: TestClient) -> None:
    started = backend.post("/runs", json={"version": "v7"}, headers={"X-User": "ana"}).json()
    assert started["status"] == "pending_approval"
    (gate,) = backend.get("/gates").json()
    assert (gate["run"], "Approve" in gate["text"]) == (started["run"], True)
    wrong = backend.post(f"/gates/{gate['id']}", json={"decision": "approve", "digest": "0" * 64}, headers={"X-User": "bo"})
    assert wrong.status_code == 409, wrong.json()
    backend.post(f"/gates/{gate['id']}", json={"decision": "approve", "digest": gate["digest"]}, headers={"X-User": "bo"})
    assert backend.get(f"/runs/{started['run']}").json() == {"run": started["run"], "status": "completed", "progress": "1 of 1 step done"}
    again = backend.post(f"/gates/{gate['id']}", json={"decision": "reject", "digest": gate["digest"]}, headers={"X-User": "ana"})
    assert again.status_code == 409
