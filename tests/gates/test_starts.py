"""Tests of the approvals that let a run start and resume: in advance, from another process, altered, or withdrawn meanwhile."""

from collections.abc import Awaitable, Callable
from datetime import timedelta

import pytest

from plan_adapter import PlanRun, approve
from plan_adapter.errors import NotApprovedError, RunConflictError, StoreError
from plan_adapter.gates import reject
from plan_adapter.local.settings import Settings
from plan_adapter.model.approvals import Approval
from plan_adapter.model.options import ApprovalPolicy
from plan_adapter.model.plan import Step
from plan_adapter.model.record import Attempt, Receipt
from plan_adapter.model.status import RunReason
from plan_adapter.runs.plan_approval import end_expired
from plan_adapter.runs.start import execute_plan
from plan_adapter.store import PlanStatus, StepStatus
from plan_adapter.store.recorder import StoreRecorder
from tests.gates.test_attacks import standing
from tests.gates.world import FixedApprover, World, another

pytestmark = pytest.mark.parametrize("store_url", ["sqlite"], indirect=True)  # test_attacks.py covers both databases

SCHEDULE = "nightly/strike"


async def start(world: World, approval: Approval | None = None, *, approver: object = None, **given: object) -> PlanRun:
    run_request = world.run_request(approver, approval=approval, **given)
    return await execute_plan(world.bound(), run_request=run_request, store=world.store, offline=True)


def valid_approval(world: World, **given: object) -> Approval:
    return approve(world.plan(), tools=world.tools(), by="ana", **given)  # type: ignore[arg-type]


INVALID_APPROVALS: dict[str, Callable[[World], Approval]] = {
    "of_another_plan": lambda world: approve(world.plan(timeout_ms=1), tools=world.tools(), by="ana"),
    "of_other_inputs": lambda world: valid_approval(world, inputs={"target": "b"}),
    "of_another_effect": lambda world: approve(world.plan(), tools=world.tools(effect="idempotent_write"), by="ana"),
    "of_another_schema": lambda world: approve(world.plan(), tools=world.tools(schema=object), by="ana"),
    "expired": lambda world: valid_approval(world, valid_for=timedelta(seconds=-1)),
    "of_changes": lambda world: another(valid_approval(world), decision="request_changes"),
    "of_a_step": lambda world: another(valid_approval(world), step_id="strike"),
    "of_another_run": lambda world: another(valid_approval(world), run_id="another"),
    "with_a_signature_of_another_gate": lambda world: another(valid_approval(world), known_by="ssh_signature", signature="x"),
    "of_nothing": lambda world: another(valid_approval(world), approval_digest=""),
}


@pytest.mark.parametrize("given", INVALID_APPROVALS.values(), ids=INVALID_APPROVALS)
async def test_a_run_does_not_start_with_an_invalid_approval(given: Callable[[World], Approval], world: World) -> None:
    with pytest.raises(NotApprovedError):
        await start(world, given(world))
    assert world.struck == []


WRONG_DIGESTS: dict[str, FixedApprover] = {
    "another_digest": FixedApprover(change=lambda approval: another(approval, approval_digest="0" * 64)),
    "no_digest": FixedApprover(change=lambda approval: another(approval, approval_digest="")),
}


@pytest.mark.parametrize("approver", WRONG_DIGESTS.values(), ids=WRONG_DIGESTS)
async def test_an_approver_that_answers_with_a_wrong_digest_is_refused(approver: FixedApprover, world: World) -> None:
    with pytest.raises(NotApprovedError):
        await start(world, approver=approver)
    assert world.struck == []


SETTINGS = {
    "not_an_approver": {"approvers": ("sre",), "groups": {"sre": ["bo", "li"]}},
    "without_a_required_proof": {"known_by": ("ssh_signature", "totp")},
    "the_requester": {"allow_self_approval": False},
}


@pytest.mark.parametrize("restrictions", SETTINGS.values(), ids=SETTINGS)
async def test_the_settings_refuse_an_approver(restrictions: dict[str, object], world: World) -> None:
    world.settings = Settings(**restrictions)  # type: ignore[arg-type]
    with pytest.raises(NotApprovedError):
        await start(world, approver=FixedApprover(by="ana"), requested_by="ana")
    assert world.struck == []


@pytest.mark.parametrize(
    "restrictions", [{"approvers": ("sre",), "groups": {"sre": ["bo"]}}, {"known_by": ("totp",)}], ids=["name", "proof"]
)
async def test_the_settings_apply_to_an_approval_given_in_advance(restrictions: dict[str, object], world: World) -> None:
    world.settings = Settings(**restrictions)  # type: ignore[arg-type]
    with pytest.raises(NotApprovedError):
        await start(world, valid_approval(world))
    await world.store.add_approval(valid_approval(world))
    with pytest.raises(NotApprovedError):
        await start(world, approver=None)
    assert world.struck == []


async def test_the_members_of_a_group_may_approve(world: World) -> None:
    world.settings = Settings(approvers=("sre",), groups={"sre": ["bo", "李雷"]})
    assert (await start(world, approver=FixedApprover(by="李雷"))).status is PlanStatus.COMPLETED


async def test_the_plan_and_the_settings_must_both_allow_the_approver(world: World) -> None:
    world.settings = Settings(approvers=("ana", "bo"))
    plan = world.plan(policy=ApprovalPolicy(approvers=["bo", "li"]))
    for by, allowed in (("ana", False), ("li", False), ("bo", True)):
        task = world.start(plan, approver=FixedApprover(by=by))
        if allowed:
            assert (await task).status is PlanStatus.COMPLETED
        else:
            with pytest.raises(NotApprovedError, match=by):
                await task


async def test_settings_can_require_an_approval_that_the_author_waived(world: World) -> None:
    world.settings = Settings(allow_unapproved=False)
    plan = world.plan()
    plan.options.require_approval, plan.options.auto_approve = False, True
    with pytest.raises(NotApprovedError):
        await execute_plan(world.bound(plan), run_request=world.run_request(), store=world.store, offline=True)
    assert world.struck == []


async def test_an_approval_is_valid_for_one_run(world: World) -> None:
    approval = valid_approval(world)
    assert (await start(world, approval)).status is PlanStatus.COMPLETED
    with pytest.raises(NotApprovedError, match="belongs to run"):
        await start(world, approval)
    with pytest.raises(NotApprovedError):
        await start(world, another(approval, run_id=None, approval_digest="0" * 64))
    assert world.struck == ["a"]


async def test_a_rejection_given_in_advance_ends_the_run(world: World) -> None:
    run = await start(world, reject(world.plan(), tools=world.tools(), by="bo", note="not today"))
    assert (run.status, run.reason, run.rejection_note) == (PlanStatus.CANCELLED, RunReason.REJECTED, "not today")
    assert world.struck == []


# A run that was answered while no process waited

Change = Callable[[World, PlanRun, Approval], Awaitable[None]]


async def _deleted(world: World, _run: PlanRun, approval: Approval) -> None:
    await world.sql("DELETE FROM approvals WHERE id = :id", id=approval.id)


async def _decision_changed(world: World, _run: PlanRun, approval: Approval) -> None:
    await world.sql("UPDATE approvals SET decision = 'request_changes' WHERE id = :id", id=approval.id)


async def _moved_to_another_run(world: World, _run: PlanRun, approval: Approval) -> None:
    await world.sql("UPDATE approvals SET run_id = 'another' WHERE id = :id", id=approval.id)


async def _approved_content_changed(world: World, _run: PlanRun, approval: Approval) -> None:
    await world.sql("UPDATE approvals SET approval_digest = 'x' WHERE id = :id", id=approval.id)


async def _turned_into_a_step_approval(world: World, _run: PlanRun, approval: Approval) -> None:
    await world.sql("UPDATE approvals SET step_id = 'strike' WHERE id = :id", id=approval.id)


async def _inputs_edited(world: World, run: PlanRun, _approval: Approval) -> None:
    await world.sql("UPDATE runs SET inputs = :inputs WHERE id = :id", id=run.id, inputs='{"target":"b"}')


async def _plan_edited(world: World, run: PlanRun, _approval: Approval) -> None:
    plan = world.plan()
    plan.steps[1].parameters = {"target": "b"}
    version = await world.store.save(plan, author="mallory")
    await world.sql("UPDATE runs SET digest = :digest WHERE id = :id", id=run.id, digest=version.digest)


async def _document_edited(world: World, run: PlanRun, _approval: Approval) -> None:
    await world.sql("UPDATE plans SET document = replace(document, 'Strike it', 'Strike all') WHERE digest = :digest", digest=run.digest)


async def _digest_of_the_run_edited(world: World, run: PlanRun, _approval: Approval) -> None:
    await world.sql("UPDATE runs SET approval_digest = 'x' WHERE id = :id", id=run.id)


ALTERATIONS: tuple[Change, ...] = (
    _deleted, _decision_changed, _moved_to_another_run, _approved_content_changed, _turned_into_a_step_approval,
    _inputs_edited, _plan_edited, _document_edited, _digest_of_the_run_edited,
)  # fmt: skip


@pytest.mark.parametrize("change", ALTERATIONS, ids=lambda change: change.__name__.strip("_"))
async def test_an_approved_run_is_not_resumed_after_its_approval_or_content_was_altered(change: Change, world: World) -> None:
    run, gate = await world.detached()
    await world.answer(gate)
    approval = next(row for row in await world.store.approvals(run.id) if row.run_id == run.id)
    await change(world, run, approval)
    with pytest.raises((NotApprovedError, RunConflictError, Exception)) as refused:
        await world.resume(run.id)
    assert type(refused.value).__module__.startswith("plan_adapter")
    assert world.struck == []


@pytest.mark.parametrize("tools", [{"effect": "idempotent_write"}, {"schema": object}], ids=["effect", "schema"])
async def test_an_approved_run_is_not_resumed_with_changed_tools(tools: dict[str, object], world: World) -> None:
    run, gate = await world.detached()
    await world.answer(gate)
    with pytest.raises(NotApprovedError, match="have changed"):
        await world.resume(run.id, tools=world.tools(**tools))  # type: ignore[arg-type]
    assert world.struck == []


async def test_an_answer_is_late_by_the_databases_clock_and_not_by_the_hosts(world: World) -> None:
    run, gate = await world.detached(world.plan(timeout_ms=60_000))
    await world.sql("UPDATE gates SET expires_at = opened_at WHERE id = :id", id=gate.id)
    with pytest.raises(RunConflictError, match="nobody answered until"):
        await world.answer(gate)
    assert (await world.store.gates.get(gate.id)).end == "expired"
    assert world.struck == []
    assert run.id == gate.run_id


async def test_an_expired_detached_run_is_ended_by_the_next_process_that_checks_it(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    run, gate = await world.detached(world.plan(timeout_ms=60_000))
    await world.sql("UPDATE gates SET expires_at = opened_at WHERE id = :id", id=gate.id)
    monkeypatch.setattr("plan_adapter.model.host_process.HostProcess.is_alive", False)
    await end_expired(world.store)
    ended = await world.store.run(run.id)
    assert (ended.status, ended.reason) == (PlanStatus.CANCELLED, RunReason.EXPIRED)
    with pytest.raises(RunConflictError, match="expired"):
        await world.resume(run.id)


@pytest.mark.parametrize("gated", [False, True], ids=["plan", "step"])
async def test_an_unanswered_gate_ends_the_run_as_expired(gated: bool, world: World) -> None:
    run = await world.start(world.plan(gated=gated, timeout_ms=300))
    assert (run.status, run.reason) == (PlanStatus.CANCELLED, RunReason.EXPIRED)
    assert run.message == "nobody answered within 300 ms" + (" at the gate of `strike`" if gated else "")
    assert world.struck == []


async def test_the_skip_policy_skips_only_the_unanswered_step(world: World) -> None:
    plan = world.plan(gated=True, timeout_ms=300, policy=ApprovalPolicy(expires="skip"))
    plan.add_step("look", "Look elsewhere", {"target": "b"}, id="elsewhere")
    run = await world.start(plan)
    assert run.status is PlanStatus.COMPLETED
    assert [step.status for step in run.steps] == [StepStatus.COMPLETED, StepStatus.SKIPPED, StepStatus.COMPLETED]
    assert world.struck == []


DEPENDENTS: dict[str, Step] = {
    "by name": Step(id="then", tool_name="look", description="Then", parameters={"target": "then"}, depends_on=["strike"]),
    "by reference": Step(id="then", tool_name="look", description="Then", parameters={"target": "${{ string(steps.strike.result) }}"}),
    "by a condition that null meets": Step(
        id="then", tool_name="look", description="Then", parameters={"target": "then"}, when="${{ steps.strike.result != 'wait' }}"
    ),
    "a group": Step(
        id="then",
        description="Then",
        for_each="${{ ['x'] }}",
        depends_on=["strike"],
        steps=[Step(id="inner", tool_name="look", description="Inner", parameters={"target": "${{ item }}"})],
    ),
}


@pytest.mark.parametrize("dependent", DEPENDENTS.values(), ids=DEPENDENTS)
async def test_the_skip_policy_also_skips_what_depends_on_the_unanswered_step(dependent: Step, world: World) -> None:
    plan = world.plan(gated=True, timeout_ms=300, policy=ApprovalPolicy(expires="skip"))
    plan.steps.append(dependent.model_copy(deep=True))
    plan.finally_ = [Step(id="tidy", tool_name="look", description="Tidy", parameters={"target": "tidy"})]
    plan.number_steps()
    run = await world.start(plan)
    assert (run.status, world.struck, run.step("tidy").status) == (PlanStatus.COMPLETED, [], StepStatus.COMPLETED)
    assert (run.step("then").status, (run.step("then").reason or "")[:32]) == (StepStatus.SKIPPED, "`strike` was skipped: nobody ans")


async def test_of_a_step_that_its_condition_skips_the_dependents_still_run(world: World) -> None:
    plan = world.plan(policy=ApprovalPolicy(expires="skip"))
    plan.options.require_approval = False
    plan.steps[1].when = "${{ false }}"
    plan.steps.append(DEPENDENTS["by name"].model_copy(deep=True))
    plan.number_steps()
    run = await world.start(plan)
    assert [run.step(name).status for name in ("strike", "then")] == [StepStatus.SKIPPED, StepStatus.COMPLETED]


# Approvals withdrawn while steps run: the next call is refused

WITHDRAWALS: dict[str, str] = {
    "deleted": "DELETE FROM approvals WHERE run_id = :run",
    "decided_otherwise": "UPDATE approvals SET decision = 'reject' WHERE run_id = :run",
    "moved_to_another_run": "UPDATE approvals SET run_id = 'another' WHERE run_id = :run",
    "of_other_content": "UPDATE approvals SET approval_digest = 'x' WHERE run_id = :run",
    "never_used": "UPDATE approvals SET used_at = NULL WHERE run_id = :run",
    "of_a_step": "UPDATE approvals SET step_id = 'look' WHERE run_id = :run",
    "for_another_content_of_the_run": "UPDATE runs SET approval_digest = 'x' WHERE id = :run",
}


@pytest.mark.parametrize("statement", WITHDRAWALS.values(), ids=WITHDRAWALS)
async def test_no_further_step_is_called_once_the_approval_is_withdrawn(statement: str, world: World) -> None:
    async def withdraw(run: PlanRun, step: object) -> None:
        await world.sql(statement, run=run.id)

    from plan_adapter.runs import Hooks

    run = await world.start(approver=FixedApprover(), hooks=Hooks(on_step_complete=withdraw))
    assert world.struck == []
    assert run.step("look").status is StepStatus.COMPLETED
    assert run.step("strike").status is StepStatus.FAILED
    assert "approv" in (run.step("strike").error or "")


async def test_no_further_step_is_called_once_the_standing_approval_is_revoked(world: World) -> None:
    from plan_adapter.runs import Hooks

    given = await standing(world)
    await world.store.standing.add(given)

    async def revoke(_run: PlanRun, _step: object) -> None:
        await world.store.standing.revoke(given.id, by="bo")

    run = await start(world, approver=FixedApprover("reject"), schedule=SCHEDULE, hooks=Hooks(on_step_complete=revoke))
    assert world.struck == []
    assert "revoked" in (run.step("strike").error or "")


# Standing approvals


async def test_a_standing_approval_covers_scheduled_runs_and_is_recorded_with_each(world: World) -> None:
    given = await standing(world)
    await world.store.standing.add(given)
    for uses in (1, 2):
        run = await start(world, approver=FixedApprover("reject"), schedule=SCHEDULE)
        assert run.status is PlanStatus.COMPLETED
        assert [row.standing_id for row in await world.store.approvals(run.id) if row.run_id == run.id] == [given.id]
        assert (await world.store.standing.find(include_ended=True))[0].runs == uses
    assert (await start(world, approver=FixedApprover("reject"), schedule=SCHEDULE)).reason is RunReason.REJECTED
    assert world.struck == ["a", "a"]


UNCOVERED = {
    "by_no_schedule": ({}, None),
    "by_another_schedule": ({}, "nightly/other"),
    "revoked": ({"revoked_at": "now", "revoked_by": "bo"}, SCHEDULE),
    "over": ({"until": "now"}, SCHEDULE),
    "used_up": ({"max_runs": 0}, SCHEDULE),
    "of_another_runbook": ({"runbook_digest": "x"}, SCHEDULE),
    "of_other_inputs": ({"inputs": {"target": "[b-z]"}}, SCHEDULE),
}


@pytest.mark.parametrize(("changes", "schedule"), UNCOVERED.values(), ids=UNCOVERED)
async def test_a_run_that_no_standing_approval_covers_needs_an_answer(
    changes: dict[str, object], schedule: str | None, world: World
) -> None:
    now = await world.now()
    given = await standing(world, **{name: now if value == "now" else value for name, value in changes.items()})
    await world.store.standing.add(given)
    run = await start(world, approver=FixedApprover("reject"), schedule=schedule)
    assert (run.status, run.reason) == (PlanStatus.CANCELLED, RunReason.REJECTED)
    assert world.struck == []


@pytest.mark.parametrize("named", [True, False], ids=["named", "not_named"])
async def test_a_standing_approval_answers_a_step_gate_only_if_it_names_the_step(named: bool, world: World) -> None:
    plan = world.plan(gated=True)
    plan.options.require_approval = True
    bound = world.bound(plan)
    from plan_adapter.model.canonical import runbook_digest

    digest = runbook_digest(bound.validated.digest, bound.validated.definitions)
    await world.store.standing.add(await standing(world, runbook_digest=digest, steps=("strike",) if named else ()))
    run_request = world.run_request(FixedApprover("reject"), schedule=SCHEDULE)
    run = await execute_plan(bound, run_request=run_request, store=world.store, offline=True)
    assert world.struck == (["a"] if named else [])
    assert run.status is (PlanStatus.COMPLETED if named else PlanStatus.CANCELLED)


# Step approvals over several starts of a run


async def test_an_unused_call_approval_is_still_valid_on_resume(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(StoreRecorder, "intent", disk_full_at(StoreRecorder.intent, step="strike"))
        with pytest.raises(StoreError):
            await world.start(world.plan(gated=True), approver=FixedApprover())
    interrupted = (await world.store.runs())[0]
    assert (interrupted.reason, world.struck) == (RunReason.INTERRUPTED, [])
    run = await world.resume(interrupted.id)
    assert (run.status, world.struck) == (PlanStatus.COMPLETED, ["a"])


def disk_full_at(intent: Callable[[StoreRecorder, Attempt], Awaitable[None]], *, step: str) -> Callable[..., Awaitable[None]]:
    async def write(recorder: StoreRecorder, attempt: Attempt) -> None:
        if attempt.step_id == step:
            raise StoreError("the disk is full")
        await intent(recorder, attempt)

    return write


async def test_an_approval_of_an_interrupted_call_does_not_approve_its_repetition(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    plan, tools = world.plan(gated=True), world.tools(effect="idempotent_write")
    receipt_of = StoreRecorder.receipt

    def disk_full(recorder: StoreRecorder, receipt: Receipt) -> None:
        if receipt.step_id == "strike":
            raise StoreError("the disk is full")
        receipt_of(recorder, receipt)

    with monkeypatch.context() as patched:
        patched.setattr(StoreRecorder, "receipt", disk_full)
        with pytest.raises(StoreError):
            await world.start(plan, approver=FixedApprover(), tools=tools)
    (interrupted,) = await world.store.runs()
    refused = await world.resume(interrupted.id, approver=FixedApprover("reject"), tools=tools)
    assert (refused.reason, world.struck) == (RunReason.REJECTED, ["a"])


async def test_a_call_approval_used_in_an_earlier_start_is_asked_for_again(world: World) -> None:
    plan = world.plan(gated=True)
    plan.steps[1].done_when = "${{ inputs.target == 'b' }}"  # never met: the step fails after its call
    run = await world.start(plan, approver=FixedApprover())
    assert (run.status, world.struck) == (PlanStatus.PARTIAL, ["a"])
    again = await world.resume(run.id, approver=FixedApprover("reject"))
    assert (again.reason, world.struck) == (RunReason.REJECTED, ["a"])
