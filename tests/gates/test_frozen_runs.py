"""Tests of runs during change freezes: which are refused or wait, and what an override takes."""

import asyncio
import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from plan_adapter import ExecutionPlan, PlanRun, approve
from plan_adapter.cli.asking import YesApprover
from plan_adapter.errors import ApprovalRequiredError, NotApprovedError
from plan_adapter.execution.history import RunHistory
from plan_adapter.gates.approvers import CallbackApprover
from plan_adapter.gates.policy import policy_of
from plan_adapter.model.approvals import AGREE, Gate
from plan_adapter.model.audited import Period
from plan_adapter.model.options import ApprovalPolicy
from plan_adapter.model.plan import new_id
from plan_adapter.model.status import RunReason
from plan_adapter.runs.resume import execute_resume
from plan_adapter.runs.run_session import RunRequest, RunSession
from plan_adapter.runs.start import create_run, execute_plan, execute_run
from plan_adapter.store import PlanStatus
from plan_adapter.store.policies import NewPolicy
from plan_adapter.store.proof.verification import verify
from plan_adapter.text.audit_pack import deviations
from tests.gates.test_attacks import standing
from tests.gates.test_starts import SCHEDULE
from tests.gates.world import FixedApprover, World
from tests.store.conftest import on_both_databases

CAB = {"approvers": ["cab"], "quorum": 2}


def freeze(*, lasts: timedelta = timedelta(days=2), **fields: Any) -> dict[str, Any]:
    """Return a freeze that is in force."""
    now = datetime.now(UTC)
    period = {"from": (now - timedelta(hours=1)).isoformat(), "until": (now + lasts).isoformat()}
    return {"name": "年终 year-end", "reason": "Year-end close", **period, **fields}


async def set_policy(world: World, *freezes: dict[str, Any], **fields: Any) -> None:
    current = await world.store.policy.current()
    number = 1 if current is None else current.number + 1
    policy = policy_of({"groups": {"cab": ["cara", "carl", "ana"]}, **fields, "freezes": [*freezes]})
    await world.store.policy.set(NewPolicy(policy, number, "ana", "os_user"))


async def ask_to_override(world: World, plan: ExecutionPlan | None = None, **given: Any) -> PlanRun:
    """Return a run that waits without a process for the approval that overrides the freeze."""
    run_request = world.run_request(override_freeze="INC-123: 热修复", **given)
    return await execute_plan(world.bound(plan), run_request=run_request, store=world.store, offline=True, record_pending=True)


async def ask_to_resume(world: World, run_id: str, **given: Any) -> PlanRun:
    """Return a run that `plan resume --detach` resumes, or leaves waiting at its gate."""
    run_request = world.run_request(**given)
    return await execute_resume(run_id, tools=world.tools(), run_request=run_request, store=world.store, offline=True, record_pending=True)


async def agree(world: World, gate: Gate, *people: str) -> Gate:
    for by in people:
        gate = await world.answer(gate, by=by)
    return gate


# Refused, and waiting


async def test_a_run_is_refused_before_anything_is_recorded(world: World) -> None:
    await set_policy(world, freeze(override=CAB))
    with pytest.raises(NotApprovedError) as refused:
        await world.start(approver=FixedApprover())
    assert "the run does not start: change freeze `年终 year-end` until 20" in str(refused.value)
    assert "(Year-end close): cab can override it, 2 different people together; `plan run … --override-freeze" in str(refused.value)
    assert (await world.store.runs(), world.struck) == ([], [])


async def test_a_run_with_other_tags_starts(world: World) -> None:
    await set_policy(world, freeze(tags=["production"]))
    assert (await world.start(approver=FixedApprover())).status is PlanStatus.COMPLETED
    plan = world.plan()
    plan.tags = ["web", "production"]
    with pytest.raises(NotApprovedError, match="nobody can override it"):
        await world.start(plan, approver=FixedApprover())


async def test_a_run_waits_for_the_end_of_a_freeze_and_says_so(world: World) -> None:
    await set_policy(world, freeze(when="wait"))
    task, seen = world.start(approver=FixedApprover()), ""
    while "waits: " not in seen:
        await world.store.changed(0.5)
        seen = next((run.message or "" for run in await world.store.runs()), "")
    assert seen.startswith("waits: change freeze `年终 year-end` until 20")
    assert "FREEZE 年终 year-end until" in (await world.store.gates.find(open_only=False, with_texts=True))[0].text
    assert world.struck == []
    await set_policy(world)
    assert ((await task).status, (await task).message, world.struck) == (PlanStatus.COMPLETED, None, ["a"])


async def test_a_freeze_ends_by_itself(world: World) -> None:
    await set_policy(world, freeze(when="wait", lasts=timedelta(seconds=1)))
    run = await world.start(approver=FixedApprover())
    end = (await world.store.policy.effective(world.settings)).stored.freezes[0].until or ""
    assert run.status is PlanStatus.COMPLETED
    assert min(attempt.started_at for attempt in await world.store.attempts(run.id)) >= datetime.fromisoformat(end)


async def test_a_run_is_resumed_only_after_the_freeze(world: World) -> None:
    run, gate = await world.detached()
    await world.answer(gate)
    await set_policy(world, freeze())
    with pytest.raises(NotApprovedError, match="nobody can override it"):
        await world.resume(run.id)
    assert ((await world.store.run(run.id)).status, world.struck) == (PlanStatus.PENDING_APPROVAL, [])
    await set_policy(world)
    assert ((await world.resume(run.id)).status, world.struck) == (PlanStatus.COMPLETED, ["a"])


async def test_an_approval_during_a_freeze_that_began_meanwhile_starts_nothing(world: World) -> None:
    async def ask(_request: Any) -> bool:
        await set_policy(world, freeze())
        return True

    run = await world.start(approver=CallbackApprover(ask, by="ana"))
    assert (run.status, run.reason, world.struck) == (PlanStatus.CANCELLED, RunReason.CANCELLED, [])
    assert (run.message or "").startswith("change freeze `年终 year-end` until")


async def test_a_run_that_has_started_goes_on(world: World) -> None:
    task = world.start(world.plan(gated=True))
    gate = await world.gate(step="strike")
    await set_policy(world, freeze())
    await world.answer(gate)
    assert ((await task).status, world.struck) == (PlanStatus.COMPLETED, ["a"])


async def test_a_scheduled_run_is_cancelled_and_nobody_is_asked(world: World) -> None:
    await set_policy(world, freeze(override=CAB))
    await world.store.standing.add(await standing(world))
    bound, run_request = world.bound(), world.run_request(asks_in_form=True, schedule=SCHEDULE)
    run = await create_run(bound, world.store, run_request)
    ended = await execute_run(RunSession(bound, run, world.store, run_request, RunHistory()))
    assert (ended.status, ended.reason) == (PlanStatus.CANCELLED, RunReason.CANCELLED)
    assert "cab can override it" in (ended.message or "")
    assert (await world.store.gates.find(open_only=False), (await world.store.standing.find())[0].runs) == ([], 0)


# Overrides


@on_both_databases
async def test_an_override_takes_the_people_whom_the_freeze_names(world: World) -> None:
    await set_policy(world, freeze(override=CAB))
    run = await ask_to_override(world, world.plan(policy=ApprovalPolicy(approvers=["cara", "carl", "zoe"])))
    gate = await world.store.gates.get((await world.gate()).id)
    assert (gate.gate_policy.approvers, gate.gate_policy.quorum) == (("cara", "carl"), 2)
    first = next(line for line in gate.text.splitlines() if line.strip())
    assert "FREEZE 年终 year-end until" in first
    assert "(Year-end close): approving overrides it. Asked for by runner: INC-123: 热修复" in first
    for outsider in ("zoe", "ana"):
        with pytest.raises(NotApprovedError):
            await world.answer(gate, by=outsider)
    assert (await agree(world, gate, "cara")).end is None
    with pytest.raises(ApprovalRequiredError):
        await world.resume(run.id)
    await agree(world, gate, "carl")
    ended = await world.resume(run.id)
    assert (ended.status, ended.approved_by, world.struck) == (PlanStatus.COMPLETED, "cara and carl", ["a"])
    assert (await world.store.verify(run.id)).ok


async def test_an_override_is_recorded_and_verified(world: World) -> None:
    await set_policy(world, freeze(override={"approvers": ["cab"]}))
    run = await ask_to_override(world)
    await agree(world, await world.gate(), "cara")
    await world.resume(run.id)
    period = Period(run.created_at - timedelta(days=1), run.created_at + timedelta(days=1))
    found = await world.store.change_records.read(period, choose=list)
    (record,) = found.sample
    assert "override of a change freeze requested by runner (unverified): INC-123: 热修复" in deviations(record)
    document = await world.store.export(run.id)
    assert [(entry["by"], entry["message"]) for entry in document["audit"] if entry["kind"] == "override_requested"] == [
        ("runner", "INC-123: 热修复")
    ]
    assert json.loads(document["gates"][0]["rules"])["overrides"][0]["name"] == "年终 year-end"
    without = {**document, "audit": [entry for entry in document["audit"] if entry["kind"] != "override_requested"]}
    assert not verify(without).ok


async def test_a_plan_that_needs_no_approval_needs_one_to_override(world: World) -> None:
    await set_policy(world, freeze(override=CAB))
    plan = world.plan()
    plan.options.require_approval = False
    run = await ask_to_override(world, plan)
    await agree(world, await world.gate(), "cara", "ana")
    assert (await world.resume(run.id)).status is PlanStatus.COMPLETED


async def test_what_was_approved_before_overrides_nothing(world: World) -> None:
    run, gate = await world.detached()
    await world.answer(gate, by="cara")
    await set_policy(world, freeze(override={"approvers": ["cab"]}))
    assert (await ask_to_resume(world, run.id, override_freeze="INC-123")).status is PlanStatus.PENDING_APPROVAL
    again = await world.gate()
    assert (again.id == gate.id, again.gate_policy.approvers) == (False, ("cara", "carl", "ana"))
    await agree(world, again, "carl")
    assert (await world.resume(run.id)).status is PlanStatus.COMPLETED


async def test_nothing_given_in_advance_overrides_a_freeze(world: World) -> None:
    await set_policy(world, freeze(override={"approvers": ["cab", "ana"]}))
    await world.store.standing.add(await standing(world))
    await world.store.add_approval(approve(world.plan(), tools=world.tools(), by="ana"))
    run = await ask_to_override(world, schedule=SCHEDULE, approval=approve(world.plan(), tools=world.tools(), by="ana"))
    assert run.status is PlanStatus.PENDING_APPROVAL
    with pytest.raises(NotApprovedError, match="never in advance"):
        await ask_to_override(world, approver=YesApprover())
    assert world.struck == []


async def test_a_freeze_that_waits_still_does_when_another_one_is_overridden(world: World) -> None:
    document = freeze(override={"approvers": ["cab"]})
    await set_policy(world, document, freeze(name="weekend", when="wait"))
    run = await ask_to_override(world)
    gate = await agree(world, await world.gate(), "cara")
    assert [each.name for each in gate.gate_policy.overrides] == ["年终 year-end"]
    task = asyncio.ensure_future(world.resume(run.id))
    while "weekend" not in ((await world.store.run(run.id)).message or ""):
        await world.store.changed(0.5)
    await set_policy(world, document)
    assert (await task).status is PlanStatus.COMPLETED
    with pytest.raises(NotApprovedError, match="nobody override the change freeze `hard`"):
        await set_policy(world, document, freeze(name="hard"))
        await ask_to_override(world)


async def test_an_open_gate_is_replaced_once_somebody_asks_to_override(world: World) -> None:
    run, gate = await world.detached()
    await set_policy(world, freeze(override=CAB))
    await ask_to_resume(world, run.id, override_freeze="INC-123")
    await ask_to_resume(world, run.id)
    found = await world.store.gates.find(run_id=run.id, open_only=False)
    assert [(each.end, each.gate_policy.quorum, len(each.gate_policy.overrides)) for each in found] == [("superseded", 1, 0), (None, 2, 1)]
    assert found[0].id == gate.id


@pytest.mark.parametrize(
    ("override", "message"),
    [
        (None, "the policy lets nobody override the change freeze .*; without --override-freeze it waits"),
        ({"approvers": ["cara", "runner"], "quorum": 2}, "only cara may"),
    ],
)
async def test_an_override_that_nobody_or_too_few_can_give_is_refused(world: World, override: Any, message: str) -> None:
    fields = {} if override is None else {"override": override}
    await set_policy(world, freeze(when="wait", **fields))
    with pytest.raises(NotApprovedError, match=message):
        await ask_to_override(world, world.plan(policy=ApprovalPolicy(self_approval=False)))
    assert await world.store.runs() == []


async def test_people_who_joined_may_override_and_those_of_the_plan_alone_may_not(world: World) -> None:
    await set_policy(world, freeze(override=CAB), groups={"cab": ["cara", "carl"], "sre": ["cara", "carl"]})
    await ask_to_override(world, world.plan(policy=ApprovalPolicy(approvers=["sre"])))
    gate = await world.gate()
    current = await world.store.policy.current()
    assert current is not None
    (kept,) = current.policy.freezes
    document = kept.model_dump(mode="json", exclude_unset=True, by_alias=True)
    await set_policy(world, document, groups={"cab": ["cara", "carl", "cleo"], "sre": ["cara", "carl", "cleo", "sam"]})
    from plan_adapter.gates.approval import with_current_policy

    policy = await world.store.policy.effective(world.settings)
    now = with_current_policy(gate.gate_policy, world.plan(policy=ApprovalPolicy(approvers=["sre"])), policy, step_id=None)
    assert now.approvers == ("cara", "carl", "cleo")


async def test_an_override_whose_people_the_policy_no_longer_names_is_stale(world: World) -> None:
    document = freeze(override={"approvers": ["cab"]})
    await set_policy(world, document)
    run = await ask_to_override(world)
    await agree(world, await world.gate(), "cara")
    await set_policy(world, document, groups={"cab": ["carl"]})
    with pytest.raises(ApprovalRequiredError, match="the approval by cara is stale"):
        await world.resume(run.id)
    assert world.struck == []


async def test_the_calls_of_an_overridden_run_rest_on_all_its_approvals(world: World) -> None:
    await set_policy(world, freeze(override=CAB))
    plan = world.plan(gated=True)
    run = await ask_to_override(world, plan)
    await agree(world, await world.gate(), "cara", "carl")
    resumed = asyncio.ensure_future(world.resume(run.id, approver=_Deleting(world)))
    ended = await resumed
    assert (ended.status, world.struck) == (PlanStatus.PARTIAL, [])
    assert "2 different people must approve, and only carl did" in (ended.step("strike").error or "")


class _Deleting:
    """An approver of the gated step, who first deletes the first approval of the plan from the database."""

    def __init__(self, world: World) -> None:
        self._world = world

    async def ask(self, request: Any) -> Any:
        assert "FREEZE 年终 year-end until" in request.text
        assert "this run has started and goes on." in request.text
        await self._world.sql(f"DELETE FROM approvals WHERE decision = '{AGREE}'")
        return await FixedApprover(by="ana").ask(request)


async def test_an_approval_from_before_the_freeze_does_not_replace_the_override(world: World) -> None:
    plan = world.plan(gated=True)
    plan.options.require_approval = True
    run, gate = await world.detached(plan)
    await agree(world, gate, "cara")
    assert (await ask_to_resume(world, run.id, waits=False)).status is PlanStatus.PENDING_APPROVAL
    await set_policy(world, freeze(override=CAB))
    with pytest.raises(NotApprovedError, match="cab can override it"):
        await world.resume(run.id)
    await ask_to_resume(world, run.id, waits=False, override_freeze="INC-123")
    await agree(world, await world.gate(), "cara", "carl")
    ended = await world.resume(run.id, approver=_Deleting(world))
    assert (ended.status, world.struck) == (PlanStatus.PARTIAL, [])
    assert "2 different people must approve, and only carl did" in (ended.step("strike").error or "")


async def test_no_freeze_asks_nothing_of_a_run_with_an_override(world: World) -> None:
    await set_policy(world, freeze(tags=["production"], override=CAB))
    run = await execute_plan(
        world.bound(), run_request=replace(world.run_request(FixedApprover()), override_freeze="INC-1"), store=world.store, offline=True
    )
    assert run.status is PlanStatus.COMPLETED
    assert await world.store.operator_requests.override(run.id) is None


def test_a_request_has_no_override_unless_one_is_asked_for() -> None:
    assert RunRequest(run_id=new_id()).override_freeze is None
