"""Tests of `PlanSession`, with which an agent drafts and runs plans but never approves them."""

from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path

import pytest

from plan_adapter import ExecutionPlan, PlanStore
from plan_adapter.agent import OpenAIModel, PlanSession
from plan_adapter.errors import DraftError, NotApprovedError, RunConflictError
from plan_adapter.gates import CallbackApprover
from plan_adapter.store import PlanStatus, RunReason
from tests.agent.server import ScriptedServer, says, scripted
from tests.agent.test_planner import GOOD, TASK, TOOLS, done, step


@pytest.fixture
async def server() -> AsyncIterator[ScriptedServer]:
    with scripted(says(GOOD)) as server:
        yield server


@pytest.fixture
async def session(server: ScriptedServer, tmp_path: Path) -> AsyncIterator[PlanSession]:
    model = OpenAIModel("m", base_url=server.url)
    async with PlanStore(f"sqlite:///{tmp_path / 'plans.db'}") as store:
        yield PlanSession(model, TOOLS, store=store, offline=True)
    await model.aclose()


async def test_a_task_is_drafted_approved_and_run(session: PlanSession) -> None:
    plan = await session.draft(TASK)
    assert (session.current_plan, session.problems()) == (plan, [])
    assert (session.summary().status, session.summary().pending) == (PlanStatus.PENDING_APPROVAL, 3)
    with pytest.raises(NotApprovedError):
        await session.execute()
    approval = session.approve(by="ana", note="好", valid_for=timedelta(hours=1))
    assert (approval.by, session.summary().status) == ("ana", PlanStatus.APPROVED)
    run = await session.execute()
    assert (run.status, session.run, session.summary().progress) == (PlanStatus.COMPLETED, run, 100.0)
    assert "backup" in session.format()
    with pytest.raises(NotApprovedError):  # the approval was used up
        await session.execute()
    assert session.store is not None
    assert [draft.id for draft in await session.store.drafts.newest()] == [session.current_draft.id if session.current_draft else ""]


async def test_an_edited_plan_needs_a_new_approval(session: PlanSession) -> None:
    plan = await session.draft(TASK)
    session.approve(by="ana")
    plan.step("deploy").parameters["version"] = "6.6.6"
    with pytest.raises(NotApprovedError):
        await session.execute()


async def test_a_rejected_plan_is_recorded_as_rejected(session: PlanSession) -> None:
    await session.draft(TASK)
    session.reject(by="ana", note="not now")
    assert session.summary().status is PlanStatus.CANCELLED
    run = await session.execute()
    assert (run.status, run.reason, run.rejection_note) == (PlanStatus.CANCELLED, RunReason.REJECTED, "not now")


async def test_execute_directly_asks_the_approver(session: PlanSession) -> None:
    with pytest.raises(NotApprovedError, match="pass an approver to the session"):
        await session.execute_directly(TASK)
    asked: list[str] = []

    def answer(request: object) -> bool:
        asked.append(str(request))
        return True

    session.approver = CallbackApprover(answer, by="ana")
    run = await session.execute_directly(TASK)
    assert (run.status, len(asked)) == (PlanStatus.COMPLETED, 1)


async def test_a_failed_draft_leaves_the_session_unchanged(session: PlanSession, server: ScriptedServer) -> None:
    plan = await session.draft(TASK)
    server.script = [says(done(step("deploi", {})))]
    with pytest.raises(DraftError):
        await session.draft("Something else")
    assert session.current_plan is plan
    session.clear()
    for act in (session.problems, session.summary, session.format):
        with pytest.raises(RunConflictError, match="no current plan"):
            act()
    with pytest.raises(RunConflictError, match="nothing has run yet"):
        await session.resume()


async def test_a_failed_run_can_be_resumed_but_not_cancelled(session: PlanSession) -> None:
    plan = ExecutionPlan(description="Look")
    plan.add_step("look", "Look", {"url": "x", "attempts": 1}, id="look", done_when="${{ result.attempts == 2 }}")
    session.use(plan)
    session.approve(by="ana")
    assert (await session.execute()).status is PlanStatus.FAILED
    assert (await session.resume()).status is PlanStatus.FAILED
    with pytest.raises(RunConflictError):
        await session.cancel("enough")
